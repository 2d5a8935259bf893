"""All terms at once: tables over the background, the head as prior, and a correction judged on rows held out.

    f(x) ≈ base + Σ_S [ Δ̃_S(x_S) Wᵀ + Δ̃_S(x_S held at the calibrated range) δ_S ]

Δ_S is the representation of the term's features averaged over the background rows, and purified: what a pair does on
average over its partner's calibration rows belongs to the feature alone. The first part is partial dependence; δ is
fitted with a ridge, so that few rows lead back to partial dependence and not to nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from nobsp.network.inference import Operations
from nobsp.network.inputs import Subset
from nobsp.network.progress import progress_bar
from nobsp.tabular.lookup import Array, Chunk, NumberAxis, TermTable
from nobsp.tabular.regression import (
    DirectPiece,
    DirectTerm,
    Fit,
    Piece,
    Sample,
    TablePiece,
    Traces,
    occupancy,
    pure_rows,
    purify,
    read,
    solve_terms,
    transfer,
)
from nobsp.tabular.tabulate import (
    Domain,
    Points,
    Represent,
    Table,
    Tabulator,
    choose_background,
    compress,
    refine_knots,
)

# How far beyond the calibrated range the network is followed, as shares of the range on either side. Far: a network of
# linear pieces goes on as straight lines, and unseen rows of heavy-tailed columns lie there.
MAIN_REACH = (0.05, 0.25, 1.0, 4.0, 20.0, 100.0)
PAIR_REACH = (0.25, 2.0, 16.0, 100.0)
# Forward rows that the tables of single features share where these are many, and the fewest background rows then.
MAIN_ROWS, FEWEST_BACKGROUND, USUAL_BACKGROUND = 2_000_000, 8, 32
# Pairs whose spread on a coarse table is below this share of the outputs' are not put on trial.
WORTH_TRYING = 0.005
# Most nodes of a grid; two categories of very many levels are left to the residual.
MOST_NODES = 4096
# Most directions of a representation.
MAIN_RANK, PAIR_RANK = 24, 32
# Most columns of the regression: past these, factorising takes longer than all forward passes.
MOST_COLUMNS = 1000
# Most thresholds of a model of steps in a feature's table, and how many background rows tell which those are.
MOST_STEPS, FEW_ROWS = 512, 4
# Thresholds along the side of a pair's grid: on average over the features, fewest and most.
PAIR_STEPS, FEWEST_LINES, MOST_LINES = 12, 4, 28
# Background rows of terms that run through the network row by row.
DIRECT_BACKGROUND = 8


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

    def shared(self, features: int) -> Effort:
        """The same for a table of so many features, whose own tables share forward rows."""
        rows, least = MAIN_ROWS // features, self.quantiles + self.even + 2 * len(MAIN_REACH)
        background = self.background
        if rows < least * USUAL_BACKGROUND:
            background = min(background, max(rows // least, FEWEST_BACKGROUND))
        knots = max(rows // min(background, USUAL_BACKGROUND), least)
        return replace(self, background=background, most_knots=min(self.most_knots, knots))


FULL = Effort(1 << 30, 25, 9, 192, 16, 20, 10, 48, 8, 6, 1_000_000)
# For models of many operations a row, such as large transformers.
ECONOMY = Effort(8, 11, 5, 24, 6, 6, 3, 12, 4, 3, 20_000)
_MOST_OPERATIONS = 5_000_000


def count_operations(represent: Represent, inputs: Tensor) -> float:
    """Operations of a forward row: counted, as a clock depends on the machine."""
    with Operations() as counter:
        represent(inputs[:8])
    return float(counter.total) / len(inputs[:8])


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
    operations: float = 0.0,
    progress: bool = False,
) -> Terms:
    """Fits all terms; `pairs` are those to fit, how many of the strongest, or None for those that pay held out."""
    effort = (FULL if operations <= _MOST_OPERATIONS else ECONOMY).shared(len(domains))
    numbers = [
        domain.columns[0]
        for domain in domains
        if domain.reaches and domain.span and len(domain.columns) == 1
    ]
    most = len(background) if isinstance(background, Tensor) else min(background, len(sample))
    made: dict[int, Tabulator] = {}

    def tabulator(count: int) -> Tabulator:
        if (count := min(count, most)) not in made:
            rows = background if isinstance(background, Tensor) else sample.inputs
            if not isinstance(background, Tensor) or count < most:
                rows = choose_background(rows, count, numbers, represent)
            made[count] = Tabulator(represent, rows, weight, batch_size=batch_size)
        return made[count]

    tabulate = tabulator(effort.background)
    chunk, unit = sample.chunk(), sample.spread
    with progress_bar(enabled=progress, description="tabulating", unit=" terms") as bar:
        mains = {}
        for k, domain in enumerate(domains):
            if domain.tabulated:
                mains[k] = tabulate_main(tabulate, domain, chunk, unit, effort)
                bar.update()
        domains = [
            domain.limited_to(*mains[k]) if k in mains else domain
            for k, domain in enumerate(domains)
        ]
        strengths: dict[Subset, float] = {}
        named = pairs if isinstance(pairs, Sequence) else ()
        if pairs is None or isinstance(pairs, int):
            if pairs != 0:
                strengths = screen_pairs(
                    tabulator(effort.screen_background), domains, sample, effort
                )
            chosen = list(strengths)[: effort.most_pairs if pairs is None else pairs]
            grid_terms = [
                pair for pair in chosen if pairs is not None or strengths[pair] >= WORTH_TRYING
            ]
        else:
            nodes = {
                k: len(domain.levels or ()) or 32
                for k, domain in enumerate(domains)
                if domain.tabulated
            }
            two = [term for term in named if len(term) == 2 and nodes.keys() >= set(term)]
            grid_terms = [term for term in two if nodes[term[0]] * nodes[term[1]] <= MOST_NODES]
        wanted = sorted({k for pair in grid_terms for k in pair})
        steps = share_steps({k: (domains[k].steps, *mains[k]) for k in wanted}, chunk, unit)
        most_lines, even = effort.pair_quantiles, effort.pair_even
        lines = {
            k: domains[k].step_points(chunk, steps[k], quantiles=most_lines // 2)
            if k in steps
            else domains[k].points(chunk, quantiles=most_lines, even=even, reach=PAIR_REACH)
            for k in wanted
        }
        means = {k: table.mean for k, (_, table) in mains.items()}
        shares = {k: occupancy(points, chunk) for k, points in lines.items()}
        seen, count = (
            {},
            len(tabulate.background),
        )  # where on its grid lines every background row is
        for k, points in lines.items():
            rows = Chunk(domains[k].own_columns(tabulate.background), slice(0, count))
            seen[k] = torch.stack([occupancy(points, rows, row) for row in np.eye(count)])
        grids: list[Piece] = []
        traces: dict[Subset, Tensor] = {}
        for a, b in grid_terms:
            table = tabulator(effort.pair_background)((lines[a], lines[b]))
            pure = purify(table.mean, shares[a], shares[b])
            # What the background's own rows make of the pair on average is not the feature's: it is taken out.
            means[a] = means[a] - transfer(
                lines[a], torch.einsum("ijw,j->iw", pure, seen[b].mean(0)), mains[a][0]
            )
            means[b] = means[b] - transfer(
                lines[b], torch.einsum("ijw,i->jw", pure, seen[a].mean(0)), mains[b][0]
            )
            flat = pure.flatten(0, 1)
            basis = compress(flat, shares[a].outer(shares[b]).flatten(), most=PAIR_RANK)
            grids.append(TablePiece((a, b), (lines[a], lines[b]), flat @ weight, flat @ basis))
            traces[a, b] = table.outputs
            bar.update()
    pieces: list[Piece] = []
    for k, domain in enumerate(domains):
        if domain.tabulated:
            points = mains[k][0]
            share = occupancy(points, chunk)
            mean = means[k] - share @ means[k]
            basis = compress(mean, share, most=MAIN_RANK)
            pieces.append(TablePiece((k,), (points,), mean @ weight, mean @ basis))
        elif domain.columns:
            pieces.append(_direct_piece((k,), domains, sample, tabulator(DIRECT_BACKGROUND)))
        else:
            nothing = torch.zeros(1, weight.shape[1], dtype=torch.float64)
            pieces.append(TablePiece((k,), (), nothing, nothing[:, :0]))
    pieces += grids
    without = [term for term in named if term not in traces]
    pieces += [
        _direct_piece(term, domains, sample, tabulator(DIRECT_BACKGROUND)) for term in without
    ]
    pieces = _strongest_columns(pieces, sample)
    fit = solve_terms(sample, pieces, domains, ridge=ridge, choose=pairs is None)
    kept = {piece.term for piece in fit.pieces}
    return Terms(
        fit=fit,
        traces=Traces(
            {k: (points, table.outputs) for k, (points, table) in mains.items()},
            {k: (lines[k], seen[k]) for k in lines},
            {pair: outputs for pair, outputs in traces.items() if pair in kept},
        ),
        strengths=strengths,
        forward_rows=sum(each.forward_rows for each in made.values()),
        economy=effort.most_knots < FULL.most_knots,
        thresholds={
            k: (min(len(d.steps), MOST_STEPS), len(d.steps))
            for k, d in enumerate(domains)
            if len(d.steps)
        },
        offsets={
            k: occupancy(points, chunk) @ table.mean @ weight
            for k, (points, table) in mains.items()
        },
        background=tabulate.background,
    )


def tabulate_main(
    tabulate: Tabulator, domain: Domain, chunk: Chunk, unit: Tensor, effort: Effort
) -> tuple[Points, Table]:
    """A feature's own table; knots are added where it bends, or stand where the model steps."""
    if len(domain.steps):
        steps = domain.steps
        if len(steps) > MOST_STEPS:
            few = tabulate.with_rows(FEW_ROWS)
            every = domain.step_points(chunk, steps, quantiles=0)
            sizes = step_sizes(steps, every, few([every]), chunk, unit)
            steps = steps[np.sort(np.argsort(-sizes, kind="stable")[:MOST_STEPS])]
            tabulate.forward_rows += few.forward_rows
        points = domain.step_points(chunk, steps, quantiles=effort.quantiles)
        return points, tabulate([points])
    first = domain.points(chunk, quantiles=effort.quantiles, even=effort.even, reach=MAIN_REACH)
    if not isinstance(first.axis, NumberAxis) or not domain.reaches:
        return first, tabulate([first])
    return refine_knots(tabulate, domain, first, chunk, unit=unit, most=effort.most_knots)


