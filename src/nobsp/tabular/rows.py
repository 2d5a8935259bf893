"""The rows: read in batches, repeated by weight, sampled into memory, and dealt into folds.

Held-out rows are a fair judge only where they are no copies of rows that were fitted on. Identical rows always go
together, and so do rows of a group that the caller names. For groups that nobody named there are neighbourhoods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import AnyArray, ArrayLike, FloatArray, ModelLike, TableLike
from nobsp.arguments import numbers_of, suggest
from nobsp.calibration import Run
from nobsp.calibration.local import Fold, is_ray
from nobsp.calibration.ray import RayRows, RayRun, first_batch
from nobsp.frames import frame_of, is_missing, take_rows
from nobsp.network.adapted import Adapted, grouping_rows, join_grouping_rows
from nobsp.network.batches import NoRowsError, Source, batches_of
from nobsp.network.inputs import SAMPLE_ROWS, Summary, needs_data
from nobsp.network.readout import PROBE_ROWS
from nobsp.numerics import as_numpy, evenly_spaced
from nobsp.tabular.features import (
    Columns,
    FeatureOption,
    columns_of,
    whole_table,
)
from nobsp.tabular.lookup import Chunk, Places

# Rows that weights repeat a table to: so many times its own, where that is no more than a sample has.
_MOST_REPEATS = 32
# The same where a table has more rows than that: weights are then rounded.
_FEWEST_REPEATS = 4
# Weights are whole multiples of the smallest where they differ from one by no more than this share.
_WHOLE = 1e-9
# Bytes of a number in a batch, for how many rows a worker takes at once.
_BYTES_OF_A_NUMBER = 8


class TableRows:
    """A table's rows in batches, read as often as it allows; what was looked at first is not lost."""

    def __init__(self, X: TableLike, source: Source) -> None:
        self.X = X
        self.source = source
        self.rows = source.rows
        self.tables = [X] if source.rows != 0 else []  # as the caller passed it, where it has rows
        self._begun: Iterator[Tensor] = iter(source)
        # Copies: a stream may fill the same memory again with its next rows.
        self._held = [batch.clone() for batch in islice(self._begun, 1)]

        # The first rows of all; those of another process where this one has none.
        self.probe = torch.zeros(0, source.columns)
        if self._held:
            self.probe = self._held[0][:PROBE_ROWS].clone()

    def __iter__(self) -> Iterator[Tensor]:
        held = self._held
        self._held = []
        return chain(held, self._begun) if held else iter(self.source)

    def peek(self) -> list[Tensor]:
        """The first rows, as many as a sample has; they are read again with the others."""
        while sum(map(len, self._held)) < SAMPLE_ROWS:
            batch = next(self._begun, None)
            if batch is None:
                break
            self._held.append(batch.clone())
        return list(self._held)


@dataclass(eq=False)
class DatasetRows(RayRows):
    """A Ray dataset's rows."""

    source: Source = field(kw_only=True)  # what is known of them
    probe: Tensor = field(kw_only=True)  # the first of them
    tables: RayRows = field(kw_only=True)  # the dataset's blocks as they are


Rows = TableRows | DatasetRows


# ---------------------------------------------------------------------- rows repeated by weight


def count_in_memory(X: TableLike, *, several: bool, argument: str) -> int:
    """How many rows there are, or an error where they are not in memory; `several` where a model has several inputs."""
    parts = _inputs_of(X, several=several)
    if not all(len(getattr(part, "shape", ())) > 0 for part in parts):
        raise TypeError(
            f"{argument} needs X as an array, a tensor or a frame, found {type(X).__name__}."
        )
    return int(parts[0].shape[0])


def _inputs_of(X: TableLike, *, several: bool) -> tuple[TableLike, ...]:
    """The tables that the inputs of a model take."""
    if several and isinstance(X, Mapping):
        return tuple(X.values())
    if several and isinstance(X, tuple | list):
        return tuple(X)
    return (X,)


def repeat_rows(
    X: TableLike, sample_weight: ArrayLike, *, several: bool
) -> tuple[TableLike, int, Places]:
    """The rows as often as their weights say, how many there were, and which one each is."""
    n_rows = count_in_memory(X, several=several, argument="sample_weight")
    parts = _inputs_of(X, several=several)
    weight = numbers_of(sample_weight, name="sample_weight")
    if weight.shape != (n_rows,) or any(part.shape[0] != n_rows for part in parts):
        raise ValueError(
            f"sample_weight has the shape {weight.shape}; pass one weight for each of the {n_rows} rows."
        )
    if not (np.isfinite(weight).all() and weight.min() >= 0 and weight.max() > 0):
        raise ValueError(
            "sample_weight must be finite and not negative, with one weight above zero at least."
        )

    positions = np.repeat(np.arange(n_rows), _count_repeats(weight))
    repeated = [take_rows(part, positions) for part in parts]
    return _like_inputs(X, repeated, several=several), int((weight > 0).sum()), positions


