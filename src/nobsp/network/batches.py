"""Rows of any kind in batches, checked and in order of the columns.

They may be arrays, tensors, frames, loaders and streams.

In this order: the door (`batches_of`), streams, the reader, tables of arrays and frames, bars that
count rows. Bars share no lock with other processes, and where none is shown nothing of tqdm is
loaded.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import narwhals as nw
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from nobsp._typing import TableLike
from nobsp.arguments import (
    as_numpy,
    join_names,
    refuse_overflow,
    refuse_unreadable,
    require_flag,
    require_whole_number,
)
from nobsp.frames import distinct_frame_of, is_missing, match_columns
from nobsp.network.refusals import REFUSALS, gap_made, wrapped_refusal

if TYPE_CHECKING:
    from nobsp.network.adapted import Adapted

Encode = Callable[[Any], "np.ndarray[Any, Any]"]


class NoRowsError(ValueError):
    """There is no row, or image, at all.

    Where several processes share the work, one of them may have nothing to do.
    """


@dataclass(frozen=True, eq=False)
class Source:
    """Rows in batches: 2-D tensors on the CPU, never to be written to.

    They may share memory with the caller's data.
    """

    # column names where the data has any (those before encoding); else None
    names: tuple[str, ...] | None
    rows: int | None  # number of rows, or None where it is not known before reading
    reiterable: bool  # whether the rows can be read more than once
    integer: bool  # whether every value is an integer, so that batches are int64
    columns: int  # number of columns of every batch, after encoding
    # every batch, and the same rows before encoding, in the caller's own kind; None without an
    # encoder
    pairs: Callable[[], Iterator[tuple[Tensor, Any]]] = field(repr=False)

    def __iter__(self) -> Iterator[Tensor]:
        return (rows for rows, _ in self.pairs())


def batches_of(
    X: TableLike,
    *,
    batch_size: int,
    encode: Encode | None = None,
    argument: str = "X",
    columns: Sequence[str] | None = None,
    strict: bool = True,
) -> Source:
    """Reads any kind of table in batches."""
    reader = _Reader(check_batch_size(batch_size), encode, argument, strict)
    if _is_nested_list(X):
        X = np.asarray(X)

    whole = reader.table_of(X, argument, columns)
    if whole is None:
        opened = _Opened.stream(X, reader, columns)
    else:
        opened = _Opened.table(X, whole, argument)

    # An empty cut still knows its dtype, and is not checked for missing values.
    begun = reader.begin(opened.first)
    integer = encode is None and not begun.is_floating_point()

    def read() -> Iterator[tuple[Tensor, Any]]:
        rows_seen = 0
        for number, batch in enumerate(opened.batches()):
            table = whole or reader.batch_table(batch, number, columns or opened.first.names)
            if table.columns != opened.first.columns:
                raise ValueError(
                    f"batch {number} of {argument} has {table.columns} columns but batch 0 had "
                    f"{opened.first.columns}; all need the same."
                )

            for rows, native in reader.rows_of(table, first_row=rows_seen):
                # Whole numbers in a stream that began with floats are floats that happened to be
                # whole.
                is_same_kind = integer or rows.is_floating_point()
                yield rows if is_same_kind else rows.to(begun.dtype), native
            rows_seen += table.rows

        if rows_seen == 0:
            raise ValueError(
                f"{argument} gave no rows when it was read again; its __iter__ must start anew."
            )

    return Source(
        names=opened.first.names,
        rows=opened.total,
        reiterable=opened.reiterable,
        integer=integer,
        columns=begun.shape[1],
        pairs=read,
    )


def rows_like(
    X: TableLike,
    adapted: Adapted,
    *,
    columns: Sequence[str] | None,
    width: int,
    batch_size: int,
    argument: str = "X",
    strict: bool = True,
) -> Source:
    """Rows in batches, with the columns that were calibrated on."""
    source = batches_of(
        X if adapted.pack is None else adapted.pack(X),
        batch_size=batch_size,
        encode=adapted.encode,
        columns=columns,
        argument=argument,
        strict=strict,
    )
    if source.columns != width:
        raise ValueError(
            f"{argument} has {source.columns} columns but the explainer was calibrated on {width}."
        )
    return source


def _is_nested_list(X: TableLike) -> bool:
    """Whether this is a list of lists of numbers: a matrix, not a list of batches."""
    if not isinstance(X, list | tuple) or not X:
        return False
    first = X[0]
    return isinstance(first, list | tuple) and bool(first) and all(map(np.isscalar, first))


def _refuse_other_tables(X: TableLike, argument: str) -> None:
    """An error for tables that cannot be read as they are, with how to make them readable."""
    kind = type(X).__name__
    if type(X).__module__.partition(".")[0] == "ray":
        hint = f"work on its batches with {argument}.map_batches(..., batch_format='pandas')"
        raise TypeError(f"{argument} is a Ray {kind}; only `fit` takes it whole: {hint}.")
    if hasattr(X, "collect") and "Lazy" in kind:
        raise TypeError(f"{argument} is a {kind}; pass {argument}.collect().")
    if hasattr(X, "toarray"):
        raise TypeError(f"{argument} is a sparse matrix; pass {argument}.toarray().")
    if kind == "Series":
        hint = "frame[5:6] for one row of a frame, frame[['name']] for one column"
        raise TypeError(f"{argument} is a Series; pass a frame, such as {hint}.")
    rows = [X] if isinstance(X, Mapping) else X
    if isinstance(rows, list | tuple) and rows and all(map(_is_record, rows)):
        is_single = rows is not X
        what = "one row as a dictionary" if is_single else "a list of rows as dictionaries"
        written = f"[{argument}]" if is_single else argument
        raise TypeError(
            f"{argument} is {what}; pass a frame, as pandas.DataFrame({written}) makes it."
        )


def _is_record(row: object) -> bool:
    """Whether this is a row as a dictionary of names and single values."""
    return isinstance(row, Mapping) and bool(row) and all(map(np.isscalar, row.values()))


def check_batch_size(size: Any) -> int:
    """The size, where it is one."""
    require_whole_number("batch_size", size)
    return int(size)


def first_non_finite(values: Tensor) -> tuple[int, ...] | None:
    """Where the first NaN or infinity is; None without any."""
    # One sum is the cheapest pass that sees every value; it may also overflow, hence the second
    # look.
    if not values.is_floating_point() or bool(values.sum().isfinite()):
        return None
    bad = (~values.isfinite()).nonzero()
    return tuple(bad[0].tolist()) if len(bad) else None


def open_stream(X: TableLike, argument: str) -> tuple[Any, Callable[[], Iterator[Any]], bool]:
    """The first batch of an iterable, what reads all with that one, and if that can be repeated.

    The last is whether all can be read more than once.
    """
    if isinstance(X, Dataset) and not isinstance(X, IterableDataset):
        raise TypeError(
            f"{argument} is a Dataset; pass torch.utils.data.DataLoader({argument}, "
            "batch_size=...)."
        )

    is_single = isinstance(X, str | bytes | Mapping | type) or type(X).__name__ == "Series"
    if is_single or not hasattr(X, "__iter__"):
        wanted = (
            "an array or tensor, a pandas or polars frame of rows, a DataLoader, or an iterable of "
            "batches"
        )
        raise TypeError(f"{argument} is a {type(X).__name__}; expected {wanted}.")

    opened = iter(X)
    try:
        first = next(opened)
    except StopIteration:
        raise NoRowsError(f"{argument} has no batches.") from None
    waiting = [chain([first], opened)]

    def read() -> Iterator[Any]:
        if not waiting and opened is X:
            hint = "pass a list of batches, a DataLoader, or an object whose __iter__ starts anew"
            raise ValueError(
                f"{argument} is an iterator that can be read only once and it has been; {hint}."
            )
        return waiting.pop() if waiting else iter(X)

    return first, read, opened is not X


def count_ahead(X: TableLike) -> int | None:
    """How many rows an iterable will give, where that is certain."""
    if isinstance(X, DataLoader):
        certain = X.collate_fn is default_collate and not isinstance(X.dataset, IterableDataset)
        if not certain or X.batch_size is None or not isinstance(X.sampler, Sized):
            return None
        rows = len(X.sampler)
        return rows - rows % X.batch_size if X.drop_last else rows

    if not isinstance(X, list | tuple):
        return None
    tables = [batch[0] if isinstance(batch, tuple | list) and batch else batch for batch in X]
    if not tables or not all(hasattr(table, "shape") for table in tables):
        return None
    return sum(map(len, tables))


@dataclass(frozen=True, eq=False)
class _Table:
    """A table that can be cut into tensors of rows."""

    names: tuple[str, ...] | None  # column names of a frame; None for arrays and tensors
    rows: int  # how many rows it has
    columns: int  # how many columns, before any encoding
    # `cut(start, stop)`, the rows in between as a batch of a `Source`
    cut: Callable[[int, int], Tensor]
    # `native(start, stop)`, the same rows in the caller's own kind
    native: Callable[[int, int], Any]

    def name_of(self, column: int) -> str | int:
        """What the caller calls a column."""
        return column if self.names is None else self.names[column]


@dataclass(frozen=True, eq=False)
class _Reader:
    """Cuts tables into checked batches."""

    batch_size: int
    encode: Encode | None
    argument: str
    strict: bool

    def table_of(self, X: TableLike, argument: str, columns: Sequence[str] | None) -> _Table | None:
        """`X` as a table, or None if it is not one."""
        refuse_unreadable(X, name=argument)
        numeric = self.encode is None
        if isinstance(X, Tensor | np.ndarray):
            _require_matrix(X, argument, columns)
            return _array_table(as_numpy(X), argument, numeric=numeric)

        frame = distinct_frame_of(X, argument=argument)
        if frame is None:
            return None
        frame = match_columns(frame, argument=argument, columns=columns)
        return _frame_table(frame, argument, numeric=numeric, strict=self.strict)

    def batch_table(self, batch: Any, number: int, columns: Sequence[str] | None) -> _Table:
        """The rows of one batch of a stream, labels left aside."""
        argument = f"batch {number} of {self.argument}"
        if isinstance(batch, Mapping):
            hint = (
                f"pass batches of rows, e.g. (batch[{next(iter(batch), 'x')!r}] for batch in "
                "loader)"
            )
            raise TypeError(f"{argument} is a dictionary with {list(batch)}; {hint}.")
        rows = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
        table = self.table_of(rows, argument, columns)
        if table is None:
            raise TypeError(
                f"{argument} is a {type(rows).__name__}; expected an array, a tensor or a frame of "
                "rows."
            )
        return table

    def rows_of(self, table: _Table, *, first_row: int) -> Iterator[tuple[Tensor, Any]]:
        """Batches of rows, and the same before encoding."""
        encoded = self.encode is not None
        for start in range(0, table.rows, self.batch_size):
            stop = min(start + self.batch_size, table.rows)
            rows = self.cut(table, start, stop, first_row=first_row)
            bad = first_non_finite(rows) if self.strict else None
            if bad is not None:
                raise self._non_finite(table, rows, bad, start=start, first_row=first_row)
            yield rows, table.native(start, stop) if encoded else None

    def _non_finite(
        self, table: _Table, rows: Tensor, bad: tuple[int, ...], *, start: int, first_row: int
    ) -> ValueError:
        """An error about the first number that is not finite, by the caller's own columns."""
        value = "NaN" if bool(rows[bad].isnan()) else "infinite"
        row = first_row + start + bad[0]
        if self.encode is None:
            column = bad[1] if table.names is None else table.names[bad[1]]
            return ValueError(_missing(self.argument, value, column, row))

        gaps = _gaps(table, start + bad[0])
        if len(gaps) == 1:
            return ValueError(
                f"{_missing(self.argument, *gaps[0], row)} The model's preprocessing "
                "leaves them as they are, and the model does not take them."
            )
        message = _missing(f"the encoded {self.argument}", value, bad[1], row)
        if gaps:
            listed = join_names([name for _, name in gaps], _MOST_GAPS)
            return ValueError(
                f"{message} In this row of {self.argument}, {listed} are missing or infinite."
            )
        made = gap_made(
            self.encode,
            table.native(start, start + len(rows)),
            value=value if value == "NaN" else "an infinite number",
            argument=self.argument,
            first_row=first_row + start,
        )
        return ValueError(made or message)

    def begin(self, table: _Table) -> Tensor:
        """The first rows as the model takes them, as few as tell their columns."""
        if self.encode is None:
            return self.cut(table, 0, 0)
        try:
            return self.cut(table, 0, 1)
        except (TypeError, ValueError):
            # The first row may be one that does not fit, which concerns no other; beside others,
            # what is wrong with it is seen.
            if table.rows < 2:
                raise
        return self.cut(table, 0, min(table.rows, self.batch_size))

    def cut(self, table: _Table, start: int, stop: int, *, first_row: int = 0) -> Tensor:
        """Some rows as the model takes them; `first_row` is how many came in tables before."""
        if self.encode is None:
            return table.cut(start, stop)
        try:
            encoded = np.ascontiguousarray(self.encode(table.native(start, stop)), dtype=np.float64)
        except REFUSALS as failure:
            if not self.strict and stop - start > 1:
                return self._cut_apart(table, start, stop, failure)
            raise wrapped_refusal(
                failure,
                self.encode,
                table.native(start, stop),
                argument=self.argument,
                first_row=first_row + start,
                hint=_infinite_hint(self.argument, table, start, stop),
            ) from failure
        return torch.from_numpy(encoded if encoded.flags.writeable else encoded.copy())

    def _cut_apart(self, table: _Table, start: int, stop: int, failure: Exception) -> Tensor:
        """Rows that the encoder refuses together: those that it refuses alone become NaN."""
        halves: dict[int, Tensor] = {}
        middle = (start + stop) // 2
        for first, last in ((start, middle), (middle, stop)):
            with suppress(TypeError, ValueError):
                halves[first] = self.cut(table, first, last)
        if not halves:
            raise ValueError(
                f"{self.argument} does not pass the model's preprocessing: {failure}"
            ) from failure

        n_columns = next(iter(halves.values())).shape[1]
        rows = torch.full((stop - start, n_columns), torch.nan, dtype=torch.float64)
        for first, half in halves.items():
            offset = first - start
            rows[offset : offset + len(half)] = half
        return rows


