"""Classifiers are explained by their own scores where these are the log-odds of their probabilities."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nobsp import NObSP
from nobsp.models.scores import ClassScores
from tests.tolerances import SUMS, assert_same_to_rounding

GENERATOR = np.random.default_rng(0)
X = pd.DataFrame(5 * GENERATOR.normal(size=(300, 2)), columns=["a", "b"])
SIGN = (X["a"] > 0).astype(int)
THREE = np.digitize(X["a"], [-2.0, 2.0])


def _steep() -> LogisticRegression:
    return LogisticRegression(C=1e3, max_iter=1000)


@pytest.mark.parametrize(
    "model",
    [
        _steep(),
        make_pipeline(StandardScaler(), _steep()),
        make_pipeline(PCA(2), _steep()),
        QuadraticDiscriminantAnalysis(reg_param=1e-4),
    ],
)
def test_two_classes_have_the_models_own_scores(model: Any) -> None:
    model.fit(X, SIGN)

    explainer = NObSP(model).fit(X)
    explanation = explainer(X)

    assert explainer.link_ == "sigmoid"
    assert explanation.output_names == ("1",)
    scores = model.decision_function(X)
    assert_same_to_rounding(explanation.predictions[:, 0], scores, within=SUMS)


def test_rounded_probabilities_bend_no_line() -> None:
    model = _steep().fit(X, SIGN)
    assert np.abs(model.decision_function(X)).max() > 100

    explainer = NObSP(model).fit(X)

    assert explainer.check_shape("a", "convex", X).holds


def test_several_classes_have_centred_scores() -> None:
    model = _steep().fit(X, THREE)
    scores = model.decision_function(X)
    assert (model.predict_proba(X) < 1e-12).any()

    explainer = NObSP(model).fit(X)

    assert explainer.link_ == "softmax"
    centred = scores - scores.mean(1, keepdims=True)
    assert_same_to_rounding(explainer(X).predictions, centred, within=SUMS)


@pytest.mark.parametrize(
    ("model", "labels"),
    [
        (SGDClassifier(loss="modified_huber", random_state=0), SIGN),
        (OneVsRestClassifier(LogisticRegression()), THREE),
    ],
)
def test_scores_of_another_form_are_not_taken_for_log_odds(model: Any, labels: Any) -> None:
    model.fit(X, labels)

    predictions = NObSP(model).fit(X)(X).predictions

    logs = np.log(np.clip(model.predict_proba(X), 1e-12, None))
    expected = logs[:, 1:] - logs[:, :1]
    if logs.shape[1] > 2:
        expected = logs - logs.mean(1, keepdims=True)
    assert_same_to_rounding(predictions, expected, within=SUMS)


def test_scores_stay_refused_for_rows_where_nothing_speaks_against_them() -> None:
    model = SGDClassifier(loss="modified_huber", random_state=0).fit(X.to_numpy(), SIGN)
    scores = ClassScores(model, lambda matrix: matrix)
    far = 1e4 * X.to_numpy()[:3]

    scores(X.to_numpy())

    assert np.abs(scores(far)).max() < 28


class _Stepwise(ClassifierMixin, BaseEstimator):
    """A classifier whose scores are infinite in some rows, or only there in name."""

    def __init__(self, missing: bool = False) -> None:
        self.missing = missing
        self.classes_ = np.array([0, 1])

    def decision_function(self, rows: Any) -> Any:
        if self.missing:
            raise NotImplementedError
        return np.where(rows[:, 0] > 0, np.inf, rows[:, 0])

    def predict_proba(self, rows: Any) -> Any:
        chances = 1 / (1 + np.exp(-np.where(rows[:, 0] > 0, np.inf, rows[:, 0])))
        return np.column_stack([1 - chances, chances])


@pytest.mark.parametrize("missing", [False, True])
def test_log_odds_are_finite_whatever_the_scores(missing: bool) -> None:
    scores = ClassScores(_Stepwise(missing), lambda matrix: matrix)

    values = scores(np.array([[-2.0], [3.0]]))

    np.testing.assert_allclose(values[:, 0], [-2.0, -np.log(1e-12)])


def test_scores_survive_files_and_pickles(tmp_path: Path) -> None:
    model = _steep().fit(X, SIGN)
    explainer = NObSP(model).fit(X)
    expected = explainer(X).predictions

    explainer.save(tmp_path / "explainer.nobsp")
    loaded = NObSP.load(tmp_path / "explainer.nobsp", model)
    copied = pickle.loads(pickle.dumps(explainer))  # noqa: S301 - our own bytes

    for other in (loaded, copied):
        assert_same_to_rounding(other(X.iloc[:1]).predictions, expected[:1], within=SUMS)
        assert_same_to_rounding(other(X).predictions, expected, within=SUMS)
