"""Explainers of every kind of model go through pickle and explain the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nobsp

ROWS = np.random.default_rng(0).normal(size=(60, 3))
TARGET = ROWS[:, 0] + ROWS[:, 1] ** 2


def network() -> Any:
    layers = MLPRegressor(hidden_layer_sizes=(4,), solver="lbfgs", random_state=0)
    return make_pipeline(StandardScaler(), layers).fit(ROWS, TARGET)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomForestRegressor(3, random_state=0).fit(ROWS, TARGET),
        lambda: HistGradientBoostingClassifier(max_iter=3).fit(ROWS, TARGET > 0),
        lambda: LogisticRegression().fit(ROWS, TARGET > 0),
        network,
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_explainer_is_the_same_after_pickle(make: Callable[[], Any]) -> None:
    explainer = nobsp.NObSP(make()).fit(ROWS)
    again = pickle.loads(pickle.dumps(explainer))  # noqa: S301 - our own bytes
    np.testing.assert_allclose(again(ROWS).values, explainer(ROWS).values, rtol=1e-12, atol=1e-12)
