"""Missing numbers: known where they were calibrated, and in the residual where they were not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from nobsp import NObSP, plots
from nobsp.tabular.health import ExplainedWorseWarning
from tests.tolerances import SINGLE, SUMS, assert_same_to_rounding

Array = NDArray[np.float64]
GENERATOR = np.random.default_rng(0)
COMPLETE = GENERATOR.normal(size=(900, 3))
WITH_GAPS = np.where(GENERATOR.random(COMPLETE.shape) < 0.1, np.nan, COMPLETE)


def answer(X: Array) -> Array:
    """A model that takes missing numbers: the first counts as five."""
    first: Array = np.where(np.isnan(X[:, 0]), 5.0, 3.0 * X[:, 0])
    return first + np.nan_to_num(X[:, 1]) * np.nan_to_num(X[:, 2])


def boosted() -> Any:
    """Trees that were trained on rows with gaps."""
    xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    return xgb.XGBRegressor(n_estimators=30, max_depth=4, n_jobs=1).fit(
        WITH_GAPS, answer(WITH_GAPS)
    )


def test_a_calibrated_missing_number_is_inside() -> None:
    explanation = NObSP(answer).fit(WITH_GAPS)(WITH_GAPS)

    assert not explanation.outside.any()
    assert explanation.explained()[0] > 0.98


def test_an_infinite_number_is_outside_although_missing_ones_were_calibrated() -> None:
    explainer = NObSP(answer).fit(WITH_GAPS)
    rows = COMPLETE[:3].copy()
    rows[1, 0] = np.inf

    assert explainer.compile()(rows).outside[1].tolist() == [True, False, False]


def test_curves_have_a_row_for_a_missing_number() -> None:
    curves = NObSP(answer).fit(WITH_GAPS).curves()
    row = curves[(curves["feature"] == "x0") & (curves["level"] == "missing")]

    assert len(row) == 1
    assert np.isnan(row["x"]).all()
    known = answer(np.array([[np.nan, 0.0, 0.0]]))[0] - answer(WITH_GAPS).mean()
    assert float(row["value"].iloc[0]) == pytest.approx(known, abs=0.1)
    assert float(row["lower"].iloc[0]) <= float(row["value"].iloc[0])


def test_without_missing_numbers_curves_have_none() -> None:
    curves = NObSP(answer).fit(COMPLETE).curves()

    assert np.isfinite(curves["x"]).all()


def test_a_missing_number_has_a_dot_beside_its_curve() -> None:
    axes = plots.curves(NObSP(answer).fit(WITH_GAPS), "x0")

    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels[-1] == "missing"
    axes.figure.clf()


def test_a_missing_number_that_nobody_calibrated_is_in_the_residual() -> None:
    model = boosted()
    explainer = NObSP(model).fit(COMPLETE)
    gaps = np.isnan(WITH_GAPS)

    with pytest.warns(ExplainedWorseWarning):
        explanation = explainer(WITH_GAPS)

    assert_same_to_rounding(explanation.predictions[:, 0], model.predict(WITH_GAPS), within=SINGLE)
    total = explanation.base_values + explanation.values.sum(1) + explanation.residual
    assert_same_to_rounding(total, explanation.predictions, within=SUMS)
    mains = [explanation.terms.index((f"x{k}",)) for k in range(3)]
    np.testing.assert_array_equal(explanation.values[:, mains, 0][gaps], 0.0)
    np.testing.assert_array_equal(explanation.outside[gaps], True)


def test_an_indicator_of_missing_numbers_that_nobody_calibrated_is_in_the_residual() -> None:
    """The column that says so belongs to no feature where calibration saw none missing."""
    imputer = SimpleImputer(add_indicator=True)
    model = make_pipeline(imputer, LinearRegression()).fit(WITH_GAPS, answer(WITH_GAPS))
    explainer = NObSP(model).fit(COMPLETE)
    row = COMPLETE[:1].copy()
    row[0, 0] = np.nan

    explanation = explainer(row)

    assert explanation.outside[0].tolist() == [True, False, False]
    assert explanation.values[0, explanation.terms.index(("x0",)), 0] == 0.0
    assert abs(explanation.residual[0, 0]) > 1.0
    curves = explainer.curves()
    assert not (curves["level"] == "missing").any()


def test_a_row_of_nothing_but_missing_numbers_has_its_prediction() -> None:
    model = boosted()
    nothing = np.full((1, 3), np.nan)

    explanation = NObSP(model).fit(COMPLETE)(nothing)

    assert_same_to_rounding(explanation.predictions[:, 0], model.predict(nothing), within=SINGLE)


def test_one_missing_number_changes_no_ranking() -> None:
    explainer = NObSP(answer).fit(COMPLETE)
    rows = COMPLETE[:100].copy()
    rows[7, 0] = np.nan

    explanation = explainer(rows)

    assert explanation.top(1).terms == (("x0",),)
    assert "strongest: x0" in repr(explanation)
    assert explanation.top(2).terms == explainer(COMPLETE[:100]).top(2).terms


def test_numbers_that_are_none_contribute_nothing_to_rows_without_a_prediction() -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    explainer = NObSP(torch.nn.Linear(2, 1), interactions=0).fit(X)

    explanation = explainer(np.array([[np.nan, 1.0], [np.inf, 1.0], [0.5, 1.0]]))

    assert explanation.values[:2, 0].tolist() == [[0.0], [0.0]]
    assert np.isnan(explanation.predictions[:, 0]).tolist() == [True, True, False]
    assert np.isnan(explanation.residual[:, 0]).tolist() == [True, True, False]


def test_a_number_that_is_one_or_missing_has_its_effect() -> None:
    """Such a column is not constant, though all of its numbers are equal."""
    flag = np.where(GENERATOR.random(900) < 0.4, 1.0, np.nan)
    rows = np.stack([COMPLETE[:, 0], flag], 1)

    def model(X: Array) -> Array:
        return X[:, 0] + np.where(np.isnan(X[:, 1]), -2.0, X[:, 1])

    explainer = NObSP(model, interactions=0).fit(rows)
    explanation = explainer(rows)
    assert not explanation.outside.any()
    assert explanation.explained()[0] > 0.999
    assert "constant" not in {finding.code for finding in explainer.health().findings}
    curve = explainer.curves().query("feature == 'x1'")
    assert curve["level"].tolist() == ["", "missing"]
    assert np.ptp(curve["value"]) == pytest.approx(3.0, abs=0.01)


@pytest.fixture(scope="module")
def codes() -> pd.DataFrame:
    """Numbers that stand for levels, some of them missing."""
    numbers = GENERATOR.integers(0, 4, 900).astype(np.float64)
    numbers[GENERATOR.random(900) < 0.3] = np.nan
    return pd.DataFrame({"amount": COMPLETE[:, 0], "code": numbers})


@pytest.fixture(scope="module", params=["error", "ignore"])
def one_hot(codes: pd.DataFrame, request: pytest.FixtureRequest) -> NObSP:
    """An explainer of a pipeline that makes one column of every code, and one of the missing ones."""
    encoder = OneHotEncoder(handle_unknown=request.param)
    prepare = ColumnTransformer([("code", encoder, ["code"])], remainder="passthrough")
    truth = codes["amount"] + codes["code"].fillna(7.0)
    pipeline = make_pipeline(prepare, LinearRegression()).fit(codes, truth)
    return NObSP(pipeline, interactions=0).fit(codes)


def test_missing_codes_of_a_one_hot_encoder_are_a_level(
    one_hot: NObSP, codes: pd.DataFrame
) -> None:
    explanation = one_hot(codes)
    assert not explanation.outside.any()
    assert explanation.explained()[0] > 0.999
    curve = one_hot.curves().query("feature == 'code'")
    assert curve["level"].tolist() == ["", "", "", "", "missing"]
    assert curve["value"].iloc[-1] - curve["value"].iloc[0] == pytest.approx(7.0, abs=0.01)

    functions = one_hot.compile()
    increasing = functions.edit("code", "increasing", codes).curves().query("feature == 'code'")
    assert increasing["value"].iloc[-1] == pytest.approx(curve["value"].iloc[-1], abs=0.01)
    assert not functions(pd.DataFrame({"amount": [0.0], "code": [np.nan]})).outside.any()
    assert functions(pd.DataFrame({"amount": [0.0], "code": [9.0]})).outside[0, 1]


def test_missing_codes_are_exported(one_hot: NObSP, codes: pd.DataFrame) -> None:
    duckdb = pytest.importorskip("duckdb")
    functions = one_hot.compile()
    with duckdb.connect() as database:
        database.register("codes", codes)
        rows = database.execute(functions.to_sql("codes")).df()
    assert_same_to_rounding(rows["prediction"].to_numpy(), functions.predict(codes).ravel())


def test_missing_codes_are_exported_in_single_precision_without_a_warning(
    one_hot: NObSP, codes: pd.DataFrame, tmp_path: Path
) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    functions = one_hot.compile()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        functions.to_onnx(tmp_path / "codes.onnx")

    session = runtime.InferenceSession(str(tmp_path / "codes.onnx"))
    answers = session.run(["prediction"], functions.onnx_inputs(codes))[0]
    expected = functions.predict(codes.astype({"amount": np.float32}))
    assert np.allclose(answers.ravel(), expected.ravel(), atol=1e-5)


def test_a_number_that_a_single_fold_knows_makes_no_warning() -> None:
    rows = COMPLETE[:4].copy()
    rows[2:, 0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        explanation = NObSP(answer).fit(rows, groups=[0, 0, 1, 1])(rows)
    assert np.isfinite(explanation.values).all()
