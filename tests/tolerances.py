"""How far apart two results may lie that would be equal if nothing were rounded.

Another batch shape, number of threads, process or processor adds the same numbers up in another order. A sum of n
numbers then moves by n·eps of the size of what is summed at most, and solving a system multiplies this by the
condition of its matrix. Every bound here is of this form

    operations · condition · eps · size

and none was read off a machine. Numbers that are copied (stored and read back, cut out, left alone) are compared
bit by bit instead, and so are counts, labels and orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# The longest way of a number through a network of the tests: some ten sums of a hundred products each.
OPERATIONS = 1_000
# Of a Gram matrix of some hundred columns with the smallest ridge that is taken by default: trace / λ = 100 / 1e-4.
CONDITION = 1e6


def rounding(
    *, operations: float = OPERATIONS, condition: float = 1.0, dtype: Any = np.float64
) -> float:
    """A bound as a share of the size of the numbers that are added up."""
    return operations * condition * float(np.finfo(dtype).eps)


# What comes out of a forward pass, and sums, means and differences of such.
PASS = rounding()
# The same where the network works in single precision.
SINGLE = rounding(dtype=np.float32)
# Sums of several such, and what is left where they are ten times as large and cancel.
SUMS = rounding(operations=10 * OPERATIONS)
# Coefficients that were solved for: along weak directions they carry the whole condition of the Gram matrix.
COEFFICIENTS = rounding(condition=CONDITION)
# What coefficients make of rows: directions in which coefficients are uncertain are weak in the rows as well, and
# the condition of the rows is the root of that of their products.
CONTRIBUTIONS = rounding(condition=CONDITION**0.5)


def assert_same_to_rounding(
    found: Any, expected: Any, *, within: float = PASS, size: float | None = None, what: str = ""
) -> None:
    """Fails unless both have one shape and differ by no more than a share of their size; integers must be equal.

    Args:
        found: An array, tensor or number.
        expected: What it would be without rounding.
        within: The share, one of the names above or `rounding(...)`.
        size: How large the numbers are that were added up, where they cancel: the largest expected one otherwise.
        what: What is compared, for the message.
    """
    found, expected = _array(found), _array(expected)
    if expected.dtype.kind not in "fc" and found.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    assert found.shape == expected.shape, f"{what} has shape {found.shape}, not {expected.shape}"
    if size is None:
        size = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=within * size, err_msg=what)


def assert_all_same_to_rounding(
    found: Mapping[str, Any], expected: Mapping[str, Any], **bound: Any
) -> None:
    """Every entry of two mappings with the same keys, each by its own size."""
    assert found.keys() == expected.keys()
    for name in expected:
        assert_same_to_rounding(found[name], expected[name], what=name, **bound)


def _array(given: Any) -> np.ndarray:
    return given.detach().cpu().numpy() if hasattr(given, "detach") else np.asarray(given)
