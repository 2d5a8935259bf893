"""All channels from one factorisation: Algorithm 1 column by column, and honest where rounding decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nobsp.projection import Moments, Ridge, channel_coefficients, merge_all, partial_coefficients
from nobsp.projection.partial import ChannelRegression
from tests.projection.oracles import (
    algorithm_1,
    centre,
    exact_channels,
    moments_of,
    normal,
    relative_error,
    rng,
)
from tests.projection.test_partial import awkward
from tests.tolerances import CONTRIBUTIONS, SUMS

SEEDS = st.integers(0, 10_000)


def fitted(
    channels: Tensor, outputs: Tensor, ridge: float, scale: str = "absolute"
) -> ChannelRegression:
    return channel_coefficients(
        moments_of(channels=channels, outputs=outputs),
        ridge=Ridge(ridge, scale),  # type: ignore[arg-type]
    )


def one_by_one(channels: Tensor, outputs: Tensor, ridge: float) -> np.ndarray:
    """The paper's loop: each channel against all the others, on raw rows."""
    count = channels.shape[1]
    return np.concatenate(
        [
            algorithm_1(
                channels[:, [k]],
                channels[:, [j for j in range(count) if j != k]],
                outputs,
                (ridge, ridge),
            )
            for k in range(count)
        ]
    )