@dataclass(frozen=True, eq=False)
class _Opened:
    """A table or a stream whose first rows are known."""

    first: _Table
    batches: Callable[[], Iterator[Any]]  # all of them, the first included
    total: int | None  # rows, where their number is certain
    reiterable: bool

    @classmethod
    def table(cls, X: TableLike, table: _Table, argument: str) -> _Opened:
        """A whole table, which is one batch."""
        if table.rows == 0:
            raise NoRowsError(f"{argument} has no rows.")
        return cls(table, partial(iter, [X]), table.rows, reiterable=True)

    @classmethod
    def stream(cls, X: TableLike, reader: _Reader, columns: Sequence[str] | None) -> _Opened:
        """An iterable of batches."""
        _refuse_other_tables(X, reader.argument)
        batch, batches, reiterable = open_stream(X, reader.argument)
        first = reader.batch_table(batch, 0, columns)
        if first.rows == 0:
            raise ValueError(f"batch 0 of {reader.argument} has no rows.")
        return cls(first, batches, count_ahead(X), reiterable)


def _require_matrix(
    X: Tensor | np.ndarray[Any, Any], argument: str, columns: Sequence[str] | None
) -> None:
    """An error for an array that is no matrix of the columns that are expected."""
    if X.ndim != 2:
        hint = (
            "pass one row per sample and one column per feature. Images, signals and volumes are "
            "explained by nobsp.NObSPCam(model)"
        )
        if X.ndim == 1:
            hint = (
                f"pass {argument}.reshape(-1, 1) for one column or {argument}.reshape(1, -1) for "
                "one row"
            )
        raise ValueError(
            f"{argument} must have two dimensions, found shape {tuple(X.shape)}; {hint}."
        )

    if columns is not None and X.shape[1] != len(columns):
        known = f"{len(columns)} are expected: {join_names(columns, 12)}, in order"
        raise ValueError(f"{argument} has {X.shape[1]} columns but {known}.")
    if X.shape[1] == 0:
        raise ValueError(f"{argument} has no columns.")

    if not isinstance(X, Tensor):
        return
    if X.layout != torch.strided or X.is_complex() or X.is_quantized:
        raise TypeError(
            f"{argument} must be a dense real tensor, found {X.dtype} with layout {X.layout}."
        )


