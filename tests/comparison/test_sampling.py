"""Intervals and p-values of gaps beside what a plain bootstrap and Welch's test give."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_ind

import nobsp

LEVEL = 0.9


def curved(X):
    return np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2


def rows(seed, n):
    return np.random.default_rng(seed).normal(size=(n, 2))


@pytest.fixture(scope="module")
def explainer(tmp_path_factory):
    """From a file, so that intervals are of the rows alone."""
    path = tmp_path_factory.mktemp("sampling") / "e.nobsp"
    nobsp.NObSP(curved, interactions=0).fit(rows(0, 400)).save(path)
    return nobsp.NObSP.load(path, curved)


def bootstrap(values, weights, groups, generator):
    """The weighted mean of one redrawn table: groups drawn with replacement, row by row."""
    names = np.unique(groups)
    drawn = generator.choice(names, size=len(names))
    picked = np.concatenate([np.flatnonzero(groups == name) for name in drawn])
    return np.average(values[picked], axis=0, weights=weights[picked])


@pytest.mark.parametrize("design", ["plain", "weights", "groups"])
def test_intervals_are_those_of_a_plain_bootstrap(explainer, design):
    generator = np.random.default_rng(1)
    accounts = [explainer(rows(2, 90)), explainer(rows(3, 60))]
    weights = [np.ones(len(account)) for account in accounts]
    groups = [np.arange(len(account)) for account in accounts]
    if design == "weights":
        weights = [generator.random(len(account)) + 0.2 for account in accounts]
    if design == "groups":
        groups = [np.arange(len(account)) // 3 for account in accounts]
    comparison = nobsp.compare(
        *accounts, sample_weight=tuple(weights), groups=tuple(groups), draws=4000, confidence=LEVEL
    )

    drawn = [
        bootstrap(accounts[0].values[:, :, 0], weights[0], groups[0], generator)
        - bootstrap(accounts[1].values[:, :, 0], weights[1], groups[1], generator)
        for _ in range(3000)
    ]
    lower, upper = np.quantile(drawn, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=0)
    width = upper - lower
    ends = comparison.gap.take(slice(0, -1))
    # An end of 3,000 draws is known to some 2% of the width; √(n / (n − 1)) and Student's quantiles add up to 5%.
    assert np.abs(ends.lower[:, 0] - lower).max() <= 0.08 * width.max()
    assert np.abs(ends.upper[:, 0] - upper).max() <= 0.08 * width.max()


@pytest.mark.parametrize("sizes", [(4, 7), (12, 300)])
def test_few_rows_are_tested_as_welch_does(explainer, sizes):
    first, second = explainer(rows(4, sizes[0])), explainer(rows(5, sizes[1]))
    comparison = nobsp.compare(first, second, draws=20_000, confidence=LEVEL)
    for feature in range(2):
        expected = ttest_ind(
            first.values[:, feature, 0], second.values[:, feature, 0], equal_var=False
        )
        assert comparison.p_value[feature, 0] == pytest.approx(expected.pvalue, rel=0.1, abs=0.01)
        theory = expected.confidence_interval(LEVEL)
        width = comparison.gap.upper[feature, 0] - comparison.gap.lower[feature, 0]
        # Percentiles of few skewed rows are no normal ones.
        assert width == pytest.approx(theory.high - theory.low, rel=0.2)


def test_intervals_of_few_rows_hold_as_often_as_they_say(explainer):
    population = explainer(rows(6, 20_000))
    truth = population.values[:, 0, 0].mean()
    beside = explainer(rows(7, 2000))
    expected = truth - beside.values[:, 0, 0].mean()
    hits = []
    for seed in range(150):
        picked = np.random.default_rng(seed).integers(len(population), size=5)
        comparison = nobsp.compare(population[picked], beside, draws=200, random_state=seed)
        ends = comparison.gap.take((0, 0))
        hits.append(ends.lower <= expected <= ends.upper)
    # 150 trials at 0.9 give 0.83 or more in 995 of 1,000 cases; without Student's quantiles it is 0.80.
    assert np.mean(hits) >= 0.83


def test_a_row_that_outweighs_all_others_makes_no_narrow_interval(explainer):
    first, second = explainer(rows(2, 90)), explainer(rows(3, 60))
    weights = np.r_[1e9, np.ones(89)]
    weighted = nobsp.compare(first, second, sample_weight=(weights, None), draws=400)
    plain = nobsp.compare(first, second, draws=400)
    widths = [(c.gap.upper - c.gap.lower)[0, 0] for c in (weighted, plain)]
    assert widths[0] > 3 * widths[1]
    assert weighted.p_value[0, 0] > 0.05


def test_weights_count_by_their_ratios_whatever_their_size(explainer):
    first, second = explainer(rows(2, 90)), explainer(rows(3, 60))
    shares = np.linspace(0.5, 1.0, 90)
    usual, huge, tiny = (
        nobsp.compare(first, second, sample_weight=(shares * size, None), draws=100)
        for size in (1.0, 1e308, 1e-300)
    )
    np.testing.assert_allclose(huge.gap.value, usual.gap.value, atol=1e-12)
    np.testing.assert_allclose(tiny.gap.value, usual.gap.value, atol=1e-12)


def test_levels_need_draws_beyond_them(explainer):
    first, second = explainer(rows(2, 90)), explainer(rows(3, 60))
    with pytest.raises(ValueError, match="draws=2000"):
        nobsp.compare(first, second, confidence=0.999)
    assert nobsp.compare(first, second, confidence=0.98, draws=100).confidence == 0.98
