"""Making the tables: of single features, of pairs and of triples, within the forward rows that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from nobsp.network.batches import Counter
from nobsp.network.inputs import Subset
from nobsp.tabular.effort import (
    MOST_PAIR_NODES,
    MOST_STEPS,
    MOST_TRIPLE_NODES,
    PAIR_REACH,
    PAIRS_SHARE,
    TRIPLE_REACH,
    Effort,
    Meter,
    fewer_pairs,
    first_points,
)
from nobsp.tabular.features import Domain, Points
from nobsp.tabular.grids import Backgrounds, Table, Tabulator, refine_knots
from nobsp.tabular.lookup import Array, Chunk, NumberAxis
from nobsp.tabular.rows import Sample
from nobsp.tabular.tables import Grid, Lines, Main, Tables, count_nodes


@dataclass(frozen=True)
class Room:
    """Thresholds that the side of a grid has room for."""

    average: int  # over the features
    fewest: int  # of any feature
    most: int


@dataclass(frozen=True, eq=False)
class Steps:
    """A feature's thresholds, and its own table."""

    thresholds: Array  # the numbers on either side, (thresholds, 2)
    points: Points
    table: Table


# A threshold takes two lines of a grid; a pair's has some 30 a side at most, a triple's some 15.
PAIR_ROOM = Room(average=12, fewest=4, most=28)
FINE_PAIR_ROOM = Room(average=24, fewest=8, most=56)
TRIPLE_ROOM = Room(average=5, fewest=3, most=8)


def step_sizes(features: Steps, chunk: Chunk, unit: Tensor, *, apart: bool = False) -> Array:
    """Per threshold the variance that its step makes over rows and background, in units of the outputs'.

    With `apart` only what differs between background rows counts: the part that interactions make.
    """
    thresholds = features.thresholds
    axis = features.points.axis
    assert isinstance(axis, NumberAxis)
    knots = axis.knots
    below = np.clip(np.searchsorted(knots, thresholds[:, 0]), 0, len(knots) - 2)
    has_both_knots = (knots[below] == thresholds[:, 0]) & (knots[below + 1] == thresholds[:, 1])

    outputs = features.table.outputs
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


# Background rows that tell which thresholds do most, where a feature has more than its table holds.
_FEW_ROWS = 4
# Fewest background rows of pairs where forward rows are limited: after that, lines are saved.
_FEWEST_ROWS_OF_PAIRS = 4
# Lines that the side of a number is taken to have before its grid is made.
_USUAL_LINES = 32
# Evenly spaced lines of a triple's side: its ends and its middle.
_EVEN_LINES_OF_TRIPLES = 3


@dataclass(frozen=True, eq=False)
class PairPlan:
    """Grids of pairs that the forward rows left are enough for."""

    pairs: Sequence[Subset]
    lines: Lines
    background: int  # rows that they are averaged over


