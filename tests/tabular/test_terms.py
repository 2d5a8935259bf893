"""All terms at once against one plain ridge regression on explicit pure representations, and what follows from it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nobsp import NObSP
from nobsp.tabular.calibration import _row_spectrum
from tests.tabular.nets import KINDS, Counted, Net, additive, net, one_product, table
from tests.tabular.oracles import Network, Terms, centred, error, singles
from tests.tolerances import CONTRIBUTIONS, PASS, SUMS

PAIRS = [(0, 1), (1, 3)]
TRIPLE = [(0, 2), (0, 4), (2, 4), (0, 2, 4)]


def named(terms: list[tuple[int, ...]]) -> list[tuple[str, ...]]:
    return [tuple(f"x{k}" for k in term) for term in terms]


@pytest.mark.parametrize("kind", [*KINDS, "codes"])
@pytest.mark.parametrize("higher", [[], PAIRS, TRIPLE], ids=["singles", "pairs", "triples"])
@pytest.mark.parametrize("outputs", [1, 7])
def test_the_fit_is_ridge_regression_on_the_pure_representations(
    kind: str, higher: list[tuple[int, ...]], outputs: int
) -> None:
    model = net(kind, outputs=outputs, seed=1)
    X, held_out = table(kind, 300, seed=1), table(kind, 50, seed=2)
    ridge = 1e-2
    explainer = NObSP(model, interactions=named(higher), ridge=ridge, ridge_scale="absolute").fit(X)
    oracle = Terms(Network(model, explainer.baseline_), X, [*singles(5), *higher], ridge)
    spread = oracle.network.logits(X).std(0)
    assert explainer.terms_ == tuple(named(oracle.terms))
    assert error(explainer(held_out).values, oracle.values(held_out), spread) < 1e-8


@pytest.mark.parametrize("kind", ["relu", "tanh", "gelu", "layernorm", "embedding"])
@pytest.mark.parametrize("ridge", [1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("higher", [[], PAIRS], ids=["singles", "pairs"])
def test_directions_below_the_ridge_are_missed_by_no_more_than_they_could_carry(
    kind: str, ridge: float, higher: list[tuple[int, ...]]
) -> None:
    """What leaving out directions can do, from the normal equations of the full fit.

    Let Z₂ hold the directions that were left out, r the residual of the full fit, H₁ ridge regression on the rest.
    Stationarity gives β₂ = Z₂ᵀr/λ, so ‖Z₂β₂‖ ≤ ‖Z₂‖²‖r‖/λ =: e, and the two fits differ by (I − H₁)Z₂β₂, at most e.
    A single term S differs by at most e + ‖Z_S‖ ‖(Z₁ᵀZ₁+λ)⁻¹Z₁ᵀ‖ e ≤ e (1 + ‖Z_S‖ / 2√λ).
    """
    model, X = net(kind, outputs=2, seed=4), table(kind, 400, seed=4)
    explainer = NObSP(model, interactions=named(higher), ridge=ridge).fit(X)
    health = explainer.health()
    amount, columns = health.terms[0].ridge, health.columns
    network = Network(model, explainer.baseline_)
    oracle = Terms(network, X, [*singles(5), *higher], amount)
    assert amount == pytest.approx(ridge * oracle.trace / columns, rel=1e-2)
    left_out = 0.0
    for rows, term in zip(oracle.rows, health.terms, strict=True):
        values = np.linalg.svd(centred(rows), compute_uv=False)
        left_out += float(values[term.rank] ** 2) if term.rank < len(values) else 0.0
    assert left_out <= len(oracle.terms) * 1.01e-3 * amount
    bound = left_out * np.linalg.norm(oracle.residual, axis=0) / amount + 1e-9 * math.sqrt(400)
    found, expected = explainer(X).values, oracle.values(X)
    assert (np.linalg.norm((found - expected).sum(1), axis=0) <= bound).all()
    for position, size in enumerate(oracle.sizes):
        limit = bound * (1 + size / (2 * math.sqrt(amount)))
        assert (np.linalg.norm(found[:, position] - expected[:, position], axis=0) <= limit).all()


@pytest.mark.parametrize("kind", ["relu", "silu", "residual", "batchnorm"])
def test_at_full_order_the_account_is_complete(kind: str) -> None:
    """Summed over all terms, Δ_S gives back z(x), so β_S = Wᵀ leaves nothing: as the ridge goes, so does the rest."""
    model, X = net(kind, columns=3, outputs=2, seed=5), table(kind, 400, columns=3, seed=5)
    full = [term for size in (2, 3) for term in itertools.combinations(range(3), size)]
    left = []
    for ridge in (1e-4, 1e-8, 1e-11):
        explanation = NObSP(model, interactions=named(full), ridge=ridge).fit(X)(X)
        left.append(float((explanation.residual.std(0) / explanation.predictions.std(0)).max()))
        np.testing.assert_allclose(explanation.explained(), 1.0, atol=max(left[-1] ** 2 * 2, 1e-12))
    assert left[0] > left[1] > left[2]
    assert left[2] < 1e-4


def test_an_additive_network_is_taken_apart_exactly_even_when_features_go_together() -> None:
    model, X = additive(), table("relu", 2000, columns=4, correlation=0.8)
    explanation = NObSP(model, interactions=0, ridge=1e-12).fit(X)(X)
    functions = [np.sin, lambda x: 0.3 * x**2, np.abs, np.tanh]
    spread = explanation.predictions.std(0)
    # 33 knots over [-8, 8] draw the functions to a few hundredths; the network's own pieces are exact.
    network = Network(model, X.mean(0))
    for k, function in enumerate(functions):
        alone = np.zeros_like(X)
        alone[:, k] = X[:, k]
        exact = centred(network.logits(alone))
        # Where one row alone is past a last knot in two features, no data can tell them apart: leave the ends out.
        inner = (np.abs(X) < 2).all(1)
        assert error(explanation.values[inner, k], exact[inner], spread) < 1e-3
        assert np.corrcoef(exact[:, 0], function(X[:, k]))[0, 1] > 0.99


# ---------------------------------------------------------------------- the account


@st.composite
def situations(draw: st.DrawFn) -> tuple[Net, np.ndarray, np.ndarray, dict[str, object]]:
    kind = draw(st.sampled_from(KINDS))
    seed = draw(st.integers(0, 10_000))
    grouped = kind != "embedding" and draw(st.booleans())
    names = ["a", "b", "c"] if grouped else [f"x{k}" for k in range(5)]
    higher = st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True)
    options = {
        "features": {"a": [0, 1], "b": 2, "c": [3, 4]} if grouped else None,
        "reference": draw(st.sampled_from(["terms", "complement"])),
        "interactions": draw(st.one_of(st.just(0), st.integers(1, 3), st.lists(higher, max_size=2))),
        "ridge": draw(st.sampled_from([1e-8, 1e-4, 1e-1])),
        "ridge_scale": draw(st.sampled_from(["relative", "absolute"])),
        "batch_size": draw(st.sampled_from([7, 64, 4096])),
    }
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    model = net(kind, outputs=draw(st.sampled_from([1, 2, 7])), width=8, seed=seed, dtype=dtype)
    given_dtype = draw(st.sampled_from([np.float32, np.float64]))
    X, held_out = (table(kind, rows, seed=seed + i).astype(given_dtype) for i, rows in enumerate((60, 11)))
    if kind == "embedding":
        held_out[:, :2] = X[:11, :2]
    return model, X, held_out, options


@settings(max_examples=40)
@given(situations())
def test_the_account_adds_up_and_every_term_is_centred(
    situation: tuple[Net, np.ndarray, np.ndarray, dict[str, object]],
) -> None:
    model, X, held_out, options = situation
    explainer = NObSP(model, **options).fit(X)
    single = next(model.parameters()).dtype == torch.float32
    network = Network(model, explainer.baseline_)
    for rows in (X, held_out):
        explanation = explainer(rows)
        account = explanation.base_values + explanation.values.sum(1) + explanation.residual
        size = np.abs(explanation.predictions).max() + np.abs(explanation.values).sum(1).max()
        assert np.abs(account - explanation.predictions).max() <= PASS * size
        logits = network.logits(rows.astype(np.float64))
        assert np.abs(explanation.predictions - logits).max() <= (1e-5 if single else 1e-12) * np.abs(logits).max()
        shifted = explanation.from_baseline()
        account = shifted.base_values + shifted.values.sum(1) + shifted.residual
        assert np.abs(account - explanation.predictions).max() <= PASS * size
    explanation = explainer(X)
    # A single-precision network rounds the same row differently in another batch, by 1e-7 or so times the weights.
    weights = max(float(matrix.abs().sum(0).max()) for matrix in explainer._fitted.solution.matrices.values())
    tolerance = 1e-12 * size + (1e-6 * weights * 10 if single else 1e-13 * weights)
    assert np.abs(explanation.values.mean(0)).max() <= tolerance
    assert np.abs(explanation.residual.mean(0)).max() <= tolerance * len(explanation.terms)
    assert np.abs(explanation.predictions.mean(0) - explanation.base_values).max() <= tolerance


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_explained_total_and_contrast_are_what_they_say(reference: str) -> None:
    model, X = net("relu", outputs=3), table("relu", 300)
    explainer = NObSP(model, reference=reference, interactions=[["x0", "x1"], ["x1", "x4"]]).fit(X)
    explanation = explainer(X)
    carried = explanation.values.sum(1)
    gap = explanation.predictions - carried - explanation.base_values
    expected = 1 - gap.var(0) / explanation.predictions.var(0)
    np.testing.assert_allclose(explanation.explained(), expected, rtol=SUMS)
    total, values = explanation.total(), explanation.values
    np.testing.assert_allclose(total[:, 1], values[:, 1] + values[:, 5] + values[:, 6], atol=PASS)
    np.testing.assert_allclose(total[:, 0], values[:, 0] + values[:, 5], atol=PASS)
    np.testing.assert_allclose(total[:, 2], values[:, 2], atol=PASS)
    against = explanation.contrast(2, "output 0")
    difference = net("relu", outputs=3)
    with torch.no_grad():
        difference.head.weight[0] = difference.head.weight[2] - difference.head.weight[0]
        difference.head.bias[0] = difference.head.bias[2] - difference.head.bias[0]
    alone = NObSP(difference, reference=reference, interactions=[["x0", "x1"], ["x1", "x4"]]).fit(X)(X)
    np.testing.assert_allclose(against.values[..., 0], alone.values[..., 0], atol=1e-9)
    np.testing.assert_allclose(against.predictions[..., 0], alone.predictions[..., 0], atol=SUMS)


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_measured_from_the_baseline_the_baseline_itself_has_nothing(reference: str) -> None:
    model, X = net("gelu", outputs=2), table("gelu", 300)
    explainer = NObSP(model, reference=reference, interactions=[["x0", "x1"]]).fit(X)
    origin = explainer.baseline_[None]
    at_baseline = explainer(origin).from_baseline()
    assert np.abs(at_baseline.values).max() < SUMS
    values = explainer(X).values - explainer(origin).values
    np.testing.assert_allclose(explainer(X).from_baseline().values, values, atol=SUMS)


@pytest.mark.parametrize("reference", ["terms", "complement"])
@pytest.mark.parametrize("kind", ["relu", "embedding", "codes"])
def test_a_feature_s_function_is_what_explanations_and_curves_show_of_it(reference: str, kind: str) -> None:
    model, X = net(kind, outputs=2), table(kind, 300)
    explainer = NObSP(model, reference=reference, interactions=[["x0", "x2"]]).fit(X)
    explanation, curves = explainer(X), explainer.curves(9)
    for k, output in itertools.product(range(5), range(2)):
        function = explainer.function(f"x{k}", output=output)
        np.testing.assert_allclose(function(X[:, k]), explanation.values[:, k, output], atol=SUMS)
        mine = (curves["feature"] == f"x{k}") & (curves["output"] == f"output {output}")
        np.testing.assert_allclose(function(curves["x"][mine]), curves["value"][mine], atol=SUMS)


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_importance_is_the_mean_size_of_contributions_over_the_calibration_rows(reference: str) -> None:
    model, X = net("relu", outputs=2), table("relu", 900)
    explainer = NObSP(model, reference=reference, interactions=[["x0", "x2"]]).fit(X)
    explanation = explainer(X)
    for kind, values in (("main", explanation.values[:, :5]), ("total", explanation.total())):
        ranking = explainer.importance(kind)
        expected = np.abs(values).mean(0)
        found = dict(zip(zip(ranking["feature"], ranking["output"], strict=True), ranking["importance"], strict=True))
        for k, output in itertools.product(range(5), range(2)):
            assert found[f"x{k}", f"output {output}"] == pytest.approx(expected[k, output], rel=1e-9)
    np.testing.assert_allclose(explainer.health().explained, explanation.explained(), rtol=1e-9)


def test_importance_and_explained_share_of_a_sorted_table_are_those_of_all_rows() -> None:
    model, X = net("relu"), table("relu", 6000)
    X = X[np.argsort(X[:, 0])]
    explainer = NObSP(model, interactions=0).fit(X)
    explanation, ranking = explainer(X), explainer.importance()
    found = dict(zip(ranking["feature"], ranking["importance"], strict=True))
    expected = np.abs(explanation.values).mean(0)[:, 0]
    np.testing.assert_allclose([found[f"x{k}"] for k in range(5)], expected, rtol=0.1)
    np.testing.assert_allclose(explainer.health().explained, explanation.explained(), atol=0.03)


# ---------------------------------------------------------------------- features that say nothing, or the same


def test_a_pure_pair_is_constant_while_one_of_its_features_is_at_the_baseline() -> None:
    model, X = net("silu", outputs=2), table("silu", 300)
    explainer = NObSP(model, interactions=[["x0", "x1", "x2"]]).fit(X)
    rows = table("silu", 40, seed=7)
    rows[:20, 0], rows[20:, 1] = explainer.baseline_[0], explainer.baseline_[1]
    explanation = explainer(rows)
    for term in (("x0", "x1"), ("x0", "x1", "x2")):
        values = explanation[:, term].values
        assert np.ptp(values, axis=0).max() < CONTRIBUTIONS * explanation.predictions.std()
        assert np.abs(explanation[:, term].from_baseline().values).max() < CONTRIBUTIONS


@pytest.mark.parametrize("reference", ["terms", "complement"])
@pytest.mark.parametrize("kind", ["relu", "tanh", "layernorm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_feature_that_the_network_does_not_look_at_contributes_nothing(
    reference: str, kind: str, dtype: torch.dtype
) -> None:
    model, X = net(kind, outputs=2, dtype=dtype), table(kind, 300, correlation=0.9)
    with torch.no_grad():
        model.body[0].weight[:, 2] = 0.0
    explainer = NObSP(model, reference=reference, interactions=[["x2", "x3"]]).fit(X)
    explanation = explainer(X)
    spread = explanation.predictions.std()
    assert np.abs(explanation[:, "x2"].values).max() < 1e-9 * spread
    if reference == "terms":
        assert np.abs(explanation[:, ("x2", "x3")].values).max() < 1e-9 * spread


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_a_constant_column_contributes_nothing(reference: str) -> None:
    model, X = net("relu", outputs=2), table("relu", 300)
    X[:, 1] = 0.1
    explainer = NObSP(model, interactions=0, reference=reference).fit(X)
    assert np.abs(explainer(X).values[:, 1]).max() < SUMS


def test_two_features_that_are_the_same_share_alike() -> None:
    """The network treats columns 0 and 1 alike and they hold the same numbers: no reason to favour one."""
    model, X = net("relu", outputs=2), table("relu", 400)
    with torch.no_grad():
        model.body[0].weight[:, 1] = model.body[0].weight[:, 0]
    X[:, 1] = X[:, 0]
    explanation = NObSP(model, interactions=0).fit(X)(X)
    spread = explanation.predictions.std(0)
    assert error(explanation.values[:, 0], explanation.values[:, 1], spread) < 1e-8


def test_copies_of_a_feature_add_up_to_what_the_feature_does() -> None:
    """sin(a) + a²·0.3 with a in two columns: neither can be told from the other, but their sum can."""
    model, X = additive(), table("relu", 1000, columns=4)
    X[:, 1] = X[:, 0]
    explanation = NObSP(model, interactions=0, ridge=1e-6).fit(X)(X)
    alone = np.zeros_like(X)
    alone[:, :2] = X[:, :2]
    exact = centred(Network(model, X.mean(0)).logits(alone))
    assert error(explanation.values[:, 0] + explanation.values[:, 1], exact, explanation.predictions.std(0)) < 1e-2


def test_one_hot_columns_are_one_feature_fitted_jointly() -> None:
    rng = np.random.default_rng(0)
    X = table("relu", 500, columns=6)
    X[:, 2:6] = np.eye(4)[rng.choice(4, 500, p=[0.1, 0.2, 0.4, 0.3])]
    model = net("relu", columns=6, outputs=2)
    features = {"a": 0, "b": 1, "city": [2, 3, 4, 5]}
    explainer = NObSP(model, interactions=0, features=features, ridge=1e-2, ridge_scale="absolute").fit(X)
    np.testing.assert_array_equal(explainer.baseline_[2:], [0, 0, 1, 0])
    network = Network(model, explainer.baseline_, [[0], [1], [2, 3, 4, 5]])
    oracle = Terms(network, X, singles(3), 1e-2)
    values = explainer(X).values
    assert error(values, oracle.values(X), network.logits(X).std(0)) < 1e-8
    assert len(np.unique(values[:, 2].round(9), axis=0)) == 4


# ---------------------------------------------------------------------- few values, few forward rows


def test_only_distinct_values_go_through_the_network() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 3, 2000), rng.integers(0, 2, 2000), rng.standard_normal(2000)]).astype(float)
    model = Counted(net("relu", columns=3))
    explainer = NObSP(model, interactions=0).fit(X)
    model.forget()
    explainer(X)
    # The rows themselves, the one continuous feature, 3 + 2 levels and the baseline.
    assert model.rows <= 2000 + 2000 + 3 + 2 + 3
    pairs = NObSP(model, interactions=[["x0", "x1"]]).fit(X)
    model.forget()
    pairs(X)
    assert model.rows <= 2000 + 2000 + 3 + 2 + 6 + 4


@pytest.mark.parametrize("rows", [1, 100, 1000, 3000, 4096])
@pytest.mark.parametrize("features", [1, 5, 9])
def test_explaining_costs_one_forward_row_a_feature_in_full_batches(rows: int, features: int) -> None:
    model = Counted(net("relu", columns=features))
    explainer = NObSP(model, interactions=0, batch_size=4096).fit(table("relu", 600, columns=features))
    X = table("relu", rows, columns=features, seed=1)
    model.forget()
    explainer(X)
    assert model.calls <= math.ceil(features * rows / 4096) + 2
    assert model.rows <= (features + 1) * (rows + 1)
    assert model.largest <= 4096


def test_explaining_many_rows_costs_full_batches_too() -> None:
    model = Counted(net("relu"))
    explainer = NObSP(model, interactions=0, batch_size=256).fit(table("relu", 600))
    model.forget()
    explainer(table("relu", 1100, seed=1))
    assert model.calls <= 5 * (5 + 1) + 1
    assert model.largest <= 256


def test_calibrating_costs_one_pass_of_forward_rows_and_the_bases() -> None:
    """Singles: d+1 rows a calibration row for the moments, d a sampled row for the bases, and what is measured."""
    model = Counted(net("relu"))
    NObSP(model, interactions=0).fit(table("relu", 5000))
    assert model.rows <= 5000 * (5 + 1) + 5000 * 5 + 1024 * (5 + 1) + 6 * 256


@pytest.mark.parametrize("interactions", [0, 2])
def test_one_feature_and_more_pairs_than_there_are(interactions: int) -> None:
    model, X = net("relu", columns=2, outputs=1), table("relu", 200, columns=2)
    explainer = NObSP(model, interactions=interactions).fit(X)
    assert explainer.terms_ == ((("x0",), ("x1",)) + ((("x0", "x1"),) if interactions else ()))
    alone = NObSP(net("relu", columns=1), interactions=0, ridge=1e-10).fit(X[:, :1])
    explanation = alone(X[:, :1])
    assert np.abs(explanation.residual).max() < 1e-4 * explanation.predictions.std()
    assert len(alone.interaction_strengths()["first"]) == 0


def test_the_product_is_the_pair_and_nothing_else() -> None:
    """sin(x0) + tanh(x1) + … + x0·x1 about zero: the pair's term is x0·x1, and explained in full."""
    model, X = one_product(4), table("relu", 1500, columns=4, correlation=0.5)
    explanation = NObSP(model, baseline="zero", interactions=[["x0", "x1"]], ridge=1e-7).fit(X)(X)
    product = X[:, 0] * X[:, 1]
    found = explanation[:, ("x0", "x1")].values[:, 0, 0]
    left = (found - (product - product.mean())).std() / product.std()
    assert left < 0.05
    assert explanation.explained()[0] > 0.9999


@pytest.mark.parametrize("mean", [1e4, 1e6])
def test_rounding_of_a_large_mean_is_no_direction_of_its_own(mean: float) -> None:
    """A weak direction, and rounding above it: there are as many directions as columns at most."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(60, 8)) * [1, 1, 1, 1e-9, 1, 1, 1, 1] @ np.linalg.qr(rng.normal(size=(8, 8)))[0]
        found = _row_spectrum(torch.tensor(rows + mean), None, deep=True)
        assert len(found.values) == found.vectors.shape[1] <= 8
