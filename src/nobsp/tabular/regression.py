"""The regression behind the functions: terms as columns, the correction of the head, and how far curves may move.

With T the compressed representations of all terms and R = y − prior, for every output

    δ(α) = (TᵀT/n + α s I)⁻¹ TᵀR/n,        s = mean variance of T's columns,

so that α → ∞ leaves the prior, which is partial dependence, and α → 0 is the oblique projection along all other terms.
T's columns are scaled by `compress`. Strengths and pairs are judged on rows held out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.tabular.features import Domain, Points
from nobsp.tabular.folds import FOLDS, Codes, deal_folds, join_rows
from nobsp.tabular.grids import Tabulator
from nobsp.tabular.lookup import Array, Chunk, TermTable
from nobsp.tabular.purification import occupancy, purify, read, transfer

ALPHAS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0, 100.0, 1e4)
# A fitted interaction below this share of every output's spread is left out.
WORTH_FITTING = 0.005
# Unexplained share of the variance on held-out rows at which no further interactions are put in: where features are
# correlated, a network's smallest interactions bend the main curves by more than they explain.
ENOUGH = 0.005
# Up to so many rows all folds judge how many pairs are put in; of more two are enough.
ALL_FOLDS = 1000
# Most numbers of the regression held at once, and the fewest rows all the same.
MOST_NUMBERS, FEWEST_ROWS = 20_000_000, 4096
# Rows of a regression with terms that run through the network row by row.
DIRECT_ROWS = 2048
# Copies of the calibration that bands are made of, and rows on which their priors are read.
COPIES, _PRIOR_ROWS = 64, 2048


# Steps that a column's range is cut into where rows are put into an order that does not depend on units.
_STEPS = 2.0**30


def _shares_of_range(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Where each value lies between the smallest and the largest of its column, in whole steps."""
    known = np.where(np.isfinite(values), values, 0.0)
    low = known.min(axis=0, initial=0.0 if len(known) == 0 else np.inf)
    # Halves, as the difference of the largest numbers would be infinite.
    span = known.max(axis=0, initial=-np.inf) / 2 - low / 2
    shares = (known / 2 - low / 2) / np.where(span > 0, span, 1.0)
    steps = np.rint(shares * _STEPS).astype(np.uint64)
    return np.where(np.isfinite(values), steps, np.uint64(2**40))


