"""Levels of a category that the rows which fix the bases do not hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nobsp import NObSP

REFERENCES = ("terms", "complement")


class Shop(nn.Module):
    """A price and a place, or two; the place in the middle of the list does what no other does."""

    def __init__(self, places: int, columns: int = 1) -> None:
        super().__init__()
        self.columns = columns
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.tables = nn.ModuleList(nn.Embedding(places, 6) for _ in range(columns))
            self.head = nn.Linear(6 * columns + 1, 1)
        with torch.no_grad():
            for table in self.tables:
                table.weight[:, 5] = 0.0
                table.weight[places // 2] = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 4.0])
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        parts = [table(x[:, k].long()) for k, table in enumerate(self.tables)]
        return self.head(torch.cat([*parts, x[:, self.columns :]], dim=1))

    def effect(self, column: int, code: int) -> float:
        """What a code adds to the output, less what the first code adds."""
        start = 6 * column
        moved = self.tables[column].weight[code] - self.tables[column].weight[0]
        return float((moved @ self.head.weight[0, start : start + 6]).detach())


def rows(count: int, places: int, *, columns: int = 1, seed: int = 0) -> np.ndarray:
    """All places but the one in the middle."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, places - 1, (count, columns))
    return np.column_stack([codes + (codes >= places // 2), rng.standard_normal(count)])


def found_effect(explainer: NObSP, feature: int, code: int) -> float:
    values = explainer._fitted.plan.isolation.baseline.numpy()[None].repeat(2, 0)
    column = explainer._fitted.columns.features.columns[feature][0]
    values[:, column] = [0, code]
    contributions = explainer(values).values[:, feature, 0]
    return float(contributions[1] - contributions[0])


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_code_among_many_that_occurs_once_in_a_large_table_has_its_effect(reference: str) -> None:
    """More codes than are few, more rows than the sample that fixes the bases."""
    model, X = Shop(400), rows(40_000, 400)
    X[12_345, 0] = 200
    explainer = NObSP(model, reference=reference, interactions=0, ridge=1e-6).fit(X)
    assert not (explainer._fitted.summary.sample[:, 0] == 200).any()
    assert found_effect(explainer, 0, 200) == pytest.approx(model.effect(0, 200), rel=0.05)


def test_a_code_of_a_feature_of_two_codes_has_its_effect() -> None:
    """Together they have too many levels to be counted."""
    model, X = Shop(600, columns=2), rows(40_000, 600, columns=2)
    X[12_345, 1] = 300
    features = {"place": [0, 1], "price": 2}
    explainer = NObSP(model, features=features, interactions=0, ridge=1e-6).fit(X)
    assert not (explainer._fitted.summary.sample[:, 1] == 300).any()
    values = explainer._fitted.plan.isolation.baseline.numpy()[None].repeat(2, 0)
    values[:, 1] = [0, 300]
    contributions = explainer(values).values[:, 0, 0]
    assert float(contributions[1] - contributions[0]) == pytest.approx(model.effect(1, 300), rel=0.05)


# ---------------------------------------------------------------------- shards


def second_shard() -> np.ndarray:
    X = rows(300, 20, seed=1)
    X[5, 0] = 10
    return X


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("one_pass", [False, True])
def test_a_shard_with_a_level_that_the_bases_do_not_hold_is_refused(reference: str, one_pass: bool) -> None:
    options: dict[str, Any] = {
        "reference": reference,
        "interactions": 0,
        "baseline": "zero",
        "features": ["place", "price"],
    }
    model = Shop(20)
    first = NObSP(model, **options).fit(rows(300, 20))
    later = second_shard()
    second = NObSP(model, **options)
    with pytest.raises(ValueError, match=r"X has a level of 'place' \(10\) that .*like did not see") as said:
        second.fit(iter([later]) if one_pass else later, like=first)
    assert "every level" in str(said.value)
    assert not hasattr(second, "_fit")


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_shard_with_a_level_that_lies_within_the_bases_is_merged(reference: str) -> None:
    """What other levels do, in other amounts: nothing is missing."""
    options: dict[str, Any] = {"reference": reference, "interactions": 0, "ridge": 1e-6}
    model = Shop(20)
    known, later = rows(300, 20), rows(300, 20, seed=1)
    known[known[:, 0] == 3, 0] = 4
    first = NObSP(model, **options).fit(known)
    merged = NObSP(model, **options).fit(known).merge(NObSP(model, **options).fit(later, like=first))
    assert found_effect(merged, 0, 3) == pytest.approx(model.effect(0, 3), rel=1e-3)


def test_a_stream_whose_later_rows_hold_a_new_level_says_so() -> None:
    model, X = Shop(20), rows(20_000, 20)
    X[19_000, 0] = 10
    explainer = NObSP(model, features=["place", "price"], interactions=0, baseline="zero")
    with pytest.warns(UserWarning, match=r"a level of 'place' \(10\) came after the first rows"):
        explainer.fit(iter(np.array_split(X, 10)))
