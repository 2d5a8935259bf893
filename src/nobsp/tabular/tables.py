"""Tables of single features, pairs and triples together, each without what belongs to the others.

Every table is an average over background rows r, which are few. What larger terms T make there on
average is part of it:

    z̄_a(x) contains the mean over r of T_ab(x, b_r) + T_abc(x, b_r, c_r),
    z̄_ab(x, y) contains the mean over r of T_abc(x, y, c_r).

A grid is purified when it averages to zero along each of its sides, every point of a side counted
by the share of the calibration rows there. Of a single feature we subtract the mean of its
*purified* pairs over the background rows. What stays is the mean of the pair as it was over the
*calibration* rows, as if it had been moved from the pair to the feature. Triples are treated alike,
towards their pairs and their features.

In this order: making the tables within the forward rows that are left; the tables; terms as the
regression sees them; margins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from nobsp.network.batches import Counter
from nobsp.network.columns import Subset
from nobsp.tabular.effort import (
    EVEN_LINES_OF_TRIPLES,
    MOST_PAIR_NODES,
    MOST_STEPS,
    MOST_TRIPLE_NODES,
    PAIR_REACH,
    PAIRS_SHARE,
    TRIPLE_REACH,
    Effort,
    Meter,
    announce,
    announcement_of_grids,
    fewer_pairs,
    first_points,
    has_grid,
    screen_points,
)
from nobsp.tabular.features import Domain, Points
from nobsp.tabular.grids import Averages, Backgrounds, Tabulator, refine_knots
from nobsp.tabular.lookup import Array, Chunk, LevelAxis, NumberAxis, TermTable
from nobsp.tabular.setting import Sample


@dataclass(frozen=True)
class Room:
    """Thresholds that the side of a grid has room for."""

    average: int  # over the features
    fewest: int  # of any feature
    most: int

    def coarser(self) -> Room:
        """Half of the thresholds, for a limit on forward rows."""
        return Room(max(self.average // 2, 1), max(self.fewest // 2, 1), max(self.most // 2, 2))


@dataclass(frozen=True, eq=False)
class Steps:
    """A feature's thresholds, and its own table."""

    thresholds: Array  # the numbers on either side, (thresholds, 2)
    points: Points
    table: Averages


# A threshold takes two lines of a grid: a pair's has 56 of them a side at most.
PAIR_ROOM = Room(average=12, fewest=4, most=28)
# Where grids are read off trees, or pairs leave much. With 24 boosted trees on California lost
# 0.001 to 0.002 of R².
FINE_PAIR_ROOM = Room(average=36, fewest=8, most=80)
TRIPLE_ROOM = Room(average=5, fewest=3, most=8)


def step_sizes(stepped: Steps, chunk: Chunk, unit: Tensor, *, apart: bool = False) -> Array:
    """Per threshold the variance of its step over rows and background, in units of the outputs'.

    With `apart` only what differs between background rows counts: the part that interactions make.
    """
    thresholds = stepped.thresholds
    axis = stepped.points.axis
    assert isinstance(axis, NumberAxis)
    knots = axis.knots
    below = np.clip(np.searchsorted(knots, thresholds[:, 0]), 0, len(knots) - 2)
    has_both_knots = (knots[below] == thresholds[:, 0]) & (knots[below + 1] == thresholds[:, 1])

    outputs = stepped.table.outputs
    jump = (outputs[:, below + 1] - outputs[:, below]).double() / unit
    square = jump.var(0, correction=0) if apart else jump.square().mean(0)

    x = chunk.numbers(axis.column)
    share = np.searchsorted(np.sort(x[np.isfinite(x)]), thresholds[:, 1]) / max(len(x), 1)
    # Thresholds beyond the calibrated range count a little, so that they are not forgotten.
    sizes: Array = square.sum(1).numpy() * (share * (1 - share) + 1e-6) * has_both_knots
    return sizes


def share_steps(
    features: Mapping[int, Steps], chunk: Chunk, unit: Tensor, room: Room
) -> dict[int, Array]:
    """Thresholds that grids have, by feature: most where interactions step most."""
    sizes = {
        k: step_sizes(steps, chunk, unit, apart=True)
        for k, steps in features.items()
        if len(steps.thresholds)
    }
    if not sizes:
        return {}

    certain = sum(min(len(size), room.fewest) for size in sizes.values())
    shared = max(room.average * len(sizes) - certain, 0)
    competing = [np.sort(size)[::-1][room.fewest :] for size in sizes.values()]
    strongest = np.sort(np.concatenate(competing))[::-1]
    least = strongest[shared] if shared < len(strongest) else -1.0

    shares = {}
    for k, size in sizes.items():
        count = min(max(int((size > least).sum()), room.fewest), room.most)
        chosen = np.sort(np.argsort(-size, kind="stable")[:count])
        shares[k] = features[k].thresholds[chosen]
    return shares


