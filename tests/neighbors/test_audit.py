"""Audits: what was planted is found and said why; no row's label speaks for itself; nothing depends on the order."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

import nobsp
from nobsp.neighbors import ContributionIndex, audit
from tests.tolerances import SINGLE, SUMS, assert_same_to_rounding

K = 8
WIDTH, CLASSES, EACH = 6, 3, 100
MISLABELLED = np.array([3, 57, 110, 160, 222, 290])
# Between the centres of classes 0 and 1, where the database has four rows of each.
AT_THE_BOUNDARY = np.array([2.1, 2.0, 0, 0, 0, 0])
# Of class 2 to the network, and unlike any row of it.
UNLIKE = np.array([0, 0, 1.0, 0, 0, 6.0])


def planted():
    """A head that is right about well separated classes, a database with wrong labels, and queries of known kinds."""
    rng = np.random.default_rng(0)
    centres = 4 * np.eye(CLASSES, WIDTH)
    head = nn.Linear(WIDTH, CLASSES).double()
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(centres))
        head.bias.copy_(torch.from_numpy(-(centres**2).sum(1) / 2))
    truth = np.repeat(np.arange(CLASSES), EACH)
    rows = centres[truth] + 0.5 * rng.normal(size=(len(truth), WIDTH))
    labels = truth.copy()
    labels[MISLABELLED] = (truth[MISLABELLED] + 1) % CLASSES
    boundary = AT_THE_BOUNDARY + 0.02 * rng.normal(size=(8, WIDTH))
    rows = np.concatenate([rows, boundary])
    labels = np.concatenate([labels, [0, 1] * 4])
    plain = np.repeat(np.arange(CLASSES), 20)
    queries = np.concatenate(
        [
            centres[plain] + 0.3 * rng.normal(size=(60, WIDTH)),
            AT_THE_BOUNDARY + 0.01 * rng.normal(size=(5, WIDTH)),
            UNLIKE + 0.1 * rng.normal(size=(5, WIDTH)),
        ]
    )
    return head, rows, labels, truth, queries, plain


def noisy(rows=400, *, width=16, seed=0, signal=1.0):
    """A head that is often wrong: classes overlap."""
    rng = np.random.default_rng(seed)
    centres = signal * rng.normal(size=(CLASSES, width)) / np.sqrt(width) * 3
    truth = rng.integers(CLASSES, size=rows)
    head = nn.Linear(width, CLASSES)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(centres + 0.1 * rng.normal(size=centres.shape)))
        head.bias.copy_(torch.from_numpy(-(centres**2).sum(1) / 2))
    return head, (centres[truth] + rng.normal(size=(rows, width))).astype(np.float32), truth


def units(rows, database):
    """Vectors of unit length in activation space, by definition."""
    rows, database = (np.asarray(some, dtype=np.float64) for some in (rows, database))
    scaled = (rows - database.mean(0)) / database.std(0)
    return scaled / np.linalg.norm(scaled, axis=1, keepdims=True)


def trusted(chance, typicality, n_reference):
    """What is left of a probability where a row is not typical, by definition."""
    odds = chance / (1 - chance) * (np.e * typicality) ** 0.3
    return odds / (1 + odds) * np.minimum(1, typicality * (n_reference + 1)) ** 8


# ---------------------------------------------------------------------- what was planted


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


# ---------------------------------------------------------------------- joint confidence


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


# ---------------------------------------------------------------------- typicality


def test_typicality_is_the_share_of_the_databases_rows_that_are_further_from_their_neighbours():
    head, rows, truth = noisy(500)
    database, queries = rows[:350], rows[350:]
    index = ContributionIndex(head).fit(database, truth[:350])
    found = audit(index, queries, outliers=0.1)

    def distances(asked, exclude):
        evidence = index.query(asked, 8, exclude=exclude).distances.mean(1)
        voters = index._view(space="activations").query(asked, 50, exclude=exclude).indices
        unit = [
            some / np.linalg.norm(some, axis=1, keepdims=True)
            for some in (asked.astype(float), database.astype(float))
        ]
        away = np.sort(np.linalg.norm(unit[1][voters] - unit[0][:, None], axis=2), axis=1)
        return np.column_stack([evidence, away[:, :10].mean(1)])

    known, asked = distances(database, "self"), distances(queries, None)
    middle = np.median(known, axis=0)
    spread = np.percentile(known, 84, axis=0) - middle
    known, asked = (((some - middle) / spread).sum(1) for some in (known, asked))
    share = np.array([(1 + (known >= one).sum()) / 351 for one in asked])
    beyond = np.exp(-np.maximum(asked - known.max(), 0) / (known.max() - np.median(known)))
    assert np.allclose(found.typicality, np.minimum(share, 1) * beyond, atol=2 / 351)
    assert np.array_equal(found.outliers, found.typicality < 0.1)
    assert 0.02 < found.outliers.mean() < 0.25  # about the share that was chosen


def test_rows_from_elsewhere_are_trusted_less_than_any_others():
    head, rows, labels, _, queries, _ = planted()
    found = audit(ContributionIndex(head).fit(rows, labels), queries)
    assert found.confidence[65:].min() > 0.9  # the softmax knows nothing of it
    assert found.typicality[65:].max() < found.typicality[:65].min()
    assert found.joint[65:].max() < found.joint[:65].min()


def test_few_errors_have_no_auroc():
    head, rows, truth = noisy(300, signal=1.5)
    found = audit(ContributionIndex(head).fit(rows, truth))
    assert 0 < (found.predicted != truth).sum() < 20
    assert found.auroc == {}


def test_a_class_without_rows_can_be_predicted():
    head, rows, truth = noisy(200)
    known = truth != 2
    found = audit(ContributionIndex(head).fit(rows[known], truth[known]), rows[~known])
    assert (found.predicted == 2).any()
    assert np.isfinite(found.joint).all()
    assert np.isfinite(found.typicality).all()


# ---------------------------------------------------------------------- promises


def same(one, other):
    for name in ("predicted", "suggested", "errors"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for name in ("by_contributions", "by_activations"):
        assert_same_to_rounding(getattr(one, name).purity, getattr(other, name).purity)
    assert_same_to_rounding(one.confidence, other.confidence, within=SINGLE)
    assert one.reasons == other.reasons
    assert np.allclose(one.joint, other.joint, rtol=0, atol=1e-9)
    assert np.allclose(one.typicality, other.typicality, rtol=0, atol=1e-9)


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
        "confidence",
        "purity_contributions",
        "purity_activations",
        "joint",
    ]
    without += ["typicality", "error", "boundary", "outlier", "suggested", "reason"]
    frame = found.to_frame().sort_index()
    assert list(frame.columns) == without
    assert len(frame) == len(found) == 50
    assert frame["reason"].tolist() == list(found.reasons)
    assert frame["outlier"].tolist() == found.outliers.tolist()
    assert set(frame["suggested"]) <= {"a", "b", "c"}
    labelled = audit(index).to_frame().sort_index()
    cleanlab = ["is_label_issue", "label_score", "given_label", "predicted_label"]
    assert list(labelled.columns) == [
        *without[:2],
        "label",
        *without[2:10],
        *cleanlab,
        *without[10:],
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


# ---------------------------------------------------------------------- values, and several classes


def valued(rows=1500, *, seed=0, share=0.05, noise=0.3):
    """A linear head that is right but for noise, and labels of which some are another row's."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    head = nn.Linear(8, 1).double()
    activations = rng.normal(size=(rows, 8))
    truth = (activations @ head.weight.detach().numpy().T)[:, 0] * 4 + noise * rng.normal(size=rows)
    with torch.no_grad():
        head.weight.mul_(4)
        head.bias.zero_()
    wrong = rng.random(rows) < share
    given = np.where(wrong, rng.permutation(truth), truth)
    return head, activations, truth, given, wrong & (np.abs(given - truth) > 5 * noise)


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
    assert frame["predicted_label"].tolist() == found.suggested.tolist()
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


