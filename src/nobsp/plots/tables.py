"""Tables of the caller's kind, column by column: arrays, tensors, frames, and the rows of an explanation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.tabular.explanation import Explanation


@dataclass(frozen=True, eq=False)
class Table:
    """Rows whose columns are read when they are drawn.

    Attributes:
        rows: How many.
        column: A column by its position in the calibrated table.
    """

    rows: int
    column: Callable[[int], NDArray[Any]]


def table_of(data: Any, *, names: Sequence[str] | None, count: int) -> Table:
    """The rows to draw beside functions.

    Args:
        data: Array, tensor, frame, or an explanation of such.
        names: Names of the calibrated columns, where they have any; frames are read by them.
        count: How many columns were calibrated on.

    Raises:
        TypeError: If it is no table.
        ValueError: If its columns are others.
    """
    if isinstance(data, Explanation):
        data = data.data
    frame = frame_of(data)
    if frame is not None:
        order = list(frame.columns) if names is None else list(names)
        missing = [name for name in order if name not in frame.columns]
        if missing or (names is None and len(order) != count):
            found = f"lacks {missing[0]!r}" if missing else f"has {len(order)} columns, not {count}"
            raise ValueError(f"data {found}; pass a table with the calibrated columns.")
        return Table(len(frame), lambda position: np.asarray(frame[order[position]].to_numpy()))
    matrix = matrix_of(data)
    if matrix is None:
        raise TypeError(
            f"data must be an array, a tensor, a frame or an Explanation, found {type(data).__name__}; pass the rows."
        )
    if matrix.shape[1] != count:
        raise ValueError(f"data has {matrix.shape[1]} columns but the explainer was calibrated on {count}.")
    return Table(len(matrix), lambda position: matrix[:, position])


def single_column(ex: Explanation, feature: str) -> NDArray[Any] | None:
    """A feature's values in the rows of an explanation; None where it is no single column of them."""
    frame = frame_of(ex.data)
    if frame is not None:
        named = {str(name): position for position, name in enumerate(frame.columns)}
        if not set(named) & set(ex.feature_names) and len(named) == len(ex.feature_names):
            named = {name: position for position, name in enumerate(ex.feature_names)}
        return np.asarray(frame[:, named[feature]].to_numpy()) if feature in named else None
    matrix = matrix_of(ex.data)
    if matrix is None or matrix.shape[1] != len(ex.feature_names):
        return None
    return np.asarray(matrix[:, ex.feature_names.index(feature)])


def as_numbers(values: NDArray[Any] | None) -> NDArray[np.float64] | None:
    """A column as numbers, NaN where one is missing; None where it holds something else."""
    if values is None:
        return None
    if values.dtype == object:  # missing values have a type of their own in some frames
        known = (int, float, str, np.generic)
        values = np.array([value if isinstance(value, known) else np.nan for value in values.tolist()])
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        return None


def columns_of(table: Any) -> dict[str, NDArray[Any]]:
    """A table that an explainer returned, a frame or a dictionary, as arrays by name."""
    frame = frame_of(table)
    if frame is None:
        return {name: np.asarray(column) for name, column in table.items()}
    return {name: np.asarray(frame[name].to_numpy()) for name in frame.columns}


def frame_of(data: Any) -> Any:
    """A frame of any library as narwhals sees it; None for anything else."""
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True, pass_through=True)
    return frame if isinstance(frame, nw.DataFrame) else None


def matrix_of(data: Any) -> NDArray[Any] | None:
    """An array or tensor of two dimensions; None for anything else."""
    if hasattr(data, "detach"):
        data = data.detach().cpu()
        data = data.float() if "bfloat16" in str(data.dtype) else data
    if not hasattr(data, "shape"):
        return None
    array = np.asarray(data)
    return array if array.ndim == 2 else None
