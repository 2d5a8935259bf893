"""Strong pairs that were not fitted are named, and curves that are far from partial dependence."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nobsp import NObSP
from nobsp.tabular.functions import Functions
from nobsp.tabular.omissions import name_pairs_left_out

Array = NDArray[np.float64]


def correlated(rows: int, correlation: float) -> Array:
    generator = np.random.default_rng(0)
    shared = generator.normal(size=(rows, 1))
    return np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * generator.normal(
        size=(rows, 4)
    )


class Product(nn.Module):
    """a·b + 2c + d + 2c·d. Where a and b are nearly the same, a·b is nearly half of a² + b²; the network has both."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1).double()
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 2.0, 1.0, 2.0]]))

    def forward(self, rows: Tensor) -> Tensor:
        a, b, c, d = rows.unbind(1)
        hidden: Tensor = self.head(torch.stack([a * b, a * a, b * b, c, d, c * d], 1))
        return hidden


def two_products(X: Array) -> Array:
    return 2 * X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3]


def additive(X: Array) -> Array:
    return np.sin(X[:, 0]) + X[:, 1] + np.abs(X[:, 2]) + X[:, 3]


def codes(explainer: NObSP) -> list[str]:
    return [finding.code for finding in explainer.health().findings]


def test_a_strong_pair_that_is_not_fitted_is_named_with_its_strength() -> None:
    explainer = NObSP(two_products, features=list("abcd"), interactions=1)
    explainer.fit(correlated(1000, 0.0))

    named = [f for f in explainer.health().findings if f.code == "pair_left_out"]

    strength = explainer.interaction_strengths()["strength"][1]
    assert [f.subject for f in named] == [f"c × d {strength:.2f}"]


def test_a_curve_that_carries_a_pair_is_told_by_its_distance(tmp_path: Path) -> None:
    explainer = NObSP(Product(), features=list("abcd"), interactions=1)
    explainer.fit(correlated(1000, 0.98))
    assert ("a", "b") not in explainer.terms_
    explainer.compile().save(tmp_path / "functions.safetensors")
    stored = Functions.load(tmp_path / "functions.safetensors").health()

    distances = {term.term: term.from_average for term in stored.terms}

    assert max(distances["a",][0], distances["b",][0]) > 0.1
    assert {"pair_left_out", "far_from_average"} <= set(codes(explainer))


def test_a_true_pair_is_fitted_however_little_it_adds_where_features_are_nearly_the_same() -> None:
    explainer = NObSP(Product(), features=list("abcd")).fit(correlated(1000, 0.98))
    assert {("a", "b"), ("c", "d")} <= set(explainer.terms_)
    assert not {"pair_left_out", "far_from_average"} & set(codes(explainer))


def test_nothing_is_said_of_an_additive_function_of_independent_features() -> None:
    explainer = NObSP(additive, features=list("abcd")).fit(correlated(1000, 0.0))
    assert not {"pair_left_out", "far_from_average"} & set(codes(explainer))
    assert all(max(term.from_average) < 0.02 for term in explainer.health().terms)


@pytest.mark.parametrize(
    ("explained", "explains"), [(0.99, True), (0.85, False), (0.3, False), (-0.1, False)]
)
def test_single_features_are_the_reason_only_where_they_explain_the_rows(
    explained: float, explains: bool
) -> None:
    (finding,) = name_pairs_left_out({(0, 1): 0.3}, [(0,), (1,)], ["a", "b"], explained=explained)
    assert ("single features explain" in finding.message) == explains


@pytest.mark.parametrize("interactions", [0, 1])
def test_what_was_limited_by_hand_is_named_as_the_reason(interactions: int) -> None:
    X = np.random.default_rng(0).normal(size=(600, 4))

    health = (
        NObSP(lambda X: X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] + X[:, 0], interactions=interactions)
        .fit(X)
        .health()
    )

    by_code = {finding.code: finding.message for finding in health.findings}
    assert f"interactions={interactions}" in by_code["low_share"]
    assert f"interactions={interactions}" in by_code["pair_left_out"]


