"""How far curves move for other calibration and background rows of the same kind.

The network is not run again for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nobsp.network.columns import Subset
from nobsp.numerics import evenly_spaced
from nobsp.published.algorithm import N_RESAMPLES
from nobsp.tabular.correction import RegressionFit, tied_strengths
from nobsp.tabular.features import Points
from nobsp.tabular.lookup import Array, Chunk
from nobsp.tabular.tables import TablePiece, occupancy, purify, read, transfer

# Rows on which the resamples' priors are read: the correction's share of a band changes little with
# more.
_PRIOR_ROWS = 2048
# Most bytes of deviations; where all terms and outputs together take more, none are kept.
_MOST_BYTES = 1 << 28
# Keeps a division by an eigenvalue of zero, without a ridge, finite.
_LEAST = 1e-300

# Per feature its points, and something of every background row there.
Traced = dict[int, tuple[Points, Tensor]]


@dataclass(frozen=True, eq=False)
class Traces:
    """What the background rows give one by one, from which bands are made."""

    mains: Traced  # outputs, (background, points, outputs)
    lines: Traced  # grid lines, and where on them the background is, (background, points)
    grids: dict[Subset, Tensor]  # outputs (background of pairs, points, points, outputs)
    # The same two of triples, whose grids are coarser.
    triple_lines: Traced = field(default_factory=dict)
    triples: dict[Subset, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Resamples:
    """What other calibrations of the same kind would have given, as deviations from this one."""

    spreads: dict[int, Tensor]  # per feature how far its curve moves, (points, outputs)
    deviations: dict[Subset, Tensor]  # per term, resample by resample, (resamples, nodes, outputs)


def resample_functions(fit: RegressionFit, traces: Traces) -> Resamples:
    """How far functions move from calibration to calibration.

    Every resample draws the calibration rows and the background rows anew, with replacement. Prior
    and margins are made again from what each background row gave; the correction follows to first
    order from the influence of the rows,

        δ_w − δ = (TᵀT/n + λI)⁻¹ [ Σ_i (w_i − 1) t_i e_i + Σ_i t_i (prior − prior_w)_i ] / n,

    with e_i the residual of row i in a fit without its fold, and a strength λ that the folds cannot
    tell from the best. The ridge's bias towards partial dependence, λ (TᵀT/n + λI)⁻¹ δ, is added to
    the variance, squared, so it widens the band on both sides.
    """
    if not traces.mains:
        return Resamples({}, {})
    generator = np.random.default_rng(0)
    chunk = fit.sample.chunk()
    draws = _draw_rows(fit, generator)
    priors = _resample_priors(traces, chunk, draws, generator)

    system = _System.of(fit)
    corrections = _resample_corrections(fit, system, draws, priors, generator)
    pull = system.pull_of_ridge(fit)
    # The ridge pulls every resample along one direction, some more and some less.
    pull_sizes = torch.from_numpy(generator.standard_normal(len(draws)))[:, None, None]
    keeps_deviations = _count_bytes(fit) <= _MOST_BYTES

    spreads = {}
    deviations = {}
    start = 0
    for piece in fit.pieces:
        columns = slice(start, start + piece.rank)
        start = columns.stop
        if not isinstance(piece, TablePiece) or not piece.points:
            continue

        basis = piece.basis[piece.clamped_nodes()]
        resamples = torch.einsum("pr,cro->cpo", basis, corrections[:, columns])
        if piece.term in priors:
            resamples = resamples + priors[piece.term]
        pulled = basis @ pull[columns]

        if len(piece.term) == 1:
            resamples = _centre_curves(resamples, piece.points[0], chunk, draws)
            pulled = pulled - occupancy(piece.points[0], chunk) @ pulled
            spreads[piece.term[0]] = (resamples.var(0, correction=1) + pulled.square()).sqrt()
        elif keeps_deviations:
            resamples = _centre_on_rows(piece, resamples, fit, draws)
            pulled = _centre_on_rows(piece, pulled[None], fit, np.ones_like(draws[:1]))[0]

        if keeps_deviations:
            moved = resamples - resamples.mean(0) + pull_sizes * pulled
            deviations[piece.term] = moved.float()
    return Resamples(spreads, deviations)


def _count_bytes(fit: RegressionFit) -> int:
    """What the deviations of all terms take in single precision."""
    n_outputs = fit.regression.outputs.shape[1]
    n_nodes = sum(
        len(piece.basis) for piece in fit.pieces if isinstance(piece, TablePiece) and piece.points
    )
    return N_RESAMPLES * n_nodes * n_outputs * torch.finfo(torch.float32).bits // 8


def _draw_rows(fit: RegressionFit, generator: np.random.Generator) -> Array:
    """How often each resample draws each row, shape (resamples, rows).

    Rows that belong together are drawn together.
    """
    units = fit.sample.units()
    n_units = int(units.max()) + 1
    equal_chances = np.full(n_units, 1 / n_units)
    drawn = generator.multinomial(n_units, equal_chances, size=N_RESAMPLES)
    return drawn[:, units].astype(np.float64)


def _centre_curves(curves: Tensor, points: Points, chunk: Chunk, draws: Array) -> Tensor:
    """Curves of the resamples, each less its mean over the rows that its resample drew."""
    shares = torch.stack([occupancy(points, chunk, draw) for draw in draws])
    means = torch.einsum("cp,cpo->co", shares, curves)
    return curves - means[:, None]


def _centre_on_rows(
    piece: TablePiece, resamples: Tensor, fit: RegressionFit, draws: Array
) -> Tensor:
    """Grids of the resamples, each less its mean over some of the rows that its resample drew."""
    few = evenly_spaced(len(fit.sample), _PRIOR_ROWS)
    chunk = fit.sample.take(few).chunk()
    n_resamples, _, n_outputs = resamples.shape

    side_by_side = resamples.movedim(0, 1).flatten(1)
    values = read(piece.as_term_table(side_by_side), chunk)
    values = values.reshape(len(few), n_resamples, n_outputs)
    counts = torch.from_numpy(draws[:, few])
    sums = torch.einsum("cr,rco->co", counts, values)
    means = sums / counts.sum(1, keepdim=True).clamp_min(1)
    return resamples - means[:, None]


def _resample_priors(
    traces: Traces, chunk: Chunk, draws: Array, generator: np.random.Generator
) -> dict[Subset, Tensor]:
    """Every table's prior in every resample: other background rows, and margins over other rows."""
    n_resamples = len(draws)
    n_background = next(iter(traces.mains.values()))[1].shape[0]
    of_mains = _draw_background(n_background, n_resamples, generator)
    priors: dict[Subset, Tensor] = {
        (feature,): _average_background(outputs, of_mains)
        for feature, (_, outputs) in traces.mains.items()
    }
    for grids, lines in (
        (traces.grids, traces.lines),
        (traces.triples, traces.triple_lines),
    ):
        if not grids:
            continue
        n_background = next(iter(grids.values())).shape[0]
        of_grids = _draw_background(n_background, n_resamples, generator)
        shares = {
            feature: torch.stack([occupancy(points, chunk, draw) for draw in draws])
            for feature, (points, _) in lines.items()
        }
        for term, outputs in grids.items():
            averages = _average_background(outputs, of_grids)
            pure = _purify_each(averages, [shares[k] for k in term])
            priors[term] = pure.flatten(1, -2)
            _take_margins_out(priors, traces.mains, lines, term, pure, of_mains.double())

    return priors


