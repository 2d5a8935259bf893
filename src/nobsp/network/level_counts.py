"""How often each value of a feature occurs: counted over its columns jointly, or one by one where codes are many."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

# Distinct values that are counted of a feature that may well be a number.
MOST_LEVELS = 256
# The span of whole numbers that are counted one by one: they may be codes of a category.
MOST_CODES = 100_000
# Columns of a one-hot group whose levels are counted jointly: their table has as many rows, which is 128 MB.
_MOST_ONE_HOT = 4096
# Rows that tell a column with few values from one with many without sorting them all.
_LOOK = 4 * MOST_LEVELS

Counted = tuple[Tensor, Tensor]


@dataclass(eq=False)
class LevelCounts:
    """Values of one feature, counted batch by batch in memory that does not grow with the rows.

    Values are counted jointly as long as they are at most 256, or no more than a one-hot group of so many columns can
    have. A column of whole numbers with more values may hold the codes of a category, and is then counted on its own
    as long as its numbers span no more than 100,000.
    """

    # distinct rows (levels, columns) and how often each occurred; None once they are too many
    joint: Counted | None = None
    # by place in the feature, whole numbers (levels, 1) and how often each occurred; empty before that
    codes: dict[int, Counted] = field(default_factory=dict)
    begun: bool = False

    @classmethod
    def of(cls, joint: Counted | None, codes: dict[int, Counted]) -> LevelCounts:
        """A tally that goes on from what was counted before."""
        return cls(joint, dict(codes), begun=True)

    def copy(self) -> LevelCounts:
        """One that goes on by itself."""
        return LevelCounts(self.joint, dict(self.codes), self.begun)

    @property
    def over(self) -> bool:
        """Whether there is nothing left to count."""
        return self.begun and self.joint is None and not self.codes

    def add(self, values: Tensor) -> None:
        """Counts rows (rows, columns of the feature)."""
        if self.begun and self.joint is None:
            self._add_codes({place: (values[:, place], None) for place in self.codes})
            return
        look = distinct(values[:_LOOK])
        if len(look[0]) <= _limit(look[0]):
            self._join(distinct(values))
            return
        self._part(values.shape[1])
        self._add_codes({place: (values[:, place], None) for place in self.codes})

    def merge(self, other: LevelCounts) -> None:
        """Counts what another one has counted."""
        if not other.begun:
            return
        if not self.begun:
            self.joint, self.codes, self.begun = other.joint, dict(other.codes), True
            return
        if other.joint is not None and self.joint is not None:
            self._join(other.joint)
            return
        other = LevelCounts.of(other.joint, other.codes)
        for tally in (self, other):
            if tally.joint is not None:
                tally._part(tally.joint[0].shape[1])
        self.codes = {place: code for place, code in self.codes.items() if place in other.codes}
        self._add_codes({place: (other.codes[place][0][:, 0], other.codes[place][1]) for place in self.codes})

    def _join(self, found: Counted) -> None:
        self.joint = found if self.joint is None else _joined(self.joint, found)
        self.begun = True
        if len(self.joint[0]) > _limit(self.joint[0]):
            self._part(self.joint[0].shape[1])

    def _part(self, columns: int) -> None:
        """Gives joint levels up and goes on with codes, of columns that so far hold such."""
        nothing = torch.zeros(0, columns, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        levels, counts = self.joint or nothing
        self.joint, self.begun = None, True
        empty = nothing[0][:, :1], nothing[1]
        self.codes = dict.fromkeys(range(columns), empty)
        self._add_codes({place: (levels[:, place], counts) for place in range(columns)})

    def _add_codes(self, found: dict[int, tuple[Tensor, Tensor | None]]) -> None:
        for place, (values, counts) in found.items():
            joined = _joined_codes(self.codes[place], values, counts)
            if joined is None:
                del self.codes[place]
            else:
                self.codes[place] = joined


def distinct(values: Tensor) -> Counted:
    """Distinct rows in order and how often each occurs; a feature of no columns has one level, the empty one."""
    if values.shape[1] == 0:
        return values[:1], torch.tensor([len(values)])
    if values.shape[1] == 1:  # sorting numbers is many times faster than sorting rows
        levels, counts = torch.unique(values[:, 0], return_counts=True)
        return levels[:, None], counts
    high = values.amax(0)
    on = values == high
    if len(values) and bool((on | (values == values.amin(0))).all()):
        # Two values a column are one bit; bytes of bits sort as the rows do.
        bits = np.packbits(on.numpy(), axis=1)
        keys = np.ascontiguousarray(bits).view(np.dtype((np.void, bits.shape[1])))[:, 0]
        _, first, times = np.unique(keys, return_index=True, return_counts=True)
        return values[torch.from_numpy(first)], torch.from_numpy(times)
    levels, counts = torch.unique(values, dim=0, return_counts=True)
    return levels, counts


def two_valued(values: Tensor) -> Tensor:
    """Which columns have at most two distinct values."""
    if len(values) == 0:
        return torch.ones(values.shape[1], dtype=torch.bool)
    return ((values == values.amin(0)) | (values == values.amax(0))).all(0)


def among(rows: Tensor, levels: Tensor) -> Tensor:
    """Whether each row is one of the levels."""
    if rows.shape[1] == 1:
        known = levels[:, 0].sort().values
        if len(known) == 0:
            return torch.zeros(len(rows), dtype=torch.bool)
        place = torch.searchsorted(known, rows[:, 0].contiguous()).clamp_max(len(known) - 1)
        return known[place] == rows[:, 0]
    # Adding nothing turns −0 into 0, so that equal rows have equal bytes.
    known_rows = {row.tobytes() for row in (levels + 0).numpy()}
    return torch.tensor([row.tobytes() in known_rows for row in (rows + 0).numpy()], dtype=torch.bool)


def _limit(levels: Tensor) -> int:
    """Most levels to count: a one-hot group has one per column, and the one in which all are off."""
    if MOST_LEVELS <= levels.shape[1] <= _MOST_ONE_HOT and bool(two_valued(levels).all()):
        return levels.shape[1] + 1
    return MOST_LEVELS


def _joined(first: Counted, second: Counted) -> Counted:
    if first[0].shape[1] == 0:
        return first[0], first[1] + second[1]
    if len(first[0]) == len(second[0]) and torch.equal(first[0], second[0]):
        return first[0], first[1] + second[1]
    values, place = torch.unique(torch.cat([first[0], second[0]]), dim=0, return_inverse=True)
    counts = torch.zeros(len(values), dtype=torch.int64)
    return values, counts.index_add_(0, place, torch.cat([first[1], second[1]]))


def _joined_codes(held: Counted, values: Tensor, counts: Tensor | None) -> Counted | None:
    """Whole numbers counted together with others; None where there are fractions, or the span is too wide."""
    if len(values) == 0:
        return held
    low, high = float(values.min()), float(values.max())
    if len(held[0]):
        low, high = min(low, float(held[0][0])), max(high, float(held[0][-1]))
    if not high - low < MOST_CODES or not torch.equal(values, values.round()):
        return None
    span = int(high - low) + 1
    times = torch.bincount((values - low).long(), weights=None if counts is None else counts.double(), minlength=span)
    times = times.long()
    times[(held[0][:, 0] - low).long()] += held[1]
    present = times.nonzero()[:, 0]
    return (present + low)[:, None].to(torch.float64), times[present]
