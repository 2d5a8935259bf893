"""Shares on unseen rows, and what recovered functions are judged by."""

from typing import ClassVar

import numpy as np
import pytest

from benchmarks.data import load
from benchmarks.recovery import peers
from benchmarks.recovery.designs import (
    FAMILIES,
    FEATURES,
    Case,
    correlated_uniform,
    local_effects,
    sample,
    shapley_values,
)
from benchmarks.recovery.problems import Problem
from benchmarks.recovery.scores import Recovered, score
from benchmarks.tabular import unseen


def test_a_share_counts_an_offset_as_an_error():
    truth = np.arange(6.0)[:, None]
    assert unseen.share(truth, truth)[0] == 1
    assert unseen.share(truth, np.full_like(truth, truth.mean()))[0] == 0
    assert unseen.share(truth, truth + 1)[0] < 1


def test_calibration_rows_are_training_rows_and_samples_differ():
    data = load("iris", seed=0)
    first, second = (
        unseen.drawn(unseen.Case("iris", unseen.PERCEPTRON, 0, 40, k), data) for k in (0, 1)
    )
    assert len(np.unique(first, axis=0)) > 30
    assert not np.array_equal(first, second)
    assert {tuple(row) for row in first} <= {tuple(row) for row in data.X_train}


def test_one_hot_groups_become_codes():
    class Data:
        groups: ClassVar = {"number": [0], "kind": [1, 2, 3]}

    rows = np.array([[0.5, 0, 1, 0], [0.25, 0, 0, 0]])
    assert unseen.coded(rows, Data).tolist() == [[0.5, 1], [0.25, -1]]


CASE = Case("interactions", 200, 0.5, None, 0)


def test_without_correlation_local_effects_are_average_effects():
    rows = correlated_uniform(300, 0.0, np.random.default_rng(1))
    found = local_effects(Case("interactions", 200, 0.0, None, 0), rows)
    truth = np.stack(
        [
            np.zeros(300) if f is None else f(rows[:, k])
            for k, f in enumerate(FAMILIES["interactions"].singles)
        ],
        1,
    )
    assert np.abs(found - (truth - truth.mean(0))).max() < 0.05


def test_shapley_values_add_up():
    rows = correlated_uniform(100, 0.5, np.random.default_rng(1))
    family = FAMILIES["interactions"]
    output = sum(f(rows[:, k]) for k, f in enumerate(family.singles) if f is not None)
    output = output + sum(f(rows[:, i], rows[:, j]) for (i, j), f in family.pairs)
    assert shapley_values(CASE, rows).sum(1) == pytest.approx(output - output.mean())


def test_true_pairs_hold_nothing_of_one_feature():
    values = np.linspace(-2, 2, 2001)
    for _, f in FAMILIES["interactions"].pairs:
        grid = f(values[:, None], values[None])
        assert np.abs(grid.mean(0)).max() < 1e-12
        assert np.abs(grid.mean(1)).max() < 1e-12


def test_a_method_is_judged_by_what_it_means_where_that_is_kinder():
    rows = sample(CASE)
    asked = Problem(CASE, rows, None)
    values = shapley_values(CASE, rows.held_out)
    strict, kind = (
        score(asked, Recovered(values, meant=meant)) for meant in (None, shapley_values)
    )
    assert kind["main"] == pytest.approx(1)
    assert strict["main"] < 0.95


def test_bins_find_an_additive_function_and_purify_pairs():
    random = np.random.default_rng(0)
    rows = correlated_uniform(4000, 0.0, random)
    bins = peers.Bins(rows, ((0, 1),), 16, 8)
    outputs = np.abs(rows[:, 0]) + rows[:, 0] * rows[:, 1]
    weights = bins.solve(rows, outputs)
    singles, pairs = bins.parts(rows, weights)
    pure = peers._purified(
        singles, pairs, lambda pair, k: bins.mean_over_partner(rows, weights, pair, k)
    )
    assert pure.pairs is not None
    assert np.corrcoef(pure.singles[:, 0], np.abs(rows[:, 0]))[0, 1] > 0.99
    assert np.corrcoef(pure.pairs[0, 1], rows[:, 0] * rows[:, 1])[0, 1] > 0.97
    assert singles.shape == (4000, FEATURES)
