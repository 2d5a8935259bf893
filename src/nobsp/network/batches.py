"""Rows of any kind in batches: arrays, tensors, frames, loaders and streams, checked and in order of the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

import narwhals as nw
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from tqdm import tqdm

Batch = TypeVar("Batch", bound=Any)


class NoRowsError(ValueError):
    """There is no row, or image, at all; where several share the work, one of them may have nothing to do."""


@dataclass(frozen=True, eq=False)
class Source:
    """Rows of a table in batches: 2-D tensors on the CPU, never more than the asked number of rows each.

    Batches may share memory with the caller's data and must not be written to.
    """

    names: tuple[str, ...] | None  # column names where the data has any (those before encoding); else None
    rows: int | None  # number of rows, or None where it is not known before reading
    reiterable: bool  # whether the rows can be read more than once
    integer: bool  # whether every value is an integer, so that batches are int64
    columns: int  # number of columns of every batch, after encoding
    _open: Callable[[], Iterator[tuple[Tensor, Any]]] = field(repr=False)

    def __iter__(self) -> Iterator[Tensor]:
        return (rows for rows, _ in self._open())

    def pairs(self) -> Iterator[tuple[Tensor, Any]]:
        """Every batch, and the same rows before encoding, in the caller's own kind; None without an encoder."""
        return self._open()


