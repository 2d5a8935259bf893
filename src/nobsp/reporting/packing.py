"""Numbers on their way into a page: little-endian bytes in base64, exact, and as small as that allows."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Packed = dict[str, Any]


def packed(values: Any, kind: str = "f8") -> Packed:
    """Numbers as they are, in one of the kinds "f8", "f4", "u1", "i1", "u2", "i2", "u4", "i4"."""
    array = np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<"))
    return {"kind": kind, "bytes": base64.b64encode(array.tobytes()).decode("ascii")}


def packed_codes(codes: Any) -> Packed:
    """Whole numbers in the smallest kind that holds them."""
    array = np.asarray(codes, dtype=np.int64)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    kind = np.min_scalar_type(high if low >= 0 else min(low, -high - 1))
    return packed(array, kind.str[1:] if kind.itemsize <= 4 else "f8")


def packed_column(values: NDArray[Any]) -> Packed:
    """A column of a table, exactly: whole numbers, single and double precision. What is not finite is missing (NaN)."""
    numbers = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    if finite.all() and (np.abs(numbers) < 2**31).all() and np.array_equal(numbers, np.rint(numbers)):
        return packed_codes(numbers)
    numbers = np.where(finite, numbers, np.nan)
    with np.errstate(over="ignore"):
        single = np.array_equal(numbers, numbers.astype(np.float32), equal_nan=True)
    return packed(numbers, "f4" if single else "f8")


def evenly(count: int, most: int) -> NDArray[np.intp]:
    """Positions of at most so many rows, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.intp))


def embedded(data: Any) -> str:
    r"""Data as JSON that can stand inside a script element: no tag, entity or line separator survives in it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def known(values: Any) -> list[Any]:
    """Numbers as a (nested) list in which what is not finite is None, as JSON has no word for it."""
    numbers = np.asarray(values, dtype=np.float64)
    found: Any = numbers.astype(object)
    found[~np.isfinite(numbers)] = None
    return list(found.tolist())
