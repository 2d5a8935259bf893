"""The rows of a calibration table, here or in a Ray dataset, and the columns all of them have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import narwhals as nw
import numpy as np
import torch
from torch import Tensor

from nobsp.calibration import Run
from nobsp.calibration.local import is_ray
from nobsp.calibration.ray import RayRows, RayRun, first_batch
from nobsp.calibration.state import Fold
from nobsp.network.adapted import Adapted, grouping_rows, stacked
from nobsp.network.batches import NoRowsError, Source, batches_of
from nobsp.network.inputs import SAMPLE_ROWS, needs_data
from nobsp.network.readout import PROBE_ROWS
from nobsp.tabular.columns import Columns, columns_of, whole_table
from nobsp.tabular.options import Options


class TableRows:
    """A table's rows in batches, read as often as it allows; what was looked at first is not lost.

    Attributes:
        X: The table.
        source: Its batches.
        probe: The first rows of all; those of another process where this one has none.
        frame: Which library's frame the table is; None if it is none.
    """

    def __init__(self, X: Any, source: Source) -> None:
        self.X, self.source = X, source
        self._begun: Iterator[Tensor] = iter(source)
        # Copies: a stream may fill the same memory again with its next rows.
        self._held = [batch.clone() for batch in islice(self._begun, 1)]
        self.probe = self._held[0][:PROBE_ROWS].clone() if self._held else torch.zeros(0, source.columns)
        table = nw.from_native(X, eager_only=True, pass_through=True)
        self.frame = table.implementation if isinstance(table, nw.DataFrame) else None

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
    frame: Any = field(kw_only=True)  # the kind of frame that results are given in

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


def read_rows(run: Run, X: Any, adapted: Adapted, options: Options, *, columns: Sequence[str] | None) -> Rows:
    """The rows of `X`, of which no process but one needs to have any; all must have the same columns."""
    if isinstance(run, RayRun):
        return _dataset_rows(X, adapted, options, columns)
    if is_ray(X):
        raise ValueError(
            f"X is a Ray dataset, whose rows its own workers add up, but the engine has {run.size} processes that read "
            "rows themselves; call fit in one process with engine=nobsp.RayCluster(), or pass each its share as an "
            "iterable of batches."
        )
    rows = None
    X = X if adapted.pack is None else adapted.pack(X)
    try:
        rows = TableRows(X, batches_of(X, batch_size=options.batch_size, encode=adapted.encode, columns=columns))
    except NoRowsError:
        if run.size == 1:
            raise
    found = run.gather(None if rows is None else (rows.probe, rows.source.names, rows.source.columns))
    known = [(rank, *about) for rank, about in enumerate(found) if about is not None]
    if not known:
        raise ValueError(f"X has no rows on any of the {run.size} ranks.")
    first, probe, names, width = known[0]
    for rank, _, other_names, other_width in known[1:]:
        if other_width != width:
            raise ValueError(
                f"X has {other_width} columns on rank {rank} but {width} on rank {first}; every rank needs the same "
                "columns."
            )
        if other_names != names:
            raise ValueError(
                f"X has the columns {other_names} on rank {rank} but {names} on rank {first}; every rank needs the "
                "same columns in the same order."
            )
    if rows is None:
        rows = TableRows(X, Source(names, 0, True, False, width, lambda: iter(())))
    rows.probe = probe
    return rows


def _dataset_rows(X: Any, adapted: Adapted, options: Options, columns: Sequence[str] | None) -> DatasetRows:
    if not is_ray(X):
        raise TypeError(
            f"engine is RayCluster, but X is a {type(X).__name__}; pass a ray.data.Dataset, or leave engine out."
        )
    first = first_batch(X, PROBE_ROWS, argument="X", batch_format="pandas")
    # As `ray.data.from_numpy` makes them.
    arrays = first.shape[1] == 1 and np.ndim(first.iloc[0, 0]) == 1
    expected = None if columns is None else tuple(columns)
    reader = BlockReader(adapted, expected, arrays, options.batch_size)
    source = reader.batches(first)
    probe = next(iter(source))
    # All batches have the columns of the first; the network is not sent along with the preprocessing.
    names = None if arrays else expected or tuple(str(name) for name in first.columns)
    reader = replace(reader, names=names, adapted=replace(adapted, module=torch.nn.Identity()))
    size = 8 * source.columns
    return DatasetRows(
        X,
        reader.batches,
        options.batch_size,
        size,
        source=replace(source, names=names),
        probe=probe,
        tables=RayRows(X, reader.tables, options.batch_size, size),
        frame=None if arrays else nw.Implementation.PANDAS,
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


def read_ahead(run: Run, rows: Rows, columns: Columns, options: Options, *, planned: bool) -> bool:
    """Whether all rows are read before they are run: where the baseline needs it, or it is cheap."""
    if isinstance(rows, DatasetRows):
        return True
    wanted = hasattr(rows.X, "shape") or (not planned and needs_data(options.baseline, columns.features))
    ahead = any(run.gather(wanted))
    if ahead and not rows.source.reiterable:
        raise ValueError(
            f"X can be read only once, but baseline={options.baseline!r} has to be known before calibrating; pass "
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
    if run.has_checkpoint:
        raise ValueError(
            f"checkpoint needs a calibration in one pass, but within memory={run.memory:,} bytes this one takes "
            f"{count}; give the engine more memory, or calibrate without a checkpoint."
        )
