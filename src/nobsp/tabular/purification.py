"""Grids without what belongs to fewer features: margins in the rows' own measure, and tables read on other lines.

A grid of a term is purified when it averages to zero along each of its sides, every point of a side counted by the
share of the calibration rows there. What a grid does on average over the *background* rows is not zero: these are few.
That part sits in the tables of the smaller terms, which are averages over the background, and is taken out of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nobsp.tabular.features import Points
from nobsp.tabular.lookup import Array, Chunk, LevelAxis, NumberAxis, TermTable


def read(table: TermTable, rows: Chunk) -> Tensor:
    """A table at some rows, as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(table(rows)))


def occupancy(points: Points, rows: Chunk, weights: Array | None = None) -> Tensor:
    """Share of the rows at each point; a row between two knots counts for both by its distance."""
    size = len(points)
    share = np.ones(rows.count) if weights is None else weights
    if isinstance(points.axis, LevelAxis):
        counts = np.bincount(rows.places(points.axis)[0], share, size + 1)[:size]
        return torch.from_numpy(counts / max(counts.sum(), 1e-300))

    x = rows.numbers(points.axis.column)
    known = ~np.isnan(x)
    segment = points.axis.segments(x[known])
    along = points.axis.along(x[known], segment)
    left = np.bincount(segment, (1 - along) * share[known], size)
    right = np.bincount(segment + 1, along * share[known], size)
    counts = left + right
    if points.axis.missing:
        counts[-1] = share[~known].sum()
    return torch.from_numpy(counts / max(counts.sum(), 1e-300))


def places_of(points: Points, rows: Chunk) -> Tensor:
    """Where on a side every row is, (rows, points)."""
    return torch.stack([occupancy(points, rows, row) for row in np.eye(rows.count)])


def purify(table: Tensor, shares: Sequence[Tensor]) -> Tensor:
    """A grid without its margins: it averages to zero along every side, by the share of the rows at its points."""
    pure = table
    for side, share in enumerate(shares):
        margin = torch.tensordot(share, pure, dims=([0], [side]))
        pure = pure - margin.unsqueeze(side)
    return pure


def average_over(grid: Tensor, places: Sequence[Tensor], *, sides: Sequence[int]) -> Tensor:
    """A grid as a function of some `sides`, averaged over rows whose places on every side are known.

    The other sides are averaged together, so that features that are correlated in the rows are so here.
    """
    others = [side for side in range(len(places)) if side not in sides]
    joint = places[others[0]]
    for side in others[1:]:
        joint = joint.unsqueeze(-1) * places[side].reshape(
            len(joint), *[1] * (joint.ndim - 1), places[side].shape[1]
        )
    average: Tensor = torch.tensordot(grid, joint.mean(0), dims=(others, list(range(len(others)))))
    return average


def transfer(points: Points, values: Tensor, wanted: Points) -> Tensor:
    """Values on some points of a feature, read at others."""
    if isinstance(points.axis, LevelAxis):
        return values
    assert isinstance(wanted.axis, NumberAxis)
    flat = values.reshape(len(values), -1)
    knots = np.clip(wanted.axis.knots, points.axis.knots[0], points.axis.knots[-1])
    knots = np.append(knots, np.nan) if wanted.axis.missing else knots
    table = TermTable((0,), (points.axis,), flat.numpy())
    moved = read(table, Chunk({points.axis.column: knots}, slice(0, len(knots))))
    return moved.reshape(len(knots), *values.shape[1:])


def transfer_grid(points: Sequence[Points], values: Tensor, wanted: Sequence[Points]) -> Tensor:
    """A grid on some lines, read on others, side by side."""
    for side, (before, after) in enumerate(zip(points, wanted, strict=True)):
        moved = transfer(before, values.movedim(side, 0).contiguous(), after)
        values = moved.movedim(0, side)
    return values
