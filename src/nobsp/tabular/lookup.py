"""Features, and functions of them as tables: values on knots and levels, read without a network. Needs numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nobsp.frames import is_missing

Array = NDArray[np.float64]
Places = NDArray[np.intp]
Level = str | bool | int | float | None  # None or NaN, the last one, for what is missing

# Buckets of the table that finds a segment: more of them make searching faster until they leave the cache.
_MOST_BUCKETS = 1 << 14
# With more knots than this in one bucket, halving is faster than stepping from knot to knot.
_MOST_STEPS = 4


@dataclass(frozen=True)
class Feature:
    """A feature as the caller's table has it."""

    name: str  # what it is called
    columns: tuple[int, ...]  # positions of its columns in the caller's table
    # "number" for one column of numbers, "levels" for a category, "numbers" for what has no table (several columns of
    # numbers at once, or a category of very many levels), "unused" for what the model never sees
    kind: Literal["number", "levels", "numbers", "unused"] = "number"
    ranges: tuple[
        tuple[float, float], ...
    ] = ()  # smallest and largest calibrated value per column of numbers
    labels: tuple[str, ...] = ()  # what the levels of a category are called

    @property
    def span(self) -> tuple[float, float] | None:
        """The calibrated range of one number; None for other kinds."""
        return self.ranges[0] if self.kind == "number" and self.ranges else None


@dataclass(eq=False)
class NumberAxis:
    """One column of numbers, cut at knots; linear in between, and on beyond the first and the last knot."""

    column: int  # position of the column in the caller's table
    knots: Array  # at least two, increasing
    missing: bool = (
        False  # whether a missing number (NaN) has a node of its own, after the last knot
    )

    def __len__(self) -> int:
        return len(self.knots) + self.missing

    def __post_init__(self) -> None:
        inner = self.knots[1:-1]
        count = 64
        while True:
            self._scale = float(count / (self.knots[-1] - self.knots[0]))
            held = np.bincount(self._buckets(inner, count), minlength=count)
            self._steps = int(held.max())
            if self._steps <= 1 or count >= _MOST_BUCKETS:
                break
            count *= 2
        # Buckets grow with x, so every knot of an earlier bucket lies below every number of this one.
        self._first: Places = (np.cumsum(held) - held).astype(np.intp)
        self._next, self._per_width = np.append(inner, np.inf), 1.0 / np.diff(self.knots)

    def _buckets(self, x: Array, count: int) -> Places:
        place: Array = x - self.knots[0]
        place *= self._scale
        np.fmax(place, 0.0, out=place)  # and NaN to the first, whatever comes of it is NaN
        np.minimum(place, count - 1.0, out=place)
        return place.astype(np.intp)

    def segments(self, x: Array) -> Places:
        """For each number the segment it lies in: the last knot at or below it."""
        if self._steps > _MOST_STEPS:
            return np.searchsorted(self._next, x, side="right").astype(np.intp, copy=False)
        found = self._first.take(self._buckets(x, len(self._first)), mode="clip")
        for _ in range(self._steps):
            found += x >= self._next.take(found, mode="clip")
        return found

    def along(self, x: Array, segments: Places) -> Array:
        """How far each number is along its segment: 0 at its left knot, 1 at its right one."""
        way: Array = x - self.knots.take(segments, mode="clip")
        way *= self._per_width.take(segments, mode="clip")
        return way


