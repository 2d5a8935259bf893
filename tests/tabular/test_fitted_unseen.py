"""Rows that calibration did not know: they are explained as far as they can be, flagged, and harm no other row."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch import Tensor, nn

from nobsp import NObSP
from nobsp.tabular.health import ExplainedWorseWarning
from tests.tabular.nets import net, table
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding


class Coded(nn.Module):
    """An amount and a code; the embedding has ten rows."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.table, self.body, self.head = (
                nn.Embedding(10, 4),
                nn.Linear(5, 16),
                nn.Linear(16, 2),
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(
            torch.tanh(self.body(torch.cat([x[:, :1], self.table(x[:, 1].long())], 1)))
        )


@pytest.fixture(scope="module")
def coded() -> NObSP:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=500), rng.integers(0, 9, 500)])
    return NObSP(Coded(), features=["x", "code"], interactions=[("x", "code")]).fit(X)


def fresh(rows: int = 30) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.column_stack([np.clip(rng.normal(size=rows), -2, 2), rng.integers(0, 9, rows)])


def assert_others_unharmed(
    explainer: NObSP, rows: np.ndarray, spoilt: np.ndarray, bad: list[int]
) -> Any:
    expected, found = explainer(rows), explainer(spoilt)
    others = np.setdiff1d(np.arange(len(rows)), bad)
    np.testing.assert_array_equal(
        found.values[others], expected.values[others]
    )  # read from the same tables
    assert_same_to_rounding(found.predictions[others], expected.predictions[others], within=1e-5)
    assert not found.outside[others].any()
    assert found.outside[bad].any(1).all()
    note = [finding for finding in explainer.health(spoilt).findings if finding.code == "outside"]
    assert len(note) == 1
    assert note[0].severity == "note"
    assert f"{len(bad):,} of {len(rows):,} rows" in note[0].message
    return found


def test_an_unseen_code_is_explained_by_what_the_network_makes_of_it(coded: NObSP) -> None:
    rows, spoilt = fresh(), fresh()
    spoilt[7, 1] = 9
    found = assert_others_unharmed(coded, rows, spoilt, [7])
    assert found.outside[7].tolist() == [False, True]
    assert np.isfinite(found.values[7]).all()
    assert np.isfinite(found.predictions[7]).all()
    background = coded._fitted.estimate.background
    with torch.no_grad():
        averages = []
        for code in range(10):
            there = background.clone()
            there[:, 1] = code
            averages.append(Coded()(there.float()).double().mean(0).numpy())
    weights = np.bincount(coded._fitted.summary.sample[:, 1].long().numpy(), minlength=10) / 500
    expected = averages[9] - (weights[:, None] * averages).sum(0)
    assert found.values[7, 1] == pytest.approx(expected, abs=1e-5)


def test_a_code_beyond_the_embedding_loses_its_own_row_only(coded: NObSP) -> None:
    """A row a little outside in another feature keeps its prediction, too."""
    rows, spoilt = fresh(), fresh()
    rows[3, 0] = spoilt[3, 0] = 60.0
    spoilt[7, 1] = 12
    expected, found = coded(rows), coded(spoilt)
    others = np.arange(30) != 7
    assert_same_to_rounding(found.predictions[others], expected.predictions[others], within=1e-5)
    assert np.isnan(found.predictions[7]).all()
    assert found.outside[[3, 7]].tolist() == [[True, False], [False, True]]
    assert np.isfinite(found.values).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["relu", "embedding"])
def test_a_value_that_is_none_takes_its_own_terms_only(value: float, kind: str) -> None:
    X, rows = table(kind, 300), table(kind, 40, seed=2)
    rows[:, 2:] = np.clip(rows[:, 2:], X[:, 2:].min(0), X[:, 2:].max(0))
    rows[:, :2] = (
        rows[:, :2]
        if kind == "embedding"
        else np.clip(rows[:, :2], X[:, :2].min(0), X[:, :2].max(0))
    )
    explainer = NObSP(net(kind), interactions=[("x2", "x3")]).fit(X)
    spoilt = rows.copy()
    spoilt[11, 2] = value
    found = assert_others_unharmed(explainer, rows, spoilt, [11])
    assert found.outside[11].tolist() == [k == 2 for k in range(5)]
    mine = np.array(["x2" in term for term in found.terms])
    np.testing.assert_array_equal(found.values[11, mine], 0.0)
    np.testing.assert_array_equal(found.values[11, ~mine], explainer(rows).values[11, ~mine])
    assert np.isnan(found.predictions[11]).all()


@pytest.mark.parametrize("where", ["explain", "health"])
def test_a_column_without_any_value_is_an_error(where: str) -> None:
    X = table("relu", 200)
    explainer = NObSP(net("relu"), interactions=0).fit(X)
    X[:, 3] = np.nan
    with pytest.raises(ValueError, match="no finite value in column"):
        getattr(explainer, where)(X)


def test_health_of_rows_inside_has_nothing_to_add() -> None:
    X = table("relu", 200)
    explainer = NObSP(net("relu"), interactions=0).fit(X)
    assert {f.code for f in explainer.health(X).findings} <= {
        *(f.code for f in explainer.health().findings),
        "far",
    }


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_health_counts_the_rows_that_explain_flags(reference: str) -> None:
    X, rows = table("relu", 300), 3 * table("relu", 100, seed=4)
    explainer = NObSP(net("relu"), interactions=0, reference=reference).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExplainedWorseWarning)
        outside = explainer(rows).outside
    assert_same_to_rounding(outside, (rows < X.min(0)) | (rows > X.max(0)))
    said = next(
        finding.message for finding in explainer.health(rows).findings if finding.code == "outside"
    )
    assert f"{outside.any(1).sum()} of 100 rows" in said


def test_the_compiled_explainer_flags_the_same(coded: NObSP) -> None:
    spoilt = fresh()
    spoilt[7, 1], spoilt[8, 0] = 9, np.nan
    found, expected = coded.compile()(spoilt), coded(spoilt)
    np.testing.assert_array_equal(found.outside, expected.outside)
    others = np.setdiff1d(np.arange(30), [7])
    assert_same_to_rounding(found.values[others], expected.values[others], within=CONTRIBUTIONS)
    assert not found.values[7, 1:].any()


def test_a_level_the_model_knows_is_not_taken_for_one_that_it_ignores() -> None:
    """The encoder writes zeros for what it does not know, and a calibration row has such a level."""
    rng = np.random.default_rng(0)
    city = rng.choice(["oslo", "paris", "rome"], 600)
    training = pd.DataFrame({"city": city, "size": rng.normal(size=600)})
    worth = training["city"].map({"oslo": 0.0, "paris": 1.0, "rome": 5.0})
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["city"]), remainder="passthrough"
    )
    model = make_pipeline(encoder, LinearRegression()).fit(training, training["size"] + worth)
    known = training[city != "rome"].reset_index(drop=True)
    known.loc[0, "city"] = "elsewhere"
    explainer = NObSP(model, interactions=0).fit(known)
    rows = pd.DataFrame({"city": ["rome", "oslo", "nowhere", "elsewhere"], "size": [0.0] * 4})

    explanation = explainer(rows)

    assert explanation.outside[:, 0].tolist() == [True, False, False, False]
    of_city = explanation.values[:, explanation.terms.index(("city",)), 0]
    assert of_city[0] - of_city[1] == pytest.approx(5.0, abs=0.01)
    assert of_city[2] == pytest.approx(of_city[3])
    assert abs(explanation.residual).max() < 0.01
