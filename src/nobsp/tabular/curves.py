"""Every feature's function on a grid, with its band."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nobsp.tabular.bands import FEWEST_BLOCKS, band, replicates
from nobsp.tabular.columns import input_values, level_labels
from nobsp.tabular.fitted import Fitted
from nobsp.tabular.representations import Represent, through

_FEW_POINTS = 30


def curve_table(fitted: Fitted, represent: Represent, *, points: int, level: float) -> dict[str, Any]:
    """Columns feature, output, x, level, value, lower, upper; see `NObSP.curves`."""
    grids = {}
    for feature in range(len(fitted.columns.features)):
        grid = _grid(fitted, feature, points)
        if grid is not None:
            grids[feature] = grid
    compressed = {feature: _compressed(fitted, represent, feature, grid[0]) for feature, grid in grids.items()}
    values = {feature: fitted.term_values(represent, (feature,), [grid[0]]) for feature, grid in grids.items()}
    limits = _bands(fitted, compressed, values, level)
    names, outputs = fitted.columns.features.names, fitted.output_names
    columns: dict[str, list[Any]] = {key: [] for key in ("feature", "output", "x", "level", "value", "lower", "upper")}
    for feature, (_, x, labels) in grids.items():
        low, high = limits[feature]
        for position, output in enumerate(outputs):
            columns["feature"] += [names[feature]] * len(x)
            columns["output"] += [output] * len(x)
            columns["x"] += x
            columns["level"] += labels
            columns["value"] += values[feature][:, position].tolist()
            columns["lower"] += low[:, position].tolist()
            columns["upper"] += high[:, position].tolist()
    text = ("feature", "output", "level")
    return {key: np.array(column, dtype=object if key in text else np.float64) for key, column in columns.items()}


def _grid(fitted: Fitted, feature: int, points: int) -> tuple[Tensor, list[float], list[str]] | None:
    """Input values along a feature, their numbers and their names; None where it has no line to walk along."""
    columns, summary = fitted.columns, fitted.summary
    group = columns.features.columns[feature]
    if feature in columns.text_levels:
        named = columns.text_levels[feature]
        inputs = input_values(columns, fitted.adapted, feature, np.array(named, dtype=object))
        return inputs, [float("nan")] * len(named), [str(value) for value in named]
    if fitted.adapted.encode is None and feature in fitted.plan.isolation.categories:
        known = summary.levels_of(feature, group)
        if known is None:
            return None
        levels = known[0]
        if len(group) > 1:
            return levels, [float("nan")] * len(levels), level_labels(columns, feature, levels)
        return levels, levels[:, 0].tolist(), [""] * len(levels)
    if len(columns.members[feature]) != 1 or not group:
        return None
    if fitted.adapted.encode is None:
        if feature in summary.levels and len(summary.levels[feature][0]) <= _FEW_POINTS:
            levels = summary.levels[feature][0]
            return levels, levels[:, 0].tolist(), [""] * len(levels)
        low, high = float(summary.minimum[group[0]]), float(summary.maximum[group[0]])
        x = torch.linspace(low, high, points, dtype=torch.float64)
        return x[:, None], x.tolist(), [""] * points
    numbers = columns.number_levels.get(feature, [])
    if numbers and (len(numbers) <= _FEW_POINTS or len(group) > 1):  # one-hot encoders know no value in between
        grid = np.array(numbers)
    else:
        span = columns.ranges[columns.members[feature][0]]
        if not span:  # nothing but missing values
            return None
        grid = np.linspace(span[0], span[1], points)
    return input_values(columns, fitted.adapted, feature, grid), grid.tolist(), [""] * len(grid)


def _compressed(fitted: Fitted, represent: Represent, feature: int, given: Tensor) -> Tensor:
    """The feature's compressed representation along the grid, which every bootstrap copy shares."""
    plan = fitted.plan
    rows = plan.isolation.baseline.expand(given.shape[0], -1).clone()
    rows[:, list(fitted.columns.features.columns[feature])] = given
    rows = rows.to(torch.int64) if fitted.readout.integer else rows
    term = (feature,)
    return through(plan.isolation, represent, rows, {term: plan.bases[term]}, pure=plan.pure).cpu()


def _bands(
    fitted: Fitted, compressed: dict[int, Tensor], values: dict[int, Tensor], level: float
) -> dict[int, tuple[Tensor, Tensor]]:
    if fitted.blocks < FEWEST_BLOCKS or fitted.filled < FEWEST_BLOCKS:
        missing = {feature: torch.full_like(value, torch.nan) for feature, value in values.items()}
        return {feature: (nothing, nothing) for feature, nothing in missing.items()}
    terms = [(feature,) for feature in values]
    copies = list(replicates(fitted.plan, fitted.parts, terms, ridge=fitted.ridge))
    limits = {}
    for feature, rows in compressed.items():
        samples = torch.stack([rows @ copy[feature,][0] - copy[feature,][1] for copy in copies])
        limits[feature] = band(values[feature], samples, level=level)
    return limits
