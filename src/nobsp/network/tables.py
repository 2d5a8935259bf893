"""One table in, numeric rows out: arrays, tensors and frames behind a single face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import narwhals as nw
import numpy as np
import torch
from torch import Tensor

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
