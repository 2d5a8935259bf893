"""How much of the network's time a calibration takes: background rows, knots and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from nobsp.network.inference import Operations
from nobsp.network.inputs import Subset
from nobsp.tabular.budget import Costs, Plan
from nobsp.tabular.correction import DIRECT_ROWS
from nobsp.tabular.features import Domain, Points
from nobsp.tabular.grids import Represent
from nobsp.tabular.lookup import Chunk

# How far beyond the calibrated range the network is followed, as shares of the range on either side. Far: a network of
# linear pieces goes on as straight lines, and unseen rows of heavy-tailed columns lie there.
MAIN_REACH = (0.05, 0.25, 1.0, 4.0, 20.0, 100.0)


PAIR_REACH = (0.25, 2.0, 16.0, 100.0)


# Forward rows that the tables of single features share where features are many.
MAIN_ROWS = 2_000_000
# Fewest background rows then: averages over fewer depend on which rows were drawn.
FEWEST_BACKGROUND = 8
# Background rows that a calibration has by default; knots are saved only where these are too many.
USUAL_BACKGROUND = 32


# Most nodes of a grid; two categories of very many levels are left to the residual.
MOST_PAIR_NODES = 4096


# Most thresholds of a model of steps in a feature's table: each takes two knots, which all background rows run through.
MOST_STEPS = 512


# Background rows of terms that run through the network row by row.
DIRECT_BACKGROUND = 8


# Rows that tell the directions of such a term, and those on which its importance is measured.
SOME_ROWS = 512


MEASURED_DIRECTLY = 256


@dataclass(frozen=True)
class Effort:
    """How much of the network's time a calibration takes: rows of the background, knots and lines at most."""

    background: int
    quantiles: int  # knots of a feature that follow the rows, before refinement
    even: int  # knots that are evenly spaced
    most_knots: int
    pair_background: int
    pair_quantiles: int
    pair_even: int
    most_pairs: int
    screen_lines: int  # of a number, while all pairs are screened
    screen_background: int
    screen_budget: int  # forward rows meanwhile
    triple_background: int
    triple_quantiles: int
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
        rows, least = MAIN_ROWS // features, self.quantiles + self.even + 2 * len(MAIN_REACH)
        background = self.background
        if rows < least * USUAL_BACKGROUND:
            background = min(background, max(rows // least, FEWEST_BACKGROUND))
        knots = max(rows // min(background, USUAL_BACKGROUND), least)
        return replace(self, background=background, most_knots=min(self.most_knots, knots))


FULL = Effort(
    background=1 << 30,
    quantiles=25,
    even=9,
    most_knots=192,
    pair_background=16,
    pair_quantiles=20,
    pair_even=10,
    most_pairs=48,
    screen_lines=8,
    screen_background=6,
    screen_budget=1_000_000,
    triple_background=8,
    triple_quantiles=7,
    most_triples=24,
)


# For models of many operations a row, such as large transformers.
ECONOMY = Effort(
    background=8,
    quantiles=11,
    even=5,
    most_knots=24,
    pair_background=6,
    pair_quantiles=6,
    pair_even=3,
    most_pairs=12,
    screen_lines=4,
    screen_background=3,
    screen_budget=20_000,
    triple_background=4,
    triple_quantiles=4,
    most_triples=0,
)


_MOST_OPERATIONS = 5_000_000


def count_operations(represent: Represent, inputs: Tensor) -> float:
    """Operations of a forward row: counted, as a clock depends on the machine."""
    with Operations() as counter:
        represent(inputs[:8])
    return float(counter.total) / len(inputs[:8])


def choose_effort(operations: float, features: int) -> Effort:
    """How much of the network's time a calibration takes, by the operations of a forward row."""
    return (FULL if operations <= _MOST_OPERATIONS else ECONOMY).shared(features)


def first_points(domain: Domain, chunk: Chunk, effort: Effort) -> Points:
    """Points of a feature's own table before it is refined; of steps those of as many as there may be."""
    if len(domain.steps):
        return domain.step_points(chunk, domain.steps[:MOST_STEPS], quantiles=effort.quantiles)
    return domain.points(chunk, quantiles=effort.quantiles, even=effort.even, reach=effort.reach)


def least_costs(
    domains: Sequence[Domain],
    chunk: Chunk,
    effort: Effort,
    *,
    background: int,
    pairs: Sequence[Subset] | int | None,
) -> Costs:
    """Forward rows that full tables of single features and screening take at least."""
    rows = chunk.count
    tabulated = [domain for domain in domains if domain.tabulated]
    direct = sum(1 for domain in domains if domain.columns and not domain.tabulated)
    if isinstance(pairs, Sequence):
        with_table = {k for k, domain in enumerate(domains) if domain.tabulated}
        direct += sum((1 << len(term)) - 1 for term in pairs if not with_table >= set(term))
    knots = sum(len(first_points(domain, chunk, effort)) for domain in tabulated)
    screen = 0
    if pairs is None or (isinstance(pairs, int) and pairs > 0):
        lines = effort.screen_lines
        sizes = [
            len(domain.points(chunk, quantiles=lines, even=min(lines, 3), reach=()))
            for domain in tabulated
        ]
        grids = np.triu(np.outer(sizes, sizes), 1)
        screen = int(grids[grids <= MOST_PAIR_NODES].sum()) * min(
            effort.screen_background, background
        )
        screen = screen if screen <= effort.screen_budget else 0
    return Costs(
        sample=rows,
        direct=direct_rows(direct, rows, background=background),
        knots=knots,
        background=min(effort.background, background, rows),
        screen=screen,
    )


def direct_rows(terms: int, rows: int, *, background: int) -> int:
    """Forward rows of terms without a table: for their directions, the regression, and importances."""
    each = min(rows, SOME_ROWS) + min(rows, DIRECT_ROWS) + min(rows, MEASURED_DIRECTLY)
    return terms * min(DIRECT_BACKGROUND, background, rows) * each
