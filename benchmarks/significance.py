"""Is one method better than another on the same cases? Bootstrap intervals, sign-flip tests, Holm's correction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES = 10_000
EXACT_UP_TO = 20
# Numbers drawn at once: 32 MB of them.
_AT_ONCE = 4_000_000


class Interval(NamedTuple):
    """A mean difference with its 95% bootstrap interval."""

    difference: float
    low: float
    high: float


def bootstrap_interval(differences: NDArray[np.float64], *, seed: int) -> Interval:
    """Percentile bootstrap of the mean of paired differences."""
    found = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=RESAMPLES,
        method="percentile",
        batch=max(1, _AT_ONCE // len(differences)),
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(np.mean(differences)), float(found.low), float(found.high))


def sign_flip_p(differences: NDArray[np.float64], *, seed: int) -> float:
    """p of the hypothesis that each difference could as well have the other sign.

    All sign patterns are tried for up to 20 pairs. For more, 10,000 are drawn and the observed one is counted in.
    """
    count = len(differences)
    return float(
        stats.permutation_test(
            (differences,),
            lambda one, axis: np.abs(one.mean(axis=axis)),
            permutation_type="samples",
            vectorized=True,
            alternative="greater",
            n_resamples=2**count if count <= EXACT_UP_TO else RESAMPLES,
            batch=max(1, _AT_ONCE // count),
            rng=np.random.default_rng(seed),
        ).pvalue
    )


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for several tests: the smallest of m times m, the next times m - 1, and so on."""
    order = sorted(p_values, key=p_values.__getitem__)
    stepped = np.maximum.accumulate(
        [p_values[name] * (len(order) - rank) for rank, name in enumerate(order)]
    )
    corrected = dict(zip(order, np.minimum(stepped, 1.0).tolist(), strict=True))
    return {name: corrected[name] for name in p_values}
