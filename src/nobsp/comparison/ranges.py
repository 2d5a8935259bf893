"""Where on a feature's range its part of a gap arises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nobsp._typing import AnyArray, FloatArray
from nobsp.arguments import suggest
from nobsp.comparison.deviations import mix_outputs
from nobsp.comparison.pairing import Places, Side
from nobsp.frames import is_missing
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.functions import Functions
from nobsp.tabular.lookup import Feature, read_columns


@dataclass(frozen=True, eq=False)
class Bins:
    """A feature's values in bins, the same for several accounts."""

    low: FloatArray  # NaN for levels and missing values
    high: FloatArray
    labels: tuple[str, ...]  # names of levels; empty for ranges of numbers
    codes: tuple[Places, ...]  # the bin of every row, account by account


def gap_along(
    sides: tuple[Side, Side], feature: str, output: int, most: int
) -> dict[str, AnyArray]:
    """Columns of a table: bins, their numbers of rows, the function there, and parts of the gap.

    With p_r the weight of a row and c the middle between the two means,

        part of a bin =   Σ_{r in a and bin} p_r (g_a(x_r) − c)
                        − Σ_{r in b and bin} p_r (g_b(x_r) − c),

    whose sum over the bins is the feature's gap, whatever c is.
    """
    values = [_own_term(side, feature, output) for side in sides]
    bins = put_in_bins([feature_values(side, feature) for side in sides], most)
    middle = sum(float(side.weights @ value) for side, value in zip(sides, values, strict=True)) / 2

    shares = []
    sums = []
    means = []
    for side, value, codes in zip(sides, values, bins.codes, strict=True):
        n_bins = len(bins.low)
        share = np.bincount(codes, weights=side.weights, minlength=n_bins)
        total = np.bincount(codes, weights=side.weights * value, minlength=n_bins)
        shares.append(share)
        sums.append(total - share * middle)
        means.append(np.divide(total, share, out=np.full(n_bins, np.nan), where=share > 0))
    return {
        "from": bins.low,
        "to": bins.high,
        "level": np.array(bins.labels, dtype=object),
        "share_a": shares[0],
        "share_b": shares[1],
        "function_a": means[0],
        "function_b": means[1],
        "part": sums[0] - sums[1],
    }


def _own_term(side: Side, feature: str, output: int) -> FloatArray:
    """A feature's own contribution to every row."""
    account = side.explanation
    if feature not in account.feature_names:
        raise ValueError(
            f"there is no feature {feature!r}; {suggest(feature, account.feature_names)}"
        )
    if (feature,) not in account.terms:
        return np.zeros(len(account))
    return np.asarray(account.values[:, account.terms.index((feature,)), output])


def feature_values(side: Side, name: str) -> AnyArray:
    """A feature's values, one per row."""
    functions = side.explanation.origin
    if not isinstance(functions, Functions):
        raise ValueError(
            "along needs explanations as explainer(X) gives them; these were made by hand."
        )
    if name not in functions.feature_names:
        raise ValueError(f"there is no feature {name!r}; {suggest(name, functions.feature_names)}")
    feature: Feature = functions.features[functions.feature_names.index(name)]
    if len(feature.columns) != 1:
        raise ValueError(
            f"feature {name!r} is made of several columns and has no range of its own."
        )
    columns, _ = read_columns(functions, side.explanation.data)
    return columns[feature.columns[0]]


def function_of(account: Explanation, feature: str, output: int, x: AnyArray) -> FloatArray:
    """A feature's own function at some numbers, for one output or for a contrast of two."""
    functions = account.origin
    if not isinstance(functions, Functions):
        raise ValueError(
            "curves need explanations as explainer(X) gives them; these were made by hand."
        )
    mix = mix_outputs(account, functions)
    if account.scale != "output" or mix is None:
        raise ValueError(
            "functions are of the model's outputs, not of probabilities; compare the accounts "
            "before to_probability to see their curves."
        )
    if (feature,) not in functions.terms:
        return np.zeros(len(x))
    total = np.zeros(len(x))
    for position in np.flatnonzero(mix[:, output]):
        curve = functions.function(feature, output=int(position))(x)
        total += mix[position, output] * np.asarray(curve, dtype=np.float64)
    return total


def put_in_bins(columns: list[AnyArray], most: int) -> Bins:
    """Bins of equally many rows of all columns together, or one per value where there are few."""
    together = np.concatenate([np.asarray(column) for column in columns])
    if together.dtype.kind not in "biuf":
        return _level_bins(columns, together)

    numbers = [np.asarray(column, dtype=np.float64) for column in columns]
    finite = np.concatenate(numbers)
    finite = finite[np.isfinite(finite)]
    distinct = np.unique(finite)
    if len(distinct) <= most:
        edges = distinct
        low = high = distinct
    else:
        edges = _edges(finite, most)
        low, high = edges[:-1], edges[1:]

    n_bins = len(low)
    codes = []
    for column in numbers:
        code = np.searchsorted(edges, column, side="right") - 1
        code = np.clip(code, 0, max(n_bins - 1, 0))
        codes.append(np.where(np.isfinite(column), code, n_bins).astype(np.intp))
    labels = [""] * n_bins
    if any((code == n_bins).any() for code in codes):
        low, high = np.append(low, np.nan), np.append(high, np.nan)
        labels.append("missing")
    return Bins(low, high, tuple(labels), tuple(codes))


def _edges(numbers: FloatArray, most: int) -> FloatArray:
    """Ends of bins that hold about equally many rows.

    Values frequent enough to fill a bin alone do not take the other bins' ends.
    """
    distinct, counts = np.unique(numbers, return_counts=True)
    alone = distinct[counts >= len(numbers) / most]
    rest = numbers[~np.isin(numbers, alone)]
    ends = [distinct[[0, -1]], alone]
    n_bins = most - len(alone)
    if len(rest) and n_bins > 0:
        shares = np.linspace(0, 1, n_bins + 1)
        ends.append(np.quantile(rest, shares, method="inverted_cdf"))
    edges: FloatArray = np.unique(np.concatenate(ends))
    return edges


def _level_bins(columns: list[AnyArray], together: AnyArray) -> Bins:
    """One bin per level, in the order of their names, missing ones last."""
    names = sorted({str(value) for value in together.tolist() if not is_missing(value)})
    position = {name: code for code, name in enumerate(names)}
    codes = tuple(
        np.array(
            [
                len(names) if is_missing(value) else position[str(value)]
                for value in np.asarray(column).tolist()
            ],
            dtype=np.intp,
        )
        for column in columns
    )
    if any((code == len(names)).any() for code in codes):
        names.append("missing")
    unknown = np.full(len(names), np.nan)
    return Bins(unknown, unknown, tuple(names), codes)
