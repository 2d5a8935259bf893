"""What goes into pages of every kind: numbers as little-endian bytes in base64, exact; labels.

A model in words.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import AnyArray, ArrayLike, ModelLike
from nobsp.arguments import array_of, count

# Numbers as a page reads them: their kind, and their bytes in base64.
Packed: TypeAlias = dict[str, str]
# Something a page reads: what `json` can write.
PageData: TypeAlias = dict[str, Any]
# A word and what is said about it.
Fact: TypeAlias = tuple[str, str]
Names: TypeAlias = Sequence[str] | None

# Whole numbers up to this size are written as such.
_WHOLE = 2**31


class Labels(NamedTuple):
    """One true value per row, where they are known."""

    # Positions among `names`, or numbers where there are no names; None where nothing is known.
    values: AnyArray | None
    names: tuple[str, ...]


def packed(values: ArrayLike, kind: str = "f8") -> Packed:
    """Numbers as they are, in one of the kinds "f8", "f4", "u1", "i1", "u2", "i2", "u4", "i4"."""
    little_endian = np.dtype(kind).newbyteorder("<")
    array = np.ascontiguousarray(values, dtype=little_endian)
    text = base64.b64encode(array.tobytes())
    return {"kind": kind, "bytes": text.decode("ascii")}


def packed_codes(codes: ArrayLike) -> Packed:
    """Whole numbers in the smallest kind that holds them."""
    array = np.asarray(codes, dtype=np.int64)
    low = int(array.min(initial=0))
    high = int(array.max(initial=0))
    # A negative number asks for a kind with a sign, which must hold the largest one too.
    furthest = high if low >= 0 else min(low, -high - 1)
    smallest = np.min_scalar_type(furthest)
    kind = smallest.str[1:] if smallest.itemsize <= 4 else "f8"
    return packed(array, kind)


def packed_column(values: AnyArray) -> Packed:
    """A column of a table, exactly: whole numbers, single and double precision.

    What is not finite is missing (NaN).
    """
    numbers = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    if finite.all() and _are_whole(numbers):
        return packed_codes(numbers)

    numbers = np.where(finite, numbers, np.nan)
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
    is_single = np.array_equal(numbers, single, equal_nan=True)
    return packed(numbers, "f4" if is_single else "f8")


def _are_whole(numbers: NDArray[np.float64]) -> bool:
    """Whether all numbers are whole, and none too large for four bytes."""
    is_small = bool((np.abs(numbers) < _WHOLE).all())
    return is_small and np.array_equal(numbers, np.rint(numbers))


def embedded(data: PageData) -> str:
    r"""Data as JSON that can stand inside a script: no tag, entity or line separator in it."""
    text = json.dumps(
        data,
        ensure_ascii=True,
        allow_nan=False,
        separators=(",", ":"),
    )
    text = text.replace("<", "\\u003c")
    text = text.replace(">", "\\u003e")
    return text.replace("&", "\\u0026")


def known(values: ArrayLike) -> list[Any]:
    """Numbers as a (nested) list with None for what is not finite: JSON has no word for it."""
    numbers = np.asarray(values, dtype=np.float64)
    objects: AnyArray = numbers.astype(object)
    objects[~np.isfinite(numbers)] = None
    return list(objects.tolist())


def packed_labels(labels: Labels, rows: NDArray[np.intp]) -> PageData | None:
    """Labels of some rows."""
    if labels.values is None:
        return None
    if labels.names:
        return {"names": labels.names, "codes": packed_codes(labels.values[rows])}
    return {"values": packed(labels.values[rows])}


def read_labels(
    labels: ArrayLike | None, *, rows: int, names: Sequence[str], classes: bool
) -> Labels:
    """Labels as positions among names, or as numbers where they are no such positions.

    `classes` forbids numbers that are no positions.
    """
    if labels is None:
        return Labels(None, ())

    values = array_of(labels, name="labels")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (rows,):
        raise ValueError(f"labels must be one per row, shape ({rows},), found {values.shape}.")
    if values.dtype.kind not in "biuf":
        return _labels_by_name([str(value) for value in values.tolist()], names)

    numbers = values.astype(np.float64)
    positions = np.arange(max(len(names), 2))
    are_positions = values.size and np.isin(numbers, positions).all()
    if are_positions:
        return Labels(numbers.astype(np.int64), tuple(names) or ("0", "1"))
    if classes:
        some = np.unique(values)[:5].tolist()
        examples = ", ".join(map(str, some))
        raise ValueError(
            f"labels must be class numbers from 0 to {len(names) - 1}, or names; found {examples}."
        )
    return Labels(numbers, ())


def _labels_by_name(texts: Sequence[str], names: Sequence[str]) -> Labels:
    """Labels as positions among all names.

    Names the model does not know are put behind its own, so that every label can be shown.
    """
    in_order = [*names, *sorted(set(texts))]
    every_name = tuple(dict.fromkeys(in_order))
    position = {name: code for code, name in enumerate(every_name)}
    codes = [position[text] for text in texts]
    return Labels(np.array(codes, dtype=np.int64), every_name)


def describe_model(model: ModelLike) -> str:
    """A model in a few words: Sequential with 41 parameters."""
    if hasattr(model, "parameters"):
        inner = getattr(model, "module", model)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return f"{type(inner).__name__} with {count(parameters, 'parameter')}"

    steps = [step for _, step in model.steps] if hasattr(model, "steps") else [model]
    chain = " → ".join(type(step).__name__ for step in steps)
    last = steps[-1]
    weights = [*getattr(last, "coefs_", []), *getattr(last, "intercepts_", [])]
    parameters = sum(int(part.size) for part in weights)
    return f"{chain} with {count(parameters, 'parameter')}" if parameters else chain
