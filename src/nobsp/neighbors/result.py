"""What an index returns: neighbours with their purity, rows that stand for a class, rows that are nearly the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._messages import join_names
from nobsp.neighbors.evidence import label_array
from nobsp.tabular.explanation import frame_like

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Neighbors:
    """The rows of a database nearest to each query, nearest first.

    Attributes:
        indices: Positions in the database, shape (queries, k).
        distances: Shape (queries, k).
        labels: Labels of the neighbours, shape (queries, k), or (queries, k, classes) of 0 and 1 where rows may have
            several; None where the database has none.
        predicted: The class predicted for each query, written as the labels are; for a regression the value.
        confidence: Probability of the predicted class; NaN for a regression.
        space: "activations" or "contributions".
        target: "query" or "own".
        classes: Label of every class; None for a regression.
        residuals: Labels of the neighbours less the values predicted for them, for a regression; None otherwise.
    """

    indices: NDArray[np.int64]
    distances: Array
    labels: NDArray[Any] | None
    predicted: NDArray[Any]
    confidence: Array
    space: str
    target: str
    classes: NDArray[Any] | None
    residuals: Array | None = None

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def expected_error(self) -> Array:
        """How far a regression is off at each query: mean size of its neighbours' residuals, shape (queries,).

        A model that was trained on the database is less far off there than elsewhere; `nobsp.audit` judges by heads
        that have not seen the neighbours.
        """
        if self.residuals is None:
            raise ValueError("only a regression has an expected error, where the database has labels.")
        size: Array = np.abs(self.residuals).mean(1)
        return size

    @property
    def k(self) -> int:
        """Neighbours of each query."""
        return int(self.indices.shape[1])

    @property
    def purity(self) -> Array:
        """Share of a query's neighbours whose label is the class *predicted* for the query, shape (queries,)."""
        return self.purity_towards(self.predicted)

    def purity_towards(self, labels: Any) -> Array:
        """Share of a query's neighbours that have the label given for the query.

        Args:
            labels: One label per query, e.g. the true ones.

        Raises:
            ValueError: If the database has no labels, or the model is a regression and has no classes.
        """
        if self.classes is None:
            raise ValueError(
                "purity counts neighbours of a class, and a regression has no classes; look at the neighbours' values, "
                "e.g. hits.labels.std(1) or abs(hits.labels.mean(1) - hits.predicted)."
            )
        if self.labels is None:
            raise ValueError("purity needs the labels of the database; pass labels to fit.")
        towards = label_array(labels, len(self))
        known = self.classes if self.labels.ndim == 3 else self.labels
        if (towards.dtype.kind in "US") != (known.dtype.kind in "US"):
            raise TypeError(f"labels are {towards.dtype}, but those of the database are {known.dtype}.")
        if self.labels.ndim == 3:
            same = self.classes == towards[:, None]
            if not same.any(1).all():
                raise ValueError(f"labels holds {towards[~same.any(1)][0]!r}, which is no class of the database.")
            codes = np.argmax(same, axis=1)
            return np.asarray(self.labels[np.arange(len(self)), :, codes].mean(1), dtype=np.float64)
        share: Array = np.mean(self.labels == towards[:, None], axis=1)
        return share

    def nearest(self, k: int) -> Neighbors:
        """The same with only the k nearest of the neighbours."""
        if not 1 <= k <= self.k:
            raise ValueError(f"k must lie between 1 and {self.k}, found {k!r}.")
        names = ("indices", "distances", "labels", "residuals")
        kept: dict[str, Any] = {name: None if (a := getattr(self, name)) is None else a[:, :k] for name in names}
        return replace(self, **kept)

    def __getitem__(self, queries: Any) -> Neighbors:
        """Some of the queries, by position, slice, list of positions or mask."""
        chosen = np.atleast_1d(np.arange(len(self))[queries])
        rows = {
            field.name: value[chosen]
            for field in fields(self)
            if field.name != "classes" and isinstance(value := getattr(self, field.name), np.ndarray)
        }
        return replace(self, **rows)

    def to_frame(self) -> Any:
        """One line per query and neighbour, as a pandas frame, or a polars one where pandas is missing."""
        count, k = self.indices.shape
        columns: dict[str, Any] = {
            "query": np.repeat(np.arange(count), k),
            "rank": np.tile(np.arange(k), count),
            "index": self.indices.ravel(),
            "distance": self.distances.ravel(),
        }
        if self.labels is not None:
            columns["label"] = (
                self.labels.ravel() if self.labels.ndim == 2 else self.labels.reshape(count * k, -1).tolist()
            )
        columns["predicted"] = np.repeat(self.predicted, k)
        columns["confidence"] = np.repeat(self.confidence, k)
        return frame_like(None, columns)

    def __repr__(self) -> str:
        parts = [f"{len(self)} queries" if len(self) != 1 else "1 query", f"k={self.k}"]
        parts.append(self.space if self.space == "activations" else f"{self.space} for the {self.target}'s class")
        if self.labels is not None and self.classes is not None and len(self):
            parts.append(f"mean purity {self.purity.mean():.3f}")
        if len(self):
            parts.append(f"median distance {np.median(self.distances):.3f}")
        return f"Neighbors({', '.join(parts)})"


