"""The correction of the head's coefficients: ridge regression of what the prior leaves, judged on rows held out.

With T the compressed representations of all terms and R = y − prior, for every output

    δ(α) = (TᵀT/n + α s I)⁻¹ TᵀR/n,        s = mean variance of T's columns,

so that α → ∞ leaves the prior, which is partial dependence, and α → 0 is the oblique projection along all other terms.
T's columns are scaled by `compress`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

ALPHAS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0, 100.0, 1e4)
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Rows:
    """What the rows give the regression."""

    terms: Tensor  # compressed representations, (rows, columns), centred
    prior: Tensor  # what the head's own coefficients give, (rows, outputs)
    outputs: Tensor  # the network's, (rows, outputs)
    fold: Tensor
    outside: Tensor  # rows that lie outside the range of all other folds' rows
    held: Tensor  # their compressed representations held at that range, less the same means
    products: Tensor  # of the terms by fold, (folds, columns, columns)

    @classmethod
    def of(cls, terms: Tensor, outputs: Tensor, fold: Tensor, outside: Tensor, held: Tensor) -> Rows:
        """Rows whose prior is not known yet."""
        centre = terms.mean(0)
        terms = terms - centre
        folds = [terms[fold == number] for number in range(int(fold.max()) + 1)]
        products = torch.stack([part.T @ part for part in folds])
        return cls(terms, torch.zeros_like(outputs), outputs, fold, outside, held - centre, products)

    def only(self, columns: Tensor, prior: Tensor) -> Rows:
        """The same with some of the columns."""
        products = self.products[:, columns][:, :, columns]
        return replace(self, terms=self.terms[:, columns], prior=prior, held=self.held[:, columns], products=products)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What fits on other rows leave of every row, for every strength."""

    residual: Tensor  # (strengths, rows, outputs)
    errors: Tensor  # squared residuals summed by fold, (folds, strengths, outputs)
    best: Tensor  # per output the position of the strength that is taken

    def chosen(self) -> Tensor:
        """Residuals at each output's own strength, (rows, outputs)."""
        return torch.stack([self.residual[place, :, output] for output, place in enumerate(self.best.tolist())], 1)


@dataclass(frozen=True, eq=False)
class Correction:
    """The fitted correction."""

    delta: Tensor  # coefficients on the compressed representations, (columns, outputs)
    shift: Tensor  # mean of what the prior leaves, (outputs,)
    ridge: Tensor  # λ per output, in units of the products' mean
    alphas: Tensor  # the relative strength per output


def scale_of(rows: Rows) -> float:
    """Mean variance of the columns: what α is relative to."""
    columns = rows.terms.shape[1]
    return float(rows.products.diagonal(dim1=1, dim2=2).sum()) / (len(rows.terms) * columns) if columns else 0.0


def judge(rows: Rows, alphas: Sequence[float], *, folds: Sequence[int] | None = None) -> HeldOut:
    """Fits on all folds but one and predicts that one, for every strength."""
    count, columns = rows.terms.shape
    target, scale = rows.outputs - rows.prior, scale_of(rows)
    chosen = list(range(len(rows.products))) if folds is None else list(folds)
    residual = torch.full((len(alphas), count, target.shape[1]), torch.nan, dtype=torch.float64)
    total, cross = rows.products.sum(0), rows.terms.T @ target
    place = torch.full((count,), -1, dtype=torch.long)
    place[rows.outside] = torch.arange(len(rows.outside))
    for fold in chosen:
        test, train = (rows.fold == fold).nonzero().flatten(), (rows.fold != fold).nonzero().flatten()
        here, left = rows.terms[test], max(len(train), 1)
        mean, goal = -here.sum(0) / left, target[train].sum(0) / left
        wanted = here.clone()
        away = place[test] >= 0
        wanted[away] = rows.held[place[test[away]]]
        wanted -= mean
        if columns > len(train):  # as many unknowns as rows are enough
            others = rows.terms[train] - mean
            system, right, seen = others @ others.T / left, target[train] - goal, wanted @ others.T / left
        else:
            system = (total - rows.products[fold]) / left - mean.outer(mean)
            right, seen = (cross - here.T @ target[test]) / left - mean.outer(goal), wanted
        # One product for all strengths.
        found = torch.stack([solve_ridge(system, right, alpha * scale) for alpha in alphas], 1)
        said = (seen @ found.flatten(1)).view(len(test), *found.shape[1:]).movedim(1, 0)
        residual[:, test] = target[test] - goal - said
    errors = torch.stack([residual[:, rows.fold == fold].square().sum(1) for fold in chosen])
    return HeldOut(residual, errors, choose_strength(errors))


def level_strengths(errors: Tensor) -> Tensor:
    """Which strengths the folds cannot tell from the best: within one standard error of it, (strengths, outputs)."""
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
    target, count = rows.outputs - rows.prior, len(rows.terms)
    shift, ridge = target.mean(0), alphas * scale_of(rows)
    gram, cross = rows.products.sum(0) / count, rows.terms.T @ (target - shift) / count
    delta = torch.zeros_like(cross)
    for strength in sorted(set(ridge.tolist())):
        mine = ridge == strength
        delta[:, mine] = solve_ridge(gram, cross[:, mine], strength)
    return Correction(delta, shift, ridge, alphas)


def solve_ridge(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """(G + λI)⁻¹ c; the least-norm solution where λ is too small to make it definite."""
    system = gram + ridge * torch.eye(len(gram), dtype=gram.dtype)
    factor, failed = torch.linalg.cholesky_ex(system)
    if not int(failed):
        return torch.cholesky_solve(cross, factor)
    least: Tensor = torch.linalg.pinv(system, hermitian=True) @ cross
    return least
