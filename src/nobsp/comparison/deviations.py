"""How functions would deviate if they had been calibrated on other rows of the same kind.

Deviations are read on some rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nobsp._typing import FloatArray, TableLike
from nobsp.frames import take_rows
from nobsp.numerics import evenly_spaced
from nobsp.tabular.explanation import Explanation, carry_over
from nobsp.tabular.functions import Functions, resampled_deviations
from nobsp.tabular.indexing import Term
from nobsp.tabular.lookup import Chunk, TermTable, read_columns

# Rows on which deviations are read: their means change little with more.
MOST_ROWS = 2048
# Probabilities are kept so far from 0 and 1 that their log-odds are numbers.
_LEAST = 1e-12


class Deviations:
    """Deviations of an account's functions, on some of its rows or on those of another account."""

    def __init__(self, account: Explanation, rows: Explanation, weights: FloatArray) -> None:
        self.positions = evenly_spaced(len(rows), MOST_ROWS)
        self.weights = weights[self.positions] / weights[self.positions].sum()
        self._account = account
        self._stop: FloatArray | None = None
        self._chunk: Chunk | None = None
        self._mix: FloatArray | None = None
        self._copies = {}
        functions = account.origin
        if not isinstance(functions, Functions):
            return
        self._mix = mix_outputs(account, functions)
        if self._mix is None:
            return
        self._copies = dict(resampled_deviations(functions))
        columns, _ = read_columns(functions, _some_rows(rows.data, self.positions))
        self._chunk = Chunk(columns, slice(0, len(self.positions)), functions.column_names)
        if account.scale != "output":
            self._stop = _undo_link(rows.predictions[self.positions], account.link)

    @property
    def known(self) -> bool:
        """Whether there are copies of all functions that do anything."""
        if not self._copies or self._chunk is None:
            return False
        functions: Functions = self._account.origin
        names = functions.feature_names
        # A feature that the model never sees has no axis, and nothing to deviate.
        unused = {table.features for table in functions.tables if not table.axes}
        terms = [tuple(sorted(names.index(name) for name in term)) for term in self._account.terms]
        return all(term in self._copies or term in unused for term in terms)

    @property
    def n_copies(self) -> int:
        """How many copies there are."""
        return len(next(iter(self._copies.values()))) if self._copies else 0

    def of_term(self, term: Term) -> FloatArray | None:
        """Deviations of a term, (rows, copies, outputs); None where they are not known."""
        if self._mix is None or self._chunk is None:
            return None
        functions: Functions = self._account.origin
        names = functions.feature_names
        features = tuple(sorted(names.index(name) for name in term))
        table = next((table for table in functions.tables if table.features == features), None)
        copies = self._copies.get(features)
        if table is None or copies is None:
            return None

        n_copies = len(copies)
        n_outputs = len(functions.output_names)
        nodes = np.moveaxis(np.asarray(copies, dtype=np.float64), 0, 1).reshape(
            *table.values.shape[:-1], n_copies * n_outputs
        )
        values = TermTable(table.features, table.axes, nodes)(self._chunk)
        values = np.nan_to_num(values.reshape(len(values), n_copies, n_outputs))
        if self._stop is not None:
            return carry_over(values, functions.base_values, self._stop, self._account.link)
        return np.asarray(values @ self._mix)


def _some_rows(data: TableLike, positions: np.ndarray[tuple[int], np.dtype[np.intp]]) -> TableLike:
    return take_rows(data, positions)


def mix_outputs(account: Explanation, functions: Functions) -> FloatArray | None:
    """Which of the functions' outputs the account's are made of; None where that cannot be told."""
    names = list(functions.output_names)
    columns = []
    for name in account.output_names:
        column = np.zeros(len(names))
        parts = _contrasted(name, names)
        if parts is None:
            return None
        for part, sign in zip(parts, (1.0, -1.0), strict=False):
            column[names.index(part)] += sign
        columns.append(column)
    mix = np.array(columns).T
    is_whole = tuple(account.output_names) == tuple(functions.output_names)
    # Probabilities of some classes only depend on the logits of all, which are not known then.
    return mix if account.scale == "output" or is_whole else None


def _contrasted(name: str, names: Sequence[str]) -> tuple[str, ...] | None:
    """The output of a name, or the two that a contrast is named after."""
    if name in names:
        return (name,)
    for first in names:
        for second in names:
            if name == f"{first} − {second}":
                return first, second
    return None


def _undo_link(probabilities: FloatArray, link: str) -> FloatArray:
    """Outputs of which a link makes these probabilities; for a softmax, up to a shift."""
    if link == "exp":
        return np.asarray(np.log(np.maximum(probabilities, _LEAST)))
    inside = np.clip(probabilities, _LEAST, 1 - _LEAST)
    if link == "sigmoid":
        return np.asarray(np.log(inside) - np.log1p(-inside))
    return np.asarray(np.log(inside))
