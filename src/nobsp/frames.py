"""Tables of any library, seen through narwhals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from nobsp._typing import AnyArray, ArrayLike, Frame, TableLike
from nobsp.arguments import array_of, join_names

# Columns listed in an error before the rest is only counted.
_MOST_LISTED = 12


def frame_of(data: TableLike) -> Frame | None:
    """A frame of any library as narwhals sees it; None for anything else."""
    # Later than the module: narwhals takes longer to import than arrays take to explain.
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True, pass_through=True)
    return frame if isinstance(frame, nw.DataFrame) else None


def distinct_frame_of(data: TableLike, *, argument: str) -> Frame | None:
    """The same; raises a ValueError where two columns have the same name."""
    import narwhals as nw

    try:
        return frame_of(data)
    except nw.exceptions.DuplicateError as duplicate:
        raise ValueError(
            f"{argument} has two columns of the same name; rename one ({duplicate})."
        ) from duplicate


def is_missing(value: object) -> bool:
    """Whether a value of a column stands for none."""
    if value is None:
        return True

    # Of pandas' own NA even the comparison with itself is NA.
    is_pandas_missing = type(value).__name__ == "NAType"
    return is_pandas_missing or bool(value != value)


def group_codes(values: ArrayLike, *, n_rows: int, name: str = "groups") -> AnyArray:
    """A number for every row, the same for rows of one group."""
    array = array_of(values, name=name).reshape(-1)
    if len(array) != n_rows:
        raise ValueError(f"{name} must be one per row, {n_rows}, found {len(array)}.")

    listed = array.tolist()
    missing = [row for row, value in enumerate(listed) if is_missing(value)]
    if missing:
        raise ValueError(
            f"{name} has a missing value in row {missing[0]}; give every row a group. A row on its "
            "own needs its own group."
        )
    comparable = array if array.dtype.kind in "biuf" else np.array([str(value) for value in listed])
    return np.unique(comparable, return_inverse=True)[1].reshape(-1).astype(np.intp)


def match_columns(frame: Frame, *, argument: str, columns: Sequence[str] | None) -> Frame:
    """The frame with its columns in the expected order.

    Raises:
        ValueError: If a column is missing or was not expected.
    """
    if columns is None:
        return frame

    positions = {str(name): position for position, name in enumerate(frame.columns)}
    _require_columns(list(positions), argument=argument, columns=columns)

    order = [positions[name] for name in columns]
    return frame if order == sorted(order) else frame[:, order]


def _require_columns(names: Sequence[str], *, argument: str, columns: Sequence[str]) -> None:
    """Raises a ValueError naming all missing and unexpected columns, and likely typos."""
    present = set(names)
    expected = set(columns)
    missing = [name for name in columns if name not in present]
    unexpected = [name for name in names if name not in expected]
    if not missing and not unexpected:
        return

    problems = []
    if missing:
        problems.append(f"lacks {join_names(missing, _MOST_LISTED)}")
    if unexpected:
        problems.append(f"has unexpected {join_names(unexpected, _MOST_LISTED)}")

    raise ValueError(
        f"{argument} {' and '.join(problems)}; expected columns are "
        f"{join_names(columns, _MOST_LISTED)}.{_renaming_hint(missing, unexpected)}"
    )


def _renaming_hint(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """A sentence about unexpected columns whose names are close to missing ones.

    Empty without any.
    """
    renamings = []
    for name in missing:
        close = get_close_matches(name, unexpected, n=1)
        if close:
            renamings.append(f"{close[0]!r} to {name!r}")
    return f" Did you mean to rename {', '.join(renamings)}?" if renamings else ""


def take_rows(data: TableLike | None, rows: ArrayLike) -> TableLike | None:
    """Some rows of a frame, an array or a tensor, by position."""
    if data is None:
        return None

    frame = frame_of(data)
    if frame is not None:
        return frame[rows, :].to_native()
    return data[rows]


class ColumnTable(dict[str, AnyArray]):
    """Columns by name, for where pandas is not installed."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self)


def as_table(columns: Mapping[str, AnyArray]) -> TableLike:
    """A pandas frame where pandas is installed, else a `ColumnTable`."""
    try:
        import pandas as pd
    except ImportError:
        return ColumnTable(columns)
    return pd.DataFrame(columns)


def frame_like(data: TableLike, columns: Mapping[str, ArrayLike]) -> TableLike:
    """Columns as a frame of the same kind as `data`, or of any kind that is installed."""
    import narwhals as nw

    frame = frame_of(data)
    if frame is None:
        return _frame_of_any_kind(columns)

    result = nw.from_dict(columns, backend=frame.implementation).to_native()
    index = nw.maybe_get_index(frame)
    if index is not None:
        # So that it can be joined with the rows it was made of.
        result.index = index
    return result


def _frame_of_any_kind(columns: Mapping[str, ArrayLike]) -> TableLike:
    """A pandas frame, or else a polars one."""
    import narwhals as nw

    for backend in ("pandas", "polars"):
        try:
            return nw.from_dict(columns, backend=backend).to_native()
        except ImportError:
            continue
    raise ImportError("a frame needs pandas or polars: pip install 'nobsp[frames]'.")


def replace_column(
    data: TableLike, values: AnyArray, *, position: int, name: str | None
) -> TableLike:
    """A table of the same kind with other values in one column.

    The column is found by name in a frame that has it, else by position.
    """
    import narwhals as nw

    frame = frame_of(data)
    if frame is not None:
        columns = [str(column) for column in frame.columns]
        column = columns.index(name) if name in columns else position
        series = nw.new_series(
            name=frame.columns[column], values=values.tolist(), backend=frame.implementation
        )
        index = nw.maybe_get_index(frame)
        replaced = frame.with_columns(series if index is None else _with_index(series, index))
        return replaced.to_native()
    if hasattr(data, "detach"):
        import torch

        copy = data.detach().clone()
        if not copy.is_floating_point() and not bool((values == values.astype(int)).all()):
            copy = copy.double()
        copy[:, position] = torch.as_tensor(values.astype(float)).to(copy)
        return copy
    copy = np.array(data)
    is_whole = copy.dtype.kind in "biu"
    if is_whole and values.dtype.kind == "f":
        copy = copy.astype(np.float64)
    copy[:, position] = values
    return copy


def _with_index(series: Any, index: Any) -> Any:
    """A pandas series with a frame's index, so that its values stay where they are."""
    import narwhals as nw

    native = series.to_native()
    native.index = index
    return nw.from_native(native, series_only=True)
