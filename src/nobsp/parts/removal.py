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
    most_at_once = max(1, int(n_parts * _AT_ONCE))
    root = None if metric is None else _root(metric)

    # G⁻¹ and W of the parts that are left, which become smaller as parts go.
    inverse = _inverse(with_ridge(gram, ridge))
    weight = weight.clone()
    alive = torch.arange(n_parts)
    order: list[int] = []
    costs: list[float] = []
    while len(alive) > keep:
        n_go = min(most_at_once, len(alive) - keep)
        unique = _unique(_diagonal_blocks(inverse, width), _measured(weight, root), width)
        candidates = _weakest(unique, max(_CANDIDATES * n_go, n_go + 1))
        positions, prices = _choose(inverse, weight, candidates, n_go, width, root)
        order += alive[positions].tolist()
        costs += prices

        gone = torch.zeros(len(alive), dtype=torch.bool)
        gone[positions] = True
        inverse, weight = _take_over(inverse, weight, gone.repeat_interleave(width))
        alive = alive[~gone]

    n_outputs = weight.shape[1]
    with_zeros = weight.new_zeros(n_parts, width, n_outputs)
    with_zeros[alive] = weight.reshape(len(alive), width, n_outputs)
    return Removal(alive, with_zeros.flatten(0, 1), tuple(order), tuple(costs))


def _weakest(unique: Tensor, n_wanted: int) -> Tensor:
    """Positions of the parts that contribute least, in the order of the parts."""
    weakest = unique.argsort()[:n_wanted]
    return weakest.sort().values


def columns_of(parts: Tensor, width: int) -> Tensor:
    """Numbers of the columns that belong to some parts."""
    return (parts[:, None] * width + torch.arange(width)).flatten()


def with_ridge(gram: Tensor, ridge: float) -> Tensor:
    """G with a share of its mean diagonal added to its diagonal."""
    # Of columns that never vary the mean is nothing, and G would have no inverse.
    mean_energy = gram.diagonal().mean().clamp_min(1e-30)
    strengthened = gram.clone()
    strengthened.diagonal().add_(ridge * mean_energy)
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
    """W R, whose squares are what errors cost; W itself where all outputs count alike."""
    return weight if root is None else weight @ root


def _diagonal_blocks(inverse: Tensor, width: int) -> Tensor:
    """[G⁻¹]_pp of every part, (parts, width, width)."""
    n_parts = len(inverse) // width
    by_parts = inverse.reshape(n_parts, width, n_parts, width)
    # Torch puts the diagonal last.
    diagonal = by_parts.diagonal(dim1=0, dim2=2)
    return diagonal.permute(2, 0, 1)


def _unique(blocks: Tensor, weight: Tensor, width: int) -> Tensor:
    """tr(W_pᵀ ([G⁻¹]_pp)⁻¹ W_p) of every part."""
    parts = weight.reshape(len(blocks), width, -1)
    solved = torch.linalg.solve(blocks, parts)
    energies: Tensor = (parts * solved).sum((1, 2))
    return energies


def _choose(
    inverse: Tensor, weight: Tensor, candidates: Tensor, n_go: int, width: int, root: Tensor | None
) -> tuple[list[int], list[float]]:
    """The next parts to go, one by one, and what each costs.

    Only what belongs to the candidates is needed of G⁻¹ and W.
    """
    columns = columns_of(candidates, width)
    own_inverse = inverse[columns][:, columns]
    own_weight = _measured(weight[columns], root)
    remaining = candidates.tolist()
    chosen: list[int] = []
    prices: list[float] = []
    for _ in range(n_go):
        unique = _unique(_diagonal_blocks(own_inverse, width), own_weight, width)
        weakest = int(unique.argmin())
        chosen.append(remaining.pop(weakest))
        # Rounding can make what is nothing negative.
        prices.append(float(unique[weakest].clamp_min(0.0)))

        gone = torch.zeros(len(unique), dtype=torch.bool)
        gone[weakest] = True
        own_inverse, own_weight = _take_over(own_inverse, own_weight, gone.repeat_interleave(width))
    return chosen, prices


def _take_over(inverse: Tensor, weight: Tensor, gone: Tensor) -> tuple[Tensor, Tensor]:
    """G⁻¹ and W of the columns that stay, S, when those that are gone, p, are taken out.

    With K = [G⁻¹]_Sp ([G⁻¹]_pp)⁻¹ these are [G⁻¹]_SS − K [G⁻¹]_pS and W_S − K W_p.
    """
    stays = (~gone).nonzero().squeeze(1)
    goes = gone.nonzero().squeeze(1)
    across = inverse[stays[:, None], goes]
    among_gone = inverse[goes[:, None], goes]
    # K, from the transposed equation: G⁻¹ is symmetric.
    share = torch.linalg.solve(among_gone, across.T).T

    # In place, and one copy only: of the widest layers G⁻¹ takes hundreds of megabytes.
    among_staying = inverse[stays[:, None], stays]
    among_staying.addmm_(share, across.T, alpha=-1.0)
    return among_staying, weight[stays] - share @ weight[goes]