def step_sizes(
    steps: Array, points: Points, table: Table, chunk: Chunk, unit: Tensor, *, apart: bool = False
) -> Array:
    """Per threshold the variance that its step makes over the rows and the background, in units of the outputs'."""
    assert isinstance(points.axis, NumberAxis)
    knots, x = points.axis.knots, chunk.numbers(points.axis.column)
    below = np.clip(np.searchsorted(knots, steps[:, 0]), 0, len(knots) - 2)
    there = (knots[below] == steps[:, 0]) & (knots[below + 1] == steps[:, 1])
    jump = (table.outputs[:, below + 1] - table.outputs[:, below]).double() / unit
    square = jump.var(0, correction=0) if apart else jump.square().mean(0)
    share = np.searchsorted(np.sort(x[np.isfinite(x)]), steps[:, 1]) / max(len(x), 1)
    # Thresholds beyond the calibrated range count a little, so that they are not forgotten.
    sizes: Array = square.sum(1).numpy() * (share * (1 - share) + 1e-6) * there
    return sizes


def share_steps(
    features: Mapping[int, tuple[Array, Points, Table]], chunk: Chunk, unit: Tensor
) -> dict[int, Array]:
    """Thresholds that grids of pairs have, by feature: most where interactions step most."""
    sizes = {
        k: step_sizes(*given, chunk, unit, apart=True)
        for k, given in features.items()
        if len(given[0])
    }
    if not sizes:
        return {}
    every = np.sort(
        np.concatenate([np.sort(size)[::-1][FEWEST_LINES:] for size in sizes.values()])
    )[::-1]
    room = max(
        PAIR_STEPS * len(sizes) - sum(min(len(size), FEWEST_LINES) for size in sizes.values()), 0
    )
    least = every[room] if room < len(every) else -1.0
    found = {}
    for k, size in sizes.items():
        count = min(max(int((size > least).sum()), FEWEST_LINES), MOST_LINES)
        found[k] = features[k][0][np.sort(np.argsort(-size, kind="stable")[:count])]
    return found


