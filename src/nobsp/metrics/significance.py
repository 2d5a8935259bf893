"""Is one method better than another on the same cases? Bootstrap intervals, sign-flip tests, Holm's correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from nobsp.metrics.arrays import Array, as_array, expect_rows, expect_same_shape

RESAMPLES = 10_000
EXACT_UP_TO = 20
# Random numbers held at once: 32 MB of them.
_AT_ONCE = 4_000_000

Alternative = Literal["two-sided", "greater", "less"]


@dataclass(frozen=True)
class Interval:
    """A mean difference and where it lies.

    Attributes:
        difference: Mean of first minus second.
        low: Lower end of the interval.
        high: Upper end.
        confidence: How much of the bootstrap distribution lies between them.
        resamples: How many resamples.
        pairs: How many pairs.
    """

    difference: float
    low: float
    high: float
    confidence: float
    resamples: int
    pairs: int

    def __repr__(self) -> str:
        return (
            f"Interval({self.difference:+.4g}, {self.confidence:.0%} in [{self.low:+.4g}, {self.high:+.4g}], "
            f"{self.pairs} pairs)"
        )


def paired_bootstrap(
    first: Any,
    second: Any = None,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of the mean difference of paired scores.

    Args:
        first: Scores of one method, one a case.
        second: Scores of the other on the same cases; `first` is taken as the differences if None.
        confidence: Between 0 and 1.
        resamples: How many times the cases are drawn again.
        seed: Decides the draws.

    Returns:
        The mean difference with its interval.

    Raises:
        ValueError: If the scores do not pair up or there are fewer than two.

    Example:
        >>> from nobsp.metrics import paired_bootstrap
        >>> paired_bootstrap([0.62, 0.71, 0.55, 0.68], [0.60, 0.66, 0.56, 0.61])
        Interval(+0.0325, 95% in [+0.005, +0.06], 4 pairs)
    """
    differences = _differences(first, second)
    expect_rows(len(differences), "first", least=2, why="a bootstrap")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; pass a number between 0 and 1, such as 0.95.")
    _expect_resamples(resamples)
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    block = max(1, _AT_ONCE // len(differences))
    for start in range(0, resamples, block):
        stop = min(start + block, resamples)
        drawn = rng.integers(len(differences), size=(stop - start, len(differences)))
        means[start:stop] = differences[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(differences.mean()), float(low), float(high), confidence, resamples, len(differences))


@dataclass(frozen=True)
class SignFlip:
    """Outcome of a sign-flip test.

    Attributes:
        difference: Mean of first minus second.
        p_value: Share of sign patterns at least as extreme.
        exact: Whether every pattern was tried.
        flips: How many patterns were tried.
        pairs: How many pairs.
    """

    difference: float
    p_value: float
    exact: bool
    flips: int
    pairs: int

    def __repr__(self) -> str:
        how = "exact" if self.exact else f"{self.flips:,} random flips"
        return f"SignFlip({self.difference:+.4g}, p={self.p_value:.4g}, {how}, {self.pairs} pairs)"


def sign_flip_test(
    first: Any,
    second: Any = None,
    *,
    alternative: Alternative = "two-sided",
    resamples: int = RESAMPLES,
    exact_up_to: int = EXACT_UP_TO,
    seed: int = 0,
) -> SignFlip:
    """Could the mean difference of paired scores be the luck of which score was called first?

    If the methods do not differ, each difference may as well have the other sign. All 2ⁿ sign patterns are tried for
    few pairs. For more, patterns are drawn at random and the observed one is counted in,
    p = (extreme ones + 1) / (flips + 1), which keeps the test valid and p above zero.

    Args:
        first: Scores of one method, one a case.
        second: Scores of the other on the same cases; `first` is taken as the differences if None.
        alternative: "greater" asks whether first is above second, "less" whether it is below.
        resamples: How many random patterns.
        exact_up_to: Up to how many pairs all patterns are tried (at most 25).
        seed: Decides the random patterns.

    Returns:
        The mean difference with its p-value.

    Raises:
        ValueError: If the scores do not pair up.

    Example:
        >>> from nobsp.metrics import sign_flip_test
        >>> sign_flip_test([0.62, 0.71, 0.55, 0.68], [0.60, 0.66, 0.56, 0.61])
        SignFlip(+0.0325, p=0.25, exact, 4 pairs)
    """
    differences = _differences(first, second)
    if alternative not in ("two-sided", "greater", "less"):
        raise ValueError(f"alternative should be 'two-sided', 'greater' or 'less', found {alternative!r}.")
    if not 0 <= exact_up_to <= 25:
        raise ValueError(f"exact_up_to is {exact_up_to}; pass 0 to 25, since 2**25 sums are kept in memory.")
    _expect_resamples(resamples)
    count, observed = len(differences), differences.sum()
    # Sums that are equal in exact arithmetic must not be told apart by the order of their additions.
    slack = 1e-12 * np.abs(differences).sum()
    exact = count <= exact_up_to
    if exact:
        extreme, flips = _extreme(_all_sums(differences), observed, slack, alternative), 2**count
        p_value = extreme / flips
    else:
        extreme, flips = 0, resamples
        rng = np.random.default_rng(seed)
        block = max(1, _AT_ONCE // count)
        for start in range(0, resamples, block):
            size = min(block, resamples - start)
            signs = rng.integers(2, size=(size, count), dtype=np.int8)
            # Σ ±d = 2 Σ over the positive ones − Σ d
            sums = 2 * (signs @ differences) - observed
            extreme += _extreme(sums, observed, slack, alternative)
        p_value = (extreme + 1) / (resamples + 1)
    return SignFlip(float(differences.mean()), float(p_value), exact, flips, count)


def _all_sums(differences: Array) -> Array:
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums - difference, sums + difference])
    return sums


