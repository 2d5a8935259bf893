"""Puts together what the ranks of one calibration know of their own rows: head, columns and summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from torch import Tensor

from nobsp.network.adapted import Adapted
from nobsp.network.batches import Source
from nobsp.network.preprocessing import grouping_rows, stacked
from nobsp.network.ranks import Ranks
from nobsp.network.readout import PROBE_ROWS
from nobsp.network.summary import MOST_CODES, MOST_LEVELS, SAMPLE_ROWS, Summary
from nobsp.tabular.columns import Columns, columns_of, whole_table


@dataclass(frozen=True, eq=False)
class Glimpse:
    """The first rows of a rank, and what its table is made of."""

    probe: Tensor
    names: tuple[str, ...] | None
    columns: int

    @classmethod
    def of(cls, source: Source, first: Tensor) -> Glimpse:
        """What other ranks need to know of a source."""
        return cls(first[:PROBE_ROWS].clone(), source.names, source.columns)


def common_glimpse(ranks: Ranks, mine: Glimpse | None) -> Glimpse:
    """The first rows of the first rank that has any; all others must have the same columns.

    Raises:
        ValueError: If no rank has rows, or two have different columns.
    """
    found = [(rank, glimpse) for rank, glimpse in enumerate(ranks.gather(mine)) if glimpse is not None]
    if not found:
        raise ValueError(f"X has no rows on any of the {ranks.size} ranks.")
    origin, common = found[0]
    for rank, glimpse in found[1:]:
        if glimpse.columns != common.columns:
            raise ValueError(
                f"X has {glimpse.columns} columns on rank {rank} but {common.columns} on rank {origin}; every rank "
                "needs the same columns."
            )
        if glimpse.names != common.names:
            raise ValueError(
                f"X has the columns {glimpse.names} on rank {rank} but {common.names} on rank {origin}; every rank "
                "needs the same columns in the same order."
            )
    return common


def common_columns(
    ranks: Ranks, X: Any, adapted: Adapted, features: Sequence[str] | Mapping[str, Any] | None, source: Source | None
) -> Columns:
    """The columns with the levels and ranges of all ranks' rows; a rank without rows has no source."""
    groups = None
    if not ranks.alone and adapted.encode is not None:
        mine = None if source is None else grouping_rows(whole_table(X, adapted)[0])
        groups = adapted.groups(stacked([rows for rows in ranks.gather(mine) if rows is not None]))
    own = None
    if source is not None:
        own = columns_of(X, adapted, features, width=source.columns, names=source.names, groups=groups)
    return reduce(joined_columns, [columns for columns in ranks.gather(own) if columns is not None])


def common_summary(ranks: Ranks, mine: Summary | None) -> Summary:
    """What all ranks' rows look like, in the order of the ranks; each gives its share of the sample."""
    if ranks.alone and mine is not None:
        return mine
    total = sum(ranks.gather(0 if mine is None else mine.rows))
    if mine is not None and total > SAMPLE_ROWS:
        # Rounded down, so that all shares fit; they are sent to every rank, so no more than that is.
        mine = replace(mine, sample=mine.some_rows(SAMPLE_ROWS * mine.rows // total))
    return reduce(Summary.merge, [summary for summary in ranks.gather(mine) if summary is not None])


def joined_columns(first: Columns, second: Columns) -> Columns:
    """The columns of two shares of a table, with the levels and ranges of both."""
    text = {
        feature: sorted({*first.text_levels.get(feature, []), *second.text_levels.get(feature, [])}, key=str)
        for feature in first.text_levels.keys() | second.text_levels.keys()
    }
    numbers = {
        feature: sorted({*first.number_levels[feature], *second.number_levels[feature]})
        for feature in first.number_levels.keys() & second.number_levels.keys()
    }
    # As many as a single table's: a one-hot encoder knows no value in between.
    most = [max(MOST_LEVELS, len(encoded) + 1) for encoded in first.features.columns]
    return replace(
        first,
        text_levels={feature: levels[:MOST_CODES] for feature, levels in sorted(text.items())},
        number_levels={feature: levels for feature, levels in numbers.items() if len(levels) <= most[feature]},
        ranges=tuple(_span(a, b) for a, b in zip(first.ranges, second.ranges, strict=True)),
    )


def _span(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    """The range of both; a column that is text, or missing, on one side has the other's."""
    if not first or not second:
        return (*first, *second)
    return min(first[0], second[0]), max(first[1], second[1])
