"""The synthetic benchmark's scores mean what they say."""

import pytest
import torch
from torch import nn

from benchmarks import synthetic


@pytest.fixture
def additive():
    """A 'network' that is linear in its features: every method must take it apart exactly."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(120, 5, generator=generator, dtype=torch.float64)
    weights = torch.tensor([[1.0, -2.0, 0.5, 3.0, 0.0]], dtype=torch.float64)
    network = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 1)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(5))
        network[0].bias.zero_()
        network[1].weight.copy_(weights)
    return synthetic.Problem(network, rows[:80], rows[80:], rows[80:] * weights, 1.0)


@pytest.mark.parametrize("method", synthetic.METHODS)
def test_a_network_without_interactions_is_taken_apart(additive, method):
    contributions, ridge = synthetic.METHODS[method]
    found = contributions(additive.network, additive.calibration, additive.held_out, ridge)
    scores = synthetic.score(additive, found)
    assert scores.frs > 1 - 1e-6
    assert scores.nrmse < 1e-3
    assert scores.null < 1e-4
    assert scores.reconstruction > 1 - 1e-6


def test_offsets_cost_nothing_and_wrong_functions_do(additive):
    shifted = additive.functions + torch.arange(5.0)
    assert synthetic.score(additive, shifted).frs == pytest.approx(1.0)
    swapped = additive.functions[:, [1, 0, 2, 3, 4]]
    scores = synthetic.score(additive, swapped)
    assert scores.per_function[0] < 0.5
    assert scores.per_function[2] == pytest.approx(1.0)


def test_what_a_null_feature_is_given_counts_against_the_null_score_alone(additive):
    spoiled = additive.functions - additive.functions.mean(0)
    spoiled[:, 4] = -0.25
    scores = synthetic.score(additive, spoiled)
    assert scores.null == pytest.approx(0.25)
    assert scores.frs == pytest.approx(1.0)


def test_isolated_and_reference_rows_complete_each_other():
    rows, baseline = torch.rand(4, 3), torch.tensor([7.0, 8.0, 9.0])
    alone, others = synthetic.isolated(rows, 1, baseline), synthetic.without(rows, 1, baseline)
    torch.testing.assert_close(alone + others, rows + baseline)
    assert (others[:, 1] == 8.0).all()
