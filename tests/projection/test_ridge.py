"""What a ridge and a spectrum promise, on their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nobsp.projection import Ridge, spectrum
from tests.projection.oracles import centre, normal
from tests.tolerances import CONTRIBUTIONS, SUMS


# Far below 1e-100, products lose digits to underflow before any ridge matters.
@given(st.just(0.0) | st.floats(1e-100, 1e3), st.integers(1, 6), st.floats(1e-6, 1e6))
def test_relative_ridge_is_alpha_times_the_mean_of_the_diagonal(
    alpha: float, size: int, scale: float
) -> None:
    gram = torch.diag(torch.arange(1, size + 1, dtype=torch.float64) * scale)
    assert math.isclose(Ridge(alpha).amount(gram), alpha * scale * (size + 1) / 2, rel_tol=SUMS)


@given(st.floats(0, 1e3))
def test_absolute_ridge_does_not_look_at_the_matrix(value: float) -> None:
    assert Ridge(value, "absolute").amount(normal(0, 3, 3)) == value


def test_relative_ridge_of_a_compressed_matrix_is_that_of_the_full_one() -> None:
    rows = normal(0, 50, 3) @ normal(1, 3, 9)
    basis = torch.linalg.qr(rows.T).Q
    full, small = rows.T @ rows, (rows @ basis).T @ (rows @ basis)
    assert math.isclose(Ridge(0.1).amount(small, size=9), Ridge(0.1).amount(full), rel_tol=SUMS)


def test_relative_ridge_of_nothing_is_nothing() -> None:
    assert Ridge(0.5).amount(torch.zeros(0, 0, dtype=torch.float64)) == 0.0
    assert Ridge(0.5).amount(torch.zeros(3, 3, dtype=torch.float64)) == 0.0


@pytest.mark.parametrize("value", [-1.0, -1e-300, math.nan, math.inf, -math.inf])
def test_a_ridge_that_is_negative_or_not_finite_is_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match="ridge must be finite and not negative"):
        Ridge(value)


@pytest.mark.parametrize("value", ["1e-4", True, None, torch.tensor(1e-4)])
def test_a_ridge_that_is_not_a_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match="ridge must be a number"):
        Ridge(value)  # type: ignore[arg-type]


def test_an_unknown_scale_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="ridge_scale"):
        Ridge(1.0, "relativ")  # type: ignore[arg-type]


def test_spectrum_gives_the_matrix_back() -> None:
    rows = normal(2, 40, 7)
    gram = rows.T @ rows
    known = spectrum(gram, rows=41)
    rebuilt = (known.vectors * known.values) @ known.vectors.T
    assert known.rank == 7
    assert known.certain
    assert torch.allclose(rebuilt, gram, rtol=SUMS, atol=SUMS)
    assert bool((known.values.diff() <= 0).all())


@given(st.integers(0, 100), st.integers(2, 12), st.integers(1, 20))
def test_rank_is_never_more_than_the_samples_allow(seed: int, rows: int, size: int) -> None:
    z = centre(normal(seed, rows, size))
    known = spectrum(torch.from_numpy(z.T @ z), rows=rows)
    assert known.rank == min(rows - 1, size)


@given(st.integers(0, 100), st.integers(1, 5))
def test_rank_of_low_rank_rows_is_found_and_called_uncertain(seed: int, rank: int) -> None:
    z = centre(normal(seed, 60, rank) @ normal(seed + 1, rank, 20))
    known = spectrum(torch.from_numpy(z.T @ z), rows=60)
    assert known.rank == rank
    assert (
        not known.certain
    )  # twenty columns and sixty rows: only rounding says that the rest is zero


@given(st.integers(0, 100))
def test_null_weight_is_the_part_of_each_coordinate_outside_the_kept_eigenvectors(
    seed: int,
) -> None:
    z = centre(normal(seed, 5, 9))
    known = spectrum(torch.from_numpy(z.T @ z), rows=5)
    outside = np.eye(9) - np.linalg.pinv(z) @ z
    assert np.allclose(known.null_weight, np.diag(outside), atol=CONTRIBUTIONS)


def test_scale_raises_the_floor() -> None:
    gram = torch.diag(torch.tensor([1.0, 1e-3], dtype=torch.float64))
    assert spectrum(gram).rank == 2
    assert spectrum(gram, scale=1e13).rank == 1
    assert spectrum(gram, scale=torch.tensor(1e18)).rank == 0


def test_spectrum_of_nothing_is_empty() -> None:
    known = spectrum(torch.zeros(0, 0, dtype=torch.float64), rows=4)
    assert known.rank == 0
    assert known.null_weight.shape == (0,)
    assert spectrum(torch.zeros(3, 3, dtype=torch.float64)).rank == 0