def batches_of(
    X: Any,
    *,
    batch_size: int,
    encode: Encode | None = None,
    argument: str = "X",
    columns: Sequence[str] | None = None,
    strict: bool = True,
) -> Source:
    """Read any kind of table in batches."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size must be a positive whole number, found {batch_size!r}.")
    X = _matrix_if_nested(X)
    table = table_of(X, argument=argument, columns=columns, numeric=encode is None, strict=strict)
    reader = _Reader(int(batch_size), encode, argument, columns, strict)
    if table is not None:
        if table.rows == 0:
            raise NoRowsError(f"{argument} has no rows.")
        return _table_source(table, reader)
    _refuse(X, argument)
    return _stream_source(X, reader)


def with_progress(iterable: Iterable[Batch], *, total: int | None, enabled: bool, description: str) -> Iterator[Batch]:
    """Pass batches through, counting their rows on a progress bar on stderr."""
    if not enabled:
        yield from iterable
        return
    with tqdm(total=total, desc=description, unit=" rows", unit_scale=True) as bar:
        for batch in iterable:
            yield batch
            bar.update(len(batch))


@dataclass(frozen=True, eq=False)
class _Reader:
    """Cuts tables into checked batches."""

    batch_size: int
    encode: Encode | None
    argument: str
    columns: Sequence[str] | None
    strict: bool

    def rows_of(self, table: Table, *, first_row: int, argument: str) -> Iterator[tuple[Tensor, Any]]:
        for start in range(0, table.rows, self.batch_size):
            stop = min(start + self.batch_size, table.rows)
            rows = self.cut(table, start, stop)
            names = table.names if self.encode is None else None
            said = argument if self.encode is None else f"the encoded {argument}"
            if self.strict:
                check_finite(rows, argument=said, first_row=first_row + start, names=names)
            yield rows, None if self.encode is None else table.native(start, stop)

    def cut(self, table: Table, start: int, stop: int) -> Tensor:
        if self.encode is None:
            return table.cut(start, stop)
        try:
            encoded = np.ascontiguousarray(self.encode(table.native(start, stop)), dtype=np.float64)
        except (TypeError, ValueError) as failure:
            if not self.strict and stop - start > 1:
                return self._cut_apart(table, start, stop, failure)
            kind = TypeError if isinstance(failure, TypeError) else ValueError
            raise kind(f"{self.argument} does not pass the model's preprocessing: {failure}") from failure
        return torch.from_numpy(encoded if encoded.flags.writeable else encoded.copy())

    def _cut_apart(self, table: Table, start: int, stop: int, failure: Exception) -> Tensor:
        """Rows that the encoder refuses together: those that it refuses alone become NaN."""
        halves: list[Tensor | int] = []
        middle = (start + stop) // 2
        for first, last in ((start, middle), (middle, stop)):
            try:
                halves.append(self.cut(table, first, last))
            except (TypeError, ValueError):
                halves.append(last - first)
        width = next((half.shape[1] for half in halves if isinstance(half, Tensor)), None)
        if width is None:
            raise ValueError(f"{self.argument} does not pass the model's preprocessing: {failure}") from failure
        empty = torch.full((1, width), torch.nan, dtype=torch.float64)
        return torch.cat([half if isinstance(half, Tensor) else empty.expand(half, -1) for half in halves])

    def table(self, batch: Any, *, number: int, columns: Sequence[str] | None) -> Table:
        """The rows of one batch of a stream, labels left aside."""
        argument = f"batch {number} of {self.argument}"
        if isinstance(batch, Mapping):
            raise TypeError(
                f"{argument} is a dictionary with {list(batch)}; pass batches of rows, e.g. "
                f"(batch[{next(iter(batch), 'x')!r}] for batch in loader)."
            )
        rows = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
        table = table_of(rows, argument=argument, columns=columns, numeric=self.encode is None, strict=self.strict)
        if table is None:
            raise TypeError(
                f"{argument} is a {type(rows).__name__}; expected an array, a tensor, a frame, or a pair "
                "(x, y) starting with one."
            )
        return table


def _table_source(table: Table, reader: _Reader) -> Source:
    first = reader.cut(table, 0, 1) if reader.encode is not None else None

    def read() -> Iterator[tuple[Tensor, Any]]:
        return reader.rows_of(table, first_row=0, argument=reader.argument)

    # An empty cut still knows its dtype, and is not checked for missing values.
    integer = first is None and not table.cut(0, 0).is_floating_point()
    width = table.columns if first is None else first.shape[1]
    return Source(table.names, table.rows, True, integer, width, read)


def _stream_source(X: Any, reader: _Reader) -> Source:
    """Batches from an iterable; the first is looked at now and not lost, nor is the iterable opened twice."""
    opened = iter(X)
    once = opened is X
    try:
        first = next(opened)
    except StopIteration:
        raise NoRowsError(f"{reader.argument} has no batches.") from None
    head = reader.table(first, number=0, columns=reader.columns)
    if head.rows == 0:
        raise ValueError(f"batch 0 of {reader.argument} has no rows.")
    expected = reader.columns or head.names
    peeked = reader.cut(head, 0, 1)
    waiting: list[tuple[Any, Iterator[Any]]] = [(first, opened)]

    def raw() -> Iterator[Any]:
        if waiting:
            begun, rest = waiting.pop()
            yield begun
            yield from rest
        elif once:
            raise ValueError(
                f"{reader.argument} is an iterator that can be read only once and it has been; pass a list "
                "of batches, a DataLoader, or an object whose __iter__ starts anew."
            )
        else:
            yield from X

    def read() -> Iterator[tuple[Tensor, Any]]:
        seen = 0
        for number, batch in enumerate(raw()):
            table = reader.table(batch, number=number, columns=expected)
            if table.columns != head.columns:
                raise ValueError(
                    f"batch {number} of {reader.argument} has {table.columns} columns but batch 0 had "
                    f"{head.columns}; every batch needs the same columns."
                )
            for rows, native in reader.rows_of(table, first_row=seen, argument=reader.argument):
                # Whole numbers in a stream that began with floats are floats that happened to be whole.
                yield rows if integer or rows.is_floating_point() else rows.to(peeked.dtype), native
            seen += table.rows
        if seen == 0:
            raise ValueError(
                f"{reader.argument} gave no rows when it was read again; pass an object whose __iter__ starts anew."
            )

    integer = reader.encode is None and not peeked.is_floating_point()
    return Source(head.names, _rows_ahead(X), not once, integer, peeked.shape[1], read)


def _rows_ahead(X: Any) -> int | None:
    """How many rows an iterable will give, where that is certain."""
    if isinstance(X, DataLoader):
        certain = X.collate_fn is default_collate and not isinstance(X.dataset, IterableDataset)
        if not certain or X.batch_size is None or not isinstance(X.sampler, Sized):
            return None
        rows = len(X.sampler)
        return rows - rows % X.batch_size if X.drop_last else rows
    if isinstance(X, list | tuple):
        return sum(len(batch[0]) if isinstance(batch, tuple | list) else len(batch) for batch in X)
    return None


def _matrix_if_nested(X: Any) -> Any:
    """A list of lists of numbers is a matrix, not a list of batches."""
    nested = isinstance(X, list | tuple) and X and isinstance(X[0], list | tuple) and X[0]
    return np.asarray(X) if nested and all(np.isscalar(value) for value in X[0]) else X


def _refuse(X: Any, argument: str) -> None:
    """Errors for things that are iterable, or look like data, but are no batches."""
    kind = type(X).__name__
    if isinstance(X, Dataset) and not isinstance(X, IterableDataset):
        raise TypeError(f"{argument} is a Dataset; pass torch.utils.data.DataLoader({argument}, batch_size=...).")
    if type(X).__module__.partition(".")[0] == "ray":
        raise TypeError(
            f"{argument} is a Ray {kind}; only `fit` takes it whole. Work on its batches where they are, with "
            f"{argument}.map_batches(..., batch_format='pandas')."
        )
    if hasattr(X, "collect") and "Lazy" in kind:
        raise TypeError(f"{argument} is a {kind}; pass {argument}.collect().")
    if hasattr(X, "toarray"):
        raise TypeError(f"{argument} is a sparse matrix; pass {argument}.toarray().")
    if isinstance(X, str | bytes | Mapping) or kind == "Series" or not hasattr(X, "__iter__"):
        raise TypeError(
            f"{argument} is a {kind}; expected a 2-D array or tensor, a pandas or polars frame, a "
            "DataLoader, or an iterable of batches."
        )


Encode = Callable[[Any], "np.ndarray[Any, Any]"]


@dataclass(frozen=True, eq=False)
class Table:
    """A table that can be cut into tensors of rows."""

    names: tuple[str, ...] | None  # column names of a frame; None for arrays and tensors
    rows: int  # how many rows it has
    columns: int  # how many columns, before any encoding
    # `cut(start, stop)`, the rows in between as a 2-D tensor on the CPU. May share memory with the caller's data: never
    # write into it
    cut: Callable[[int, int], Tensor]
    native: Callable[[int, int], Any]  # `native(start, stop)`, the same rows in the caller's own kind


def is_frame(X: Any) -> bool:
    """Whether `X` is a pandas, polars or other eager frame."""
    return isinstance(nw.from_native(X, eager_only=True, pass_through=True), nw.DataFrame)


def table_of(
    X: Any, *, argument: str, columns: Sequence[str] | None, numeric: bool, strict: bool = True
) -> Table | None:
    """`X` as a table, or None if it is not one."""
    if isinstance(X, Tensor):
        return _tensor_table(X, argument=argument, columns=columns)
    if isinstance(X, np.ndarray):
        return _array_table(X, argument=argument, columns=columns, numeric=numeric)
    try:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
    except nw.exceptions.DuplicateError as duplicate:
        raise ValueError(f"{argument} has two columns of the same name; rename one ({duplicate}).") from duplicate
    if isinstance(frame, nw.DataFrame):
        return _frame_table(frame, argument=argument, columns=columns, numeric=numeric, strict=strict)
    return None


def _check_shape(shape: Sequence[int], *, argument: str, columns: Sequence[str] | None) -> None:
    if len(shape) != 2:
        hint = (
            f"pass {argument}.reshape(-1, 1) for one column or {argument}.reshape(1, -1) for one row"
            if len(shape) == 1
            else "pass one row per sample and one column per feature"
        )
        raise ValueError(f"{argument} must have two dimensions, found shape {tuple(shape)}; {hint}.")
    if columns is not None and shape[1] != len(columns):
        raise ValueError(
            f"{argument} has {shape[1]} columns but {len(columns)} are expected: {_listed(columns)}; "
            "pass the same columns in the same order."
        )
    if shape[1] == 0:
        raise ValueError(f"{argument} has no columns.")


def _tensor_table(X: Tensor, *, argument: str, columns: Sequence[str] | None) -> Table:
    _check_shape(X.shape, argument=argument, columns=columns)
    if X.layout != torch.strided or X.is_complex() or X.is_quantized:
        raise TypeError(f"{argument} must be a dense real tensor, found {X.dtype} with layout {X.layout}.")

    def cut(start: int, stop: int) -> Tensor:
        return _settled(X[start:stop].detach().cpu())

    return Table(None, len(X), X.shape[1], cut, lambda start, stop: cut(start, stop).numpy())


def _settled(rows: Tensor) -> Tensor:
    """float64, float32 and integers keep their kind; half precision and booleans become float32."""
    if rows.dtype in (torch.float64, torch.float32):
        return rows
    if rows.is_floating_point() or rows.dtype == torch.bool:
        return rows.to(torch.float32)
    return rows.to(torch.int64)


def _array_table(X: np.ndarray[Any, Any], *, argument: str, columns: Sequence[str] | None, numeric: bool) -> Table:
    _check_shape(X.shape, argument=argument, columns=columns)
    if numeric and X.dtype.kind not in "fiub":
        if X.dtype.kind != "O":
            raise TypeError(f"{argument} must be numeric, found dtype {X.dtype}; encode it to numbers first.")
        for column in range(X.shape[1]):
            _numbers(X[:, column], where=f"{argument}[:, {column}]")

    def cut(start: int, stop: int) -> Tensor:
        rows = X[start:stop]
        kind = np.dtype(np.float64) if rows.dtype.kind == "O" else _numpy_kind(rows.dtype)
        rows = np.ascontiguousarray(rows, dtype=kind)
        # torch warns about memory it could write to but must not.
        return torch.from_numpy(rows if rows.flags.writeable else rows.copy())

    return Table(None, len(X), X.shape[1], cut, lambda start, stop: X[start:stop])


def _numbers(column: np.ndarray[Any, Any], *, where: str) -> np.ndarray[Any, Any]:
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError) as failure:
        raise TypeError(f"{where} is not numeric ({failure}); encode it to numbers first.") from failure


def _numpy_kind(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind in "iu":
        return np.dtype(np.int64)
    if dtype.kind == "b" or (dtype.kind == "f" and dtype.itemsize <= 4):
        return np.dtype(np.float32)
    return np.dtype(np.float64)


def _frame_table(
    frame: nw.DataFrame[Any], *, argument: str, columns: Sequence[str] | None, numeric: bool, strict: bool
) -> Table:
    frame = matched(frame, argument=argument, columns=columns)
    names = tuple(str(name) for name in frame.columns)
    if not names:
        raise ValueError(f"{argument} has no columns.")
    schema = [frame[:, position].dtype for position in range(len(names))]
    if numeric:
        for name, dtype in zip(names, schema, strict=True):
            if not (dtype.is_numeric() or isinstance(dtype, nw.Boolean)):
                raise TypeError(
                    f"{argument} column {name!r} holds {dtype}, not numbers; encode it first, or pass a "
                    "scikit-learn Pipeline that does so together with its network."
                )
    kind = _frame_kind(schema)
    if not strict and kind == np.int64 and any(frame[:, place].null_count() for place in range(len(names))):
        kind = np.dtype(np.float64)

    def cut(start: int, stop: int) -> Tensor:
        piece = frame[start:stop]
        rows = np.empty((len(piece), len(names)), dtype=kind)
        for position, name in enumerate(names):
            series = piece[:, position]
            if series.null_count() and not strict:
                missing = series.is_null().to_numpy()
                rows[:, position] = (
                    np.where(
                        missing, np.nan, series.fill_null(strategy="forward").fill_null(strategy="backward").to_numpy()
                    )
                    if not missing.all()
                    else np.nan
                )
                continue
            if series.null_count():
                row = start + int(series.is_null().arg_true()[0])
                raise ValueError(_missing(argument, "missing", row, name))
            rows[:, position] = series.to_numpy()
        return torch.from_numpy(rows)

    return Table(names, len(frame), len(names), cut, lambda start, stop: frame[start:stop].to_native())


def _frame_kind(schema: Sequence[Any]) -> np.dtype[Any]:
    """One dtype for all columns: integers if all are, float32 where that loses nothing, else float64."""
    if all(dtype.is_integer() or isinstance(dtype, nw.Boolean) for dtype in schema):
        return np.dtype(np.int64 if any(dtype.is_integer() for dtype in schema) else np.float32)
    if all(isinstance(dtype, nw.Float32 | nw.Boolean) for dtype in schema):
        return np.dtype(np.float32)
    return np.dtype(np.float64)


def matched(frame: nw.DataFrame[Any], *, argument: str, columns: Sequence[str] | None) -> nw.DataFrame[Any]:
    """The frame with its columns in the expected order."""
    if columns is None:
        return frame
    places = {str(name): position for position, name in enumerate(frame.columns)}
    missing = [name for name in columns if name not in places]
    unexpected = [name for name in places if name not in set(columns)]
    if missing or unexpected:
        said = []
        if missing:
            said.append(f"lacks {_listed(missing)}")
        if unexpected:
            said.append(f"has the unexpected {_listed(unexpected)}")
        close = [f"{near[0]!r} for {name!r}" for name in missing if (near := get_close_matches(name, unexpected, n=1))]
        hint = f" Is {', '.join(close)}?" if close else ""
        raise ValueError(f"{argument} {' and '.join(said)}; expected are {_listed(columns)}.{hint}")
    order = [places[name] for name in columns]
    return frame if order == sorted(order) else frame[:, order]


def _missing(argument: str, value: str, row: int, column: str | int) -> str:
    place = f"column {column!r}" if isinstance(column, str) else f"column {column}"
    return f"{argument} is {value} in row {row}, {place}; remove or impute such values first."


def check_finite(rows: Tensor, *, argument: str, first_row: int, names: Sequence[str] | None) -> None:
    """Raise for the first NaN or infinity, naming its row and column."""
    if not rows.is_floating_point() or bool(rows.sum().isfinite()):
        return  # one sum is much cheaper than a mask; an overflowing sum is sorted out below
    bad = (~rows.isfinite()).nonzero()
    if len(bad):
        row, column = (int(place) for place in bad[0])
        value = "NaN" if bool(rows[row, column].isnan()) else "infinite"
        raise ValueError(_missing(argument, value, first_row + row, names[column] if names else column))


def _listed(names: Sequence[str], at_most: int = 12) -> str:
    shown = ", ".join(repr(str(name)) for name in names[:at_most])
    return shown + (f" and {len(names) - at_most} more" if len(names) > at_most else "")
