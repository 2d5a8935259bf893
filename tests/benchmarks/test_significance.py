"""Paired comparisons: intervals, sign flips, several tests at once."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.significance import bootstrap_interval, holm, sign_flip_p

RNG = np.random.default_rng(0)


def test_the_interval_is_that_of_a_bootstrap_written_out() -> None:
    differences = RNG.normal(0.3, 1.0, size=60)
    found = bootstrap_interval(differences, seed=0)
    drawn = np.random.default_rng(7).integers(60, size=(20_000, 60))
    assert found.difference == pytest.approx(differences.mean())
    low, high = np.quantile(differences[drawn].mean(axis=1), [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.015)


@pytest.mark.parametrize(
    "differences", [[0.3, -0.1, 0.0, 0.7, 0.2, -0.4, 0.3], [0.1, 0.2, -0.3], [0.0] * 5]
)
def test_few_pairs_try_every_pattern(differences: list[float]) -> None:
    sums = [
        abs(np.dot(signs, differences))
        for signs in itertools.product((-1, 1), repeat=len(differences))
    ]
    expected = np.mean([one >= abs(sum(differences)) - 1e-9 for one in sums])
    assert sign_flip_p(np.array(differences), seed=0) == pytest.approx(expected)


def test_the_observed_pattern_counts_so_that_p_is_never_zero() -> None:
    assert sign_flip_p(np.full(40, 1.0), seed=0) == pytest.approx(1 / 10_001)


def test_holm_worked_by_hand_keeps_names_and_order() -> None:
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(found) == ["a", "b", "c", "d"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_the_p_value_and_bonferroni(p_values: list[float]) -> None:
    found = holm({str(position): p for position, p in enumerate(p_values)})
    for position, p in enumerate(p_values):
        assert p <= found[str(position)] <= min(len(p_values) * p, 1.0) + 1e-15
