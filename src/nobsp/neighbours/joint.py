"""Joint confidence: what the softmax and the neighbours say together of a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

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
    chance: Array = np.exp(-np.logaddexp(0.0, -opinion.agreed))  # a logistic curve without overflow
    return chance


@dataclass(frozen=True, eq=False)
class JointConfidence:
    """A logistic regression from signals to the probability that a prediction is right.

    Attributes:
        names: What it is made of.
        model: scikit-learn's, on z-scores.
    """

    names: tuple[str, ...]
    model: Any

    @classmethod
    def fitted(cls, signals: dict[str, Array], right: NDArray[np.bool_]) -> Self:
        """Fits it to rows of which it is known whether the prediction is right.

        Args:
            signals: By name, as in `Audit.signals`.
            right: Whether each prediction is right; some must be, and some not.
        """
        return cls(tuple(signals), _regression().fit(np.column_stack(list(signals.values())), right))

    def __call__(self, signals: dict[str, Array]) -> Array:
        """The probability that each prediction is right."""
        chance: Array = self.model.predict_proba(np.column_stack([signals[name] for name in self.names]))[:, 1]
        return chance


def cross_validated(signals: dict[str, Array], right: NDArray[np.bool_], *, seed: int = 0) -> Array | None:
    """Joint confidence of each row by a regression that was fitted without it; None where too few are right or wrong.

    Folds are drawn with a seed of their own, of rows sorted by their signals: the same rows get the same numbers in
    whatever order they come.
    """
    if min(right.sum(), (~right).sum()) < _FEWEST:
        return None
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    order = np.lexsort([right, *reversed(signals.values())])
    table = np.column_stack(list(signals.values()))[order]
    result = np.empty(len(right))
    result[order] = cross_val_predict(_regression(), table, right[order], cv=folds, method="predict_proba")[:, 1]
    return result


def _regression() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
