"""Terms while they are being fitted: on tables, or through the network where there is no table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.tabular.lookup import Chunk, LevelAxis, NumberAxis, TermTable
from nobsp.tabular.tabulate import Array, Points, Tabulator


@dataclass(frozen=True, eq=False)
class Sample:
    """Calibration rows in memory."""

    own: Mapping[int, NDArray[Any]]  # the caller's columns that have tables, by position
    inputs: Tensor  # the same rows as the network takes them
    outputs: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def chunk(self) -> Chunk:
        """All rows, to be read from tables."""
        return Chunk(self.own, slice(0, len(self)))

    def shuffled(self) -> Sample:
        """The same rows in an order that follows from their contents alone: how a table was sorted does not matter."""
        words = (self.inputs.double() + 0.0).numpy().view(np.uint64)  # −0 becomes 0
        odd: NDArray[np.uint64] = np.random.default_rng(0).integers(1 << 63, size=(words.shape[1],), dtype=np.uint64)
        odd = odd * 2 + 1
        key = (words * odd).sum(1, dtype=np.uint64)  # modulo 2⁶⁴: exact whatever the order
        return self.take(np.argsort((key ^ (key >> np.uint64(32))) * odd[0], kind="stable"))

    def take(self, rows: NDArray[np.intp]) -> Sample:
        """Some of the rows."""
        place = torch.from_numpy(rows)
        return Sample({k: column[rows] for k, column in self.own.items()}, self.inputs[place], self.outputs[place])


@dataclass(frozen=True, eq=False)
class TablePiece:
    """A term on its nodes, as the regression sees it."""

    term: Subset
    points: tuple[Points, ...]
    prior: Tensor  # the head's share, (nodes, outputs)
    basis: Tensor  # the compressed representation, (nodes, rank)

    @property
    def shape(self) -> tuple[int, ...]:
        """Points along each axis."""
        return tuple(len(points) for points in self.points)

    @property
    def rank(self) -> int:
        """Columns of the regression."""
        return int(self.basis.shape[1])

    def table(self, values: Tensor) -> TermTable:
        """A table on the term's nodes."""
        axes = tuple(points.axis for points in self.points)
        return TermTable(self.term, axes, values.reshape(*self.shape, values.shape[-1]).numpy())

    def held(self) -> Tensor:
        """Per node, the position of the node it is held at beyond the calibrated range."""
        if not self.points:  # a feature that the network never sees
            return torch.zeros(1, dtype=torch.long)
        grids = np.meshgrid(*(points.held for points in self.points), indexing="ij")
        return torch.from_numpy(np.atleast_1d(np.ravel_multi_index([grid.ravel() for grid in grids], self.shape)))

    def read(self, rows: Sample) -> tuple[Tensor, Tensor]:
        """Compressed representation and prior of some rows."""
        both = read(self.table(torch.cat([self.basis, self.prior], 1)), rows.chunk())
        return both[:, : self.rank], both[:, self.rank :]

    def finish(self, delta: Tensor, mean: Tensor) -> TermTable:
        """The term's function: prior and correction, the latter held at the calibrated range, less their mean."""
        return self.table(self.prior + (self.basis @ delta)[self.held()] - mean)


@dataclass(frozen=True, eq=False)
class DirectTerm:
    """A term without a table: rows run through the network, once for every background row and subset of features."""

    term: Subset
    columns: tuple[tuple[int, ...], ...]  # per feature, of the network's input
    background: Tensor
    weight: Tensor  # the head's coefficients, (width, outputs)
    delta: Tensor  # their correction
    offset: Tensor  # subtracted, so that the mean over the calibration rows is zero
    low: Tensor  # smallest calibrated value of each of the term's columns
    high: Tensor

    @property
    def cost(self) -> int:
        """Forward rows for every row that is explained."""
        return len(self.background) * ((1 << len(self.term)) - 1)

    def __call__(self, run: Callable[[Tensor], Tensor], inputs: Tensor, *, batch_size: int) -> Tensor:
        """Contributions of some rows, (rows, outputs)."""
        tabulate = Tabulator(run, self.background, self.weight, batch_size=batch_size)
        pure = pure_rows(tabulate, self.columns, inputs)
        found = pure @ (self.weight + self.delta)
        flat = [column for group in self.columns for column in group]
        held = inputs.clone()
        held[:, flat] = inputs[:, flat].clamp(self.low.to(inputs.dtype), self.high.to(inputs.dtype))
        beyond = (held != inputs).any(1).nonzero().flatten()
        if len(beyond):
            at_edge = pure_rows(tabulate, self.columns, held[beyond])
            found[beyond] = pure[beyond] @ self.weight + at_edge @ self.delta
        return found - self.offset


