"""Tree models: the library's own margins, curves that step exactly at its thresholds, missing numbers and names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

from nobsp import Functions, NObSP
from nobsp.models import adapt
from nobsp.models.trees import both_sides
from tests.tolerances import SINGLE, assert_same_to_rounding

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(400, 4)).round(2)
NUMBER = np.where(X[:, 0] > 0.3, 2.0, 0.0) + X[:, 1] * (X[:, 2] > 0) + 0.1 * X[:, 3]
LABEL = np.digitize(NUMBER, [0.0, 1.5])


def boosters(kind: str) -> Any:
    if kind == "xgboost":
        xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")
        return xgb.XGBRegressor(n_estimators=40, max_depth=3), xgb.XGBClassifier(
            n_estimators=20, max_depth=3
        )
    if kind == "lightgbm":
        lgb = pytest.importorskip("lightgbm", reason="LightGBM is not installed")
        given = {"n_estimators": 40, "num_leaves": 7, "verbose": -1, "n_jobs": 1}
        return lgb.LGBMRegressor(**given), lgb.LGBMClassifier(**given)
    if kind == "catboost":
        cat = pytest.importorskip("catboost", reason="CatBoost is not installed")
        given = {
            "iterations": 40,
            "depth": 3,
            "verbose": 0,
            "thread_count": 1,
            "allow_writing_files": False,
        }
        return cat.CatBoostRegressor(**given), cat.CatBoostClassifier(**given)
    return (
        HistGradientBoostingRegressor(max_iter=40, max_leaf_nodes=7),
        HistGradientBoostingClassifier(max_iter=20, max_leaf_nodes=7),
    )


KINDS = ["xgboost", "lightgbm", "catboost", "hist"]


def margins(model: Any, rows: Any) -> Any:
    return adapt(model).module(torch.from_numpy(rows)).detach().numpy()


def margin_of(model: Any, rows: Any) -> Any:
    """The library's own."""
    if hasattr(model, "get_booster"):
        return model.predict(rows, output_margin=True)
    if type(model).__module__.startswith("lightgbm"):
        return model.predict(rows, raw_score=True)
    if type(model).__module__.startswith("catboost"):
        return model.predict(rows, prediction_type="RawFormulaVal")
    return model.decision_function(rows) if hasattr(model, "classes_") else model.predict(rows)


