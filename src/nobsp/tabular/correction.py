"""The correction of the head: all terms in one regression, with the head's own account as prior.

With T the compressed representations of all terms and R = y − prior, for every output

    δ(α) = (TᵀT/n + α s I)⁻¹ TᵀR/n,        s = mean variance of T's columns,

so that α → ∞ leaves the prior, which is partial dependence, and α → 0 is the oblique projection
along all other terms. T's columns are scaled by `compress`. Strengths and pairs are judged on rows
held out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nobsp.network.columns import Subset
from nobsp.tabular.effort import DIRECT_ROWS
from nobsp.tabular.features import Domain
from nobsp.tabular.health import r_squared
from nobsp.tabular.lookup import TermTable
from nobsp.tabular.setting import FOLDS, Codes, Sample, deal_folds
from nobsp.tabular.tables import DirectPiece, DirectTerm, Piece, TablePiece

# Strengths of the ridge that held-out rows choose from, relative to the columns' mean variance.
ALPHAS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0, 100.0, 1e4)
# A fitted interaction below this share of every output's spread is left out.
WORTH_FITTING = 0.005
# Unexplained share of the variance on held-out rows from which small interactions are not added:
# where features are correlated, a network's smallest interactions bend the main curves by more than
# they explain.
ENOUGH = 0.005
# Share of what is left then that every further interaction must explain, as one does that the
# function really has.
MOST_OF_THE_REST = 0.75
# A share of the variance on held-out rows that is not worth a weaker ridge: where features are
# correlated, so little is bought by curves that move far from calibration to calibration.
WORTH_A_WEAKER_RIDGE = 1e-5
# Up to this number of rows, all folds judge how many pairs are added.
ALL_FOLDS = 1000
# Folds that judge it where there are more rows.
TRIAL_FOLDS = 2
# Columns of a block of the design's products.
_BLOCK = 200


@dataclass(frozen=True, eq=False)
class Regression:
    """What the regression gets from the rows: terms as columns, the head's account, the folds.

    The head's account is what it makes of the terms, and is the prior.
    """

    design: Tensor  # compressed representations of all terms, (rows, columns), centred
    prior: Tensor  # what the head's own coefficients give, (rows, outputs)
    outputs: Tensor  # the network's, (rows, outputs)
    fold: Tensor
    outside: Tensor  # rows that lie outside the range of all other folds' rows
    # their compressed representations clamped to that range, less the same means; those of terms
    # without a table as they are
    clamped: Tensor
    # The regression that this one has some columns of, and which: products are taken from it.
    whole: tuple[Regression, Tensor | slice] | None = None

    @classmethod
    def of(
        cls, design: Tensor, outputs: Tensor, fold: Tensor, outside: Tensor, clamped: Tensor
    ) -> Regression:
        """A regression whose prior is not known yet."""
        centre = design.mean(0)
        return cls(
            design=design - centre,
            prior=torch.zeros_like(outputs),
            outputs=outputs,
            fold=fold,
            outside=outside,
            clamped=clamped - centre,
        )

    @property
    def n_folds(self) -> int:
        """Folds that the rows were dealt into."""
        return int(self.fold.max()) + 1

    @cached_property
    def products(self) -> Tensor:
        """Products of the design by fold, (folds, columns, columns)."""
        if self.whole is not None:
            regression, columns = self.whole
            if isinstance(columns, slice):
                return regression.products[:, columns, columns]
            return regression.products.index_select(1, columns).index_select(2, columns)

        n_columns = self.design.shape[1]
        products = torch.empty(self.n_folds, n_columns, n_columns, dtype=torch.float64)
        for number, product in enumerate(products):
            multiply_with_itself(self.design[self.fold == number], out=product)
        return products

    @cached_property
    def total(self) -> Tensor:
        """TᵀT of all rows."""
        if self.whole is not None:
            regression, columns = self.whole
            return regression.total[columns][:, columns]
        return self.products.sum(0)

    @cached_property
    def kernel(self) -> Tensor:
        """TTᵀ: all that fits need of the design where it has more columns than rows."""
        if self.whole is not None and self.whole[0].design.shape == self.design.shape:
            return self.whole[0].kernel  # columns in another order have the same one
        return self.design @ self.design.T

    @cached_property
    def clamped_kernel(self) -> Tensor:
        """The products of the rows outside, clamped, with all rows."""
        if self.whole is not None and self.whole[0].design.shape == self.design.shape:
            return self.whole[0].clamped_kernel
        return self.clamped @ self.design.T

    @cached_property
    def scale(self) -> float:
        """Mean variance of the columns: what α is relative to."""
        return float(self.design.square().sum()) / max(self.design.numel(), 1)

    @property
    def negligible(self) -> Tensor:
        """Per output the sum of squared residuals, over all rows, not worth a weaker ridge."""
        return WORTH_A_WEAKER_RIDGE * len(self.outputs) * self.outputs.var(0, correction=0)

    def only(self, columns: Tensor, prior: Tensor) -> Regression:
        """The regression of some of the columns."""
        chosen: Tensor | slice = columns
        if torch.equal(columns, torch.arange(len(columns))):
            chosen = slice(len(columns))  # the first ones need no copies
        return replace(
            self,
            design=self.design[:, chosen],
            prior=prior,
            clamped=self.clamped[:, chosen],
            whole=(self, chosen),
        )

    def unseen(self, rows: Tensor, values: Tensor, clamped: Tensor) -> Tensor:
        """Values of some rows as fits on other folds see them; `clamped` for the rows outside."""
        position = torch.full((len(self.design),), -1, dtype=torch.long)
        position[self.outside] = torch.arange(len(self.outside))
        beyond = position[rows] >= 0
        seen = values[rows]
        seen[beyond] = clamped[position[rows[beyond]]]
        return seen


def multiply_with_itself(design: Tensor, *, out: Tensor) -> None:
    """Writes TᵀT, block by block: what is above the diagonal is the same as below it."""
    n_columns = design.shape[1]
    for start in range(0, n_columns, _BLOCK):
        stop = min(start + _BLOCK, n_columns)
        out[start:, start:stop] = design[:, start:].T @ design[:, start:stop]
        out[start:stop, stop:] = out[stop:, start:stop].T


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Residuals of every row in the fit without its fold, for every strength of the ridge."""

    residual: Tensor  # (strengths, rows, outputs)
    errors: Tensor  # squared residuals summed by fold, (folds, strengths, outputs)
    negligible: Tensor  # squared residuals that are not worth a weaker ridge, per output
    best: Tensor  # per output the position of the strength that is taken

    @classmethod
    def of(cls, residual: Tensor, errors: Tensor, negligible: Tensor) -> HeldOut:
        """With the strengths that these errors choose."""
        return cls(residual, errors, negligible, choose_strength(errors, negligible))

    def judged(self) -> set[int]:
        """Positions of the strengths that were tried."""
        return set(self.errors.isfinite().all(2).all(0).nonzero().flatten().tolist())

    def chosen(self) -> Tensor:
        """Residuals at each output's own strength, (rows, outputs)."""
        residuals = [
            self.residual[strength, :, output] for output, strength in enumerate(self.best.tolist())
        ]
        return torch.stack(residuals, 1)