@dataclass(frozen=True, eq=False)
class DirectPiece:
    """A term without a table, as the regression sees it."""

    term: Subset
    columns: tuple[tuple[int, ...], ...]
    tabulate: Tabulator
    basis: Tensor  # directions (width, rank) that the representation uses
    span: tuple[Tensor, Tensor]  # smallest and largest calibrated value of every column of the network's input

    @property
    def rank(self) -> int:
        """Columns of the regression."""
        return int(self.basis.shape[1])

    def read(self, rows: Sample) -> tuple[Tensor, Tensor]:
        """Compressed representation and prior of some rows."""
        pure = pure_rows(self.tabulate, self.columns, rows.inputs)
        return pure @ self.basis, pure @ self.tabulate.weight

    def finish(self, delta: Tensor, mean: Tensor) -> DirectTerm:
        """The term's function."""
        flat = [column for group in self.columns for column in group]
        low, high = (end[flat] for end in self.span)
        weight = self.tabulate.weight
        background = self.tabulate.background
        return DirectTerm(self.term, self.columns, background, weight, self.basis @ delta, mean, low, high)


Piece = TablePiece | DirectPiece


def pure_rows(tabulate: Tabulator, columns: Sequence[Sequence[int]], inputs: Tensor) -> Tensor:
    """Δ_S of every row by running the network: Σ_{U⊆S} (−1)^{|S|−|U|} z̄_U, the empty set left out as a constant."""
    total: Tensor | None = None
    for size in range(1, len(columns) + 1):
        for subset in combinations(columns, size):
            flat = [column for group in subset for column in group]
            part = tabulate.rows(flat, inputs[:, flat]) * (-1.0) ** (len(columns) - size)
            total = part if total is None else total + part
    assert total is not None
    return total


def read(table: TermTable, rows: Chunk) -> Tensor:
    """A table at some rows, as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(table(rows)))


def occupancy(points: Points, rows: Chunk, weights: Array | None = None) -> Tensor:
    """Share of the rows at each point; a row between two knots counts for both by its distance."""
    size = len(points)
    share = np.ones(rows.count) if weights is None else weights
    if isinstance(points.axis, LevelAxis):
        counts = np.bincount(rows.places(points.axis), share, size + 1)[:size]
    else:
        x = rows.numbers(points.axis.column)
        known = ~np.isnan(x)
        segment = points.axis.segments(x[known])
        along, share = points.axis.along(x[known], segment), share[known]
        counts = np.bincount(segment, (1 - along) * share, size) + np.bincount(segment + 1, along * share, size)
        if points.axis.missing:
            counts[-1] = rows.count - known.sum() if weights is None else weights[~known].sum()
    return torch.from_numpy(counts / max(counts.sum(), 1e-300))


def purify(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A grid without its margins: it averages to zero over either feature, by the share of the rows at its points."""
    of_first = torch.einsum("ij...,j->i...", table, second)
    of_second = torch.einsum("ij...,i->j...", table, first)
    return table - of_first[:, None] - of_second[None] + torch.einsum("i...,i->...", of_first, first)


def transfer(points: Points, values: Tensor, wanted: Points) -> Tensor:
    """Values on some points of a feature, read at others."""
    if isinstance(points.axis, LevelAxis):
        return values
    assert isinstance(wanted.axis, NumberAxis)
    flat = values.reshape(len(values), -1)
    knots = np.clip(wanted.axis.knots, points.axis.knots[0], points.axis.knots[-1])
    knots = np.append(knots, np.nan) if wanted.axis.missing else knots
    table = TermTable((0,), (points.axis,), flat.numpy())
    found = read(table, Chunk({points.axis.column: knots}, slice(0, len(knots))))
    return found.reshape(len(knots), *values.shape[1:])
