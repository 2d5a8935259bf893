"""How much of the network's time a calibration takes: forward rows are planned, counted, limited and announced."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from nobsp.network.guest import Operations
from nobsp.network.inputs import Subset
from nobsp.tabular.features import Domain, Points
from nobsp.tabular.lookup import Chunk

Represent = Callable[[Tensor], Tensor]

logger = logging.getLogger("nobsp")

# Rows that finding the head takes: calls of a few rows, and some of the whole probe.
PROBING_ROWS = 128
PROBING_CALLS = 6
# Share of a limit that the rows used for finding the head may have.
_PROBE_SHARE = 0.01
FEWEST_PROBE_ROWS = 16
# Shares of what is left when full tables do not fit: of the calibration rows, then of single features and of screening.
_SAMPLE_SHARE = 0.25
_MAINS_SHARE = 0.5
_SCREEN_SHARE = 0.2
# Grids of pairs leave some rows for knots where single features bend.
PAIRS_SHARE = 0.8
# Fewer background rows than this tell little: after that, knots are saved.
FEWEST_LIMITED_BACKGROUND = 4
# Seconds of a calibration that are announced before it goes on.
_LONG = 60.0


class BudgetSpentError(RuntimeError):
    """More forward rows would be needed than are left."""


@dataclass(eq=False)
class Meter:
    """Counts forward rows, and stops before there are more than the limit."""

    limit: int | None = None
    spent: int = 0
    # of the fastest call so far: the first ones load what the model needs, and other work may get in between
    seconds_per_row: float = float("inf")
    reserved: int = 0  # rows that terms without tables will need
    reduced: bool = False  # whether tables are coarser than they would be without a limit

    @property
    def left(self) -> float:
        """Rows that may still run."""
        return float("inf") if self.limit is None else self.limit - self.spent - self.reserved

    def spend(self, rows: int) -> None:
        """Counts rows before they are answered for; an error where they are too many."""
        if rows > self.left:
            self.reduced = True
            raise BudgetSpentError(f"{rows} rows, but {self.left} are left")
        self.spent += rows

    def count(self, represent: Represent) -> Represent:
        """The same function of rows, counted."""

        def counted(rows: Tensor) -> Tensor:
            self.spend(len(rows))
            start = time.perf_counter()
            answers = represent(rows)
            seconds = time.perf_counter() - start
            self.seconds_per_row = min(self.seconds_per_row, seconds / max(len(rows), 1))
            return answers

        return counted


def probe_rows(limit: int | None, available: int) -> int:
    """How many rows find the head."""
    if limit is None:
        return available
    return min(available, max(int(limit * _PROBE_SHARE), FEWEST_PROBE_ROWS))


def probing_cost(rows: int) -> int:
    """Forward rows that finding the head takes at most."""
    return PROBING_ROWS + PROBING_CALLS * rows


@dataclass(frozen=True)
class Costs:
    """Forward rows that a calibration takes at least."""

    sample: int  # the calibration rows themselves
    direct: int  # terms that run through the model row by row
    knots: int  # of all features, before refinement
    background: int  # rows that each knot is averaged over
    screen: int  # of all pairs

    @property
    def total(self) -> int:
        """All of them."""
        return self.sample + self.direct + self.knots * self.background + self.screen


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
    rows = int(left * _SAMPLE_SHARE)
    per_row = 1 + costs.direct / max(costs.sample, 1)
    sample = max(min(costs.sample, int(rows / per_row)), 2)
    rest = left - sample * per_row
    for_mains = rest * (_MAINS_SHARE if costs.screen else 1.0)
    background = int(for_mains // max(costs.knots, 1))
    background = min(
        max(background, min(FEWEST_LIMITED_BACKGROUND, costs.background)), costs.background
    )
    share = min(for_mains / max(costs.knots * background, 1), 1.0)
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


def announcement(rows: float, seconds_per_row: float, *, least_seconds: float = _LONG) -> str:
    """How long so many forward rows will take, in words; empty where that is not long."""
    seconds = rows * seconds_per_row
    if seconds <= least_seconds:
        return ""
    duration = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    return (
        f"calibrating takes about {duration}: some {rows:,.0f} forward rows at "
        f"{1000 * seconds_per_row:.3g} ms each. NObSP(model, max_forward_rows=...) limits them."
    )


def announce(rows: float, seconds_per_row: float) -> None:
    """Says on the package's logger, which prints it on stderr by default, when a calibration will take long."""
    message = announcement(rows, seconds_per_row)
    if message:
        logger.warning(message)


# ---------------------------------------------------------------------- how fine tables are


# How far beyond the calibrated range the network is followed, as shares of the range on either side. Far: a network of
# linear pieces goes on as straight lines, and unseen rows of heavy-tailed columns lie there.
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
# Most thresholds of a model of steps in a feature's table: each takes two knots, which all background rows run through.
MOST_STEPS = 512
# Background rows of terms that run through the network row by row: every row that is explained pays for each.
DIRECT_BACKGROUND = 8
# Rows that tell the directions in which such a term varies.
SOME_ROWS = 512
# Rows of a regression with such terms.
DIRECT_ROWS = 2048
# Rows on which its importance is measured.
MEASURED_DIRECTLY = 256
# Most evenly spaced lines of a number while pairs are screened: the others follow the rows.
_EVEN_SCREENED = 3
# Rows on which operations are counted: a batch, as some models do work once per batch.
_COUNTED_ROWS = 8
# Operations of a forward row up to which full tables take some minutes on a laptop.
_MOST_OPERATIONS = 5_000_000


