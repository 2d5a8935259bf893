"""Rows that belong together are held out together: identical ones always, others by `groups`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.linear_model import LinearRegression
from torch import nn

from nobsp import NObSP
from nobsp.network.columns import SAMPLE_ROWS, Summary
from nobsp.tabular.health import ExplainedWorseWarning
from nobsp.tabular.setting import (
    deal_folds,
    find_neighbourhoods,
    is_by_chance,
    join_rows,
    number_rows,
    sampled_positions,
)
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding

CUSTOMERS = 60


def network(columns: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(columns, 32), nn.Tanh(), nn.Linear(32, 1)).double().eval()
        with torch.no_grad():
            model[0].weight.mul_(3)
    return model


@pytest.fixture(scope="module")
def customers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows, customers, and rows of other customers."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(CUSTOMERS, 8))
    member = np.repeat(np.arange(CUSTOMERS), 20)
    rows = centres[member] + 0.05 * generator.normal(size=(len(member), 8))
    return rows, member, generator.normal(size=(3000, 8))


@pytest.mark.filterwarnings(
    "ignore::nobsp.tabular.health.ExplainedWorseWarning"
)  # by less than 0.1
def test_repeated_rows_change_neither_headline_nor_functions_much() -> None:
    generator = np.random.default_rng(0)
    rows, fresh = generator.normal(size=(80, 8)), generator.normal(size=(3000, 8))
    repeated = rows[generator.integers(0, 80, 1500)]

    explainer = NObSP(network(8), interactions=0).fit(repeated)

    assert explainer.explained_[0] == pytest.approx(explainer(fresh).explained()[0], abs=0.1)
    assert explainer.ridge_[0] > 1e-4


def test_named_groups_make_the_headline_that_of_new_groups(customers: Any) -> None:
    rows, member, fresh = customers

    grouped = NObSP(network(8), interactions=0).fit(rows, groups=member)
    apart = NObSP(network(8), interactions=0, ridge=1e-5).fit(rows)  # as single rows would choose

    truth = grouped(fresh).explained()[0]
    assert abs(grouped.explained_[0] - truth) < 0.1
    assert apart.explained_[0] > grouped.explained_[0] + 0.02
    with pytest.warns(ExplainedWorseWarning):
        explained_apart = apart(fresh).explained()[0]
    assert truth > explained_apart


def test_groups_widen_the_bands(customers: Any) -> None:
    rows, member, _ = customers
    grouped = NObSP(network(8), interactions=0, ridge=0.01).fit(rows, groups=member).curves()
    apart = NObSP(network(8), interactions=0, ridge=0.01).fit(rows).curves()
    widths = [float((table["upper"] - table["lower"]).mean()) for table in (grouped, apart)]
    assert widths[0] > 1.2 * widths[1]


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_a_column_that_the_model_does_not_know_is_only_the_group(customers: Any, kind: Any) -> None:
    rows, member, _ = customers
    names = [f"c{k}" for k in range(8)]
    frame = kind({**dict(zip(names, rows.T, strict=True)), "customer": member})

    named = NObSP(network(8), interactions=0).fit(frame, groups="customer")
    given = NObSP(network(8), features=names, interactions=0).fit(rows, groups=member)

    assert named.functions_.feature_names == tuple(names)
    assert_same_to_rounding(named.explained_, given.explained_)


def test_a_column_that_the_model_takes_stays_a_feature() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"a": generator.normal(size=200), "day": generator.integers(0, 9, 200)})
    model = LinearRegression().fit(frame, frame["a"] + frame["day"])
    explainer = NObSP(model).fit(frame, groups="day")
    assert explainer.functions_.feature_names == ("a", "day")


def test_names_of_groups_may_be_words() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 8))
    words = np.array([f"customer {k % 10}" for k in range(100)], dtype=object)
    numbers = [k % 10 for k in range(100)]
    by_word, by_number = (
        NObSP(network(8), interactions=0).fit(rows, groups=groups) for groups in (words, numbers)
    )
    assert_same_to_rounding(by_word.explained_, by_number.explained_)


@pytest.mark.filterwarnings(
    "ignore::nobsp.tabular.health.ExplainedWorseWarning"
)  # by less than 0.12
def test_weights_and_groups_go_together(customers: Any) -> None:
    rows, member, fresh = customers
    weight = np.where(member % 2 == 0, 1.0, 2.0)
    explainer = NObSP(network(8), interactions=0).fit(rows, None, weight, member)
    assert abs(explainer.explained_[0] - explainer(fresh).explained()[0]) < 0.12


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (np.arange(5), r"shape \(5,\); pass one group for each of the 100 rows"),
        (np.r_[np.nan, np.arange(99.0)], "missing value in row 0"),
        ([None, *range(99)], "missing value in row 0"),
        (np.zeros(100), "one group only"),
        (np.zeros((100, 2)), r"shape \(100, 2\)"),
    ],
)
def test_groups_that_make_no_sense_are_refused(groups: Any, said: str) -> None:
    rows = np.random.default_rng(0).normal(size=(100, 8))
    with pytest.raises(ValueError, match=f"groups.*{said}"):
        NObSP(network(8)).fit(rows, groups=groups)


def test_a_column_of_groups_that_makes_no_sense_is_named() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 8))
    frame = pd.DataFrame(rows, columns=[f"c{k}" for k in range(8)]).assign(shop="a")
    with pytest.raises(ValueError, match=r"groups \('shop'\) has one group only"):
        NObSP(network(8)).fit(frame, groups="shop")
    shop = frame.pop("shop")
    shop[3] = None
    with pytest.raises(ValueError, match=r"groups \('shop'\) has a missing value in row 3"):
        NObSP(network(8)).fit(frame, groups=shop)


def test_a_group_column_that_is_not_there_is_refused() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 8))
    with pytest.raises(TypeError, match="groups is the name 'customer', but X is a ndarray"):
        NObSP(network(8)).fit(rows, groups="customer")
    frame = pd.DataFrame(rows, columns=[f"c{k}" for k in range(8)])
    with pytest.raises(ValueError, match="did you mean 'c1'"):
        NObSP(network(8)).fit(frame, groups="c11")


def test_what_groups_do_not_go_with_is_refused() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 8))
    member = np.arange(100) % 10
    with pytest.raises(ValueError, match=r"groups needs reference=\"terms\""):
        NObSP.as_published(network(8)).fit(rows, groups=member)
    with pytest.raises(TypeError, match="groups needs X as an array"):
        NObSP(network(8)).fit([torch.from_numpy(rows)], groups=member)
    grouped = NObSP(network(8), interactions=0).fit(rows, groups=member)
    with pytest.raises(ValueError, match="groups cannot be merged"):
        NObSP(network(8), interactions=0).fit(rows).merge(grouped)
    with pytest.raises(ValueError, match="mergeable: a calibration with groups"):
        grouped.save("never.nobsp", mergeable=True)


def test_positions_of_the_sample_are_those_of_its_rows() -> None:
    rows = torch.arange(SAMPLE_ROWS * 2 + 77, dtype=torch.float64)[:, None] * 3
    summary = Summary(((0,),))
    for batch in rows.split(4096):
        summary.update(batch)
    positions = sampled_positions(len(rows), 4096)
    assert torch.equal(rows[torch.from_numpy(positions)], summary.sample)


def test_groups_of_more_rows_than_are_kept_are_those_of_the_kept_rows() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(SAMPLE_ROWS + 5000, 2))
    groups = np.floor(rows[:, 0] * 4).astype(int)
    explainer = NObSP(lambda X: X[:, 0] + X[:, 1] ** 2, interactions=0).fit(rows, groups=groups)
    assert explainer.explained_[0] > 0.99


def test_identical_rows_tie_groups_together() -> None:
    inputs = torch.arange(1.0, 41.0).repeat(2, 1).T
    inputs[1] = inputs[0]
    groups = np.arange(40)
    groups[[2, 4]] = [1, 0]
    codes = join_rows(inputs, groups)
    assert len(set(codes[[0, 1, 2, 4]])) == 1
    assert codes[3] != codes[0]


def test_folds_keep_units_whole_and_are_of_about_the_same_size() -> None:
    generator = np.random.default_rng(0)
    codes = np.repeat(np.arange(40), generator.integers(1, 30, 40))
    folds = deal_folds(codes, generator=generator)
    assert all(len(set(folds[codes == code])) == 1 for code in range(40))
    sizes = np.bincount(folds)
    assert sizes.max() - sizes.min() <= 30


def test_neighbourhoods_keep_tight_clusters_whole(customers: Any) -> None:
    rows, member, _ = customers
    codes = find_neighbourhoods(torch.from_numpy(rows), generator=np.random.default_rng(0))
    whole = [len(set(codes[member == customer])) == 1 for customer in range(CUSTOMERS)]
    assert np.mean(whole) > 0.8


def test_health_says_how_many_groups_were_held_out_together() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2))
    explainer = NObSP(lambda X: X.sum(1)).fit(rows, groups=np.arange(200) // 4)

    notes = {finding.code: finding for finding in explainer.health().findings}

    assert "50 groups" in notes["groups"].message
    assert notes["groups"].severity == "note"
    assert "groups" not in {f.code for f in NObSP(lambda X: X.sum(1)).fit(rows).health().findings}


def test_the_column_that_named_groups_may_stay_in_rows_that_are_explained() -> None:
    generator = np.random.default_rng(0)
    table = pd.DataFrame(generator.normal(size=(300, 3)), columns=["a", "b", "c"])
    with_customers = table.assign(customer=np.arange(300) // 3)[["customer", "c", "a", "b"]]

    explainer = NObSP(network(3), interactions=0).fit(with_customers, groups="customer")
    with_column = explainer(with_customers[:100])
    without = explainer(with_customers[:100].drop(columns="customer"))

    assert_same_to_rounding(with_column.values, without.values, within=CONTRIBUTIONS)
    assert list(with_column.data.columns) == ["c", "a", "b"]
    alone = with_customers.drop(columns="customer")
    assert explainer.score(with_customers) == pytest.approx(explainer.score(alone))
    codes = [finding.code for finding in explainer.health(with_customers).findings]
    assert codes == [finding.code for finding in explainer.health(alone).findings]
    assert explainer.check_shape("a", "increasing", with_customers).n_rows == len(with_customers)
    with pytest.raises(ValueError, match="clerk"):
        explainer(with_customers.assign(clerk=1.0))


def test_rows_that_few_values_make_equal_by_chance_tie_no_groups() -> None:
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 3, size=(1000, 4)).astype(float)
    member = generator.integers(0, 200, 1000)
    explainer = NObSP(lambda X: X[:, 0] * X[:, 1] + np.sqrt(X.sum(1))).fit(rows, groups=member)

    fresh = generator.integers(0, 3, size=(2000, 4)).astype(float)
    assert explainer.explained_[0] == pytest.approx(explainer.score(fresh), abs=0.02)
    assert "few_rows" not in {finding.code for finding in explainer.health().findings}


def test_the_most_frequent_row_ties_no_groups() -> None:
    generator = np.random.default_rng(0)
    rows = generator.gamma(1.0, size=(1000, 4))
    rows[generator.random(1000) < 0.4] = 0.0  # nothing happened
    member = np.arange(1000) % 60
    explainer = NObSP(lambda X: np.sqrt(X.sum(1)), interactions=0).fit(rows, groups=member)

    findings = {finding.code: finding.message for finding in explainer.health().findings}
    assert "only 60 groups" in findings["few_rows"]
    assert "60 groups in 1,000 rows" in findings["groups"]


def test_copies_that_would_join_most_groups_are_counted() -> None:
    generator = np.random.default_rng(0)
    site = np.arange(600) % 6
    rows = generator.normal(size=(600, 4))
    alone = NObSP(lambda X: X[:, 0] * X[:, 1], interactions=0).fit(rows, groups=site)
    rows[:60] = rows[61:121]  # from one site to the next, all around
    copied = NObSP(lambda X: X[:, 0] * X[:, 1], interactions=0).fit(rows, groups=site)

    for explainer, is_told in ((alone, False), (copied, True)):
        messages = {finding.code: finding.message for finding in explainer.health().findings}
        assert ("copies in other groups" in messages["groups"]) == is_told


def test_copies_in_most_groups_are_held_out_together_and_this_is_said() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(80, 8))[generator.integers(0, 80, 1500)]
    explainer = NObSP(network(8), interactions=0).fit(rows, groups=generator.integers(0, 100, 1500))
    apart = NObSP(network(8), interactions=0).fit(rows)

    assert_same_to_rounding(explainer.explained_, apart.explained_)
    messages = {finding.code: finding.message for finding in explainer.health().findings}
    assert "100 groups were not" in messages["groups"]
    assert "different rows" in messages["few_rows"]


def test_levels_in_several_columns_are_one_feature_where_rows_are_equal_by_chance() -> None:
    levels = np.random.default_rng(0).integers(0, 6, size=(600, 2))
    inputs = np.concatenate([np.eye(6)[levels[:, 0]], np.eye(6)[levels[:, 1]]], 1)
    inputs = torch.from_numpy(inputs[np.lexsort(inputs.T)])
    identical = number_rows(inputs)
    features = [tuple(range(6)), tuple(range(6, 12))]
    assert is_by_chance(inputs, identical, features).all()
    assert not is_by_chance(inputs, identical, []).all()
