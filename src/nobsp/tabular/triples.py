"""Terms of three features: which of them are put on trial, and their grids.

A product of three features has no pairs, so strong pairs do not lead to it. What does is how much the grid of a pair
*differs from one background row to another*: the third feature is among what differs. Triples whose three pairs all
differ are tabulated coarsely, ranked by how much of what pairs leave unexplained each explains, and the best of them
are tabulated finely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.tabular.answers import UnansweredError
from nobsp.tabular.grids import Grid, Lines, Main, count_nodes
from nobsp.tabular.lookup import Array, Chunk, TermTable
from nobsp.tabular.purification import read
from nobsp.tabular.regression import Fit, Trial
from nobsp.tabular.steps import TRIPLE_ROOM, Steps, share_steps
from nobsp.tabular.tabulate import Domain, Points, Tabulator

# Unexplained share of the variance on held-out rows from which triples are looked for.
LOOKED_FOR = 0.01
# Most nodes of a triple's grid; categories of many levels are left to the residual.
MOST_NODES = 8192
# Beyond the range a triple's grid is followed a little, and then held.
REACH = (0.5,)
# Pairs that differ most between background rows, among which triples are looked for.
MOST_VARYING = 200
# Triples that are tabulated coarsely, and lines along a side of their grids.
MOST_SCREENED = 64
SCREENED_LINES = 5


@dataclass(frozen=True)
class Worth:
    """What a triple must bring."""

    trying: float  # share of an output's variance that its coarse grid explains
    least_relative_gain: float  # share of what is unexplained on held-out rows
    least_gain: float  # share of the outputs' variance on held-out rows


# A network has a little of every triple, from its noise: only those that matter are shown.
SMOOTH = Worth(trying=3e-4, least_relative_gain=0.02, least_gain=2e-3)
# Trees make triples on purpose, and many: deeper trees are sums of small ones.
STEPPED = Worth(trying=0.0, least_relative_gain=0.001, least_gain=2e-5)


def worth_of(domains: Sequence[Domain]) -> Worth:
    """What triples of a model must bring."""
    return STEPPED if any(len(domain.steps) for domain in domains) else SMOOTH


def trial_of(triples: Sequence[Grid], worth: Worth) -> Trial:
    """Triples that must pay on rows held out."""
    return Trial(
        terms=tuple(grid.term for grid in triples),
        least_relative_gain=worth.least_relative_gain,
        least_gain=worth.least_gain,
    )


def are_worth_looking_for(fit: Fit) -> bool:
    """Whether pairs leave more unexplained than they should, on average over the outputs that vary."""
    unexplained = 1 - fit.explained[torch.isfinite(fit.explained)]
    return bool(len(unexplained)) and float(unexplained.mean()) > LOOKED_FOR


def likely_triples(varying: Mapping[Subset, float], sizes: Mapping[int, int]) -> list[Subset]:
    """Triples whose pairs all differ from background row to background row, most first."""
    strongest = sorted(varying, key=lambda pair: (-varying[pair], pair))[:MOST_VARYING]
    differs = {pair: varying[pair] for pair in strongest}
    scores: dict[Subset, float] = {}
    for a, b in strongest:
        for c in sizes:
            term = tuple(sorted({a, b, c}))
            if len(term) < 3 or term in scores:
                continue
            pairs = list(combinations(term, 2))
            if (
                all(pair in differs for pair in pairs)
                and np.prod([sizes[k] for k in term]) <= MOST_NODES
            ):
                scores[term] = min(differs[pair] for pair in pairs)
    return sorted(scores, key=lambda term: (-scores[term], term))


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
            points[k] = domains[k].points(chunk, quantiles=quantiles, even=3, reach=REACH)
    return Lines.of(points, chunk)


def screen_triples(
    tabulate: Tabulator,
    domains: Sequence[Domain],
    varying: Mapping[Subset, float],
    fit: Fit,
    *,
    most: int,
) -> list[Subset]:
    """The triples that explain most of what a fit without them leaves, judged by coarse grids."""
    few = fit.sample.some()
    chunk = few.chunk()
    features = sorted({k for pair in varying for k in pair})
    points: dict[int, Points] = {
        k: domains[k].points(chunk, quantiles=SCREENED_LINES, even=2, reach=()) for k in features
    }
    lines = Lines.of(points, chunk)
    sizes = {k: len(line) for k, line in points.items()}
    candidates = likely_triples(varying, sizes)[:MOST_SCREENED]

    rows = fit.sample.chunk()
    residuals = fit.held_out.chosen()
    variance = fit.sample.spread.square()
    gains = {}
    for term in candidates:
        try:
            grid = Grid.tabulate(tabulate, term, lines)
        except UnansweredError:  # the model takes no such combination
            continue
        effect = read(_table(grid, tabulate.weight), rows)
        gains[term] = float((explained_variance(effect, residuals) / variance).max())
    least = worth_of(domains).trying
    worth = [term for term in gains if gains[term] >= least]
    return sorted(worth, key=lambda term: (-gains[term], term))[:most]


def explained_variance(effect: Tensor, residuals: Tensor) -> Tensor:
    """Variance of residuals that a multiple of an effect explains, per output."""
    centred = effect - effect.mean(0)
    covariance = (centred * (residuals - residuals.mean(0))).mean(0)
    spread = centred.square().mean(0)
    gain = covariance.square() / spread.clamp_min(1e-300)
    return torch.where((spread > 0) & (covariance > 0), gain, 0.0)


def _table(grid: Grid, weight: Tensor) -> TermTable:
    """The head's share of a grid."""
    axes = tuple(points.axis for points in grid.points)
    values: Array = (grid.pure @ weight).numpy()
    return TermTable(grid.term, axes, values)


def fits_in_memory(term: Subset, lines: Mapping[int, Points]) -> bool:
    """Whether a triple's grid is small enough to be tabulated."""
    return count_nodes(lines, term) <= MOST_NODES
