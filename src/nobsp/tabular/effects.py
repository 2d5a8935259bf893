"""Total effects: all terms that a feature takes part in, of every order, from the network itself.

Let terms be centred, so that each has mean zero over the values of any of its features. Then the mean of the output
over the values of one feature, the others as they are, is what all terms without the feature add up to, and

    f(x) − mean_v f(v, x_others)  =  Σ over all terms S that hold the feature of g_S(x).

Nothing is fitted, so interactions that a calibration leaves to its residual are in here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nobsp.network.readout import Readout
from nobsp.network.summary import Summariser, Summary
from nobsp.tabular.fitted import Fitted
from nobsp.tabular.representations import Represent


@dataclass(frozen=True, eq=False)
class StandIns:
    """Values that take the place of a feature's own.

    Attributes:
        columns: The feature's columns of the input.
        values: Shape (values, columns).
        weights: How much each counts; they sum to one.
    """

    columns: list[int]
    values: Tensor
    weights: Tensor


def stand_ins(fitted: Fitted, most: int, background: Any, *, batch_size: int) -> list[StandIns]:
    """For every feature, values spread over its distribution: all there are, or `most` of equal weight.

    Args:
        fitted: The calibrated model.
        most: Most values for a feature.
        background: Rows to take values from; those of the calibration when None.
        batch_size: Rows of the background to read at a time.
    """
    summary = fitted.summary
    if background is not None:
        summariser = Summariser(fitted.columns.features.columns)
        for batch in fitted.source(background, batch_size=batch_size):
            fitted.outside(batch, first_row=summariser.rows)
            summariser.update(batch)
        summary = summariser.result()
    return [
        _of_feature(summary, feature, list(columns), most)
        for feature, columns in enumerate(fitted.columns.features.columns)
    ]


def _of_feature(summary: Summary, feature: int, columns: list[int], most: int) -> StandIns:
    if not columns:  # a column that the preprocessing drops
        return StandIns(columns, torch.zeros(1, 0, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    known = summary.levels_of(feature, columns)
    if known is None and len(summary.sample) == 0:
        raise ValueError(
            "the file this explainer was loaded from holds no rows to take values from; give some with background=rows."
        )
    if known is None and len(columns) != 1:
        rows = summary.some_rows(most)[:, columns]
        return StandIns(columns, rows, torch.full((len(rows),), 1 / len(rows), dtype=torch.float64))
    if known is None:
        known = torch.unique(summary.sample[:, columns[0]], return_counts=True)
    values, counts = known[0].reshape(len(known[0]), len(columns)), known[1].to(torch.float64)
    if len(values) > most:
        # The values at equal steps of probability, each the middle of its step; all of them are real ones.
        shares = counts.cumsum(0) / counts.sum()
        middles = (torch.arange(most, dtype=torch.float64) + 0.5) / most
        values, counts = values[torch.searchsorted(shares, middles)], torch.ones(most, dtype=torch.float64)
    return StandIns(columns, values, counts / counts.sum())


def total_effects(
    represent: Represent, readout: Readout, rows: Tensor, replaced: list[StandIns], batch_size: int
) -> Tensor:
    """f(x) − mean_v f(v, x_others) for every feature, shape (rows, features, outputs), float64 on the CPU.

    No forward pass is longer than `batch_size` rows.
    """

    def logits(inputs: Tensor) -> Tensor:
        return readout.logits(represent(inputs)).cpu()

    own = logits(rows)
    effects = own[:, None, :].repeat(1, len(replaced), 1)
    for position, feature in enumerate(replaced):
        for inputs, places, weights in _replaced(rows, feature, batch_size):
            effects[:, position].index_add_(0, places, logits(inputs) * -weights[:, None])
    return effects


def _replaced(rows: Tensor, feature: StandIns, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs with the feature replaced, the row each was made from, and how much it counts."""
    count = len(feature.values)
    for start in range(0, len(rows) * count, batch_size):
        number = torch.arange(start, min(start + batch_size, len(rows) * count))
        places, chosen = number // count, number % count
        inputs = rows[places.to(rows.device)].clone()
        inputs[:, feature.columns] = feature.values[chosen].to(inputs)
        yield inputs, places, feature.weights[chosen]