@dataclass(eq=False)
class LevelAxis:
    """A category: one column of names or numbers, or several columns of numbers, such as one-hot ones."""

    columns: tuple[int, ...]  # positions of its columns in the caller's table
    levels: (
        tuple[Level, ...] | Array
    )  # the names of one column, or an array of numbers (levels, columns)

    def __post_init__(self) -> None:
        named = isinstance(self.levels, tuple)
        self._names: dict[Any, int] = (
            {name: i for i, name in enumerate(self.levels)} if named else {}
        )
        self._missing = next((i for name, i in self._names.items() if is_missing(name)), None)
        self._trie = [] if isinstance(self.levels, tuple) else _trie(self.levels)

    def __len__(self) -> int:
        return len(self.levels)

    def places(self, columns: Sequence[NDArray[Any]]) -> Places:
        """Position of each row's level; as many as there are levels for one that is not among them."""
        if self._names:
            unseen, values = len(self.levels), columns[0].tolist()
            places = np.fromiter((self._names.get(v, unseen) for v in values), np.intp, len(values))
            if self._missing is not None:  # NaN equals nothing, and None may stand for it
                others = np.flatnonzero(places == unseen)
                places[others[[is_missing(values[i]) for i in others]]] = self._missing
            return places
        found = np.zeros(len(columns[0]), np.intp)
        for column, (known, step) in zip(columns, self._trie, strict=True):
            numbers = column.astype(np.float64)
            # Numbers that came as float32 are compared with levels rounded alike.
            values = (
                known.astype(np.float32).astype(np.float64) if column.dtype == np.float32 else known
            )
            nearest = np.minimum(np.searchsorted(values, numbers), len(values) - 1)
            nearest[values[nearest] != numbers] = len(values)
            found = step[found, nearest]
        return found


def _trie(levels: Array) -> list[tuple[Array, Places]]:
    """Per column its distinct numbers, and where (state so far, number) leads; the last state is "unknown"."""
    states = np.zeros(len(levels), np.intp)
    steps, before = [], 1
    for position in range(levels.shape[1]):
        values, number = np.unique(levels[:, position], return_inverse=True)
        last = position == levels.shape[1] - 1
        pairs, after = np.unique(np.column_stack([states, number]), axis=0, return_inverse=True)
        after = np.arange(len(levels)) if last else after.ravel()
        unknown = len(levels) if last else len(pairs)
        step = np.full((before + 1, len(values) + 1), unknown, np.intp)
        step[states, number] = after
        steps.append((values, step))
        states, before = after, unknown
    return steps


Axis = NumberAxis | LevelAxis


@dataclass(eq=False)
class TermTable:
    """One term's values on a grid: linear along every axis of numbers, one value on every level.

    A function of one number goes on beyond its first and last knot as a straight line. A grid is held at its edges:
    the product of two straight lines would soon be far from anything. A level that is not among the axis' has the value
    zero, which is the mean; a missing number without a node of its own gives NaN.
    """

    features: tuple[int, ...]  # positions of its features
    axes: tuple[
        Axis, ...
    ]  # what the grid stands on; none for a feature that the network never sees
    values: Array  # values at the grid's nodes, one dimension per axis, then outputs

    def __post_init__(self) -> None:
        self._slopes = np.zeros(0)
        if (
            len(self.axes) == 1
            and isinstance(self.axes[0], NumberAxis)
            and not self.axes[0].missing
        ):
            self._slopes = np.diff(self.values, axis=0) / np.diff(self.axes[0].knots)[:, None]

    def __call__(self, rows: Chunk) -> Array:
        """Values of some rows, shape (rows, outputs)."""
        if len(self._slopes):
            return self._read_line(rows)
        node = np.zeros(rows.count, np.intp)
        corners: list[
            tuple[int, Array]
        ] = []  # per axis of numbers how far the next node is, and how much it counts
        unseen: NDArray[np.bool_] | None = None
        outputs = self.values.shape[-1]
        stride = self.values.size // max(outputs, 1)
        for axis, size in zip(self.axes, self.values.shape, strict=False):
            stride //= size
            if isinstance(axis, LevelAxis):
                places, beyond = rows.places(axis)
                if beyond:
                    unknown = places == len(axis)
                    unseen = unknown if unseen is None else unseen | unknown
                    places = np.where(unknown, 0, places)
                node += places * stride
                continue
            x = rows.numbers(axis.column)
            absent = np.isnan(x) if axis.missing else None
            if len(self.axes) > 1:
                x = np.clip(x, axis.knots[0], axis.knots[-1])
            segments = axis.segments(x)
            along = axis.along(x, segments)
            if absent is not None and absent.any():
                segments[absent], along[absent] = len(axis.knots), 0.0
            corners.append((stride, along))
            segments *= stride
            node += segments
        flat = self.values.reshape(-1) if outputs == 1 else self.values.reshape(-1, outputs)
        found = _between(flat, node, corners).reshape(rows.count, outputs)
        if unseen is not None:
            found[unseen] = 0.0
        return found

    def _read_line(self, rows: Chunk) -> Array:
        axis = self.axes[0]
        assert isinstance(axis, NumberAxis)
        x = rows.numbers(axis.column)
        segment = axis.segments(x)
        along = x - axis.knots.take(segment, mode="clip")
        if self.values.shape[1] == 1:
            along *= self._slopes[:, 0].take(segment, mode="clip")
            along += self.values[:, 0].take(segment, mode="clip")
            return along[:, None]
        result = self._slopes.take(segment, axis=0, mode="clip")
        result *= along[:, None]
        result += self.values.take(segment, axis=0, mode="clip")
        return result


