"""The functions against the method written out in numpy: averages over a background, purified, corrected by a ridge."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from nobsp import NObSP
from nobsp.tabular import fit_together
from nobsp.tabular.correction import (
    ALPHAS,
    WORTH_A_WEAKER_RIDGE,
    Regression,
    choose_strength,
    fit_correction,
    judge,
    judge_around,
    tied_strengths,
)
from nobsp.tabular.effort import FULL, MAIN_ROWS
from nobsp.tabular.selection import FittedTerms
from tests.tabular.nets import Net, additive, net, table
from tests.tabular.oracles import Background, points_of, share_explained
from tests.tolerances import COEFFICIENTS, CONTRIBUTIONS, SUMS, assert_same_to_rounding

NO_CORRECTION = 1e12


def assert_adds_up(ex: Any) -> None:
    total = ex.base_values + ex.values.sum(1) + ex.residual
    assert_same_to_rounding(
        total, ex.predictions, within=SUMS, size=max(np.abs(ex.values).max(), 1.0) * 10
    )


def captured(monkeypatch: pytest.MonkeyPatch, explainer: NObSP, X: np.ndarray) -> FittedTerms:
    """Fits, and hands out the regression behind the functions."""
    found: list[FittedTerms] = []
    original = fit_together.fit_terms

    def keeping(*given: Any, **options: Any) -> FittedTerms:
        found.append(original(*given, **options))
        return found[0]

    monkeypatch.setattr(fit_together, "fit_terms", keeping)
    explainer.fit(X)
    return found[0]


# ---------------------------------------------------------------------- partial dependence


@pytest.mark.parametrize("kind", ["relu", "tanh", "layernorm"])
def test_without_correction_functions_are_partial_dependence_over_the_background(kind: str) -> None:
    model, X = net(kind, columns=3, outputs=2), table(kind, 300, columns=3)
    explainer = NObSP(model, interactions=0, ridge=NO_CORRECTION, background=X[:12]).fit(X)
    oracle = Background(model, X[:12])
    for k in range(3):
        knots, found = points_of(explainer.functions_, k)
        outputs = oracle.mean((k,), knots[:, None]) @ oracle.weight
        mean = np.stack([np.interp(X[:, k], knots, outputs[:, o]).mean() for o in range(2)])
        assert_same_to_rounding(
            found, outputs - mean, within=CONTRIBUTIONS, size=np.abs(outputs).max()
        )


def test_a_pair_has_no_mean_over_either_partner_and_the_mains_have_it_instead() -> None:
    """Sums at the grid's nodes are those of brute force; what a pair does on average is its features' own."""
    model, X = net("tanh", columns=3), table("tanh", 300, columns=3)
    given = {"interactions": [("x0", "x1")], "ridge": NO_CORRECTION, "background": X[:12]}
    explainer, oracle = NObSP(model, **given).fit(X), Background(model, X[:12])
    pair = next(one for one in explainer.functions_.tables if one.features == (0, 1))
    f0, f1, f01 = (
        explainer.function("x0"),
        explainer.function("x1"),
        explainer.function(("x0", "x1")),
    )
    inside = [
        axis.knots[(axis.knots >= X[:, k].min()) & (axis.knots <= X[:, k].max())]
        for k, axis in enumerate(pair.axes)
    ]
    for knots, other, turned in ((inside[0], X[:, 1], False), (inside[1], X[:, 0], True)):
        means = []
        for knot in knots:
            here = np.full(len(X), knot)
            means.append((f01(other, here) if turned else f01(here, other)).mean())
        assert np.ptp(means) < SUMS * 10

    nodes = np.array([(a, b) for a in inside[0] for b in inside[1]])
    expected = (oracle.mean((0, 1), nodes) @ oracle.weight)[:, 0]
    found = f0(nodes[:, 0]) + f1(nodes[:, 1]) + f01(nodes[:, 0], nodes[:, 1])
    # Mains and pairs are averaged over background rows of their own, and a main has knots of its own.
    assert (
        np.abs((found - found.mean()) - (expected - expected.mean())).max() < 0.15 * expected.std()
    )


class Product(nn.Module):
    """x1 · x2² + x3 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1.0, 0.5]]))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.stack([x[:, 0] * x[:, 1] ** 2, x[:, 2]], 1))


