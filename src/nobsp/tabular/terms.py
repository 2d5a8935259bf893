"""All terms at once: tables over the background, the head as prior, and a correction judged on rows held out.

    f(x) ≈ base + Σ_S [ Δ̃_S(x_S) Wᵀ + Δ̃_S(x_S held at the calibrated range) δ_S ]

Δ_S is the representation of the term's features averaged over the background rows, and purified: what a pair does on
average over its partner's calibration rows belongs to the feature alone. The first part is partial dependence; δ is
fitted with a ridge, so that few rows lead back to partial dependence and not to nonsense.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from nobsp.network.inference import Operations
from nobsp.network.inputs import Subset
from nobsp.tabular.correction import ALPHAS, FOLDS, Correction, HeldOut, Rows, fit_correction, judge
from nobsp.tabular.domains import Domain
from nobsp.tabular.lookup import Chunk, NumberAxis, TermTable
from nobsp.tabular.pieces import (
    DirectPiece,
    DirectTerm,
    Piece,
    Sample,
    TablePiece,
    occupancy,
    pure_rows,
    purify,
    read,
    transfer,
)
from nobsp.tabular.tabulate import (
    FEW_VALUES,
    Array,
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
# Pairs whose spread on a coarse table is below this share of the outputs' are not put on trial.
WORTH_TRYING = 0.005
# A fitted pair below this share of every output's spread is left out.
WORTH_FITTING = 0.005
# Every pair must lower what is unexplained on held-out rows by this share of it, and by this share of the outputs'
# variance: where features go along with each other, pairs that explain next to nothing bend the main curves.
WORTH_KEEPING, WORTH_A_TERM = 0.005, 1e-4
# Unexplained share of the variance on held-out rows at which no further pairs are put in: where features go along with
# each other, a network's smallest interactions bend the main curves by more than they explain.
ENOUGH = 0.005
# Up to so many rows all folds judge how many pairs are put in; of more two are enough.
ALL_FOLDS = 1000
# Most nodes of a grid; two categories of very many levels are left to the residual.
MOST_NODES = 4096
# Directions of a representation whose variance is below this share of the strongest are left to the prior.
TOLERANCE, MAIN_RANK, PAIR_RANK = 1e-6, 24, 32
# Most columns of the regression: past these, factorising takes longer than all forward passes.
MOST_COLUMNS = 1000
# Most numbers of the regression held at once, and the fewest rows all the same.
MOST_NUMBERS, FEWEST_ROWS = 20_000_000, 4096
# Most thresholds of a model of steps in a feature's table, and how many background rows tell which those are.
MOST_STEPS, FEW_ROWS = 512, 4
# Thresholds along the side of a pair's grid: on average over the features, fewest and most.
PAIR_STEPS, FEWEST_LINES, MOST_LINES = 12, 4, 28
# Rows and background rows of terms that run through the network row by row.
DIRECT_ROWS, DIRECT_BACKGROUND = 2048, 8


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


FULL = Effort(1 << 30, 25, 9, 192, 16, 20, 10, 48, 8, 6, 1_000_000)
# For models of many operations a row, such as large transformers.
ECONOMY = Effort(8, 11, 5, 24, 6, 6, 3, 12, 4, 3, 20_000)
_MOST_OPERATIONS = 5_000_000


def choose_effort(represent: Represent, inputs: Tensor) -> Effort:
    """Full, or economy where a forward row takes many operations: counted, as a clock depends on the machine."""
    probe = inputs[:8]
    with Operations() as counter:
        represent(probe)
    return FULL if counter.total <= _MOST_OPERATIONS * len(probe) else ECONOMY


@dataclass(frozen=True, eq=False)
class Traces:
    """What the background rows give one by one, from which bands are made."""

    mains: dict[int, tuple[Points, Tensor]]  # per feature its points, and outputs (background, points, outputs)
    lines: dict[int, tuple[Points, Tensor]]  # grid lines, and where on them the background is (background, points)
    grids: dict[Subset, Tensor]  # outputs (background of pairs, points, points, outputs)


@dataclass(frozen=True, eq=False)
class Terms:
    """Fitted terms."""

    tables: tuple[TermTable, ...]  # single features first
    direct: tuple[DirectTerm, ...]
    base: Tensor
    alphas: Tensor
    strengths: dict[Subset, float]  # per pair the spread that only both together make, as a share of the output's
    explained: Tensor  # on rows held out, per output
    inside: Tensor  # the same on rows inside the range of the rows fitted on
    outside_rows: float
    columns: int
    rows: int
    forward_rows: int
    economy: bool  # whether the model takes too many operations a row for full tables
    thresholds: dict[int, tuple[int, int]]  # of a feature's steps: those in its table, and all
    offsets: dict[int, Tensor]  # what a feature's prior part is measured from; for levels that were not seen
    background: Tensor
    fit: Fit


@dataclass(frozen=True, eq=False)
class Fit:
    """The regression behind fitted terms, as long as the rows are in memory."""

    sample: Sample
    pieces: tuple[Piece, ...]
    rows: Rows
    held_out: HeldOut
    correction: Correction
    alphas: tuple[float, ...]
    traces: Traces


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
    progress: bool = False,
) -> Terms:
    """Fits all terms; `pairs` are those to fit, how many of the strongest, or None for those that pay held out."""
    effort = choose_effort(represent, sample.inputs)
    numbers = [domain.columns[0] for domain in domains if domain.reaches and domain.span and len(domain.columns) == 1]

    most = len(background) if isinstance(background, Tensor) else min(background, len(sample))
    made: dict[int, Tabulator] = {}

    def tabulator(count: int) -> Tabulator:
        if (count := min(count, most)) not in made:
            rows = background if isinstance(background, Tensor) else sample.inputs
            if not isinstance(background, Tensor) or count < most:
                rows = choose_background(rows, count, numbers)
            made[count] = Tabulator(represent, rows, weight, batch_size=batch_size)
        return made[count]

    tabulate = tabulator(effort.background)
    chunk, unit = sample.chunk(), _unit(sample.outputs)
    with tqdm(desc="tabulating", unit=" terms", disable=not progress) as bar:
        mains = {}
        for k, domain in enumerate(domains):
            if domain.tabulated:
                mains[k] = tabulate_main(tabulate, domain, sample, unit, effort)
                bar.update()
        strengths: dict[Subset, float] = {}
        named = pairs if isinstance(pairs, Sequence) else ()
        if pairs is None or isinstance(pairs, int):
            if pairs != 0:
                strengths = screen_pairs(tabulator(effort.screen_background), domains, sample, effort)
            chosen = list(strengths)[: effort.most_pairs if pairs is None else pairs]
            grid_terms = [pair for pair in chosen if pairs is not None or strengths[pair] >= WORTH_TRYING]
        else:
            grid_terms = [term for term in named if _has_grid(term, domains)]
        lines, wanted = {}, sorted({k for pair in grid_terms for k in pair})
        chosen_steps = share_steps({k: (domains[k].steps, *mains[k]) for k in wanted}, sample, unit)
        for k in wanted:
            if len(domains[k].steps):
                points = domains[k].step_points(chunk, chosen_steps[k], quantiles=effort.pair_quantiles // 2)
                lines[k] = domains[k].with_missing(points)
            else:
                lines[k] = _lines(domains[k], sample, effort.pair_quantiles, effort.pair_even, PAIR_REACH)
        means = {k: table.mean for k, (_, table) in mains.items()}
        shares = {k: occupancy(points, chunk) for k, points in lines.items()}
        seen = _background_weights(tabulate.background, domains, lines)
        grids: list[Piece] = []
        traces: dict[Subset, Tensor] = {}
        for a, b in grid_terms:
            table = tabulator(effort.pair_background)((lines[a], lines[b]))
            pure = purify(table.mean, shares[a], shares[b])
            # What the background's own rows make of the pair on average is not the feature's: it is taken out.
            means[a] = means[a] - transfer(lines[a], torch.einsum("ijw,j->iw", pure, seen[b].mean(0)), mains[a][0])
            means[b] = means[b] - transfer(lines[b], torch.einsum("ijw,i->jw", pure, seen[a].mean(0)), mains[b][0])
            flat = pure.flatten(0, 1)
            basis = compress(flat, shares[a].outer(shares[b]).flatten(), tolerance=TOLERANCE, most=PAIR_RANK)
            grids.append(TablePiece((a, b), (lines[a], lines[b]), flat @ weight, flat @ basis))
            traces[a, b] = table.outputs
            bar.update()
    pieces: list[Piece] = []
    for k, domain in enumerate(domains):
        if domain.tabulated:
            points = mains[k][0]
            share = occupancy(points, chunk)
            mean = means[k] - share @ means[k]
            basis = compress(mean, share, tolerance=TOLERANCE, most=MAIN_RANK)
            pieces.append(TablePiece((k,), (points,), mean @ weight, mean @ basis))
        elif domain.columns:
            pieces.append(_direct_piece((k,), domains, sample, tabulator(DIRECT_BACKGROUND)))
        else:
            nothing = torch.zeros(1, weight.shape[1], dtype=torch.float64)
            pieces.append(TablePiece((k,), (), nothing, nothing[:, :0]))
    pieces += grids
    without = [term for term in named if term not in traces]
    pieces += [_direct_piece(term, domains, sample, tabulator(DIRECT_BACKGROUND)) for term in without]
    pieces = _strongest_columns(pieces, sample)
    solved = solve_terms(sample, pieces, domains, ridge=ridge, choose=pairs is None)
    prior_means = {k: occupancy(points, chunk) @ table.mean @ weight for k, (points, table) in mains.items()}
    return Terms(
        tables=tuple(term for term in solved.terms if isinstance(term, TermTable)),
        direct=tuple(term for term in solved.terms if isinstance(term, DirectTerm)),
        base=sample.outputs.mean(0),
        alphas=solved.correction.alphas,
        strengths=strengths,
        explained=solved.explained,
        inside=solved.inside,
        outside_rows=len(solved.rows.outside) / len(solved.rows.outputs),
        columns=solved.rows.terms.shape[1],
        rows=len(solved.rows.outputs),
        forward_rows=sum(each.forward_rows for each in made.values()),
        economy=effort is ECONOMY,
        thresholds={
            k: (min(len(domain.steps), MOST_STEPS), len(domain.steps))
            for k, domain in enumerate(domains)
            if len(domain.steps)
        },
        offsets=prior_means,
        background=tabulate.background,
        fit=Fit(
            solved.sample,
            solved.pieces,
            solved.rows,
            solved.held_out,
            solved.correction,
            solved.alphas,
            Traces(
                {k: (points, table.outputs) for k, (points, table) in mains.items()},
                {k: (lines[k], seen[k]) for k in lines},
                {pair: outputs for pair, outputs in traces.items() if pair in {piece.term for piece in solved.pieces}},
            ),
        ),
    )


def _unit(outputs: Tensor) -> Tensor:
    """Spread of each output; one where it does not vary."""
    spread = outputs.std(0, correction=0)
    return torch.where(spread > 0, spread, torch.ones_like(spread))


def _has_grid(term: Subset, domains: Sequence[Domain]) -> bool:
    levels = [len(domains[k].levels or ()) or 32 for k in term]
    return len(term) == 2 and all(domains[k].tabulated for k in term) and levels[0] * levels[1] <= MOST_NODES


# ---------------------------------------------------------------------- tables


def _lines(domain: Domain, sample: Sample, quantiles: int, even: int, reach: Sequence[float]) -> Points:
    """A feature's points for a grid, with missing values where the model takes them."""
    return domain.with_missing(domain.points(sample.chunk(), quantiles=quantiles, even=even, reach=reach))


