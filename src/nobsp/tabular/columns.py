"""The caller's columns beside the network's: names, groups, levels, and values of one feature as input rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.network.adapted import Adapted
from nobsp.network.batches import matched
from nobsp.network.inputs import MOST_CODES, MOST_LEVELS, Features, Summary, resolve_features

# Distinct numbers of a column that are kept, for encoders that know no others; a one-hot group is seldom wider.
_MOST_NUMBERS = 4096


@dataclass(frozen=True, eq=False)
class Columns:
    """How the caller's table becomes the network's input, feature by feature."""

    features: Features  # the features, with columns of the *encoded* input
    names: tuple[str, ...] | None  # names of the caller's columns, where they have any
    count: int  # how many columns the caller's table has
    members: tuple[tuple[int, ...], ...]  # per feature, the caller's columns it stands for
    # per feature whose own column is not numeric, the values it took
    text_levels: dict[int, list[Any]] = field(default_factory=dict)
    # one value per caller's column, to encode the others of a feature with; empty without encoder
    template: tuple[Any, ...] = ()
    # smallest and largest value of each of the caller's numeric columns; empty without encoder
    ranges: tuple[tuple[float, ...], ...] = ()
    # per feature whose own column is numeric, has few values (or no more than a one-hot encoder makes columns) and
    # passes an encoder, those values
    number_levels: dict[int, list[float]] = field(default_factory=dict)
    # per feature of one numeric column that passes an encoder, values that follow its distribution
    quantiles: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def merge(self, other: Columns) -> Columns:
        """The columns of two shares of a table, with the levels and ranges of both."""
        text = {
            feature: sorted({*self.text_levels.get(feature, []), *other.text_levels.get(feature, [])}, key=str)
            for feature in self.text_levels.keys() | other.text_levels.keys()
        }
        numbers = {
            feature: sorted({*self.number_levels[feature], *other.number_levels[feature]})
            for feature in self.number_levels.keys() & other.number_levels.keys()
        }
        # As many as a single table's: a one-hot encoder knows no value in between.
        most = [max(MOST_LEVELS, len(encoded) + 1) for encoded in self.features.columns]
        return replace(
            self,
            text_levels={feature: levels[:MOST_CODES] for feature, levels in sorted(text.items())},
            number_levels={feature: levels for feature, levels in numbers.items() if len(levels) <= most[feature]},
            ranges=tuple(_join_ranges(a, b) for a, b in zip(self.ranges, other.ranges, strict=True)),
            quantiles={
                feature: np.unique(np.concatenate([values, other.quantiles.get(feature, values)]))
                for feature, values in self.quantiles.items()
            },
        )


def _join_ranges(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    """The range of both; a column that is text, or missing, on one side has the other's."""
    if not first or not second:
        return (*first, *second)
    return min(first[0], second[0]), max(first[1], second[1])


def columns_of(
    X: Any,
    adapted: Adapted,
    given: Sequence[str] | Mapping[str, Any] | None,
    *,
    width: int,
    names: Sequence[str] | None,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> Columns:
    """Settles the features for a table and a model."""
    given = given if adapted.resolve is None else adapted.resolve(given)
    if adapted.encode is None:
        known = names if names is not None else adapted.feature_names
        features = resolve_features(given, columns=width, names=known)
        if known is None and given is not None and not isinstance(given, Mapping):
            known = features.names  # a frame that is explained later is matched to the names given here
        return Columns(features, None if known is None else tuple(known), width, features.columns)
    X, frame = whole_table(X, adapted)
    groups = adapted.groups(X) if groups is None else groups
    known = adapted.feature_names or names
    user_names = tuple(known or (f"x{i}" for i in range(X.shape[1])))
    user = resolve_features(given, columns=len(user_names), names=user_names)
    encoded = tuple(
        tuple(column for member in members for column in groups.get(user_names[member], ())) for members in user.columns
    )
    seen = [_seen(X, frame, position, name) for position, name in enumerate(user_names)]
    text_levels, number_levels, quantiles = {}, {}, {}
    for feature, members in enumerate(user.columns):
        if len(members) != 1:
            continue
        column = seen[members[0]]
        if not column.numeric:
            text_levels[feature] = column.levels
        else:
            quantiles[feature] = column.quantiles
        if not column.numeric:
            continue
        # A one-hot encoder knows no value in between, so all of its values are kept.
        if column.distinct <= min(_MOST_NUMBERS, max(MOST_LEVELS, len(encoded[feature]) + 1)):
            number_levels[feature] = column.levels
    return Columns(
        Features(user.names, encoded),
        tuple(known) if known else None,
        len(user_names),
        user.columns,
        text_levels,
        tuple(column.typical for column in seen),
        tuple(column.span for column in seen),
        number_levels,
        quantiles,
    )


def whole_table(X: Any, adapted: Adapted) -> tuple[Any, Any]:
    """A table for a scikit-learn pipeline, its columns in the order of the pipeline, and as narwhals sees it."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame) and not isinstance(X, np.ndarray):
        raise TypeError(
            f"X must be a frame or an array where the model is a scikit-learn pipeline, found {type(X).__name__}; pass "
            "the whole table at once."
        )
    if isinstance(frame, nw.DataFrame):
        frame = matched(frame, argument="X", columns=adapted.feature_names)
        X = frame.to_native()
    return X, frame


def input_values(columns: Columns, adapted: Adapted, feature: int, values: Any) -> Tensor:
    """Values of one feature, as the caller writes them, as columns of the network's input."""
    members, name = columns.members[feature], columns.features.names[feature]
    given = _matrix_of(values, len(members), name)
    if adapted.encode is None:
        try:
            found = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"values of {name!r} must be numbers ({error}).") from error
    elif len(given) == 0 or not columns.features.columns[feature]:
        found = np.zeros((len(given), len(columns.features.columns[feature])))
    else:
        rows = np.tile(np.array(columns.template, dtype=object), (len(given), 1))
        rows[:, list(members)] = given
        try:
            if not any(isinstance(value, str) for value in columns.template):
                rows = rows.astype(np.float64)
            encoded = adapted.encode(rows)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"values of {name!r} do not pass the model's preprocessing ({error}); write them as in the calibration "
                "table."
            ) from error
        found = encoded[:, list(columns.features.columns[feature])]
    if not np.isfinite(found).all():
        raise ValueError(f"values of {name!r} must be finite, found NaN or infinity.")
    return torch.tensor(found, dtype=torch.float64)


