"""Rules of numerical mathematics that several rooms share."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nobsp.arguments import as_numpy
from nobsp.numerics import evenly_spaced, gauss_legendre
from nobsp.tabular.health import r_squared


@pytest.mark.parametrize(("count", "most"), [(1, 1), (7, 3), (1000, 17), (4, 10)])
def test_evenly_spaced_rows_are_distinct_and_reach_both_ends(count: int, most: int) -> None:
    rows = evenly_spaced(count, most)

    assert len(set(rows.tolist())) == len(rows) == min(count, most)
    assert rows[0] == 0
    assert rows[-1] == (count - 1 if most > 1 else 0)


def test_the_rule_of_gauss_and_legendre_integrates_polynomials_from_0_to_1() -> None:
    nodes, weights = gauss_legendre(4)

    for power in range(8):
        assert math.isclose(float((weights * nodes**power).sum()), 1 / (power + 1))


def test_r_squared_is_nan_only_for_constant_columns() -> None:
    outputs = np.column_stack([np.arange(4.0), np.full(4, 1e6)])

    explained = r_squared(outputs - outputs.mean(axis=0), outputs)

    assert explained[0] == pytest.approx(0.0)
    assert np.isnan(explained[1])


def test_tensors_without_a_type_in_numpy_are_read() -> None:
    assert as_numpy(torch.ones(2, dtype=torch.bfloat16)).tolist() == [1.0, 1.0]
