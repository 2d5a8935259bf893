"""Counting values: as numpy counts them, within bounds, and looked up exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nobsp.network.columns import MOST_CODES, MOST_LEVELS, LevelCounts, among, distinct


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 4), st.integers(0, 100))
def test_distinct_rows_are_those_of_numpy(rows: int, columns: int, kinds: int, seed: int) -> None:
    X = np.random.default_rng(seed).choice([-1.5, 0.0, 2.0, 3.0][:kinds], (rows, columns))
    levels, counts = np.unique(X, axis=0, return_counts=True)
    found = distinct(torch.tensor(X))
    np.testing.assert_array_equal(found[0], levels)
    np.testing.assert_array_equal(found[1], counts)


@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 100))
def test_rows_are_among_the_levels_where_they_equal_one(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, levels = rng.integers(-2, 3, (rows, columns)), rng.integers(-2, 3, (5, columns))
    expected = [any((row == level).all() for level in levels) for row in X]
    # Zero and minus zero are equal.
    found = among(torch.tensor(-1.0 * X), torch.tensor(-levels, dtype=torch.float64))
    assert found.tolist() == expected


def test_nothing_is_among_no_levels() -> None:
    assert among(torch.zeros(2, 1), torch.zeros(0, 1)).tolist() == [False, False]


def test_a_group_of_codes_is_counted_column_by_column_where_combinations_are_many() -> None:
    X = torch.randint(0, 400, (5000, 2), generator=torch.Generator().manual_seed(0)).double()
    tally = LevelCounts.of(2)
    for part in X.split(700):
        tally.add(part)
    assert tally.joint is None
    for place in (0, 1):
        values, counts = np.unique(X[:, place], return_counts=True)
        np.testing.assert_array_equal(tally.codes[place][0][:, 0], values)
        np.testing.assert_array_equal(tally.codes[place][1], counts)


@pytest.mark.parametrize("span", [MOST_CODES, MOST_CODES + 1])
def test_codes_are_bounded(span: int) -> None:
    tally = LevelCounts.of(1)
    tally.add(torch.arange(MOST_LEVELS + 1.0, dtype=torch.float64)[:, None])
    tally.add(torch.tensor([[span - 1.0]], dtype=torch.float64))
    assert tally.over == (span > MOST_CODES)
