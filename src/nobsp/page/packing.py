"""Numbers on their way into a page: little-endian bytes in base64, as small as exactness allows."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Packed = dict[str, Any]

# What page.js can read, smallest first where whole numbers are concerned.
_WHOLE = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32)
_STEPS = 2**32 - 1


def packed(values: Any, kind: str = "f8") -> Packed:
    """Numbers as they are, in one of the kinds "f8", "f4", "u1", "i1", "u2", "i2", "u4", "i4".

    Example:
        >>> packed([1, 2], "u1")
        {'kind': 'u1', 'bytes': 'AQI='}
    """
    array = np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<"))
    return {"kind": kind, "bytes": base64.b64encode(array.tobytes()).decode("ascii")}


def packed_codes(codes: Any) -> Packed:
    """Whole numbers in the smallest kind that holds them.

    Example:
        >>> packed_codes([0, 300])["kind"]
        'u2'
    """
    array = np.asarray(codes, dtype=np.int64)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for kind in _WHOLE:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return packed(array, np.dtype(kind).str[1:])
    return packed(array, "f8")


def packed_column(values: NDArray[Any]) -> Packed:
    """A column of a table: exact where few bytes suffice, else to less than 2⁻³² of its range.

    Single precision would lose the digits of years and timestamps, which stand far from zero.

    Example:
        >>> packed_column(np.array([3.0, 4.0]))["kind"], packed_column(np.array([0.1, 0.7]))["kind"]
        ('u1', 'u4')
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.size == 0:
        return packed(numbers)
    low, high = float(numbers.min()), float(numbers.max())
    if max(abs(low), abs(high)) < 2**31 and np.array_equal(numbers, np.rint(numbers)):
        return packed_codes(numbers)
    if np.array_equal(numbers, numbers.astype(np.float32)):
        return packed(numbers, "f4")
    span = high - low
    if not np.isfinite(span) or span <= 0 or np.spacing(max(abs(low), abs(high))) * _STEPS > span:
        return packed(numbers)
    places = np.rint((numbers - low) / span * _STEPS)
    return packed(places, "u4") | {"low": low, "high": high}


def embedded(data: Any) -> str:
    r"""Data as JSON that can stand inside a script element: no tag, entity or line separator survives in it.

    Example:
        >>> print(embedded({"name": "</script>"}))
        {"name":"\u003c/script\u003e"}
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def known(values: Any) -> list[Any]:
    """Numbers as a (nested) list in which what is not finite is None, as JSON has no word for it.

    Example:
        >>> known([1.5, float("nan")])
        [1.5, None]
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim > 1:
        return [known(part) for part in array]
    return [float(value) if np.isfinite(value) else None for value in array.tolist()]
