"""The usearch backend: a graph of neighbours that is walked instead of comparing with every row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.search import InMemory, Space, pieces, rerank

# Vectors of so many numbers are kept in eight bits each.
_LONG = 128


@dataclass(frozen=True)
class Usearch:
    """Options of the usearch backend.

    The graph is walked with vectors in `dtype`; the candidates it finds are then measured with the rows themselves, in
    double precision, so that distances are exact and rounding costs no neighbours.

    Args:
        connectivity: Edges of each row in the graph.
        expansion_add: How widely the graph is searched when a row is added.
        expansion_search: How widely it is searched for a query: the more, the fewer neighbours are missed.
        dtype: Precision of the vectors in the graph: "i8", "f16" or "f32"; when None, "i8" for vectors of 128 numbers
            and more, in which roundings average out, and "f32" for shorter ones.
        candidates: Rows measured for a query, at least four for each neighbour.
        candidates_by_activation: The same where the graph is of activations and neighbours are sought by evidence for
            the query's class.
        threads: Threads to build and search with; one per processor when 0.
    """

    connectivity: int = 16
    expansion_add: int = 128
    expansion_search: int = 128
    dtype: Literal["i8", "f16", "f32"] | None = None
    candidates: int = 32
    candidates_by_activation: int = 256
    threads: int = 0


class Graphs(InMemory):
    """Rows in memory or in a file, with a graph for each space they are searched in.

    Evidence for the query's class has no graph of its own, as every class would need one: candidates are found by
    activations. The graph of `space` grows with the rows, those of others when they are searched; `stored` graphs, as
    bytes of a file, are used where they are until rows are added.
    """

    def __init__(
        self,
        options: Usearch,
        space: Space,
        rows: Rows | None = None,
        stored: Mapping[str, Tensor] | None = None,
    ) -> None:
        _usearch()
        super().__init__(rows)
        self.options, self.space = options, space
        self._graphs: dict[str, Any] = {}
        self._stored = dict(stored or {})

    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there, and into the graph."""
        super().add(rows)
        self.graph(self.space)

    def nearest(
        self, space: Space, queries: Rows, k: int, leave: Tensor | None, *, walked: Space
    ) -> tuple[Tensor, Tensor]:
        """Positions and distances of rows near each query: nearly always the nearest."""
        graph = self.graph(walked)
        options = self.options
        wanted = max(options.candidates if walked.kind == space.kind else options.candidates_by_activation, 4 * k)
        wanted = min(wanted + (0 if leave is None else leave.shape[1]), len(self))
        probes = walked.probes(queries, space).numpy()
        # An expansion below the number of rows wanted would leave some of them out.
        graph.expansion_search = max(options.expansion_search, wanted)
        found = self._search(graph, probes, wanted, leave)
        short = torch.nonzero((found >= 0).sum(1) < k)[:, 0]
        if len(short):  # a walk may end in a corner of the graph; such queries are compared with every row
            left = None if leave is None else leave[short]
            found[short] = self._search(graph, probes[short.numpy()], wanted, left, exact=True)
        return rerank(space, self.take, queries, found, k)

    def _search(self, graph: Any, probes: Any, wanted: int, leave: Tensor | None, *, exact: bool = False) -> Tensor:
        """Positions of candidates, −1 where there are fewer."""
        matches = graph.search(probes, wanted, exact=exact, threads=self.options.threads)
        keys = torch.from_numpy(matches.keys.astype(np.int64)).reshape(len(probes), -1)
        counts = torch.from_numpy(np.asarray(getattr(matches, "counts", [len(matches)]), dtype=np.int64))
        keys[torch.arange(keys.shape[1]) >= counts[:, None]] = -1
        if leave is not None:
            keys[(keys[:, :, None] == leave[:, None, :]).any(2)] = -1
        return torch.nn.functional.pad(keys, (0, wanted - keys.shape[1]), value=-1)

    def graph(self, space: Space) -> Any:
        """The graph of a space with all rows in it; it is made, or added to, when it is needed."""
        name = f"{space.kind}/{space.metric}"
        graph = self._graphs.get(name)
        if graph is None:
            graph = self._graphs[name] = self._open(name, space)
        rows, done = self.rows, len(graph)
        if done < len(rows) and name in self._stored:
            # A graph that is mapped from a file is read-only.
            graph = self._graphs[name] = _restore(self._stored.pop(name), view=False)
        for piece in pieces(len(rows) - done, space.width):
            part = rows.take(slice(piece.start + done, piece.stop + done))
            keys = np.arange(piece.start + done, piece.stop + done)
            vectors = space.vectors(part, part.predicted).to(torch.float32).numpy()
            graph.add(keys, vectors, threads=self.options.threads)
        return graph

    def _open(self, name: str, space: Space) -> Any:
        if name in self._stored:
            graph = _restore(self._stored[name], view=True)
            if graph.ndim != space.width:
                raise ValueError(f"the graph in the file has {graph.ndim} columns but the rows have {space.width}.")
            return graph
        options = self.options
        return _usearch().Index(
            ndim=space.width,
            metric="ip",
            dtype=options.dtype or ("i8" if space.width >= _LONG else "f32"),
            connectivity=options.connectivity,
            expansion_add=options.expansion_add,
        )

    def tensors(self) -> dict[str, Tensor]:
        """The graphs as bytes."""
        whole = {name: np.frombuffer(graph.save(), dtype=np.uint8) for name, graph in self._graphs.items()}
        kept = {name: bytes_ for name, bytes_ in self._stored.items() if name not in whole}
        return kept | {name: torch.from_numpy(array.copy()) for name, array in whole.items()}


def _restore(graph: Tensor, *, view: bool) -> Any:
    try:
        found = _usearch().Index.restore(memoryview(graph.numpy()), view=view)  # type: ignore[arg-type]
    except (RuntimeError, ValueError) as damaged:
        raise ValueError(f"the graph in the file cannot be read ({damaged}).") from damaged
    if found is None:
        raise ValueError("the graph in the file cannot be read.")
    return found


def _usearch() -> Any:
    try:
        import usearch.index
    except ImportError as missing:
        raise ImportError('backend="usearch" needs the usearch package: pip install "nobsp[ann]".') from missing
    return usearch.index
