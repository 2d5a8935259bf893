"""Whether rows crowd together more than their correlations alone would have it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nobsp._typing import FloatArray
from nobsp.numerics import evenly_spaced
from nobsp.tabular.features import FEW_VALUES
from nobsp.tabular.setting import find_neighbourhoods

# Most rows that are looked at, and fewest for every number: fewer tell no covariance.
_MOST_ROWS = 4096
_ROWS_EACH = 10
_FEWEST_NUMBERS = 2
# Added to covariances, so that numbers that are exactly correlated do no harm.
_RIDGE = 1e-6


def crowding(inputs: Tensor) -> float:
    """Spread within neighbourhoods, as a share of that of normal rows with the same correlations.

    Normal rows repeat values as often, such as the zero of amounts.

    About one for rows without clusters, however long their tails are, and where there are too few
    rows or numbers to tell. Numbers count by their ranks, and those of few values not at all.
    """
    rows = inputs.double().nan_to_num().numpy()
    rows = rows[evenly_spaced(len(rows), _MOST_ROWS)]
    numbers = [column for column in rows.T if len(np.unique(column)) > FEW_VALUES]
    if len(numbers) < _FEWEST_NUMBERS or len(rows) < _ROWS_EACH * len(numbers):
        return 1.0

    scores = np.stack([_normal_scores(column) for column in numbers], 1)
    normal = np.random.default_rng(0).normal(size=scores.shape)
    alike = _with_covariance(normal, _covariance(scores))
    for k, column in enumerate(numbers):
        if len(np.unique(column)) < len(column):
            alike[:, k] = np.sort(scores[:, k])[alike[:, k].argsort().argsort()]
    return _spread_within(scores) / _spread_within(alike)


def _normal_scores(column: FloatArray) -> FloatArray:
    """Where a normal variable would have the same ranks, standardised."""
    _, position, counts = np.unique(column, return_inverse=True, return_counts=True)
    middle_of_ties = np.cumsum(counts) - counts / 2
    shares = torch.from_numpy(middle_of_ties / len(column))
    scores = torch.special.ndtri(shares).numpy()[position]
    return np.asarray((scores - scores.mean()) / scores.std())


def _covariance(rows: FloatArray) -> FloatArray:
    covariance = np.cov(rows, rowvar=False, bias=True)
    return np.asarray(covariance + _RIDGE * np.eye(rows.shape[1]))


def _with_covariance(rows: FloatArray, covariance: FloatArray) -> FloatArray:
    """Rows turned and stretched until they have this covariance."""
    own = np.linalg.cholesky(_covariance(rows))
    wanted = np.linalg.cholesky(covariance)
    white = np.linalg.solve(own, (rows - rows.mean(0)).T)
    return np.asarray((wanted @ white).T)


def _spread_within(rows: FloatArray) -> float:
    """Mean squared distance from the middle of the own neighbourhood."""
    codes = find_neighbourhoods(torch.from_numpy(rows), generator=np.random.default_rng(0))
    sums = np.zeros((int(codes.max()) + 1, rows.shape[1]))
    np.add.at(sums, codes, rows)
    middles = sums / np.bincount(codes)[:, None]
    return float(np.square(rows - middles[codes]).sum(1).mean())
