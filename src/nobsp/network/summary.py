"""What a table's columns look like, read in one pass: means, ranges, levels and a fair sample of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SAMPLE_ROWS = 16384
MOST_LEVELS = 256


@dataclass(frozen=True)
class Summary:
    """Columns at a glance.

    Attributes:
        rows: How many rows were read.
        mean: Mean of each column.
        minimum: Smallest value of each column.
        maximum: Largest value of each column.
        levels: Per feature with few distinct values, those values (levels, columns of the feature) and how
            often each occurred; other features are missing here.
        sample: All rows, or a uniform sample of 16,384 where there are more, as float64.
    """

    rows: int
    mean: Tensor
    minimum: Tensor
    maximum: Tensor
    levels: dict[int, tuple[Tensor, Tensor]]
    sample: Tensor

    def mode(self, feature: int, columns: Sequence[int]) -> Tensor:
        """Most frequent level of a feature; among equals the smallest."""
        if feature in self.levels:
            values, counts = self.levels[feature]
        else:
            values, counts = _levels(self.sample[:, columns])
        return values[int(counts.argmax())]

    def median(self, columns: Sequence[int]) -> Tensor:
        """Median of each column; of the sample where there are more rows than it holds."""
        return self.sample[:, columns].quantile(0.5, dim=0)

    def some_rows(self, count: int) -> Tensor:
        """At most `count` rows of the sample, evenly spaced: the table may be sorted."""
        return _spaced(self.sample, count)

    def merge(self, other: Summary) -> Summary:
        """Both tables together; where both samples are too many rows, each gives its table's share."""
        total = self.rows + other.rows
        levels = {}
        for feature in self.levels.keys() & other.levels.keys():
            joined = _join_levels(self.levels[feature], other.levels[feature])
            if len(joined[0]) <= MOST_LEVELS:
                levels[feature] = joined
        return Summary(
            total,
            self.mean + (other.mean - self.mean) * (other.rows / total),
            torch.minimum(self.minimum, other.minimum),
            torch.maximum(self.maximum, other.maximum),
            levels,
            _joint_sample(self, other),
        )


class Summariser:
    """Builds a `Summary` batch by batch, in memory that does not grow with the rows.

    Args:
        groups: Columns of each feature; levels are counted per feature.

    Attributes:
        rows: Rows seen so far.

    Example:
        >>> summariser = Summariser([(0,)])
        >>> summariser.update(torch.tensor([[1.0], [3.0], [3.0]]))
        >>> summariser.result().mode(0, [0])
        tensor([3.], dtype=torch.float64)
    """

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self._groups = [list(group) for group in groups]
        self.rows = 0
        self._sum: Tensor | None = None
        self._minimum: Tensor | None = None
        self._maximum: Tensor | None = None
        self._levels: dict[int, tuple[Tensor, Tensor]] = {}
        self._many: set[int] = set()
        self._sample: list[Tensor] = []
        self._held = 0
        # A generator of our own: the caller's random numbers stay where they were.
        self._generator = torch.Generator().manual_seed(0)

    def update(self, batch: Tensor) -> None:
        """Adds rows."""
        rows = batch.to(torch.float64)
        low, high = rows.amin(0), rows.amax(0)
        if self._sum is None or self._minimum is None or self._maximum is None:
            self._sum, self._minimum, self._maximum = rows.sum(0), low, high
        else:
            self._sum = self._sum + rows.sum(0)
            self._minimum = torch.minimum(self._minimum, low)
            self._maximum = torch.maximum(self._maximum, high)
        for feature, group in enumerate(self._groups):
            if feature not in self._many:
                self._count_levels(feature, rows[:, group])
        self._keep_some(rows)
        self.rows += rows.shape[0]

    def result(self) -> Summary:
        """The summary of all rows so far."""
        if self._sum is None or self._minimum is None or self._maximum is None:
            raise ValueError("no rows were read.")
        sample = torch.cat(self._sample) if len(self._sample) != 1 else self._sample[0]
        self._sample = [sample]
        return Summary(
            self.rows,
            self._sum / self.rows,
            self._minimum,
            self._maximum,
            dict(self._levels),
            sample.clone(),
        )

    def _count_levels(self, feature: int, values: Tensor) -> None:
        # A look at the first rows tells a continuous column from a categorical one without sorting them all.
        if len(_levels(values[: 4 * MOST_LEVELS])[0]) > MOST_LEVELS:
            self._forget_levels(feature)
            return
        levels, counts = _levels(values)
        if feature in self._levels:
            levels, counts = _join_levels(self._levels[feature], (levels, counts))
        if len(levels) > MOST_LEVELS:
            self._forget_levels(feature)
        else:
            self._levels[feature] = (levels, counts)

    def _forget_levels(self, feature: int) -> None:
        self._many.add(feature)
        self._levels.pop(feature, None)

    def _keep_some(self, rows: Tensor) -> None:
        """Reservoir sampling: every row seen so far is equally likely to be held."""
        room = SAMPLE_ROWS - self._held
        if room > 0:
            self._sample.append(rows[:room].clone())
            self._held += min(room, rows.shape[0])
        rest = rows[max(room, 0) :]
        if len(rest) == 0:
            return
        if len(self._sample) > 1:
            self._sample = [torch.cat(self._sample)]
        seen = self.rows + max(room, 0) + torch.arange(1, len(rest) + 1, dtype=torch.float64)
        slots = (torch.rand(len(rest), generator=self._generator, dtype=torch.float64) * seen).long()
        for position in torch.nonzero(slots < SAMPLE_ROWS).flatten().tolist():
            self._sample[0][slots[position]] = rest[position]


def _spaced(rows: Tensor, count: int) -> Tensor:
    if len(rows) <= count:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).long()]


def _joint_sample(first: Summary, second: Summary) -> Tensor:
    if len(first.sample) + len(second.sample) <= SAMPLE_ROWS:
        return torch.cat([first.sample, second.sample])
    share = round(SAMPLE_ROWS * first.rows / (first.rows + second.rows))
    share = min(max(share, SAMPLE_ROWS - len(second.sample)), len(first.sample))
    return torch.cat([_spaced(first.sample, share), _spaced(second.sample, SAMPLE_ROWS - share)])


def _levels(values: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows and how often each occurs; a feature of no columns has one level, the empty one."""
    if values.shape[1] == 0:
        return values[:1], torch.tensor([len(values)])
    if values.shape[1] == 1:  # sorting numbers is many times faster than sorting rows
        levels, counts = torch.unique(values[:, 0], return_counts=True)
        return levels[:, None], counts
    levels, counts = torch.unique(values, dim=0, return_counts=True)
    return levels, counts


def _join_levels(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    if first[0].shape[1] == 0:
        return first[0], first[1] + second[1]
    values, place = torch.unique(torch.cat([first[0], second[0]]), dim=0, return_inverse=True)
    counts = torch.zeros(len(values), dtype=torch.int64)
    return values, counts.index_add_(0, place, torch.cat([first[1], second[1]]))
