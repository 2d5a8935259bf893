"""Models of limited domains, missing numbers, and a limit on forward rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.everyday.registry import Outcome, judge, situation
from nobsp import NObSP

Array = NDArray[np.float64]

CALIBRATION_ROWS = 1000
FRESH_ROWS = 2000
# Share of the numbers that are missing.
MISSING_SHARE = 0.1
FORWARD_ROWS = 20_000


def _draw() -> tuple[Array, Array]:
    """Columns above zero: a share, and two amounts of which one is skewed."""
    generator = np.random.default_rng(0)
    count = CALIBRATION_ROWS + FRESH_ROWS
    columns = [
        generator.uniform(0.01, 1.0, count),
        generator.normal(size=count),
        generator.exponential(size=count) + 1e-3,
    ]
    rows = np.column_stack(columns)
    return rows[:CALIBRATION_ROWS], rows[CALIBRATION_ROWS:]


def _logarithm(rows: Array) -> Array:
    return np.log(rows[:, 0]) + rows[:, 1]


def _checks_its_domain(rows: Array) -> Array:
    if (rows[:, 0] < 0).any() or (rows[:, 0] > 1).any():
        raise ValueError("not a share")
    return rows[:, 0] ** 2 + rows[:, 1] * rows[:, 2]


def _takes_missing(rows: Array) -> Array:
    first = np.where(np.isnan(rows[:, 0]), 5.0, 3.0 * rows[:, 0])
    return first + np.nan_to_num(rows[:, 1]) * np.nan_to_num(rows[:, 2])


@situation("a logarithm of a column above zero")
def logarithm() -> Outcome:
    return judge(NObSP(_logarithm), *_draw())


@situation("a logarithm of a sum of columns above zero")
def logarithm_of_sum() -> Outcome:
    generator = np.random.default_rng(0)
    rows = np.exp(generator.normal(size=(1500, 3)))
    fresh = np.exp(generator.normal(size=(4000, 3)))
    return judge(NObSP(lambda x: np.log(x[:, 0] + x[:, 1]) + x[:, 2]), rows, fresh)


@situation("a model that checks its domain and raises")
def checks_its_domain() -> Outcome:
    return judge(NObSP(_checks_its_domain), *_draw())


@situation("missing numbers that the model takes")
def missing_numbers() -> Outcome:
    rows, fresh = _draw()
    generator = np.random.default_rng(1)
    gaps = [
        np.where(generator.random(part.shape) < MISSING_SHARE, np.nan, part)
        for part in (rows, fresh)
    ]
    return judge(NObSP(_takes_missing), *gaps)


@situation("at most 20,000 forward rows", findings=("budget",))
def limited_forward_rows() -> Outcome:
    return judge(NObSP(_takes_missing, max_forward_rows=FORWARD_ROWS), *_draw())
