"""Joint confidence: what the softmax, the neighbours and the centres of the classes say together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from nobsp.neighbours.hits import Neighbours

Array = NDArray[np.float64]

# Probabilities are kept this far from 0 and 1 before their log-odds are taken.
_SURE = 1e-6
# By how much a neighbour that is less similar counts less: exp((s − s of the nearest) / this), s the cosine.
_REACH = 0.05
_FOLDS = 5
_FEWEST = 2 * _FOLDS


@dataclass(frozen=True, eq=False)
class Signals:
    """What is known of each row before it is judged; none of it needs a label or another forward pass.

    Attributes:
        confidence: Probability of the predicted class.
        margin: How far the predicted class's logit is above the next.
        by_evidence: Neighbours by contributions.
        by_activations: Neighbours by activations.
        nearest: How many of the neighbours purity is counted among.
        centre_margin: How much nearer the centre of the predicted class is than that of the next class.
    """

    confidence: Array
    margin: Array
    by_evidence: Neighbours
    by_activations: Neighbours
    nearest: int
    centre_margin: Array


def joint_features(signals: Signals) -> dict[str, Array]:
    """What the joint confidence is made of, by name: one number per row each."""
    few = signals.nearest
    sure = np.clip(signals.confidence, _SURE, 1 - _SURE)
    return {
        "log-odds of the confidence": np.log(sure / (1 - sure)),
        "margin": signals.margin,
        "purity by evidence": purity_among(signals.by_evidence, few),
        "purity by activations": purity_among(signals.by_activations, few),
        "weighted purity by evidence": weighted_purity(signals.by_evidence),
        "weighted purity by activations": weighted_purity(signals.by_activations),
        "centre margin": signals.centre_margin,
    }


def purity_among(hits: Neighbours, nearest: int) -> Array:
    """Purity towards the predicted class among the nearest few of the neighbours."""
    assert hits.labels is not None
    share: Array = (hits.labels[:, :nearest] == hits.predicted[:, None]).mean(1)
    return share


def weighted_purity(hits: Neighbours) -> Array:
    """Purity towards the predicted class in which neighbours count the less, the further they are."""
    assert hits.labels is not None
    similarity = 1 - hits.distances**2 / 2
    weights = np.exp((similarity - similarity[:, :1]) / _REACH)
    share: Array = (weights * (hits.labels == hits.predicted[:, None])).sum(1) / weights.sum(1)
    return share


def fixed_rule(signals: Signals) -> Array:
    """The joint confidence without labels to fit it on: the mean of the confidence and both purities."""
    few = signals.nearest
    purities = purity_among(signals.by_evidence, few) + purity_among(signals.by_activations, few)
    rule: Array = (signals.confidence + purities) / 3
    return rule


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
    def fitted(cls, features: dict[str, Array], right: NDArray[np.bool_]) -> Self:
        """Fits it to rows of which it is known whether the prediction is right."""
        from sklearn.linear_model import LogisticRegression

        table = np.column_stack(list(features.values()))
        mean, spread = table.mean(0), table.std(0)
        spread = np.where(spread > 0, spread, 1.0)
        model = LogisticRegression(max_iter=1000).fit((table - mean) / spread, right)
        return cls(tuple(features), model.coef_[0], float(model.intercept_[0]), mean, spread)

    def __call__(self, features: dict[str, Array]) -> Array:
        """The probability that each prediction is right."""
        table = np.column_stack([features[name] for name in self.names])
        odds = (table - self.mean) / self.spread @ self.weights + self.intercept
        chance: Array = 1 / (1 + np.exp(-odds))
        return chance


def cross_validated(features: dict[str, Array], right: NDArray[np.bool_], *, seed: int = 0) -> Array | None:
    """Joint confidence of each row by a regression that was fitted without it; None where too few are right or wrong.

    Folds are drawn with a seed of their own, so that the same rows get the same numbers.
    """
    if min(right.sum(), (~right).sum()) < _FEWEST:
        return None
    from sklearn.model_selection import StratifiedKFold

    result = np.empty(len(right))
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    for train, test in folds.split(np.zeros((len(right), 1)), right):
        model = JointConfidence.fitted({name: values[train] for name, values in features.items()}, right[train])
        result[test] = model({name: values[test] for name, values in features.items()})
    return result
