"""Hard numbers: scales, constant and duplicate columns, one-hot traps, dead networks, fewer rows than width."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import torch
from torch import nn

import nobsp
from campaign.outcome import Outcome, defect, right
from campaign.part import Part, generator
from campaign.subjects import make_network, seeded
from nobsp.projection import Moments, Ridge, partial_coefficients

# Of the reference.
DIGITS = 60
# Stated bounds, as shares of the size of what is added up. Contributions of moments agree with sixty digits to the
# rounding of a solve whose condition is 1/ridge; accounts add up to the rounding of their sums.
SOLVE = 1e-7
ACCOUNT = 1e-9
# Another unit of a column changes neither the model's outputs nor where its knots lie, but rounds every product.
UNITS = 1e-6


class BoundError(Exception):
    """A stated bound does not hold."""


def _require(name: str, difference: float, bound: float) -> None:
    if not difference <= bound:
        raise BoundError(f"{name} differs by {difference:.2g}, more than {bound:.0e}")


# ---------------------------------------------------------------------- the algebra, against sixty digits


def _design(rng: np.random.Generator, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Target, reference and outputs of a few rows, difficult in one way."""
    rows = 4 if kind == "fewer rows than columns" else 12
    target = rng.normal(size=(rows, 3))
    reference = rng.normal(size=(rows, 4))
    if kind == "large":
        target *= 1e8
    elif kind == "tiny":
        target *= 1e-8
    elif kind == "far from zero":
        target += 1e6
    elif kind == "constant column":
        target[:, 1] = 3.0
    elif kind == "duplicate column":
        target[:, 2] = target[:, 1]
    elif kind == "one-hot":
        codes = rng.integers(0, 3, rows)
        target = np.eye(3)[codes]
    elif kind == "in the reference":
        target[:, 0] = reference[:, 0]
    outputs = target @ rng.normal(size=(3, 2)) + reference @ rng.normal(size=(4, 2))
    return target, reference, outputs


DESIGNS = (
    "plain",
    "large",
    "tiny",
    "far from zero",
    "constant column",
    "duplicate column",
    "one-hot",
    "in the reference",
    "fewer rows than columns",
)


def _centred(values: np.ndarray) -> mpmath.matrix:
    matrix = mpmath.matrix(values.tolist())
    for column in range(matrix.cols):
        mean = mpmath.fsum(matrix[row, column] for row in range(matrix.rows)) / matrix.rows
        for row in range(matrix.rows):
            matrix[row, column] -= mean
    return matrix


def _solve(gram: mpmath.matrix, right_side: mpmath.matrix) -> mpmath.matrix:
    return gram**-1 * right_side


def _exact(
    target: np.ndarray, reference: np.ndarray, outputs: np.ndarray, ridges: tuple[float, float]
) -> np.ndarray:
    """What the unique part of the target contributes to every row, in sixty digits."""
    with mpmath.workdps(DIGITS):
        z = _centred(target)
        a = _centred(reference)
        y = _centred(outputs)
        gram = a.T * a + mpmath.mpf(ridges[0]) * mpmath.eye(a.cols)
        z_left = z - a * _solve(gram, a.T * z)
        y_left = y - a * _solve(gram, a.T * y)
        left = z_left.T * z_left + mpmath.mpf(ridges[1]) * mpmath.eye(z.cols)
        contribution = z * _solve(left, z_left.T * y_left)
        return np.array(contribution.tolist(), dtype=float)


def _algebra(rng: np.random.Generator) -> str:
    kind = str(rng.choice(DESIGNS))
    target, reference, outputs = _design(rng, kind)
    blocks = {
        "target": torch.from_numpy(target),
        "reference": torch.from_numpy(reference),
        "outputs": torch.from_numpy(outputs),
    }
    moments = Moments({name: block.shape[1] for name, block in blocks.items()}).update(blocks)
    found = partial_coefficients(moments, ridge=Ridge(1e-4))
    expected = _exact(target, reference, outputs, found.ridges)
    centred = target - target.mean(0)
    contribution = centred @ found.coefficients.numpy()
    size = np.abs(outputs - outputs.mean(0)).max()
    # Subtracting a mean a million times as large costs six of sixteen digits.
    bound = SOLVE * (1e4 if kind == "far from zero" else 1.0)
    _require("the contribution", float(np.abs(contribution - expected).max() / size), bound)
    return f"algebra, {kind}"


# ---------------------------------------------------------------------- whole tables