def pooled(seed: int, rows: int, channels: int) -> Tensor:
    """Something like pooled activations: positive, correlated, unequal in scale."""
    hidden = normal(seed, rows, max(channels // 2, 1)) @ normal(
        seed + 1, max(channels // 2, 1), channels
    )
    return torch.relu(hidden + normal(seed + 2, rows, channels) + 0.5) + 0.1 * normal(
        seed + 3, rows, channels
    )


# ---------------------------------------------------------------------- equals Algorithm 1


@pytest.mark.parametrize("ridge", [1e-8, 1e-6, 1e-4, 1e-2, 1.0, 1e2])
@given(seed=SEEDS, channels=st.integers(2, 12), outputs=st.integers(1, 4))
@settings(max_examples=15)
def test_with_enough_samples_every_channel_equals_algorithm_1(
    ridge: float, seed: int, channels: int, outputs: int
) -> None:
    z = pooled(seed, 10 * channels, channels)
    y = z @ normal(seed + 7, channels, outputs)
    fit = fitted(z, y, ridge)
    assert relative_error(fit.coefficients, one_by_one(z, y, ridge)) < CONTRIBUTIONS
    assert bool(fit.sound.all())


@pytest.mark.parametrize("ridge", [1e-4, 1e-2, 1.0, 1e2])
@pytest.mark.parametrize(("rows", "channels"), [(9, 9), (6, 14), (20, 30), (2, 5)])
def test_with_too_few_samples_every_channel_equals_algorithm_1(
    ridge: float, rows: int, channels: int
) -> None:
    z = pooled(rows, rows, channels)
    y = z @ normal(1, channels, 3)
    fit = fitted(z, y, ridge)
    reference = exact_channels(z, y, ridge) if channels < 15 else one_by_one(z, y, ridge)
    assert relative_error(fit.coefficients, reference) < (1e-10 if channels < 15 else 1e-8)
    assert bool(fit.sound.all())


@pytest.mark.parametrize("ridge", [1e-8, 1e-4, 1.0])
@pytest.mark.parametrize(("rows", "channels"), [(25, 6), (8, 8), (6, 9), (4, 10)])
def test_fifty_digits_agree(ridge: float, rows: int, channels: int) -> None:
    z = normal(rows, rows, channels) + 2
    y = z @ normal(1, channels, 2)
    fit = fitted(z, y, ridge)
    assert relative_error(fit.coefficients, exact_channels(z, y, ridge)) < CONTRIBUTIONS
    assert bool(fit.sound.all())


def test_outputs_that_are_no_function_of_the_channels_are_fitted_the_same() -> None:
    z, y = pooled(0, 80, 7), normal(1, 80, 2)
    assert relative_error(fitted(z, y, 1e-3).coefficients, one_by_one(z, y, 1e-3)) < CONTRIBUTIONS
    few = normal(2, 6, 9)
    free = normal(3, 6, 2)
    assert (
        relative_error(fitted(few, free, 1e-4).coefficients, exact_channels(few, free, 1e-4))
        < CONTRIBUTIONS
    )


def test_weak_directions_still_carry_outputs_outside_their_span() -> None:
    """An eigenvalue below rounding is no reason to drop the output's load on it when the ridge is large."""
    z = normal(0, 11, 3) @ normal(1, 3, 4) + 1e-7 * normal(2, 11, 4)
    y = normal(3, 11, 2)
    fit = fitted(z, y, 1e-3)
    assert relative_error(fit.coefficients, exact_channels(z, y, 1e-3)) < 1e-8


def test_every_channel_equals_the_one_term_route() -> None:
    z = pooled(3, 70, 6)
    y = z @ normal(1, 6, 2)
    together = fitted(z, y, 1e-2)
    for k in range(6):
        others = z[:, [j for j in range(6) if j != k]]
        moments = moments_of(target=z[:, [k]], reference=others, outputs=y)
        alone = partial_coefficients(moments, ridge=Ridge(1e-2, "absolute"))
        assert (
            relative_error(together.coefficients[[k]], alone.coefficients.numpy()) < CONTRIBUTIONS
        )
        assert float(together.unique_share[k]) == pytest.approx(alone.unique_share, rel=1e-9)


def test_the_default_ridge_is_the_papers() -> None:
    z = pooled(0, 60, 5)
    moments = moments_of(channels=z, outputs=z @ normal(1, 5, 2))
    assert channel_coefficients(moments).ridge == 1e-4


def test_a_relative_ridge_is_shared_by_all_channels() -> None:
    z = pooled(0, 60, 5) * 30
    y = z @ normal(1, 5, 2)
    fit = fitted(z, y, 1e-3, "relative")
    assert fit.ridge == pytest.approx(1e-3 * (centre(z) ** 2).sum() / 5, rel=SUMS)
    assert relative_error(fit.coefficients, one_by_one(z, y, fit.ridge)) < CONTRIBUTIONS


@pytest.mark.parametrize("ridge", [0.0, 1e-8, 1e-4])
def test_channels_of_very_different_scale(ridge: float) -> None:
    z = pooled(0, 300, 8) * torch.logspace(-4, 3, 8, dtype=torch.float64)
    weights = normal(1, 8, 3) / torch.logspace(-4, 3, 8, dtype=torch.float64)[:, None]
    y = z @ weights
    fit = fitted(z, y, ridge)
    exact = exact_channels(z[:60], y[:60], ridge) if ridge else weights.numpy()
    found = fitted(z[:60], y[:60], ridge) if ridge else fit
    for k in range(8):
        assert (
            not bool(found.sound[k]) or relative_error(found.coefficients[[k]], exact[[k]]) < 1e-8
        )
    assert bool(found.sound.all())


# ---------------------------------------------------------------------- consequences


@given(SEEDS, st.integers(2, 15), st.integers(1, 4), st.sampled_from([0.0, 1e-10]))
def test_with_enough_samples_and_no_ridge_the_coefficients_are_the_heads_weights(
    seed: int, channels: int, outputs: int, ridge: float
) -> None:
    z, weights = pooled(seed, 20 * channels, channels), normal(seed + 9, outputs, channels)
    fit = fitted(z, z @ weights.T + 5.0, ridge)
    assert relative_error(fit.coefficients, weights.T.numpy()) < 1e-8
    assert fit.note == ""


@given(SEEDS, st.integers(3, 12), st.integers(0, 6))
def test_no_more_samples_than_channels_collapse_and_are_diagnosed(
    seed: int, rows: int, more: int
) -> None:
    z, weights = normal(seed, rows, rows + more), normal(seed + 1, rows + more, 2)
    for ridge in (0.0, 1e-10):
        fit = fitted(z, z @ weights, ridge)
        assert f"Fewer samples than channels ({rows} ≤ {rows + more})" in fit.note
        assert "Calibrate on more than" in fit.note
    assert float(fitted(z, z @ weights, 0.0).coefficients.abs().max()) == 0.0


def test_parts_of_weight_zero_do_not_hide_the_collapse() -> None:
    z, weights = normal(0, 30, 12), normal(1, 12, 1)
    rows = torch.cat([z, z @ weights], 1)
    parts = [Moments({"channels": 12, "outputs": 1}).update(part) for part in (rows[:9], rows[9:])]
    assert (
        "Fewer samples than channels (9 ≤ 12)"
        in channel_coefficients(merge_all(parts, weights=[2.0, 0.0])).note
    )


def test_unique_share_is_what_the_other_channels_leave() -> None:
    z = pooled(0, 90, 6)
    c = centre(z)
    fit = fitted(z, z @ normal(1, 6, 1), 0.5)
    for k in range(6):
        others = np.delete(c, k, 1)
        left = c[:, k] - others @ np.linalg.solve(
            others.T @ others + 0.5 * np.eye(5), others.T @ c[:, k]
        )
        assert float(fit.unique_share[k]) == pytest.approx(
            (left**2).sum() / (c[:, k] ** 2).sum(), rel=1e-9
        )


@pytest.mark.parametrize("ridge", [0.0, 1e-10, 1e-4])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1])
@pytest.mark.parametrize("rows", [4, 50])
def test_dead_channels_get_zero_and_leave_the_others_alone(
    ridge: float, value: float, rows: int
) -> None:
    z = normal(0, rows, 6)
    z[:, [1, 4]] = value
    alive = [0, 2, 3, 5]
    y = z[:, alive] @ normal(1, 4, 2)
    fit, alone = fitted(z, y, ridge), fitted(z[:, alive], y, ridge)
    assert bool((fit.coefficients[[1, 4]] == 0).all())
    assert bool((fit.unique_share[[1, 4]] == 0).all())
    assert bool(fit.sound[[1, 4]].all())
    assert torch.equal(fit.coefficients[alive], alone.coefficients)