@dataclass(frozen=True, eq=False, repr=False)
class Prototypes:
    """Rows of a database that stand for their class, class by class, the most typical first.

    Attributes:
        indices: Positions in the database, shape (prototypes,).
        labels: The class each stands for.
        shares: Share of the class's rows that are nearer to it than to the class's other prototypes.
        similarity: Mean cosine similarity of those rows to it.
        criticisms: As many rows of each class that are the least similar to any of its prototypes, in the same order of
            classes: what the prototypes do not show.
    """

    indices: NDArray[np.int64]
    labels: NDArray[Any]
    shares: Array
    similarity: Array
    criticisms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    def of(self, label: Any) -> NDArray[np.int64]:
        """Positions of the prototypes of one class."""
        found: NDArray[np.int64] = self.indices[self.labels == label]
        if len(found) == 0:
            raise ValueError(f"no prototypes of class {label!r}; there are {join_names(np.unique(self.labels))}.")
        return found

    def to_frame(self) -> Any:
        """One line per prototype, as a pandas frame, or a polars one where pandas is missing."""
        columns = {"label": self.labels, "index": self.indices, "share": self.shares, "similarity": self.similarity}
        return frame_like(None, columns | {"criticism": self.criticisms})

    def __repr__(self) -> str:
        return f"Prototypes({len(self)} rows for {len(np.unique(self.labels))} classes)"


@dataclass(frozen=True, eq=False, repr=False)
class Duplicates:
    """Rows of a database that are nearly the same in activation space.

    Attributes:
        pairs: Positions of two such rows, the smaller first, nearest pairs first, shape (pairs, 2); of other rows,
            their position and that in the database.
        distances: Distance of each pair.
        groups: Rows that are linked by pairs, largest group first; empty for other rows.
        conflicting: Whether the labels in a group differ, shape (groups,); None where the database has no labels.
    """

    pairs: NDArray[np.int64]
    distances: Array
    groups: tuple[NDArray[np.int64], ...]
    conflicting: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.pairs)

    def to_frame(self) -> Any:
        """One line per pair, as a pandas frame, or a polars one where pandas is missing."""
        columns: dict[str, Any] = {"first": self.pairs[:, 0], "second": self.pairs[:, 1], "distance": self.distances}
        if self.groups or len(self) == 0:
            place = {int(row): number for number, members in enumerate(self.groups) for row in members}
            columns["group"] = np.array([place[int(row)] for row in self.pairs[:, 0]], dtype=np.int64)
        if self.conflicting is not None:
            columns["conflicting"] = self.conflicting[columns["group"]]
        return frame_like(None, columns)

    def __repr__(self) -> str:
        text = f"Duplicates({len(self)} pairs in {len(self.groups)} groups"
        if self.conflicting is not None:
            text += f", {int(self.conflicting.sum())} with different labels"
        return text + ")"


