"""Oblique projectors by their definition (paper, Definition 3.1 and Supplement B): the oracle for small N."""

from __future__ import annotations

import torch
from torch import Tensor

from nobsp.projection.partial import EPSILON


def centred(matrix: Tensor) -> Tensor:
    """The rows of `matrix` less their mean, in float64 (equation B.7).

    Example:
        >>> centred(torch.tensor([[1.0], [3.0]])).flatten()
        tensor([-1.,  1.], dtype=torch.float64)
    """
    matrix = _checked("matrix", matrix)
    return matrix - matrix.mean(0)


def complement_projector(reference: Tensor) -> Tensor:
    """Orthogonal projector onto what is perpendicular to the columns of `reference`.

        Q = I − A (AᵀA)† Aᵀ                                                          (A.1, B.9)

    Args:
        reference: Columns that span the reference subspace, shape (N, width).

    Returns:
        The projector, shape (N, N).

    Example:
        >>> complement_projector(torch.tensor([[1.0], [0.0]], dtype=torch.float64))
        tensor([[0., 0.],
                [0., 1.]], dtype=torch.float64)
    """
    basis = orthonormal_basis(_checked("reference", reference))
    return torch.eye(reference.shape[0], dtype=torch.float64, device=basis.device) - basis @ basis.T


def oblique_projector(target: Tensor, reference: Tensor) -> Tensor:
    """Projector onto the columns of `target` along the columns of `reference`.

        P = A_k (A_kᵀ Q A_k)† A_kᵀ Q                                          (3.1, A.2, B.10)

    Where the two subspaces meet, the part of the target inside the reference is annihilated too, which
    is what the pseudoinverse in the formula does.

    Args:
        target: Columns that span the target subspace, shape (N, width).
        reference: Columns that span the reference subspace, shape (N, any width).

    Returns:
        The projector, shape (N, N).

    Example:
        >>> target = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
        >>> reference = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> oblique_projector(target, reference)
        tensor([[1., 0.],
                [1., 0.]], dtype=torch.float64)
    """
    return project(
        torch.eye(target.shape[0], dtype=torch.float64, device=target.device), target, reference
    )


def project(vectors: Tensor, target: Tensor, reference: Tensor) -> Tensor:
    """Oblique projection of `vectors` onto `target` along `reference`, without any N×N matrix.

    Args:
        vectors: One vector in sample space per column, shape (N, any).
        target: Columns that span the target subspace, shape (N, width).
        reference: Columns that span the reference subspace, shape (N, any width).

    Returns:
        The projected vectors, same shape as `vectors`.
    """
    vectors = _checked("vectors", vectors)
    return _checked("target", target) @ oblique_coefficients(vectors, target, reference)


def oblique_coefficients(vectors: Tensor, target: Tensor, reference: Tensor) -> Tensor:
    """Coefficients β with target @ β the oblique projection of `vectors`: A.30 from the rows themselves.

        β = (A_kᵀ Q A_k)† A_kᵀ Q v = (Q A_k)† v

    The smallest such β is returned. Singular values of Q A_k are cut relative to those of A_k, because
    what Q leaves of a direction inside the reference is rounding of the whole.

    Args:
        vectors: One vector in sample space per column, shape (N, any).
        target: Columns that span the target subspace, shape (N, width).
        reference: Columns that span the reference subspace, shape (N, any width).

    Returns:
        Coefficients, shape (width of target, columns of vectors).
    """
    vectors, target = _checked("vectors", vectors), _checked("target", target)
    reference = _checked("reference", reference)
    if not target.shape[0] == reference.shape[0] == vectors.shape[0]:
        raise ValueError(
            f"vectors, target and reference must have the same number of rows, found {vectors.shape[0]}, "
            f"{target.shape[0]} and {reference.shape[0]}."
        )
    basis = orthonormal_basis(reference)
    remaining = target - basis @ (basis.T @ target)
    remaining = remaining - basis @ (
        basis.T @ remaining
    )  # twice is enough: the first pass leaves rounding
    left, values, right = torch.linalg.svd(remaining, full_matrices=False)
    scale = torch.linalg.matrix_norm(target, 2) if target.numel() else target.new_zeros(())
    kept = values > scale * max(target.shape) * EPSILON * 10
    left, values, right = left[:, kept], values[kept], right[kept]
    coefficients: Tensor = right.T @ ((left.T @ vectors) / values[:, None])
    return coefficients


def transfer_matrix(target: Tensor, reference: Tensor, representation: Tensor) -> Tensor:
    """Ω of Theorem 3.2: carries the head's weights to the coefficients of a term, β = Ω Wᵀ.

    Args:
        target: Centred representations of isolated inputs, shape (N, width).
        reference: Centred representations of reference inputs, shape (N, any width).
        representation: Centred representations of the inputs themselves, shape (N, width).

    Returns:
        The transfer matrix, shape (width of target, width of representation).
    """
    return oblique_coefficients(representation, target, reference)


def orthonormal_basis(matrix: Tensor) -> Tensor:
    """Orthonormal columns that span the columns of `matrix`, as many as its numerical rank."""
    matrix = _checked("matrix", matrix)
    if matrix.numel() == 0:
        return matrix.new_zeros(matrix.shape[0], 0)
    left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    basis: Tensor = left[:, values > values[0] * max(matrix.shape) * EPSILON]
    return basis


def _checked(name: str, matrix: Tensor) -> Tensor:
    if not isinstance(matrix, Tensor) or not matrix.is_floating_point():
        kind = matrix.dtype if isinstance(matrix, Tensor) else type(matrix).__name__
        raise TypeError(f"{name} must be a floating-point tensor, found {kind}.")
    if matrix.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, found shape {tuple(matrix.shape)}.")
    if matrix.shape[0] < 2:
        raise ValueError(f"{name} must have at least two rows, found {matrix.shape[0]}.")
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"{name} has values that are not finite.")
    return matrix.detach().to(torch.float64)