def tabulate_main(
    tabulate: Tabulator, domain: Domain, sample: Sample, unit: Tensor, effort: Effort
) -> tuple[Points, Table]:
    """A feature's own table; knots are added where it bends, or stand where the model steps."""
    if len(domain.steps):
        steps, chunk = domain.steps, sample.chunk()
        if len(steps) > MOST_STEPS:
            few = tabulate.with_rows(FEW_ROWS)
            every = domain.step_points(chunk, steps, quantiles=0)
            sizes = step_sizes(steps, every, few([every]), sample, unit)
            steps = steps[np.sort(np.argsort(-sizes, kind="stable")[:MOST_STEPS])]
            tabulate.forward_rows += few.forward_rows
        points = domain.with_missing(domain.step_points(chunk, steps, quantiles=effort.quantiles))
        return points, tabulate([points])
    first = domain.points(sample.chunk(), quantiles=effort.quantiles, even=effort.even, reach=MAIN_REACH)
    if not isinstance(first.axis, NumberAxis):
        return first, tabulate([first])
    assert domain.span is not None
    points, table = first, None
    if domain.reaches:
        values = sample.chunk().numbers(first.axis.column)
        points, table = refine_knots(
            tabulate,
            first,
            encode=domain.encode,
            span=domain.span,
            unit=unit,
            inside=len(np.unique(values[np.isfinite(values)])) > FEW_VALUES,
            most=effort.most_knots,
        )
    complete = domain.with_missing(points)
    return complete, tabulate([complete]) if complete is not points or table is None else table


