"""Functions corrected by labels: one ridge step of their heights, judged on rows held out from it.

Squared errors for numbers; for classes one Newton step of the logistic loss, z = (y − p) / w with w
= p (1 − p) for every output. The strength of the ridge is chosen by cross-validation, no step at
all among the candidates, and what was chosen is compared with the teacher's functions once more on
rows set aside: where it is not better, they stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nobsp._typing import AnyArray, FloatArray, IntArray, TableLike
from nobsp.tabular.editing import Rows, record
from nobsp.tabular.explanation import apply_link
from nobsp.tabular.functions import Functions
from nobsp.tabular.heights import (
    Block,
    Ridge,
    add_tables,
    blocks_of,
    relative_penalties,
    tables_of_blocks,
)
from nobsp.tabular.lookup import Places, TermTable, read_tables

# Candidates for the strength, from a free step to hardly any.
_STRENGTHS = tuple(10.0**power for power in range(-4, 4))
_FOLDS = 5
_SET_ASIDE = 0.2
# Fewest rows of which some can be set aside.
_FEWEST_ROWS = 30
# Newton's step divides by the variance of a class, which is close to zero where it is certain.
_LEAST_VARIANCE = 0.05


@dataclass(frozen=True)
class Correction:
    """What labels changed.

    Attributes:
        strength: Strength of the ridge; infinite where the functions are the teacher's.
        before: Loss of the teacher's functions on the rows set aside: mean squared error, or
            logarithmic loss.
        after: The same of the corrected functions, never above.
        rows: How many rows were set aside.
    """

    strength: float
    before: float
    after: float
    rows: int


@dataclass(frozen=True, eq=False)
class _Problem:
    """Columns of the step, and the sums that it starts from."""

    functions: Functions
    blocks: list[Block]
    heights: FloatArray  # (rows, heights)
    interactions: list[int]  # positions of tables that get a factor
    contributions: FloatArray  # of these, centred, (rows, tables, outputs)
    means: FloatArray  # what was taken off, (tables, outputs)
    sums: FloatArray  # (rows, outputs)
    target: FloatArray  # numbers, or ones for the class of a row, (rows, outputs)
    logistic: str  # the link of the loss; empty for squared errors

    def design(self, output: int) -> FloatArray:
        """All columns of one output, a constant last."""
        constant = np.ones((len(self.sums), 1))
        return np.hstack([self.heights, self.contributions[:, :, output], constant])

    def loss(self, sums: FloatArray, rows: Places) -> float:
        """Mean loss of some rows."""
        target = self.target[rows]
        if not self.logistic:
            return float(np.square(target - sums).mean())
        chances = np.clip(apply_link(sums, self.logistic), 1e-12, 1 - 1e-12)
        if self.logistic == "softmax":
            return float(-(target * np.log(chances)).sum(1).mean())
        losses = target * np.log(chances) + (1 - target) * np.log1p(-chances)
        return float(-losses.mean())


def correct(
    functions: Functions, X: TableLike, y: AnyArray, *, seed: int = 0
) -> tuple[Functions, Correction]:
    """The functions with heights moved towards labels, as far as held-out rows agree."""
    rows = Rows.read(functions, X, None)
    problem = _pose(functions, rows, y)
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(rows.count)
    n_aside = int(_SET_ASIDE * rows.count) if rows.count >= _FEWEST_ROWS else 0
    aside = shuffled[:n_aside]
    others = shuffled[n_aside:]
    before = problem.loss(problem.sums[aside], aside) if n_aside else np.nan
    nothing = Correction(np.inf, before, before, n_aside)
    if not n_aside:
        return functions, nothing

    strength = _choose_strength(problem, others)
    if not np.isfinite(strength):
        return functions, nothing
    steps = _steps(problem, others, strength)
    after = problem.loss(_moved(problem, steps, aside), aside)
    if not after < before:
        return functions, nothing

    everyone = np.arange(rows.count)
    corrected = _with_steps(problem, _steps(problem, everyone, strength))
    recorded = record(functions, corrected, "all features", "corrected by labels", rows)
    return recorded, Correction(strength, before, after, n_aside)


def _pose(functions: Functions, rows: Rows, y: AnyArray) -> _Problem:
    """What the step is made of."""
    values, _ = read_tables(functions, rows.columns, rows.count)
    blocks = blocks_of(functions, rows.columns, rows.count)
    heights = [block.design for block in blocks]
    interactions = [k for k, table in enumerate(functions.tables) if len(table.features) > 1]
    contributions = values[:, interactions]
    return _Problem(
        functions=functions,
        blocks=blocks,
        heights=np.hstack(heights) if heights else np.zeros((rows.count, 0)),
        interactions=interactions,
        contributions=contributions - contributions.mean(0),
        means=contributions.mean(0),
        sums=functions.base_values + values.sum(1),
        target=_target(functions, y),
        logistic=_loss_link(functions),
    )


def _loss_link(functions: Functions) -> str:
    """The link of a logistic loss; empty for squared errors."""
    link = "softmax" if functions.link == "log_softmax" else functions.link
    if link in ("sigmoid", "softmax"):
        return link
    if link == "identity":
        return ""
    raise ValueError(f"correct=True cannot correct functions whose link is {link!r}; leave it out.")


def _target(functions: Functions, y: AnyArray) -> FloatArray:
    """Labels as the outputs would be, (rows, outputs)."""
    n_outputs = len(functions.output_names)
    if not hasattr(functions, "classes_"):
        return np.asarray(y, dtype=np.float64).reshape(len(y), n_outputs)
    is_class = y[:, None] == functions.classes_[None, :]
    if n_outputs == 1:
        return np.asarray(is_class[:, 1:], dtype=np.float64)
    return np.asarray(is_class, dtype=np.float64)


def _steps(problem: _Problem, rows: IntArray, strength: float) -> list[FloatArray]:
    """Coefficients of every output's columns."""
    steps = []
    sums = problem.sums[rows]
    for output in range(sums.shape[1]):
        design = problem.design(output)[rows]
        residual = problem.target[rows, output] - sums[:, output]
        weights = np.ones(len(rows))
        if problem.logistic:
            chances = apply_link(sums, problem.logistic)[:, output]
            weights = np.maximum(chances * (1 - chances), _LEAST_VARIANCE)
            residual = (problem.target[rows, output] - chances) / weights
        penalties = relative_penalties(design[:, :-1] * np.sqrt(weights)[:, None], strength)
        # The constant is free; a trace keeps it from being undetermined.
        penalties = np.append(penalties, 1e-9 * len(rows))
        ridge = Ridge.fit(design, residual[:, None], penalties=penalties, weights=weights)
        steps.append(ridge.coefficients[:, 0])
    return steps


