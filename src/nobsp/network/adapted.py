"""A model ready to run, its preprocessing as a function, and which columns that makes of which."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray
from torch import nn

from nobsp._typing import TableLike
from nobsp.arguments import join_names
from nobsp.network.batches import Encode, is_frame
from nobsp.network.forest import Forest
from nobsp.network.refusals import REFUSALS, wrapped_refusal

GROUPING_ROWS = 2000
_LEVELS_KEPT = 1000

Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model as a torch module of one matrix, beside what the caller passes."""

    # the torch module; for models of other libraries it works in float64 and returns margins
    module: nn.Module
    # makes a float64 matrix of rows of the caller's kind (frame or array); None where the module
    # takes them as they are
    encode: Encode | None = None
    # names of the caller's columns, where the model was fitted on a frame
    feature_names: tuple[str, ...] | None = None
    # class names, if any; of two classes the second, whose margin it is
    output_names: tuple[str, ...] | None = None
    # what the model applies to what is explained; None for torch modules: `Readout` finds it
    link: str | None = None
    # by column of a model of steps, the neighbouring numbers on either side of each threshold,
    # (thresholds, 2)
    steps: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    codes: tuple[int, ...] = ()  # the caller's columns that hold codes of categories
    # both classes, as the model calls them, where one output speaks for the second
    two_classes: tuple[str | bool | int | float, ...] = ()
    forest: Forest | None = None  # what the module computes as arrays of trees, where it is that
    # makes one matrix of what the caller passes, where inputs are several
    pack: Callable[[Any], Any] | None = None
    # makes columns of that matrix of what the caller passes as `features`
    resolve: Callable[[Any], Any] | None = None
    # makes the same of the model without the rows; plain enough for a file
    layout: dict[str, Any] | None = None

    def _encoded(self, X: TableLike) -> Matrix:
        """Some of the caller's rows through the preprocessing; an error in words where it fails."""
        assert self.encode is not None
        try:
            return self.encode(X)
        except REFUSALS as failure:
            raise wrapped_refusal(
                failure, self.encode, X, argument="X", first_row=None
            ) from failure

    def groups(self, X: TableLike) -> dict[str, list[int]]:
        """Which encoded columns each of the caller's columns goes into.

        They are those that change when the column is shuffled in the rows.
        """
        frame = _frame_or_array(X)
        known_names = self.feature_names if frame is X else frame.columns
        if known_names is None:
            known_names = [f"x{column}" for column in range(X.shape[1])]
        names = [str(name) for name in known_names]
        if self.encode is None:
            return {name: [position] for position, name in enumerate(names)}

        before = self._encoded(X)
        turned = np.roll(np.arange(len(X)), 1)
        changed = np.zeros((len(names), before.shape[1]), dtype=bool)
        for position in range(len(names)):
            # Moved on by one: what depends on the column changes there, unless it is constant on
            # these rows.
            if frame is X:
                moved = X.copy()
                moved[:, position] = X[turned, position]
            else:
                column = frame[:, position]
                moved = frame.with_columns(column[turned.tolist()].alias(column.name)).to_native()

            after = self._encoded(moved)
            is_same = (after == before) | (np.isnan(after) & np.isnan(before))
            changed[position] = ~is_same.all(axis=0)

        shared = changed.sum(axis=0) > 1
        if shared.any():
            mixed = [name for name, row in zip(names, changed[:, shared], strict=True) if row.any()]
            raise MixedColumnsError(
                f"the preprocessing mixes the columns {', '.join(map(repr, mixed))}: "
                f"{shared.sum()} of its {changed.shape[1]} outputs depend on several. Pass "
                "model[-1] and model[:-1].transform(X) instead."
            )

        return {
            name: np.flatnonzero(row).tolist()
            for name, row in zip(names, changed, strict=True)
            if row.any()
        }


class MixedColumnsError(ValueError):
    """A preprocessing makes one column of several."""


