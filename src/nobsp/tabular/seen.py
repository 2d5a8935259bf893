"""What a column of the caller's table holds, where a preprocessing stands before the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np

from nobsp._typing import AnyArray, FloatArray, Frame, TableLike
from nobsp.arguments import warn_caller
from nobsp.frames import is_missing
from nobsp.network.columns import MOST_CODES

# Distinct numbers of a column that are kept, for encoders that know no others; a one-hot group is
# seldom wider.
MOST_NUMBERS = 4096


@dataclass(frozen=True, eq=False)
class Seen:
    """What one of the caller's columns holds, missing values aside."""

    numeric: bool  # whether it holds numbers or booleans only
    # its distinct values in order; None where these are too many numbers, or not asked for
    levels: list[Any] | None
    # a value that may stand in the other columns while one feature is encoded: one that occurs
    typical: Any
    span: tuple[float, ...]  # smallest and largest number; empty without any
    # numbers that follow their distribution; all distinct ones where they are few
    quantiles: FloatArray
    has_missing: bool = False  # whether numbers are missing among it; of names, a level tells

    def merge(self, other: Seen, most: int) -> Seen:
        """The column of two shares of a table; one that is text in either is text."""
        ends = [*self.span, *other.span]
        span = (min(ends), max(ends)) if ends else ()
        has_missing = self.has_missing or other.has_missing
        if self.numeric != other.numeric:
            text = other if self.numeric else self
            return replace(text, span=span, has_missing=has_missing)

        quantiles = np.unique(np.concatenate([self.quantiles, other.quantiles]))
        levels = self._merge_levels(other, most)
        return replace(self, levels=levels, span=span, quantiles=quantiles, has_missing=has_missing)

    def _merge_levels(self, other: Seen, most: int) -> list[Any] | None:
        """Levels of two shares, in order; None where either has none, or numbers are too many."""
        if self.levels is None or other.levels is None:
            return None
        levels = [*self.levels, *other.levels]
        if not self.numeric:
            return _in_order(levels)
        numbers = sorted(set(levels))[:MOST_CODES]
        return None if len(numbers) > most else numbers


def look_at(X: TableLike, frame: Frame | None, position: int, name: str, most: int) -> Seen:
    """What is in one column, with at most `most` numbers as levels.

    Columns are looked at one by one, so that only one of them is copied at a time.
    """
    if frame is None:
        values = np.asarray(X[:, position])
        if values.dtype.kind in "biuf":
            return _see_numbers(values, most)
        return _see_names(_count_objects(values), values.tolist(), name, most)

    series = frame[:, position].alias("value")
    if series.dtype.is_numeric() or series.dtype == nw.Boolean:
        known = _see_numbers(np.asarray(series.drop_nulls().to_numpy()), most)
        return replace(known, has_missing=known.has_missing or series.null_count() > 0)
    if series.dtype == nw.Object:
        objects = series.to_numpy()
        return _see_names(_count_objects(objects), objects.tolist(), name, most)

    counts = series.drop_nulls().value_counts(name="times")
    times = dict(zip(counts["value"].to_list(), counts["times"].to_list(), strict=True))
    absent = series.filter(series.is_null()).head(1).to_numpy()
    return _see_names(times, absent.tolist(), name, most)


def _see_names(times: Mapping[Any, int], absent: list[Any], name: str, most: int) -> Seen:
    """A column of text or objects: how often each value occurs, and which are missing.

    The missing ones are found among `absent`.
    """
    if all(isinstance(value, int | float | np.number | bool) for value in times):
        numbers = np.array(list(times), dtype=np.float64)
        known = _see_numbers(np.repeat(numbers, list(times.values())), most)
        has_missing = known.has_missing or any(is_missing(value) for value in absent)
        return replace(known, has_missing=has_missing)

    levels = sorted(times, key=str)
    if len(levels) > MOST_CODES:
        warn_caller(
            f"column {name!r} has {len(levels):,} levels, of which only the first {MOST_CODES:,} "
            "in order are kept; leave it out if it numbers the rows."
        )
    return Seen(
        numeric=False,
        levels=_in_order([*levels, *absent]) if most else None,
        typical=max(levels, key=times.__getitem__),
        span=(),
        quantiles=np.zeros(0),
    )


def _see_numbers(column: AnyArray, most: int) -> Seen:
    """A column of numbers."""
    values = column.astype(np.float64)
    is_absent = np.isnan(values)
    has_missing = bool(is_absent.any())
    values = np.sort(values[~is_absent])
    if len(values) == 0:
        return Seen(
            numeric=True,
            levels=[],
            typical=float("nan"),
            span=(),
            quantiles=values,
            has_missing=has_missing,
        )

    is_new = np.concatenate([[True], values[1:] != values[:-1]])
    levels = values[is_new]
    quantiles = levels
    if len(levels) > MOST_NUMBERS:
        quantiles = np.unique(np.quantile(values, np.linspace(0, 1, MOST_NUMBERS)))
    return Seen(
        numeric=True,
        levels=levels.tolist() if len(levels) <= most else None,
        # Not the average of two: an encoder may know only the values it has seen.
        typical=float(values[len(values) // 2]),
        span=(float(values[0]), float(values[-1])),
        quantiles=quantiles,
        has_missing=has_missing,
    )


def _in_order(levels: list[Any]) -> list[Any]:
    """Names in order, up to as many as are kept, and the value for a missing one if it occurs."""
    missing = [value for value in levels if is_missing(value)]
    names = {value for value in levels if not is_missing(value)}
    return sorted(names, key=str)[:MOST_CODES] + missing[:1]


def _count_objects(column: AnyArray) -> Counter[Any]:
    """How often each value occurs, missing ones aside."""
    return Counter(value for value in np.asarray(column, dtype=object) if not is_missing(value))
