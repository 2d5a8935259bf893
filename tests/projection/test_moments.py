"""Streaming moments: exact where they can be, mergeable in any order, and never left half-changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nobsp.projection import Moments, merge_all, update_in_turn
from tests.meeting import meet
from tests.projection.oracles import exact_products, normal, product_error
from tests.tolerances import (
    PASS,
    SUMS,
    assert_all_same_to_rounding,
    assert_same_to_rounding,
    rounding,
)

SEEDS = st.integers(0, 10_000)
BLOCKS = {"target": 2, "reference": 3, "outputs": 1}


def in_batches(rows: Tensor, sizes: list[int], blocks: dict[str, int] | None = None) -> Moments:
    moments, start = Moments(blocks or {"all": rows.shape[1]}), 0
    for size in [*sizes, rows.shape[0]]:
        batch = rows[start : start + size]
        if len(batch):
            moments.update(batch)
        start += size
    assert moments.rows == rows.shape[0]
    return moments


def same(left: Moments, right: Moments, tolerance: float = SUMS) -> bool:
    expected = right.products.numpy()
    spread = np.sqrt(np.diag(expected) / max(right.weight, 1.0))
    scale = spread + 1e-3 * np.abs(right.mean().numpy()) + 1e-300
    means = np.abs((left.mean() - right.mean()).numpy()) / scale
    return (
        left.rows == right.rows
        and abs(left.weight - right.weight) <= tolerance * right.weight
        and product_error(left.products, expected) <= tolerance
        and float(means.max(initial=0.0)) <= tolerance
    )


# ---------------------------------------------------------------------- sums


@given(SEEDS, st.integers(2, 40), st.integers(1, 6), st.sampled_from([0.0, 1.0, 1e6]))
def test_products_and_means_are_those_of_two_passes(
    seed: int, rows: int, size: int, shift: float
) -> None:
    x = normal(seed, rows, size) + shift
    moments = Moments({"all": size}).update(x)
    assert product_error(moments.products, exact_products(x)) < PASS
    assert np.allclose(
        moments.mean(), x.numpy().astype(np.longdouble).mean(0).astype(float), rtol=PASS, atol=PASS
    )


def test_wide_rows_cross_the_panels_of_the_symmetric_product() -> None:
    x = normal(0, 2100, 300) + 3
    moments = in_batches(x, [1024, 1, 700])
    centred = x - x.mean(0)
    expected = (centred.T @ centred).numpy()
    assert product_error(moments.products, expected) < rounding(operations=len(x))
    assert torch.equal(moments.products, moments.products.T)


@given(
    SEEDS,
    st.lists(st.integers(1, 30), max_size=12),
    st.permutations(range(60)),
    st.sampled_from([0.0, 1e6]),
)
def test_batch_sizes_and_order_do_not_change_the_result(
    seed: int, sizes: list[int], order: list[int], shift: float
) -> None:
    rows = normal(seed, 60, 4) * torch.tensor([1e-3, 1.0, 1.0, 1e3]) + shift
    assert same(in_batches(rows[order], sizes), in_batches(rows, []))


@pytest.mark.parametrize("distance", [1e2, 1e4, 1e6, 1e8])
def test_an_outlier_in_a_batch_of_its_own_costs_the_rest_nothing(distance: float) -> None:
    rows = torch.cat([torch.full((1, 3), distance, dtype=torch.float64), normal(0, 200_000, 3)])
    exact = exact_products(rows)
    within = rounding(operations=len(rows))
    for sizes in ([1], [], [200_000], [1, 1, 5000]):
        assert product_error(in_batches(rows, sizes).products, exact) < within
        assert product_error(in_batches(rows.flip(0), sizes).products, exact) < within


def test_sorted_rows_stream_as_well_as_shuffled_ones() -> None:
    rows = normal(0, 50_000, 2).sort(0).values * 10 + 1e5
    exact = exact_products(rows)
    within = rounding(operations=len(rows))
    for sizes in ([100] * 499, [50_000], [3] * 5000):
        assert product_error(in_batches(rows, sizes).products, exact) < within


@pytest.mark.parametrize("batch", [1_000_000, 4096, 1000])
def test_a_million_rows_with_a_huge_mean_stay_within_ten_times_numpys_two_pass_error(
    batch: int,
) -> None:
    rows = normal(7, 1_000_000, 3) + torch.tensor([1e6, -1e6, 3e6])
    exact = exact_products(rows)
    array = rows.numpy()
    two_pass = array - array.mean(0)
    allowed = 10 * max(product_error(two_pass.T @ two_pass, exact), np.finfo(float).eps)
    moments = Moments({"all": 3})
    for part in rows.split(batch):
        moments.update(part)
    assert product_error(moments.products, exact) <= allowed
    mean = rows.numpy().astype(np.longdouble).mean(0)
    numpy_error = np.abs(array.mean(0) - mean).max()
    assert float(np.abs(moments.mean().numpy() - mean).max()) <= 10 * max(
        float(numpy_error), 1e6 * 2.3e-16
    )


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e6 + 0.1, -7e-9, 0.0])
def test_a_constant_column_has_products_of_exactly_zero(value: float) -> None:
    rows = torch.cat([torch.full((3001, 1), value, dtype=torch.float64), normal(0, 3001, 1)], 1)
    shards = [Moments({"all": 2}).update(part[:5]).update(part) for part in rows.split(700)]
    joined = merge_all(shards, weights=[0.3, 2.0, 1.0, 0.1, 5.0])
    assert joined.products[0].tolist() == [0.0, 0.0]
    assert joined.mean()[0] == value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_floats_are_widened_before_anything_is_summed(dtype: torch.dtype) -> None:
    narrow = (normal(0, 3000, 3) * 30 + 500).to(dtype)
    moments = Moments({"all": 3}).update(narrow)
    assert product_error(moments.products, exact_products(narrow.double())) < rounding(
        operations=len(narrow)
    )
    assert moments.products.dtype == torch.float64


def test_large_finite_half_precision_values_are_not_taken_for_infinite() -> None:
    rows = torch.full((3, 1), 60_000.0, dtype=torch.float16)
    assert Moments({"all": 1}).update(rows).mean().item() == 60_000.0


def test_gradients_do_not_keep_the_graph_alive() -> None:
    rows = normal(0, 4, 2).requires_grad_()
    assert not Moments({"all": 2}).update(rows * 2).products.requires_grad


def test_the_rows_given_are_left_as_they_were() -> None:
    rows = normal(0, 2000, 2)
    kept = rows.clone()
    Moments({"all": 2}).update(rows)
    assert torch.equal(rows, kept)


# ---------------------------------------------------------------------- blocks


# ---------------------------------------------------------------------- several sets in turn


@given(
    SEEDS,
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 12),
    st.sampled_from([0.0, 1.0, 1e6]),
)
def test_rows_dealt_in_turn_are_those_of_every_so_many(
    seed: int, batches: list[int], n_sets: int, shift: float
) -> None:
    x = normal(seed, sum(batches), 3) + shift
    sets = [Moments({"first": 2, "second": 1}) for _ in range(n_sets)]
    start = 0
    for size in batches:
        batch = x[start : start + size]
        update_in_turn(sets, {"first": batch[:, :2], "second": batch[:, 2:]}, first=start)
        start += size

    for position, moments in enumerate(sets):
        own = x[position::n_sets]
        assert moments.rows == len(own)
        if len(own):
            assert product_error(moments.products, exact_products(own)) < PASS
            assert_same_to_rounding(moments.mean(), own.mean(0), within=PASS)


def test_more_rows_in_turn_than_a_chunk_holds() -> None:
    x = normal(0, 10_001, 70) + 3
    sets = [Moments({"all": 70}) for _ in range(12)]
    update_in_turn(sets, {"all": x.float()}, first=5)
    for position, moments in enumerate(sets):
        own = x.float().double()[(position - 5) % 12 :: 12]
        assert product_error(moments.products, exact_products(own)) < PASS


@pytest.mark.parametrize("value", [0.1, 1e9, -3.0])
def test_a_constant_column_dealt_in_turn_has_products_of_exactly_zero(value: float) -> None:
    sets = [Moments({"all": 2}) for _ in range(5)]
    for size in (17, 3, 50):
        x = normal(0, size, 2)
        x[:, 1] = value
        update_in_turn(sets, {"all": x})
    for moments in sets:
        assert not moments.products[:, 1].any()


def test_a_failing_batch_leaves_all_sets_unchanged() -> None:
    sets = [Moments({"all": 2}) for _ in range(3)]
    update_in_turn(sets, {"all": normal(0, 9, 2)})
    before = [moments.state() for moments in sets]
    wrong = normal(1, 9, 2)
    wrong[4, 1] = torch.nan
    with pytest.raises(ValueError, match="row 4, column 1"):
        update_in_turn(sets, {"all": wrong})
    for moments, state in zip(sets, before, strict=True):
        assert all(torch.equal(tensor, state[name]) for name, tensor in moments.state().items())


def test_blocks_by_name_in_any_order_equal_all_columns_at_once() -> None:
    rows = normal(0, 20, 6)
    parts = dict(zip(BLOCKS, rows.split(list(BLOCKS.values()), dim=1), strict=True))
    shuffled = {name: parts[name] for name in ("outputs", "target", "reference")}
    one, other = Moments(BLOCKS).update(rows), Moments(BLOCKS).update(shuffled)
    assert_same_to_rounding(one.products, other.products)
    for left in BLOCKS:
        for right in BLOCKS:
            expected = (parts[left] - parts[left].mean(0)).T @ (parts[right] - parts[right].mean(0))
            assert torch.allclose(one.product(left, right), expected, rtol=PASS, atol=SUMS)
            assert torch.equal(one.product(left, right), one.product(right, left).T)


def test_blocks_of_no_columns_behave() -> None:
    moments = Moments({"nothing": 0, "some": 2, "neither": 0}).update(normal(0, 5, 2))
    assert moments.product("nothing", "some").shape == (0, 2)
    assert moments.product("some", "neither").shape == (2, 0)
    assert moments.product("neither", "nothing").shape == (0, 0)
    assert moments.mean("some").shape == (2,)
    assert Moments({"nothing": 0}).update(torch.zeros(4, 0)).rows == 4


# ---------------------------------------------------------------------- weights


@given(SEEDS, st.lists(st.integers(0, 5), min_size=2, max_size=25).filter(lambda w: sum(w) > 0))
def test_whole_weights_count_a_row_that_often(seed: int, counts: list[int]) -> None:
    rows = normal(seed, len(counts), 3) + 10
    weighted = merge_all([Moments({"all": 3}).update(row[None]) for row in rows], weights=counts)
    repeated = Moments({"all": 3}).update(rows.repeat_interleave(torch.tensor(counts), dim=0))
    lengths = repeated.products.diagonal().sqrt() + 1e-12
    assert weighted.weight == repeated.weight == sum(counts)
    assert (
        float(((weighted.products - repeated.products) / torch.outer(lengths, lengths)).abs().max())
        < SUMS
    )
    assert torch.allclose(weighted.mean(), repeated.mean(), rtol=PASS)
    assert weighted.rows == sum(c > 0 for c in counts)


def test_parts_of_weight_zero_leave_no_trace_and_can_go_on() -> None:
    rows = normal(0, 12, 3) + 1e6
    empty = merge_all([Moments({"all": 3}).update(rows - 5e6)], weights=[0.0])
    fresh = Moments({"all": 3}).update(rows)
    assert (empty.rows, empty.weight) == (0, 0.0)
    assert same(empty.merge(fresh), fresh)
    assert same(fresh.merge(empty), fresh)
    assert same(empty.update(rows), fresh)


# ---------------------------------------------------------------------- merging


@given(SEEDS, st.lists(st.integers(1, 20), min_size=3, max_size=3), st.sampled_from([0.0, 1e6]))
def test_merging_is_associative_and_commutative(seed: int, sizes: list[int], shift: float) -> None:
    a, b, c = (
        Moments({"all": 3}).update(normal(seed + i, size, 3) + shift + i)
        for i, size in enumerate(sizes)
    )
    assert same(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert same(a.merge(b), b.merge(a))


@given(SEEDS, st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_merging_shards_equals_one_pass(seed: int, sizes: list[int]) -> None:
    rows = normal(seed, sum(sizes), 4) * torch.tensor([1e-3, 1.0, 1.0, 1e3]) + 1e3
    shards = [Moments({"all": 4}).update(part) for part in rows.split(sizes)]
    assert same(merge_all(shards), Moments({"all": 4}).update(rows))


def test_merging_changes_neither_operand() -> None:
    a, b = (Moments({"all": 2}).update(normal(i, 5, 2)) for i in range(2))
    before = [(m.rows, m.weight, m.mean().clone(), m.products.clone()) for m in (a, b)]
    a.merge(b).update(normal(3, 4, 2))
    merge_all([a]).update(normal(3, 4, 2))
    for m, (rows, weight, mean, products) in zip((a, b), before, strict=True):
        assert (m.rows, m.weight) == (rows, weight)
        assert torch.equal(m.mean(), mean)
        assert torch.equal(m.products, products)


def test_empty_moments_are_the_neutral_element() -> None:
    some, empty = Moments({"all": 2}).update(normal(0, 5, 2) + 1e6), Moments({"all": 2})
    for joined in (some.merge(empty), empty.merge(some), merge_all([empty, some, empty])):
        assert same(joined, some, 0.0)
    assert empty.merge(empty).rows == 0
    assert bool((empty.products == 0).all())


def test_merging_other_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot merge moments of blocks"):
        Moments({"a": 1, "b": 1}).merge(Moments({"b": 1, "a": 1}))
    with pytest.raises(ValueError, match="parts is empty"):
        merge_all([])


# ---------------------------------------------------------------------- state


def test_a_saved_state_goes_on_as_if_never_interrupted(tmp_path: Path) -> None:
    rows = normal(0, 40, 6) + 1e6
    straight = Moments(BLOCKS).update(rows[:25])
    safetensors.torch.save_file(straight.state(), tmp_path / "moments.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "moments.safetensors")
    back = Moments.from_state(BLOCKS, loaded)
    assert (back.rows, back.weight) == (straight.rows, straight.weight)
    assert torch.equal(back.products, straight.products)
    assert_same_to_rounding(back.update(rows[25:]).products, straight.update(rows[25:]).products)
    assert_same_to_rounding(back.mean(), straight.mean())


def test_a_state_is_a_snapshot() -> None:
    moments = Moments(BLOCKS).update(normal(0, 4, 6))
    state = moments.state()
    kept = {name: value.clone() for name, value in state.items()}
    back = Moments.from_state(BLOCKS, state)
    moments.update(normal(1, 4, 6))
    back.update(normal(2, 4, 6))
    assert all(torch.equal(state[name], kept[name]) for name in kept)


@pytest.mark.parametrize("name", ["rows", "weight", "origin", "offset", "products"])
def test_an_incomplete_or_foreign_state_is_refused_by_name(name: str) -> None:
    state = Moments(BLOCKS).update(normal(0, 4, 6)).state()
    with pytest.raises(ValueError, match=f"state has no '{name}'"):
        Moments.from_state(BLOCKS, {k: v for k, v in state.items() if k != name})
    with pytest.raises(ValueError, match=rf"state\['{name}'\] has shape"):
        Moments.from_state(BLOCKS, state | {name: torch.zeros(9, 9, 9)})


# ---------------------------------------------------------------------- bad input


def bad_batches() -> list[tuple[object, type[Exception], str]]:
    rows = normal(0, 3, 6)
    nan, inf = rows.clone(), rows.clone()
    nan[1, 2], inf[2, 5] = torch.nan, -torch.inf
    parts = dict(zip(BLOCKS, rows.split([2, 3, 1], dim=1), strict=True))
    return [
        (nan, ValueError, "reference has a value that is not finite .row 1, column 0"),
        (inf, ValueError, "outputs has a value that is not finite .row 2, column 0"),
        (rows[:0], ValueError, "rows is an empty batch"),
        (rows[:, :5], ValueError, r"rows must have shape \(rows, 6\), found \(3, 5\)"),
        (rows[0], ValueError, "rows must have shape"),
        (rows.long(), TypeError, "rows must be a floating-point tensor, found torch.int64"),
        (rows.to(torch.complex128), TypeError, "rows must be a floating-point tensor"),
        (rows.numpy(), TypeError, "rows must be"),
        (None, TypeError, "rows must be"),
        (parts | {"target": rows[:2, :2]}, ValueError, "same number of rows, found target: 2"),
        (parts | {"target": rows[:, :3]}, ValueError, r"target must have shape \(rows, 2\)"),
        (parts | {"target": [[1.0, 2.0]] * 3}, TypeError, "target must be a floating-point tensor"),
        (parts | {"extra": rows}, ValueError, "rows has the blocks .*extra"),
        ({"target": rows[:, :2]}, ValueError, "rows has the blocks"),
    ]


@pytest.mark.parametrize("case", range(len(bad_batches())))
def test_a_failing_update_names_the_argument_and_leaves_the_sums_unchanged(case: int) -> None:
    rows, kind, words = bad_batches()[case]
    moments = Moments(BLOCKS).update(normal(1, 4, 6))
    before = {name: value.clone() for name, value in moments.state().items()}
    with pytest.raises(kind, match=words):
        moments.update(rows)  # type: ignore[arg-type]
    assert all(torch.equal(value, before[name]) for name, value in moments.state().items())


def test_unknown_blocks_are_refused_by_name() -> None:
    moments = Moments(BLOCKS)
    with pytest.raises(ValueError, match="no block 'tagret'; there are target, reference, outputs"):
        moments.mean("tagret")
    with pytest.raises(ValueError, match="weights must be 1 finite numbers"):
        merge_all([moments], weights=[-1.0])


# ---------------------------------------------------------------------- several processes

# Rows per process: uneven shards, a process that saw none, nobody saw any, a group of two among three.
CASES = {"three": (411, 58, 130), "hollow": (300, 0, 77), "nothing": (0, 0, 0), "two": (58, 411)}


def shards_of(case: str) -> list[Tensor]:
    counts = list(CASES[case])
    rows = normal(0, sum(counts), 5) * torch.tensor([1.0, 1e-3, 1.0, 1e3, 1.0]) + 1e6
    rows[:, 0] = 0.1
    return [part.contiguous() for part in rows.split(counts)]


@pytest.fixture(scope="module")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three processes that met over a file, with what each held after every case."""
    folder = tmp_path_factory.mktemp("meeting")
    given = {f"{case}-{i}": part for case in CASES for i, part in enumerate(shards_of(case))}
    safetensors.torch.save_file(given, folder / "rows.safetensors")
    meet("tests.projection.ranks", "moments", 3, folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_every_process_ends_with_the_same_moments_as_one_pass(case: str, meeting: Path) -> None:
    blocks, shards = {"constant": 1, "rest": 4}, shards_of(case)
    states = [
        safetensors.torch.load_file(meeting / f"{case}-{rank}.safetensors")
        for rank in range(len(shards))
    ]
    for state in states[1:]:
        assert_all_same_to_rounding(state, states[0])
    joined, single = Moments.from_state(blocks, states[0]), Moments(blocks)
    if sum(CASES[case]):
        single.update(torch.cat(shards))
    assert same(joined, single)
    assert bool((joined.product("constant", "rest") == 0).all())
    assert bool((joined.product("constant", "constant") == 0).all())
