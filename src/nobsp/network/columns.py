"""Columns of a table: features, groups and baselines, and what they look like, in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nobsp.arguments import quote, suggest

SAMPLE_ROWS = 16384
# Batches of the sample that are held apart: putting each to the others at once would copy all of
# them every time.
_MOST_PIECES = 64
# Distinct values that are counted of a feature that may well be a number.
MOST_LEVELS = 256
# The span of whole numbers that are counted one by one: they may be codes of a category.
MOST_CODES = 100_000
# Columns of a one-hot group whose levels are counted jointly: their table has as many rows, which
# is 128 MB.
_MOST_ONE_HOT = 4096
# Rows that tell a column with few values from one with many without sorting them all.
_LOOK = 4 * MOST_LEVELS

Counted = tuple[Tensor, Tensor]
Subset = tuple[int, ...]


@dataclass(frozen=True)
class Features:
    """Names of the features and the columns each one stands for."""

    names: tuple[str, ...]  # one name per feature
    columns: tuple[tuple[int, ...], ...]  # per feature, its columns of the input matrix

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str, *, argument: str = "") -> int:
        """Position of a feature, or an error that offers close matches.

        The error names the argument that the feature came from.
        """
        if isinstance(name, str) and name in self.names:
            return self.names.index(name)

        complaint = f"no feature {name!r}"
        if argument:
            complaint = f"{argument} names {name!r}, but there is no such feature"
        raise ValueError(f"{complaint}; {suggest(name, self.names)}")

    def columns_of(self, subset: Subset) -> list[int]:
        """All columns of some features."""
        return [column for feature in subset for column in self.columns[feature]]


def resolve_features(
    features: Sequence[str] | Mapping[str, Any] | None,
    *,
    columns: int,
    names: Sequence[str] | None,
    argument: str = "features",
) -> Features:
    """What the caller calls a feature, as columns; `argument` is what the caller knows it as."""
    if features is None:
        features = [f"x{i}" for i in range(columns)] if names is None else names
    if isinstance(features, str) or not isinstance(features, Iterable):
        what = "the string " if isinstance(features, str) else ""
        raise TypeError(
            f"{argument} must be a list of names or a dictionary, found {what}{features!r}."
        )

    groups: dict[str, tuple[int, ...]] = {}
    for key, members in _named_members(features, columns=columns, argument=argument):
        if str(key) in groups:
            raise ValueError(f"{argument} has the name {str(key)!r} twice; names must differ.")
        groups[str(key)] = _columns(key, members, columns, names, argument)

    _require_partition(groups, columns=columns, names=names, argument=argument)
    return Features(tuple(groups), tuple(groups.values()))


def _named_members(
    features: Iterable[Any], *, columns: int, argument: str
) -> Iterable[tuple[Any, Any]]:
    """Every feature's name with what the caller says its columns are."""
    if isinstance(features, Mapping):
        return features.items()
    names = list(features)
    if len(names) != columns:
        raise ValueError(
            f"{argument} has {len(names)} names but the data has {columns} columns; pass one name "
            "per column, or a dictionary of names and their columns to group them."
        )
    return zip(names, range(columns), strict=True)


def _require_partition(
    groups: Mapping[str, Sequence[int]], *, columns: int, names: Sequence[str] | None, argument: str
) -> None:
    """An error where a column belongs to two features, or to none."""
    labels = [repr(name) for name in names or ()] or [str(column) for column in range(columns)]
    owner: dict[int, str] = {}
    for name, group in groups.items():
        for column in group:
            if column in owner:
                raise ValueError(
                    f"{argument} puts column {labels[column]} into both {owner[column]!r} and "
                    f"{name!r}; a column belongs to one feature."
                )
            owner[column] = name

    left_out = [labels[column] for column in range(columns) if column not in owner]
    if left_out:
        more = " and others" if len(left_out) > 5 else ""
        raise ValueError(
            f"{argument} leaves out column {', '.join(left_out[:5])}{more}; every column must "
            f"belong to one, also one that stays alone: {{{left_out[0]}: {left_out[0]}, …}}."
        )


