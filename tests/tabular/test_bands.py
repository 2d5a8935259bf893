"""Bands around curves, judged by calibrating again and again on fresh rows of the paper's synthetic benchmark."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSP
from nobsp.tabular.bands import band
from tests.tabular.nets import net, table
from tests.tolerances import CONTRIBUTIONS, SUMS, assert_same_to_rounding

GRID = np.linspace(-1.5, 1.5, 25)


def benchmark_rows(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 5)).astype(np.float32)


@cache
def benchmark_net() -> nn.Module:
    """|x0| + x1³ + exp(x2) + sin(2 x3) + 0·x4, learned by a small network in a second or two."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        X = torch.tensor(benchmark_rows(1000, 0))
        y = (X[:, 0].abs() + X[:, 1] ** 3 + X[:, 2].exp() + (2 * X[:, 3]).sin())[:, None]
        y = (y - y.mean()) / y.std()
        model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(400):
            batch = torch.randint(0, 1000, (200,))
            loss = (model(X[batch]) - y[batch]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            optimiser.param_groups[0]["lr"] = 1e-2 * (1 - step / 400)
    return model


def on_grid(curves: dict[str, np.ndarray], column: str) -> np.ndarray:
    return np.stack(
        [
            np.interp(GRID, curves["x"][curves["feature"] == f"x{k}"], curves[column][curves["feature"] == f"x{k}"])
            for k in range(5)
        ]
    )


def calibrated(rows: int, seed: int, reference: str) -> NObSP:
    return NObSP(benchmark_net(), interactions=0, reference=reference, baseline="zero").fit(benchmark_rows(rows, seed))


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_nine_bands_of_ten_hold_the_curve_that_calibrations_scatter_about(reference: str) -> None:
    """The band of one calibration should hold, at nine points of ten, the mean of very many others."""
    centre = np.mean(
        [[calibrated(400, 1000 + r, reference).function(f"x{k}")(GRID) for k in range(5)] for r in range(25)], axis=0
    )
    covered = []
    for r in range(8):
        curves = calibrated(400, r, reference).curves(60)
        low, high = on_grid(curves, "lower"), on_grid(curves, "upper")
        covered.append((low <= centre) & (centre <= high))
    coverage = np.mean(covered)
    assert 0.75 <= coverage <= 0.99


def test_bands_narrow_with_the_root_of_the_rows() -> None:
    def width(rows: int) -> float:
        curves = [calibrated(rows, seed, "terms").curves(60) for seed in range(4)]
        return float(np.mean([on_grid(c, "upper") - on_grid(c, "lower") for c in curves]))

    assert width(400) / width(3600) == pytest.approx(3.0, rel=0.3)


def test_bands_are_as_wide_as_curves_scatter() -> None:
    """90 % of a normal scatter is 3.29 standard deviations wide."""
    explainers = [calibrated(400, seed, "terms") for seed in range(30)]
    scatter = np.std([[e.function(f"x{k}")(GRID) for k in range(5)] for e in explainers], axis=0, ddof=1).mean()
    curves = [explainer.curves(60) for explainer in explainers[:5]]
    width = np.mean([on_grid(c, "upper") - on_grid(c, "lower") for c in curves])
    assert width / (3.29 * scatter) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_bands_enclose_their_curve_and_grow_with_the_level(reference: str) -> None:
    explainer = NObSP(net("silu", outputs=2), interactions=0, reference=reference).fit(table("silu", 300))
    narrow, wide = explainer.curves(7, level=0.5), explainer.curves(7, level=0.95)
    for curves in (narrow, wide):
        assert (curves["lower"] <= curves["value"]).all()
        assert (curves["value"] <= curves["upper"]).all()
    assert ((wide["upper"] - wide["lower"]) > (narrow["upper"] - narrow["lower"])).all()


def test_bands_are_the_same_every_time_and_whatever_the_batches() -> None:
    model, X = net("silu", outputs=2), table("silu", 300)
    first, second = NObSP(model, interactions=0).fit(X), NObSP(model, interactions=0).fit(X)
    assert_same_to_rounding(first.curves(5)["lower"], second.curves(5)["lower"], within=CONTRIBUTIONS)
    assert_same_to_rounding(first.curves(5)["lower"], first.curves(5)["lower"], within=CONTRIBUTIONS)


def test_an_ignored_feature_has_no_band_to_speak_of() -> None:
    model = net("relu")
    with torch.no_grad():
        model.body[0].weight[:, 2] = 0.0
    curves = NObSP(model, interactions=0).fit(table("relu", 300)).curves(5)
    mine = curves["feature"] == "x2"
    assert np.abs(curves["upper"][mine] - curves["lower"][mine]).max() < SUMS


def test_rows_in_order_do_not_widen_the_bands() -> None:
    """Bands are about other rows of the same kind; that this table was sorted says nothing of those."""
    X = benchmark_rows(800, 3)
    ordered = X[np.argsort(X[:, 1])]
    bands = [
        NObSP(benchmark_net(), interactions=0, baseline="zero", batch_size=300).fit(rows).curves(40)
        for rows in (X, ordered)
    ]
    shuffled, sorted_ = (np.mean(curves["upper"] - curves["lower"]) for curves in bands)
    assert sorted_ == pytest.approx(shuffled, rel=0.5)


def test_too_few_rows_for_blocks_give_no_band_rather_than_a_wrong_one() -> None:
    curves = NObSP(net("relu"), interactions=0).fit(table("relu", 6)).curves(5)
    assert np.isnan(curves["lower"]).all()
    assert np.isfinite(curves["value"]).all()


def test_a_band_is_the_quantiles_of_the_copies_about_the_curve() -> None:
    copies = torch.linspace(-1, 1, 201, dtype=torch.float64)[:, None] + 5.0
    low, high = band(torch.tensor([2.0], dtype=torch.float64), copies, level=0.9)
    assert float(low) == pytest.approx(1.1)
    assert float(high) == pytest.approx(2.9)
