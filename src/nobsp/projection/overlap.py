"""How far a term's subspace stands apart from the rest: is this calibration healthy?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nobsp.projection.moments import Moments
from nobsp.projection.ridge import Spectrum, spectrum


@dataclass(frozen=True)
class Overlap:
    """A term's subspace beside the reference it is projected along.

    Attributes:
        rank: Directions of the target above rounding.
        effective_rank: Directions the target's spread is effectively spread over (exponential of the
            entropy of its eigenvalues); never more than `rank`.
        reference_rank: Directions of the reference above rounding.
        angles: Principal angles between the two subspaces in degrees, smallest first.
        condition: Largest over smallest singular value of the target's kept directions.
        unique_share: Share of the target's spread left when the reference is removed.
        rows: Samples it was measured on.
        verdict: One of "healthy", "constant", "few samples", "inside the reference", "strong overlap".
        advice: What that means and what to do, in words.
    """

    rank: int
    effective_rank: float
    reference_rank: int
    angles: Tensor
    condition: float
    unique_share: float
    rows: int
    verdict: str
    advice: str


def overlap(moments: Moments, *, target: str = "target", reference: str | list[str] = "reference") -> Overlap:
    """Measures how much of a term is its own.

    Args:
        moments: Products of rows that hold the target and the reference.
        target: Name of the target block.
        reference: Name of the reference block, or of all blocks that make it up.

    Returns:
        Ranks, principal angles, conditioning and a verdict in plain language.

    Raises:
        ValueError: If fewer than two rows were seen.

    Example:
        >>> x = torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> moments = Moments({"target": 1, "reference": 2}).update(x)
        >>> overlap(moments).verdict
        'healthy'
    """
    if moments.rows < 2 or moments.weight <= 0.0:
        raise ValueError(f"moments hold {moments.rows} rows; at least two are needed.")
    others = [reference] if isinstance(reference, str) else list(reference)
    own = spectrum(moments.product(target, target), rows=moments.rows)
    nothing = own.vectors.new_zeros(0, moments.blocks[target])
    between = torch.cat([nothing, *(moments.product(name, target) for name in others)])
    gram = moments.select(others).products if others else nothing[:, :0]
    rest = spectrum(gram, rows=moments.rows)
    share = _unique_share(own, rest, between)
    effective = _effective_rank(own)
    condition = float((own.values[0] / own.values[-1]).sqrt()) if own.rank else 1.0
    verdict, advice = _verdict(moments.rows, gram.shape[0], own, rest, share)
    return Overlap(
        own.rank,
        effective,
        rest.rank,
        _principal_angles(own, rest, between),
        condition,
        share,
        moments.rows,
        verdict,
        advice,
    )


def _effective_rank(own: Spectrum) -> float:
    if own.rank == 0:
        return 0.0
    shares = own.values / own.values.sum()
    return math.exp(float(-(shares * shares.log()).sum()))


def _principal_angles(own: Spectrum, rest: Spectrum, between: Tensor) -> Tensor:
    """Angles whose cosines are the singular values of the whitened cross-products.

    Cosines near one lose half their digits, so angles below about 1e-6 degrees cannot be told from zero.
    """
    if own.rank == 0 or rest.rank == 0:
        return between.new_zeros(0)
    white = (rest.vectors.T @ between @ own.vectors) / rest.values.sqrt()[:, None] / own.values.sqrt()
    cosines = torch.linalg.svdvals(white).clamp(0.0, 1.0)
    return torch.rad2deg(torch.acos(cosines))


def _unique_share(own: Spectrum, rest: Spectrum, between: Tensor) -> float:
    if own.rank == 0:
        return 0.0
    total = own.values.sum()
    seen = rest.vectors.T @ between
    explained = (seen.square() / rest.values[:, None]).sum() if rest.rank else total.new_zeros(())
    return float((1 - explained / total).clamp(0.0, 1.0))


def _verdict(rows: int, columns: int, own: Spectrum, rest: Spectrum, share: float) -> tuple[str, str]:
    if own.rank == 0:
        return "constant", "The term does not vary over the calibration samples, so it contributes nothing."
    if rows - 1 <= rest.rank:
        return (
            "few samples",
            f"Too few samples ({rows} for {columns} reference columns): the reference can "
            f"reproduce anything, so little or nothing is left of the term. Calibrate on more than {columns + 1} "
            "samples, or use a stronger ridge.",
        )
    if share < 1e-6:
        return (
            "inside the reference",
            "The term is a linear combination of the others (a duplicated or derived feature?): what it "
            "contributes cannot be told apart from theirs. Group them as one feature, or drop one.",
        )
    if share < 0.05:
        return (
            "strong overlap",
            f"Only {share:.1%} of the term's spread is its own: its function is determined by few samples. "
            "Read its band before its curve; more samples or grouping it with its twin will help.",
        )
    return "healthy", f"{share:.0%} of the term's spread is its own."
