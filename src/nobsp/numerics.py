"""Arrays and rules of numerical mathematics that several rooms need; imports numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import AnyArray, ArrayLike, FloatArray

# An output whose spread is below this share of its size is constant up to the rounding of a forward
# pass.
CONSTANT = 1e-12


def as_numpy(values: ArrayLike) -> AnyArray:
    """An array from anything numpy understands, or from a tensor on any device.

    Tensors are recognised by a method of theirs, so that torch need not be imported.
    """
    if not hasattr(values, "detach"):
        return np.asarray(values)

    tensor = values.detach().cpu()
    if "bfloat16" in str(tensor.dtype) or "float8" in str(tensor.dtype):
        # numpy has no such types.
        tensor = tensor.float()
    return np.asarray(tensor)


def evenly_spaced(count: int, most: int) -> NDArray[np.intp]:
    """Positions of all of `count` rows, or of `most` evenly spaced ones with both ends.

    Example:
        >>> evenly_spaced(5, most=3).tolist()
        [0, 2, 4]
        >>> evenly_spaced(2, most=3).tolist()
        [0, 1]
    """
    return np.linspace(0, count - 1, min(count, most)).astype(np.intp)


def gauss_legendre(points: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of Gauss and Legendre's rule on the interval from 0 to 1.

    Example:
        >>> nodes, weights = gauss_legendre(3)
        >>> round(float((weights * nodes**4).sum()), 12)
        0.2
    """
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return (nodes + 1.0) / 2.0, weights / 2.0


def r_squared(
    residuals: FloatArray, outputs: FloatArray, weights: FloatArray | None = None
) -> FloatArray:
    """Share of each column's variance that residuals leave explained, rows weighted where weights are given.

    Nan where it is constant up to rounding.

    Example:
        >>> r_squared(np.array([[0.0], [0.0]]), np.array([[1.0], [2.0]])).tolist()
        [1.0]
    """
    if len(outputs) == 0:
        return np.full(outputs.shape[1], np.nan)

    centred = outputs - np.average(outputs, axis=0, weights=weights)
    total = np.average(centred**2, axis=0, weights=weights)
    varies = total > (CONSTANT * np.abs(outputs).max(axis=0)) ** 2
    unexplained = np.average(residuals**2, axis=0, weights=weights)

    explained = 1.0 - unexplained / np.where(varies, total, 1.0)
    return np.where(varies, explained, np.nan)