@dataclass(frozen=True)
class Effort:
    """How much of the network's time a calibration takes: rows of the background, knots and lines at most."""

    background: int  # rows over which tables of single features are averaged
    quantiles: int  # knots of a feature that follow the rows, before refinement
    even: int  # knots that are evenly spaced
    most_knots: int  # after refinement
    pair_background: int  # rows over which grids of pairs are averaged
    pair_quantiles: int  # lines of a pair's side that follow the rows
    pair_even: int  # lines that are evenly spaced
    most_pairs: int  # that are put on trial
    screen_lines: int  # of a number, while all pairs are screened
    screen_background: int
    screen_budget: int  # forward rows meanwhile
    triple_background: int  # rows over which grids of triples are averaged
    triple_quantiles: int  # lines of a triple's side that follow the rows
    most_triples: int  # that are put on trial; none are looked for where it is zero
    reach: tuple[float, ...] = MAIN_REACH  # how far beyond the range single features are followed

    def within(self, plan: Plan) -> Effort:
        """The same with fewer forward rows."""
        share = plan.share_of_knots
        return replace(
            self,
            background=plan.background,
            quantiles=max(int(self.quantiles * share), 3),
            even=max(int(self.even * share), 2),
            reach=self.reach if share == 1.0 else self.reach[1::3],
            screen_budget=min(self.screen_budget, plan.screen),
        )

    def shared(self, features: int) -> Effort:
        """The same for a table of so many features, whose own tables share forward rows."""
        rows = MAIN_ROWS // features
        fewest_knots = self.quantiles + self.even + 2 * len(MAIN_REACH)

        background = self.background
        if rows < fewest_knots * USUAL_BACKGROUND:
            affordable = max(rows // fewest_knots, FEWEST_BACKGROUND)
            background = min(background, affordable)

        knots = max(rows // min(background, USUAL_BACKGROUND), fewest_knots)
        return replace(self, background=background, most_knots=min(self.most_knots, knots))

    def coarser_pairs(self) -> Effort:
        """The same with about a third of the nodes of a pair's grid."""
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
    pair_quantiles=20,  # with the even ones and those beyond the range, some 30 lines a side
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
    pair_quantiles=6,  # some 10 lines a side
    pair_even=3,
    most_pairs=12,  # grids of pairs take most of the time
    screen_lines=4,  # one more than the coarsest
    screen_background=3,
    screen_budget=20_000,
    triple_background=4,  # of triples that the caller named
    triple_quantiles=4,
    most_triples=0,  # none are looked for
)


def count_operations(represent: Represent, inputs: Tensor) -> float:
    """Operations of a forward row: counted, as a clock depends on the machine."""
    rows = inputs[:_COUNTED_ROWS]
    with Operations() as counter:
        represent(rows)
    return float(counter.total) / len(rows)


def choose_effort(operations: float, features: int) -> Effort:
    """How much of the network's time a calibration takes, by the operations of a forward row."""
    effort = FULL if operations <= _MOST_OPERATIONS else ECONOMY
    return effort.shared(features)


def first_points(domain: Domain, chunk: Chunk, effort: Effort) -> Points:
    """Points of a feature's own table before it is refined; of steps those of as many as there may be."""
    if len(domain.steps):
        return domain.step_points(chunk, domain.steps[:MOST_STEPS], quantiles=effort.quantiles)
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
    """Nodes of the grids of all pairs of features with so many points each, too large ones left out."""
    nodes = np.triu(np.outer(sizes, sizes), 1)
    return int(nodes[nodes <= MOST_PAIR_NODES].sum())


def least_costs(
    domains: Sequence[Domain],
    chunk: Chunk,
    effort: Effort,
    *,
    background: int,
    pairs: Sequence[Subset] | int | None,
) -> Costs:
    """Forward rows that full tables of single features and screening take at least."""
    tabulated = [domain for domain in domains if domain.tabulated]
    named = pairs if isinstance(pairs, Sequence) else ()
    are_screened = pairs is None or (isinstance(pairs, int) and pairs > 0)
    return Costs(
        sample=chunk.count,
        direct=direct_rows(_count_direct_runs(domains, named), chunk.count, background=background),
        knots=sum(len(first_points(domain, chunk, effort)) for domain in tabulated),
        background=min(effort.background, background, chunk.count),
        screen=_screening_rows(tabulated, chunk, effort, background) if are_screened else 0,
    )


def _count_direct_runs(domains: Sequence[Domain], named: Sequence[Subset]) -> int:
    """How often every row runs for features, and terms that were named, without a table."""
    runs = sum(1 for domain in domains if domain.columns and not domain.tabulated)
    with_table = {k for k, domain in enumerate(domains) if domain.tabulated}
    for term in named:
        if not with_table >= set(term):
            runs += (1 << len(term)) - 1  # once for every subset of the features but the empty one
    return runs


def _screening_rows(
    tabulated: Sequence[Domain], chunk: Chunk, effort: Effort, background: int
) -> int:
    """Forward rows of screening all pairs; none where it does not fit, and grids are coarser."""
    sizes = [len(screen_points(domain, chunk, effort.screen_lines)) for domain in tabulated]
    rows = count_pair_nodes(sizes) * min(effort.screen_background, background)
    return rows if rows <= effort.screen_budget else 0


def direct_rows(terms: int, rows: int, *, background: int) -> int:
    """Forward rows of terms without a table: for their directions, the regression, and importances."""
    per_background_row = (
        min(rows, SOME_ROWS) + min(rows, DIRECT_ROWS) + min(rows, MEASURED_DIRECTLY)
    )
    return terms * min(DIRECT_BACKGROUND, background, rows) * per_background_row
