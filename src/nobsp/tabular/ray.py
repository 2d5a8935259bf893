"""The rows of a Ray dataset, read block by block in the workers of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from nobsp._typing import TableLike
from nobsp.calibration.local import is_ray
from nobsp.calibration.ray import RayRows, first_batch
from nobsp.network.adapted import Adapted
from nobsp.network.batches import Source, batches_of
from nobsp.network.readout import PROBE_ROWS

# Bytes of a number in a batch, for how many rows a worker takes at once.
_BYTES_OF_A_NUMBER = 8


@dataclass(eq=False)
class DatasetRows(RayRows):
    """A Ray dataset's rows."""

    source: Source = field(kw_only=True)  # what is known of them
    probe: Tensor = field(kw_only=True)  # the first of them
    tables: RayRows = field(kw_only=True)  # the dataset's blocks as they are


def dataset_rows(
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
