"""Tables read at rows, with numpy alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import AnyArray, ArrayLike, BoolArray, FloatArray, Frame, TableLike
from nobsp.arguments import as_numpy, refuse_unreadable, suggest
from nobsp.frames import distinct_frame_of, is_missing, match_columns

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions


Array = NDArray[np.float64]
Places = NDArray[np.intp]
Level = str | bool | int | float | None  # None or NaN, the last one, for what is missing

# Buckets of the table that finds a segment, at first: enough for knots that are spaced about
# evenly.
_FEWEST_BUCKETS = 64
# Most of them: more of them make searching faster until they leave the cache.
_MOST_BUCKETS = 1 << 14
# With more knots than this in one bucket, halving is faster than stepping from knot to knot.
_MOST_STEPS = 4


@dataclass(frozen=True)
class Feature:
    """A feature as the caller's table has it."""

    name: str  # what it is called
    columns: tuple[int, ...]  # positions of its columns in the caller's table
    # "number" for one column of numbers, "levels" for a category, "numbers" for what has no table
    # (several columns of numbers at once, or a category of very many levels), "unused" for what the
    # model never sees
    kind: Literal["number", "levels", "numbers", "unused"] = "number"
    # smallest and largest calibrated value per column of numbers
    ranges: tuple[tuple[float, float], ...] = ()
    labels: tuple[str, ...] = ()  # what the levels of a category are called

    @property
    def span(self) -> tuple[float, float] | None:
        """The calibrated range of one number; None for other kinds."""
        return self.ranges[0] if self.kind == "number" and self.ranges else None


# Knots nearer than the inverse of this would make slopes infinite, and 0 · ∞ is no number.
_STEEPEST = 1e300


@dataclass(eq=False)
class NumberAxis:
    """One column of numbers, cut at knots; linear between them and beyond the first and last."""

    column: int  # position of the column in the caller's table
    knots: Array  # at least two, increasing
    # whether a missing number (NaN) has a node of its own, after the last knot
    missing: bool = False

    def __len__(self) -> int:
        return len(self.knots) + self.missing

    def __post_init__(self) -> None:
        if not _are_knots(self.knots):
            raise ValueError(f"knots of column {self.column} are not increasing numbers")
        inner = self.knots[1:-1]
        count = _FEWEST_BUCKETS
        while True:
            with np.errstate(over="ignore"):
                self._scale = min(float(count / (self.knots[-1] - self.knots[0])), _STEEPEST)
            knots_in = np.bincount(self._buckets(inner, count), minlength=count)
            self._steps = int(knots_in.max())
            if self._steps <= 1 or count >= _MOST_BUCKETS:
                break
            count *= 2

        # Buckets grow with x, so every knot of an earlier bucket lies below every number of this
        # one.
        self._first: Places = (np.cumsum(knots_in) - knots_in).astype(np.intp)
        self._next = np.append(inner, np.inf)
        with np.errstate(over="ignore"):
            self._per_width = np.minimum(1.0 / np.diff(self.knots), _STEEPEST)

    def _buckets(self, x: Array, count: int) -> Places:
        """The bucket of each number.

        There are `count` equally wide ones between the first and the last knot.
        """
        buckets: Array = x - self.knots[0]
        buckets *= self._scale
        np.fmax(buckets, 0.0, out=buckets)  # NaN goes to bucket 0; its result is NaN anyway
        np.minimum(buckets, count - 1.0, out=buckets)
        return buckets.astype(np.intp)

    def segments(self, x: Array) -> Places:
        """For each number the segment it lies in: the last knot at or below it."""
        if self._steps > _MOST_STEPS:
            return np.searchsorted(self._next, x, side="right").astype(np.intp, copy=False)

        buckets = self._buckets(x, len(self._first))
        segments = self._first.take(buckets, mode="clip")
        for _ in range(self._steps):
            segments += x >= self._next.take(segments, mode="clip")
        return segments

    def along(self, x: Array, segments: Places) -> Array:
        """How far each number is along its segment: 0 at its left knot, 1 at its right one."""
        way: Array = x - self.knots.take(segments, mode="clip")
        way *= self._per_width.take(segments, mode="clip")
        return way


