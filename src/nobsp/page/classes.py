"""What rows truly are, what the model says they are, and by which link logits become probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.page.packing import Packed, packed, packed_codes

LINKS = ("identity", "softmax", "sigmoid", "exp")


@dataclass(frozen=True, eq=False)
class Labels:
    """One true value per row.

    Attributes:
        codes: Positions among the names, or None where labels are numbers.
        names: Names of the classes; empty where labels are numbers.
        values: The numbers, or None where labels are classes.
    """

    codes: NDArray[np.int64] | None
    names: tuple[str, ...]
    values: NDArray[np.float64] | None

    def described(self, kept: NDArray[np.intp]) -> dict[str, Any]:
        """For the page, some rows of it."""
        if self.codes is not None:
            held: Packed = packed_codes(self.codes[kept])
            return {"names": self.names, "codes": held}
        assert self.values is not None
        return {"values": packed(self.values[kept])}


def labels_of(labels: Any, *, rows: int, names: Sequence[str], classes: bool | None) -> Labels | None:
    """Labels as codes of known names, or as numbers.

    Args:
        labels: One per row: class numbers, names, or numbers of a regression; None for none.
        rows: How many there must be.
        names: Names of the classes, by number; may be empty.
        classes: Whether they are classes; None to find out.
    """
    if labels is None:
        return None
    given = labels.detach().cpu().numpy() if hasattr(labels, "detach") else labels
    given = np.asarray(given.to_numpy() if hasattr(given, "to_numpy") else given)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.shape != (rows,):
        raise ValueError(f"labels must be one per row, shape ({rows},), found {given.shape}.")
    if given.dtype.kind in "biuf":
        numbers = given.astype(np.float64)
        whole = bool((numbers == np.rint(numbers)).all()) and given.size > 0
        fits = whole and numbers.min() >= 0 and numbers.max() < max(len(names), 2)
        if classes is False or not fits:
            if classes:
                raise ValueError(
                    f"labels must be class numbers from 0 to {len(names) - 1}, or names; found {_some(given)}."
                )
            return Labels(None, (), numbers)
        shown = tuple(names) or ("0", "1")
        return Labels(numbers.astype(np.int64), shown, None)
    texts = [str(value) for value in given.tolist()]
    # Names the model does not know are put behind its own, so that every label can be shown.
    shown = tuple(dict.fromkeys([*names, *sorted(set(texts))]))
    place = {name: code for code, name in enumerate(shown)}
    return Labels(np.array([place[text] for text in texts], dtype=np.int64), shown, None)


def chosen_link(link: str | None, own: str, *, outputs: int, classes: bool) -> str:
    """The link asked for, else the model's own, else the usual one where labels are classes."""
    if link is not None:
        if link not in LINKS:
            raise ValueError(f"link must be one of {', '.join(map(repr, LINKS))}, found {link!r}.")
        if link == "softmax" and outputs == 1:
            raise ValueError('link is "softmax" but the model has one output; use "sigmoid".')
        return link
    own = {"log_softmax": "softmax"}.get(own, own)
    if own != "identity" or not classes:
        return own
    return "softmax" if outputs > 1 else "sigmoid"


def _some(values: NDArray[Any]) -> str:
    return ", ".join(map(str, np.unique(values)[:5].tolist()))
