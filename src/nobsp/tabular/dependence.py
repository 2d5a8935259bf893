"""Features that rows cannot tell apart: correlated ones, and those that others determine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from nobsp._typing import AnyArray, FloatArray, TableLike
from nobsp.arguments import refuse_unreadable, require_number
from nobsp.frames import frame_of, take_rows
from nobsp.numerics import as_numpy, evenly_spaced
from nobsp.tabular.features import Domain
from nobsp.tabular.lookup import LevelAxis
from nobsp.tabular.setting import Sample

# Rows that tell which columns are correlated.
_LOOKED_AT = 2048
# Names of columns that the name of a group spells out; of larger groups it has the first, and their number.
_SPELLED_OUT = 3


def ranks(x: FloatArray) -> FloatArray:
    """Positions in order, equal values sharing theirs."""
    _, position, counts = np.unique(x, return_inverse=True, return_counts=True)
    middle_of_ties = np.cumsum(counts) - (counts - 1) / 2
    shared: FloatArray = middle_of_ties[position]
    return shared


def suggest_features(X: TableLike, *, correlation: float = 0.9) -> dict[str, list[Any]]:
    """Correlated columns put together as `features` takes them: a suggestion to look at.

    Rows cannot tell such columns apart; together they have the effect that all of them have. In return a group of
    numbers has no curve and no table: every row explained takes 8 more forward rows for it, and compiled explainers
    and what-if pages leave it out.

    Args:
        X: FloatArray, tensor or frame, of which 2,048 rows are looked at. Columns that hold no numbers stay alone.
        correlation: The least that the ranks of any two columns of a group are correlated, either way. It takes 8
            bytes for every two columns.

    Returns:
        Names of features and their columns, by name where the table has names. Every column is in one.

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
            f"X must be an array, a tensor or a frame with rows, found {getattr(X, 'shape', type(X))}."
        )

    try:
        looked_at = take_rows(X, evenly_spaced(X.shape[0], _LOOKED_AT))
        keys, columns = _read_columns(looked_at)
    except nw.exceptions.DuplicateError as duplicate:
        raise ValueError("X has two columns of the same name; rename one.") from duplicate
    groups = _correlated_groups(columns, correlation)
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


def _cluster(ranked: Mapping[int, FloatArray], least: float) -> dict[int, int]:
    """By column the number of its cluster; complete linkage, so that any two of a cluster are correlated."""
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


# ---------------------------------------------------------------------- features that others determine


# R² on the other features from which a column counts as determined by them.
DETERMINED = 0.995
# Fewest rows for every column that is compared, and most columns.
_ROWS_EACH = 10
_MOST_COLUMNS = 200
# A level, or a value that a number repeats, counts where this share of the rows has it, and this share has not.
_SHARE_OF_LEVEL = 0.02
# Most features that are named as those which determine another.
_MOST_NAMED = 3


@dataclass(frozen=True)
class Determined:
    """A feature that others determine."""

    feature: int
    by: tuple[int, ...]
    share: float  # R² on those
    level: str  # the level or value that is determined; empty where all of the feature is


@dataclass(frozen=True, eq=False)
class _Column:
    feature: int
    level: str
    values: FloatArray  # standardised


def find_determined(domains: Sequence[Domain], sample: Sample) -> list[Determined]:
    """Features that others determine, each set of features once."""
    columns = _columns_of(domains, sample)
    if not 2 <= len(columns) <= min(_MOST_COLUMNS, len(sample) // _ROWS_EACH):
        return []

    matrix = np.stack([column.values for column in columns], 1)
    correlation = matrix.T @ matrix / len(matrix)
    owners = np.array([column.feature for column in columns])
    determined: list[Determined] = []
    named: set[frozenset[int]] = set()
    for position, column in enumerate(columns):
        others = np.flatnonzero(owners != column.feature)
        if _share(correlation, position, others) < DETERMINED:
            continue
        by, share = _smallest_set(correlation, position, owners)
        members = frozenset((column.feature, *by))
        if share >= DETERMINED and members not in named:
            named.add(members)
            determined.append(Determined(column.feature, by, share, column.level))
    return determined


def _columns_of(domains: Sequence[Domain], sample: Sample) -> list[_Column]:
    """Numbers, the values that they repeat, and levels, as standardised columns."""
    chunk = sample.chunk()
    columns: list[_Column] = []

    def add(feature: int, level: str, values: FloatArray) -> None:
        spread = values.std()
        if spread > 0:
            columns.append(_Column(feature, level, (values - values.mean()) / spread))

    def add_level(feature: int, level: str, has_it: NDArray[np.bool_]) -> None:
        if _SHARE_OF_LEVEL <= has_it.mean() <= 1 - _SHARE_OF_LEVEL:
            add(feature, level, has_it.astype(np.float64))

    for feature, domain in enumerate(domains):
        if isinstance(domain.levels, LevelAxis):
            places = chunk.places(domain.levels)[0]
            for level_number, label in enumerate(domain.feature.labels[: len(domain.levels)]):
                add_level(feature, str(label), places == level_number)
        elif domain.span is not None:
            values = chunk.numbers(domain.feature.columns[0]).astype(np.float64)
            known = np.isfinite(values)
            if not known.any():
                continue
            add(feature, "", np.where(known, values, values[known].mean()))
            repeated, counts = np.unique(values[known], return_counts=True)
            if len(repeated) > 2 and counts.max() >= 0.1 * len(values):
                most_frequent = repeated[counts.argmax()]
                add_level(feature, f"{most_frequent:g}", values == most_frequent)
    return columns


def _share(correlation: FloatArray, target: int, others: NDArray[np.intp]) -> float:
    """R² of a column on others."""
    if not len(others):
        return 0.0
    system = correlation[np.ix_(others, others)] + 1e-9 * np.eye(len(others))
    cross = correlation[others, target]
    return float(cross @ np.linalg.solve(system, cross))


def _smallest_set(
    correlation: FloatArray, target: int, owners: NDArray[np.intp]
) -> tuple[tuple[int, ...], float]:
    """Features that determine a column, the most telling first, and their R²."""
    candidates = [feature for feature in np.unique(owners).tolist() if feature != owners[target]]
    chosen: list[int] = []
    share = 0.0
    while share < DETERMINED and len(chosen) < _MOST_NAMED and candidates:
        shares = [
            _share(correlation, target, np.flatnonzero(np.isin(owners, [*chosen, candidate])))
            for candidate in candidates
        ]
        best = int(np.argmax(shares))
        share = shares[best]
        chosen.append(candidates.pop(best))
    return tuple(chosen), share
