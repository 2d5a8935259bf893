"""Distillers and the selector, as scikit-learn asks of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from nobsp import NObSPClassifier, NObSPRegressor, Selector
from tests.tolerances import assert_same_to_rounding

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(400, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1]
FRESH = GENERATOR.normal(size=(400, 3))
FRESH_Y = np.sin(2 * FRESH[:, 0]) + FRESH[:, 1]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        NObSPRegressor(Ridge(), interactions=0),
        NObSPClassifier(LogisticRegression(), interactions=0, correct=True),
    ]
)
def test_scikit_learn_s_own_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_fitted_teacher_is_not_fitted_again() -> None:
    teacher = LinearRegression().fit(X, Y)
    slopes = teacher.coef_.copy()
    for model in (
        NObSPRegressor(teacher, interactions=0).fit(X, -Y),
        NObSPRegressor(interactions=0).fit(X, -Y, teacher=teacher),
    ):
        assert_same_to_rounding(model.predict(FRESH), teacher.predict(FRESH), within=1e-6)
    assert (teacher.coef_ == slopes).all()


def test_a_network_can_be_the_teacher() -> None:
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2)
    labels = np.where(X[:, 0] > 0, "b", "a")
    model = NObSPClassifier(network, interactions=0).fit(X, labels)
    assert model.classes_.tolist() == ["a", "b"]
    expected = torch.softmax(network(torch.tensor(FRESH, dtype=torch.float32)), 1)
    np.testing.assert_allclose(model.predict_proba(FRESH), expected.detach(), atol=1e-5)
    with pytest.raises(ValueError, match="class"):
        NObSPClassifier(network).fit(X, np.zeros(len(X)))


def test_labels_mend_a_teacher_that_is_too_simple() -> None:
    teacher = LinearRegression().fit(X, Y)
    plain = NObSPRegressor(teacher, interactions=0).fit(X, Y)
    mended = NObSPRegressor(teacher, interactions=0, correct=True).fit(X, Y)
    assert mended.score(FRESH, FRESH_Y) > plain.score(FRESH, FRESH_Y) + 0.2
    assert mended.correction_.after < mended.correction_.before
    assert mended.functions_.history[-1].rule == "corrected by labels"
    account = mended.explain(FRESH)
    assert_same_to_rounding(
        account.values.sum(1)[:, 0] + account.base_values, mended.predict(FRESH)
    )


def test_a_step_that_does_not_help_is_not_taken() -> None:
    noise = np.random.default_rng(1).normal(size=len(X))
    teacher = LinearRegression().fit(X, X[:, 0])
    model = NObSPRegressor(teacher, interactions=0, correct=True).fit(X, X[:, 0] + noise)
    correction = model.correction_
    assert correction.after <= correction.before
    if np.isinf(correction.strength):
        assert model.functions_.history == ()


def test_classes_are_mended_by_labels_too() -> None:
    labels = (np.abs(X[:, 0]) > 0.7).astype(int)
    fresh = (np.abs(FRESH[:, 0]) > 0.7).astype(int)
    teacher = LogisticRegression().fit(X, labels)
    plain = NObSPClassifier(teacher, interactions=0).fit(X, labels)
    mended = NObSPClassifier(teacher, interactions=0, correct=True).fit(X, labels)
    before = log_loss(fresh, plain.predict_proba(FRESH))
    assert log_loss(fresh, mended.predict_proba(FRESH)) < 0.8 * before

    forest = RandomForestClassifier(5, max_depth=1, random_state=0)
    stumps = NObSPClassifier(forest, interactions=0, correct=True).fit(X, labels)
    assert stumps.correction_.after <= stumps.correction_.before
    with pytest.raises(ValueError, match="link"):
        NObSPRegressor(PoissonRegressor(), interactions=0, correct=True).fit(X, np.exp(X[:, 0]))


def test_frames_with_names_pass_through() -> None:
    table = pd.DataFrame({"a": X[:, 0], "town": np.where(X[:, 1] > 0, "x", "y")})
    teacher = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough"),
        LinearRegression(),
    )
    target = X[:, 0] + (X[:, 1] > 0)
    model = NObSPRegressor(teacher, interactions=0).fit(table, target)
    assert model.score(table, target) > 0.999
    assert model.feature_names_in_.tolist() == ["a", "town"]
    assert not hasattr(clone(model), "functions_")


def test_a_selector_keeps_the_columns_that_are_enough() -> None:
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    chain = make_pipeline(Selector(LinearRegression()), LinearRegression()).fit(table, X[:, 1])
    selector = chain[0]
    assert selector.get_support().tolist() == [False, True, False]
    assert selector.get_feature_names_out().tolist() == ["b"]
    assert chain.score(table, X[:, 1]) > 0.999

    fitted = LinearRegression().fit(table, X[:, 1] + X[:, 2])
    assert Selector(fitted).fit(table).transform(table).shape == (400, 2)


def test_a_teacher_of_the_other_kind_is_refused() -> None:
    labels = np.where(Y > 0, 1, 0)
    regressor = LinearRegression().fit(X, Y)
    classifier = LogisticRegression().fit(X, labels)
    with pytest.raises(ValueError, match="teacher is a regressor"):
        NObSPClassifier().fit(X, labels, teacher=regressor)
    with pytest.raises(ValueError, match="teacher is a regressor"):
        NObSPClassifier(make_pipeline(regressor)).fit(X, labels)
    with pytest.raises(ValueError, match="teacher is a classifier"):
        NObSPRegressor().fit(X, Y, teacher=classifier)
    with pytest.raises(ValueError, match="teacher is a classifier"):
        NObSPRegressor(classifier).fit(X, Y)


def test_the_selector_transforms_the_missing_numbers_that_it_was_fitted_on() -> None:
    rows = X.copy()
    rows[::7, 1] = np.nan
    model = HistGradientBoostingRegressor(max_iter=10).fit(rows, X[:, 0])
    selector = Selector(model).fit(rows)
    np.testing.assert_array_equal(selector.transform(rows), rows[:, selector.support_])
