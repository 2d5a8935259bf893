"""What to draw: which explanation, row, output and features are meant, and the functions behind."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import AnyArray, FloatArray, TableLike
from nobsp.arguments import array_of, join_names, quote, refuse_unreadable, suggest
from nobsp.frames import frame_of
from nobsp.plots.labels import shorten
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.functions import Functions
from nobsp.tabular.indexing import output_position
from nobsp.tabular.lookup import Chunk, level_axes, read_columns

Array = NDArray[np.float64]
# Position or name of an output, or none in particular.
Output = int | str | None
# An NObSP, a Functions or an Explanation. NObSP is not named: it would import torch.
Explained: TypeAlias = Any

# Values of a column that are not missing have one of these types.
_KNOWN_VALUES = (int, float, str, np.generic)


class Drawn(NamedTuple):
    """What a plot of functions draws."""

    functions: Functions
    # To draw the functions over; None without any.
    rows: TableLike | None
    # Drawn unless others are chosen.
    outputs: Sequence[int]


def require_explanation(ex: object, plot: str) -> Explanation:
    """An explanation of at least one row."""
    if not isinstance(ex, Explanation):
        raise TypeError(
            f"{plot} draws an Explanation, found {type(ex).__name__}; pass explainer(X)."
        )
    if len(ex) == 0:
        raise ValueError(f"the explanation has no rows, so {plot} has nothing to draw.")
    return ex


def known_rows(ex: Explanation, *, residual: str = "") -> Explanation:
    """The rows that could be explained: a missing value may have kept some from the network.

    `residual` is the name of the plot, where it needs residuals.
    """
    explained = np.isfinite(ex.values).all((1, 2))
    with_residual = explained & np.isfinite(ex.residual).all(1)
    if residual and not with_residual.any():
        raise ValueError(
            f"{residual} needs the residual; "
            "pass the model's outputs, compiled(X, predictions=...)."
        )

    usable = with_residual if with_residual.any() else explained
    return ex if usable.all() else ex[usable]


def find_row(row: Hashable, ex: Explanation) -> tuple[int, str]:
    """Position and title of a row.

    It is passed as a position, or as its label in the index of the frame that was explained.
    """
    import narwhals as nw

    frame = frame_of(ex.data)
    index: Any = None if frame is None else nw.maybe_get_index(frame)
    if is_position(row):
        position = _checked_position(int(row), len(ex), index)  # type: ignore[call-overload]
        return position, f"row {position}"

    has_labels = index is not None and index.inferred_type != "integer"
    is_label = isinstance(row, Hashable) and not isinstance(row, bool | slice)
    if not is_label or not has_labels:
        kind = "position or label" if has_labels else "position"
        raise TypeError(f"row must be the {kind} of one row, found {row!r}.")
    return _find_label(row, index), f"row {shorten(str(row), 40)}"


def _checked_position(row: int, rows: int, index: Any) -> int:
    """A position counted from the beginning; those below zero are counted from the end."""
    if -rows <= row < rows:
        return row % rows

    hint = ""
    if index is not None and row in index:
        hint = f"; for the label pass row=ex.data.index.get_loc({row})"
    raise IndexError(f"row {row} is out of range: row is a position, and there are {rows}{hint}.")


def _find_label(row: Hashable, index: Any) -> int:
    """The position of the only row with this label in an index of pandas."""
    try:
        positions = np.arange(len(index))[index.get_loc(row)]
    # As different kinds of indexes say that there is no such label.
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"no row {row!r} in the index of ex.data; {suggest(row, index)}") from None

    if np.size(positions) != 1:
        raise ValueError(
            f"row {row!r} is not one row but those at {join_names(positions, 12)}; "
            "pass one position."
        )
    return int(np.ravel(positions)[0])


def some_outputs(
    output: Output, names: Sequence[str], among: Sequence[int] | None = None
) -> list[int]:
    """Positions of the outputs to draw: the one chosen, or all that are meant."""
    if output is not None:
        return [output_position(output, names)]
    return list(range(len(names)) if among is None else among)


def one_output(output: Output, names: Sequence[str], among: Sequence[int] | None = None) -> int:
    """Position of the output to draw; may be left out where only one is meant."""
    first, *others = some_outputs(output, names, among)
    if others:
        choice = join_names([names[position] for position in (first, *others)], 12)
        raise ValueError(f"output must be chosen among {choice}, as in output={names[first]!r}.")
    return first


def is_position(value: object) -> bool:
    """Whether something is a whole number."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def find_drawn(explainer: Explained, plot: str) -> Drawn:
    """What a plot of functions draws."""
    if not isinstance(explainer, Explanation):
        functions = find_functions(explainer, plot)
        every_output = range(len(functions.output_names))
        return Drawn(functions, getattr(explainer, "sample_", None), every_output)

    functions_behind = explainer.explainer
    if functions_behind is None:
        raise TypeError(
            f"{plot} draws functions, and this explanation has none with it; "
            "pass the explainer itself."
        )
    names = functions_behind.output_names
    for name in explainer.output_names:
        if name not in names:
            raise ValueError(
                f"{plot} draws functions of outputs, and {name!r} is none; "
                "pass the explainer itself."
            )
    outputs = [names.index(name) for name in explainer.output_names]
    return Drawn(functions_behind, explainer.data, outputs)


