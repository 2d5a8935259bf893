"""Features that others determine are named, as sums, functions of one or products; others are not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSP


def network(columns: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(columns, 32), nn.Tanh(), nn.Linear(32, 1)).double().eval()


def codes(explainer: NObSP) -> set[str]:
    return {finding.code for finding in explainer.health().findings}


def test_a_feature_that_others_determine_is_named() -> None:
    generator = np.random.default_rng(0)
    a, b, c = generator.normal(size=(3, 600))
    rows = np.stack([a, b, a + b, c], 1)
    explainer = NObSP(lambda X: X.sum(1), interactions=0, features=["a", "b", "s", "c"]).fit(rows)
    named = [f.message for f in explainer.health().findings if f.code == "determined"]
    assert len(named) == 1
    assert "'c'" not in named[0]


@pytest.mark.parametrize(
    "function",
    [
        np.square,
        np.abs,
        lambda a: np.floor(a),
        lambda a: np.digitize(a, np.quantile(a, np.arange(1, 10) / 10)),
        lambda a: np.sin(2 * a),
    ],
)
def test_a_feature_that_is_a_function_of_another_is_named(function: Any) -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 600))
    rows = np.stack([b, a, function(a).astype(float)], 1)
    explainer = NObSP(lambda X: X.sum(1), interactions=0, features=["b", "a", "f"]).fit(rows)
    named = {f.subject: f.message for f in explainer.health().findings if f.code == "determined"}
    assert list(named) == ["f"]
    assert "a" in named["f"]


@pytest.mark.parametrize("n_parts", [5, 9])
def test_a_sum_of_many_is_named_once(n_parts: int) -> None:
    shares = np.random.default_rng(0).dirichlet(np.ones(n_parts), size=600)
    findings = NObSP(lambda X: X[:, 0] ** 2, interactions=0).fit(shares).health().findings
    named = [finding.message for finding in findings if finding.code == "determined"]
    assert len(named) == 1
    assert "x1" in named[0]


@pytest.mark.parametrize("draw", ["lognormal", "standard_cauchy", "exponential"])
def test_skewed_columns_beside_a_whole_number_are_not_determined(draw: str) -> None:
    generator = np.random.default_rng(0)
    age = generator.integers(18, 90, 1000)
    income = getattr(generator, draw)(size=1000)
    rows = np.stack([age, income, generator.normal(size=1000)], 1)
    assert "determined" not in codes(NObSP(lambda X: X[:, 0] + X[:, 2], interactions=0).fit(rows))


def test_the_season_follows_from_the_month_and_not_the_other_way_round() -> None:
    generator = np.random.default_rng(0)
    month = generator.integers(1, 13, 600)
    season = np.array([2, 0, 3, 1])[(month % 12) // 3]
    rows = np.stack([month, season, generator.normal(size=600)], 1).astype(float)
    explainer = NObSP(lambda X: X.sum(1), interactions=0, features=["month", "season", "x"]).fit(
        rows
    )
    named = [f.subject for f in explainer.health().findings if f.code == "determined"]
    assert named == ["season"]


def test_visits_of_a_patient_determine_nothing() -> None:
    generator = np.random.default_rng(0)
    bmi = generator.normal(25, 4, 80)
    sex = generator.integers(0, 2, 80)
    patient = np.repeat(np.arange(80), 10)
    rows = np.stack([bmi[patient], sex[patient], generator.normal(size=800)], 1)
    assert "determined" not in codes(
        NObSP(lambda X: X.sum(1), interactions=0).fit(rows, groups=patient)
    )
    assert "determined" not in codes(NObSP(lambda X: X.sum(1), interactions=0).fit(rows))


@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_copies_of_rows_and_tight_clusters_determine_nothing(noise: float) -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(120, 3))
    rows = centres[generator.integers(0, 120, 1500)] + noise * generator.normal(size=(1500, 3))
    assert "determined" not in codes(NObSP(network(3), interactions=0).fit(rows))


@pytest.mark.parametrize("noise", [0.2, 0.5])
def test_a_noisy_function_of_another_determines_nothing(noise: float) -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 600))
    rows = np.stack([a, a**2 / 2**0.5 + noise * b, b], 1)
    assert "determined" not in codes(NObSP(lambda X: X[:, 0], interactions=0).fit(rows))


def test_a_value_that_goes_along_with_a_level_is_named() -> None:
    generator = np.random.default_rng(0)
    days = np.where(generator.random(600) < 0.7, -1.0, generator.integers(1, 300, 600))
    outcome = np.where(days == -1, 0.0, generator.integers(1, 4, 600))
    rows = np.stack([days, outcome, generator.normal(size=600)], 1)
    explainer = NObSP(lambda X: X[:, 1] + X[:, 2], interactions=0).fit(rows)
    assert "determined" in codes(explainer)


def test_a_product_or_quotient_of_two_numbers_is_named() -> None:
    """For example the share of a loan in the value of a house."""
    generator = np.random.default_rng(0)
    loan, value, other = np.exp(0.5 * generator.normal(size=(3, 800)))
    for third, is_named in ((loan / value, True), (loan * value, True), (other, False)):
        rows = np.stack([loan, value, third], 1)
        explainer = NObSP(network(3), interactions=0).fit(rows)
        assert ("determined" in codes(explainer)) == is_named


@pytest.mark.parametrize(
    "missing_or_zero", [np.nan, 0.0, -1.0], ids=["missing", "zero", "of both signs"]
)
def test_a_product_is_named_where_a_factor_is_missing_zero_or_negative(
    missing_or_zero: float,
) -> None:
    """For example sales as quantity times price, with rows where nothing was sold."""
    generator = np.random.default_rng(0)
    quantity, price, other = np.exp(0.5 * generator.normal(size=(3, 800)))
    changed = generator.random(800) < 0.3
    quantity[changed] *= missing_or_zero
    rows = np.stack([quantity, price, quantity * price, other], 1)
    assert "determined" in codes(NObSP(lambda X: np.nan_to_num(X).sum(1), interactions=0).fit(rows))


def test_a_sum_is_named_where_it_is_missing_with_one_of_its_parts() -> None:
    generator = np.random.default_rng(0)
    first, second, other = generator.normal(size=(3, 600))
    first[generator.random(600) < 0.2] = np.nan
    rows = np.stack([first, second, first + second, other], 1)
    assert "determined" in codes(NObSP(lambda X: np.nan_to_num(X).sum(1), interactions=0).fit(rows))


@pytest.mark.parametrize("share", [0.001, 0.3])
def test_a_code_far_out_that_two_columns_share_determines_nothing(share: float) -> None:
    """One row of both, or 9999 for all that is unknown, is almost all of their variance."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(1000, 4))
    rows[: int(share * 1000), :2] = 9999.0
    findings = NObSP(network(4), interactions=0).fit(rows).health().findings
    named = [finding.message for finding in findings if finding.code == "determined"]
    assert not [message for message in named if "Whether" not in message]


