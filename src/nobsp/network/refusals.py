"""Rows that a preprocessing refuses: which row it is, and which column in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np

from nobsp.arguments import quote

# What steps raise about values that they do not take.
REFUSALS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
# More columns take longer to try than a reader waits for an error.
_MOST_TRIED = 500
# Rows that are tried as an example of what passes.
_EXAMPLES = 8


@dataclass(frozen=True)
class _Blamed:
    """A row that is refused, and the column that makes it so, where it is a single one."""

    row: int
    column: str | int | None = None
    value: object = None


def wrapped_refusal(
    failure: Exception,
    encode: Callable[[Any], Any],
    rows: Any,
    *,
    argument: str,
    first_row: int | None,
    hint: str = "",
) -> Exception:
    """An error about rows that a preprocessing refuses, to be raised from the failure itself.

    It is a TypeError where the failure is one, else a ValueError.

    Args:
        failure: What the preprocessing raised.
        encode: The preprocessing.
        rows: The rows that it refused, a frame or an array.
        argument: What the caller calls them.
        first_row: Position of the first of them in what was passed; None where they are a sample.
        hint: What else is known of them.
    """
    kind = TypeError if isinstance(failure, TypeError) else ValueError
    where = _describe(_find_blamed(encode, rows), first_row)
    name = "" if isinstance(failure, TypeError | ValueError) else f"{type(failure).__name__}: "
    said = f"{name}{failure}"
    reason = f"{where} ({said})" if where else f": {said}"
    return kind(f"{argument} does not pass the model's preprocessing{reason}{hint}")


def gap_made(
    encode: Callable[[Any], Any], rows: Any, *, value: str, argument: str, first_row: int
) -> str:
    """A message about the first value of which a preprocessing makes NaN or an infinite number.

    It is empty where no single column makes the row so.
    """

    def encode_to_finite(some: Any) -> None:
        with np.errstate(all="ignore"):
            encoded = np.asarray(encode(some), dtype=np.float64)
        if not np.isfinite(encoded).all():
            raise ValueError(value)

    blamed = _find_blamed(encode_to_finite, rows)
    if blamed is None or blamed.column is None:
        return ""
    where = _describe(blamed, first_row)
    return f"{argument} does not pass the model's preprocessing{where}, of which it makes {value}."


def _describe(blamed: _Blamed | None, first_row: int | None) -> str:
    """The row and the column that are refused, in words; empty where neither is known."""
    if blamed is None:
        return ""
    in_row = "" if first_row is None else f" in row {first_row + blamed.row}"
    if blamed.column is None:
        return in_row
    return f"{in_row}: column {blamed.column!r} is {quote(blamed.value)}"


def _find_blamed(encode: Callable[[Any], Any], rows: Any) -> _Blamed | None:
    """The first row that is refused by itself, and its column whose value another row mends."""
    frame = nw.from_native(rows, eager_only=True, pass_through=True)
    is_frame = isinstance(frame, nw.DataFrame)

    def passes(table: Any) -> bool:
        try:
            encode(table.to_native() if is_frame else table)
        except Exception:  # noqa: BLE001 - fewer rows may fail in other ways than all of them did
            return False
        return True

    table = frame if is_frame else np.asarray(rows)
    row = _first_refused(passes, table)
    if row is None:
        return None
    n_rows = len(table)
    nearby = [*range(max(row - _EXAMPLES, 0), row), *range(row + 1, row + _EXAMPLES)]
    for example in [position for position in nearby if position < n_rows][:_EXAMPLES]:
        if passes(table[example : example + 1]):
            return _find_column(passes, table[row : row + 1], table[example : example + 1], row)
    # Where none of them passes, it is not about this row.
    return None


def _first_refused(passes: Callable[[Any], bool], table: Any) -> int | None:
    """Position of a row that is refused by itself, found by halving; None where none is."""
    start, stop = 0, len(table)
    while stop - start > 1:
        middle = (start + stop) // 2
        if not passes(table[start:middle]):
            stop = middle
        elif not passes(table[middle:stop]):
            start = middle
        else:
            return None
    return start if stop > start else None


def _find_column(passes: Callable[[Any], bool], refused: Any, example: Any, row: int) -> _Blamed:
    """The column that a row has to take from another one to pass."""
    names: Sequence[str | int] = (
        refused.columns if isinstance(refused, nw.DataFrame) else range(refused.shape[1])
    )
    for position, name in enumerate(names[:_MOST_TRIED]):
        if isinstance(refused, nw.DataFrame):
            # It has the column's own name, which need not be a text.
            mended = refused.with_columns(example[:, position])
            value = refused[:, position].to_list()[0]
        else:
            mended = refused.copy()
            mended[:, position] = example[:, position]
            value = refused[:, position].tolist()[0]
        if passes(mended):
            return _Blamed(row, name, value)
    return _Blamed(row)