def is_frame(X: TableLike) -> bool:
    """Whether `X` is a pandas, polars or other eager frame."""
    return isinstance(nw.from_native(X, eager_only=True, pass_through=True), nw.DataFrame)


def _array_table(X: np.ndarray[Any, Any], argument: str, *, numeric: bool) -> _Table:
    """A matrix as a table."""
    if numeric:
        _require_numbers(X, argument)
    refuse_overflow(X, name=argument)
    dtype = _batch_dtype(X.dtype)

    def cut(start: int, stop: int) -> Tensor:
        rows = np.ascontiguousarray(X[start:stop], dtype=dtype)
        # torch warns about memory it could write to but must not.
        return torch.from_numpy(rows if rows.flags.writeable else rows.copy())

    def native(start: int, stop: int) -> Any:
        return X[start:stop]

    return _Table(
        names=None,
        rows=len(X),
        columns=X.shape[1],
        cut=cut,
        native=native,
    )


def _require_numbers(X: np.ndarray[Any, Any], argument: str) -> None:
    """An error for an array that holds anything but numbers."""
    if X.dtype.kind not in "fiubO":
        raise TypeError(
            f"{argument} must be numeric, found dtype {X.dtype}; encode it to numbers first."
        )
    if X.dtype.kind != "O":
        return

    for column in range(X.shape[1]):
        try:
            X[:, column].astype(np.float64)
        except (TypeError, ValueError) as failure:
            raise TypeError(
                f"{argument}[:, {column}] is not numeric ({failure}); encode it first."
            ) from failure