def several(rows=1200, *, seed=0, flips=0.04):
    """Four yes/no questions, some answers of which are flipped."""
    rng = np.random.default_rng(seed)
    weight, activations = (
        1.5 * rng.normal(size=(4, 10)),
        rng.normal(size=(rows, 10)).astype(np.float32),
    )
    truth = (rng.random((rows, 4)) < 1 / (1 + np.exp(-(activations @ weight.T)))).astype(int)
    head = nn.Linear(10, 4)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight))
        head.bias.zero_()
    wrong = rng.random((rows, 4)) < flips
    return head, activations, np.where(wrong, 1 - truth, truth), wrong


def test_training_rows_that_speak_for_a_class_are_those_of_the_dual_solution_and_add_up():
    rng = np.random.default_rng(0)
    rows, labels, ridge = (
        rng.normal(size=(80, 6)).astype(np.float32).astype(np.float64),
        rng.integers(3, size=80),
        2.0,
    )
    targets, centred = np.eye(3)[labels], rows - rows.mean(0)
    alpha = np.linalg.solve(
        centred @ centred.T + ridge * np.eye(80), targets - targets.mean(0)
    )  # the dual
    weight = centred.T @ alpha
    head = nn.Linear(6, 3).double()
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight.T))
        head.bias.copy_(torch.from_numpy(targets.mean(0) - rows.mean(0) @ weight))
    index, asked = ContributionIndex(head).fit(rows, labels), rows[:5] + 0.5
    found = index.representer_shares(asked, target=1)
    assert found.exact == pytest.approx(1, abs=1e-9)
    by_hand = ((asked - rows.mean(0)) @ centred.T) * alpha[:, 1]
    assert np.allclose(found.values, by_hand, rtol=0, atol=1e-5 * np.abs(by_hand).max())
    assert np.allclose(found.base + found.values.sum(1), found.logits, rtol=0, atol=1e-9)
    logits = (torch.from_numpy(asked) @ head.weight.T + head.bias).detach().numpy()
    assert np.allclose(found.logits, logits[:, 1], atol=1e-5)
    assert found.top(3).tolist() == np.argsort(-np.abs(found.values), axis=1)[:, :3].tolist()
    assert len(found.to_frame(4)) == 20
    assert np.array_equal(index.representer_shares(asked).target, logits.argmax(1))