@pytest.fixture(scope="module")
def normals() -> Tensor:
    return torch.randn(5000, 3, generator=torch.Generator().manual_seed(0))


def slope(explainer: NObSP) -> float:
    low, high = explainer.function("x1")([-2.0, 2.0])
    return float(high - low) / 4


def test_a_main_curve_is_the_average_effect_whatever_the_background(normals: Tensor) -> None:
    names = ["x1", "x2", "x3"]
    explainers = {
        count: NObSP(Product().eval(), features=names, background=count).fit(normals)
        for count in (16, 32, 64)
    }
    own = float(normals[:, 1].square().mean())  # the sample's own mean of x2²
    for explainer in explainers.values():
        assert slope(explainer) == pytest.approx(1, abs=0.05)
        assert slope(explainer) == pytest.approx(own, abs=0.02)
        assert not {"constant", "unused"} & {
            finding.code for finding in explainer.health().findings
        }
        assert explainer.importance()["feature"].iloc[0] == "x1"
        assert ("x1", "x2") in explainer.terms_
    assert explainers[32].function("x2")([-2.0, 0.0, 2.0]) == pytest.approx([0, 0, 0], abs=0.15)


def test_one_background_row_is_the_baseline(normals: Tensor) -> None:
    names, rows = ["x1", "x2", "x3"], normals[:1000]
    given = {"background": 1, "ridge": NO_CORRECTION, "interactions": 0}
    for level in (1.0, 2.0):
        with (
            pytest.warns(UserWarning, match="worse than predicting the mean")
            if level == 2.0
            else nullcontext()
        ):
            explainer = NObSP(
                Product().eval(), features=names, baseline=[0.0, level, 0.0], **given
            ).fit(rows)
        assert slope(explainer) == pytest.approx(level**2, rel=1e-5)


# ---------------------------------------------------------------------- the regression


def random_rows(seed: int, *, outputs: int = 2, outside: int = 4, columns: int = 5) -> Regression:
    rng = np.random.default_rng(seed)
    spreads = np.resize([3, 2, 1, 0.5, 0.1], columns)
    terms, prior = (
        rng.normal(size=(60, columns)) * spreads + 1,
        rng.normal(size=(60, outputs)),
    )
    y = prior + terms @ rng.normal(size=(columns, outputs)) + 0.3 * rng.normal(size=(60, outputs))
    away = rng.choice(60, outside, replace=False)
    fold = rng.permutation(60) % 5
    held = terms[away] + 0.1
    parts = (torch.from_numpy(np.asarray(part)) for part in (terms, y, fold, away, held))
    return Regression.of(*parts).only(torch.arange(columns), torch.from_numpy(prior))


@pytest.mark.parametrize("columns", [7, 200, 450])
def test_products_by_fold_are_those_of_the_rows(columns: int) -> None:
    rows = random_rows(0, columns=columns)
    for number, product in enumerate(rows.products):
        part = rows.design[rows.fold == number]
        assert_same_to_rounding(product, part.T @ part, within=COEFFICIENTS)
    assert_same_to_rounding(rows.total, rows.design.T @ rows.design, within=COEFFICIENTS)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    alpha=st.sampled_from([1e-4, 1e-2, 1.0, 100.0]),
    columns=st.sampled_from([5, 90]),
)
def test_the_correction_is_ridge_regression_of_what_the_prior_leaves(
    seed: int, alpha: float, columns: int
) -> None:
    rows = random_rows(seed, columns=columns)
    T, target = rows.design.numpy(), (rows.outputs - rows.prior).numpy()
    expected = Ridge(alpha=len(T) * alpha * T.var(0).mean(), solver="svd").fit(T, target).coef_.T
    found = fit_correction(rows, torch.full((2,), alpha, dtype=torch.float64))
    assert_same_to_rounding(found.delta, expected, within=COEFFICIENTS)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), columns=st.sampled_from([5, 55, 90]))
