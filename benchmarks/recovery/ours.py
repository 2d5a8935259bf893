"""NObSP in the grid: as it comes, without and with all pairs, and as published."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.recovery.designs import FEATURES, Pair
from benchmarks.recovery.problems import Problem
from benchmarks.recovery.scores import Recovered
from nobsp import NObSP

NAMES = [f"x{k}" for k in range(FEATURES)]
EVERY_PAIR = FEATURES * (FEATURES - 1) // 2


def default(problem: Problem) -> dict[str, Recovered]:
    """All options at their defaults: with the pairs it chooses itself."""
    return {"NObSP": _recovered(problem, NObSP(problem.trained, features=NAMES))}


def singles(problem: Problem) -> dict[str, Recovered]:
    """Single features only."""
    return {"NObSP, single features": _recovered(problem, NObSP(problem.trained, features=NAMES, interactions=0))}


def all_pairs(problem: Problem) -> dict[str, Recovered]:
    """With a term for each of the ten pairs: what those that do not exist are given."""
    explainer = NObSP(problem.trained, features=NAMES, interactions=EVERY_PAIR)
    return {"NObSP, all pairs": _recovered(problem, explainer)}


def published(problem: Problem) -> dict[str, Recovered]:
    """Algorithm 1 to the letter."""
    return {"NObSP as published": _recovered(problem, NObSP.as_published(problem.trained, features=NAMES))}


def _recovered(problem: Problem, explainer: Any) -> Recovered:
    """Calibrated on the training rows, evaluated on the held-out ones."""
    explanation = explainer.fit(problem.sample.inputs)(problem.sample.held_out)
    singles = np.zeros((len(problem.sample.held_out), FEATURES))
    pairs: dict[Pair, Any] = {}
    for place, term in enumerate(explanation.terms):
        values = np.asarray(explanation.values[:, place, 0], dtype=np.float64)
        columns = [NAMES.index(name) for name in term]
        if len(columns) == 1:
            singles[:, columns[0]] = values
        else:
            i, j = sorted(columns)
            pairs[i, j] = values
    return Recovered(singles, None if explainer.interactions == 0 else pairs)