def cover(vectors: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows to which the others are most similar, chosen one after another so that together they cover all.

    Each one raises Σ_i max over the chosen p of v_i · v_p the most, which is within 1 − 1/e of the best choice. The
    first is the most typical row.

    Returns positions, the share of rows nearest to each, their mean similarity to it, and as many rows that are the
    least similar to any of them.

    >>> positions, shares, _, _ = cover(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), 2)
    >>> positions.tolist(), [round(share, 2) for share in shares.tolist()]
    ([0, 2], [0.67, 0.33])
    """
    similarity = vectors @ vectors.T
    positions = choose_covering(similarity.__getitem__, len(vectors), min(count, len(vectors)))
    near, nearest = similarity[positions].max(0)
    members = torch.bincount(nearest, minlength=len(positions)).to(vectors.dtype)
    total = torch.zeros(len(positions), dtype=vectors.dtype).index_add_(0, nearest, near)
    return positions, members / len(vectors), total / members.clamp_min(1), near.argsort(stable=True)[: len(positions)]


def choose_covering(
    similar: Callable[[Tensor], Tensor],
    count: int,
    n: int,
    *,
    weights: Tensor | None = None,
    covered: Tensor | None = None,
    taken: Tensor | None = None,
) -> Tensor:
    """Positions of n candidates, each of which raises Σ_i w_i max over the chosen p of s_ip the most.

    `similar(positions)` has a row s for each candidate. What a candidate adds only shrinks as others are chosen: those
    that added less before than the best one does now need not be measured again.
    """
    gains = torch.empty(count)
    start = torch.tensor(-1.0) if covered is None else covered

    def gain(positions: Tensor, covered: Tensor) -> Tensor:
        more = (similar(positions) - covered).clamp_min_(0)
        return more.sum(1) if weights is None else more @ weights

    for first in range(0, count, 256):
        part = torch.arange(first, min(first + 256, count))
        gains[part] = gain(part, start)
    if taken is not None:
        gains[taken] = -torch.inf
    chosen: list[int] = []
    for _ in range(n):
        fresh = torch.zeros(count, dtype=torch.bool)
        while not fresh[best := int(gains.argmax())]:
            some = torch.where(fresh, -torch.inf, gains).topk(min(32, count)).indices
            some = some[~fresh[some] & (gains[some] > -torch.inf)]
            gains[some], fresh[some] = gain(some, start), True
        chosen.append(best)
        start = torch.maximum(start, similar(torch.tensor([best]))[0])
        gains[best] = -torch.inf
    return torch.tensor(chosen, dtype=torch.long)


def link_duplicates(hits: Neighbors, threshold: float, *, own: bool = True) -> Duplicates:
    """Pairs nearer than a threshold: of the database's own rows and their neighbours, with groups, or of other rows."""
    rows, places = np.nonzero(hits.distances <= threshold)
    pairs = np.column_stack([rows, hits.indices[rows, places]])
    pairs = np.sort(pairs, axis=1) if own else pairs
    pairs, first = np.unique(pairs, axis=0, return_index=True)
    distances = hits.distances[rows, places][first]
    order = np.argsort(distances, kind="stable")
    pairs, distances = pairs[order].reshape(-1, 2).astype(np.int64), distances[order]
    return Duplicates(pairs, distances, _groups(pairs, len(hits)) if own else (), None)


def _groups(pairs: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], ...]:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if len(pairs) == 0:
        return ()
    links = coo_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, component = connected_components(links, directed=False)
    members = np.unique(pairs)
    order = np.argsort(component[members], kind="stable")
    cuts = np.flatnonzero(np.diff(component[members][order])) + 1
    groups = np.split(members[order], cuts)
    return tuple(sorted(groups, key=lambda group: (-len(group), int(group[0]))))
