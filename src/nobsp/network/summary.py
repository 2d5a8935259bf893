"""What a table's columns look like, read in one pass: means, ranges, levels and a fair sample of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

__all__ = ["MOST_CODES", "MOST_LEVELS", "SAMPLE_ROWS", "Summary"]

SAMPLE_ROWS = 16384
# Batches of the sample that are held apart: putting each to the others at once would copy all of them every time.
_MOST_PIECES = 64


def _nothing() -> Tensor:
    return torch.zeros(0, dtype=torch.float64)


@dataclass(eq=False)
class Summary:
    """Columns at a glance, of rows that are added batch by batch, in memory that does not grow with them."""

    groups: Sequence[Sequence[int]]  # columns of each feature; levels are counted per feature
    rows: int = 0  # how many rows were read
    mean: Tensor = field(default_factory=_nothing)  # mean of each column
    minimum: Tensor = field(default_factory=_nothing)  # smallest value of each column
    maximum: Tensor = field(default_factory=_nothing)  # largest value of each column
    two_valued: Tensor = field(default_factory=lambda: _nothing().bool())  # which columns have at most two values
    tallies: list[LevelCounts] = field(default_factory=list)  # per feature, how often each of its values occurred
    pieces: list[Tensor] = field(default_factory=list)  # the rows of `sample`, as they came

    def __post_init__(self) -> None:
        self.groups = tuple(tuple(group) for group in self.groups)
        self.tallies = self.tallies or [LevelCounts() for _ in self.groups]

    # ------------------------------------------------------------------ adding rows

    def update(self, batch: Tensor) -> None:
        """Adds rows."""
        low, high = (ends.to(torch.float64) for ends in torch.aminmax(batch, dim=0))
        mean = batch.mean(0, dtype=torch.float64)
        # Most columns of numbers are known to have many values after the first batch, and need not be looked at again.
        two_valued = self.two_valued if self.rows else torch.ones(len(low), dtype=torch.bool)
        if self.rows:
            two_valued = two_valued & _within_ends(self.minimum, self.maximum, low, high)
        if two_valued.any():
            asked = batch[:, two_valued].to(torch.float64)
            two_valued = two_valued.clone()
            two_valued[two_valued.clone()] = ((asked == low[two_valued]) | (asked == high[two_valued])).all(0)
        if self.rows:
            mean = self.mean + (mean - self.mean) * (len(batch) / (self.rows + len(batch)))
            low, high = torch.minimum(self.minimum, low), torch.maximum(self.maximum, high)
        self.mean, self.minimum, self.maximum, self.two_valued = mean, low, high, two_valued
        for tally, group in zip(self.tallies, self.groups, strict=True):
            if not tally.over:
                tally.add(batch[:, list(group)].to(torch.float64))
        self._keep_some(batch)
        self.rows += len(batch)

    def merge(self, other: Summary) -> Summary:
        """Both tables together; where both samples are too many rows, each gives its table's share."""
        if not self.rows or not other.rows:
            one = self if self.rows else other
            pieces = [one.sample.clone()] if one.rows else []
            return replace(one, tallies=[tally.copy() for tally in one.tallies], pieces=pieces)
        tallies = [tally.copy() for tally in self.tallies]
        for tally, theirs in zip(tallies, other.tallies, strict=True):
            tally.merge(theirs)
        same = _within_ends(self.minimum, self.maximum, other.minimum, other.maximum)
        total = self.rows + other.rows
        return Summary(
            self.groups,
            total,
            self.mean + (other.mean - self.mean) * (other.rows / total),
            torch.minimum(self.minimum, other.minimum),
            torch.maximum(self.maximum, other.maximum),
            self.two_valued & other.two_valued & same,
            tallies,
            _joint_sample(self, other),
        )

    def thin(self, total: int) -> Summary:
        """The same with its share of a sample of `total` rows; rounded down, so that all shares fit."""
        if total <= SAMPLE_ROWS:
            return self
        return replace(self, pieces=[self.some_rows(SAMPLE_ROWS * self.rows // total)])

    def _keep_some(self, rows: Tensor) -> None:
        """Reservoir sampling: every row seen so far is equally likely to be held."""
        room = max(SAMPLE_ROWS - self.rows, 0)
        if room:
            self.pieces.append(rows[:room].to(torch.float64, copy=True))
            if len(self.pieces) > _MOST_PIECES:
                self.pieces = [self.sample]
        rest = rows[room:]
        if len(rest) == 0:
            return
        sample = self.sample
        # A generator of our own, so that the caller's random numbers stay where they were; made anew from the number
        # of rows, so that a summary needs nothing but itself to be resumed.
        generator = torch.Generator().manual_seed(self.rows)
        seen = self.rows + room + torch.arange(1, len(rest) + 1, dtype=torch.float64)
        slots = (torch.rand(len(rest), generator=generator, dtype=torch.float64) * seen).long()
        taken = torch.nonzero(slots < len(sample)).flatten()
        # Through numpy, where of several rows for one slot the last one stays.
        sample.numpy()[slots[taken].numpy()] = rest[taken].to(torch.float64).numpy()

    # ------------------------------------------------------------------ reading

    @property
    def sample(self) -> Tensor:
        """All rows, or a uniform sample of 16,384 where there are more, as float64."""
        if len(self.pieces) > 1:
            self.pieces = [torch.cat(self.pieces)]
        return self.pieces[0] if self.pieces else torch.zeros(0, len(self.mean), dtype=torch.float64)

    @property
    def levels(self) -> dict[int, Counted]:
        """Per feature with few distinct values, those (levels, columns of the feature), and how often each occurred."""
        joint = {k: tally.joint for k, tally in enumerate(self.tallies) if tally.joint is not None}
        return {k: counted for k, counted in joint.items() if len(counted[0]) <= MOST_LEVELS}

    @property
    def many(self) -> dict[int, Counted]:
        """The same for one-hot groups that have more levels than are few."""
        joint = {k: tally.joint for k, tally in enumerate(self.tallies) if tally.joint is not None}
        return {k: counted for k, counted in joint.items() if len(counted[0]) > MOST_LEVELS}

    @property
    def codes(self) -> dict[int, dict[int, Counted]]:
        """By feature and place in it, values and counts of columns of whole numbers, of all other features."""
        return {k: dict(tally.codes) for k, tally in enumerate(self.tallies) if tally.codes}

    def levels_of(self, feature: int, columns: Sequence[int]) -> Counted | None:
        """Every level of a category, however many, and how often each occurred; None where they are not known."""
        tally = self.tallies[feature]
        return tally.joint if tally.joint is not None else tally.codes.get(0) if len(columns) == 1 else None

    def mode(self, feature: int, columns: Sequence[int]) -> Tensor:
        """Most frequent level of a feature; among equals the smallest."""
        values, counts = self.levels_of(feature, columns) or distinct(self.sample[:, list(columns)])
        return values[int(counts.argmax())]

    def median(self, columns: Sequence[int]) -> Tensor:
        """Median of each column; of the sample where there are more rows than it holds."""
        return self.sample[:, list(columns)].quantile(0.5, dim=0)

    def some_rows(self, count: int) -> Tensor:
        """At most `count` rows of the sample, evenly spaced: the table may be sorted."""
        return _spaced(self.sample, count)


def _within_ends(minimum: Tensor, maximum: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Which columns have no more than two values at the ends of two tables."""
    ends = torch.stack([minimum, maximum, low, high])
    return ((ends == ends.amin(0)) | (ends == ends.amax(0))).all(0)


def _spaced(rows: Tensor, count: int) -> Tensor:
    if len(rows) <= count:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).long()]


def _joint_sample(first: Summary, second: Summary) -> list[Tensor]:
    if len(first.sample) + len(second.sample) <= SAMPLE_ROWS:
        return [torch.cat([first.sample, second.sample])]
    share = round(SAMPLE_ROWS * first.rows / (first.rows + second.rows))
    share = min(max(share, SAMPLE_ROWS - len(second.sample)), len(first.sample))
    return [torch.cat([_spaced(first.sample, share), _spaced(second.sample, SAMPLE_ROWS - share)])]


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