def test_representer_shares_of_a_few_rows_is_that_of_all_with_the_rest_added_up():
    head, rows, truth = noisy(200)
    index = ContributionIndex(head, classes=list("abc")).fit(rows, np.array(list("abc"))[truth])
    every, few = index.representer_shares(rows[:7]), index.representer_shares(rows[:7], k=3)
    ranked = -np.sort(-every.values, axis=1)
    assert_same_to_rounding(few.values, np.concatenate([ranked[:, :3], ranked[:, -3:]], axis=1))
    assert_same_to_rounding(few.values, np.take_along_axis(every.values, few.indices, 1))
    assert np.array_equal(few.labels, np.array(list("abc"))[truth][few.indices])
    assert_same_to_rounding(few.base + few.values.sum(1) + few.others + few.residual, few.logits)
    assert_same_to_rounding(np.abs(every.shares).sum(1), np.ones(7))
    assert_same_to_rounding(few.shares, np.take_along_axis(every.shares, few.indices, 1))
    assert few[[2, 5]].top(2).tolist() == every.top(2)[[2, 5]].tolist()
    assert few.to_frame(2)["label"].tolist() == [
        few.labels[q][few.indices[q] == i].item() for q in range(7) for i in few.top(2)[q]
    ]
    assert index.representer_shares(rows[:2], k=150).values.shape == (2, 200)
    with pytest.raises(ValueError, match="k must be"):
        index.representer_shares(rows[:2], k=0)


