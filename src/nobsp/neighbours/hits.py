"""Neighbours of queries, and the purity of their labels."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.neighbours.outcomes import label_array
from nobsp.tabular.explanation import frame_like

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Neighbours:
    """The rows of a database nearest to each query, nearest first.

    Attributes:
        indices: Positions in the database, shape (queries, k).
        distances: Shape (queries, k).
        labels: Labels of the neighbours, shape (queries, k); None where the database has none.
        predicted: The class predicted for each query, written as the labels are; for a regression the value.
        confidence: Probability of the predicted class; NaN for a regression.
        space: "activations" or "contributions".
        target: "query" or "own".
        classes: Label of every class; None for a regression.
    """

    indices: NDArray[np.int64]
    distances: Array
    labels: NDArray[Any] | None
    predicted: NDArray[Any]
    confidence: Array
    space: str
    target: str
    classes: NDArray[Any] | None

    def __len__(self) -> int:
        return len(self.indices)

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
        if (towards.dtype.kind in "US") != (self.labels.dtype.kind in "US"):
            raise TypeError(f"labels are {towards.dtype}, but those of the database are {self.labels.dtype}.")
        share: Array = np.mean(self.labels == towards[:, None], axis=1)
        return share

    def nearest(self, k: int) -> Neighbours:
        """The same with only the k nearest of the neighbours."""
        if not 1 <= k <= self.k:
            raise ValueError(f"k must lie between 1 and {self.k}, found {k!r}.")
        labels = None if self.labels is None else self.labels[:, :k]
        return replace(self, indices=self.indices[:, :k], distances=self.distances[:, :k], labels=labels)

    def __getitem__(self, queries: Any) -> Neighbours:
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
            columns["label"] = self.labels.ravel()
        columns["predicted"] = np.repeat(self.predicted, k)
        columns["confidence"] = np.repeat(self.confidence, k)
        return frame_like(None, columns)

    def __repr__(self) -> str:
        said = [f"{len(self)} queries" if len(self) != 1 else "1 query", f"k={self.k}"]
        said.append(self.space if self.space == "activations" else f"{self.space} for the {self.target}'s class")
        if self.labels is not None and self.classes is not None and len(self):
            said.append(f"mean purity {self.purity.mean():.3f}")
        if len(self):
            said.append(f"median distance {np.median(self.distances):.3f}")
        return f"Neighbours({', '.join(said)})"