class Correction(NamedTuple):
    """The fitted correction."""

    delta: Tensor  # coefficients on the compressed representations, (columns, outputs)
    ridge: Tensor  # λ per output, as it is added to TᵀT/n
    alphas: Tensor  # α per output, relative to the scale of the regression


def judge(
    regression: Regression, alphas: Sequence[float], *, folds: Iterable[int] | None = None
) -> HeldOut:
    """Fits on all folds but one and predicts that one, for every strength."""
    n_rows, n_outputs = regression.outputs.shape
    held_out_folds = range(regression.n_folds) if folds is None else list(folds)
    target = regression.outputs - regression.prior
    cross = regression.design.T @ target
    ridges = [alpha * regression.scale for alpha in alphas]

    residual = torch.full((len(alphas), n_rows, n_outputs), torch.nan, dtype=torch.float64)
    for fold in held_out_folds:
        test = (regression.fold == fold).nonzero().flatten()
        train = (regression.fold != fold).nonzero().flatten()
        mean_target = target[train].sum(0) / max(len(train), 1)

        system, right, seen = _train_system(regression, target, cross, fold, test, train)
        predictions = _predict(system, right, seen, ridges)
        residual[:, test] = target[test] - mean_target - predictions

    by_fold = [residual[:, regression.fold == fold].square().sum(1) for fold in held_out_folds]
    errors = torch.stack(by_fold)
    return HeldOut.of(residual, errors, regression.negligible)


