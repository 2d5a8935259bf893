"""What the headline promises: the share explained on rows that were not used, the ridge behind it, and bands."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSP
from nobsp.tabular.correction import Trial, factor_memory, solve_ridge, try_terms
from nobsp.tabular.setting import Sample
from tests.tabular.nets import additive, net, one_product, table
from tests.tolerances import assert_same_to_rounding, rounding


def trained(X: torch.Tensor, y: torch.Tensor, *, epochs: int, width: int = 32) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(X.shape[1], width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )
        optimizer = torch.optim.AdamW(model.parameters(), 4e-3, weight_decay=0.1)
        for _ in range(epochs):
            for rows in torch.randperm(len(y)).split(256):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(X[rows]), y[rows]).backward()
                optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def wide() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Thirty features of which five act, a network that hears them all, and 600 rows to calibrate on."""
    X = torch.randn(6000, 30, generator=torch.Generator().manual_seed(0))
    y = torch.sin(2 * X[:, :1]) + 0.5 * X[:, 1:2] ** 2 + X[:, 2:3] * X[:, 3:4] + 0.5 * X[:, 4:5]
    return trained(X[:3000], y[:3000], epochs=6), X[3000:3600], X[3600:]


def quiet(explainer: NObSP, X: Any) -> NObSP:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return explainer.fit(X)


def test_many_features_and_few_rows_are_as_good_as_the_best_fixed_ridge(wide: Any) -> None:
    model, seen, fresh = wide
    auto = quiet(NObSP(model, interactions=0), seen)
    fixed = [
        float(quiet(NObSP(model, interactions=0, ridge=ridge), seen)(fresh).explained()[0])
        for ridge in (1e-3, 1e-1, 10.0)
    ]
    found = float(auto(fresh).explained()[0])
    assert found >= max(fixed) - 0.02
    assert auto.explained_[0] == pytest.approx(found, abs=0.04)
    assert auto.ridge_.shape == (1,)
    assert 1e-5 <= auto.ridge_[0] <= 1e4
    assert quiet(NObSP(model, interactions=0, ridge=0.25), seen).ridge_.tolist() == [0.25]


@pytest.mark.parametrize("rows", [300, 1000])
def test_the_headline_holds_on_fresh_rows_of_correlated_features(rows: int) -> None:
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(20_000, 30)) + 1.5 * rng.normal(size=(20_000, 1))
    model = net("relu", columns=30, width=24, dtype=torch.float32)
    explainer = quiet(NObSP(model, interactions=0), mixed[:rows])
    assert explainer.explained_[0] == pytest.approx(
        explainer(mixed[rows:]).explained()[0], abs=0.04
    )
    assert f"{explainer.explained_[0]:.3f}" in explainer.health().headline
    assert f"{explainer.explained_[0]:.3f}" in repr(explainer)


def test_a_share_below_zero_is_an_error_and_fit_says_so() -> None:
    model, X = one_product(2, strength=8.0), table("relu", 40, columns=2, correlation=0.0)
    with pytest.warns(UserWarning, match="worse than predicting the mean"):
        explainer = NObSP(model, interactions=0, ridge=1e-12).fit(X[:12])
    assert explainer.explained_[0] < 0
    first = explainer.health().findings[0]
    assert (first.severity, first.code) == ("error", "worse_than_mean")
    assert not explainer.health().healthy


def test_a_low_share_is_a_warning() -> None:
    model, X = one_product(2, strength=2.0), table("relu", 800, columns=2, correlation=0.0)
    explainer = NObSP(model, interactions=0).fit(X)
    assert "low_share" in {finding.code for finding in explainer.health().findings}
    assert NObSP(model).fit(X).health().healthy


@pytest.mark.parametrize("how", ["dead", "constant"])
def test_features_that_do_nothing_are_named(how: str) -> None:
    model, X = net("relu", columns=3), table("relu", 300, columns=3)
    if how == "constant":
        X[:, 1] = 4.0
    else:
        with torch.no_grad():
            model.body[0].weight[:, 1] = 0
    findings = NObSP(model).fit(X).health().findings
    assert [(f.severity, f.code, f.subject) for f in findings if f.code == "constant"] == [
        ("note", "constant", "x1")
    ]


@pytest.mark.parametrize("twin", [lambda x: x, lambda x: x**3, np.round])
def test_a_twin_is_named(twin: Any) -> None:
    X = table("relu", 400, columns=3, correlation=0.0)
    if twin is np.round:
        X[:, 0] = X[:, 0].round()
    X[:, 2] = twin(X[:, 0]) * 2
    found = [
        f for f in NObSP(net("relu", columns=3)).fit(X).health().findings if f.code == "dependent"
    ]
    assert [f.subject for f in found] == ["x2"]
    assert "'x0'" in found[0].message


def test_large_tables_are_sampled_and_it_is_said() -> None:
    X = table("relu", 20_000, columns=2)
    explainer = NObSP(net("relu", columns=2), interactions=0).fit(X)
    assert "sampled" in {finding.code for finding in explainer.health().findings}
    assert not explainer(X).outside.any()  # ranges are those of all rows
    assert len(explainer._fitted.summary.sample) == 16_384


# ---------------------------------------------------------------------- bands