def _between(flat: Array, node: Places, corners: Sequence[tuple[int, Array]]) -> Array:
    """Linear along one axis after another, from the nodes around each row."""
    if not corners:
        return flat.take(node, axis=0, mode="clip")
    (step, way), *others = corners
    here = _between(flat, node, others)
    there = _between(flat, node + step, others)
    there -= here
    there *= way if flat.ndim == 1 else way[:, None]
    there += here
    return there


class Chunk:
    """Some rows of a table whose columns are read when they are asked for, each once."""

    def __init__(
        self, columns: Mapping[int, NDArray[Any]], rows: slice, names: Sequence[str] | None = None
    ) -> None:
        self.count = rows.stop - rows.start
        self._columns, self._rows, self._names = columns, rows, names
        self._numbers: dict[int, Array] = {}
        self._places: dict[tuple[int, ...], tuple[Places, bool]] = {}

    def _numeric(self, position: int) -> NDArray[Any]:
        column = self._columns[position][self._rows]
        if column.dtype.kind in "fiub":
            return column
        try:
            if column.dtype.kind in "cmM":  # numpy would drop what is not a real number
                raise TypeError(f"it holds {column.dtype}")
            return column.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as failure:
            name = position if self._names is None else repr(self._names[position])
            raise TypeError(f"X, column {name}, is not numeric ({failure}).") from failure

    def numbers(self, position: int) -> Array:
        """A column as contiguous float64; what is infinite is as unknown as NaN."""
        if position not in self._numbers:
            numbers = np.ascontiguousarray(self._numeric(position), dtype=np.float64)
            if numbers.size and not np.isfinite(numbers.sum()):
                numbers = np.where(np.isinf(numbers), np.nan, numbers)
            self._numbers[position] = numbers
        return self._numbers[position]

    def absent(self, position: int) -> NDArray[np.bool_]:
        """Which numbers of a column are missing; infinite ones are not."""
        missing: NDArray[np.bool_] = np.isnan(self._numeric(position).astype(np.float64))
        return missing

    def places(self, axis: LevelAxis) -> tuple[Places, bool]:
        """Positions of a category's levels; the number of levels for one not among them, and whether there is any."""
        if axis.columns not in self._places:  # a category has the same levels in all of its terms
            named = isinstance(axis.levels, tuple)
            found = axis.places(
                [self._columns[c][self._rows] if named else self._numeric(c) for c in axis.columns]
            )
            self._places[axis.columns] = found, bool((found == len(axis)).any())
        return self._places[axis.columns]


def value_rows(values: Any, members: int, name: str) -> NDArray[Any]:
    """Values of one feature as the caller writes them, one row each, a column for each of its members."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    # Objects otherwise, so that numbers beside names stay numbers.
    given = np.asarray(values) if hasattr(values, "__array__") else np.array(values, dtype=object)
    if given.ndim < 2:
        given = given.reshape(-1, 1) if members == 1 else given.reshape(1, -1)
    if given.ndim != 2 or given.shape[1] != members:
        expected = "one value per row" if members == 1 else f"rows of {members} values"
        raise ValueError(f"values of {name!r} must be {expected}, found shape {given.shape}.")
    return given