def _train_system(
    regression: Regression, target: Tensor, cross: Tensor, fold: int, test: Tensor, train: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Normal equations and right-hand sides of a fit without one fold, and that fold's rows.

    Held-out rows are given as that fit sees them: clamped where they lie outside its range.
    `cross` is TᵀR of all rows, `test` and `train` are positions of the fold's rows and of all
    others.
    """
    n_train = max(len(train), 1)
    mean_target = target[train].sum(0) / n_train

    # With more columns than rows, coefficients are combinations of the rows: as many unknowns as
    # rows are enough.
    if regression.design.shape[1] > len(train):
        system, seen = _train_kernel(regression, test, train)
        return system, target[train] - mean_target, seen

    held_out = regression.design[test]
    # Columns of all rows are centred: what the held-out rows add up to, the others lack.
    mean = -held_out.sum(0) / n_train
    # Products of the fold are taken off those of all rows, which are added up once for all folds.
    system = regression.total - regression.products[fold]
    system.div_(n_train).addr_(mean, mean, alpha=-1)
    right = (cross - held_out.T @ target[test]) / n_train - mean.outer(mean_target)
    seen = regression.unseen(test, regression.design, regression.clamped) - mean
    return system, right, seen


def _train_kernel(regression: Regression, test: Tensor, train: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel of the rows fitted on, and that of held-out rows with these, both centred.

    It is (T − t̄)(T − t̄)ᵀ/n, where t̄ is the mean of the rows fitted on.

    Both follow from the kernel of the rows before centring, which is the same for all folds and
    strengths.
    """
    n_train = max(len(train), 1)
    among = regression.kernel[train][:, train]
    seen = regression.unseen(test, regression.kernel, regression.clamped_kernel)[:, train]
    of_mean = among.sum(0) / n_train
    squared_mean = of_mean.sum() / n_train
    system = among - of_mean - of_mean[:, None] + squared_mean
    seen = seen - of_mean - seen.sum(1, keepdim=True) / n_train + squared_mean
    return system / n_train, seen / n_train


def judge_around(
    regression: Regression, alphas: Sequence[float], likely: Collection[int]
) -> HeldOut:
    """`judge` at likely strengths, and at their neighbours while these are as good as the best.

    Strengths that are not tried count as infinitely bad. To factorise for every strength is most of
    what a fit costs.
    """
    n_rows, n_outputs = regression.outputs.shape
    n_folds = regression.n_folds
    held_out = HeldOut(
        residual=torch.full((len(alphas), n_rows, n_outputs), torch.nan, dtype=torch.float64),
        errors=torch.full((n_folds, len(alphas), n_outputs), torch.inf, dtype=torch.float64),
        negligible=regression.negligible,
        best=torch.zeros(n_outputs, dtype=torch.long),
    )
    wanted = _with_neighbours(likely, len(alphas))
    while not wanted <= held_out.judged():
        held_out = judge_also(held_out, regression, alphas, wanted)
        tied = tied_strengths(held_out.errors, held_out.negligible).any(1)
        wanted = _with_neighbours(tied.nonzero().flatten().tolist(), len(alphas))
    return held_out


def judge_also(
    held_out: HeldOut, regression: Regression, alphas: Sequence[float], wanted: Collection[int]
) -> HeldOut:
    """What was judged, with the strengths at more positions, unless these were judged before."""
    positions = sorted(set(wanted) - held_out.judged())
    if not positions:
        return held_out
    more = judge(regression, [alphas[position] for position in positions])
    residual = held_out.residual.clone()
    residual[positions] = more.residual
    errors = held_out.errors.clone()
    errors[:, positions] = more.errors
    return HeldOut.of(residual, errors, held_out.negligible)


def _with_neighbours(positions: Collection[int], count: int) -> set[int]:
    """Positions below `count`, with those before and after each."""
    around = {position + step for position in positions for step in (-1, 0, 1)}
    return {position for position in around if 0 <= position < count}


def _predict(system: Tensor, right: Tensor, seen: Tensor, ridges: Sequence[float]) -> Tensor:
    """Predictions of some rows at every λ, (ridges, rows, outputs)."""
    memory = factor_memory(system)
    solutions = torch.stack(
        [solve_ridge(system, right, ridge, memory=memory) for ridge in ridges], 1
    )
    # One product for all ridges.
    predictions = seen @ solutions.flatten(1)
    return predictions.view(len(seen), *solutions.shape[1:]).movedim(1, 0)


def tied_strengths(errors: Tensor, negligible: Tensor) -> Tensor:
    """Which strengths the folds cannot tell from the best, (strengths, outputs).

    Within one standard error of it, or within errors that are `negligible` in all folds together.
    """
    folds, _, outputs = errors.shape
    best = errors.sum(0).argmin(0)
    worse = errors - errors.gather(1, best.expand(folds, 1, outputs))
    standard_error = worse.std(0, correction=0) / max(folds - 1, 1) ** 0.5
    tied: Tensor = worse.mean(0) <= torch.maximum(standard_error, negligible / folds)
    return tied


def choose_strength(errors: Tensor, negligible: Tensor) -> Tensor:
    """Per output the strongest ridge that the folds cannot tell from the best one.

    In doubt the prior decides.
    """
    tied = tied_strengths(errors, negligible)
    positions = torch.arange(len(tied))[:, None]
    return torch.where(tied, positions, -1).amax(0)


def fit_correction(regression: Regression, alphas: Tensor) -> Correction:
    """The correction from all rows, with one strength per output."""
    n_rows = len(regression.design)
    target = regression.outputs - regression.prior
    centred = (target - target.mean(0)) / n_rows

    ridges = alphas * regression.scale
    delta = torch.zeros(regression.design.shape[1], target.shape[1], dtype=torch.float64)
    for ridge in sorted(set(ridges.tolist())):
        outputs = ridges == ridge
        right = centred[:, outputs]
        if ridge > 0 and len(delta) > n_rows:  # Tᵀ(TTᵀ/n + λI)⁻¹ is the same and takes less
            solution = solve_ridge(regression.kernel / n_rows, right, ridge)
            delta[:, outputs] = regression.design.T @ solution
        else:
            right = regression.design.T @ right
            delta[:, outputs] = solve_ridge(regression.total / n_rows, right, ridge)
    return Correction(delta, ridges, alphas)


def solve_ridge(
    gram: Tensor, cross: Tensor, ridge: float, *, memory: Tensor | None = None
) -> Tensor:
    """(G + λI)⁻¹ c; the least-norm solution where λ is too small to make it definite.

    `memory` comes from `factor_memory` and is overwritten. Several solves share it, because
    allocating megabytes for each takes as long as factorising.
    """
    factor = factor_memory(gram) if memory is None else memory
    factor.copy_(gram)
    factor.diagonal().add_(ridge)
    failed = torch.empty(0, dtype=torch.int32)
    torch.linalg.cholesky_ex(factor, out=(factor, failed))
    if not int(failed):
        return torch.cholesky_solve(cross, factor)

    system = gram.clone()
    system.diagonal().add_(ridge)
    least: Tensor = torch.linalg.pinv(system, hermitian=True) @ cross
    return least


def factor_memory(gram: Tensor) -> Tensor:
    """Memory for a factor of a matrix, column by column as the solver wants it."""
    return torch.empty_like(gram, memory_format=torch.contiguous_format).mT


@dataclass(frozen=True)
class Trial:
    """Terms that must pay on rows held out, and what each must bring.

    Where features are correlated, terms that explain next to nothing bend the main curves.
    """

    terms: tuple[Subset, ...]  # in the order in which they are added, unless that is `by_size`
    least_relative_gain: float  # share of what is unexplained that a term must explain
    least_gain: float  # share of the outputs' variance that a term must explain
    # α of the ridge to try them at; None for every second one of ALPHAS, or the one that was asked
    # for
    alphas: tuple[float, ...] | None = None
    # after more numbers of terms than this were tried without a gain, no more are tried
    patience: int | None = None
    by_size: bool = False  # whether those come first whose effects are largest where rows are

    def cost(self, unexplained: float, terms: int) -> float:
        """What is unexplained with this number of terms, and what these must have brought."""
        return unexplained * (1 + self.least_relative_gain * terms) + self.least_gain * terms


@dataclass(frozen=True, eq=False)
class RegressionFit:
    """Pieces that stayed, their functions, and the regression behind them.

    The regression is there as long as the rows are in memory.
    """

    pieces: tuple[Piece, ...]
    functions: tuple[TermTable | DirectTerm, ...]  # one per piece
    sizes: tuple[float, ...]  # each one's spread as a share of the outputs'
    # The rows of the regression, which curves are centred on: fewer (2,048) where a term has no
    # table.
    sample: Sample
    regression: Regression
    alphas: tuple[float, ...]  # the strengths that were tried
    held_out: HeldOut
    correction: Correction
    explained: Tensor  # on rows held out, per output
    inside: Tensor  # the same on rows inside the range of the rows fitted on

    @property
    def likely(self) -> set[int]:
        """Positions of the strengths that were taken; those of a similar fit are near them."""
        return {int(position) for position in self.held_out.best}

    def large_enough(self) -> set[Subset]:
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
    likely: Collection[int] | None = None,
) -> RegressionFit:
    """Chooses the strength and which terms on trial pay, and fits the correction.

    The choice is made on rows held out; the correction is fitted on all rows.

    `likely` are positions of strengths around which the best is looked for; a trial finds its own.
    """
    candidates = _Candidates.of(sample, pieces, domains, ridge=ridge)
    if trial is None:
        return candidates.fit(range(len(pieces)), likely)

    certain, on_trial = _part_terms(pieces, trial)
    verdict = candidates.judge_ladder(certain, on_trial, trial)
    fit = candidates.fit([*certain, *verdict.paying], verdict.likely)
    large_enough = fit.large_enough()
    large = [number for number in verdict.paying if pieces[number].term in large_enough]
    if len(large) == len(verdict.paying):
        return fit
    return candidates.fit([*certain, *large], fit.likely)


