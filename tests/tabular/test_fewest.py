"""The fewest features: which can go when the others take over."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nobsp import NObSP
from nobsp.tabular import fewest as fewest_room
from nobsp.tabular.heights import Ridge
from tests.tolerances import COEFFICIENTS, assert_same_to_rounding


def test_the_loss_is_that_of_fitting_the_others_anew() -> None:
    generator = np.random.default_rng(0)
    design = generator.normal(size=(60, 7)) @ generator.normal(size=(7, 7))
    target = generator.normal(size=(60, 2))
    penalties = generator.uniform(0.1, 1, 7)
    prior = generator.normal(size=(7, 2))
    ridge = Ridge.fit(design, target, penalties=penalties, prior=prior)

    gone = [1, 4]
    left = [0, 2, 3, 5, 6]
    anew = Ridge.fit(design[:, left], target, penalties=penalties[left], prior=prior[left])
    without = ridge.without(gone)
    assert_same_to_rounding(without.coefficients[left], anew.coefficients, within=COEFFICIENTS)
    assert (without.coefficients[gone] == 0).all()

    def objective(coefficients: np.ndarray) -> np.ndarray:
        errors = np.square(target - design @ coefficients).sum(0)
        return errors + (penalties[:, None] * np.square(coefficients - prior)).sum(0)

    expected = objective(without.coefficients) - objective(ridge.coefficients)
    assert_same_to_rounding(ridge.loss(gone), expected, within=COEFFICIENTS)
    # One after the other is the same as both at once.
    one_by_one = ridge.without([1]).without([4])
    assert_same_to_rounding(one_by_one.coefficients, without.coefficients, within=COEFFICIENTS)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    a = generator.normal(size=600)
    return pd.DataFrame(
        {
            "a": a,
            "twin": a + 0.01 * generator.normal(size=600),
            "b": generator.normal(size=600),
            "noise": generator.normal(size=600),
        }
    )


def test_of_two_that_say_the_same_one_can_go(table: pd.DataFrame) -> None:
    target = table["a"] + table["twin"] + table["b"]
    model = LinearRegression().fit(table, target)
    explainer = NObSP(model, interactions=0).fit(table)
    fewest = explainer.fewest_features(share=0.99)
    assert len(fewest.features) == 2
    assert "b" in fewest.features
    assert fewest.share >= 0.99
    assert set(fewest.features) | set(fewest.dropped) == set(table.columns)

    fresh = table.sample(frac=1, replace=True, random_state=1)
    kept = fresh[list(fewest.features)]
    functions = fewest.functions
    assert functions.fidelity(kept, model.predict(fresh)) > 0.99
    assert functions.former is not None

    frame = fewest.to_frame()
    assert frame["features"].tolist() == [4, 3, 2, 1]
    assert frame["explained"].iloc[0] == pytest.approx(1.0, abs=1e-3)
    assert frame["explained"].iloc[-1] < 0.9


def test_everything_stays_where_everything_is_needed(table: pd.DataFrame) -> None:
    independent = table[["a", "b", "noise"]]
    model = LinearRegression().fit(independent, independent.sum(axis=1))
    explainer = NObSP(model, interactions=0).fit(independent)
    fewest = explainer.fewest_features(X=independent)
    assert fewest.features == ("a", "b", "noise")
    assert fewest.functions.history == ()
    with pytest.raises(ValueError, match="share"):
        explainer.fewest_features(share=1.5)
    with pytest.raises(ValueError, match="rows"):
        explainer.fewest_features(X=independent.head(5))


def test_none_are_enough_where_all_together_explain_nothing(table: pd.DataFrame) -> None:
    numbers = table[["a"]].to_numpy()
    functions = NObSP(lambda X: X, interactions=0).fit(numbers).compile()
    # What is seen and what is held out contradict each other.
    contradiction = np.where(fewest_room._hold_out(len(numbers))[:, None], -9 * numbers, numbers)
    with pytest.raises(ValueError, match="X is explained with an R² of -"):
        fewest_room.find_fewest(functions, {0: numbers[:, 0]}, contradiction, share=0.9)


def test_a_column_that_the_pipeline_makes_constant_need_not_be_there(table: pd.DataFrame) -> None:
    rows = table[["a", "b"]].assign(constant=1.0)
    scaled = make_column_transformer((StandardScaler(), ["a", "b", "constant"]))
    model = make_pipeline(scaled, LinearRegression()).fit(rows, rows["a"] + rows["b"])
    explainer = NObSP(model, interactions=0).fit(rows)
    fewest = explainer.fewest_features(X=rows)
    assert fewest.dropped == ("constant",)
    fewest.functions.predict(rows[list(fewest.features)])

    functions = explainer.compile()
    smaller = functions.drop("constant", rows)
    predictions = smaller.predict(rows.drop(columns="constant"))
    assert_same_to_rounding(predictions, functions.predict(rows))
    with pytest.raises(ValueError, match="'b'"):
        functions.predict(rows.drop(columns="b"))


def test_a_constant_model_is_said_to_be_constant(table: pd.DataFrame) -> None:
    model = LinearRegression().fit(table, np.full(len(table), 3.0))
    fewest = NObSP(model, interactions=0).fit(table).fewest_features(X=table)
    assert fewest.features == ()
    assert "constant" in repr(fewest)
