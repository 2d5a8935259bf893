"""Frames may have their columns in another order than the model was trained on."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nobsp import NObSP
from tests.tolerances import assert_same_to_rounding

pandas = pytest.importorskip("pandas")

GENERATOR = np.random.default_rng(0)
ROWS = 300
TABLE = pandas.DataFrame(
    {
        "age": GENERATOR.integers(18, 80, ROWS).astype(float),
        "city": pandas.Categorical(GENERATOR.choice(["Oslo", "Rome"], ROWS)),
        "income": np.where(GENERATOR.random(ROWS) < 0.1, np.nan, GENERATOR.random(ROWS)),
    }
)
IS_RICH = (TABLE["age"] / 80 + (TABLE["city"] == "Oslo") + TABLE["income"].fillna(0) > 1.4) * 1
TURNED = TABLE[["income", "city", "age"]]


def hist_gradient_boosting() -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(categorical_features="from_dtype", max_iter=10)


def lightgbm() -> Any:
    return pytest.importorskip("lightgbm").LGBMClassifier(n_estimators=10, verbose=-1)


def xgboost() -> Any:
    library = pytest.importorskip("xgboost")
    return library.XGBClassifier(n_estimators=10, enable_categorical=True)


@pytest.mark.parametrize("make", [hist_gradient_boosting, lightgbm, xgboost])
def test_names_and_missing_numbers_are_found_by_their_columns_name(
    make: Callable[[], Any],
) -> None:
    model = make().fit(TABLE, IS_RICH)

    turned = NObSP(model, interactions=0).fit(TURNED)
    straight = NObSP(model, interactions=0).fit(TABLE)

    expected = straight(TABLE)
    assert_same_to_rounding(turned(TURNED).predictions, expected.predictions)
    assert_same_to_rounding(turned(TABLE).values, expected.values)


def test_a_booster_says_its_columns_too() -> None:
    library = pytest.importorskip("lightgbm")
    rows = TABLE.rename(columns={"income": "year's income"})
    booster = library.train({"verbose": -1}, library.Dataset(rows, IS_RICH.to_numpy()), 10)

    explanation = NObSP(booster, interactions=0).fit(rows[rows.columns[::-1]])(rows)

    assert_same_to_rounding(explanation.predictions[:, 0], booster.predict(rows))


@pytest.mark.parametrize("columns", [["age", "income"], ["age", "city", "income"]])
def test_a_method_of_an_estimator_is_given_its_columns_by_name(columns: list[str]) -> None:
    model = hist_gradient_boosting().fit(TABLE[columns], IS_RICH)
    rows = TABLE[columns[::-1]]

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns of rows without names
        explainer = NObSP(model.predict_proba, interactions=0).fit(rows)
        explanation = explainer(rows)

    logarithms = np.log(model.predict_proba(TABLE[columns]))
    assert_same_to_rounding(explanation.predictions, logarithms - logarithms.mean(1, keepdims=True))


def test_an_explainer_of_a_method_can_be_pickled() -> None:
    rows = TABLE[["age"]]
    explainer = NObSP(hist_gradient_boosting().fit(rows, IS_RICH).predict_proba).fit(rows)

    copied = pickle.loads(pickle.dumps(explainer))  # noqa: S301 - written here

    assert_same_to_rounding(copied(rows).values, explainer(rows).values)