def _are_knots(knots: Array) -> bool:
    """Whether these are at least two finite numbers, each larger than the one before."""
    is_line = knots.ndim == 1 and len(knots) > 1 and knots.dtype.kind == "f"
    return is_line and bool(np.isfinite(knots).all()) and bool((knots[1:] > knots[:-1]).all())


@dataclass(eq=False)
class LevelAxis:
    """A category: one column of names or numbers, or several of numbers, such as one-hot ones."""

    columns: tuple[int, ...]  # positions of its columns in the caller's table
    # the names of one column, or an array of numbers (levels, columns)
    levels: tuple[Level, ...] | Array
    # the level that the preprocessing puts in the place of a missing name or number, by its
    # position
    filled_in: int | None = None

    def __post_init__(self) -> None:
        self._positions: dict[Any, int] = {}
        self._trie: list[tuple[Array, Places]] = []
        if isinstance(self.levels, tuple):
            self._positions = {name: k for k, name in enumerate(self.levels)}
        else:
            self._trie = _trie(self.levels)
        self._missing = self._find_missing()

    def __len__(self) -> int:
        return len(self.levels)

    @property
    def missing(self) -> int | None:
        """Position of the level of missing values: one of their own, or the one filled in."""
        return self._missing

    def _find_missing(self) -> int | None:
        """The position of `missing`; an error where it is none of the levels."""
        own = [position for name, position in self._positions.items() if is_missing(name)]
        if not isinstance(self.levels, tuple) and self.levels.shape[1] == 1:
            own = np.flatnonzero(np.isnan(self.levels[:, 0])).tolist()
        if own or self.filled_in is None:
            return own[0] if own else None
        if self.filled_in not in range(len(self.levels)):
            raise ValueError(f"level {self.filled_in}, which is filled in, is not there")
        return self.filled_in

    def places(self, columns: Sequence[AnyArray]) -> Places:
        """Position of each row's level; `len(self)` marks an unknown level."""
        if self._positions:
            return self._places_of_names(columns[0])
        return self._places_of_numbers(columns)

    def _places_of_names(self, column: AnyArray) -> Places:
        """Position of each row's name."""
        unseen = len(self.levels)
        values = column.tolist()
        positions = (self._positions.get(value, unseen) for value in values)
        places = np.fromiter(positions, np.intp, len(values))

        if self._missing is not None:  # NaN equals nothing, and None may stand for it
            others = np.flatnonzero(places == unseen)
            are_missing = [is_missing(values[row]) for row in others]
            places[others[are_missing]] = self._missing
        return places

    def _places_of_numbers(self, columns: Sequence[AnyArray]) -> Places:
        """Position of each row's numbers, followed through the trie column by column."""
        states = np.zeros(len(columns[0]), np.intp)
        for column, (known, transitions) in zip(columns, self._trie, strict=True):
            numbers = column.astype(np.float64)
            if column.dtype == np.float32:
                # Numbers that came as float32 are compared with levels rounded alike.
                known = known.astype(np.float32).astype(np.float64)
            nearest = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
            nearest[known[nearest] != numbers] = len(known)
            states = transitions[states, nearest]

        if self._missing is not None and len(columns) == 1:
            is_absent = np.isnan(columns[0].astype(np.float64))
            states[is_absent] = self._missing
        return states


