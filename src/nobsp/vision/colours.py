"""Colours of maps, in numpy alone: one for evidence for a class, one for evidence against it, as in the report."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Orange and blue: told apart by people who do not see red and green, and bright enough to shine on a dark picture.
FOR, AGAINST = "#e8590c", "#1f7fd1"
# How strong the colour is where a map is largest, and how bright red, green and blue look, as browsers count it.
OPACITY, LIGHT = 0.7, (0.2126, 0.7152, 0.0722)


def coloured(maps: Array, *, kind: str) -> tuple[Array, Array]:
    """Colours of maps (n, h, w), shape (n, h, w, 3), and how strongly to show them, 0 to 1, shape (n, h, w).

    Args:
        maps: Each is scaled by its own largest (absolute) value.
        kind: "signed" and "account" have both colours; in "positive", all for, and "negative", all against, values
            below zero are shown as zero.

    Example:
        >>> colours, strength = coloured(np.array([[[0.0, 2.0]]]), kind="positive")
        >>> colours.shape, strength.tolist()
        ((1, 1, 2, 3), [[[0.0, 1.0]]])
    """
    shown = maps if kind in ("signed", "account") else np.maximum(maps, 0.0)
    against = (shown < 0) | (kind == "negative")
    strength = np.abs(shown)
    largest = strength.max((1, 2), keepdims=True)
    return np.where(against[..., None], _channels(AGAINST), _channels(FOR)), strength / np.where(
        largest > 0, largest, 1.0
    )


def _channels(colour: str) -> Array:
    return np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
