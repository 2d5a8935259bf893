"""A feature's values taken away: what predictions lose when it is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nobsp._typing import FloatArray, TableLike
from nobsp.network.batches import with_progress
from nobsp.network.columns import MOST_LEVELS, Summary, distinct
from nobsp.network.readout import Readout, Represent, as_model_takes
from nobsp.tabular.fitted import CalibratedModel


@dataclass(frozen=True, eq=False)
class StandIns:
    """Values that take the place of a feature's own."""

    columns: list[int]  # of the network's input
    values: Tensor  # (values, columns)
    shares: Tensor  # how often each is taken


def measure_removal(
    fitted: CalibratedModel,
    represent: Represent,
    X: TableLike,
    *,
    most_values: int,
    background: TableLike,
    batch_size: int,
    progress: bool,
) -> FloatArray:
    """What every row's outputs lose when a feature is not known, (rows, features, outputs).

    `background` are rows to take values from, the calibration rows when None.
    """
    replacements = _stand_ins(fitted, most_values, background, batch_size=batch_size)
    source = fitted.source(X, batch_size)
    effects = []
    for batch in with_progress(
        source, total=source.rows, enabled=progress, description="explaining"
    ):
        inputs = as_model_takes(batch, fitted.readout)
        effects.append(
            _effects_of_rows(represent, fitted.readout, inputs, replacements, batch_size)
        )

    measured = torch.cat(effects)
    unanswered = ~measured.isfinite().flatten(1).all(1)
    if bool(unanswered.any()):
        row = int(unanswered.nonzero()[0])
        raise ValueError(
            f"X has rows for which the model gives no finite answer, row {row} the first; "
            "leave them out."
        )
    return measured.numpy()


def _stand_ins(
    fitted: CalibratedModel, most: int, background: TableLike, *, batch_size: int
) -> list[StandIns]:
    """For every feature, values that stand for its distribution."""
    summary = fitted.summary
    if background is not None:
        summary = Summary(fitted.columns.features.columns)
        for batch in fitted.source(background, batch_size, argument="background"):
            summary.update(batch)

    replacements = []
    for feature, group in enumerate(fitted.columns.features.columns):
        columns = list(group)
        values, counts = _values_of(summary, feature, columns)
        if fitted.functions.features[feature].kind == "levels":
            # They have no order to be spread over; the rarest are left out.
            most_frequent = counts.argsort(descending=True, stable=True)[:MOST_LEVELS]
            values = values[most_frequent]
            counts = counts[most_frequent]
        elif len(values) > most:
            values = _spread_evenly(values, counts, most)
            counts = torch.ones(most)
        shares = counts.double() / counts.sum()
        replacements.append(StandIns(columns, values, shares))
    return replacements


def _values_of(summary: Summary, feature: int, columns: list[int]) -> tuple[Tensor, Tensor]:
    """The different values of a feature among the rows, and how often each occurs."""
    if not columns:  # the preprocessing drops it
        return torch.zeros(1, 0), torch.ones(1)
    known = summary.levels_of(feature, columns)
    if known is not None:
        return known
    if len(summary.sample) == 0:
        raise ValueError(
            "a file holds no rows to take values from; give some with background=rows."
        )
    return distinct(summary.sample[:, columns])


def _spread_evenly(values: Tensor, counts: Tensor, most: int) -> Tensor:
    """Values at equal steps of probability, each the middle of its step.

    Several columns are in lexical order.
    """
    shares = counts.double().cumsum(0) / counts.sum()
    middles = (torch.arange(most, dtype=torch.float64) + 0.5) / most
    return values[torch.searchsorted(shares, middles)]


def _effects_of_rows(
    represent: Represent,
    readout: Readout,
    rows: Tensor,
    replacements: Sequence[StandIns],
    batch_size: int,
) -> Tensor:
    """f(x) − mean_v f(v, x_others) for every feature, shape (rows, features, outputs).

    In float64, on the CPU.

    Values for which the model has no finite answer beside the row's others are left out of the
    mean.
    """
    outputs = readout.logits(represent(rows)).cpu()
    effects = outputs[:, None].repeat(1, len(replacements), 1)
    for feature, replacement in enumerate(replacements):
        n_values = len(replacement.values)
        sums = torch.zeros_like(outputs)
        answered = torch.zeros(len(rows), 1, dtype=outputs.dtype)
        for numbers in torch.split(torch.arange(len(rows) * n_values), batch_size):
            row = numbers // n_values
            chosen = numbers % n_values
            inputs = rows[row.to(rows.device)]
            inputs[:, replacement.columns] = replacement.values[chosen].to(inputs)
            replaced = readout.logits(represent(inputs)).cpu()
            is_answered = torch.isfinite(replaced).all(1)
            shares = torch.where(is_answered, replacement.shares[chosen], 0.0)[:, None]
            sums.index_add_(0, row, torch.where(is_answered[:, None], replaced, 0.0) * shares)
            answered.index_add_(0, row, shares)
        effects[:, feature] -= sums / answered
    return effects