def _trie(levels: Array) -> list[tuple[Array, Places]]:
    """Per column its distinct numbers, and where (state so far, number) leads.

    The last state is "unknown".
    """
    states = np.zeros(len(levels), np.intp)
    n_states = 1
    trie = []
    for position in range(levels.shape[1]):
        values, number = np.unique(levels[:, position], return_inverse=True)
        is_last = position == levels.shape[1] - 1
        if is_last:
            after = np.arange(len(levels))
            unknown = len(levels)
        else:
            paths = np.column_stack([states, number])
            distinct_paths, owner = np.unique(paths, axis=0, return_inverse=True)
            after = owner.ravel()
            unknown = len(distinct_paths)

        transitions = np.full((n_states + 1, len(values) + 1), unknown, np.intp)
        transitions[states, number] = after
        trie.append((values, transitions))
        states = after
        n_states = unknown
    return trie


Axis = NumberAxis | LevelAxis


@dataclass(eq=False)
class TermTable:
    """One term's values on a grid: linear along every axis of numbers, one value on every level.

    A function of one number goes on beyond its first and last knot as a straight line. A grid is
    held at its edges: the product of two straight lines would soon be far from anything. A level
    that is not among the axis' has the value zero, which is the mean; a missing number without a
    node of its own gives NaN.
    """

    features: tuple[int, ...]  # positions of its features
    axes: tuple[Axis, ...]  # of the grid; none for a feature that the network never sees
    values: Array  # values at the grid's nodes, one dimension per axis, then outputs

    def __post_init__(self) -> None:
        self._slopes = np.zeros(0)
        if len(self.axes) != 1:
            return
        axis = self.axes[0]
        if isinstance(axis, NumberAxis) and not axis.missing:
            self._slopes = np.diff(self.values, axis=0) / np.diff(axis.knots)[:, None]

    def __call__(self, rows: Chunk) -> Array:
        """Values of some rows, shape (rows, outputs)."""
        if len(self._slopes):
            return self._read_line(rows)

        n_outputs = self.values.shape[-1]
        # Without outputs beside them, single numbers are read faster.
        flat = self.values.reshape(-1) if n_outputs == 1 else self.values.reshape(-1, n_outputs)
        nodes, corners, unseen = self._nodes_and_corners(rows)
        values = _between(flat, nodes, corners).reshape(rows.count, n_outputs)
        if unseen is not None:
            values[unseen] = 0.0
        return values

    def has_unseen_level(self, rows: Chunk) -> BoolArray:
        """Which rows have a level that is not among an axis'."""
        unseen = np.zeros(rows.count, dtype=bool)
        for axis in self.axes:
            if isinstance(axis, LevelAxis):
                places, _ = rows.places(axis)
                unseen |= places == len(axis)
        return unseen

    def _nodes_and_corners(
        self, rows: Chunk
    ) -> tuple[Places, list[tuple[int, Array]], BoolArray | None]:
        """The node before every row, what lies between it and the next ones, and unknown levels.

        The last are the rows of unknown levels, or None where there are none.

        Nodes are numbered with the last axis running fastest. Per axis of numbers, corners say how
        many nodes on the next one is, and how far along to it a row lies.
        """
        nodes = np.zeros(rows.count, np.intp)
        corners: list[tuple[int, Array]] = []
        unseen: BoolArray | None = None
        *sizes, n_outputs = self.values.shape
        stride = self.values.size // max(n_outputs, 1)
        for axis, size in zip(self.axes, sizes, strict=False):
            stride //= size
            if isinstance(axis, NumberAxis):
                segments, along = rows.along(axis, clamped=len(self.axes) > 1)
                corners.append((stride, along))
                nodes += segments if stride == 1 else segments * stride
                continue

            places, has_unseen = rows.places(axis)
            if has_unseen:
                unknown = places == len(axis)
                unseen = unknown if unseen is None else unseen | unknown
                places = np.where(unknown, 0, places)
            nodes += places * stride
        return nodes, corners, unseen

    def _read_line(self, rows: Chunk) -> Array:
        """A function of one number: value and slope at the knot before each row."""
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
        self,
        columns: Mapping[int, AnyArray],
        rows: slice,
        names: Sequence[str] | None = None,
        *,
        remembers: bool = False,
    ) -> None:
        self.count = rows.stop - rows.start
        self._columns = columns
        self._rows = rows
        self._names = names
        # Where rows lie on axes that many tables share; takes memory for every axis.
        self._remembers = remembers
        self._along: dict[tuple[NumberAxis, bool], tuple[Places, Array]] = {}
        self._numbers: dict[int, Array] = {}
        self._places: dict[tuple[int, ...], tuple[Places, bool]] = {}

    def _numeric(self, position: int) -> AnyArray:
        """A column of numbers as it is, or an error that names it."""
        column = self._columns[position][self._rows]
        if column.dtype.kind in "fiub":
            return column
        try:
            if (
                column.dtype.kind in "cmMSU"
            ):  # numpy would drop what is no real number, and read texts
                raise TypeError(f"it holds {column.dtype}")
            if column.dtype.kind == "O":  # of pandas' own NA there is no number
                numbers = [np.nan if is_missing(value) else value for value in column.tolist()]
                return np.array(numbers, dtype=np.float64)
            return column.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as failure:
            name = position if self._names is None else repr(self._names[position])
            raise TypeError(
                f"column {name} of X is not numeric ({failure}); pass numbers, as in the "
                "calibration."
            ) from failure

    def numbers(self, position: int) -> Array:
        """A column as contiguous float64; what is infinite is as unknown as NaN."""
        if position not in self._numbers:
            numbers = np.ascontiguousarray(self._numeric(position), dtype=np.float64)
            # A sum that is not finite shows that there may be infinities.
            with np.errstate(invalid="ignore", over="ignore"):
                has_finite_sum = bool(np.isfinite(numbers.sum()))
            if not has_finite_sum:
                numbers = np.where(np.isinf(numbers), np.nan, numbers)
            self._numbers[position] = numbers
        return self._numbers[position]

    def along(self, axis: NumberAxis, *, clamped: bool) -> tuple[Places, Array]:
        """Segment of each row along an axis, and how far along it; `clamped` to its ends.

        What is returned is not to be written to.
        """
        known = self._along.get((axis, clamped))
        if known is not None:
            return known

        x = self.numbers(axis.column)
        is_absent = np.isnan(x) if axis.missing else None
        if clamped:
            x = np.clip(x, axis.knots[0], axis.knots[-1])
        segments = axis.segments(x)
        along = axis.along(x, segments)
        if is_absent is not None and is_absent.any():
            segments[is_absent] = len(axis.knots)
            along[is_absent] = 0.0

        if self._remembers:
            self._along[axis, clamped] = segments, along
        return segments, along

    def absent(self, position: int) -> NDArray[np.bool_]:
        """Which numbers of a column are missing; infinite ones are not."""
        missing: NDArray[np.bool_] = np.isnan(self._numeric(position).astype(np.float64))
        return missing

    def places(self, axis: LevelAxis) -> tuple[Places, bool]:
        """Positions of a category's levels, and whether any value is not among the levels.

        Such a value has the number of levels as its position.
        """
        if axis.columns not in self._places:  # a category has the same levels in all of its terms
            are_names = isinstance(axis.levels, tuple)
            if are_names:
                columns = [self._columns[position][self._rows] for position in axis.columns]
            else:
                columns = [self._numeric(position) for position in axis.columns]
            places = axis.places(columns)
            has_unseen = bool((places == len(axis)).any())
            self._places[axis.columns] = (places, has_unseen)
        return self._places[axis.columns]