def _extreme(sums: Array, observed: float, slack: float, alternative: Alternative) -> int:
    if alternative == "greater":
        return int((sums >= observed - slack).sum())
    if alternative == "less":
        return int((sums <= observed + slack).sum())
    return int((np.abs(sums) >= abs(observed) - slack).sum())


@overload
def holm(p_values: Mapping[str, float]) -> dict[str, float]: ...
@overload
def holm(p_values: Sequence[float] | Array) -> Array: ...
def holm(p_values: Mapping[str, float] | Sequence[float] | Array) -> dict[str, float] | Array:
    """Holm's correction for several tests: p-values that may be read as if there were one test.

    The smallest of m is multiplied by m, the next by m - 1, and so on; none is below the one before it or above 1.

    Args:
        p_values: One a test, in a list or by name.

    Returns:
        The corrected ones in the same order, or under the same names.

    Raises:
        ValueError: If one is not between 0 and 1.

    Example:
        >>> from nobsp.metrics import holm
        >>> holm({"cifar10": 0.25, "tiny": 0.01, "derma": 0.04})
        {'cifar10': 0.25, 'tiny': 0.03, 'derma': 0.08}
    """
    if isinstance(p_values, Mapping):
        corrected = holm(as_array(list(p_values.values()), "p_values", ndim=1))
        return dict(zip(p_values, corrected.tolist(), strict=True))
    given = as_array(p_values, "p_values", ndim=1)
    if given.min() < 0 or given.max() > 1:
        raise ValueError(f"p_values go from {given.min():g} to {given.max():g}; they must lie between 0 and 1.")
    order = np.argsort(given, kind="stable")
    stepped = np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1))
    corrected = np.empty_like(given)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def _differences(first: Any, second: Any) -> Array:
    one = as_array(first, "first", ndim=1)
    if second is None:
        return one
    other = as_array(second, "second", ndim=1)
    expect_same_shape(one, "first", other, "second")
    return one - other


def _expect_resamples(resamples: int) -> None:
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}; pass at least 1.")