def screen_pairs(
    tabulate: Tabulator, domains: Sequence[Domain], sample: Sample, effort: Effort
) -> dict[Subset, float]:
    """Every pair's strength, strongest first, read off coarse tables; of the output in which it is largest."""
    few = sample.some()
    chunk, spread, lines = few.chunk(), sample.spread, effort.screen_lines
    features, ordered = [k for k, domain in enumerate(domains) if domain.tabulated], False
    while True:
        points = {
            k: domains[k].points(chunk, quantiles=lines, even=min(lines, 3), reach=())
            for k in features
        }
        sizes = {k: len(points[k]) for k in features}
        grids = np.triu(np.outer(list(sizes.values()), list(sizes.values())), 1)
        nodes = int(grids[grids <= MOST_NODES].sum())
        if nodes * len(tabulate.background) <= effort.screen_budget or len(features) <= 2:
            break
        if lines > 3:
            lines -= 1
        else:  # too many pairs for the coarsest grids: those of the features that act most
            features = (
                features if ordered else _strongest_features(tabulate, domains, few, features)
            )
            features, ordered = features[: max(int(len(features) * 0.7), 2)], True
    pairs = [
        pair
        for pair in combinations(sorted(features), 2)
        if sizes[pair[0]] * sizes[pair[1]] <= MOST_NODES
    ]
    shares = {k: occupancy(points[k], chunk) for k in features}
    strengths = {}
    for a, b in pairs:
        pure = purify(
            tabulate([points[a], points[b]]).outputs.mean(0).double(), shares[a], shares[b]
        )
        effect = read(TermTable((a, b), (points[a].axis, points[b].axis), pure.numpy()), chunk)
        strengths[a, b] = float((effect.std(0, correction=0) / spread).max())
    return dict(sorted(strengths.items(), key=lambda item: (-item[1], item[0])))


