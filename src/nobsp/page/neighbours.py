"""What an index found, as a page shows it; known by what it has, not by where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.page.packing import known, packed, packed_codes


def hits_for_page(hits: Any, kept: NDArray[np.intp], *, rows: int, names: Sequence[str]) -> dict[str, Any]:
    """Neighbours of some rows.

    Args:
        hits: Has `indices` and `distances` (n, k); may have `labels` (n, k), `predicted`, `purity` and `confidence`
            (n,), and `space`.
        kept: Which rows.
        rows: How many rows there must be.
        names: Names of the classes by number; may be empty.
    """
    indices = np.asarray(hits.indices)
    if indices.ndim != 2 or len(indices) != rows:
        raise ValueError(f"hits are of {len(indices)} rows but there are {rows}; query the index with the same ones.")
    labels, predicted = getattr(hits, "labels", None), getattr(hits, "predicted", None)
    space = getattr(hits, "space", "")
    told: dict[str, Any] = {
        "count": int(indices.shape[1]),
        "indices": packed_codes(indices[kept]),
        "distances": packed(np.asarray(hits.distances, dtype=np.float64)[kept], "f4"),
        "purity": _optional(hits, "purity", kept),
        "confidence": _optional(hits, "confidence", kept),
        "names": list(names),
        "space": space if space in ("contributions", "activations") else "",
        "labels": None,
        "predicted": None,
        "values": None,
    }
    if labels is None:
        return told
    if _are_measurements(labels):
        return told | {"values": packed(np.asarray(labels, dtype=np.float64)[kept], "f4")}
    given = {"labels": labels} | ({} if predicted is None else {"predicted": predicted})
    texts = {
        key: [name_of(value, names) for value in np.asarray(part)[kept].ravel().tolist()] for key, part in given.items()
    }
    shown = list(dict.fromkeys([*names, *sorted({text for part in texts.values() for text in part})]))
    place = {name: code for code, name in enumerate(shown)}
    return told | {"names": shown} | {key: packed_codes([place[t] for t in part]) for key, part in texts.items()}


def _optional(hits: Any, name: str, kept: NDArray[np.intp]) -> list[Any] | None:
    try:
        values = getattr(hits, name, None)
    except ValueError:  # purity of a regression, or of an index without labels
        return None
    found = None if values is None else np.asarray(values, dtype=np.float64)[kept]
    return None if found is None or np.isnan(found).all() else known(found)


def _are_measurements(labels: Any) -> bool:
    array = np.asarray(labels)
    return array.dtype.kind == "f" and not bool((array == np.rint(array)).all())


def name_of(value: Any, names: Sequence[str]) -> str:
    """How a label is written: whole numbers by the names of classes, where there are any."""
    if isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer():
        return names[int(value)] if 0 <= value < len(names) else str(int(value))
    return str(value)
