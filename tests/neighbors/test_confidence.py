"""What neighbours and class centres give to a label, written out in numpy, and where nothing can be known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nobsp import NObSPCam
from nobsp.neighbors import ContributionIndex, audit
from tests.neighbors.cases import headed
from tests.vision.networks import images as structured
from tests.vision.networks import through_layers

Array = NDArray[np.float64]


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_support_of_a_label_is_vote_times_centres_with_the_row_itself_left_out() -> None:
    case = headed(rows=150)
    index = ContributionIndex(case.head).fit(case.database, case.labels)
    z = case.database.double().numpy()
    spread = z.std(0)
    x = np.where(spread > 0, (z - z.mean(0)) / np.where(spread > 0, spread, 1), 0)  # one column does not vary
    values, vectors = np.linalg.eigh((x.T @ x / 150 + np.eye(12)) / 2)
    y = unit(x @ (vectors / np.sqrt(values)) @ vectors.T)
    voters = index._view(space="activations").query(None, k=50).indices

    found = audit(index)

    supports, suggested = [], []
    for row in range(150):
        others = np.arange(150) != row
        centres = unit(np.stack([y[others & (case.labels == c)].sum(0) for c in range(4)]))
        weights = np.exp(20 * y[voters[row]] @ y[row])
        votes = np.array([weights[case.labels[voters[row]] == c].sum() for c in range(4)]) / weights.sum()
        given = np.exp(10 * centres @ y[row]) * (votes + 0.01)
        supports.append(given[case.labels[row]] / given.sum())
        suggested.append(given.argmax())
    assert found.label_support is not None
    assert found.mislabels is not None
    np.testing.assert_allclose(found.label_support, supports, rtol=1e-5)
    np.testing.assert_array_equal(found.suggested, suggested)
    doubted = (np.array(supports) < 1 / 8) & (np.array(suggested) != case.labels)
    for hits in (found.by_contributions, found.by_activations):
        doubted &= hits.purity_towards(np.array(suggested)) >= hits.purity_towards(case.labels)
    np.testing.assert_array_equal(found.mislabels, doubted)
    assert 0 < doubted.sum() < 75


def test_the_only_row_of_its_label_is_not_suspected() -> None:
    case = headed(rows=120)
    labels = np.where(case.labels == 3, 2, case.labels)
    labels[17] = 3
    found = audit(ContributionIndex(case.head).fit(case.database, labels))

    assert found.label_support is not None
    assert found.mislabels is not None
    assert found.label_support[17] == 1 / 4
    assert not found.mislabels[17]


def test_layers_behind_the_map_are_audited_with_the_images_and_refused_without() -> None:
    model, images = through_layers(channels=4), structured(40)
    labels = torch.arange(40).numpy() % 3
    index = ContributionIndex(NObSPCam(model, coefficients="head").fit(images)).fit(images, labels)

    with pytest.raises(ValueError, match="pass the rows again"):
        audit(index)
    found = audit(index, images, labels, exclude="self")

    assert len(found) == 40
    assert not (found.by_activations.indices == np.arange(40)[:, None]).any()