def resolve_baseline(
    baseline: Any, *, features: Features, columns: int, summary: Summary, categories: frozenset[int]
) -> Tensor:
    """The input that stands for "no feature is active", one float64 value per column."""
    if not isinstance(baseline, str | Mapping):
        vector = _numbers("baseline", baseline)
        if vector.numel() != columns:
            raise ValueError(
                f"baseline has {vector.numel()} values but the data has {columns} columns; "
                "pass one value per column "
                'or "mean".'
            )
        return vector

    by_name: Mapping[str, Any] = dict.fromkeys(features.names, baseline)
    if isinstance(baseline, Mapping):
        by_name = baseline
        for name in by_name:
            features.index(name, argument="baseline")

    result = summary.mean.clone()
    for position, name in enumerate(features.names):
        group = list(features.columns[position])
        result[group] = _feature_baseline(
            by_name.get(name, "mean"),
            position,
            group,
            summary,
            category=position in categories,
            name=name,
        )
    return result


def needs_data(baseline: Any, features: Features | None) -> bool:
    """Whether the baseline can only be known after reading the data once."""
    if isinstance(baseline, Mapping):
        covered = features is not None and set(baseline) >= set(features.names)
        return not covered or any(
            isinstance(kind, str) and kind != "zero" for kind in baseline.values()
        )
    return isinstance(baseline, str) and baseline != "zero"


def isolated(values: Tensor, baseline: Tensor, columns: Sequence[int]) -> Tensor:
    """The baseline with values put into some of its columns: x° with x_S (equation B.2)."""
    inputs = baseline.to(values).expand(len(values), -1).clone()
    inputs[:, columns] = values
    return inputs


def reference(rows: Tensor, baseline: Tensor, columns: Sequence[int]) -> Tensor:
    """The rows with some columns set to the baseline: x with x°_S (equation B.4)."""
    inputs = rows.clone()
    inputs[:, columns] = baseline.to(rows)[columns]
    return inputs


def _feature_baseline(
    kind: Any, position: int, group: list[int], summary: Summary, *, category: bool, name: str
) -> Tensor:
    """The baseline of one feature's columns."""
    if not isinstance(kind, str):
        vector = _numbers(f"baseline for {name!r}", kind)
        if vector.numel() not in (1, len(group)):
            raise ValueError(
                f"baseline for {name!r} has {vector.numel()} values but the feature has "
                f"{len(group)} columns."
            )
        return vector.expand(len(group))

    if kind not in ("mean", "zero", "median", "mode"):
        known = '"mean", "zero", "median", "mode" or numbers'
        raise ValueError(f"baseline for {name!r} must be {known}, found {kind!r}.")

    if kind == "zero":
        return torch.zeros(len(group), dtype=torch.float64)
    if kind == "mode" or category:
        # The most frequent level; among equals the smallest.
        values, counts = summary.levels_of(position, group) or distinct(summary.sample[:, group])
        if not category and len(counts) > 2 and int(counts.max()) == 1:
            raise ValueError(
                f'baseline for {name!r} is "mode", but no value occurs twice; pass "mean" or a '
                "value."
            )
        return values[int(counts.argmax())]

    # Of the sample, where there are more rows than it holds.
    return summary.mean[group] if kind == "mean" else summary.sample[:, group].quantile(0.5, dim=0)


def _numbers(argument: str, numbers: Any) -> Tensor:
    """What the caller wrote as numbers, in one row."""
    try:
        # A copy: a column of a frame may be read-only, which torch warns about.
        values = numbers.detach().cpu().numpy() if isinstance(numbers, Tensor) else numbers
        vector = torch.from_numpy(np.asarray(values, dtype=np.float64).copy()).flatten()
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{argument} must be numbers, found {quote(numbers)}.") from error

    if not bool(torch.isfinite(vector).all()):
        raise ValueError(f"{argument} has values that are not finite.")
    return vector


def _columns(
    name: Any, members: Any, columns: int, names: Sequence[str] | None, argument: str
) -> tuple[int, ...]:
    """Columns of one feature, which may be said by position or name."""
    where = f"{argument}[{name!r}]"
    if not isinstance(members, str | int | np.integer | Iterable):
        raise TypeError(f"{where} must be a column or a list of columns, found {members!r}.")

    listed = [members] if isinstance(members, str | int | np.integer) else list(members)
    if not listed:
        raise ValueError(f"{where} has no columns.")
    return tuple(_column(member, columns, names, where) for member in listed)