def _count_repeats(weight: FloatArray) -> Places:
    """How often each row stands for its weight: exactly where weights are whole multiples, rounded otherwise."""
    weight = weight / weight.max()
    counts = weight / weight[weight > 0].min()

    n_rows = len(weight)
    most = max(min(_MOST_REPEATS * n_rows, SAMPLE_ROWS), _FEWEST_REPEATS * n_rows)
    are_whole = np.abs(counts - np.rint(counts)).max() <= _WHOLE * counts.max()
    if not are_whole or counts.sum() > most:
        # Rounded as they add up, so that rows alike have their weight together however small each one's is.
        total = np.cumsum(weight) * (most / weight.sum())
        counts = np.diff(np.rint(total), prepend=0.0)

    # At least once, so that no level and no end of a range is lost.
    counts = np.where(weight > 0, np.maximum(np.rint(counts), 1), 0)
    return counts.astype(np.intp)


def _like_inputs(X: TableLike, parts: list[TableLike], *, several: bool) -> TableLike:
    """Tables put together as the caller's inputs were."""
    if several and isinstance(X, Mapping):
        return dict(zip(X, parts, strict=True))
    if several and isinstance(X, tuple | list):
        return tuple(parts)
    return parts[0]


# ---------------------------------------------------------------------- rows on one or several processes


def read_rows(
    run: Run,
    X: TableLike,
    adapted: Adapted,
    batch_size: int,
    *,
    columns: Sequence[str] | None,
) -> Rows:
    """The rows of `X`, of which no process but one needs to have any; all must have the same columns."""
    if isinstance(run, RayRun):
        return _dataset_rows(X, adapted, batch_size, columns)
    if is_ray(X):
        raise ValueError(
            "X is a Ray dataset; call fit in one process, with engine=nobsp.RayCluster()."
        )

    X = X if adapted.pack is None else adapted.pack(X)
    rows = None
    try:
        source = batches_of(X, batch_size=batch_size, encode=adapted.encode, columns=columns)
        rows = TableRows(X, source)
    except NoRowsError:
        if run.size == 1:
            raise

    first = _first_share(run, rows)
    if rows is None:
        nothing = Source(first.names, 0, True, False, first.width, lambda: iter(()))
        rows = TableRows(X, nothing)
    rows.probe = first.probe
    return rows


@dataclass(frozen=True, eq=False)
class _Share:
    """What one rank knows of its rows."""

    rank: int
    probe: Tensor
    names: tuple[str, ...] | None
    width: int

    def says(self) -> tuple[str, ...] | str:
        """Its columns in words."""
        return self.names or f"{self.width} columns"


def _first_share(run: Run, rows: TableRows | None) -> _Share:
    """The rows of the first rank that has any, after a check that all have the same columns."""
    own = None if rows is None else (rows.probe, rows.source.names, rows.source.columns)
    gathered = run.gather(own)
    shares = [_Share(rank, *share) for rank, share in enumerate(gathered) if share is not None]
    if not shares:
        raise ValueError(f"X has no rows on any of the {run.size} ranks.")

    first = shares[0]
    for other in shares[1:]:
        if (other.names, other.width) != (first.names, first.width):
            raise ValueError(
                f"X has {other.says()} on rank {other.rank} but {first.says()} on rank {first.rank}; "
                "all need the same."
            )
    return first


def _dataset_rows(
    X: TableLike, adapted: Adapted, batch_size: int, columns: Sequence[str] | None
) -> DatasetRows:
    """The rows of a Ray dataset."""
    if not is_ray(X):
        raise TypeError(
            f"engine is RayCluster, but X is a {type(X).__name__}; pass a ray.data.Dataset."
        )
    first = first_batch(X, PROBE_ROWS, argument="X", batch_format="pandas")
    # As `ray.data.from_numpy` makes them.
    are_arrays = first.shape[1] == 1 and np.ndim(first.iloc[0, 0]) == 1
    names = None if columns is None else tuple(columns)

    tables = partial(_tables_of_block, are_arrays=are_arrays)
    # Only the encoder is sent along to the workers, not the network.
    batches = partial(
        _batches_of_block, tables=tables, names=names, encode=adapted.encode, batch_size=batch_size
    )
    source = batches(first)

    # All batches have the columns of the first.
    own_names = None if are_arrays else names or tuple(str(name) for name in first.columns)
    source = replace(source, names=own_names)
    row_bytes = _BYTES_OF_A_NUMBER * source.columns
    return DatasetRows(
        X,
        partial(batches, names=own_names),
        batch_size,
        row_bytes,
        source=source,
        probe=next(iter(source)),
        tables=RayRows(X, tables, batch_size, row_bytes),
    )