def value_rows(values: ArrayLike, members: int, name: str) -> AnyArray:
    """Values of one feature as the caller writes them, one row each, one column per member."""
    refuse_unreadable(values, name="values")
    if hasattr(values, "detach"):
        values = as_numpy(values)
    # Objects otherwise, so that numbers beside names stay numbers.
    is_array = hasattr(values, "__array__")
    rows = np.asarray(values) if is_array else np.array(values, dtype=object)
    if rows.ndim < 2:
        rows = rows.reshape(-1, 1) if members == 1 else rows.reshape(1, -1)
    if rows.ndim > 2 and math.prod(rows.shape[1:]) == members:
        # Images and the like, in the shape of the model's own input.
        rows = rows.reshape(len(rows), members)
    if rows.ndim != 2 or rows.shape[1] != members:
        expected = "one value per row" if members == 1 else f"rows of {members} values"
        raise ValueError(f"values of {name!r} must be {expected}, found shape {rows.shape}.")
    return rows


# Rows read at once: few enough that a chunk of some ten columns stays in the processor's cache.
_CHUNK_ROWS = 8192


def feature_position(functions: Functions, name: str) -> int:
    """Position of a feature, or an error with the close matches."""
    names = functions.feature_names
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"no feature {name!r}; {suggest(name, names)}")
    return names.index(name)


