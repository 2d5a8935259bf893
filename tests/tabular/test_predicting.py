"""Functions as a model of their own, as scikit-learn uses one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted

from nobsp import Functions, NObSP
from nobsp.tabular.predicting import MissingTermsWarning
from tests.tabular.handmade import handmade, rows_for
from tests.tolerances import assert_same_to_rounding

GENERATOR = np.random.default_rng(0)
X = pd.DataFrame(GENERATOR.normal(size=(300, 3)), columns=["a", "b", "c"])
LABELS = np.where(X["a"] + 0.5 * X["b"] > 0, "yes", "no")
THREE = np.array(["low", "mid", "top"])[np.digitize(X["a"] - X["c"], [-0.5, 0.5])]


def functions_of(model: Any) -> Functions:
    return NObSP(model, interactions=0).fit(X).compile()


@pytest.fixture(scope="module")
def two_classes() -> Functions:
    return functions_of(LogisticRegression().fit(X, LABELS))


def test_a_linear_model_is_predicted_to_rounding() -> None:
    target = X["a"] - 2 * X["c"]
    functions = functions_of(LinearRegression().fit(X, target))
    assert is_regressor(functions)
    assert not hasattr(functions, "predict_proba")
    assert not hasattr(functions, "classes_")
    assert_same_to_rounding(functions.predict(X), target.to_numpy(), within=1e-6)
    assert functions.score(X, target) == pytest.approx(r2_score(target, functions.predict(X)))


@pytest.mark.parametrize("labels", [LABELS, THREE], ids=["two", "three"])
def test_classes_and_probabilities_are_the_models(labels: np.ndarray) -> None:
    model = LogisticRegression().fit(X, labels)
    functions = functions_of(model)
    assert is_classifier(functions)
    assert functions.classes_.tolist() == model.classes_.tolist()
    np.testing.assert_allclose(functions.predict_proba(X), model.predict_proba(X), atol=0.05)
    assert (functions.predict(X) == model.predict(X)).mean() > 0.97
    assert functions.score(X, labels) == accuracy_score(labels, functions.predict(X))


def test_a_margin_decides_but_is_no_probability() -> None:
    model = LinearSVC().fit(X, LABELS)
    functions = functions_of(model)
    assert not hasattr(functions, "predict_proba")
    np.testing.assert_allclose(
        functions.decision_function(X), model.decision_function(X), atol=1e-5
    )
    assert (functions.predict(X) == model.predict(X)).mean() > 0.97


def test_probabilities_that_a_forest_averages_are_taken_as_such() -> None:
    model = RandomForestClassifier(10, max_depth=2, random_state=0).fit(X, LABELS)
    functions = functions_of(model)
    probabilities = functions.predict_proba(X)
    assert functions.are_probabilities
    assert_same_to_rounding(probabilities.sum(1), np.ones(len(X)))
    assert ((probabilities[:, 1] > 0.5) == (functions.predict(X) == "yes")).all()
    assert (functions.predict(X) == model.predict(X)).mean() > 0.9


def test_scikit_learn_takes_them_for_a_fitted_classifier(two_classes: Functions) -> None:
    check_is_fitted(two_classes)
    importances = permutation_importance(two_classes, X, LABELS, n_repeats=2, random_state=0)
    assert importances.importances_mean.argmax() == 0

    average = partial_dependence(two_classes, X, ["a"], kind="average")["average"]
    assert (np.diff(average[0]) > 0).all()

    calibrated = CalibratedClassifierCV(FrozenEstimator(two_classes)).fit(X, LABELS)
    assert calibrated.score(X, LABELS) > 0.9

    eager = FixedThresholdClassifier(FrozenEstimator(two_classes), threshold=0.01).fit(X, LABELS)
    assert (eager.predict(X) == "yes").mean() > (two_classes.predict(X) == "yes").mean()
    with pytest.raises(TypeError, match="FrozenEstimator"):
        two_classes.fit(X, LABELS)


def test_classes_survive_the_file(two_classes: Functions, tmp_path: Any) -> None:
    two_classes.save(tmp_path / "functions")
    functions = Functions.load(tmp_path / "functions")
    assert functions.predict(X).tolist() == two_classes.predict(X).tolist()


def test_a_network_becomes_a_classifier_by_naming_its_classes() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2))
    functions = functions_of(network)
    assert is_regressor(functions)
    assert functions.predict(X).shape == (300, 2)

    named = functions.with_classes(["cat", "dog"])
    expected = torch.softmax(network(torch.tensor(X.to_numpy(), dtype=torch.float32)), 1)
    np.testing.assert_allclose(named.predict_proba(X), expected.detach().numpy(), atol=1e-5)
    for wrong in (["cat"], ["cat", "cat"]):
        with pytest.raises(ValueError, match="classes"):
            functions.with_classes(wrong)


def test_weights_count_rows(two_classes: Functions) -> None:
    wrong = two_classes.predict(X) != LABELS
    weights = np.where(wrong, 0.0, 1.0)
    assert two_classes.score(X, LABELS, weights) == 1.0

    numbers = handmade()
    rows = rows_for(numbers)
    labels = numbers.predict(rows) + np.arange(len(rows))
    weights = np.arange(len(rows)) % 3 + 0.5
    expected = r2_score(labels, numbers.predict(rows), sample_weight=weights)
    assert numbers.score(rows, labels, weights) == pytest.approx(expected)


def test_weights_leave_outputs_out_that_do_not_vary() -> None:
    targets = np.column_stack([X["a"] - X["c"], np.full(len(X), 3.0)])
    functions = functions_of(LinearRegression().fit(X, targets))
    noisy = targets + np.column_stack([np.sin(np.arange(len(X))), np.zeros(len(X))])

    unweighted = functions.score(X, noisy)
    weighted = functions.score(X, noisy, np.full(len(X), 0.5))
    assert 0 < unweighted < 1
    assert_same_to_rounding(weighted, unweighted, within=1e-9)


def test_terms_without_a_table_are_named() -> None:
    network = torch.nn.Linear(3, 1)
    explainer = NObSP(network, features={"a": "a", "rest": ["b", "c"]}, interactions=0).fit(X)
    functions = explainer.compile()
    assert functions.left_out == (("rest",),)
    with pytest.warns(MissingTermsWarning, match="rest"):
        functions.predict(X)


def test_fidelity_asks_the_model_however_it_is_passed(two_classes: Functions) -> None:
    model = LogisticRegression().fit(X, LABELS)
    outputs = model.decision_function(X) + np.linspace(0, 1, len(X))
    from_outputs = two_classes.fidelity(X, outputs)
    expected = r2_score(outputs, two_classes.decision_function(X))
    assert from_outputs == pytest.approx(expected)
    with pytest.raises(ValueError, match="model"):
        two_classes.fidelity(X, np.zeros((len(X), 2)))


def test_means_behind_a_logarithmic_link_are_predicted() -> None:
    functions = handmade(link="exp")
    rows = rows_for(functions)
    sums = functions(rows).values.sum(1) + functions.base_values
    assert_same_to_rounding(functions.predict(rows), np.exp(sums[:, 0]))


def test_rows_that_have_no_r2_are_refused() -> None:
    target = X["a"].to_numpy()
    model = LinearRegression().fit(X, target)
    functions = functions_of(model)
    with pytest.raises(ValueError, match="X has 1 row"):
        functions.fidelity(X[:1], model)
    with pytest.raises(ValueError, match="constant"):
        functions.fidelity(X, np.ones(len(X)))
    with pytest.raises(ValueError, match="y has 1 row"):
        functions.score(X[:1], target[:1])
    with pytest.raises(ValueError, match="constant"):
        functions.score(X, np.ones(len(X)), sample_weight=np.ones(len(X)))
    with pytest.raises(ValueError, match="y has NaN or infinity in row 0"):
        functions.score(X, np.full(len(X), np.nan))


def test_labels_have_the_shape_of_predictions(two_classes: Functions) -> None:
    functions = handmade(outputs=2)
    rows = rows_for(functions, n_rows=50)
    with pytest.raises(ValueError, match="y must have shape"):
        functions.score(rows, np.arange(50.0))
    assert two_classes.score(X, LABELS[:, None]) == two_classes.score(X, LABELS)


def test_infinities_of_both_signs_are_as_unknown_as_nan(two_classes: Functions) -> None:
    infinite = X.copy()
    infinite.loc[:1, "a"] = [np.inf, -np.inf]
    missing = X.copy()
    missing.loc[:1, "a"] = np.nan
    np.testing.assert_array_equal(
        two_classes.predict_proba(infinite), two_classes.predict_proba(missing)
    )
