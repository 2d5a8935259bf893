"""Spaces in which rows are compared: activations, evidence for each row's own class, evidence for the query's class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from nobsp.neighbors.evidence import Rows

Kind = Literal["activations", "own", "query"]
Metric = Literal["euclidean", "cosine"]

# A column that varies less than this, as a share of its size, is constant: single precision knows no more.
_CONSTANT = 1e-7


@dataclass(frozen=True, eq=False)
class Evidence:
    """Contributions of rows to a class: multiples β_c ⊙ (z − z̄) of the activations, or as they were kept."""

    coefficients: Tensor | None = None  # β, (classes, width), float64; None where contributions were kept
    mean: Tensor | None = None  # z̄, (width,)

    def of(self, rows: Rows, classes: Tensor) -> Tensor:
        """Contributions of each row to a class of its own, shape (rows, terms), float64."""
        if self.coefficients is not None and self.mean is not None:
            return self.coefficients[classes] * (rows.activations.to(torch.float64) - self.mean)
        assert rows.evidence is not None
        place = torch.zeros_like(classes) if rows.evidence.shape[1] == 1 else classes
        return rows.evidence[torch.arange(len(rows)), place].to(torch.float64)


@dataclass(frozen=True, eq=False)
class Space:
    """A way to make vectors of rows: of activations, of evidence for each row's own class, or for the query's class.

    Euclidean distances are between vectors of unit length after z-scores; "cosine" is without z-scores.
    """

    kind: Kind
    metric: Metric
    evidence: Evidence
    origin: Tensor  # subtracted, (1, width) or (classes, width)
    unit: Tensor  # multiplied with afterwards, (width,); zero for columns that do not vary
    # Only where evidence for the query's class is a multiple of the activations: where it is zero for every class, and
    # the standard deviation of the activations (ones for zero).
    centre: Tensor | None = None
    spread: Tensor | None = None

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return len(self.unit)

    def vectors(self, rows: Rows, classes: Tensor) -> Tensor:
        """Vectors of unit length, zero for rows without any direction; `classes` counts only for kind "query"."""
        return self.directions(rows, classes)[0]

    def directions(self, rows: Rows, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of unit length, and the lengths they had."""
        if self.kind == "activations":
            raw = rows.activations.to(torch.float64)
        else:
            raw = self.evidence.of(rows, rows.predicted if self.kind == "own" else classes)
        scaled = (raw - (self.origin if len(self.origin) == 1 else self.origin[classes])) * self.unit
        lengths = torch.linalg.vector_norm(scaled, dim=1)
        return scaled / torch.where(lengths > 0, lengths, 1.0)[:, None], lengths

    def invert(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """What vectors and lengths were made of; not for kind "query". Columns that do not vary are at their mean."""
        return vectors * lengths[:, None] / torch.where(self.unit > 0, self.unit, torch.inf) + self.origin

    def distances(self, found: Tensor, queries: Tensor) -> Tensor:
        """Distances between vectors of unit length along the last axis; exactly zero where they are equal."""
        if self.metric == "euclidean":
            return (found - queries).square().sum(-1).sqrt()
        return 1.0 - (found * queries).sum(-1)

    def probes(self, queries: Rows, sought: Space) -> Tensor:
        """Directions in which to look here for rows that are near in another space, float32.

        Evidence β_c ⊙ (z − z̄) is w_c times the vectors of this space, column by column. Rows with similar evidence lie
        in the direction of the query's own vector, each column of it weighted by |w_c|.
        """
        vectors = self.vectors(queries, queries.predicted)
        if sought.kind == "query" and sought.evidence.coefficients is not None:
            beta = sought.evidence.coefficients * sought.unit
            weights = torch.where(self.unit > 0, beta / torch.where(self.unit > 0, self.unit, 1.0), 0.0).abs()
            vectors = vectors * weights[queries.predicted]
            lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
            vectors = vectors / torch.where(lengths > 0, lengths, 1.0)
        return vectors.to(torch.float32)

    def cosine(self) -> Space:
        """The same without z-scores, compared by cosine similarity: deviations from the mean as they are."""
        origin = self.origin if self.kind == "activations" else torch.zeros_like(self.origin[:1])
        centre = None if self.centre is None else self.evidence.mean
        return replace(self, metric="cosine", origin=origin, unit=torch.ones_like(self.unit), centre=centre)


def fit_spaces(kinds: Iterable[Kind], evidence: Evidence, rows: Rows, classes: int) -> dict[Kind, Space]:
    """Finds the scale of spaces on the rows of a database.

    Activations, and evidence for own classes, are z-scored column by column. Evidence for the query's class is centred
    for each class, and each column is divided by one spread for all classes,
        s_k = sqrt(mean over classes c of Var_i g_kc(x_i)).
    A spread for each class would undo what is to be compared: for g_kc = β_kc (z_k − z̄_k) it is |β_kc| times that of
    z_k, so that β cancels and only activations are left.
    """
    mean, spread = moments(rows, lambda part: part.activations.to(torch.float64))
    spaces: dict[Kind, Space] = {}
    for kind in kinds:
        if kind == "activations":
            spaces[kind] = Space(kind, "euclidean", evidence, mean[None], _inverse(spread, mean))
        elif kind == "own":
            centre, own = moments(rows, lambda part: evidence.of(part, part.predicted))
            spaces[kind] = Space(kind, "euclidean", evidence, centre[None], _inverse(own, centre))
        elif evidence.coefficients is not None:
            spaces[kind] = _multiples_space(evidence, mean, spread)
        else:
            each = [moments(rows, partial(evidence.of, classes=torch.tensor([number]))) for number in range(classes)]
            centres = torch.stack([centre for centre, _ in each])
            pooled = torch.stack([own for _, own in each]).square().mean(0).sqrt()
            spaces[kind] = Space(kind, "euclidean", evidence, centres, _inverse(pooled, centres.abs().amax(0)))
    return spaces


def _multiples_space(evidence: Evidence, mean: Tensor, spread: Tensor) -> Space:
    """Evidence for the query's class where it is β_c ⊙ (z − z̄): only the moments of z are needed."""
    assert evidence.coefficients is not None
    assert evidence.mean is not None
    beta = evidence.coefficients
    varies = _inverse(spread, mean) > 0
    known = torch.where(varies, spread, 1.0)
    typical = beta.square().mean(0).sqrt()
    unit = torch.where(varies & (typical > 0), 1 / (known * torch.where(typical > 0, typical, 1.0)), 0.0)
    return Space("query", "euclidean", evidence, beta * (mean - evidence.mean), unit, mean, known)


def pieces(count: int, width: int, *, numbers: int = 1 << 18) -> Iterator[slice]:
    """Slices of rows with at most so many numbers: few enough in double precision to stay in the processor's cache."""
    step = max(1, numbers // max(1, width))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def moments(rows: Rows, of: Callable[[Rows], Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of columns, in two passes."""
    width = rows.activations.shape[1]
    parts = list(pieces(len(rows), width))
    mean = sum((of(rows.take(part)).sum(0) for part in parts), torch.zeros(())) / len(rows)
    squares = sum(((of(rows.take(part)) - mean).square().sum(0) for part in parts), torch.zeros(()))
    return mean, (squares / len(rows)).sqrt()


def _inverse(spread: Tensor, size: Tensor) -> Tensor:
    """One over the spread; zero for columns that do not vary."""
    return torch.where(spread > _CONSTANT * size.abs(), 1 / torch.where(spread > 0, spread, 1.0), 0.0)
