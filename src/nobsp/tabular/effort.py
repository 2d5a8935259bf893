"""How fine tables are, and the forward rows they take: planned, counted, limited, announced."""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from torch import Tensor

from nobsp.network.columns import Subset
from nobsp.network.guest import OperationCounter
from nobsp.network.readout import Represent
from nobsp.tabular.features import Domain, Points
from nobsp.tabular.lookup import Chunk
from nobsp.tabular.setting import SOME_ROWS

logger = logging.getLogger("nobsp")

# Shares of what is left when full tables do not fit: of the calibration rows, then of single
# features and of screening.
_SAMPLE_SHARE = 0.25
# The same at most where terms without tables run through the model for each of these rows: few
# rows would fit them badly.
_MOST_SAMPLE_SHARE = 0.6
_MAINS_SHARE = 0.5
_SCREEN_SHARE = 0.2
# Of fewer rows, features may have a few knots more.
_KNOTS_MARGIN = 1.1
# Grids of pairs leave some rows for knots where single features bend.
PAIRS_SHARE = 0.8
# Fewer background rows than this tell little: after that, knots are saved.
FEWEST_LIMITED_BACKGROUND = 4
# Background rows that calibration rows leave room for; there are fewer where even so the coarsest
# tables do not fit.
_LEAST_BACKGROUND = 2
# Seconds of a calibration that are announced before it goes on.
_LONG = 60.0
# A call of fewer rows, and of less time, is mostly what any call takes, however few its rows.
_TIMED_ROWS = 64
_TIMED_SECONDS = 1.0


class BudgetSpentError(RuntimeError):
    """More forward rows would be needed than are left."""


@dataclass(eq=False)
class Meter:
    """Counts forward rows, and stops before there are more than the limit."""

    limit: int | None = None
    spent: int = 0
    # of the fastest call so far: the first ones load what the model needs, and other work may get
    # in between
    seconds_per_row: float = float("inf")
    is_timed: bool = (
        False  # whether a call had rows enough, or took long enough, to tell the time of a row
    )
    reserved: int = 0  # rows that terms without tables will need
    reduced: bool = False  # whether tables are coarser than they would be without a limit

    @property
    def left(self) -> float:
        """Rows that may still run."""
        return float("inf") if self.limit is None else self.limit - self.spent - self.reserved

    @contextmanager
    def reserving(self, rows: int) -> Iterator[None]:
        """Keeps a number of rows for later, until the block ends or they are released."""
        self.reserve(rows)
        try:
            yield
        finally:
            self.release()

    def reserve(self, rows: int) -> None:
        """Keeps a number of rows for later, until they are released."""
        self.reserved = rows

    def release(self) -> None:
        """Frees the forward rows that were reserved: what they were meant for runs now."""
        self.reserved = 0

    def spend(self, rows: int) -> None:
        """Counts rows before they are answered for; an error where they are too many."""
        if rows > self.left:
            self.reduced = True
            left = max(int(self.left), 0)
            raise BudgetSpentError(f"{rows} rows would be next, but {left} are left")
        self.spent += rows

    def count(self, represent: Represent) -> Represent:
        """A function of rows that counts the rows it is asked about."""

        def counted(rows: Tensor) -> Tensor:
            self.spend(len(rows))
            start = time.perf_counter()
            answers = represent(rows)
            seconds = time.perf_counter() - start
            self.seconds_per_row = min(self.seconds_per_row, seconds / max(len(rows), 1))
            self.is_timed |= len(rows) >= _TIMED_ROWS or seconds >= _TIMED_SECONDS
            return answers

        return counted