def _account_of(model: nn.Module, X: np.ndarray, **options: object) -> nobsp.Explanation:
    settings = {"background": 8, "interactions": 0, **options}
    explanation = nobsp.NObSP(model, **settings).fit(X)(X)  # type: ignore[arg-type]
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    size = max(1e-300, np.abs(explanation.predictions).max(), np.abs(explanation.values).max())
    if not np.isfinite(explanation.values).all():
        raise BoundError("values are not finite")
    _require("the account", float(np.abs(account - explanation.predictions).max() / size), ACCOUNT)
    return explanation


class _InUnits(nn.Module):
    """A model of columns in other units."""

    def __init__(self, inner: nn.Module, units: np.ndarray) -> None:
        super().__init__()
        self.inner = inner
        self.units = nn.Buffer(torch.from_numpy(units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.inner(x * self.units)
        return answer


def _double(seed: int, columns: int = 3, hidden: int = 6) -> nn.Module:
    return make_network(columns=columns, hidden=hidden, seed=seed).double()


def _units(rng: np.random.Generator) -> str:
    """Columns in units 1e±8 as large: the same contributions."""
    X = rng.normal(size=(60, 3))
    model = _double(int(rng.integers(100)))
    # Powers of two close to 1e±8, so that the model's inputs are bit by bit the same.
    units = 2.0 ** rng.choice([-27, 0, 27], 3)
    plain = _account_of(model, X)
    scaled = _account_of(_InUnits(model, 1.0 / units), X * units)
    size = np.abs(plain.values).max()
    _require("values", float(np.abs(plain.values - scaled.values).max() / size), UNITS)
    return f"units {units.tolist()}"


def _constant(rng: np.random.Generator) -> str:
    X = rng.normal(size=(60, 3))
    X[:, 1] = float(rng.choice([0.0, 1.0, 1e8, -1e-8]))
    explanation = _account_of(_double(int(rng.integers(100))), X)
    _require("a constant column", float(np.abs(explanation.values[:, 1]).max()), 1e-9)
    return f"a constant column of {X[0, 1]:g}"


def _duplicate(rng: np.random.Generator) -> str:
    X = rng.normal(size=(60, 3))
    X[:, 2] = X[:, 1]
    _account_of(_double(int(rng.integers(100))), X)
    return "a column twice"


def _one_hot(rng: np.random.Generator) -> str:
    codes = rng.integers(0, 3, 60)
    X = np.column_stack([rng.normal(size=60), np.eye(3)[codes]])
    model = _double(int(rng.integers(100)), columns=4)
    _account_of(model, X)
    grouped = _account_of(model, X, features={"number": 0, "level": [1, 2, 3]})
    _require("levels", float(np.abs(grouped.values[:, 1].sum(0)).max() / 60), 1.0)
    return "one-hot columns, apart and as one feature"


def _dead(rng: np.random.Generator) -> str:
    """A network whose outputs do not depend on anything."""
    model = _double(int(rng.integers(100)))
    with torch.no_grad():
        model[0].bias.fill_(-1e6)  # no unit is ever active
    explanation = _account_of(model, rng.normal(size=(60, 3)))
    _require("a dead network", float(np.abs(explanation.values).max()), 1e-9)
    return "a dead network"


def _few_rows(rng: np.random.Generator) -> str:
    rows = int(rng.integers(2, 12))
    with seeded(int(rng.integers(100))):
        model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 2)).double()
    _account_of(model, rng.normal(size=(rows, 3)))
    return f"{rows} rows and a width of 64"


def _scales(rng: np.random.Generator) -> str:
    """A network whose outputs are 1e±8 as large."""
    model = _double(int(rng.integers(100)))
    X = rng.normal(size=(60, 3))
    plain = _account_of(model, X)
    factor = 2.0 ** float(rng.choice([-27, 27]))
    with torch.no_grad():
        model[2].weight *= factor
        model[2].bias *= factor
    scaled = _account_of(model, X)
    size = np.abs(plain.values).max()
    _require("values", float(np.abs(scaled.values / factor - plain.values).max() / size), UNITS)
    return f"outputs times {factor:.0e}"


CHECKS: tuple[Callable[[np.random.Generator], str], ...] = (
    _algebra,
    _units,
    _algebra,
    _constant,
    _algebra,
    _duplicate,
    _one_hot,
    _dead,
    _few_rows,
    _scales,
)


def run(seed: int, case: int) -> Outcome:
    """One check."""
    rng = generator(seed, "numbers", case)
    check = CHECKS[case % len(CHECKS)]
    text = check.__name__.strip("_").replace("_", " ")
    try:
        return right(check(rng))
    except BoundError as error:
        return defect(text, error)


PART = Part(
    name="numbers",
    tried="scales of 1e±8, constant and duplicate columns, one-hot columns, dead networks, fewer rows than width; the "
    "algebra against sixty digits",
    must="stated bounds hold",
    count=1_000,
    sample=30,
    run=run,
    seconds=180.0,
)
