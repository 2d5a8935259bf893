"""Local conditional pairwise delta agreement: real pairs that differ in one feature (paper, supplement D.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import require_whole_number
from nobsp.metrics.arrays import Array, as_array, is_constant, mean_of_known, pearson, require_shape, undefined
from nobsp.network.inputs import resolve_features


@dataclass(frozen=True, eq=False, repr=False)
class Pairs:
    """Pairs of rows that differ in one feature and hardly in the others.

    Attributes:
        feature_names: One a feature.
        feature: Per pair, the position of the feature in which its rows differ.
        first: Per pair, one row; `second` the other.
        rows: How many rows the pairs were chosen from.
    """

    feature_names: tuple[str, ...]
    feature: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    rows: int

    def __len__(self) -> int:
        return len(self.feature)

    def per_feature(self) -> dict[str, int]:
        """How many pairs each feature has."""
        counts = np.bincount(self.feature, minlength=len(self.feature_names))
        return dict(zip(self.feature_names, counts.tolist(), strict=True))

    def __repr__(self) -> str:
        some, every = len(np.unique(self.feature)), len(self.feature_names)
        return f"Pairs({len(self)} pairs among {self.rows} rows, {some} of {every} features)"


@dataclass(frozen=True, eq=False, repr=False)
class DeltaAgreement:
    """Explanation deltas beside the model's, over pairs of rows.

    Attributes:
        pearson: Correlation over all pairs of all features.
        nrmse: Root mean squared difference as a share of the standard deviation of the model's deltas.
        feature_pearson: Correlation over the pairs of one feature; nan without pairs or without variation.
        feature_nrmse: Likewise.
        pairs: How many pairs.
        feature_names: One a feature.
    """

    pearson: float
    nrmse: float
    feature_pearson: Array
    feature_nrmse: Array
    pairs: int
    feature_names: tuple[str, ...]

    @property
    def mean_pearson(self) -> float:
        """Mean of the features' correlations, those without one left out."""
        return mean_of_known(self.feature_pearson)

    @property
    def mean_nrmse(self) -> float:
        """Mean of the features' errors, those without one left out."""
        return mean_of_known(self.feature_nrmse)

    def __repr__(self) -> str:
        return f"DeltaAgreement(pearson={self.pearson:.3f}, nrmse={self.nrmse:.3f}, {self.pairs} pairs)"


def find_pairs(
    X: Any,
    *,
    classes: Any = None,
    groups: Mapping[str, Any] | None = None,
    max_pairs: int = 800,
    distance_percentile: float = 15.0,
    max_rows: int = 5000,
    seed: int = 0,
) -> Pairs:
    """Pairs of observed rows that differ in one feature and are close in all others.

    For each feature, among all pairs of rows with the same predicted class: the feature differs by at least the median
    of the differences that are not zero, and the Euclidean distance in all other columns is at most the 15th percentile
    of those distances. A group of columns differs by the Euclidean distance in them. Pairs depend on the data and the
    predictions only, so one selection judges every explanation alike.

    Args:
        X: Rows as the model gets them, standardised, shape (rows, columns).
        classes: Predicted class of each row; None for regression.
        groups: Columns by feature, where a feature has several; every column by itself if None.
        max_pairs: How many pairs a feature keeps, drawn at random where there are more.
        distance_percentile: How close is close.
        max_rows: Where there are more rows than this, pairs are looked for among as many drawn at random: memory grows
            with the square of the rows (5,000 rows: about 0.7 GB).
        seed: Decides what is drawn.

    Returns:
        The pairs; none for a feature that does not vary or whose pairs are all too far apart.

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import find_pairs
        >>> X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
        >>> find_pairs(X).per_feature()
        {'x0': 1, 'x1': 1}
    """
    rows = as_array(X, "X", ndim=(2,))
    require_shape(rows, "X", rows=2)
    features = resolve_features(groups, columns=rows.shape[1], names=None)
    require_whole_number("max_pairs", max_pairs)
    require_whole_number("max_rows", max_rows, least=2)
    if not 0 <= distance_percentile <= 100:
        raise ValueError(f"distance_percentile is {distance_percentile}; pass a number from 0 to 100.")
    labels = np.zeros(len(rows)) if classes is None else np.asarray(classes)
    if labels.shape != (len(rows),):
        raise ValueError(f"classes has the shape {labels.shape}; pass one class for each of the {len(rows)} rows.")
    rng = np.random.default_rng(seed)
    used = np.arange(len(rows))
    if len(used) > max_rows:
        used = np.sort(rng.choice(used, size=max_rows, replace=False))
    first, second = _same_class(labels[used])
    everywhere = _squared_distance(rows[used], first, second)
    chosen = []
    for members in features.columns:
        delta = _squared_distance(rows[used][:, list(members)], first, second)
        found = _isolating(delta, everywhere, distance_percentile)
        if len(found) > max_pairs:
            found = np.sort(rng.choice(found, size=max_pairs, replace=False))
        chosen.append(found)
    picked = np.concatenate(chosen)
    return Pairs(
        feature_names=features.names,
        feature=np.repeat(np.arange(len(chosen)), [len(one) for one in chosen]),
        first=used[first[picked]],
        second=used[second[picked]],
        rows=len(rows),
    )