@dataclass(frozen=True)
class Costs:
    """Forward rows that a calibration takes at least."""

    sample: int  # the calibration rows themselves
    direct_runs: int  # how often a row runs for terms without a table, background rows counted
    knots: int  # of all features, before refinement
    background: int  # rows that each knot is averaged over
    screen: int  # of all pairs
    grids: int = 0  # of as many pairs as are tested at most; not among those that it takes at least
    sure_grids: int = 0  # of interactions that were named, or of the smallest as many as were asked
    coarsest_grids: int = 0  # of the same at their coarsest
    coarsest_knots: int = 0  # of all features, at their coarsest; with background rows tried twice

    ends: int = 0  # for finding out beyond which features' range the model raises

    @property
    def coarsest(self) -> float:
        """What tables take that cannot be coarser: of single features, and of sure interactions."""
        background = min(_LEAST_BACKGROUND, self.background)
        return self.ends + self.coarsest_knots * background + self.coarsest_grids / PAIRS_SHARE

    @property
    def direct(self) -> int:
        """Terms that run through the model row by row."""
        return self.direct_for(self.sample)

    def direct_for(self, rows: int) -> int:
        """The same for so many calibration rows: directions, the regression, and importances.

        Importances are those of the baseline, too. Background rows are tried at most twice before
        they are used (see `_shift_to_mean`).
        """
        runs = min(rows, SOME_ROWS) + min(rows, DIRECT_ROWS) + min(rows, MEASURED_DIRECTLY) + 1 + 2
        return self.direct_runs * runs

    @property
    def sample_share(self) -> float:
        """Share of a limit for the calibration rows, with terms without tables."""
        if not self.direct_runs:
            return _SAMPLE_SHARE
        wanted = (self.sample + self.direct) / self.total
        return min(max(wanted, _SAMPLE_SHARE), _MOST_SAMPLE_SHARE)

    def rows_for(self, limit: int) -> int:
        """How many calibration rows so many forward rows pay for, terms without tables included."""
        numbers = range(self.sample + 1)
        return bisect_right(numbers, limit, key=lambda rows: rows + self.direct_for(rows)) - 1

    @property
    def total(self) -> int:
        """All that it takes at least."""
        return self.without_grids + self.sure_grids

    @property
    def without_grids(self) -> int:
        """The same without grids of interactions."""
        return self.sample + self.direct + self.knots * self.background + self.screen

    def rest(self, left: float) -> tuple[float, float]:
        """Rows that run after the calibration rows, if few features interact, and if many do."""
        # Knots added where functions bend usually take about as much again.
        few = 2 * self.without_grids - self.sample
        least_grids = min(self.sure_grids, self.grids)
        return min(few + least_grids, left), min(few + self.grids, left)


@dataclass(frozen=True)
class Plan:
    """How a limit is spent: what is less than it would be without."""

    sample: int
    background: int
    share_of_knots: float  # of those of full tables
    screen: int