def step_sizes(
    steps: Array, points: Points, table: Table, sample: Sample, unit: Tensor, *, apart: bool = False
) -> Array:
    """Per threshold the variance that its step makes over the rows and the background, in units of the outputs'."""
    assert isinstance(points.axis, NumberAxis)
    knots, x = points.axis.knots, sample.chunk().numbers(points.axis.column)
    below = np.clip(np.searchsorted(knots, steps[:, 0]), 0, len(knots) - 2)
    there = (knots[below] == steps[:, 0]) & (knots[below + 1] == steps[:, 1])
    jump = (table.outputs[:, below + 1] - table.outputs[:, below]).double() / unit
    square = jump.var(0, correction=0) if apart else jump.square().mean(0)
    share = np.searchsorted(np.sort(x[np.isfinite(x)]), steps[:, 1]) / max(len(x), 1)
    # Thresholds beyond the calibrated range count a little, so that they are not forgotten.
    sizes: Array = square.sum(1).numpy() * (share * (1 - share) + 1e-6) * there
    return sizes


def share_steps(features: Mapping[int, tuple[Array, Points, Table]], sample: Sample, unit: Tensor) -> dict[int, Array]:
    """Thresholds that grids of pairs have, by feature: most where interactions step most."""
    sizes = {k: step_sizes(*given, sample, unit, apart=True) for k, given in features.items() if len(given[0])}
    if not sizes:
        return {}
    every = np.sort(np.concatenate([np.sort(size)[::-1][FEWEST_LINES:] for size in sizes.values()]))[::-1]
    room = max(PAIR_STEPS * len(sizes) - sum(min(len(size), FEWEST_LINES) for size in sizes.values()), 0)
    least = every[room] if room < len(every) else -1.0
    found = {}
    for k, size in sizes.items():
        count = min(max(int((size > least).sum()), FEWEST_LINES), MOST_LINES)
        found[k] = features[k][0][np.sort(np.argsort(-size, kind="stable")[:count])]
    return found


