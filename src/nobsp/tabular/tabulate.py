"""Tables of a network: what it makes of features at points of theirs, averaged over the background rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.tabular.lookup import Axis, LevelAxis, NumberAxis

Array = NDArray[np.float64]
Represent = Callable[[Tensor], Tensor]
Encode = Callable[[Array], Tensor]

# Numbers with at most so many distinct values have their knots there.
FEW_VALUES = 32
# Where a segment is cut first to see whether it bends: not in the middle, where a wave crosses its chord.
_CUT = 0.382


@dataclass(frozen=True, eq=False)
class Points:
    """Where one feature is tabulated."""

    axis: Axis  # knots or levels, in the caller's units
    inputs: Tensor  # the same as the network takes them, (points, columns of the feature)
    columns: tuple[int, ...]  # of the network's input
    held: NDArray[np.intp]  # for every point, where the one is that it is held at: itself, or the end of the range

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class Table:
    """The representation of one or two features on their points, averaged over the background."""

    mean: Tensor  # (points of each feature …, width)
    outputs: Tensor  # the head's share for every background row by itself, (background, points …, outputs)


class Tabulator:
    """Runs the network on grids of points, the other features as in the background rows; counts forward rows."""

    def __init__(self, represent: Represent, background: Tensor, weight: Tensor, *, batch_size: int) -> None:
        self._represent, self.background, self.weight = represent, background, weight
        self._batch_size = batch_size
        self.forward_rows = 0

    def __call__(self, features: Sequence[Points]) -> Table:
        """The table of some features; with none, of the background alone."""
        sizes = [len(points) for points in features]
        nodes = int(np.prod(sizes)) if sizes else 1
        count = len(self.background)
        means, outputs = [], []
        step = max(self._batch_size // count, 1)
        for start in range(0, nodes, step):
            node = torch.arange(start, min(start + step, nodes))
            rows = self.background.repeat(len(node), 1)
            places = np.unravel_index(node.numpy(), sizes) if sizes else ()
            for points, place in zip(features, places, strict=True):
                values = points.inputs[torch.from_numpy(place)].to(rows.dtype)
                rows[:, list(points.columns)] = values.repeat_interleave(count, 0)
            z = self.run(rows).view(len(node), count, -1)
            means.append(z.mean(1))
            outputs.append((z @ self.weight).to(torch.float32))
        return Table(
            torch.cat(means).view(*sizes, -1),
            torch.cat(outputs).movedim(1, 0).reshape(count, *sizes, -1),
        )

    def with_rows(self, count: int) -> Tabulator:
        """The same over so many of the background rows."""
        rows = self.background[:: max(len(self.background) // count, 1)]
        return Tabulator(self._represent, rows, self.weight, batch_size=self._batch_size)

    def run(self, rows: Tensor) -> Tensor:
        """Representations of rows, float64 on the CPU, in calls of at most the batch size."""
        self.forward_rows += len(rows)
        return torch.cat(
            [self._represent(part).to("cpu", torch.float64) for part in torch.split(rows, self._batch_size)]
        )

    def rows(self, columns: Sequence[int], values: Tensor) -> Tensor:
        """Representation of features that have no table, (rows, columns), averaged over the background."""
        count, found = len(self.background), []
        step = max(self._batch_size // count, 1)
        for part in torch.split(values, step):
            rows = self.background.repeat(len(part), 1)
            rows[:, list(columns)] = part.to(rows.dtype).repeat_interleave(count, 0)
            found.append(self.run(rows).view(len(part), count, -1).mean(1))
        return torch.cat(found)


def place_knots(
    x: Array, span: tuple[float, float], *, quantiles: int, even: int, reach: Sequence[float]
) -> tuple[Array, Array]:
    """Knots inside the calibrated range, some evenly spaced for heavy tails, and knots at `reach` ranges beyond it."""
    low, high = span
    x = x[np.isfinite(x)]
    distinct = np.unique(np.concatenate([x, [low, high]]))
    spread = high - low or max(abs(low), 1.0)
    if len(distinct) <= min(FEW_VALUES, quantiles + even):
        inner = distinct
    else:
        inner = np.unique(
            np.concatenate(
                [
                    np.quantile(distinct if len(distinct) < 3 * quantiles else x, np.linspace(0, 1, quantiles)),
                    np.linspace(low, high, even),
                    [low, high],
                ]
            )
        )
        # Knots closer than rounding of their distance would make slopes of nothing.
        size = np.maximum(np.abs(inner[1:]), np.abs(inner[:-1]))
        inner = inner[np.concatenate([[True], np.diff(inner) > 1e-12 * size])]
        inner[0], inner[-1] = low, high
    beyond = spread * np.array(reach)
    return inner, np.concatenate([low - beyond, high + beyond])


def number_points(
    knots: Array, *, column: int, columns: tuple[int, ...], encode: Encode, span: tuple[float, float]
) -> Points:
    """Increasing knots of a column of numbers as points."""
    low, high = span
    held = np.clip(np.searchsorted(knots, np.clip(knots, low, high)), 0, len(knots) - 1)
    return Points(NumberAxis(column, knots), encode(knots[:, None]), columns, held.astype(np.intp))


def level_points(axis: LevelAxis, inputs: Tensor, columns: tuple[int, ...]) -> Points:
    """Levels of a category as points."""
    return Points(axis, inputs, columns, np.arange(len(inputs), dtype=np.intp))


def refine_knots(
    tabulate: Tabulator,
    first: Points,
    *,
    encode: Encode,
    span: tuple[float, float],
    unit: Tensor,
    inside: bool = True,
    tolerance: float = 1e-3,
    most: int = 192,
) -> tuple[Points, Table]:
    """Adds knots where the function is further than `tolerance` of a unit from straight, and tabulates them all.

    Without `inside` nothing is read between knots inside the range, and knots are added beyond it only.
    """
    assert isinstance(first.axis, NumberAxis)
    column, columns = first.axis.column, first.columns
    knots, table = first.axis.knots, tabulate([first])
    mean, outputs = table.mean, table.outputs
    bend = np.full(len(knots) - 1, np.inf)  # per segment, how far from straight what it is a part of was found
    if not inside:
        bend[(knots[:-1] >= span[0]) & (knots[1:] <= span[1])] = 0.0
    cut = _CUT
    while len(knots) < most:
        # Where knots run out, the segments that bend most have them.
        left = np.sort(np.argsort(-bend, kind="stable")[: most - len(knots)])
        left = left[bend[left] > tolerance]
        middle = knots[left] + cut * (knots[left + 1] - knots[left])
        # In the caller's units two knots may be neighbours already.
        apart = (middle > knots[left]) & (middle < knots[left + 1])
        left, middle = left[apart], middle[apart]
        if not len(left):
            break
        found = tabulate([Points(first.axis, encode(middle[:, None]), columns, left)])
        straight = mean[left] + cut * (mean[left + 1] - mean[left])
        bend[left] = ((found.mean - straight) @ tabulate.weight / unit).abs().amax(1).numpy()
        order = np.argsort(np.concatenate([knots, middle]), kind="stable")
        bend = np.insert(bend, left + 1, bend[left])
        knots = np.concatenate([knots, middle])[order]
        mean = torch.cat([mean, found.mean])[order]
        outputs = torch.cat([outputs, found.outputs], 1)[:, order]
        cut = 0.5
    return number_points(knots, column=column, columns=columns, encode=encode, span=span), Table(mean, outputs)


def compress(mean: Tensor, share: Tensor, *, tolerance: float, most: int) -> Tensor:
    """Directions (width, rank) in which a table varies over the calibration rows, strongest first.

    Their lengths make the table vary along each by the square root of what it does: a ridge then pulls weak directions
    less than it would, and not as little as if all were alike. `share` is that of the rows at every point.
    """
    weighted = mean * share.sqrt()[:, None]
    tall = weighted.shape[0] >= weighted.shape[1]
    values, vectors = torch.linalg.eigh(weighted.T @ weighted if tall else weighted @ weighted.T)
    kept = (values > tolerance * values[-1].clamp_min(1e-300)).nonzero().flatten().flip(0)[:most]
    directions = vectors[:, kept] if tall else weighted.T @ vectors[:, kept] / values[kept].sqrt()
    found: Tensor = directions / values[kept] ** 0.25
    return found


# Rows of the table that a choice of background rows is compared with, and how many choices are compared.
_COMPARED_ROWS = 512
_CANDIDATES = 64


def choose_background(rows: Tensor, count: int, numbers: Sequence[int]) -> Tensor:
    """`count` rows that stand for all of them, columns of amounts (`numbers`) shifted to the mean of all rows.

    Of several random draws the one closest to the rows by energy distance is taken. The shift fixes the gauge between
    base and functions: without it the mean of the background moves with the draw.
    """
    if count >= len(rows):
        chosen = rows
    else:
        generator = torch.Generator().manual_seed(0)  # our own: the caller's random numbers stay where they were
        scaled = _standardise(rows.to(torch.float64))
        compared = scaled[torch.randperm(len(rows), generator=generator)[:_COMPARED_ROWS]]
        best, least = torch.arange(count), float("inf")
        for _ in range(_CANDIDATES):
            drawn = torch.randperm(len(rows), generator=generator)[:count]
            distance = _energy_distance(scaled[drawn], compared)
            if distance < least:
                best, least = drawn, distance
        chosen = rows[best]
    if not rows.is_floating_point() or not len(numbers):
        return chosen.clone()
    chosen, columns = chosen.to(torch.float64).clone(), list(numbers)
    values = rows[:, columns].to(torch.float64)
    shift = values.mean(0) - chosen[:, columns].mean(0)
    # A mean that single outliers carry lies where no row does: nothing is shifted there.
    ends = values.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64), dim=0)
    chosen[:, columns] += torch.where(shift.abs() <= ends[1] - ends[0], shift, 0.0)
    return chosen


def _standardise(rows: Tensor) -> Tensor:
    spread = rows.std(0, correction=0)
    return (rows - rows.mean(0)) / torch.where(spread > 0, spread, torch.ones_like(spread))


def _energy_distance(drawn: Tensor, compared: Tensor) -> float:
    """2 E|a − b| − E|a − a'|, less what does not depend on the draw."""
    count = len(drawn)
    within = torch.cdist(drawn, drawn).sum() / max(count * (count - 1), 1)
    return float(2 * torch.cdist(drawn, compared).mean() - within)