# Share of the forward rows left that finding out whether the model answers inside may take.
_SHARE_AHEAD = 0.3
# Coarse grids of pairs are averaged over so many background rows, or are made coarser still.
_FEWEST_BACKGROUND_OF_COARSE = 4
# Background rows that tell which thresholds do most, where a feature has more than its table holds.
_FEW_ROWS = 4


@dataclass(frozen=True, eq=False)
class GridPlan:
    """Grids of pairs, or of triples, that the forward rows left are enough for."""

    terms: Sequence[Subset]
    lines: Lines
    background: int  # rows that they are averaged over


@dataclass(frozen=True, eq=False)
class TableMaker:
    """Makes tables: of single features, and grids of pairs and triples beside them."""

    sample: Sample
    head_weight: Tensor  # the head's coefficients
    effort: Effort
    backgrounds: Backgrounds
    meter: Meter
    bar: Counter  # counts tables

    @property
    def pair_room(self) -> Room:
        """Thresholds along the sides of pairs' grids: many where grids take no forward passes."""
        return FINE_PAIR_ROOM if self.backgrounds.are_cheap else PAIR_ROOM

    def look_beyond(self, domains: Sequence[Domain]) -> list[int]:
        """Features beyond whose range the model does not answer, found with few forward rows.

        Their tables ask no more of it than they must.
        """
        tabulator = self.backgrounds.of_rows(self.effort.background)
        chunk = self.sample.chunk()
        features = [k for k, domain in enumerate(domains) if domain.tabulated]
        return [
            k
            for k in features
            if not len(domains[k].steps)
            and not tabulator.answers_beyond(first_points(domains[k], chunk, self.effort))
        ]

    def look_inside(
        self,
        features: Sequence[int],
        domains: Sequence[Domain],
        interactions: Sequence[Subset] | int | None,
    ) -> None:
        """Asks the points of some features inside their range, with one background row.

        A model that does not answer there would otherwise spend a limit on tables of no use.

        Raises:
            UnansweredError: If it does not.
        """
        tabulator = self.backgrounds.of_rows(self.effort.background)
        chunk = self.sample.chunk()
        lines = {
            k: [
                first_points(domains[k], chunk, self.effort),
                *self._lines_ahead(k, domains[k], interactions),
            ]
            for k in features
        }
        most_rows = sum(len(points) for points_of_one in lines.values() for points in points_of_one)
        for_mains = self._rows_of_mains(domains, tabulator)
        left = self.meter.left
        if most_rows <= min(_SHARE_AHEAD * left, left - for_mains):
            for points_of_one in lines.values():
                tabulator.look_inside(points_of_one)

    def _lines_ahead(
        self, feature: int, domain: Domain, interactions: Sequence[Subset] | int | None
    ) -> list[Points]:
        """Lines of a feature in grids that will be made whatever is found, also coarser ones."""
        if not isinstance(interactions, Sequence):
            few = self.sample.some().chunk()
            is_screened = interactions is None or interactions > 0
            return [screen_points(domain, few, self.effort.screen_lines)] if is_screened else []

        chunk = self.sample.chunk()
        orders = {len(term) for term in interactions if feature in term}
        coarser = self.effort.coarser_pairs().coarser_triples()
        lines = []
        for effort in (self.effort, coarser, coarser.coarser_pairs()):
            if 2 in orders:
                quantiles, even = effort.pair_quantiles, effort.pair_even
                lines.append(domain.points(chunk, quantiles=quantiles, even=even, reach=PAIR_REACH))
            if 3 in orders:
                quantiles, even = effort.triple_quantiles, EVEN_LINES_OF_TRIPLES
                lines.append(
                    domain.points(chunk, quantiles=quantiles, even=even, reach=TRIPLE_REACH)
                )
        return lines

    def tabulate_mains(self, domains: Sequence[Domain], *, for_others: float = 0.0) -> Tables:
        """Tables of single features, and where the model was found to answer.

        `for_others` are forward rows that other grids take at least.
        """
        tabulator = self.backgrounds.of_rows(self.effort.background)
        chunk = self.sample.chunk()
        finds_largest = self._can_find_largest_steps(domains, tabulator, for_others)

        mains = {}
        limited = list(domains)
        for k, domain in enumerate(domains):
            if not domain.tabulated:
                continue
            points, table = tabulate_main(
                tabulator,
                domain,
                chunk,
                self.sample.spread,
                self.effort,
                finds_largest=finds_largest,
            )
            mains[k] = Main(points, table)
            limited[k] = domain.limited_to(points, table.answered)
            self.bar.update()

        return Tables(
            domains=limited,
            rows=chunk,
            head_weight=self.head_weight,
            background=tabulator.background,
            pair_background=tabulator.background,
            mains=mains,
        )

    def _can_find_largest_steps(
        self, domains: Sequence[Domain], tabulator: Tabulator, for_others: float
    ) -> bool:
        """Whether finding out where the model steps most leaves forward rows enough for tables.

        With fewer thresholds than a table has room for, it would take too many for what it gives.
        """
        chunk = self.sample.chunk()
        many = [d for d in domains if d.tabulated and len(d.steps) > MOST_STEPS]
        if not many or self.meter.limit is None:
            return self.effort.share_of_steps == 1.0
        finding = len(tabulator.with_rows(_FEW_ROWS).background) * sum(
            len(domain.step_points(chunk, domain.steps, quantiles=0)) for domain in many
        )
        needed = finding + self._rows_of_mains(domains, tabulator) + for_others
        is_enough = needed <= self.meter.left
        self.meter.reduced |= not is_enough
        return is_enough and self.effort.share_of_steps == 1.0

    def _rows_of_mains(self, domains: Sequence[Domain], tabulator: Tabulator) -> int:
        """Forward rows of tables of single features, before they are refined."""
        chunk = self.sample.chunk()
        return len(tabulator.background) * sum(
            len(first_points(domain, chunk, self.effort)) for domain in domains if domain.tabulated
        )

    def refine_mains(self, tables: Tables) -> Tables:
        """Adds knots to tables of single features where they bend, while forward rows are left."""
        tabulator = self.backgrounds.of_rows(self.effort.background)
        mains = {}
        for k, main in tables.mains.items():
            mains[k] = refine_main(
                tabulator,
                tables.domains[k],
                main,
                self.sample.chunk(),
                unit=self.sample.spread,
                most=self.effort.most_knots,
            )
        return replace(tables, mains=mains)

    def tabulate_named(self, tables: Tables, named: Sequence[Subset]) -> Tables:
        """Adds grids of the named pairs and triples whose features all have tables."""
        with_grid = [term for term in named if has_grid(term, tables.domains)]
        pairs = [term for term in with_grid if len(term) == 2]
        triples = [term for term in with_grid if len(term) == 3]
        kept = self._rows_for_triples(tables, pairs, triples)
        with_pairs = self.tabulate_pairs(tables, pairs, all_needed=True, for_others=kept)
        return self.tabulate_triples(with_pairs, triples)

    def tabulate_pairs(
        self,
        tables: Tables,
        pairs: Sequence[Subset],
        *,
        room: Room | None = None,
        all_needed: bool = False,
        for_others: int = 0,
    ) -> Tables:
        """The tables with grids of these pairs, or of the first ones if forward rows run short.

        Where all are needed, none are left out. `for_others` are forward rows for other grids.
        """
        if not pairs:
            return tables
        plan = self._plan_pairs(
            tables,
            pairs,
            room or self.pair_room,
            left=self.meter.left - for_others,
            all_needed=all_needed,
        )
        if not plan.terms:
            return tables

        tabulator = self.backgrounds.of_rows(plan.background)
        return replace(
            tables,
            pair_lines=plan.lines,
            pairs=tuple(self._run_grids(tabulator, plan.terms, plan.lines)),
            pair_background=tabulator.background,
        )

    def add_pairs(self, tables: Tables, pairs: Sequence[Subset]) -> Tables:
        """Adds grids of pairs that have none, on the lines there are."""
        present = {grid.term for grid in tables.pairs}
        missing = [pair for pair in pairs if pair not in present]
        known = tables.pair_lines.points
        without_lines = sorted({k for pair in missing for k in pair} - known.keys())
        points = known | self._pair_points(tables, without_lines, self.effort, self.pair_room)

        missing = [pair for pair in missing if count_nodes(points, pair) <= MOST_PAIR_NODES]
        if not missing:
            return tables

        background = len(tables.pair_background) if present else self.effort.pair_background
        tabulator = self.backgrounds.of_rows(background)
        lines = Lines.of(points, self.sample.chunk())
        return replace(
            tables,
            pair_lines=lines,
            pairs=(*tables.pairs, *self._run_grids(tabulator, missing, lines)),
            pair_background=tabulator.background,
        )

    def tabulate_triples(self, tables: Tables, triples: Sequence[Subset]) -> Tables:
        """The tables with grids of these triples, as far as the grids are small enough."""
        if not triples:
            return tables
        plan = self._plan_triples(tables, triples)
        tabulator = self.backgrounds.of_rows(plan.background)
        grids = self._run_grids(tabulator, plan.terms, plan.lines)
        return replace(tables, triple_lines=plan.lines, triples=tuple(grids))

    def _run_grids(self, tabulator: Tabulator, terms: Sequence[Subset], lines: Lines) -> list[Grid]:
        """Runs the network on the grids of some terms."""
        if self.meter.is_timed and not self.backgrounds.are_cheap:
            nodes = sum(count_nodes(lines.points, term) for term in terms)
            rows = nodes * len(tabulator.background)
            announce(announcement_of_grids(len(terms), rows, self.meter.seconds_per_row))

        grids = []
        for term in terms:
            grids.append(Grid.tabulate(tabulator, term, lines))
            self.bar.update()
        return grids

    def _rows_for_triples(
        self, tables: Tables, pairs: Sequence[Subset], triples: Sequence[Subset]
    ) -> int:
        """Forward rows that grids of named pairs leave to those of named triples."""
        if not triples:
            return 0
        lines = self._triple_lines(tables, triples, self.effort, TRIPLE_ROOM)
        for_triples = sum(count_nodes(lines.points, term) for term in triples)
        for_triples *= min(self.effort.triple_background, self.backgrounds.most)

        lines = self._pair_lines(tables, pairs, self.effort, self.pair_room)
        for_pairs = sum(count_nodes(lines.points, pair) for pair in pairs)
        for_pairs *= min(self.effort.pair_background, self.backgrounds.most)
        if for_pairs + for_triples <= self.meter.left:
            return for_triples
        # Both are coarser, to the same degree.
        return int(self.meter.left * for_triples / (for_pairs + for_triples))

    def _plan_pairs(
        self,
        tables: Tables,
        pairs: Sequence[Subset],
        room: Room,
        *,
        left: float,
        all_needed: bool,
    ) -> GridPlan:
        """Grids of pairs that the forward rows left can pay for.

        Lines are reduced first, then background rows, then pairs unless all of them are needed.
        """
        lines = self._pair_lines(tables, pairs, self.effort, room)
        sizes = [count_nodes(lines.points, pair) for pair in pairs]
        most_background = min(self.effort.pair_background, self.backgrounds.most)
        if sum(sizes) * most_background <= left:
            return GridPlan(pairs, lines, most_background)

        self.meter.reduced = True
        allowed = left * PAIRS_SHARE
        coarser = self.effort.coarser_pairs()
        coarsest = coarser.coarser_pairs()
        # Coarse grids of all pairs explain more than fine ones of a few, and more than fine ones
        # over a few background rows: on five networks and eight limits R² was .869 instead of .856
        # in the mean, and no limit lost .10 beside a smaller one. Thresholds, which are exact
        # steps, are saved last.
        steps = [
            (coarser, room, _FEWEST_BACKGROUND_OF_COARSE),
            (coarsest, room, 1),
            (coarsest, room.coarser(), 1),
            (coarsest, room.coarser().coarser(), 1),
        ]
        for effort, coarse_room, fewest in steps:
            lines = self._pair_lines(tables, pairs, effort, coarse_room)
            sizes = [count_nodes(lines.points, pair) for pair in pairs]
            background = min(int(allowed // sum(sizes)), most_background)
            if background >= fewest:
                return GridPlan(pairs, lines, background)

        count = len(pairs) if all_needed else fewer_pairs(sizes, 1, allowed)
        return GridPlan(pairs[:count], lines, background=1)

    def _plan_triples(self, tables: Tables, triples: Sequence[Subset]) -> GridPlan:
        """Grids of triples, as fine as the forward rows left can pay for.

        Background rows are reduced first, then lines, then thresholds.
        """
        lines = self._triple_lines(tables, triples, self.effort, TRIPLE_ROOM)
        small = [term for term in triples if count_nodes(lines.points, term) <= MOST_TRIPLE_NODES]
        nodes = sum(count_nodes(lines.points, term) for term in small)
        most_background = min(self.effort.triple_background, self.backgrounds.most)
        if nodes * most_background <= self.meter.left:
            return GridPlan(small, lines, most_background)

        self.meter.reduced = True
        coarser = self.effort.coarser_triples()
        steps = [
            (self.effort, TRIPLE_ROOM, 2),
            (coarser, TRIPLE_ROOM, 1),
            (coarser, TRIPLE_ROOM.coarser(), 1),
        ]
        for effort, room, fewest in steps:
            lines = self._triple_lines(tables, triples, effort, room)
            nodes = sum(count_nodes(lines.points, term) for term in small)
            background = min(int(self.meter.left // nodes), most_background)
            if background >= fewest:
                return GridPlan(small, lines, background)
        return GridPlan(small, lines, background=1)

    def _pair_lines(
        self, tables: Tables, pairs: Sequence[Subset], effort: Effort, room: Room
    ) -> Lines:
        """Grid lines of the features of some pairs."""
        features = sorted({k for pair in pairs for k in pair})
        points = self._pair_points(tables, features, effort, room)
        return Lines.of(points, self.sample.chunk())

    def _pair_points(
        self, tables: Tables, features: Sequence[int], effort: Effort, room: Room
    ) -> dict[int, Points]:
        """Lines of the grids of pairs, by feature."""
        return self._grid_points(
            tables,
            features,
            room,
            quantiles=effort.pair_quantiles,
            even=effort.pair_even,
            reach=PAIR_REACH,
        )

    def _triple_lines(
        self, tables: Tables, triples: Sequence[Subset], effort: Effort, room: Room
    ) -> Lines:
        """Grid lines of the features of some triples."""
        points = self._grid_points(
            tables,
            sorted({k for term in triples for k in term}),
            room,
            quantiles=effort.triple_quantiles,
            even=EVEN_LINES_OF_TRIPLES,
            reach=TRIPLE_REACH,
        )
        return Lines.of(points, self.sample.chunk())

    def _grid_points(
        self,
        tables: Tables,
        features: Sequence[int],
        room: Room,
        *,
        quantiles: int,
        even: int,
        reach: Sequence[float],
    ) -> dict[int, Points]:
        """Lines of a grid's sides, by feature; of steps, at the thresholds that do most."""
        chunk = self.sample.chunk()
        stepped = {}
        for k in features:
            main = tables.mains[k]
            stepped[k] = Steps(tables.domains[k].steps, main.points, main.table)
        thresholds = share_steps(stepped, chunk, self.sample.spread, room)

        points = {}
        for k in features:
            domain = tables.domains[k]
            if k in thresholds:
                points[k] = domain.step_points(chunk, thresholds[k], quantiles=quantiles // 2)
            else:
                points[k] = domain.points(chunk, quantiles=quantiles, even=even, reach=reach)
        return points


def tabulate_main(
    tabulator: Tabulator,
    domain: Domain,
    chunk: Chunk,
    unit: Tensor,
    effort: Effort,
    *,
    finds_largest: bool = True,
) -> tuple[Points, Averages]:
    """A feature's own table, before knots are added where it bends.

    `finds_largest` says whether the largest steps are looked for, where there are too many.
    """
    if len(domain.steps) > MOST_STEPS and finds_largest:
        steps = _largest_steps(tabulator, domain, chunk, unit)
        points = domain.step_points(chunk, steps, quantiles=effort.quantiles)
    else:
        points = first_points(domain, chunk, effort)
    return points, tabulator([points])


def _largest_steps(tabulator: Tabulator, domain: Domain, chunk: Chunk, unit: Tensor) -> Array:
    """The thresholds where the model steps most, as many as a table has room for.

    How much it steps is measured on few background rows.
    """
    few = tabulator.with_rows(_FEW_ROWS)
    points = domain.step_points(chunk, domain.steps, quantiles=0)
    sizes = step_sizes(Steps(domain.steps, points, few([points])), chunk, unit)

    largest = np.sort(np.argsort(-sizes, kind="stable")[:MOST_STEPS])
    steps: Array = domain.steps[largest]
    return steps


def refine_main(
    tabulator: Tabulator, domain: Domain, main: Main, rows: Chunk, *, unit: Tensor, most: int
) -> Main:
    """A feature's table with knots where it bends; categories and steps stay as they are."""
    is_number = isinstance(main.points.axis, NumberAxis)
    if not is_number or not domain.reaches or domain.on_values or len(domain.steps):
        return main
    points, table = refine_knots(
        tabulator, domain, main.points, main.table, rows, unit=unit, most=most
    )
    return Main(points, table)


# ---------------------------------------------------------------------- all tables, purified


# Most directions of a representation, by how many features a term has: all terms share the
# regression's columns.
MOST_DIRECTIONS = {1: 24, 2: 32, 3: 16}
# Products below this are as good as none.
_FAINTEST = 1e-300
# Directions of a representation whose variance is below this share of the strongest are left to the
# prior.
_WEAKEST = 1e-6


@dataclass(frozen=True, eq=False)
class Main:
    """The table of one feature."""

    points: Points
    table: Averages


@dataclass(frozen=True, eq=False)
class Lines:
    """Where the grids of pairs, or those of triples, have their lines, by feature."""

    points: dict[int, Points] = field(default_factory=dict)
    shares: dict[int, Tensor] = field(default_factory=dict)  # of the calibration rows

    @classmethod
    def of(cls, points: Mapping[int, Points], rows: Chunk) -> Lines:
        """Lines with the share of the rows at each."""
        return cls(dict(points), {k: occupancy(line, rows) for k, line in points.items()})

    def weights_at(self, domains: Sequence[Domain], rows: Tensor) -> dict[int, Tensor]:
        """Weights with which rows of the network's input are read off the lines, by feature.

        Each has shape (rows, points).
        """
        weights = {}
        for k, points in self.points.items():
            chunk = Chunk(domains[k].own_columns(rows), slice(0, len(rows)))
            weights[k] = weights_of(points, chunk)
        return weights


@dataclass(frozen=True, eq=False)
class Grid:
    """The table of several features."""

    term: Subset
    points: tuple[Points, ...]
    shares: tuple[Tensor, ...]
    pure: Tensor  # the purified representation, (points …, width)
    # what the head makes of it for every background row, (background, points …, outputs)
    outputs: Tensor

    @classmethod
    def tabulate(cls, tabulator: Tabulator, term: Subset, lines: Lines) -> Grid:
        """Runs the network on the grid."""
        points = tuple(lines.points[k] for k in term)
        shares = tuple(lines.shares[k] for k in term)
        table = tabulator(points)
        return cls(term, points, shares, purify(table.mean, shares), table.outputs)

    def less(self, margin: Tensor) -> Grid:
        """The grid without what belongs to a larger term."""
        return replace(self, pure=self.pure - purify(margin, self.shares))

    def piece(self, head_weight: Tensor) -> TablePiece:
        """The term as the regression sees it."""
        flat = self.pure.flatten(0, -2)
        share = self.shares[0]
        for other in self.shares[1:]:
            share = torch.outer(share, other).flatten()
        basis = compress(flat, share, most=MOST_DIRECTIONS[len(self.term)])
        return TablePiece(self.term, self.points, flat @ head_weight, flat @ basis)


@dataclass(frozen=True, eq=False)
class Tables:
    """All tables, from which the pieces of the regression are made."""

    domains: Sequence[Domain]
    rows: Chunk  # the calibration rows
    head_weight: Tensor  # the head's coefficients
    background: Tensor  # of the tables of single features
    pair_background: Tensor
    mains: dict[int, Main]
    pair_lines: Lines = field(default_factory=Lines)
    pairs: tuple[Grid, ...] = ()
    triple_lines: Lines = field(default_factory=Lines)
    triples: tuple[Grid, ...] = ()

    @cached_property
    def pair_weights(self) -> dict[int, Tensor]:
        """Weights with which every background row is read off the lines of pairs."""
        return self.pair_lines.weights_at(self.domains, self.background)

    @cached_property
    def triple_weights(self) -> dict[int, Tensor]:
        """Weights with which every background row is read off the lines of triples."""
        return self.triple_lines.weights_at(self.domains, self.background)

    def pure_pairs(self) -> tuple[Grid, ...]:
        """Grids of pairs without what triples make of them over the background rows."""
        if not self.triples:
            return self.pairs
        weights = self.triple_lines.weights_at(self.domains, self.pair_background)
        pairs = {grid.term: grid for grid in self.pairs}
        for triple in self.triples:
            triple_weights = [weights[k] for k in triple.term]
            for sides in combinations(range(3), 2):
                term = tuple(triple.term[side] for side in sides)
                if term not in pairs:
                    continue
                margin = average_over(triple.pure, triple_weights, sides=sides)
                lines = [triple.points[side] for side in sides]
                moved = transfer_grid(lines, margin, pairs[term].points)
                pairs[term] = pairs[term].less(moved)
        return tuple(pairs.values())

    def pure_means(self, pairs: Sequence[Grid]) -> dict[int, Tensor]:
        """Tables of single features, less what larger terms average to over background rows."""
        means = {k: main.table.mean for k, main in self.mains.items()}
        for grids, weights in ((pairs, self.pair_weights), (self.triples, self.triple_weights)):
            for grid in grids:
                for side, k in enumerate(grid.term):
                    here = [weights[other] for other in grid.term]
                    margin = average_over(grid.pure, here, sides=(side,))
                    means[k] = means[k] - transfer(grid.points[side], margin, self.mains[k].points)
        return means

    def pieces(self) -> tuple[dict[int, TablePiece], list[TablePiece]]:
        """Every table as the regression sees it: of single features, and of pairs and triples."""
        pairs = self.pure_pairs()
        means = self.pure_means(pairs)
        singles = {}
        for k, main in self.mains.items():
            share = occupancy(main.points, self.rows)
            # For the directions only: `as_function` centres it on the rows of the regression.
            mean = means[k] - share @ means[k]
            basis = compress(mean, share, most=MOST_DIRECTIONS[1])
            singles[k] = TablePiece((k,), (main.points,), mean @ self.head_weight, mean @ basis)
        return singles, [grid.piece(self.head_weight) for grid in (*pairs, *self.triples)]


def count_nodes(lines: Mapping[int, Points], term: Subset) -> int:
    """Nodes of a term's grid."""
    return int(np.prod([len(lines[k]) for k in term]))


def compress(mean: Tensor, share: Tensor, *, most: int) -> Tensor:
    """Directions (width, rank) in which a table varies over the calibration rows, strongest first.

    Directions are scaled by variance^(-1/4), between no scaling and full whitening, so that a ridge
    shrinks weak ones less than without scaling. `share` is that of the rows at every point.
    """
    weighted = mean * share.sqrt()[:, None]
    # The smaller of the two products has the same eigenvalues.
    is_tall = weighted.shape[0] >= weighted.shape[1]
    product = weighted.T @ weighted if is_tall else weighted @ weighted.T
    # Numbers near the smallest there are have lost their digits, and the solver may not converge on
    # them.
    product = product.where(product.abs() > _FAINTEST, 0.0)
    values, vectors = torch.linalg.eigh(product)

    is_strong = values > _WEAKEST * values[-1].clamp_min(_FAINTEST)
    strongest = is_strong.nonzero().flatten().flip(0)[:most]
    values = values[strongest]
    directions = vectors[:, strongest]
    if not is_tall:
        directions = weighted.T @ directions / values.sqrt()
    scaled: Tensor = directions / values**0.25
    return scaled


# ---------------------------------------------------------------- terms as the regression sees them


@dataclass(frozen=True, eq=False)
class TablePiece:
    """A term on its nodes, as the regression sees it."""

    term: Subset
    points: tuple[Points, ...]
    prior: Tensor  # what the head makes of it, (nodes, outputs)
    basis: Tensor  # the compressed representation, (nodes, rank)

    @property
    def rank(self) -> int:
        """Columns of the regression."""
        return int(self.basis.shape[1])

    def as_term_table(self, values: Tensor) -> TermTable:
        """A table on the term's nodes."""
        axes = tuple(points.axis for points in self.points)
        shape = (*map(len, self.points), values.shape[-1])
        return TermTable(self.term, axes, values.reshape(shape).numpy())

    def clamped_nodes(self) -> Tensor:
        """Per node, the node it is clamped to: itself, or one at the range's end."""
        if not self.points:  # a feature that the network never sees
            return torch.zeros(1, dtype=torch.long)
        grids = np.meshgrid(*(points.clamped_to for points in self.points), indexing="ij")
        positions = np.ravel_multi_index([grid.ravel() for grid in grids], grids[0].shape)
        return torch.from_numpy(np.atleast_1d(positions))

    def read(self, rows: Sample) -> tuple[Tensor, Tensor]:
        """Compressed representation and prior of some rows."""
        columns = torch.cat([self.basis, self.prior], 1)
        values = read(self.as_term_table(columns), rows.chunk())
        return values[:, : self.rank], values[:, self.rank :]

    def as_function(self, delta: Tensor, mean: Tensor) -> TermTable:
        """The term's function: prior and correction, less their mean.

        Beyond the calibrated range the correction stays as it is at its end.
        """
        correction = (self.basis @ delta)[self.clamped_nodes()]
        return self.as_term_table(self.prior + correction - mean)


@dataclass(frozen=True, eq=False)
class DirectTerm:
    """A term without a table: rows run through the network.

    They run once for every background row and every subset of the term's features.
    """

    term: Subset
    columns: tuple[tuple[int, ...], ...]  # per feature, of the network's input
    background: Tensor
    weight: Tensor  # the head's coefficients, (width, outputs)
    delta: Tensor  # their correction
    offset: Tensor  # subtracted, so that the mean over the calibration rows is zero
    low: Tensor  # smallest calibrated value of each of the term's columns
    high: Tensor

    @property
    def cost(self) -> int:
        """Forward rows for every row that is explained."""
        return len(self.background) * ((1 << len(self.term)) - 1)

    def __call__(
        self, run: Callable[[Tensor], Tensor], inputs: Tensor, *, batch_size: int
    ) -> Tensor:
        """Contributions of some rows, (rows, outputs)."""
        tabulator = Tabulator(run, self.background, self.weight, batch_size=batch_size)
        pure = interaction_rows(tabulator, self.columns, inputs)
        contributions = pure @ (self.weight + self.delta)

        in_range = self._clamp(inputs)
        beyond = (in_range != inputs).any(1).nonzero().flatten()
        if len(beyond):
            at_edge = interaction_rows(tabulator, self.columns, in_range[beyond])
            # Where the model does not answer beyond the range, the prior stays as it is at its
            # end, as the correction does.
            answered = pure[beyond].isfinite().all(1, keepdim=True)
            prior = torch.where(answered, pure[beyond], at_edge)
            contributions[beyond] = prior @ self.weight + at_edge @ self.delta
        return contributions - self.offset

    def _clamp(self, inputs: Tensor) -> Tensor:
        """Rows with the term's columns clamped to the calibrated range."""
        columns = flatten_columns(self.columns)
        low = self.low.to(inputs.dtype)
        high = self.high.to(inputs.dtype)
        clamped = inputs.clone()
        clamped[:, columns] = inputs[:, columns].clamp(low, high)
        return clamped


@dataclass(frozen=True, eq=False)
class DirectPiece:
    """A term without a table, as the regression sees it."""

    term: Subset
    columns: tuple[tuple[int, ...], ...]
    tabulator: Tabulator
    basis: Tensor  # directions (width, rank) that the representation uses
    # Smallest and largest calibrated value of every column of the network's input.
    span: tuple[Tensor, Tensor]

    @property
    def rank(self) -> int:
        """Columns of the regression."""
        return int(self.basis.shape[1])

    def read(self, rows: Sample) -> tuple[Tensor, Tensor]:
        """Compressed representation and prior of some rows."""
        pure = interaction_rows(self.tabulator, self.columns, rows.inputs)
        return pure @ self.basis, pure @ self.tabulator.head_weight

    def as_function(self, delta: Tensor, mean: Tensor) -> DirectTerm:
        """The term's function."""
        columns = flatten_columns(self.columns)
        smallest, largest = self.span
        return DirectTerm(
            term=self.term,
            columns=self.columns,
            background=self.tabulator.background,
            weight=self.tabulator.head_weight,
            delta=self.basis @ delta,
            offset=mean,
            low=smallest[columns],
            high=largest[columns],
        )


Piece = TablePiece | DirectPiece


def flatten_columns(groups: Sequence[Sequence[int]]) -> list[int]:
    """The columns of several features in a row."""
    return [column for group in groups for column in group]


def interaction_rows(
    tabulator: Tabulator, columns: Sequence[Sequence[int]], inputs: Tensor
) -> Tensor:
    """Δ_S for terms without a table: inclusion and exclusion over the background, not purified.

    Σ_{U ⊆ S} (−1)^{|S| − |U|} z̄_U,        the empty set left out as a constant.
    """
    parts = []
    for size in range(1, len(columns) + 1):
        sign = (-1.0) ** (len(columns) - size)
        for subset in combinations(columns, size):
            flat = flatten_columns(subset)
            parts.append(sign * tabulator.average_rows(flat, inputs[:, flat]))
    return sum(parts[1:], parts[0])


# ---------------------------------------------------------------------- margins, and other lines


def read(table: TermTable, rows: Chunk) -> Tensor:
    """A table at some rows, as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(table(rows)))


def occupancy(points: Points, rows: Chunk, weights: Array | None = None) -> Tensor:
    """Share of the rows at each point; a row between two knots counts for both by its distance."""
    size = len(points)
    share = np.ones(rows.count) if weights is None else weights
    if isinstance(points.axis, LevelAxis):
        counts = np.bincount(rows.places(points.axis)[0], share, size + 1)[:size]
        return torch.from_numpy(counts / max(counts.sum(), 1e-300))

    x = rows.numbers(points.axis.column)
    known = ~np.isnan(x)
    segment = points.axis.segments(x[known])
    along = points.axis.along(x[known], segment)
    left = np.bincount(segment, (1 - along) * share[known], size)
    right = np.bincount(segment + 1, along * share[known], size)
    counts = left + right
    if points.axis.missing:
        counts[-1] = share[~known].sum()
    return torch.from_numpy(counts / max(counts.sum(), 1e-300))


def weights_of(points: Points, rows: Chunk) -> Tensor:
    """Weights with which every row is read off a side, shape (rows, points).

    Zero for a row that is nowhere on the side.
    """
    weights = np.zeros((rows.count, len(points)))
    if isinstance(points.axis, LevelAxis):
        level = rows.places(points.axis)[0]
        known = np.flatnonzero(level < len(points))
        weights[known, level[known]] = 1.0
        return torch.from_numpy(weights)

    x = rows.numbers(points.axis.column)
    is_missing = np.isnan(x)
    known = np.flatnonzero(~is_missing)
    segment = points.axis.segments(x[known])
    along = points.axis.along(x[known], segment)
    weights[known, segment] = 1 - along
    weights[known, segment + 1] = along
    if points.axis.missing:
        weights[is_missing, -1] = 1.0
    return torch.from_numpy(weights)


def purify(table: Tensor, shares: Sequence[Tensor]) -> Tensor:
    """A grid without its margins, so that it averages to zero along every side.

    Averages are weighted by the share of the rows at its points.
    """
    pure = table
    for side, share in enumerate(shares):
        margin = torch.tensordot(share, pure, dims=([0], [side]))
        pure = pure - margin.unsqueeze(side)
    return pure


def average_over(grid: Tensor, weights: Sequence[Tensor], *, sides: Sequence[int]) -> Tensor:
    """A grid as a function of some `sides`, averaged over rows with known weights on each side.

    The other sides are averaged together, so that features that are correlated in the rows are so
    here.
    """
    others = [side for side in range(len(weights)) if side not in sides]
    if len(others) == 1:
        joint = weights[others[0]].mean(0)
    else:
        first, second = (weights[side] for side in others)
        joint = torch.einsum("rj,rk->jk", first, second) / len(first)
    average: Tensor = torch.tensordot(grid, joint, dims=(others, list(range(len(others)))))
    return average


def transfer(points: Points, values: Tensor, wanted: Points) -> Tensor:
    """Values on some points of a feature, read at others."""
    if isinstance(points.axis, LevelAxis):
        return values
    assert isinstance(wanted.axis, NumberAxis)
    flat = values.reshape(len(values), -1)
    knots = np.clip(wanted.axis.knots, points.axis.knots[0], points.axis.knots[-1])
    knots = np.append(knots, np.nan) if wanted.axis.missing else knots
    table = TermTable((0,), (points.axis,), flat.numpy())
    moved = read(table, Chunk({points.axis.column: knots}, slice(0, len(knots))))
    return moved.reshape(len(knots), *values.shape[1:])


def transfer_grid(points: Sequence[Points], values: Tensor, wanted: Sequence[Points]) -> Tensor:
    """A grid on some lines, read on others, side by side."""
    for side, (before, after) in enumerate(zip(points, wanted, strict=True)):
        moved = transfer(before, values.movedim(side, 0).contiguous(), after)
        values = moved.movedim(0, side)
    return values
