"""Where the rows of an index are kept and searched: the protocol, and the exact backend in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from nobsp.neighbours.evidence import Rows, joined
from nobsp.neighbours.exact import Scores, nearest, ordered
from nobsp.neighbours.spaces import Space, pieces

# Candidates beyond those asked for that are measured in double precision.
_SPARE = 4
# So few numbers are all measured in double precision at once.
_FEW = 1 << 17


class Backend(Protocol):
    """Keeps rows under their positions, and finds those nearest to others."""

    def __len__(self) -> int: ...

    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there."""

    def take(self, positions: Tensor) -> Rows:
        """Rows at some positions."""

    def close(self) -> None:
        """Lets go of connections and files."""

    def nearest(
        self, space: Space, asked: Rows, k: int, leave: Tensor | None, *, walked: Space
    ) -> tuple[Tensor, Tensor]:
        """Positions and distances of the k rows nearest to each row asked about, shape (asked, k).

        Args:
            space: Where they are compared.
            asked: The queries; their predicted classes are those asked about.
            k: How many; as many as there are beside those left out, at most.
            leave: Positions to leave out for each query, shape (asked, any); −1 for none.
            walked: Where candidates are looked for, by a backend that does not compare with every row: `space`
                itself, or activations where it has vectors of its own for every class.
        """


