"""Partial regression from rows is that of Algorithm 1, whichever of rows and reference columns are more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nobsp.projection import Ridge, partial_coefficients, row_coefficients
from tests.projection.oracles import algorithm_1, exact_algorithm_1, exact_ridges, moments_of, normal


def data(rows: int, reference: int, *, seed: int = 0, outputs: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """A curve as target, a reference that shares its cause, outputs made of both and more."""
    causes = normal(seed, rows, 5)
    a = torch.tanh(causes @ normal(seed + 1, 5, reference) + 3.0)
    t = torch.tanh(causes[:, :1] @ normal(seed + 2, 1, 4))
    return t, a, a @ normal(seed + 3, reference, outputs) + t[:, :outputs] + 0.1 * normal(seed + 4, rows, outputs)


@pytest.mark.parametrize("shape", [(9, 30), (30, 30), (31, 30), (32, 30), (80, 20)])
@pytest.mark.parametrize("ridge", [1e-4, 1e-1])
def test_coefficients_equal_algorithm_1_in_fifty_digits(shape: tuple[int, int], ridge: float) -> None:
    t, a, y = data(*shape)
    exact = exact_algorithm_1(t, a, y, (ridge, ridge))
    found = row_coefficients(t, a, y, ridge=Ridge(ridge, "absolute"))
    assert found.sound
    np.testing.assert_allclose(found.coefficients.numpy(), exact, rtol=0, atol=1e-9 * np.abs(exact).max())


@pytest.mark.parametrize("shape", [(20, 50), (80, 20)])
def test_a_relative_ridge_is_that_of_the_matrices_inverted(shape: tuple[int, int]) -> None:
    t, a, y = data(*shape)
    lambdas = exact_ridges(t, a, 1e-3)
    found = row_coefficients(t, a, y, ridge=Ridge(1e-3))
    assert np.allclose(found.ridges, lambdas, rtol=1e-9)
    expected = algorithm_1(t, a, y, lambdas)
    np.testing.assert_allclose(found.coefficients.numpy(), expected, rtol=0, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(20, 50), (80, 20)])
@pytest.mark.parametrize("ridge", [Ridge(1e-4), Ridge(0.0), Ridge(1e-4, "absolute")])
def test_rows_and_their_moments_tell_the_same(shape: tuple[int, int], ridge: Ridge) -> None:
    t, a, y = data(*shape)
    expected = partial_coefficients(moments_of(target=t, reference=a, outputs=y), ridge=ridge)
    found = row_coefficients(t, a, y, ridge=ridge)
    size = max(float(expected.coefficients.abs().max()), 1e-300)
    assert float((found.coefficients - expected.coefficients).abs().max()) < 1e-8 * size
    assert found.unique_share == pytest.approx(expected.unique_share, rel=1e-8)
    assert (found.sound, found.note) == (expected.sound, expected.note)


def test_a_compressed_target_keeps_its_ridge() -> None:
    t, a, y = data(60, 20)
    basis = torch.linalg.qr(normal(9, 7, 4)).Q  # four directions of seven
    whole = row_coefficients(t @ basis.T, a, y).coefficients
    inside = row_coefficients(t, a, y, target_size=7).coefficients
    torch.testing.assert_close(basis @ inside, whole, rtol=0, atol=1e-9 * float(whole.abs().max()))


def test_a_constant_target_contributes_nothing() -> None:
    _, a, y = data(40, 50)
    found = row_coefficients(torch.full((40, 2), 0.1, dtype=torch.float64), a, y, ridge=Ridge(1e-4, "absolute"))
    assert not found.coefficients.any()
    assert "constant" in found.note


def test_one_row_is_too_few() -> None:
    with pytest.raises(ValueError, match="at least two are needed"):
        row_coefficients(*data(1, 4))
