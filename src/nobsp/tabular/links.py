"""What a model applies to its outputs, and contributions carried over to the scale behind it."""

from __future__ import annotations

import math

import numpy as np

from nobsp._typing import FloatArray
from nobsp.numerics import gauss_legendre

# Nodes of the rule that carries an account over; what more would mend is in the residual.
_MOST_NODES = 256
# With so many digits' worth of nodes, exp(−2·18) = 2e-16, the rule is exact to rounding.
_EXACT = 18.0


def apply_link(outputs: FloatArray, link: str) -> FloatArray:
    """Probabilities, or means where the link is exp, of outputs (rows, outputs)."""
    if link == "sigmoid":
        # Overflows nowhere.
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * outputs)))
    if link == "exp":
        return np.asarray(np.exp(outputs))

    shifted = np.exp(outputs - outputs.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


def carry_over(values: FloatArray, start: FloatArray, stop: FloatArray, link: str) -> FloatArray:
    """Contributions times the link's mean Jacobian on the line from `start` to `stop`.

    By Gauss and Legendre's rule. For a softmax Σ_k ∂p_c/∂y_k g_k = p_c (g_c − Σ_k p_k g_k).
    """
    change = stop - start
    nodes, weights = gauss_legendre(_count_nodes(change, link))

    carried = np.zeros_like(values)
    for node, weight in zip(nodes, weights, strict=True):
        probabilities = apply_link(start + node * change, link)[:, None]
        if link == "softmax":
            slopes = values - (values * probabilities).sum(2, keepdims=True)
        elif link == "exp":
            slopes = values
        else:
            slopes = values * (1.0 - probabilities)
        carried += weight * probabilities * slopes
    return carried


def _count_nodes(change: FloatArray, link: str) -> int:
    """Nodes that make the rule exact to rounding, as far as there are enough.

    Sigmoid and softmax are analytic up to a distance of π over the change: the error with n nodes is
    exp(−2 n asinh(2π / change)).
    """
    finite = change[np.isfinite(change).all(1)]
    largest = 1.0
    if finite.size:
        sizes = np.ptp(finite, axis=1) if link == "softmax" else np.abs(finite)
        largest = max(float(sizes.max()), 1.0)

    nodes = math.ceil(_EXACT / math.asinh(2 * math.pi / largest))
    return min(_MOST_NODES, nodes)
