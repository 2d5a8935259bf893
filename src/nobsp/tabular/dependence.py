"""Features that the others determine: as a linear combination, or through a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nobsp.tabular.features import Domain
from nobsp.tabular.lookup import LevelAxis
from nobsp.tabular.sample import Sample

Array = NDArray[np.float64]

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
    values: Array  # standardised


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

    def add(feature: int, level: str, values: Array) -> None:
        spread = values.std()
        if spread > 0:
            columns.append(_Column(feature, level, (values - values.mean()) / spread))

    def add_level(feature: int, level: str, has_it: NDArray[np.bool_]) -> None:
        if _SHARE_OF_LEVEL <= has_it.mean() <= 1 - _SHARE_OF_LEVEL:
            add(feature, level, has_it.astype(np.float64))

    for feature, domain in enumerate(domains):
        if isinstance(domain.levels, LevelAxis):
            places = chunk.places(domain.levels)[0]
            for place, label in enumerate(domain.feature.labels[: len(domain.levels)]):
                add_level(feature, str(label), places == place)
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


def _share(correlation: Array, target: int, others: NDArray[np.intp]) -> float:
    """R² of a column on others."""
    if not len(others):
        return 0.0
    system = correlation[np.ix_(others, others)] + 1e-9 * np.eye(len(others))
    cross = correlation[others, target]
    return float(cross @ np.linalg.solve(system, cross))


def _smallest_set(
    correlation: Array, target: int, owners: NDArray[np.intp]
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