def _draw_background(count: int, n_resamples: int, generator: np.random.Generator) -> Tensor:
    """The share that each resample gives each background row, (resamples, background)."""
    equal_chances = np.full(count, 1 / count)
    drawn = generator.multinomial(count, equal_chances, size=n_resamples)
    return torch.from_numpy(drawn / count).to(torch.float32)


def _average_background(outputs: Tensor, drawn: Tensor) -> Tensor:
    """Per resample the mean over the background rows that it drew."""
    return torch.einsum("ck,k...->c...", drawn, outputs).double()


def _purify_each(tables: Tensor, shares: Sequence[Tensor]) -> Tensor:
    """Every resample's grid without its margins over the rows that the resample drew."""
    grids = []
    for number, table in enumerate(tables):
        own_shares = [share[number] for share in shares]
        grids.append(purify(table, own_shares))
    return torch.stack(grids)


def _take_margins_out(
    priors: dict[Subset, Tensor],
    mains: Traced,
    lines: Traced,
    term: Subset,
    pure: Tensor,
    drawn: Tensor,
) -> None:
    """Takes a term's average over the background out of its features' own priors."""
    places = [lines[feature][1] for feature in term]
    for side, feature in enumerate(term):
        margin = _resampled_margin(pure, places, side, drawn)
        moved = transfer(lines[feature][0], margin.movedim(0, 1), mains[feature][0])
        priors[feature,] = priors[feature,] - moved.movedim(1, 0)


