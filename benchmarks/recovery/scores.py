"""What an explainer found, and how far that is from the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.recovery.designs import FAMILIES, Array, Case, Pair
from benchmarks.recovery.problems import Problem


@dataclass(frozen=True)
class Recovered:
    """Values of the recovered functions on the held-out rows.

    Attributes:
        singles: One column a feature, (rows, features).
        pairs: Functions of two features by pair, (rows,) each; a pair left out counts as zero. None for methods
            that know no pairs.
        meant: What the method would give of the true functions, where that is not their average effects: gives,
            of a case and its held-out rows, one column a feature.
    """

    singles: Array
    pairs: dict[Pair, Array] | None = field(default=None)
    meant: Callable[[Case, Array], Array] | None = field(default=None)


def determination(truth: Array, estimate: Array) -> float:
    """R² of the centred estimate against the centred truth."""
    truth, estimate = truth - truth.mean(), estimate - estimate.mean()
    return float(1 - np.square(truth - estimate).sum() / np.square(truth).sum())


def score(problem: Problem, found: Recovered) -> dict[str, Any]:
    """Scores of one method on the held-out rows; everything is centred there first.

    `singles` R² of each function that plays a part, `main` their mean, `null` the standard deviation of what is given
    to the feature that plays none as a share of that of the noise-free output, `null_size` its mean absolute value,
    `pairs` R² of each true pair, `false_pair` the standard deviation of the largest other pair as such a share.

    A method that means something else than average effects is judged by both, and keeps the better.
    """
    family, truth = FAMILIES[problem.case.family], problem.sample
    if not np.isfinite(found.singles).all():
        raise ValueError(f"values that are not finite were recovered for {problem.case}.")
    targets = [truth.singles]
    if found.meant is not None:
        targets.append(found.meant(problem.case, truth.held_out))
    each = [
        [determination(target[:, k], found.singles[:, k]) for k in family.active]
        for target in targets
    ]
    singles = max(each, key=lambda scores: float(np.mean(scores)))
    null, spread = found.singles[:, list(family.null)], truth.output.std()
    scores: dict[str, Any] = {
        "singles": singles,
        "main": float(np.mean(singles)),
        "null": float(null.std(0).max() / spread),
        "null_size": float(np.abs(null - null.mean(0)).mean()),
    }
    if found.pairs is None:
        return scores
    nothing = np.zeros(len(truth.output))
    scores["pairs"] = [
        determination(truth.pairs[pair], found.pairs.get(pair, nothing))
        for pair in family.true_pairs
    ]
    others = {
        p: float(v.std() / spread) for p, v in found.pairs.items() if p not in family.true_pairs
    }
    largest = max(others, key=lambda pair: others[pair], default=None)
    scores["false_pair"] = others[largest] if largest else 0.0
    scores["false_pair_name"] = list(largest) if largest else None
    scores["pairs_kept"] = sorted(map(list, found.pairs))
    return scores


def network_score(problem: Problem) -> dict[str, Any]:
    """R² of the network itself against the noise-free truth: what no explanation of it can make up for."""
    return {"r2": determination(problem.sample.output, problem.predict(problem.sample.held_out))}
