"""Which rows travel with a page."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def evenly(count: int, most: int) -> NDArray[np.intp]:
    """Positions of at most so many rows, spread evenly.

    Example:
        >>> evenly(10, 3).tolist(), evenly(2, 5).tolist()
        ([0, 4, 9], [0, 1])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.intp))
