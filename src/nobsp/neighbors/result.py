"""What an index returns: neighbours, rows that stand for a class, and near-duplicate rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import AnyArray, ArrayLike, NativeFrame
from nobsp.arguments import join_names, require_whole_number
from nobsp.frames import frame_like
from nobsp.neighbors.evidence import label_array

if TYPE_CHECKING:
    pass

Array = NDArray[np.float64]


# Names that moved, with the module and the name they have now.
_MOVED = {
    "Duplicates": ("nobsp.neighbors.duplicates", "Duplicates"),
    "Influence": ("nobsp.neighbors.representers", "RepresenterShares"),
    "select": ("nobsp.neighbors.selection", "select"),
}


def __getattr__(name: str) -> Any:
    """Names that moved, with a warning."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings
    from importlib import import_module

    module, new_name = _MOVED[name]
    warnings.warn(
        f"nobsp.neighbors.result.{name} is {module}.{new_name} now.",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(import_module(module), new_name)


@dataclass(frozen=True, eq=False, repr=False)
class Answers:
    """What was found about several queries."""

    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, queries: Any) -> Self:
        """Some of the queries, by position, slice, list of positions or mask."""
        chosen = np.atleast_1d(np.arange(len(self))[queries])
        every = {name: whole for name, whole in vars(self).items() if isinstance(whole, np.ndarray)}
        return replace(
            self, **{name: whole[chosen] for name, whole in every.items() if name != "classes"}
        )


