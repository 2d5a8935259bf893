"""Features suggested to the caller: columns that the rows cannot tell apart, put together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from nobsp._typing import AnyArray, FloatArray, TableLike
from nobsp.arguments import as_numpy, refuse_unreadable, require_number
from nobsp.frames import distinct_frame_of, frame_of, take_rows
from nobsp.numerics import evenly_spaced
from nobsp.tabular.dependence import one_to_one, ranks

# Rows that tell which columns are correlated.
_LOOKED_AT = 2048
# Names of columns that the name of a group spells out; of larger groups it has the first, and their
# number.
_SPELLED_OUT = 3


def suggest_features(X: TableLike, *, correlation: float = 0.9) -> dict[str, list[Any]]:
    """Correlated columns put together as `features` takes them: a suggestion to look at.

    Rows cannot tell such columns apart; together they have the effect that all of them have. In
    return a group of numbers has no curve and no table: every row explained takes 8 more forward
    rows for it, and compiled explainers and what-if pages leave it out.

    Args:
        X: Array, tensor or frame, of which 2,048 rows are looked at. Columns that hold no numbers
            stay alone, unless their values are one-to-one with those of another column, such as
            the names of codes.
        correlation: The least that the ranks of any two columns of a group are correlated, either
            way. It takes 8 bytes for every two columns.

    Returns:
        Names of features and their columns, by name where the table has names. Every column is in
        one.

    Example:
        >>> import numpy as np
        >>> from nobsp import NObSP
        >>> x = np.random.default_rng(0).normal(size=(500, 3))
        >>> NObSP.suggest_features(np.column_stack([x, -x[:, 0] + 0.01 * x[:, 1]]))
        {'x0 + x3': [0, 3], 'x1': [1], 'x2': [2]}
    """
    require_number("correlation", correlation, above=0, most=1)
    refuse_unreadable(X, name="X")
    if len(getattr(X, "shape", ())) != 2 or not X.shape[0]:
        raise TypeError(
            "X must be an array, a tensor or a frame with rows, found "
            f"{getattr(X, 'shape', type(X))}."
        )

    distinct_frame_of(X, argument="X")
    keys, columns = _read_columns(take_rows(X, evenly_spaced(X.shape[0], _LOOKED_AT)))
    groups = _join_one_to_one(_correlated_groups(columns, correlation), columns)
    names = [f"x{key}" if isinstance(key, int) else str(key) for key in keys]
    return {_name_group(group, names): [keys[k] for k in group] for group in groups}


def _read_columns(X: TableLike) -> tuple[list[Hashable], list[AnyArray]]:
    """How the caller speaks of every column, by name or position, and what it holds."""
    frame = frame_of(X)
    if frame is not None:
        columns = [np.asarray(frame[:, k].to_numpy()) for k in range(X.shape[1])]
        return [str(name) for name in frame.columns], columns
    return list(range(X.shape[1])), list(as_numpy(X).T)


def _correlated_groups(columns: Sequence[AnyArray], least: float) -> list[list[int]]:
    """Positions of columns in groups, of which any two have ranks that are so much correlated."""
    ranked: dict[int, FloatArray] = {}
    for k, column in enumerate(columns):
        if column.dtype.kind in "biuf":
            order = ranks(column.astype(np.float64))
            if np.ptp(order) > 0:
                ranked[k] = order

    groups = {k: [k] for k in range(len(columns))}
    if len(ranked) < 2:
        return list(groups.values())

    first_of: dict[int, int] = {}
    for k, label in _cluster(ranked, least).items():
        first = first_of.setdefault(label, k)
        if first != k:
            groups[first] += groups.pop(k)
    return list(groups.values())


def _join_one_to_one(groups: Sequence[list[int]], columns: Sequence[AnyArray]) -> list[list[int]]:
    """The groups, put together where columns of two of them have values that are one-to-one."""
    codes = {}
    for k, column in enumerate(columns):
        comparable = column if column.dtype.kind in "biuf" else column.astype(str)
        codes[k] = np.unique(comparable, return_inverse=True)[1].astype(np.float64)
    # One and the same list for all of a group, by which those already together are told.
    joined = {column: group for group in groups for column in group}
    for later, earlier in one_to_one(codes, n_rows=len(columns[0])):
        if joined[earlier] is not joined[later]:
            whole = sorted(joined[earlier] + joined[later])
            joined.update(dict.fromkeys(whole, whole))
    return [group for column, group in sorted(joined.items()) if column == group[0]]


def _cluster(ranked: Mapping[int, FloatArray], least: float) -> dict[int, int]:
    """By column the number of its cluster.

    By complete linkage, so that any two columns of a cluster are correlated.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    distances = np.clip(1 - np.abs(np.corrcoef(list(ranked.values()))), 0, None)
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), "complete")
    labels = fcluster(tree, 1 - least, "distance").tolist()
    return dict(zip(ranked, labels, strict=True))


def _name_group(group: Sequence[int], names: Sequence[str]) -> str:
    """What to call a group of columns; not like a column that stands elsewhere."""
    parts = [names[k] for k in group]
    if len(group) > _SPELLED_OUT:
        parts = [parts[0], f"{len(group) - 1} more"]
    name = " + ".join(parts)
    while len(group) > 1 and name in names:
        name = f"({name})"
    return name
