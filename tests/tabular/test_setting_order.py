"""In which order columns stand, and in which units they are, changes no contribution."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSP
from nobsp.tabular.setting import Sample
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding


class InAnotherForm(nn.Module):
    """A model of columns in another order and in other units."""

    def __init__(self, inner, order, units):
        super().__init__()
        self.inner = inner
        self.back = torch.from_numpy(np.argsort(order))
        self.units = torch.from_numpy(units)

    def forward(self, x):
        return self.inner((x / self.units)[:, self.back])


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)).double()


@pytest.mark.parametrize("units", [np.ones(4), np.array([2.0**27, 1.0, 2.0**-27, 4.0])])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]])
def test_order_and_units_of_columns_change_nothing(network, order, units):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    X[:, 3] = rng.integers(0, 2, 200)  # half of the rows are equal in it
    order = np.array(order)
    units = units[order]

    expected = NObSP(network, interactions=0).fit(X)(X[:20]).values
    other = NObSP(InAnotherForm(network, order, units), interactions=0).fit(X[:, order] * units)
    found = other(X[:20][:, order] * units).values[:, np.argsort(order)]

    assert_same_to_rounding(found, expected, within=CONTRIBUTIONS)


def test_order_of_rows_changes_nothing_with_one_hot_columns(network):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=200), np.eye(3)[rng.integers(0, 3, 200)]])
    order = rng.permutation(200)

    expected = NObSP(network, interactions=0).fit(X)(X[:20]).values
    found = NObSP(network, interactions=0).fit(X[order])(X[:20]).values

    assert_same_to_rounding(found, expected, within=CONTRIBUTIONS)


def test_order_of_rows_changes_nothing_where_columns_are_balanced():
    # Every combination of four levels of two, ten times: all columns hold the same numbers.
    X = np.repeat(list(product([0.0, 1.0], repeat=4)), 10, axis=0)
    order = np.random.default_rng(0).permutation(len(X))

    def model(rows):
        return 3 * rows[:, 0] + 0.4 * np.prod(2 * rows - 1, axis=1)

    expected = NObSP(model).fit(X).health()
    found = NObSP(model).fit(X[order]).health()

    assert found.explained == pytest.approx(expected.explained, abs=1e-9)


def test_equal_rows_lie_side_by_side_where_columns_are_balanced():
    X = np.repeat(list(product([0.0, 1.0], repeat=4)), 10, axis=0)
    rows = torch.from_numpy(np.random.default_rng(0).permutation(X))
    sample = Sample({}, rows, torch.zeros(len(rows), 1)).in_canonical_order()
    assert len(np.unique(sample.units())) == 16
