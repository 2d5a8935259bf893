"""Audits: what was planted is found and said why; nothing depends on the order; the model is as it was."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import nobsp
from nobsp.neighbors import ContributionIndex, audit
from nobsp.reporting.audits import audit_for_page
from tests.neighbors.audit_cases import CLASSES, MISLABELLED, K, noisy, planted, same
from tests.tolerances import assert_same_to_rounding


def test_planted_mislabels_are_found_with_their_true_class_and_the_reason():
    head, rows, labels, truth, _, _ = planted()
    found = audit(ContributionIndex(head).fit(rows, labels))
    assert np.array_equal(np.flatnonzero(found.mislabels[: len(truth)]), MISLABELLED)
    assert np.array_equal(found.suggested[MISLABELLED], truth[MISLABELLED])
    for row in MISLABELLED:
        by_evidence = int((found.by_contributions.labels[row] == truth[row]).sum())
        by_activations = int((found.by_activations.labels[row] == truth[row]).sum())
        assert (
            f"{by_evidence} of 8 neighbours by evidence and {by_activations} by activations are {truth[row]}"
            in found.reasons[row]
        )
    assert set(MISLABELLED) <= set(found.flagged)


def test_planted_boundary_cases_and_outliers_are_found_with_reasons():
    head, rows, labels, _, queries, plain = planted()
    found = audit(ContributionIndex(head).fit(rows, labels), queries)
    assert np.array_equal(found.predicted[:60], plain)
    assert (found.by_activations.purity[60:65] == 0.5).all()
    assert np.array_equal(np.flatnonzero(found.boundary[:65]), np.arange(60, 65))
    assert all(
        "near a boundary: 4 of 8 neighbours by activations" in found.reasons[row]
        for row in range(60, 65)
    )
    assert (found.predicted[65:] == 2).all()
    assert found.outliers[65:].all()
    assert not found.outliers[
        :60
    ].any()  # plain rows were drawn nearer to their centre than those of the database
    assert all(
        f"typicality {found.typicality[row]:.2g}" in found.reasons[row] for row in range(65, 70)
    )
    assert (found.joint[65:] < 0.05).all()  # whatever the softmax says
    unflagged = ~(found.errors | found.boundary | found.outliers)
    assert [not reason for reason in found.reasons] == unflagged.tolist()


def test_two_wrong_labels_of_sixty_are_found_and_no_others():
    head, rows, labels, _, queries, plain = planted()
    given = plain.copy()
    given[[5, 30]] = [1, 0]
    found = audit(ContributionIndex(head).fit(rows, labels), queries[:60], given)
    assert np.flatnonzero(found.mislabels).tolist() == [5, 30]
    assert sum(found.expected_errors.values()) == pytest.approx(2, abs=0.5)
    assert np.array_equal(found.labels, given)


def test_a_budget_takes_the_least_probable_labels():
    head, rows, truth = noisy()
    index = ContributionIndex(head).fit(rows, truth)
    order = np.argsort(audit(index).label_score, kind="stable")
    for budget in (1, 7, 20):
        found = audit(index, budget=budget)
        assert found.mislabels.sum() == budget
        doubted = [row for row in order if found.suggested[row] != found.labels[row]]
        assert set(np.flatnonzero(found.mislabels)) == set(doubted[:budget])


def test_a_threshold_means_a_precision():
    """Flipped labels in well-known classes: what is suspected is wrong as often as was asked for, or more often."""
    rng = np.random.default_rng(5)
    head, rows, truth = noisy(1500, seed=2, signal=1.3)
    wrong = rng.random(1500) < 0.06
    given = np.where(wrong, (truth + rng.integers(1, CLASSES, 1500)) % CLASSES, truth)
    index = ContributionIndex(head).fit(rows, given)
    counts = []
    for precision in (0.95, 0.8, 0.6):
        flags = audit(index, precision=precision).mislabels
        counts.append(flags.sum())
        assert wrong[flags].mean() > precision - 0.1
    assert counts == sorted(counts)
    found = audit(index)
    assert found.expected_errors.keys() == {0, 1, 2}
    assert sum(found.expected_errors.values()) == pytest.approx(wrong.sum(), rel=0.35)
    by_class = {c: (1 - found.label_score)[given == c].sum() for c in range(CLASSES)}
    assert found.expected_errors == pytest.approx(by_class)


@pytest.mark.parametrize("wrong", [{"precision": 1.2}, {"outliers": -0.1}, {"budget": 0}])
def test_shares_and_budgets_that_make_no_sense_are_refused(wrong):
    head, rows, truth = noisy(60)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        audit(ContributionIndex(head).fit(rows, truth), **wrong)


def test_flagged_rows_are_those_with_a_reason_and_can_be_taken_out_in_their_order():
    head, rows, truth = noisy()
    found = audit(ContributionIndex(head).fit(rows, truth), budget=20)
    assert np.array_equal(
        np.sort(found.flagged), np.flatnonzero([bool(reason) for reason in found.reasons])
    )
    assert np.array_equal(found.errors, found.joint < 0.5)
    assert (
        f"likely errors (joint confidence below 0.5, cross-validated): {found.errors.sum()}"
        in str(found)
    )
    some = found[found.flagged[:9]]
    assert (len(some), some.reasons) == (9, tuple(found.reasons[row] for row in found.flagged[:9]))
    assert np.array_equal(some.by_activations.indices, found.by_activations.indices[some.rows])
    assert all(
        np.array_equal(some.signals[name], found.signals[name][some.rows]) for name in found.signals
    )


def test_a_page_of_some_rows_leads_with_the_suspects_of_all():
    head, rows, truth = noisy()
    whole = audit(ContributionIndex(head).fit(rows, truth), budget=20)
    some = whole[whole.flagged[:9]][:5]
    assert some.whole is whole
    page = audit_for_page(some, rows=5, names=None, classes=())
    assert page["headline"][0] == str(whole.mislabels.sum())
    assert f"of {len(whole)} labels" in page["headline"][1]
    # What is counted beside the table is of all rows too.
    assert page["total"] == len(whole)
    assert page["flagged"] == len(whole.flagged)
    counts = {kind["id"]: kind["count"] for kind in page["kinds"]}
    assert counts["mislabels"] == whole.mislabels.sum()


def test_an_audit_of_the_database_leaves_each_row_out():
    head, rows, truth = noisy(150)
    index = ContributionIndex(head).fit(rows, truth)
    found = audit(index)
    for hits in (found.by_contributions, found.by_activations):
        assert not (hits.indices == np.arange(150)[:, None]).any()
    assert_same_to_rounding(found.by_contributions.purity, index.query(None, K).purity)
    assert np.array_equal(found.labels, truth)
    same(found, audit(index, rows, truth, exclude="self"))
    same(found, audit(index, rows, truth, exclude=np.arange(150)))


def test_results_do_not_depend_on_the_order_of_rows():
    head, rows, truth = noisy(500, signal=0.5)
    order = np.random.default_rng(0).permutation(200)
    index = ContributionIndex(head).fit(rows[:300], truth[:300])
    queries, labels = rows[300:], truth[300:]
    found, shuffled = audit(index, queries, labels), audit(index, queries[order], labels[order])
    assert found.joint_kind == "cross-validated"
    assert np.allclose(found.joint[order], shuffled.joint, rtol=0, atol=1e-9)
    assert tuple(found.reasons[row] for row in order) == shuffled.reasons
    mixed = np.random.default_rng(1).permutation(300)
    other = ContributionIndex(head).fit(rows[:300][mixed], truth[:300][mixed])
    same(audit(other, queries, labels), found)


def test_many_rows_can_be_excluded_from_a_small_database():
    head, rows, truth = noisy(40)
    left = np.tile(np.arange(25), (3, 1))
    found = audit(ContributionIndex(head).fit(rows, truth), rows[:3], exclude=left)
    assert (found.by_contributions.indices >= 25).all()


def test_the_model_is_as_it_was():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3)).astype(np.float32)
    net = nn.Sequential(nn.Linear(3, 12), nn.Dropout(0.5), nn.ReLU(), nn.Linear(12, 3))
    net[0].requires_grad_(False)
    net[1].eval()
    net[2].train()
    index = ContributionIndex(nobsp.NObSP(net).fit(X)).fit(X, rng.integers(3, size=80))

    def state():
        hooks = [
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
            for m in net.modules()
        ]
        weights = [
            (p.requires_grad, p.dtype, p.grad, p.detach().numpy().tobytes())
            for p in net.parameters()
        ]
        return [m.training for m in net.modules()], hooks, weights, torch.get_rng_state().tolist()

    before = state()
    audit(index, X)
    audit(index)
    index.prototypes()
    assert state() == before
    X[5, 1] = np.nan
    with pytest.raises(ValueError, match="row 5"):
        audit(index, X)
    assert state() == before


def test_an_index_that_keeps_activations_only_cannot_be_audited():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).astype(np.float32)
    explainer = nobsp.NObSP(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))).fit(X)
    index = ContributionIndex(explainer, space="activations").fit(X, np.arange(60) % 2)
    with pytest.raises(ValueError, match=r'keeps no evidence.*space="contributions"'):
        audit(index)


def test_frames_have_one_line_per_row_and_columns_by_name():
    pytest.importorskip("pandas")
    head, rows, truth = noisy(200)
    index = ContributionIndex(head, classes=["a", "b", "c"]).fit(
        rows[:150], np.array(["a", "b", "c"])[truth[:150]]
    )
    found = audit(index, rows[150:])
    without = [
        "row",
        "predicted",
        "suggested",
        "confidence",
        "purity_contributions",
        "purity_activations",
        "joint",
    ]
    without += ["typicality", "error", "boundary", "outlier", "reason"]
    frame = found.to_frame().sort_index()
    assert list(frame.columns) == without
    assert len(frame) == len(found) == 50
    assert frame["reason"].tolist() == list(found.reasons)
    assert frame["outlier"].tolist() == found.outliers.tolist()
    assert set(frame["suggested"]) <= {"a", "b", "c"}
    labelled = audit(index).to_frame().sort_index()
    # Each thing once: what was given, what the model says, what is suggested.
    assert list(labelled.columns) == [
        "row",
        "label",
        "predicted",
        "suggested",
        "is_label_issue",
        "label_score",
        *without[3:],
    ]
    assert labelled["row"].tolist() == list(range(150))


def test_suspected_labels_are_issues_of_cleanlabs_datalab():
    pytest.importorskip("cleanlab")
    head, rows, labels, _, _, _ = planted()
    found = audit(ContributionIndex(head).fit(rows, labels))
    manager = found.issue_manager()(SimpleNamespace(data=labels))
    manager.find_issues()
    assert manager.issues["is_nobsp_label_issue"].tolist() == found.mislabels.tolist()
    assert manager.issues["nobsp_label_score"].tolist() == found.label_score.tolist()
    assert manager.summary["score"].item() == pytest.approx(found.label_score.mean())
    with pytest.raises(ValueError, match="audit is of 308 rows but the Datalab has 3"):
        found.issue_manager()(SimpleNamespace(data=labels[:3])).find_issues()
    with pytest.raises(ValueError, match="without labels"):
        audit(ContributionIndex(head).fit(rows, labels), rows).issue_manager()


@pytest.mark.filterwarnings("ignore")  # of the packages that datasets brings
def test_a_datalab_reports_them():
    datasets, arrow = pytest.importorskip("datasets"), pytest.importorskip("pyarrow")
    datalab = pytest.importorskip("cleanlab.datalab.datalab")
    factory = pytest.importorskip("cleanlab.datalab.internal.issue_manager_factory")
    head, rows, labels, _, _, _ = planted()
    found = audit(ContributionIndex(head).fit(rows, labels))
    factory.register(found.issue_manager())
    table = datasets.Dataset(arrow.table({"label": labels.tolist()}), fingerprint="planted")
    lab = datalab.Datalab(table, label_name="label", verbosity=0)
    lab.find_issues(issue_types={"nobsp_label": {}})
    issues = lab.get_issues("nobsp_label")
    assert issues["is_nobsp_label_issue"].tolist() == found.mislabels.tolist()
    assert lab.get_info("nobsp_label")["predicted_label"].tolist() == found.suggested.tolist()


def test_an_audit_of_learnt_labels_says_that_it_cannot_find_wrong_ones() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(4, 2)
    rows = torch.randn(80, 4)
    predicted = head(rows).argmax(1).numpy()
    learnt = nobsp.audit(nobsp.ContributionIndex(head).fit(rows, predicted))
    assert learnt.agreement == 1.0
    assert "note:" in str(learnt)
    assert "note:" in learnt._repr_html_()

    labels = predicted.copy()
    labels[:4] = 1 - labels[:4]
    others = nobsp.audit(nobsp.ContributionIndex(head).fit(rows, labels))
    assert others.agreement == 0.95
    assert "note:" not in str(others)
