"""Rows that crowd together are told from rows that are correlated or have long tails."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSP
from nobsp.tabular import fit_together
from nobsp.tabular.clusters import (
    CROWDED,
    FEWEST_JOINED,
    NEAR_COPIES,
    NEIGHBOURHOODS_OF_CROWDED,
    crowding,
    hold_out_neighbourhoods,
    join_parts,
    share_of_near_copies,
)
from nobsp.tabular.setting import find_neighbourhoods

CLUSTERS = 50


def rows_around_centres(
    columns: int,
    *,
    noise: float = 0.4,
    seed: int = 105,
    clusters: int = CLUSTERS,
    rows_each: int = 20,
) -> Any:
    generator = np.random.default_rng(seed)
    centres = np.repeat(generator.normal(size=(clusters, columns)), rows_each, axis=0)
    return centres + noise * generator.normal(size=centres.shape)


def correlated(generator: np.random.Generator) -> Any:
    return 3 * generator.normal(size=(800, 1)) + generator.normal(size=(800, 6))


def crowding_of(rows: Any) -> float:
    return crowding(torch.from_numpy(rows))


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: generator.normal(size=(800, 6)),
        correlated,
        lambda generator: np.exp(correlated(generator)),
        lambda generator: generator.standard_t(2, size=(800, 6)),
        lambda generator: generator.uniform(size=(800, 6)),
        lambda generator: (
            4 * generator.integers(0, 2, size=(800, 6)) + generator.normal(size=(800, 6))
        ),
        lambda generator: (
            np.exp(generator.normal(size=(800, 6))) * (generator.random((800, 6)) < 0.3)
        ),
    ],
    ids=["normal", "correlated", "skewed", "long tails", "uniform", "two humps", "mostly zero"],
)
def test_rows_of_any_marginals_do_not_crowd(draw: Any) -> None:
    assert crowding_of(draw(np.random.default_rng(0))) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("columns", [4, 10])
def test_rows_around_centres_crowd(columns: int) -> None:
    assert crowding_of(rows_around_centres(columns)) < CROWDED


def test_too_few_rows_or_numbers_tell_nothing() -> None:
    rows = rows_around_centres(10)
    assert crowding_of(rows[:90]) == 1.0
    assert crowding_of(np.rint(rows)) == 1.0  # few values
    assert crowding_of(np.full((500, 3), np.nan)) == 1.0


def near_copies(copies: int) -> Any:
    generator = np.random.default_rng(0)
    rows = np.repeat(generator.normal(size=(200, 10)), copies, axis=0)
    return rows * (1 + 1e-3 * generator.normal(size=rows.shape))


@pytest.mark.parametrize("copies", [2, 4])
def test_rows_in_near_copies_are_seen(copies: int) -> None:
    assert share_of_near_copies(torch.from_numpy(near_copies(copies))) > 0.9


def test_rows_in_near_copies_are_told() -> None:
    explainer = NObSP(tanh_network(10, scale=3.0), interactions=0).fit(near_copies(2))
    assert "clusters" in [finding.code for finding in explainer.health().findings]


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: generator.normal(size=(800, 1)),
        lambda generator: np.sin(generator.random((800, 1)) * np.array([1.0, 2.0, 3.0])),
        lambda generator: np.exp(3 * generator.normal(size=(800, 2))),
        lambda generator: generator.poisson(3.0, size=(800, 4)),
        lambda generator: np.column_stack(
            [generator.standard_cauchy(800), generator.integers(0, 3, size=(800, 3))]
        ),
        lambda generator: np.column_stack([np.arange(800), generator.integers(0, 3, 800)]),
    ],
    ids=["one number", "a curve", "skewed", "counts", "a number and levels", "time"],
)
def test_rows_without_near_copies_have_few_or_none(draw: Any) -> None:
    rows = np.unique(draw(np.random.default_rng(0)).astype(np.float64), axis=0)
    assert share_of_near_copies(torch.from_numpy(rows)) < 0.75 * NEAR_COPIES


def test_near_copies_need_rows_and_numbers() -> None:
    assert share_of_near_copies(torch.zeros(500, 3)) == 0.0
    assert share_of_near_copies(torch.randn(5, 3)) == 0.0


def tanh_network(columns: int, *, seed: int = 5, scale: float = 1.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(columns, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1)
        )
        with torch.no_grad():
            model[0].weight.mul_(scale)
    return model.double().eval()


def test_crowded_rows_tell_both_shares_at_a_smaller_loss() -> None:
    crowded = NObSP(tanh_network(10), interactions=0).fit(rows_around_centres(10)).health()
    normal = np.random.default_rng(0).normal(size=(1000, 10))
    others = NObSP(tanh_network(10), interactions=0).fit(normal).health()

    told = [finding for finding in crowded.findings if finding.code == "clusters"]
    assert f"{crowded.explained[0]:.3f}" in told[0].message
    assert f"{crowded.neighbourhoods[0]:.3f}" in told[0].message
    assert told[0].severity == "note"
    assert "ridge was chosen" not in told[0].message
    assert "clusters" not in [finding.code for finding in others.findings]


def test_few_clusters_are_found_and_choose_the_ridge() -> None:
    """Last digits of the rows decide where neighbourhoods begin, and must not decide more."""
    rows = rows_around_centres(6, noise=0.1, seed=2, clusters=20)
    new = 1.01**0.5 * np.random.default_rng(0).normal(size=(2000, 6))
    scores = []
    for seed in range(3):
        moved = rows + 1e-9 * np.random.default_rng(seed).normal(size=rows.shape)
        explainer = NObSP(tanh_network(6), interactions=0).fit(moved)
        assert "clusters" in [finding.code for finding in explainer.health().findings]
        scores.append(explainer.score(new))
    assert np.mean(scores) > 0.86  # 0.82 with the ridge that single rows choose


def test_r2_that_few_clusters_chose_is_said_to_be_lower() -> None:
    """It was said to be what to expect: .89 where new clusters had .82."""
    few = rows_around_centres(6, noise=0.01, seed=0, clusters=12, rows_each=50)
    many = rows_around_centres(6, noise=0.01, seed=0, clusters=300, rows_each=2)
    messages = [
        finding.message
        for rows in (few, many)
        for finding in NObSP(tanh_network(6, scale=2.0), interactions=0).fit(rows).health().findings
        if finding.code == "clusters"
    ]
    assert len(messages) == 2
    assert ["New clusters may have about" in message for message in messages] == [True, False]


def test_clusters_fewer_than_neighbourhoods_are_told() -> None:
    """Each was in several neighbourhoods, of which some were fitted on, so that nothing was lost."""
    told = 0
    for seed in range(6):
        rows = rows_around_centres(6, noise=0.2, seed=1000 + seed, clusters=12, rows_each=40)
        explainer = NObSP(tanh_network(6, seed=seed), interactions=0).fit(rows)
        told += "clusters" in [finding.code for finding in explainer.health().findings]
    assert told >= 3


@pytest.mark.parametrize(("clusters", "rows_each", "noise"), [(6, 100, 0.1), (6, 35, 0.05)])
def test_clusters_too_few_to_choose_the_ridge_are_told(
    clusters: int, rows_each: int, noise: float
) -> None:
    """Each was in several neighbourhoods; narrow ones of few rows were not joined to clusters."""
    told, headlines = [], []
    for seed in range(4):
        rows = rows_around_centres(
            6, noise=noise, seed=seed, clusters=clusters, rows_each=rows_each
        )
        model = tanh_network(6, seed=seed, scale=3.0)
        health = NObSP(model, interactions=0).fit(rows).health()
        told += [finding for finding in health.findings if finding.code == "clusters"]
        headlines.append(health.explained[0])
        assert "worse_than_mean" not in [finding.code for finding in health.findings]
    assert len(told) >= 3
    assert any(
        "On new rows of the same clusters, the first figure holds." in f.message for f in told
    )
    assert np.median(headlines) > 0.95  # single rows choose the ridge


def test_a_crowd_with_stragglers_is_not_called_few_clusters() -> None:
    """Held out whole, the crowd would leave almost no rows to fit."""
    crowd = rows_around_centres(20, noise=1.0, clusters=1, rows_each=400)
    stragglers = 20 * rows_around_centres(20, noise=0.01, clusters=6, rows_each=5)
    rows = torch.from_numpy(np.concatenate([crowd, stragglers]))
    parts = find_neighbourhoods(rows[:400], generator=np.random.default_rng(0), most=20)
    codes = np.concatenate([parts, parts.max() + 1 + np.repeat(np.arange(6), 5)])

    joined = join_parts(rows, codes)
    assert np.bincount(joined).max() < 200
    assert joined.max() + 1 >= FEWEST_JOINED


@pytest.mark.parametrize(("clusters", "noise"), [(15, 0.05), (15, 0.2), (30, 0.2)])
def test_neighbourhoods_of_crowded_rows_are_whole_clusters(clusters: int, noise: float) -> None:
    rows = torch.from_numpy(rows_around_centres(6, noise=noise, clusters=clusters))
    codes = find_neighbourhoods(rows, generator=np.random.default_rng(0))
    joined = join_parts(rows, codes)

    member = np.repeat(np.arange(clusters), 20)
    split = [len(np.unique(joined[member == cluster])) > 1 for cluster in range(clusters)]
    split_before = [len(np.unique(codes[member == cluster])) > 1 for cluster in range(clusters)]
    assert np.mean(split) <= 0.5 * np.mean(split_before)
    assert joined.max() + 1 >= FEWEST_JOINED


def test_where_joining_leaves_too_few_there_are_fewer_neighbourhoods() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 20)))
    codes = find_neighbourhoods(rows, generator=np.random.default_rng(0))
    assert FEWEST_JOINED <= join_parts(rows, codes).max() + 1 <= NEIGHBOURHOODS_OF_CROWDED


def test_only_crowded_rows_without_names_are_joined() -> None:
    rows = rows_around_centres(6, noise=0.1, seed=2, clusters=20)
    normal = np.random.default_rng(0).normal(size=(400, 6))
    member = np.repeat(np.arange(20), 20)
    assert n_neighbourhoods(rows) < 35
    assert n_neighbourhoods(normal) > 40
    assert n_neighbourhoods(rows, groups=member) > 40


def n_neighbourhoods(rows: Any, **options: Any) -> int:
    found = []

    def hold_out(*given: Any) -> Any:
        found.append(hold_out_neighbourhoods(*given))
        return found[-1]

    with patch.object(fit_together, "hold_out_neighbourhoods", hold_out):
        NObSP(tanh_network(6), interactions=0).fit(rows, **options)
    return int(found[-1].codes.max()) + 1