def test_an_error_names_what_was_limited_by_hand() -> None:
    X = np.random.default_rng(0).normal(size=(400, 4))
    with pytest.warns(UserWarning, match="worse than predicting the mean"):
        explainer = NObSP(lambda X: X[:, 0] * X[:, 1], interactions=0).fit(X)

    by_code = {finding.code: finding.message for finding in explainer.health().findings}
    assert "as interactions=0 fits none" in by_code["worse_than_mean"]
    assert 'leave interactions="auto"' in by_code["worse_than_mean"]


def test_a_warning_has_the_headline_or_says_which_other_share_it_has() -> None:
    X = np.random.default_rng(0).normal(size=(600, 4))
    explainer = NObSP(lambda X: X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] + X[:, 0], interactions=1)

    health = explainer.fit(X).health()

    warning = next(finding for finding in health.findings if finding.code == "low_share")
    assert health.inside[0] < health.explained[0]
    assert f"{health.inside[0]:.3f}" in warning.message
    assert "range" in warning.message


def test_the_strength_of_a_pair_has_its_standard_error_beside_it() -> None:
    """A product of four has no pairs; what a few background rows show of them is chance."""

    def model(X: Array) -> Array:
        return X[:, 4] + 2 * X[:, 0] * X[:, 1] * X[:, 2] * X[:, 3]

    rows = np.random.default_rng(1).normal(size=(1500, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        explainer = NObSP(model, interactions=1).fit(rows)
    table = explainer.interaction_strengths()
    assert (table["strength"][~table["fitted"]] > 0.2).any()
    for finding in explainer.health().findings:
        if finding.code == "pair_left_out":
            assert all("±" in pair for pair in finding.subject.split(", "))


@pytest.mark.parametrize(
    ("error", "named"), [(0.0, ["a × b 0.30"]), (0.2, ["a × b 0.30 ± 0.20"]), (0.4, [])]
)
def test_a_pair_within_its_standard_error_is_not_named(error: float, named: list[str]) -> None:
    findings = name_pairs_left_out(
        {(0, 1): 0.3}, [(0,), (1,)], ["a", "b"], explained=0.9, scatter={(0, 1): error}
    )
    assert [finding.subject for finding in findings] == named


def of_levels(frame: pd.DataFrame) -> Array:
    sign = np.where(frame["side"] == "left", -1.0, 1.0)
    values: Array = np.column_stack([frame["x"] + sign * frame["y"], frame["y"] - frame["x"]])
    return values


@pytest.mark.parametrize("interactions", [0, [("c", "d")]])
def test_strong_pairs_that_were_not_looked_for_are_read_off_the_residual(
    interactions: int | list[tuple[str, str]],
) -> None:
    X = correlated(1500, 0.0)
    calls = []

    def model(rows: Array) -> Array:
        calls.append(len(rows))
        return two_products(rows) + 2 * rows[:, 0]

    explainer = NObSP(model, features=list("abcd"), interactions=interactions).fit(X)

    health = explainer.health()
    (named,) = (finding for finding in health.findings if finding.code == "pair_left_out")
    pair, strength = named.subject.split(", ")[0].rsplit(" ", 1)
    true_strength = (2 * X[:, 0] * X[:, 1]).std() / (two_products(X) + 2 * X[:, 0]).std()
    assert pair == "a × b"
    assert 0.75 * true_strength < float(strength) < 1.1 * true_strength
    assert ("c × d" in named.subject) == (interactions == 0)
    assert sum(calls) <= health.forward_rows  # none for the residual


def test_pairs_with_levels_are_read_off_the_residual_of_the_output_that_has_them() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(800, 2)), columns=["x", "y"])
    frame["side"] = generator.choice(["left", "right"], 800)

    health = NObSP(of_levels, interactions=0).fit(frame).health()

    (named,) = (finding for finding in health.findings if finding.code == "pair_left_out")
    pair, strength = named.subject.rsplit(" ", 1)
    assert pair == "y × side"
    assert 0.6 < float(strength) < 0.75  # half of the variance