def _batch_dtype(dtype: np.dtype[Any]) -> type[np.number[Any]]:
    """What batches hold: whole numbers as such, float32 where that loses nothing, else float64."""
    if dtype.kind in "iu":
        return np.int64
    is_single = dtype.kind == "f" and dtype.itemsize <= 4
    return np.float32 if is_single or dtype.kind == "b" else np.float64


def _frame_table(frame: nw.DataFrame[Any], argument: str, *, numeric: bool, strict: bool) -> _Table:
    """A frame as a table."""
    names = tuple(str(name) for name in frame.columns)
    if not names:
        raise ValueError(f"{argument} has no columns.")

    schema = [frame[:, position].dtype for position in range(len(names))]
    if numeric:
        _require_number_columns(names, schema, argument)
    dtype = _frame_dtype(frame, schema, strict=strict)

    def cut(start: int, stop: int) -> Tensor:
        piece = frame[start:stop]
        rows = np.empty((len(piece), len(names)), dtype=dtype)
        for position, name in enumerate(names):
            series = piece[:, position]
            missing = series.is_null().to_numpy() if series.null_count() else None
            if missing is None:
                rows[:, position] = series.to_numpy()
                continue
            if strict:
                row = start + int(missing.argmax())
                raise ValueError(_missing(argument, "missing", name, row))
            rows[missing, position] = np.nan
            rows[~missing, position] = series.drop_nulls().to_numpy()
        return torch.from_numpy(rows)

    def native(start: int, stop: int) -> Any:
        return frame[start:stop].to_native()

    return _Table(
        names=names,
        rows=len(frame),
        columns=len(names),
        cut=cut,
        native=native,
    )


