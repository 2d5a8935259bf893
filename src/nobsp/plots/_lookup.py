"""What to draw: which explanation, row, output and features are meant, the functions behind them, and their rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import as_numpy, frame_of, join_names, suggest
from nobsp.plots.labels import shorten
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.explanation import Explanation, output_position
from nobsp.tabular.lookup import Chunk

Array = NDArray[np.float64]
Output = int | str | None  # position or name of an output, or none in particular


def require_explanation(given: Any, plot: str) -> Explanation:
    """An explanation of at least one row."""
    if not isinstance(given, Explanation):
        raise TypeError(
            f"{plot} draws an Explanation, found {type(given).__name__}; pass explainer(X)."
        )
    if len(given) == 0:
        raise ValueError(f"the explanation has no rows, so {plot} has nothing to draw.")
    return given


def known_rows(given: Explanation, *, residual: str = "") -> Explanation:
    """The rows that could be explained: a missing value may have kept some from the network."""
    known = np.isfinite(given.values).all((1, 2))
    ran = known & np.isfinite(given.residual).all(1)
    if residual and not ran.any():
        raise ValueError(
            f"{residual} needs the residual; pass the model's outputs, compiled(X, predictions=...)."
        )
    kept = ran if ran.any() else known
    return given if kept.all() else given[kept]


def find_row(row: Any, ex: Explanation) -> tuple[int, str]:
    """Position of a row given by that, or by its label in the index of the frame that was explained; and its title."""
    import narwhals as nw

    frame = frame_of(ex.data)
    index: Any = None if frame is None else nw.maybe_get_index(frame)
    if is_position(row):
        if -len(ex) <= row < len(ex):
            return int(row) % len(ex), f"row {int(row) % len(ex)}"
        meant = (
            f"; for the label pass row=ex.data.index.get_loc({row})"
            if index is not None and row in index
            else ""
        )
        raise IndexError(
            f"row {row} is out of range: row is a position, and there are {len(ex)}{meant}."
        )
    named = index is not None and index.inferred_type != "integer"
    if isinstance(row, bool | slice) or not isinstance(row, Hashable) or not named:
        raise TypeError(
            f"row must be the position{' or label' if named else ''} of one row, found {row!r}."
        )
    try:
        found = np.arange(len(index))[index.get_loc(row)]
    except (
        KeyError,
        TypeError,
        ValueError,
    ):  # as other kinds of indexes say that there is no such label
        raise ValueError(f"no row {row!r} in the index of ex.data; {suggest(row, index)}") from None
    if np.size(found) != 1:
        raise ValueError(
            f"row {row!r} is not one row but those at {join_names(found, 12)}; pass one position."
        )
    return int(np.ravel(found)[0]), f"row {shorten(str(row), 40)}"


def some_outputs(
    output: Output, names: Sequence[str], among: Sequence[int] | None = None
) -> list[int]:
    """Positions of the outputs to draw: the one given, or all that are meant."""
    if output is not None:
        return [output_position(output, names)]
    return list(range(len(names)) if among is None else among)


def one_output(output: Output, names: Sequence[str], among: Sequence[int] | None = None) -> int:
    """Position of the output to draw; may be left out where only one is meant."""
    first, *others = some_outputs(output, names, among)
    if others:
        known = join_names([names[k] for k in (first, *others)], 12)
        raise ValueError(f"output must be chosen among {known}, as in output={names[first]!r}.")
    return first


def is_position(given: Any) -> bool:
    """Whether something is a whole number."""
    return isinstance(given, int | np.integer) and not isinstance(given, bool)


def find_drawn(given: Any, plot: str) -> tuple[CompiledExplainer, Any, Sequence[int]]:
    """Functions, rows to draw them over (None without any), and the outputs drawn unless others are chosen."""
    if not isinstance(given, Explanation):
        functions = find_functions(given, plot)
        return functions, getattr(given, "sample_", None), range(len(functions.output_names))
    if given.explainer is None:
        raise TypeError(
            f"{plot} draws functions, and this explanation has none with it; pass the explainer itself."
        )
    names = given.explainer.output_names
    for name in given.output_names:
        if name not in names:
            raise ValueError(
                f"{plot} draws functions of outputs, and {name!r} is none; pass the explainer itself."
            )
    return given.explainer, given.data, [names.index(name) for name in given.output_names]


def find_functions(given: Any, plot: str) -> CompiledExplainer:
    """The functions of an explainer, calibrated or compiled; recognised by an attribute, so torch is not needed."""
    functions: Any = given.functions_ if hasattr(type(given), "functions_") else given
    if isinstance(functions, CompiledExplainer):
        return functions
    raise TypeError(
        f"{plot} draws an NObSP, a CompiledExplainer or an Explanation, found {type(given).__name__}."
    )


def row_places(functions: CompiledExplainer, rows: Any) -> dict[int, Array]:
    """Per feature that has a line or levels, where each row is: a number, or its level's position, else NaN."""
    rows = rows.data if isinstance(rows, Explanation) else rows
    if rows is None or len(rows) == 0:
        return {}
    columns, count = functions.read_columns(rows)
    chunk, axes = Chunk(columns, slice(0, count)), functions.level_axes
    found: dict[int, Array] = {}
    for k, feature in enumerate(functions.features):
        if k in axes:
            places, _ = chunk.places(axes[k])
            found[k] = np.where(places == len(axes[k]), np.nan, places)
        elif feature.span is not None and feature.columns[0] in columns:
            found[k] = chunk.numbers(feature.columns[0])
    return found


def feature_values(ex: Explanation) -> dict[str, NDArray[Any] | None]:
    """Every feature's values in the rows of an explanation, levels by their names; None for what is no one value."""
    found: dict[str, NDArray[Any] | None] = dict.fromkeys(ex.feature_names)
    if ex.explainer is None:
        columns = columns_of(ex.data)
        if len(columns) == len(found) and not columns.keys() & found.keys():
            columns = dict(zip(found, columns.values(), strict=True))
        return found | {name: column for name, column in columns.items() if name in found}
    for k, places in row_places(ex.explainer, ex.data).items():
        feature = ex.explainer.features[k]
        if feature.kind == "levels":
            labels = np.array([*feature.labels, "?"], dtype=object)
            found[feature.name] = labels[
                np.where(np.isnan(places), len(feature.labels), places).astype(int)
            ]
        else:
            found[feature.name] = places
    return found


def columns_of(data: Any) -> dict[str, NDArray[Any]]:
    """The columns of a frame by name, of an array or tensor as x0, x1, ...; none of what is no table."""
    frame = frame_of(data)
    if frame is not None:
        return {str(name): np.asarray(frame[name].to_numpy()) for name in frame.columns}
    if getattr(data, "ndim", 0) != 2:
        return {}
    return {f"x{position}": column for position, column in enumerate(as_numpy(data).T)}


def as_numbers(values: NDArray[Any] | None) -> Array | None:
    """A column as numbers, NaN where one is missing; None where it holds something else."""
    if values is None:
        return None
    if values.dtype == object:  # missing values have a type of their own in some frames
        known = (int, float, str, np.generic)
        values = np.array(
            [value if isinstance(value, known) else np.nan for value in values.tolist()]
        )
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        return None