def _tables_of_block(block: TableLike, *, are_arrays: bool) -> list[TableLike]:
    """A block of a Ray dataset as a table."""
    if not are_arrays:
        return [block]
    return [np.stack([np.asarray(row) for row in block.iloc[:, 0]])]


def _batches_of_block(
    block: TableLike,
    *,
    tables: Callable[[TableLike], list[TableLike]],
    names: tuple[str, ...] | None,
    encode: Callable[[Any], Any] | None,
    batch_size: int,
) -> Source:
    """A block of a Ray dataset in batches."""
    return batches_of(
        tables(block)[0],
        batch_size=batch_size,
        encode=encode,
        columns=names,
        argument="X (in one of its batches)",
    )


# ---------------------------------------------------------------------- what rows tell before they are run


def find_columns(run: Run, rows: Rows, adapted: Adapted, features: FeatureOption) -> Columns:
    """The columns, with the levels and ranges of all rows where a preprocessing stands before the network."""
    settle = partial(
        columns_of,
        features=features,
        width=rows.source.columns,
        names=rows.source.names,
    )
    if adapted.encode is None:
        return settle(None, adapted=adapted)

    # The network is not sent along.
    preprocessing = replace(adapted, module=torch.nn.Identity())

    # Rows that tell which columns a preprocessing makes of which.
    def grouping(table: TableLike) -> Any:
        return grouping_rows(whole_table(table, preprocessing)[0])

    sample = run.accumulate(rows.tables, Fold(grouping, join_grouping_rows), Fold.update)
    groups = adapted.groups(sample.value)

    settle = partial(settle, adapted=preprocessing, groups=groups)
    settled = run.accumulate(rows.tables, Fold(settle, Columns.merge), Fold.update)
    columns: Columns = settled.value
    return columns


def read_ahead(run: Run, rows: Rows, columns: Columns, baseline: Any, *, planned: bool) -> bool:
    """Whether all rows are read before they are run: where the baseline needs it, or it is cheap."""
    if isinstance(rows, DatasetRows):
        return True

    is_in_memory = hasattr(rows.X, "shape")
    needs_rows = not planned and needs_data(baseline, columns.features)
    is_ahead = any(run.gather(is_in_memory or needs_rows))
    if is_ahead and not rows.source.reiterable:
        raise ValueError(
            f"X can be read only once, but baseline={baseline!r} must be known before; pass its values, or "
            "data that can be read again."
        )
    return is_ahead


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


def rows_like(
    X: TableLike,
    adapted: Adapted,
    columns: Columns,
    width: int,
    batch_size: int,
    *,
    argument: str = "X",
    strict: bool = True,
) -> Source:
    """Rows in batches, with the columns that were calibrated on."""
    source = batches_of(
        X if adapted.pack is None else adapted.pack(X),
        batch_size=batch_size,
        encode=adapted.encode,
        columns=columns.names,
        argument=argument,
        strict=strict,
    )
    if source.columns != width:
        raise ValueError(
            f"{argument} has {source.columns} columns but the explainer was calibrated on {width}."
        )
    return source


# ---------------------------------------------------------------------- the rows in memory


# Steps that a column's range is cut into where rows are put into an order that does not depend on units.
_STEPS = 2.0**30
# The step of a missing or infinite value: beyond all others.
_NOT_FINITE = np.uint64(2**40)
# Most rows that `some` takes where no number is said: enough for a spread or a correlation.
SOME_ROWS = 512


