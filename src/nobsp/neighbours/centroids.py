"""Centres of the classes in activation space, how far from its own a row usually is, and how columns go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.neighbours.evidence import Rows
from nobsp.neighbours.spaces import Space, pieces

Array = NDArray[np.float64]
Take = Callable[[Tensor], Rows]

# Rows from which centres are worked out; of a larger database, so many evenly spaced ones.
MOST_ROWS = 200_000
# A class with fewer rows has no percentile of its own.
_FEWEST = 20
# Past so many columns, decorrelating them takes minutes, and they are left as they are.
_MOST_COLUMNS = 4096


@dataclass(frozen=True, eq=False)
class Centroids:
    """What the labelled rows of a database say of their classes, in the space of z-scored activations.

    Attributes:
        space: That space.
        take: Rows of the database at positions.
        sums: Sums of the unit vectors of each class, shape (classes, width).
        members: How many rows of each class were looked at, shape (classes,), float64.
        usual: Per class, the distance that 95% of its rows stay within, each measured from the mean of the others.
        positions: Which rows of the database were looked at, in order.
        transform: T = ((R + I) / 2)^(−1/2), R the correlations of the columns, so that directions that many columns
            share count less; None where there are too many columns.
        directions: Sums over each class of the unit vectors along T x, shape (classes, width).
    """

    space: Space
    take: Take
    sums: Tensor
    members: Tensor
    usual: Array
    positions: Tensor
    transform: Tensor | None
    directions: Tensor

    def distances(self, rows: Rows, leave: Tensor | None = None) -> Array:
        """From each row to the centre of its predicted class; infinite where it has none.

        Args:
            rows: The rows.
            leave: Rows of the database that are left out of the centres, shape (rows, any); −1 for none. A row that
                stays in the centre of its label draws it nearer, and so tells its label.
        """
        found = [torch.zeros(0, dtype=torch.float64)]
        for piece in pieces(len(rows), self.space.width * (1 if leave is None else 1 + leave.shape[1])):
            part = rows.take(piece)
            total, members = self.sums[part.predicted], self.members[part.predicted]
            if leave is not None:
                labels, lost = self.left_out(leave[piece])
                same = (labels == part.predicted[:, None]).to(torch.float64)
                total = total - (same[:, None] @ lost)[:, 0]
                members = members - same.sum(1)
            away = (self.space.vectors(part, part.predicted) - total / members[:, None]).square().sum(1).sqrt()
            found.append(torch.where(members > 0, away, torch.inf))
        return torch.cat(found).numpy()

    def left_out(self, leave: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and vectors of rows that queries leave out, label −1 for those that no centre holds anyway."""
        again = (leave[:, :, None] == leave[:, None, :]).tril(-1).any(2)
        held = torch.isin(leave, self.positions) & ~again
        rows = self.take(leave.clamp_min(0).flatten())
        assert rows.labels is not None
        labels = torch.where(held, rows.labels.reshape(leave.shape), -1)
        return labels, self.space.vectors(rows, rows.predicted).reshape(*leave.shape, -1)

    def decorrelated(self, vectors: Tensor) -> Tensor:
        """Vectors of unit length along T x."""
        return along(vectors, self.transform)


def centroids_of(space: Space, take: Take, count: int, classes: int, *, percentile: float = 95.0) -> Centroids:
    """Centres of the classes, by the labels of a database.

    Args:
        space: The space of z-scored activations.
        take: Rows of the database at positions.
        count: How many rows it has.
        classes: How many classes there are.
        percentile: Share of a class's rows, in percent, that are not unusual.
    """
    positions = torch.arange(count)
    if count > MOST_ROWS:
        positions = torch.linspace(0, count - 1, MOST_ROWS, dtype=torch.float64).long()
    width = space.width
    sums = torch.zeros(classes, width, dtype=torch.float64)
    products = torch.zeros(width, width, dtype=torch.float64) if width <= _MOST_COLUMNS else None
    labels = []
    for piece in pieces(len(positions), width):
        rows = take(positions[piece])
        assert rows.labels is not None
        vectors, lengths = space.directions(rows, rows.predicted)
        sums.index_add_(0, rows.labels, vectors)
        labels.append(rows.labels)
        if products is not None:
            scores = vectors * lengths[:, None]
            products += scores.T @ scores
    known = torch.cat(labels)
    members = torch.bincount(known, minlength=classes).to(torch.float64)
    transform = None if products is None else decorrelation(products / len(positions))
    directions = torch.zeros_like(sums)
    away = []
    for piece in pieces(len(positions), width):
        rows = take(positions[piece])
        vectors, own = space.vectors(rows, rows.predicted), known[piece]
        directions.index_add_(0, own, along(vectors, transform))
        # A row pulls the mean of its class towards itself, so it is measured from that of the others.
        others = (members[own] - 1)[:, None]
        away.append((vectors - (sums[own] - vectors) / others).square().sum(1).sqrt())
    usual = _percentiles(torch.cat(away).numpy(), known.numpy(), classes, percentile)
    return Centroids(space, take, sums, members, usual, positions, transform, directions)


def decorrelation(correlations: Tensor) -> Tensor:
    """((R + I) / 2)^(−1/2): halfway to columns that are uncorrelated; all the way, rare directions would be noise.

    Example:
        >>> T = decorrelation(torch.tensor([[1.0, 0.6], [0.6, 1.0]], dtype=torch.float64))
        >>> halfway = torch.tensor([[1.0, 0.3], [0.3, 1.0]], dtype=torch.float64)
        >>> torch.allclose(T @ halfway @ T, torch.eye(2, dtype=torch.float64))
        True
    """
    identity = torch.eye(len(correlations), dtype=torch.float64)
    values, vectors = torch.linalg.eigh((correlations + identity) / 2)
    transform: Tensor = (vectors * values.rsqrt()) @ vectors.T
    return transform


def along(vectors: Tensor, transform: Tensor | None) -> Tensor:
    """Vectors after a transform, of unit length; rows of zeros stay."""
    turned = vectors if transform is None else vectors @ transform.to(vectors.dtype)
    lengths = torch.linalg.vector_norm(turned, dim=-1, keepdim=True)
    return turned / torch.where(lengths > 0, lengths, 1.0)


def _percentiles(away: Array, labels: NDArray[np.int64], classes: int, percentile: float) -> Array:
    known = np.isfinite(away)
    everywhere = float(np.percentile(away[known], percentile)) if known.any() else np.inf
    usual = np.full(classes, everywhere)
    for number in range(classes):
        own = away[(labels == number) & known]
        if len(own) >= _FEWEST:
            usual[number] = np.percentile(own, percentile)
    return usual
