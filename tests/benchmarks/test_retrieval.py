"""The pieces of the retrieval benchmark that can be checked without trained weights or real images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from benchmarks.data import Images
from benchmarks.retrieval import audits, cases, errors, features, purity, votes
from benchmarks.retrieval.features import Features, Recipe
from benchmarks.retrieval.heads import FITTING, REGULARISED, Head, softmax_regression, trained_head
from benchmarks.vision.networks import Normalised, Setting
from nobsp.neighbors import ContributionIndex, audit
from tests.tolerances import SINGLE, SUMS, assert_same_to_rounding

CLASSES = 4


def made(rows: int = 300, *, width: int = 6, seed: int = 0) -> Features:
    """Rows of four classes that overlap."""
    generator = np.random.default_rng(seed)
    centres = 1.2 * np.random.default_rng(9).normal(size=(CLASSES, width))
    labels = generator.integers(0, CLASSES, rows)
    mixed = (
        generator.normal(size=(rows, width))
        @ np.random.default_rng(8).normal(size=(width, width))
        / 2
    )
    return Features(torch.from_numpy((centres[labels] + mixed).astype(np.float32)), labels)


@pytest.fixture(scope="module")
def case() -> cases.Case:
    database, queries = made(), made(120, seed=1)
    head = softmax_regression(database, classes=CLASSES, decay=REGULARISED, steps=50)
    return cases.Case(cases.TINY, "made", head, database, queries)


# ---------------------------------------------------------------------- activations


class Network(nn.Module):
    """Counts the images it sees."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.fc = nn.Linear(5, CLASSES)
        generator = torch.Generator().manual_seed(seed)
        for weight in self.parameters():
            nn.init.normal_(weight, generator=generator)
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        result: torch.Tensor = self.fc(self.conv(x).relu().mean((2, 3)))
        return result


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    pixels = np.random.default_rng(0).integers(0, 256, (70, 8, 8, 3), dtype=np.uint8)
    images = Images(
        "made", "train", np.arange(70) % CLASSES, ("a",) * 4, ("a",) * 4, 8, _pixels=pixels
    )
    monkeypatch.setattr(features, "load_images", lambda *_, **__: images)
    monkeypatch.setattr(features, "CHUNK", 20)
    return provide(monkeypatch, Network())


def provide(monkeypatch: pytest.MonkeyPatch, network: Network) -> Network:
    setting = Setting(
        "made", Normalised(network, (0.0,) * 3, (1.0,) * 3), "made", tuple(range(CLASSES)), "", ""
    )
    monkeypatch.setitem(features.SETTINGS, "made", lambda: setting)
    return network


RECIPE = Recipe("made", "made", 8)


