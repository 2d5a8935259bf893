"""Rules of numerical mathematics that several rooms need; imports numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import FloatArray


def evenly_spaced(count: int, most: int) -> NDArray[np.intp]:
    """Positions of all of `count` rows, or of `most` evenly spaced ones with both ends.

    Example:
        >>> evenly_spaced(5, most=3).tolist()
        [0, 2, 4]
        >>> evenly_spaced(2, most=3).tolist()
        [0, 1]
    """
    n_positions = min(count, most)
    positions = np.linspace(0, count - 1, n_positions)
    return positions.astype(np.intp)


def gauss_legendre(points: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of Gauss and Legendre's rule on the interval from 0 to 1.

    Example:
        >>> nodes, weights = gauss_legendre(3)
        >>> round(float((weights * nodes**4).sum()), 12)
        0.2
    """
    # The rule of numpy is on the interval from −1 to 1.
    nodes, weights = np.polynomial.legendre.leggauss(points)
    nodes = (nodes + 1.0) / 2.0
    weights = weights / 2.0
    return nodes, weights
