"""Which interactions are tested and stay, and the regression of all terms together.

Pairs are tested by their strength on coarse grids, triples by what they explain.

A product of three features has no pairs, so strong pairs do not lead to it. What does is how much
the grid of a pair *differs from one background row to another*: the third feature is among what
differs. Triples whose three pairs all differ are tabulated coarsely, ranked by how much of what
pairs leave unexplained each explains, and the best of them are tabulated finely.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from nobsp.network.columns import Subset
from nobsp.tabular.bands import Traces
from nobsp.tabular.correction import RegressionFit, Trial, Tried, solve_terms, try_terms
from nobsp.tabular.effort import (
    DIRECT_BACKGROUND,
    MEASURED_DIRECTLY,
    MOST_PAIR_NODES,
    MOST_TRIPLE_NODES,
    BudgetSpentError,
    Effort,
    count_pair_nodes,
    least_costs,
    plan_spending,
    screen_points,
)
from nobsp.tabular.features import Domain
from nobsp.tabular.grids import Tabulator, UnansweredError
from nobsp.tabular.lookup import Array, Chunk, TermTable
from nobsp.tabular.setting import Sample
from nobsp.tabular.tables import (
    FINE_PAIR_ROOM,
    MOST_DIRECTIONS,
    DirectPiece,
    DirectTerm,
    Grid,
    Lines,
    Piece,
    TableMaker,
    TablePiece,
    Tables,
    compress,
    count_nodes,
    interaction_rows,
    purify,
    read,
)

# Pairs whose spread on a coarse table is below this share of the outputs' are not tested.
WORTH_TRYING = 0.005
# What a pair must explain on held-out rows, of what is unexplained.
LEAST_RELATIVE_GAIN = 0.005
# The same of the outputs' variance: a term less is easier to read than so little more that is
# explained.
WORTH_A_TERM = 1e-4
# Coarsest grids on which pairs are screened: with fewer lines of a side, bends are not seen.
_FEWEST_LINES = 3
# Fewest background rows of screening where forward rows are limited.
_FEWEST_SCREEN_BACKGROUND = 2
# Share of the features that is screened on, where all pairs are too many for the coarsest grids.
_SCREENED_ON = 0.7
# Rows on which features are ordered by how much they do.
_SHUFFLED_ROWS = 64
# Unexplained share of the variance on held-out rows from which triples are looked for.
LOOKED_FOR = 0.01
# Pairs that differ most between background rows, among which triples are looked for.
MOST_VARYING = 200
# Triples that are tabulated coarsely.
MOST_SCREENED = 64
# Lines along a side of their grids that follow the rows: 64 grids of some hundred nodes each.
SCREENED_LINES = 5
# Most strengths of the ridge at which triples are tried: those around the best ones without them.
MOST_ALPHAS = 4
# One triple and then two are tried first; where neither pays, the others are not tried.
PATIENCE = 2


@dataclass(frozen=True)
class Worth:
    """What a triple must bring."""

    trying: float  # share of all that it must bring, which its coarse grid must explain
    least_relative_gain: float  # share of what is unexplained on held-out rows
    least_gain: float  # share of the outputs' variance on held-out rows

    def least_on_coarse_grid(self, unexplained: float) -> float:
        """Share of an output's variance a coarse grid must explain for a triple to be tried."""
        return self.trying * (self.least_relative_gain * unexplained + self.least_gain)


# A network has a little of every triple, from its noise: only those that matter are shown. Coarse
# grids explain nearly as much as fine ones: what explains clearly less than it must on a coarse
# grid is not worth a trial.
SMOOTH = Worth(trying=0.7, least_relative_gain=0.02, least_gain=2e-3)


# Trees make triples on purpose, and many: deeper trees are sums of small ones.
STEPPED = Worth(trying=0.0, least_relative_gain=0.001, least_gain=2e-5)


# ---------------------------------------------------------------------- pairs