def find_functions(explainer: Explained, plot: str) -> Functions:
    """The functions of an explainer, calibrated or compiled.

    It is recognised by an attribute, so that torch is not needed.
    """
    functions = explainer
    if hasattr(type(explainer), "functions_"):
        functions = explainer.functions_
    if not isinstance(functions, Functions):
        raise TypeError(
            f"{plot} draws an NObSP, a Functions or an Explanation, "
            f"found {type(explainer).__name__}."
        )
    return functions


def row_places(functions: Functions, rows: TableLike | None) -> dict[int, FloatArray]:
    """Per feature that has a line or levels, where each row is.

    That is a number, or the position of its level; NaN where neither is known.
    """
    table = rows.data if isinstance(rows, Explanation) else rows
    refuse_unreadable(table, name="data")
    if table is not None and (isinstance(table, type) or not hasattr(table, "__len__")):
        raise TypeError(f"data must be rows of a table, found {quote(table)}.")
    if table is None or len(table) == 0:
        return {}

    columns, n_rows = read_columns(functions, table)
    chunk = Chunk(columns, slice(0, n_rows))
    categories = level_axes(functions)
    positions: dict[int, FloatArray] = {}
    for number, feature in enumerate(functions.features):
        if number in categories:
            axis = categories[number]
            levels, _ = chunk.places(axis)
            positions[number] = np.where(levels == len(axis), np.nan, levels)
        elif feature.span is not None and feature.columns[0] in columns:
            positions[number] = chunk.numbers(feature.columns[0])
    return positions


def feature_values(ex: Explanation) -> dict[str, AnyArray | None]:
    """Every feature's values in the rows of an explanation, levels by their names.

    None stands for features that are not a single value.
    """
    values: dict[str, AnyArray | None] = dict.fromkeys(ex.feature_names)
    if ex.explainer is None:
        columns = columns_of(ex.data)
        if len(columns) == len(values) and not columns.keys() & values.keys():
            columns = dict(zip(values, columns.values(), strict=True))
        own = {name: column for name, column in columns.items() if name in values}
        return values | own

    for number, positions in row_places(ex.explainer, ex.data).items():
        feature = ex.explainer.features[number]
        values[feature.name] = positions
        if feature.kind == "levels":
            labels = np.array([*feature.labels, "?"], dtype=object)
            level = np.where(np.isnan(positions), len(feature.labels), positions)
            values[feature.name] = labels[level.astype(int)]
    return values


def feature_position(feature: int | str, names: Sequence[str], *, argument: str) -> int:
    """Position of a feature that an argument names; errors say which argument that was."""
    try:
        return output_position(feature, names, "feature")
    except (TypeError, ValueError) as failure:
        raise type(failure)(f"{argument}: {failure}") from None


def columns_of(data: TableLike, *, argument: str = "data") -> dict[str, AnyArray]:
    """The columns of a frame by name, of an array or tensor as x0, x1, ....

    None of what is no table.
    """
    frame = frame_of(data)
    if frame is not None:
        return {str(name): np.asarray(frame[name].to_numpy()) for name in frame.columns}
    if getattr(data, "ndim", 0) != 2:
        return {}
    return {
        f"x{position}": column for position, column in enumerate(array_of(data, name=argument).T)
    }


def as_numbers(values: AnyArray | None) -> FloatArray | None:
    """A column as numbers, NaN where a value is missing; None where it holds something else."""
    if values is None:
        return None

    if values.dtype == object:
        # Missing values have a type of their own in some frames.
        known = [value if isinstance(value, _KNOWN_VALUES) else np.nan for value in values.tolist()]
        values = np.array(known)
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        return None