def _require_number_columns(
    names: Sequence[str], schema: Sequence[nw.dtypes.DType], argument: str
) -> None:
    """An error for the first column of a frame that holds anything but numbers."""
    for name, dtype in zip(names, schema, strict=True):
        if not (dtype.is_numeric() or isinstance(dtype, nw.Boolean)):
            hint = (
                "encode it first, or pass a scikit-learn Pipeline that does so together with its "
                "network"
            )
            if argument.startswith("batch "):
                hint += "; a model that takes names itself needs all rows in one frame"
            if isinstance(dtype, nw.String):
                hint = f"convert it if it holds numbers as text, else {hint}"
            raise TypeError(f"{argument} column {name!r} holds {dtype}, not numbers; {hint}.")


def _frame_dtype(
    frame: nw.DataFrame[Any], schema: Sequence[nw.dtypes.DType], *, strict: bool
) -> type[np.number[Any]]:
    """One dtype for all columns: integers if all are, float32 if nothing is lost, else float64."""
    if all(isinstance(dtype, nw.Float32 | nw.Boolean) for dtype in schema):
        return np.float32
    if not all(dtype.is_integer() or isinstance(dtype, nw.Boolean) for dtype in schema):
        return np.float64

    # Missing numbers become NaN, which integers do not have.
    may_be_missing = not strict and any(
        frame[:, position].null_count() for position in range(len(schema))
    )
    return np.float64 if may_be_missing else np.int64


