"""The headline can be believed, or a finding says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSP


def network(columns: int, *, scale: float = 3.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(columns, 32), nn.Tanh(), nn.Linear(32, 1)).double().eval()
        with torch.no_grad():
            model[0].weight.mul_(scale)
    return model


def codes(explainer: NObSP, X: Any = None) -> set[str]:
    return {finding.code for finding in explainer.health(X).findings}


def clustered(clusters: int, rows_each: int, noise: float) -> Any:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(clusters, 8))
    rows = np.repeat(centres, rows_each, axis=0)
    rows = rows + noise * generator.normal(size=rows.shape)
    return rows, generator.normal(size=(3000, 8))


def test_clusters_that_nobody_named_are_noticed_and_choose_the_ridge() -> None:
    rows, fresh = clustered(60, 20, 0.05)
    explainer = NObSP(network(8)).fit(rows)
    unaware = NObSP(network(8), ridge=1e-5).fit(rows)
    truth = explainer(fresh).explained()[0]
    assert "clusters" in codes(explainer)
    assert truth > unaware(fresh).explained()[0] + 0.05
    assert explainer.health().neighbourhoods[0] == pytest.approx(truth, abs=0.1)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_rows_without_clusters_raise_no_alarm(correlation: float) -> None:
    generator = np.random.default_rng(1)
    common = generator.normal(size=(800, 1))
    own = generator.normal(size=(800, 8))
    rows = correlation**0.5 * common + (1 - correlation) ** 0.5 * own
    assert "clusters" not in codes(NObSP(network(8)).fit(rows))


def test_named_groups_are_not_called_clusters() -> None:
    rows, _ = clustered(60, 20, 0.05)
    explainer = NObSP(network(8), interactions=0).fit(rows, groups=np.repeat(np.arange(60), 20))
    assert "clusters" not in codes(explainer)


def test_few_rows_have_no_headline_or_a_note() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3))
    two = NObSP(network(3)).fit(rows[:2])
    sixty = NObSP(network(3)).fit(rows[:60])
    assert np.isnan(two.explained_).all()
    assert "few_rows" in codes(two)
    assert "few_rows" in codes(sixty)
    assert "few_rows" not in codes(NObSP(network(3)).fit(rows))


def test_a_table_coarser_than_its_function_is_named() -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2))
    found = codes(NObSP(lambda X: np.sin(400 * X[:, 0]) + X[:, 1], interactions=0).fit(rows))
    assert "coarse_table" in found
    assert "low_share" not in found
