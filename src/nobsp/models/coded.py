"""Functions of numpy rows as torch modules, and frames as matrices and back.

The frames may have categories and missing numbers.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nobsp._typing import AnyArray, TableLike
from nobsp.arguments import as_numpy
from nobsp.frames import is_missing

Array = NDArray[np.float64]
Function = Callable[[Array], Any]
Levels = Mapping[int, Sequence[Any]]

_LAYOUT = ("columns", "names", "levels", "kinds", "absent")

# The code of a missing name.
_MISSING = -1
# What stands for a missing name in columns of Python objects, by the kind of the column: encoders
# tell the two apart.
_GAPS: dict[str, Any] = {"object with None": None, "object with NaN": float("nan")}


class Coded:
    """Turns rows into a matrix: codes for names, and marks for numbers that may be missing.

    For each column of such numbers, a second column says where they are missing.

    Levels that were not there at calibration have one code together where a network takes the codes
    as they are (`shares_unseen`). A model that is given the levels back gets the very ones: their
    codes hold while `unseen_levels()` does, and nothing of them is kept here.
    """

    def __init__(
        self,
        columns: int,
        names: Sequence[str] | None,
        levels: Levels,
        kinds: Mapping[int, str],
        absent: Sequence[int],
        *,
        shares_unseen: bool = False,
    ) -> None:
        self.columns = columns
        self.names = None if names is None else tuple(names)
        # A file has its keys as texts.
        self.levels = {int(k): list(known) for k, known in levels.items()}
        self.kinds = {int(k): kind for k, kind in kinds.items()}
        self.absent = tuple(int(k) for k in absent)
        self.shares_unseen = shares_unseen
        self._code_of = {
            k: {level: code for code, level in enumerate(known)} for k, known in self.levels.items()
        }

    @classmethod
    def of(
        cls, X: TableLike, *, missing: bool, text: bool = True, shares_unseen: bool = False
    ) -> Coded | None:
        """What a table needs; None where it is a matrix of finite numbers already."""
        table = _Table.of(X)
        if table is None:
            return None
        levels: dict[int, list[Any]] = {}
        kinds: dict[int, str] = {}
        absent: list[int] = []
        for k, column in enumerate(table.columns):
            named = _names_in(column)
            if named is None:
                if missing and _has_gaps(_as_array(column)):
                    absent.append(k)
                continue
            if named.kind != "category" and not text:
                return None  # whatever reads the table next says which column is not numbers
            levels[k] = named.levels
            kinds[k] = named.kind

        if not levels and not absent:
            return None
        return cls(
            len(table.columns), table.names, levels, kinds, absent, shares_unseen=shares_unseen
        )

    @property
    def layout(self) -> dict[str, Any]:
        """What `Coded.from_layout` makes the same again from."""
        levels = {k: list(known) for k, known in self.levels.items()}
        return {**{name: getattr(self, name) for name in _LAYOUT}, "levels": levels}

    @property
    def names_of_levels(self) -> list[str]:
        """The columns that hold names, not numbers."""
        return [str(k) if self.names is None else self.names[k] for k in self.levels]

    @property
    def names_of_gaps(self) -> list[str]:
        """The columns of numbers of which some are missing."""
        return [str(k) if self.names is None else self.names[k] for k in self.absent]

    @classmethod
    def from_layout(cls, layout: Mapping[str, Any], *, shares_unseen: bool = False) -> Coded:
        """The same as the one whose layout it is."""
        return cls(*(layout[name] for name in _LAYOUT), shares_unseen=shares_unseen)

    def __call__(self, X: TableLike) -> Array:
        """Rows as a matrix of finite numbers.

        First come the columns, then, for each that may have missing numbers, a column that says
        where they are.
        """
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if isinstance(frame, nw.DataFrame):
            columns = [np.asarray(frame[:, k].to_numpy()) for k in range(len(frame.columns))]
        else:
            rows = np.asarray(X)
            columns = [rows[:, k] for k in range(rows.shape[1])]
        if len(columns) != self.columns:
            raise ValueError(
                f"X has {len(columns)} columns but the model was calibrated on {self.columns}."
            )

        matrix = np.empty((len(columns[0]), self.columns + len(self.absent)))
        for k, column in enumerate(columns):
            matrix[:, k] = self._codes(k, column) if k in self.levels else _floats(column)
        for number, k in enumerate(self.absent):
            is_absent = np.isnan(matrix[:, k])
            matrix[:, self.columns + number] = is_absent
            matrix[is_absent, k] = 0.0
        return matrix

    def back(self, matrix: Array) -> Any:
        """The matrix as the model was given rows: a frame where columns have names, or an array."""
        columns: dict[int, Any] = {k: matrix[:, k] for k in range(self.columns)}
        for number, k in enumerate(self.absent):
            is_absent = matrix[:, self.columns + number] > 0.5
            columns[k] = np.where(is_absent, np.nan, columns[k])
        for k in self.levels:
            columns[k] = self._names(k, matrix[:, k])

        if self.names is not None:
            import pandas as pd

            return pd.DataFrame({name: columns[k] for k, name in enumerate(self.names)})
        kind = object if self.levels else np.float64
        return np.column_stack([np.asarray(columns[k], dtype=kind) for k in range(self.columns)])

    def _codes(self, k: int, column: AnyArray) -> Array:
        """The code of each name in a column."""
        code_of = self._code_of[k]
        codes = np.full(len(column), float(_MISSING))
        for row, value in enumerate(column.tolist()):
            if is_missing(value):
                continue
            code = code_of.get(value)
            codes[row] = self._code_of_unseen(k, value) if code is None else code
        return codes

    def _code_of_unseen(self, k: int, value: Any) -> int:
        first = len(self.levels[k])
        if self.shares_unseen:
            return first
        unseen = current_unseen_levels()
        if unseen is None:
            column = k if self.names is None else self.names[k]
            raise ValueError(
                f"column {column!r} has the level {value!r}, which was not among the calibration "
                "rows; pass one that was."
            )
        return first + unseen.number(k, value)

    def _names(self, k: int, codes: Array) -> Any:
        """The names that codes stand for, as the model was given them."""
        unseen = current_unseen_levels()
        levels = list(self.levels[k])
        if unseen is not None:
            levels += unseen.of_column(k)
        positions = codes.round().astype(np.intp)
        if self.names is not None and self.kinds[k] == "category":
            import pandas as pd

            return pd.Categorical.from_codes(positions, categories=levels)

        # The last position is that of a missing name.
        gap = _GAPS.get(self.kinds[k])
        values = np.array([*levels, gap], dtype=object)[positions]
        if self.names is not None and self.kinds[k] in _GAPS:
            import pandas as pd

            # An array of texts would become one of its own kind.
            return pd.Series(values, dtype=object)
        return values


class _Names(NamedTuple):
    """What a column of names holds."""

    levels: list[Any]
    kind: str


class _Table(NamedTuple):
    """Columns of a frame or a matrix."""

    columns: list[Any]  # series of narwhals, or arrays
    names: list[str] | None

    @classmethod
    def of(cls, X: TableLike) -> _Table | None:
        """The columns; None where `X` is neither a frame nor a matrix, or names stand twice.

        Whatever reads it next reports what is wrong.
        """
        try:
            frame = nw.from_native(X, eager_only=True, pass_through=True)
        except nw.exceptions.DuplicateError:
            return None
        if isinstance(frame, nw.DataFrame):
            columns = [frame[:, k] for k in range(frame.shape[1])]
            return cls(columns, [str(name) for name in frame.columns])
        if isinstance(X, np.ndarray) and X.ndim == 2:
            return cls(list(X.T), None)
        return None


def _as_array(column: Any) -> AnyArray:
    """A column as an array."""
    return np.asarray(column.to_numpy() if isinstance(column, nw.Series) else column)


def _names_in(column: Any) -> _Names | None:
    """Levels and kind of a series or an array that holds names; None for numbers."""
    is_series = not isinstance(column, np.ndarray)
    if is_series and isinstance(column.dtype, nw.Categorical | nw.Enum):
        return _Names(_categories(column), "category")
    if not _holds_names(column):
        return None
    values = column.to_numpy() if is_series else column
    try:
        known = {value for value in values.tolist() if not is_missing(value)}
    except TypeError as failure:  # lists and the like, which have no place among names
        raise TypeError(
            f"X has a column of values that are neither numbers nor names ({failure})."
        ) from failure
    kind = _kind_of_names(column.to_native() if is_series else column)
    return _Names(sorted(known, key=str), kind)


def _has_gaps(column: AnyArray) -> bool:
    """Whether a number of a column is missing."""
    return bool(np.isnan(_floats(column)).any())


def _categories(series: nw.Series[Any]) -> list[Any]:
    """A categorical column's levels in the order of their codes."""
    known = getattr(getattr(series.to_native(), "cat", None), "categories", None)
    if known is not None:
        return list(known)
    if isinstance(series.dtype, nw.Enum):
        return list(series.dtype.categories)
    return sorted(series.drop_nulls().unique().to_list(), key=str)