def _column(member: Any, columns: int, names: Sequence[str] | None, where: str) -> int:
    """Position of one column."""
    if isinstance(member, str):
        if names is None:
            raise ValueError(f"{where} names column {member!r}, but the data has no column names.")
        if member not in names:
            raise ValueError(
                f"{where} names column {member!r}, which is not in the data; "
                f"{suggest(member, names)}"
            )
        return list(names).index(member)

    if isinstance(member, bool) or not isinstance(member, int | np.integer):
        raise TypeError(f"{where} must list columns by position or name, found {member!r}.")
    if not 0 <= member < columns:
        raise ValueError(
            f"{where} names column {member}, but the data has columns 0 to {columns - 1}."
        )
    return int(member)


def _nothing() -> Tensor:
    return torch.zeros(0, dtype=torch.float64)


@dataclass(eq=False)
class Summary:
    """Columns at a glance, in memory that does not grow with the rows.

    Rows are added batch by batch.
    """

    groups: Sequence[Sequence[int]]  # columns of each feature; levels are counted per feature
    rows: int = 0  # how many rows were read
    mean: Tensor = field(default_factory=_nothing)  # mean of each column
    minimum: Tensor = field(default_factory=_nothing)  # smallest value of each column
    maximum: Tensor = field(default_factory=_nothing)  # largest value of each column
    # which columns have at most two values
    two_valued: Tensor = field(default_factory=lambda: _nothing().bool())
    # per feature, how often each of its values occurred
    tallies: list[LevelCounts] = field(default_factory=list)
    pieces: list[Tensor] = field(default_factory=list)  # the rows of `sample`, as they came

    def __post_init__(self) -> None:
        self.groups = tuple(tuple(group) for group in self.groups)
        self.tallies = self.tallies or [LevelCounts.of(len(group)) for group in self.groups]
        self._require_shapes()
        self._require_one_table()

    def _require_one_table(self) -> None:
        """An error where rows or means lie outside the extremes, as no rows can."""
        low = self.minimum
        high = self.maximum
        missing = low.isnan()
        is_finite = not bool(low.isinf().any()) and not bool(high.isinf().any())
        if not is_finite or not torch.equal(high.isnan(), missing):
            raise ValueError("its extremes are not finite")
        rounding = 1e-9 * (low.abs() + high.abs())
        outside = (self.mean < low - rounding) | (self.mean > high + rounding)
        if bool(outside.any()) or not torch.equal(self.mean.isnan(), missing):
            raise ValueError("its means are not between its extremes")
        for piece in self.pieces:
            outside = (piece < low) | (piece > high) | (piece.isnan() & ~missing)
            if bool(outside.any()):
                raise ValueError("its rows are not between its extremes")

    def _require_shapes(self) -> None:
        """An error where parts are not of the same columns, as in a file that was changed."""
        columns = self.mean.shape
        for name in ("minimum", "maximum", "two_valued"):
            if getattr(self, name).shape != columns:
                raise ValueError(f"{name} is not that of {len(self.mean)} columns")
        if self.two_valued.dtype != torch.bool:
            raise ValueError("two_valued does not say yes or no of each column")
        if not self.rows:
            return
        if any(not 0 <= column < len(self.mean) for group in self.groups for column in group):
            raise ValueError(f"a feature has a column that is none of {len(self.mean)}")
        if any(piece.shape[1:] != columns for piece in self.pieces):
            raise ValueError(f"its rows do not have {len(self.mean)} columns")
        for tally, group in zip(self.tallies, self.groups, strict=True):
            if tally.joint is None:
                continue
            levels, counts = tally.joint
            if levels.ndim != 2 or levels.shape != (len(counts), len(group)) or counts.ndim != 1:
                raise ValueError(f"its levels are not those of {len(group)} columns")

    def update(self, batch: Tensor) -> None:
        """Adds rows."""
        ends = torch.aminmax(batch, dim=0)
        low = ends.min.to(torch.float64)
        high = ends.max.to(torch.float64)

        # Most columns of numbers are known to have many values after the first batch, and need not
        # be looked at again.
        asked = self.two_valued.clone() if self.rows else torch.ones(len(low), dtype=torch.bool)
        some = batch[:, asked].to(torch.float64)
        two_valued = asked.clone()
        two_valued[asked] = ((some == low[asked]) | (some == high[asked])).all(0)
        self._join(len(batch), batch.mean(0, dtype=torch.float64), low, high, two_valued)

        for tally, group in zip(self.tallies, self.groups, strict=True):
            if not tally.over:
                tally.add(batch[:, list(group)].to(torch.float64))
        self._keep_some(batch)
        self.rows += len(batch)

    def _join(self, rows: int, mean: Tensor, low: Tensor, high: Tensor, two_valued: Tensor) -> None:
        """Means, ends and columns of two values of these rows and others."""
        if self.rows:
            mean = self.mean + (mean - self.mean) * (rows / (self.rows + rows))
            ends = torch.stack([self.minimum, self.maximum, low, high])
            low = ends.amin(0)
            high = ends.amax(0)
            two_valued = self.two_valued & two_valued & ((ends == low) | (ends == high)).all(0)
        self.mean = mean
        self.minimum = low
        self.maximum = high
        self.two_valued = two_valued

    def merge(self, other: Summary) -> Summary:
        """Both tables together.

        Where the two samples have too many rows, each gives its table's share.
        """
        if not self.rows or not other.rows:
            filled = self if self.rows else other
            pieces = [filled.sample.clone()] if filled.rows else []
            tallies = [tally.copy() for tally in filled.tallies]
            return replace(filled, tallies=tallies, pieces=pieces)

        tallies = [
            mine.merge(theirs) for mine, theirs in zip(self.tallies, other.tallies, strict=True)
        ]
        share = round(SAMPLE_ROWS * self.rows / (self.rows + other.rows))
        share = min(max(share, SAMPLE_ROWS - len(other.sample)), len(self.sample))
        sample = torch.cat([self.some_rows(share), other.some_rows(SAMPLE_ROWS - share)])

        merged = replace(self, tallies=tallies, pieces=[])
        merged._join(other.rows, other.mean, other.minimum, other.maximum, other.two_valued)
        merged.rows += other.rows
        merged.pieces = [sample]
        return merged

    def thin(self, total: int) -> Summary:
        """This summary with its share of a sample of `total` rows, rounded down.

        All shares together then fit.
        """
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
        # A generator of our own, so that the caller's random numbers stay where they were; made
        # anew from the number of rows, so that a summary needs nothing but itself to be resumed.
        generator = torch.Generator().manual_seed(self.rows)
        seen = self.rows + room + torch.arange(1, len(rest) + 1, dtype=torch.float64)
        slots = (torch.rand(len(rest), generator=generator, dtype=torch.float64) * seen).long()
        taken = torch.nonzero(slots < len(sample)).flatten()
        # Through numpy, where of several rows for one slot the last one stays.
        sample.numpy()[slots[taken].numpy()] = rest[taken].to(torch.float64).numpy()

    @property
    def sample(self) -> Tensor:
        """All rows, or a uniform sample of 16,384 where there are more, as float64."""
        if len(self.pieces) > 1:
            self.pieces = [torch.cat(self.pieces)]
        if not self.pieces:
            return torch.zeros(0, len(self.mean), dtype=torch.float64)
        return self.pieces[0]

    @property
    def levels(self) -> dict[int, Counted]:
        """Per feature with few distinct values, these values and how often each occurred.

        Values have the shape (levels, columns of the feature).
        """
        joint = {k: tally.joint for k, tally in enumerate(self.tallies) if tally.joint is not None}
        return {k: counted for k, counted in joint.items() if len(counted[0]) <= MOST_LEVELS}

    @property
    def codes(self) -> dict[int, dict[int, Counted]]:
        """By feature and place in it, values and counts of columns of whole numbers.

        These are the features whose values are too many to be counted jointly.
        """
        return {k: dict(tally.codes) for k, tally in enumerate(self.tallies) if tally.codes}

    def levels_of(self, feature: int, columns: Sequence[int]) -> Counted | None:
        """Every level of a category, however many, and its count; None where they are not known.

        The count is how often a level occurred.
        """
        tally = self.tallies[feature]
        if tally.joint is not None:
            return tally.joint
        return tally.codes.get(0) if len(columns) == 1 else None

    def some_rows(self, count: int) -> Tensor:
        """At most `count` rows of the sample, evenly spaced: the table may be sorted."""
        rows = self.sample
        if len(rows) <= count:
            return rows
        return rows[torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).long()]