def plan_spending(costs: Costs, left: float) -> Plan | None:
    """Where rows are saved; None where full tables of single features and screening fit.

    Fewer background rows come before fewer knots.
    """
    if costs.total <= left:
        return None
    # More calibration rows are of no use where they leave nothing for tables.
    for_rows = min(left * costs.sample_share, left - costs.coarsest)
    sample = max(costs.rows_for(int(for_rows)), 2)
    rest = left - costs.ends - sample - costs.direct_for(sample)
    for_mains = rest * (_MAINS_SHARE if costs.screen or costs.grids else 1.0)
    if costs.sure_grids:
        for_mains = max(for_mains, rest - costs.screen - costs.sure_grids)
        for_mains = max(min(for_mains, rest - costs.coarsest_grids / PAIRS_SHARE), 0)
    knots = _KNOTS_MARGIN * costs.knots + 1  # and the mean over the background itself
    affordable = int((rest - costs.coarsest_grids / PAIRS_SHARE) // max(costs.coarsest_knots, 1))
    fewest = max(min(FEWEST_LIMITED_BACKGROUND, affordable), 1)
    background = min(max(int(for_mains // knots), fewest), costs.background)
    share = min(for_mains / (knots * background), 1.0)
    if not (costs.screen or costs.grids):
        # Tables have some knots at whatever share, and nothing else gives way where all don't fit.
        spare = rest / background - costs.coarsest_knots
        share = max(min(share, spare / max(costs.knots - costs.coarsest_knots, 1)), 0.0)
    return Plan(
        sample=sample,
        background=background,
        share_of_knots=share,
        screen=int(rest * _SCREEN_SHARE),
    )


def fewer_pairs(sizes: Iterable[int], background: int, left: float) -> int:
    """How many of the first grids fit into what is left."""
    total = 0
    count = 0
    for nodes in sizes:
        total += nodes * background
        if total > left:
            break
        count += 1
    return count


def announcement(rows: float, most_rows: float, seconds_per_row: float) -> str:
    """How long a calibration will take, in words.

    Empty where that is not long even if many features interact.
    """
    if most_rows * seconds_per_row <= _LONG:
        return ""
    duration = f"about {_in_words(rows * seconds_per_row)}"
    number = f"some {rows:,.0f}"
    if most_rows > rows:
        duration += f", or up to {_in_words(most_rows * seconds_per_row)} if many features interact"
        number += f" to {most_rows:,.0f}"
    return (
        f"calibrating takes {duration}: {number} forward rows at {1000 * seconds_per_row:.3g} ms "
        "each. NObSP(model, max_forward_rows=...) limits them."
    )


def announcement_of_grids(grids: int, rows: float, seconds_per_row: float) -> str:
    """How long the grids of the interactions found will take; empty where that is not long."""
    if rows * seconds_per_row <= _LONG:
        return ""
    return (
        f"tables of {grids} interactions take about {_in_words(rows * seconds_per_row)}: "
        f"{rows:,.0f} forward rows."
    )


def announce(message: str) -> None:
    """Says on the package's logger that something will take long.

    The logger prints on stderr by default. An empty message is not logged.
    """
    if message:
        logger.warning(message)


def _in_words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


# ---------------------------------------------------------------------- how fine tables are


# How far beyond the calibrated range the network is followed, as shares of the range on either
# side. Far: a network of linear pieces goes on as straight lines, and unseen rows of heavy-tailed
# columns lie there.
MAIN_REACH = (0.05, 0.25, 1.0, 4.0, 20.0, 100.0)
# The same for grids of pairs: fewer, as every line is run with every line of the other side.
PAIR_REACH = (0.25, 2.0, 16.0, 100.0)
# The same for grids of triples: a little, and held from there on.
TRIPLE_REACH = (0.5,)
# Forward rows that the tables of single features share where features are many.
MAIN_ROWS = 2_000_000
# Fewest background rows then: averages over fewer depend on which rows were drawn.
FEWEST_BACKGROUND = 8
# Background rows that a calibration has by default; knots are saved only where these are too many.
USUAL_BACKGROUND = 32
# Most nodes of a pair's grid; two categories of very many levels are left to the residual.
MOST_PAIR_NODES = 4096
# Most nodes of a triple's grid; categories of many levels are left to the residual.
MOST_TRIPLE_NODES = 8192
# Lines that a number is taken to have in grids of pairs and triples before they are made, and the
# most nodes of these.
_USUAL_GRIDS = {2: (32, MOST_PAIR_NODES), 3: (12, MOST_TRIPLE_NODES)}
# Evenly spaced lines of a triple's side: its ends and its middle.
EVEN_LINES_OF_TRIPLES = 3
# Thresholds that any feature has at least in a grid, where the model steps and it has so many.
FEWEST_THRESHOLDS = 3
# Most thresholds of a model of steps in a feature's table: each takes two knots, which all
# background rows run through.
MOST_STEPS = 512
# Background rows of terms that run through the network row by row: every row that is explained pays
# for each.
DIRECT_BACKGROUND = 8
# Rows of a regression with such terms.
DIRECT_ROWS = 2048
# Rows on which its importance is measured.
MEASURED_DIRECTLY = 256
# Most evenly spaced lines of a number while pairs are screened: the others follow the rows.
_EVEN_SCREENED = 3
# Rows on which operations are counted: a batch, as some models do work once per batch.
COUNTED_ROWS = 8
# Operations of a forward row up to which full tables take some minutes on a laptop.
_MOST_OPERATIONS = 5_000_000


@dataclass(frozen=True)
class Effort:
    """How much of the network's time a calibration takes.

    That is, how many background rows, knots and lines it has at most.
    """

    background: int  # rows over which tables of single features are averaged
    quantiles: int  # knots of a feature that follow the rows, before refinement
    even: int  # knots that are evenly spaced
    most_knots: int  # after refinement
    pair_background: int  # rows over which grids of pairs are averaged
    pair_quantiles: int  # lines of a pair's side that follow the rows
    pair_even: int  # lines that are evenly spaced
    most_pairs: int  # that are tested
    screen_lines: int  # of a number, while all pairs are screened
    screen_background: int
    screen_budget: int  # forward rows of the screening
    triple_background: int  # rows over which grids of triples are averaged
    triple_quantiles: int  # lines of a triple's side that follow the rows
    most_triples: int  # that are put on trial; none are looked for where it is zero
    reach: tuple[float, ...] = MAIN_REACH  # how far beyond the range single features are followed
    share_of_steps: float = 1.0  # of a feature's thresholds in its table, where the model steps

    def within(self, plan: Plan) -> Effort:
        """This effort with fewer forward rows."""
        share = plan.share_of_knots
        return replace(
            self,
            background=plan.background,
            quantiles=max(int(self.quantiles * share), 3),
            even=max(int(self.even * share), 2),
            reach=self.reach if share == 1.0 else self.reach[1::3],
            share_of_steps=share,
            screen_budget=min(self.screen_budget, plan.screen),
        )

    def count_steps(self, steps: int) -> int:
        """Thresholds in a feature's table, of so many that it has."""
        return max(int(min(steps, MOST_STEPS) * self.share_of_steps), min(steps, 2))

    def shared(self, features: int) -> Effort:
        """This effort for a table of `features` features, whose own tables share forward rows."""
        rows = MAIN_ROWS // features
        fewest_knots = self.quantiles + self.even + 2 * len(MAIN_REACH)

        background = self.background
        if rows < fewest_knots * USUAL_BACKGROUND:
            affordable = max(rows // fewest_knots, FEWEST_BACKGROUND)
            background = min(background, affordable)

        knots = max(rows // min(background, USUAL_BACKGROUND), fewest_knots)
        return replace(self, background=background, most_knots=min(self.most_knots, knots))

    def coarser_triples(self) -> Effort:
        """This effort with about half of the nodes of a triple's grid."""
        return replace(self, triple_quantiles=self.triple_quantiles // 2)

    def coarser_pairs(self) -> Effort:
        """This effort with about a third of the nodes of a pair's grid."""
        return replace(
            self,
            pair_quantiles=self.pair_quantiles // 2,
            pair_even=self.pair_even // 3,
        )


# For models that answer quickly: a few hundred thousand forward rows in all.
FULL = Effort(
    background=1 << 30,  # as many as the caller asks for
    quantiles=25,  # one for every 4% of the rows
    even=9,  # heavy tails have no quantiles
    most_knots=192,  # about the points of a drawn curve
    pair_background=16,  # grids have hundreds of nodes: half of the usual rows
    pair_quantiles=20,  # with the even ones and those beyond the range, some 36 lines a side
    pair_even=10,
    most_pairs=48,  # each adds up to 32 columns to the regression, which has room for 1,000
    screen_lines=8,  # enough to see a bend; strengths need no more
    screen_background=6,  # every pair is screened, so rows are dear
    screen_budget=1_000_000,  # past it grids become coarser
    triple_background=8,  # a triple's grid has thousands of nodes
    triple_quantiles=7,  # with the even ones and those beyond the range, some 12 lines a side
    most_triples=24,  # of the 64 at most that are screened
)


# For models of many operations per row, such as large transformers: some ten thousand forward rows.
ECONOMY = Effort(
    background=8,  # the fewest that averages can do with
    quantiles=11,  # one for every 10% of the rows
    even=5,
    most_knots=24,  # little is refined
    pair_background=6,
    pair_quantiles=6,  # some 15 lines a side
    pair_even=3,
    most_pairs=12,  # grids of pairs take most of the time
    screen_lines=4,  # one more than the coarsest
    screen_background=3,
    screen_budget=20_000,
    triple_background=4,  # of triples that the caller named
    triple_quantiles=4,
    most_triples=0,  # none are looked for
)


def count_operations(represent: Represent, rows: Tensor) -> float:
    """Operations of a forward row: counted, as a clock depends on the machine."""
    with OperationCounter() as counter:
        represent(rows)
    return float(counter.total) / len(rows)


def choose_effort(operations: float, features: int) -> Effort:
    """How much of the network's time a calibration takes, by the operations of a forward row."""
    effort = FULL if operations <= _MOST_OPERATIONS else ECONOMY
    return effort.shared(features)


def first_points(domain: Domain, chunk: Chunk, effort: Effort) -> Points:
    """Points of a feature's own table before it is refined.

    Where the model steps, they are at as many of the steps as there may be.
    """
    if len(domain.steps):
        count = effort.count_steps(len(domain.steps))
        evenly = np.linspace(0, len(domain.steps) - 1, count).round().astype(int)
        return domain.step_points(chunk, domain.steps[evenly], quantiles=effort.quantiles)
    return domain.points(
        chunk,
        quantiles=effort.quantiles,
        even=effort.even,
        reach=effort.reach,
        most_values=effort.most_knots // 2,  # as many as refining gives to a number that bends
    )


def screen_points(domain: Domain, chunk: Chunk, lines: int) -> Points:
    """Points of a feature in the coarse grids on which pairs are screened."""
    even = min(lines, _EVEN_SCREENED)
    return domain.points(chunk, quantiles=lines, even=even, reach=())


def count_pair_nodes(sizes: Sequence[int]) -> int:
    """Nodes of the grids of all pairs of features; `sizes` are the features' numbers of points.

    Grids that are too large are left out.
    """
    nodes = np.triu(np.outer(sizes, sizes), 1)
    return int(nodes[nodes <= MOST_PAIR_NODES].sum())


def least_costs(
    domains: Sequence[Domain],
    chunk: Chunk,
    effort: Effort,
    *,
    background: int,
    interactions: Sequence[Subset] | int | None,
) -> Costs:
    """Forward rows that full tables of single features and screening take at least."""
    tabulated = [domain for domain in domains if domain.tabulated]
    named = interactions if isinstance(interactions, Sequence) else ()
    are_screened = interactions is None or (isinstance(interactions, int) and interactions > 0)
    if isinstance(interactions, int):
        most_pairs = interactions
    else:
        most_pairs = effort.most_pairs if interactions is None else len(named)
    sure, coarsest = _sure_grid_rows(domains, chunk, effort, background, interactions)
    coarsest_effort = effort.within(Plan(sample=0, background=1, share_of_knots=0.0, screen=0))
    return Costs(
        sample=chunk.count,
        direct_runs=_count_direct_runs(domains, named)
        * min(DIRECT_BACKGROUND, background, chunk.count),
        knots=sum(len(first_points(domain, chunk, effort)) for domain in tabulated),
        background=min(effort.background, background, chunk.count),
        screen=_screening_rows(tabulated, chunk, effort, background) if are_screened else 0,
        grids=max(
            _grid_rows(tabulated, effort, most_pairs) * min(effort.pair_background, background),
            sure,
        ),
        sure_grids=sure,
        coarsest_grids=coarsest,
        coarsest_knots=sum(
            len(first_points(domain, chunk, coarsest_effort)) + _more_of_fewer_rows(domain)
            for domain in tabulated
        )
        + 2,
        ends=2 * sum(domain.levels is None for domain in tabulated),
    )


def _sure_grid_rows(
    domains: Sequence[Domain],
    chunk: Chunk,
    effort: Effort,
    background: int,
    interactions: Sequence[Subset] | int | None,
) -> tuple[int, int]:
    """Forward rows of grids that are made whatever is found: as usual, and at their coarsest.

    Those of the interactions that were named, or of as many pairs as were asked for, which are
    taken to be the smallest.
    """
    if not interactions:
        return 0, 0
    coarsest = effort.coarser_pairs().coarser_pairs().coarser_triples()
    usual_lines = _lines_by_order(domains, chunk, effort)
    coarse_lines = _lines_by_order(domains, chunk, coarsest)
    terms: Sequence[Subset]
    if isinstance(interactions, int):
        terms = _smallest_pairs(usual_lines[2], interactions)
    else:
        terms = [term for term in interactions if has_grid(term, domains)]

    background_rows = {2: effort.pair_background, 3: effort.triple_background}
    usual = coarse = 0
    for term in terms:
        order = len(term)
        nodes = math.prod(usual_lines[order][k] for k in term)
        usual += nodes * min(background_rows[order], background)
        coarse += math.prod(coarse_lines[order][k] + _more_of_fewer_rows(domains[k]) for k in term)
    return usual, coarse


def _more_of_fewer_rows(domain: Domain) -> int:
    """Knots that fewer calibration rows add: the ends of the range are no quantiles of theirs."""
    return 0 if domain.levels is not None else 2


def _lines_by_order(
    domains: Sequence[Domain], chunk: Chunk, effort: Effort
) -> dict[int, list[int]]:
    """Lines of every feature in grids of pairs, and in those of triples; none without a table.

    Where the model steps, as many as a feature has at least.
    """
    lines: dict[int, list[int]] = {2: [], 3: []}
    for domain in domains:
        lines[2].append(
            _count_lines(domain, chunk, effort.pair_quantiles, effort.pair_even, PAIR_REACH)
        )
        lines[3].append(
            _count_lines(
                domain, chunk, effort.triple_quantiles, EVEN_LINES_OF_TRIPLES, TRIPLE_REACH
            )
        )
    return lines


def _count_lines(
    domain: Domain, chunk: Chunk, quantiles: int, even: int, reach: tuple[float, ...]
) -> int:
    """Lines of a feature in a grid."""
    if not domain.tabulated:
        return 0
    if len(domain.steps):
        few = domain.steps[:FEWEST_THRESHOLDS]
        return len(domain.step_points(chunk, few, quantiles=quantiles // 2))
    return len(domain.points(chunk, quantiles=quantiles, even=even, reach=reach))


def _smallest_pairs(lines: Sequence[int], most: int) -> list[Subset]:
    """The pairs of features with the smallest grids, `most` of them."""
    with_table = [k for k, count in enumerate(lines) if count]
    fewest_lines = sorted(with_table, key=lambda k: lines[k])[: most + 1]
    pairs: Iterable[Subset] = combinations(sorted(fewest_lines), 2)
    return sorted(pairs, key=lambda pair: lines[pair[0]] * lines[pair[1]])[:most]


def has_grid(term: Subset, domains: Sequence[Domain]) -> bool:
    """Whether a pair or triple has a grid: all features have tables, levels are not too many."""
    lines, most = _USUAL_GRIDS[len(term)]
    if not all(domains[k].tabulated for k in term):
        return False
    return math.prod(len(domains[k].levels or ()) or lines for k in term) <= most


def _grid_rows(tabulated: Sequence[Domain], effort: Effort, most_pairs: int) -> int:
    """Nodes of as many grids of pairs as are tested at most, of the usual size."""
    lines_of_numbers = effort.pair_quantiles + effort.pair_even + 2 * len(PAIR_REACH)
    sides = [len(domain.levels or ()) or lines_of_numbers for domain in tabulated]
    all_pairs = len(sides) * (len(sides) - 1) // 2
    if not all_pairs:
        return 0
    usual_nodes = min(count_pair_nodes(sides) / all_pairs, MOST_PAIR_NODES)
    return int(min(most_pairs, all_pairs) * usual_nodes)


def _count_direct_runs(domains: Sequence[Domain], named: Sequence[Subset]) -> int:
    """How often every row runs for features, and terms that were named, without a table."""
    runs = sum(1 for domain in domains if domain.columns and not domain.tabulated)
    for term in named:
        if not has_grid(term, domains):
            runs += (1 << len(term)) - 1  # once for every subset of the features but the empty one
    return runs


def _screening_rows(
    tabulated: Sequence[Domain], chunk: Chunk, effort: Effort, background: int
) -> int:
    """Forward rows of screening all pairs; none where it does not fit, and grids are coarser."""
    sizes = [len(screen_points(domain, chunk, effort.screen_lines)) for domain in tabulated]
    rows = count_pair_nodes(sizes) * min(effort.screen_background, background)
    return rows if rows <= effort.screen_budget else 0
