"""Log-odds of classifiers: their own scores where their probabilities are made of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nobsp._typing import ModelLike
from nobsp.models.coded import Array, log_odds, odds_of_logs

# Probabilities of scores in single precision are this near to those of the model.
_NEAR = 1e-6


class ClassScores:
    """Log-odds of rows, by `decision_function` while its sigmoid or softmax is `predict_proba`.

    Probabilities near 0 and 1 are rounded, so that their log-odds end near ±28 where scores go on.
    Platt scaling, one-vs-rest and the like have probabilities of another form: once rows were seen
    where the two differ, scores are not asked for again.
    """

    def __init__(self, model: ModelLike, rows: Callable[[Array], Any]) -> None:
        self._probabilities = model.predict_proba
        self._decisions = getattr(model, "decision_function", None)
        self._rows = rows

    def __call__(self, x: Array) -> Array:
        """Log-odds of the second of two classes, or centred scores of several."""
        rows = self._rows(x)
        probabilities = np.asarray(self._probabilities(rows))
        rounded = log_odds(probabilities)

        scores = self._scores(rows, probabilities)
        if scores is None:
            return rounded
        with np.errstate(invalid="ignore"):  # infinite scores
            exact = odds_of_logs(scores)
        return np.where(np.isfinite(exact), exact, rounded)

    def _scores(self, rows: Any, probabilities: Array) -> Array | None:
        """One score a class whose softmax are the probabilities; None where there is no such."""
        if self._decisions is None:
            return None
        try:
            decisions = np.asarray(self._decisions(rows), dtype=np.float64)
        except (AttributeError, NotImplementedError):  # there in name only
            self._decisions = None
            return None

        scores = decisions.reshape(len(probabilities), -1)
        if scores.shape[1] == 1:
            scores = np.column_stack([np.zeros(len(scores)), scores])
        if scores.shape != probabilities.shape or not _agree(scores, probabilities):
            self._decisions = None
            return None
        return scores


def _agree(scores: Array, probabilities: Array) -> bool:
    """Whether the softmax of scores is the given probabilities in every row with finite ones."""
    finite = np.isfinite(scores).all(1) & np.isfinite(probabilities).all(1)
    powers = np.exp(scores[finite] - scores[finite].max(1, keepdims=True))
    chances = powers / powers.sum(1, keepdims=True)
    return bool((np.abs(chances - probabilities[finite]) <= _NEAR).all())