def test_representer_shares_about_one_of_several_classes_says_which_rows_are_of_it():
    head, rows, given, _ = several(300)
    index = ContributionIndex(head, classes=list("abcd")).fit(rows, given)
    found = index.representer_shares(rows[:3], target=["b", "d", "a"], k=5)
    assert found.target.tolist() == ["b", "d", "a"]
    assert np.array_equal(
        found.labels,
        np.stack([given[i, c] > 0 for i, c in zip(found.indices, (1, 3, 0), strict=True)]),
    )
    logits = (torch.from_numpy(rows[:3]) @ head.weight.T).detach().numpy()[np.arange(3), [1, 3, 0]]
    assert np.allclose(found.logits, logits, atol=1e-5)


def test_representer_shares_on_a_head_trained_otherwise_adds_up_and_says_that_it_is_an_approximation():
    head, rows, truth = noisy(200)
    index = ContributionIndex(head).fit(rows, truth)
    found = index.representer_shares(rows[:7])
    assert found.exact < 0.99
    assert np.allclose(found.base + found.values.sum(1), found.logits, rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match="needs the labels"):
        ContributionIndex(head).fit(rows).representer_shares(rows[:2])
    head, rows, _, given, _ = valued(200)
    found = ContributionIndex(head).fit(rows, given).representer_shares(rows[:4])
    assert np.allclose(found.base + found.values.sum(1), found.logits, rtol=0, atol=1e-8)


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


# ---------------------------------------------------------------------- prototypes and duplicates


@pytest.mark.parametrize("space", ["activations", "contributions"])
def test_prototypes_are_those_of_the_greedy_choice_written_out(space):
    head, rows, truth = noisy(150)
    index = ContributionIndex(head, space=space).fit(rows, truth)
    found = index.prototypes(per_class=3)
    weight = head.weight.detach().numpy().astype(np.float64)
    predicted = audit(index).predicted
    known = np.asarray(rows, np.float64)
    assert np.array_equal(found.labels, np.repeat(np.arange(CLASSES), 3))
    for number in range(CLASSES):
        members = np.flatnonzero((truth == number) & (predicted == number))
        if space == "activations":
            vectors = units(known[members], known)
        else:
            evidence = weight * (known - known.mean(0))[:, None]
            scaled = (evidence[members, number] - evidence[:, number].mean(0)) / np.sqrt(
                evidence.var(0).mean(0)
            )
            vectors = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
        similarity, chosen = vectors @ vectors.T, []
        for _ in range(3):
            gains = {
                i: similarity[[*chosen, i]].max(0).sum()
                for i in range(len(members))
                if i not in chosen
            }
            chosen.append(max(gains, key=gains.get))
        assert found.of(number).tolist() == members[chosen].tolist()
        whose = similarity[chosen].argmax(0)
        assert np.allclose(
            found.shares[found.labels == number], np.bincount(whose, minlength=3) / len(members)
        )
        near = [similarity[chosen[j], whose == j].mean() for j in range(3)]
        assert np.allclose(found.similarity[found.labels == number], near, atol=1e-5)


def test_duplicates_are_the_pairs_that_are_near_enough_of_all_pairs():
    head, rows, truth = noisy(120)
    rng = np.random.default_rng(3)
    rows[40] = rows[7]
    rows[[90, 91]] = rows[12] + 0.01 * rng.normal(size=(2, rows.shape[1])).astype(np.float32)
    truth[[7, 40]] = [0, 1]
    truth[[12, 90, 91]] = 2
    index = ContributionIndex(head).fit(rows, truth)
    for threshold in (0.0, 0.1, 0.7):
        found = index.duplicates(threshold, k=119)
        vectors = units(rows, rows)
        table = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
        first, second = np.nonzero(np.triu(table <= threshold + 1e-12, 1))
        assert {tuple(pair) for pair in found.pairs.tolist()} == set(
            zip(first.tolist(), second.tolist(), strict=True)
        )
        assert np.allclose(found.distances, table[tuple(found.pairs.T)], atol=1e-7)
        assert (np.diff(found.distances) >= 0).all()
    found = index.duplicates(0.1)
    assert [group.tolist() for group in found.groups] == [[12, 90, 91], [7, 40]]
    assert found.conflicting.tolist() == [False, True]
    assert found.to_frame()["conflicting"].tolist() == [
        set(pair) == {7, 40} for pair in found.pairs.tolist()
    ]