def level_axes(functions: Functions) -> dict[int, LevelAxis]:
    """Per feature that is a category, its levels."""
    axes: dict[int, LevelAxis] = {}
    for table in functions.tables:
        for feature, axis in zip(table.features, table.axes, strict=False):
            if isinstance(axis, LevelAxis):
                axes.setdefault(feature, axis)
    return axes


def read_columns(functions: Functions, X: TableLike) -> tuple[dict[int, AnyArray], int]:
    """The caller's columns that tables stand on, and the number of rows."""
    refuse_unreadable(X, name="X")
    if hasattr(X, "detach"):
        X = as_numpy(X)
    if not isinstance(X, np.ndarray):
        return _read_frame(functions, X)

    if X.ndim != 2:
        raise ValueError(
            f"X must have two dimensions, found shape {X.shape}; pass one row per sample."
        )
    _require_column_count(functions, X.shape[1])
    columns = {position: X[:, position] for position in range(X.shape[1])}
    return columns, len(X)


def _read_frame(functions: Functions, X: TableLike) -> tuple[dict[int, AnyArray], int]:
    """The columns of a frame that features are made of."""
    frame = _as_frame(X)
    if functions.column_names is None:
        _require_column_count(functions, len(frame.columns))
    needed = {column for feature in functions.features for column in feature.columns}
    names = functions.column_names
    if names is None:
        columns = {position: np.asarray(frame[:, position].to_numpy()) for position in needed}
        return columns, len(frame)

    # A column that was dropped, or that the model never saw, may be gone from the table.
    present = {str(name) for name in frame.columns}
    gone = {column for column in _unread(functions) if names[column] not in present}
    expected = [column for column in range(len(names)) if column not in gone]
    frame = match_columns(frame, argument="X", columns=[names[column] for column in expected])
    columns = {}
    for position, column in enumerate(expected):
        if column in needed:
            columns[column] = np.asarray(frame[:, position].to_numpy())
    return columns, len(frame)


def _unread(functions: Functions) -> set[int]:
    """Columns that only features stand on which no term looks at."""
    columns = set()
    for feature in functions.features:
        if feature.kind == "unused":
            columns |= set(feature.columns)
    for feature in functions.features:
        if feature.kind != "unused":
            columns -= set(feature.columns)
    return columns


def _as_frame(X: TableLike) -> Frame:
    """A frame of any library as narwhals sees it, or an error."""
    frame = distinct_frame_of(X, argument="X")
    if frame is None:
        raise TypeError(f"X must be an array, a tensor or a frame, found {type(X).__name__}.")
    return frame


def _require_column_count(functions: Functions, n_columns: int) -> None:
    if n_columns != functions.column_count:
        raise ValueError(
            f"X has {n_columns} columns but the explainer was calibrated on "
            f"{functions.column_count}."
        )