# Columns with gaps that an error names.
_MOST_GAPS = 5


def _gaps(table: _Table, row: int) -> list[tuple[str, str | int]]:
    """What the numbers of a row are that are none, missing or infinite, and their columns."""
    native = table.native(row, row + 1)
    frame = nw.from_native(native, eager_only=True, pass_through=True)
    is_frame = isinstance(frame, nw.DataFrame)
    gaps = []
    for column in range(table.columns):
        value = frame.item(0, column) if is_frame else native[0, column]
        is_number = isinstance(value, float | np.floating)
        if is_missing(value):
            gaps.append(("NaN" if is_number else "missing", table.name_of(column)))
        elif is_number and math.isinf(value):
            gaps.append(("infinite", table.name_of(column)))
    return gaps


def _infinite_hint(argument: str, table: _Table, start: int, stop: int) -> str:
    """A sentence about the first infinite number of some rows; empty without any."""
    native = table.native(start, stop)
    frame = nw.from_native(native, eager_only=True, pass_through=True)
    first = (stop, 0)
    for column in range(table.columns):
        if isinstance(frame, nw.DataFrame):
            values = frame[:, column].to_numpy()
        else:
            values = np.asarray(native[:, column])
        if np.issubdtype(values.dtype, np.floating) and np.isinf(values).any():
            first = min(first, (start + int(np.isinf(values).argmax()), column))
    row, column = first
    if row == stop:
        return ""
    return f" ({_missing(argument, 'infinite', table.name_of(column), row)})"


def _missing(argument: str, value: str, column: str | int, row: int) -> str:
    return (
        f"{argument} is {value} in row {row}, column {column!r}; remove or impute such values "
        "first."
    )


# ---------------------------------------------------------------------- bars


Batch = TypeVar("Batch", bound=Any)


class Counter(Protocol):
    """What counts steps."""

    def update(self, steps: int = 1) -> object:
        """Count some more."""


class _Silent:
    """Counts nothing and shows nothing."""

    def update(self, steps: int = 1) -> None:
        """Do nothing."""


@contextmanager
def progress_bar(
    *, enabled: bool, description: str, unit: str, total: int | None = None, scaled: bool = False
) -> Iterator[Counter]:
    """Hands out a counter: a bar on stderr (or in the notebook), or one that does nothing.

    It is a bar where `enabled`.
    """
    require_flag("progress", enabled)
    if not enabled:
        yield _Silent()
        return

    with _bar_class()(
        total=total,
        desc=description,
        unit=unit,
        unit_scale=scaled,
    ) as bar:
        yield bar


def with_progress(
    iterable: Iterable[Batch], *, total: int | None, enabled: bool, description: str
) -> Iterator[Batch]:
    """Pass batches through, counting their rows on a progress bar."""
    require_flag("progress", enabled)
    if not enabled:
        yield from iterable
        return

    with progress_bar(
        enabled=True, description=description, unit=" rows", total=total, scaled=True
    ) as bar:
        for batch in iterable:
            yield batch
            bar.update(len(batch))


@cache
def _bar_class() -> Any:
    """The bar of the terminal or the notebook.

    It has a lock of this process alone, and no monitor thread.
    """
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        # The monitor thread only redraws bars that stand still, and would live on in the process.
        monitor_interval = 0

    def renew_lock() -> None:
        Bar.set_lock(threading.RLock())

    # tqdm's own lock is one of multiprocessing: a process killed while it holds it blocks all its
    # relatives.
    renew_lock()
    # A thread that holds the lock while another forks does not exist in the child.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew_lock)
    return Bar
