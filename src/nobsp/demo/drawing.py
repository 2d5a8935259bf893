"""Small drawings for the first page: curves and bars as SVG, images as data addresses."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nobsp.page.pictures import png

Array = NDArray[np.float64]
WIDTH, HEIGHT = 120.0, 84.0


def path(x: Array, y: Array, *, low: float, high: float) -> str:
    """A line through points, in the coordinates of a small drawing.

    Args:
        x: Ascending.
        y: One value per x.
        low: Value at the lower edge.
        high: Value at the upper edge.

    Example:
        >>> path(np.array([0.0, 1.0]), np.array([0.0, 2.0]), low=0.0, high=2.0)
        'M0.0 84.0 L120.0 0.0'
    """
    across = (x - x[0]) / (x[-1] - x[0]) * WIDTH
    down = (high - y) / (high - low) * HEIGHT
    return "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, down, strict=True))


def limits(curves: Sequence[Array]) -> tuple[float, float]:
    """Lower and upper edge for several curves, with some room.

    Example:
        >>> limits([np.array([0.0, 10.0]), np.array([5.0])])
        (-1.0, 11.0)
    """
    low, high = min(float(curve.min()) for curve in curves), max(float(curve.max()) for curve in curves)
    room = 0.1 * (high - low)
    return low - room, high + room


def address(picture: NDArray[np.float32]) -> str:
    """An image (height, width, 3) from 0 to 1 as an address that holds the image itself."""
    return f"data:image/png;base64,{base64.b64encode(png(np.clip(picture, 0.0, 1.0))).decode('ascii')}"
