"""Features, groups and baselines: what is accepted, what is refused in words, and the inputs made from them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nobsp.network.columns import (
    Features,
    Summary,
    isolated,
    needs_data,
    reference,
    resolve_baseline,
    resolve_features,
)
from tests.tolerances import assert_same_to_rounding

NAMES = ["age", "oslo", "rome"]


def summary_of(X: Any, groups: list[list[int]] | None = None) -> Summary:
    rows = torch.tensor(np.asarray(X, dtype=float))
    summary = Summary(groups or [[k] for k in range(rows.shape[1])])
    summary.update(rows)
    return summary


# ---------------------------------------------------------------------- features


def test_without_features_every_column_is_one() -> None:
    assert resolve_features(None, columns=2, names=None) == Features(("x0", "x1"), ((0,), (1,)))
    assert resolve_features(None, columns=3, names=NAMES).names == tuple(NAMES)


def test_a_list_names_the_columns() -> None:
    found = resolve_features(["a", "b", "c"], columns=3, names=NAMES)
    assert found == Features(("a", "b", "c"), ((0,), (1,), (2,)))


@pytest.mark.parametrize(
    "given_groups",
    [
        {"age": 0, "city": [1, 2]},
        {"age": "age", "city": ["oslo", "rome"]},
        {"age": ["age"], "city": ("oslo", 2)},
        {"age": np.int64(0), "city": np.array([1, 2])},
        {"age": [0], "city": range(1, 3)},
    ],
)
def test_a_dictionary_groups_columns_by_position_or_name(given_groups: dict[str, Any]) -> None:
    found = resolve_features(given_groups, columns=3, names=NAMES)
    assert found == Features(("age", "city"), ((0,), (1, 2)))
    assert found.columns_of((1, 0)) == [1, 2, 0]


@pytest.mark.parametrize(
    ("given_features", "kind", "words"),
    [
        ("abc", TypeError, "found the string 'abc'"),
        (["a", "b"], ValueError, "2 names but the data has 3 columns"),
        (["a", "b", "a"], ValueError, "the name 'a' twice"),
        ({"a": [0, 1], "b": [1, 2]}, ValueError, "'oslo' into both 'a' and 'b'"),
        ({"a": [0, 0], "b": [1, 2]}, ValueError, "'age' into both 'a' and 'a'"),
        ({"a": 0, "b": 1}, ValueError, "leaves out column 'rome'"),
        ({"a": [0, 1, 2], "b": []}, ValueError, r"features\['b'\] has no columns"),
        ({"a": [0, 1, 3]}, ValueError, "column 3, but the data has columns 0 to 2"),
        ({"a": [0, 1, -1]}, ValueError, "column -1, but"),
        ({"a": ["age", "oslo", "rom"]}, ValueError, "did you mean 'rome'"),
        ({"a": [0, 1, True]}, TypeError, "by position or name, found True"),
        ({"a": [0, 1, 2.0]}, TypeError, "by position or name, found 2.0"),
        (
            {"a": 0.5, "b": [0, 1, 2]},
            TypeError,
            r"features\['a'\] must be a column or a list of columns, found 0.5",
        ),
        (
            {"a": None, "b": [0, 1, 2]},
            TypeError,
            r"features\['a'\] must be a column or a list of columns, found None",
        ),
        ({1: 0, "1": [1, 2]}, ValueError, "the name '1' twice"),
        ({"1": 0, 1: [1, 2]}, ValueError, "the name '1' twice"),
    ],
)
def test_impossible_features_are_refused_in_words(
    given_features: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        resolve_features(given_features, columns=3, names=NAMES)


def test_column_names_need_named_columns() -> None:
    with pytest.raises(ValueError, match="the data has no column names"):
        resolve_features({"a": ["age"]}, columns=1, names=None)


def test_a_misspelt_feature_gets_its_neighbours() -> None:
    features = Features(("age", "income", "incomes"), ((0,), (1,), (2,)))
    assert features.index("income") == 1
    with pytest.raises(ValueError, match=r"'incme'.*did you mean 'income' or 'incomes'"):
        features.index("incme")


# ---------------------------------------------------------------------- baselines

ROWS = [[1.0, 0.0, 1.0], [2.0, 0.0, 1.0], [6.0, 1.0, 0.0]]
FEATURES = Features(("age", "city"), ((0,), (1, 2)))


def baseline(kind: Any, categories: frozenset[int] = frozenset({1})) -> list[float]:
    summary = summary_of(ROWS, [[0], [1, 2]])
    found = resolve_baseline(
        kind, features=FEATURES, columns=3, summary=summary, categories=categories
    )
    assert found.dtype == torch.float64
    return found.tolist()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("mean", [3.0, 0.0, 1.0]),
        ("median", [2.0, 0.0, 1.0]),
        ("zero", [0.0, 0.0, 0.0]),
        ([4, 1, 0], [4.0, 1.0, 0.0]),
        (np.array([4.0, 1.0, 0.0], dtype=np.float32), [4.0, 1.0, 0.0]),
        (torch.tensor([4.0, 1.0, 0.0]), [4.0, 1.0, 0.0]),
        ({"age": "median"}, [2.0, 0.0, 1.0]),
        ({"age": 7.0, "city": [1, 0]}, [7.0, 1.0, 0.0]),
        ({"city": 0}, [3.0, 0.0, 0.0]),
        ({"city": "mode", "age": "zero"}, [0.0, 0.0, 1.0]),
    ],
)
def test_a_baseline_of_any_kind(kind: Any, expected: list[float]) -> None:
    assert baseline(kind) == expected


def test_the_mode_of_amounts_of_which_none_repeats_is_refused() -> None:
    with pytest.raises(ValueError, match="no value occurs twice"):
        baseline("mode")


def test_the_mean_is_taken_where_a_group_is_no_category() -> None:
    assert baseline("mean", frozenset()) == pytest.approx([3.0, 1 / 3, 2 / 3])


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("average", ValueError, '"mean", "zero", "median", "mode" or numbers, found \'average\''),
        ([1.0, 2.0], ValueError, "2 values but the data has 3 columns"),
        ([1.0, float("nan"), 0.0], ValueError, "not finite"),
        ({"agee": 1.0}, ValueError, "did you mean 'age'"),
        ({"city": [1.0, 0.0, 0.0]}, ValueError, "3 values but the feature has 2 columns"),
        ({"age": float("inf")}, ValueError, "not finite"),
        (["a", "b", "c"], TypeError, "must be numbers"),
        ({"age": object()}, TypeError, "must be numbers"),
    ],
)
def test_impossible_baselines_are_refused_in_words(
    kind: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        baseline(kind)


def test_a_given_baseline_is_copied() -> None:
    mine = np.array([1.0, 2.0, 3.0])
    summary = summary_of(ROWS, [[0], [1, 2]])
    found = resolve_baseline(
        mine, features=FEATURES, columns=3, summary=summary, categories=frozenset()
    )
    found[0] = 9.0
    assert mine[0] == 1.0
    means = summary.mean.clone()
    resolve_baseline("mean", features=FEATURES, columns=3, summary=summary, categories=frozenset())[
        0
    ] = 9.0
    assert torch.equal(summary.mean, means)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("mean", True),
        ("median", True),
        ("mode", True),
        ("zero", False),
        ([1.0, 2.0, 3.0], False),
        ({"age": 1.0}, True),
        ({"age": 1.0, "city": "zero"}, False),
        ({"age": 1.0, "city": "mode"}, True),
        ({"age": 1.0, "city": [0, 1]}, False),
    ],
)
def test_whether_the_data_must_be_read_first(kind: Any, answer: bool) -> None:
    assert needs_data(kind, FEATURES) is answer


# ---------------------------------------------------------------------- inputs


@given(st.integers(1, 6), st.data())
def test_isolated_and_reference_inputs_make_up_the_rows(columns: int, data: st.DataObject) -> None:
    """X_S + X_(S) = X + baseline (B.2 to B.4), and the complement's isolated input is the reference."""
    chosen = data.draw(st.lists(st.integers(0, columns - 1), unique=True))
    others = [c for c in range(columns) if c not in chosen]
    rows = torch.randn(
        7, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(columns)
    )
    origin = torch.arange(columns, dtype=torch.float64)
    before = rows.clone()
    inside, outside = isolated(rows[:, chosen], origin, chosen), reference(rows, origin, chosen)
    assert torch.equal(isolated(rows[:, others], origin, others), outside)
    assert torch.equal(inside[:, chosen], rows[:, chosen])
    assert torch.equal(inside[:, others], origin[others].expand(7, -1))
    assert_same_to_rounding(inside + outside, rows + origin)
    assert torch.equal(rows, before)
    inside[:], outside[:] = 0.0, 0.0
    assert torch.equal(rows, before)
    assert torch.equal(origin, torch.arange(columns, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_inputs_keep_the_kind_of_the_rows(dtype: torch.dtype) -> None:
    rows = torch.ones(2, 2, dtype=dtype)
    assert isolated(rows[:, [0]], torch.zeros(2, dtype=torch.float64), [0]).dtype == dtype
    assert reference(rows, torch.zeros(2, dtype=torch.float64), [0]).dtype == dtype


@pytest.mark.parametrize(
    "change",
    [
        {"mean": torch.tensor([torch.nan, 0.0])},
        {"mean": torch.tensor([1e300, 0.0])},
        {"minimum": torch.tensor([torch.inf, 0.0])},
        {"minimum": torch.tensor([-torch.inf, -1.0])},
        {"maximum": torch.tensor([torch.nan, 3.0])},
        {"two_valued": torch.zeros(2)},
        {"groups": ((0,), (7,))},
        {"pieces": [torch.tensor([[torch.nan, 0.0]])]},
        {"pieces": [torch.tensor([[torch.inf, 0.0]])]},
    ],
)
def test_a_summary_that_no_rows_can_have_is_refused(change: dict[str, Any]) -> None:
    summary = summary_of(np.array([[1.0, -1.0], [2.0, 3.0], [0.5, 0.0]]))
    with pytest.raises(ValueError, match=r"its|two_valued|column"):
        dataclasses.replace(summary, **change)
