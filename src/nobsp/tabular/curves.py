"""The function of a term on its own: called on values, or drawn along the feature's range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nobsp._typing import AnyArray, ArrayLike, BoolArray, FloatArray, NativeFrame
from nobsp.arguments import quote, warn_caller
from nobsp.frames import as_table
from nobsp.tabular.indexing import term_name
from nobsp.tabular.lookup import (
    Axis,
    Chunk,
    Feature,
    LevelAxis,
    TermTable,
    feature_position,
    value_rows,
)

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions

# ---------------------------------------------------------------------- called on values


def find_table(functions: Functions, names: Sequence[str]) -> TermTable:
    """The table of a term whose features are named in any order."""
    for table, term in zip(functions.tables, functions.terms, strict=True):
        if len(names) == len(term) and set(names) == set(term):
            return table
    raise ValueError(f"{term_name(names)} has no table; `terms` names the terms there are.")


def function_of(
    names: Sequence[str],
    readers: Sequence[Callable[[Any], Any]],
    evaluate: Callable[..., FloatArray],
) -> Callable[..., FloatArray]:
    """A term's function of its features' values, each read by a reader of its own."""

    def function(*values: ArrayLike) -> FloatArray:
        if len(values) != len(names):
            raise TypeError(
                f"the function of {term_name(names)} takes {len(names)} arrays, found "
                f"{len(values)}."
            )
        members = [read(value) for read, value in zip(readers, values, strict=True)]

        lengths = [len(rows) for rows in members]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"the values of {term_name(names)} must be equally many, found {lengths}."
            )
        return evaluate(*members) if lengths[0] else np.zeros(0)

    return function


def value_readers(
    functions: Functions, names: Sequence[str]
) -> list[Callable[[ArrayLike], AnyArray]]:
    """Per feature of a term, a function that makes rows of its values.

    The rows have one column for each column of the feature.
    """
    features = [functions.features[feature_position(functions, name)] for name in names]
    find_table(functions, names)
    return [
        partial(value_rows, members=len(feature.columns), name=feature.name) for feature in features
    ]


def read_term(
    functions: Functions, names: Sequence[str], members: Sequence[AnyArray]
) -> tuple[FloatArray, BoolArray]:
    """A term's table at values of its features.

    Gives contributions of shape (rows, outputs), and which rows have unseen levels.
    """
    columns = {}
    for name, rows in zip(names, members, strict=True):
        feature = functions.features[feature_position(functions, name)]
        for position, column in enumerate(feature.columns):
            columns[column] = rows[:, position]

    table = find_table(functions, names)
    chunk = Chunk(columns, slice(0, len(members[0])), functions.column_names)
    return table(chunk), table.has_unseen_level(chunk)


def warn_of_unseen(names: Sequence[str], members: Sequence[AnyArray]) -> None:
    """Says that a level was not calibrated; `members` are the values of one row, by feature."""
    values = ", ".join(quote(value) for own in members for value in own.tolist())
    warn_caller(
        f"the functions have no value of {term_name(names)} for {values}, which calibration did "
        "not see: it counts as 0. The explainer would ask the model."
    )


# ---------------------------------------------------------------------- drawn


# With at most this many knots inside its range, a number is drawn at its knots.
_FEW_POINTS = 30
# Columns of curves as a table.
_COLUMNS = ("feature", "output", "x", "level", "value", "lower", "upper")


@dataclass(frozen=True, eq=False)
class Curve:
    """A feature's function where it is drawn, with its band."""

    x: FloatArray  # numbers; NaN for named levels
    labels: Sequence[str]  # names of levels; empty for numbers
    values: FloatArray  # (points, outputs)
    half_widths: FloatArray  # of the band, (points, outputs); NaN without one

    def columns(self, feature: str, output: str, position: int) -> tuple[AnyArray, ...]:
        """The curve of one output, in the order of the table's columns."""
        value = self.values[:, position]
        half_width = self.half_widths[:, position]
        return (
            np.full(len(self.x), feature, dtype=object),
            np.full(len(self.x), output, dtype=object),
            self.x,
            np.array(self.labels, dtype=object),
            value,
            value - half_width,
            value + half_width,
        )


def draw_curves(
    functions: Functions, half_widths: Mapping[int, FloatArray], points: int
) -> NativeFrame:
    """Every feature's function as a tidy table, with a band where it has a half width."""
    parts: dict[str, list[AnyArray]] = {name: [np.zeros(0)] for name in _COLUMNS}
    for table in functions.tables:
        if len(table.axes) != 1:
            continue
        feature = functions.features[table.features[0]]
        curve = draw_curve(feature, table, half_widths.get(table.features[0]), points)
        for position, output in enumerate(functions.output_names):
            columns = curve.columns(feature.name, output, position)
            for name, column in zip(_COLUMNS, columns, strict=True):
                parts[name].append(column)
    return as_table({name: np.concatenate(part) for name, part in parts.items()})


def draw_curve(
    feature: Feature, table: TermTable, half_widths: FloatArray | None, points: int
) -> Curve:
    """A feature's function at its levels, or along its range."""
    x, labels, chunk = _drawn_at(feature, table.axes[0], points)
    values = table(chunk)

    drawn_widths = np.full_like(values, np.nan)
    if half_widths is not None:
        drawn_widths = TermTable(table.features, table.axes, half_widths)(chunk)
    return Curve(x=x, labels=labels, values=values, half_widths=drawn_widths)


def _drawn_at(feature: Feature, axis: Axis, points: int) -> tuple[FloatArray, Sequence[str], Chunk]:
    """Where a feature's function is drawn: numbers, their names, and the same as rows."""
    if isinstance(axis, LevelAxis):
        return _drawn_at_levels(feature, axis)

    low, high = feature.ranges[0]
    inside = axis.knots[(axis.knots >= low) & (axis.knots <= high)]
    grid = inside if len(inside) <= _FEW_POINTS else _spread_points(inside, low, high, points)
    labels = [""] * len(grid)
    if axis.missing:
        grid = np.append(grid, np.nan)
        labels.append("missing")
    return grid, labels, Chunk({axis.column: grid}, slice(0, len(grid)))


def _spread_points(knots: FloatArray, low: float, high: float, points: int) -> FloatArray:
    """Numbers from end to end, half of them even, half as close as the knots are.

    Knots follow rows and bends.

    Even ones alone would pass over most rows where one of them is far from all others.
    """
    ends = np.unique(np.concatenate([[low], knots, [high]]))
    even = (ends - low) / (high - low)
    by_knots = np.linspace(0, 1, len(ends))
    spread: FloatArray = np.interp(np.linspace(0, 1, points), (even + by_knots) / 2, ends)
    return spread


def _drawn_at_levels(feature: Feature, axis: LevelAxis) -> tuple[FloatArray, Sequence[str], Chunk]:
    """Every level of a category: its number, its name, and the same as rows."""
    is_named = isinstance(axis.levels, tuple)
    if is_named:
        levels = np.array(axis.levels, dtype=object)[:, None]
    else:
        levels = np.asarray(axis.levels)

    columns = dict(zip(axis.columns, levels.T, strict=True))
    chunk = Chunk(columns, slice(0, len(axis)))
    if is_named or len(axis.columns) > 1:
        return np.full(len(axis), np.nan), feature.labels, chunk
    labels = ["missing" if np.isnan(level) else "" for level in levels[:, 0]]
    return levels[:, 0], labels, chunk