def centred(values: Any) -> Any:
    return values - values.mean(1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
def test_margins_are_the_librarys_own(kind: str) -> None:
    regressor, classifier = boosters(kind)
    regressor.fit(X, NUMBER)
    assert_same_to_rounding(margins(regressor, X)[:, 0], margin_of(regressor, X), within=SINGLE)
    assert adapt(regressor).link == "identity"
    classifier.fit(X, LABEL)
    assert_same_to_rounding(margins(classifier, X), margin_of(classifier, X), within=SINGLE)
    assert (adapt(classifier).link, adapt(classifier).output_names) == ("softmax", ("0", "1", "2"))
    found = torch.softmax(torch.from_numpy(margins(classifier, X)), 1).numpy()
    assert_same_to_rounding(found, classifier.predict_proba(X), within=SINGLE)


@pytest.mark.parametrize("kind", KINDS)
def test_two_classes_have_the_log_odds_of_the_second(kind: str) -> None:
    names = [0, 1] if kind == "xgboost" else ["no", "yes"]  # XGBoost takes numbers only
    classifier = boosters(kind)[1].fit(X, np.array(names)[(LABEL > 0).astype(int)])
    found = 1 / (1 + np.exp(-margins(classifier, X)[:, 0]))
    assert_same_to_rounding(found, classifier.predict_proba(X)[:, 1], within=SINGLE)
    assert (adapt(classifier).link, adapt(classifier).output_names) == ("sigmoid", (str(names[1]),))


@pytest.mark.parametrize(
    "model",
    [
        RandomForestRegressor(12, max_depth=5),
        RandomForestClassifier(12, max_depth=5),
        ExtraTreesClassifier(12, max_depth=5),
        GradientBoostingRegressor(n_estimators=12),
        GradientBoostingClassifier(n_estimators=12),
        DecisionTreeRegressor(max_depth=5),
    ],
)
def test_scikit_learns_trees(model: Any) -> None:
    classifier = hasattr(model, "predict_proba")
    model.fit(X, LABEL if classifier else NUMBER)
    if isinstance(model, GradientBoostingClassifier):
        expected = model.decision_function(X)
    else:
        expected = model.predict_proba(X) if classifier else model.predict(X)[:, None]
    assert_same_to_rounding(margins(model, X), expected)
    explanation = NObSP(model, interactions=0).fit(X)(X[:20])
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    assert_same_to_rounding(account, explanation.predictions)


@pytest.mark.parametrize("kind", [*KINDS, "forest"])
def test_curves_are_constant_between_thresholds_and_step_at_them(kind: str) -> None:
    """Between two thresholds of a feature its curve is flat, up to the very numbers next to the thresholds."""
    model = (RandomForestRegressor(10, max_depth=4) if kind == "forest" else boosters(kind)[0]).fit(
        X, NUMBER
    )
    explainer = NObSP(model, interactions=0).fit(X)
    steps = adapt(model).steps[0]
    curve = explainer.function("x0")
    inner = (steps[:-1, 1] + steps[1:, 0]) / 2
    assert_same_to_rounding(curve(steps[:-1, 1]), curve(inner))
    assert_same_to_rounding(curve(steps[1:, 0]), curve(inner))
    # The model itself is on either side of a threshold what it is in the cells beside it.
    row = np.repeat(X[:1], len(steps), 0)
    below, above, left, right = row.copy(), row.copy(), row[1:].copy(), row[1:].copy()
    below[:, 0], above[:, 0], left[:, 0], right[:, 0] = steps[:, 0], steps[:, 1], inner, inner
    assert_same_to_rounding(margins(model, above)[:-1], margins(model, left))
    assert_same_to_rounding(margins(model, below)[1:], margins(model, right))
    assert (np.abs(margins(model, above) - margins(model, below)).max(1) > 0).any()


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("below", [True, False])
def test_both_sides_of_a_threshold_are_neighbours(single: bool, below: bool) -> None:
    thresholds = np.array([0.1, -0.3, 1e-3, 1234.5678, 0.0])
    sides = both_sides(thresholds, single=single, below=below)
    kind = np.float32 if single else np.float64
    for (low, high), t in zip(sides, np.sort(thresholds), strict=True):
        goes_up = (lambda x, t=t: kind(x) >= t) if below else (lambda x, t=t: kind(x) > t)
        assert goes_up(high)
        assert not goes_up(low)
        assert high == np.nextafter(low, np.inf) or t == 0


SCALERS = [StandardScaler(), MinMaxScaler((-3, 1)), RobustScaler(), MaxAbsScaler()]


@pytest.mark.parametrize("frame", [False, True])
@pytest.mark.parametrize(
    "scalers", [*([scaler] for scaler in SCALERS), SCALERS], ids=lambda scalers: str(len(scalers))
)
def test_thresholds_behind_scalers_are_found_in_the_callers_own_numbers(
    scalers: list[Any], frame: bool
) -> None:
    rows: Any = X * [1e-3, 1.0, 40.0, 1.0] + [0.0, 0.0, 1e4, 0.0]
    rows = pytest.importorskip("pandas").DataFrame(rows, columns=list("abcd")) if frame else rows
    model = make_pipeline(
        *scalers, HistGradientBoostingRegressor(max_iter=20, max_leaf_nodes=7)
    ).fit(rows, NUMBER)
    adapted, inner = adapt(model), adapt(model[-1]).steps
    assert {k: len(steps) for k, steps in adapted.steps.items()} == {
        k: len(steps) for k, steps in inner.items()
    }
    for k, steps in adapted.steps.items():
        for side, place in ((0, "below"), (1, "above")):
            at = np.zeros((len(steps), 4))
            at[:, k] = steps[:, side]
            scaled = adapted.encode(at)[:, k]
            assert (
                (scaled <= inner[k][:, 0]).all()
                if place == "below"
                else (scaled >= inner[k][:, 1]).all()
            )
        assert (
            (steps[:, 1] == np.nextafter(steps[:, 0], np.inf)) | (np.abs(steps[:, 0]) < 1e-190)
        ).all()
    explainer = NObSP(model, interactions=0).fit(rows)
    steps, curve = adapted.steps[0], explainer.function("a" if frame else "x0")
    inner_points = (steps[:-1, 1] + steps[1:, 0]) / 2
    assert_same_to_rounding(curve(steps[:-1, 1]), curve(inner_points))
    assert_same_to_rounding(curve(steps[1:, 0]), curve(inner_points))


@pytest.mark.parametrize("kind", [*KINDS, "svr"])
def test_a_table_of_whole_numbers_holds_numbers_and_no_codes(kind: str) -> None:
    """As it does where one other column has fractions."""
    whole = np.random.default_rng(0).integers(0, 2000, size=(600, 3))
    answers = np.sin(whole[:, 0] / 300) + whole[:, 1] / 1000
    model = SVR() if kind == "svr" else boosters(kind)[0]
    model.fit(whole[:200], answers[:200])
    explainer = NObSP(model, interactions=0).fit(whole[200:400])
    of_floats = NObSP(model, interactions=0).fit(whole[200:400].astype(np.float64))

    explanation = explainer(whole[400:])

    assert explanation.outside.mean() < 0.05
    expected = of_floats(whole[400:].astype(np.float64))
    assert_same_to_rounding(explanation.values, expected.values, within=SINGLE)


@pytest.mark.parametrize("kind", ["lightgbm", "catboost"])
def test_codes_in_a_table_of_whole_numbers_are_levels_and_its_numbers_are_not(kind: str) -> None:
    generator = np.random.default_rng(0)
    whole = np.column_stack([generator.integers(0, 5, 900), generator.integers(0, 900, 900)])
    answers = np.array([0.0, 3.0, -1.0, 2.0, 5.0])[whole[:, 0]] + whole[:, 1] / 300
    codes = {"categorical_feature": [0]} if kind == "lightgbm" else {"cat_features": [0]}
    model = boosters(kind)[0].fit(whole[:400], answers[:400], **codes)
    explainer = NObSP(model).fit(whole[400:600])

    explanation = explainer(whole[600:])

    assert explanation.outside.mean() < 0.05
    assert_same_to_rounding(
        explanation.predictions[:, 0], model.predict(whole[600:]), within=SINGLE
    )
    curve = explainer.curves().query("feature == 'x0'")
    assert len(curve) == 5


@pytest.mark.parametrize("code", [np.nan, 1.5])
def test_codes_that_are_no_whole_numbers_are_refused_as_catboost_does(code: float) -> None:
    generator = np.random.default_rng(0)
    whole = np.column_stack([generator.integers(0, 5, 400), generator.integers(0, 900, 400)])
    model = boosters("catboost")[0].fit(whole, whole[:, 0] + whole[:, 1] / 300, cat_features=[0])
    broken = whole.astype(np.float64)
    explainer = NObSP(model).fit(broken)
    broken[3, 0] = code

    explanation = explainer(broken)
    assert np.flatnonzero(np.isnan(explanation.predictions[:, 0])).tolist() == [3]
    with pytest.raises(ValueError, match="must have whole numbers"):
        NObSP(model).fit(broken)


def test_thresholds_behind_anything_else_than_scalers_stay_unknown() -> None:
    model = make_pipeline(StandardScaler(), PCA(4), HistGradientBoostingRegressor(max_iter=5)).fit(
        X, NUMBER
    )
    assert adapt(model).steps == {}
    clipped = make_pipeline(MinMaxScaler(clip=True), HistGradientBoostingRegressor(max_iter=5)).fit(
        X, NUMBER
    )
    assert adapt(clipped).steps.keys() == adapt(clipped[-1]).steps.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_missing_numbers_have_a_value_of_their_own(kind: str) -> None:
    rows = X.copy()
    rows[::5, 0] = np.nan
    model = boosters(kind)[0].fit(rows, np.where(np.isnan(rows[:, 0]), 5.0, NUMBER))
    explainer = NObSP(model, interactions=0).fit(rows)
    explanation = explainer(rows)
    assert_same_to_rounding(explanation.predictions[:, 0], margin_of(model, rows), within=SINGLE)
    gone = np.isnan(rows[:, 0])
    own = explanation.values[:, 0, 0]
    assert own[gone].min() > own[~gone].max()
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    assert_same_to_rounding(account, explanation.predictions)


def test_missing_numbers_go_through_a_scaler(tmp_path: Path) -> None:
    rows = X.copy()
    rows[::5, 0] = np.nan
    model = make_pipeline(StandardScaler(), HistGradientBoostingRegressor(max_iter=20))
    model.fit(rows, np.where(np.isnan(rows[:, 0]), 5.0, NUMBER))
    explainer = NObSP(model, interactions=0).fit(rows)
    explainer.save(tmp_path / "kept")
    for found in (explainer, NObSP.load(tmp_path / "kept", model)):
        explanation = found(rows)
        assert_same_to_rounding(explanation.predictions[:, 0], model.predict(rows))
        account = explanation.base_values + explanation.values.sum(1) + explanation.residual
        assert_same_to_rounding(account, explanation.predictions)
        own, gone = explanation.values[:, 0, 0], np.isnan(rows[:, 0])
        assert own[gone].min() > own[~gone].max()
    strict = make_pipeline(StandardScaler(), LinearRegression()).fit(X, NUMBER)
    with pytest.raises(ValueError, match="NaN in row 0, column 0"):
        NObSP(strict).fit(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_categories_are_levels_by_name(kind: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    town = np.array(["oslo", "rome", "wien"])[LABEL]
    frame = pandas.DataFrame({"size": X[:, 0], "town": town})
    if kind != "catboost":
        frame["town"] = frame["town"].astype("category")
    model = boosters(kind)[0]
    if kind == "xgboost":
        model.set_params(enable_categorical=True)
    if kind == "hist":
        model.set_params(categorical_features="from_dtype")
    target = NUMBER + 3.0 * (town == "rome")
    model.fit(frame, target, **({"cat_features": ["town"]} if kind == "catboost" else {}))
    explainer = NObSP(model).fit(frame)
    explanation = explainer(frame)
    assert_same_to_rounding(explanation.predictions[:, 0], margin_of(model, frame), within=SINGLE)
    values = explainer.function("town")(["oslo", "rome", "wien"])
    assert values[1] == values.max()
    explainer.save(tmp_path / "trees.safetensors")
    again = NObSP.load(tmp_path / "trees.safetensors", model)(frame)
    assert_same_to_rounding(again.values, explanation.values)


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm", "hist"])
def test_missing_names_are_a_level_of_their_own(kind: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    town = np.array(["oslo", "rome", "wien"], dtype=object)[LABEL]
    town[::6] = np.nan
    frame = pandas.DataFrame({"size": X[:, 0], "town": pandas.Categorical(town)})
    model = boosters(kind)[0]
    if kind == "xgboost":
        model.set_params(enable_categorical=True)
    if kind == "hist":
        model.set_params(categorical_features="from_dtype")
    gone = frame["town"].isna().to_numpy()
    model.fit(frame, X[:, 0] + 3.0 * (town == "rome") - 4.0 * gone)
    explainer = NObSP(model, interactions=0).fit(frame)
    explanation = explainer(frame)
    assert explainer.functions_.features[1].labels == ("oslo", "rome", "wien", "missing")
    assert explainer.explained_[0] > 0.9
    assert not explanation.outside[:, 1].any()
    explainer.compile().save(tmp_path / "small.safetensors")
    assert_same_to_rounding(
        Functions.load(tmp_path / "small.safetensors")(frame).values, explanation.values
    )
    assert_same_to_rounding(explanation.predictions[:, 0], margin_of(model, frame), within=SINGLE)
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    assert_same_to_rounding(account, explanation.predictions)
    own = explanation.values[:, 1, 0]
    assert own[gone].max() < own[~gone].min()


def test_an_ebm_comes_back_as_its_own_functions() -> None:
    glassbox = pytest.importorskip("interpret.glassbox", reason="interpret is not installed")
    model = glassbox.ExplainableBoostingRegressor(
        interactions=0, outer_bags=2, max_rounds=200, n_jobs=1
    )
    model.fit(X, NUMBER)
    explanation = NObSP(model, interactions=0).fit(X)(X)
    own = model.eval_terms(X)
    assert_same_to_rounding(explanation.values[:, :, 0], own - own.mean(0), within=1e-9)
    assert_same_to_rounding(
        explanation.residual, np.zeros_like(explanation.residual), within=1e-9, size=1.0
    )
    assert_same_to_rounding(explanation.predictions[:, 0], model.predict(X))


def test_an_ebms_pairs_are_explained_as_well() -> None:
    glassbox = pytest.importorskip("interpret.glassbox", reason="interpret is not installed")
    model = glassbox.ExplainableBoostingRegressor(
        interactions=1, outer_bags=2, max_rounds=200, n_jobs=1
    )
    model.fit(X, X[:, 0] * X[:, 1])
    explainer = NObSP(model).fit(X)
    assert explainer.explained_[0] > 0.98
    assert explainer.functions_.feature_names[:2] in explainer.terms_


def test_files_know_their_model(tmp_path: Path) -> None:
    first, second = (boosters("hist")[0].fit(X, y) for y in (NUMBER, NUMBER + X[:, 3]))
    explainer = NObSP(first, interactions=0).fit(X)
    explainer.save(tmp_path / "trees.safetensors")
    again = NObSP.load(tmp_path / "trees.safetensors", first)
    assert_same_to_rounding(again(X).values, explainer(X).values)
    with pytest.raises(ValueError, match="not the one this explainer was calibrated on"):
        NObSP.load(tmp_path / "trees.safetensors", second)


def test_more_thresholds_than_tables_hold_are_said() -> None:
    rows = np.random.default_rng(1).normal(size=(3000, 1))
    model = RandomForestRegressor(5, random_state=0).fit(rows, np.sin(3 * rows[:, 0]))
    explainer = NObSP(model).fit(rows)
    assert "thresholds" in {finding.code for finding in explainer.health().findings}
    assert explainer.explained_[0] > 0.999


def test_what_a_sparse_matrix_lacks_is_missing_to_xgboost_also_when_it_is_explained(
    tmp_path: Path,
) -> None:
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder

    xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "kind": generator.choice(list("abcdefgh"), 400),
            "size": generator.normal(size=400) * (generator.random(400) < 0.3),
        }
    )
    labels = ((frame["kind"] < "d") | (frame["size"] > 0.5)).astype(int)
    encode = make_column_transformer(
        (OneHotEncoder(), ["kind"]), remainder="passthrough", sparse_threshold=1.0
    )
    model = make_pipeline(encode, xgboost.XGBClassifier(n_estimators=8, n_jobs=1))
    model.fit(frame, labels)
    explainer = NObSP(model, interactions=0).fit(frame)
    explainer.save(tmp_path / "e.nobsp")
    for fitted in (explainer, NObSP.load(tmp_path / "e.nobsp", model)):
        explained = fitted(frame).to_probability().predictions[:, 0]
        np.testing.assert_allclose(explained, model.predict_proba(frame)[:, 1], atol=1e-6)
