"""All terms at once against ridge regression on raw columns, and the Möbius identities of a real network."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge as SklearnRidge
from torch import Tensor, nn

from nobsp.projection import Moments, Ridge, compress, pure_sign, terms_coefficients
from tests.projection.oracles import centre, moments_of, normal, relative_error, rng
from tests.tolerances import CONTRIBUTIONS, SUMS

SEEDS = st.integers(0, 10_000)


def blocks_of(seed: int, rows: int, widths: list[int], outputs: int = 2) -> dict[str, Tensor]:
    shared = normal(seed, rows, 2)
    blocks = {
        f"t{i}": normal(seed + i + 1, rows, w) + shared @ normal(seed + i + 50, 2, w) + i for i, w in enumerate(widths)
    }
    return blocks | {"outputs": torch.sin(shared @ normal(seed + 99, 2, outputs)) + normal(seed + 98, rows, outputs)}


def stacked(blocks: dict[str, Tensor]) -> Tensor:
    return torch.cat([part for name, part in blocks.items() if name != "outputs"], 1)


def joint(coefficients: dict[str, Tensor]) -> np.ndarray:
    return torch.cat(list(coefficients.values())).numpy()


# ---------------------------------------------------------------------- the joint fit


@given(SEEDS, st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any), st.floats(1e-6, 1e2))
def test_the_joint_fit_is_ridge_regression_on_the_raw_columns(seed: int, widths: list[int], ridge: float) -> None:
    blocks = blocks_of(seed, 50, widths)
    fit = terms_coefficients(moments_of(**blocks), ridge=Ridge(ridge, "absolute"))
    model = SklearnRidge(alpha=ridge, fit_intercept=True, solver="svd")
    model.fit(stacked(blocks).numpy(), blocks["outputs"].numpy())
    assert relative_error(joint(fit.coefficients), model.coef_.T) < 1e-9
    assert [part.shape for part in fit.coefficients.values()] == [(w, 2) for w in widths]
    assert fit.ridge == ridge
    assert fit.note == ""


def test_the_block_of_outputs_may_stand_anywhere_and_have_any_name() -> None:
    blocks = blocks_of(0, 40, [2, 3])
    moved = {"t0": blocks["t0"], "logits": blocks["outputs"], "t1": blocks["t1"]}
    left, right = terms_coefficients(moments_of(**blocks)), terms_coefficients(moments_of(**moved), outputs="logits")
    assert list(right.coefficients) == ["t0", "t1"]
    assert relative_error(joint(right.coefficients), joint(left.coefficients)) < SUMS


def test_the_default_ridge_is_relative_to_the_joint_matrix() -> None:
    blocks = blocks_of(0, 40, [2, 3])
    fit = terms_coefficients(moments_of(**blocks))
    assert fit.ridge == pytest.approx(1e-4 * (centre(stacked(blocks)) ** 2).sum() / 5, rel=SUMS)


@settings(max_examples=40)
@given(SEEDS, st.integers(3, 40), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_no_ridge_is_the_smallest_least_squares_solution(seed: int, rows: int, widths: list[int]) -> None:
    blocks = blocks_of(seed, rows, widths)
    columns = centre(stacked(blocks))
    assume(np.linalg.svd(columns)[1][: min(rows - 1, sum(widths))].min() > 1e-2)
    expected = np.linalg.pinv(columns, rcond=1e-10) @ centre(blocks["outputs"])
    fit = terms_coefficients(moments_of(**blocks), ridge=Ridge(0.0))
    assert relative_error(joint(fit.coefficients), expected) < 1e-7


def test_no_ridge_with_a_duplicated_term_shares_it_evenly() -> None:
    blocks = blocks_of(0, 60, [2, 3])
    twice = {"t0": blocks["t0"], "twin": blocks["t0"].clone(), "t1": blocks["t1"], "outputs": blocks["outputs"]}
    fit = terms_coefficients(moments_of(**twice), ridge=Ridge(0.0))
    expected = np.linalg.pinv(centre(stacked(twice)), rcond=1e-10) @ centre(blocks["outputs"])
    assert relative_error(joint(fit.coefficients), expected) < 1e-8
    assert relative_error(fit.coefficients["twin"], fit.coefficients["t0"].numpy()) < 1e-8
    assert fit.unique_share["twin"] == fit.unique_share["t0"] == 0.0
    assert fit.unique_share["t1"] > 0.1


@given(SEEDS, st.sampled_from([0.0, 1e-3, 1.0, 50.0]))
def test_compressing_each_block_first_changes_no_contribution(seed: int, ridge: float) -> None:
    full: dict[str, Tensor] = {}
    for i, rank in enumerate((1, 2, 3)):
        full[f"t{i}"] = normal(seed + i, 60, rank) @ normal(seed + 10 + i, rank, 8) + 2
    y = normal(seed + 20, 60, 2)
    moments = moments_of(**full, outputs=y)
    bases = {name: compress(moments.product(name, name), rows=60) for name in full}
    assert [basis.shape[1] for basis in bases.values()] == [1, 2, 3]
    small = {name: part @ bases[name] for name, part in full.items()}
    fits = [
        terms_coefficients(moments_of(**blocks, outputs=y), ridge=Ridge(ridge, "absolute")) for blocks in (full, small)
    ]
    for name in full:
        carried = bases[name] @ fits[1].coefficients[name]
        assert relative_error(carried, fits[0].coefficients[name].numpy()) < 1e-7
        assert fits[1].unique_share[name] == pytest.approx(fits[0].unique_share[name], abs=1e-6)
        assert torch.allclose(fits[1].spread[name], fits[0].spread[name], rtol=1e-7)
    assert torch.allclose(fits[0].explained, fits[1].explained, rtol=1e-9)


# ---------------------------------------------------------------------- what each term carries


@given(SEEDS, st.sampled_from([0.0, 1e-2, 30.0]))
def test_explained_and_spread_are_those_of_the_contributions_on_the_rows(seed: int, ridge: float) -> None:
    blocks = blocks_of(seed, 50, [2, 3, 1])
    fit = terms_coefficients(moments_of(**blocks), ridge=Ridge(ridge, "absolute"))
    y = centre(blocks["outputs"])
    parts = {name: centre(blocks[name]) @ fit.coefficients[name].numpy() for name in fit.coefficients}
    residual = y - sum(parts.values())
    assert np.allclose(fit.explained, 1 - (residual**2).sum(0) / (y**2).sum(0), rtol=1e-9, atol=SUMS)
    for name, part in parts.items():
        assert np.allclose(fit.spread[name], part.std(0), rtol=1e-9)


@given(SEEDS, st.sampled_from([0.0, 1e-3, 1.0, 50.0]))
def test_unique_share_is_what_ridge_regression_on_the_other_terms_leaves(seed: int, ridge: float) -> None:
    blocks = blocks_of(seed, 50, [2, 3, 1])
    fit = terms_coefficients(moments_of(**blocks), ridge=Ridge(ridge, "absolute"))
    for name in fit.coefficients:
        own = centre(blocks[name])
        others = centre(stacked({n: p for n, p in blocks.items() if n != name}))
        left = own - others @ np.linalg.solve(others.T @ others + ridge * np.eye(others.shape[1]), others.T @ own)
        assert fit.unique_share[name] == pytest.approx((left**2).sum() / (own**2).sum(), rel=1e-7)


def test_outputs_made_of_the_terms_are_explained_to_the_last_digit() -> None:
    blocks = blocks_of(0, 50, [2, 3])
    blocks["outputs"] = blocks["t0"] @ normal(1, 2, 2) + blocks["t1"] @ normal(2, 3, 2)
    fit = terms_coefficients(moments_of(**blocks), ridge=Ridge(0.0))
    assert torch.allclose(fit.explained, torch.ones(2, dtype=torch.float64), rtol=SUMS)
    assert relative_error(fit.coefficients["t0"], normal(1, 2, 2).numpy()) < CONTRIBUTIONS


@pytest.mark.parametrize("ridge", [Ridge(0.0), Ridge(), Ridge(1e-12, "absolute")])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1])
def test_null_terms_contribute_nothing_and_disturb_nobody(ridge: Ridge, value: float) -> None:
    blocks = blocks_of(0, 50, [2, 3])
    null = {"null": torch.full((50, 4), value, dtype=torch.float64)}
    with_null = terms_coefficients(moments_of(**(null | blocks)), ridge=ridge)
    without = terms_coefficients(moments_of(**blocks), ridge=Ridge(with_null.ridge, "absolute"))
    assert bool((with_null.coefficients["null"] == 0).all())
    assert bool((with_null.spread["null"] == 0).all())
    assert with_null.unique_share["null"] == 0.0
    for name in ("t0", "t1"):
        assert relative_error(with_null.coefficients[name], without.coefficients[name].numpy()) < CONTRIBUTIONS


def test_a_constant_output_is_not_divided_by() -> None:
    blocks = blocks_of(0, 30, [2]) | {"outputs": torch.full((30, 2), 0.1, dtype=torch.float64)}
    fit = terms_coefficients(moments_of(**blocks))
    assert bool((fit.coefficients["t0"] == 0).all())
    assert bool(torch.isfinite(fit.explained).all())


@pytest.mark.parametrize("ridge", [Ridge(0.0), Ridge(1e-4), Ridge(1e-4, "absolute")])
def test_more_columns_than_samples_are_diagnosed(ridge: Ridge) -> None:
    blocks = blocks_of(0, 8, [6, 7])
    fit = terms_coefficients(moments_of(**blocks), ridge=ridge)
    assert "More columns (13) than samples (8)" in fit.note
    columns = centre(stacked(blocks))
    expected = np.linalg.pinv(np.vstack([columns, np.sqrt(fit.ridge) * np.eye(13)]), rcond=1e-12)[:, :8]
    assert relative_error(joint(fit.coefficients), expected @ centre(blocks["outputs"])) < 1e-6


@pytest.mark.parametrize("ridge", [Ridge(1e-8, "absolute"), Ridge(1e-15), Ridge(1e-300, "absolute")])
def test_a_ridge_below_rounding_does_not_break_low_rank_terms(ridge: Ridge) -> None:
    a, b = 1e3 * normal(0, 500, 3) @ normal(1, 3, 20), 1e3 * normal(2, 500, 2) @ normal(3, 2, 20)
    y = 1e-3 * (a @ normal(4, 20, 2) + b @ normal(5, 20, 2))
    fit = terms_coefficients(moments_of(a=a, b=b, outputs=y), ridge=ridge)
    for rows, name, weights in ((a, "a", normal(4, 20, 2)), (b, "b", normal(5, 20, 2))):
        truth = 1e-3 * centre(rows) @ weights.numpy()
        assert relative_error(centre(rows) @ fit.coefficients[name].numpy(), truth) < 1e-5


def test_hundreds_of_terms_and_thousands_of_columns_fit_one_system() -> None:
    rows, terms, width = 3000, 300, 6
    x = normal(0, rows, terms * width)
    weights = normal(1, terms * width, 3)
    moments = Moments({f"t{i}": width for i in range(terms)} | {"outputs": 3})
    for part in torch.cat([x, x @ weights], 1).split(1000):
        moments.update(part)
    start = time.process_time()
    fit = terms_coefficients(moments, ridge=Ridge(1e-9))
    assert time.process_time() - start < 20
    assert relative_error(joint(fit.coefficients), weights.numpy()) < 1e-5
    assert len(fit.unique_share) == terms


# ---------------------------------------------------------------------- compression


@given(SEEDS, st.integers(1, 6), st.integers(6, 20))
def test_compression_keeps_the_rows(seed: int, rank: int, width: int) -> None:
    rows = centre(normal(seed, 40, rank) @ normal(seed + 1, rank, width))
    basis = compress(torch.from_numpy(rows.T @ rows), rows=40)
    assert basis.shape == (width, rank)
    assert torch.allclose(basis.T @ basis, torch.eye(rank, dtype=torch.float64), atol=SUMS)
    assert relative_error(rows @ basis.numpy() @ basis.numpy().T, rows) < 1e-6


def test_tolerance_is_the_share_of_spread_that_may_be_dropped() -> None:
    gram = torch.diag(torch.tensor([1.0, 1e-3, 1e-7], dtype=torch.float64))
    assert [compress(gram, tolerance=t).shape[1] for t in (0.0, 1e-8, 1e-5, 1e-2)] == [3, 3, 2, 1]


def test_a_constant_or_empty_block_has_no_directions() -> None:
    assert compress(torch.zeros(4, 4, dtype=torch.float64)).shape == (4, 0)
    assert compress(torch.zeros(0, 0, dtype=torch.float64)).shape == (0, 0)


@pytest.mark.parametrize(
    ("gram", "tolerance", "kind", "words"),
    [
        (torch.ones(2, 3), 1e-12, ValueError, "gram must be a square matrix"),
        (torch.ones(2), 1e-12, ValueError, "gram must be a square matrix"),
        (torch.full((2, 2), torch.nan), 1e-12, ValueError, "gram has values that are not finite"),
        (torch.ones(2, 2, dtype=torch.int64), 1e-12, TypeError, "gram must be a floating-point tensor"),
        (torch.eye(2), -1.0, ValueError, "tolerance must not be negative"),
        (torch.eye(2), float("nan"), ValueError, "tolerance"),
    ],
)
def test_bad_input_to_compress_is_refused_by_name(
    gram: Tensor, tolerance: float, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        compress(gram, tolerance=tolerance)


# ---------------------------------------------------------------------- the terms of a network


def random_network(seed: int, features: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 9), nn.ReLU()).double().requires_grad_(False)


def subsets(features: int) -> list[tuple[int, ...]]:
    return [s for size in range(features + 1) for s in itertools.combinations(range(features), size)]


def pure(network: nn.Module, x: Tensor, baseline: Tensor, term: tuple[int, ...]) -> Tensor:
    """Δ_S(x) = Σ_{U⊆S} (−1)^{|S|−|U|} z(x° with x_U put in)."""
    total = torch.zeros(x.shape[0], 9, dtype=torch.float64)
    for size in range(len(term) + 1):
        for subset in itertools.combinations(term, size):
            isolated = baseline.repeat(x.shape[0], 1)
            isolated[:, list(subset)] = x[:, list(subset)]
            total += pure_sign(term, subset) * network(isolated)
    return total


@pytest.mark.parametrize("features", [1, 2, 3, 4])
def test_all_pure_representations_add_up_to_the_representation(features: int) -> None:
    network, x, baseline = random_network(0, features), normal(1, 20, features), normal(2, features)
    total = sum((pure(network, x, baseline, s) for s in subsets(features)), torch.zeros(20, 9, dtype=torch.float64))
    assert torch.allclose(total, network(x), atol=SUMS)


@pytest.mark.parametrize("term", [s for s in subsets(3) if s])
def test_a_pure_representation_vanishes_when_any_of_its_features_is_at_the_baseline(term: tuple[int, ...]) -> None:
    network, baseline = random_network(0, 3), normal(2, 3)
    for feature in term:
        x = normal(1, 20, 3)
        x[:, feature] = baseline[feature]
        assert float(pure(network, x, baseline, term).abs().max()) < SUMS


def test_at_full_order_the_heads_weights_explain_everything() -> None:
    network, x, baseline = random_network(3, 3), normal(1, 400, 3), torch.zeros(3, dtype=torch.float64)
    head = normal(4, 9, 2)
    blocks = {str(s): pure(network, x, baseline, s) for s in subsets(3) if s}
    y = network(x) @ head + 7.0
    exact = sum(centre(part) @ head.numpy() for part in blocks.values())
    assert np.allclose(exact, centre(y), atol=SUMS)  # β_S = Wᵀ is an exact answer
    fit = terms_coefficients(moments_of(**blocks, outputs=y), ridge=Ridge(1e-9))
    assert bool((fit.explained > 1 - 1e-8).all())


def test_at_full_order_full_rank_terms_get_the_heads_weights() -> None:
    """Terms in direct sum: then Wᵀ is the only answer, and it is found."""
    x = normal(0, 200, 2)
    a, b = torch.cat([x[:, :1], x[:, :1] ** 2], 1), torch.cat([x[:, 1:], x[:, 1:] ** 3], 1)
    both = x[:, :1] * torch.cat([x[:, 1:], torch.sin(x[:, 1:])], 1)
    head = normal(1, 2, 3)
    fit = terms_coefficients(moments_of(a=a, b=b, ab=both, outputs=(a + b + both) @ head), ridge=Ridge(0.0))
    for part in fit.coefficients.values():
        assert relative_error(part, head.numpy()) < CONTRIBUTIONS


@pytest.mark.parametrize(
    ("term", "subset", "sign"), [((0, 1), (), 1), ((0, 1), (1,), -1), ((0, 1, 2), (), -1), ((), (), 1)]
)
def test_signs_of_inclusion_and_exclusion(term: tuple[int, ...], subset: tuple[int, ...], sign: int) -> None:
    assert pure_sign(term, subset) == sign


# ---------------------------------------------------------------------- bad input


def test_fewer_than_two_rows_and_missing_terms_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="moments hold 1 rows; at least two are needed"):
        terms_coefficients(Moments({"a": 1, "outputs": 1}).update(normal(0, 1, 2)))
    for blocks in ({"a": normal(0, 4, 1)}, {"outputs": normal(0, 4, 1)}):
        with pytest.raises(ValueError, match="block 'outputs' and at least one term"):
            terms_coefficients(moments_of(**blocks))


def test_shards_give_the_same_terms() -> None:
    blocks = blocks_of(0, 60, [2, 3])
    rows = torch.cat([*blocks.values()], 1)
    layout = {name: part.shape[1] for name, part in blocks.items()}
    order = torch.from_numpy(rng(0).permutation(60))
    shards = [Moments(layout).update(part) for part in rows[order].split([5, 30, 25])]
    left, right = terms_coefficients(shards[0] + (shards[1] + shards[2])), terms_coefficients(moments_of(**blocks))
    assert relative_error(joint(left.coefficients), joint(right.coefficients)) < CONTRIBUTIONS
