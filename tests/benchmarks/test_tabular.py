"""The benchmarks of the paper's tables, on tables that come with scikit-learn."""

import argparse
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.data import TABLES
from benchmarks.tabular import agreement, faithfulness, methods, problems, walking
from benchmarks.tabular.methods import GRADIENTS, OURS, PUBLISHED, STEADY


@pytest.fixture(scope="module")
def iris():
    return problems.problem("iris", 0, rows=20)


@pytest.fixture
def linear(iris):
    """The same rows with a network that is linear in its columns: every method must find the same."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double().eval()
    return dataclasses.replace(iris, network=network)


def test_training_is_repeatable_and_learns(iris):
    again = problems.trained(iris.data, 0)
    # Not to the last bit: some processors add up in another order where memory begins elsewhere, and every step of
    # training makes more of it.
    for weights, expected in zip(again.parameters(), iris.network.parameters(), strict=True):
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)
    assert iris.accuracy() > 0.9


def test_stopping_early_takes_the_best_weights_and_training_on_takes_the_last(iris):
    longer = problems.trained(iris.data, 0, stopped=False)
    rows, truth = torch.as_tensor(iris.data.X_train), torch.as_tensor(iris.data.y_train)
    with torch.no_grad():
        losses = [
            float(nn.functional.cross_entropy(network(rows), truth))
            for network in (iris.network, longer)
        ]
    assert losses[1] <= losses[0]


def test_methods_agree_on_a_linear_network(linear):
    weights = (linear.network[1].weight @ linear.network[0].weight).detach().numpy()
    expected = (linear.rows - linear.data.X_train.mean(axis=0)) * weights[linear.target]
    for method in (*OURS, GRADIENTS):
        if method == STEADY:
            continue  # its strong ridge shrinks what correlated columns share
        found = methods.METHODS[method].run(linear, **faithfulness.SETTINGS[method])
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=0.02 * np.abs(expected).max(), err_msg=method
        )


@pytest.mark.parametrize("benchmark", [faithfulness, agreement])
def test_a_table_is_made_from_start_to_end_and_nothing_is_written(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr(walking, "FOLDER", tmp_path / "cache")
    chosen = argparse.Namespace(quick=True, known=False, ours=False, tables=("iris",), seeds=(0,))
    settings = {method: benchmark.SETTINGS[method] for method in (PUBLISHED, STEADY, GRADIENTS)}
    found = walking.walk(chosen, "trial", benchmark.scored, settings, rows=30)
    assert set(found) == {("iris", method) for method in settings}
    score = "correlation" if benchmark is faithfulness else "pearson"
    assert all(-1 <= walking.mean(found, "iris", method, score) <= 1 for method in settings)
    assert not list(tmp_path.iterdir())


def test_known_cells_are_not_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(walking, "FOLDER", tmp_path)
    chosen = argparse.Namespace(quick=False, known=False, ours=False, tables=("iris",), seeds=(0,))
    asked = []

    def score(table, seed, method, **_):
        asked.append((table, seed, method))
        return {"correlation": 0.5}

    for _ in range(2):
        walking.walk(chosen, "trial", score, {GRADIENTS: {"steps": 2}}, rows=5)
    walking.walk(chosen, "trial", score, {GRADIENTS: {"steps": 3}}, rows=5)
    assert asked == [("iris", 0, GRADIENTS)] * 2


def test_what_was_not_run_is_named_and_nothing_is_computed_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(walking, "FOLDER", tmp_path)
    settings, asked = {GRADIENTS: {"steps": 2}}, []

    def score(table, seed, method, **_):
        asked.append((table, seed))
        return {"correlation": 0.5}

    whole = argparse.Namespace(quick=False, known=False, ours=False, tables=("iris",), seeds=(0,))
    walking.walk(whole, "trial", score, settings, rows=5)
    partly = argparse.Namespace(
        quick=False, known=True, ours=False, tables=("iris", "wine"), seeds=(0,)
    )
    found = walking.walk(partly, "trial", score, settings, rows=5)
    assert asked == [("iris", 0)]
    assert walking.mean(found, "iris", GRADIENTS, "correlation") == 0.5
    assert walking.mean(found, "wine", GRADIENTS, "correlation") is None
    (said,) = walking.not_run(found, partly.tables, settings)
    assert said.endswith(": Integrated Gradients on Wine.")


def test_the_paper_is_quoted_for_every_table():
    for quoted in (
        faithfulness.PAPER,
        agreement.PAPER_PEARSON,
        agreement.PAPER_NRMSE,
        walking.NAMES,
    ):
        assert set(quoted) == set(TABLES)
