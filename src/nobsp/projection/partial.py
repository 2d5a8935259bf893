"""Partial regression from moments (paper, Algorithm 1), and all channels from one factorisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nobsp.arguments import require_choice
from nobsp.projection.moments import Moments

EPSILON = torch.finfo(torch.float64).eps

# Where less than this share of the target is left, its products are differences of nearly equal
# numbers and the spectral route takes over from the Cholesky factorisation.
_CANCELLATION = 1e-6
# Rounding is bounded by about thirty times what is seen.
_ROUNDING_BOUND = 32 * EPSILON
# While that bound is below this share of the ridge it is added to, a Cholesky factorisation is
# closer to the truth than cutting the spectrum.
_BELOW_RIDGE = 1e-2
# Below this share it is harmless.
_HARMLESS = 1e-4
# Measured: rounding leaves eigenvalues of about 0.1·ε·√size of the largest where zeros should be.
_EIGENVALUE_ROUNDING = 8 * EPSILON
# An eigenvalue this many times above rounding is certainly not zero.
_CLEAR_OF_ROUNDING = 1e4
# Channels whose rounding grows beyond this take the spectral route.
_MOST_LOSS = 1e-11
# Coefficients that rounding may move by less than this share are determined.
_LEAST_DOUBT = 1e-6
# Channels of which less than this share is their own are linear combinations of the others.
_NO_OWN_SHARE = 1e-8


@dataclass(frozen=True)
class Ridge:
    """A ridge penalty, absolute as in the paper or relative to the matrix it is added to.

    The relative form is λ = α · trace(G) / p, with G the Gram matrix being inverted and p its size,
    so the same α means the same thing for any number of samples and any scale of the
    representation.
    """

    value: float = 1e-4
    scale: Literal["relative", "absolute"] = "relative"

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise TypeError(f"ridge must be a number, found {type(self.value).__name__}.")
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"ridge must be finite and not negative, found {self.value}.")
        require_choice("ridge_scale", self.scale, ("relative", "absolute"))

    def amount(self, gram: Tensor, *, size: int | None = None) -> float:
        """The λ to add to the diagonal of `gram`."""
        if self.scale == "absolute":
            return float(self.value)

        trace = gram.diagonal().sum().clamp_min(0.0)
        return float(self.value * trace / max(size or gram.shape[0], 1))


def with_ridge(gram: Tensor, amount: float) -> Tensor:
    """G + λI, leaving `gram` as it is."""
    damped = gram.clone()
    damped.diagonal().add_(amount)
    return damped


@dataclass(frozen=True)
class Spectrum:
    """The eigenpairs of a Gram matrix that stand above rounding, and the weight of the rest."""

    # Eigenvalues, largest first, shape (rank,).
    values: Tensor
    # Their eigenvectors as columns, shape (size, rank).
    vectors: Tensor
    # Per coordinate, the squared length of its part outside these eigenvectors.
    null_weight: Tensor
    # Eigenvalues below this cannot be told from rounding.
    floor: float
    # Whether all that was dropped is known to be zero (by the number of rows, or because nothing
    # was) and all that was kept stands well clear of rounding.
    certain: bool

    @property
    def rank(self) -> int:
        """How many directions are kept."""
        return int(self.values.shape[0])


def spectrum(
    gram: Tensor,
    *,
    rows: int | None = None,
    scale: Tensor | float | None = None,
    cut: bool = True,
) -> Spectrum:
    """The trustworthy part of the spectrum of a symmetric positive semi-definite matrix.

    A Gram matrix of N centred rows has rank N - 1 at most. Eigenvalues past that are zero and show
    up as rounding of the largest; dropping them by *count* keeps what a tolerance alone could not
    tell apart.
    """
    size = gram.shape[0]
    if size == 0:
        return _empty_spectrum(gram)

    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    values = values.flip(0)
    vectors = vectors.flip(1)

    largest = values[0].clamp_min(0.0)
    if scale is not None:
        known_scale = torch.as_tensor(scale, dtype=gram.dtype, device=gram.device)
        largest = torch.maximum(largest, known_scale)
    floor = float(largest) * _EIGENVALUE_ROUNDING * max(size, 16) ** 0.5

    limit = size if rows is None else max(min(size, rows - 1), 0)
    rank = min(int((values > floor).sum()), limit)
    clear = rank == 0 or bool(values[rank - 1] > _CLEAR_OF_ROUNDING * floor)
    certain = rank == limit and clear

    if not cut:
        # By count only where what the count drops stands apart; else it would take a weak direction
        # with it.
        rank = limit if certain else size
        values = values.clamp_min(0.0)
    return Spectrum(
        values=values[:rank].clone(),
        vectors=vectors[:, :rank].clone(),
        null_weight=vectors[:, rank:].square().sum(1),
        floor=floor,
        certain=certain,
    )


def _empty_spectrum(gram: Tensor) -> Spectrum:
    """The spectrum of a matrix without rows."""
    return Spectrum(
        values=gram.new_zeros(0),
        vectors=gram.new_zeros(0, 0),
        null_weight=gram.new_zeros(0),
        floor=0.0,
        certain=True,
    )


@dataclass(frozen=True)
class PartialRegression:
    """What Algorithm 1 finds for one term."""

    # One column per output, shape (width of target, outputs).
    coefficients: Tensor
    # How much of the target's spread is left once the reference is removed, 0 to 1.
    unique_share: float
    # The λ used for the reference and for what is left of the target.
    ridges: tuple[float, float]
    # Whether the moments determine the coefficients beyond their own rounding.
    sound: bool
    # Why not, in words; empty when sound.
    note: str


def partial_coefficients(
    moments: Moments, *, ridge: Ridge | None = None, target_size: int | None = None
) -> PartialRegression:
    """Coefficients that carry the target block to its unique part of the outputs.

    Solves, for every output at once, lines 1 to 4 of Algorithm 1 with target T (the paper's Z̃_k)
    and reference A (its Z̃_(k); the paper's letter A is another matrix, which is never formed):

        R_T = T − A B,   B = (AᵀA + λI)⁻¹ AᵀT,   R_y = y − A B_y,   B_y = (AᵀA + λI)⁻¹ Aᵀy
        β = (R_TᵀR_T + λI)⁻¹ R_Tᵀ R_y

    using only the centred products G held in `moments`. With λ > 0 the residual is *not* a
    projection:

        R_TᵀR_T = G_TT − BᵀG_AT − G_TA B + BᵀG_AA B
        R_TᵀR_y = G_Ty − BᵀG_Ay − G_TA B_y + BᵀG_AA B_y

    With λ = 0 the answer is Moore and Penrose's.
    """
    _require_rows(moments)
    ridge = ridge or Ridge()
    products = _Products.from_moments(moments)
    reference_ridge = ridge.amount(products.aa)
    unique = _unique_part(products, moments.rows, ridge, reference_ridge, target_size)
    target_ridge = ridge.amount(unique.remaining, size=target_size)

    spread = products.target_spread
    left = unique.spread
    if left <= 0.0:
        return PartialRegression(
            coefficients=torch.zeros_like(unique.cross),
            unique_share=0.0,
            ridges=(reference_ridge, target_ridge),
            sound=spread == 0.0,
            note=_nothing_left(moments.rows, products.aa.shape[0], spread),
        )

    coefficients, sound = _solve_unique(unique, target_ridge, moments.rows)
    share = left / max(spread, 1e-300)
    return PartialRegression(
        coefficients=coefficients,
        unique_share=min(max(share, 0.0), 1.0),
        ridges=(reference_ridge, target_ridge),
        sound=sound,
        note="" if sound else _UNCERTAIN,
    )


class _Products(NamedTuple):
    """Centred products of target (t), reference (a) and outputs (y)."""

    tt: Tensor
    at: Tensor
    aa: Tensor
    ty: Tensor
    ay: Tensor

    @classmethod
    def from_moments(cls, moments: Moments) -> _Products:
        return cls(
            tt=moments.product("target", "target"),
            at=moments.product("reference", "target"),
            aa=moments.product("reference", "reference"),
            ty=moments.product("target", "outputs"),
            ay=moments.product("reference", "outputs"),
        )

    @property
    def target_spread(self) -> float:
        """Squared deviations of the target, summed over its columns."""
        return float(self.tt.diagonal().sum())


@dataclass(frozen=True)
class _Unique:
    """What the reference leaves of target and outputs."""

    # R_TᵀR_T
    remaining: Tensor
    # R_TᵀR_y
    cross: Tensor
    # What rounding of `remaining` is relative to.
    scale: float
    # The rank the rows allow it.
    rank_limit: int
    # Whether no rank was decided by rounding on the way.
    certain: bool

    @property
    def spread(self) -> float:
        """Squared deviations that are left, summed over the columns of the target."""
        return float(self.remaining.diagonal().sum())

    def drowns(self, ridge: float, share: float = _BELOW_RIDGE) -> bool:
        """Whether rounding of `remaining` is so far below the ridge that nothing need be cut."""
        return _ROUNDING_BOUND * self.scale < share * ridge


def _unique_part(
    products: _Products,
    rows: int,
    ridge: Ridge,
    reference_ridge: float,
    target_size: int | None,
) -> _Unique:
    """R_TᵀR_T and R_TᵀR_y by the fast route where it can be trusted, else by the spectral one."""
    # N centred rows span N - 1 directions: with no more than the reference has columns, the target
    # is inside it.
    has_spare_rows = rows - 1 > products.aa.shape[0]
    unique = _unique_by_cholesky(products, reference_ridge) if has_spare_rows else None
    if unique is None:
        return _unique_by_spectrum(products, reference_ridge, rows)

    # Where the subtraction left little, it stands only if what was lost drowns in the ridge.
    left_little = unique.spread < _CANCELLATION * products.target_spread
    if left_little and not unique.drowns(ridge.amount(unique.remaining, size=target_size)):
        return _unique_by_spectrum(products, reference_ridge, rows)
    return unique


def _solve_unique(unique: _Unique, ridge: float, rows: int) -> tuple[Tensor, bool]:
    """β = (R_TᵀR_T + λI)⁻¹ R_TᵀR_y, and whether it is determined beyond rounding."""
    # Line 4 of Algorithm 1.
    if unique.drowns(ridge):
        factor = torch.linalg.cholesky(with_ridge(unique.remaining, ridge))
        coefficients = torch.cholesky_solve(unique.cross, factor)
        return coefficients, unique.certain and unique.drowns(ridge, _HARMLESS)

    trusted = spectrum(unique.remaining, rows=min(rows, unique.rank_limit + 1), scale=unique.scale)
    loadings = trusted.vectors.T @ unique.cross
    coefficients = trusted.vectors @ (loadings / (trusted.values + ridge)[:, None])
    return coefficients, unique.certain and trusted.certain


def _unique_by_cholesky(products: _Products, ridge: float) -> _Unique | None:
    """R_TᵀR_T and R_TᵀR_y the fast way, or None where the reference cannot be factorised."""
    if ridge == 0.0:
        return None
    # Line 1 of Algorithm 1, applied to target and outputs: B and B_y.
    factor, info = torch.linalg.cholesky_ex(with_ridge(products.aa, ridge))
    if int(info) != 0:
        return None

    width = products.tt.shape[0]
    right_side = torch.cat([products.at, products.ay], dim=1)
    solved = torch.cholesky_solve(right_side, factor)
    b_target = solved[:, :width]
    b_outputs = solved[:, width:]

    # Lines 2 and 3, as products of what they leave.
    fitted = products.aa @ b_target
    remaining = products.tt - b_target.T @ products.at
    remaining = remaining - products.at.T @ b_target + b_target.T @ fitted
    cross = products.ty - b_target.T @ products.ay
    cross = cross - products.at.T @ b_outputs + fitted.T @ b_outputs

    # Rounding of the solve, column by column of the reference, is seen through the size of B.
    carried = (b_target.square() * products.aa.diagonal()[:, None]).sum()
    return _Unique(
        remaining=(remaining + remaining.T) / 2,
        cross=cross,
        scale=float(torch.maximum(_norm(products.tt), carried)),
        rank_limit=width,
        certain=True,
    )


def _unique_by_spectrum(products: _Products, ridge: float, rows: int) -> _Unique:
    """The same from the eigenvectors u_i, s_i of AᵀA: exact zeros stay zeros.

        R_TᵀR_T = [G_TT − Σ_i t_i t_iᵀ / s_i] + Σ_i t_i t_iᵀ λ² / (s_i (s_i + λ)²),   t_i = G_TA u_i

    The bracket is the part of the target outside the reference's span. It has rank N − 1 − rank(A)
    at most and vanishes where the reference spans all centred vectors: known from the count, not
    from subtraction.
    """
    reference = spectrum(products.aa, rows=rows)
    values = reference.values[:, None]
    t = reference.vectors.T @ products.at
    y = reference.vectors.T @ products.ay

    if ridge > 0.0:
        shrunk = (ridge / (values + ridge)).square() / values
        remaining = t.T @ (t * shrunk)
        cross = t.T @ (y * shrunk)
    else:
        remaining = torch.zeros_like(products.tt)
        cross = torch.zeros_like(products.ty)

    scale = _norm(remaining)
    certain = reference.certain
    outside_rank = max(rows - 1 - reference.rank, 0)
    if outside_rank > 0:
        outside = products.tt - t.T @ (t / values)
        outside_y = products.ty - t.T @ (y / values)
        carried = scale
        if reference.rank:
            carried = (t / values).square().sum() * reference.values.max()
        scale = torch.maximum(_norm(products.tt), carried)

        trusted = spectrum(outside, rows=outside_rank + 1, scale=scale)
        remaining = remaining + (trusted.vectors * trusted.values) @ trusted.vectors.T
        cross = cross + trusted.vectors @ (trusted.vectors.T @ outside_y)
        certain = certain and trusted.certain

    width = products.tt.shape[0]
    return _Unique(
        remaining=(remaining + remaining.T) / 2,
        cross=cross,
        scale=float(scale),
        rank_limit=width if ridge > 0.0 else min(outside_rank, width),
        certain=certain,
    )


def _norm(gram: Tensor) -> Tensor:
    """The largest singular value; zero of an empty matrix."""
    if not gram.numel():
        return gram.new_zeros(())
    norm: Tensor = torch.linalg.matrix_norm(gram, 2)
    return norm


@dataclass(frozen=True)
class ChannelRegression:
    """What Algorithm 1 finds for every channel when each is its own term."""

    # Shape (channels, outputs).
    coefficients: Tensor
    # Per channel, the share of its spread that the other channels cannot reproduce.
    unique_share: Tensor
    # The λ used.
    ridge: float
    # Per channel, whether the moments determine its coefficients beyond their own rounding.
    sound: Tensor
    # What is wrong and what to do, in words; empty when all is well.
    note: str


class _Channels(NamedTuple):
    """Coefficients, unique spread and soundness of the channels that vary."""

    coefficients: Tensor
    unique: Tensor
    sound: Tensor


def channel_coefficients(moments: Moments, *, ridge: Ridge | None = None) -> ChannelRegression:
    """Algorithm 1 for every channel against all the others, from one factorisation.

    With G the Gram matrix of the channels, s their products with the outputs, K = (G + λI)⁻¹ and θ
    = K s, elementwise over channels k:

        a_k = (K_kk − λ Σ_j K_jk²) / K_kk²     = R_TᵀR_T
        c_k = λ (Kθ)_k / K_kk + a_k θ_k        = R_TᵀR_y
        β_k = c_k / (a_k + λ)

    Every channel shares one λ; on the relative scale it is α · trace(G) / channels. Where a_k would
    be a difference of nearly equal numbers (few samples, small λ), the same quantities are taken
    from the eigenvectors of G instead, cut at the rank the number of samples allows: K_kk − λ Σ_j
    K_jk² = Σ_i u_ki² s_i / (s_i + λ)², which has no cancellation.
    """
    _require_rows(moments)
    gram = moments.product("channels", "channels")
    cross = moments.product("channels", "outputs")
    amount = (ridge or Ridge(1e-4, "absolute")).amount(gram)

    spread = gram.diagonal()
    varies = spread > 0
    if bool(varies.all()):
        varying = _solve_channels(gram, cross, amount, moments.rows)
    else:
        varying = _solve_channels(gram[varies][:, varies], cross[varies], amount, moments.rows)

    coefficients = torch.zeros_like(cross)
    coefficients[varies] = varying.coefficients
    sound = torch.ones_like(varies)
    sound[varies] = varying.sound
    share = torch.zeros_like(spread)
    share[varies] = (varying.unique / spread[varies]).clamp(0.0, 1.0)
    return ChannelRegression(
        coefficients=coefficients,
        unique_share=share,
        ridge=amount,
        sound=sound,
        note=_channel_note(moments.rows, share[varies], sound),
    )


def _solve_channels(gram: Tensor, cross: Tensor, ridge: float, rows: int) -> _Channels:
    """All channels at once, by a factorisation where it can be trusted, else from eigenvectors."""
    if rows > gram.shape[0] > 0:
        channels = _channels_by_cholesky(gram, cross, ridge)
        if channels is not None:
            return channels
    return _channels_by_spectrum(gram, cross, ridge, rows)


def _channels_by_cholesky(gram: Tensor, cross: Tensor, ridge: float) -> _Channels | None:
    """The formulas from K itself; None where rounding would show."""
    damped = with_ridge(gram, ridge)
    factor, info = torch.linalg.cholesky_ex(damped)
    if int(info) != 0:
        return None
    inverse = torch.cholesky_inverse(factor)
    diagonal = inverse.diagonal()
    left = 1.0 - ridge * inverse.square().sum(0) / diagonal

    # Cholesky is blind to the scale of columns: K_kk (G_kk + λ), a variance inflation factor, is
    # what its rounding is multiplied by, and what is left after the subtraction divides it.
    inflation = (diagonal * damped.diagonal()).max()
    loss = EPSILON * inflation / left.clamp_min(0.0)
    if bool((loss > _MOST_LOSS).any()):
        return None

    theta = inverse @ cross
    unique = left / diagonal
    partial = ridge * (inverse @ theta) / diagonal[:, None] + unique[:, None] * theta
    return _Channels(
        coefficients=partial / (unique + ridge)[:, None],
        unique=unique,
        sound=torch.ones_like(diagonal, dtype=torch.bool),
    )


def _channels_by_spectrum(gram: Tensor, cross: Tensor, ridge: float, rows: int) -> _Channels:
    """The formulas from the eigenvectors of G, without cancellation."""
    trusted = spectrum(gram, rows=rows, cut=ridge == 0.0)
    values = trusted.values
    squares = trusted.vectors.square()
    loadings = trusted.vectors.T @ cross
    theta = trusted.vectors @ (loadings / (values + ridge)[:, None])

    if ridge == 0.0:
        in_null_space = trusted.null_weight > gram.shape[0] * EPSILON * 10
        own = 1.0 / (squares @ (1.0 / values))
        return _Channels(
            coefficients=torch.where(in_null_space[:, None], 0.0, theta),
            unique=torch.where(in_null_space, 0.0, own),
            sound=torch.full_like(in_null_space, trusted.certain),
        )

    # λ K_kk: the null part in full, the rest as far as λ reaches.
    damped = trusted.null_weight + squares @ (ridge / (values + ridge))
    inner = squares @ (values / (values + ridge).square())
    twice = trusted.vectors @ (loadings / (values + ridge).square()[:, None])
    unique = inner * (ridge / damped).square()
    partial = ridge**2 * twice / damped[:, None] + unique[:, None] * theta

    # An eigenvalue at the edge of rounding, taken for zero or for itself, moves β_k by about this
    # much of θ.
    doubt = trusted.floor / (damped * (unique + ridge))
    return _Channels(
        coefficients=partial / (unique + ridge)[:, None],
        unique=unique,
        sound=(doubt < _LEAST_DOUBT) | trusted.certain,
    )


_UNCERTAIN = (
    "What the reference leaves of this term is at the level of rounding; "
    "use a larger ridge or more samples."
)


def _nothing_left(rows: int, reference: int, spread: float) -> str:
    """Why the reference leaves nothing of the target."""
    if spread == 0.0:
        return "The term is constant over the calibration samples, so it contributes nothing."
    if rows <= reference:
        return (
            f"Fewer samples ({rows}) than reference columns ({reference}): nothing is left. "
            "Calibrate on more samples."
        )
    return "The term lies inside the span of the reference: nothing of it is left to attribute."


def _channel_note(rows: int, share: Tensor, sound: Tensor) -> str:
    """What is wrong with the channels and what to do; empty when all is well."""
    channels = share.numel()
    notes = []
    if rows <= channels:
        notes.append(
            f"Fewer samples than channels ({rows} ≤ {channels}): every channel lies in the span "
            "of the others, so coefficients shrink towards zero. Calibrate on more than "
            f"{channels}, or use the head's own weights."
        )
    elif channels and float(share.median()) < _NO_OWN_SHARE:
        notes.append(
            "Most channels are linear combinations of the others, so their coefficients shrink "
            "towards zero; use more varied samples, or the head's own weights."
        )
    if not bool(sound.all()):
        undecided = int((~sound).sum())
        notes.append(
            f"{undecided} channels are decided by rounding: use a larger ridge or more samples."
        )
    return " ".join(notes)


def _require_rows(moments: Moments) -> None:
    """Raises a ValueError for moments of fewer than two rows."""
    if moments.rows < 2 or moments.weight <= 0.0:
        raise ValueError(f"moments hold {moments.rows} rows; at least two are needed.")
