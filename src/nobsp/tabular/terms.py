"""All terms at once: tables over the background, the head as prior, and a correction judged on rows held out.

    f(x) ≈ base + Σ_S [ Δ̃_S(x_S) Wᵀ + Δ̃_S(x_S held at the calibrated range) δ_S ]

Δ_S is the representation of the term's features averaged over the background rows, and purified: what a pair does on
average over its partner's calibration rows belongs to the feature alone. The first part is partial dependence; δ is
fitted with a ridge, so that few rows lead back to partial dependence and not to nonsense.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.network.progress import progress_bar
from nobsp.tabular import selection
from nobsp.tabular.background import Backgrounds
from nobsp.tabular.bands import Traces
from nobsp.tabular.budget import BudgetSpentError, Meter
from nobsp.tabular.correction import Fit, Trial, solve_terms
from nobsp.tabular.effort import (
    DIRECT_BACKGROUND,
    FULL,
    MEASURED_DIRECTLY,
    MOST_STEPS,
    Effort,
)
from nobsp.tabular.features import FEW_VALUES, Domain
from nobsp.tabular.grids import Represent
from nobsp.tabular.lookup import TermTable
from nobsp.tabular.pieces import DirectPiece, DirectTerm, Piece, TablePiece, pure_rows
from nobsp.tabular.purification import occupancy
from nobsp.tabular.sample import Sample
from nobsp.tabular.selection import Screen
from nobsp.tabular.steps import FINE_PAIR_ROOM
from nobsp.tabular.tables import MOST_DIRECTIONS, Grid, Tables, compress
from nobsp.tabular.tabulation import Tabulation

# Most columns of the regression: past these, factorising takes longer than all forward passes.
MOST_COLUMNS = 1000


@dataclass(frozen=True, eq=False)
class Terms:
    """Fitted terms."""

    fit: Fit
    traces: Traces
    # per pair the spread that its features make only together, as a share of the output's
    strengths: dict[Subset, float]
    forward_rows: int
    economy: bool  # whether the model takes too many operations a row for full tables
    thresholds: dict[int, tuple[int, int]]  # of a feature's steps: those in its table, and all
    # what a feature's prior part is measured from; for levels that were not seen
    offsets: dict[int, Tensor]
    background: Tensor

    @property
    def order(self) -> tuple[Subset, ...]:
        """All terms, single features first."""
        return tuple(piece.term for piece in self.fit.pieces)

    @property
    def tables(self) -> tuple[TermTable, ...]:
        """The terms that have tables."""
        return tuple(term for term in self.fit.functions if isinstance(term, TermTable))

    @property
    def direct(self) -> tuple[DirectTerm, ...]:
        """The terms that run through the network row by row."""
        return tuple(term for term in self.fit.functions if isinstance(term, DirectTerm))


def fit_terms(
    sample: Sample,
    domains: Sequence[Domain],
    represent: Represent,
    weight: Tensor,
    *,
    background: int | Tensor,
    pairs: Sequence[Subset] | int | None,
    ridge: float | None,
    batch_size: int,
    effort: Effort = FULL,
    meter: Meter | None = None,
    progress: bool = False,
) -> Terms:
    """Fits all terms.

    `pairs` are the interactions to fit, how many of the strongest pairs, or None for those pairs and triples that pay
    on rows held out.
    """
    meter = meter or Meter()
    backgrounds = Backgrounds(
        represent,
        background,
        sample.inputs,
        weight,
        numbers=_shifted_columns(domains, sample),
        batch_size=batch_size,
    )

    with progress_bar(enabled=progress, description="tabulating", unit=" terms") as bar:
        tabulation = Tabulation(sample, weight, effort, backgrounds, meter, bar)
        mains = tabulation.tabulate_mains(domains)

        calibration = Calibration(tabulation, ridge)
        if pairs is None:
            calibrated = calibration.fit_paying(mains)
        elif isinstance(pairs, int):
            calibrated = calibration.fit_strongest(mains, pairs)
        else:
            calibrated = calibration.fit_named(mains, pairs)

    meter.reserved = 0
    return Terms(
        fit=calibrated.fit,
        traces=_traces(calibrated.tables, calibrated.terms),
        strengths=calibrated.screen.strengths,
        forward_rows=max(meter.spent, backgrounds.forward_rows),
        economy=effort.most_knots < FULL.most_knots,
        thresholds=_count_thresholds(domains),
        offsets=_prior_offsets(calibrated.tables),
        background=calibrated.tables.background,
    )


def _shifted_columns(domains: Sequence[Domain], sample: Sample) -> list[int]:
    """Columns of amounts, which are shifted in the background rows to the mean of all rows."""
    columns = []
    for domain in domains:
        if domain.feature.kind == "numbers":  # a group may hold flags beside amounts
            columns += [
                column
                for column in domain.columns
                if len(np.unique(sample.inputs[:, column].numpy())) > FEW_VALUES
            ]
        elif domain.reaches and domain.span and len(domain.columns) == 1:
            columns.append(domain.columns[0])
    return columns


def _traces(tables: Tables, fitted: Collection[Subset]) -> Traces:
    """What bands are made of, for the terms that were fitted."""
    pair_lines = tables.pair_lines.points
    triple_lines = tables.triple_lines.points
    return Traces(
        mains={k: (main.points, main.table.outputs) for k, main in tables.mains.items()},
        lines={k: (points, tables.pair_places[k]) for k, points in pair_lines.items()},
        grids={grid.term: grid.outputs for grid in tables.pairs if grid.term in fitted},
        triple_lines={k: (points, tables.triple_places[k]) for k, points in triple_lines.items()},
        triples={grid.term: grid.outputs for grid in tables.triples if grid.term in fitted},
    )


def _count_thresholds(domains: Sequence[Domain]) -> dict[int, tuple[int, int]]:
    """Per feature with steps the thresholds that its table has, and all."""
    counts = {k: len(domain.steps) for k, domain in enumerate(domains) if len(domain.steps)}
    return {k: (min(count, MOST_STEPS), count) for k, count in counts.items()}


def _prior_offsets(tables: Tables) -> dict[int, Tensor]:
    """Per feature with a table the mean of its prior part over the rows."""
    offsets = {}
    for k, main in tables.mains.items():
        share = occupancy(main.points, tables.rows)
        offsets[k] = share @ main.table.mean @ tables.weight
    return offsets


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Tables, and the regression of them."""

    tables: Tables
    fit: Fit
    screen: Screen = field(default_factory=Screen)

    @property
    def terms(self) -> set[Subset]:
        """Terms that were fitted."""
        return {piece.term for piece in self.fit.pieces}

    @property
    def pairs(self) -> list[Subset]:
        """Pairs that were fitted, strongest first."""
        terms = self.terms
        return [grid.term for grid in self.tables.pairs if grid.term in terms]