@dataclass(frozen=True, eq=False)
class Sample:
    """Calibration rows in memory, with the network's outputs."""

    own: Mapping[int, AnyArray]  # the caller's columns that have tables, by position
    inputs: Tensor  # the same rows as the network takes them
    outputs: Tensor
    groups: Codes | None = None  # per row a number, the same for rows of one named group

    def __len__(self) -> int:
        return len(self.inputs)

    def chunk(self) -> Chunk:
        """All rows, to be read from tables."""
        return Chunk(self.own, slice(0, len(self)))

    def shuffled(self) -> Sample:
        """The same rows in an order that follows from their contents alone.

        How a table was sorted, in which order its columns stand and in which units they are does not matter.
        """
        values = self.inputs.double().numpy() + 0.0  # −0 becomes 0
        by_share = _row_keys(_shares_of_range(values))
        # Rows that are equal to nine digits of a column's range are told apart by all of theirs.
        by_value = _row_keys(values.view(np.uint64))
        return self.take(np.lexsort((by_value, by_share)))

    def take(self, rows: NDArray[np.intp]) -> Sample:
        """Some of the rows."""
        positions = torch.from_numpy(rows)
        return replace(
            self,
            own={column: values[rows] for column, values in self.own.items()},
            inputs=self.inputs[positions],
            outputs=self.outputs[positions],
            groups=None if self.groups is None else self.groups[rows],
        )

    def units(self) -> Codes:
        """A number for every row of a shuffled sample; rows that share it are held out together, and drawn together."""
        return join_rows(self.inputs, self.groups)

    def some(self, most: int = SOME_ROWS) -> Sample:
        """At most so many of the rows, at even distances."""
        return self.take(evenly_spaced(len(self), most))

    @property
    def spread(self) -> Tensor:
        """Spread of each output; one where it does not vary."""
        spread = self.outputs.std(0, correction=0)
        return torch.where(spread > 0, spread, 1.0)