@dataclass(eq=False)
class LevelCounts:
    """Values of one feature, counted in memory that does not grow.

    They are counted jointly up to 256 distinct ones, or up to as many as a one-hot group can have.

    Columns of whole numbers with more, perhaps codes, are counted by themselves while they span no
    more than 100,000.
    """

    # distinct rows (levels, columns) and how often each occurred; None once they are too many
    joint: Counted | None
    # by position in the feature, whole numbers (levels, 1) and how often each occurred; empty
    # before that
    codes: dict[int, Counted] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: int) -> LevelCounts:
        """Nothing counted yet."""
        return cls(
            (torch.zeros(0, columns, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))
        )

    def copy(self) -> LevelCounts:
        """One that goes on by itself."""
        return replace(self, codes=dict(self.codes))

    @property
    def over(self) -> bool:
        """Whether there is nothing left to count."""
        return self.joint is None and not self.codes

    def add(self, values: Tensor) -> None:
        """Counts rows (rows, columns of the feature)."""
        if self.joint is not None:
            look = distinct(values[:_LOOK])
            if len(look[0]) <= _limit(look[0]):
                self._join(distinct(values))
                return
            self._part()

        for column in list(self.codes):
            self._add_codes(column, values[:, column], None)

    def merge(self, other: LevelCounts) -> LevelCounts:
        """What both have counted."""
        mine = self.copy()
        theirs = other.copy()
        if mine.joint is not None and theirs.joint is not None:
            mine._join(theirs.joint)
            return mine

        mine._part()
        theirs._part()
        mine.codes = {column: code for column, code in mine.codes.items() if column in theirs.codes}
        for column in list(mine.codes):
            values, counts = theirs.codes[column]
            mine._add_codes(column, values[:, 0], counts)
        return mine

    def _join(self, counted: Counted) -> None:
        """Adds rows that were counted to the joint levels."""
        assert self.joint is not None
        levels, counts = self.joint
        new_levels, new_counts = counted
        if not len(levels):
            levels = new_levels
            counts = new_counts
        elif torch.equal(levels, new_levels):  # two of no columns too
            counts = counts + new_counts
        elif len(new_levels):
            times = torch.cat([counts, new_counts])
            stacked = torch.cat([levels, new_levels])
            levels, position = torch.unique(stacked, dim=0, return_inverse=True)
            counts = torch.zeros(len(levels), dtype=torch.int64).index_add_(0, position, times)

        self.joint = levels, counts
        if len(levels) > _limit(levels):
            self._part()

    def _part(self) -> None:
        """Gives joint levels up and goes on with codes, of columns that so far hold such."""
        if self.joint is None:
            return
        levels, counts = self.joint
        self.joint = None
        for column in range(levels.shape[1]):
            self.codes[column] = levels[:0, :1], counts[:0]
            self._add_codes(column, levels[:, column], counts)

    def _add_codes(self, column: int, values: Tensor, counts: Tensor | None) -> None:
        """Counts whole numbers of a column.

        The column is given up where there are fractions, or where the span is too wide.
        """
        if len(values) == 0:
            return

        held, times = self.codes.pop(column)
        low = float(values.min())
        high = float(values.max())
        if len(held):
            low = min(low, float(held[0]))
            high = max(high, float(held[-1]))
        if not high - low < MOST_CODES or not torch.equal(values, values.round()):
            return

        weights = None if counts is None else counts.double()
        span = int(high - low) + 1
        total = torch.bincount((values - low).long(), weights=weights, minlength=span).long()
        total[(held[:, 0] - low).long()] += times

        present = total.nonzero()[:, 0]
        levels = (present + low)[:, None].to(torch.float64)
        self.codes[column] = levels, total[present]


def distinct(values: Tensor) -> Counted:
    """Distinct rows in order and how often each occurs.

    A feature of no columns has one level, the empty one.
    """
    if values.shape[1] == 0:
        return values[:1], torch.tensor([len(values)])

    if values.shape[1] == 1:  # sorting numbers is many times faster than sorting rows
        levels, counts = torch.unique(values[:, 0], return_counts=True)
        return levels[:, None], counts

    if len(values) and bool(two_valued(values).all()):
        # Two values a column are one bit; bytes of bits sort as the rows do.
        bits = np.packbits((values == values.amax(0)).numpy(), axis=1)
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
        return torch.isin(rows[:, 0], levels[:, 0])
    # Adding nothing turns −0 into 0, so that equal rows have equal bytes.
    known_rows = {row.tobytes() for row in (levels + 0).numpy()}
    return torch.tensor(
        [row.tobytes() in known_rows for row in (rows + 0).numpy()], dtype=torch.bool
    )


def _limit(levels: Tensor) -> int:
    """Most levels to count; a one-hot group has one per column, and one with all columns off."""
    if MOST_LEVELS <= levels.shape[1] <= _MOST_ONE_HOT and bool(two_valued(levels).all()):
        return levels.shape[1] + 1
    return MOST_LEVELS