def test_rows_are_judged_by_fits_on_the_other_folds(seed: int, columns: int) -> None:
    rows, alphas = random_rows(seed, columns=columns), (1e-3, 1e-1, 10.0)
    T, target, fold = rows.design.numpy(), (rows.outputs - rows.prior).numpy(), rows.fold.numpy()
    seen = T.copy()
    seen[rows.outside.numpy()] = rows.clamped.numpy()
    expected = np.empty((3, 60, 2))
    for number in range(5):
        test = fold == number
        for place, alpha in enumerate(alphas):
            strength = (~test).sum() * alpha * T.var(0).mean()
            fit = Ridge(alpha=strength, solver="svd").fit(T[~test], target[~test])
            expected[place, test] = target[test] - fit.predict(seen[test])
    found = judge(rows, alphas)
    assert_same_to_rounding(found.residual, expected, within=COEFFICIENTS)
    errors = np.stack([(expected[:, fold == number] ** 2).sum(1) for number in range(5)])
    assert_same_to_rounding(found.errors, errors, within=COEFFICIENTS)
    for output in range(2):
        best = errors[..., output].sum(0).argmin()
        worse = errors[..., output] - errors[:, best, output][:, None]
        negligible = (
            WORTH_A_WEAKER_RIDGE * 60 * float(rows.outputs[:, output].var(correction=0)) / 5
        )
        level = [
            a for a in range(3) if worse[:, a].mean() <= max(worse[:, a].std() / 2, negligible)
        ]
        assert int(found.best[output]) == max([best, *level])


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), likely=st.sampled_from([0, 5, 11]))
def test_strengths_are_found_from_a_likely_one_without_trying_all(seed: int, likely: int) -> None:
    rows = random_rows(seed)
    everywhere = judge(rows, ALPHAS)
    around = judge_around(rows, ALPHAS, {likely})
    was_judged = around.errors.isfinite().all(2).all(0)
    assert_same_to_rounding(
        around.errors[:, was_judged], everywhere.errors[:, was_judged], within=COEFFICIENTS
    )
    # From where it ends, no neighbour is as good: what is taken is the strongest of those that are level.
    tied = tied_strengths(around.errors, around.negligible).any(1).nonzero().flatten()
    assert bool(was_judged[tied].all())
    # Beyond strengths that are worse there may be another level one, which is seldom and not tried.
    level = tied_strengths(everywhere.errors, everywhere.negligible).any(1)
    if bool(was_judged[level].all()):
        assert around.best.tolist() == everywhere.best.tolist()


def test_of_strengths_that_the_folds_cannot_tell_apart_the_strongest_is_taken() -> None:
    errors = torch.tensor([[1.0, 1.2, 9.0], [1.2, 1.0, 9.0], [1.1, 1.1, 9.0]], dtype=torch.float64)[
        ..., None
    ]
    nothing = torch.zeros(1, dtype=torch.float64)
    assert choose_strength(errors, nothing).tolist() == [1]
    assert choose_strength(errors[:, :1], nothing).tolist() == [0]


def test_next_to_nothing_is_not_worth_a_weaker_ridge() -> None:
    errors = torch.tensor([[1.00, 1.01], [1.00, 1.01], [1.00, 1.01]], dtype=torch.float64)[
        ..., None
    ]
    assert choose_strength(errors, torch.tensor([0.02])).tolist() == [0]
    assert choose_strength(errors, torch.tensor([0.04])).tolist() == [1]