def _resampled_margin(pure: Tensor, places: Sequence[Tensor], side: int, drawn: Tensor) -> Tensor:
    """Per resample, a grid along one side, averaged over the background rows that it drew."""
    others = [share for other, share in enumerate(places) if other != side]
    grids = pure.movedim(side + 1, 1)
    if len(others) == 1:
        return torch.einsum("cijo,cj->cio", grids, drawn @ others[0])
    joint = torch.einsum("cr,rj,rk->cjk", drawn, *others)
    return torch.einsum("cijko,cjk->cio", grids, joint)


@dataclass(frozen=True, eq=False)
class _System:
    """TᵀT/n by its eigenvalues and eigenvectors, to be solved with many strengths."""

    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, fit: RegressionFit) -> _System:
        regression = fit.regression
        gram = regression.total / len(regression.design)
        values, vectors = torch.linalg.eigh(gram)
        return cls(values.clamp_min(0), vectors)

    def solve(self, right: Tensor, ridge: Tensor) -> Tensor:
        """(TᵀT/n + λI)⁻¹ of every resample's right-hand side; one λ per resample and output."""
        turned = torch.einsum("pk,cpo->cko", self.vectors, right)
        divisors = (self.values[None, :, None] + ridge[:, None]).clamp_min(_LEAST)
        return torch.einsum("pk,cko->cpo", self.vectors, turned / divisors)

    def pull_of_ridge(self, fit: RegressionFit) -> Tensor:
        """λ (TᵀT/n + λI)⁻¹ δ: how far the ridge pulls the correction towards none."""
        ridge = fit.correction.ridge[None]
        turned = self.vectors.T @ fit.correction.delta
        divisors = (self.values[:, None] + ridge).clamp_min(_LEAST)
        return self.vectors @ (turned * ridge / divisors)


def _resample_corrections(
    fit: RegressionFit,
    system: _System,
    draws: Array,
    priors: Mapping[Subset, Tensor],
    generator: np.random.Generator,
) -> Tensor:
    """The correction in every resample, (resamples, columns, outputs)."""
    regression = fit.regression
    target = regression.outputs - regression.prior
    cross = regression.design.T @ (target - target.mean(0)) / len(target)

    by_rows = _change_of_rows(fit, draws)
    by_priors = _change_of_priors(fit, priors, n_resamples=len(draws))
    strengths = _draw_strengths(fit, len(draws), generator)
    return system.solve(by_rows + by_priors + cross, strengths)


def _change_of_rows(fit: RegressionFit, draws: Array) -> Tensor:
    """Σ_i (w_i − 1) t_i e_i / n in every resample."""
    design = fit.regression.design
    residuals = fit.held_out.chosen()
    surplus = torch.from_numpy(draws) - 1
    # One output at a time: resamples × rows × columns would not fit.
    changes = [surplus @ (design * residual[:, None]) for residual in residuals.unbind(1)]
    return torch.stack(changes, 2) / len(design)


def _change_of_priors(
    fit: RegressionFit, priors: Mapping[Subset, Tensor], *, n_resamples: int
) -> Tensor:
    """Σ_i t_i (prior − prior_w)_i / n in every resample, read on some of the rows."""
    n_rows, n_outputs = fit.regression.outputs.shape
    few = evenly_spaced(n_rows, _PRIOR_ROWS)
    chunk = fit.sample.take(few).chunk()
    design = fit.regression.design[torch.from_numpy(few)]

    moved = torch.zeros(len(few), n_resamples * n_outputs, dtype=torch.float64)
    for piece in fit.pieces:
        if isinstance(piece, TablePiece) and piece.term in priors:
            difference = piece.prior[None] - priors[piece.term]
            side_by_side = difference.movedim(0, 1).flatten(1)
            moved += read(piece.as_term_table(side_by_side), chunk)

    moved = (moved - moved.mean(0)).reshape(len(few), n_resamples, n_outputs)
    centred = design - design.mean(0)
    return torch.einsum("rp,rco->cpo", centred, moved) / len(few)


def _draw_strengths(fit: RegressionFit, n_resamples: int, generator: np.random.Generator) -> Tensor:
    """Per resample and output, a λ that the folds cannot tell from the best one.

    It is given as it is added to TᵀT/n.
    """
    tied = tied_strengths(fit.held_out.errors, fit.held_out.negligible).numpy()
    drawn = [generator.choice(np.flatnonzero(column), size=n_resamples) for column in tied.T]
    positions = torch.from_numpy(np.stack(drawn, 1))
    alphas = torch.tensor(fit.alphas, dtype=torch.float64)
    return alphas[positions] * fit.regression.scale
