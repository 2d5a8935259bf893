"""What a table looks like, read in one pass: the same as numpy says of the whole, and a sample that favours no row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nobsp.network.columns import MOST_LEVELS, SAMPLE_ROWS, Features, Summary, resolve_baseline
from tests.tolerances import SUMS, assert_same_to_rounding


def summary_of(X: np.ndarray, *, size: int = 50, groups: list[list[int]] | None = None) -> Summary:
    summary = Summary(groups if groups is not None else [[k] for k in range(X.shape[1])])
    for start in range(0, len(X), size):
        summary.update(torch.tensor(X[start : start + size]))
    return summary


def baseline(summary: Summary, kind: str) -> torch.Tensor:
    groups = tuple(tuple(group) for group in summary.groups)
    features = Features(tuple(f"x{k}" for k in range(len(groups))), groups)
    columns = sum(map(len, groups))
    every = frozenset(range(len(groups))) if kind == "mode" else frozenset()
    return resolve_baseline(
        kind, features=features, columns=columns, summary=summary, categories=every
    )


def mixed(rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.column_stack(
        [rng.normal(5, 2, rows), rng.integers(0, 4, rows), rng.integers(0, 2, rows) * 2.5 - 1]
    )


@given(st.integers(2, 200), st.integers(1, 70), st.integers(0, 1000))
def test_means_ranges_and_levels_are_those_of_the_whole_table(
    rows: int, size: int, seed: int
) -> None:
    X = mixed(rows, seed)
    summary = summary_of(X, size=size)
    assert summary.rows == rows
    assert_same_to_rounding(summary.mean, X.mean(0))
    np.testing.assert_array_equal(summary.minimum, X.min(0))
    np.testing.assert_array_equal(summary.maximum, X.max(0))
    np.testing.assert_array_equal(summary.sample, X)
    for feature in (1, 2):
        levels, counts = np.unique(X[:, feature], return_counts=True)
        np.testing.assert_array_equal(summary.levels[feature][0][:, 0], levels)
        np.testing.assert_array_equal(summary.levels[feature][1], counts)
        assert baseline(summary, "mode")[feature] == levels[counts.argmax()]
    assert_same_to_rounding(baseline(summary, "median"), np.median(X, axis=0))


def test_groups_have_levels_of_their_own() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack(
        [rng.standard_normal(500), np.eye(3)[rng.choice(3, 500, p=[0.2, 0.5, 0.3])]]
    )
    summary = summary_of(X, groups=[[0], [1, 2, 3]])
    assert 0 not in summary.levels
    values, counts = summary.levels[1]
    assert values.shape == (3, 3)
    assert counts.sum() == 500
    np.testing.assert_array_equal(baseline(summary, "mode")[[1, 2, 3]], [0, 1, 0])


@pytest.mark.parametrize("count", [MOST_LEVELS, MOST_LEVELS + 1])
@pytest.mark.parametrize("size", [7, 100, 10_000])
def test_few_levels_are_counted_and_many_are_forgotten(count: int, size: int) -> None:
    X = np.tile(np.arange(count, dtype=float), 4)[:, None]
    summary = summary_of(X, size=size)
    assert (0 in summary.levels) == (count <= MOST_LEVELS)


def test_levels_that_come_late_are_counted_too() -> None:
    X = np.concatenate([np.zeros(5000), np.arange(400)])[:, None]
    assert 0 not in summary_of(X, size=5400).levels
    late = np.concatenate([np.zeros(5000), np.arange(200)])[:, None]
    assert len(summary_of(late, size=5200).levels[0][0]) == 200


def test_a_feature_with_too_many_levels_still_has_a_mode() -> None:
    X = np.concatenate([np.arange(1000), [77.0]])[:, None]
    assert baseline(summary_of(X), "mode")[0] == 77.0


def test_whole_numbers_and_single_precision_are_summed_in_double() -> None:
    X = np.full((3, 1), 16_777_217, dtype=np.int64)
    assert summary_of(X).mean == 16_777_217.0
    tenths = np.full((100_000, 1), 0.1, dtype=np.float32)
    assert float(summary_of(tenths, size=1000).mean) == pytest.approx(
        float(np.float32(0.1)), rel=SUMS
    )


def test_a_sample_of_a_large_table_is_fair() -> None:
    """Every row is as likely to be held as any other: ranks of the held rows are uniform."""
    rows = 3 * SAMPLE_ROWS
    X = np.arange(rows, dtype=float)[:, None]
    sample = summary_of(X, size=5000).sample[:, 0].numpy()
    assert len(sample) == SAMPLE_ROWS
    assert len(np.unique(sample)) == SAMPLE_ROWS
    share = np.histogram(sample, bins=6, range=(0, rows))[0] / SAMPLE_ROWS
    # Six bins of a sixth each; a standard deviation is sqrt(1/6 · 5/6 · 2/3 / 16384) = 0.0024.
    np.testing.assert_allclose(share, 1 / 6, atol=0.012)


def test_the_sample_does_not_touch_the_callers_random_numbers() -> None:
    state = torch.get_rng_state()
    summary_of(np.zeros((SAMPLE_ROWS + 5000, 1)), size=4000)
    assert torch.equal(state, torch.get_rng_state())


def test_the_rows_are_copied_and_never_written_to() -> None:
    rows = torch.arange(10.0, dtype=torch.float64)[:, None]
    summary = Summary([[0]])
    summary.update(rows)
    summary.sample[:] = -1
    assert torch.equal(rows[:, 0], torch.arange(10.0, dtype=torch.float64))


@pytest.mark.parametrize("empty", ["first", "second"])
def test_a_merged_summary_goes_on_without_its_parts(empty: str) -> None:
    part, nothing = summary_of(mixed(40)), Summary([[0], [1], [2]])
    merged = nothing.merge(part) if empty == "first" else part.merge(nothing)
    merged.update(torch.tensor(mixed(30, 1)))
    merged.sample[:] = -1
    assert (part.rows, nothing.rows, merged.rows) == (40, 0, 70)
    np.testing.assert_array_equal(part.sample, mixed(40))
    assert int(part.levels[1][1].sum()) == 40


def test_some_rows_are_spread_over_a_sorted_sample() -> None:
    summary = summary_of(np.arange(1000.0)[:, None])
    chosen = summary.some_rows(11)[:, 0]
    assert chosen.tolist() == [0, 99, 199, 299, 399, 499, 599, 699, 799, 899, 999]
    assert len(summary.some_rows(5000)) == 1000


# ---------------------------------------------------------------------- two tables


@given(st.integers(1, 100), st.integers(1, 100), st.integers(0, 100))
def test_two_tables_merge_to_the_summary_of_both(first: int, second: int, seed: int) -> None:
    X, Y = mixed(first, seed), mixed(second, seed + 1)
    merged, whole = summary_of(X).merge(summary_of(Y)), summary_of(np.vstack([X, Y]))
    assert merged.rows == whole.rows
    assert_same_to_rounding(merged.mean, whole.mean)
    assert torch.equal(merged.minimum, whole.minimum)
    assert torch.equal(merged.maximum, whole.maximum)
    assert torch.equal(merged.sample, whole.sample)
    for feature in (1, 2):
        assert torch.equal(merged.levels[feature][0], whole.levels[feature][0])
        assert torch.equal(merged.levels[feature][1], whole.levels[feature][1])


def test_levels_that_are_many_together_are_forgotten_when_merged() -> None:
    a, b = (summary_of(np.arange(200.0)[:, None] + shift) for shift in (0, 150))
    assert 0 in a.levels
    assert 0 not in a.merge(b).levels


@pytest.mark.parametrize(
    "sizes", [(20_000, 60_000), (60_000, 20_000), (200, 40_000), (40_000, 200)]
)
def test_a_merged_sample_holds_each_table_by_its_size(sizes: tuple[int, int]) -> None:
    a, b = (
        summary_of(np.full((rows, 1), value), size=8000)
        for rows, value in zip(sizes, (0.0, 1.0), strict=True)
    )
    sample = a.merge(b).sample
    assert len(sample) == SAMPLE_ROWS
    assert float(sample.mean()) == pytest.approx(sizes[1] / sum(sizes), abs=0.011)


# ---------------------------------------------------------------------- categories with many levels


@pytest.mark.parametrize("size", [7, 100, 10_000])
@pytest.mark.parametrize("start", [0, -40])
def test_whole_numbers_are_counted_however_many(size: int, start: int) -> None:
    X = np.random.default_rng(0).integers(start, start + 2000, 6000).astype(float)
    X[:3] = start + 7
    summary = summary_of(X[:, None], size=size)
    values, counts = np.unique(X, return_counts=True)
    known = summary.levels_of(0, [0])
    assert 0 not in summary.levels
    assert known is not None
    np.testing.assert_array_equal(known[0][:, 0], values)
    np.testing.assert_array_equal(known[1], counts)
    assert baseline(summary, "mode")[0] == values[counts.argmax()]


@pytest.mark.parametrize("odd", [0.5, 1e6, -1e6])
def test_fractions_and_numbers_far_apart_are_no_codes(odd: float) -> None:
    X = np.concatenate([np.arange(1000.0), [odd]])[:, None]
    assert summary_of(X).levels_of(0, [0]) is None


@pytest.mark.parametrize("size", [50, 5000])
def test_every_level_of_a_wide_one_hot_group_is_counted(size: int) -> None:
    rng = np.random.default_rng(0)
    level = rng.integers(0, 300, 3000)
    level[:100] = 17
    X = np.column_stack([np.eye(300)[level], rng.normal(size=3000)])
    columns = list(range(300))
    summary = summary_of(X, size=size, groups=[columns, [300]])
    known = summary.levels_of(0, columns)
    assert known is not None
    assert len(known[0]) == len(np.unique(level))
    assert int(known[1].sum()) == 3000
    assert int(baseline(summary, "mode").argmax()) == 17
    assert summary.two_valued.tolist() == [True] * 300 + [False]


def test_combinations_of_many_switches_are_not_levels_of_a_category() -> None:
    X = np.random.default_rng(0).integers(0, 2, (2000, 20)).astype(float)
    summary = summary_of(X, groups=[list(range(20))])
    assert summary.levels_of(0, range(20)) is None
    assert bool(summary.two_valued.all())


@given(st.integers(1, 3), st.integers(0, 50))
def test_columns_of_two_values_are_known_whatever_the_batches(size: int, seed: int) -> None:
    X = np.random.default_rng(seed).choice([0.0, 1.0, 1.0, 2.5], (6, 4))
    expected = [len(np.unique(column)) <= 2 for column in X.T]
    assert summary_of(X, size=size).two_valued.tolist() == expected
    assert summary_of(X[:2]).merge(summary_of(X[2:])).two_valued.tolist() == expected


@pytest.mark.parametrize("cut", [10, 600, 2990])
def test_many_levels_merge_to_those_of_both(cut: int) -> None:
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.integers(0, 900, 3000), np.eye(300)[rng.integers(0, 300, 3000)]])
    groups = [[0], list(range(1, 301))]
    whole = summary_of(X, groups=groups)
    merged = summary_of(X[:cut], groups=groups).merge(summary_of(X[cut:], groups=groups))
    for feature, columns in enumerate(groups):
        both, one = merged.levels_of(feature, columns), whole.levels_of(feature, columns)
        assert both is not None
        assert one is not None
        assert torch.equal(both[0], one[0])
        assert torch.equal(both[1], one[1])