@pytest.mark.parametrize("ridge", ["auto", 1e-3])
def test_functions_are_what_the_formulas_make_of_the_rows(
    monkeypatch: pytest.MonkeyPatch, ridge: Any
) -> None:
    """z̄ by brute force on the knots, straight lines between, ridge by scikit-learn, correction held at the range."""
    model, X = net("tanh", columns=3, outputs=2), table("tanh", 400, columns=3, correlation=0.7)
    explainer = NObSP(model, interactions=0, ridge=ridge, background=X[:10])
    terms = captured(monkeypatch, explainer, X)
    oracle, columns, priors, tables = Background(model, X[:10]), [], [], []
    for k, piece in enumerate(terms.fit.pieces):
        knots, _ = points_of(explainer.functions_, k)
        z = oracle.mean((k,), knots[:, None])
        at_rows = np.stack([np.interp(X[:, k], knots, z[:, j]) for j in range(z.shape[1])], 1)
        centre = at_rows.mean(0)
        directions = np.linalg.lstsq(z - centre, piece.basis.numpy(), rcond=1e-10)[0]
        columns.append((at_rows - centre) @ directions)
        priors.append((at_rows - centre) @ oracle.weight)
        tables.append((knots, (z - centre) @ directions, (z - centre) @ oracle.weight))
    y = oracle.network.logits(X)
    T, target = np.hstack(columns), y - sum(priors)
    strengths = explainer.ridge_ * len(X) * T.var(0).mean()
    delta = Ridge(alpha=strengths, solver="cholesky").fit(T, target).coef_.T
    start = 0
    for k, (knots, basis, prior) in enumerate(tables):
        mine = delta[start : (start := start + basis.shape[1])]
        held = np.clip(knots, X[:, k].min(), X[:, k].max())
        corrected = np.stack([np.interp(held, knots, (basis @ mine)[:, o]) for o in range(2)], 1)
        expected = prior + corrected - (columns[k] @ mine + priors[k]).mean(0)
        # Beyond the range tables grow as far as they reach, and rounding with them.
        near = np.abs(knots) < 3 * np.abs(X).max()
        found = points_of(explainer.functions_, k)[1]
        assert_same_to_rounding(found[near], expected[near], within=COEFFICIENTS, size=10.0)
    residual = terms.fit.held_out.chosen().numpy()
    assert_same_to_rounding(
        explainer.explained_, share_explained(residual, y), within=CONTRIBUTIONS
    )


def test_how_a_table_is_sorted_changes_nothing() -> None:
    """Background, folds and what is measured follow from the rows' contents."""
    model, X = net("relu", columns=4), table("relu", 300, columns=4, correlation=0.5)
    first, second = NObSP(model).fit(X), NObSP(model).fit(X[np.argsort(X[:, 1])])
    assert first.terms_ == second.terms_
    assert_same_to_rounding(second(X).values, first(X).values, within=COEFFICIENTS)
    assert_same_to_rounding(second.explained_, first.explained_, within=COEFFICIENTS)


# ---------------------------------------------------------------------- what is exact


def test_all_terms_of_two_features_leave_nothing() -> None:
    model, X = net("silu", columns=2), table("silu", 500, columns=2)
    ex = NObSP(model, interactions=[("x0", "x1")]).fit(X)(X)
    assert ex.explained()[0] > 0.9995


def test_functions_of_an_additive_network_are_the_true_ones() -> None:
    """Up to straight lines between knots, a thousandth of the spread in the middle of each."""
    model, X = additive(4), table("relu", 1500, columns=4, correlation=0.6)
    truth = [np.sin, lambda x: 0.3 * x**2, np.abs, np.tanh]
    explainer = NObSP(model).fit(X)
    spread = explainer(X).predictions.std()
    grid, hinges = np.linspace(-2, 2, 41), np.linspace(-8, 8, 33)  # where the network bends
    assert explainer.terms_ == (("x0",), ("x1",), ("x2",), ("x3",))
    for k, function in enumerate(truth):
        found, expected = (
            explainer.function(f"x{k}")(grid),
            np.interp(grid, hinges, function(hinges)),
        )
        assert (
            np.abs((found - found.mean()) - (expected - expected.mean())).max() < 3e-3 * spread
        ), k
    assert explainer.explained_[0] > 0.9999


