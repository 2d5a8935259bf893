"""The caller's columns: what each of them holds, and how they become the network's input."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
import torch
from torch import Tensor

from nobsp._typing import AnyArray, ArrayLike, FloatArray, Frame, TableLike
from nobsp.arguments import suggest
from nobsp.frames import frame_of, is_missing, match_columns
from nobsp.network.adapted import Adapted, grouping_rows
from nobsp.network.inputs import (
    MOST_CODES,
    MOST_LEVELS,
    Features,
    Summary,
    resolve_features,
)
from nobsp.tabular.lookup import value_rows

# What a caller may say about features: their names, or names with the columns of each.
FeatureOption = Sequence[str] | Mapping[str, Any] | None

# Distinct numbers of a column that are kept, for encoders that know no others; a one-hot group is seldom wider.
_MOST_NUMBERS = 4096
# Baselines that are words, and are worked out from the rows.
_BASELINE_WORDS = ("mean", "zero", "median", "mode")


@dataclass(frozen=True, eq=False)
class Seen:
    """What one of the caller's columns holds, missing values aside."""

    numeric: bool  # whether it holds numbers or booleans only
    # its distinct values in order; None where these are too many numbers, or not asked for
    levels: list[Any] | None
    # a value that may stand in the other columns while one feature is encoded: one that occurs
    typical: Any
    span: tuple[float, ...]  # smallest and largest number; empty without any
    # numbers that follow their distribution; all distinct ones where they are few
    quantiles: FloatArray

    def merge(self, other: Seen, most: int) -> Seen:
        """The column of two shares of a table; one that is text in either is text."""
        ends = [*self.span, *other.span]
        span = (min(ends), max(ends)) if ends else ()
        if self.numeric != other.numeric:
            text = other if self.numeric else self
            return replace(text, span=span)

        quantiles = np.unique(np.concatenate([self.quantiles, other.quantiles]))
        levels = self._merge_levels(other, most)
        return replace(self, levels=levels, span=span, quantiles=quantiles)

    def _merge_levels(self, other: Seen, most: int) -> list[Any] | None:
        """Levels of two shares in order; None where either has none, or they are too many numbers."""
        if self.levels is None or other.levels is None:
            return None
        levels = [*self.levels, *other.levels]
        if not self.numeric:
            return _in_order(levels)
        numbers = sorted(set(levels))[:MOST_CODES]
        return None if len(numbers) > most else numbers


@dataclass(frozen=True, eq=False)
class Columns:
    """How the caller's table becomes the network's input, feature by feature."""

    features: Features  # the features, with columns of the *encoded* input
    names: tuple[str, ...] | None  # names of the caller's columns, where they have any
    count: int  # how many columns the caller's table has
    members: tuple[tuple[int, ...], ...]  # per feature, the caller's columns it stands for
    seen: tuple[Seen, ...] = ()  # what each of the caller's columns holds; empty without encoder

    def column(self, feature: int) -> Seen | None:
        """What a feature's own column holds; None for several columns, and without encoder."""
        members = self.members[feature]
        if not self.seen or len(members) != 1:
            return None
        return self.seen[members[0]]

    def texts(self, feature: int) -> list[Any]:
        """The values of a feature whose own column is not numeric; none for others."""
        column = self.column(feature)
        if column is None or column.numeric:
            return []
        return column.levels or []

    def merge(self, other: Columns) -> Columns:
        """The columns of two shares of a table, with the levels and ranges of both."""
        most_levels = _most_levels(self.members, self.features.columns)
        merged = []
        for position, (mine, theirs) in enumerate(zip(self.seen, other.seen, strict=True)):
            merged.append(mine.merge(theirs, most_levels.get(position, 0)))
        return replace(self, seen=tuple(merged))


