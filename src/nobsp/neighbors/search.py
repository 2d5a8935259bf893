"""How rows of an index are compared and searched: spaces, exact search in memory, the database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from nobsp.arguments import quote
from nobsp.neighbors.evidence import Outcomes, Rows, join_rows
from nobsp.network.evidence import EvidenceSource, Wanted
from nobsp.numerics import evenly_spaced

Computed = TypeVar("Computed")

Kind = Literal["activations", "own", "query"]
Metric = Literal["euclidean", "cosine"]

# A column that varies less than this, as a share of its size, is constant: single precision knows
# no more.
_CONSTANT = 1e-7
# Numbers of vectors or scores held at once: few enough for the processor's cache.
_AT_ONCE = 1 << 20
# Candidates beyond k: products of equal vectors may differ in the last bit, their differences do
# not.
_SPARE = 8


@dataclass(frozen=True, eq=False)
class Evidence:
    """Contributions of rows to a class: multiples of the activations, or as they were kept.

    The multiples are β_c ⊙ (z − z̄).
    """

    # β, (classes, width), float64; None where contributions were kept
    coefficients: Tensor | None = None
    mean: Tensor | None = None  # z̄, (width,)

    def of(self, rows: Rows, classes: Tensor) -> Tensor:
        """Contributions of each row to a class of its own, shape (rows, terms), float64."""
        if self.coefficients is not None and self.mean is not None:
            return self.coefficients[classes] * (rows.activations.to(torch.float64) - self.mean)
        assert rows.evidence is not None
        columns = torch.zeros_like(classes) if rows.evidence.shape[1] == 1 else classes
        return rows.evidence[torch.arange(len(rows)), columns].to(torch.float64)


@dataclass(frozen=True, eq=False)
class Space:
    """A way to make vectors of rows, from activations or from evidence for a class.

    The class is each row's own, or the query's.

    Euclidean distances are between vectors of unit length after z-scores; "cosine" is without
    z-scores.
    """

    kind: Kind
    metric: Metric
    evidence: Evidence
    origin: Tensor  # subtracted, (1, width) or (classes, width)
    unit: Tensor  # multiplied with afterwards, (width,); zero for columns that do not vary
    # where evidence that is a multiple of the activations is zero for every class
    centre: Tensor | None = None

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return len(self.unit)

    def scaled(self, rows: Rows, classes: Tensor | None = None) -> Tensor:
        """Vectors before they are brought to unit length.

        For kind "query" they are of `classes`, or of the predicted classes where that is None.
        """
        classes = rows.predicted if classes is None or self.kind == "own" else classes
        if self.kind == "activations":
            raw = rows.activations.to(torch.float64)
        else:
            raw = self.evidence.of(rows, classes)
        origin = self.origin if len(self.origin) == 1 else self.origin[classes]
        return (raw - origin) * self.unit

    def vectors(self, rows: Rows, classes: Tensor | None = None) -> Tensor:
        """Vectors of unit length, zero for rows without any direction."""
        return unit_length(self.scaled(rows, classes))

    def invert(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """What vectors and lengths were made of; not for kind "query".

        Columns that do not vary are at their mean.
        """
        return vectors * lengths[:, None] * self._spread() + self.origin

    def _spread(self) -> Tensor:
        """What columns were divided by; zero for those that do not vary."""
        return torch.where(self.unit > 0, 1 / self.unit, 0.0)

    def probes(self, queries: Rows, sought: Space) -> Tensor:
        """Directions in which to look here for rows that are near in another space, float32.

        Evidence β_c ⊙ (z − z̄) is w_c times the vectors of this space, column by column. Rows with
        similar evidence lie in the direction of the query's own vector, each column of it weighted
        by |w_c|.
        """
        vectors = self.vectors(queries)
        if sought.kind == "query" and sought.evidence.coefficients is not None:
            weights = sought.evidence.coefficients * sought.unit * self._spread()
            vectors = unit_length(vectors * weights.abs()[queries.predicted])
        return vectors.to(torch.float32)

    def cosine(self) -> Space:
        """The same without z-scores, compared by cosine similarity.

        Deviations from the mean are taken as they are.
        """
        origin = self.origin if self.kind == "activations" else torch.zeros_like(self.origin[:1])
        centre = None if self.centre is None else self.evidence.mean
        return replace(
            self, metric="cosine", origin=origin, unit=torch.ones_like(self.unit), centre=centre
        )


def unit_length(vectors: Tensor, least: float = 0.0) -> Tensor:
    """Vectors of unit length; zero where they are no longer than `least`."""
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(lengths > least, lengths, torch.inf)


def fit_spaces(
    kinds: Iterable[Kind], evidence: Evidence, rows: Rows, classes: int
) -> dict[Kind, Space]:
    """Finds the scale of spaces on the rows of a database.

    Activations, and evidence for own classes, are z-scored column by column. Evidence for the
    query's class is centred for each class, and each column is divided by one spread for all
    classes,
        s_k = sqrt(mean over classes c of Var_i g_kc(x_i)).
    A spread for each class would undo what is to be compared: for g_kc = β_kc (z_k − z̄_k) it is
    |β_kc| times that of z_k, so that β cancels and only activations are left.
    """
    mean, spread = moments(rows, lambda part: part.activations.to(torch.float64))
    spaces: dict[Kind, Space] = {}
    for kind in kinds:
        if kind == "activations":
            spaces[kind] = _z_scored(kind, evidence, mean, spread)
        elif kind == "own":
            own_mean, own_spread = moments(rows, lambda part: evidence.of(part, part.predicted))
            spaces[kind] = _z_scored(kind, evidence, own_mean, own_spread)
        elif evidence.coefficients is not None and evidence.mean is not None:
            spaces[kind] = _space_of_multiples(evidence, mean, spread)
        else:
            spaces[kind] = _space_of_classes(evidence, rows, classes)
    return spaces


def _z_scored(kind: Kind, evidence: Evidence, mean: Tensor, spread: Tensor) -> Space:
    """A space whose columns have mean zero and spread one."""
    return Space(kind, "euclidean", evidence, origin=mean[None], unit=_inverse(spread, mean))


def _space_of_multiples(evidence: Evidence, mean: Tensor, spread: Tensor) -> Space:
    """Evidence β_c ⊙ (z − z̄) for the query's class: only the moments of z are needed."""
    beta = evidence.coefficients
    assert beta is not None
    assert evidence.mean is not None
    typical = beta.square().mean(0).sqrt()
    return Space(
        "query",
        "euclidean",
        evidence,
        origin=beta * (mean - evidence.mean),
        unit=_inverse(spread, mean) / torch.where(typical > 0, typical, torch.inf),
        centre=mean,
    )