def test_bands_cover_the_curve_of_very_many_rows() -> None:
    """90% bands of ten calibrations on 400 rows each: at least 80% hold what 16,000 rows give, and are no wider than
    four times the spread of those calibrations."""
    model, rng = net("tanh", columns=3, outputs=1, seed=2), np.random.default_rng(0)
    draw = lambda n: rng.normal(size=(n, 3)) + 0.7 * rng.normal(size=(n, 1))  # noqa: E731
    truth = NObSP(model, interactions=0, background=64).fit(draw(16_000))
    grid = np.linspace(-1.5, 1.5, 9)
    expected = np.stack([truth.function(f"x{k}")(grid) for k in range(3)])
    curves, widths = [], []
    for _ in range(10):
        one = NObSP(model, interactions=0).fit(draw(400))
        frame = one.curves(101)
        parts = [frame[frame["feature"] == f"x{k}"] for k in range(3)]
        curves.append([np.interp(grid, part["x"], part["value"]) for part in parts])
        widths.append([np.interp(grid, part["x"], part["upper"] - part["value"]) for part in parts])
    inside = np.abs(np.array(curves) - expected) <= np.array(widths)
    assert inside.mean() >= 0.8
    spread = np.array(curves).std(0).mean(1)
    assert (np.array(widths).mean((0, 2)) < 1.645 * 4 * spread).all()
    assert (np.array(widths).mean((0, 2)) > 1.645 * 0.5 * spread).all()


def test_a_wider_level_is_a_wider_band() -> None:
    explainer = NObSP(net("relu"), interactions=0).fit(table("relu", 300))
    narrow, broad = explainer.curves(9, confidence=0.5), explainer.curves(9, confidence=0.95)
    assert ((broad["upper"] - broad["lower"]) >= (narrow["upper"] - narrow["lower"])).all()
    assert (narrow["lower"] <= narrow["value"]).all()


# ---------------------------------------------------------------------- pairs


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_auto_keeps_the_one_true_pair_and_no_other(correlation: float) -> None:
    X = table("relu", 1200, correlation=correlation)
    explainer = NObSP(one_product()).fit(X)
    assert explainer.terms_[5:] == (("x0", "x1"),)
    strengths = explainer.interaction_strengths()
    assert len(strengths) == 10
    assert strengths.iloc[0][["first", "second", "fitted"]].tolist() == ["x0", "x1", True]


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_auto_keeps_no_pair_of_an_additive_network(correlation: float) -> None:
    assert len(NObSP(additive(5)).fit(table("relu", 600, correlation=correlation)).terms_) == 5


def test_pairs_by_number_and_by_name() -> None:
    X, model = table("relu", 400), net("silu")
    assert len(NObSP(model, interactions=3).fit(X).terms_) == 8
    named = NObSP(model, interactions=[("x3", "x1"), ["x1", "x3"]]).fit(X)
    assert named.terms_[5:] == (("x1", "x3"),)
    assert len(named.interaction_strengths()) == 0
    triple = NObSP(model, interactions=[("x2", "x0", "x4")]).fit(X)
    assert triple.terms_[5:] == (("x0", "x2"), ("x0", "x4"), ("x2", "x4"), ("x0", "x2", "x4"))
    assert triple.compile().left_out == ()


# ---------------------------------------------------------------------- which terms are put in


class Column:
    """A term whose representation and prior are one column of the rows."""

    rank = 1

    def __init__(self, term: tuple[int, ...], column: int) -> None:
        self.term = term
        self.column = column

    def read(self, rows: Sample) -> tuple[torch.Tensor, torch.Tensor]:
        values = rows.inputs[:, [self.column]]
        return values, values


def paying(outputs: torch.Tensor, columns: torch.Tensor, trial: Trial) -> set[tuple[int, ...]]:
    pieces: list[Any] = [Column(term, k) for k, term in enumerate([(0,), *trial.terms])]
    sample = Sample(own={}, inputs=columns, outputs=outputs)
    return try_terms(sample, pieces, [], ridge=None, trial=trial).paying


def test_terms_are_put_in_by_what_they_explain_where_rows_are() -> None:
    columns = torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # The term that is named first does little on these rows, and the noise is little enough to stop after the second.
    columns[:, 1] *= 0.03
    noise = torch.randn(300, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outputs = columns.sum(1, keepdim=True) + 0.05 * noise
    trial = Trial(terms=((0, 1), (0, 2)), least_relative_gain=0.005, least_gain=1e-4)
    assert paying(outputs, columns, replace(trial, by_size=True)) == {(0, 2)}
    assert (0, 1) in paying(outputs, columns, trial)


@pytest.mark.parametrize(("weak", "is_kept"), [(0.06, True), (0.01, False)])
def test_where_little_is_left_a_term_that_explains_most_of_it_is_put_in(
    weak: float, is_kept: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    columns[:, 2] *= weak
    noise = 0.01 * torch.randn(300, 1, generator=generator, dtype=torch.float64)
    trial = Trial(terms=((0, 1), (0, 2)), least_relative_gain=0.005, least_gain=1e-5, by_size=True)
    chosen = paying(columns.sum(1, keepdim=True) + noise, columns, trial)
    assert ((0, 2) in chosen) == is_kept


def test_solves_that_share_memory_are_those_of_the_system() -> None:
    rows = torch.randn(60, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram = rows.T @ rows / len(rows)
    before = gram.clone()
    cross = rows[:8, :2].clone()
    memory = factor_memory(gram)

    for ridge in (1.0, 1e-3):
        system = gram + ridge * torch.eye(8, dtype=torch.float64)
        expected = torch.linalg.solve(system, cross)
        within = rounding(operations=64, condition=float(torch.linalg.cond(system)))
        solution = solve_ridge(gram, cross, ridge, memory=memory)
        assert_same_to_rounding(solution, expected, within=within)

    # Where nothing makes it definite, the least-norm solution is taken.
    singular = torch.ones(8, 8, dtype=torch.float64)
    least = solve_ridge(singular, singular[:, :1], 0.0, memory=memory)
    assert_same_to_rounding(least, torch.full_like(least, 1 / 8), within=rounding(operations=64))
    assert torch.equal(gram, before)
