"""Rows that stand for others, chosen one by one: prototypes of a class, and rows to label next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import ArrayLike
from nobsp.arguments import array_of, require_choice, require_parts, require_whole_number
from nobsp.neighbors.search import Fitted, spaced

if TYPE_CHECKING:
    from nobsp.neighbors.index import ContributionIndex

By = Literal["coverage", "uncertainty", "both"]

# Rows that are to be covered, evenly spaced ones of a larger database.
_MOST_COVERED = 4096
# Most numbers of a table of similarities that is kept; beyond, its rows are worked out when they
# are needed.
_MOST_NUMBERS = 1 << 26
# Rows by which the width of the similarity is measured.
_N_WIDTH_ROWS = 512
# Candidates whose gain is measured together: at first, and again while choosing.
_N_CANDIDATES_AT_ONCE = 256
_N_MEASURED_AGAIN = 32


@dataclass(frozen=True, eq=False)
class Cover:
    """Rows that stand for others.

    Attributes:
        positions: Of the rows chosen.
        shares: Share of all rows that are nearer to each of them than to the others.
        similarity: Mean cosine similarity of those rows to it.
        criticisms: As many rows that are the least similar to any of them.
    """

    positions: Tensor
    shares: Tensor
    similarity: Tensor
    criticisms: Tensor


def cover(vectors: Tensor, count: int) -> Cover:
    """Rows to which all others are together as similar as possible, by vectors of unit length.

    >>> chosen = cover(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), 2)
    >>> chosen.positions.tolist(), [round(share, 2) for share in chosen.shares.tolist()]
    ([0, 2], [0.67, 0.33])
    """
    similarity = vectors @ vectors.T
    ones = torch.ones(len(vectors))
    positions = choose_covering(
        similarity.__getitem__, min(count, len(vectors)), weights=ones, covered=-ones
    )

    nearest_similarity, nearest = similarity[positions].max(0)
    members = torch.bincount(nearest, minlength=len(positions)).to(vectors.dtype)
    total = torch.zeros(len(positions), dtype=vectors.dtype)
    total.index_add_(0, nearest, nearest_similarity)
    return Cover(
        positions=positions,
        shares=members / len(vectors),
        similarity=total / members.clamp_min(1),
        criticisms=nearest_similarity.argsort(stable=True)[: len(positions)],
    )


def choose_covering(
    similar: Callable[[Tensor], Tensor],
    n: int,
    *,
    weights: Tensor,
    covered: Tensor,
    free: Tensor | None = None,
) -> Tensor:
    """Positions of n candidates, each raising Σ_i w_i max over the chosen p of s_ip the most.

    `similar(positions)` has a row s for each candidate; all rows are candidates unless `free` says
    which, and `covered` is what there is without any. What a candidate adds only shrinks as others
    are chosen: those that added less before than the best one does now need not be measured again.
    The choice is within 1 − 1/e of the best.
    """
    n_rows = len(weights if free is None else free)
    gains = torch.full((n_rows,), -torch.inf)
    candidates = torch.arange(n_rows) if free is None else torch.nonzero(free)[:, 0]
    for part in torch.split(candidates, _N_CANDIDATES_AT_ONCE):
        gains[part] = (similar(part) - covered).clamp_min_(0) @ weights

    chosen: list[int] = []
    for _ in range(n):
        is_fresh = torch.zeros(n_rows, dtype=torch.bool)
        best = int(gains.argmax())
        while not is_fresh[best]:
            stale_gains = torch.where(is_fresh, -torch.inf, gains)
            promising = stale_gains.topk(min(_N_MEASURED_AGAIN, n_rows)).indices
            promising = promising[~is_fresh[promising] & (gains[promising] > -torch.inf)]
            gains[promising] = (similar(promising) - covered).clamp_min_(0) @ weights
            is_fresh[promising] = True
            best = int(gains.argmax())

        chosen.append(best)
        covered = torch.maximum(covered, similar(torch.tensor([best]))[0])
        gains[best] = -torch.inf
    return torch.tensor(chosen, dtype=torch.long)


def select(
    index: ContributionIndex,
    n: int,
    by: By = "coverage",
    *,
    labelled: ArrayLike = None,
) -> NDArray[np.int64]:
    """Chooses rows of an index that are worth labelling next.

    - "coverage": rows that together are near all others, by activations: Σ_i max over the chosen p
      of exp(−‖v_i − v_p‖² / 2σ²) is raised most by each next one, σ being the distance within which
      each would have its share of the others. Needs no head that has learnt anything.
    - "uncertainty": rows with the smallest margin between the two likeliest classes.
    - "both": coverage in which every row counts by one minus its margin, for heads that know all
      classes.

    Labels of the index are not looked at; it may have none.

    Args:
        index: An index of the rows to choose from.
        n: How many rows.
        by: See above.
        labelled: Positions of rows that are labelled already: they are not chosen again, and cover
            what is near them.

    Returns:
        Positions in the index, the most worthwhile first.

    Example:
        >>> import nobsp, torch
        >>> _ = torch.manual_seed(0)
        >>> four_lots = torch.randn(4, 8).repeat_interleave(25, 0)
        >>> rows = four_lots + 0.1 * torch.randn(100, 8)
        >>> index = nobsp.ContributionIndex(torch.nn.Linear(8, 3)).fit(rows)
        >>> sorted(nobsp.select(index, 4, by="coverage") // 25)
        [np.int64(0), np.int64(1), np.int64(2), np.int64(3)]
    """
    require_whole_number("n", n)
    require_choice("by", by, ("coverage", "uncertainty", "both"))
    require_parts("index", index, ("_fitted",), wanted="a fitted ContributionIndex")
    fitted = index._fitted
    n_rows = len(index)
    known = _labelled_positions(labelled, n_rows)
    if n > n_rows - len(known):
        raise ValueError(f"n is {n}, but there are {n_rows - len(known)} rows to choose from.")

    weights = torch.ones(n_rows) if by == "coverage" else 1 - _margins(fitted)
    if by == "uncertainty":
        weights[known] = -torch.inf
        return weights.argsort(descending=True, stable=True)[:n].numpy()
    return _select_covering(fitted, n, known, weights).numpy()


def _labelled_positions(labelled: ArrayLike, n_rows: int) -> Tensor:
    """Positions of rows that are labelled already, each once."""
    positions = array_of([] if labelled is None else labelled, name="labelled")
    if positions.size and positions.dtype.kind not in "iu":
        raise TypeError(
            f"labelled must hold positions, found {positions.dtype}; of a mask, pass "
            "np.flatnonzero(mask)."
        )
    known: Tensor = torch.unique(torch.as_tensor(positions.astype(np.int64)))
    if len(known) and not 0 <= int(known.min()) <= int(known.max()) < n_rows:
        raise ValueError(
            f"labelled must hold positions from 0 to {n_rows - 1}, found {known.min()} to "
            f"{known.max()}."
        )
    return known


def _select_covering(fitted: Fitted, n: int, known: Tensor, weights: Tensor) -> Tensor:
    """Positions of n rows that, with those known, are near all others."""
    n_rows = len(fitted.backend)
    rows = fitted.backend.take(torch.arange(n_rows))
    vectors = fitted.space("activations", "euclidean").vectors(rows).to(torch.float32)
    to_cover = spaced(n_rows, _MOST_COVERED)
    covered_vectors = vectors[to_cover]
    width = _similarity_width(covered_vectors, n + len(known))

    table = None
    if n_rows * len(to_cover) <= _MOST_NUMBERS:
        table = ((vectors @ covered_vectors.T - 1) / width).exp()

    def similar(positions: Tensor) -> Tensor:
        if table is not None:
            return table[positions]
        return ((vectors[positions] @ covered_vectors.T - 1) / width).exp()

    covered = torch.zeros(len(to_cover))
    for position in known:
        covered = torch.maximum(covered, similar(position[None])[0])
    free = torch.ones(n_rows, dtype=torch.bool)
    free[known] = False
    return choose_covering(
        similar, n, weights=weights[to_cover].float(), covered=covered, free=free
    )


def _similarity_width(vectors: Tensor, n_chosen: int) -> float:
    """Half the squared distance within which each of those chosen has an equal share of rows."""
    share = max(1, round(len(vectors) / n_chosen))
    some = vectors[:: max(1, len(vectors) // _N_WIDTH_ROWS)]
    nearest = (some @ vectors.T).topk(min(share + 1, len(vectors)), dim=1).values
    return float((1 - nearest[:, -1]).median().clamp_min(1e-6))


def _margins(fitted: Fitted) -> Tensor:
    """Difference between the probabilities of the two likeliest classes, of every row."""
    if fitted.outcomes.classes is None:
        raise ValueError('a regression has no margins between classes; pass by="coverage".')
    rows = fitted.backend.take(torch.arange(len(fitted.backend)))
    chances = fitted.outcomes.log_probabilities(fitted.logits(rows)).exp()
    if fitted.outcomes.sigmoid:  # the least certain of the questions
        return (2 * chances - 1).abs().amin(1)
    best = chances.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]