def test_activations_are_extracted_once(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = features.features(RECIPE, "train", cache=tmp_path)
    again = provide(monkeypatch, Network())
    second = features.features(RECIPE, "train", cache=tmp_path)
    assert (network.seen, again.seen) == (70, 0)
    assert torch.equal(first.activations, second.activations)
    assert sorted(first.labels) == sorted(np.arange(70) % CLASSES)


def test_an_interrupted_extraction_goes_on(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = features.features(RECIPE, "train", cache=tmp_path)
    [folder] = tmp_path.iterdir()
    (folder / "000040-20.safetensors").unlink()
    again = provide(monkeypatch, Network())
    assert_same_to_rounding(
        features.features(RECIPE, "train", cache=tmp_path).activations,
        whole.activations,
        within=SINGLE,
    )
    assert again.seen == 20


def test_fewer_activations_are_the_first_of_all(network: Network, tmp_path: Path) -> None:
    few = features.features(RECIPE, "train", 30, cache=tmp_path)
    assert network.seen == 30
    assert torch.equal(
        features.features(RECIPE, "train", cache=tmp_path).activations[:30], few.activations
    )


def test_other_weights_get_activations_of_their_own(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = features.features(RECIPE, "train", cache=tmp_path)
    provide(monkeypatch, Network(seed=1))
    assert not torch.equal(
        features.features(RECIPE, "train", cache=tmp_path).activations, before.activations
    )


# ---------------------------------------------------------------------- heads


def test_a_head_is_the_optimum_that_scikit_learn_finds() -> None:
    rows = made()
    head = softmax_regression(rows, classes=CLASSES, decay=0.1, steps=200)
    standard = votes.standardised(rows.activations, rows.activations).numpy()
    oracle = LogisticRegression(C=1 / (0.1 * len(rows)), tol=1e-8, max_iter=1000).fit(
        standard, rows.labels
    )
    chances = head.logits(rows.activations).softmax(1).numpy()
    np.testing.assert_allclose(chances, oracle.predict_proba(standard), atol=1e-3)


def test_a_kept_head_is_for_the_very_same_rows(tmp_path: Path) -> None:
    rows = made(60)
    first = trained_head(rows, classes=CLASSES, decay=REGULARISED, cache=tmp_path)
    same = trained_head(rows, classes=CLASSES, decay=REGULARISED, cache=tmp_path)
    relabelled = replace(rows, labels=np.roll(rows.labels, 1))
    others = [
        trained_head(relabelled, classes=CLASSES, decay=REGULARISED, cache=tmp_path),
        trained_head(rows, classes=CLASSES, decay=FITTING, cache=tmp_path),
    ]
    assert torch.equal(first.weight, same.weight)
    assert not any(torch.equal(first.weight, other.weight) for other in others)


# ---------------------------------------------------------------------- votes


def test_a_vote_counts_similar_neighbours_more() -> None:
    similar = np.array([[1.0, 0.9, 0.9]])
    shares = votes.vote(similar, np.array([[2, 0, 0]]), classes=3, sharpness=10.0)
    others = 2 * np.exp(-1.0)
    np.testing.assert_allclose(shares, [[others / (1 + others), 0, 1 / (1 + others)]])


def test_softmax_and_vote_are_multiplied() -> None:
    chances, shares = np.array([[0.5, 0.3, 0.2]]), np.array([[0.0, 0.99, 0.01]])
    product = np.array([0.5 * 0.01, 0.3 * 1.0, 0.2 * 0.02])
    np.testing.assert_allclose(
        np.exp(votes.agreed(np.log(chances), shares)), [product / product.sum()]
    )


def test_log_odds_stay_finite() -> None:
    np.testing.assert_allclose(votes.log_odds(np.log([0.5, 0.8])), [0.0, np.log(4)], atol=SUMS)
    assert np.isfinite(votes.log_odds(np.array([0.0]))).all()


def test_whitening_takes_half_of_the_correlation_out() -> None:
    standard = votes.standardised(made(500).activations, made(500).activations)
    change = votes.whitening(standard)
    halfway = (standard.T @ standard / len(standard) + torch.eye(standard.shape[1])) / 2
    torch.testing.assert_close(
        change.T @ halfway @ change, torch.eye(standard.shape[1]), atol=1e-4, rtol=0
    )


def test_the_audit_follows_the_recipe(case: cases.Case) -> None:
    found = audit(case.index, case.queries.activations, k=8)
    database, queries = (
        votes.standardised(f.activations, case.database.activations) for f in _both(case)
    )
    change = votes.whitening(database)
    near = case.index._view(space="activations").query(case.queries.activations, 50)
    similar = votes.similarities(
        votes.unit(queries @ change), votes.unit(database @ change), near.indices
    )
    assert near.labels is not None
    shares = votes.vote(similar, near.labels, classes=CLASSES, sharpness=20.0)
    logits = case.head.logits(case.queries.activations).double().numpy()
    say = case.index._fitted.cache["say"][1]
    expected = np.exp(votes.agreed(logits, shares, say=say))[np.arange(len(shares)), case.predicted]
    odds = expected / (1 - expected) * np.exp(0.3 * (1 + np.log(found.typicality)))
    trust = np.minimum(1, found.typicality * 301) ** 8
    np.testing.assert_allclose(found.joint, odds / (1 + odds) * trust, rtol=1e-2, atol=1e-4)


def _both(case: cases.Case) -> tuple[Features, Features]:
    return case.database, case.queries


# ---------------------------------------------------------------------- what is measured


def test_purities_are_those_of_the_labels(case: cases.Case) -> None:
    looked = purity.looked_up(case)
    for hits in looked.hits.values():
        labels = case.database.labels[hits.indices]
        np.testing.assert_allclose(hits.purity, (labels == case.predicted[:, None]).mean(1))
    row = dict(zip(purity.PAPER, purity.purity_table(looked).rows, strict=False))[
        purity.ACTIVATIONS
    ]
    truth = case.queries.labels[:, None]
    activations = looked.hits[purity.ACTIVATIONS]
    assert row[3] == pytest.approx((case.database.labels[activations.indices] == truth).mean())
    assert row[-3:] == (0.654, 0.875, 0.855)


def test_every_score_has_a_row_and_a_value_for_each_split(case: cases.Case) -> None:
    found = errors.detection(purity.looked_up(case), quick=True)
    assert found.errors == int((~case.right).sum()) > 10
    assert all(len(values) == errors.QUICK_SPLITS for values in found.auroc.values())
    assert {row[0] for row in errors.detection_table([found]).rows} == set(found.auroc)


def test_the_choice_of_inputs_does_not_see_the_other_half() -> None:
    generator = np.random.default_rng(0)
    inputs = {"a": generator.normal(size=100)}
    right = generator.random(100) < 0.7
    [(fit, rest)] = errors.halves(100, 1)
    assert sorted([*fit, *rest]) == list(range(100))
    other = right.copy()
    other[rest] = ~other[rest]
    changed = {"a": np.where(np.isin(np.arange(100), rest), 7.0, inputs["a"])}
    assert errors.expected(inputs, right, fit) == errors.expected(changed, other, fit)


def test_flipped_labels_are_others_and_seeded() -> None:
    labels = made(1000).labels
    changed = audits.flipped(labels, classes=CLASSES, seed=3)
    assert (changed != labels).sum() == 50
    assert set(changed) <= set(range(CLASSES))
    np.testing.assert_array_equal(changed, audits.flipped(labels, classes=CLASSES, seed=3))
    assert (changed != audits.flipped(labels, classes=CLASSES, seed=4)).any()


def test_labels_can_be_flipped_to_the_class_most_alike() -> None:
    rows = made(1000)
    changed = audits.noisy_labels(rows, audits.NOISES[1], 3)
    wrong = changed != rows.labels
    assert wrong.sum() == 50
    np.testing.assert_array_equal(changed[wrong], audits.most_alike(rows)[rows.labels[wrong]])
    np.testing.assert_array_equal(audits.noisy_labels(rows, audits.NOISES[2], 3), rows.labels)


def test_own_heads_are_read_for_the_classes_at_hand() -> None:
    head = Head(torch.eye(3), torch.tensor([0.0, 0.0, 1.5]))
    rows = Features(torch.eye(3), np.array([0, 1, 2]))
    assert head.accuracy(rows) == pytest.approx(1 / 3)
    index = ContributionIndex(head.layer()).fit(rows.activations, rows.labels)
    np.testing.assert_array_equal(index.query(rows.activations, 1).predicted, [2, 2, 2])


# ---------------------------------------------------------------------- speed


def test_made_rows_resemble_the_real_ones() -> None:
    speed = pytest.importorskip("benchmarks.retrieval.speed", reason="faiss is not installed")
    real = Features(made(400).activations.abs(), made(400).labels)
    rows = speed.made_rows(real, 4000, torch.Generator().manual_seed(0))
    assert rows.activations.min() >= 0
    for number in range(CLASSES):
        ours, theirs = (
            f.activations[torch.from_numpy(f.labels == number)].sqrt().mean(0) for f in (rows, real)
        )
        torch.testing.assert_close(ours, theirs, atol=0.1, rtol=0)


def test_the_local_dimension_of_a_sphere_is_found() -> None:
    speed = pytest.importorskip("benchmarks.retrieval.speed", reason="faiss is not installed")
    points = torch.randn(4000, 4, generator=torch.Generator().manual_seed(0))
    assert speed.local_dimension(points[:200], points[200:], points) == pytest.approx(3, abs=0.4)


def test_recall_is_the_share_of_neighbours_found(case: cases.Case) -> None:
    speed = pytest.importorskip("benchmarks.retrieval.speed", reason="faiss is not installed")
    exact = case.index.query(case.queries.activations, 4)
    shifted = replace(
        exact, indices=np.concatenate([exact.indices[:, 1:], np.full((len(exact), 1), -1)], 1)
    )
    assert speed.recall(exact, exact) == 1.0
    assert speed.recall(shifted, exact) == 0.75
