"""How strongly a least-squares system is regularised, and the spectrum it is judged by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

RidgeScale = Literal["relative", "absolute"]

EPSILON = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Ridge:
    """A ridge penalty, absolute as in the paper or relative to the matrix it is added to.

    The relative form is λ = α · trace(G) / p, with G the Gram matrix being inverted and p its size, so
    the same α means the same thing for any number of samples and any scale of the representation.
    """

    value: float = 1e-4
    scale: RidgeScale = "relative"

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise TypeError(f"ridge must be a number, found {type(self.value).__name__}.")
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"ridge must be finite and not negative, found {self.value}.")
        if self.scale not in ("relative", "absolute"):
            raise ValueError(f'ridge scale must be "relative" or "absolute", found {self.scale!r}.')

    def amount(self, gram: Tensor, *, size: int | None = None) -> float:
        """The λ to add to the diagonal of `gram`."""
        if self.scale == "absolute":
            return float(self.value)
        return float(self.value * gram.diagonal().sum().clamp_min(0.0) / max(size or gram.shape[0], 1))


def with_ridge(gram: Tensor, amount: float) -> Tensor:
    """G + λI, leaving `gram` as it is."""
    damped = gram.clone()
    damped.diagonal().add_(amount)
    return damped


@dataclass(frozen=True)
class Spectrum:
    """The eigenpairs of a Gram matrix that stand above rounding, and the weight of the rest."""

    values: Tensor  # eigenvalues, largest first, shape (rank,)
    vectors: Tensor  # their eigenvectors as columns, shape (size, rank)
    null_weight: Tensor  # per coordinate, the squared length of its part outside the kept eigenvectors
    floor: float  # eigenvalues below this cannot be told from rounding
    # whether all that was dropped is known to be zero (by the number of rows, or because nothing was) and all that was
    # kept stands well clear of rounding
    certain: bool

    @property
    def rank(self) -> int:
        """How many directions are kept."""
        return int(self.values.shape[0])


def spectrum(
    gram: Tensor,
    *,
    rows: int | None = None,
    scale: Tensor | float | None = None,
    cut: bool = True,
) -> Spectrum:
    """The trustworthy part of the spectrum of a symmetric positive semi-definite matrix.

    A Gram matrix of N centred rows has rank N - 1 at most. Eigenvalues past that are zero and show up as
    rounding of the largest; dropping them by *count* keeps what a tolerance alone could not tell apart.
    """
    size = gram.shape[0]
    if size == 0:
        return Spectrum(gram.new_zeros(0), gram.new_zeros(0, 0), gram.new_zeros(0), 0.0, True)
    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    values, vectors = values.flip(0), vectors.flip(1)
    largest = values[0].clamp_min(0.0)
    if scale is not None:
        largest = torch.maximum(largest, torch.as_tensor(scale, dtype=gram.dtype, device=gram.device))
    # Measured: rounding leaves eigenvalues of about 0.1·ε·√size of the largest where zeros should be.
    floor = float(largest) * EPSILON * 8 * max(size, 16) ** 0.5
    limit = size if rows is None else max(min(size, rows - 1), 0)
    rank = min(int((values > floor).sum()), limit)
    certain = rank == limit and (rank == 0 or bool(values[rank - 1] > 1e4 * floor))
    if not cut:
        # By count only where what the count drops stands apart; else it would take a weak direction with it.
        rank, values = limit if certain else size, values.clamp_min(0.0)
    null_weight = vectors[:, rank:].square().sum(1)
    return Spectrum(values[:rank].clone(), vectors[:, :rank].clone(), null_weight, floor, certain)
