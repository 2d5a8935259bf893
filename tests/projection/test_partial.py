"""Algorithm 1 from moments against its line-by-line transcription, in float64 and in fifty digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nobsp.projection import Moments, Ridge, merge_all, partial_coefficients, spectrum
from tests.projection.oracles import (
    algorithm_1,
    centre,
    exact_algorithm_1,
    exact_ridges,
    moments_of,
    moore_penrose,
    normal,
    relative_error,
    rng,
)
from tests.tolerances import COEFFICIENTS, CONTRIBUTIONS, SUMS, assert_same_to_rounding

SEEDS = st.integers(0, 10_000)


def data(
    seed: int, rows: int, target: int, reference: int, outputs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Correlated blocks away from the origin, and outputs that are no linear function of them."""
    shared = normal(seed, rows, 2)
    blocks = [
        normal(seed + i, rows, width) + 0.7 * shared @ normal(seed + 9 + i, 2, width) + 3
        for i, width in enumerate((target, reference), start=1)
    ]
    return (
        blocks[0],
        blocks[1],
        torch.tanh(shared @ normal(seed + 5, 2, outputs)) + normal(seed + 6, rows, outputs),
    )


def by_moments(target: Tensor, reference: Tensor, outputs: Tensor, ridge: Ridge) -> Tensor:
    return partial_coefficients(
        moments_of(target=target, reference=reference, outputs=outputs), ridge=ridge
    ).coefficients


# ---------------------------------------------------------------------- against the transcription


@given(
    SEEDS,
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(1, 4),
    st.sampled_from([1e-8, 1e-4, 1e-2, 1.0, 1e2]),
)
def test_more_rows_than_columns_equals_algorithm_1(
    seed: int, target: int, reference: int, outputs: int, ridge: float
) -> None:
    t, a, y = data(seed, 60, target, reference, outputs)
    found = by_moments(t, a, y, Ridge(ridge, "absolute"))
    assert found.shape == (target, outputs)
    assert relative_error(found, algorithm_1(t, a, y, (ridge, ridge))) < CONTRIBUTIONS


@given(SEEDS, st.integers(1, 6), st.integers(1, 8), st.floats(1e-8, 10))
def test_relative_ridge_takes_each_lambda_from_the_matrix_being_inverted(
    seed: int, target: int, reference: int, alpha: float
) -> None:
    t, a, y = data(seed, 60, target, reference, 2)
    lambdas = exact_ridges(t, a, alpha)
    fit = partial_coefficients(moments_of(target=t, reference=a, outputs=y), ridge=Ridge(alpha))
    assert np.allclose(fit.ridges, lambdas, rtol=1e-9)
    assert relative_error(fit.coefficients, algorithm_1(t, a, y, lambdas)) < 1e-9


def test_the_default_ridge_is_relative_one_in_ten_thousand() -> None:
    t, a, y = data(0, 40, 3, 4, 1)
    moments = moments_of(target=t, reference=a, outputs=y)
    chosen = partial_coefficients(moments, ridge=Ridge(1e-4, "relative"))
    assert_same_to_rounding(
        partial_coefficients(moments).coefficients, chosen.coefficients, within=COEFFICIENTS
    )


@settings(max_examples=25)
@given(
    SEEDS,
    st.integers(3, 9),
    st.integers(1, 4),
    st.integers(4, 9),
    st.sampled_from([1e-8, 1e-4, 1e-2, 1.0]),
)
def test_fewer_rows_than_columns_equals_algorithm_1_in_fifty_digits(
    seed: int, rows: int, target: int, reference: int, ridge: float
) -> None:
    t, a, y = data(seed, rows, target, reference, 2)
    assume(np.linalg.svd(centre(a))[1][: min(rows - 1, reference)].min() > 1e-2)
    exact = exact_algorithm_1(t, a, y, (ridge, ridge))
    fit = partial_coefficients(
        moments_of(target=t, reference=a, outputs=y), ridge=Ridge(ridge, "absolute")
    )
    # Where it claims to be sound it is, up to what rounding of the products is beside the ridge; with a ridge of the
    # paper's size it must be.
    error = relative_error(fit.coefficients, exact)
    rounding = (
        64
        * np.finfo(float).eps
        * max(np.square(centre(t)).sum(), np.square(centre(a)).sum())
        / ridge
    )
    assert error < 1e-7 + rounding or not fit.sound
    assert ridge < 1e-4 or (fit.sound and error < 1e-8)