def input_baseline(columns: Columns, adapted: Adapted, baseline: Any) -> Any:
    """A baseline in the caller's units as one for the network's input; words such as "mean" stay."""
    if adapted.encode is None or isinstance(baseline, str):
        return baseline
    if isinstance(baseline, Mapping):
        return {name: _feature_baseline(columns, adapted, name, given) for name, given in baseline.items()}
    row = np.asarray(baseline, dtype=object).ravel()
    if len(row) != columns.count:
        raise ValueError(
            f"baseline has {len(row)} values but the table has {columns.count} columns; pass one value per column or "
            '"mean".'
        )
    return {
        name: input_values(columns, adapted, feature, row[list(columns.members[feature])][None])[0].numpy()
        for feature, name in enumerate(columns.features.names)
    }


def _feature_baseline(columns: Columns, adapted: Adapted, name: str, given: Any) -> Any:
    feature = columns.features.index(name, argument="baseline")
    levels = columns.text_levels.get(feature, [])
    if isinstance(given, str) and given not in levels:
        if given in ("mean", "zero", "median", "mode") or not levels:
            return given
        close = ", ".join(map(repr, levels[:8]))
        raise ValueError(f"baseline for {name!r} is {given!r}, which calibration did not see; there are {close}.")
    one = given if isinstance(given, str) else np.asarray(given, dtype=object).ravel()
    row = np.array([one], dtype=object) if isinstance(one, str) else one[None]
    return input_values(columns, adapted, feature, row).numpy()[0]


def _matrix_of(values: Any, members: int, name: str) -> np.ndarray[Any, Any]:
    """Values of one feature, one row each."""
    if isinstance(values, Tensor):
        given = values.detach().cpu().numpy()
    elif isinstance(values, np.ndarray):
        given = values
    else:
        # Objects, so that numbers beside names stay numbers.
        given = np.array(values, dtype=object) if not hasattr(values, "to_numpy") else np.asarray(values.to_numpy())
    if given.ndim == 0:
        given = given[None]
    if given.ndim == 1:
        given = given[:, None] if members == 1 else given[None, :]
    if given.ndim != 2 or given.shape[1] != members:
        expected = "one value per row" if members == 1 else f"rows of {members} values"
        raise ValueError(f"values of {name!r} must be {expected}, found shape {given.shape}.")
    return given


def categories_of(columns: Columns, summary: Summary, embedded: Sequence[int], *, integer: bool) -> frozenset[int]:
    """Features whose mean is no possible value.

    These are embedded codes, text columns, and groups of two-valued columns (one-hot, scaled or not).
    """
    found = set(columns.text_levels)
    for feature, group in enumerate(columns.features.columns):
        if integer or any(column in embedded for column in group):
            found.add(feature)
            if feature not in summary.levels and len(summary.codes.get(feature, ())) < len(group):
                warnings.warn(
                    f"the codes of feature {columns.features.names[feature]!r} are not whole, or span more than the "
                    f"{MOST_CODES:,} that are counted; codes that calibration did not see will not be refused.",
                    stacklevel=2,
                )
        elif len(group) > 1 and bool(summary.two_valued[list(group)].all()):
            found.add(feature)
    return frozenset(found)


