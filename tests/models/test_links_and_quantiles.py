"""Generalised linear models are explained before their link, and several quantiles by their names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import GammaRegressor, PoissonRegressor, TweedieRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from nobsp import NObSP
from tests.tolerances import SUMS, assert_same_to_rounding

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(400, 3))
COUNTS = GENERATOR.poisson(np.exp(0.5 * X[:, 0] - 0.3 * X[:, 1])).astype(np.float64)


@pytest.mark.parametrize(
    "model",
    [
        PoissonRegressor(),
        GammaRegressor(),
        TweedieRegressor(power=1.5),
        make_pipeline(StandardScaler(), PoissonRegressor()),
    ],
)
def test_a_log_linear_model_has_no_interaction(model: Any) -> None:
    model.fit(X, COUNTS + 0.5)

    explainer = NObSP(model).fit(X)
    explanation = explainer(X)

    assert explainer.link_ == "exp"
    assert all(len(term) == 1 for term in explainer.terms_)
    assert explainer.explained_[0] > 0.9999
    means = explanation.to_probability().predictions[:, 0]
    assert_same_to_rounding(means, model.predict(X), within=SUMS)


def test_polynomials_before_a_log_link_do_not_overflow() -> None:
    model = make_pipeline(PolynomialFeatures(2), PoissonRegressor()).fit(X, COUNTS)

    explainer = NObSP(model).fit(X)

    assert explainer.link_ == "exp"
    assert explainer.explained_[0] > 0.99
    assert np.isfinite(explainer(100 * X[:3]).values).all()


def test_an_identity_link_stays_as_it_is() -> None:
    model = TweedieRegressor(power=0).fit(X, COUNTS)

    assert NObSP(model).fit(X).link_ == "identity"


def test_several_quantiles_are_named() -> None:
    xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    model = xgb.XGBRegressor(
        objective="reg:quantileerror",
        quantile_alpha=np.array([0.1, 0.5, 0.9]),
        n_estimators=10,
        n_jobs=1,
    ).fit(X, COUNTS)

    explainer = NObSP(model).fit(X)

    assert explainer.output_names_ == ("quantile 0.1", "quantile 0.5", "quantile 0.9")
    assert NObSP(model.get_booster()).fit(X).output_names_ == explainer.output_names_
