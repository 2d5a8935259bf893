"""The caller's table: its rows, here or in a Ray dataset, and its columns beside the network's."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.arguments import numbers_of, require_number
from nobsp.calibration import Run
from nobsp.calibration.local import Fold, is_ray
from nobsp.calibration.ray import RayRows, RayRun, first_batch
from nobsp.frames import frame_of, is_missing, match_columns, take_rows
from nobsp.messages import suggest
from nobsp.network.adapted import Adapted, grouping_rows, join_grouping_rows
from nobsp.network.batches import NoRowsError, Source, batches_of
from nobsp.network.inputs import (
    MOST_CODES,
    MOST_LEVELS,
    SAMPLE_ROWS,
    Features,
    Summary,
    needs_data,
    resolve_features,
)
from nobsp.network.readout import PROBE_ROWS
from nobsp.numerics import as_numpy, evenly_spaced
from nobsp.tabular.lookup import value_rows

# Rows that tell which columns go along with each other.
_LOOKED_AT = 2048
# Distinct numbers of a column that are kept, for encoders that know no others; a one-hot group is seldom wider.
_MOST_NUMBERS = 4096


@dataclass(frozen=True, eq=False)
class Seen:
    """What one of the caller's columns holds, missing values aside."""

    numeric: bool  # whether it holds numbers or booleans only
    levels: (
        list[Any] | None
    )  # its distinct values in order; None where these are too many numbers, or not asked for
    typical: Any  # A value that may stand in the other columns while one feature is encoded: one that occurs
    span: tuple[float, ...]  # smallest and largest number; empty without any
    quantiles: NDArray[
        np.float64
    ]  # numbers that follow their distribution; all distinct ones where they are few

    def merge(self, other: Seen, most: int) -> Seen:
        """The column of two shares of a table; one that is text in either is text."""
        ends = [*self.span, *other.span]
        span = (min(ends), max(ends)) if ends else ()
        if self.numeric != other.numeric:
            return replace(other if self.numeric else self, span=span)
        levels = None
        if self.levels is not None and other.levels is not None:
            both = [*self.levels, *other.levels]
            levels = sorted(set(both))[:MOST_CODES] if self.numeric else _in_order(both)
            levels = None if self.numeric and len(levels) > most else levels
        quantiles = np.unique(np.concatenate([self.quantiles, other.quantiles]))
        return replace(self, levels=levels, span=span, quantiles=quantiles)


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
        return self.seen[members[0]] if self.seen and len(members) == 1 else None

    def texts(self, feature: int) -> list[Any]:
        """The values of a feature whose own column is not numeric; none for others."""
        column = self.column(feature)
        return [] if column is None or column.numeric else column.levels or []

    def merge(self, other: Columns) -> Columns:
        """The columns of two shares of a table, with the levels and ranges of both."""
        most = _most_levels(self.members, self.features.columns)
        pairs = enumerate(zip(self.seen, other.seen, strict=True))
        return replace(
            self,
            seen=tuple(mine.merge(theirs, most.get(place, 0)) for place, (mine, theirs) in pairs),
        )


def _most_levels(
    members: Sequence[Sequence[int]], encoded: Sequence[Sequence[int]]
) -> dict[int, int]:
    """By the caller's column that is a feature, most numbers kept of it: an encoder may know no value in between."""
    single = {
        group[0]: columns
        for group, columns in zip(members, encoded, strict=True)
        if len(group) == 1
    }
    return {
        member: min(_MOST_NUMBERS, max(MOST_LEVELS, len(columns) + 1))
        for member, columns in single.items()
    }


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
            known = (
                features.names
            )  # a frame that is explained later is matched to the names given here
        return Columns(features, None if known is None else tuple(known), width, features.columns)
    X, frame = whole_table(X, adapted)
    groups = adapted.groups(grouping_rows(X)) if groups is None else groups
    known = adapted.feature_names or names
    user_names = tuple(known or (f"x{i}" for i in range(X.shape[1])))
    user = resolve_features(given, columns=len(user_names), names=user_names)
    encoded = tuple(
        tuple(column for member in members for column in groups.get(user_names[member], ()))
        for members in user.columns
    )
    most = _most_levels(user.columns, encoded)
    seen = tuple(
        _seen(X, frame, position, name, most.get(position, 0))
        for position, name in enumerate(user_names)
    )
    features, named = Features(user.names, encoded), tuple(known) if known else None
    return Columns(features, named, len(user_names), user.columns, seen)