def twins_of(features: Features, sample: Tensor) -> dict[int, int]:
    """Single-column features that are an exact linear copy of another one, with the first such."""
    single = [k for k, group in enumerate(features.columns) if len(group) == 1]
    if len(single) < 2 or len(sample) < 3:
        return {}
    values = sample[:, [features.columns[k][0] for k in single]]
    values = values - values.mean(0)
    norms = values.square().sum(0).sqrt()
    scaled = values / norms.clamp_min(1e-300)
    close = ((scaled.T @ scaled).abs() > 1 - 1e-10) & (norms > 0)[:, None] & (norms > 0)[None, :]
    close.fill_diagonal_(False)
    return {single[i]: single[int(torch.nonzero(row)[0])] for i, row in enumerate(close) if bool(row.any())}


def level_labels(columns: Columns, feature: int, levels: Tensor) -> list[str]:
    """What to call each level of a feature: its number, the one-hot columns that are on, or all its values."""
    members = columns.members[feature]
    if len(members) == 1:
        return [f"{value:g}" for value in levels[:, 0].tolist()]
    names = [columns.names[m] if columns.names else f"x{m}" for m in members]
    if any(len(torch.unique(levels[:, column])) > 2 for column in range(len(members))):
        return [", ".join(f"{n}={v:g}" for n, v in zip(names, row.tolist(), strict=True)) for row in levels]
    on = (levels == levels.amax(0)) & (levels.amax(0) > levels.amin(0))
    return [" + ".join(n for n, here in zip(names, row.tolist(), strict=True) if here) or "(none)" for row in on]


@dataclass(frozen=True, eq=False)
class _Seen:
    """What one of the caller's columns holds, missing values aside."""

    numeric: bool  # whether it holds numbers or booleans only
    distinct: int  # how many distinct values it has
    levels: list[Any]  # these values in order, up to as many as are kept
    typical: Any  # A value that may stand in the other columns while one feature is encoded: one that occurs
    span: tuple[float, ...]  # smallest and largest number; empty without any
    # numbers that follow their distribution; all distinct ones where they are few
    quantiles: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


def _seen(X: Any, frame: Any, position: int, name: str) -> _Seen:
    """What is in one column; no other is looked at meanwhile."""
    if not isinstance(frame, nw.DataFrame):
        column = np.asarray(X[:, position])
        return _seen_numbers(column) if column.dtype.kind in "biuf" else _seen_objects(column.astype(object), name)
    series = frame[:, position].alias("value")
    if series.dtype.is_numeric() or series.dtype == nw.Boolean:
        return _seen_numbers(np.asarray(series.drop_nulls().to_numpy()))
    if series.dtype == nw.Object:
        return _seen_objects(np.asarray(series.to_numpy(), dtype=object), name)
    counts = series.drop_nulls().value_counts(name="times")
    return _seen_values(dict(zip(counts["value"].to_list(), counts["times"].to_list(), strict=True)), name)


def _seen_numbers(column: np.ndarray[Any, Any]) -> _Seen:
    values = column.astype(np.float64)
    values = np.sort(values[~np.isnan(values)])
    if len(values) == 0:
        return _Seen(True, 0, [], float("nan"), ())
    # Not the average of two: an encoder may know only the values it has seen.
    typical = float(values[len(values) // 2])
    levels = values[np.concatenate([[True], values[1:] != values[:-1]])]
    kept = levels if len(levels) <= _MOST_NUMBERS else np.unique(np.quantile(values, np.linspace(0, 1, _MOST_NUMBERS)))
    span = float(values[0]), float(values[-1])
    return _Seen(True, len(levels), levels[:_MOST_NUMBERS].tolist(), typical, span, kept)


def _seen_objects(column: np.ndarray[Any, Any], name: str) -> _Seen:
    return _seen_values(Counter(value for value in column if value is not None and value == value), name)


def _seen_values(times: Mapping[Any, int], name: str) -> _Seen:
    """Values of a column of any kind, with how often each occurs."""
    if all(isinstance(value, int | float | np.number | bool) for value in times):
        return _seen_numbers(np.repeat(np.array(list(times), dtype=np.float64), list(times.values())))
    levels = sorted(times, key=str)
    if len(levels) > MOST_CODES:
        warnings.warn(
            f"column {name!r} has {len(levels):,} levels, of which only the first {MOST_CODES:,} in order are kept; "
            "leave it out if it numbers the rows.",
            stacklevel=2,
        )
    return _Seen(False, len(levels), levels[:MOST_CODES], max(levels, key=times.__getitem__), ())
