"""Independent references for the projection tests: raw rows, fifty digits, and exact sums; no moments."""

from __future__ import annotations

import mpmath
import numpy as np
import torch
from torch import Tensor

from nobsp.projection import Moments

DIGITS = 50


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(rng(seed).standard_normal(shape))


def moments_of(**blocks: Tensor) -> Moments:
    """Moments of blocks given as whole tensors, in one batch."""
    return Moments({name: part.shape[1] for name, part in blocks.items()}).update(blocks)


def centre(rows: Tensor) -> np.ndarray:
    """Rows less their mean; the mean is taken in extended precision so that the oracle adds no error of its own."""
    wide = rows.numpy().astype(np.longdouble)
    return (wide - wide.mean(0)).astype(np.float64)


# ---------------------------------------------------------------------- sums


def exact_products(rows: Tensor) -> np.ndarray:
    """Centred cross-products in extended precision (64-bit mantissa)."""
    wide = rows.numpy().astype(np.longdouble)
    wide = wide - wide.mean(0)
    size = wide.shape[1]
    products = np.empty((size, size), dtype=np.longdouble)
    for i in range(size):
        for j in range(i, size):
            products[i, j] = products[j, i] = (wide[:, i] * wide[:, j]).sum()
    return products


def product_error(found: Tensor | np.ndarray, expected: np.ndarray) -> float:
    """Largest error of a Gram matrix, each entry relative to the lengths of its two columns."""
    lengths = np.sqrt(np.maximum(np.diag(expected), 1e-300))
    return float(
        np.abs((np.asarray(found) - expected) / np.outer(lengths, lengths)).max(initial=0.0)
    )


# ---------------------------------------------------------------------- Algorithm 1, line by line


def algorithm_1(
    target: Tensor, reference: Tensor, outputs: Tensor, lambdas: tuple[float, float]
) -> np.ndarray:
    """The paper's Algorithm 1 on raw rows in float64. Centring is the only thing added."""
    z, a, y = centre(target), centre(reference), centre(outputs)
    solver = np.linalg.solve(a.T @ a + lambdas[0] * np.eye(a.shape[1]), a.T)
    y_res = y - a @ (solver @ y)
    z_res = z - a @ (solver @ z)
    return np.linalg.solve(z_res.T @ z_res + lambdas[1] * np.eye(z.shape[1]), z_res.T @ y_res)


def exact_algorithm_1(
    target: Tensor, reference: Tensor, outputs: Tensor, lambdas: tuple[float, float]
) -> np.ndarray:
    """The same in fifty digits: whatever differs from it is the implementation's rounding."""
    with mpmath.workdps(DIGITS):
        z, a, y = (_exact_centred(m) for m in (target, reference, outputs))
        y_res, z_res = _exact_residual(a, lambdas[0], y), _exact_residual(a, lambdas[0], z)
        gram = z_res.T * z_res + mpmath.mpf(lambdas[1]) * mpmath.eye(z.cols)
        return _floats(_exact_solve(gram, z_res.T * y_res))


def exact_ridges(target: Tensor, reference: Tensor, alpha: float) -> tuple[float, float]:
    """Both λ of a relative ridge α, from raw rows: α · trace(G) / p for the matrix each solve inverts."""
    z, a = centre(target), centre(reference)
    first = alpha * float((a * a).sum()) / a.shape[1]
    z_res = z - a @ np.linalg.solve(a.T @ a + first * np.eye(a.shape[1]), a.T @ z)
    return first, alpha * float((z_res * z_res).sum()) / z.shape[1]


def exact_channels(channels: Tensor, outputs: Tensor, ridge: float) -> np.ndarray:
    """Algorithm 1 for every channel against all others, in fifty digits, one channel after the other."""
    rows = []
    with mpmath.workdps(DIGITS):
        z, y = _exact_centred(channels), _exact_centred(outputs)
        for k in range(z.cols):
            others = _columns(z, [j for j in range(z.cols) if j != k])
            t_res = _exact_residual(others, ridge, _columns(z, [k]))
            y_res = _exact_residual(others, ridge, y)
            scale = (t_res.T * t_res)[0, 0] + mpmath.mpf(ridge)
            rows.append([float(v / scale) if scale else 0.0 for v in t_res.T * y_res])
    return np.array(rows).reshape(z.cols, y.cols)


def moore_penrose(
    target: Tensor, reference: Tensor, outputs: Tensor, *, cut: float = 1e-9
) -> np.ndarray:
    """β = (Q A_k)† y from SVDs of the raw rows; `cut` is far above rounding and far below the test data."""
    z, a, y = centre(target), centre(reference), centre(outputs)
    left, values, _ = np.linalg.svd(a, full_matrices=False)
    basis = left[:, values > cut * max(values.max(initial=0.0), 1e-300)]
    z_res = z - basis @ (basis.T @ z)
    z_res = z_res - basis @ (basis.T @ z_res)
    left, values, right = np.linalg.svd(z_res, full_matrices=False)
    kept = values > cut * np.linalg.norm(z, 2)
    return right[kept].T @ ((left[:, kept].T @ y) / values[kept][:, None])


def relative_error(found: Tensor | np.ndarray, expected: np.ndarray) -> float:
    """Largest difference as a share of the largest expected value."""
    return float(
        np.abs(np.asarray(found) - expected).max(initial=0.0)
        / max(np.abs(expected).max(initial=0.0), 1e-300)
    )


# ---------------------------------------------------------------------- fifty digits


def _exact_centred(rows: Tensor) -> mpmath.matrix:
    matrix = (
        mpmath.matrix(rows.tolist())
        if rows.numel()
        else mpmath.matrix(rows.shape[0], rows.shape[1])
    )
    for j in range(matrix.cols):
        mean = mpmath.fsum(matrix[i, j] for i in range(matrix.rows)) / matrix.rows
        for i in range(matrix.rows):
            matrix[i, j] -= mean
    return matrix


def _exact_residual(reference: mpmath.matrix, ridge: float, of: mpmath.matrix) -> mpmath.matrix:
    gram = reference.T * reference + mpmath.mpf(ridge) * mpmath.eye(reference.cols)
    return of - reference * _exact_solve(gram, reference.T * of)


def _exact_solve(matrix: mpmath.matrix, right: mpmath.matrix) -> mpmath.matrix:
    """Cholesky, for a symmetric positive definite matrix and any number of right-hand sides."""
    size = matrix.rows
    lower = mpmath.cholesky(matrix)
    solved = right.copy()
    for c in range(right.cols):
        for i in range(size):
            known = mpmath.fsum(lower[i, j] * solved[j, c] for j in range(i))
            solved[i, c] = (solved[i, c] - known) / lower[i, i]
        for i in reversed(range(size)):
            known = mpmath.fsum(lower[j, i] * solved[j, c] for j in range(i + 1, size))
            solved[i, c] = (solved[i, c] - known) / lower[i, i]
    return solved


def _columns(matrix: mpmath.matrix, index: list[int]) -> mpmath.matrix:
    chosen = mpmath.matrix(matrix.rows, len(index))
    for place, j in enumerate(index):
        for i in range(matrix.rows):
            chosen[i, place] = matrix[i, j]
    return chosen


def _floats(matrix: mpmath.matrix) -> np.ndarray:
    return np.array([[float(matrix[i, j]) for j in range(matrix.cols)] for i in range(matrix.rows)])