def _moved(problem: _Problem, steps: list[FloatArray], rows: IntArray) -> FloatArray:
    """Sums after the step."""
    moves = [problem.design(output)[rows] @ step for output, step in enumerate(steps)]
    return problem.sums[rows] + np.stack(moves, axis=1)


def _choose_strength(problem: _Problem, rows: IntArray) -> float:
    """The strength with the smallest loss on folds held out; infinite where no step is best."""
    losses = np.zeros(len(_STRENGTHS) + 1)
    for fold in range(_FOLDS):
        held_out = rows[fold::_FOLDS]
        fitted = np.setdiff1d(rows, held_out)
        losses[-1] += len(held_out) * problem.loss(problem.sums[held_out], held_out)
        for position, strength in enumerate(_STRENGTHS):
            moved = _moved(problem, _steps(problem, fitted, strength), held_out)
            losses[position] += len(held_out) * problem.loss(moved, held_out)
    return float((*_STRENGTHS, np.inf)[int(np.argmin(losses))])


def _with_steps(problem: _Problem, steps: list[FloatArray]) -> Functions:
    """The functions after the step."""
    functions = problem.functions
    n_heights = problem.heights.shape[1]
    coefficients = np.stack(steps, axis=1)
    corrections = tables_of_blocks(problem.blocks, coefficients)
    factors = {
        functions.tables[k].features: 1.0 + coefficients[n_heights + row]
        for row, k in enumerate(problem.interactions)
    }

    tables = []
    for table in functions.tables:
        if table.features in factors:
            table = TermTable(table.features, table.axes, table.values * factors[table.features])
        elif table.axes and table.features in corrections:
            table = add_tables(table, corrections[table.features])
        tables.append(table)
    # Interactions were centred before they got a factor.
    n_terms = len(problem.interactions)
    shift = (coefficients[n_heights : n_heights + n_terms] * problem.means).sum(0)
    base = functions.base_values + coefficients[-1] - shift
    return replace(functions, tables=tuple(tables), base_values=base)