@pytest.mark.parametrize("rows", [3, 50])
def test_when_every_channel_is_dead_everything_is_zero(rows: int) -> None:
    fit = fitted(torch.full((rows, 4), 0.3, dtype=torch.float64), normal(0, rows, 2), 1e-4)
    assert bool((fit.coefficients == 0).all())
    assert fit.coefficients.shape == (4, 2)


def test_no_channels_at_all_give_no_coefficients() -> None:
    fit = fitted(torch.zeros(5, 0, dtype=torch.float64), normal(0, 5, 2), 1e-4)
    assert fit.coefficients.shape == (0, 2)


# ---------------------------------------------------------------------- honesty


def wrong_yet_sound(z: Tensor, y: Tensor, ridge: float) -> bool:
    fit, exact = fitted(z, y, ridge), exact_channels(z, y, ridge)
    c = centre(z)
    theta = np.abs(np.linalg.lstsq(c.T @ c + ridge * np.eye(z.shape[1]), c.T @ centre(y))[0]).max()
    error = np.abs(fit.coefficients.numpy() - exact).max(1) / max(
        theta, np.abs(exact).max(), 1e-300
    )
    return bool(((error > 1e-5) & fit.sound.numpy()).any())


def test_a_duplicate_channel_at_the_edge_of_rounding_is_flagged() -> None:
    z = normal(0, 2000, 5) * 10
    z = torch.cat([z, z[:, :1]], 1)
    fit = fitted(z, z @ normal(1, 6, 2), 1e-10)
    assert not bool(fit.sound[[0, 5]].any())
    assert "decided by rounding" in fit.note


@pytest.mark.parametrize("ridge", [1e-12, 1e-10, 1e-8, 1e-6, 1e-4])
def test_low_rank_channels_are_right_or_flagged(ridge: float) -> None:
    z = normal(0, 15, 3) @ normal(1, 3, 7)
    assert not wrong_yet_sound(z, z @ normal(2, 7, 2), ridge)
    assert not wrong_yet_sound(z, normal(3, 15, 2), ridge)


def test_a_sound_ridge_is_not_flagged_for_low_rank_channels() -> None:
    """Flagging everything would be safe and useless."""
    z = normal(0, 200, 3) @ normal(1, 3, 7)
    assert bool(fitted(z, z @ normal(2, 7, 2), 1e-4).sound.all())


@settings(max_examples=120)
@given(st.data())
def test_no_channel_is_wrong_yet_sound(draw: st.DataObject) -> None:
    seed, rows, columns = (
        draw.draw(SEEDS),
        draw.draw(st.integers(3, 10)),
        draw.draw(st.integers(2, 6)),
    )
    z, y = awkward(draw, seed, rows, columns)
    scale = float((centre(z) ** 2).sum()) / columns
    assert not wrong_yet_sound(z, y, 10.0 ** draw.draw(st.floats(-14, 1)) * max(scale, 1e-30))


def test_thousands_of_channels_take_one_factorisation() -> None:
    """Sampled against the loop; the loop for all of them would take hours."""
    z = normal(0, 1500, 600) @ (torch.eye(600, dtype=torch.float64) + 0.02 * normal(1, 600, 600))
    y = z @ normal(2, 600, 10)
    fit = fitted(z, y, 1e-4)
    for k in rng(0).choice(600, 2, replace=False):
        others = z[:, [j for j in range(600) if j != k]]
        expected = algorithm_1(z[:, [k]], others, y, (1e-4, 1e-4))
        assert relative_error(fit.coefficients[[k]], expected) < 1e-9


# ---------------------------------------------------------------------- bad input


def test_fewer_than_two_rows_are_refused_by_name() -> None:
    for moments in (
        Moments({"channels": 2, "outputs": 1}),
        Moments({"channels": 2, "outputs": 1}).update(normal(0, 1, 3)),
    ):
        with pytest.raises(
            ValueError, match=f"moments hold {moments.rows} rows; at least two are needed"
        ):
            channel_coefficients(moments)


@pytest.mark.parametrize("missing", ["channels", "outputs"])
def test_a_missing_block_is_refused_by_name(missing: str) -> None:
    blocks = {n: normal(i, 5, 1) for i, n in enumerate(("channels", "outputs")) if n != missing}
    with pytest.raises(ValueError, match=f"no block '{missing}'"):
        channel_coefficients(moments_of(**blocks))
