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

from nobsp.base import Finding
from nobsp.messages import count
from nobsp.tabular.correction import (
    Fit,
    HeldOut,
    Regression,
    complete_fit,
    hold_outside,
    judge,
    share_explained,
)
from nobsp.tabular.features import Domain
from nobsp.tabular.folds import FOLDS, Codes, deal_folds, find_neighbourhoods
from nobsp.tabular.grids import Tabulator
from nobsp.tabular.lookup import Array, NumberAxis, TermTable
from nobsp.tabular.pieces import TablePiece
from nobsp.tabular.sample import Sample

# Fewest rows that are divided into neighbourhoods.
FEWEST_ROWS = 100
# Loss of R² that is worth telling: independent and correlated tables lose up to 0.03 at the rim of the rows.
WORTH_TELLING = 0.05
# Standard errors that a difference must exceed.
STANDARD_ERRORS = 2.0
# Share of the neighbourhoods, those that lose most, without which a loss is still one of most of them.
TRIMMED = 0.1
# Rows below which held-out R² says nothing, and below which it is a few hundredths too high.
TOO_FEW_ROWS = 10
FEW_ROWS = 100
# Values at which a table is compared with the model between its knots, and background rows meanwhile.
_COMPARED_VALUES = 64
_COMPARED_BACKGROUND = 8
# Share of the outputs' spread that a table may miss between its knots.
_COARSE = 0.1


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """R² with whole neighbourhoods held out, beside that with single rows held out."""

    codes: Codes  # the neighbourhood of every row
    rows: Regression  # the regression in folds of whole neighbourhoods
    row_wise: Tensor  # R² with single rows held out, per output
    explained: Tensor  # R² with whole neighbourhoods held out, at the same strengths
    scatter: Tensor  # standard error of the difference
    typical_loss: Tensor  # the difference without the neighbourhoods that lose most

    @property
    def clustered(self) -> Tensor:
        """Per output, whether the loss is worth telling, and more than chance or a few neighbourhoods make it."""
        loss = self.row_wise - self.explained
        beyond_scatter = loss > STANDARD_ERRORS * self.scatter
        widespread = self.typical_loss > WORTH_TELLING
        return (loss > WORTH_TELLING) & (beyond_scatter | widespread)


def hold_out_neighbourhoods(fit: Fit, domains: Sequence[Domain]) -> Neighbourhoods | None:
    """Judges a fit by whole neighbourhoods; None where there are too few rows to tell."""
    if len(fit.sample) < FEWEST_ROWS or len(np.unique(fit.sample.units())) < 2 * FOLDS:
        return None
    generator = np.random.default_rng(0)
    codes = find_neighbourhoods(fit.sample.inputs, generator=generator)
    if int(codes.max()) + 1 < FOLDS:
        return None

    fold = torch.from_numpy(deal_folds(codes, generator=generator))
    rows = _rows_in_folds(fit, domains, fold)
    strengths = fit.correction.alphas
    alphas = sorted(set(strengths.tolist()))
    best = torch.tensor([alphas.index(strength) for strength in strengths.tolist()])
    residuals = replace(judge(rows, alphas), best=best).chosen()
    losses = _losses(residuals, fit.held_out.chosen(), rows.outputs, codes)
    ordered = losses.sort(0).values
    typical = ordered[: len(losses) - round(TRIMMED * len(losses))]
    return Neighbourhoods(
        codes=codes,
        rows=rows,
        row_wise=fit.explained,
        explained=share_explained(residuals, rows.outputs),
        scatter=losses.std(0, correction=1) * len(losses) ** 0.5,
        typical_loss=typical.sum(0),
    )


def choose_by_neighbourhoods(fit: Fit, neighbourhoods: Neighbourhoods) -> Fit:
    """The fit with strengths that whole neighbourhoods held out choose, for the outputs whose rows are clustered.

    Rows of a cluster that are fitted on tell the others of it, so that single rows held out choose too weak a ridge.
    """
    clustered = neighbourhoods.clustered
    apart = judge(neighbourhoods.rows, fit.alphas)
    best = torch.where(clustered, apart.best, fit.held_out.best)
    # Bands are made of what was left of every row, with neighbourhoods drawn whole.
    sample = replace(fit.sample, groups=neighbourhoods.codes)
    refitted = complete_fit(
        fit.pieces,
        [piece.read(fit.sample) for piece in fit.pieces],
        sample=sample,
        regression=fit.regression,
        alphas=fit.alphas,
        held_out=replace(fit.held_out, best=best),
    )
    held_out = HeldOut(
        residual=torch.where(clustered, apart.residual, fit.held_out.residual),
        errors=torch.where(clustered, apart.errors, fit.held_out.errors),
        best=best,
    )
    return replace(refitted, held_out=held_out)