@dataclass(frozen=True, eq=False, repr=False)
class Neighbors(Answers):
    """The rows of a database nearest to each query, nearest first.

    Attributes:
        indices: Positions in the database, shape (queries, k).
        distances: Shape (queries, k).
        labels: Labels of the neighbours, shape (queries, k), or (queries, k, classes) of 0 and 1
            where rows may have several; None where the database has none.
        predicted: The class predicted for each query, written as the labels are; for a regression
            the value.
        confidence: Probability of the predicted class; NaN for a regression.
        space: "activations" or "contributions".
        target: "query" or "own".
        classes: Label of every class; None for a regression.
        residuals: Labels of the neighbours less the values predicted for them, for a regression;
            None otherwise.
    """

    distances: Array
    labels: AnyArray | None
    predicted: AnyArray
    confidence: Array
    space: str
    target: str
    classes: AnyArray | None
    residuals: Array | None = None

    @property
    def expected_error(self) -> Array:
        """How far a regression is off at each query, shape (queries,).

        It is the mean size of the residuals of a query's neighbours.

        A model that was trained on the database is less far off there than elsewhere; `nobsp.audit`
        judges by heads that have not seen the neighbours.
        """
        if self.residuals is None:
            raise ValueError(
                "expected_error needs a regression whose database has labels; pass labels to fit."
            )
        size: Array = np.abs(self.residuals).mean(1)
        return size

    @property
    def k(self) -> int:
        """Neighbours of each query."""
        return int(self.indices.shape[1])

    @property
    def purity(self) -> Array:
        """Share of a query's neighbours whose label is its *predicted* class, shape (queries,)."""
        return self.purity_towards(self.predicted)

    def purity_towards(self, labels: ArrayLike) -> Array:
        """Share of a query's neighbours with the label given for the query, e.g. its true one."""
        if self.classes is None:
            raise ValueError(
                "a regression has no classes, and no purity; look at values, e.g. "
                "hits.labels.std(1)."
            )

        if self.labels is None:
            raise ValueError("purity needs the labels of the database; pass labels to fit.")

        towards = label_array(labels, len(self))
        known = self.classes if self.labels.ndim == 3 else self.labels
        if (towards.dtype.kind in "US") != (known.dtype.kind in "US"):
            raise TypeError(
                f"labels are {towards.dtype}, but those of the database are {known.dtype}."
            )

        if self.labels.ndim == 2:
            return np.asarray((self.labels == towards[:, None]).mean(1))
        if (unknown := ~np.isin(towards, self.classes)).any():
            raise ValueError(
                f"labels has {towards[unknown][0]!r}, which is not a class of the database."
            )

        return np.asarray(
            np.einsum("qkc,qc->qk", self.labels, self.classes == towards[:, None]).mean(1)
        )

    def nearest(self, k: int) -> Neighbors:
        """The same with only the k nearest of the neighbours."""
        require_whole_number("k", k)
        if k > self.k:
            raise ValueError(f"k must lie between 1 and {self.k}, found {k!r}.")
        names = ("indices", "distances", "labels", "residuals")
        nearest: dict[str, Any] = {}
        for name in names:
            columns = getattr(self, name)
            nearest[name] = None if columns is None else columns[:, :k]
        return replace(self, **nearest)

    def to_frame(self) -> NativeFrame:
        """One line per query and neighbour, in a pandas frame, or a polars one without pandas."""
        count, k = self.indices.shape
        columns: dict[str, AnyArray] = {
            "query": np.repeat(np.arange(count), k),
            "rank": np.tile(np.arange(k), count),
            "index": self.indices.ravel(),
            "distance": self.distances.ravel(),
        }
        if self.labels is not None:
            labels = self.labels.reshape(count * k, *self.labels.shape[2:])
            columns["label"] = labels if labels.ndim == 1 else labels.tolist()
        columns["predicted"] = np.repeat(self.predicted, k)
        columns["confidence"] = np.repeat(self.confidence, k)
        return frame_like(None, columns)

    def __repr__(self) -> str:
        parts = [f"{len(self)} queries" if len(self) != 1 else "1 query", f"k={self.k}"]
        parts.append(
            self.space
            if self.space == "activations"
            else f"{self.space} for the {self.target}'s class"
        )
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
        shares: Share of the class's rows that are nearer to it than to the class's other
            prototypes.
        similarity: Mean cosine similarity of those rows to it.
        criticisms: As many rows of each class that are the least similar to any of its prototypes,
            in the same order of classes: what the prototypes do not show.
    """

    indices: NDArray[np.int64]
    labels: AnyArray
    shares: Array
    similarity: Array
    criticisms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    def of(self, label: Any) -> NDArray[np.int64]:
        """Positions of the prototypes of one class."""
        prototypes: NDArray[np.int64] = self.indices[self.labels == label]
        if len(prototypes) == 0:
            raise ValueError(
                f"no prototypes of class {label!r}; there are {join_names(np.unique(self.labels))}."
            )
        return prototypes

    def to_frame(self) -> NativeFrame:
        """One line per prototype, as a pandas frame, or a polars one where pandas is missing."""
        columns = {
            "label": self.labels,
            "index": self.indices,
            "share": self.shares,
            "similarity": self.similarity,
        }
        return frame_like(None, columns | {"criticism": self.criticisms})

    def __repr__(self) -> str:
        return f"Prototypes({len(self)} rows for {len(np.unique(self.labels))} classes)"


@dataclass(frozen=True, eq=False, repr=False)
class RankedRows(Answers):
    """Numbers for rows of a database about each query.

    The larger a number is in size, the more the row matters, for the query or against it.
    """

    values: Array
    labels: AnyArray
    size: Array
    logits: Array
    target: AnyArray

    @property
    def shares(self) -> Array:
        """The values as shares of the sum of the sizes of all rows of the database."""
        return self.values / np.maximum(self.size, 1e-300)[:, None]

    def top(self, k: int = 8) -> NDArray[np.int64]:
        """The rows that matter most, for or against, largest first, shape (queries, k)."""
        return np.take_along_axis(self.indices, self._largest(k), 1)

    def to_frame(self, k: int = 8) -> NativeFrame:
        """One line per query and row, the k that matter most, in a pandas or polars frame.

        It is a polars frame where pandas is missing.
        """
        columns = self._largest(k)
        query = np.repeat(np.arange(len(self)), columns.shape[1])
        column = columns.ravel()
        return frame_like(
            None,
            {
                "query": query,
                "index": self.indices[query, column],
                "label": list(self.labels[query, column]),
                "value": self.values[query, column],
                "share": self.shares[query, column],
                "target": self.target[query],
                "logit": self.logits[query],
            },
        )

    def _largest(self, k: int) -> NDArray[np.int64]:
        require_whole_number("k", k)
        order = np.argsort(-np.abs(self.values), axis=1, kind="stable")
        return order[:, :k].astype(np.int64)


def keep_extremes(values: Tensor, k: int | None) -> tuple[Tensor, Tensor]:
    """The k largest values of each row and its k smallest, with their columns.

    The largest come first and the smallest last; where `k` is None, all values stay as they are.
    """
    count = values.shape[1]
    if k is None:
        return values, torch.arange(count).expand(values.shape)
    ordered, columns = values.sort(dim=1, descending=True, stable=True)
    ends = [*range(min(k, count)), *range(max(k, count - k), count)]
    return ordered[:, ends], columns[:, ends]


class Extremes:
    """The largest and smallest values of queries that are worked out some at a time."""

    def __init__(self, k: int | None) -> None:
        self._k = k  # how many of either end; all of them when None
        self._values: list[Tensor] = []
        self._columns: list[Tensor] = []
        self._sizes: list[Tensor] = []

    def add(self, values: Tensor) -> None:
        """Adds the values of some queries, (queries, rows)."""
        extremes, columns = keep_extremes(values, self._k)
        self._values.append(extremes)
        self._columns.append(columns)
        self._sizes.append(values.abs().sum(1))

    @property
    def values(self) -> Tensor:
        """Those that stay."""
        return torch.cat(self._values)

    @property
    def indices(self) -> NDArray[np.int64]:
        """The rows that they belong to."""
        return torch.cat(self._columns).numpy()

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Per query the sum of all values' sizes."""
        return torch.cat(self._sizes).numpy()
