"""Weights of rows: a row of weight k counts as k rows do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn

from nobsp import NObSP
from tests.tolerances import assert_same_to_rounding

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(120, 3))
WEIGHT = GENERATOR.integers(0, 4, size=120).astype(np.float64)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2)).double().eval()


def test_whole_weights_are_repeated_rows() -> None:
    repeated = np.repeat(X, WEIGHT.astype(int), axis=0)
    expected = NObSP(network(), ridge=1e-3, interactions=2).fit(repeated)(X)
    for weight in (WEIGHT, WEIGHT * 0.3, WEIGHT.tolist(), torch.tensor(WEIGHT, requires_grad=True)):
        found = NObSP(network(), ridge=1e-3, interactions=2).fit(X, sample_weight=weight)(X)
        assert found.terms == expected.terms
        assert_same_to_rounding(found.values, expected.values)
        assert_same_to_rounding(found.base_values, expected.base_values)


def test_copies_of_a_row_do_not_judge_each_other() -> None:
    """Nearly equal weights leave the share explained, the strength and the bands about as they are without."""
    generator = np.random.default_rng(3)
    rows, fresh = generator.normal(size=(60, 8)), generator.normal(size=(2000, 8))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1)
        ).double()
        with torch.no_grad():
            net[0].weight.mul_(4)
    plain = NObSP(net, interactions=0).fit(rows)
    weights = generator.uniform(0.9, 1.1, size=60)
    weighted = NObSP(net, interactions=0).fit(rows, sample_weight=weights)
    assert weighted.health().rows == plain.health().rows == 60
    assert weighted.explained_[0] == pytest.approx(plain.explained_[0], abs=0.15)
    assert weighted.explained_[0] < weighted(fresh).explained()[0] + 0.25
    tables = [one.curves() for one in (plain, weighted)]
    widths = [float((table["upper"] - table["lower"]).mean()) for table in tables]
    assert 0.5 < widths[1] / widths[0] < 2


def test_a_level_of_little_weight_is_known_all_the_same() -> None:
    frame = pd.DataFrame({"a": X[:, 0], "kind": ["x"] * 119 + ["y"]})
    weight = np.append(GENERATOR.uniform(0.5, 1, 119), 1e-7)
    explainer = NObSP(
        lambda rows: rows["a"].to_numpy() + (rows["kind"] == "y").to_numpy(), interactions=0
    )
    assert not explainer.fit(frame, sample_weight=weight)(frame[-1:]).outside.any()


def test_what_weights_do_not_go_with_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sample_weight needs reference=\"terms\""):
        NObSP.as_published(network()).fit(X, sample_weight=WEIGHT)
    weighted, plain = (
        NObSP(network(), interactions=0).fit(X, sample_weight=WEIGHT),
        NObSP(network(), interactions=0),
    )
    with pytest.raises(ValueError, match="sample_weight cannot be merged"):
        plain.fit(X).merge(weighted)
    with pytest.raises(ValueError, match="mergeable: a calibration with sample_weight"):
        weighted.save("never.nobsp", mergeable=True)


def test_weights_decide_over_what_a_curve_averages() -> None:
    """x₀ x₁ has no slope in x₀ where x₁ is zero on average, and the slope 1/2 where weights move its mean there."""
    rows = GENERATOR.uniform(-1, 1, size=(2000, 2))
    plain = NObSP(lambda values: values[:, :1] * values[:, 1:], interactions=[("x0", "x1")])
    slopes = []
    for weight in (None, np.exp(1.797 * rows[:, 1])):  # which has the mean 1/2 on −1 … 1
        curve = plain.fit(rows, sample_weight=weight).function("x0")
        slopes.append(float(np.diff(curve([-0.5, 0.5]))[0]))
    mean = np.average(rows[:, 1], weights=np.exp(1.797 * rows[:, 1]))
    assert slopes[0] == pytest.approx(rows[:, 1].mean(), abs=0.02)
    assert slopes[1] == pytest.approx(mean, abs=0.02)
    assert mean > 0.4


@pytest.mark.parametrize("kind", ["tensor", "pandas", "polars"])
def test_kinds_of_rows(kind: str) -> None:
    names = ["a", "b", "c"]
    rows: Any = {
        "tensor": lambda: torch.from_numpy(X),
        "pandas": lambda: pd.DataFrame(X, columns=names),
        "polars": lambda: pl.DataFrame(X, schema=names),
    }[kind]()
    expected = NObSP(network(), interactions=0).fit(X, sample_weight=WEIGHT)(X)
    found = NObSP(network(), interactions=0).fit(rows, sample_weight=WEIGHT)(rows)
    assert_same_to_rounding(found.values, expected.values)


def test_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return self.net(torch.cat([first, second], 1))

    parts = torch.from_numpy(X[:, :1]), torch.from_numpy(X[:, 1:])
    expected = NObSP(Two(), interactions=0).fit(parts, sample_weight=WEIGHT)(parts)
    named = dict(zip(("first", "second"), parts, strict=True))
    found = NObSP(Two(), interactions=0).fit(named, sample_weight=WEIGHT)(named)
    assert_same_to_rounding(found.values, expected.values)
    assert_same_to_rounding(
        found.values, NObSP(network(), interactions=0).fit(X, sample_weight=WEIGHT)(X).values
    )


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (WEIGHT[:5], r"shape \(5,\); pass one weight for each of the 120 rows"),
        (-WEIGHT, "not negative"),
        (np.full(120, np.nan), "finite"),
        (np.zeros(120), "above zero"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weight: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"sample_weight.*{said}"):
        NObSP(network()).fit(X, sample_weight=weight)


def test_rows_that_are_read_in_batches_take_no_weights() -> None:
    with pytest.raises(
        TypeError, match="sample_weight needs X as an array, a tensor or a frame, found list"
    ):
        NObSP(network()).fit([torch.from_numpy(X)], sample_weight=WEIGHT)


def test_a_headline_that_rests_on_few_heavy_rows_is_not_given() -> None:
    rows = np.random.default_rng(4).normal(size=(600, 3))
    five_heavy = np.where(np.arange(600) < 5, 1e6, 1.0)
    sixty_heavy = np.where(np.arange(600) < 60, 1e3, 1.0)

    few = NObSP(network()).fit(rows, sample_weight=five_heavy)
    some = NObSP(network()).fit(rows, sample_weight=sixty_heavy)

    assert np.isnan(few.explained_).all()
    assert np.isfinite(some.explained_).all()
    for explainer in (few, some):
        codes = [finding.code for finding in explainer.health().findings]
        assert "few_rows" in codes
        assert "sampled" not in codes  # weights repeat the rows; none of the caller's is left out
