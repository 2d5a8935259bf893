"""Calibration rows in memory, in an order that follows from what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.numerics import evenly_spaced
from nobsp.tabular.folds import Codes, join_rows
from nobsp.tabular.lookup import Chunk

# Steps that a column's range is cut into where rows are put into an order that does not depend on units.
_STEPS = 2.0**30
# The step of a missing or infinite value: beyond all others.
_NOT_FINITE = np.uint64(2**40)
# Most rows that `some` takes where no number is said: enough for a spread or a correlation.
SOME_ROWS = 512


@dataclass(frozen=True, eq=False)
class Sample:
    """Calibration rows in memory, with the network's outputs."""

    own: Mapping[int, NDArray[Any]]  # the caller's columns that have tables, by position
    inputs: Tensor  # the same rows as the network takes them
    outputs: Tensor
    groups: Codes | None = None  # per row a number, the same for rows of one named group

    def __len__(self) -> int:
        return len(self.inputs)

    def chunk(self) -> Chunk:
        """All rows, to be read from tables."""
        return Chunk(self.own, slice(0, len(self)))

    def shuffled(self) -> Sample:
        """The same rows in an order that follows from their contents alone.

        How a table was sorted, in which order its columns stand and in which units they are does not matter.
        """
        values = self.inputs.double().numpy() + 0.0  # −0 becomes 0
        by_share = _row_keys(_shares_of_range(values))
        # Rows that are equal to nine digits of a column's range are told apart by all of theirs.
        by_value = _row_keys(values.view(np.uint64))
        return self.take(np.lexsort((by_value, by_share)))

    def take(self, rows: NDArray[np.intp]) -> Sample:
        """Some of the rows."""
        positions = torch.from_numpy(rows)
        return replace(
            self,
            own={column: values[rows] for column, values in self.own.items()},
            inputs=self.inputs[positions],
            outputs=self.outputs[positions],
            groups=None if self.groups is None else self.groups[rows],
        )

    def units(self) -> Codes:
        """A number for every row of a shuffled sample; rows that share it are held out together, and drawn together."""
        return join_rows(self.inputs, self.groups)

    def some(self, most: int = SOME_ROWS) -> Sample:
        """At most so many of the rows, at even distances."""
        return self.take(evenly_spaced(len(self), most))

    @property
    def spread(self) -> Tensor:
        """Spread of each output; one where it does not vary."""
        spread = self.outputs.std(0, correction=0)
        return torch.where(spread > 0, spread, 1.0)


def _shares_of_range(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Where each value lies between the smallest and the largest of its column, in whole steps."""
    known = np.where(np.isfinite(values), values, 0.0)
    low = known.min(axis=0, initial=0.0 if len(known) == 0 else np.inf)
    # Halves, as the difference of the largest numbers would be infinite.
    span = known.max(axis=0, initial=-np.inf) / 2 - low / 2

    shares = (known / 2 - low / 2) / np.where(span > 0, span, 1.0)
    steps = np.rint(shares * _STEPS).astype(np.uint64)
    return np.where(np.isfinite(values), steps, _NOT_FINITE)


def _row_keys(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A number for every row that depends on what its columns hold, not on the order of rows or columns.

    Sums of whole numbers modulo 2⁶⁴ are exact in whatever order. A column is known by the sum over its own rows, so
    that equal values in different columns count differently, as they must for one-hot columns.
    """
    mixed = _mix(words)
    columns = mixed.sum(axis=0, dtype=np.uint64)
    return _mix(_mix(mixed ^ columns).sum(axis=1, dtype=np.uint64))


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Whole numbers scattered over all 64 bits (the finaliser of SplitMix64)."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
