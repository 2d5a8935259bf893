"""The correction of the head's coefficients: ridge regression of what the prior leaves, judged on rows held out.

With T the compressed representations of all terms and R = y − prior, for every output

    δ(α) = (TᵀT/n + α s I)⁻¹ TᵀR/n,        s = mean variance of T's columns,

so that α → ∞ leaves the prior, which is partial dependence, and α → 0 is the oblique projection along all other terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALPHAS = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 10.0, 100.0, 1e4)
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Rows:
    """What the rows give the regression.

    Attributes:
        terms: Compressed representations, (rows, columns).
        prior: What the head's own coefficients give, (rows, outputs).
        outputs: The network's outputs, (rows, outputs).
        fold: To which fold each row belongs.
        outside: Rows that lie outside the range of all other folds' rows.
        held: Their compressed representations held at that range, (rows outside, columns).
    """

    terms: Tensor
    prior: Tensor
    outputs: Tensor
    fold: Tensor
    outside: Tensor
    held: Tensor


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What fits on other rows leave of every row, for every strength.

    Attributes:
        residual: Shape (strengths, rows, outputs).
        errors: Squared residuals summed by fold, (folds, strengths, outputs).
        best: Per output the position of the strength that leaves least.
    """

    residual: Tensor
    errors: Tensor
    best: Tensor

    def chosen(self) -> Tensor:
        """Residuals at each output's own strength, (rows, outputs)."""
        return torch.stack([self.residual[place, :, output] for output, place in enumerate(self.best.tolist())], 1)


@dataclass(frozen=True, eq=False)
class Correction:
    """The fitted correction.

    Attributes:
        delta: Coefficients on the compressed representations, (columns, outputs).
        centre: Means of the columns.
        shift: Mean of what the prior leaves, (outputs,).
        ridge: λ per output, in units of the products' mean.
        alphas: The relative strength per output.
    """

    delta: Tensor
    centre: Tensor
    shift: Tensor
    ridge: Tensor
    alphas: Tensor


def scale_of(terms: Tensor) -> float:
    """Mean variance of the columns: what α is relative to."""
    return float(terms.var(0, correction=0).mean()) if terms.shape[1] else 0.0


def judge(rows: Rows, alphas: Sequence[float], *, folds: Sequence[int] | None = None) -> HeldOut:
    """Fits on all folds but one and predicts that one, for every strength."""
    count, columns = rows.terms.shape
    target, strengths = rows.outputs - rows.prior, torch.tensor(alphas, dtype=torch.float64)
    scale = scale_of(rows.terms)
    everyone = int(rows.fold.max()) + 1
    asked = list(range(everyone)) if folds is None else list(folds)
    residual = torch.full((len(alphas), count, target.shape[1]), torch.nan, dtype=torch.float64)
    centred = rows.terms - rows.terms.mean(0)
    total = centred.T @ centred if columns < count else None
    place = torch.full((count,), -1, dtype=torch.long)
    place[rows.outside] = torch.arange(len(rows.outside))
    for fold in asked:
        test = (rows.fold == fold).nonzero().flatten()
        train = (rows.fold != fold).nonzero().flatten()
        here = centred[test]
        mean = -here.sum(0) / len(train)
        goal = target[train].mean(0)
        wanted = target[train] - goal
        away = place[test] >= 0
        asking = here.clone()
        asking[away] = rows.held[place[test[away]]] - rows.terms.mean(0)
        asking -= mean
        if total is None or columns > len(train):  # as many unknowns as rows are enough
            others = centred[train] - mean
            values, vectors = torch.linalg.eigh(others @ others.T / len(train))
            turned, seen = vectors.T @ wanted, asking @ (others.T @ vectors) / len(train)
        else:
            gram = (total - here.T @ here) / len(train) - mean.outer(mean)
            values, vectors = torch.linalg.eigh(gram)
            turned, seen = vectors.T @ (centred[train].T @ wanted / len(train)), asking @ vectors
        # One product for all strengths: (rows, columns) times (columns, strengths · outputs).
        shrunk = turned[None] / (values.clamp_min(0)[None] + strengths[:, None] * scale).clamp_min(1e-300)[..., None]
        said = torch.einsum("rc,aco->aro", seen, shrunk) if columns else torch.zeros(len(alphas), len(test), 1)
        residual[:, test] = target[test] - goal - said
    errors = torch.stack([residual[:, rows.fold == fold].square().sum(1) for fold in asked])
    return HeldOut(residual, errors, choose_strength(errors))


def level_strengths(errors: Tensor) -> Tensor:
    """Which strengths the folds cannot tell from the best: within one standard error of it, (strengths, outputs).

    Args:
        errors: Squared errors by fold, (folds, strengths, outputs), strengths increasing.
    """
    folds, _, outputs = errors.shape
    best = errors.sum(0).argmin(0)
    worse = errors - errors.gather(1, best.expand(folds, 1, outputs))
    level: Tensor = worse.mean(0) <= worse.std(0, correction=0) / max(folds - 1, 1) ** 0.5
    return level


def choose_strength(errors: Tensor) -> Tensor:
    """Per output the strongest ridge that the folds cannot tell from the best one.

    Where features go along with each other, a weaker ridge moves pieces from one curve to another and hardly changes
    their sum: what rows held out cannot tell apart is decided for the prior.
    """
    level = level_strengths(errors)
    places = torch.arange(len(level))[:, None].expand_as(level)
    return torch.where(level, places, -1).amax(0)


def fit_correction(rows: Rows, alphas: Tensor) -> Correction:
    """The correction from all rows, with one strength per output."""
    centre, target = rows.terms.mean(0), rows.outputs - rows.prior
    shift, ridge = target.mean(0), alphas * scale_of(rows.terms)
    centred = rows.terms - centre
    gram, cross = centred.T @ centred / len(centred), centred.T @ (target - shift) / len(centred)
    delta = torch.zeros_like(cross)
    for strength in sorted(set(ridge.tolist())):
        mine = ridge == strength
        delta[:, mine] = solve_ridge(gram, cross[:, mine], strength)
    return Correction(delta, centre, shift, ridge, alphas)


def solve_ridge(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """(G + λI)⁻¹ c; the least-norm solution where λ is too small to make it definite."""
    system = gram + ridge * torch.eye(len(gram), dtype=gram.dtype)
    factor, failed = torch.linalg.cholesky_ex(system)
    if not int(failed):
        return torch.cholesky_solve(cross, factor)
    least: Tensor = torch.linalg.pinv(system, hermitian=True) @ cross
    return least
