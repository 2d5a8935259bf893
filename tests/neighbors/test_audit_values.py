"""Audits of values, and of rows that may have several classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nobsp.neighbors import ContributionIndex, audit
from tests.neighbors.audit_cases import linear_values, several, units, valued


def test_labels_of_a_regression_that_are_off_are_suspected_with_what_they_should_be():
    head, rows, truth, given, wrong = valued()
    found = audit(ContributionIndex(head).fit(rows, given))
    off = np.abs(given - truth) > 0
    assert off[found.mislabels].mean() > 0.8
    assert found.mislabels[wrong].mean() > 0.8
    assert (
        np.abs(found.suggested - truth)[found.mislabels].mean() < 0.4
    )  # the noise's mean size is 0.24
    assert sum(found.expected_errors.values()) == pytest.approx(off.sum(), rel=0.5)
    frame = found.to_frame().sort_index()
    assert frame["is_label_issue"].tolist() == found.mislabels.tolist()
    assert frame["suggested"].tolist() == found.suggested.tolist()
    row = int(np.flatnonzero(found.mislabels)[0])
    assert f"labelled {given[row]:.4g}" in found.reasons[row]
    assert "Audit(1500 rows" in repr(found)
    assert "expected error" in str(found)


def test_values_are_expected_by_heads_and_neighbours_that_have_not_seen_the_row():
    """Another label for one row changes nothing that is expected of it: heads and neighbours are without it."""
    head, rows, _, given, _ = valued(300)
    other = given.copy()
    other[17] += 50
    one, two = (audit(ContributionIndex(head).fit(rows, labels)) for labels in (given, other))
    # Folds are drawn along the labels, so that those of other rows may change; the expectation hardly does.
    assert abs(one.suggested[17] - two.suggested[17]) < 0.1
    assert two.label_score[17] < 1e-3


def test_the_expected_error_of_a_regression_is_its_mean_error_where_noise_grows():
    rng = np.random.default_rng(1)
    torch.manual_seed(1)
    head = nn.Linear(6, 1).double()
    rows = rng.normal(size=(3000, 6))
    size = np.where(rows[:, 0] > 0, 2.0, 0.2)
    values = (rows @ head.weight.detach().numpy().T)[:, 0] + head.bias.item()
    labels = values + size * rng.laplace(size=3000)
    index = ContributionIndex(head).fit(rows[:2000], labels[:2000])
    found = audit(index, rows[2000:], labels[2000:])
    error = np.abs(labels[2000:] - values[2000:])
    for many in (rows[2000:, 0] > 1, rows[2000:, 0] < -1):  # where neighbours are of one kind
        assert found.expected_error[many].mean() == pytest.approx(error[many].mean(), rel=0.35)
    assert found.auroc["joint"] > 0.75
    assert np.array_equal(found.errors, found.joint < 0.5)
    hits = index.query(rows[2000:], 20)
    by_hand = np.abs(labels[:2000] - values[:2000])[hits.indices].mean(1)
    assert np.allclose(hits.expected_error, by_hand, rtol=1e-5)
    assert np.isnan(found.confidence).all()
    assert not found.boundary.any()


def test_joint_confidence_of_a_regression_is_laplaces_probability():
    from scipy import stats

    head, rows, _, given, _ = valued(600)
    found = audit(ContributionIndex(head).fit(rows, given))
    away = np.abs(found.predicted - found.suggested)
    # |d| + b exp(−|d| / b) is the expected error; b from it by bisection, then the probability by scipy.
    low, high = np.full(600, 1e-9), found.expected_error
    for _ in range(80):
        middle = (low + high) / 2
        less = away + middle * np.exp(-away / middle) < found.expected_error
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    residuals = []
    for tolerance in np.linspace(0.2, 2, 400):
        chance = stats.laplace.cdf(tolerance - away, 0, high) - stats.laplace.cdf(
            -tolerance - away, 0, high
        )
        residuals.append(
            np.abs(chance * np.minimum(1, found.typicality * 601) ** 8 - found.joint).max()
        )
    assert min(residuals) < 0.02  # for one tolerance, that of twice the usual error, all agree


def test_labels_of_several_classes_are_audited_one_by_one():
    head, rows, given, wrong = several()
    names = ["red", "round", "large", "old"]
    index = ContributionIndex(head, classes=names).fit(rows, given)
    found = audit(index)
    assert found.rows.tolist() == np.repeat(np.arange(1200), 4).tolist()
    assert found.outputs.tolist() == names * 1200
    assert np.array_equal(found.labels, given.ravel() > 0)
    chance = torch.sigmoid(torch.from_numpy(rows) @ head.weight.detach().T).double().numpy().ravel()
    assert np.allclose(found.confidence, np.maximum(chance, 1 - chance), atol=1e-6)
    assert np.array_equal(found.predicted, chance > 0.5)
    assert wrong.ravel()[found.mislabels].mean() > 0.7
    assert found.mislabels.sum() > 0.2 * wrong.sum()
    near = found.by_activations.indices[4 * 7 + 2]
    assert found.by_activations.labels[4 * 7 + 2].tolist() == (given[near, 2] > 0).tolist()
    frame = found.to_frame().sort_index()
    assert frame["output"].tolist() == names * 1200
    line = int(np.flatnonzero(found.mislabels)[0])
    assert found.reasons[line].startswith(f"{names[line % 4]}: labelled {found.labels[line]}")
    assert found.expected_errors.keys() == set(names)


def test_the_vote_about_one_of_several_classes_is_a_share_of_weighted_neighbours():
    head, rows, given, _ = several(400)
    index = ContributionIndex(head).fit(rows[:300], given[:300])
    found = audit(index, rows[300:])
    sizes, axes = np.linalg.eigh((np.corrcoef(rows[:300].T.astype(np.float64)) + np.eye(10)) / 2)
    known, asked = (
        units(some, rows[:300]) @ (axes / np.sqrt(sizes) @ axes.T)
        for some in (rows[:300], rows[300:])
    )
    known, asked = (some / np.linalg.norm(some, axis=1, keepdims=True) for some in (known, asked))
    voters = index._view(space="activations").query(rows[300:], 50).indices
    weights = np.exp(20 * np.einsum("qd,qkd->qk", asked, known[voters]))
    share = np.einsum("qk,qkc->qc", weights / weights.sum(1, keepdims=True), given[voters]).ravel()
    vote = np.where(found.predicted, share, 1 - share)
    assert np.allclose(found.signals["logarithm of the vote"], np.log(vote + 0.01), atol=1e-4)


def test_neighbours_of_several_classes_have_a_purity_and_labels_of_each(tmp_path):
    head, rows, given, _ = several(300)
    index = ContributionIndex(head, classes=list("abcd")).fit(rows, given)
    hits = index.query(rows[:5], 6)
    assert hits.labels.shape == (5, 6, 4)
    assert np.array_equal(hits.labels, given[hits.indices])
    numbers = ["abcd".index(name) for name in hits.predicted]
    assert np.allclose(
        hits.purity, [given[i, p].mean() for i, p in zip(hits.indices, numbers, strict=True)]
    )
    assert len(hits.to_frame()) == 30
    index.save(tmp_path / "several")
    again = ContributionIndex.load(tmp_path / "several", head)
    assert np.array_equal(again.query(rows[:5], 6).labels, hits.labels)
    index.add(rows[:3], given[:3])
    assert len(index) == 303


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.ones((60, 3)), "3 columns, but the model has 4 outputs"),
        (np.full((60, 4), 2), "0 and 1"),
    ],
)
def test_labels_of_several_classes_that_make_no_sense_are_refused(labels, message):
    head, rows, _, _ = several(60)
    with pytest.raises(ValueError, match=message):
        ContributionIndex(head).fit(rows, labels)


@pytest.mark.parametrize("most", [0.0, 0.6])
def test_labels_of_which_most_are_one_value_are_not_doubted(most):
    head, X, y = linear_values(400, seed=0)
    y = np.maximum(y - most, 0.0)  # half or more of them zero
    assert (y == 0).mean() > 0.45
    found = audit(ContributionIndex(head, task="regression").fit(X, y))
    assert found.mislabels.sum() <= 2
    wrong = np.flatnonzero(y > 1)[:8]
    y[wrong] = 60.0
    assert audit(ContributionIndex(head, task="regression").fit(X, y)).mislabels[wrong].all()


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_few_values_are_judged_by_their_neighbours(rows):
    head, X, y = linear_values(400, seed=1)
    index = ContributionIndex(head, task="regression").fit(X, y)
    _, asked, right = linear_values(rows, seed=2)
    assert not audit(index, asked, right).mislabels.any()
    off = right.copy()
    off[0] += 20.0
    found = audit(index, asked, off)
    assert found.mislabels.tolist() == [True] + [False] * (rows - 1)