def whole_table(X: Any, adapted: Adapted) -> tuple[Any, Any]:
    """A table for a scikit-learn pipeline, its columns in the order of the pipeline, and as narwhals sees it."""
    frame = frame_of(X)
    if frame is None and not isinstance(X, np.ndarray):
        raise TypeError(
            f"X must be one frame or array where the model is a pipeline, found {type(X).__name__}."
        )
    if frame is not None:
        frame = match_columns(frame, argument="X", columns=adapted.feature_names)
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
        template = [column.typical for column in columns.seen]
        rows = np.tile(np.array(template, dtype=object), (len(given), 1))
        rows[:, list(members)] = given
        try:
            if not any(isinstance(value, str) for value in template):
                rows = rows.astype(np.float64)
            encoded = adapted.encode(rows)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"values of {name!r} do not pass the model's preprocessing ({error})."
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
        return {
            name: _feature_baseline(columns, adapted, name, given)
            for name, given in baseline.items()
        }
    row = np.asarray(baseline, dtype=object).ravel()
    if len(row) != columns.count:
        raise ValueError(
            f"baseline has {len(row)} values but the table has {columns.count} columns; pass one each."
        )
    return {
        name: input_values(columns, adapted, feature, row[list(columns.members[feature])][None])[
            0
        ].numpy()
        for feature, name in enumerate(columns.features.names)
    }


def _feature_baseline(columns: Columns, adapted: Adapted, name: str, given: Any) -> Any:
    feature = columns.features.index(name, argument="baseline")
    levels = columns.texts(feature)
    if isinstance(given, str) and given not in levels:
        if given in ("mean", "zero", "median", "mode") or not levels:
            return given
        raise ValueError(
            f"baseline for {name!r} is {given!r}, which was not seen; {suggest(given, levels)}"
        )
    row = np.asarray(given, dtype=object).ravel()
    return input_values(columns, adapted, feature, row[None]).numpy()[0]


