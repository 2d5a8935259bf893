"""Functions, scikit-learn models of every kind, and ONNX sessions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from torch import nn

from nobsp import NObSP
from nobsp.models import adapt
from nobsp.tabular import effort
from tests.processes import run_python
from tests.tolerances import SINGLE, assert_same_to_rounding

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(300, 3))
NUMBER = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
LABEL = np.where(NUMBER > 0, "yes", "no")


def check_account(explanation: Any) -> None:
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    assert_same_to_rounding(account, explanation.predictions)


def test_a_function_from_array_to_array(tmp_path: Path) -> None:
    def function(rows: Any) -> Any:
        return np.sin(2 * rows[:, 0]) + rows[:, 1] * rows[:, 2]

    explainer = NObSP(function).fit(X)
    explanation = explainer(X)
    assert_same_to_rounding(explanation.predictions[:, 0], NUMBER)
    check_account(explanation)
    assert explainer.explained_[0] > 0.99
    assert ("x1", "x2") in explainer.terms_
    assert "no_head" in {finding.code for finding in explainer.health().findings}
    explainer.save(tmp_path / "function.safetensors")
    again = NObSP.load(tmp_path / "function.safetensors", function)
    assert_same_to_rounding(again(X).values, explanation.values)
    with pytest.raises(ValueError, match="its outputs differ"):
        NObSP.load(tmp_path / "function.safetensors", lambda rows: rows[:, 0])


def test_explaining_costs_one_call_a_row() -> None:
    rows_run = 0

    def function(rows: Any) -> Any:
        nonlocal rows_run
        rows_run += len(rows)
        return rows[:, 0] * rows[:, 1]

    explainer = NObSP(function).fit(X)
    rows_run = 0
    explainer(X[:100])
    assert rows_run == 100


def test_what_a_function_may_not_return_is_said() -> None:
    with pytest.raises(ValueError, match=r"returned shape \(1,\) for \d+ rows"):
        NObSP(lambda rows: rows[:1, 0]).fit(X)
    with pytest.raises(TypeError, match="not numbers"):
        NObSP(lambda rows: np.array(["a"] * len(rows))).fit(X)


@pytest.mark.parametrize(
    "model",
    [
        Ridge(),
        SVR(),
        KNeighborsRegressor(),
        GaussianProcessRegressor(alpha=0.1),
        make_pipeline(PCA(2), SVR()),
    ],
)
def test_regressors_are_explained_by_what_they_predict(model: Any) -> None:
    model.fit(X, NUMBER)
    explanation = NObSP(model, interactions=0).fit(X)(X[:50])
    assert_same_to_rounding(explanation.predictions[:, 0], model.predict(X[:50]), within=1e-9)
    check_account(explanation)


@pytest.mark.parametrize(
    "model",
    [LogisticRegression(), GaussianNB(), make_pipeline(StandardScaler(), LogisticRegression())],
)
def test_classifiers_are_explained_by_log_odds(model: Any) -> None:
    model.fit(X, LABEL)
    explainer = NObSP(model, interactions=0).fit(X)
    explanation = explainer(X[:50])
    assert (explainer.link_, explainer.output_names_) == ("sigmoid", ("yes",))
    found = 1 / (1 + np.exp(-explanation.predictions[:, 0]))
    assert_same_to_rounding(found, model.predict_proba(X[:50])[:, 1], within=1e-9)
    check_account(explanation)


def test_three_classes_have_centred_logarithms() -> None:
    model = GaussianNB().fit(X, np.digitize(NUMBER, [-0.5, 0.5]))
    explainer = NObSP(model, interactions=0).fit(X)
    found = np.exp(explainer(X[:50]).predictions)
    assert explainer.link_ == "softmax"
    assert_same_to_rounding(
        found / found.sum(1, keepdims=True), model.predict_proba(X[:50]), within=1e-9
    )


def test_a_margin_that_is_no_probability_stays_one() -> None:
    model = SVC().fit(X, LABEL)
    explainer = NObSP(model, interactions=0).fit(X)
    assert explainer.link_ == "identity"
    assert_same_to_rounding(explainer(X[:50]).predictions[:, 0], model.decision_function(X[:50]))


def test_a_search_is_its_best_model() -> None:
    search = GridSearchCV(Ridge(), {"alpha": [1e-3, 1.0]}, cv=2).fit(X, NUMBER)
    found = NObSP(search, interactions=0).fit(X)(X[:20]).predictions[:, 0]
    assert_same_to_rounding(found, search.predict(X[:20]))


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_a_transformed_target_is_explained_in_its_own_units_or_before_its_link() -> None:
    scaled = TransformedTargetRegressor(
        MLPRegressor(hidden_layer_sizes=(8,), max_iter=50), transformer=StandardScaler()
    )
    scaled.fit(X, 100.0 + 10.0 * NUMBER)
    explainer = NObSP(scaled, interactions=0).fit(X)
    assert_same_to_rounding(explainer(X[:20]).predictions[:, 0], scaled.predict(X[:20]))
    assert "no_head" not in {finding.code for finding in explainer.health().findings}
    grown = TransformedTargetRegressor(RandomForestRegressor(5), func=np.log, inverse_func=np.exp)
    grown.fit(X, np.exp(NUMBER))
    explainer = NObSP(grown, interactions=0).fit(X)
    assert explainer.link_ == "exp"
    assert_same_to_rounding(np.exp(explainer(X[:20]).predictions[:, 0]), grown.predict(X[:20]))


def test_models_that_are_not_fitted_or_no_models_are_refused() -> None:
    with pytest.raises(NotFittedError):
        adapt(Ridge())
    with pytest.raises(NotFittedError):
        adapt(make_pipeline(StandardScaler(), LogisticRegression()))
    for model, said in [
        ("net", "found str"),
        ({"w": 1}, "found dict"),
        (Ridge, "That is a class"),
        (3, "found int"),
    ]:
        with pytest.raises(TypeError, match=said):
            adapt(model)


def test_an_onnx_session(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    weight, last = (
        GENERATOR.normal(size=(3, 8)).astype(np.float32),
        GENERATOR.normal(size=(8, 2)).astype(np.float32),
    )
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["rows", "weight"], ["hidden"]),
            helper.make_node("Tanh", ["hidden"], ["bent"]),
            helper.make_node("MatMul", ["bent", "last"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["probabilities"]),
        ],
        "net",
        [helper.make_tensor_value_info("rows", kind, [None, 3])],
        [helper.make_tensor_value_info("probabilities", kind, [None, 2])],
        [
            onnx.numpy_helper.from_array(weight, "weight"),
            onnx.numpy_helper.from_array(last, "last"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    explainer = NObSP(session).fit(X)
    assert explainer.link_ == "sigmoid"
    found = explainer(X[:20])
    logits = np.tanh(X[:20] @ weight) @ last
    assert_same_to_rounding(found.predictions[:, 0], logits[:, 1] - logits[:, 0], within=SINGLE)
    check_account(found)


def test_importing_the_package_loads_no_other_library() -> None:
    code = (
        "import sys, nobsp, nobsp.models; "
        "others = {'xgboost', 'lightgbm', 'catboost', 'interpret', 'skorch', 'lightning', 'onnxruntime'};"
        "print(sorted(others & set(sys.modules)))"
    )
    done = run_python(code)
    assert done.stdout.strip() == "[]"


def test_a_thousand_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs are screened among the features that act most, so that cost grows with the columns and not their pairs."""
    monkeypatch.setattr(
        effort,
        "FULL",
        replace(effort.FULL, quantiles=4, even=2, most_knots=8, screen_budget=10_000),
    )  # a hundredth, for the test's sake
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1000, 16), nn.ReLU(), nn.Linear(16, 1))
    rows = torch.randn(100, 1000)
    explainer = NObSP(net, background=4).fit(rows)
    explanation = explainer(rows[:5])
    check_account(explanation)
    assert 0 < len(explainer.interaction_strengths()) < 5_000  # of 499,500