def _rows_in_folds(fit: Fit, domains: Sequence[Domain], fold: Tensor) -> Regression:
    """The same rows of the regression, dealt into other folds."""
    outside, clamped = hold_outside(fit.sample, domains, fold)
    beyond = fit.sample.take(outside.numpy())
    shifts = []
    for piece in fit.pieces:
        if isinstance(piece, TablePiece):
            shifts.append(piece.read(clamped)[0] - piece.read(beyond)[0])
        else:
            shifts.append(torch.zeros(len(outside), piece.rank, dtype=torch.float64))
    held = fit.regression.terms[outside] + torch.cat(shifts, 1)
    rows = Regression.of(fit.regression.terms, fit.regression.outputs, fold, outside, held)
    return replace(rows, prior=fit.regression.prior)


def _losses(after: Tensor, before: Tensor, outputs: Tensor, codes: Codes) -> Tensor:
    """What every neighbourhood loses of R², (neighbourhoods, outputs); they add up to the difference."""
    more = after.square() - before.square()
    losses = torch.zeros(int(codes.max()) + 1, more.shape[1], dtype=torch.float64)
    losses.index_add_(0, torch.from_numpy(codes), more)
    total = outputs.var(0, correction=0).clamp_min(1e-300) * len(outputs)
    return losses / total


def scatter_of_share(residuals: Tensor, outputs: Tensor) -> Tensor:
    """Standard error of R² over rows, by the delta method; NaN where an output does not vary."""
    centred = (outputs - outputs.mean(0)).square()
    total = centred.mean(0)
    left = residuals.square().mean(0) / total
    influence = (residuals.square() - left * centred) / total
    scatter: Tensor = influence.std(0, correction=0) / max(len(outputs), 1) ** 0.5
    return scatter


def cluster_finding(
    neighbourhoods: Neighbourhoods, final: Tensor, names: Sequence[str], *, chosen: bool
) -> Finding:
    """Both figures of the output that loses most; `final` are those at the strengths that are used."""
    losses = neighbourhoods.row_wise - neighbourhoods.explained
    losses = torch.where(neighbourhoods.clustered, losses, -torch.inf)
    output = int(losses.argmax())
    row_wise = float(neighbourhoods.row_wise[output])
    explained = float(neighbourhoods.explained[output])
    message = (
        f"The rows seem to come in clusters: held-out R² is {row_wise:.3f} with single rows held out, but "
        f"{explained:.3f} with whole neighbourhoods held out, as rows of new clusters are."
    )
    if chosen:
        message += (
            " So the ridge was chosen with neighbourhoods held out, which gives "
            f"{float(final[output]):.3f} on them."
        )
    message += " Name the clusters with fit(X, groups=...), for example the customer of every row."
    return Finding("warning", "clusters", names[output] if len(names) > 1 else "", message)


def few_rows_findings(rows: int, units: int, *, grouped: bool) -> list[Finding]:
    """What held-out R² is worth where it rests on few rows."""
    if rows < TOO_FEW_ROWS:
        message = (
            f"{count(rows, 'row')} cannot tell how well the functions hold on other rows, so held-out R² is not given. "
            f"Calibrate on {FEW_ROWS} rows or more."
        )
        return [Finding("warning", "few_rows", "", message)]
    if units >= FEW_ROWS:
        return []
    what = count(units, "group" if grouped else "different row")
    message = (
        f"Held-out R² rests on {what}: expect about 0.03 less on new rows, at times 0.1. "
        f"Calibrate on {FEW_ROWS} or more."
    )
    return [Finding("note", "few_rows", "", message)]


def coarse_features(
    tables: Sequence[TermTable],
    domains: Sequence[Domain],
    tabulate: Tabulator,
    sample: Sample,
) -> list[int]:
    """Features whose function bends more between the knots of its table than the table can follow."""
    few = tabulate.with_rows(_COMPARED_BACKGROUND)
    chunk = sample.some(_COMPARED_VALUES).chunk()
    coarse = []
    for table in tables:
        if len(table.axes) != 1 or not isinstance(table.axes[0], NumberAxis):
            continue
        axis = table.axes[0]
        domain = domains[table.features[0]]
        values = chunk.numbers(axis.column)
        values = values[np.isfinite(values)]
        if not len(values):
            continue

        def outputs_at(points: Array, domain: Domain = domain) -> Tensor:
            return few.rows(domain.columns, domain.encode(points[:, None])) @ few.weight

        segment = axis.segments(values)
        along = torch.from_numpy(axis.along(values, segment))[:, None]
        left = outputs_at(axis.knots[segment])
        right = outputs_at(axis.knots[segment + 1])
        missed = outputs_at(values) - (1 - along) * left - along * right
        share = missed.std(0, correction=0) / sample.spread
        if float(share.max()) > _COARSE:
            coarse.append(table.features[0])
    return coarse
