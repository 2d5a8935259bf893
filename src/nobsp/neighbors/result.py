"""What an index returns: neighbours, rows that stand for a class, and rows that are nearly the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._messages import join_names, require_whole_number
from nobsp.arguments import require_choice, require_parts
from nobsp.neighbors.evidence import label_array
from nobsp.neighbors.search import Fitted, spaced
from nobsp.tabular.explanation import frame_like

if TYPE_CHECKING:
    from nobsp.neighbors.index import ContributionIndex

Array = NDArray[np.float64]


def __getattr__(name: str) -> Any:
    """Names that moved, with a warning."""
    if name == "Influence":
        import warnings

        from nobsp.neighbors.representers import RepresenterShares

        warnings.warn(
            "nobsp.neighbors.result.Influence is nobsp.neighbors.RepresenterShares now.",
            DeprecationWarning,
            stacklevel=2,
        )
        return RepresenterShares
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Rows that are to be covered, evenly spaced ones of a larger database; and most numbers of a table of similarities.
_COVERED, _MOST_NUMBERS = 4096, 1 << 26


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
        labels: Labels of the neighbours, shape (queries, k), or (queries, k, classes) of 0 and 1 where rows may have
            several; None where the database has none.
        predicted: The class predicted for each query, written as the labels are; for a regression the value.
        confidence: Probability of the predicted class; NaN for a regression.
        space: "activations" or "contributions".
        target: "query" or "own".
        classes: Label of every class; None for a regression.
        residuals: Labels of the neighbours less the values predicted for them, for a regression; None otherwise.
    """

    distances: Array
    labels: NDArray[Any] | None
    predicted: NDArray[Any]
    confidence: Array
    space: str
    target: str
    classes: NDArray[Any] | None
    residuals: Array | None = None

    @property
    def expected_error(self) -> Array:
        """How far a regression is off at each query: mean size of its neighbours' residuals, shape (queries,).

        A model that was trained on the database is less far off there than elsewhere; `nobsp.audit` judges by heads
        that have not seen the neighbours.
        """
        if self.residuals is None:
            raise ValueError(
                "only a regression has an expected error, where the database has labels."
            )
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
        """Share of a query's neighbours that have the label given for the query, e.g. its true one."""
        if self.classes is None:
            raise ValueError(
                "a regression has no classes, and no purity; look at values, e.g. hits.labels.std(1)."
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
                f"labels has {towards[unknown][0]!r}, which is no class of the database."
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
        kept: dict[str, Any] = {
            name: None if (a := getattr(self, name)) is None else a[:, :k] for name in names
        }
        return replace(self, **kept)

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
            raise ValueError(
                f"no prototypes of class {label!r}; there are {join_names(np.unique(self.labels))}."
            )
        return found

    def to_frame(self) -> Any:
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


def cover(vectors: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows to which the others are most similar, chosen one after another so that together they cover all.

    Returns positions, the share of rows nearest to each, their mean similarity to it, and as many rows that are the
    least similar to any of them.

    >>> positions, shares, _, _ = cover(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), 2)
    >>> positions.tolist(), [round(share, 2) for share in shares.tolist()]
    ([0, 2], [0.67, 0.33])
    """
    similarity, alike = vectors @ vectors.T, torch.ones(len(vectors))
    positions = choose_covering(
        similarity.__getitem__, min(count, len(vectors)), weights=alike, covered=-alike
    )
    near, nearest = similarity[positions].max(0)
    members = torch.bincount(nearest, minlength=len(positions)).to(vectors.dtype)
    total = torch.zeros(len(positions), dtype=vectors.dtype).index_add_(0, nearest, near)
    return (
        positions,
        members / len(vectors),
        total / members.clamp_min(1),
        near.argsort(stable=True)[: len(positions)],
    )


def choose_covering(
    similar: Callable[[Tensor], Tensor],
    n: int,
    *,
    weights: Tensor,
    covered: Tensor,
    free: Tensor | None = None,
) -> Tensor:
    """Positions of n candidates, each of which raises Σ_i w_i max over the chosen p of s_ip the most.

    `similar(positions)` has a row s for each candidate; all rows are candidates unless `free` says which, and `covered`
    is what there is without any. What a candidate adds only shrinks as others are chosen: those that added less before
    than the best one does now need not be measured again. The choice is within 1 − 1/e of the best.
    """
    gains = torch.full((len(weights if free is None else free),), -torch.inf)
    candidates = torch.arange(len(gains)) if free is None else torch.nonzero(free)[:, 0]
    for part in torch.split(candidates, 256):
        gains[part] = (similar(part) - covered).clamp_min_(0) @ weights
    chosen: list[int] = []
    for _ in range(n):
        fresh = torch.zeros(len(gains), dtype=torch.bool)
        while not fresh[best := int(gains.argmax())]:
            some = torch.where(fresh, -torch.inf, gains).topk(min(32, len(gains))).indices
            some = some[~fresh[some] & (gains[some] > -torch.inf)]
            gains[some], fresh[some] = (similar(some) - covered).clamp_min_(0) @ weights, True
        chosen.append(best)
        covered = torch.maximum(covered, similar(torch.tensor([best]))[0])
        gains[best] = -torch.inf
    return torch.tensor(chosen, dtype=torch.long)


def select(
    index: ContributionIndex,
    n: int,
    by: Literal["coverage", "uncertainty", "both"] = "coverage",
    *,
    labelled: Any = None,
) -> NDArray[np.int64]:
    """Chooses rows of an index that are worth labelling next.

    - "coverage": rows that together are near all others, by activations: Σ_i max over the chosen p of
      exp(−‖v_i − v_p‖² / 2σ²) is raised most by each next one, σ being the distance within which each would have its
      share of the others. Needs no head that has learnt anything.
    - "uncertainty": rows with the smallest margin between the two likeliest classes.
    - "both": coverage in which every row counts by one minus its margin, for heads that know all classes.

    Labels of the index are not looked at; it may have none.

    Args:
        index: An index of the rows to choose from.
        n: How many rows.
        by: See above.
        labelled: Positions of rows that are labelled already: they are not chosen again, and cover what is near them.

    Returns:
        Positions in the index, the most worthwhile first.

    Example:
        >>> import nobsp, torch
        >>> _ = torch.manual_seed(0)
        >>> rows = torch.randn(4, 8).repeat_interleave(25, 0) + 0.1 * torch.randn(100, 8)  # four lots of 25
        >>> index = nobsp.ContributionIndex(torch.nn.Linear(8, 3)).fit(rows)
        >>> sorted(nobsp.select(index, 4, by="coverage") // 25)
        [np.int64(0), np.int64(1), np.int64(2), np.int64(3)]
    """
    require_whole_number("n", n)
    require_choice("by", by, ("coverage", "uncertainty", "both"))
    require_parts("index", index, ("_fitted",), wanted="a fitted ContributionIndex")
    count, fitted = len(index), index._fitted
    given = np.asarray([] if labelled is None else labelled)
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(
            f"labelled must hold positions, found {given.dtype}; of a mask, pass np.flatnonzero(mask)."
        )
    known = torch.unique(torch.as_tensor(given.astype(np.int64)))
    if len(known) and not 0 <= int(known.min()) <= int(known.max()) < count:
        raise ValueError(
            f"labelled must hold positions from 0 to {count - 1}, found {known.min()} to {known.max()}."
        )
    if n > count - len(known):
        raise ValueError(f"n is {n}, but there are {count - len(known)} rows to choose from.")
    weights = torch.ones(count) if by == "coverage" else 1 - _margins(fitted)
    if by == "uncertainty":
        weights[known] = -torch.inf
        return weights.argsort(descending=True, stable=True)[:n].numpy()
    rows = fitted.backend.take(torch.arange(count))
    vectors = fitted.space("activations", "euclidean").vectors(rows).to(torch.float32)
    some = spaced(count, _COVERED)
    covered = vectors[some]
    # Each of those chosen stands for an equal share of the rows; the nearest of them so many are its own.
    share = max(1, round(len(some) / (n + len(known))))
    near = (
        (covered[:: max(1, len(some) // 512)] @ covered.T)
        .topk(min(share + 1, len(some)), dim=1)
        .values[:, -1]
    )
    width = float((1 - near).median().clamp_min(1e-6))  # half a squared distance

    whole = None if count * len(some) > _MOST_NUMBERS else ((vectors @ covered.T - 1) / width).exp()

    def similar(positions: Tensor) -> Tensor:
        return (
            ((vectors[positions] @ covered.T - 1) / width).exp()
            if whole is None
            else whole[positions]
        )

    start, free = torch.zeros(len(some)), torch.ones(count, dtype=torch.bool)
    free[known] = False
    for position in known:
        start = torch.maximum(start, similar(position[None])[0])
    return choose_covering(
        similar, n, weights=weights[some].float(), covered=start, free=free
    ).numpy()


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


@dataclass(frozen=True, eq=False, repr=False)
class RankedRows(Answers):
    """Numbers for rows of a database about each query: the larger, the more they matter, for it or against it."""

    values: Array
    labels: NDArray[Any]
    size: Array
    logits: Array
    target: NDArray[Any]

    @property
    def shares(self) -> Array:
        """The values as shares of the sum of the sizes of all rows of the database."""
        return self.values / np.maximum(self.size, 1e-300)[:, None]

    def top(self, k: int = 8) -> NDArray[np.int64]:
        """The rows that matter most, for or against, largest first, shape (queries, k)."""
        return np.take_along_axis(self.indices, self._largest(k), 1)

    def to_frame(self, k: int = 8) -> Any:
        """One line per query and row, the k that matter most, as a pandas frame, or a polars one."""
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
        order = np.argsort(-np.abs(self.values), axis=1, kind="stable")
        return order[:, :k].astype(np.int64)


def keep_extremes(values: Tensor, k: int | None) -> tuple[Tensor, Tensor]:
    """Of each row, the k largest values, largest first, and the k smallest, smallest last, with their columns."""
    count = values.shape[1]
    if k is None:
        return values, torch.arange(count).expand(values.shape)
    ordered, columns = values.sort(dim=1, descending=True, stable=True)
    ends = [*range(min(k, count)), *range(max(k, count - k), count)]
    return ordered[:, ends], columns[:, ends]