def categories_of(
    columns: Columns, summary: Summary, embedded: Sequence[int], *, integer: bool
) -> frozenset[int]:
    """Features whose mean is no possible value: embedded codes, text, groups of two-valued columns (one-hot)."""
    found = {feature for feature in range(len(columns.features)) if columns.texts(feature)}
    for feature, group in enumerate(columns.features.columns):
        if integer or any(column in embedded for column in group):
            found.add(feature)
            if feature not in summary.levels and len(summary.codes.get(feature, ())) < len(group):
                codes = f"the codes of feature {columns.features.names[feature]!r} are not whole, or span more than"
                unseen = "codes that calibration did not see will not be refused"
                warnings.warn(
                    f"{codes} the {MOST_CODES:,} that are counted; {unseen}.", stacklevel=2
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
        return [
            ", ".join(f"{n}={v:g}" for n, v in zip(names, row.tolist(), strict=True))
            for row in levels
        ]
    on = (levels == levels.amax(0)) & (levels.amax(0) > levels.amin(0))
    return [
        " + ".join(n for n, here in zip(names, row.tolist(), strict=True) if here) or "(none)"
        for row in on
    ]


def _seen(X: Any, frame: Any, position: int, name: str, most: int) -> Seen:
    """What is in one column, with at most so many numbers as levels; no other column is looked at meanwhile."""
    times: Mapping[Any, int]
    if isinstance(frame, nw.DataFrame):
        series = frame[:, position].alias("value")
        if series.dtype.is_numeric() or series.dtype == nw.Boolean:
            return _seen_numbers(np.asarray(series.drop_nulls().to_numpy()), most)
        if series.dtype != nw.Object:
            counts = series.drop_nulls().value_counts(name="times")
            times = dict(zip(counts["value"].to_list(), counts["times"].to_list(), strict=True))
            absent = series.filter(series.is_null()).head(1).to_numpy()
        else:
            times, absent = _count_objects(series.to_numpy()), series.to_numpy()
    elif np.asarray(X[:, position]).dtype.kind in "biuf":
        return _seen_numbers(np.asarray(X[:, position]), most)
    else:
        times, absent = _count_objects(X[:, position]), X[:, position]
    if all(isinstance(value, int | float | np.number | bool) for value in times):
        return _seen_numbers(
            np.repeat(np.array(list(times), dtype=np.float64), list(times.values())), most
        )
    levels = sorted(times, key=str)
    if len(levels) > MOST_CODES:
        kept = (
            f"only the first {MOST_CODES:,} in order are kept; leave it out if it numbers the rows"
        )
        warnings.warn(f"column {name!r} has {len(levels):,} levels, of which {kept}.", stacklevel=2)
    typical = max(levels, key=times.__getitem__)
    return Seen(
        False, _in_order([*levels, *absent.tolist()]) if most else None, typical, (), np.zeros(0)
    )


def _in_order(levels: list[Any]) -> list[Any]:
    """Names in order, up to as many as are kept, and the value that stands for none where there is one."""
    missing = [value for value in levels if is_missing(value)][:1]
    return (
        sorted({value for value in levels if not is_missing(value)}, key=str)[:MOST_CODES] + missing
    )


def _count_objects(column: Any) -> Counter[Any]:
    return Counter(value for value in np.asarray(column, dtype=object) if not is_missing(value))


def _seen_numbers(column: np.ndarray[Any, Any], most: int) -> Seen:
    values = column.astype(np.float64)
    values = np.sort(values[~np.isnan(values)])
    if len(values) == 0:
        return Seen(True, [], float("nan"), (), values)
    levels = values[np.concatenate([[True], values[1:] != values[:-1]])]
    kept = (
        levels
        if len(levels) <= _MOST_NUMBERS
        else np.unique(np.quantile(values, np.linspace(0, 1, _MOST_NUMBERS)))
    )
    # Not the average of two: an encoder may know only the values it has seen.
    typical, span = float(values[len(values) // 2]), (float(values[0]), float(values[-1]))
    return Seen(True, levels.tolist() if len(levels) <= most else None, typical, span, kept)


def ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positions in order, equal values sharing theirs."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    found: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return found


def suggest_features(X: Any, *, correlation: float = 0.9) -> dict[str, list[Any]]:
    """Columns that go along with each other, put together as `features` takes them: a suggestion to look at.

    Rows cannot tell such columns apart; together they have the effect that all of them have. In return a group of
    numbers has no curve and no table: every row explained takes 8 more forward rows for it, and compiled explainers
    and what-if pages leave it out.

    Args:
        X: Array, tensor or frame, of which 2,048 rows are looked at. Columns that hold no numbers stay alone.
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
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    require_number("correlation", correlation, above=0, most=1)
    if len(getattr(X, "shape", ())) != 2 or not X.shape[0]:
        raise TypeError(
            f"X must be an array, a tensor or a frame with rows, found {getattr(X, 'shape', type(X))}."
        )
    X = take_rows(X, evenly_spaced(X.shape[0], _LOOKED_AT))
    frame = frame_of(X)
    known: Sequence[Any] = range(X.shape[1])
    if frame is not None:
        columns, known = (
            [np.asarray(frame[:, k].to_numpy()) for k in known],
            [str(name) for name in frame.columns],
        )
    else:
        columns = list(as_numpy(X).T)
    names = [f"x{name}" if isinstance(name, int) else name for name in known]
    numbers = {
        k: ranks(column.astype(np.float64))
        for k, column in enumerate(columns)
        if column.dtype.kind in "biuf"
    }
    numbers = {k: x for k, x in numbers.items() if np.ptp(x) > 0}
    groups = {k: [k] for k in range(len(names))}
    if len(numbers) > 1:
        apart = np.clip(1 - np.abs(np.corrcoef(list(numbers.values()))), 0, None)
        np.fill_diagonal(apart, 0)
        tree = linkage(squareform(apart, checks=False), "complete")
        owner: dict[int, int] = {}
        for k, group in zip(
            numbers, fcluster(tree, 1 - correlation, "distance").tolist(), strict=True
        ):
            if owner.setdefault(group, k) != k:
                groups[owner[group]] += groups.pop(k)
    found: dict[str, list[Any]] = {}
    for group in groups.values():
        some = [names[k] for k in group[:3]]
        name = " + ".join(some if len(group) < 4 else [some[0], f"{len(group) - 1} more"])
        while len(group) > 1 and name in names:
            name = f"({name})"
        found[name] = [known[k] for k in group]
    return found


class TableRows:
    """A table's rows in batches, read as often as it allows; what was looked at first is not lost."""

    def __init__(self, X: Any, source: Source) -> None:
        self.X, self.source, self.rows = X, source, source.rows
        self.tables = [X] if source.rows != 0 else []  # as it was given, where it has rows
        self._begun: Iterator[Tensor] = iter(source)
        # Copies: a stream may fill the same memory again with its next rows.
        self._held = [batch.clone() for batch in islice(self._begun, 1)]
        # The first rows of all; those of another process where this one has none.
        self.probe = (
            self._held[0][:PROBE_ROWS].clone() if self._held else torch.zeros(0, source.columns)
        )

    def __iter__(self) -> Iterator[Tensor]:
        held, self._held = self._held, []
        return chain(held, self._begun) if held else iter(self.source)

    def peek(self) -> list[Tensor]:
        """The first rows, as many as a sample has; they are read again with the others."""
        while (
            sum(map(len, self._held)) < SAMPLE_ROWS
            and (batch := next(self._begun, None)) is not None
        ):
            self._held.append(batch.clone())
        return list(self._held)


@dataclass(eq=False)
class DatasetRows(RayRows):
    """A Ray dataset's rows."""

    source: Source = field(kw_only=True)  # what is known of them
    probe: Tensor = field(kw_only=True)  # the first of them
    tables: RayRows = field(kw_only=True)  # the dataset's blocks as they are


Rows = TableRows | DatasetRows


def count_in_memory(X: Any, *, several: bool, argument: str) -> int:
    """How many rows there are, or an error where they are not in memory; `several` where a model has several inputs."""
    inputs = X if several and isinstance(X, Mapping | tuple | list) else (X,)
    parts = tuple(inputs.values() if isinstance(inputs, Mapping) else inputs)
    if not all(len(getattr(part, "shape", ())) > 0 for part in parts):
        raise TypeError(
            f"{argument} needs X as an array, a tensor or a frame, found {type(X).__name__}."
        )
    return int(parts[0].shape[0])


def repeat_rows(X: Any, sample_weight: Any, *, several: bool) -> tuple[Any, int, NDArray[np.intp]]:
    """The rows as often as their weights say, how many there were, and which one each is."""
    inputs = X if several and isinstance(X, Mapping | tuple | list) else (X,)
    parts = tuple(inputs.values() if isinstance(inputs, Mapping) else inputs)
    count_in_memory(X, several=several, argument="sample_weight")
    rows = int(parts[0].shape[0])
    weight = numbers_of(sample_weight, name="sample_weight")
    if weight.shape != (rows,) or any(part.shape[0] != rows for part in parts):
        raise ValueError(
            f"sample_weight has the shape {weight.shape}; pass one weight for each of the {rows} rows."
        )
    if not (np.isfinite(weight).all() and weight.min() >= 0 and weight.max() > 0):
        raise ValueError(
            "sample_weight must be finite and not negative, with one weight above zero at least."
        )
    weight = weight / weight.max()
    counts = weight / weight[weight > 0].min()
    most = max(min(32 * rows, SAMPLE_ROWS), 4 * rows)
    if np.abs(counts - np.rint(counts)).max() > 1e-9 * counts.max() or counts.sum() > most:
        # Rounded as they add up, so that rows alike have their weight together however small each one's is.
        counts = np.diff(np.rint(np.cumsum(weight) * (most / weight.sum())), prepend=0.0)
    counts = np.where(
        weight > 0, np.maximum(np.rint(counts), 1), 0
    )  # no level and no end of a range is lost
    places = np.repeat(np.arange(rows), counts.astype(np.intp))
    taken = [take_rows(part, places) for part in parts]
    found: Any = (
        dict(zip(inputs, taken, strict=True)) if isinstance(inputs, Mapping) else tuple(taken)
    )
    return found if inputs is X else taken[0], int((weight > 0).sum()), places


def read_rows(
    run: Run, X: Any, adapted: Adapted, batch_size: int, *, columns: Sequence[str] | None
) -> Rows:
    """The rows of `X`, of which no process but one needs to have any; all must have the same columns."""
    if isinstance(run, RayRun):
        return _dataset_rows(X, adapted, batch_size, columns)
    if is_ray(X):
        raise ValueError(
            "X is a Ray dataset; call fit in one process, with engine=nobsp.RayCluster()."
        )
    rows = None
    X = X if adapted.pack is None else adapted.pack(X)
    try:
        rows = TableRows(
            X, batches_of(X, batch_size=batch_size, encode=adapted.encode, columns=columns)
        )
    except NoRowsError:
        if run.size == 1:
            raise
    found = run.gather(
        None if rows is None else (rows.probe, rows.source.names, rows.source.columns)
    )
    known = [(rank, *about) for rank, about in enumerate(found) if about is not None]
    if not known:
        raise ValueError(f"X has no rows on any of the {run.size} ranks.")
    first, probe, names, width = known[0]
    for rank, _, *other in known[1:]:
        if other != [names, width]:
            mine, theirs = (said[0] or f"{said[1]} columns" for said in ((names, width), other))
            raise ValueError(
                f"X has {theirs} on rank {rank} but {mine} on rank {first}; all need the same."
            )
    if rows is None:
        rows = TableRows(X, Source(names, 0, True, False, width, lambda: iter(())))
    rows.probe = probe
    return rows


def _dataset_rows(
    X: Any, adapted: Adapted, batch_size: int, columns: Sequence[str] | None
) -> DatasetRows:
    if not is_ray(X):
        raise TypeError(
            f"engine is RayCluster, but X is a {type(X).__name__}; pass a ray.data.Dataset."
        )
    first = first_batch(X, PROBE_ROWS, argument="X", batch_format="pandas")
    # As `ray.data.from_numpy` makes them.
    arrays = first.shape[1] == 1 and np.ndim(first.iloc[0, 0]) == 1
    names, encode = (
        None if columns is None else tuple(columns),
        adapted.encode,
    )  # the network is not sent along

    def tables(block: Any) -> list[Any]:
        return [np.stack([np.asarray(row) for row in block.iloc[:, 0]]) if arrays else block]

    def batches(block: Any) -> Source:
        said = "X (in one of its batches)"
        return batches_of(
            tables(block)[0], batch_size=batch_size, encode=encode, columns=names, argument=said
        )

    source = batches(first)
    # All batches have the columns of the first.
    names = None if arrays else names or tuple(str(name) for name in first.columns)
    source, size = replace(source, names=names), 8 * source.columns
    of_tables = RayRows(X, tables, batch_size, size)
    return DatasetRows(
        X, batches, batch_size, size, source=source, probe=next(iter(source)), tables=of_tables
    )


def find_columns(
    run: Run, rows: Rows, adapted: Adapted, given: Sequence[str] | Mapping[str, Any] | None
) -> Columns:
    """The columns, with the levels and ranges of all rows where a preprocessing stands before the network."""
    settle = partial(
        columns_of, adapted=adapted, given=given, width=rows.source.columns, names=rows.source.names
    )
    if adapted.encode is None:
        return settle(None)
    alone = replace(adapted, module=torch.nn.Identity())  # the network is not sent along
    settle = partial(settle, adapted=alone)
    # Rows that tell which columns a preprocessing makes of which.
    sample = Fold(lambda table: grouping_rows(whole_table(table, alone)[0]), join_grouping_rows)
    sample = run.accumulate(rows.tables, sample, Fold.update)
    make = partial(settle, groups=adapted.groups(sample.value))
    columns: Columns = run.accumulate(rows.tables, Fold(make, Columns.merge), Fold.update).value
    return columns


def read_ahead(run: Run, rows: Rows, columns: Columns, baseline: Any, *, planned: bool) -> bool:
    """Whether all rows are read before they are run: where the baseline needs it, or it is cheap."""
    if isinstance(rows, DatasetRows):
        return True
    wanted = hasattr(rows.X, "shape") or (not planned and needs_data(baseline, columns.features))
    ahead = any(run.gather(wanted))
    if ahead and not rows.source.reiterable:
        raise ValueError(
            f"X can be read only once, but baseline={baseline!r} must be known before; pass its values, or "
            "data that can be read again."
        )
    return ahead


def require_passes(run: Run, rows: Rows, count: int) -> None:
    """An error where rows cannot be read, or not be kept, as often as the memory asks for."""
    if not rows.source.reiterable:
        raise ValueError(
            f"X can be read only once, but within memory={run.memory:,} bytes it is read {count} times; pass data "
            "that can be read again, or give the engine more memory."
        )
    if run.checkpoint is not None:
        raise ValueError(
            "checkpoint needs a calibration in one pass; give the engine more memory, or no checkpoint."
        )