def _background_weights(
    background: Tensor, domains: Sequence[Domain], lines: Mapping[int, Points]
) -> dict[int, Tensor]:
    """Per feature, where on its grid lines every background row is, (background, points)."""
    found = {}
    for k, points in lines.items():
        chunk = Chunk(domains[k].own_columns(background), slice(0, len(background)))
        rows = np.eye(len(background))
        found[k] = torch.stack([occupancy(points, chunk, row) for row in rows])
    return found


def screen_pairs(tabulate: Tabulator, domains: Sequence[Domain], sample: Sample, effort: Effort) -> dict[Subset, float]:
    """Every pair's strength, strongest first, read off coarse tables; of the output in which it is largest."""
    few = sample.take(np.linspace(0, len(sample) - 1, min(512, len(sample))).astype(np.intp))
    chunk, spread, lines = few.chunk(), _unit(sample.outputs), effort.screen_lines
    features, ordered = [k for k, domain in enumerate(domains) if domain.tabulated], False
    while True:
        points = {k: _lines(domains[k], few, lines, min(lines, 3), ()) for k in features}
        sizes = {k: len(points[k]) for k in features}
        grids = np.triu(np.outer(list(sizes.values()), list(sizes.values())), 1)
        nodes = int(grids[grids <= MOST_NODES].sum())
        if nodes * len(tabulate.background) <= effort.screen_budget or len(features) <= 2:
            break
        if lines > 3:
            lines -= 1
        else:  # too many pairs for the coarsest grids: those of the features that act most
            features = features if ordered else _strongest_features(tabulate, domains, few, features)
            features, ordered = features[: max(int(len(features) * 0.7), 2)], True
    pairs = [pair for pair in combinations(sorted(features), 2) if sizes[pair[0]] * sizes[pair[1]] <= MOST_NODES]
    shares = {k: occupancy(points[k], chunk) for k in features}
    strengths = {}
    for a, b in pairs:
        outputs = tabulate([points[a], points[b]]).outputs.mean(0).double()
        pure = purify(outputs, shares[a], shares[b])
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
        effects[k] = float(((tabulate.run(moved) @ tabulate.weight - before) / _unit(sample.outputs)).square().mean())
    return sorted(features, key=lambda k: -effects[k])