@dataclass(frozen=True, eq=False)
class Screen:
    """Every pair's strength read off coarse tables, strongest first."""

    # spread that a pair's features make only together, as a share of the output's
    strengths: dict[Subset, float] = field(default_factory=dict)
    # how much that differs from one background row to another
    varying: dict[Subset, float] = field(default_factory=dict)
    # standard error of the strength, as it is an average over few background rows
    scatter: dict[Subset, float] = field(default_factory=dict)

    def strongest(self, most: int) -> list[Subset]:
        """The strongest pairs, `most` of them."""
        return list(self.strengths)[:most]

    def worth_trying(self, most: int) -> list[Subset]:
        """The strongest pairs, at most `most` of them, without those that do nearly nothing."""
        return [pair for pair in self.strongest(most) if self.strengths[pair] >= WORTH_TRYING]


def screen_pairs(
    tabulator: Tabulator, domains: Sequence[Domain], sample: Sample, effort: Effort
) -> Screen:
    """Every pair's strength, strongest first, read off coarse tables.

    Where there are several outputs, the strength is the largest of all.
    """
    few = sample.some()
    chunk = few.chunk()
    lines = _coarse_lines(tabulator, domains, few, effort)
    pairs = [
        pair
        for pair in combinations(sorted(lines.points), 2)
        if count_nodes(lines.points, pair) <= MOST_PAIR_NODES
    ]

    strengths: dict[Subset, float] = {}
    varying: dict[Subset, float] = {}
    scatter: dict[Subset, float] = {}
    for pair in pairs:
        effects = _effects_by_background(tabulator, pair, lines, chunk)
        effect = effects.mean(1)
        spread = effect.std(0, correction=0)
        deviation = (effects - effect[:, None]).square().mean((0, 1)).sqrt()
        strengths[pair] = float((spread / sample.spread).max())
        varying[pair] = float((deviation / sample.spread).max())
        scatter[pair] = varying[pair] / max(effects.shape[1] - 1, 1) ** 0.5

    by_strength = sorted(strengths, key=lambda pair: (-strengths[pair], pair))
    return Screen({pair: strengths[pair] for pair in by_strength}, varying, scatter)


def _coarse_lines(
    tabulator: Tabulator, domains: Sequence[Domain], sample: Sample, effort: Effort
) -> Lines:
    """Lines of grids of all pairs, coarse enough for the forward rows that screening has.

    Where all pairs are too many even for the coarsest grids, only features that act most have
    lines.
    """
    chunk = sample.chunk()
    features = [k for k, domain in enumerate(domains) if domain.tabulated]
    count = effort.screen_lines
    are_ordered = False
    while True:
        points = {k: screen_points(domains[k], chunk, count) for k in features}
        nodes = count_pair_nodes([len(line) for line in points.values()])
        fits = nodes * len(tabulator.background) <= effort.screen_budget
        if fits or len(features) <= 2:
            return Lines.of(points, chunk)

        if count > _FEWEST_LINES:
            count -= 1
            continue
        if not are_ordered:
            features = _strongest_features(tabulator, domains, sample, features)
            are_ordered = True
        features = features[: max(int(len(features) * _SCREENED_ON), 2)]


