"""The caller's table: its rows, here or in a Ray dataset, and its columns beside the network's."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._messages import suggest
from nobsp.calibration import Run
from nobsp.calibration.local import Fold, is_ray
from nobsp.calibration.ray import RayRows, RayRun, first_batch
from nobsp.network.adapted import Adapted, grouping_rows, stacked
from nobsp.network.batches import NoRowsError, Source, batches_of, matched
from nobsp.network.inputs import MOST_CODES, MOST_LEVELS, SAMPLE_ROWS, Features, Summary, needs_data, resolve_features
from nobsp.network.readout import PROBE_ROWS
from nobsp.tabular.lookup import value_rows

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
    single = {k: seen[members[0]] for k, members in enumerate(user.columns) if len(members) == 1}
    numeric = {k: column for k, column in single.items() if column.numeric}
    return Columns(
        Features(user.names, encoded),
        tuple(known) if known else None,
        len(user_names),
        user.columns,
        text_levels={k: column.levels for k, column in single.items() if not column.numeric},
        template=tuple(column.typical for column in seen),
        ranges=tuple(column.span for column in seen),
        # A one-hot encoder knows no value in between, so all of its values are kept.
        number_levels={
            k: column.levels
            for k, column in numeric.items()
            if column.distinct <= min(_MOST_NUMBERS, max(MOST_LEVELS, len(encoded[k]) + 1))
        },
        quantiles={k: column.quantiles for k, column in numeric.items()},
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
    given = value_rows(values, len(members), name)
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
            f'baseline has {len(row)} values but the table has {columns.count} columns; pass one a column or "mean".'
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
        raise ValueError(f"baseline for {name!r} is {given!r}, which was not seen; {suggest(given, levels)}")
    row = np.asarray(given, dtype=object).ravel()
    return input_values(columns, adapted, feature, row[None]).numpy()[0]


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


# ---------------------------------------------------------------------- rows


class TableRows:
    """A table's rows in batches, read as often as it allows; what was looked at first is not lost."""

    def __init__(self, X: Any, source: Source) -> None:
        self.X, self.source = X, source
        self._begun: Iterator[Tensor] = iter(source)
        # Copies: a stream may fill the same memory again with its next rows.
        self._held = [batch.clone() for batch in islice(self._begun, 1)]
        # The first rows of all; those of another process where this one has none.
        self.probe = self._held[0][:PROBE_ROWS].clone() if self._held else torch.zeros(0, source.columns)

    @property
    def rows(self) -> int | None:
        """How many there are, where that is known."""
        return self.source.rows

    @property
    def tables(self) -> Iterable[Any]:
        """The table as it was given, where it has rows."""
        return [self.X] if self.rows != 0 else []

    def __iter__(self) -> Iterator[Tensor]:
        held, self._held = self._held, []
        return chain(held, self._begun) if held else iter(self.source)

    def peek(self) -> list[Tensor]:
        """The first rows, as many as a sample has; they are read again with the others."""
        while sum(map(len, self._held)) < SAMPLE_ROWS and (batch := next(self._begun, None)) is not None:
            self._held.append(batch.clone())
        return list(self._held)


@dataclass(eq=False)
class DatasetRows(RayRows):
    """A Ray dataset's rows."""

    source: Source = field(kw_only=True)  # what is known of them
    probe: Tensor = field(kw_only=True)  # the first of them
    tables: RayRows = field(kw_only=True)  # the dataset's blocks as they are

    def peek(self) -> list[Tensor]:
        """The first rows; a dataset is read ahead instead."""
        return [self.probe]


@dataclass(frozen=True, eq=False)
class BlockReader:
    """Makes of a dataset's blocks what would be made of the whole table; it is sent to workers."""

    adapted: Adapted  # the model; only its preprocessing is used
    names: tuple[str, ...] | None  # the columns to expect, where they are known
    arrays: bool  # whether the only column holds arrays, which are then the rows
    batch_size: int  # most rows in a tensor

    def tables(self, block: Any) -> list[Any]:
        """A block as a table that `NObSP.fit` takes."""
        return [np.stack([np.asarray(row) for row in block.iloc[:, 0]]) if self.arrays else block]

    def batches(self, block: Any) -> Source:
        """The rows of a block."""
        encode, said = self.adapted.encode, "X (in one of its batches)"
        table = self.tables(block)[0]
        return batches_of(table, batch_size=self.batch_size, encode=encode, columns=self.names, argument=said)


