"""Regions where functions fail are found where they were planted, measured on other rows, and not made up."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import nobsp
from nobsp.tabular.weak_spots import Condition


def rows(seed, n=3000):
    return np.random.default_rng(seed).uniform(-1, 1, size=(n, 4))


def in_region(X):
    return (X[:, 0] > 0.3) & (X[:, 1] < 0.0)


def planted(X):
    wave = 3 * np.sin(5 * X[:, 2]) * np.sign(X[:, 3])
    return np.sin(2 * X[:, 0]) + X[:, 1] + np.where(in_region(X), wave, 0.0)


@pytest.fixture(scope="module")
def explainer():
    return nobsp.NObSP(planted, interactions=0).fit(rows(0, 1500))


def test_a_planted_region_is_found_and_measured_on_other_rows(explainer):
    X = rows(1)
    spots = explainer.weak_spots(X)
    spot = spots[0]
    inside = np.zeros(len(X), dtype=bool)
    inside[spot.rows] = True
    overlap = (inside & in_region(X)).sum() / (inside | in_region(X)).sum()
    assert overlap > 0.7
    assert {condition.feature for condition in spot.conditions} == {"x0", "x1"}
    assert set(spot.interaction) & {"x2", "x3"}

    # By hand, on all rows of the region: as on the half that it was measured on, but for chance.
    ex = explainer(X)
    residual = ex.residual[inside, 0]
    predictions = ex.predictions[inside, 0]
    share = 1 - np.square(residual).sum() / np.square(predictions - predictions.mean()).sum()
    assert spot.explained == pytest.approx(share, abs=0.1)
    assert spot.share == pytest.approx(inside.mean(), abs=0.02)


def test_health_tells_of_it_only_where_rows_are_given(explainer):
    codes = [finding.code for finding in explainer.health(rows(1)).findings]
    assert "weak_spot" in codes
    assert "weak_spot" not in [finding.code for finding in explainer.health().findings]


def waves(X):
    """Three outputs, each with regions of larger waves of other two features than elsewhere."""
    shape = np.sin(7 * X[:, 2]) * np.sign(X[:, 3])
    sizes = [
        np.exp(3 * np.sin(9 * X[:, 0])),
        np.exp(2 * np.sin(6 * X[:, 0]) + 2 * np.cos(6 * X[:, 1])),
        np.where(np.sin(9 * X[:, 0]) > 0.3, 5.0, 0.5),
    ]
    return np.column_stack([shape * size for size in sizes])


def test_health_tells_of_few_and_how_many_more_there_are():
    explainer = nobsp.NObSP(waves, interactions=0)
    with pytest.warns(UserWarning, match="worse than predicting the mean"):
        explainer.fit(rows(4, 2000))
    X = rows(5, 6000)
    listed = explainer.weak_spots(X, below=0.5)
    assert len(listed) > 3

    told = [finding for finding in explainer.health(X).findings if finding.code == "weak_spot"]
    assert len(told) == 3
    assert [finding.subject for finding in told] == [spot.output for spot in listed[:3]]
    assert told[0].message == listed[0].message
    assert f"not listed: {len(listed) - 3}" in told[-1].message


def test_nothing_is_named_where_functions_are_all_there_is():
    X = rows(2)
    additive = nobsp.NObSP(lambda X: np.sin(3 * X[:, 0]) + np.abs(X[:, 1]), interactions=0).fit(X)
    assert additive.weak_spots(rows(3)) == ()


def test_a_region_of_flat_predictions_is_no_weak_spot():
    # Hardly any variance below zero, the same errors everywhere: a low R² there is nobody's fault.
    def model(X):
        return np.maximum(X[:, 0], 0) * 5 + 0.02 * np.sin(40 * X[:, 1] * X[:, 2])

    explainer = nobsp.NObSP(model, interactions=0).fit(rows(4, 1000))
    assert explainer.weak_spots(rows(5, 2000), below=0.5) == ()


def test_levels_are_named():
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": generator.choice(["Oslo", "Rome", "Bonn", "Lima"], 2500),
            "a": generator.normal(size=2500),
            "b": generator.normal(size=2500),
        }
    )

    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    class Model(RegressorMixin, BaseEstimator):
        def fit(self, X, y):
            self.is_fitted_ = True
            return self

        def predict(self, X):
            return X[:, -2] + 3 * X[:, 3] * np.sign(X[:, -1] * X[:, -2])

    encode = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    model = make_pipeline(encode, Model()).fit(frame, frame["a"])
    spots = nobsp.NObSP(model, interactions=0).fit(frame).weak_spots(frame)
    levels = [c.levels for c in spots[0].conditions if c.feature == "city"]
    assert levels == [("Rome",)]


def test_too_few_rows_are_refused(explainer):
    with pytest.raises(ValueError, match="200"):
        explainer.weak_spots(rows(6, 100))
    with pytest.raises(ValueError, match="least_share"):
        explainer.weak_spots(rows(6, 300), least_share=2.0)


def test_what_is_not_found_is_said_not_to_be():
    def six_together(X):
        wave = 2 * np.sin(9 * X[:, 2]) * np.sign(X[:, 3] * X[:, 4] * X[:, 5])
        return np.sin(2 * X[:, 0]) + X[:, 1] + np.where(in_region(X), wave, 0.0)

    draw = np.random.default_rng(3).uniform
    explainer = nobsp.NObSP(six_together, interactions=0).fit(draw(-1, 1, size=(1000, 6)))
    spot = explainer.weak_spots(draw(-1, 1, size=(3000, 6)))[0]
    assert {condition.feature for condition in spot.conditions} == {"x0", "x1"}
    assert spot.interaction == ()
    assert "No interaction" in spot.message


def test_a_region_of_missing_numbers_only_says_so() -> None:
    assert str(Condition("age", above=float("inf"), with_missing=True)) == "age missing"
    assert str(Condition("age", above=7.0, with_missing=True)) == "age > 7 or missing"


def test_a_region_of_all_known_numbers_says_so() -> None:
    X = rows(4)
    X[np.random.default_rng(4).random(len(X)) < 0.6, 0] = np.nan

    def waves_where_known(X):
        wave = 3 * np.sin(7 * X[:, 1]) * np.sign(X[:, 2])
        return X[:, 3] + np.where(np.isnan(X[:, 0]), 0.0, wave)

    [spot, *_] = nobsp.NObSP(waves_where_known, interactions=0).fit(X).weak_spots(X)
    assert "x0 not missing" in spot.message


def test_features_that_the_model_does_not_use_are_not_named():
    """Of some forty small trees, the best one gains something on a few rows by chance."""

    def model(X):
        return X[:, 0] + np.sin(5 * (X[:, 0] + X[:, 1]))

    named = set()
    for seed in range(3):
        generator = np.random.default_rng(seed)
        explainer = nobsp.NObSP(model, interactions=[("x0", "x1")])
        explainer.fit(generator.normal(size=(800, 8)))
        for spot in explainer.weak_spots(generator.normal(size=(1500, 8)), below=0.7):
            named |= set(spot.interaction)
    assert named <= {"x0", "x1"}


def test_a_pair_that_is_fitted_too_coarsely_is_named_without_a_third_feature():
    def model(X):
        return (np.floor(2 * X[:, 0]) + np.floor(2 * X[:, 1])) % 2

    generator = np.random.default_rng(32)
    shared = generator.normal(size=(9500, 1))
    table = 0.6**0.5 * shared + 0.4**0.5 * generator.normal(size=(9500, 8))
    explainer = nobsp.NObSP(model, interactions=[("x0", "x1")]).fit(table[:1500])
    named = [
        spot for spot in explainer.weak_spots(table[1500:], below=0.7) if len(spot.interaction) > 1
    ]
    assert named
    for spot in named:
        assert set(spot.interaction) == {"x0", "x1"}
        assert spot.is_fitted
        assert "interactions=" not in spot.message


def test_nothing_is_searched_where_every_feature_is_a_group(tmp_path):
    """Pages and health search too, and must not fail for that."""
    generator = np.random.default_rng(0)
    table = pd.DataFrame(generator.normal(size=(600, 4)), columns=list("abcd"))

    def model(X):
        rows = np.asarray(X)
        return np.sin(9 * rows[:, 0]) * rows[:, 1] + rows[:, 2]

    groups = {"first": ["a", "b"], "second": ["c", "d"]}
    explainer = nobsp.NObSP(model, features=groups, interactions=0).fit(table)
    assert explainer.weak_spots(table) == ()
    assert nobsp.report(explainer(table), tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("move", "edge"),
    [
        (lambda x: 1.7e9 + 60 * x, 1.7e9 + 18),  # moments of two minutes, in seconds since 1970
        (lambda x: np.where(x > 0.9, 1e300, x), 0.3),
    ],
    ids=["far from zero", "beyond single precision"],
)
def test_regions_are_found_by_numbers_that_trees_cannot_hold(move, edge):
    """Trees take single precision: such columns were all alike to it, or refused."""

    def model(X):
        wave = 3 * np.sin(5 * X[:, 2]) * np.sign(X[:, 3])
        return X[:, 1] + np.where(X[:, 0] > edge, wave, 0.0)

    calibration, others = rows(0, 1500), rows(1)
    for table in (calibration, others):
        table[:, 0] = move(table[:, 0])

    spots = nobsp.NObSP(model, interactions=0).fit(calibration).weak_spots(others)

    (limit,) = (condition for condition in spots[0].conditions if condition.feature == "x0")
    width = np.ptp(others[others[:, 0] < 1e300, 0])
    assert limit.above == pytest.approx(edge, abs=0.05 * width)
    assert (others[spots[0].rows, 0] > limit.above).all()
