"""Tables read off trees are those that running the model gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from nobsp import NObSP
from nobsp.models import adapt
from nobsp.network.forest import Forest
from nobsp.tabular import fit_together
from nobsp.tabular.setting import Sample
from nobsp.tabular.shortcut import find_shortcut
from tests.tolerances import CONTRIBUTIONS


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (200, 2))


@pytest.fixture(scope="module")
def trees(rows: np.ndarray) -> HistGradientBoostingRegressor:
    model = HistGradientBoostingRegressor(max_iter=5, random_state=0)
    return model.fit(rows, rows[:, 0] + (rows[:, 1] > 0))


def test_functions_are_the_same_with_and_without_it(
    rows: np.ndarray, trees: HistGradientBoostingRegressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_shortcut = NObSP(trees, interactions=1).fit(rows)
    monkeypatch.setattr(fit_together, "find_shortcut", lambda *_, **__: None)
    without = NObSP(trees, interactions=1).fit(rows)
    np.testing.assert_allclose(with_shortcut(rows).values, without(rows).values, atol=CONTRIBUTIONS)
    assert with_shortcut.health().forward_rows == without.health().forward_rows


def test_trees_that_answer_otherwise_than_the_model_are_not_used(
    rows: np.ndarray, trees: HistGradientBoostingRegressor
) -> None:
    forest = adapt(trees, rows).forest
    assert isinstance(forest, Forest)
    inputs = torch.from_numpy(rows)
    outputs = torch.from_numpy(trees.predict(rows))[:, None]
    sample = Sample({}, inputs, outputs)
    head_weight = torch.ones(len(forest.start), 1, dtype=torch.float64)

    def is_found(sample: Sample) -> bool:
        return find_shortcut(forest, sample, head_weight, spend=lambda _: None) is not None

    assert is_found(sample)
    assert is_found(replace(sample, outputs=outputs + 7.0))  # what the head adds
    assert not is_found(replace(sample, outputs=outputs + 0.01 * inputs[:, :1]))
    assert not is_found(sample.take(np.arange(0)))
