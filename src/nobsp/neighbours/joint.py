"""Joint confidence: what the softmax and the neighbours say together of a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from nobsp.neighbours.hits import Neighbours
from nobsp.neighbours.votes import Opinion

Array = NDArray[np.float64]

_FOLDS = 5
_FEWEST = 2 * _FOLDS


def joint_features(opinion: Opinion, by_evidence: Neighbours) -> dict[str, Array]:
    """What the joint confidence is made of, by name, one number per row each; no labels of the rows are in it.

    Four and no more: where errors are few, further ones (purities, margins, distances to centres) make it worse.
    """
    return {
        "log-odds of the confidence": opinion.confidence,
        "logarithm of the vote": opinion.vote,
        "log-odds of confidence and vote": opinion.agreed,
        "mean distance by evidence": by_evidence.distances.mean(1),
    }


def fixed_rule(opinion: Opinion) -> Array:
    """The joint confidence without labels to fit it on: the probability on which softmax and vote agree."""
    return logistic(opinion.agreed)


def logistic(odds: Array) -> Array:
    """1 / (1 + exp(−odds)) without overflow."""
    chance: Array = np.exp(-np.logaddexp(0.0, -odds))
    return chance


@dataclass(frozen=True, eq=False)
class JointConfidence:
    """A logistic regression from signals to the probability that a prediction is right.

    Attributes:
        names: What it is made of.
        weights: One per name, for signals in units of their spread.
        intercept: Log-odds where every signal is at its mean.
        mean: Mean of each signal.
        spread: Standard deviation of each signal.
    """

    names: tuple[str, ...]
    weights: Array
    intercept: float
    mean: Array
    spread: Array

    @classmethod
    def fitted(cls, signals: dict[str, Array], right: NDArray[np.bool_]) -> Self:
        """Fits it to rows of which it is known whether the prediction is right.

        Args:
            signals: By name, as in `Audit.signals`.
            right: Whether each prediction is right; some must be, and some not.
        """
        from sklearn.linear_model import LogisticRegression

        table = np.column_stack(list(signals.values()))
        mean, spread = table.mean(0), table.std(0)
        spread = np.where(spread > 0, spread, 1.0)
        model = LogisticRegression(max_iter=1000).fit((table - mean) / spread, right)
        return cls(tuple(signals), model.coef_[0], float(model.intercept_[0]), mean, spread)

    def __call__(self, signals: dict[str, Array]) -> Array:
        """The probability that each prediction is right."""
        table = np.column_stack([signals[name] for name in self.names])
        return logistic((table - self.mean) / self.spread @ self.weights + self.intercept)


def cross_validated(signals: dict[str, Array], right: NDArray[np.bool_], *, seed: int = 0) -> Array | None:
    """Joint confidence of each row by a regression that was fitted without it; None where too few are right or wrong.

    Folds are drawn with a seed of their own, of rows sorted by their signals: the same rows get the same numbers in
    whatever order they come.
    """
    if min(right.sum(), (~right).sum()) < _FEWEST:
        return None
    from sklearn.model_selection import StratifiedKFold

    result = np.empty(len(right))
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    order = np.lexsort([right, *reversed(signals.values())])
    for train, test in folds.split(np.zeros((len(right), 1)), right[order]):
        train, test = order[train], order[test]
        model = JointConfidence.fitted({name: values[train] for name, values in signals.items()}, right[train])
        result[test] = model({name: values[test] for name, values in signals.items()})
    return result
