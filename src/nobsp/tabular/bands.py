"""Bands around curves: how far they would move had other rows of the same kind been used to calibrate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.projection import Moments, Ridge, merge_all
from nobsp.projection.ridge import with_ridge
from nobsp.tabular.calibration import JOINT, OUTPUTS, Plan, label, solve

REPLICATES = 200
# Below this many blocks a bootstrap says more about the blocks than about the rows.
FEWEST_BLOCKS = 8
# Joint systems with more columns are not solved anew for every copy: the change is taken to first order.
MOST_COLUMNS_SOLVED = 600

# Per term, its coefficients on the compressed representation and what centring subtracts.
Copy = dict[Subset, tuple[Tensor, Tensor]]


def replicates(
    plan: Plan,
    parts: Mapping[str, Sequence[Moments]],
    terms: Sequence[Subset],
    *,
    ridge: Ridge,
    count: int = REPLICATES,
    seed: int = 0,
) -> Iterator[Copy]:
    """Coefficients of some terms for blocks of calibration rows drawn with replacement; no row is read again.

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
    draws = [filled[torch.randint(len(filled), (len(filled),), generator=generator)] for _ in range(count)]
    weights = torch.stack([torch.bincount(drawn, minlength=len(sizes)) for drawn in draws]).to(torch.float64)
    if plan.pure and sum(basis.shape[1] for basis in plan.bases.values()) > MOST_COLUMNS_SOLVED:
        yield from _to_first_order(parts[JOINT], terms, weights, ridge=ridge)
        return
    for drawn in weights:
        copy = solve(plan, parts, ridge=ridge, weights=drawn.tolist(), diagnose=False)
        # Coefficients live in the span of the basis, so its transpose brings them back to the small system.
        yield {term: (plan.bases[term].T @ copy.matrices[term], copy.offsets[term]) for term in terms}


def _to_first_order(
    blocks: Sequence[Moments], terms: Sequence[Subset], weights: Tensor, *, ridge: Ridge
) -> Iterator[Copy]:
    """The same with one factorisation for all copies.

    With β = K s the solution and w_b how often block b is drawn, (Σ w_b G_b + λI) β_w = Σ w_b s_b gives to
    first order β_w − β = K Σ_b (w_b − 1) (s_b − G_b β), all products taken about the common mean.
    """
    total = merge_all(blocks)
    outputs = total.blocks[OUTPUTS]
    size, mean = total.size - outputs, total.mean()
    products = total.products
    factor = torch.linalg.cholesky(with_ridge(products[:size, :size], ridge.amount(products[:size, :size])))
    beta = torch.cholesky_solve(products[:size, size:], factor)
    moves = []
    for block in blocks:
        shift = block.mean() - mean if block.rows else torch.zeros_like(mean)
        own = block.products.addr(shift, shift, alpha=block.weight)
        moves.append(torch.cholesky_solve(own[:size, size:] - own[:size, :size] @ beta, factor))
    change = torch.stack(moves)
    mass = torch.tensor([block.weight for block in blocks], dtype=torch.float64)
    means = torch.stack([block.mean()[:size] for block in blocks])
    places = {term: total._slice(label(term)) for term in terms}
    for drawn in weights:
        moved = beta + torch.einsum("b,bpo->po", drawn - 1, change)
        centre = (drawn * mass) @ means / (drawn @ mass)
        yield {term: (moved[place], centre[place] @ moved[place]) for term, place in places.items()}


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