Rows = TableRows | DatasetRows


def repeat_rows(X: Any, sample_weight: Any, *, several: bool) -> tuple[Any, int]:
    """The rows as often as their weights say, and how many there are; `several` where a model has several inputs."""
    inputs = X if several and isinstance(X, Mapping | tuple | list) else (X,)
    parts = tuple(inputs.values() if isinstance(inputs, Mapping) else inputs)
    if not all(len(getattr(part, "shape", ())) > 0 for part in parts):
        raise TypeError(
            f"sample_weight needs rows in memory, but X is a {type(X).__name__}; pass an array, a tensor or a frame."
        )
    given = sample_weight.detach().cpu() if isinstance(sample_weight, Tensor) else sample_weight
    rows, weight = int(parts[0].shape[0]), np.asarray(given, dtype=np.float64)
    if weight.shape != (rows,) or any(part.shape[0] != rows for part in parts):
        raise ValueError(f"sample_weight has the shape {weight.shape}; pass one weight for each of the {rows} rows.")
    if not (np.isfinite(weight).all() and weight.min() >= 0 and weight.max() > 0):
        raise ValueError("sample_weight must be finite and not negative, with one weight above zero at least.")
    weight = weight / weight.max()
    counts = weight / weight[weight > 0].min()
    most = max(min(32 * rows, SAMPLE_ROWS), 4 * rows)
    if np.abs(counts - np.rint(counts)).max() > 1e-9 * counts.max() or counts.sum() > most:
        # Rounded as they add up, so that rows alike have their weight together however small each one's is.
        counts = np.diff(np.rint(np.cumsum(weight) * (most / weight.sum())), prepend=0.0)
    counts = np.where(weight > 0, np.maximum(np.rint(counts), 1), 0)  # no level and no end of a range is lost
    places = np.repeat(np.arange(rows), counts.astype(np.intp))
    taken = [part[places] if isinstance(part, np.ndarray | Tensor) else _take_rows(part, places) for part in parts]
    found: Any = dict(zip(inputs, taken, strict=True)) if isinstance(inputs, Mapping) else tuple(taken)
    return found if inputs is X else taken[0], int((weight > 0).sum())


def _take_rows(frame: Any, places: NDArray[np.intp]) -> Any:
    return frame.iloc[places] if hasattr(frame, "iloc") else nw.from_native(frame, eager_only=True)[places].to_native()


def read_rows(run: Run, X: Any, adapted: Adapted, batch_size: int, *, columns: Sequence[str] | None) -> Rows:
    """The rows of `X`, of which no process but one needs to have any; all must have the same columns."""
    if isinstance(run, RayRun):
        return _dataset_rows(X, adapted, batch_size, columns)
    if is_ray(X):
        raise ValueError(
            f"X is a Ray dataset, whose rows its own workers add up, but the engine has {run.size} processes that read "
            "rows themselves; call fit in one process with engine=nobsp.RayCluster(), or pass each its share as an "
            "iterable of batches."
        )
    rows = None
    X = X if adapted.pack is None else adapted.pack(X)
    try:
        rows = TableRows(X, batches_of(X, batch_size=batch_size, encode=adapted.encode, columns=columns))
    except NoRowsError:
        if run.size == 1:
            raise
    found = run.gather(None if rows is None else (rows.probe, rows.source.names, rows.source.columns))
    known = [(rank, *about) for rank, about in enumerate(found) if about is not None]
    if not known:
        raise ValueError(f"X has no rows on any of the {run.size} ranks.")
    first, probe, names, width = known[0]
    for rank, _, *other in known[1:]:
        if other != [names, width]:
            mine, theirs = (said[0] or f"{said[1]} columns" for said in ((names, width), other))
            raise ValueError(
                f"X has {theirs} on rank {rank} but {mine} on rank {first}; every rank needs the same columns in the "
                "same order."
            )
    if rows is None:
        rows = TableRows(X, Source(names, 0, True, False, width, lambda: iter(())))
    rows.probe = probe
    return rows