def _space_of_classes(evidence: Evidence, rows: Rows, classes: int) -> Space:
    """Evidence for the query's class, as it was kept, with the moments of every class."""
    means = []
    variances = []
    for number in range(classes):
        mean, spread = moments(rows, partial(evidence.of, classes=torch.tensor([number])))
        means.append(mean)
        variances.append(spread.square())

    origin = torch.stack(means)
    pooled = torch.stack(variances).mean(0).sqrt()
    unit = _inverse(pooled, origin.abs().amax(0))
    return Space("query", "euclidean", evidence, origin=origin, unit=unit)


def pieces(count: int, width: int, *, numbers: int = 1 << 18) -> Iterator[slice]:
    """Slices of rows with at most `numbers` numbers each.

    In double precision, these are few enough to stay in the processor's cache.
    """
    step = max(1, numbers // max(1, width))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def spaced(count: int, most: int) -> Tensor:
    """Positions of all rows, or of `most` evenly spaced ones where there are more."""
    return torch.from_numpy(evenly_spaced(count, most))


def moments(rows: Rows, of: Callable[[Rows], Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of columns, in two passes."""
    parts = list(pieces(len(rows), rows.activations.shape[1]))
    total = torch.zeros(())
    for part in parts:
        total = total + of(rows.take(part)).sum(0)
    mean = total / len(rows)

    squares = torch.zeros(())
    for part in parts:
        squares = squares + (of(rows.take(part)) - mean).square().sum(0)
    return mean, (squares / len(rows)).sqrt()


def _inverse(spread: Tensor, size: Tensor) -> Tensor:
    """One over the spread; zero for columns that do not vary."""
    return 1 / torch.where(spread > _CONSTANT * size.abs(), spread, torch.inf)


class Backend(ABC):
    """Keeps rows under their positions, and finds those nearest to others."""

    options: Any = None  # those of `Usearch` or `Milvus`
    at_once = 1024  # queries searched together

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there."""

    @abstractmethod
    def take(self, positions: Tensor) -> Rows:
        """Rows at some positions."""

    @abstractmethod
    def candidates(
        self, queries: Rows, k: int, leave: Tensor | None, *, space: Space, walked: Space
    ) -> Tensor:
        """Positions of rows that may be the nearest, in any order, shape (queries, k or more).

        Where there is none, the position is −1.
        """

    # a file that is mapped into memory may be removed while it is open
    def close(self) -> None:  # noqa: B027
        """Closes a connection, where there is one."""

    def nearest(
        self, space: Space, queries: Rows, k: int, leave: Tensor | None, *, walked: Space
    ) -> tuple[Tensor, Tensor]:
        """Positions and distances of the k rows nearest to each query in `space`, (queries, k).

        `leave` has positions to leave out for each query, −1 for none. A backend that does not
        compare with every row looks for candidates in `walked`: `space` itself, or activations
        where it has vectors of its own per class.
        """
        positions = []
        distances = []
        for start in range(0, len(queries), self.at_once):
            batch = slice(start, start + self.at_once)
            some = queries.take(batch)
            left_out = None if leave is None else leave[batch]
            candidates = self.candidates(some, k, left_out, space=space, walked=walked)
            nearest, apart = self._measure(space, some, candidates, k)
            positions.append(nearest)
            distances.append(apart)
        return torch.cat(positions), torch.cat(distances)

    def _measure(
        self, space: Space, queries: Rows, candidates: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        """The k nearest among candidates, by differences of vectors, ties in order of position."""
        vectors = space.vectors(queries)
        candidates = candidates.sort(dim=1).values
        flat = candidates.clamp_min(0).flatten()
        query_of = torch.arange(len(queries)).repeat_interleave(candidates.shape[1])

        distances = torch.empty(len(flat), dtype=torch.float64)
        for piece in pieces(len(flat), space.width):
            own = vectors[query_of[piece]]
            near = space.vectors(self.take(flat[piece]), queries.predicted[query_of[piece]])
            if space.metric == "euclidean":
                distances[piece] = (near - own).square().sum(1).sqrt()
            else:
                distances[piece] = 1 - (near * own).sum(1)

        distances = distances.reshape(candidates.shape).masked_fill(candidates < 0, torch.inf)
        order = distances.argsort(dim=1, stable=True)[:, :k]
        return candidates.gather(1, order), distances.gather(1, order)

    def _wanted(self, k: int, leave: Tensor | None, *, direct: bool) -> int:
        """How many candidates an approximate search looks for."""
        least: int = self.options.candidates if direct else self.options.candidates_by_activation
        n_left_out = 0 if leave is None else leave.shape[1]
        return min(max(least, 4 * k) + n_left_out, len(self))


class Exact(Backend):
    """Rows in memory, each compared with every query.

    Products are in double precision, block by block, followed by topk.
    """

    def __init__(self, device: torch.device | str | None = None, rows: Rows | None = None) -> None:
        try:
            self._device = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError, ValueError) as unknown:
            raise ValueError(
                f"device must be such as 'cpu' or 'cuda', found {quote(device)}."
            ) from unknown
        self._parts: list[Rows] = [] if rows is None else [rows]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def rows(self) -> Rows:
        """All of them; those added later are joined when they are first needed."""
        self._parts = [join_rows(self._parts)]
        return self._parts[0]

    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there."""
        self._parts.append(rows)

    def take(self, positions: Tensor) -> Rows:
        """Rows at some positions."""
        return self.rows.take(positions)

    def candidates(
        self,
        queries: Rows,
        k: int,
        leave: Tensor | None,
        *,
        space: Space,
        walked: Space,  # noqa: ARG002 - as other searches take it
    ) -> Tensor:
        """Positions of the rows that score highest, −1 where there are fewer."""
        count = k + _SPARE
        vectors = space.vectors(queries)
        scores = torch.zeros(len(queries), 0, dtype=torch.float64)
        positions = torch.zeros(len(queries), 0, dtype=torch.long)
        for block in pieces(len(self), max(space.width, len(queries)), numbers=_AT_ONCE):
            in_block = _scores(space, self.rows.take(block), queries, vectors, self._device)
            if leave is not None:
                _leave_out(in_block, leave - block.start)
            best, rows = in_block.topk(min(count, in_block.shape[1]), dim=1)
            scores = torch.cat([scores, best.cpu()], 1)
            positions = torch.cat([positions, rows.cpu() + block.start], 1)
            if scores.shape[1] > count:
                scores, order = scores.topk(count, dim=1)
                positions = positions.gather(1, order)
        return torch.where(scores == -torch.inf, -1, positions)


def _leave_out(scores: Tensor, rows: Tensor) -> None:
    """Lets no query find the rows that it leaves out, given by positions in the block.

    Positions that are not in the block are ignored.
    """
    is_in_block = (rows >= 0) & (rows < scores.shape[1])
    query, column = torch.nonzero(is_in_block, as_tuple=True)
    scores[query, rows[query, column]] = -torch.inf


def _scores(
    space: Space, rows: Rows, queries: Rows, vectors: Tensor, device: torch.device
) -> Tensor:
    """Scores of rows for queries, larger is nearer, shape (queries, rows).

    They are q·v, and 1/2 for rows of zeros, as ‖q − v‖² = ‖q‖² + ‖v‖² − 2 q·v; by cosine, rows of
    zeros have 0.
    """
    empty = 0.5 if space.metric == "euclidean" else 0.0
    vectors = vectors.to(device)
    if space.kind != "query":
        units = space.vectors(rows).to(device)
        return vectors @ units.T + empty * ~units.any(1)

    classes, class_of = torch.unique(queries.predicted, return_inverse=True)
    if space.centre is None or space.evidence.coefficients is None:
        scores = torch.empty(len(vectors), len(rows), dtype=torch.float64, device=device)
        for number, label in enumerate(classes):
            units = space.vectors(rows, label.expand(len(rows))).to(device)
            own = (class_of == number).to(device)
            scores[own] = vectors[own] @ units.T + empty * ~units.any(1)
        return scores

    # With u = z − centre, evidence for class c is w_c ⊙ u, and for a query q of that class
    #     q · (w_c ⊙ u) / ‖w_c ⊙ u‖ = (q ⊙ w_c) · u / sqrt(w_c² · u²),
    # so that all classes share u, and no vectors need be made for each.
    weights = space.evidence.coefficients * space.unit
    weights = (weights / weights.abs().amax(1, keepdim=True).clamp_min(1e-300)).to(device)
    u = (rows.activations.to(torch.float64) - space.centre).to(device)
    lengths = (weights[classes].square() @ u.square().T).sqrt()
    scores = (vectors * weights[queries.predicted]) @ u.T
    scores /= torch.where(lengths > 0, lengths, torch.inf)[class_of]

    is_empty = lengths == 0
    if bool(is_empty.any()):
        scores += (empty * is_empty)[class_of]
    return scores


@dataclass(frozen=True, eq=False)
class Fitted:
    """A database: how its rows are read, what outputs stand for, the units, and where rows are.

    The units are those in which rows are measured.

    `cache` has what was computed about the rows, by name, with how many there were then.
    """

    source: EvidenceSource
    outcomes: Outcomes
    evidence: Evidence
    spaces: dict[Kind, Space]
    backend: Backend
    labelled: bool
    indexed: tuple[Kind, Metric]  # what the backend was built for; options may change afterwards
    cache: dict[str, tuple[int, Any]] = field(default_factory=dict)
    # Of images, batch by batch, None for rows that were none; not in files.
    thumbnail_batches: list[Tensor | None] = field(default_factory=list)

    @property
    def thumbnails(self) -> Tensor | None:
        """Thumbnails of all rows; None where some have none."""
        batches = [batch for batch in self.thumbnail_batches if batch is not None]
        if sum(map(len, batches)) != len(self.backend):
            return None
        return torch.cat(batches)

    def cached(self, name: str, compute: Callable[[], Computed]) -> Computed:
        """What `compute` finds out about the rows, once for as long as none are added."""
        if self.cache.get(name, (-1,))[0] != len(self.backend):
            self.cache[name] = len(self.backend), compute()
        value: Computed = self.cache[name][1]
        return value

    @property
    def wanted(self) -> Wanted:
        """What evidence is kept of rows, and read of those that are added or queried."""
        if "query" in self.spaces:
            return "every"
        return "own" if "own" in self.spaces else "none"

    def space(self, kind: Kind, metric: str) -> Space:
        """One of the spaces, with z-scores or without."""
        if kind not in self.spaces:
            missing = "any class"
            option = ""
            if kind == "query":
                missing = "the class of a query"
                option = ', target="query"'
            raise ValueError(
                f"the index keeps no evidence for {missing}; make it with "
                f'space="contributions"{option}.'
            )
        return self.spaces[kind] if metric == "euclidean" else self.spaces[kind].cosine()

    def logits(self, rows: Rows) -> Tensor:
        """Logits per class.

        Those of queries are as they were read, those of rows of the database follow from their
        activations.
        """
        if rows.logits is not None:
            return rows.logits

        logits = self.source.logits(rows.activations)
        if logits is None:
            raise ValueError(
                "layers stand between map and head, and logits are not kept in Milvus or in "
                "files of earlier versions; "
                'pass the rows again: audit(index, X, labels, exclude="self").'
            )
        return self.outcomes.per_class(logits)
