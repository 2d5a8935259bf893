"""Names as codes: levels that calibration did not see reach the model as they are, and nothing of them is kept."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline

from nobsp import NObSP
from nobsp.models.coded import Coded, current_unseen_levels, unseen_levels
from tests.tolerances import assert_same_to_rounding

# Towns that nobody has seen are explained worse than those of the calibration, and this is told.
pytestmark = pytest.mark.filterwarnings("ignore::nobsp.tabular.health.ExplainedWorseWarning")

UNSEEN = [f"level {number}" for number in range(1000)]


class LengthAndDigits(TransformerMixin, BaseEstimator):
    """Makes a number of any text, known or not, and mixes it with the other column."""

    def fit(self, X: Any, y: Any = None) -> LengthAndDigits:
        self.n_features_in_ = X.shape[1]
        self.feature_names_in_ = np.array(X.columns, dtype=object)
        return self

    def transform(self, X: pd.DataFrame) -> np.ndarray:
        hashes = [sum(ord(letter) * 7**k for k, letter in enumerate(text)) for text in X["town"]]
        number = np.array(hashes) % 1009 / 1009
        age = X["age"].to_numpy(dtype=np.float64)
        return np.column_stack([number, number * age, age])


def towns(names: list[str], *, dtype: str = "object") -> pd.DataFrame:
    age = np.linspace(0.0, 1.0, len(names))
    return pd.DataFrame({"town": pd.Series(names, dtype=dtype), "age": age})


@pytest.fixture(scope="module")
def hashing() -> tuple[Any, NObSP]:
    rows = towns(["a", "b", "c"] * 40)
    outcome = np.random.default_rng(0).normal(size=len(rows))
    model = make_pipeline(LengthAndDigits(), LinearRegression()).fit(rows, outcome)
    return model, NObSP(model, interactions=0).fit(rows)


def encoder_of(explainer: NObSP) -> Coded:
    encoder = explainer._fitted.adapted.encode
    assert isinstance(encoder, Coded)
    return encoder


@pytest.mark.parametrize("dtype", ["object", "category"])
def test_a_model_is_given_the_very_levels_that_calibration_did_not_see(dtype: str) -> None:
    coded = Coded.of(towns(["a", "b"] * 5, dtype=dtype), missing=True)
    assert coded is not None
    names = [*UNSEEN, "b"]

    with unseen_levels():
        matrix = coded(towns(names, dtype=dtype))
        returned = coded.back(matrix)
        of_a_copy = copy.deepcopy(coded).back(matrix)

    assert returned["town"].tolist() == names
    assert of_a_copy["town"].tolist() == names
    assert coded.layout["levels"] == {0: ["a", "b"]}
    assert current_unseen_levels() is None


def test_a_network_of_codes_is_given_one_code_for_all_unseen_levels() -> None:
    coded = Coded.of(
        towns(["a", "b"] * 5, dtype="category"), missing=False, text=False, shares_unseen=True
    )
    assert coded is not None

    matrix = coded(towns([*UNSEEN, "b"], dtype="category"))

    assert np.unique(matrix[:, 0]).tolist() == [1.0, 2.0]


def test_an_unseen_level_is_refused_by_name_where_it_would_have_to_be_kept() -> None:
    coded = Coded.of(towns(["a", "b"] * 5), missing=True)
    assert coded is not None
    with pytest.raises(ValueError, match=r"'town'.*'elsewhere'"):
        coded(towns(["a", "elsewhere"]))


@pytest.mark.parametrize("batch_size", [7, 4096])
def test_predictions_of_unseen_levels_are_the_models_own(
    hashing: tuple[Any, NObSP], batch_size: int
) -> None:
    model, explainer = hashing
    explainer = copy.copy(explainer)
    explainer.batch_size = batch_size
    rows = towns([*UNSEEN[:40], "b", *UNSEEN[:40]])

    explanation = explainer(rows)

    assert_same_to_rounding(explanation.predictions[:, 0], model.predict(rows))


def test_a_thousand_unseen_levels_in_two_threads_leave_nothing_behind(
    hashing: tuple[Any, NObSP],
) -> None:
    model, explainer = hashing
    first = towns([f"north {name}" for name in UNSEEN])
    second = towns([f"{name} south" for name in UNSEEN])
    before = copy.deepcopy(vars(encoder_of(explainer)))

    with ThreadPoolExecutor(2) as pool:
        explanations = list(pool.map(explainer, [first, second, first, second]))

    for rows, explanation in zip([first, second, first, second], explanations, strict=True):
        assert_same_to_rounding(explanation.predictions[:, 0], model.predict(rows))
        assert explanation.outside[:, 0].all()
    assert vars(encoder_of(explainer)) == before


def test_removal_effects_of_unseen_levels_are_of_these_levels(
    hashing: tuple[Any, NObSP],
) -> None:
    _, explainer = hashing
    rows = towns(UNSEEN[:30])

    together = explainer.removal_effects(rows)
    alone = [explainer.removal_effects(rows.iloc[[k]]) for k in range(len(rows))]

    assert_same_to_rounding(together, np.concatenate(alone))


@pytest.mark.parametrize("gap", [None, np.nan])
@pytest.mark.parametrize("kind", ["frame", "array"])
def test_a_missing_name_reaches_the_model_as_what_it_was(gap: Any, kind: str) -> None:
    names = np.array(["a", "b", gap], dtype=object)[np.arange(90) % 3]
    frame = pd.DataFrame({"town": pd.Series(names, dtype=object), "age": np.linspace(0, 1, 90)})
    rows = frame if kind == "frame" else frame.to_numpy(dtype=object)

    coded = Coded.of(rows, missing=True)

    assert coded is not None
    stored = Coded.from_layout(json.loads(json.dumps(coded.layout)))
    for encoder in (coded, stored):
        returned = np.asarray(encoder.back(encoder(rows)), dtype=object)
        assert [type(value) for value in returned[:, 0]] == [type(value) for value in names]