class Recipe:
    """A function pickled as what it was made of, since functions inside functions cannot be."""

    def __init__(self, make: Callable[..., Callable[[Any], Any]], *ingredients: Any) -> None:
        self._make = make
        self._ingredients = ingredients
        self._function = make(*ingredients)

    def __call__(self, rows: Any) -> Any:
        """What the function gives."""
        return self._function(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return Recipe, (self._make, *self._ingredients)


def encoder_of(steps: Sequence[Any]) -> Encode:
    """A function from rows, a frame or an array, to the float64 matrix that enters the network."""
    return Recipe(_encode_with, tuple(steps))


def _encode_with(steps: Sequence[Any]) -> Encode:
    names = getattr(steps[0], "feature_names_in_", None)

    def transform(X: TableLike) -> Matrix:
        for step in steps:
            X = step.transform(X)
        dense = X.toarray() if hasattr(X, "toarray") else X
        return np.asarray(dense, dtype=np.float64)

    def encode(X: TableLike) -> Matrix:
        if names is not None and isinstance(X, np.ndarray):
            return transform(framed(X, names))
        if names is None and is_frame(X):
            # Fitted without names: they would warn.
            return transform(nw.from_native(X, eager_only=True).to_numpy())

        try:
            return transform(X)
        except (TypeError, ValueError, AttributeError, NotImplementedError):
            is_polars = type(X).__module__.partition(".")[0] == "polars"
            if not is_polars or importlib.util.find_spec("pandas") is None:
                raise

        # Steps fitted on pandas may know only pandas; what is really wrong fails again, and is
        # seen.
        import pandas as pd

        frame = nw.from_native(X, eager_only=True)
        return transform(pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns}))

    return encode


def framed(X: Matrix, names: Sequence[str]) -> Any:
    """An array as a frame, for steps that were fitted on one, with the names of its columns.

    An error where the number of columns differs, or where pandas is missing.
    """
    if X.shape[1] != len(names):
        known = join_names(map(str, names))
        raise ValueError(
            f"X has {X.shape[1]} columns but the model was fitted on {len(names)}: {known}."
        )
    if importlib.util.find_spec("pandas") is None:
        raise TypeError("the model was fitted on a frame; pass a frame with the same column names.")
    import pandas as pd

    return pd.DataFrame(X, columns=list(names)).infer_objects()


def grouping_rows(X: TableLike) -> Any:
    """Some thousands of rows that tell which columns a preprocessing makes of which.

    For columns with few levels, every level is among them.
    """
    frame = _frame_or_array(X)
    if len(X) <= GROUPING_ROWS:
        return X

    firsts = [_first_rows(frame[:, position]) for position in range(X.shape[1])]
    with_levels = [rows for rows in firsts if rows is not None]
    even = np.linspace(0, len(X) - 1, GROUPING_ROWS).astype(np.int64)
    chosen = np.unique(np.concatenate([even, *with_levels]))
    return X[chosen] if frame is X else frame[chosen.tolist(), :].to_native()


def join_grouping_rows(first: Any, second: Any) -> Any:
    """`grouping_rows` of two tables, both frames of one kind or both arrays."""
    if isinstance(first, np.ndarray):
        return grouping_rows(np.concatenate([first, second]))
    frames = [nw.from_native(table, eager_only=True) for table in (first, second)]
    return grouping_rows(nw.concat(frames).to_native())


def _frame_or_array(X: TableLike) -> Any:
    """A frame as narwhals sees it, or the array itself."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    is_matrix = isinstance(X, np.ndarray) and X.ndim == 2
    if not isinstance(frame, nw.DataFrame) and not is_matrix:
        raise TypeError(
            f"X must be a frame or a 2-D array to group its columns, found {type(X).__name__}."
        )
    return frame


def _first_rows(series: nw.Series[Any] | Matrix) -> Matrix | None:
    """The first row of each distinct value; None where these are more than are kept."""
    if not isinstance(series, np.ndarray):
        if series.dtype != nw.Object:
            firsts = np.flatnonzero(series.is_first_distinct().to_numpy())
            return firsts if len(firsts) <= _LEVELS_KEPT else None
        series = np.asarray(series.to_numpy(), dtype=object)
    if series.dtype.kind != "O":
        firsts = np.unique(series, return_index=True)[1]
        return firsts if len(firsts) <= _LEVELS_KEPT else None

    first_of: dict[Any, int] = {}
    for row, value in enumerate(series):
        first_of.setdefault(value, row)
        if len(first_of) > _LEVELS_KEPT:
            return None
    return np.fromiter(first_of.values(), dtype=np.int64)
