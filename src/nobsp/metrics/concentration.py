"""Concentration of an attribution: two measures that both go by the name of sparseness."""

from __future__ import annotations

from typing import Any

import numpy as np

from nobsp.metrics.arrays import Array, as_array, undefined


def sparseness(attributions: Any) -> Array:
    """The paper's formula, 1 - |a|₁ / (√n |a|₂): 0 if all n absolute values are equal, 1 - 1/√n if one is not zero.

    This is not what Quantus calls sparseness; see `gini_sparseness`. Neither says whether an explanation is right.

    Args:
        attributions: One explanation a row; further dimensions are flattened.

    Returns:
        One number a row; nan for rows of zeros.

    Raises:
        ValueError: If rows have fewer than two values.

    Warns:
        UndefinedScoreWarning: If some row is zero throughout.

    Example:
        >>> from nobsp.metrics import sparseness
        >>> sparseness([[1.0, 1.0, -1.0, 1.0], [0.0, 3.0, 0.0, 0.0]])
        array([0. , 0.5])
    """
    values = _magnitudes(attributions)
    with np.errstate(invalid="ignore"):
        return np.asarray(1.0 - values.sum(axis=1) / np.sqrt(values.shape[1] * (values**2).sum(axis=1)))


def gini_sparseness(attributions: Any) -> Array:
    """The Gini index of the absolute values, which Quantus calls sparseness.

    It is 0 if all n absolute values are equal and 1 - 1/n if one is not zero.

    Args:
        attributions: One explanation a row; further dimensions are flattened.

    Returns:
        One number a row; nan for rows of zeros.

    Raises:
        ValueError: If rows have fewer than two values.

    Warns:
        UndefinedScoreWarning: If some row is zero throughout.

    Example:
        >>> from nobsp.metrics import gini_sparseness
        >>> gini_sparseness([[1.0, 1.0, -1.0, 1.0], [0.0, 3.0, 0.0, 0.0]])
        array([0.  , 0.75])
    """
    values = _magnitudes(attributions)
    count = values.shape[1]
    weights = 2 * np.arange(1, count + 1) - count - 1
    with np.errstate(invalid="ignore"):
        return np.asarray((np.sort(values, axis=1) * weights).sum(axis=1) / (count * values.sum(axis=1)))


def _magnitudes(attributions: Any) -> Array:
    """Absolute values of each row as shares of its largest; nan for rows of zeros."""
    values = as_array(attributions, "attributions")
    if values.ndim < 2:
        raise ValueError(f"attributions has the shape {values.shape}; pass one explanation a row.")
    values = np.abs(values.reshape(len(values), -1))
    if values.shape[1] < 2:
        raise ValueError("attributions have one value a row; concentration needs at least two.")
    largest = values.max(axis=1, keepdims=True)
    zeros = int((largest == 0).sum())
    if zeros:
        undefined(f"{zeros} of {len(values)} rows are zero throughout, so their sparseness is nan.", depth=2)
    # Both measures ignore scale; dividing by the largest value keeps squares of tiny ones from vanishing.
    with np.errstate(invalid="ignore"):
        return np.asarray(values / largest)