class Kept:
    """Rows in memory; those added later are joined when they are first needed."""

    def __init__(self, rows: Rows | None = None) -> None:
        self._parts: list[Rows] = [] if rows is None else [rows]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def rows(self) -> Rows:
        """All of them."""
        self._parts = [joined(self._parts)]
        return self._parts[0]

    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there."""
        self._parts.append(rows.without_logits())


class Exact:
    """Rows in memory, compared with every query.

    Args:
        device: Where products are worked out; vectors are kept there beside the rows.
    """

    def __init__(self, device: torch.device | str | None = None, kept: Kept | None = None) -> None:
        self.kept = Kept() if kept is None else kept
        self._device = torch.device("cpu" if device is None else device)
        self._prepared: dict[tuple[str, str], _Prepared] = {}

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there."""
        self.kept.add(rows)

    def take(self, positions: Tensor) -> Rows:
        """Rows at some positions."""
        return self.kept.rows.take(positions)

    def close(self) -> None:
        """There is nothing to let go of."""

    def nearest(
        self,
        space: Space,
        asked: Rows,
        k: int,
        leave: Tensor | None,
        *,
        walked: Space,  # noqa: ARG002 - every row is compared, so there is nothing to walk
    ) -> tuple[Tensor, Tensor]:
        """Positions and distances of the nearest rows, exactly; equal distances by position."""
        if space.kind != "query":
            vectors = space.vectors(asked, asked.predicted)
            return self._search(space, asked, vectors, self._ready(space), k, leave)
        # Like with like: queries of one class are put together.
        order = asked.predicted.argsort(stable=True)
        sorted_rows = asked.take(order)
        left = None if leave is None else leave[order]
        if space.centre is not None:
            positions, distances = self._for_classes(space, sorted_rows, k, left)
        else:
            found = [self._for_class(space, sorted_rows, part, k, left) for part in _runs(sorted_rows.predicted)]
            positions, distances = (torch.cat(parts) for parts in zip(*found, strict=True))
        back = order.argsort()
        return positions[back], distances[back]

    def _for_class(self, space: Space, asked: Rows, part: slice, k: int, leave: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries of one class, among the evidence that was kept for it."""
        some = asked.take(part)
        rows = self.kept.rows
        number = int(some.predicted[0])
        database = _Prepared(self._device)
        for piece in pieces(len(rows), space.width):
            database.add(space.vectors(rows.take(piece), torch.full((piece.stop - piece.start,), number)))
        left = None if leave is None else leave[part]
        return self._search(space, some, space.vectors(some, some.predicted), database, k, left)

    def _for_classes(self, space: Space, asked: Rows, k: int, leave: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries of all classes at once, where evidence is a multiple of the activations.

        With u = (z − centre) / spread, evidence for class c is w_c ⊙ u, and for a query q of that class
            q · (w_c ⊙ u) / ‖w_c ⊙ u‖ = (q ⊙ w_c) · u / sqrt(w_c² · u²),
        so that all classes share the database's u, and it need not be made anew for each.
        """
        assert space.centre is not None
        assert space.spread is not None
        assert space.evidence.coefficients is not None
        weights = space.evidence.coefficients * space.unit * space.spread
        present, counts = torch.unique_consecutive(asked.predicted, return_counts=True)
        vectors = space.vectors(asked, asked.predicted)
        # The squares of small weights must not vanish in single precision.
        weights = weights / weights.abs().amax(1, keepdim=True).clamp_min(1e-300)
        scores = Scores(
            self._ready(space).vectors,
            (vectors * weights[asked.predicted]).to(self._device, torch.float32),
            squares=weights[present].square().to(self._device, torch.float32),
            bounds=(0, *counts.cumsum(0).tolist()),
            empty=0.5 if space.metric == "euclidean" else 0.0,
        )
        return self._nearest(space, asked, vectors, scores, k, leave)

    def _search(
        self, space: Space, asked: Rows, vectors: Tensor, database: _Prepared, k: int, leave: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        probes = vectors.to(self._device, torch.float32)
        empty = 0.5 if space.metric == "euclidean" else 0.0
        scores = Scores(database.vectors, probes, empty=empty, lengthless=database.lengthless)
        return self._nearest(space, asked, vectors, scores, k, leave)

    def _nearest(
        self, space: Space, asked: Rows, vectors: Tensor, scores: Scores, k: int, leave: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        rows = self.kept.rows
        lengths = vectors.square().sum(1)

        def measure(found: Tensor, queries: Tensor) -> Tensor:
            return measured(space, rows.take, asked, vectors, found.cpu(), queries.cpu()).to(scores.rows.device)

        def score_of(distances: Tensor, queries: Tensor) -> Tensor:
            """What the search would have scored, had it no rounding; ‖q − v‖² = ‖q‖² + ‖v‖² − 2 q·v."""
            if space.metric == "cosine":
                return 1 - distances
            return (lengths.to(distances.device)[queries] + 1 - distances.square()) / 2

        left = None if leave is None else leave.to(scores.rows.device)
        positions, distances = nearest(scores, k, measure, score_of, leave=left)
        return positions.cpu(), distances.cpu()

    def _ready(self, space: Space) -> _Prepared:
        """What is searched: vectors of unit length, or u where classes share it; new rows are worked out once."""
        known = self._prepared.setdefault((space.kind, space.metric), _Prepared(self._device))
        rows, done = self.kept.rows, len(known)
        for piece in pieces(len(rows) - done, space.width):
            part = rows.take(slice(piece.start + done, piece.stop + done))
            if space.kind == "query":
                assert space.centre is not None
                assert space.spread is not None
                known.add((part.activations.to(torch.float64) - space.centre) / space.spread)
            else:
                known.add(space.vectors(part, part.predicted))
        return known


class _Prepared:
    """Vectors as they are searched: single precision, where the search works, with a note of those that are zero."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parts: list[Tensor] = []
        self._zero: list[Tensor] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(self, vectors: Tensor) -> None:
        self._parts.append(vectors.to(self._device, torch.float32))
        self._zero.append((vectors == 0).all(1).to(self._device))

    @property
    def vectors(self) -> Tensor:
        if len(self._parts) > 1:
            self._parts = [torch.cat(self._parts)]
        return self._parts[0]

    @property
    def lengthless(self) -> Tensor | None:
        """Which vectors are zero; None where none is."""
        if len(self._zero) > 1:
            self._zero = [torch.cat(self._zero)]
        return self._zero[0] if bool(self._zero[0].any()) else None


def measured(
    space: Space,
    take: Callable[[Tensor], Rows],
    asked: Rows,
    vectors: Tensor,
    found: Tensor,
    queries: Tensor,
) -> Tensor:
    """Distances between rows found and the queries they were found for, shape as `found`, in the vectors' precision.

    Args:
        space: Where they are compared.
        take: Rows of the database at positions.
        asked: The queries.
        vectors: Their vectors.
        found: Positions, any shape.
        queries: The query each was found for, same shape.
    """
    flat, whose = found.flatten(), queries.flatten()
    parts = [torch.zeros(0, dtype=vectors.dtype)]
    for piece in pieces(len(flat), space.width):
        query = whose[piece]
        near = space.vectors(take(flat[piece]), asked.predicted[query], vectors.dtype)
        parts.append(space.distances(near, vectors[query]))
    return torch.cat(parts).reshape(found.shape)


def reranked(
    space: Space, take: Callable[[Tensor], Rows], asked: Rows, candidates: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The nearest among candidates, measured in double precision; many are first ranked in single precision.

    Args:
        space: Where they are compared.
        take: Rows of the database at positions.
        asked: The queries.
        candidates: Positions, shape (asked, any); −1 for none.
        k: How many to keep.
    """
    vectors = space.vectors(asked, asked.predicted)
    queries = torch.arange(len(asked))[:, None].expand_as(candidates)
    if candidates.shape[1] > k + _SPARE and candidates.numel() * space.width > _FEW:
        rough = measured(space, take, asked, vectors.to(torch.float32), candidates.clamp_min(0), queries)
        rough[candidates < 0] = torch.inf
        candidates = candidates.gather(1, rough.topk(k + _SPARE, dim=1, largest=False).indices)
        queries = queries[:, : k + _SPARE]
    distances = measured(space, take, asked, vectors, candidates.clamp_min(0), queries)
    distances[candidates < 0] = torch.inf
    return ordered(candidates, distances, k)


def _runs(classes: Tensor) -> Iterator[slice]:
    """Slices of equal entries."""
    _, counts = torch.unique_consecutive(classes, return_counts=True)
    start = 0
    for count in counts.tolist():
        yield slice(start, start + count)
        start += count