@dataclass(frozen=True, eq=False)
class Calibration:
    """The ways in which interactions are chosen and fitted together with the single features."""

    tabulation: Tabulation
    ridge: float | None

    def fit_named(self, mains: Tables, named: Sequence[Subset]) -> Calibrated:
        """Fits the interactions that were named."""
        tables = self.tabulation.tabulate_named(mains, named)
        tables = self.tabulation.refine_mains(tables)
        return Calibrated(tables, self.solve(tables, named=named))

    def fit_strongest(self, mains: Tables, most: int) -> Calibrated:
        """Fits so many of the strongest pairs."""
        screen = self.screen_pairs(mains) if most else Screen()
        tables = self.tabulation.tabulate_pairs(mains, screen.strongest(most))
        tables = self.tabulation.refine_mains(tables)
        return Calibrated(tables, self.solve(tables), screen)

    def fit_paying(self, mains: Tables) -> Calibrated:
        """Fits the pairs, and then the triples, that pay on rows held out."""
        screen = self.screen_pairs(mains)
        pairs = screen.worth_trying(self.tabulation.effort.most_pairs)
        tables = self.tabulation.tabulate_pairs(mains, pairs)
        tables = self.tabulation.refine_mains(tables)
        fit = self.solve(tables, trial=selection.trial_of_pairs(tables))
        calibrated = Calibrated(tables, fit, screen)

        self._reserve_rows(fit)
        with suppress(BudgetSpentError):  # then all stays as it is
            calibrated = self.refine_pairs(calibrated)
            calibrated = self.add_triples(calibrated)
        return calibrated

    def screen_pairs(self, tables: Tables) -> Screen:
        """Strengths of all pairs; none where no forward rows are left for that."""
        effort = self.tabulation.effort
        tabulate = self.tabulation.backgrounds.of_rows(effort.screen_background)
        try:
            return selection.screen_pairs(tabulate, tables.domains, self.tabulation.sample, effort)
        except BudgetSpentError:
            return Screen()

    def _reserve_rows(self, fit: Fit) -> None:
        """Keeps forward rows for the importances of terms that run row by row."""
        direct = sum(isinstance(piece, DirectPiece) for piece in fit.pieces)
        self.tabulation.meter.reserved = direct * DIRECT_BACKGROUND * (MEASURED_DIRECTLY + 1)

    def refine_pairs(self, before: Calibrated) -> Calibrated:
        """Gives pairs of a model of steps more thresholds, where they leave more than they should."""
        features = {k for pair in before.pairs for k in pair}
        is_stepped = any(len(before.tables.domains[k].steps) for k in features)
        if not is_stepped or not selection.are_worth_looking_for(before.fit):
            return before

        tables = self.tabulation.tabulate_pairs(before.tables, before.pairs, room=FINE_PAIR_ROOM)
        fit = self.solve(tables)
        is_better = bool(fit.explained.nanmean() > before.fit.explained.nanmean())
        return replace(before, tables=tables, fit=fit) if is_better else before

    def add_triples(self, before: Calibrated) -> Calibrated:
        """Adds the triples that pay on rows held out, where pairs leave more than they should."""
        effort = self.tabulation.effort
        if not effort.most_triples or not selection.are_worth_looking_for(before.fit):
            return before
        likely = selection.screen_triples(
            self.tabulation.backgrounds.of_rows(effort.screen_background),
            before.tables.domains,
            before.screen.varying,
            before.fit,
            most=effort.most_triples,
        )
        if not likely:
            return before

        worth = selection.worth_of(before.tables.domains)
        on_trial = self._tables_with_triples(before, likely)
        trial = selection.trial_of(on_trial.triples, worth, before.fit)
        tried = self.attempt(on_trial, trial)
        if tried is None:
            return before
        tables = _paying_tables(on_trial, tried, before.terms)
        if not tables.triples:
            return before

        fit = self.solve(tables)
        gain = float(fit.explained.nanmean() - before.fit.explained.nanmean())
        # The trial had few folds and strengths: what it promised is checked with all of them.
        if gain < worth.least_gain / 2:
            return before
        return replace(before, tables=tables, fit=fit)

    def _tables_with_triples(self, before: Calibrated, triples: Sequence[Subset]) -> Tables:
        """Tables of a fit and of triples, each with its pairs, which the trial of pairs may have left out."""
        inside = _pairs_inside(triples)
        extended = self.tabulation.add_pairs(before.tables, sorted(inside))
        pairs = _grids_of(extended.pairs, before.terms | inside)
        return self.tabulation.tabulate_triples(replace(extended, pairs=pairs), triples)

    def solve(
        self, tables: Tables, *, named: Sequence[Subset] = (), trial: Trial | None = None
    ) -> Fit:
        """The regression of all tables, and of named terms that have none."""
        fit = self.attempt(tables, trial, named=named)
        assert fit is not None  # only a trial with limited patience gives none
        return fit

    def attempt(
        self, tables: Tables, trial: Trial | None, *, named: Sequence[Subset] = ()
    ) -> Fit | None:
        """The same; None where no term on trial pays and the trial's patience is limited."""
        self.tabulation.meter.reserved = 0
        singles, grids = tables.pieces()
        pieces = [self._single_piece(k, tables, singles) for k in range(len(tables.domains))]
        pieces += grids

        tabulated = {piece.term for piece in grids}
        without_table = [term for term in named if term not in tabulated]
        pieces += [self._direct_piece(term, tables.domains) for term in without_table]

        sample = self.tabulation.sample
        pieces = _strongest_columns(pieces, sample)
        return solve_terms(sample, pieces, tables.domains, ridge=self.ridge, trial=trial)

    def _single_piece(
        self, feature: int, tables: Tables, tabulated: Mapping[int, TablePiece]
    ) -> Piece:
        """A feature as the regression sees it: its table, its rows, or nothing where the model never sees it."""
        if feature in tabulated:
            return tabulated[feature]
        if tables.domains[feature].columns:
            return self._direct_piece((feature,), tables.domains)
        nothing = torch.zeros(1, tables.weight.shape[1], dtype=torch.float64)
        return TablePiece((feature,), (), prior=nothing, basis=nothing[:, :0])

    def _direct_piece(self, term: Subset, domains: Sequence[Domain]) -> DirectPiece:
        """A term without a table."""
        sample = self.tabulation.sample
        tabulate = self.tabulation.backgrounds.with_spread(DIRECT_BACKGROUND)
        columns = tuple(domains[k].columns for k in term)
        pure = pure_rows(tabulate, columns, sample.some().inputs)
        tabulate.require_answers(pure, " and ".join(domains[k].feature.name for k in term))

        share = torch.full_like(pure[:, 0], 1 / len(pure))
        basis = compress(pure - pure.mean(0), share, most=MOST_DIRECTIONS[1])
        rows = sample.inputs.double()
        return DirectPiece(term, columns, tabulate, basis, (rows.amin(0), rows.amax(0)))


