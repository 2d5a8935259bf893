"""How far a combination of numbers is from the calibration rows, without a row being kept; numpy only.

Every number becomes a normal score by its own quantiles, and the scores' covariance tells which combinations are usual:
d² = sᵀ C⁻¹ s. A row is far where d² exceeds nearly all of the calibration rows', each judged by the other half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Quantiles that a number's scores are read from.
_QUANTILES = 41
# Share of the calibration rows that are nearer than the limit.
_USUAL = 0.999
# Rows far must be further than the limit by this factor: it is known from few rows.
_MARGIN = 1.1
# Fewest rows for every number, and fewest numbers: below, a covariance says nothing.
_ROWS_EACH = 10
_FEWEST_NUMBERS = 2
# Added to the covariance, so that numbers that are exactly correlated do no harm.
_RIDGE = 1e-3


@dataclass(frozen=True, eq=False)
class Reach:
    """Which combinations of numbers are usual."""

    columns: tuple[int, ...]  # of the caller's table
    values: tuple[Array, ...]  # per column, increasing quantiles
    scores: tuple[Array, ...]  # the normal scores there
    precision: Array  # inverse of the scores' covariance
    limit: float  # largest usual d²

    def beyond(self, columns: Mapping[int, NDArray[Any]]) -> NDArray[np.bool_]:
        """Rows that are further than usual; a missing number counts as an average one."""
        numbers = [np.asarray(columns[column], dtype=np.float64) for column in self.columns]
        scores = _scores(numbers, self.values, self.scores)
        return np.asarray(_squared(scores, self.precision) > self.limit)


def measure_reach(columns: Mapping[int, NDArray[Any]]) -> Reach | None:
    """What is usual among some rows; None where there are too few, or fewer than two numbers that vary."""
    numbers = {
        position: np.asarray(column, dtype=np.float64) for position, column in columns.items()
    }
    numbers = {k: x for k, x in numbers.items() if len(np.unique(x[np.isfinite(x)])) > 2}
    rows = len(next(iter(numbers.values()))) if numbers else 0
    if len(numbers) < _FEWEST_NUMBERS or rows < _ROWS_EACH * len(numbers):
        return None

    values = []
    levels = []
    for x in numbers.values():
        known, normal = _normal_scores(x[np.isfinite(x)])
        values.append(known)
        levels.append(normal)
    scores = _scores(list(numbers.values()), tuple(values), tuple(levels))

    # Every half is judged by the other, as rows that are explained are.
    distances = np.empty(rows)
    halves = np.arange(rows) % 2
    for half in (0, 1):
        distances[halves == half] = _squared(
            scores[halves == half], _precision(scores[halves != half])
        )
    limit = _MARGIN * float(np.quantile(distances, _USUAL))
    return Reach(tuple(numbers), tuple(values), tuple(levels), _precision(scores), limit)


def _normal_scores(x: Array) -> tuple[Array, Array]:
    """Quantiles of a number and the normal scores there; ties share their mean score."""
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    shares[0] = 0.5 / len(x)
    shares[-1] = 1 - shares[0]
    quantiles = np.quantile(x, np.linspace(0, 1, _QUANTILES))
    normal = np.array([NormalDist().inv_cdf(share) for share in shares])
    known, place = np.unique(quantiles, return_inverse=True)
    return known, np.bincount(place, normal) / np.bincount(place)


def _scores(numbers: list[Array], values: tuple[Array, ...], scores: tuple[Array, ...]) -> Array:
    columns = []
    for x, known, normal in zip(numbers, values, scores, strict=True):
        columns.append(np.where(np.isfinite(x), np.interp(x, known, normal), 0.0))
    return np.stack(columns, 1)


def _precision(scores: Array) -> Array:
    covariance = scores.T @ scores / len(scores)
    return np.asarray(np.linalg.inv(covariance + _RIDGE * np.eye(len(covariance))))


def _squared(scores: Array, precision: Array) -> Array:
    return np.asarray(((scores @ precision) * scores).sum(1))
