"""Weights of rows: a table whose rows are repeated as often as their weights say."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nobsp._typing import ArrayLike, FloatArray, TableLike
from nobsp.arguments import numbers_of
from nobsp.frames import take_rows
from nobsp.network.columns import SAMPLE_ROWS
from nobsp.tabular.lookup import Places

# Most rows of a repeated table, as a multiple of its own, where that is no more than a sample has.
_MOST_REPEATS = 32
# The same where a table has more rows than that: weights are then rounded.
_FEWEST_REPEATS = 4
# Weights are whole multiples of the smallest where they differ from one by no more than this share.
_WHOLE = 1e-9


def count_in_memory(X: TableLike, *, several: bool, argument: str) -> int:
    """How many rows there are; raises a TypeError where they are not in memory.

    `several` says whether the model has several inputs.
    """
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
    """Rows repeated by weight, how many have any weight, and the position each was taken from."""
    n_rows = count_in_memory(X, several=several, argument="sample_weight")
    parts = _inputs_of(X, several=several)
    weight = numbers_of(sample_weight, name="sample_weight")
    if weight.shape != (n_rows,) or any(part.shape[0] != n_rows for part in parts):
        raise ValueError(
            f"sample_weight has the shape {weight.shape}; pass one weight for each of the {n_rows} "
            "rows."
        )
    if not (np.isfinite(weight).all() and weight.min() >= 0 and weight.max() > 0):
        raise ValueError(
            "sample_weight must be finite and not negative, with one weight above zero at least."
        )

    positions = np.repeat(np.arange(n_rows), _count_repeats(weight))
    repeated = [take_rows(part, positions) for part in parts]
    return _like_inputs(X, repeated, several=several), int((weight > 0).sum()), positions


def _count_repeats(weight: FloatArray) -> Places:
    """How often each row is repeated to stand for its weight.

    Exact where weights are whole multiples, rounded otherwise.
    """
    weight = weight / weight.max()
    counts = weight / weight[weight > 0].min()

    n_rows = len(weight)
    most = max(min(_MOST_REPEATS * n_rows, SAMPLE_ROWS), _FEWEST_REPEATS * n_rows)
    are_whole = np.abs(counts - np.rint(counts)).max() <= _WHOLE * counts.max()
    if not are_whole or counts.sum() > most:
        # Rounded as they add up, so that rows alike have their weight together however small each
        # one's is.
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
