"""Where the rows of an index are kept and searched: the protocol, and the exact search in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from nobsp.neighbors.evidence import Rows, join_rows
from nobsp.neighbors.spaces import Space, pieces

# Queries searched together, and numbers of vectors or scores held at once: few enough for the processor's cache.
_QUERIES, _AT_ONCE = 1024, 1 << 20
# Candidates beyond k: products of equal vectors may differ in the last bit, their differences do not.
_SPARE = 8


class Backend(Protocol):
    """Keeps rows under their positions, and finds those nearest to others."""

    def __len__(self) -> int: ...

    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there."""

    def take(self, positions: Tensor) -> Rows:
        """Rows at some positions."""

    def close(self) -> None:
        """Closes connections and files."""

    def nearest(
        self, space: Space, queries: Rows, k: int, leave: Tensor | None, *, walked: Space
    ) -> tuple[Tensor, Tensor]:
        """Positions and distances of the k rows nearest to each query in `space`, shape (queries, k).

        `leave` has positions to leave out for each query, −1 for none. A backend that does not compare with every row
        looks for candidates in `walked`: `space` itself, or activations where it has vectors of its own per class.
        """


class InMemory:
    """Rows in memory; those added later are joined when they are first needed."""

    def __init__(self, rows: Rows | None = None) -> None:
        self._parts: list[Rows] = [] if rows is None else [rows]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def rows(self) -> Rows:
        """All of them."""
        self._parts = [join_rows(self._parts)]
        return self._parts[0]

    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there."""
        self._parts.append(rows.without_logits())

    def take(self, positions: Tensor) -> Rows:
        """Rows at some positions."""
        return self.rows.take(positions)

    def close(self) -> None:
        """Nothing is open: a file that is mapped into memory may be replaced or removed."""


class Exact(InMemory):
    """Rows in memory, compared with every query: products in double precision block by block, and topk."""

    def __init__(self, device: torch.device | str | None = None, rows: Rows | None = None) -> None:
        super().__init__(rows)
        self._device = torch.device("cpu" if device is None else device)

    def nearest(
        self,
        space: Space,
        queries: Rows,
        k: int,
        leave: Tensor | None,
        *,
        walked: Space,  # noqa: ARG002 - every row is compared
    ) -> tuple[Tensor, Tensor]:
        """Positions and distances of the nearest rows."""
        found = []
        for start in range(0, len(queries), _QUERIES):
            some = queries.take(slice(start, start + _QUERIES))
            left = None if leave is None else leave[start : start + _QUERIES]
            found.append(rerank(space, self.take, some, self._candidates(space, some, k + _SPARE, left), k))
        positions, distances = zip(*found, strict=True)
        return torch.cat(positions), torch.cat(distances)

    def _candidates(self, space: Space, queries: Rows, count: int, leave: Tensor | None) -> Tensor:
        """Positions of the rows that score highest, −1 where there are fewer, shape (queries, count)."""
        vectors = space.vectors(queries, queries.predicted)
        scores = torch.zeros(len(queries), 0, dtype=torch.float64)
        positions = torch.zeros(len(queries), 0, dtype=torch.long)
        for block in pieces(len(self), max(space.width, len(queries)), numbers=_AT_ONCE):
            here = _scores(space, self.rows.take(block), queries, vectors, self._device)
            if leave is not None:
                place = leave - block.start
                query, column = torch.nonzero((place >= 0) & (place < here.shape[1]), as_tuple=True)
                here[query, place[query, column]] = -torch.inf
            best, where = here.topk(min(count, here.shape[1]), dim=1)
            scores, positions = torch.cat([scores, best.cpu()], 1), torch.cat([positions, where.cpu() + block.start], 1)
            if scores.shape[1] > count:
                scores, kept = scores.topk(count, dim=1)
                positions = positions.gather(1, kept)
        return torch.where(scores == -torch.inf, -1, positions)


def _scores(space: Space, rows: Rows, queries: Rows, vectors: Tensor, device: torch.device) -> Tensor:
    """Larger is nearer, shape (queries, rows): q·v, and 1/2 for rows of zeros, as ‖q − v‖² = ‖q‖² + ‖v‖² − 2 q·v."""
    empty = 0.5 if space.metric == "euclidean" else 0.0
    vectors = vectors.to(device)
    if space.kind != "query":
        units, lengths = space.directions(rows, rows.predicted)
        return vectors @ units.to(device).T + empty * (lengths == 0).to(device)
    present, place = torch.unique(queries.predicted, return_inverse=True)
    if space.centre is None or space.spread is None or space.evidence.coefficients is None:
        scores = torch.empty(len(vectors), len(rows), dtype=torch.float64, device=device)
        for number, label in enumerate(present):
            units, lengths = space.directions(rows, label.expand(len(rows)))
            own = (place == number).to(device)
            scores[own] = vectors[own] @ units.to(device).T + empty * (lengths == 0).to(device)
        return scores
    # With u = (z − centre) / spread, evidence for class c is w_c ⊙ u, and for a query q of that class
    #     q · (w_c ⊙ u) / ‖w_c ⊙ u‖ = (q ⊙ w_c) · u / sqrt(w_c² · u²),
    # so that all classes share u, and no vectors need be made for each.
    weights = space.evidence.coefficients * space.unit * space.spread
    weights = (weights / weights.abs().amax(1, keepdim=True).clamp_min(1e-300)).to(device)
    u = ((rows.activations.to(torch.float64) - space.centre) / space.spread).to(device)
    lengths = (weights[present].square() @ u.square().T).sqrt()
    scores = (vectors * weights[queries.predicted]) @ u.T
    scores /= torch.where(lengths > 0, lengths, torch.inf)[place]
    return scores.add_((empty * (lengths == 0))[place]) if bool((lengths == 0).any()) else scores


def rerank(
    space: Space, take: Callable[[Tensor], Rows], queries: Rows, candidates: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The k nearest among candidates (−1 for none), by differences of vectors, equal distances by position."""
    vectors = space.vectors(queries, queries.predicted)
    candidates = candidates.sort(dim=1).values
    flat = candidates.clamp_min(0).flatten()
    whose = torch.arange(len(queries)).repeat_interleave(candidates.shape[1])
    distances = torch.empty(len(flat), dtype=torch.float64)
    for piece in pieces(len(flat), space.width):
        near = space.vectors(take(flat[piece]), queries.predicted[whose[piece]])
        distances[piece] = space.distances(near, vectors[whose[piece]])
    distances = distances.reshape(candidates.shape).masked_fill(candidates < 0, torch.inf)
    order = distances.argsort(dim=1, stable=True)[:, :k]
    return candidates.gather(1, order), distances.gather(1, order)
