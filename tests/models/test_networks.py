"""scikit-learn networks become torch modules that compute the same, on the caller's own columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from torch import nn

from nobsp.models import adapt
from nobsp.network import Readout
from tests.tolerances import PASS, SUMS, assert_same_to_rounding

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning"
)

ACTIVATIONS = ["identity", "logistic", "tanh", "relu"]


def network(kind: type, **options: Any) -> Any:
    return kind(hidden_layer_sizes=(6, 5), max_iter=20, random_state=0, **options)


def inputs(rows: int = 60, columns: int = 4) -> Any:
    return np.random.default_rng(0).normal(size=(rows, columns))


def logits(model: Any, X: Any) -> Any:
    return adapt(model).module(torch.from_numpy(X)).detach().numpy()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_regressor_predicts_the_same(activation: str) -> None:
    X = inputs()
    model = network(MLPRegressor, activation=activation).fit(X, X[:, :2])
    assert_same_to_rounding(logits(model, X), model.predict(X))
    assert adapt(model).output_names is None


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_binary_classifier_has_one_logit_for_its_second_class(activation: str) -> None:
    X = inputs()
    model = network(MLPClassifier, activation=activation).fit(X, np.where(X[:, 0] > 0, "yes", "no"))
    adapted = adapt(model)
    probability = torch.sigmoid(adapted.module(torch.from_numpy(X))).detach().numpy()
    assert_same_to_rounding(probability[:, 0], model.predict_proba(X)[:, 1])
    assert (adapted.output_names, adapted.link) == (("yes",), "sigmoid")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_three_classes_have_a_logit_each(activation: str) -> None:
    X = inputs()
    model = network(MLPClassifier, activation=activation).fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    adapted = adapt(model)
    probability = torch.softmax(adapted.module(torch.from_numpy(X)), dim=1).detach().numpy()
    assert_same_to_rounding(probability, model.predict_proba(X))
    assert (adapted.output_names, adapted.link) == (("0", "1", "2"), "softmax")


def test_several_labels_have_a_logit_each() -> None:
    X = inputs()
    model = network(MLPClassifier).fit(X, (X[:, :3] > 0).astype(int))
    adapted = adapt(model)
    probability = torch.sigmoid(adapted.module(torch.from_numpy(X))).detach().numpy()
    assert_same_to_rounding(probability, model.predict_proba(X))
    assert (adapted.output_names, adapted.link) == (("0", "1", "2"), "sigmoid")


def test_single_precision_networks_become_double() -> None:
    X = inputs().astype(np.float32)
    model = network(MLPRegressor).fit(X, X[:, 0])
    adapted = adapt(model)
    assert all(parameter.dtype == torch.float64 for parameter in adapted.module.parameters())
    predicted = adapted.module(torch.from_numpy(X).double()).detach().numpy()[:, 0]
    np.testing.assert_allclose(predicted, model.predict(X), atol=1e-5)


def test_conversion_moves_no_random_numbers_and_changes_no_weights() -> None:
    X = inputs()
    model = network(MLPRegressor).fit(X, X[:, 0])
    random, weights = torch.get_rng_state(), [weight.copy() for weight in model.coefs_]
    with torch.no_grad():
        adapt(model).module[0].weight.zero_()  # type: ignore[index]
    assert torch.equal(random, torch.get_rng_state())
    assert all(np.array_equal(a, b) for a, b in zip(weights, model.coefs_, strict=True))


def test_converted_network_has_a_readout() -> None:
    X = inputs()
    model = network(MLPClassifier).fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    readout = Readout.find(adapt(model).module, torch.from_numpy(X))
    assert (readout.width, readout.outputs, readout.head.name) == (5, 3, "4")


def test_torch_modules_pass_through() -> None:
    module = nn.Linear(2, 1)
    adapted = adapt(module)
    assert adapted.module is module
    assert (adapted.encode, adapted.feature_names, adapted.output_names) == (None, None, None)
    assert adapted.groups(np.zeros((3, 2))) == {"x0": [0], "x1": [1]}


@pytest.mark.parametrize(
    "model", [MLPClassifier(), MLPRegressor(), make_pipeline(StandardScaler(), MLPRegressor())]
)
def test_unfitted_networks_are_refused(model: Any) -> None:
    with pytest.raises(NotFittedError):
        adapt(model)


def table(rows: int = 60) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    return {
        "age": generator.normal(40, 10, rows),
        "job": generator.choice(["clerk", "cook", "pilot"], rows).tolist(),
        "hours": generator.integers(10, 60, rows).astype(float),
        "town": generator.choice(["north", "south"], rows).tolist(),
    }


def preprocessing(*, sparse: bool = True) -> ColumnTransformer:
    return ColumnTransformer(
        [
            (
                "codes",
                OneHotEncoder(sparse_output=sparse, handle_unknown="ignore"),
                ["job", "town"],
            ),
            ("numbers", StandardScaler(), ["age", "hours"]),
        ],
        sparse_threshold=1.0 if sparse else 0.0,
    )


def fitted(X: Any, *steps: Any, y: Any = None) -> Any:
    pipeline = make_pipeline(*steps, network(MLPClassifier))
    return pipeline.fit(X, np.arange(len(X)) % 2 if y is None else y)


EXPECTED = {"age": [5], "job": [0, 1, 2], "hours": [6], "town": [3, 4]}


@pytest.mark.parametrize("sparse", [True, False])
def test_pipeline_keeps_its_preprocessing(
    frame_of: Callable[[dict[str, Any]], Any], sparse: bool
) -> None:
    X = frame_of(table())
    pipeline = fitted(X, preprocessing(sparse=sparse))
    adapted = adapt(pipeline)
    assert adapted.encode is not None
    encoded = adapted.encode(X)
    assert isinstance(encoded, np.ndarray)
    assert encoded.dtype == np.float64
    logit = adapted.module(torch.from_numpy(encoded))
    np.testing.assert_allclose(
        torch.sigmoid(logit).detach().numpy()[:, 0],
        pipeline.predict_proba(X)[:, 1],
        rtol=SUMS,
        atol=PASS,
    )
    assert adapted.feature_names == ("age", "job", "hours", "town")


def test_encoded_columns_are_grouped_by_the_callers_column(
    frame_of: Callable[[dict[str, Any]], Any],
) -> None:
    X = frame_of(table())
    assert adapt(fitted(X, preprocessing())).groups(X) == EXPECTED


def test_rare_levels_of_a_large_table_find_their_column(
    frame_of: Callable[[dict[str, Any]], Any],
) -> None:
    columns = table(6000)
    columns["job"] = ["clerk"] * 6000
    columns["job"][4321] = "pilot"
    columns["job"][5001] = "cook"
    X = frame_of(columns)
    assert adapt(fitted(X, preprocessing())).groups(X) == EXPECTED


def test_a_model_fitted_on_pandas_takes_polars_and_arrays() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    X = pandas.DataFrame(table())
    adapted = adapt(fitted(X, preprocessing()))
    assert adapted.encode is not None
    expected = adapted.encode(X)
    np.testing.assert_array_equal(adapted.encode(polars.DataFrame(table())), expected)
    np.testing.assert_array_equal(adapted.encode(X.to_numpy(dtype=object)), expected)
    assert adapted.groups(X.to_numpy(dtype=object)) == EXPECTED
    with pytest.raises(ValueError, match="X has 3 columns but the model was fitted on 4: 'age'"):
        adapted.encode(X.to_numpy(dtype=object)[:, :3])


def test_steps_that_know_only_pandas_get_pandas() -> None:
    from sklearn.preprocessing import FunctionTransformer

    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    columns = {name: column for name, column in table().items() if name in ("age", "hours")}
    step = FunctionTransformer(lambda X: X.assign(age=X["age"] / 10.0))
    adapted = adapt(fitted(pandas.DataFrame(columns), step))
    assert adapted.encode is not None
    expected = adapted.encode(pandas.DataFrame(columns))
    np.testing.assert_array_equal(adapted.encode(polars.DataFrame(columns)), expected)


def test_arrays_through_scalers_keep_one_column_each() -> None:
    X = inputs()
    adapted = adapt(fitted(X, StandardScaler()))
    assert adapted.feature_names is None
    assert adapted.groups(X) == {f"x{column}": [column] for column in range(4)}


def test_nested_pipelines_are_taken_apart() -> None:
    X = inputs()
    inner = make_pipeline(StandardScaler(), network(MLPRegressor))
    pipeline = make_pipeline(SimpleImputer(), inner).fit(X, X[:, 0])
    adapted = adapt(pipeline)
    assert adapted.encode is not None
    predicted = adapted.module(torch.from_numpy(adapted.encode(X))).detach().numpy()[:, 0]
    assert_same_to_rounding(predicted, pipeline.predict(X))


def test_a_pipeline_of_the_network_alone_needs_no_preprocessing() -> None:
    X = inputs()
    assert adapt(make_pipeline(network(MLPRegressor)).fit(X, X[:, 0])).encode is None


def test_dropped_and_constant_columns_are_in_no_group() -> None:
    X = inputs()
    X[:, 3] = 1.0
    steps = ColumnTransformer([("kept", StandardScaler(), [0, 2, 3])])
    assert adapt(fitted(X, steps)).groups(X) == {"x0": [0], "x2": [1]}


def test_missing_values_that_are_imputed_do_not_hide_a_column() -> None:
    X = inputs()
    X[::3, 1] = np.nan
    adapted = adapt(fitted(X, SimpleImputer(add_indicator=True)))
    assert adapted.groups(X) == {"x0": [0], "x1": [1, 4], "x2": [2], "x3": [3]}


@pytest.mark.parametrize(
    ("step", "mixed"),
    [
        (PCA(2), "'x0', 'x1', 'x2', 'x3'"),
        (
            ColumnTransformer([("some", PCA(1), [1, 2]), ("rest", "passthrough", [0, 3])]),
            "'x1', 'x2'",
        ),
        (PolynomialFeatures(2, interaction_only=True), "'x0', 'x1', 'x2', 'x3'"),
    ],
)
def test_mixed_columns_are_named(step: Any, mixed: str) -> None:
    X = inputs()
    with pytest.raises(ValueError, match=rf"mixes the columns {mixed}: .*model\[-1\]"):
        adapt(fitted(X, step)).groups(X)


def test_grouping_leaves_the_table_as_it_was(frame_of: Callable[[dict[str, Any]], Any]) -> None:
    X = frame_of(table())
    adapt(fitted(X, preprocessing())).groups(X)
    assert X.equals(frame_of(table()))