def _most_levels(
    members: Sequence[Sequence[int]], encoded: Sequence[Sequence[int]]
) -> dict[int, int]:
    """By the caller's column that is a feature, most numbers kept of it: an encoder may know no value in between."""
    most = {}
    for group, columns in zip(members, encoded, strict=True):
        if len(group) == 1:
            most[group[0]] = min(_MOST_NUMBERS, max(MOST_LEVELS, len(columns) + 1))
    return most


# ---------------------------------------------------------------------- which columns make a feature


def columns_of(
    X: TableLike,
    adapted: Adapted,
    features: FeatureOption,
    *,
    width: int,
    names: Sequence[str] | None,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> Columns:
    """Settles the features for a table and a model.

    `groups` are the columns that a preprocessing makes of each of the caller's, where they are known already.
    """
    if adapted.resolve is not None:
        features = adapted.resolve(features)
    if adapted.encode is None:
        return _plain_columns(adapted, features, width=width, names=names)

    X, frame = whole_table(X, adapted)
    if groups is None:
        groups = adapted.groups(grouping_rows(X))
    return _encoded_columns(X, frame, adapted, features, names=names, groups=groups)


def _plain_columns(
    adapted: Adapted, features: FeatureOption, *, width: int, names: Sequence[str] | None
) -> Columns:
    """Columns that the network takes as they are."""
    known = names if names is not None else adapted.feature_names
    resolved = resolve_features(features, columns=width, names=known)
    if known is None and features is not None and not isinstance(features, Mapping):
        # A frame that is explained later is matched to the names of this option.
        known = resolved.names
    return Columns(
        features=resolved,
        names=None if known is None else tuple(known),
        count=width,
        members=resolved.columns,
    )


def _encoded_columns(
    X: TableLike,
    frame: Frame | None,
    adapted: Adapted,
    features: FeatureOption,
    *,
    names: Sequence[str] | None,
    groups: Mapping[str, Sequence[int]],
) -> Columns:
    """Columns that a preprocessing encodes, with what each of them holds."""
    known = adapted.feature_names or names
    own_names = tuple(known or (f"x{i}" for i in range(X.shape[1])))
    resolved = resolve_features(features, columns=len(own_names), names=own_names)

    encoded = []
    for members in resolved.columns:
        of_members = [groups.get(own_names[member], ()) for member in members]
        encoded.append(tuple(column for columns in of_members for column in columns))

    most_levels = _most_levels(resolved.columns, encoded)
    seen = []
    for position, name in enumerate(own_names):
        seen.append(_look_at(X, frame, position, name, most_levels.get(position, 0)))

    return Columns(
        features=Features(resolved.names, tuple(encoded)),
        names=tuple(known) if known else None,
        count=len(own_names),
        members=resolved.columns,
        seen=tuple(seen),
    )


def whole_table(X: TableLike, adapted: Adapted) -> tuple[TableLike, Frame | None]:
    """A table for a scikit-learn pipeline, its columns in the order of the pipeline, and as narwhals sees it."""
    frame = frame_of(X)
    if frame is not None:
        frame = match_columns(frame, argument="X", columns=adapted.feature_names)
        return frame.to_native(), frame
    if isinstance(X, np.ndarray):
        return X, None
    raise TypeError(
        f"X must be one frame or array where the model is a pipeline, found {type(X).__name__}."
    )


# ---------------------------------------------------------------------- what a column holds


def _look_at(X: TableLike, frame: Frame | None, position: int, name: str, most: int) -> Seen:
    """What is in one column, with at most so many numbers as levels; no other column is looked at meanwhile."""
    if frame is None:
        values = np.asarray(X[:, position])
        if values.dtype.kind in "biuf":
            return _see_numbers(values, most)
        return _see_names(_count_objects(values), values.tolist(), name, most)

    series = frame[:, position].alias("value")
    if series.dtype.is_numeric() or series.dtype == nw.Boolean:
        return _see_numbers(np.asarray(series.drop_nulls().to_numpy()), most)
    if series.dtype == nw.Object:
        objects = series.to_numpy()
        return _see_names(_count_objects(objects), objects.tolist(), name, most)

    counts = series.drop_nulls().value_counts(name="times")
    times = dict(zip(counts["value"].to_list(), counts["times"].to_list(), strict=True))
    absent = series.filter(series.is_null()).head(1).to_numpy()
    return _see_names(times, absent.tolist(), name, most)


def _see_names(times: Mapping[Any, int], absent: list[Any], name: str, most: int) -> Seen:
    """A column of text or objects: how often each occurs, and values among which missing ones are."""
    if all(isinstance(value, int | float | np.number | bool) for value in times):
        numbers = np.array(list(times), dtype=np.float64)
        return _see_numbers(np.repeat(numbers, list(times.values())), most)

    levels = sorted(times, key=str)
    if len(levels) > MOST_CODES:
        warnings.warn(
            f"column {name!r} has {len(levels):,} levels, of which only the first {MOST_CODES:,} in order are kept; "
            "leave it out if it numbers the rows.",
            stacklevel=2,
        )
    return Seen(
        numeric=False,
        levels=_in_order([*levels, *absent]) if most else None,
        typical=max(levels, key=times.__getitem__),
        span=(),
        quantiles=np.zeros(0),
    )


def _see_numbers(column: AnyArray, most: int) -> Seen:
    """A column of numbers."""
    values = column.astype(np.float64)
    values = np.sort(values[~np.isnan(values)])
    if len(values) == 0:
        return Seen(numeric=True, levels=[], typical=float("nan"), span=(), quantiles=values)

    is_new = np.concatenate([[True], values[1:] != values[:-1]])
    levels = values[is_new]
    quantiles = levels
    if len(levels) > _MOST_NUMBERS:
        quantiles = np.unique(np.quantile(values, np.linspace(0, 1, _MOST_NUMBERS)))
    return Seen(
        numeric=True,
        levels=levels.tolist() if len(levels) <= most else None,
        # Not the average of two: an encoder may know only the values it has seen.
        typical=float(values[len(values) // 2]),
        span=(float(values[0]), float(values[-1])),
        quantiles=quantiles,
    )


def _in_order(levels: list[Any]) -> list[Any]:
    """Names in order, up to as many as are kept, and the value that stands for none where there is one."""
    missing = [value for value in levels if is_missing(value)]
    names = {value for value in levels if not is_missing(value)}
    return sorted(names, key=str)[:MOST_CODES] + missing[:1]


def _count_objects(column: AnyArray) -> Counter[Any]:
    """How often each value occurs, missing ones aside."""
    return Counter(value for value in np.asarray(column, dtype=object) if not is_missing(value))


# ---------------------------------------------------------------------- the caller's values as the network takes them


def input_values(columns: Columns, adapted: Adapted, feature: int, values: ArrayLike) -> Tensor:
    """Values of one feature, as the caller writes them, as columns of the network's input."""
    name = columns.features.names[feature]
    rows = value_rows(values, len(columns.members[feature]), name)
    encoded_columns = columns.features.columns[feature]

    if adapted.encode is None:
        try:
            inputs = np.asarray(rows, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"values of {name!r} must be numbers ({error}).") from error
    elif len(rows) == 0 or not encoded_columns:
        inputs = np.zeros((len(rows), len(encoded_columns)))
    else:
        inputs = _encode_values(columns, adapted, feature, rows)

    if not np.isfinite(inputs).all():
        raise ValueError(f"values of {name!r} must be finite, found NaN or infinity.")
    return torch.tensor(inputs, dtype=torch.float64)


def _encode_values(
    columns: Columns, adapted: Adapted, feature: int, values: AnyArray
) -> FloatArray:
    """Values of one feature through the preprocessing, with typical values in the other columns."""
    assert adapted.encode is not None
    typical = [column.typical for column in columns.seen]
    rows = np.tile(np.array(typical, dtype=object), (len(values), 1))
    rows[:, list(columns.members[feature])] = values
    try:
        if not any(isinstance(value, str) for value in typical):
            rows = rows.astype(np.float64)
        encoded = adapted.encode(rows)
    except (TypeError, ValueError) as error:
        name = columns.features.names[feature]
        raise ValueError(
            f"values of {name!r} do not pass the model's preprocessing ({error})."
        ) from error
    inputs: FloatArray = encoded[:, list(columns.features.columns[feature])]
    return inputs


def input_baseline(columns: Columns, adapted: Adapted, baseline: Any) -> Any:
    """A baseline in the caller's units as one for the network's input; words such as "mean" stay."""
    if adapted.encode is None or isinstance(baseline, str):
        return baseline
    if isinstance(baseline, Mapping):
        return {
            name: _feature_baseline(columns, adapted, name, value)
            for name, value in baseline.items()
        }

    row = np.asarray(baseline, dtype=object).ravel()
    if len(row) != columns.count:
        raise ValueError(
            f"baseline has {len(row)} values but the table has {columns.count} columns; pass one each."
        )
    by_name = {}
    for feature, name in enumerate(columns.features.names):
        own = row[list(columns.members[feature])]
        by_name[name] = input_values(columns, adapted, feature, own[None])[0].numpy()
    return by_name


def _feature_baseline(columns: Columns, adapted: Adapted, name: str, value: Any) -> Any:
    """The baseline of one feature: a word, a level or numbers."""
    feature = columns.features.index(name, argument="baseline")
    levels = columns.texts(feature)
    if isinstance(value, str) and value not in levels:
        if value in _BASELINE_WORDS or not levels:
            return value
        raise ValueError(
            f"baseline for {name!r} is {value!r}, which was not seen; {suggest(value, levels)}"
        )
    row = np.asarray(value, dtype=object).ravel()
    return input_values(columns, adapted, feature, row[None]).numpy()[0]


# ---------------------------------------------------------------------- categories


def categories_of(
    columns: Columns, summary: Summary, embedded: Sequence[int], *, integer: bool
) -> frozenset[int]:
    """Features whose mean is no possible value: embedded codes, text, groups of two-valued columns (one-hot)."""
    categories = {feature for feature in range(len(columns.features)) if columns.texts(feature)}
    for feature, group in enumerate(columns.features.columns):
        if integer or any(column in embedded for column in group):
            categories.add(feature)
            counted = summary.codes.get(feature, ())
            if feature not in summary.levels and len(counted) < len(group):
                warnings.warn(
                    f"the codes of feature {columns.features.names[feature]!r} are not whole, or span more than the "
                    f"{MOST_CODES:,} that are counted; codes that calibration did not see will not be refused.",
                    stacklevel=2,
                )
        elif len(group) > 1 and bool(summary.two_valued[list(group)].all()):
            categories.add(feature)
    return frozenset(categories)


def level_labels(columns: Columns, feature: int, levels: Tensor) -> list[str]:
    """What to call each level of a feature: its number, the one-hot columns that are on, or all its values."""
    members = columns.members[feature]
    if len(members) == 1:
        return [f"{value:g}" for value in levels[:, 0].tolist()]

    names = [columns.names[member] if columns.names else f"x{member}" for member in members]
    has_two_values = [len(torch.unique(column)) <= 2 for column in levels.T]
    if all(has_two_values):
        return _labels_of_flags(names, levels)

    labels = []
    for row in levels.tolist():
        values = [f"{name}={value:g}" for name, value in zip(names, row, strict=True)]
        labels.append(", ".join(values))
    return labels


def _labels_of_flags(names: Sequence[str], levels: Tensor) -> list[str]:
    """Levels of one-hot columns by the names of those that are on."""
    largest = levels.amax(0)
    is_on = (levels == largest) & (largest > levels.amin(0))

    labels = []
    for row in is_on.tolist():
        names_on = [name for name, on in zip(names, row, strict=True) if on]
        labels.append(" + ".join(names_on) or "(none)")
    return labels
