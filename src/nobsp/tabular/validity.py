"""Is the headline true? Scatter of R², and R² where whole neighbourhoods of rows are held out.

Groups of near-equal rows that nobody named make held-out rows too easy: each has neighbours among the rows fitted on.
Holding out whole neighbourhoods takes these away; independent rows lose little by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nobsp.tabular.folds import FOLDS, Codes, deal_folds, find_neighbourhoods
from nobsp.tabular.regression import (
    Fit,
    HeldOut,
    Rows,
    TablePiece,
    hold_outside,
    judge,
    share_explained,
)
from nobsp.tabular.tabulate import Domain

# Fewest rows that are divided into neighbourhoods.
FEWEST_ROWS = 100
# Loss of R² that is worth telling: independent and correlated tables lose up to 0.03 at the rim of the rows.
WORTH_TELLING = 0.05
# Standard errors that a difference must exceed.
STANDARD_ERRORS = 2.0


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """R² with whole neighbourhoods held out, beside that with single rows held out."""

    explained: Tensor  # per output
    loss: Tensor  # per output, how much lower that is
    scatter: Tensor  # standard error of the loss
    held_out: HeldOut
    rows: Rows

    @property
    def clustered(self) -> Tensor:
        """Per output, whether the loss is worth telling and more than its scatter."""
        limit = (STANDARD_ERRORS * self.scatter).clamp_min(WORTH_TELLING)
        return self.loss > limit


def hold_out_neighbourhoods(
    fit: Fit, domains: Sequence[Domain], alphas: Sequence[float] | None = None
) -> Neighbourhoods | None:
    """Judges a fit by whole neighbourhoods; None where there are too few rows to tell."""
    units = fit.sample.units()
    if len(fit.sample) < FEWEST_ROWS or int(units.max()) + 1 < 2 * FOLDS:
        return None
    generator = np.random.default_rng(0)
    codes = find_neighbourhoods(fit.sample.inputs, generator=generator)
    if int(codes.max()) + 1 < FOLDS:
        return None
    fold = torch.from_numpy(deal_folds(codes, generator=generator))
    rows = _rows_in_folds(fit, domains, fold)

    if alphas is None:
        alphas = sorted(set(fit.correction.alphas.tolist()))
    held_out = judge(rows, alphas)
    places = [list(alphas).index(alpha) for alpha in fit.correction.alphas.tolist()]
    held_out = replace(held_out, best=torch.tensor(places))

    residuals = held_out.chosen()
    outputs = rows.outputs
    explained = share_explained(residuals, outputs)
    loss = fit.explained - explained
    return Neighbourhoods(
        explained=explained,
        loss=loss,
        scatter=_scatter_of_loss(residuals, fit.held_out.chosen(), outputs, codes),
        held_out=held_out,
        rows=rows,
    )


def _rows_in_folds(fit: Fit, domains: Sequence[Domain], fold: Tensor) -> Rows:
    """The same rows of the regression, dealt into other folds."""
    outside, clamped = hold_outside(fit.sample, domains, fold)
    beyond = fit.sample.take(outside.numpy())
    shifts = []
    for piece in fit.pieces:
        if isinstance(piece, TablePiece):
            shifts.append(piece.read(clamped)[0] - piece.read(beyond)[0])
        else:
            shifts.append(torch.zeros(len(outside), piece.rank, dtype=torch.float64))
    held = fit.rows.terms[outside] + torch.cat(shifts, 1)
    rows = Rows.of(fit.rows.terms, fit.rows.outputs, fold, outside, held)
    return replace(rows, prior=fit.rows.prior)


def _scatter_of_loss(after: Tensor, before: Tensor, outputs: Tensor, codes: Codes) -> Tensor:
    """Standard error of a difference between two R² of the same rows, from neighbourhood to neighbourhood."""
    more = after.square() - before.square()
    n_codes = int(codes.max()) + 1
    sums = torch.zeros(n_codes, more.shape[1], dtype=torch.float64)
    sums.index_add_(0, torch.from_numpy(codes), more)
    total = outputs.var(0, correction=0).clamp_min(1e-300) * len(outputs)
    return sums.std(0, correction=1) * n_codes**0.5 / total


def scatter_of_share(residuals: Tensor, outputs: Tensor) -> Tensor:
    """Standard error of R² over rows, by the delta method; NaN where an output does not vary."""
    centred = (outputs - outputs.mean(0)).square()
    total = centred.mean(0)
    left = residuals.square().mean(0) / total
    influence = (residuals.square() - left * centred) / total
    return influence.std(0, correction=0) / max(len(outputs), 1) ** 0.5
