"""What a table's columns look like, read in one pass: means, ranges, levels and a fair sample of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nobsp.network.levels import MOST_CODES, MOST_LEVELS, Counted, Tally, distinct

__all__ = ["MOST_CODES", "MOST_LEVELS", "SAMPLE_ROWS", "Summariser", "Summary"]

SAMPLE_ROWS = 16384


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
        many: The same for one-hot groups that have more levels than are few.
        codes: By feature and place in it, values and counts of columns of whole numbers, of features in neither of
            the two.
        two_valued: Which columns have at most two values.
        sample: All rows, or a uniform sample of 16,384 where there are more, as float64.
    """

    rows: int
    mean: Tensor
    minimum: Tensor
    maximum: Tensor
    levels: dict[int, Counted]
    many: dict[int, Counted]
    codes: dict[int, dict[int, Counted]]
    two_valued: Tensor
    sample: Tensor

    def levels_of(self, feature: int, columns: Sequence[int]) -> Counted | None:
        """Every level of a category, however many, and how often each occurred; None where they are not known."""
        for known in (self.levels, self.many):
            if feature in known:
                return known[feature]
        return self.codes.get(feature, {}).get(0) if len(columns) == 1 else None

    def mode(self, feature: int, columns: Sequence[int]) -> Tensor:
        """Most frequent level of a feature; among equals the smallest."""
        values, counts = self.levels_of(feature, columns) or distinct(self.sample[:, columns])
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
        tallies = {}
        for feature in sorted(self._counted() & other._counted()):
            tallies[feature] = self._tally(feature)
            tallies[feature].merge(other._tally(feature))
        minimum, maximum = torch.minimum(self.minimum, other.minimum), torch.maximum(self.maximum, other.maximum)
        ends = torch.stack([self.minimum, self.maximum, other.minimum, other.maximum])
        return Summary(
            total,
            self.mean + (other.mean - self.mean) * (other.rows / total),
            minimum,
            maximum,
            *_by_number(tallies),
            two_valued=self.two_valued & other.two_valued & ((ends == minimum) | (ends == maximum)).all(0),
            sample=_joint_sample(self, other),
        )

    def _counted(self) -> set[int]:
        return {*self.levels, *self.many, *self.codes}

    def _tally(self, feature: int) -> Tally:
        return Tally.of(self.levels.get(feature) or self.many.get(feature), self.codes.get(feature, {}))


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
        self._two_valued: Tensor | None = None
        self._tallies = [Tally() for _ in self._groups]
        self._sample: list[Tensor] = []
        self._held = 0
        # A generator of our own: the caller's random numbers stay where they were.
        self._generator = torch.Generator().manual_seed(0)

    def update(self, batch: Tensor) -> None:
        """Adds rows."""
        rows = batch.to(torch.float64)
        low, high = rows.amin(0), rows.amax(0)
        ends = torch.stack([low, high])
        two_valued = ((rows == low) | (rows == high)).all(0)
        if self._sum is None or self._minimum is None or self._maximum is None or self._two_valued is None:
            self._sum, self._minimum, self._maximum, self._two_valued = rows.sum(0), low, high, two_valued
        else:
            ends = torch.cat([ends, torch.stack([self._minimum, self._maximum])])
            self._sum = self._sum + rows.sum(0)
            self._minimum = torch.minimum(self._minimum, low)
            self._maximum = torch.maximum(self._maximum, high)
            same = ((ends == self._minimum) | (ends == self._maximum)).all(0)
            self._two_valued = self._two_valued & two_valued & same
        for tally, group in zip(self._tallies, self._groups, strict=True):
            if not tally.over:
                tally.add(rows[:, group])
        self._keep_some(rows)
        self.rows += rows.shape[0]

    def result(self) -> Summary:
        """The summary of all rows so far."""
        if self._sum is None or self._minimum is None or self._maximum is None or self._two_valued is None:
            raise ValueError("no rows were read.")
        sample = torch.cat(self._sample) if len(self._sample) != 1 else self._sample[0]
        self._sample = [sample]
        return Summary(
            self.rows,
            self._sum / self.rows,
            self._minimum,
            self._maximum,
            *_by_number(dict(enumerate(self._tallies))),
            two_valued=self._two_valued,
            sample=sample.clone(),
        )

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


def _by_number(
    tallies: Mapping[int, Tally],
) -> tuple[dict[int, Counted], dict[int, Counted], dict[int, dict[int, Counted]]]:
    """Levels that are few, levels that are many, and codes."""
    joint = {feature: tally.joint for feature, tally in tallies.items() if tally.joint is not None}
    few = {feature: counted for feature, counted in joint.items() if len(counted[0]) <= MOST_LEVELS}
    many = {feature: counted for feature, counted in joint.items() if feature not in few}
    return few, many, {feature: dict(tally.codes) for feature, tally in tallies.items() if tally.codes}
