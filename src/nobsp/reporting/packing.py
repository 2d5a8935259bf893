"""What goes into pages of every kind: numbers as little-endian bytes in base64, exact; labels; a model in words."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import as_numpy, count

Packed = dict[str, Any]
Fact = tuple[str, str]
Names = Sequence[str] | None


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
    if (
        finite.all()
        and (np.abs(numbers) < 2**31).all()
        and np.array_equal(numbers, np.rint(numbers))
    ):
        return packed_codes(numbers)
    numbers = np.where(finite, numbers, np.nan)
    with np.errstate(over="ignore"):
        single = np.array_equal(numbers, numbers.astype(np.float32), equal_nan=True)
    return packed(numbers, "f4" if single else "f8")


def evenly(rows: int, most: int) -> NDArray[np.intp]:
    """Positions of at most so many rows, spread evenly."""
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).astype(np.intp))


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


# One true value per row, if they are given: positions among names of classes, or numbers where there are no names.
Labels = tuple[NDArray[Any] | None, tuple[str, ...]]


def packed_labels(labels: Labels, kept: NDArray[np.intp]) -> dict[str, Any] | None:
    """Labels of some rows."""
    values, names = labels
    if values is None:
        return None
    return (
        {"names": names, "codes": packed_codes(values[kept])}
        if names
        else {"values": packed(values[kept])}
    )


def read_labels(labels: Any, *, rows: int, names: Sequence[str], classes: bool) -> Labels:
    """Labels as positions among names, or as numbers where they are no such positions; `classes` forbids that."""
    if labels is None:
        return None, ()
    given = as_numpy(labels)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.shape != (rows,):
        raise ValueError(f"labels must be one per row, shape ({rows},), found {given.shape}.")
    if given.dtype.kind in "biuf":
        numbers = given.astype(np.float64)
        if given.size and np.isin(numbers, np.arange(max(len(names), 2))).all():
            return numbers.astype(np.int64), tuple(names) or ("0", "1")
        if classes:
            some = ", ".join(map(str, np.unique(given)[:5].tolist()))
            raise ValueError(
                f"labels must be class numbers from 0 to {len(names) - 1}, or names; found {some}."
            )
        return numbers, ()
    texts = [str(value) for value in given.tolist()]
    # Names the model does not know are put behind its own, so that every label can be shown.
    shown = tuple(dict.fromkeys([*names, *sorted(set(texts))]))
    place = {name: code for code, name in enumerate(shown)}
    return np.array([place[text] for text in texts], dtype=np.int64), shown


def describe_model(model: Any) -> str:
    """A model in a few words: Sequential with 41 parameters."""
    if hasattr(model, "parameters"):
        inner = getattr(model, "module", model)
        return f"{type(inner).__name__} with {count(sum(p.numel() for p in model.parameters()), 'parameter')}"
    steps = [step for _, step in model.steps] if hasattr(model, "steps") else [model]
    sizes = sum(
        w.size for w in [*getattr(steps[-1], "coefs_", []), *getattr(steps[-1], "intercepts_", [])]
    )
    chain = " → ".join(type(step).__name__ for step in steps)
    return f"{chain} with {count(int(sizes), 'parameter')}" if sizes else chain
