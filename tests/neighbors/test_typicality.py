"""How typicality lowers the trust in a prediction."""

from __future__ import annotations

import numpy as np
import pytest

from nobsp.neighbors import ContributionIndex, audit
from nobsp.neighbors.typicality import trust_classes, trust_values
from tests.neighbors.audit_cases import noisy, planted

N_REFERENCE = 1000


def test_the_less_typical_a_row_the_less_its_prediction_is_trusted():
    typicality = np.geomspace(1e-6, 1, 50)

    joint = trust_classes(np.full(50, 0.999999), typicality, N_REFERENCE)

    assert (np.diff(joint) > 0).all()
    assert joint[0] < 1e-6


def test_rows_like_those_of_the_database_keep_their_confidence_on_average():
    typicality = (np.arange(N_REFERENCE) + 0.5) / N_REFERENCE

    joint = trust_classes(np.full(N_REFERENCE, 0.8), typicality, N_REFERENCE)

    assert joint.mean() == pytest.approx(0.8, abs=0.01)


def test_a_prediction_without_any_doubt_can_be_doubted():
    joint = trust_classes(np.array([1.0, 1.0, 0.0]), np.array([0.5, 1e-9, 0.5]), N_REFERENCE)

    assert joint == pytest.approx([1, 0, 0], abs=1e-9)


def test_values_are_trusted_as_they_are_within_the_database():
    chances = np.array([0.2, 0.9])

    assert trust_values(chances, np.array([0.01, 0.5]), N_REFERENCE) == pytest.approx(chances)
    assert trust_values(chances, np.array([1e-6, 1e-6]), N_REFERENCE).max() < 1e-9


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
