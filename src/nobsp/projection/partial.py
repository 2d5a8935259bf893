"""Partial regression from moments (paper, Algorithm 1), and all channels from one factorisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nobsp.projection.moments import Moments

EPSILON = torch.finfo(torch.float64).eps

# Where less than this share of the target is left, its products are differences of nearly equal numbers
# and the spectral route takes over from the Cholesky factorisation.
_CANCELLATION = 1e-6
# Rounding is bounded by some thirty times what is seen. While the bound is below the first share of the ridge it is
# added to, a Cholesky factorisation is closer to the truth than cutting the spectrum; below the second it is harmless.
_BELOW_RIDGE = 1e-2
_HARMLESS = 1e-4


@dataclass(frozen=True)
class Ridge:
    """A ridge penalty, absolute as in the paper or relative to the matrix it is added to.

    The relative form is λ = α · trace(G) / p, with G the Gram matrix being inverted and p its size, so
    the same α means the same thing for any number of samples and any scale of the representation.
    """

    value: float = 1e-4
    scale: Literal["relative", "absolute"] = "relative"

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise TypeError(f"ridge must be a number, found {type(self.value).__name__}.")
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"ridge must be finite and not negative, found {self.value}.")
        if self.scale not in ("relative", "absolute"):
            raise ValueError(f'ridge scale must be "relative" or "absolute", found {self.scale!r}.')

    def amount(self, gram: Tensor, *, size: int | None = None) -> float:
        """The λ to add to the diagonal of `gram`."""
        if self.scale == "absolute":
            return float(self.value)
        return float(
            self.value * gram.diagonal().sum().clamp_min(0.0) / max(size or gram.shape[0], 1)
        )


def with_ridge(gram: Tensor, amount: float) -> Tensor:
    """G + λI, leaving `gram` as it is."""
    damped = gram.clone()
    damped.diagonal().add_(amount)
    return damped


@dataclass(frozen=True)
class Spectrum:
    """The eigenpairs of a Gram matrix that stand above rounding, and the weight of the rest."""

    values: Tensor  # eigenvalues, largest first, shape (rank,)
    vectors: Tensor  # their eigenvectors as columns, shape (size, rank)
    null_weight: (
        Tensor  # per coordinate, the squared length of its part outside the kept eigenvectors
    )
    floor: float  # eigenvalues below this cannot be told from rounding
    # whether all that was dropped is known to be zero (by the number of rows, or because nothing was) and all that was
    # kept stands well clear of rounding
    certain: bool

    @property
    def rank(self) -> int:
        """How many directions are kept."""
        return int(self.values.shape[0])


def spectrum(
    gram: Tensor, *, rows: int | None = None, scale: Tensor | float | None = None, cut: bool = True
) -> Spectrum:
    """The trustworthy part of the spectrum of a symmetric positive semi-definite matrix.

    A Gram matrix of N centred rows has rank N - 1 at most. Eigenvalues past that are zero and show up as
    rounding of the largest; dropping them by *count* keeps what a tolerance alone could not tell apart.
    """
    size = gram.shape[0]
    if size == 0:
        return Spectrum(gram.new_zeros(0), gram.new_zeros(0, 0), gram.new_zeros(0), 0.0, True)
    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    values, vectors = values.flip(0), vectors.flip(1)
    largest = values[0].clamp_min(0.0)
    if scale is not None:
        largest = torch.maximum(
            largest, torch.as_tensor(scale, dtype=gram.dtype, device=gram.device)
        )
    # Measured: rounding leaves eigenvalues of about 0.1·ε·√size of the largest where zeros should be.
    floor = float(largest) * EPSILON * 8 * max(size, 16) ** 0.5
    limit = size if rows is None else max(min(size, rows - 1), 0)
    rank = min(int((values > floor).sum()), limit)
    certain = rank == limit and (rank == 0 or bool(values[rank - 1] > 1e4 * floor))
    if not cut:
        # By count only where what the count drops stands apart; else it would take a weak direction with it.
        rank, values = limit if certain else size, values.clamp_min(0.0)
    null_weight = vectors[:, rank:].square().sum(1)
    return Spectrum(values[:rank].clone(), vectors[:, :rank].clone(), null_weight, floor, certain)


@dataclass(frozen=True)
class PartialRegression:
    """What Algorithm 1 finds for one term."""

    coefficients: Tensor  # one column per output, shape (width of target, outputs)
    unique_share: (
        float  # how much of the target's spread is left once the reference is removed, 0 to 1
    )
    ridges: tuple[float, float]  # the λ used for the reference and for what is left of the target
    sound: bool  # whether the moments determine the coefficients beyond their own rounding
    note: str  # why not, in words; empty when sound


def partial_coefficients(
    moments: Moments, *, ridge: Ridge | None = None, target_size: int | None = None
) -> PartialRegression:
    """Coefficients that carry the target block to its unique part of the outputs.

    Solves, for every output at once,

        R_T = T − A B,   B = (AᵀA + λI)⁻¹ AᵀT,   R_y likewise,   β = (R_TᵀR_T + λI)⁻¹ R_Tᵀ R_y

    using only the centred products held in `moments`. With λ > 0 the residual is *not* a projection:
    R_TᵀR_T = G_TT − 2 BᵀG_AT + Bᵀ G_AA B. With λ = 0 the answer is Moore and Penrose's.
    """
    _require_rows(moments)
    ridge = ridge or Ridge()
    T, A, Y = "target", "reference", "outputs"
    products = _Products(
        *(moments.product(*pair) for pair in ((T, T), (A, T), (A, A), (T, Y), (A, Y)))
    )
    reference_ridge = ridge.amount(products.aa)
    # N centred rows span N - 1 directions: with no more than the reference has columns, the target is inside it.
    spare = moments.rows - 1 > products.aa.shape[0]
    unique = _unique_by_cholesky(products, reference_ridge) if spare else None
    whole = float(products.tt.diagonal().sum())
    if unique is not None and float(unique.remaining.diagonal().sum()) < _CANCELLATION * whole:
        # Little was left by the subtraction: it stands only where what was lost drowns in the ridge.
        unique = unique if unique.drowns(ridge.amount(unique.remaining, size=target_size)) else None
    unique = unique or _unique_by_spectrum(products, reference_ridge, moments.rows)
    ridges = (reference_ridge, ridge.amount(unique.remaining, size=target_size))
    left = float(unique.remaining.diagonal().sum())
    if left <= 0.0:
        note = _nothing_left(moments.rows, products.aa.shape[0], whole)
        return PartialRegression(torch.zeros_like(unique.cross), 0.0, ridges, whole == 0.0, note)
    if unique.drowns(ridges[1]):
        factor = torch.linalg.cholesky(with_ridge(unique.remaining, ridges[1]))
        coefficients = torch.cholesky_solve(unique.cross, factor)
        sound = unique.certain and unique.drowns(ridges[1], _HARMLESS)
    else:
        kept = spectrum(
            unique.remaining, rows=min(moments.rows, unique.rank_limit + 1), scale=unique.scale
        )
        coefficients = kept.vectors @ (
            (kept.vectors.T @ unique.cross) / (kept.values + ridges[1])[:, None]
        )
        sound = unique.certain and kept.certain
    share = min(max(left / max(whole, 1e-300), 0.0), 1.0)
    return PartialRegression(coefficients, share, ridges, sound, "" if sound else _UNCERTAIN)


class _Products(NamedTuple):
    tt: Tensor
    at: Tensor
    aa: Tensor
    ty: Tensor
    ay: Tensor


@dataclass(frozen=True)
class _Unique:
    """What the reference leaves."""

    remaining: Tensor  # R_TᵀR_T
    cross: Tensor  # R_TᵀR_y
    scale: float  # what rounding of `remaining` is relative to
    rank_limit: int  # the rank the rows allow it
    certain: bool  # whether no rank was decided by rounding on the way

    def drowns(self, ridge: float, share: float = _BELOW_RIDGE) -> bool:
        """Whether rounding of `remaining` is so far below the ridge that nothing need be cut."""
        return 32 * EPSILON * self.scale < share * ridge


def _unique_by_cholesky(products: _Products, ridge: float) -> _Unique | None:
    """R_TᵀR_T and R_TᵀR_y the fast way, or None where the reference cannot be factorised."""
    if ridge == 0.0:
        return None
    factor, info = torch.linalg.cholesky_ex(with_ridge(products.aa, ridge))
    if int(info) != 0:
        return None
    width = products.tt.shape[0]
    solved = torch.cholesky_solve(torch.cat([products.at, products.ay], dim=1), factor)
    b_target, b_outputs = solved[:, :width], solved[:, width:]
    fitted = products.aa @ b_target
    remaining = (
        products.tt - b_target.T @ products.at - products.at.T @ b_target + b_target.T @ fitted
    )
    cross = (
        products.ty - b_target.T @ products.ay - products.at.T @ b_outputs + fitted.T @ b_outputs
    )
    # Rounding of the solve, column by column of the reference, is seen through the size of B.
    carried = (b_target.square() * products.aa.diagonal()[:, None]).sum()
    scale = float(torch.maximum(_norm(products.tt), carried))
    return _Unique((remaining + remaining.T) / 2, cross, scale, width, True)


def _unique_by_spectrum(products: _Products, ridge: float, rows: int) -> _Unique:
    """The same from the eigenvectors u_i, s_i of AᵀA: exact zeros stay zeros.

        R_TᵀR_T = [G_TT − Σ_i t_i t_iᵀ / s_i] + Σ_i t_i t_iᵀ λ² / (s_i (s_i + λ)²),   t_i = G_TA u_i

    The bracket is the part of the target outside the reference's span. It has rank N − 1 − rank(A) at most
    and vanishes where the reference spans all centred vectors: known from the count, not from subtraction.
    """
    known = spectrum(products.aa, rows=rows)
    values, certain = known.values[:, None], known.certain
    t, y = known.vectors.T @ products.at, known.vectors.T @ products.ay
    if ridge > 0.0:
        shrunk = (ridge / (values + ridge)).square() / values
        remaining, cross = t.T @ (t * shrunk), t.T @ (y * shrunk)
    else:
        remaining, cross = torch.zeros_like(products.tt), torch.zeros_like(products.ty)
    limit, scale = max(rows - 1 - known.rank, 0), _norm(remaining)
    if limit > 0:
        outside = products.tt - t.T @ (t / values)
        outside_y = products.ty - t.T @ (y / values)
        carried = (t / values).square().sum() * known.values.max() if known.rank else scale
        scale = torch.maximum(_norm(products.tt), carried)
        kept = spectrum(outside, rows=limit + 1, scale=scale)
        remaining = remaining + (kept.vectors * kept.values) @ kept.vectors.T
        cross = cross + kept.vectors @ (kept.vectors.T @ outside_y)
        certain = certain and kept.certain
    width = products.tt.shape[0]
    rank_limit = width if ridge > 0.0 else min(limit, width)
    return _Unique((remaining + remaining.T) / 2, cross, float(scale), rank_limit, certain)


def _norm(gram: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(gram, 2) if gram.numel() else gram.new_zeros(())


@dataclass(frozen=True)
class ChannelRegression:
    """What Algorithm 1 finds for every channel when each is its own term."""

    coefficients: Tensor  # shape (channels, outputs)
    unique_share: (
        Tensor  # per channel, the share of its spread that the other channels cannot reproduce
    )
    ridge: float  # the λ used
    sound: Tensor  # per channel, whether the moments determine its coefficients beyond their own rounding
    note: str  # what is wrong and what to do, in words; empty when all is well


def channel_coefficients(moments: Moments, *, ridge: Ridge | None = None) -> ChannelRegression:
    """Algorithm 1 for every channel against all the others, from one factorisation.

    With G the Gram matrix of the channels, s their products with the outputs, K = (G + λI)⁻¹ and θ = K s,
    elementwise over channels k:

        a_k = (K_kk − λ Σ_j K_jk²) / K_kk²     = R_TᵀR_T
        c_k = λ (Kθ)_k / K_kk + a_k θ_k        = R_TᵀR_y
        β_k = c_k / (a_k + λ)

    Every channel shares one λ; on the relative scale it is α · trace(G) / channels. Where a_k would be a
    difference of nearly equal numbers (few samples, small λ), the same quantities are taken from the
    eigenvectors of G instead, cut at the rank the number of samples allows:
    K_kk − λ Σ_j K_jk² = Σ_i u_ki² s_i / (s_i + λ)², which has no cancellation.
    """
    _require_rows(moments)
    gram, cross = moments.product("channels", "channels"), moments.product("channels", "outputs")
    amount = (ridge or Ridge(1e-4, "absolute")).amount(gram)
    spread = gram.diagonal()
    alive = spread > 0
    live_gram, live_cross = (
        (gram, cross) if bool(alive.all()) else (gram[alive][:, alive], cross[alive])
    )
    enough = moments.rows > live_gram.shape[0] > 0
    fit = _channels_by_cholesky(live_gram, live_cross, amount) if enough else None
    if fit is None:
        fit = _channels_by_spectrum(live_gram, live_cross, amount, moments.rows)
    coefficients, share, sound = (
        torch.zeros_like(cross),
        torch.zeros_like(spread),
        torch.ones_like(alive),
    )
    coefficients[alive], unique, sound[alive] = fit
    share[alive] = (unique / spread[alive]).clamp(0.0, 1.0)
    note = _channel_note(moments.rows, live_gram.shape[0], share[alive], sound)
    return ChannelRegression(coefficients, share, amount, sound, note)


def _channels_by_cholesky(
    gram: Tensor, cross: Tensor, ridge: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    damped = with_ridge(gram, ridge)
    factor, info = torch.linalg.cholesky_ex(damped)
    if int(info) != 0:
        return None
    inverse = torch.cholesky_inverse(factor)
    diagonal = inverse.diagonal()
    left = 1.0 - ridge * inverse.square().sum(0) / diagonal
    # Cholesky is blind to the scale of columns: K_kk (G_kk + λ), a variance inflation factor, is what its
    # rounding is multiplied by, and what is left after the subtraction divides it.
    loss = EPSILON * (diagonal * damped.diagonal()).max() / left.clamp_min(0.0)
    if bool((loss > 1e-11).any()):
        return None
    theta = inverse @ cross
    unique = left / diagonal
    partial = ridge * (inverse @ theta) / diagonal[:, None] + unique[:, None] * theta
    return partial / (unique + ridge)[:, None], unique, torch.ones_like(diagonal, dtype=torch.bool)


def _channels_by_spectrum(
    gram: Tensor, cross: Tensor, ridge: float, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    known = spectrum(gram, rows=rows, cut=ridge == 0.0)
    values, squares, hidden = known.values, known.vectors.square(), known.null_weight
    loadings = known.vectors.T @ cross
    theta = known.vectors @ (loadings / (values + ridge)[:, None])
    null = hidden > gram.shape[0] * EPSILON * 10
    if ridge == 0.0:
        unique = torch.where(null, 0.0, 1.0 / (squares @ (1.0 / values)))
        beta = torch.where(null[:, None], 0.0, theta)
        return beta, unique, torch.full_like(null, known.certain)
    # λ K_kk: the null part in full, the rest as far as λ reaches.
    damped = hidden + squares @ (ridge / (values + ridge))
    inner = squares @ (values / (values + ridge).square())
    again = known.vectors @ (loadings / (values + ridge).square()[:, None])
    unique = inner * (ridge / damped).square()
    partial = ridge**2 * again / damped[:, None] + unique[:, None] * theta
    beta = partial / (unique + ridge)[:, None]
    # An eigenvalue at the edge of rounding, taken for zero or for itself, moves β_k by about this much of θ.
    doubt = known.floor / (damped * (unique + ridge))
    return beta, unique, (doubt < 1e-6) | known.certain


_UNCERTAIN = "What the reference leaves of this term is at the level of rounding; use a larger ridge or more samples."


def _nothing_left(rows: int, reference: int, whole: float) -> str:
    if whole == 0.0:
        return "The term is constant over the calibration samples, so it contributes nothing."
    if rows <= reference:
        return (
            f"Fewer samples ({rows}) than reference columns ({reference}): nothing is left. "
            "Calibrate on more samples."
        )
    return "The term lies inside the span of the reference: nothing of it is left to attribute."


def _channel_note(rows: int, channels: int, share: Tensor, sound: Tensor) -> str:
    notes = []
    if rows <= channels:
        notes.append(
            f"Fewer samples than channels ({rows} ≤ {channels}): every channel lies in the span of the others, so "
            f"coefficients shrink towards zero. Calibrate on more than {channels}, or use the head's own weights."
        )
    elif share.numel() and float(share.median()) < 1e-8:
        notes.append(
            "Most channels are linear combinations of the others, so their coefficients shrink towards zero; "
            "use more varied samples, or the head's own weights."
        )
    if not bool(sound.all()):
        undecided = int((~sound).sum())
        notes.append(
            f"{undecided} channels are decided by rounding: use a larger ridge or more samples."
        )
    return " ".join(notes)


def _require_rows(moments: Moments) -> None:
    if moments.rows < 2 or moments.weight <= 0.0:
        raise ValueError(f"moments hold {moments.rows} rows; at least two are needed.")