def _direct_piece(term: Subset, domains: Sequence[Domain], sample: Sample, tabulate: Tabulator) -> DirectPiece:
    """A term without a table."""
    columns = tuple(domains[k].columns for k in term)
    few = sample.take(np.linspace(0, len(sample) - 1, min(512, len(sample))).astype(np.intp))
    pure = pure_rows(tabulate, columns, few.inputs)
    share = torch.full((len(few),), 1 / len(few), dtype=torch.float64)
    basis = compress(pure - pure.mean(0), share, tolerance=TOLERANCE, most=MAIN_RANK)
    rows = sample.inputs.double()
    return DirectPiece(term, columns, tabulate, basis, (rows.amin(0), rows.amax(0)))


def _strongest_columns(pieces: Sequence[Piece], sample: Sample) -> list[Piece]:
    """The pieces with no more columns in all than a regression can have: the weakest are left to the prior."""
    if sum(piece.rank for piece in pieces) <= MOST_COLUMNS:
        return list(pieces)
    few = sample.take(np.linspace(0, len(sample) - 1, min(512, len(sample))).astype(np.intp))
    spreads = [piece.read(few)[0].var(0, correction=0) for piece in pieces]
    least = torch.cat(spreads).sort(descending=True).values[MOST_COLUMNS]
    return [replace(piece, basis=piece.basis[:, spread > least]) for piece, spread in zip(pieces, spreads, strict=True)]


# ---------------------------------------------------------------------- the regression


@dataclass(frozen=True, eq=False)
class Solved:
    """Pieces that stayed, their functions, and the regression."""

    pieces: tuple[Piece, ...]
    terms: tuple[TermTable | DirectTerm, ...]
    sample: Sample
    rows: Rows
    held_out: HeldOut
    correction: Correction
    alphas: tuple[float, ...]
    explained: Tensor
    inside: Tensor