def _dataset_rows(X: Any, adapted: Adapted, batch_size: int, columns: Sequence[str] | None) -> DatasetRows:
    if not is_ray(X):
        raise TypeError(
            f"engine is RayCluster, but X is a {type(X).__name__}; pass a ray.data.Dataset, or leave engine out."
        )
    first = first_batch(X, PROBE_ROWS, argument="X", batch_format="pandas")
    # As `ray.data.from_numpy` makes them.
    arrays = first.shape[1] == 1 and np.ndim(first.iloc[0, 0]) == 1
    expected = None if columns is None else tuple(columns)
    reader = BlockReader(adapted, expected, arrays, batch_size)
    source = reader.batches(first)
    probe = next(iter(source))
    # All batches have the columns of the first; the network is not sent along with the preprocessing.
    names = None if arrays else expected or tuple(str(name) for name in first.columns)
    reader = replace(reader, names=names, adapted=replace(adapted, module=torch.nn.Identity()))
    size = 8 * source.columns
    return DatasetRows(
        X,
        reader.batches,
        batch_size,
        size,
        source=replace(source, names=names),
        probe=probe,
        tables=RayRows(X, reader.tables, batch_size, size),
    )


def find_columns(run: Run, rows: Rows, adapted: Adapted, given: Sequence[str] | Mapping[str, Any] | None) -> Columns:
    """The columns, with the levels and ranges of all rows where a preprocessing stands before the network."""
    settle = partial(columns_of, adapted=adapted, given=given, width=rows.source.columns, names=rows.source.names)
    if adapted.encode is None:
        return settle(None)
    alone = replace(adapted, module=torch.nn.Identity())  # the network is not sent along
    settle = partial(settle, adapted=alone)
    sample = run.accumulate(rows.tables, Fold(partial(_sample_table, alone), _join_samples), Fold.update).value
    make = partial(settle, groups=adapted.groups(sample))
    columns: Columns = run.accumulate(rows.tables, Fold(make, Columns.merge), Fold.update).value
    return columns


def _sample_table(adapted: Adapted, table: Any) -> Any:
    """Rows of a table that tell which columns a preprocessing makes of which."""
    return grouping_rows(whole_table(table, adapted)[0])


def _join_samples(first: Any, second: Any) -> Any:
    return grouping_rows(stacked([first, second]))


def read_ahead(run: Run, rows: Rows, columns: Columns, baseline: Any, *, planned: bool) -> bool:
    """Whether all rows are read before they are run: where the baseline needs it, or it is cheap."""
    if isinstance(rows, DatasetRows):
        return True
    wanted = hasattr(rows.X, "shape") or (not planned and needs_data(baseline, columns.features))
    ahead = any(run.gather(wanted))
    if ahead and not rows.source.reiterable:
        raise ValueError(
            f"X can be read only once, but baseline={baseline!r} has to be known before calibrating; pass "
            "the baseline's values, or data that can be read again (an array, a DataLoader, a list of batches)."
        )
    return ahead


def require_passes(run: Run, rows: Rows, count: int) -> None:
    """An error where rows cannot be read, or not be kept, as often as the memory asks for."""
    if not rows.source.reiterable:
        raise ValueError(
            f"X can be read only once, but within memory={run.memory:,} bytes it has to be read {count} times; "
            "give the engine more, or pass data that can be read again (an array, a DataLoader, a list of batches)."
        )
    if run.checkpoint is not None:
        raise ValueError(
            f"checkpoint needs a calibration in one pass, but within memory={run.memory:,} bytes this one takes "
            f"{count}; give the engine more memory, or calibrate without a checkpoint."
        )
