"""What neighbours and class centres give to a label, written out in numpy, and where nothing can be known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nobsp import NObSPCam
from nobsp.neighbors import ContributionIndex, audit
from nobsp.neighbors.crossfit import fit_head, fit_heads
from nobsp.neighbors.doubt import doubt_labels
from tests.neighbors.audit_cases import same
from tests.neighbors.cases import headed
from tests.vision.networks import images as structured
from tests.vision.networks import through_layers

Array = NDArray[np.float64]


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize("rows", [150, 11])  # of eleven rows and twelve columns there are no heads
def test_what_is_suggested_is_by_vote_centres_and_heads_with_the_row_itself_left_out(
    rows: int,
) -> None:
    case = headed(rows=150)
    database, labels = case.database[:rows], case.labels[:rows]
    index = ContributionIndex(case.head).fit(database, labels)
    z = database.double().numpy()
    spread = z.std(0)
    x = np.where(
        spread > 0, (z - z.mean(0)) / np.where(spread > 0, spread, 1), 0
    )  # one column does not vary
    values, vectors = np.linalg.eigh((x.T @ x / rows + np.eye(12)) / 2)
    y = unit(x @ (vectors / np.sqrt(values)) @ vectors.T)
    voters = index._view(space="activations").query(None, k=min(50, rows - 1)).indices
    heads = fit_heads(index._fitted)
    assert (heads is None) == (rows < 12)

    found = audit(index, k=2)

    for row in range(rows):
        others = np.arange(rows) != row
        sums = np.stack([y[others & (labels == c)].sum(0) for c in range(4)])
        cosines = np.array([0.0 if not total.any() else unit(total) @ y[row] for total in sums])
        weights = np.exp(20 * y[voters[row]] @ y[row])
        votes = (
            np.array([weights[labels[voters[row]] == c].sum() for c in range(4)]) / weights.sum()
        )
        given = 10 * cosines + np.log(votes + 0.01)
        if heads is not None:
            logits = (
                x[row] @ heads.weights[heads.fold[row], :-1].numpy()
                + heads.weights[heads.fold[row], -1].numpy()
            )
            given = given / 8 + logits - np.log(np.exp(logits).sum())
        assert found.suggested[row] == given.argmax()


def test_heads_are_fitted_without_the_fold_they_judge() -> None:
    case = headed(rows=150)
    index = ContributionIndex(case.head).fit(case.database, case.labels)
    heads = fit_heads(index._fitted)
    assert heads is not None
    mean, spread = case.database.double().mean(0), case.database.double().std(0, correction=0)
    scores = torch.where(
        spread > 0, (case.database.double() - mean) / torch.where(spread > 0, spread, 1), 0
    )
    others = heads.fold != 2
    alone = fit_head(scores[others].float(), torch.from_numpy(case.labels)[others], 4)
    torch.testing.assert_close(heads.weights[2], alone, atol=1e-3, rtol=0)
    assert sorted(set(heads.fold.tolist())) == [0, 1, 2, 3, 4]
    assert max(np.bincount(heads.fold.numpy())) - min(np.bincount(heads.fold.numpy())) <= 1


def test_how_labels_go_wrong_is_found_out() -> None:
    """Labels of class 0 that were made 1 now and then, and sure evidence: expected errors are those that were made."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 2000)
    given = 6.0 * np.eye(4)[truth] + rng.normal(size=(2000, 4))
    flipped = (truth == 0) & (rng.random(2000) < 0.2)
    labels = np.where(flipped, 1, truth)
    wrong = doubt_labels(torch.from_numpy(given), torch.from_numpy(labels)).numpy()
    assert wrong[flipped].mean() > 0.9
    assert wrong[~flipped].max() < 0.5
    assert wrong.sum() == pytest.approx(flipped.sum(), rel=0.1)
    clean = doubt_labels(torch.from_numpy(given), torch.from_numpy(truth)).numpy()
    assert clean.sum() < 5


def test_the_only_row_of_its_label_is_not_suspected() -> None:
    case = headed(rows=120)
    labels = np.where(case.labels == 3, 2, case.labels)
    labels[17] = 3
    found = audit(ContributionIndex(case.head).fit(case.database, labels))

    assert found.label_score is not None
    assert found.mislabels is not None
    assert found.label_score[17] == 1
    assert not found.mislabels[17]


def test_layers_behind_the_map_are_audited_without_the_images(tmp_path: Path) -> None:
    model, images = through_layers(channels=4), structured(40)
    labels = torch.arange(40).numpy() % 3
    cam = NObSPCam(model, coefficients="head").fit(images)
    index = ContributionIndex(cam).fit(images[:30], labels[:30])
    index.add(images[30:], labels[30:])

    found = audit(index, images, labels, exclude="self")
    index.save(tmp_path / "index.nobsp")
    for of_database in (audit(index), audit(ContributionIndex.load(tmp_path / "index.nobsp", cam))):
        same(of_database, found)

    assert len(found) == 40
    assert not (found.by_activations.indices == np.arange(40)[:, None]).any()
