"""All terms at once: tables over the background, the head as prior, and a correction judged on rows held out.

    f(x) ≈ base + Σ_S [ Δ̃_S(x_S) Wᵀ + Δ̃_S(x_S held at the calibrated range) δ_S ]

Δ_S is the representation of the term's features averaged over the background rows, and purified: what a pair does on
average over its partner's calibration rows belongs to the feature alone. The first part is partial dependence; δ is
fitted with a ridge, so that few rows lead back to partial dependence and not to nonsense.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.network.progress import Counter, progress_bar
from nobsp.tabular import selection
from nobsp.tabular.background import Backgrounds
from nobsp.tabular.bands import Traces
from nobsp.tabular.budget import PAIRS_SHARE, BudgetSpentError, Meter, fewer_pairs
from nobsp.tabular.correction import Fit, Trial, solve_terms
from nobsp.tabular.effort import (
    DIRECT_BACKGROUND,
    FULL,
    MEASURED_DIRECTLY,
    MOST_PAIR_NODES,
    MOST_STEPS,
    PAIR_REACH,
    Effort,
    first_points,
)
from nobsp.tabular.features import FEW_VALUES, Domain, Points
from nobsp.tabular.grids import Represent, Table, Tabulator, refine_knots
from nobsp.tabular.lookup import Chunk, NumberAxis, TermTable
from nobsp.tabular.pieces import DirectPiece, DirectTerm, Piece, TablePiece, pure_rows
from nobsp.tabular.purification import occupancy
from nobsp.tabular.sample import Sample
from nobsp.tabular.selection import Screen
from nobsp.tabular.steps import (
    FINE_PAIR_ROOM,
    PAIR_ROOM,
    TRIPLE_ROOM,
    Room,
    Steps,
    share_steps,
    step_sizes,
)
from nobsp.tabular.tables import MOST_DIRECTIONS, Grid, Lines, Main, Tables, compress, count_nodes

# Beyond the range a triple's grid is followed a little, and then held.
TRIPLE_REACH = (0.5,)


def triple_lines(
    terms: Sequence[Subset],
    domains: Sequence[Domain],
    mains: Mapping[int, Main],
    chunk: Chunk,
    unit: Tensor,
    *,
    quantiles: int,
) -> Lines:
    """Where the grids of some triples have their lines; thresholds of steps are chosen as for pairs."""
    wanted = sorted({k for term in terms for k in term})
    features = {k: Steps(domains[k].steps, mains[k].points, mains[k].table) for k in wanted}
    steps = share_steps(features, chunk, unit, TRIPLE_ROOM)
    points = {}
    for k in wanted:
        if k in steps:
            points[k] = domains[k].step_points(chunk, steps[k], quantiles=quantiles // 2)
        else:
            points[k] = domains[k].points(chunk, quantiles=quantiles, even=3, reach=TRIPLE_REACH)
    return Lines.of(points, chunk)


# Background rows that tell which thresholds do most, where a feature has more than its table holds.
FEW_ROWS = 4
# Fewest background rows of pairs where forward rows are limited: after that, lines are saved.
FEWEST_ROWS_OF_PAIRS = 4


# Most columns of the regression: past these, factorising takes longer than all forward passes.
MOST_COLUMNS = 1000


# Lines that the side of a number is taken to have before its grid is made.
USUAL_LINES = 32


@dataclass(frozen=True, eq=False)
class Terms:
    """Fitted terms."""

    fit: Fit
    traces: Traces
    strengths: dict[
        Subset, float
    ]  # per pair the spread that only both together make, as a share of the output's
    forward_rows: int
    economy: bool  # whether the model takes too many operations a row for full tables
    thresholds: dict[int, tuple[int, int]]  # of a feature's steps: those in its table, and all
    offsets: dict[
        int, Tensor
    ]  # what a feature's prior part is measured from; for levels that were not seen
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
    calibration = Calibration(sample, domains, weight, effort, backgrounds, ridge, meter)

    with progress_bar(enabled=progress, description="tabulating", unit=" terms") as bar:
        tables = calibration.tabulate_mains(bar)
        calibration = replace(calibration, domains=tables.domains)
        if isinstance(pairs, Sequence):
            screen = Screen({}, {})
            tables = calibration.tabulate_named(tables, pairs, bar)
            tables = calibration.refine_mains(tables)
            fit = calibration.solve(tables, named=pairs)
        else:
            screen = calibration.screen_pairs(pairs)
            tables = calibration.tabulate_strongest(tables, screen, pairs, bar)
            tables = calibration.refine_mains(tables)
            trial = selection.trial_of_pairs(tables) if pairs is None else None
            fit = calibration.solve(tables, trial=trial)
        if pairs is None:
            direct = len([piece for piece in fit.pieces if isinstance(piece, DirectPiece)])
            meter.reserved = direct * DIRECT_BACKGROUND * (MEASURED_DIRECTLY + 1)
            with suppress(BudgetSpentError):  # then both stay as they are
                tables, fit = calibration.refine_pairs(tables, fit, bar)
                tables, fit = calibration.add_triples(tables, fit, screen, bar)

    meter.reserved = 0
    chunk = sample.chunk()
    fitted = {piece.term for piece in fit.pieces}
    return Terms(
        fit=fit,
        traces=_traces(tables, fitted),
        strengths=screen.strengths,
        forward_rows=max(meter.spent, backgrounds.forward_rows),
        economy=effort.most_knots < FULL.most_knots,
        thresholds={
            k: (min(len(domain.steps), MOST_STEPS), len(domain.steps))
            for k, domain in enumerate(domains)
            if len(domain.steps)
        },
        offsets={
            k: occupancy(main.points, chunk) @ main.table.mean @ weight
            for k, main in tables.mains.items()
        },
        background=tables.background,
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
    return Traces(
        mains={k: (main.points, main.table.outputs) for k, main in tables.mains.items()},
        lines={
            k: (points, tables.pair_places[k]) for k, points in tables.pair_lines.points.items()
        },
        grids={grid.term: grid.outputs for grid in tables.pairs if grid.term in fitted},
        triple_lines={
            k: (points, tables.triple_places[k]) for k, points in tables.triple_lines.points.items()
        },
        triples={grid.term: grid.outputs for grid in tables.triples if grid.term in fitted},
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """The steps of fitting all terms, one method each."""

    sample: Sample
    domains: Sequence[Domain]
    weight: Tensor
    effort: Effort
    backgrounds: Backgrounds
    ridge: float | None
    meter: Meter

    def tabulate_mains(self, bar: Counter) -> Tables:
        """Tables of single features."""
        tabulate = self.backgrounds.of_rows(self.effort.background)
        chunk = self.sample.chunk()
        mains = {}
        for k, domain in enumerate(self.domains):
            if domain.tabulated:
                points, table = tabulate_main(
                    tabulate, domain, chunk, self.sample.spread, self.effort
                )
                mains[k] = Main(points, table)
                bar.update()
        domains = [
            domain.limited_to(mains[k].points, mains[k].table.answered) if k in mains else domain
            for k, domain in enumerate(self.domains)
        ]
        return Tables(
            domains=domains,
            rows=chunk,
            weight=self.weight,
            background=tabulate.background,
            pair_background=tabulate.background,
            mains=mains,
        )

    def refine_mains(self, tables: Tables) -> Tables:
        """Adds knots to tables of single features where these bend, as long as forward rows are left."""
        tabulate = self.backgrounds.of_rows(self.effort.background)
        mains = dict(tables.mains)
        for k, main in tables.mains.items():
            mains[k] = refine_main(
                tabulate,
                self.domains[k],
                main,
                self.sample.chunk(),
                unit=self.sample.spread,
                most=self.effort.most_knots,
            )
        return replace(tables, mains=mains)

    def screen_pairs(self, most: int | None) -> Screen:
        """Strengths of all pairs; none where no pair is to be chosen, or no forward rows are left for that."""
        if most == 0:
            return Screen({}, {})
        tabulate = self.backgrounds.of_rows(self.effort.screen_background)
        try:
            return selection.screen_pairs(tabulate, self.domains, self.sample, self.effort)
        except BudgetSpentError:
            return Screen({}, {})

    def tabulate_strongest(
        self, tables: Tables, screen: Screen, most: int | None, bar: Counter
    ) -> Tables:
        """Adds grids of the strongest pairs: as many as asked for, or all that are worth trying."""
        if most is not None:
            return self._tabulate_pairs(tables, list(screen.strengths)[:most], bar, room=PAIR_ROOM)
        strongest = list(screen.strengths)[: self.effort.most_pairs]
        worth = [pair for pair in strongest if screen.strengths[pair] >= selection.WORTH_TRYING]
        return self._tabulate_pairs(tables, worth, bar, room=PAIR_ROOM)

    def tabulate_named(self, tables: Tables, named: Sequence[Subset], bar: Counter) -> Tables:
        """Adds grids of the pairs and triples that were named, where all of their features have tables."""
        nodes = {k: len(self.domains[k].levels or ()) or USUAL_LINES for k in tables.mains}
        tabulated = [term for term in named if nodes.keys() >= set(term)]
        pairs = [
            (a, b)
            for a, b in (t for t in tabulated if len(t) == 2)
            if nodes[a] * nodes[b] <= MOST_PAIR_NODES
        ]
        tables = self._tabulate_pairs(tables, pairs, bar, room=PAIR_ROOM)
        return self._tabulate_triples(tables, [term for term in tabulated if len(term) == 3], bar)

    def refine_pairs(self, tables: Tables, fit: Fit, bar: Counter) -> tuple[Tables, Fit]:
        """Gives pairs of a model of steps more thresholds, where they leave more than they should."""
        fitted = {piece.term for piece in fit.pieces}
        pairs = [grid.term for grid in tables.pairs if grid.term in fitted]
        stepped = any(len(self.domains[k].steps) for pair in pairs for k in pair)
        if not stepped or not selection.are_worth_looking_for(fit):
            return tables, fit
        refined = self._tabulate_pairs(tables, pairs, bar, room=FINE_PAIR_ROOM)
        refit = self.solve(refined)
        better = bool(refit.explained.nanmean() > fit.explained.nanmean())
        return (refined, refit) if better else (tables, fit)

    def _tabulate_pairs(
        self, tables: Tables, pairs: Sequence[Subset], bar: Counter, *, room: Room
    ) -> Tables:
        if not pairs:
            return tables
        lines = self._pair_lines(tables, pairs, self.effort, room)
        sizes = [_nodes(pair, lines) for pair in pairs]
        background = min(self.effort.pair_background, self.backgrounds.most)
        if sum(sizes) * background > self.meter.left:
            self.meter.reduced = True
            allowed = self.meter.left * PAIRS_SHARE
            background = min(max(int(allowed // sum(sizes)), FEWEST_ROWS_OF_PAIRS), background)
            if sum(sizes) * background > allowed:
                coarse = replace(
                    self.effort,
                    pair_quantiles=self.effort.pair_quantiles // 2,
                    pair_even=self.effort.pair_even // 3,
                )
                lines = self._pair_lines(tables, pairs, coarse, room)
                sizes = [_nodes(pair, lines) for pair in pairs]
            pairs = pairs[: fewer_pairs(sizes, background, allowed)]
            if not pairs:
                return tables

        tabulate = self.backgrounds.of_rows(background)
        grids = []
        for pair in pairs:
            grids.append(Grid.tabulate(tabulate, pair, lines))
            bar.update()
        return replace(
            tables,
            pair_lines=lines,
            pairs=tuple(grids),
            pair_background=tabulate.background,
        )

    def _add_pairs(self, tables: Tables, pairs: Sequence[Subset], bar: Counter) -> Tables:
        """Adds grids of pairs that have none, on the lines there are."""
        present = {grid.term for grid in tables.pairs}
        missing = [pair for pair in pairs if pair not in present]
        known = tables.pair_lines.points
        wanted = sorted({k for pair in missing for k in pair} - known.keys())
        points = known | self._pair_points(tables, wanted, PAIR_ROOM, self.effort)
        missing = [pair for pair in missing if count_nodes(points, pair) <= MOST_PAIR_NODES]
        if not missing:
            return tables
        lines = Lines.of(points, self.sample.chunk())
        tabulate = self.backgrounds.of_rows(
            len(tables.pair_background) if tables.pairs else self.effort.pair_background
        )
        grids = list(tables.pairs)
        for pair in missing:
            grids.append(Grid.tabulate(tabulate, pair, lines))
            bar.update()
        return replace(
            tables,
            pair_lines=lines,
            pairs=tuple(grids),
            pair_background=tabulate.background,
        )

    def _pair_lines(
        self, tables: Tables, pairs: Sequence[Subset], effort: Effort, room: Room
    ) -> Lines:
        """Grid lines of the features of some pairs."""
        wanted = sorted({k for pair in pairs for k in pair})
        points = self._pair_points(tables, wanted, room, effort)
        return Lines.of(points, self.sample.chunk())

    def _pair_points(
        self, tables: Tables, wanted: Sequence[int], room: Room, effort: Effort
    ) -> dict[int, Points]:
        """Lines of the grids of pairs, by feature."""
        chunk = self.sample.chunk()
        features = {
            k: Steps(self.domains[k].steps, tables.mains[k].points, tables.mains[k].table)
            for k in wanted
        }
        steps = share_steps(features, chunk, self.sample.spread, room)
        quantiles = effort.pair_quantiles
        points = {}
        for k in wanted:
            domain = self.domains[k]
            if k in steps:
                points[k] = domain.step_points(chunk, steps[k], quantiles=quantiles // 2)
            else:
                points[k] = domain.points(
                    chunk, quantiles=quantiles, even=effort.pair_even, reach=PAIR_REACH
                )
        return points

    def _tabulate_triples(self, tables: Tables, terms: Sequence[Subset], bar: Counter) -> Tables:
        if not terms:
            return tables
        lines = triple_lines(
            terms,
            self.domains,
            tables.mains,
            self.sample.chunk(),
            self.sample.spread,
            quantiles=self.effort.triple_quantiles,
        )
        tabulate = self.backgrounds.of_rows(self.effort.triple_background)
        grids = []
        for term in terms:
            if selection.fits_in_memory(term, lines.points):
                grids.append(Grid.tabulate(tabulate, term, lines))
                bar.update()
        return replace(tables, triple_lines=lines, triples=tuple(grids))

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
        self.meter.reserved = 0
        singles, grids = tables.pieces()
        pieces: list[Piece] = [self._single_piece(k, singles) for k in range(len(self.domains))]
        pieces += grids
        tabulated = {piece.term for piece in grids}
        pieces += [self._direct_piece(term) for term in named if term not in tabulated]
        pieces = _strongest_columns(pieces, self.sample)
        return solve_terms(self.sample, pieces, self.domains, ridge=self.ridge, trial=trial)

    def _single_piece(self, feature: int, tabulated: Mapping[int, TablePiece]) -> Piece:
        if feature in tabulated:
            return tabulated[feature]
        if self.domains[feature].columns:
            return self._direct_piece((feature,))
        nothing = torch.zeros(1, self.weight.shape[1], dtype=torch.float64)
        return TablePiece((feature,), (), nothing, nothing[:, :0])

    def _direct_piece(self, term: Subset) -> DirectPiece:
        """A term without a table."""
        tabulate = self.backgrounds.with_spread(DIRECT_BACKGROUND)
        columns = tuple(self.domains[k].columns for k in term)
        pure = pure_rows(tabulate, columns, self.sample.some().inputs)
        tabulate.require_answers(pure, " and ".join(self.domains[k].feature.name for k in term))
        share = torch.full_like(pure[:, 0], 1 / len(pure))
        basis = compress(pure - pure.mean(0), share, most=MOST_DIRECTIONS[1])
        rows = self.sample.inputs.double()
        return DirectPiece(term, columns, tabulate, basis, (rows.amin(0), rows.amax(0)))

    def add_triples(
        self, tables: Tables, fit: Fit, screen: Screen, bar: Counter
    ) -> tuple[Tables, Fit]:
        """Adds the triples that pay on rows held out, where pairs leave more than they should."""
        if not self.effort.most_triples or not selection.are_worth_looking_for(fit):
            return tables, fit
        likely = selection.screen_triples(
            self.backgrounds.of_rows(self.effort.screen_background),
            self.domains,
            screen.varying,
            fit,
            most=self.effort.most_triples,
        )
        if not likely:
            return tables, fit

        # A triple is tried with its pairs, which the ladder of pairs may have left out beside it.
        fitted = {piece.term for piece in fit.pieces}
        inside = {pair for triple in likely for pair in combinations(triple, 2)}
        extended = self._add_pairs(tables, sorted(inside), bar)
        pairs = tuple(grid for grid in extended.pairs if grid.term in fitted | inside)
        with_all = self._tabulate_triples(replace(extended, pairs=pairs), likely, bar)
        worth_of_triples = selection.worth_of(self.domains)
        trial = selection.trial_of(with_all.triples, worth_of_triples, fit)
        tried = self.attempt(with_all, trial)
        if tried is None:
            return tables, fit
        paying = {piece.term for piece in tried.pieces if len(piece.term) == 3}
        if not paying:
            return tables, fit
        # A pair may have stood for the triple.
        of_paying = {pair for triple in paying for pair in combinations(triple, 2)}
        worth = tried.worth_keeping() & (fitted | of_paying)
        with_paying = replace(
            with_all,
            pairs=tuple(grid for grid in pairs if grid.term in worth),
            triples=tuple(grid for grid in with_all.triples if grid.term in paying),
        )
        refit = self.solve(with_paying)
        gain = float(refit.explained.nanmean() - fit.explained.nanmean())
        # The trial had few folds and strengths: what it promised is checked with all of them.
        if gain < worth_of_triples.least_gain / 2:
            return tables, fit
        return with_paying, refit


def tabulate_main(
    tabulate: Tabulator, domain: Domain, chunk: Chunk, unit: Tensor, effort: Effort
) -> tuple[Points, Table]:
    """A feature's own table; knots are added where it bends, or stand where the model steps."""
    if len(domain.steps):
        steps = domain.steps
        if len(steps) > MOST_STEPS:
            few = tabulate.with_rows(FEW_ROWS)
            every = domain.step_points(chunk, steps, quantiles=0)
            sizes = step_sizes(Steps(steps, every, few([every])), chunk, unit)
            steps = steps[np.sort(np.argsort(-sizes, kind="stable")[:MOST_STEPS])]
            tabulate.forward_rows += few.forward_rows
        points = domain.step_points(chunk, steps, quantiles=effort.quantiles)
        return points, tabulate([points])
    points = first_points(domain, chunk, effort)
    return points, tabulate([points])


def refine_main(
    tabulate: Tabulator, domain: Domain, main: Main, rows: Chunk, *, unit: Tensor, most: int
) -> Main:
    """A feature's table with knots where it bends; categories and steps stay as they are."""
    number = isinstance(main.points.axis, NumberAxis)
    if len(domain.steps) or not number or not domain.reaches:
        return main
    return Main(
        *refine_knots(tabulate, domain, main.points, main.table, rows, unit=unit, most=most)
    )


def _nodes(term: Subset, lines: Lines) -> int:
    """Nodes of a term's grid."""
    return int(np.prod([len(lines.points[k]) for k in term]))


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