def _shares_of_range(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Where each value lies between the smallest and the largest of its column, in whole steps."""
    known = np.where(np.isfinite(values), values, 0.0)
    low = known.min(axis=0, initial=0.0 if len(known) == 0 else np.inf)
    # Halves, as the difference of the largest numbers would be infinite.
    span = known.max(axis=0, initial=-np.inf) / 2 - low / 2

    shares = (known / 2 - low / 2) / np.where(span > 0, span, 1.0)
    steps = np.rint(shares * _STEPS).astype(np.uint64)
    return np.where(np.isfinite(values), steps, _NOT_FINITE)


def _row_keys(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A number for every row that depends on what its columns hold, not on the order of rows or columns.

    Sums of whole numbers modulo 2⁶⁴ are exact in whatever order. A column is known by the sum over its own rows, so
    that equal values in different columns count differently, as they must for one-hot columns.
    """
    mixed = _mix(words)
    columns = mixed.sum(axis=0, dtype=np.uint64)
    return _mix(_mix(mixed ^ columns).sum(axis=1, dtype=np.uint64))


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Whole numbers scattered over all 64 bits (the finaliser of SplitMix64)."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


Codes = NDArray[np.intp]

# ---------------------------------------------------------------------- rows that belong together, and folds


FOLDS = 5
# Neighbourhoods that rows are divided into, and the fewest rows that one has on average.
NEIGHBOURHOODS = 50
FEWEST_IN_NEIGHBOURHOOD = 4
# Rows that the centres of neighbourhoods are found on, and how often they are moved: more changes no conclusion.
_CENTRE_ROWS = 4096
_MOVES = 8


def resolve_groups(
    X: TableLike, groups: ArrayLike, *, model: ModelLike, features: Any, rows: int | None
) -> tuple[Any, Codes]:
    """The rows without a column that only names groups, and the group of every row as a number.

    A column that the model takes stays a feature. A model that names no columns is taken not to know it, unless
    `features` names it.
    """
    if isinstance(groups, str):
        X, values = _take_column(X, groups, model=model, features=features)
    else:
        values = _group_values(groups)

    expected = len(values) if rows is None else rows
    if values.shape != (expected,):
        raise ValueError(
            f"groups has the shape {values.shape}; pass one group for each of the {expected:,} rows."
        )

    missing = [position for position, value in enumerate(values.tolist()) if is_missing(value)]
    if missing:
        raise ValueError(
            f"groups has a missing value in row {missing[0]}; give every row a group, those that stand alone one each."
        )

    _, codes = np.unique(
        values.astype(str) if values.dtype == object else values, return_inverse=True
    )
    if codes.max(initial=0) == 0:
        raise ValueError(
            "groups has one group only, so that no rows could be held out; name at least two, or leave it out."
        )

    return X, codes.astype(np.intp)


def _group_values(groups: ArrayLike) -> AnyArray:
    """Groups from anything that holds one value per row."""
    frame = frame_of(groups)
    if frame is not None and len(frame.columns) == 1:
        return np.asarray(frame[:, 0].to_numpy())
    if hasattr(groups, "to_numpy"):
        return np.asarray(groups.to_numpy())
    return as_numpy(groups)


def _take_column(
    X: TableLike, name: str, *, model: ModelLike, features: Any
) -> tuple[Any, AnyArray]:
    """A column of a frame, and the frame, without it where the model does not take it."""
    frame = frame_of(X)
    if frame is None:
        raise TypeError(
            f"groups is the name {name!r}, but X is a {type(X).__name__} without names; pass the groups themselves."
        )
    columns = [str(column) for column in frame.columns]
    if name not in columns:
        raise ValueError(
            f"groups names {name!r}, but X has no such column; {suggest(name, columns)}"
        )
    position = columns.index(name)
    values = np.asarray(frame[:, position].to_numpy())
    if name in _columns_of_model(model, features):
        return X, values
    others = [column for column in range(len(columns)) if column != position]
    return frame[:, others].to_native(), values


def _columns_of_model(model: ModelLike, features: Any) -> set[str]:
    """Names of columns that a model says it takes, or that the caller made features of."""
    names: set[str] = set()
    for attribute in ("feature_names_in_", "feature_names_", "feature_name_"):
        stated = getattr(model, attribute, None)
        if stated is not None and not callable(stated):
            names |= {str(name) for name in stated}
    if isinstance(features, Mapping):
        for members in features.values():
            listed = [members] if isinstance(members, str) else members
            names |= {str(member) for member in listed} if isinstance(listed, Sequence) else set()
    elif features is not None:
        names |= {str(name) for name in features}
    return names


def sampled_positions(rows: int, batch_size: int) -> NDArray[np.intp]:
    """Which rows of a table a summary of its batches holds in its sample, in the sample's order."""
    tracker = Summary(((0,),))
    for positions in torch.split(torch.arange(rows, dtype=torch.float64)[:, None], batch_size):
        tracker.update(positions)
    return tracker.sample[:, 0].numpy().astype(np.intp)


def join_rows(inputs: Tensor, groups: Codes | None) -> Codes:
    """A number for every row, the same for rows that are identical or of one group; identical ones lie side by side."""
    if not len(inputs):
        return np.zeros(0, dtype=np.intp)
    differs = (inputs[1:] != inputs[:-1]) & ~(inputs[1:].isnan() & inputs[:-1].isnan())
    identical = np.concatenate([[0], np.cumsum(differs.any(1).numpy())]).astype(np.intp)
    if groups is None:
        return identical

    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # Rows that are identical tie their groups together.
    n_identical = int(identical[-1]) + 1
    size = n_identical + int(groups.max()) + 1
    links = coo_array(
        (np.ones(len(groups), dtype=np.int8), (identical, n_identical + groups)), shape=(size, size)
    )
    _, component = connected_components(links, directed=False)
    _, codes = np.unique(component[identical], return_inverse=True)
    return codes.astype(np.intp)


def deal_folds(codes: Codes, *, generator: np.random.Generator, folds: int = FOLDS) -> Codes:
    """A fold for every row: rows of one code share it, and folds are of about the same size."""
    n_codes = int(codes.max()) + 1
    folds = min(folds, n_codes)
    shuffled = generator.permutation(n_codes)
    if n_codes == len(codes):
        return np.asarray((shuffled % folds)[codes], dtype=np.intp)

    sizes = np.bincount(codes, minlength=n_codes)
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    loads = np.zeros(folds)
    fold_of_code = np.zeros(n_codes, dtype=np.intp)
    for code in order:
        emptiest = int(loads.argmin())
        fold_of_code[code] = emptiest
        loads[emptiest] += sizes[code]
    return fold_of_code[codes]


def find_neighbourhoods(inputs: Tensor, *, generator: np.random.Generator) -> Codes:
    """Rows divided by k-means of their standardised inputs; a number for every row."""
    values = inputs.to(torch.float64).nan_to_num()
    spread = values.std(0, correction=0)
    values = (values - values.mean(0)) / torch.where(spread > 0, spread, 1.0)
    values = values.to(torch.float32)
    n_centres = max(min(NEIGHBOURHOODS, len(values) // FEWEST_IN_NEIGHBOURHOOD), 1)

    some = values[torch.from_numpy(generator.permutation(len(values))[:_CENTRE_ROWS])]
    centres = some[:n_centres].clone()
    for _ in range(_MOVES):
        nearest = torch.cdist(some, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=n_centres)
        sums = torch.zeros_like(centres).index_add_(0, nearest, some)
        occupied = counts > 0
        centres[occupied] = sums[occupied] / counts[occupied, None]
    nearest = torch.cdist(values, centres).argmin(1)
    _, codes = np.unique(nearest.numpy(), return_inverse=True)
    return codes.astype(np.intp)
