"""Pairs that were not looked for, as far as held-out rows show them: what two features leave.

It takes no forward pass. Every feature is cut into few bins. The mean residual in each cell of two
features, without what either makes by itself, is estimated from either half of the rows: products
of both estimates have none of the noise of either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.network.columns import Subset
from nobsp.tabular.correction import RegressionFit
from nobsp.tabular.features import Domain
from nobsp.tabular.lookup import Array, Chunk
from nobsp.tabular.setting import Codes, Sample

# Bins of a feature: as many as leave some twenty rows to a cell of two features.
_ROWS_PER_CELL = 20
_FEWEST_BINS, _MOST_BINS = 2, 5
# Features, the largest first, and outputs, the least explained first, that are looked at.
_MOST_FEATURES = 100
_MOST_OUTPUTS = 4
# Residuals farther than this many standard deviations are drawn in: one row makes no cell.
_FARTHEST = 4.0
# Standard errors by which a squared strength must exceed what chance gives the largest of all.
_BEYOND_CHANCE = 2.0
# Turns in which what single features make is taken away.
_SWEEPS = 5


def strengths_in_residual(
    fit: RegressionFit, domains: Sequence[Domain], sizes: Mapping[int, float], units: Codes
) -> dict[Subset, float]:
    """Pairs that the residual of held-out rows holds for certain, strongest first.

    A strength is the spread that two features make only together, as a share of the output's and
    as far as few bins show it. Of several outputs it is the largest. `sizes` says how large the
    functions of the single features are, and `units` has a number for every row, the same for rows
    that belong together.
    """
    bins = _bins_of_features(domains, fit.sample, sizes)
    if len(bins) < 2:
        return {}
    features = sorted(bins)
    codes = np.stack([bins[k] for k in features])
    residual = _drawn_in(_least_explained(fit))
    width = int(codes.max()) + 1
    halves = [_Cells.of(codes[:, rows], residual[rows], width=width) for rows in _halves(units)]
    certain = _certain_strengths(*halves, inflation=_inflation(residual, units)).tolist()

    strengths = {}
    for a, b in combinations(range(len(features)), 2):
        if certain[a][b] > 0:
            strengths[features[a], features[b]] = certain[a][b]
    return dict(sorted(strengths.items(), key=lambda pair: -pair[1]))


@dataclass(frozen=True, eq=False)
class _Cells:
    """Of some rows, the cells that the bins of every two features make."""

    counts: Tensor  # rows in each, (features, bins, features, bins)
    means: Tensor  # what only both features make of the residual, (outputs, *counts)
    variance: Tensor  # of the residual, (outputs,)
    n_rows: int

    @classmethod
    def of(cls, codes: NDArray[np.intp], residual: Tensor, *, width: int) -> _Cells:
        """The cells of rows with these bins, (features, rows), and residuals, (rows, outputs).

        `width` is how many bins there are, of which these rows need not have all.
        """
        # Of single precision: counts are whole numbers, and means need a few digits.
        is_in = torch.nn.functional.one_hot(torch.from_numpy(codes), width).float()
        columns = is_in.movedim(1, 0).flatten(1)  # (rows, features × bins)
        shape = (len(codes), width, len(codes), width)
        counts = (columns.T @ columns).view(shape)

        weighted = (columns * output[:, None] for output in residual.float().T)
        sums = torch.stack([(columns.T @ output).view(shape) for output in weighted])
        means = _without_mains(sums / counts.clamp_min(1.0), counts)
        variance = residual.float().square().mean(0)
        return cls(counts, means, variance, len(residual))


def _certain_strengths(first: _Cells, second: _Cells, *, inflation: Tensor) -> Tensor:
    """Strengths of every two features, of two halves of the rows; zero where chance may do it.

    `inflation` is how much more means vary than those of rows that have nothing in common.
    """
    pairs_of_rows = first.counts * second.counts
    n_rows = first.n_rows + second.n_rows
    share = torch.where(pairs_of_rows > 0, first.counts + second.counts, 0.0) / n_rows
    squared = (share * first.means * second.means).sum((2, 4))  # (outputs, features, features)

    of_cells = (share.square() / pairs_of_rows.clamp_min(1.0)).sum((1, 3)).sqrt()
    variance = (first.variance * second.variance).sqrt() * inflation
    error = variance[:, None, None] * of_cells

    n_pairs = math.comb(len(of_cells), 2)
    least = _BEYOND_CHANCE + math.sqrt(2 * math.log(n_pairs))
    return torch.where(squared > least * error, squared, 0.0).amax(0).sqrt()


def _without_mains(means: Tensor, counts: Tensor) -> Tensor:
    """Means of cells without what either feature makes by itself, in turn."""
    for _ in range(_SWEEPS):
        for side in (2, 4):
            rows = counts.sum(side - 1, keepdim=True).clamp_min(1.0)
            means = means - (counts * means).sum(side, keepdim=True) / rows
    return torch.where(counts > 0, means, 0.0)


def _bins_of_features(
    domains: Sequence[Domain], sample: Sample, sizes: Mapping[int, float]
) -> dict[int, Codes]:
    """The bin of every row, of the largest features that have more than one."""
    chunk = sample.chunk()
    wanted = round(math.sqrt(len(sample) / _ROWS_PER_CELL))
    most = min(max(wanted, _FEWEST_BINS), _MOST_BINS)

    tabulated = [k for k, domain in enumerate(domains) if domain.tabulated]
    largest = sorted(tabulated, key=lambda k: -sizes.get(k, 0.0))[:_MOST_FEATURES]
    bins = {k: _bins(domains[k], chunk, most) for k in largest}
    return {k: codes for k, codes in bins.items() if codes.max() > 0}


def _bins(domain: Domain, chunk: Chunk, most: int) -> Codes:
    """Quantiles of numbers, with one for missing ones; the most frequent levels, and all others."""
    if domain.levels is not None:
        levels = chunk.places(domain.levels)[0]
        return _most_frequent(levels, most)

    values = chunk.numbers(domain.feature.columns[0]).astype(np.float64)
    known = np.isfinite(values)
    if not known.any():
        return np.zeros(len(values), np.intp)
    return _without_empty(np.where(known, 1 + _quantile(values, known, most), 0))


def _quantile(values: Array, known: Array, most: int) -> Codes:
    """In which of the quantiles of the known values each value is."""
    inner = np.linspace(0, 1, most + 1)[1:-1]
    return np.searchsorted(np.quantile(values[known], inner), values, side="left")


def _most_frequent(codes: Codes, most: int) -> Codes:
    """The most frequent codes by themselves, and the others together."""
    counts = np.bincount(codes)
    frequent = np.argsort(-counts, kind="stable")[: most - 1]
    bin_of_code = np.full(len(counts), most - 1)
    bin_of_code[frequent] = np.arange(len(frequent))
    return _without_empty(bin_of_code[codes])


def _without_empty(codes: Codes) -> Codes:
    """The same, numbered without a gap."""
    return np.unique(codes, return_inverse=True)[1]


def _least_explained(fit: RegressionFit) -> Tensor:
    """Residuals of held-out rows, in units of the spread, of the least explained outputs."""
    residual = fit.held_out.chosen() / fit.sample.spread
    least = fit.explained.nan_to_num(1.0).argsort()[:_MOST_OUTPUTS]
    return residual[:, least]


def _inflation(residual: Tensor, units: Codes) -> Tensor:
    """How much more means vary, as rows that belong together have residuals in common."""
    sums = residual.new_zeros(int(units.max()) + 1, residual.shape[1])
    sums.index_add_(0, torch.from_numpy(units), residual)
    together = sums.square().sum(0) / residual.square().sum(0)
    return together.nan_to_num(1.0).clamp_min(1.0)


def _drawn_in(residual: Tensor) -> Tensor:
    """Residuals of which the farthest are brought nearer."""
    farthest = _FARTHEST * residual.square().mean(0).sqrt()
    return residual.clamp(-farthest, farthest)


def _halves(units: Codes) -> list[Tensor]:
    """Rows of either half; rows that belong together are in the same."""
    drawn = np.random.default_rng(0).permutation(int(units.max()) + 1)
    is_first = torch.from_numpy(drawn[units] % 2 == 0)
    return [is_first, ~is_first]
