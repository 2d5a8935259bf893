"""Bands around curves: how far they would move had other rows of the same kind been used to calibrate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from nobsp.projection import Moments, Ridge
from nobsp.tabular.calibration import Plan, Solution, solve

REPLICATES = 200
# Below this many blocks a bootstrap says more about the blocks than about the rows.
FEWEST_BLOCKS = 8


def replicates(
    plan: Plan,
    parts: Mapping[str, Sequence[Moments]],
    *,
    ridge: Ridge,
    count: int = REPLICATES,
    seed: int = 0,
) -> Iterator[Solution]:
    """Solutions for blocks of calibration rows drawn with replacement; no row is read again.

    Raises:
        ValueError: If too few blocks hold rows.
    """
    sizes = torch.tensor([float(part.rows) for part in next(iter(parts.values()))])
    filled = torch.nonzero(sizes > 0).flatten()
    if len(filled) < FEWEST_BLOCKS:
        raise ValueError(
            f"bands need calibration rows in at least {FEWEST_BLOCKS} blocks, found {len(filled)}; calibrate on "
            "more rows, or with fewer terms."
        )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        drawn = filled[torch.randint(len(filled), (len(filled),), generator=generator)]
        weights = torch.bincount(drawn, minlength=len(sizes)).to(torch.float64)
        yield solve(plan, parts, ridge=ridge, weights=weights.tolist(), diagnose=False)


def band(curves: Tensor, samples: Tensor, *, level: float) -> tuple[Tensor, Tensor]:
    """Pointwise limits around `curves` from bootstrap copies of them.

    The percentiles of the deviations are taken about the curve itself, so that a ridge that pulls every
    copy the same way does not push the curve out of its own band.

    Args:
        curves: The estimate, any shape.
        samples: Copies, shape (count, *shape of curves).
        level: Share of copies inside, e.g. 0.9.
    """
    deviations = samples - samples.mean(0)
    tail = (1 - level) / 2
    low, high = torch.quantile(deviations, torch.tensor([tail, 1 - tail], dtype=deviations.dtype), dim=0)
    return curves + low, curves + high
