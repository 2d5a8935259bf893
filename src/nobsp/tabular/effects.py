"""Removal effects: all terms that a feature takes part in, of every order, from the network itself.

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

from nobsp.network.inputs import Summary, distinct
from nobsp.network.readout import Readout
from nobsp.tabular.fitted import Fitted
from nobsp.tabular.representations import Represent

# Levels of a category that take one another's place; past these, the rarest are left out.
MOST_LEVELS = 256


@dataclass(frozen=True, eq=False)
class StandIns:
    """Values that take the place of a feature's own."""

    columns: list[int]  # the feature's columns of the input
    values: Tensor  # shape (values, columns)
    weights: Tensor  # how much each counts; they sum to one


def stand_ins(fitted: Fitted, most: int, background: Any, *, batch_size: int) -> list[StandIns]:
    """For every feature, values that stand for its distribution."""
    summary = fitted.summary if background is None else _summary(fitted, background, batch_size)
    found = []
    for feature, group in enumerate(fitted.columns.features.columns):
        columns, category = list(group), fitted.functions.features[feature].kind == "levels"
        if not columns:  # a column that the preprocessing drops
            values, counts = torch.zeros(1, 0), torch.ones(1)
        else:
            known = summary.levels_of(feature, columns) or distinct(_sample(summary)[:, columns])
            values, counts = _frequent(*known) if category else _spread(*known, most)
        found.append(StandIns(columns, values, counts.double() / counts.sum()))
    return found


def _summary(fitted: Fitted, background: Any, batch_size: int) -> Summary:
    summary = Summary(fitted.columns.features.columns)
    try:
        for batch in fitted.source(background, batch_size=batch_size, strict=True):
            summary.update(batch)
    except ValueError as error:
        raise ValueError(f"background: {error}") from None
    return summary


def _sample(summary: Summary) -> Tensor:
    if len(summary.sample) == 0:
        raise ValueError(
            "the file this explainer was loaded from holds no rows to take values from; give some with background=rows."
        )
    return summary.sample


def _frequent(values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Levels of a category: they have no order to be spread over."""
    first = counts.argsort(descending=True, stable=True)[:MOST_LEVELS]
    return values[first], counts[first]


def _spread(values: Tensor, counts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Values at equal steps of probability, each the middle of its step; rows of several columns in lexical order."""
    if len(values) <= most:
        return values, counts
    shares = counts.double().cumsum(0) / counts.sum()
    middles = (torch.arange(most, dtype=torch.float64) + 0.5) / most
    return values[torch.searchsorted(shares, middles)], torch.ones(most)


def removal_effects(
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
