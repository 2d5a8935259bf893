"""A term as the regression sees it: what the head makes of it, and a few columns that may correct the head.

A term of features that have axes is a `TablePiece`. A term with a feature of several numbers has no table: it is a
`DirectPiece`, and its function runs rows through the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.tabular.features import Points
from nobsp.tabular.grids import Tabulator
from nobsp.tabular.lookup import TermTable
from nobsp.tabular.purification import read
from nobsp.tabular.sample import Sample


@dataclass(frozen=True, eq=False)
class TablePiece:
    """A term on its nodes, as the regression sees it."""

    term: Subset
    points: tuple[Points, ...]
    prior: Tensor  # the head's share, (nodes, outputs)
    basis: Tensor  # the compressed representation, (nodes, rank)

    @property
    def rank(self) -> int:
        """Columns of the regression."""
        return int(self.basis.shape[1])

    def table(self, values: Tensor) -> TermTable:
        """A table on the term's nodes."""
        axes = tuple(points.axis for points in self.points)
        shape = (*map(len, self.points), values.shape[-1])
        return TermTable(self.term, axes, values.reshape(shape).numpy())

    def held(self) -> Tensor:
        """Per node, the position of the node it is held at beyond the calibrated range."""
        if not self.points:  # a feature that the network never sees
            return torch.zeros(1, dtype=torch.long)
        grids = np.meshgrid(*(points.held for points in self.points), indexing="ij")
        positions = np.ravel_multi_index([grid.ravel() for grid in grids], grids[0].shape)
        return torch.from_numpy(np.atleast_1d(positions))

    def read(self, rows: Sample) -> tuple[Tensor, Tensor]:
        """Compressed representation and prior of some rows."""
        columns = torch.cat([self.basis, self.prior], 1)
        values = read(self.table(columns), rows.chunk())
        return values[:, : self.rank], values[:, self.rank :]

    def finish(self, delta: Tensor, mean: Tensor) -> TermTable:
        """The term's function: prior and correction, the latter held at the calibrated range, less their mean."""
        correction = (self.basis @ delta)[self.held()]
        return self.table(self.prior + correction - mean)


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

    def __call__(
        self, run: Callable[[Tensor], Tensor], inputs: Tensor, *, batch_size: int
    ) -> Tensor:
        """Contributions of some rows, (rows, outputs)."""
        tabulate = Tabulator(run, self.background, self.weight, batch_size=batch_size)
        pure = pure_rows(tabulate, self.columns, inputs)
        contributions = pure @ (self.weight + self.delta)

        in_range = self._hold(inputs)
        beyond = (in_range != inputs).any(1).nonzero().flatten()
        if len(beyond):
            at_edge = pure_rows(tabulate, self.columns, in_range[beyond])
            # Where the model does not answer beyond the range, it is held there as the correction is.
            answered = pure[beyond].isfinite().all(1, keepdim=True)
            prior = torch.where(answered, pure[beyond], at_edge)
            contributions[beyond] = prior @ self.weight + at_edge @ self.delta
        return contributions - self.offset

    def _hold(self, inputs: Tensor) -> Tensor:
        """Rows with the term's columns held at the calibrated range."""
        columns = flatten_columns(self.columns)
        low = self.low.to(inputs.dtype)
        high = self.high.to(inputs.dtype)
        held = inputs.clone()
        held[:, columns] = inputs[:, columns].clamp(low, high)
        return held


@dataclass(frozen=True, eq=False)
class DirectPiece:
    """A term without a table, as the regression sees it."""

    term: Subset
    columns: tuple[tuple[int, ...], ...]
    tabulate: Tabulator
    basis: Tensor  # directions (width, rank) that the representation uses
    # Smallest and largest calibrated value of every column of the network's input.
    span: tuple[Tensor, Tensor]

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
        columns = flatten_columns(self.columns)
        smallest, largest = self.span
        return DirectTerm(
            term=self.term,
            columns=self.columns,
            background=self.tabulate.background,
            weight=self.tabulate.weight,
            delta=self.basis @ delta,
            offset=mean,
            low=smallest[columns],
            high=largest[columns],
        )


Piece = TablePiece | DirectPiece


def flatten_columns(groups: Sequence[Sequence[int]]) -> list[int]:
    """The columns of several features in a row."""
    return [column for group in groups for column in group]


def pure_rows(tabulate: Tabulator, columns: Sequence[Sequence[int]], inputs: Tensor) -> Tensor:
    """Δ_S of every row by running the network: Σ_{U⊆S} (−1)^{|S|−|U|} z̄_U, the empty set left out as a constant."""
    parts = []
    for size in range(1, len(columns) + 1):
        sign = (-1.0) ** (len(columns) - size)
        for subset in combinations(columns, size):
            flat = flatten_columns(subset)
            parts.append(sign * tabulate.rows(flat, inputs[:, flat]))
    return sum(parts[1:], parts[0])
