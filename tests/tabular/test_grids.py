"""Models that do not answer everywhere: tables ask them only where they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from nobsp import NObSP
from nobsp.tabular.grids import (
    Tabulator,
    UnansweredError,
    answered_nodes,
    draw_rows,
    last_answered,
    run_where_answered,
)
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding

Array = NDArray[np.float64]

SQUARES = np.arange(10.0) ** 2
SQUARE_OF = {float(number): float(number) ** 2 for number in range(10)}


def positive_rows(count: int = 600) -> Array:
    """Rows whose columns are all above zero; the first has whole numbers below ten."""
    generator = np.random.default_rng(0)
    columns = [
        generator.integers(0, 10, count),
        generator.uniform(0.01, 1.0, count),
        generator.exponential(size=count) + 1e-3,
    ]
    return np.column_stack(columns).astype(np.float64)


def checks_its_domain(X: Array) -> Array:
    """Refuses a batch in which one value is not a share."""
    shares = X[:, 1]
    if (shares < 0).any() or (shares > 1).any():
        raise AssertionError("not a share")
    return shares**2 + X[:, 2]


class LogNetwork(torch.nn.Module):
    """A network of logarithms."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.hidden = torch.nn.Linear(3, 8)
        self.head = torch.nn.Linear(8, 1)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.5, generator=generator)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output."""
        hidden = torch.tanh(self.hidden(torch.log(x + 0.5)))
        output: torch.Tensor = self.head(hidden)
        return output


MODELS: dict[str, Callable[[], Any]] = {
    "log": lambda: lambda X: np.log(X[:, 1]) + X[:, 2],
    "log of a skewed column": lambda: lambda X: np.log(X[:, 2]) * X[:, 1],
    "sqrt": lambda: lambda X: np.sqrt(X[:, 1]) * X[:, 2],
    "exp": lambda: lambda X: np.exp(8 * X[:, 1]) + X[:, 2],
    "lookup": lambda: lambda X: SQUARES[X[:, 0].astype(int)] + X[:, 1],
    "dictionary": lambda: lambda X: np.array([SQUARE_OF[x] for x in X[:, 0]]) + X[:, 1],
    "checks": lambda: checks_its_domain,
    "torch": LogNetwork,
}


@pytest.mark.parametrize("name", MODELS)
def test_functions_are_held_where_the_model_does_not_answer(name: str) -> None:
    X = positive_rows()
    explainer = NObSP(MODELS[name]()).fit(X)
    far = X[:2].copy()
    far[0] = -1e4
    far[1] = 1e4

    explanation = explainer(far)
    curves = explainer.curves()

    assert explainer.explained_[0] > 0.95
    assert np.isfinite(explanation.values).all()
    assert explanation.outside.all()
    for column in ("value", "lower", "upper"):
        assert np.isfinite(curves[column]).all()


def test_beyond_its_domain_a_function_has_the_last_answer() -> None:
    X = positive_rows()
    explainer = NObSP(lambda X: np.log(X[:, 1]) + X[:, 2], interactions=0).fit(X)
    function = explainer.function("x1")

    at_the_end = function([X[:, 1].min()])

    np.testing.assert_allclose(function([-1.0, -1e5]), np.repeat(at_the_end, 2))
    assert function([2.0])[0] > function([1.0])[0]  # there the model is followed


def test_a_row_that_the_model_refuses_leaves_the_others_alone() -> None:
    X = positive_rows()
    explainer = NObSP(checks_its_domain).fit(X)
    rows = X[:5].copy()
    rows[2, 1] = 7.0

    explanation = explainer(rows)

    assert np.isnan(explanation.predictions[2]).all()
    others = [0, 1, 3, 4]
    np.testing.assert_allclose(explanation.predictions[others, 0], checks_its_domain(X[others]))


@pytest.mark.parametrize("interactions", [[("x0", "x1", "x2")], [("x1", "x2")]])
def test_named_interactions_take_limited_domains(interactions: list[tuple[str, ...]]) -> None:
    X = positive_rows(200)
    explainer = NObSP(lambda X: np.sqrt(X[:, 1]) * X[:, 2], interactions=interactions).fit(X)
    far = X[:1].copy()
    far[0, 1] = -3.0

    explanation = explainer(far)

    assert np.isfinite(explanation.values).all()


def test_groups_of_columns_take_limited_domains() -> None:
    X = positive_rows(200)
    features = {"sizes": ["x1", "x2"], "count": ["x0"]}
    frame = {"x0": X[:, 0], "x1": X[:, 1], "x2": X[:, 2]}
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame(frame)
    explainer = NObSP(
        lambda rows: np.log(np.asarray(rows)[:, 1]) + np.asarray(rows)[:, 0], features=features
    ).fit(rows)
    far = rows[:3].copy()
    far.loc[0, "x1"] = -2.0

    explanation = explainer(far)

    assert np.isfinite(explanation.values).all()


def test_preprocessing_that_refuses_values_is_held_too() -> None:
    X = positive_rows()
    model = make_pipeline(FunctionTransformer(np.log1p, validate=True), LinearRegression())
    model.fit(X, np.log1p(X).sum(1))
    explainer = NObSP(model).fit(X)
    function = explainer.function("x1")

    far = function([-50.0, -500.0])

    assert far[0] == pytest.approx(far[1])
    assert function([500.0])[0] > function([5.0])[0]


def test_a_lookup_of_whole_numbers_is_only_asked_for_these() -> None:
    generator = np.random.default_rng(0)
    seasons = {month: np.cos(month) for month in range(12)}
    daylight = {day: np.sin(day / 58) for day in range(365)}
    rows = np.column_stack(
        [
            generator.integers(0, 12, 1500),
            generator.integers(0, 365, 1500),
            generator.normal(size=1500),
        ]
    )

    def model(X: np.ndarray) -> np.ndarray:
        return np.array([seasons[month] * x + daylight[day] for month, day, x in X])

    explainer = NObSP(model).fit(rows[:1000])
    assert ("x0", "x2") in explainer.terms_
    assert explainer.score(rows[1000:]) > 0.99


def test_a_value_inside_the_rows_that_has_no_answer_is_named() -> None:
    X = positive_rows()

    def gap(X: Array) -> Array:
        return np.where(np.abs(X[:, 1] - X[:, 2]) < 1e-3, np.nan, X[:, 1]) + np.where(
            (X[:, 1] < 0.1) & (X[:, 2] > 1.0), np.nan, X[:, 2]
        )

    rows = X[np.isfinite(gap(X))]

    with pytest.raises(UnansweredError, match=r"x1 = 0\.0"):
        NObSP(gap).fit(rows)


def test_a_calibration_row_without_a_finite_output_is_shown() -> None:
    X = positive_rows()
    X[400, 1] = 0.0

    def logarithm(X: Array) -> Array:
        with np.errstate(divide="ignore"):
            logs: Array = np.log(np.abs(X[:, 1]))
        return logs

    with pytest.raises(ValueError, match=r"x1 = 0\. Leave"):
        NObSP(logarithm).fit(X)


def test_rows_that_raise_are_found_in_few_calls() -> None:
    calls = []

    def represent(rows: torch.Tensor) -> torch.Tensor:
        calls.append(len(rows))
        if bool((rows < 0).any()):
            raise KeyError("below zero")
        return rows

    rows = torch.arange(-4.0, 60.0)[:, None].double()

    answers, failure = run_where_answered(represent, rows, width=1, group=4)

    assert isinstance(failure, KeyError)
    assert answers.isnan().flatten().tolist() == [True] * 4 + [False] * 60
    assert len(calls) <= 2 * 4 + 1


def test_what_lies_past_an_unanswered_node_is_not_trusted() -> None:
    answered = np.array([True, False, True, True, False, True])
    held = np.array([2, 2, 2, 3, 3, 3])

    (place,) = last_answered(answered, [held])

    assert place.tolist() == [2, 2, 2, 3, 3, 3]


def test_a_lookup_by_whole_numbers_is_found_at_each_of_them() -> None:
    generator = np.random.default_rng(0)
    entries = generator.normal(size=50)
    rows = np.column_stack([generator.integers(0, 50, 600), generator.normal(size=600)])
    explainer = NObSP(lambda X: entries[X[:, 0].astype(int)] + X[:, 1]).fit(rows)
    assert explainer.explained_[0] > 0.999


def test_a_flag_has_no_points_between_its_values() -> None:
    import lightgbm

    generator = np.random.default_rng(0)
    rows = np.column_stack([generator.random(400) < 0.4, generator.normal(size=400)])
    trees = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1)
    explainer = NObSP(trees.fit(rows, rows[:, 0] + rows[:, 1])).fit(rows)
    curve = explainer.curves()
    assert curve.x[curve.feature == "x0"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("nodes", [1, 3])
def test_background_rows_are_not_written_to(nodes: int) -> None:
    background = torch.arange(8.0, dtype=torch.float64).view(4, 2)
    before = background.clone()
    weight = torch.eye(2, dtype=torch.float64)
    tabulator = Tabulator(lambda rows: rows, background, weight, batch_size=64)
    values = torch.full((nodes, 1), 9.0, dtype=torch.float64)

    means = tabulator.average_rows([1], values)

    assert torch.equal(background, before)
    assert means.tolist() == [[3.0, 9.0]] * nodes


def test_answers_that_overflow_when_added_up_are_answers() -> None:
    large = torch.full((3, 1), 1.7e308, dtype=torch.float64)
    outputs = torch.zeros(2, 3, 1)

    assert answered_nodes(large, outputs).tolist() == [True, True, True]

    large[1] = torch.nan
    assert answered_nodes(large, outputs).tolist() == [True, False, True]


def test_rows_with_missing_numbers_have_background_rows() -> None:
    rows = torch.arange(20.0).view(10, 2)
    rows[::2, 0] = torch.nan

    assert draw_rows(rows, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "model",
    [
        lambda X: np.log(X[:, 0] + X[:, 1]) + X[:, 2],
        lambda X: np.sqrt(X[:, 0] ** 2 + X[:, 1]) + X[:, 2],
    ],
)
def test_functions_of_several_features_that_all_rows_can_have_are_tabulated(
    model: Any, seed: int
) -> None:
    """Background rows are not shifted to where these have no answer beside low values of another feature."""
    X = np.exp(np.random.default_rng(seed).normal(size=(600, 3)))
    explainer = NObSP(model, interactions=0).fit(X)
    explanation = explainer(X[:50])
    assert np.isfinite(explanation.values).all()
    assert_same_to_rounding(
        explanation.base_values + explanation.values.sum(1) + explanation.residual,
        explanation.predictions,
        within=CONTRIBUTIONS,
    )
