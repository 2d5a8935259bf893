"""Centres of the classes in activation space, and how far from its own a row of a class usually is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.neighbours.rows import Rows
from nobsp.neighbours.spaces import Space, pieces

Array = NDArray[np.float64]

# Rows from which centres are worked out; of a larger database, so many evenly spaced ones.
MOST_ROWS = 200_000
# A class with fewer rows has no percentile of its own.
_FEWEST = 20


@dataclass(frozen=True, eq=False)
class Centroids:
    """Means of the unit vectors of each class.

    Attributes:
        centres: Shape (classes, width); NaN for a class without rows.
        usual: Per class, the distance that 95% of its rows stay within, each measured from the mean of the others.
        rows: How many rows of each class were looked at.
    """

    centres: Tensor
    usual: Array
    rows: NDArray[np.int64]

    def distances(self, space: Space, rows: Rows) -> tuple[Array, Array]:
        """From each row to the centre of its predicted class, and to the nearest of the others; infinite for none."""
        own, other = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0, dtype=torch.float64)]
        for piece in pieces(len(rows), max(space.width, len(self.centres))):
            part = rows.take(piece)
            away = torch.cdist(space.vectors(part, part.predicted), self.centres).nan_to_num(nan=torch.inf)
            own.append(away.gather(1, part.predicted[:, None])[:, 0])
            other.append(away.scatter(1, part.predicted[:, None], torch.inf).amin(1))
        return torch.cat(own).numpy(), torch.cat(other).numpy()


def centroids_of(
    space: Space, take: Callable[[Tensor], Rows], count: int, classes: int, *, percentile: float = 95.0
) -> Centroids:
    """Centres of the classes, by the labels of a database.

    Args:
        space: Where vectors are; of kind "activations".
        take: Rows of the database at positions.
        count: How many rows it has.
        classes: How many classes there are.
        percentile: Share of a class's rows, in percent, that are not unusual.
    """
    positions = torch.arange(count)
    if count > MOST_ROWS:
        positions = torch.linspace(0, count - 1, MOST_ROWS).long()
    sums = torch.zeros(classes, space.width, dtype=torch.float64)
    labels = []
    for piece in pieces(len(positions), space.width):
        rows = take(positions[piece])
        assert rows.labels is not None
        sums.index_add_(0, rows.labels, space.vectors(rows, rows.predicted))
        labels.append(rows.labels)
    known = torch.cat(labels)
    members = torch.bincount(known, minlength=classes).to(torch.float64)
    away = []
    for piece in pieces(len(positions), space.width):
        rows = take(positions[piece])
        assert rows.labels is not None
        vectors = space.vectors(rows, rows.predicted)
        # A row pulls the mean of its class towards itself, so it is measured from that of the others.
        others = (members[rows.labels] - 1)[:, None]
        away.append((vectors - (sums[rows.labels] - vectors) / others).square().sum(1).sqrt())
    usual = _percentiles(torch.cat(away).numpy(), known.numpy(), classes, percentile)
    return Centroids(sums / members[:, None], usual, members.numpy().astype(np.int64))


def _percentiles(away: Array, labels: NDArray[np.int64], classes: int, percentile: float) -> Array:
    known = np.isfinite(away)
    everywhere = float(np.percentile(away[known], percentile)) if known.any() else np.inf
    usual = np.full(classes, everywhere)
    for number in range(classes):
        own = away[(labels == number) & known]
        if len(own) >= _FEWEST:
            usual[number] = np.percentile(own, percentile)
    return usual
