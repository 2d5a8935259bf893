"""How functions are read: a table's columns, every term's values on them, and what lies outside."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nobsp._typing import AnyArray, BoolArray, FloatArray, Frame, TableLike
from nobsp.frames import frame_of, match_columns
from nobsp.messages import suggest
from nobsp.numerics import as_numpy
from nobsp.tabular.lookup import Chunk, LevelAxis, NumberAxis

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions

# Rows read at once: few enough that a chunk of some ten columns stays in the processor's cache.
_CHUNK_ROWS = 8192


def feature_position(functions: Functions, name: str) -> int:
    """Position of a feature, or an error with the close matches."""
    names = functions.feature_names
    if name not in names:
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
    frame = match_columns(frame, argument="X", columns=functions.column_names)

    needed = {column for feature in functions.features for column in feature.columns}
    columns = {position: np.asarray(frame[:, position].to_numpy()) for position in needed}
    return columns, len(frame)


def _as_frame(X: TableLike) -> Frame:
    """A frame of any library as narwhals sees it, or an error."""
    import narwhals as nw

    try:
        frame = frame_of(X)
    except nw.exceptions.DuplicateError as duplicate:
        raise ValueError(
            f"X has two columns of the same name; rename one ({duplicate})."
        ) from duplicate
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