def test_a_database_of_one_row_has_no_duplicates():
    head, rows, truth = noisy(1)
    assert len(ContributionIndex(head).fit(rows, truth).duplicates()) == 0


def test_prototypes_need_classes_and_right_predictions():
    head, rows, truth = noisy(60)
    predicted = ContributionIndex(head).fit(rows).query(rows, 1).predicted
    with pytest.raises(ValueError, match="none stands for its class"):
        ContributionIndex(head).fit(rows, (predicted + 1) % CLASSES).prototypes()
    few = ContributionIndex(head).fit(rows, truth).prototypes(per_class=1000)
    assert sorted(few.indices.tolist()) == np.flatnonzero(predicted == truth).tolist()
    with pytest.raises(ValueError, match="no prototypes of class 7; there are 0, 1, 2"):
        few.of(7)


def test_an_explainer_instead_of_an_index_is_told_what_to_make_of_it():
    with pytest.raises(
        TypeError, match=r"index must be a ContributionIndex\(explainer\)\.fit.*found Linear"
    ):
        audit(torch.nn.Linear(2, 2))


def test_rows_of_a_test_set_that_are_in_the_database_are_leaks():
    head, rows, truth = noisy(200)
    fresh = np.concatenate([rows[[5, 40]], noisy(10, seed=9)[1]])
    found = ContributionIndex(head).fit(rows, truth).duplicates(0.05, X=fresh)
    assert found.pairs.tolist() == [[0, 5], [1, 40]]
    assert found.groups == ()
    assert found.to_frame().columns.tolist() == ["first", "second", "distance"]


def test_criticisms_are_the_rows_least_like_any_prototype():
    head, rows, truth = noisy(200)
    index = ContributionIndex(head, space="activations").fit(rows, truth)
    found, predicted = index.prototypes(2), audit(index).predicted
    vectors = units(rows, rows)
    for number in range(CLASSES):
        members = np.flatnonzero((truth == number) & (predicted == number))
        near = (vectors[members] @ vectors[found.of(number)].T).max(1)
        own = found.criticisms[found.labels == number]
        assert set(own) == set(members[np.argsort(near)[:2]])


# ---------------------------------------------------------------------- rows to label