def _kind_of_names(column: Any) -> str:
    """Which kind of column of names it is; of Python objects also what stands for a missing one."""
    if getattr(column, "dtype", None) != np.dtype(object):
        return "object"
    gaps = [value for value in column.tolist() if is_missing(value)]
    if any(value is None for value in gaps):
        return "object with None"
    return "object with NaN" if any(isinstance(value, float) for value in gaps) else "object"


def _holds_names(column: Any) -> bool:
    """Whether a column is neither numbers nor truth values.

    An array of objects counts as such where there is a text among them.
    """
    if isinstance(column, np.ndarray):
        has_objects = column.dtype.kind in "OU"
        return has_objects and any(isinstance(value, str) for value in column.tolist())
    return not column.dtype.is_numeric() and not isinstance(column.dtype, nw.Boolean)


def _floats(column: AnyArray) -> Array:
    """A column as numbers, NaN for None and for a missing value of pandas' own types."""
    if column.dtype.kind == "O":
        numbers = [np.nan if is_missing(value) else value for value in column.tolist()]
        column = np.array(numbers, dtype=np.float64)
    return column.astype(np.float64)


class Runs(nn.Module):
    """Runs a function on float64 rows.

    With `weight` its values enter a linear head; without, they are the outputs.

    A table of whole numbers alone holds codes, unless the function `takes_numbers`.
    """

    # The function was there before this module, so that nothing leads from it back here: a stand-in
    # needs no search through the objects of a model, which may be hundreds of thousands.
    refers_to_no_module = True

    def __init__(
        self,
        function: Function,
        *,
        weight: Array | None = None,
        bias: Array | None = None,
        about: bytes = b"",
        takes_numbers: bool = False,
    ) -> None:
        super().__init__()
        self.function = function
        self.takes_numbers = takes_numbers
        self.head = None if weight is None else linear(weight, bias)
        digest = np.frombuffer(hashlib.sha256(about).digest(), dtype=np.uint8).copy()
        self.register_buffer("digest", torch.from_numpy(digest))
        # Rows are given in the precision of the first floating tensor: whole double numbers.
        self.register_buffer("precision", torch.zeros(0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Values, or what the head makes of them."""
        if self.takes_numbers and not x.is_floating_point():
            # As a linear layer does, which tells that whole numbers are no codes.
            raise TypeError(f"rows must be floating-point numbers, found {x.dtype}.")
        answers = self.function(np.ascontiguousarray(x.detach().cpu().numpy()))
        values = torch.from_numpy(np.array(numbers_of(answers, len(x)), dtype=np.float64))
        return values if self.head is None else self.head(values)


def linear(weight: Array, bias: Array | None = None) -> nn.Linear:
    """A linear layer with given weights in float64, without drawing random numbers."""
    outputs, width = weight.shape
    layer = nn.Linear(width, outputs, dtype=torch.float64, device="meta").to_empty(device="cpu")
    shift = np.zeros(outputs) if bias is None else bias
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.array(weight, dtype=np.float64)))
        layer.bias.copy_(torch.from_numpy(np.array(shift, dtype=np.float64)))
    return layer


def numbers_of(returned: Any, rows: int) -> Array:
    """What a function returned as (rows, outputs), or an error that says what it was."""
    try:
        values = as_numpy(returned).astype(np.float64)
    except (TypeError, ValueError) as failure:
        raise TypeError(
            f"the model returned a {type(returned).__name__} that is not numbers ({failure})."
        ) from failure
    if values.ndim == 0 or len(values) != rows:
        raise ValueError(
            f"the model returned shape {values.shape} for {rows} rows; it must return one for each."
        )
    return values.reshape(rows, -1)


def log_odds(probabilities: Array) -> Array:
    """Log-odds of the second of two classes, or centred logarithms for several.

    Probabilities of 0 are taken as 1e-12.
    """
    return odds_of_logs(np.log(np.clip(probabilities, 1e-12, None)))


def odds_of_logs(logs: Array) -> Array:
    """The same from logarithms, to which every row may have added a number of its own."""
    if logs.shape[1] == 2:
        return logs[:, 1:] - logs[:, :1]
    centred: Array = logs - logs.mean(1, keepdims=True)
    return centred


# -------------------------------------------------------------- levels that calibration did not see


@dataclass(eq=False)
class UnseenLevels:
    """By column the levels that were met, in the order of their codes."""

    _numbers: dict[int, dict[Hashable, int]] = field(default_factory=dict)

    def number(self, column: int, level: Hashable) -> int:
        """How many other unseen levels of the column came before this one."""
        numbers = self._numbers.setdefault(column, {})
        return numbers.setdefault(level, len(numbers))

    def of_column(self, column: int) -> list[Hashable]:
        """The levels of a column, each at the position that is its number."""
        return list(self._numbers.get(column, ()))


class _Current(threading.local):
    """What this thread is in the middle of; rows are encoded and run by the same thread."""

    levels: UnseenLevels | None = None


_current = _Current()


@contextmanager
def unseen_levels() -> Iterator[UnseenLevels]:
    """Gives codes to levels that calibration did not see.

    The codes hold until the end of the block, in this thread.
    """
    before = _current.levels
    levels = UnseenLevels()
    try:
        _current.levels = levels
        yield levels
    finally:
        _current.levels = before


def current_unseen_levels() -> UnseenLevels | None:
    """The levels of the block that this thread is in; None outside of any."""
    return _current.levels
