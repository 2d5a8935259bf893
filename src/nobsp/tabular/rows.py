"""The caller's rows, here or in a Ray dataset: read in batches, repeated by weight, alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nobsp._typing import ArrayLike, FloatArray, TableLike
from nobsp.arguments import numbers_of
from nobsp.calibration import Run
from nobsp.calibration.local import Fold, is_ray
from nobsp.calibration.ray import RayRows, RayRun, first_batch
from nobsp.frames import take_rows
from nobsp.network.adapted import Adapted, grouping_rows, join_grouping_rows
from nobsp.network.batches import NoRowsError, Source, batches_of
from nobsp.network.inputs import SAMPLE_ROWS, needs_data
from nobsp.network.readout import PROBE_ROWS
from nobsp.tabular.columns import Columns, FeatureOption, columns_of, whole_table
from nobsp.tabular.lookup import Places

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
