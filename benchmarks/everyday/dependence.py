"""Features that other features determine: the rows cannot tell which of them does what."""

from __future__ import annotations

import numpy as np

from benchmarks.everyday.registry import Outcome, judge, situation
from nobsp import NObSP


@situation("a sum beside its parts, S = a + b", findings=("determined",), wanted=True)
def a_sum() -> Outcome:
    generator = np.random.default_rng(0)

    def draw(count: int) -> np.ndarray:
        parts = generator.normal(size=(count, 3))
        return np.column_stack([parts, parts[:, 0] + parts[:, 1]])

    return judge(NObSP(lambda X: np.tanh(X[:, 3]) + X[:, 0] + X[:, 2] ** 2), draw(1500), draw(4000))


@situation("a level that another column repeats", findings=("determined",), wanted=True)
def a_level() -> Outcome:
    generator = np.random.default_rng(0)

    def draw(count: int) -> np.ndarray:
        days = np.where(generator.random(count) < 0.7, -1.0, generator.integers(1, 300, count))
        outcome = np.where(days == -1, 0.0, generator.integers(1, 4, count))
        return np.column_stack([days, outcome, generator.normal(size=count)])

    return judge(
        NObSP(lambda X: X[:, 1] + np.sqrt(X[:, 0] + 2) / 5 + X[:, 2]), draw(1500), draw(4000)
    )
