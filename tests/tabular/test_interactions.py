"""Which pairs get a term: all are screened, the true ones are found, and idle ones are sent away."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSP
from tests.tabular.nets import Counted, additive, net, one_product, ridge_functions, table
from tests.tabular.oracles import Network, centred
from tests.tolerances import CONTRIBUTIONS


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_auto_finds_the_one_true_pair(correlation: float) -> None:
    X = table("relu", 1500, columns=5, correlation=correlation)
    explainer = NObSP(one_product(), interactions="auto").fit(X)
    assert [term for term in explainer.terms_ if len(term) > 1] == [("x0", "x1")]
    assert explainer(X).explained()[0] > 0.999


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_auto_finds_nothing_in_an_additive_network(correlation: float) -> None:
    explainer = NObSP(additive(), interactions="auto").fit(table("relu", 1500, columns=4, correlation=correlation))
    assert all(len(term) == 1 for term in explainer.terms_)
    assert max(explainer.interaction_strengths()["strength"]) < 1e-6


def trained() -> tuple[nn.Module, np.ndarray]:
    """A small network fitted to sin(x0) + x2² + x0·x1, with the crumbs of interaction that training leaves."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        X = torch.tensor(table("relu", 1500, columns=5, correlation=0.2), dtype=torch.float32)
        y = (torch.sin(X[:, 0]) + X[:, 2] ** 2 + X[:, 0] * X[:, 1])[:, None]
        model = nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 32), nn.SiLU(), nn.Linear(32, 1))
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(400):
            batch = torch.randint(0, 1500, (256,))
            loss = (model(X[batch]) - y[batch]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            optimiser.param_groups[0]["lr"] = 1e-2 * (1 - step / 400)
        assert float(loss.detach()) < 0.05
    return model, X.numpy()


def test_auto_finds_the_pair_that_a_trained_network_learned() -> None:
    model, X = trained()
    explainer = NObSP(model, interactions="auto").fit(X)
    strengths = explainer.interaction_strengths()
    assert (strengths["first"][0], strengths["second"][0]) == ("x0", "x1")
    assert strengths["strength"][0] > 3 * strengths["strength"][1]
    assert ("x0", "x1") in explainer.terms_
    alone, explanation = NObSP(model, interactions=0).fit(X)(X), explainer(X)
    assert explanation.explained()[0] > 0.98 > alone.explained()[0]
    product = X[:, 0] * X[:, 1]
    assert np.corrcoef(explanation[:, ("x0", "x1")].values[:, 0, 0], product)[0, 1] > 0.95


def test_pairs_that_do_not_pay_are_dropped() -> None:
    """Fewer rows than the columns all pairs would need: held-out rows refuse what only fits the others."""
    X = table("relu", 150, columns=5)
    kept = NObSP(one_product(5), interactions="auto").fit(X).terms_
    assert [term for term in kept if len(term) > 1] == [("x0", "x1")]


@pytest.mark.parametrize("interactions", [0, "auto", 2])
@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_the_ranking_covers_every_pair_and_is_the_spread_of_the_pure_effect(interactions: Any, reference: str) -> None:
    model, X = net("silu", outputs=2), table("silu", 200)
    explainer = NObSP(model, interactions=interactions, reference=reference).fit(X)
    ranking = explainer.interaction_strengths()
    found = list(zip(ranking["first"], ranking["second"], strict=True))
    assert sorted(found) == list(itertools.combinations([f"x{k}" for k in range(5)], 2))
    assert (np.diff(ranking["strength"]) <= 0).all()
    network = Network(model, explainer.baseline_)
    spread = network.logits(X).std(0)
    for (first, second), strength in zip(found, ranking["strength"], strict=True):
        pure = centred(network.pure((int(first[1]), int(second[1])), X) @ network.weight.T)
        assert strength == pytest.approx((pure.std(0) / spread).max(), rel=1e-9)
    chosen = {term for term in explainer.terms_ if len(term) == 2}
    assert {pair for pair, fitted in zip(found, ranking["fitted"], strict=True) if fitted} == chosen


class TwoScales(nn.Module):
    """y0 = 1000 x0 and y1 = x1 x2: the pair matters only to the small output."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2, bias=False).double()
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1000.0, 0.0], [0.0, 1.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.stack([x[:, 0], x[:, 1] * x[:, 2]], dim=1))


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_a_pair_that_matters_only_to_a_small_output_is_found(reference: str) -> None:
    X = np.random.default_rng(0).normal(size=(1000, 3))
    explainer = NObSP(TwoScales(), reference=reference).fit(X)
    assert ("x1", "x2") in explainer.terms_
    assert explainer(X).explained().min() > 0.99


def test_screening_costs_what_it_says() -> None:
    """One forward row a pair and sampled row, on at most 256 rows, besides the singles and the rows themselves."""
    model, X = Counted(net("relu", columns=8)), table("relu", 3000, columns=8)
    explainer = NObSP(model, interactions=0).fit(X)
    model.forget()
    explainer.interaction_strengths()
    assert model.rows == 256 * (28 + 8 + 1)
    model.forget()
    explainer.interaction_strengths()
    assert model.rows == 0


@pytest.mark.parametrize("reference", ["terms", "complement"])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_number_takes_the_strongest(reference: str, count: int) -> None:
    explainer = NObSP(net("gelu", outputs=2), interactions=count, reference=reference).fit(table("gelu", 300))
    ranking = explainer.interaction_strengths()
    chosen = {tuple(pair) for pair in zip(ranking["first"][:count], ranking["second"][:count], strict=True)}
    assert {term for term in explainer.terms_ if len(term) == 2} == chosen
    assert len(chosen) == min(count, 10)


def test_names_in_any_order_and_twice_are_one_term() -> None:
    wanted = [["x3", "x1"], ["x1", "x3"], ("x0", "x1")]
    explainer = NObSP(net("relu"), interactions=wanted).fit(table("relu", 200))
    assert explainer.terms_[5:] == (("x0", "x1"), ("x1", "x3"))


def test_a_triple_brings_its_pairs() -> None:
    explainer = NObSP(net("relu"), interactions=[["x4", "x0", "x2"]]).fit(table("relu", 200))
    assert explainer.terms_[5:] == (("x0", "x2"), ("x0", "x4"), ("x2", "x4"), ("x0", "x2", "x4"))


def test_a_group_can_take_part() -> None:
    features = {"a": [0, 1], "b": 2, "c": [3, 4]}
    model, X = net("relu"), table("relu", 400)
    explainer = NObSP(model, features=features, interactions=[["c", "a"]], ridge=1e-9).fit(X)
    assert explainer.terms_[3:] == (("a", "c"),)
    ranking = NObSP(model, features=features, interactions="auto").fit(X).interaction_strengths()
    assert len(ranking["first"]) == 3


def test_strong_and_weak_pairs_are_told_apart() -> None:
    """Two products, one ten times the other, among ten pairs: both rank first, in their order."""
    eye = np.eye(5)
    directions = [*eye, eye[0] + eye[1], eye[0] - eye[1], eye[2] + eye[3], eye[2] - eye[3]]
    squares = [lambda t: t**2 / 4, lambda t: -(t**2) / 4, lambda t: t**2 / 40, lambda t: -(t**2) / 40]
    model = ridge_functions(directions, [np.sin] * 5 + squares)
    explainer = NObSP(model, interactions="auto").fit(table("relu", 1500, columns=5))
    ranking = explainer.interaction_strengths()
    assert list(zip(ranking["first"][:2], ranking["second"][:2], strict=True)) == [("x0", "x1"), ("x2", "x3")]
    assert [term for term in explainer.terms_ if len(term) > 1] == [("x0", "x1"), ("x2", "x3")]


def test_as_published_auto_sends_idle_pairs_away_too() -> None:
    explainer = NObSP.as_published(one_product(), interactions="auto").fit(table("relu", 1500, columns=5))
    assert [term for term in explainer.terms_ if len(term) > 1] == [("x0", "x1")]


def difference(a: NObSP, b: NObSP, X: np.ndarray) -> float:
    left, right = a(X), b(X)
    assert set(left.terms) == set(right.terms)
    largest = max(float(np.abs(left[:, term].values - right[:, term].values).max()) for term in right.terms)
    return largest / float(right.predictions.std())


def test_pairs_chosen_automatically_are_those_named_in_any_order() -> None:
    model, X = net("relu", columns=6, outputs=2), table("relu", 800, columns=6)
    chosen = NObSP(model, interactions="auto").fit(X)
    pairs = [term for term in chosen.terms_ if len(term) > 1]
    assert pairs
    assert difference(chosen, NObSP(model, interactions=pairs[::-1]).fit(X), X) < CONTRIBUTIONS


def test_pairs_chosen_automatically_are_fitted_as_if_they_had_been_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """More candidates than the trial can hold: what it left out must not be missing from the fit that follows."""
    monkeypatch.setattr("nobsp.tabular.planning.MOST_COLUMNS_ON_TRIAL", 80)
    model, X = net("relu", columns=6, outputs=2), table("relu", 800, columns=6)
    chosen = NObSP(model, interactions="auto").fit(X)
    pairs = [term for term in chosen.terms_ if len(term) > 1]
    assert difference(chosen, NObSP(model, interactions=pairs).fit(X), X) < 1e-6


def test_sorted_rows_do_not_change_the_choice() -> None:
    X = table("relu", 1500, columns=5)
    explainer = NObSP(one_product(), interactions="auto").fit(X[np.argsort(X[:, 0])])
    assert [term for term in explainer.terms_ if len(term) > 1] == [("x0", "x1")]


def test_the_batch_size_does_not_change_which_pairs_are_chosen() -> None:
    for seed in range(5):
        model, X = net("relu", seed=seed), table("relu", 500, seed=seed)
        whole = NObSP(model, interactions="auto").fit(X)
        assert NObSP(model, interactions="auto", batch_size=64).fit(X).terms_ == whole.terms_