def _same_class(labels: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Every pair of rows with the same label, the earlier row first."""
    firsts, seconds = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int32)]
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label).astype(np.int32)
        for position, member in enumerate(members):
            seconds.append(members[position + 1 :])
            firsts.append(np.full(len(seconds[-1]), member))
    return np.concatenate(firsts), np.concatenate(seconds)


def _squared_distance(rows: Array, first: NDArray[np.int32], second: NDArray[np.int32]) -> Array:
    # Column by column: all columns of all pairs at once would not fit.
    total = np.zeros(len(first))
    for column in np.ascontiguousarray(rows.T):
        total += (column[first] - column[second]) ** 2
    return total


def _isolating(delta: Array, everywhere: Array, percentile: float) -> NDArray[np.int64]:
    """Pairs that differ in the feature (`delta`, squared) and are close in all other columns (`everywhere - delta`)."""
    moved = delta[delta > 0]
    if len(moved) == 0:
        return np.empty(0, dtype=np.int64)
    # What the difference of two sums leaves of an exact zero must not decide which pairs are close.
    rounding = 1e-12 * everywhere.max()
    others = np.maximum(everywhere - delta, 0.0)
    # Squares are in the order of the distances, and a threshold between two neighbours parts them wherever it lies.
    close = np.percentile(others, percentile) + rounding
    return np.flatnonzero((delta >= np.median(moved) * (1 - 1e-12)) & (others <= close))


def delta_agreement(attributions: Any, outputs: Any, pairs: Pairs) -> DeltaAgreement:
    """Compares, over pairs that isolate a feature, the change of the output with the change of its attribution.

    Args:
        attributions: What an explanation assigns to each feature, shape (rows, features).
        outputs: What the model says, for the class both rows of a pair are predicted to be, shape (rows,).
        pairs: What `find_pairs` gives for the same rows.

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import delta_agreement, find_pairs
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> parts = np.column_stack([X[:, 0] ** 2, 3 * X[:, 1]])
        >>> pairs = find_pairs(X)
        >>> delta_agreement(parts, parts.sum(axis=1), pairs).pearson > 0.99
        True
    """
    given = as_array(attributions, "attributions", ndim=(2,))
    said = as_array(outputs, "outputs", ndim=(1,))
    features = len(pairs.feature_names)
    if given.shape != (pairs.rows, features) or len(said) != pairs.rows:
        raise ValueError(
            f"attributions have the shape {given.shape} and outputs has {len(said)} rows, but the pairs were found "
            f"among {pairs.rows} rows with {features} features."
        )
    explained = given[pairs.second, pairs.feature] - given[pairs.first, pairs.feature]
    changed = said[pairs.second] - said[pairs.first]
    overall = _agreement(explained, changed)
    if np.isnan(overall).any():
        why = "deltas are the same in all pairs" if len(pairs) else "no pairs of rows isolate a feature"
        undefined(f"{why}, so delta agreement is nan.")
    by_feature = [pairs.feature == position for position in range(features)]
    each = np.array([_agreement(explained[own], changed[own]) for own in by_feature]).reshape(features, 2)
    return DeltaAgreement(overall[0], overall[1], each[:, 0], each[:, 1], len(pairs), pairs.feature_names)


def _agreement(explained: Array, changed: Array) -> tuple[float, float]:
    if len(changed) < 2 or is_constant(changed):
        return float("nan"), float("nan")
    error = float(np.sqrt(((explained - changed) ** 2).mean()) / changed.std())
    return float(pearson(explained, changed)), error
