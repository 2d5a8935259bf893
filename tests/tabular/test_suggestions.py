"""Correlated columns are suggested as features, which `features` takes as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from nobsp import NObSP
from tests.tabular.nets import net

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3))
# The fourth column falls as the first rises, along a curve; the fifth is correlated with the second, but not closely.
TABLE = np.column_stack([X, -np.exp(X[:, 0]), X[:, 1] + 0.6 * X[:, 2]])


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, lambda t: t.astype(np.float32)])
def test_columns_whose_ranks_go_along_are_one_feature(kind: Any) -> None:
    found = NObSP.suggest_features(kind(TABLE))
    assert found == {"x0 + x3": [0, 3], "x1": [1], "x2": [2], "x4": [4]}


@pytest.mark.parametrize("kind", [lambda t: t, pl.from_pandas])
def test_frames_give_names_and_columns_without_numbers_stay_alone(kind: Any) -> None:
    frame = pd.DataFrame(TABLE, columns=list("abcde")).assign(
        city="rome", same=1.0, again=X[:, 1] * 2
    )
    found = NObSP.suggest_features(kind(frame))
    assert found == {
        "a + d": ["a", "d"],
        "b + again": ["b", "again"],
        **{n: [n] for n in ("c", "e", "city", "same")},
    }


@pytest.mark.parametrize("kind", [lambda t: t, pl.from_pandas])
def test_columns_whose_values_are_one_to_one_are_one_feature(kind: Any) -> None:
    levels = RNG.integers(0, 5, len(TABLE))
    school = np.array(["none", "basic", "middle", "high", "higher"])[levels]
    code = np.array([7, 1, 4, 2, 9])[levels]
    frame = pd.DataFrame({"school": school, "age": X[:, 1], "code": code, "twice": 2 * code})

    found = NObSP.suggest_features(kind(frame))

    assert list(found.values()) == [["school", "code", "twice"], ["age"]]


def test_correlated_columns_that_are_one_to_one_as_well_are_listed_once() -> None:
    level = np.arange(600) % 6
    table = np.column_stack([level, 2 * level, X[:, 0]])

    assert NObSP.suggest_features(table) == {"x0 + x1": [0, 1], "x2": [2]}


def test_every_two_columns_of_a_group_are_that_much_correlated() -> None:
    steps = np.cumsum(RNG.normal(size=(500, 30)), axis=1)
    least = 0.8
    correlations = np.abs(pd.DataFrame(steps).corr("spearman").to_numpy())
    groups = NObSP.suggest_features(steps, correlation=least)
    assert sorted(column for group in groups.values() for column in group) == list(range(30))
    assert 1 < len(groups) < 30
    assert all(correlations[np.ix_(group, group)].min() >= least for group in groups.values())


def test_a_suggestion_is_what_features_takes() -> None:
    model = net("relu", columns=5)
    explainer = NObSP(model, features=NObSP.suggest_features(TABLE), interactions=0).fit(TABLE)
    assert explainer.functions_.feature_names == ("x0 + x3", "x1", "x2", "x4")
    assert not [finding for finding in explainer.health().findings if finding.code == "dependent"]


def test_names_stay_apart() -> None:
    frame = pd.DataFrame({"a": X[:, 0], "b": 2 * X[:, 0], "a + b": X[:, 1]})
    assert NObSP.suggest_features(frame) == {"(a + b)": ["a", "b"], "a + b": ["a + b"]}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((TABLE, 0), ValueError, "correlation must lie between 0 and 1"),
        ((TABLE, "much"), ValueError, "correlation must lie between 0 and 1"),
        ((iter([TABLE]), 0.9), TypeError, "X must be an array, a tensor or a frame"),
    ],
)
def test_bad_input_is_named(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        NObSP.suggest_features(given[0], correlation=given[1])
