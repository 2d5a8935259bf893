"""Models of steps: how much every threshold does, and which of them the tables have room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from nobsp.tabular.features import Points
from nobsp.tabular.grids import Table
from nobsp.tabular.lookup import Array, Chunk, NumberAxis


@dataclass(frozen=True)
class Room:
    """Thresholds that the side of a grid has room for."""

    average: int  # over the features
    fewest: int  # of any feature
    most: int


@dataclass(frozen=True, eq=False)
class Steps:
    """A feature's thresholds, and its own table."""

    thresholds: Array  # the numbers on either side, (thresholds, 2)
    points: Points
    table: Table


# A threshold takes two lines of a grid; a pair's has some 30 a side at most, a triple's some 15.
PAIR_ROOM = Room(average=12, fewest=4, most=28)
FINE_PAIR_ROOM = Room(average=24, fewest=8, most=56)
TRIPLE_ROOM = Room(average=5, fewest=3, most=8)


def step_sizes(features: Steps, chunk: Chunk, unit: Tensor, *, apart: bool = False) -> Array:
    """Per threshold the variance that its step makes over rows and background, in units of the outputs'.

    With `apart` only what differs between background rows counts: the part that interactions make.
    """
    thresholds = features.thresholds
    axis = features.points.axis
    assert isinstance(axis, NumberAxis)
    knots = axis.knots
    below = np.clip(np.searchsorted(knots, thresholds[:, 0]), 0, len(knots) - 2)
    has_both_knots = (knots[below] == thresholds[:, 0]) & (knots[below + 1] == thresholds[:, 1])

    outputs = features.table.outputs
    jump = (outputs[:, below + 1] - outputs[:, below]).double() / unit
    square = jump.var(0, correction=0) if apart else jump.square().mean(0)

    x = chunk.numbers(axis.column)
    share = np.searchsorted(np.sort(x[np.isfinite(x)]), thresholds[:, 1]) / max(len(x), 1)
    # Thresholds beyond the calibrated range count a little, so that they are not forgotten.
    sizes: Array = square.sum(1).numpy() * (share * (1 - share) + 1e-6) * has_both_knots
    return sizes


def share_steps(
    features: Mapping[int, Steps], chunk: Chunk, unit: Tensor, room: Room
) -> dict[int, Array]:
    """Thresholds that grids have, by feature: most where interactions step most."""
    sizes = {
        k: step_sizes(steps, chunk, unit, apart=True)
        for k, steps in features.items()
        if len(steps.thresholds)
    }
    if not sizes:
        return {}

    certain = sum(min(len(size), room.fewest) for size in sizes.values())
    shared = max(room.average * len(sizes) - certain, 0)
    competing = [np.sort(size)[::-1][room.fewest :] for size in sizes.values()]
    strongest = np.sort(np.concatenate(competing))[::-1]
    least = strongest[shared] if shared < len(strongest) else -1.0

    shares = {}
    for k, size in sizes.items():
        count = min(max(int((size > least).sum()), room.fewest), room.most)
        chosen = np.sort(np.argsort(-size, kind="stable")[:count])
        shares[k] = features[k].thresholds[chosen]
    return shares
