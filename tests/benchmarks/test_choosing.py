"""The candidates for questions of removal: their formulas, and that no test row decides between them."""

import argparse

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import kept
from benchmarks.data import load
from benchmarks.tabular import choosing, problems
from nobsp import NObSP
from nobsp.metrics import ablation_effects
from tests.tolerances import CONTRIBUTIONS, SUMS

IGNORED = 3


@pytest.fixture(scope="module")
def network():
    """Smooth, three outputs, and blind to its last column."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double().eval()
    with torch.no_grad():
        network[0].weight[:, IGNORED] = 0
    return network


@pytest.fixture(scope="module")
def rows():
    """Correlated columns: calibration, judged."""
    drawn = np.random.default_rng(0).normal(size=(240, 4))
    drawn[:, 1] += 0.8 * drawn[:, 0]
    return drawn[:200], drawn[200:]


@pytest.fixture(scope="module")
def found(network, rows):
    return choosing.candidates(network, *rows, rows[0].mean(axis=0))


def test_all_candidates_of_one_split_are_there_with_an_ignored_feature_at_the_end(found, rows):
    assert {*found, choosing.TOTAL, choosing.DEFAULT} == set(choosing.CANDIDATES)
    assert all(values.shape == (len(rows[1]), 5, 3) for values in found.values())


@pytest.mark.parametrize("ridge", choosing.RIDGES)
def test_own_function_is_what_the_explainer_fits_one_by_one(found, network, rows, ridge):
    explainer = NObSP(
        network, reference="complement", interactions=0, ridge=ridge, baseline=rows[0].mean(axis=0)
    )
    expected = explainer.fit(rows[0])(rows[1]).from_baseline().total()
    np.testing.assert_allclose(
        found[choosing.OWN.format(ridge)][:, :4], expected, rtol=0, atol=1e-8
    )


def test_removal_is_what_the_score_measures(found, network, rows):
    for output in range(3):
        effects = ablation_effects(network, rows[1], baseline=rows[0].mean(axis=0), target=output)
        np.testing.assert_allclose(
            found[choosing.REMOVAL][:, :4, output], effects, rtol=0, atol=SUMS
        )


def test_without_a_ridge_the_complements_part_may_be_taken_out_before_or_after(
    network, rows, monkeypatch
):
    """The output at the mean lies in the span of the complement, so a projection removes it either way."""
    monkeypatch.setattr(choosing, "RIDGES", (1e-11,))
    monkeypatch.setattr(choosing, "FEWER_RIDGES", (1e-11,))
    found = choosing.candidates(network, *rows, rows[0].mean(axis=0))
    whole = found[choosing.WHOLE.format(1e-11)]
    np.testing.assert_allclose(found[choosing.APART.format(1e-11)], whole, rtol=0, atol=1e-6)
    assert np.abs(whole[:, :IGNORED]).max() > 0.1


@pytest.mark.parametrize(
    "name", [name for name in choosing.CANDIDATES if name.startswith(("removal", "own function"))]
)
def test_a_feature_that_the_network_ignores_is_given_nothing(found, name):
    np.testing.assert_allclose(found[name][:, IGNORED:], 0, atol=CONTRIBUTIONS)


def test_own_plus_residual_gives_an_ignored_feature_what_the_ridge_shrinks(found, network, rows):
    """Of the whole output, by an independent ridge regression on the representation."""
    given = found[choosing.WHOLE.format(1)]
    with torch.no_grad():
        calibration, judged = (network[:2](torch.as_tensor(each)).numpy() for each in rows)
    head = network[2].weight.detach().numpy().T
    mean = calibration.mean(axis=0)
    gram = (calibration - mean).T @ (calibration - mean)
    shrunken = np.linalg.inv(gram + np.eye(6) * np.trace(gram) / 6) @ gram @ head
    np.testing.assert_allclose(given[:, 4], (judged - mean) @ (head - shrunken), atol=CONTRIBUTIONS)
    np.testing.assert_allclose(given[:, IGNORED], given[:, 4], atol=CONTRIBUTIONS)
    assert given[:, 4].std() > 0.1 * (judged @ head).std()


def test_the_default_gives_the_sums_of_all_its_terms(network, rows):
    calibration, judged = rows
    means = calibration.mean(axis=0)
    here = problems.Problem(load("iris", seed=0), 0, network, judged)
    given = choosing.of_package(here, calibration, means)
    expected = NObSP(network).fit(calibration)(judged).total()
    held = NObSP(network).fit(calibration)(means[None]).total()
    np.testing.assert_allclose(given[choosing.DEFAULT], expected - held, rtol=0, atol=CONTRIBUTIONS)
    assert given[choosing.TOTAL].shape == expected.shape


def test_only_training_rows_judge_and_none_of_those_that_calibrate(network, monkeypatch):
    wine = load("wine", seed=0)
    untrained = problems.Problem(wine, 0, network, wine.X_test)
    monkeypatch.setattr(problems, "problem", lambda *_, **__: untrained)
    here, calibration = choosing.split("wine", 0)
    judged, calibrating, training = (
        {row.tobytes() for row in rows} for rows in (here.rows, calibration, wine.X_train)
    )
    assert judged | calibrating == training
    assert not judged & calibrating
    assert len(here.rows) == len(wine.X_train) // 5


def test_the_report_says_what_was_found_and_names_what_was_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    scores = {"faithfulness": 0.9, "agreement": 0.5}
    fitted = {**scores, "ignored": 0.1, "without": 0.4}
    own = {choosing.TOTAL: {**scores, "agreement": 0.6}, choosing.DEFAULT: scores}
    made = {name: fitted for name in choosing.CANDIDATES if name not in own}
    made |= dict.fromkeys(choosing.OTHERS, scores)

    def scored(table, seed, *, measured):
        return own if measured else made

    monkeypatch.setattr(choosing, "scored", scored)
    whole = argparse.Namespace(quick=False, known=False, tables=("iris",), seeds=(0,))
    choosing.walked(whole)
    partly = argparse.Namespace(quick=False, known=True, tables=("iris", "wine"), seeds=(0,))
    found = choosing.walked(partly)
    summary = {row["attribution"]: row for row in choosing.summary(found, ("iris",)).records()}
    assert summary[choosing.TOTAL]["ahead of both in LCPDA"] == "1 of 1"
    assert summary[choosing.REMOVAL]["ahead of both in LCPDA"] == "0 of 1"
    assert summary[choosing.REMOVAL]["at least KernelSHAP's"] == "1 of 1"
    assert "Wine" in choosing.findings(found, partly.tables)[-1]