@dataclass(frozen=True, eq=False)
class Tabulation:
    """Makes tables and adds them to those there are."""

    sample: Sample
    weight: Tensor  # the head's coefficients
    effort: Effort
    backgrounds: Backgrounds
    meter: Meter
    bar: Counter  # counts tables

    @property
    def pair_room(self) -> Room:
        """Thresholds along the sides of pairs' grids: many where grids take no forward passes."""
        return FINE_PAIR_ROOM if self.backgrounds.are_cheap else PAIR_ROOM

    def tabulate_mains(self, domains: Sequence[Domain]) -> Tables:
        """Tables of single features, and where the model was found to answer."""
        tabulate = self.backgrounds.of_rows(self.effort.background)
        chunk = self.sample.chunk()

        mains = {}
        limited = list(domains)
        for k, domain in enumerate(domains):
            if not domain.tabulated:
                continue
            points, table = tabulate_main(tabulate, domain, chunk, self.sample.spread, self.effort)
            mains[k] = Main(points, table)
            limited[k] = domain.limited_to(points, table.answered)
            self.bar.update()

        return Tables(
            domains=limited,
            rows=chunk,
            weight=self.weight,
            background=tabulate.background,
            pair_background=tabulate.background,
            mains=mains,
        )

    def refine_mains(self, tables: Tables) -> Tables:
        """Adds knots to tables of single features where these bend, as long as forward rows are left."""
        tabulate = self.backgrounds.of_rows(self.effort.background)
        mains = {}
        for k, main in tables.mains.items():
            mains[k] = refine_main(
                tabulate,
                tables.domains[k],
                main,
                self.sample.chunk(),
                unit=self.sample.spread,
                most=self.effort.most_knots,
            )
        return replace(tables, mains=mains)

    def tabulate_named(self, tables: Tables, named: Sequence[Subset]) -> Tables:
        """Adds grids of the pairs and triples that were named, where all of their features have tables."""
        sizes = {k: len(tables.domains[k].levels or ()) or _USUAL_LINES for k in tables.mains}
        tabulated = [term for term in named if sizes.keys() >= set(term)]
        pairs = [
            term
            for term in tabulated
            if len(term) == 2 and sizes[term[0]] * sizes[term[1]] <= MOST_PAIR_NODES
        ]
        triples = [term for term in tabulated if len(term) == 3]
        return self.tabulate_triples(self.tabulate_pairs(tables, pairs), triples)

    def tabulate_pairs(
        self, tables: Tables, pairs: Sequence[Subset], *, room: Room | None = None
    ) -> Tables:
        """The same tables with grids of these pairs, or of the first of them where forward rows are limited."""
        if not pairs:
            return tables
        plan = self._plan_pairs(tables, pairs, room or self.pair_room)
        if not plan.pairs:
            return tables

        tabulate = self.backgrounds.of_rows(plan.background)
        return replace(
            tables,
            pair_lines=plan.lines,
            pairs=tuple(self._run_grids(tabulate, plan.pairs, plan.lines)),
            pair_background=tabulate.background,
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
        tabulate = self.backgrounds.of_rows(background)
        lines = Lines.of(points, self.sample.chunk())
        return replace(
            tables,
            pair_lines=lines,
            pairs=(*tables.pairs, *self._run_grids(tabulate, missing, lines)),
            pair_background=tabulate.background,
        )

    def tabulate_triples(self, tables: Tables, triples: Sequence[Subset]) -> Tables:
        """The same tables with grids of these triples, as far as the grids are small enough."""
        if not triples:
            return tables

        lines = self._triple_lines(tables, triples)
        small = [term for term in triples if count_nodes(lines.points, term) <= MOST_TRIPLE_NODES]
        tabulate = self.backgrounds.of_rows(self.effort.triple_background)
        grids = self._run_grids(tabulate, small, lines)
        return replace(tables, triple_lines=lines, triples=tuple(grids))

    def _run_grids(self, tabulate: Tabulator, terms: Sequence[Subset], lines: Lines) -> list[Grid]:
        """Runs the network on the grids of some terms."""
        grids = []
        for term in terms:
            grids.append(Grid.tabulate(tabulate, term, lines))
            self.bar.update()
        return grids

    def _plan_pairs(self, tables: Tables, pairs: Sequence[Subset], room: Room) -> PairPlan:
        """Grids of pairs for the forward rows left: fewer background rows first, then fewer lines, then fewer pairs."""
        lines = self._pair_lines(tables, pairs, self.effort, room)
        sizes = [count_nodes(lines.points, pair) for pair in pairs]
        background = min(self.effort.pair_background, self.backgrounds.most)
        if sum(sizes) * background <= self.meter.left:
            return PairPlan(pairs, lines, background)

        self.meter.reduced = True
        allowed = self.meter.left * PAIRS_SHARE
        affordable = max(int(allowed // sum(sizes)), _FEWEST_ROWS_OF_PAIRS)
        background = min(affordable, background)

        if sum(sizes) * background > allowed:
            lines = self._pair_lines(tables, pairs, self.effort.coarser_pairs(), room)
            sizes = [count_nodes(lines.points, pair) for pair in pairs]
        count = fewer_pairs(sizes, background, allowed)
        return PairPlan(pairs[:count], lines, background)

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

    def _triple_lines(self, tables: Tables, triples: Sequence[Subset]) -> Lines:
        """Grid lines of the features of some triples."""
        points = self._grid_points(
            tables,
            sorted({k for term in triples for k in term}),
            TRIPLE_ROOM,
            quantiles=self.effort.triple_quantiles,
            even=_EVEN_LINES_OF_TRIPLES,
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
        """Lines of a grid's sides, by feature: at the thresholds that do most where the model steps."""
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
    tabulate: Tabulator, domain: Domain, chunk: Chunk, unit: Tensor, effort: Effort
) -> tuple[Points, Table]:
    """A feature's own table, before knots are added where it bends."""
    if len(domain.steps) > MOST_STEPS:
        steps = _largest_steps(tabulate, domain, chunk, unit)
        points = domain.step_points(chunk, steps, quantiles=effort.quantiles)
    else:
        points = first_points(domain, chunk, effort)
    return points, tabulate([points])


def _largest_steps(tabulate: Tabulator, domain: Domain, chunk: Chunk, unit: Tensor) -> Array:
    """As many thresholds as a table has room for, by how much the model steps there on few background rows."""
    few = tabulate.with_rows(_FEW_ROWS)
    points = domain.step_points(chunk, domain.steps, quantiles=0)
    sizes = step_sizes(Steps(domain.steps, points, few([points])), chunk, unit)
    tabulate.forward_rows += few.forward_rows

    largest = np.sort(np.argsort(-sizes, kind="stable")[:MOST_STEPS])
    steps: Array = domain.steps[largest]
    return steps


def refine_main(
    tabulate: Tabulator, domain: Domain, main: Main, rows: Chunk, *, unit: Tensor, most: int
) -> Main:
    """A feature's table with knots where it bends; categories and steps stay as they are."""
    is_number = isinstance(main.points.axis, NumberAxis)
    if not is_number or not domain.reaches or len(domain.steps):
        return main
    points, table = refine_knots(
        tabulate, domain, main.points, main.table, rows, unit=unit, most=most
    )
    return Main(points, table)