def _strongest_features(
    tabulate: Tabulator, domains: Sequence[Domain], sample: Sample, features: Sequence[int]
) -> list[int]:
    """Features by how much the outputs move when one row's value is given to another."""
    rows = sample.inputs[:64]
    before = tabulate.run(rows) @ tabulate.weight
    effects = {}
    for k in features:
        moved, columns = rows.clone(), list(domains[k].columns)
        moved[:, columns] = rows.roll(1, 0)[:, columns]
        after = tabulate.run(moved) @ tabulate.weight
        effects[k] = float(((after - before) / sample.spread).square().nan_to_num(nan=0.0).mean())
    return sorted(features, key=lambda k: -effects[k])


def _direct_piece(
    term: Subset, domains: Sequence[Domain], sample: Sample, tabulate: Tabulator
) -> DirectPiece:
    """A term without a table."""
    columns = tuple(domains[k].columns for k in term)
    pure = pure_rows(tabulate, columns, sample.some().inputs)
    tabulate.require_answers(pure, " and ".join(domains[k].feature.name for k in term))
    rows = sample.inputs.double()
    basis = compress(
        pure - pure.mean(0), torch.full_like(pure[:, 0], 1 / len(pure)), most=MAIN_RANK
    )
    return DirectPiece(term, columns, tabulate, basis, (rows.amin(0), rows.amax(0)))


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