@dataclass(frozen=True, eq=False)
class Tried:
    """What a trial left, before it is fitted with all folds."""

    candidates: _Candidates  # all pieces, those on trial and the others
    paying: set[Subset]  # terms on trial that pay, and vary enough to be shown
    large_enough: set[Subset]  # all terms that vary so much
    likely: set[int] | None  # positions of the strengths that were best

    def fit_all(self) -> RegressionFit:
        """Fits all pieces, as is wanted where all of them stay, without reading them again."""
        return self.candidates.fit(range(len(self.candidates.pieces)), self.likely)


def try_terms(
    sample: Sample,
    pieces: Sequence[Piece],
    domains: Sequence[Domain],
    *,
    ridge: float | None,
    trial: Trial,
) -> Tried:
    """Which terms on trial pay on rows held out, without a fit of those that stay."""
    candidates = _Candidates.of(sample, pieces, domains, ridge=ridge)
    certain, on_trial = _part_terms(pieces, trial)
    verdict = candidates.judge_ladder(certain, on_trial, trial)
    tried = [*certain, *verdict.paying]
    sizes = candidates.sizes(tried, verdict.alphas)
    large = [number for number, size in zip(tried, sizes, strict=True) if size >= WORTH_FITTING]
    return Tried(
        candidates=candidates,
        paying={pieces[number].term for number in large if number in on_trial},
        large_enough={pieces[number].term for number in large},
        likely=verdict.likely,
    )


