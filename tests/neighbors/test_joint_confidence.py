"""The joint confidence: what it is made of, and that no row's label speaks for itself."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from torch import nn

from nobsp.neighbors import ContributionIndex, audit
from tests.neighbors.audit_cases import CLASSES, noisy, planted, trusted, units
from tests.tolerances import SINGLE, SUMS, assert_same_to_rounding


@pytest.mark.parametrize("audited", ["the database", "rows that are in it", "other rows"])
def test_labels_that_mean_nothing_are_told_by_nothing(audited):
    """A row's own label must not reach its signals: through neighbours, class centres, or the fit."""
    scores = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        head, rows = noisy(300, width=64, seed=seed)[:2]
        labels = rng.permutation(np.arange(300) % CLASSES)
        if audited == "other rows":
            index = ContributionIndex(head).fit(rows[:150], labels[:150])
            found, given = audit(index, rows[150:], labels[150:]), labels[150:]
        else:
            index = ContributionIndex(head).fit(rows, labels)
            some = rng.permutation(300)[:200]
            found = (
                audit(index)
                if audited == "the database"
                else audit(index, rows[some], labels[some], exclude=some)
            )
            given = labels if audited == "the database" else labels[some]
        assert found.joint_kind == "cross-validated"
        scores.append(roc_auc_score(found.predicted == given, found.joint))
        trusted = ~found.mislabels
        assert found.auroc["joint"] == pytest.approx(
            roc_auc_score((found.predicted == given)[trusted], found.joint[trusted]), abs=SUMS
        )
    assert abs(np.mean(scores) - 0.5) < 0.08, scores


def test_joint_confidence_tells_errors_better_than_its_parts():
    head, rows, truth = noisy(1500, seed=1)
    index = ContributionIndex(head).fit(rows[:900], truth[:900])
    found = audit(index, rows[900:], truth[900:])
    right = found.predicted == truth[900:]
    trusted = ~found.mislabels
    assert (
        found.auroc["joint"]
        > max(score for name, score in found.auroc.items() if name != "joint") - 0.01
    )
    assert found.auroc["joint"] > 0.65
    assert found.auroc["confidence"] == pytest.approx(
        roc_auc_score(right[trusted], found.confidence[trusted])
    )
    assert found.auroc["purity by evidence"] == pytest.approx(
        roc_auc_score(right[trusted], found.by_contributions.purity[trusted])
    )
    # It is a probability: as many are right as it says.
    assert abs(found.joint.mean() - right.mean()) < 0.02


def test_a_joint_confidence_fitted_before_judges_other_rows():
    head, rows, truth = noisy(900)
    index = ContributionIndex(head).fit(rows[:400], truth[:400])
    first = audit(index, rows[400:700], truth[400:700])
    second = audit(index, rows[700:], joint=first.joint_model)
    assert second.joint_kind == "given"
    assert second.joint_model is first.joint_model
    assert second.auroc == {}
    assert roc_auc_score(second.predicted == truth[700:], second.joint) > 0.6
    assert_same_to_rounding(
        audit(index, rows[700:], truth[700:], joint=first.joint_model).joint,
        second.joint,
        within=SINGLE,
    )


def test_without_labels_the_rule_is_the_softmax_times_the_vote_of_50_neighbours():
    head, rows, truth = noisy()
    index = ContributionIndex(head).fit(rows[:300], truth[:300])
    found = audit(index, rows[300:], k=5)
    assert found.joint_kind == "fixed"
    assert found.joint_model is None
    assert found.labels is None
    assert found.mislabels is None
    # Voters are compared after columns were decorrelated, halfway: T = ((R + I) / 2)^(-1/2).
    sizes, axes = np.linalg.eigh(
        (np.corrcoef(rows[:300].T.astype(np.float64)) + np.eye(rows.shape[1])) / 2
    )
    transform = axes / np.sqrt(sizes) @ axes.T
    known, asked = (units(some, rows[:300]) @ transform for some in (rows[:300], rows[300:]))
    known, asked = (some / np.linalg.norm(some, axis=1, keepdims=True) for some in (known, asked))
    voters = index._view(space="activations").query(rows[300:], 50).indices
    weights = np.exp(20 * np.einsum("qd,qkd->qk", asked, known[voters]))
    votes = np.stack(
        [(weights * (truth[voters] == number)).sum(1) for number in range(CLASSES)], axis=1
    )
    logits = rows[300:] @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    share = (votes / weights.sum(1, keepdims=True) + 0.01) ** index._fitted.cache["say"][1]
    product = np.exp(logits - logits.max(1, keepdims=True)) * share
    agreed = (product / product.sum(1, keepdims=True))[np.arange(100), found.predicted]
    assert np.allclose(found.joint, trusted(agreed, found.typicality, 300), rtol=0, atol=1e-5)
    assert_same_to_rounding(found.by_contributions.purity, index.query(rows[300:], 5).purity)
    nearest = index._view(space="activations").query(rows[300:], 5)
    assert_same_to_rounding(found.by_activations.purity, nearest.purity)


def test_the_vote_counts_where_it_tells_errors_and_not_where_there_are_none():
    """Classes of two clusters each, which no linear head can tell and neighbours can; and classes that all tell."""
    rng = np.random.default_rng(0)
    corner = rng.integers(4, size=600)
    rows = 3 * np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]])[corner] + rng.normal(size=(600, 2))
    for labels, low, high in (
        (corner // 2, 0.1, 1.0),
        (corner % 2, 0.0, 1.0),
        ((rows[:, 0] > 0).astype(int), 0.0, 0.0),
    ):
        index = ContributionIndex(nn.Linear(2, 2)).fit(rows, labels)
        found = audit(index, rows[:20])
        say = index._fitted.cache["say"][1]
        assert low <= say <= high
        if say == 0:
            expected = trusted(found.confidence, found.typicality, 600)
            assert np.allclose(found.joint, expected, atol=1e-6)


def test_the_fixed_rule_holds_where_too_few_predictions_are_wrong_to_fit():
    head, rows, labels, _, queries, plain = planted()
    found = audit(ContributionIndex(head).fit(rows, labels), queries[:60], plain)
    assert found.joint_kind == "fixed"
    assert found.auroc == {}  # all are right