def test_the_correction_is_held_beyond_the_range_and_the_network_goes_on() -> None:
    """Ten ranges away functions have the network's own slope: nothing explodes."""
    model, X = net("relu", columns=3), table("relu", 400, columns=3, correlation=0.9)
    explainer = NObSP(model, interactions=0, ridge=1e-5).fit(X)
    prior = NObSP(model, interactions=0, ridge=NO_CORRECTION).fit(X)
    for k in range(3):
        edge = X[:, k].max()
        x = edge + np.array([1.0, 10.0, 60.0])
        moved = [
            one.function(f"x{k}")(x) - one.function(f"x{k}")([edge]) for one in (explainer, prior)
        ]
        assert_same_to_rounding(moved[0], moved[1], within=1e-9, size=100.0)


# ---------------------------------------------------------------------- additivity


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 50),
    kind=st.sampled_from(["relu", "silu", "embedding", "codes", "layernorm"]),
    outputs=st.integers(1, 3),
    interactions=st.sampled_from([0, 1, "auto", [("x0", "x1", "x2")]]),
)
def test_every_account_adds_up(seed: int, kind: str, outputs: int, interactions: Any) -> None:
    model: Net = net(kind, outputs=outputs, seed=seed)
    X = table(kind, 120, seed=seed)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        explainer = NObSP(model, interactions=interactions).fit(X)
    ex = explainer(table(kind, 40, seed=seed + 1))
    assert ex.values.shape == (40, len(explainer.terms_), outputs)
    assert_adds_up(ex)
    assert np.abs(explainer(X).values.mean(0)).max() < 1e-9 * max(np.abs(ex.predictions).max(), 1.0)


@pytest.mark.parametrize(
    "features", [{"a": [0, 1], "b": [2, 3], "c": 4}, {"one hot": [0, 1, 2], "x": 3, "y": 4}]
)
def test_accounts_of_groups_add_up(features: dict[str, Any]) -> None:
    X = table("relu", 200)
    if "one hot" in features:
        X[:, :3] = np.eye(3)[np.random.default_rng(0).integers(0, 3, 200)]
    names = list(features)
    explainer = NObSP(
        net("relu", outputs=2), features=features, interactions=[tuple(names[:2])]
    ).fit(X)
    ex = explainer(X[:50])
    assert_adds_up(ex)
    direct = {
        finding.subject for finding in explainer.health().findings if finding.code == "no_table"
    }
    assert bool(direct) == ("a" in features)
    assert bool(explainer.compile().left_out) == bool(direct)


@pytest.mark.parametrize(("strength", "pairs"), [(0.01, set()), (0.7, {("x0", "x1")})])
def test_no_pair_is_put_in_where_all_but_nothing_is_explained_without(strength, pairs):
    rows = np.random.default_rng(0).normal(size=(600, 3))

    def model(x):
        return x[:, 0] + np.abs(x[:, 1]) + strength * x[:, 0] * x[:, 1]

    explainer = NObSP(model).fit(rows)
    assert {term for term in explainer.terms_ if len(term) == 2} == pairs
    assert explainer.explained_[0] > 0.995


# ---------------------------------------------------------------------- many features


@pytest.mark.parametrize("features", [1, 20, 300])
def test_few_features_are_tabulated_in_full(features: int) -> None:
    assert FULL.shared(features) == FULL


@pytest.mark.parametrize("features", [500, 1000, 5000])
def test_many_features_share_forward_rows(features: int) -> None:
    shared = FULL.shared(features)
    assert features * min(shared.background, 32) * shared.most_knots <= MAIN_ROWS
    assert shared.most_knots >= FULL.quantiles + FULL.even