@pytest.mark.parametrize("ridge", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_rank_deficient_blocks_equal_algorithm_1_in_fifty_digits(
    seed: int, rank: int, ridge: float
) -> None:
    mine, theirs = normal(seed, 14, rank), normal(seed + 2, 14, rank)
    t, a = mine @ normal(seed + 1, rank, 5), (theirs + 0.5 * mine) @ normal(seed + 3, rank, 6)
    y = normal(seed + 5, 14, 2)
    fit = partial_coefficients(
        moments_of(target=t, reference=a, outputs=y), ridge=Ridge(ridge, "absolute")
    )
    assert relative_error(fit.coefficients, exact_algorithm_1(t, a, y, (ridge, ridge))) < 1e-8
    assert fit.sound


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_a_target_inside_the_reference_keeps_only_what_the_ridge_lets_through(
    seed: int, rank: int
) -> None:
    t = normal(seed, 14, rank) @ normal(seed + 1, rank, 5)
    a = normal(seed + 2, 14, rank) @ normal(seed + 3, rank, 6) + 0.5 * t @ normal(seed + 4, 5, 6)
    y = normal(seed + 5, 14, 2)
    fit = partial_coefficients(
        moments_of(target=t, reference=a, outputs=y), ridge=Ridge(1e-4, "absolute")
    )
    exact = exact_algorithm_1(t, a, y, (1e-4, 1e-4))
    assert np.abs(exact).max() < 1e-3  # of outputs and targets of size one
    assert np.abs(fit.coefficients.numpy() - exact).max() < 1e-9
    assert fit.unique_share < 1e-6


def test_ridge_residuals_are_not_projections() -> None:
    """R_TᵀR_T keeps BᵀG_AA B: the form that holds for λ = 0 alone is far off."""
    t, a, y = data(0, 30, 3, 4, 1)
    z, r, o = centre(t), centre(a), centre(y)
    smooth = np.linalg.solve(r.T @ r + 20 * np.eye(4), r.T)
    shortcut = np.linalg.solve(
        z.T @ (z - r @ smooth @ z) + 20 * np.eye(3), z.T @ (o - r @ smooth @ o)
    )
    found = by_moments(t, a, y, Ridge(20.0, "absolute"))
    assert relative_error(found, algorithm_1(t, a, y, (20.0, 20.0))) < SUMS
    assert relative_error(found, shortcut) > 1e-2


def test_every_output_is_fitted_on_its_own() -> None:
    t, a, y = data(0, 30, 3, 4, 5)
    together = by_moments(t, a, y, Ridge())
    for j in range(5):
        assert (
            relative_error(
                by_moments(t, a, y[:, j : j + 1], Ridge()), together[:, j : j + 1].numpy()
            )
            < SUMS
        )


def test_batches_and_shards_give_the_same_coefficients() -> None:
    t, a, y = data(0, 90, 3, 4, 2)
    rows = torch.cat([t, a, y], 1)
    blocks = {"target": 3, "reference": 4, "outputs": 2}
    shards = [Moments(blocks).update(part) for part in rows.split([7, 50, 33])]
    fits = [
        partial_coefficients(m, ridge=Ridge(1e-4)).coefficients
        for m in (shards[2].merge(shards[0]).merge(shards[1]), Moments(blocks).update(rows))
    ]
    assert relative_error(fits[0], fits[1].numpy()) < CONTRIBUTIONS


def test_weights_equal_repetition() -> None:
    t, a, y = data(0, 20, 2, 3, 1)
    rows, counts = torch.cat([t, a, y], 1), torch.tensor(rng(0).integers(0, 4, 20))
    blocks = {"target": 2, "reference": 3, "outputs": 1}
    weighted = merge_all(
        [Moments(blocks).update(row[None]) for row in rows], weights=counts.tolist()
    )
    repeated = Moments(blocks).update(rows.repeat_interleave(counts, 0))
    left, right = (partial_coefficients(m).coefficients for m in (weighted, repeated))
    assert relative_error(left, right.numpy()) < CONTRIBUTIONS


@given(
    SEEDS,
    st.integers(1, 4),
    st.sampled_from([Ridge(1e-4), Ridge(1e-2), Ridge(0.1, "absolute"), Ridge(0.0)]),
)
def test_a_compressed_target_gives_the_same_function(seed: int, rank: int, ridge: Ridge) -> None:
    t = normal(seed, 40, rank) @ normal(seed + 1, rank, 9)
    _, a, y = data(seed + 2, 40, 1, 5, 2)
    moments = moments_of(target=t, reference=a, outputs=y)
    basis = spectrum(moments.product("target", "target"), rows=40).vectors
    assert basis.shape == (9, rank)
    small = partial_coefficients(
        moments_of(target=t @ basis, reference=a, outputs=y), ridge=ridge, target_size=9
    )
    full = partial_coefficients(moments, ridge=ridge)
    assert np.allclose(small.ridges, full.ridges, rtol=1e-9)
    assert relative_error(basis @ small.coefficients, full.coefficients.numpy()) < 1e-8


# ---------------------------------------------------------------------- no ridge


@given(SEEDS, st.integers(8, 40), st.integers(1, 5), st.integers(0, 5))
def test_no_ridge_is_moore_and_penroses_answer(
    seed: int, rows: int, target: int, reference: int
) -> None:
    t, a, y = data(seed, rows, target, reference, 2)
    both = np.linalg.svd(centre(torch.cat([t, a], 1)))[1]
    assume(both[: min(rows - 1, target + reference)].min() > 0.05)
    exact = moore_penrose(t, a, y)
    found = by_moments(t, a, y, Ridge(0.0))
    assert float(np.abs(found.numpy() - exact).max()) < 1e-8 * max(1.0, np.abs(exact).max())


@given(SEEDS, st.integers(1, 3), st.integers(1, 3), st.integers(0, 2))
def test_no_ridge_with_rank_deficient_and_overlapping_blocks(
    seed: int, own: int, others: int, shared: int
) -> None:
    mine, theirs, common = (
        normal(seed, 30, own),
        normal(seed + 1, 30, others),
        normal(seed + 2, 30, shared),
    )
    t = torch.cat([mine, common], 1) @ normal(seed + 3, own + shared, 7)
    a = torch.cat([theirs, common], 1) @ normal(seed + 4, others + shared, 8)
    assume(np.linalg.cond(normal(seed + 3, own + shared, 7)) < 20)
    assume(np.linalg.cond(normal(seed + 4, others + shared, 8)) < 20)
    y = normal(seed + 5, 30, 2)
    exact = moore_penrose(t, a, y)
    assert (
        float(np.abs(by_moments(t, a, y, Ridge(0.0)).numpy() - exact).max())
        < 1e-7 * np.abs(exact).max()
    )


@given(SEEDS, st.integers(3, 8))
def test_no_ridge_and_a_reference_that_spans_everything_leaves_nothing(
    seed: int, rows: int
) -> None:
    t, a, y = data(seed, rows, 3, 9, 2)
    fit = partial_coefficients(moments_of(target=t, reference=a, outputs=y), ridge=Ridge(0.0))
    assert bool((fit.coefficients == 0).all())
    assert fit.unique_share == 0.0
    assert f"Fewer samples ({rows}) than reference columns (9)" in fit.note


# ---------------------------------------------------------------------- what it rests on


@given(SEEDS, st.sampled_from([1e-6, 1e-2, 10.0]))
def test_unique_share_is_what_the_reference_leaves_of_the_rows(seed: int, ridge: float) -> None:
    t, a, y = data(seed, 40, 3, 5, 1)
    z, r = centre(t), centre(a)
    left = z - r @ np.linalg.solve(r.T @ r + ridge * np.eye(5), r.T @ z)
    fit = partial_coefficients(
        moments_of(target=t, reference=a, outputs=y), ridge=Ridge(ridge, "absolute")
    )
    assert fit.unique_share == pytest.approx((left**2).sum() / (z**2).sum(), rel=1e-9)
    assert fit.sound
    assert fit.note == ""


@settings(max_examples=120)
@given(st.data())
def test_what_rounding_decides_is_never_called_sound(draw: st.DataObject) -> None:
    """Low rank, near-duplicates, wild scales and tiny ridges: right to 1e-5, or flagged."""
    seed, rows, columns = (
        draw.draw(SEEDS),
        draw.draw(st.integers(3, 10)),
        draw.draw(st.integers(2, 6)),
    )
    z, y = awkward(draw, seed, rows, columns)
    ridge = 10.0 ** draw.draw(st.floats(-14, 1)) * max(
        float((centre(z) ** 2).sum()) / columns, 1e-30
    )
    width = draw.draw(st.integers(1, columns - 1))
    t, a = z[:, :width], z[:, width:]
    fit = partial_coefficients(
        moments_of(target=t, reference=a, outputs=y), ridge=Ridge(ridge, "absolute")
    )
    exact = exact_algorithm_1(t, a, y, (ridge, ridge))
    c = centre(z)
    theta = np.abs(np.linalg.lstsq(c.T @ c + ridge * np.eye(columns), c.T @ centre(y))[0]).max()
    natural = np.linalg.norm(centre(y)) / max(np.linalg.norm(centre(t)), 1e-300)
    error = np.abs(fit.coefficients.numpy() - exact).max() / max(
        theta, np.abs(exact).max(), natural
    )
    assert error < 1e-5 or not fit.sound
    assert fit.sound or fit.note


def awkward(draw: st.DataObject, seed: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    rank = draw.draw(st.integers(1, columns))
    z = normal(seed, rows, rank) @ normal(seed + 1, rank, columns)
    z = z + draw.draw(st.sampled_from([0.0, 1e-13, 1e-10, 1e-8, 1e-6, 1e-3, 1.0])) * normal(
        seed + 2, rows, columns
    )
    if draw.draw(st.booleans()):
        noise = draw.draw(st.sampled_from([0.0, 1e-12, 1e-9, 1e-7, 1e-4]))
        z[:, 0] = z[:, -1] + noise * normal(seed + 3, rows)
    if draw.draw(st.booleans()):
        z = z * 10.0 ** torch.from_numpy(rng(seed).uniform(-4, 3, columns))
    z = z + draw.draw(st.sampled_from([0.0, 1e3, 1e6]))
    if draw.draw(st.booleans()):
        return z, z @ normal(seed + 4, columns, 2)
    return z, normal(seed + 4, rows, 2)


@pytest.mark.parametrize(
    "ridge", [Ridge(1e-8, "absolute"), Ridge(1e-15), Ridge(1e-300, "absolute"), Ridge(0.0)]
)
def test_a_ridge_below_rounding_does_not_break_a_low_rank_target(ridge: Ridge) -> None:
    t, a = 1e3 * normal(0, 2000, 5) @ normal(1, 5, 40), 1e3 * normal(2, 2000, 8)
    y = 1e-3 * (t @ normal(3, 40, 2) + a @ normal(4, 8, 2))
    found = by_moments(t, a, y, ridge)
    assert relative_error(t @ found, (t @ torch.from_numpy(moore_penrose(t, a, y))).numpy()) < 1e-6


@pytest.mark.parametrize("ridge", [Ridge(0.0), Ridge(1e-4), Ridge(1e-4, "absolute")])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e6 + 0.1, 0.0])
def test_a_constant_target_contributes_nothing_and_says_so(ridge: Ridge, value: float) -> None:
    t, a, y = torch.full((50, 3), value, dtype=torch.float64), normal(0, 50, 4), normal(1, 50, 2)
    fit = partial_coefficients(moments_of(target=t, reference=a, outputs=y), ridge=ridge)
    assert bool((fit.coefficients == 0).all())
    assert "constant" in fit.note
    assert fit.unique_share == 0.0


