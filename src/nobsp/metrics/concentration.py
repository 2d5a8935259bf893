"""How concentrated explanations are on few values."""

from __future__ import annotations

import numpy as np

from nobsp._typing import ArrayLike, FloatArray
from nobsp.metrics.arrays import as_array, undefined


def sparseness(attributions: ArrayLike) -> FloatArray:
    """The paper's sparseness of each row, 1 - |a|₁ / (√n |a|₂).

    It is 0 if all n absolute values are equal and 1 - 1/√n if only one is not zero. This is not
    what Quantus calls sparseness; see `gini_sparseness`. Neither says whether an explanation is
    right.

    Args:
        attributions: One explanation per row; further dimensions are flattened.

    Returns:
        One number per row; nan for rows of zeros.

    Example:
        >>> from nobsp.metrics import sparseness
        >>> sparseness([[1.0, 1.0, -1.0, 1.0], [0.0, 3.0, 0.0, 0.0]])
        array([0. , 0.5])
    """
    values = _relative_sizes(attributions)
    sums = values.sum(axis=1)
    squares = (values**2).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(1.0 - sums / np.sqrt(values.shape[1] * squares))


def gini_sparseness(attributions: ArrayLike) -> FloatArray:
    """The Gini index of the absolute values of each row, which Quantus calls sparseness.

    It is 0 if all n are equal and 1 - 1/n if only one is not zero. Arguments, results and errors
    are those of `sparseness`.

    Example:
        >>> from nobsp.metrics import gini_sparseness
        >>> gini_sparseness([[1.0, 1.0, -1.0, 1.0], [0.0, 3.0, 0.0, 0.0]])
        array([0.  , 0.75])
    """
    values = _relative_sizes(attributions)
    n_values = values.shape[1]
    weights = 2 * np.arange(1, n_values + 1) - n_values - 1
    ranked = np.sort(values, axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray((ranked * weights).sum(axis=1) / (n_values * values.sum(axis=1)))


def _relative_sizes(attributions: ArrayLike) -> FloatArray:
    """Absolute values of each row as shares of its largest; nan for rows of zeros."""
    values = as_array(attributions, "attributions")
    if values.ndim < 2:
        raise ValueError(
            f"attributions has the shape {values.shape}; pass one explanation per row."
        )
    sizes = np.abs(values.reshape(len(values), -1))
    if sizes.shape[1] < 2:
        raise ValueError("attributions have one value per row; concentration needs at least two.")

    largest = sizes.max(axis=1, keepdims=True)
    zeros = int((largest == 0).sum())
    if zeros:
        undefined(
            f"{zeros} of {len(sizes)} rows are zero throughout, so their sparseness is nan.",
            depth=2,
        )

    # Both measures ignore scale; dividing by the largest value keeps squares of tiny ones from
    # vanishing.
    with np.errstate(invalid="ignore"):
        return np.asarray(sizes / largest)
