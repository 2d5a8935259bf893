"""Removes parts of a layer by their unique contribution; the rest takes over what they shared.

A layer reads parts (units, channels with their taps, heads) h = [h_1 … h_C], each of k columns, and
returns u = h W. Over calibration rows, with G = hᵀh (centred), what part p contributes that no
other part can give has the energy

    unique_p = ‖(I − P_others) h_p W_p‖² = tr(W_pᵀ ([G⁻¹]_pp)⁻¹ W_p),

the oblique projection with parts in the place of features. It is, exactly, the least squares error
that removing p leaves when the others are fitted anew. So the smallest is removed, the others take
over,

    W ← W − G⁻¹[:, p] ([G⁻¹]_pp)⁻¹ W_p,    G⁻¹ ← G⁻¹ − G⁻¹[:, p] ([G⁻¹]_pp)⁻¹ G⁻¹[p, :],

and the next is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Ridge as a share of the mean of the diagonal of G.
RIDGE = 1e-4
# Parts that are removed between two looks at all of them, as a share of all: their neighbours'
# contributions hardly shrink meanwhile, and the large products are done for several at once.
_AT_ONCE = 1 / 64
# Among how many times as many the next are chosen, one by one, with exact contributions.
_CANDIDATES = 4


@dataclass(frozen=True, eq=False)
class Removal:
    """What is left of a layer."""

    alive: Tensor  # numbers of the parts that stay, in order
    weight: Tensor  # (columns of all parts, outputs): zero for parts that went
    order: tuple[int, ...]  # the parts that went, the first to go first
    costs: tuple[float, ...]  # what each of them alone could give, when it went


def remove_parts(
    gram: Tensor,
    weight: Tensor,
    *,
    width: int,
    keep: int,
    metric: Tensor | None = None,
    ridge: float = RIDGE,
) -> Removal:
    """Parts that stay, and the weights with which they do the work of all.

    Args:
        gram: Centred products of the columns, (parts · width, parts · width).
        weight: W, (parts · width, outputs).
        width: Columns of a part.
        keep: How many parts stay.
        metric: Errors e of the outputs cost eᵀ M e, with M this matrix; their squares by default.
        ridge: Strength as a share of the mean diagonal.
    """
    n_parts = len(gram) // width
    inverse = _inverse(with_ridge(gram, ridge))
    alive = torch.arange(n_parts)
    root = None if metric is None else _root(metric)
    weight = weight.clone()
    order: list[int] = []
    costs: list[float] = []
    while len(alive) > keep:
        blocks = _diagonal_blocks(inverse, width)
        unique = _unique(blocks, _measured(weight, root), width)
        step = min(max(1, int(n_parts * _AT_ONCE)), len(alive) - keep)
        candidates = unique.argsort()[: max(_CANDIDATES * step, step + 1)].sort().values
        chosen, prices = _choose(inverse, weight, candidates, step, width, root)
        order += [int(alive[position]) for position in chosen]
        costs += prices

        gone = torch.zeros(len(alive), dtype=torch.bool)
        gone[chosen] = True
        inverse, weight = _take_over(inverse, weight, gone.repeat_interleave(width))
        alive = alive[~gone]

    full = weight.new_zeros(n_parts, width, weight.shape[1])
    full[alive] = weight.reshape(len(alive), width, -1)
    return Removal(alive, full.flatten(0, 1), tuple(order), tuple(costs))


def columns_of(parts: Tensor, width: int) -> Tensor:
    """Numbers of the columns that belong to some parts."""
    return (parts[:, None] * width + torch.arange(width)).flatten()


def with_ridge(gram: Tensor, ridge: float) -> Tensor:
    """G with a share of its mean diagonal added to its diagonal."""
    strengthened = gram.clone()
    strengthened.diagonal().add_(ridge * gram.diagonal().mean().clamp_min(1e-30))
    return strengthened


def _inverse(gram: Tensor) -> Tensor:
    """G⁻¹; by Cholesky's factor, twice as fast, unless rounding has made G indefinite."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    return torch.linalg.inv(gram) if failed else torch.cholesky_inverse(factor)


def _root(metric: Tensor) -> Tensor:
    """R with R Rᵀ = M."""
    values, vectors = torch.linalg.eigh(metric)
    root: Tensor = vectors * values.clamp_min(0.0).sqrt()
    return root


def _measured(weight: Tensor, root: Tensor | None) -> Tensor:
    return weight if root is None else weight @ root


def _diagonal_blocks(inverse: Tensor, width: int) -> Tensor:
    """[G⁻¹]_pp of every part, (parts, width, width)."""
    n_parts = len(inverse) // width
    blocks = inverse.reshape(n_parts, width, n_parts, width)
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def _unique(blocks: Tensor, weight: Tensor, width: int) -> Tensor:
    """tr(W_pᵀ ([G⁻¹]_pp)⁻¹ W_p) of every part."""
    parts = weight.reshape(len(blocks), width, -1)
    energies: Tensor = (parts * torch.linalg.solve(blocks, parts)).sum((1, 2))
    return energies


def _choose(
    inverse: Tensor, weight: Tensor, candidates: Tensor, step: int, width: int, root: Tensor | None
) -> tuple[list[int], list[float]]:
    """The next parts to go, one by one, and what each costs.

    Only what belongs to the candidates is needed of G⁻¹ and W.
    """
    columns = columns_of(candidates, width)
    own = inverse[columns][:, columns]
    parts = _measured(weight[columns], root)
    numbers = candidates.tolist()
    chosen: list[int] = []
    prices: list[float] = []
    for _ in range(step):
        unique = _unique(_diagonal_blocks(own, width), parts, width)
        weakest = int(unique.argmin())
        chosen.append(numbers.pop(weakest))
        prices.append(float(unique[weakest].clamp_min(0.0)))
        gone = torch.zeros(len(unique), dtype=torch.bool)
        gone[weakest] = True
        own, parts = _take_over(own, parts, gone.repeat_interleave(width))
    return chosen, prices


def _take_over(inverse: Tensor, weight: Tensor, gone: Tensor) -> tuple[Tensor, Tensor]:
    """G⁻¹ and W of the columns that stay."""
    stays = (~gone).nonzero().squeeze(1)
    goes = gone.nonzero().squeeze(1)
    across = inverse[stays[:, None], goes]
    share = torch.linalg.solve(inverse[goes[:, None], goes], across.T).T
    # In place, and one copy only: of the widest layers G⁻¹ takes hundreds of megabytes.
    remaining = inverse[stays[:, None], stays].addmm_(share, across.T, alpha=-1.0)
    return remaining, weight[stays] - share @ weight[goes]
