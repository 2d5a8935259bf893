"""Colours for maps: a sequential and a diverging scale, in numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Dark violet over red to light yellow; each lighter than the one before, so that the order also shows in grey.
_SEQUENTIAL = np.array(
    [
        [0.05, 0.03, 0.25],
        [0.35, 0.06, 0.43],
        [0.65, 0.15, 0.38],
        [0.88, 0.32, 0.22],
        [0.98, 0.60, 0.12],
        [0.99, 0.95, 0.65],
    ]
)
# Blue over white to red: told apart by people who do not see red and green.
_DIVERGING = np.array(
    [
        [0.13, 0.27, 0.60],
        [0.45, 0.65, 0.85],
        [0.97, 0.97, 0.97],
        [0.93, 0.55, 0.43],
        [0.65, 0.06, 0.15],
    ]
)


def coloured(maps: Array, *, diverging: bool) -> tuple[Array, Array]:
    """Colours of maps (n, h, w), shape (n, h, w, 3), and how strongly to show them, 0 to 1, shape (n, h, w).

    Args:
        maps: Each is scaled by its own largest (absolute) value.
        diverging: Whether zero is in the middle of the scale; else values below zero are shown as zero.

    Example:
        >>> colours, strength = coloured(np.array([[[0.0, 2.0]]]), diverging=False)
        >>> colours.shape, strength.tolist()
        ((1, 1, 2, 3), [[[0.0, 1.0]]])
    """
    shown = maps if diverging else np.maximum(maps, 0.0)
    largest = np.abs(shown).max((1, 2), keepdims=True)
    scaled = shown / np.where(largest > 0, largest, 1.0)
    position = (scaled + 1) / 2 if diverging else scaled
    scale = _DIVERGING if diverging else _SEQUENTIAL
    stops = np.linspace(0.0, 1.0, len(scale))
    colours = np.stack([np.interp(position, stops, scale[:, channel]) for channel in range(3)], axis=-1)
    return colours, np.abs(scaled)