def _part_terms(pieces: Sequence[Piece], trial: Trial) -> tuple[list[int], list[int]]:
    """Positions of the pieces not on trial, and of those on trial in the order of the trial."""
    position = {piece.term: number for number, piece in enumerate(pieces)}
    on_trial = [position[term] for term in trial.terms]
    certain = [number for number in range(len(pieces)) if number not in on_trial]
    return certain, on_trial


@dataclass(frozen=True, eq=False)
class _Candidates:
    """All pieces read on the rows of the regression; some of them are then fitted together."""

    sample: Sample
    pieces: Sequence[Piece]
    parts: Sequence[tuple[Tensor, Tensor]]  # representation and prior of every piece
    regression: Regression  # of all pieces
    columns: Sequence[Tensor]  # the columns of every piece
    alphas: tuple[float, ...]

    @classmethod
    def of(
        cls,
        sample: Sample,
        pieces: Sequence[Piece],
        domains: Sequence[Domain],
        *,
        ridge: float | None,
    ) -> _Candidates:
        """Reads the pieces on the rows of the regression, dealt into folds."""
        ranks = [piece.rank for piece in pieces]
        generator = np.random.default_rng(0)
        rows = _limit_rows(sample, pieces, generator)
        fold = torch.from_numpy(deal_folds(rows.units(), generator=generator))

        parts = [piece.read(rows) for piece in pieces]
        outside, clamped_rows = clamp_outside(rows, domains, fold)
        clamped = [
            piece.read(clamped_rows)[0]
            if isinstance(piece, TablePiece)
            else representation[outside]
            for piece, (representation, _) in zip(pieces, parts, strict=True)
        ]
        return cls(
            sample=rows,
            pieces=pieces,
            parts=parts,
            regression=Regression.of(
                design=torch.cat([representation for representation, _ in parts], 1),
                outputs=rows.outputs,
                fold=fold,
                outside=outside,
                clamped=torch.cat(clamped, 1),
            ),
            columns=torch.split(torch.arange(sum(ranks)), ranks),
            alphas=ALPHAS if ridge is None else (ridge,),
        )

    def regression_of(self, chosen: Sequence[int]) -> Regression:
        """The regression with some of the pieces."""
        prior = torch.stack([self.parts[number][1] for number in chosen]).sum(0)
        columns = torch.cat([self.columns[number] for number in chosen])
        return self.regression.only(columns, prior)

    def fit(self, chosen: Sequence[int], likely: Collection[int] | None = None) -> RegressionFit:
        """Some of the pieces, fitted together at the strengths that held-out rows choose.

        All strengths are tried, or only those around `likely` ones.
        """
        regression = self.regression_of(chosen)
        if likely:
            held_out = judge_around(regression, self.alphas, likely)
        else:
            held_out = judge(regression, self.alphas)
        return complete_fit(
            [self.pieces[number] for number in chosen],
            [self.parts[number] for number in chosen],
            sample=self.sample,
            regression=regression,
            alphas=self.alphas,
            held_out=held_out,
        )

    def sizes(self, chosen: Sequence[int], alphas: Tensor | None) -> list[float]:
        """Spread of pieces fitted together at given strengths, as a share of the outputs'.

        Infinite where no strengths are given.
        """
        if alphas is None:
            return [float("inf")] * len(chosen)
        correction = fit_correction(self.regression_of(chosen), alphas)
        deltas = torch.split(correction.delta, [self.pieces[number].rank for number in chosen])
        sizes = []
        for number, delta in zip(chosen, deltas, strict=True):
            representation, prior = self.parts[number]
            values = prior + representation @ delta
            sizes.append(float((values.std(0, correction=0) / self.sample.spread).max()))
        return sizes

    def judge_ladder(
        self, certain: Sequence[int], on_trial: Sequence[int], trial: Trial
    ) -> _Verdict:
        """Which of the pieces on trial pay on held-out rows; all, if rows are too few to tell."""
        if not on_trial or len(self.sample) < 2 * FOLDS:
            return _Verdict(paying=on_trial)

        ordered = on_trial
        rungs: list[_Rung] = []
        for count in _ladder(len(on_trial)):
            # In the order of the pieces, so that all of them need no copies.
            regression = self.regression_of(sorted([*certain, *ordered[:count]]))
            rung = self._try_rung(regression, count, trial)
            if rungs and rung.unexplained > rungs[-1].next_must_reach:
                break
            rungs.append(rung)
            if _gives_up(rungs, trial):
                break

            if count == 0 and trial.by_size:
                sizes = self._sizes_on_rows(on_trial, regression, rung.alphas)
                ordered = sorted(on_trial, key=lambda number: -sizes[number])

        best = _cheapest(rungs)
        paying = set(ordered[: best.count])
        return _Verdict(
            paying=[number for number in on_trial if number in paying],
            likely={self.alphas.index(alpha) for alpha in best.alphas.tolist()},
            alphas=best.alphas,
        )

    def _try_rung(self, regression: Regression, count: int, trial: Trial) -> _Rung:
        """What held-out rows say of a regression with `count` of the pieces on trial."""
        n_rows = len(self.sample)
        # Fewer folds than usual where most rows are copies of others.
        n_folds = self.regression.n_folds
        folds = range(n_folds if n_rows <= ALL_FOLDS else min(n_folds, TRIAL_FOLDS))
        alphas = trial.alphas or self.alphas[::2]

        errors = judge(regression, alphas, folds=folds).errors.sum(0)
        variance = self.sample.spread.square()
        least = errors.amin(0) / (variance * n_rows)
        unexplained = float(least.mean()) * n_folds / len(folds)
        return _Rung(
            count=count,
            unexplained=unexplained,
            cost=trial.cost(unexplained, count),
            alphas=torch.tensor(alphas, dtype=torch.float64)[errors.argmin(0)],
        )

    def _sizes_on_rows(
        self, on_trial: Sequence[int], without: Regression, alphas: Tensor
    ) -> dict[int, float]:
        """How large each prior on trial is at the rows, apart from the terms of a fit without it.

        After these have taken over what they can of it,

            e_⊥ = e − T (TᵀT/n + λI)⁻¹ Tᵀe/n,        size = e_⊥ᵀe_⊥,

        as a share of the outputs' variance and on average over them. What held-out rows leave
        unexplained has no say in the order: pairs that were chosen by it would make the headline of
        the same rows too high.
        """
        n_rows = len(self.sample)
        gram = without.total / n_rows
        variance = self.sample.spread.square() * n_rows
        sizes = torch.zeros(len(on_trial), dtype=torch.float64)
        for output, alpha in enumerate(alphas.tolist()):
            effects = torch.stack([self.parts[number][1][:, output] for number in on_trial], 1)
            effects = effects - effects.mean(0)
            shared = solve_ridge(gram, without.design.T @ effects / n_rows, alpha * without.scale)
            apart = effects - without.design @ shared
            sizes += apart.square().sum(0) / variance[output]
        return dict(zip(on_trial, sizes.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class _Rung:
    """Some of the pieces on trial, fitted together with the certain ones."""

    count: int  # of the pieces on trial
    unexplained: float  # share of the outputs' variance on held-out rows
    cost: float  # the same with what every piece must pay for itself
    alphas: Tensor  # the best strength of every output

    @property
    def next_must_reach(self) -> float:
        """What the next rung may leave unexplained: anything, unless little is left by this one."""
        if self.unexplained > ENOUGH:
            return math.inf
        n_more = max(self.count, 1)  # as the ladder's next rung has twice as many
        return self.unexplained * (1 - MOST_OF_THE_REST) ** n_more


def _cheapest(rungs: Sequence[_Rung]) -> _Rung:
    """The rung that held-out rows choose; the one with fewer pieces where two cost the same."""
    return min(rungs, key=lambda rung: rung.cost)


def _gives_up(rungs: Sequence[_Rung], trial: Trial) -> bool:
    """Whether more rungs than the trial has patience for were no better than none of its pieces."""
    is_patient = trial.patience is None or len(rungs) <= trial.patience
    return not is_patient and _cheapest(rungs).count == 0


class _Verdict(NamedTuple):
    """What a trial tells."""

    paying: Sequence[int]  # positions of the pieces that pay, in the order of the trial
    # positions of the strengths that were best with these; None where none was tried
    likely: set[int] | None = None
    alphas: Tensor | None = None  # the same strengths, one per output


def _limit_rows(sample: Sample, pieces: Sequence[Piece], generator: np.random.Generator) -> Sample:
    """All rows, or some of them drawn at random where a term has no table.

    Every row is run for a term without a table.
    """
    runs_rows = any(isinstance(piece, DirectPiece) for piece in pieces)
    if not runs_rows or len(sample) <= DIRECT_ROWS:
        return sample
    drawn = generator.permutation(len(sample))[:DIRECT_ROWS]
    # In their order, because `Sample.units` needs equal rows side by side.
    return sample.take(np.sort(drawn))


def _ladder(count: int) -> list[int]:
    """How many terms are tried: none, one, two, four, … and all."""
    doubled = [1 << power for power in range(count.bit_length()) if 1 << power < count]
    return [0, *doubled, count]


def complete_fit(
    pieces: Sequence[Piece],
    parts: Sequence[tuple[Tensor, Tensor]],
    *,
    sample: Sample,
    regression: Regression,
    alphas: Sequence[float],
    held_out: HeldOut,
) -> RegressionFit:
    """The correction at the strengths that held-out rows chose, and the pieces' functions."""
    best_alphas = torch.tensor(alphas, dtype=torch.float64)[held_out.best]
    correction = fit_correction(regression, best_alphas)
    deltas = torch.split(correction.delta, [piece.rank for piece in pieces])

    functions = []
    sizes = []
    for piece, (representation, prior), delta in zip(pieces, parts, deltas, strict=True):
        values = prior + representation @ delta
        functions.append(piece.as_function(delta, values.mean(0)))
        sizes.append(float((values.std(0, correction=0) / sample.spread).max()))

    residuals = held_out.chosen()
    inside = torch.ones(len(sample), dtype=torch.bool)
    inside[regression.outside] = False
    return RegressionFit(
        pieces=tuple(pieces),
        functions=tuple(functions),
        sizes=tuple(sizes),
        sample=sample,
        regression=regression,
        alphas=tuple(alphas),
        held_out=held_out,
        correction=correction,
        explained=share_explained(residuals, sample.outputs),
        inside=share_explained(residuals[inside], sample.outputs[inside]),
    )


def share_explained(residual: Tensor, outputs: Tensor) -> Tensor:
    """R² per output: the share of its variance that residuals do not leave.

    NaN where an output varies by rounding only.
    """
    return torch.from_numpy(r_squared(residual.numpy(), outputs.numpy()))


def scatter_of_share(residuals: Tensor, outputs: Tensor, units: Codes) -> Tensor:
    """Standard error of R² over units of rows, by the delta method; NaN for a constant output.

    Rows of one unit (copies, named groups) count together, as they are held out.
    """
    centred = (outputs - outputs.mean(0)).square()
    total = centred.mean(0)
    left = residuals.square().mean(0) / total
    influence = (residuals.square() - left * centred) / total

    by_unit = torch.zeros(int(units.max(initial=0)) + 1, outputs.shape[1], dtype=torch.float64)
    by_unit.index_add_(0, torch.from_numpy(units), influence)
    scatter: Tensor = by_unit.square().sum(0).sqrt() / max(len(outputs), 1)
    return scatter


def clamp_outside(sample: Sample, domains: Sequence[Domain], fold: Tensor) -> tuple[Tensor, Sample]:
    """Rows outside the range of all other folds' rows, and the same clamped to that range.

    Unseen rows may be outside in the same way.
    """
    beyond = np.zeros(len(sample), dtype=bool)
    own = dict(sample.own)
    for domain in domains:
        if domain.span is None:
            continue
        column = domain.feature.columns[0]
        values = np.asarray(sample.own[column], dtype=np.float64)
        clamped = values.copy()
        for number in range(int(fold.max()) + 1):
            mine = (fold == number).numpy()
            others = values[~mine & ~np.isnan(values)]
            if len(others):
                clamped[mine] = np.clip(values[mine], others.min(), others.max())
        beyond |= ~((clamped == values) | np.isnan(values))
        own[column] = clamped

    rows = np.flatnonzero(beyond)
    return torch.from_numpy(rows), replace(sample, own=own).take(rows)
