"""The paper's Algorithm 1, line by line on raw rows, against the explainer that calls itself as published."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSP
from tests.projection.projectors import oblique_projector
from tests.tabular.nets import KINDS, Net, net, table
from tests.tabular.oracles import Network, Published, centred, error, singles
from tests.tolerances import PASS, SUMS


def calibrated(
    kind: str, outputs: int, seed: int, **options: object
) -> tuple[NObSP, Net, np.ndarray, np.ndarray]:
    model = net(kind, outputs=outputs, seed=seed)
    X, held_out = table(kind, 300, seed=seed), table(kind, 60, seed=seed + 1000)
    return NObSP.as_published(model, **options).fit(X), model, X, held_out


@pytest.mark.parametrize("kind", [*KINDS, "codes"])
@pytest.mark.parametrize("outputs", [1, 2, 7])
@pytest.mark.parametrize("seed", [0, 1])
def test_as_published_is_algorithm_1_on_every_kind_of_network(
    kind: str, outputs: int, seed: int
) -> None:
    explainer, model, X, held_out = calibrated(kind, outputs, seed)
    oracle = Published(Network(model, explainer.baseline_), X)
    spread = oracle.y.std(0)
    explanation = explainer(held_out)
    assert explanation.values.shape == (60, 5, outputs)
    for k in range(5):
        assert error(explanation.values[:, k], oracle.term((k,), held_out), spread) < 1e-8
    assert error(explanation.predictions, oracle.network.logits(held_out), spread) < SUMS


@pytest.mark.parametrize("kind", KINDS)
def test_the_baseline_is_the_mean_and_the_most_frequent_code(kind: str) -> None:
    explainer, _, X, _ = calibrated(kind, 2, 3)
    expected = X.mean(0)
    if kind == "embedding":
        expected[:2] = [np.bincount(X[:, c].astype(int)).argmax() for c in (0, 1)]
    np.testing.assert_allclose(explainer.baseline_, expected, rtol=SUMS)


def test_coefficients_are_those_of_algorithm_1_where_the_rows_determine_them() -> None:
    """A wide input and a narrow representation: every isolated block has full rank, so β is unique."""
    model = net("tanh", columns=3, width=6, outputs=2)
    X = table("tanh", 400, columns=3, seed=5) * 3
    explainer = NObSP.as_published(model).fit(X)
    oracle = Published(Network(model, explainer.baseline_), X)
    for k in range(3):
        expected = oracle.coefficients((k,))
        found = explainer._fitted.estimate.published.solution.matrices[k,].numpy()
        assert np.abs(found - expected).max() < 1e-8 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["relu", "gelu", "embedding"])
@pytest.mark.parametrize("ridge", [1e-6, 1e-4, 1e-1, 10.0])
def test_any_absolute_ridge_is_the_lambda_of_both_solves(kind: str, ridge: float) -> None:
    explainer, model, X, held_out = calibrated(kind, 2, 4, ridge=ridge)
    oracle = Published(Network(model, explainer.baseline_), X, ridge)
    expected = np.stack([oracle.term((k,), held_out) for k in range(5)], 1)
    assert error(explainer(held_out).values, expected, oracle.y.std(0)) < 1e-8


def test_a_relative_ridge_is_a_share_of_the_mean_eigenvalue_of_the_matrix_it_is_added_to() -> None:
    model, X = net("relu", outputs=2), table("relu", 300)
    explainer = NObSP(model, interactions=0, reference="complement", ridge=1e-3).fit(X)
    network = Network(model, explainer.baseline_)
    y = centred(network.logits(X))
    for k in range(5):
        T, A = centred(network.isolated((k,), X)), centred(network.reference((k,), X))
        first = 1e-3 * (A**2).sum() / A.shape[1]
        B = np.linalg.solve(A.T @ A + first * np.eye(12), A.T)
        R_T, R_y = T - A @ (B @ T), y - A @ (B @ y)
        second = 1e-3 * (R_T**2).sum() / T.shape[1]
        beta = np.linalg.solve(R_T.T @ R_T + second * np.eye(12), R_T.T @ R_y)
        found = explainer(X).values[:, k]
        assert error(found, T @ beta, y.std(0)) < 1e-8


@pytest.mark.parametrize("kind", ["relu", "silu", "batchnorm", "embedding"])
def test_pairs_and_triples_are_what_the_lower_orders_leave(kind: str) -> None:
    interactions = [["x0", "x1", "x3"], ["x2", "x4"]]
    explainer, model, X, held_out = calibrated(kind, 2, 6, interactions=interactions)
    terms = [*singles(5), (0, 1), (0, 3), (1, 3), (2, 4), (0, 1, 3)]
    assert explainer.terms_ == tuple(tuple(f"x{k}" for k in term) for term in terms)
    oracle = Published(Network(model, explainer.baseline_), X)
    expected = np.stack([oracle.term(term, held_out) for term in terms], 1)
    assert error(explainer(held_out).values, expected, oracle.y.std(0)) < 1e-8


def test_groups_are_switched_together_and_not_summed() -> None:
    model, X, held_out = net("relu", outputs=2), table("relu", 300), table("relu", 40, seed=9)
    explainer = NObSP.as_published(model, features={"a": [0, 3], "b": 1, "c": [4, 2]}).fit(X)
    oracle = Published(Network(model, explainer.baseline_, [[0, 3], [1], [4, 2]]), X)
    expected = np.stack([oracle.term((k,), held_out) for k in range(3)], 1)
    values, spread = explainer(held_out).values, oracle.y.std(0)
    assert error(values, expected, spread) < 1e-8
    alone = NObSP.as_published(model).fit(X)(held_out).values
    assert error(values[:, 0], alone[:, 0] + alone[:, 3], spread) > 1e-2


@pytest.mark.parametrize("baseline", ["zero", "median", [0.5, -1.0, 0.0, 2.0, 0.25]])
def test_any_baseline(baseline: object) -> None:
    explainer, model, X, held_out = calibrated("selu", 2, 7, baseline=baseline)
    known = {"zero": np.zeros(5), "median": np.median(X, axis=0)}
    expected = known[baseline] if isinstance(baseline, str) else np.array(baseline)
    np.testing.assert_allclose(explainer.baseline_, expected, rtol=PASS)
    oracle = Published(Network(model, expected), X)
    values = np.stack([oracle.term((k,), held_out) for k in range(5)], 1)
    assert error(explainer(held_out).values, values, oracle.y.std(0)) < 1e-8


# ---------------------------------------------------------------------- single precision


def dyadic(seed: int, outputs: int) -> tuple[Net, np.ndarray, np.ndarray]:
    """Weights and inputs in eighths: single precision makes no error, whatever the batches."""
    rng = np.random.default_rng(seed)
    model = net("relu", outputs=outputs, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.tensor(rng.integers(-8, 9, parameter.shape) / 8))
    X = rng.integers(-16, 17, (360, 5)) / 8
    return model, X[:300], X[300:]


@pytest.mark.parametrize("outputs", [1, 2, 7])
@pytest.mark.parametrize("given", [np.float32, np.float64])
def test_a_single_precision_network_loses_nothing_that_it_did_not_round_itself(
    outputs: int, given: type
) -> None:
    model, X, held_out = dyadic(outputs, outputs)
    explainer = NObSP.as_published(model, baseline="zero").fit(X.astype(given))
    oracle = Published(Network(model, np.zeros(5)), X)
    expected = np.stack([oracle.term((k,), held_out) for k in range(5)], 1)
    assert error(explainer(held_out.astype(given)).values, expected, oracle.y.std(0)) < 1e-8


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_networks_differ_by_their_own_rounding_only(kind: str) -> None:
    """The yardstick is how far Algorithm 1 itself moves when the same rows go through in other batches, and when
    each representation is rounded anew."""
    model = net(kind, outputs=2, seed=8, dtype=torch.float32)
    X = table(kind, 300, seed=8).astype(np.float32).astype(np.float64)
    held_out = table(kind, 60, seed=9).astype(np.float32).astype(np.float64)
    explainer = NObSP.as_published(model).fit(X)
    baseline = explainer.baseline_

    def expected(model: Net, piece: int) -> np.ndarray:
        oracle = Published(Network(model, baseline, piece=piece), X)
        return np.stack([oracle.term((k,), held_out) for k in range(5)], 1)

    whole, spread = expected(model, 0), Network(model, baseline).logits(X).std(0)
    own = max(error(expected(model, piece), whole, spread) for piece in (1, 7, 64))
    exact = error(expected(net(kind, outputs=2, seed=8), 0), whole, spread)
    assert error(explainer(held_out).values, whole, spread) < 1e-8 + 3 * max(own, exact)


# ---------------------------------------------------------------------- the projector itself


@pytest.mark.parametrize("kind", ["relu", "tanh", "residual", "layernorm"])
@pytest.mark.parametrize("outputs", [1, 2, 7])
def test_without_ridge_it_is_the_oblique_projector(kind: str, outputs: int) -> None:
    model = net(kind, columns=3, width=5, outputs=outputs, seed=2)
    X = table(kind, 120, columns=3, seed=2) * 2
    network = Network(model, X.mean(0))
    y = centred(network.logits(X))
    explainer = NObSP(model, interactions=0, reference="complement", ridge=0.0).fit(X)
    nearly = NObSP(model, interactions=0, reference="complement", ridge=1e-11).fit(X)
    for k in range(3):
        T, A = (
            torch.tensor(centred(rows))
            for rows in (network.isolated((k,), X), network.reference((k,), X))
        )
        expected = (oblique_projector(T, A) @ torch.tensor(y)).numpy()
        assert error(explainer(X).values[:, k], expected, y.std(0)) < 1e-6
        assert error(nearly(X).values[:, k], expected, y.std(0)) < 1e-5


def test_the_projector_annihilates_what_lies_in_the_reference() -> None:
    """An additive network's output less one feature lies in the reference, so only that feature's own part stays."""
    body = nn.Sequential(nn.Linear(3, 9), nn.Tanh())
    with torch.no_grad():
        mask = torch.kron(torch.eye(3), torch.ones(3, 1))
        body[0].weight.mul_(mask)
    model = Net(body, nn.Linear(9, 2)).double()
    X = table("tanh", 200, columns=3, correlation=0.5) * 2
    explainer = NObSP(model, interactions=0, reference="complement", ridge=1e-10).fit(X)
    z = Network(model, X.mean(0)).z(X)
    weight = model.head.weight.detach().numpy()
    for k, block in enumerate(np.split(np.arange(9), 3)):
        exact = centred(z)[:, block] @ weight[:, block].T
        assert error(explainer(X).values[:, k], exact, (z @ weight.T).std(0)) < 1e-5


def test_few_rows_for_the_width_are_still_algorithm_1() -> None:
    """Fewer rows than the representation is wide: coefficients collapse in the paper, and here just as much."""
    model, X, held_out = (
        net("silu", width=40, outputs=2),
        table("silu", 25),
        table("silu", 30, seed=3),
    )
    explainer = NObSP.as_published(model).fit(X)
    oracle = Published(Network(model, explainer.baseline_), X)
    expected = np.stack([oracle.term((k,), held_out) for k in range(5)], 1)
    assert error(explainer(held_out).values, expected, oracle.y.std(0)) < 1e-8


def test_a_rare_level_counts_in_large_tables_too() -> None:
    """Past the sample that fixes the bases, a level or a value that occurs in one row of thousands has its effect."""
    model = net("relu", columns=8, outputs=1, seed=3)
    X = table("relu", 60_000, columns=8)
    where = np.random.default_rng(0).choice(60_000, 7, replace=False)
    X[:, 1:7] = 0.0
    for column, row in enumerate(where, start=1):
        X[row, column] = 9.0
    explainer = NObSP.as_published(model).fit(X)
    oracle = Published(Network(model, explainer.baseline_), X)
    for column, row in enumerate(where, start=1):
        found = explainer(X[[row]]).values[:, column]
        assert error(found, oracle.term((column,), X[[row]]), oracle.y.std(0)) < 1e-6


def test_every_pair_of_a_small_table_at_once() -> None:
    names = [f"x{k}" for k in range(4)]
    model, X = net("gelu", columns=4, outputs=2), table("gelu", 300, columns=4)
    explainer = NObSP.as_published(model, interactions=list(itertools.combinations(names, 2))).fit(
        X
    )
    oracle = Published(Network(model, explainer.baseline_), X)
    terms = [*singles(4), *itertools.combinations(range(4), 2)]
    expected = np.stack([oracle.term(term, X) for term in terms], 1)
    assert error(explainer(X).values, expected, oracle.y.std(0)) < 1e-8
