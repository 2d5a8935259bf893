"""What all exports are made of: the axes that tables stand on, and the terms that read them.

Each axis is there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nobsp._typing import AnyArray, FloatArray, TableLike
from nobsp.arguments import numbers_of, quote
from nobsp.frames import is_missing
from nobsp.tabular.indexing import column_names, term_name
from nobsp.tabular.lookup import Level, LevelAxis, NumberAxis, read_columns
from nobsp.tabular.predicting import classes_of, has_probabilities

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions

# A number that no row has, which every database and JSON can write.
_NO_NUMBER = float(np.finfo(np.float64).max)


@dataclass(frozen=True, eq=False)
class NumberPlace:
    """Where a number lies among knots."""

    column: int
    knots: FloatArray
    missing: bool  # whether a missing number has the node after the last knot
    held: bool  # whether it is held at the first and the last knot, as in grids

    @property
    def size(self) -> int:
        """Nodes along the axis."""
        return len(self.knots) + self.missing

    @property
    def per_width(self) -> FloatArray:
        """One over the length of every segment."""
        with np.errstate(over="ignore"):
            return np.minimum(1.0 / np.diff(self.knots), 1e300)


@dataclass(frozen=True, eq=False)
class LevelPlace:
    """Which of the levels a category has."""

    columns: tuple[int, ...]
    names: tuple[Level, ...] | None  # of one column of names; None for numbers
    numbers: FloatArray | None  # (levels, columns); None for names
    missing: int | None = None  # position of the level that missing values have

    @property
    def size(self) -> int:
        """How many levels there are."""
        levels = self.numbers if self.names is None else self.names
        assert levels is not None  # one of the two is there
        return len(levels)


Place = NumberPlace | LevelPlace


@dataclass(frozen=True, eq=False)
class TermLayout:
    """A term's table, and the positions of the places it reads."""

    name: str
    places: tuple[int, ...]
    values: FloatArray  # (nodes along every place …, outputs)

    def strides(self) -> list[int]:
        """How many nodes further the next one along each place is."""
        sizes = self.values.shape[:-1]
        return [int(np.prod(sizes[position + 1 :])) for position in range(len(self.places))]


@dataclass(frozen=True, eq=False)
class Layout:
    """Everything that an export writes down."""

    columns: tuple[str, ...]  # names of the caller's columns
    used: tuple[int, ...]  # those that tables stand on, in order
    texts: frozenset[int]  # those of names
    places: tuple[Place, ...]
    terms: tuple[TermLayout, ...]
    base: FloatArray
    outputs: tuple[str, ...]
    link: str
    classes: tuple[Level, ...]
    has_probabilities: bool
    are_probabilities: bool


def layout_of(functions: Functions) -> Layout:
    """The functions as exports write them; an error where terms have no table."""
    if functions.left_out:
        names = ", ".join(term_name(term) for term in functions.left_out)
        raise ValueError(
            f"functions cannot be exported whole: there is no table for {names}, only the model "
            "tells; give every feature one column, or drop these features."
        )
    places: list[Place] = []
    positions: dict[object, int] = {}
    terms = []
    for name, table in zip(column_names(functions.terms), functions.tables, strict=True):
        is_grid = len(table.axes) > 1
        own = []
        for axis in table.axes:
            key, place = _place_of(axis, held=is_grid)
            if key not in positions:
                positions[key] = len(places)
                places.append(place)
            own.append(positions[key])
        shape = (*(places[position].size for position in own), len(functions.output_names))
        terms.append(TermLayout(name, tuple(own), table.values.reshape(shape)))

    texts = [place.columns[0] for place in places if isinstance(place, LevelPlace) and place.names]
    used = sorted({column for place in places for column in _columns_of(place)})
    return Layout(
        columns=functions.named_columns(),
        used=tuple(used),
        texts=frozenset(texts),
        places=tuple(places),
        terms=tuple(terms),
        base=functions.base_values,
        outputs=functions.output_names,
        link=functions.link,
        classes=classes_of(functions),
        has_probabilities=has_probabilities(functions),
        are_probabilities=functions.are_probabilities,
    )


def _columns_of(place: Place) -> tuple[int, ...]:
    """The caller's columns that a place is read from."""
    return (place.column,) if isinstance(place, NumberPlace) else place.columns


def _place_of(axis: NumberAxis | LevelAxis, *, held: bool) -> tuple[object, Place]:
    """An axis as a place, with what tells it from others."""
    if isinstance(axis, NumberAxis):
        number = NumberPlace(axis.column, axis.knots, axis.missing, held)
        return (axis.column, axis.knots.tobytes(), axis.missing, held), number
    if not isinstance(axis.levels, tuple):
        # What is missing is told by its position; as a number it is one that no row has.
        numbers = np.nan_to_num(axis.levels, nan=_NO_NUMBER)
        return axis.columns, LevelPlace(axis.columns, None, numbers, axis.missing)

    return axis.columns, LevelPlace(axis.columns, axis.levels, None, axis.missing)


def read_inputs(
    functions: Functions, layout: Layout, X: TableLike, *, argument: str
) -> tuple[dict[int, AnyArray], int]:
    """The caller's columns and the number of rows.

    Raises a TypeError where a column of numbers holds something else.
    """
    columns, n_rows = read_columns(functions, X)
    for column in layout.used:
        if column not in layout.texts:
            numbers_of(columns[column], name=f"column {layout.columns[column]!r} of {argument}")
    return columns, n_rows


def cells_of(functions: Functions, layout: Layout, X: TableLike) -> list[list[Any]]:
    """The columns that are read, row by row, as plain Python values.

    None for what is missing or infinite.
    """
    columns, n_rows = read_inputs(functions, layout, X, argument="X")
    by_column = []
    for column in layout.used:
        cells = [None if is_missing(cell) else cell for cell in columns[column].tolist()]
        by_column.append(
            [None if isinstance(c, float) and not np.isfinite(c) else c for c in cells]
        )
    return [[cells[row] for cells in by_column] for row in range(n_rows)]


def texts_of_levels(place: LevelPlace, *, column: str, flags: Sequence[str]) -> list[list[str]]:
    """Per level the texts that stand for it where a column holds only text.

    `flags` are the texts for false and true.

    Raises:
        ValueError: If two levels read the same.
    """
    assert place.names is not None
    texts: list[list[str]] = []
    owners: dict[str, Level] = {}
    for level in place.names:
        texts.append([] if is_missing(level) else _texts_of(level, flags))
        for text in texts[-1]:
            if text in owners:
                raise ValueError(
                    f"column {column!r} has the levels {quote(owners[text])} and {quote(level)}, "
                    "which read the same as text; rename one before the model is fitted."
                )
            owners[text] = level
    return texts


def _texts_of(level: Level, flags: Sequence[str]) -> list[str]:
    """A level as text, in every way that numbers are written."""
    if isinstance(level, bool):
        return [flags[int(level)]]
    if isinstance(level, float) and level.is_integer():
        return [repr(level), str(int(level))]
    return [str(level)]