def test_a_sum_with_a_row_far_out_is_named_with_both_of_its_parts() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(600, 4))
    rows[0, :2] = 1e4
    rows[:, 3] = rows[:, 0] + rows[:, 1]
    findings = NObSP(network(4), interactions=0).fit(rows).health().findings
    named = [finding for finding in findings if finding.code == "determined"]
    assert len(named) == 1
    assert set(re.findall(r"x\d", named[0].subject + named[0].message)) == {"x0", "x1", "x3"}


def test_only_what_is_needed_is_named_as_determining_a_feature() -> None:
    generator = np.random.default_rng(0)
    size, first, second, third = np.exp(0.5 * generator.normal(size=(4, 800)))
    amounts = [first * size, second * size, third * size]
    rows = np.stack([size, *amounts, *(amount / size for amount in amounts)], 1)
    messages = [
        finding.message
        for finding in NObSP(network(7), interactions=0).fit(rows).health().findings
        if finding.code == "determined"
    ]
    assert len(messages) >= 3
    assert all(len(re.findall(r"x\d", message)) == 2 for message in messages)


def test_what_is_zero_for_many_rows_determines_nothing() -> None:
    """An amount that is zero for half of the rows says nothing of the other column there."""
    generator = np.random.default_rng(0)
    number = generator.normal(size=1000)
    is_paid = generator.random(1000) < 0.5
    rows = np.stack([number, generator.normal(size=1000), number * is_paid], 1)
    assert "determined" not in codes(NObSP(network(3), interactions=0).fit(rows))


def test_heavy_rows_determine_nothing() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(600, 4))
    weight = np.ones(600)
    weight[:3] = 100.0
    explainer = NObSP(network(4), interactions=0).fit(rows, sample_weight=weight)
    assert not {"determined", "dependent"} & codes(explainer)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_ordinary_correlation_determines_nothing(correlation: float) -> None:
    generator = np.random.default_rng(0)
    common = generator.normal(size=(600, 1))
    own = generator.normal(size=(600, 6))
    rows = correlation**0.5 * common + (1 - correlation) ** 0.5 * own
    assert "determined" not in codes(NObSP(network(6), interactions=0).fit(rows))


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_numbers_whose_squares_are_beyond_all_numbers_are_compared(size: float) -> None:
    generator = np.random.default_rng(0)
    a, b, c = size * generator.normal(size=(3, 600))
    rows = np.stack([a, b, a + b, c, np.abs(c)], 1)
    explainer = NObSP(lambda X: np.tanh(X / size).sum(1), interactions=0).fit(rows)
    named = [f.subject for f in explainer.health().findings if f.code == "determined"]
    assert len(named) == 2
    assert "x4" in named