def _pairs_inside(triples: Collection[Subset]) -> set[Subset]:
    """The pairs of some triples."""
    return {pair for triple in triples for pair in combinations(triple, 2)}


def _grids_of(grids: Sequence[Grid], terms: Collection[Subset]) -> tuple[Grid, ...]:
    """The grids of some terms."""
    return tuple(grid for grid in grids if grid.term in terms)


def _paying_tables(on_trial: Tables, tried: Fit, fitted: set[Subset]) -> Tables:
    """Tables with the triples that paid, and without pairs that only stood for a triple."""
    paying = {piece.term for piece in tried.pieces if len(piece.term) == 3}
    pairs = tried.worth_keeping() & (fitted | _pairs_inside(paying))
    return replace(
        on_trial,
        pairs=_grids_of(on_trial.pairs, pairs),
        triples=_grids_of(on_trial.triples, paying),
    )


def _strongest_columns(pieces: Sequence[Piece], sample: Sample) -> list[Piece]:
    """The pieces with no more columns in all than a regression can have: the weakest are left to the prior."""
    if sum(piece.rank for piece in pieces) <= MOST_COLUMNS:
        return list(pieces)

    few = sample.some()
    spreads = [piece.read(few)[0].var(0, correction=0) for piece in pieces]
    least = torch.cat(spreads).sort(descending=True).values[MOST_COLUMNS]
    return [
        replace(piece, basis=piece.basis[:, spread > least])
        for piece, spread in zip(pieces, spreads, strict=True)
    ]
