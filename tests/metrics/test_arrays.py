"""What metrics share: ranks and correlations, outputs picked by target, and words for arrays that do not fit."""

import numpy as np
import pytest
import torch
from scipy import stats

from nobsp.metrics import at_target
from nobsp.metrics.arrays import as_array, as_images, is_constant, pearson, spearman


def test_correlations_are_those_of_scipy_row_by_row() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 9, size=(5, 40)).astype(float), rng.normal(size=(5, 40))
    second += first
    np.testing.assert_allclose(
        spearman(first, second),
        [stats.spearmanr(a, b).statistic for a, b in zip(first, second, strict=True)],
    )
    np.testing.assert_allclose(
        pearson(first, second),
        [stats.pearsonr(a, b).statistic for a, b in zip(first, second, strict=True)],
    )


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_correlation_does_not_depend_on_the_scale(scale: float) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=20), rng.normal(size=20)
    assert pearson(scale * first, second) == pytest.approx(float(pearson(first, second)))


def test_a_constant_side_has_no_correlation() -> None:
    rows = np.array([[1.0, 2.0, 3.0], [0.1 + 0.2, 0.3, 0.3]])
    np.testing.assert_array_equal(
        np.isnan(pearson(rows, np.ones((2, 1)) * np.arange(3.0))), [False, True]
    )


def test_rounding_is_not_a_spread() -> None:
    assert is_constant(np.array([1.0, 1.0 + 1e-16, 1.0]))
    assert not is_constant(np.array([1.0, 1.0 + 1e-12]))
    assert is_constant(np.zeros(4))


def test_targets_pick_one_output_a_row() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(at_target(values, [3, 0]), [values[0, :, 3], values[1, :, 0]])
    np.testing.assert_array_equal(at_target(values, 1), values[:, :, 1])
    np.testing.assert_array_equal(
        at_target(values, torch.tensor([3, 0])), at_target(values, [3, 0])
    )


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ([0, 1, 1], "one for each of the 2 rows"),
        (4, "there are 4 outputs"),
        (-1, "goes from -1"),
        ([0.0, 1.0], "whole"),
    ],
)
def test_a_target_that_does_not_fit_is_named(target: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        at_target(np.zeros((2, 3, 4)), target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_are_taken_with_their_gradients_left_behind(dtype: torch.dtype) -> None:
    tensor = torch.ones(2, 2, dtype=dtype, requires_grad=dtype.is_floating_point)
    assert as_array(tensor, "x").dtype == np.float64


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, np.nan], "x has 1 values that are nan"),
        ([], "x is empty"),
        ([[[1.0]]], "1 or 2 dimensions"),
    ],
)
def test_values_that_cannot_be_scored_are_named(values: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_array(values, "x", ndim=(1, 2))


def test_images_keep_their_precision_and_bytes_become_numbers() -> None:
    assert as_images(torch.zeros(1, 3, 2, 2)).dtype == np.float32
    assert as_images(np.zeros((1, 3, 2, 2), dtype=np.uint8)).dtype == np.float64
    with pytest.raises(ValueError, match="channels, height, width"):
        as_images(np.zeros((3, 2, 2)))
    with pytest.raises(ValueError, match="1 values that are nan"):
        as_images(np.full((1, 1, 1, 1), np.nan))