@pytest.mark.parametrize("ridge", [Ridge(0.0), Ridge(1e-4), Ridge(1e-4, "absolute")])
@pytest.mark.parametrize("width", [0, 3])
def test_a_constant_or_empty_reference_takes_nothing_away(ridge: Ridge, width: int) -> None:
    t, a, y = normal(0, 30, 2), torch.full((30, width), 0.1, dtype=torch.float64), normal(1, 30, 1)
    fit = partial_coefficients(moments_of(target=t, reference=a, outputs=y), ridge=ridge)
    z = centre(t)
    expected = np.linalg.solve(z.T @ z + fit.ridges[1] * np.eye(2), z.T @ centre(y))
    assert relative_error(fit.coefficients, expected) < SUMS
    assert fit.unique_share == pytest.approx(1.0)


def test_an_empty_target_has_no_coefficients() -> None:
    t, a, y = torch.zeros(9, 0), normal(0, 9, 2), normal(1, 9, 3)
    assert by_moments(t, a, y, Ridge()).shape == (0, 3)


@pytest.mark.parametrize("ridge", [Ridge(0.0), Ridge(1e-12, "absolute"), Ridge(1e-4)])
def test_a_duplicate_of_the_reference_is_not_taken_for_a_contribution(ridge: Ridge) -> None:
    a, y = normal(0, 50, 3), normal(1, 50, 1)
    fit = partial_coefficients(moments_of(target=a[:, :1], reference=a, outputs=y), ridge=ridge)
    assert fit.unique_share < 1e-6
    assert not fit.sound or float(fit.coefficients.abs().max()) < 10


# ---------------------------------------------------------------------- bad input


def test_fewer_than_two_rows_are_refused_by_name() -> None:
    blocks = {"target": 1, "reference": 1, "outputs": 1}
    for moments in (Moments(blocks), Moments(blocks).update(normal(0, 1, 3))):
        with pytest.raises(
            ValueError, match=f"moments hold {moments.rows} rows; at least two are needed"
        ):
            partial_coefficients(moments)


@pytest.mark.parametrize("missing", ["target", "reference", "outputs"])
def test_a_missing_block_is_refused_by_name(missing: str) -> None:
    blocks = {
        n: normal(i, 5, 1) for i, n in enumerate(("target", "reference", "outputs")) if n != missing
    }
    with pytest.raises(ValueError, match=f"no block '{missing}'"):
        partial_coefficients(moments_of(**blocks))