def _affordable_background(domains: Sequence[Domain], sample: Sample, effort: Effort) -> int:
    """Background rows for which grids of all pairs can be screened at their coarsest."""
    chunk = sample.some().chunk()
    tabulated = [domain for domain in domains if domain.tabulated]
    lines = [len(screen_points(domain, chunk, _FEWEST_LINES)) for domain in tabulated]
    nodes = max(count_pair_nodes(lines), 1)
    return max(effort.screen_budget // nodes, _FEWEST_SCREEN_BACKGROUND)


def _effects_by_background(
    tabulator: Tabulator, pair: Subset, lines: Lines, chunk: Chunk
) -> Tensor:
    """A pair's effect on some rows, with the other features as in each background row.

    Shape (rows, background, outputs).
    """
    table = tabulator([lines.points[k] for k in pair])
    # With the background rows side by side as outputs, one reading gives the effect at each of
    # them.
    outputs = table.outputs.movedim(0, -2).double()
    pure = purify(outputs, [lines.shares[k] for k in pair])
    axes = tuple(lines.points[k].axis for k in pair)
    effects = read(TermTable(pair, axes, pure.flatten(2).numpy()), chunk)
    return effects.view(chunk.count, *pure.shape[2:])


def _strongest_features(
    tabulator: Tabulator, domains: Sequence[Domain], sample: Sample, features: Sequence[int]
) -> list[int]:
    """Features by how much the outputs move when one row's value is given to another."""
    rows = sample.inputs[:_SHUFFLED_ROWS]
    before = tabulator.run(rows) @ tabulator.head_weight

    effects = {}
    for k in features:
        columns = list(domains[k].columns)
        moved = rows.clone()
        moved[:, columns] = rows.roll(1, 0)[:, columns]
        after = tabulator.run(moved) @ tabulator.head_weight
        change = ((after - before) / sample.spread).square()
        effects[k] = float(change.nan_to_num(nan=0.0).mean())
    return sorted(features, key=lambda k: -effects[k])


def trial_of_pairs(tables: Tables) -> Trial:
    """Pairs that must pay on rows held out.

    A strong pair may be strong only at combinations of values that no row has, because its features
    are correlated. Held-out rows tell.
    """
    return Trial(
        terms=tuple(grid.term for grid in tables.pairs),
        least_relative_gain=LEAST_RELATIVE_GAIN,
        least_gain=WORTH_A_TERM,
        by_size=True,
    )


# ---------------------------------------------------------------------- triples


def are_worth_looking_for(fit: RegressionFit) -> bool:
    """Whether pairs leave more unexplained than they should."""
    return _unexplained(fit) > LOOKED_FOR


def _unexplained(fit: RegressionFit) -> float:
    """Share of variance unexplained on held-out rows, on average over the outputs that vary."""
    explained = fit.explained[torch.isfinite(fit.explained)]
    return float((1 - explained).mean()) if len(explained) else 0.0


def likely_triples(varying: Mapping[Subset, float], sizes: Mapping[int, int]) -> list[Subset]:
    """Triples whose pairs all differ from background row to background row, most first."""
    strongest = sorted(varying, key=lambda pair: (-varying[pair], pair))[:MOST_VARYING]
    differences = {pair: varying[pair] for pair in strongest}

    scores: dict[Subset, float] = {}
    for a, b in strongest:
        for c in sizes:
            term = tuple(sorted({a, b, c}))
            if len(term) < 3 or term in scores:
                continue
            pairs = list(combinations(term, 2))
            nodes = np.prod([sizes[k] for k in term])
            if nodes <= MOST_TRIPLE_NODES and all(pair in differences for pair in pairs):
                scores[term] = min(differences[pair] for pair in pairs)
    return sorted(scores, key=lambda term: (-scores[term], term))


def screen_triples(
    tabulator: Tabulator,
    domains: Sequence[Domain],
    varying: Mapping[Subset, float],
    fit: RegressionFit,
    *,
    most: int,
) -> list[Subset]:
    """The triples that explain most of what a fit without them leaves, judged by coarse grids."""
    chunk = fit.sample.some().chunk()
    features = sorted({k for pair in varying for k in pair})
    points = {
        k: domains[k].points(chunk, quantiles=SCREENED_LINES, even=2, reach=()) for k in features
    }
    sizes = {k: len(line) for k, line in points.items()}
    candidates = likely_triples(varying, sizes)[:MOST_SCREENED]

    gains = _gains_of_triples(tabulator, candidates, Lines.of(points, chunk), fit)
    least = worth_of(domains).least_on_coarse_grid(_unexplained(fit))
    worth_trying = [term for term in gains if gains[term] >= least]
    return sorted(worth_trying, key=lambda term: (-gains[term], term))[:most]


def _gains_of_triples(
    tabulator: Tabulator, candidates: Sequence[Subset], lines: Lines, fit: RegressionFit
) -> dict[Subset, float]:
    """Per triple the share of an output's variance that it explains of held-out residuals."""
    rows = fit.sample.chunk()
    residuals = fit.held_out.chosen()
    variance = fit.sample.spread.square()

    gains = {}
    for term in candidates:
        try:
            grid = Grid.tabulate(tabulator, term, lines)
        except UnansweredError:  # the model takes no such combination
            continue
        effect = read(_table(grid, tabulator.head_weight), rows)
        explained = explained_variance(effect, residuals)
        gains[term] = float((explained / variance).max())
    return gains


def explained_variance(effect: Tensor, residuals: Tensor) -> Tensor:
    """Variance of residuals that a multiple of an effect explains, per output."""
    centred = effect - effect.mean(0)
    covariance = (centred * (residuals - residuals.mean(0))).mean(0)
    spread = centred.square().mean(0)
    gain = covariance.square() / spread.clamp_min(1e-300)
    return torch.where((spread > 0) & (covariance > 0), gain, 0.0)


def _table(grid: Grid, head_weight: Tensor) -> TermTable:
    """What the head makes of a grid."""
    axes = tuple(points.axis for points in grid.points)
    values: Array = (grid.pure @ head_weight).numpy()
    return TermTable(grid.term, axes, values)


def worth_of(domains: Sequence[Domain]) -> Worth:
    """What triples of a model must bring."""
    return STEPPED if any(len(domain.steps) for domain in domains) else SMOOTH


def trial_of(triples: Sequence[Grid], worth: Worth, fit: RegressionFit) -> Trial:
    """Triples that must pay on held-out rows, tried at strengths near the best without them."""
    best = {int(position) for position in fit.held_out.best}
    around = sorted(best | {position + 1 for position in best})
    alphas = [fit.alphas[position] for position in around if position < len(fit.alphas)]
    return Trial(
        terms=tuple(grid.term for grid in triples),
        least_relative_gain=worth.least_relative_gain,
        least_gain=worth.least_gain,
        alphas=tuple(alphas[:MOST_ALPHAS]),
        patience=PATIENCE,
    )


# ---------------------------------------------------------------------- which of them stay


# Most columns of the regression: past these, factorising takes longer than all forward passes.
MOST_COLUMNS = 1000


@dataclass(frozen=True, eq=False)
class Selected:
    """Tables, and the regression of them."""

    tables: Tables
    fit: RegressionFit
    screen: Screen = field(default_factory=Screen)

    @property
    def terms(self) -> set[Subset]:
        """Terms that were fitted."""
        return {piece.term for piece in self.fit.pieces}

    @property
    def pairs(self) -> list[Subset]:
        """Pairs that were fitted, in the order of their tables."""
        terms = self.terms
        return [grid.term for grid in self.tables.pairs if grid.term in terms]


@dataclass(frozen=True, eq=False)
class Selection:
    """The ways in which interactions are chosen and fitted together with the single features."""

    maker: TableMaker
    ridge: float | None
    screened: Screen | None = None  # strengths of all pairs, where they are known already

    def leave_room(self, domains: Sequence[Domain]) -> Selection:
        """With coarser tables of single features, where these would leave nothing for pairs.

        Pairs are screened first then. A limit on forward rows that would not be reached without
        that changes nothing.
        """
        maker = self.maker
        if maker.meter.limit is None or maker.meter.reduced:
            return self
        screen = self._screen(domains)
        costs = least_costs(
            domains,
            maker.sample.chunk(),
            maker.effort,
            background=maker.backgrounds.most,
            interactions=screen.worth_trying(maker.effort.most_pairs),
        )
        costs = replace(costs, sample=0, direct_runs=0, ends=0)  # paid for, and reserved
        plan = plan_spending(costs, maker.meter.left)
        if plan is not None:
            maker.meter.reduced = True
            maker = replace(maker, effort=maker.effort.within(plan))
        return replace(self, maker=maker, screened=screen)

    def fit_named(self, mains: Tables, named: Sequence[Subset]) -> Selected:
        """Fits the interactions that were named."""
        tables = self.maker.tabulate_named(mains, named)
        tables = self.maker.refine_mains(tables)
        return Selected(tables, self.solve(tables, named=named))

    def fit_strongest(self, mains: Tables, most: int) -> Selected:
        """Fits the strongest pairs, `most` of them."""
        screen = self.screen_pairs(mains) if most else Screen()
        tables = self.maker.tabulate_pairs(mains, screen.strongest(most))
        tables = self.maker.refine_mains(tables)
        return Selected(tables, self.solve(tables), screen)

    def fit_paying(self, mains: Tables) -> Selected:
        """Fits the pairs, and then the triples, that pay on rows held out."""
        screen = self.screen_pairs(mains)
        pairs = screen.worth_trying(self.maker.effort.most_pairs)
        tables = self.maker.tabulate_pairs(mains, pairs)
        # Last, because pairs have first claim on the forward rows.
        tables = self.maker.refine_mains(tables)
        fit = self.solve(tables, trial=trial_of_pairs(tables))
        selected = Selected(tables, fit, screen)

        reserving = self.maker.meter.reserving(_rows_for_importances(fit))
        with reserving, suppress(BudgetSpentError):  # then all stays as it is
            selected = self.refine_pairs(selected)
            selected = self.add_triples(selected)
        return selected

    def screen_pairs(self, tables: Tables) -> Screen:
        """Strengths of all pairs; none where no forward rows are left for that."""
        return self.screened or self._screen(tables.domains)

    def _screen(self, domains: Sequence[Domain]) -> Screen:
        maker = self.maker
        background = maker.effort.screen_background
        if maker.meter.reduced:  # few background rows for all features tell more than many for few
            background = min(
                _affordable_background(domains, maker.sample, maker.effort), background
            )
        tabulator = maker.backgrounds.of_rows(background)
        try:
            return screen_pairs(tabulator, domains, maker.sample, maker.effort)
        except BudgetSpentError:
            return Screen()

    def refine_pairs(self, before: Selected) -> Selected:
        """Gives pairs more thresholds, if the model steps and too much is left unexplained."""
        features = {k for pair in before.pairs for k in pair}
        is_stepped = any(len(before.tables.domains[k].steps) for k in features)
        is_fine = self.maker.pair_room == FINE_PAIR_ROOM
        if is_fine or not is_stepped or not are_worth_looking_for(before.fit):
            return before

        tables = self.maker.tabulate_pairs(before.tables, before.pairs, room=FINE_PAIR_ROOM)
        fit = self.solve(tables, likely=before.fit.likely)
        is_better = bool(fit.explained.nanmean() > before.fit.explained.nanmean())
        return replace(before, tables=tables, fit=fit) if is_better else before

    def add_triples(self, before: Selected) -> Selected:
        """Adds the triples that pay on rows held out, where pairs leave more than they should."""
        effort = self.maker.effort
        if not effort.most_triples or not are_worth_looking_for(before.fit):
            return before
        likely = screen_triples(
            self.maker.backgrounds.of_rows(effort.screen_background),
            before.tables.domains,
            before.screen.varying,
            before.fit,
            most=effort.most_triples,
        )
        if not likely:
            return before

        worth = worth_of(before.tables.domains)
        on_trial = self._tables_with_triples(before, likely)
        trial = trial_of(on_trial.triples, worth, before.fit)
        tried = try_terms(
            self.maker.sample,
            self._pieces(on_trial),
            on_trial.domains,
            ridge=self.ridge,
            trial=trial,
        )
        tables = _paying_tables(on_trial, tried, before.terms)
        if not tables.triples:
            return before

        all_stay = (tables.pairs, tables.triples) == (on_trial.pairs, on_trial.triples)
        fit = tried.fit_all() if all_stay else self.solve(tables, likely=tried.likely)
        gain = float(fit.explained.nanmean() - before.fit.explained.nanmean())
        # The trial had few folds and strengths: what it promised is checked with all of them.
        if gain < worth.least_gain / 2:
            return before
        return replace(before, tables=tables, fit=fit)

    def _tables_with_triples(self, before: Selected, triples: Sequence[Subset]) -> Tables:
        """Tables of a fit and of triples, with the pairs inside these triples.

        The trial of pairs may have left some of these pairs out.
        """
        inside = _pairs_inside(triples)
        extended = self.maker.add_pairs(before.tables, sorted(inside))
        pairs = _grids_of(extended.pairs, before.terms | inside)
        return self.maker.tabulate_triples(replace(extended, pairs=pairs), triples)

    def solve(
        self,
        tables: Tables,
        *,
        named: Sequence[Subset] = (),
        trial: Trial | None = None,
        likely: Collection[int] | None = None,
    ) -> RegressionFit:
        """The regression of all tables, and of named terms that have none."""
        return solve_terms(
            self.maker.sample,
            self._pieces(tables, named),
            tables.domains,
            ridge=self.ridge,
            trial=trial,
            likely=likely,
        )

    def _pieces(self, tables: Tables, named: Sequence[Subset] = ()) -> list[Piece]:
        """What the regression is made of: tables, and rows of named terms that have none."""
        # Terms without tables run their rows now, for which forward rows were reserved.
        self.maker.meter.release()
        singles, grids = tables.pieces()
        pieces = [self._single_piece(k, tables, singles) for k in range(len(tables.domains))]
        pieces += grids

        tabulated = {piece.term for piece in grids}
        without_table = [term for term in named if term not in tabulated]
        pieces += [self._direct_piece(term, tables.domains) for term in without_table]
        return _strongest_columns(pieces, self.maker.sample)

    def _single_piece(
        self, feature: int, tables: Tables, tabulated: Mapping[int, TablePiece]
    ) -> Piece:
        """A feature as the regression sees it: its table, its rows, or nothing.

        Nothing where the model never sees the feature.
        """
        if feature in tabulated:
            return tabulated[feature]
        if tables.domains[feature].columns:
            return self._direct_piece((feature,), tables.domains)
        nothing = torch.zeros(1, tables.head_weight.shape[1], dtype=torch.float64)
        return TablePiece((feature,), (), prior=nothing, basis=nothing[:, :0])

    def _direct_piece(self, term: Subset, domains: Sequence[Domain]) -> DirectPiece:
        """A term without a table."""
        sample = self.maker.sample
        tabulator = self.maker.backgrounds.with_spread()
        columns = tuple(domains[k].columns for k in term)
        pure = interaction_rows(tabulator, columns, sample.some().inputs)
        tabulator.require_answers(pure, " and ".join(domains[k].feature.name for k in term))

        share = torch.full_like(pure[:, 0], 1 / len(pure))
        basis = compress(pure - pure.mean(0), share, most=MOST_DIRECTIONS[1])
        rows = sample.inputs.double()
        return DirectPiece(term, columns, tabulator, basis, (rows.amin(0), rows.amax(0)))


def _rows_for_importances(fit: RegressionFit) -> int:
    """Forward rows that the importances of terms without tables will take."""
    n_direct = sum(isinstance(piece, DirectPiece) for piece in fit.pieces)
    return n_direct * DIRECT_BACKGROUND * (MEASURED_DIRECTLY + 1)


def _pairs_inside(triples: Collection[Subset]) -> set[Subset]:
    """The pairs of some triples."""
    return {pair for triple in triples for pair in combinations(triple, 2)}


def _grids_of(grids: Sequence[Grid], terms: Collection[Subset]) -> tuple[Grid, ...]:
    """The grids of some terms."""
    return tuple(grid for grid in grids if grid.term in terms)


def _paying_tables(on_trial: Tables, tried: Tried, fitted: set[Subset]) -> Tables:
    """Tables with the triples that paid, and without pairs that only stood for a triple."""
    paying = tried.paying
    pairs = tried.large_enough & (fitted | _pairs_inside(paying))
    return replace(
        on_trial,
        pairs=_grids_of(on_trial.pairs, pairs),
        triples=_grids_of(on_trial.triples, paying),
    )


def _strongest_columns(pieces: Sequence[Piece], sample: Sample) -> list[Piece]:
    """The pieces with no more columns in all than a regression can have.

    The weakest columns are left to the prior.
    """
    if sum(piece.rank for piece in pieces) <= MOST_COLUMNS:
        return list(pieces)

    few = sample.some()
    # Of a piece without columns, such as that of a constant one, torch's variance warns.
    columns = [piece.read(few)[0] for piece in pieces]
    spreads = [
        read.var(0, correction=0) if read.shape[1] else read.new_zeros(0) for read in columns
    ]
    least = torch.cat(spreads).sort(descending=True).values[MOST_COLUMNS]
    return [
        replace(piece, basis=piece.basis[:, spread > least])
        for piece, spread in zip(pieces, spreads, strict=True)
    ]


# ---------------------------------------------------------------------- what is left


@dataclass(frozen=True, eq=False)
class FittedTerms:
    """What selection leaves: the fitted terms, with what bands and findings are made of."""

    fit: RegressionFit
    traces: Traces
    # per pair the spread that its features make only together, as a share of the output's
    strengths: dict[Subset, float]
    # standard errors of the strengths
    strength_scatter: dict[Subset, float]
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
