"""Numerical rules that several subpackages need; importing them imports nothing but numpy."""

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


def clopper_pearson(hits: float, trials: float, confidence: float) -> tuple[float, float]:
    """The exact two-sided interval of a share, from how often it came up.

    Of rows with weights or in groups both counts are those of as many independent rows as tell as
    much, and need not be whole (Korn and Graubard, 1998).

    Example:
        >>> [round(end, 3) for end in clopper_pearson(0, 30, 0.95)]
        [0.0, 0.116]
    """
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, trials - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high