def read_tables(
    functions: Functions, columns: Mapping[int, AnyArray], n_rows: int, *, threads: int = 1
) -> tuple[FloatArray, BoolArray]:
    """Contributions (rows, tables, outputs), and which features lie outside (rows, features)."""
    reading = _Reading.start(functions, columns, n_rows)
    starts = range(0, n_rows, _CHUNK_ROWS)

    if threads == 1 or len(starts) < 2:
        for start in starts:
            reading.read_chunk(start)
    else:
        with ThreadPoolExecutor(min(threads, len(starts))) as pool:
            list(pool.map(reading.read_chunk, starts))
    return reading.values, reading.outside


@dataclass(frozen=True, eq=False)
class _Reading:
    """Rows that are being read, chunk by chunk, into two arrays."""

    functions: Functions
    columns: Mapping[int, AnyArray]
    categories: dict[int, LevelAxis]
    # Features whose missing numbers have a value of their own.
    may_be_missing: frozenset[int]
    # What is filled: (rows, tables, outputs) and (rows, features).
    values: FloatArray
    outside: BoolArray

    @classmethod
    def start(cls, functions: Functions, columns: Mapping[int, AnyArray], n_rows: int) -> _Reading:
        """Nothing read yet."""
        n_tables = len(functions.tables)
        n_outputs = len(functions.output_names)
        return cls(
            functions=functions,
            columns=columns,
            categories=level_axes(functions),
            may_be_missing=_features_that_may_be_missing(functions),
            values=np.empty((n_rows, n_tables, n_outputs)),
            outside=np.zeros((n_rows, len(functions.features)), dtype=bool),
        )

    def read_chunk(self, start: int) -> None:
        """Fills in the rows from `start` on."""
        rows = slice(start, min(start + _CHUNK_ROWS, len(self.values)))
        chunk = Chunk(self.columns, rows, self.functions.column_names)
        by_table = np.empty((self.values.shape[1], chunk.count, self.values.shape[2]))
        for position, table in enumerate(self.functions.tables):
            by_table[position] = table(chunk)

        # Written once, row by row: table by table every line of memory would be visited as often
        # as there are tables.
        self.values[rows] = by_table.transpose(1, 0, 2)
        for position, feature in enumerate(self.functions.features):
            if position in self.categories:
                self._flag_levels(position, chunk, rows)
            elif feature.span is not None:
                self._flag_numbers(position, chunk, rows)

    def _flag_levels(self, position: int, chunk: Chunk, rows: slice) -> None:
        """Flags levels that were not calibrated."""
        axis = self.categories[position]
        levels, any_unseen = chunk.places(axis)
        if any_unseen:
            self.outside[rows, position] = levels == len(axis)

    def _flag_numbers(self, position: int, chunk: Chunk, rows: slice) -> None:
        """Flags numbers outside the calibrated range; those without a place contribute nothing."""
        feature = self.functions.features[position]
        column = feature.columns[0]
        assert feature.span is not None  # the caller looked
        low, high = feature.span
        if self.columns[column].dtype == np.float32:
            # A float32 copy of calibration rows lies within the range.
            low = float(np.float32(low))
            high = float(np.float32(high))

        numbers = chunk.numbers(column)
        all_inside = numbers.min() >= low and numbers.max() <= high  # False with any NaN
        if all_inside:
            return

        inside = (numbers >= low) & (numbers <= high)
        if position in self.may_be_missing:
            inside |= chunk.absent(column)
        self.outside[rows, position] = ~inside

        without_a_place = rows.start + np.flatnonzero(np.isnan(numbers))
        contributions = self.values[without_a_place]
        self.values[without_a_place] = np.nan_to_num(contributions, nan=0.0)


def _features_that_may_be_missing(functions: Functions) -> frozenset[int]:
    """Numbers whose own table has a value for missing ones."""
    features = set()
    for table in functions.tables:
        if len(table.axes) != 1:
            continue
        axis = table.axes[0]
        if isinstance(axis, NumberAxis) and axis.missing:
            features.add(table.features[0])
    return frozenset(features)