@pytest.mark.parametrize("seed", range(4))
def test_no_pair_is_read_off_a_residual_that_has_none(seed: int) -> None:
    """What is left is a wave too fine for the table, and heavy tails make large residuals."""
    rows = np.exp(np.random.default_rng(seed).normal(size=(400, 8)))

    health = (
        NObSP(lambda X: np.sin(400 * X[:, 0]) + np.log(X[:, 1]), interactions=0).fit(rows).health()
    )

    assert health.explained[0] < 0.9
    assert "pair_left_out" not in {finding.code for finding in health.findings}


def test_a_pair_for_which_no_forward_rows_were_left_is_named() -> None:
    X = np.random.default_rng(0).normal(size=(800, 12))

    explainer = NObSP(lambda X: X[:, 0] * X[:, 1] + 0.2 * X.sum(1), max_forward_rows=1500).fit(X)

    assert len(explainer.terms_) == 12
    (named,) = (f for f in explainer.health().findings if f.code == "pair_left_out")
    assert named.subject.startswith("x0 × x1 ")
    assert "max_forward_rows=1,500 left none" in named.message


@pytest.mark.parametrize("others", [{"both": ["x", "y"]}, {"x": ["x"], "y": ["y"]}])
@pytest.mark.parametrize("limit", [None, 10**6])
def test_pairs_whose_tables_would_be_too_large_have_this_as_the_reason(
    limit: int | None, others: dict[str, list[str]]
) -> None:
    """A limit that leaves forward rows enough is no reason; other pairs may have been looked for."""
    generator = np.random.default_rng(0)
    levels = generator.integers(0, 100, (4000, 2))
    frequent = generator.random((4000, 2)) < 0.8
    levels[frequent] = generator.integers(0, 2, frequent.sum())
    frame = pd.DataFrame(levels, columns=["a", "b"]).astype(str)
    frame[["x", "y"]] = generator.normal(size=(4000, 2))

    def model(rows: pd.DataFrame) -> Array:
        first, second = rows[["a", "b"]].astype(int).to_numpy().T
        return np.where((first < 2) & (second < 2), 2.0 * (first == second) - 1, 0) + rows["x"]

    features = {"a": ["a"], "b": ["b"], **others}
    health = NObSP(model, features=features, max_forward_rows=limit).fit(frame).health()

    (named,) = (f for f in health.findings if f.code == "pair_left_out")
    assert named.subject.startswith("a × b ")
    assert "a table of so many levels" in named.message


def test_a_level_that_one_row_has_is_in_one_half_of_the_rows() -> None:
    """So that halves had other numbers of bins, and no calibration was possible."""
    rows = np.random.default_rng(0).integers(0, 2, (300, 12)).astype(float)
    rows[5, 0] = 2.0

    health = NObSP(lambda X: X[:, 0] + 2 * X[:, 1] * X[:, 2], interactions=0).fit(rows).health()

    (named,) = (f for f in health.findings if f.code == "pair_left_out")
    assert named.subject.startswith("x1 × x2 ")


@pytest.mark.parametrize("named", [False, True])
def test_what_rows_of_a_cluster_have_in_common_is_no_pair(named: bool) -> None:
    """Each cluster has a value of its own: few clusters tell no pair, however many rows they have.

    Rows counted one by one named up to 15 pairs.
    """
    found = []
    for seed in range(4):
        generator = np.random.default_rng(seed)
        centres = generator.normal(size=(40, 6))
        offsets = generator.normal(size=40)
        member = np.repeat(np.arange(40), 10)
        rows = centres[member] + 0.05 * generator.normal(size=(400, 6))

        def model(rows: Array, centres: Array = centres, offsets: Array = offsets) -> Array:
            nearest = np.square(rows[:, None] - centres).sum(2).argmin(1)
            values: Array = rows[:, 0] + offsets[nearest]
            return values

        explainer = NObSP(model, interactions=0).fit(rows, groups=member if named else None)
        found += [f for f in explainer.health().findings if f.code == "pair_left_out"]
    assert not found