def test_rows_to_label_are_those_of_the_greedy_choice_written_out():
    head, rows, _ = noisy(300)
    index = ContributionIndex(head).fit(rows)
    vectors = units(rows, rows)
    logits = rows @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    chances = np.sort(np.exp(logits - logits.max(1, keepdims=True)), axis=1)
    chances /= chances.sum(1, keepdims=True)
    doubt = 1 - (chances[:, -1] - chances[:, -2])
    known = np.array([4, 90])
    cosines = vectors @ vectors.T
    width = np.median(
        1 - np.sort(cosines, axis=1)[:, -(300 // 8) - 2]
    )  # 300 rows shared by six and two, and itself
    similar = np.exp((cosines - 1) / width)
    for by, weights in (("coverage", np.ones(300)), ("both", doubt)):
        covered, expected = similar[known].max(0), []
        for _ in range(6):
            gain = (np.maximum(similar - covered, 0) * weights).sum(1)
            gain[[*known, *expected]] = -1
            expected.append(int(gain.argmax()))
            covered = np.maximum(covered, similar[expected[-1]])
        assert nobsp.select(index, 6, by=by, labelled=known).tolist() == expected
    least = [row for row in np.argsort(-doubt) if row not in known][:5]
    assert nobsp.select(index, 5, by="uncertainty", labelled=known).tolist() == least


def test_coverage_finds_every_cluster_before_any_twice():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 16))
    rows = (np.repeat(centres, 30, axis=0) + 0.05 * rng.normal(size=(300, 16))).astype(np.float32)
    index = ContributionIndex(nn.Linear(16, 3)).fit(rows)
    first = nobsp.select(index, 5, by="coverage")
    more = nobsp.select(index, 5, by="coverage", labelled=first)
    assert len(set(first // 30) | set(more // 30)) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must"),
        ({"n": 61}, "60 rows to choose from"),
        ({"n": 3, "by": "luck"}, "by must be"),
        ({"n": 3, "labelled": [70]}, "labelled must hold positions"),
    ],
)
def test_choices_that_make_no_sense_are_refused(options, message):
    head, rows, _ = noisy(60)
    with pytest.raises(ValueError, match=message):
        nobsp.select(ContributionIndex(head).fit(rows), **options)
    head, rows, _, given, _ = valued(60)
    with pytest.raises(ValueError, match="no margins"):
        nobsp.select(ContributionIndex(head).fit(rows, given), 3, by="both")


# ---------------------------------------------------------------------- where rows or labels are alike, or few


def test_rows_that_are_alike_are_chosen_from():
    """Once all are covered, nothing is gained by any row, and one is as good as another."""
    generator = torch.Generator().manual_seed(0)
    alike = torch.randn(2, 4, generator=generator).repeat_interleave(50, 0)
    head = nn.Linear(4, 2)
    assert len(nobsp.select(ContributionIndex(head).fit(alike), 60)) == 60
    with torch.no_grad():
        classes = head(alike).argmax(1)
    found = ContributionIndex(head).fit(alike, classes).prototypes(3)
    assert len(set(found.indices.tolist())) == len(found.indices) == 3 * len(set(classes.tolist()))


def linear_values(rows: int, *, seed: int):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(rows, 3))
    head = nn.Linear(3, 1).double()
    with torch.no_grad():
        head.weight[:] = torch.tensor([[3.0, 0.0, 0.0]])
        head.bias[:] = 0.0
    return head, X, 3 * X[:, 0] + 0.1 * generator.normal(size=rows)


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


def test_representer_shares_leaves_what_no_row_can_add_in_the_residual():
    generator = torch.Generator().manual_seed(0)
    rows, head = (
        torch.randn(30, 64, generator=generator, dtype=torch.float64),
        nn.Linear(64, 3).double(),
    )
    index = ContributionIndex(head).fit(rows, torch.arange(30) % 3)
    asked = torch.randn(4, 64, generator=generator, dtype=torch.float64)
    found = index.representer_shares(asked)
    np.testing.assert_allclose(
        found.base + found.values.sum(1) + found.residual, found.logits, atol=1e-12
    )
    with torch.no_grad():
        assert found.logits == pytest.approx(
            head(asked).amax(1).numpy(), abs=1e-6
        )  # rows are held in single
    assert np.abs(found.residual).max() > 0.01
    assert np.abs(index.representer_shares(rows[:4]).residual).max() < 1e-9
    values = ContributionIndex(nn.Linear(64, 1).double(), task="regression").fit(rows, rows[:, 0])
    with pytest.raises(ValueError, match="a regression has no classes; leave target out"):
        values.representer_shares(asked, target=0)


def test_a_mask_is_no_list_of_positions():
    index = ContributionIndex(nn.Linear(4, 2)).fit(
        torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    )
    with pytest.raises(TypeError, match="labelled must hold positions, found bool"):
        nobsp.select(index, 2, labelled=np.arange(20) < 3)
