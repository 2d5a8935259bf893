"""What an index returns: neighbours, rows that stand for a class, are nearly the same, or speak for a prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._messages import join_names, require_whole_number
from nobsp.neighbors.evidence import Rows, label_array
from nobsp.neighbors.search import Fitted, pieces, spaced
from nobsp.tabular.explanation import frame_like

if TYPE_CHECKING:
    from nobsp.neighbors.index import ContributionIndex

Array = NDArray[np.float64]

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
        if not 1 <= k <= self.k:
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
        columns: dict[str, Any] = {
            "first": self.pairs[:, 0],
            "second": self.pairs[:, 1],
            "distance": self.distances,
        }
        if self.groups or len(self) == 0:
            place = {
                int(row): number for number, members in enumerate(self.groups) for row in members
            }
            columns["group"] = np.array(
                [place[int(row)] for row in self.pairs[:, 0]], dtype=np.int64
            )
        if self.conflicting is not None:
            columns["conflicting"] = self.conflicting[columns["group"]]
        return frame_like(None, columns)

    def __repr__(self) -> str:
        unlike = (
            ""
            if self.conflicting is None
            else f", {int(self.conflicting.sum())} with different labels"
        )
        return f"Duplicates({len(self)} pairs in {len(self.groups)} groups{unlike})"


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


def link_duplicates(hits: Neighbors, threshold: float, *, own: bool = True) -> Duplicates:
    """Pairs nearer than a threshold: of the database's own rows and their neighbours, with groups, or of other rows."""
    rows, places = np.nonzero(hits.distances <= threshold)
    pairs = np.column_stack([rows, hits.indices[rows, places]])
    pairs = np.sort(pairs, axis=1) if own else pairs
    pairs, first = np.unique(pairs, axis=0, return_index=True)
    distances = hits.distances[rows, places][first]
    order = np.argsort(distances, kind="stable")
    found = Duplicates(pairs[order].reshape(-1, 2).astype(np.int64), distances[order], (), None)
    if not own or len(found) == 0:
        return found
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array(
        (np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])),
        shape=(len(hits), len(hits)),
    )
    members = np.unique(pairs)
    component = connected_components(links, directed=False)[1][members]
    order = np.argsort(component, kind="stable")
    groups = np.split(members[order], np.flatnonzero(np.diff(component[order])) + 1)
    return replace(
        found, groups=tuple(sorted(groups, key=lambda group: (-len(group), int(group[0]))))
    )


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
    if by not in ("coverage", "uncertainty", "both"):
        raise ValueError(f'by must be "coverage", "uncertainty" or "both", found {by!r}.')
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
class Influence(Answers):
    """What the rows of a database add to the logits of others, as a linear head learns from them.

    Attributes:
        values: What rows of the database add, for the class where positive, shape (queries, rows); of those that were
            asked for, the most for it first and the most against it last.
        indices: Positions of these rows in the database, shape (queries, rows).
        labels: Their labels; where rows may have several classes, whether they are of the class asked for.
        size: Sum of the sizes of what all rows of the database add and take away, shape (queries,).
        others: What the rows that were not asked for add together, shape (queries,); zero without `k`.
        base: The logit at the mean of the database; `base + values.sum(1) + others + residual` are the logits.
        logits: Logits of the classes asked for, shape (queries,); of a model with one, half of it for either class.
        residual: What no row can add, as it lies in directions in which no two of them differ; shape (queries,).
        target: These classes, written as labels are; of a regression the value predicted.
        exact: Share of the head's weights that training with weight decay on these rows explains: 1 where it was
            trained so, with a bias that is not decayed, until it converged. The rest is shared out among the rows as
            evenly as can be, and values are an approximation.
    """

    values: Array
    labels: NDArray[Any]
    size: Array
    others: Array
    base: Array
    logits: Array
    residual: Array
    target: NDArray[Any]
    exact: float

    @property
    def shares(self) -> Array:
        """The values as shares of all that the rows of the database add and take away."""
        return self.values / np.maximum(self.size, 1e-300)[:, None]

    def top(self, k: int = 8) -> NDArray[np.int64]:
        """The rows that add or take away most, largest first, shape (queries, k)."""
        return np.take_along_axis(self.indices, self._largest(k), 1)

    def to_frame(self, k: int = 8) -> Any:
        """One line per query and row, the k that matter most, as a pandas frame, or a polars one."""
        places = self._largest(k)
        query, place = np.repeat(np.arange(len(self)), places.shape[1]), places.ravel()
        found = {
            "query": query,
            "index": self.indices[query, place],
            "label": list(self.labels[query, place]),
        }
        found |= {"value": self.values[query, place], "share": self.shares[query, place]}
        return frame_like(None, found | {"target": self.target[query], "logit": self.logits[query]})

    def _largest(self, k: int) -> NDArray[np.int64]:
        return np.argsort(-np.abs(self.values), axis=1, kind="stable")[:, :k].astype(np.int64)

    def __repr__(self) -> str:
        return f"Influence({len(self)} queries, {self.values.shape[1]} rows, exact to {self.exact:.1%})"