def solve_terms(
    sample: Sample, pieces: Sequence[Piece], domains: Sequence[Domain], *, ridge: float | None, choose: bool
) -> Solved:
    """Chooses the pairs that pay and the strength on rows held out, and fits the correction on all rows."""
    columns = sum(piece.rank for piece in pieces)
    count = min(len(sample), max(MOST_NUMBERS // max(columns, 1), FEWEST_ROWS))
    if any(isinstance(piece, DirectPiece) for piece in pieces):
        count = min(count, DIRECT_ROWS)
    generator = np.random.default_rng(0)
    few = sample if count == len(sample) else sample.take(np.sort(generator.permutation(len(sample))[:count]))
    fold = torch.from_numpy(generator.permutation(count) % min(FOLDS, count))
    parts = [piece.read(few) for piece in pieces]
    outside, clamped = _hold_outside(few, domains, fold)
    held = [
        piece.read(clamped)[0] if isinstance(piece, TablePiece) else part[outside]
        for piece, (part, _) in zip(pieces, parts, strict=True)
    ]
    alphas = ALPHAS if ridge is None else (ridge,)
    everything = Rows.of(torch.cat([part for part, _ in parts], 1), few.outputs, fold, outside, torch.cat(held, 1))
    ends = np.cumsum([0, *(piece.rank for piece in pieces)]).tolist()

    def rows_of(kept: Sequence[int]) -> Rows:
        columns = torch.cat([torch.arange(ends[i], ends[i + 1]) for i in kept])
        return everything.only(columns, torch.stack([parts[i][1] for i in kept]).sum(0))

    total = _unit(few.outputs).square() * count
    singles = [i for i, piece in enumerate(pieces) if len(piece.term) == 1]
    pairs = [i for i, piece in enumerate(pieces) if len(piece.term) > 1]
    kept = [*singles, *pairs]
    if choose and pairs and count >= 2 * FOLDS:
        costs = {}
        trial = range(FOLDS if count <= ALL_FOLDS else 2)
        for rung in _rungs(len(pairs)):
            left = judge(rows_of([*singles, *pairs[:rung]]), alphas[::2], folds=trial)
            error = float((left.errors.sum(0).amin(0) / total).mean()) * FOLDS / len(trial)
            costs[rung] = error * (1 + WORTH_KEEPING * rung) + WORTH_A_TERM * rung
            if error <= ENOUGH:
                break
        kept = [*singles, *pairs[: min(costs, key=costs.__getitem__)]]
    rows, found, fit, deltas = _solve(rows_of(kept), [pieces[i].rank for i in kept], alphas)
    if choose and len(kept) > len(singles):
        sizes = [
            float(((parts[i][1] + parts[i][0] @ delta).std(0, correction=0) / _unit(few.outputs)).max())
            for i, delta in zip(kept, deltas, strict=True)
        ]
        worth = [i for i, size in zip(kept, sizes, strict=True) if len(pieces[i].term) == 1 or size >= WORTH_FITTING]
        if len(worth) < len(kept):
            kept = worth
            rows, found, fit, deltas = _solve(rows_of(kept), [pieces[i].rank for i in kept], alphas)
    terms = []
    for i, delta in zip(kept, deltas, strict=True):
        mean = (parts[i][1] + parts[i][0] @ delta).mean(0)
        terms.append(pieces[i].finish(delta, mean))
    residual = found.chosen()
    inside = torch.ones(count, dtype=torch.bool)
    inside[outside] = False
    return Solved(
        tuple(pieces[i] for i in kept),
        tuple(terms),
        few,
        rows,
        found,
        fit,
        alphas,
        _share(residual, few.outputs),
        _share(residual[inside], few.outputs[inside]),
    )


def _solve(rows: Rows, ranks: Sequence[int], alphas: Sequence[float]) -> tuple[Rows, HeldOut, Correction, list[Tensor]]:
    found = judge(rows, alphas)
    fit = fit_correction(rows, torch.tensor(alphas, dtype=torch.float64)[found.best])
    return rows, found, fit, list(torch.split(fit.delta, list(ranks)))


def _share(residual: Tensor, outputs: Tensor) -> Tensor:
    """Share of each output's variance that residuals leave; NaN where it does not vary beyond rounding."""
    if not len(outputs):
        return torch.full((outputs.shape[1],), torch.nan, dtype=torch.float64)
    total = outputs.var(0, correction=0)
    varies = total > (outputs.abs().amax(0) * 1e-12).square()
    return torch.where(varies, 1 - residual.square().mean(0) / torch.where(varies, total, 1.0), torch.nan)


def _hold_outside(sample: Sample, domains: Sequence[Domain], fold: Tensor) -> tuple[Tensor, Sample]:
    """Rows outside the range of all other folds' rows, as unseen rows may be, and the same held at that range."""
    beyond, own = np.zeros(len(sample), dtype=bool), dict(sample.own)
    for domain in domains:
        if domain.span is None:
            continue
        column = domain.feature.columns[0]
        x = np.asarray(sample.own[column], dtype=np.float64)
        held = x.copy()
        for number in range(int(fold.max()) + 1):
            mine, others = (fold == number).numpy(), x[(fold != number).numpy()]
            if len(others):
                held[mine] = np.clip(x[mine], np.nanmin(others), np.nanmax(others))
        beyond |= ~((held == x) | np.isnan(x))
        own[column] = held
    where = np.flatnonzero(beyond)
    return torch.from_numpy(where), Sample(own, sample.inputs, sample.outputs).take(where)


def _rungs(most: int) -> Iterator[int]:
    """0, 1, 2, 4, … up to `most`."""
    yield 0
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most
