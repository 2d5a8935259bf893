"""Functions in the caller's own units, whatever the pipeline does to them; and rows that carry everything."""

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    QuantileTransformer,
    SplineTransformer,
    StandardScaler,
)

from nobsp import NObSP
from nobsp.tabular.health import ExplainedWorseWarning

Make = Callable[[np.random.Generator, int], np.ndarray]


def normal(random: np.random.Generator, rows: int) -> np.ndarray:
    return random.normal(size=(rows, 3))


def lognormal(random: np.random.Generator, rows: int) -> np.ndarray:
    return np.exp(2.5 * normal(random, rows))


def with_gaps(random: np.random.Generator, rows: int) -> np.ndarray:
    X = normal(random, rows)
    X[random.random(rows) < 0.25, 0] = np.nan
    return X


def of_gaps(X: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(X[:, 0]), 3, X[:, 0]) + X[:, 1] ** 2 / 2 + X[:, 2]


CASES: dict[str, tuple[list[Any], Make, Callable[[np.ndarray], np.ndarray]]] = {
    "log": (
        [FunctionTransformer(np.log), StandardScaler()],
        lognormal,
        lambda X: np.log(X) @ [1, 0.5, -1],
    ),
    "quantiles": (
        [QuantileTransformer(n_quantiles=200, output_distribution="normal")],
        lognormal,
        lambda X: np.log(X) @ [1, 0.5, -1],
    ),
    "indicator": ([SimpleImputer(add_indicator=True), StandardScaler()], with_gaps, of_gaps),
    "constant": (
        [SimpleImputer(strategy="constant", fill_value=-9), StandardScaler()],
        with_gaps,
        of_gaps,
    ),
    "median": ([SimpleImputer(strategy="median"), StandardScaler()], with_gaps, of_gaps),
    "bins": (
        [KBinsDiscretizer(8, quantile_method="averaged_inverted_cdf")],
        normal,
        lambda X: np.sin(X[:, 0]) + X[:, 1],
    ),
    "splines": (
        [SplineTransformer(n_knots=6)],
        normal,
        lambda X: np.sin(2 * X[:, 0]) + X[:, 1] ** 2,
    ),
}


@pytest.mark.parametrize("rows", [150, 1000])
@pytest.mark.parametrize("case", CASES)
def test_the_held_out_share_of_a_pipeline_is_that_of_fresh_rows(case: str, rows: int) -> None:
    steps, make, function = CASES[case]
    random = np.random.default_rng(0)
    train, seen, fresh = make(random, 1500), make(random, rows), make(random, 1500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network = MLPRegressor(hidden_layer_sizes=(32,), max_iter=200, random_state=0)
        model = make_pipeline(*steps, network).fit(train, function(train))
    explainer = NObSP(model).fit(seen)
    ex = explainer(fresh)
    assert [feature.kind for feature in explainer.functions_.features] == ["number"] * 3
    assert np.isfinite(ex.values).all()
    np.testing.assert_allclose(
        ex.base_values + ex.values.sum(1) + ex.residual, ex.predictions, atol=1e-9
    )
    share = 1 - ex.residual.var(0) / ex.predictions.var(0)
    assert abs(share - explainer.explained_)[0] < 0.04


class Product(torch.nn.Module):
    """x1·x2² + x3/2."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(2, 1, bias=False).double()
        self.head.weight.data[:] = torch.tensor([[1.0, 0.5]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.head(torch.stack([x[:, 0] * x[:, 1] ** 2, x[:, 2]], 1))
        return z


@pytest.mark.parametrize("seed", range(4))
def test_without_correction_a_main_effect_is_the_mean_over_the_calibration_rows(seed: int) -> None:
    X = np.random.default_rng(seed).normal(size=(400, 3))
    function = NObSP(Product(), ridge=1e9, interactions=[("x0", "x1")]).fit(X).function("x0")
    slope = float(np.diff(function([-1.0, 1.0]))[0]) / 2
    # The pair's grid is linear between some twenty values of x2, whose squares it overestimates a little.
    assert slope == pytest.approx((X[:, 1] ** 2).mean(), abs=0.05)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))


def test_one_row_far_away_does_not_hide_what_happens_to_the_others() -> None:
    X = np.random.default_rng(0).normal(size=(1000, 3))
    X[0, 0] = 1e6
    explainer = NObSP(network(), interactions=0).fit(X)
    health = explainer.health()
    with pytest.warns(ExplainedWorseWarning):
        fresh = explainer(np.random.default_rng(1).normal(size=(1000, 3)))
    share = 1 - fresh.residual.var() / fresh.predictions.var()
    assert health.explained[0] > 0.99  # the far row is nearly all of the variance
    assert health.inside[0] == pytest.approx(share, abs=0.2)
    assert "low_share" in {finding.code for finding in health.findings}


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_tables_of_very_few_rows_are_explained(rows: int) -> None:
    X = np.random.default_rng(rows).normal(size=(rows, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few rows may well explain nothing, and fit says so
        ex = NObSP(network()).fit(X)(X)
    np.testing.assert_allclose(
        ex.base_values + ex.values.sum(1) + ex.residual, ex.predictions, atol=1e-9
    )


def test_an_explanation_and_its_functions_can_be_pickled() -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    explainer = NObSP(network()).fit(X)
    again = pickle.loads(pickle.dumps(explainer(X[:5])))  # noqa: S301 - our own bytes
    np.testing.assert_array_equal(again.values, explainer(X[:5]).values)
    np.testing.assert_array_equal(again.explainer(X[:5]).values, again.values)
