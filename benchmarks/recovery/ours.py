"""NObSP in the grid: as it comes, and as published."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.recovery.designs import FEATURES, Pair
from benchmarks.recovery.problems import Problem
from benchmarks.recovery.scores import Recovered
from nobsp import NObSP

NAMES = [f"x{k}" for k in range(FEATURES)]


def default(problem: Problem) -> dict[str, Recovered]:
    """All options at their defaults: with the pairs it chooses itself."""
    return {"NObSP": _recovered(problem, NObSP(problem.trained, features=NAMES))}


def published(problem: Problem) -> dict[str, Recovered]:
    """Algorithm 1 to the letter."""
    return {
        "NObSP as published": _recovered(
            problem, NObSP.as_published(problem.trained, features=NAMES)
        )
    }


def _recovered(problem: Problem, explainer: Any) -> Recovered:
    """Calibrated on the rows it is given, evaluated on the held-out ones."""
    explanation = explainer.fit(problem.sample.inputs)(problem.sample.held_out)
    singles = np.zeros((len(problem.sample.held_out), FEATURES))
    pairs: dict[Pair, Any] = {}
    for place, term in enumerate(explanation.terms):
        values = np.asarray(explanation.values[:, place, 0], dtype=np.float64)
        columns = [NAMES.index(name) for name in term]
        if len(columns) == 1:
            singles[:, columns[0]] = values
        elif len(columns) == 2:  # the designs have no triples to compare with
            i, j = sorted(columns)
            pairs[i, j] = values
    return Recovered(singles, None if explainer.interactions == 0 else pairs)
