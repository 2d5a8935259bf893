"""Frames with categories and missing numbers as matrices of finite numbers, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Coded:
    """Turns rows into a matrix: codes for names, and for numbers that may be missing a second column that says so."""

    def __init__(
        self,
        columns: int,
        names: Sequence[str] | None,
        levels: Mapping[int, Sequence[Any]],
        kinds: Mapping[int, str],
        absent: Sequence[int],
    ) -> None:
        self.columns, self.names = columns, None if names is None else tuple(names)
        self.levels = {int(k): list(found) for k, found in levels.items()}
        self.kinds, self.absent = {int(k): kind for k, kind in kinds.items()}, tuple(int(k) for k in absent)
        self._places = {k: {level: i for i, level in enumerate(found)} for k, found in self.levels.items()}

    @classmethod
    def of(cls, X: Any, *, missing: bool, text: bool = True) -> Coded | None:
        """What a table needs; None where it is a matrix of finite numbers already."""
        try:
            frame = nw.from_native(X, eager_only=True, pass_through=True)
        except nw.exceptions.DuplicateError:
            return None  # whatever reads the table next says so
        if not isinstance(frame, nw.DataFrame):
            if not (isinstance(X, np.ndarray) and X.ndim == 2):
                return None
            columns = [X[:, k] for k in range(X.shape[1])]
            named = {
                k: sorted({v for v in x.tolist() if isinstance(v, str)})
                for k, x in enumerate(columns)
                if x.dtype.kind in "OU" and any(isinstance(v, str) for v in x.tolist())
            }
            if named and not text:
                return None
            absent = [k for k, x in enumerate(columns) if missing and k not in named and np.isnan(_floats(x)).any()]
            found = cls(X.shape[1], None, named, dict.fromkeys(named, "object"), absent)
            return found if named or absent else None
        levels, kinds, absent = {}, {}, []
        for k in range(len(frame.columns)):
            series = frame[:, k]
            if isinstance(series.dtype, nw.Categorical | nw.Enum):
                levels[k], kinds[k] = _categories(series), "category"
            elif not series.dtype.is_numeric() and not isinstance(series.dtype, nw.Boolean):
                if not text:
                    return None  # whatever reads the table next says which column is not numbers
                levels[k] = sorted((v for v in series.drop_nulls().unique().to_list() if v == v), key=str)
                kinds[k] = "object"
            elif missing and bool(np.isnan(_floats(series.to_numpy())).any()):
                absent.append(k)
        names = [str(name) for name in frame.columns]
        return cls(len(names), names, levels, kinds, absent) if levels or absent else None

    @property
    def layout(self) -> dict[str, Any]:
        """What `Coded.from_layout` makes the same again from."""
        return {
            "columns": self.columns,
            "names": None if self.names is None else list(self.names),
            "levels": {str(k): list(found) for k, found in self.levels.items()},
            "kinds": {str(k): kind for k, kind in self.kinds.items()},
            "absent": list(self.absent),
        }

    @classmethod
    def from_layout(cls, layout: Mapping[str, Any]) -> Coded:
        """The same as the one whose layout it is."""
        levels = {int(k): found for k, found in layout["levels"].items()}
        kinds = {int(k): kind for k, kind in layout["kinds"].items()}
        return cls(layout["columns"], layout["names"], levels, kinds, layout["absent"])

    def __call__(self, X: Any) -> Array:
        """Rows as a matrix of finite numbers: the columns, then for those that may be missing whether they are."""
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if isinstance(frame, nw.DataFrame):
            columns = [np.asarray(frame[:, k].to_numpy()) for k in range(len(frame.columns))]
        else:
            rows = np.asarray(X)
            columns = [rows[:, k] for k in range(rows.shape[1])]
        if len(columns) != self.columns:
            raise ValueError(f"X has {len(columns)} columns but the model was calibrated on {self.columns}")
        found = np.empty((len(columns[0]), self.columns + len(self.absent)))
        for k, column in enumerate(columns):
            found[:, k] = self._codes(k, column) if k in self.levels else _floats(column)
        for place, k in enumerate(self.absent):
            gone = np.isnan(found[:, k])
            found[:, self.columns + place] = gone
            found[gone, k] = 0.0
        return found

    def back(self, matrix: Array) -> Any:
        """The matrix as the model was given rows: a frame where columns have names, else an array."""
        columns: dict[int, Any] = {k: matrix[:, k] for k in range(self.columns)}
        for place, k in enumerate(self.absent):
            columns[k] = np.where(matrix[:, self.columns + place] > 0.5, np.nan, columns[k])
        codes = {k: matrix[:, k].round().astype(np.intp) for k in self.levels}
        if self.names is None:
            rows = np.column_stack([columns[k] for k in range(self.columns)]).astype(object if codes else np.float64)
            for k, code in codes.items():
                rows[:, k] = np.array([*self.levels[k], None], dtype=object)[code]
            return rows
        import pandas as pd

        for k, code in codes.items():
            if self.kinds[k] == "category":
                columns[k] = pd.Categorical.from_codes(code, categories=self.levels[k])
            else:
                columns[k] = np.array([*self.levels[k], None], dtype=object)[code]
        return pd.DataFrame({name: columns[k] for k, name in enumerate(self.names)})

    def _codes(self, k: int, column: NDArray[Any]) -> Array:
        places, levels = self._places[k], self.levels[k]
        codes = np.empty(len(column))
        for row, value in enumerate(column.tolist()):
            if value is None or value != value:
                codes[row] = -1
                continue
            if value not in places:  # the model itself knows what to make of it
                places[value] = len(levels)
                levels.append(value)
            codes[row] = places[value]
        return codes


def _categories(series: nw.Series[Any]) -> list[Any]:
    """A categorical column's levels in the order of their codes."""
    known = getattr(getattr(series.to_native(), "cat", None), "categories", None)
    if known is not None:
        return list(known)
    if isinstance(series.dtype, nw.Enum):
        return list(series.dtype.categories)
    return sorted(series.drop_nulls().unique().to_list(), key=str)


def _floats(column: NDArray[Any]) -> Array:
    if column.dtype.kind == "O":
        column = np.array([np.nan if value is None else value for value in column.tolist()], dtype=np.float64)
    return column.astype(np.float64)
