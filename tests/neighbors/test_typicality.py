"""How typicality lowers the trust in a prediction."""

from __future__ import annotations

import numpy as np
import pytest

from nobsp.neighbors.typicality import trust_classes, trust_values

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