def _row_keys(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A number for every row that depends on what its columns hold, not on the order of rows or columns.

    Sums of whole numbers modulo 2⁶⁴ are exact in whatever order. A column is known by the sum over its own rows, so
    that equal values in different columns count differently, as they must for one-hot columns.
    """
    mixed = _mix(words)
    columns = mixed.sum(axis=0, dtype=np.uint64)
    return _mix(_mix(mixed ^ columns).sum(axis=1, dtype=np.uint64))


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Whole numbers scattered over all 64 bits (the finaliser of SplitMix64)."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


@dataclass(frozen=True, eq=False)
class Sample:
    """Calibration rows in memory."""

    own: Mapping[int, NDArray[Any]]  # the caller's columns that have tables, by position
    inputs: Tensor  # the same rows as the network takes them
    outputs: Tensor
    groups: Codes | None = (
        None  # a number for every row, the same for rows the caller named one group
    )

    def __len__(self) -> int:
        return len(self.inputs)

    def chunk(self) -> Chunk:
        """All rows, to be read from tables."""
        return Chunk(self.own, slice(0, len(self)))

    def shuffled(self) -> Sample:
        """The same rows in an order that follows from their contents alone.

        How a table was sorted, in which order its columns stand and in which units they are does not matter.
        """
        values = self.inputs.double().numpy() + 0.0  # −0 becomes 0
        by_share = _row_keys(_shares_of_range(values))
        # Rows that are equal to nine digits of a column's range are told apart by all of theirs.
        by_value = _row_keys(values.view(np.uint64))
        return self.take(np.lexsort((by_value, by_share)))

    def take(self, rows: NDArray[np.intp]) -> Sample:
        """Some of the rows."""
        place = torch.from_numpy(rows)
        own = {k: column[rows] for k, column in self.own.items()}
        groups = None if self.groups is None else self.groups[rows]
        return replace(
            self, own=own, inputs=self.inputs[place], outputs=self.outputs[place], groups=groups
        )

    def units(self) -> Codes:
        """A number for every row of a shuffled sample; rows that share it are held out together, and drawn together."""
        return join_rows(self.inputs, self.groups)

    def some(self, most: int = 512) -> Sample:
        """At most so many of the rows, at even distances."""
        return self.take(np.linspace(0, len(self) - 1, min(most, len(self))).astype(np.intp))

    @property
    def spread(self) -> Tensor:
        """Spread of each output; one where it does not vary."""
        spread = self.outputs.std(0, correction=0)
        return torch.where(spread > 0, spread, 1.0)


@dataclass(frozen=True, eq=False)
class TablePiece:
    """A term on its nodes, as the regression sees it."""

    term: Subset
    points: tuple[Points, ...]
    prior: Tensor  # the head's share, (nodes, outputs)
    basis: Tensor  # the compressed representation, (nodes, rank)

    @property
    def rank(self) -> int:
        """Columns of the regression."""
        return int(self.basis.shape[1])

    def table(self, values: Tensor) -> TermTable:
        """A table on the term's nodes."""
        axes = tuple(points.axis for points in self.points)
        return TermTable(
            self.term, axes, values.reshape(*map(len, self.points), values.shape[-1]).numpy()
        )

    def held(self) -> Tensor:
        """Per node, the position of the node it is held at beyond the calibrated range."""
        if not self.points:  # a feature that the network never sees
            return torch.zeros(1, dtype=torch.long)
        grids = np.meshgrid(*(points.held for points in self.points), indexing="ij")
        return torch.from_numpy(
            np.atleast_1d(np.ravel_multi_index([grid.ravel() for grid in grids], grids[0].shape))
        )

    def read(self, rows: Sample) -> tuple[Tensor, Tensor]:
        """Compressed representation and prior of some rows."""
        both = read(self.table(torch.cat([self.basis, self.prior], 1)), rows.chunk())
        return both[:, : self.rank], both[:, self.rank :]

    def finish(self, delta: Tensor, mean: Tensor) -> TermTable:
        """The term's function: prior and correction, the latter held at the calibrated range, less their mean."""
        return self.table(self.prior + (self.basis @ delta)[self.held()] - mean)


@dataclass(frozen=True, eq=False)
class DirectTerm:
    """A term without a table: rows run through the network, once for every background row and subset of features."""

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
        tabulate = Tabulator(run, self.background, self.weight, batch_size=batch_size)
        pure = pure_rows(tabulate, self.columns, inputs)
        found = pure @ (self.weight + self.delta)
        flat = [column for group in self.columns for column in group]
        held = inputs.clone()
        held[:, flat] = inputs[:, flat].clamp(self.low.to(inputs.dtype), self.high.to(inputs.dtype))
        beyond = (held != inputs).any(1).nonzero().flatten()
        if len(beyond):
            at_edge = pure_rows(tabulate, self.columns, held[beyond])
            # Where the model does not answer beyond the range, it is held there as the correction is.
            answered = pure[beyond].isfinite().all(1, keepdim=True)
            prior = torch.where(answered, pure[beyond], at_edge)
            found[beyond] = prior @ self.weight + at_edge @ self.delta
        return found - self.offset


@dataclass(frozen=True, eq=False)
class DirectPiece:
    """A term without a table, as the regression sees it."""

    term: Subset
    columns: tuple[tuple[int, ...], ...]
    tabulate: Tabulator
    basis: Tensor  # directions (width, rank) that the representation uses
    span: tuple[
        Tensor, Tensor
    ]  # smallest and largest calibrated value of every column of the network's input

    @property
    def rank(self) -> int:
        """Columns of the regression."""
        return int(self.basis.shape[1])

    def read(self, rows: Sample) -> tuple[Tensor, Tensor]:
        """Compressed representation and prior of some rows."""
        pure = pure_rows(self.tabulate, self.columns, rows.inputs)
        return pure @ self.basis, pure @ self.tabulate.weight

    def finish(self, delta: Tensor, mean: Tensor) -> DirectTerm:
        """The term's function."""
        low, high = (
            end[[column for group in self.columns for column in group]] for end in self.span
        )
        background, weight = self.tabulate.background, self.tabulate.weight
        return DirectTerm(
            self.term, self.columns, background, weight, self.basis @ delta, mean, low, high
        )


Piece = TablePiece | DirectPiece


def pure_rows(tabulate: Tabulator, columns: Sequence[Sequence[int]], inputs: Tensor) -> Tensor:
    """Δ_S of every row by running the network: Σ_{U⊆S} (−1)^{|S|−|U|} z̄_U, the empty set left out as a constant."""
    parts = []
    for subset in (
        subset for size in range(1, len(columns) + 1) for subset in combinations(columns, size)
    ):
        flat = [column for group in subset for column in group]
        parts.append(tabulate.rows(flat, inputs[:, flat]) * (-1.0) ** (len(columns) - len(subset)))
    return sum(parts[1:], parts[0])


@dataclass(frozen=True, eq=False)
class Rows:
    """What the rows give the regression."""

    terms: Tensor  # compressed representations, (rows, columns), centred
    prior: Tensor  # what the head's own coefficients give, (rows, outputs)
    outputs: Tensor  # the network's, (rows, outputs)
    fold: Tensor
    outside: Tensor  # rows that lie outside the range of all other folds' rows
    held: Tensor  # their compressed representations held at that range, less the same means
    products: Tensor  # of the terms by fold, (folds, columns, columns)

    @classmethod
    def of(
        cls, terms: Tensor, outputs: Tensor, fold: Tensor, outside: Tensor, held: Tensor
    ) -> Rows:
        """Rows whose prior is not known yet."""
        centre = terms.mean(0)
        terms = terms - centre
        folds = [terms[fold == number] for number in range(int(fold.max()) + 1)]
        products = torch.stack([part.T @ part for part in folds])
        return cls(
            terms, torch.zeros_like(outputs), outputs, fold, outside, held - centre, products
        )

    @property
    def scale(self) -> float:
        """Mean variance of the columns: what α is relative to."""
        return float(self.products.diagonal(dim1=1, dim2=2).sum()) / max(self.terms.numel(), 1)

    def only(self, columns: Tensor, prior: Tensor) -> Rows:
        """The same with some of the columns."""
        products = self.products[:, columns][:, :, columns]
        return replace(
            self,
            terms=self.terms[:, columns],
            prior=prior,
            held=self.held[:, columns],
            products=products,
        )


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What fits on other rows leave of every row, for every strength."""

    residual: Tensor  # (strengths, rows, outputs)
    errors: Tensor  # squared residuals summed by fold, (folds, strengths, outputs)
    best: Tensor  # per output the position of the strength that is taken

    def chosen(self) -> Tensor:
        """Residuals at each output's own strength, (rows, outputs)."""
        return torch.stack(
            [self.residual[place, :, output] for output, place in enumerate(self.best.tolist())], 1
        )


class Correction(NamedTuple):
    """The fitted correction."""

    delta: Tensor  # coefficients on the compressed representations, (columns, outputs)
    ridge: Tensor  # λ per output, in units of the products' mean
    alphas: Tensor  # the relative strength per output


def judge(rows: Rows, alphas: Sequence[float], *, folds: Sequence[int] | None = None) -> HeldOut:
    """Fits on all folds but one and predicts that one, for every strength."""
    count, columns = rows.terms.shape
    target, scale = rows.outputs - rows.prior, rows.scale
    chosen = range(len(rows.products)) if folds is None else folds
    residual = torch.full((len(alphas), count, target.shape[1]), torch.nan, dtype=torch.float64)
    total, cross = rows.products.sum(0), rows.terms.T @ target
    place = torch.full((count,), -1, dtype=torch.long)
    place[rows.outside] = torch.arange(len(rows.outside))
    for fold in chosen:
        test, train = (
            (rows.fold == fold).nonzero().flatten(),
            (rows.fold != fold).nonzero().flatten(),
        )
        here, left = rows.terms[test], max(len(train), 1)
        mean, goal = -here.sum(0) / left, target[train].sum(0) / left
        wanted = here.clone()
        away = place[test] >= 0
        wanted[away] = rows.held[place[test[away]]]
        wanted -= mean
        if columns > len(train):  # as many unknowns as rows are enough
            others = rows.terms[train] - mean
            system, right, seen = (
                others @ others.T / left,
                target[train] - goal,
                wanted @ others.T / left,
            )
        else:
            system = (total - rows.products[fold]) / left - mean.outer(mean)
            right, seen = (cross - here.T @ target[test]) / left - mean.outer(goal), wanted
        # One product for all strengths.
        found = torch.stack([solve_ridge(system, right, alpha * scale) for alpha in alphas], 1)
        said = (seen @ found.flatten(1)).view(len(test), *found.shape[1:]).movedim(1, 0)
        residual[:, test] = target[test] - goal - said
    errors = torch.stack([residual[:, rows.fold == fold].square().sum(1) for fold in chosen])
    return HeldOut(residual, errors, choose_strength(errors))


def level_strengths(errors: Tensor) -> Tensor:
    """Which strengths the folds cannot tell from the best: within one standard error of it, (strengths, outputs)."""
    folds, _, outputs = errors.shape
    worse = errors - errors.gather(1, errors.sum(0).argmin(0).expand(folds, 1, outputs))
    level: Tensor = worse.mean(0) <= worse.std(0, correction=0) / max(folds - 1, 1) ** 0.5
    return level


def choose_strength(errors: Tensor) -> Tensor:
    """Per output the strongest ridge that the folds cannot tell from the best one: in doubt the prior decides."""
    level = level_strengths(errors)
    return torch.where(level, torch.arange(len(level))[:, None], -1).amax(0)


def fit_correction(rows: Rows, alphas: Tensor) -> Correction:
    """The correction from all rows, with one strength per output."""
    target, count = rows.outputs - rows.prior, len(rows.terms)
    ridge = alphas * rows.scale
    gram, cross = rows.products.sum(0) / count, rows.terms.T @ (target - target.mean(0)) / count
    delta = torch.zeros_like(cross)
    for strength in sorted(set(ridge.tolist())):
        mine = ridge == strength
        delta[:, mine] = solve_ridge(gram, cross[:, mine], strength)
    return Correction(delta, ridge, alphas)


def solve_ridge(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """(G + λI)⁻¹ c; the least-norm solution where λ is too small to make it definite."""
    system = gram + ridge * torch.eye(len(gram), dtype=gram.dtype)
    factor, failed = torch.linalg.cholesky_ex(system)
    if not int(failed):
        return torch.cholesky_solve(cross, factor)
    least: Tensor = torch.linalg.pinv(system, hermitian=True) @ cross
    return least


@dataclass(frozen=True)
class Trial:
    """Terms that must pay on rows held out, and what each must bring.

    Where features are correlated, terms that explain next to nothing bend the main curves.
    """

    terms: tuple[Subset, ...]  # in the order in which they are put in, strongest first
    least_relative_gain: float  # share of what is unexplained that a term must explain
    least_gain: float  # share of the outputs' variance that a term must explain

    def cost(self, unexplained: float, terms: int) -> float:
        """What is unexplained with so many of the terms, and what these must have brought."""
        return unexplained * (1 + self.least_relative_gain * terms) + self.least_gain * terms


@dataclass(frozen=True, eq=False)
class Fit:
    """Pieces that stayed, their functions, and the regression behind them, as long as the rows are in memory."""

    pieces: tuple[Piece, ...]
    functions: tuple[TermTable | DirectTerm, ...]
    sizes: tuple[float, ...]  # each one's spread as a share of the outputs'
    sample: Sample
    rows: Rows
    alphas: tuple[float, ...]  # the strengths that were tried
    held_out: HeldOut
    correction: Correction
    explained: Tensor  # on rows held out, per output
    inside: Tensor  # the same on rows inside the range of the rows fitted on

    def worth_keeping(self) -> set[Subset]:
        """Terms whose contributions vary enough to be shown."""
        sizes = zip(self.pieces, self.sizes, strict=True)
        return {piece.term for piece, size in sizes if size >= WORTH_FITTING}


def solve_terms(
    sample: Sample,
    pieces: Sequence[Piece],
    domains: Sequence[Domain],
    *,
    ridge: float | None,
    trial: Trial | None = None,
) -> Fit:
    """Chooses the strength, and which terms on trial pay, on rows held out; fits the correction on all rows."""
    columns = sum(piece.rank for piece in pieces)
    count = min(len(sample), max(MOST_NUMBERS // max(columns, 1), FEWEST_ROWS))
    if any(isinstance(piece, DirectPiece) for piece in pieces):
        count = min(count, DIRECT_ROWS)
    generator = np.random.default_rng(0)
    few = (
        sample
        if count == len(sample)
        else sample.take(np.sort(generator.permutation(len(sample))[:count]))
    )
    units = few.units()
    fold = torch.from_numpy(deal_folds(units, generator=generator))
    parts = [piece.read(few) for piece in pieces]
    outside, clamped = hold_outside(few, domains, fold)
    held = [
        piece.read(clamped)[0] if isinstance(piece, TablePiece) else part[outside]
        for piece, (part, _) in zip(pieces, parts, strict=True)
    ]
    alphas = ALPHAS if ridge is None else (ridge,)
    everything = Rows.of(
        torch.cat([part for part, _ in parts], 1), few.outputs, fold, outside, torch.cat(held, 1)
    )
    places = torch.split(torch.arange(columns), [piece.rank for piece in pieces])

    def rows_of(kept: Sequence[int]) -> Rows:
        prior = torch.stack([parts[i][1] for i in kept]).sum(0)
        return everything.only(torch.cat([places[i] for i in kept]), prior)

    def solve(kept: Sequence[int]) -> Fit:
        rows = rows_of(kept)
        return complete_fit(
            [pieces[i] for i in kept],
            [parts[i] for i in kept],
            sample=few,
            rows=rows,
            alphas=alphas,
            held_out=judge(rows, alphas),
        )

    unit = few.spread
    if trial is None:
        return solve(range(len(pieces)))

    position = {piece.term: i for i, piece in enumerate(pieces)}
    on_trial = [position[term] for term in trial.terms]
    certain = [i for i in range(len(pieces)) if i not in on_trial]
    if on_trial and count >= 2 * FOLDS:
        trial_folds = range(FOLDS if count <= ALL_FOLDS else 2)
        costs = {}
        for rung in _rungs(len(on_trial)):
            left = judge(rows_of([*certain, *on_trial[:rung]]), alphas[::2], folds=trial_folds)
            least = left.errors.sum(0).amin(0) / (unit.square() * count)
            unexplained = float(least.mean()) * FOLDS / len(trial_folds)
            costs[rung] = trial.cost(unexplained, rung)
            if unexplained <= ENOUGH:
                break
        on_trial = on_trial[: min(costs, key=costs.__getitem__)]

    fit = solve([*certain, *on_trial])
    sizes = dict(zip([*certain, *on_trial], fit.sizes, strict=True))
    worth = [i for i in on_trial if sizes[i] >= WORTH_FITTING]
    return fit if len(worth) == len(on_trial) else solve([*certain, *worth])


def complete_fit(
    pieces: Sequence[Piece],
    parts: Sequence[tuple[Tensor, Tensor]],
    *,
    sample: Sample,
    rows: Rows,
    alphas: Sequence[float],
    held_out: HeldOut,
) -> Fit:
    """The correction at the strengths that held-out rows chose, and the functions it makes of the pieces."""
    strengths = torch.tensor(alphas, dtype=torch.float64)[held_out.best]
    correction = fit_correction(rows, strengths)
    deltas = torch.split(correction.delta, [piece.rank for piece in pieces])

    functions = []
    sizes = []
    for piece, (representation, prior), delta in zip(pieces, parts, deltas, strict=True):
        values = prior + representation @ delta
        functions.append(piece.finish(delta, values.mean(0)))
        sizes.append(float((values.std(0, correction=0) / sample.spread).max()))

    residuals = held_out.chosen()
    inside = torch.ones(len(sample), dtype=torch.bool)
    inside[rows.outside] = False
    return Fit(
        pieces=tuple(pieces),
        functions=tuple(functions),
        sizes=tuple(sizes),
        sample=sample,
        rows=rows,
        alphas=tuple(alphas),
        held_out=held_out,
        correction=correction,
        explained=share_explained(residuals, sample.outputs),
        inside=share_explained(residuals[inside], sample.outputs[inside]),
    )


def _rungs(count: int) -> list[int]:
    """How many terms are tried: none, one, two, four, … and all."""
    doubled = [1 << power for power in range(count.bit_length()) if 1 << power < count]
    return [0, *doubled, count]


def share_explained(residual: Tensor, outputs: Tensor) -> Tensor:
    """Share of each output's variance that residuals leave; NaN where it does not vary beyond rounding."""
    if not len(outputs):
        return torch.full((outputs.shape[1],), torch.nan, dtype=torch.float64)
    total = outputs.var(0, correction=0)
    varies = total > (outputs.abs().amax(0) * 1e-12).square()
    return torch.where(
        varies, 1 - residual.square().mean(0) / torch.where(varies, total, 1.0), torch.nan
    )


def hold_outside(sample: Sample, domains: Sequence[Domain], fold: Tensor) -> tuple[Tensor, Sample]:
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
    return torch.from_numpy(where), replace(sample, own=own).take(where)


@dataclass(frozen=True, eq=False)
class Traces:
    """What the background rows give one by one, from which bands are made."""

    mains: dict[
        int, tuple[Points, Tensor]
    ]  # per feature its points, and outputs (background, points, outputs)
    lines: dict[
        int, tuple[Points, Tensor]
    ]  # grid lines, and where on them the background is (background, points)
    grids: dict[Subset, Tensor]  # outputs (background of pairs, points, points, outputs)
    # The same two of triples, whose grids are coarser.
    triple_lines: dict[int, tuple[Points, Tensor]] = field(default_factory=dict)
    triples: dict[Subset, Tensor] = field(default_factory=dict)


def spread_of_curves(fit: Fit, traces: Traces) -> dict[int, Tensor]:
    """Per feature how far its curve moves from calibration to calibration, (points, outputs).

    Every copy draws the calibration rows and the background rows anew, with replacement. Prior and margins are made
    again from what each background row gave; the correction follows to first order from the influence of the rows,

        δ_w − δ = (TᵀT/n + λI)⁻¹ [ Σ_i (w_i − 1) t_i e_i + Σ_i t_i (prior − prior_w)_i ] / n,

    with e_i the residual of row i in a fit without its fold, and a strength λ that the folds cannot tell from the best.
    What the ridge pulls a curve towards partial dependence, λ (TᵀT/n + λI)⁻¹ δ, counts too.
    """
    if not traces.mains:
        return {}
    generator = np.random.default_rng(0)
    units = fit.sample.units()
    n_units = int(units.max()) + 1
    drawn = generator.multinomial(n_units, np.full(n_units, 1 / n_units), size=COPIES)
    draws = drawn[:, units].astype(np.float64)
    chunk = fit.sample.chunk()
    priors = _copy_priors(traces, chunk, draws, generator)
    values, vectors = torch.linalg.eigh(fit.rows.products.sum(0) / len(fit.rows.terms))
    values = values.clamp_min(0)
    delta = _copy_corrections(fit, draws, priors, (values, vectors), generator)
    ridge = fit.correction.ridge[None]
    turned = vectors.T @ fit.correction.delta
    bias = vectors @ (turned * ridge / (values[:, None] + ridge).clamp_min(1e-300))
    found, start = {}, 0
    for piece in fit.pieces:
        stop = start + piece.rank
        if isinstance(piece, TablePiece) and len(piece.term) == 1 and piece.points:
            held = piece.basis[piece.held()]
            curves = priors[piece.term] + torch.einsum("pr,cro->cpo", held, delta[:, start:stop])
            share = torch.stack([occupancy(piece.points[0], chunk, draw) for draw in draws])
            curves = curves - torch.einsum("cp,cpo->co", share, curves)[:, None]
            pull = held @ bias[start:stop]
            pull = pull - occupancy(piece.points[0], chunk) @ pull
            found[piece.term[0]] = (curves.var(0, correction=1) + pull.square()).sqrt()
        start = stop
    return found


def _copy_priors(
    traces: Traces, chunk: Chunk, draws: Array, generator: np.random.Generator
) -> dict[Subset, Tensor]:
    """Every table's prior in every copy: other background rows, and margins over other rows."""
    copies = len(draws)

    def weights(count: int) -> Tensor:
        drawn = generator.multinomial(count, np.full(count, 1 / count), size=copies)
        return torch.from_numpy(drawn / count).to(torch.float32)

    def mean(outputs: Tensor, drawn: Tensor) -> Tensor:
        return torch.einsum("ck,k...->c...", drawn, outputs).double()

    of_mains = weights(next(iter(traces.mains.values()))[1].shape[0])
    found: dict[Subset, Tensor] = {
        (k,): mean(outputs, of_mains) for k, (_, outputs) in traces.mains.items()
    }
    for grids, lines in ((traces.grids, traces.lines), (traces.triples, traces.triple_lines)):
        if not grids:
            continue
        of_grids = weights(next(iter(grids.values())).shape[0])
        shares = {
            k: torch.stack([occupancy(points, chunk, draw) for draw in draws])
            for k, (points, _) in lines.items()
        }
        for term, outputs in grids.items():
            table = mean(outputs, of_grids)
            pure = torch.stack(
                [purify(table[copy], [shares[k][copy] for k in term]) for copy in range(copies)]
            )
            found[term] = pure.flatten(1, -2)
            for side, k in enumerate(term):
                places = [lines[one][1] for one in term]
                margin = _copy_margin(pure, places, side, of_mains.double())
                moved = transfer(lines[k][0], margin.movedim(0, 1), traces.mains[k][0])
                found[k,] = found[k,] - moved.movedim(1, 0)
    return found


def _copy_margin(pure: Tensor, places: Sequence[Tensor], side: int, drawn: Tensor) -> Tensor:
    """Per copy, a grid along one side, averaged over the background rows that the copy drew."""
    others = [place for other, place in enumerate(places) if other != side]
    grids = pure.movedim(side + 1, 1)
    if len(others) == 1:
        return torch.einsum("cijo,cj->cio", grids, drawn @ others[0])
    joint = torch.einsum("cr,rj,rk->cjk", drawn, *others)
    return torch.einsum("cijko,cjk->cio", grids, joint)


def _copy_corrections(
    fit: Fit,
    draws: Array,
    priors: dict[Subset, Tensor],
    eigen: tuple[Tensor, Tensor],
    generator: np.random.Generator,
) -> Tensor:
    """The correction in every copy, (copies, columns, outputs)."""
    rows, copies, (values, vectors) = fit.rows, len(draws), eigen
    count, outputs = rows.terms.shape[0], rows.outputs.shape[1]
    residual = fit.held_out.chosen()
    drawn = torch.from_numpy(draws) - 1
    # One output at a time: copies × rows × columns would not fit.
    change = (
        torch.stack([drawn @ (rows.terms * residual[:, [o]]) for o in range(outputs)], 2) / count
    )
    # Σ t (prior − prior of the copy) / n, read on some of the rows.
    few = np.linspace(0, count - 1, min(count, _PRIOR_ROWS)).astype(np.intp)
    chunk, here = fit.sample.take(few).chunk(), rows.terms[torch.from_numpy(few)]
    moved = torch.zeros(len(few), copies * outputs, dtype=torch.float64)
    for piece in fit.pieces:
        if isinstance(piece, TablePiece) and piece.term in priors:
            moved += read(
                piece.table((piece.prior[None] - priors[piece.term]).movedim(0, 1).flatten(1)),
                chunk,
            )
    moved = (moved - moved.mean(0)).reshape(len(few), copies, outputs)
    change = change + torch.einsum("rp,rco->cpo", here - here.mean(0), moved) / len(few)
    target = rows.outputs - rows.prior
    cross = rows.terms.T @ (target - target.mean(0)) / count
    # Any strength that the folds cannot tell from the best.
    level = level_strengths(fit.held_out.errors).numpy()
    chosen = [
        generator.choice(np.flatnonzero(level[:, output]), size=copies) for output in range(outputs)
    ]
    ridge = (
        torch.tensor(fit.alphas, dtype=torch.float64)[torch.from_numpy(np.stack(chosen, 1))]
        * rows.scale
    )
    turned = torch.einsum("pk,cpo->cko", vectors, change + cross)
    shrunk = turned / (values[None, :, None] + ridge[:, None]).clamp_min(1e-300)
    return torch.einsum("pk,cko->cpo", vectors, shrunk)
