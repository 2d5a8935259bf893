"""Partial regression from the rows themselves: for many terms, each with a wide reference of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nobsp.projection.moments import Moments
from nobsp.projection.partial import PartialRegression, Unique, partial_coefficients, regressed
from nobsp.projection.ridge import EPSILON, Ridge

# Corrections of the residual: each divides its error by ε·cond, so that the second finds only rounding.
_CORRECTIONS = 2
# Columns of a Gram matrix made at a time.
_PANEL = 256
# Where the last correction moved more than this share of the residual, corrections do not settle.
_SETTLED = 1e-9


def row_coefficients(
    target: Tensor,
    reference: Tensor,
    outputs: Tensor,
    *,
    ridge: Ridge | None = None,
    target_size: int | None = None,
) -> PartialRegression:
    """The same as `partial_coefficients` of the moments of these rows, faster where the reference is wide.

    With K = A Aᵀ, the residual of the reference is R_T = λ (K + λI)⁻¹ T, and because the same matrix stands before the
    outputs,

        R_TᵀR_y = [λ (K + λI)⁻¹ R_T]ᵀ Y,

    so only the target, often of few columns, is ever solved for. One Cholesky factorisation serves both, of K where
    there are fewer rows than columns of the reference, else of AᵀA: (K + λI)⁻¹ λT = T − A (AᵀA + λI)⁻¹ AᵀT. Residuals
    are then corrected on the rows. Where there is no ridge, or corrections do not settle, moments decide.
    """
    ridge = ridge or Ridge()
    a = _centred(reference)
    amount = ridge.value if ridge.scale == "absolute" else ridge.value * float(a.square().sum()) / max(a.shape[1], 1)
    t, y = _centred(target), _centred(outputs)
    unique = _unique_by_rows(t, a, y, float(amount)) if len(a) > 1 and amount > 0.0 and a.shape[1] > 0 else None
    if unique is not None:
        ridges = (float(amount), ridge.amount(unique.remaining, size=target_size))
        if unique.certain or unique.drowns(ridges[1]):
            found = regressed(unique, whole=float(t.square().sum()), rows=len(t), ridges=ridges)
            if found is not None:
                return found
    width = a.shape[1]
    if width > len(a):
        # An isometry of the columns' span: nothing that is asked for depends on more.
        a = torch.linalg.qr(a.T).R.T
    moments = Moments({"target": t.shape[1], "reference": a.shape[1], "outputs": y.shape[1]}, device=t.device)
    moments.update({"target": t, "reference": a, "outputs": y})
    return partial_coefficients(moments, ridge=ridge, target_size=target_size, reference_size=width)


def _unique_by_rows(t: Tensor, a: Tensor, y: Tensor, ridge: float) -> Unique | None:
    """What the reference leaves of centred rows, or None where it cannot be factorised."""
    residual_of = _dual(a, ridge) if a.shape[0] - 1 <= a.shape[1] else _primal(a, ridge)
    if residual_of is None:
        return None
    remaining, error = residual_of(t)
    again, error_again = residual_of(remaining)
    size = float(torch.linalg.vector_norm(remaining))
    settled = error <= _SETTLED * size and error_again <= _SETTLED * float(torch.linalg.vector_norm(again))
    return Unique(remaining.T @ remaining, again.T @ y, size * error / EPSILON, t.shape[1], settled)


# Takes T to λ (K + λI)⁻¹ T and what that may be wrong by.
_ResidualOf = Callable[[Tensor], tuple[Tensor, float]]


def _dual(a: Tensor, ridge: float) -> _ResidualOf | None:
    factor = _factor(a.T, ridge)
    if factor is None:
        return None

    def residual_of(t: Tensor) -> tuple[Tensor, float]:
        r = ridge * torch.cholesky_solve(t, factor)
        error = float(torch.linalg.vector_norm(r)) * EPSILON
        for _ in range(_CORRECTIONS):
            # The constant vector is in the null space of K: rounding along it would be divided by λ.
            step = _about_mean(torch.cholesky_solve(_about_mean(ridge * (t - r) - a @ (a.T @ r)), factor))
            r = r + step
            moved = float(torch.linalg.vector_norm(step))
        return r, max(error, moved)

    return residual_of


def _primal(a: Tensor, ridge: float) -> _ResidualOf | None:
    factor = _factor(a, ridge)
    if factor is None:
        return None

    def residual_of(t: Tensor) -> tuple[Tensor, float]:
        b = torch.cholesky_solve(a.T @ t, factor)
        r = t - a @ b
        for _ in range(_CORRECTIONS):
            # Aᵀ R = λ B, exactly.
            b = b + torch.cholesky_solve(a.T @ r - ridge * b, factor)
            before, r = r, t - a @ b
        moved = float(torch.linalg.vector_norm(r - before))
        return r, max(moved, EPSILON * float(torch.linalg.vector_norm(t)))

    return residual_of


def _factor(columns: Tensor, ridge: float) -> Tensor | None:
    """Lower Cholesky factor of columnsᵀ columns + λI."""
    size = columns.shape[1]
    gram = columns.new_zeros(size, size)
    # The factorisation reads what is on and below the diagonal, which is half of the work.
    for start in range(0, size, _PANEL):
        panel = slice(start, start + _PANEL)
        torch.mm(columns[:, start:].T, columns[:, panel], out=gram[start:, panel])
    gram.diagonal().add_(ridge)
    factor, info = torch.linalg.cholesky_ex(gram)
    return factor if int(info) == 0 else None


def _centred(rows: Tensor) -> Tensor:
    # Less the first row before the mean: a constant column is then zero exactly, whatever its mean rounds to.
    return _about_mean(rows - rows[:1])


def _about_mean(rows: Tensor) -> Tensor:
    return rows - rows.mean(0)