def weigh_influence(fitted: Fitted, asked: Rows, target: Any, k: int | None) -> Influence:
    """Representer values of a linear head: w_c = Σ_i α_ic (z_i − z̄), so that row i adds α_ic (z_i − z̄) · (x − z̄).

    Where w minimises a loss with weight decay λ, α_ic = r_ic / λ, with r what the head has still to learn of row i: its
    label less its probability (of a head trained by squares, less its logit). 1 / λ is found by least squares from
    Σ_i r_ic (z_i − z̄) / λ = w_c, and what this leaves of w is written as Σ_i δ_i (z_i − z̄) with the smallest δ.
    """
    outcomes = fitted.outcomes
    if fitted.source.head is None:
        raise ValueError(
            "influence needs a linear head on the activations; layers stand between them here."
        )
    if not fitted.labelled:
        raise ValueError("influence needs the labels of the database; pass labels to index.fit.")
    rows = fitted.backend.take(torch.arange(len(fitted.backend)))
    weight, bias = fitted.source.head
    weight, bias = outcomes.per_class(weight.T).T, outcomes.per_class(bias)
    z = rows.activations.to(torch.float64)
    mean = z.mean(0)
    centred, logits = z - mean, z @ weight.T + bias
    if outcomes.classes is None:
        truth, learnt = rows.truth[:, None], [logits]
    else:
        several = (
            rows.truth
            if outcomes.several
            else torch.nn.functional.one_hot(rows.truth, outcomes.count)
        )
        truth, learnt = (
            several.to(torch.float64),
            [outcomes.log_probabilities(logits).exp(), logits],
        )
    best, exact = torch.zeros_like(logits), 0.0
    for known in learnt:
        left = truth - known
        pull = centred.T @ left  # (width, classes), λ w where the head was trained so
        scale = float((pull * weight.T).sum() / pull.square().sum().clamp_min(1e-300))
        share = 1 - float(
            (scale * pull - weight.T).square().sum() / weight.square().sum().clamp_min(1e-300)
        )
        if scale > 0 and share > exact:
            best, exact = scale * left, share
    rest = weight.T - centred.T @ best
    best = best + centred @ (torch.linalg.pinv(centred.T @ centred, hermitian=True) @ rest)
    if target is not None and outcomes.classes is None:
        raise ValueError("a regression has no classes; leave target out.")
    codes, count = asked.predicted, len(rows)
    if target is not None:
        codes = replace(outcomes, several=False).encode(
            np.broadcast_to(np.asarray(target), len(asked)), len(asked)
        )
    x = asked.activations.to(torch.float64) - mean
    base = (weight @ mean + bias)[codes]
    found = base + (x * weight[codes]).sum(1)
    parts = []
    for piece in pieces(len(asked), count, numbers=_MOST_NUMBERS // 4):
        values = (x[piece] @ centred.T) * best[:, codes[piece]].T
        totals = values.sum(1), values.abs().sum(1)
        places = torch.empty(len(values), 0, dtype=torch.long)
        if k is not None:
            values, places = values.sort(dim=1, descending=True, stable=True)
            ends = [*range(min(k, count)), *range(max(k, count - k), count)]
            values, places = values[:, ends], places[:, ends]
        parts.append((values, places, *totals))
    values, places, added, size = (torch.cat(part) for part in zip(*parts, strict=True))
    indices = places.numpy() if k is not None else np.broadcast_to(np.arange(count), values.shape)
    labels = outcomes.decode(rows.truth)
    labels = labels[indices, codes[:, None]] > 0 if outcomes.several else labels[indices]
    others = torch.zeros(len(asked)) if values.shape[1] == count else added - values.sum(1)
    said = found.numpy() if outcomes.classes is None else outcomes.classes[codes.numpy()]
    numbers = {
        "size": size,
        "others": others,
        "base": base,
        "logits": found,
        "residual": found - base - added,
    }
    columns: dict[str, Any] = {name: one.numpy() for name, one in numbers.items()}
    return Influence(indices, values.numpy(), labels, target=said, exact=exact, **columns)
