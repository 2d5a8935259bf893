"""Changes of an explanation beside those of the model, between rows that differ in one feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import pdist

from nobsp._typing import AnyArray, ArrayLike, FloatArray, IntArray
from nobsp.arguments import array_of, quote, require_number, require_whole_number
from nobsp.metrics.arrays import Groups, as_array, is_constant, pearson, require_rows, undefined
from nobsp.network.columns import resolve_features

# What the difference of two sums leaves of an exact zero must not decide which pairs are close.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class Pairs:
    """Pairs of rows that differ in one feature and hardly in the others.

    Attributes:
        feature_names: One per feature.
        feature: Per pair, the position of the feature in which its rows differ.
        first: Per pair, one row; `second` the other.
        rows: How many rows the pairs were chosen from.
    """

    feature_names: tuple[str, ...]
    feature: IntArray
    first: IntArray
    second: IntArray
    rows: int

    def __len__(self) -> int:
        return len(self.feature)

    def per_feature(self) -> dict[str, int]:
        """How many pairs each feature has."""
        counts = np.bincount(self.feature, minlength=len(self.feature_names))
        return dict(zip(self.feature_names, counts.tolist(), strict=True))

    def __repr__(self) -> str:
        with_pairs = len(np.unique(self.feature))
        features = len(self.feature_names)
        return (
            f"Pairs({len(self)} pairs among {self.rows} rows, {with_pairs} of {features} features)"
        )


@dataclass(frozen=True, eq=False)
class DeltaAgreement:
    """Explanation deltas beside the model's, over pairs of rows.

    Attributes:
        pearson: Correlation over all pairs of all features.
        nrmse: Root mean squared difference as a share of the standard deviation of the model's
            deltas.
        feature_pearson: Correlation over the pairs of one feature; nan without pairs or without
            variation.
        feature_nrmse: Likewise.
        pairs: How many pairs.
    """

    pearson: float
    nrmse: float
    feature_pearson: FloatArray = field(repr=False)
    feature_nrmse: FloatArray = field(repr=False)
    pairs: int


class _Candidates(NamedTuple):
    """All pairs of rows of the same class, with their squared distance over all columns."""

    rows: FloatArray
    # Positions among the rows that were passed, one of each per pair.
    first: IntArray
    second: IntArray
    # Positions of these pairs in the order of `pdist`.
    positions: IntArray
    distances: FloatArray


def find_pairs(
    X: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    groups: Groups = None,
    max_pairs: int = 800,
    distance_percentile: float = 15.0,
    max_rows: int = 5000,
    seed: int = 0,
) -> Pairs:
    """Pairs of observed rows that differ in one feature and are close in all others.

    For each feature, among all pairs of rows with the same predicted class: the feature (a group by
    its Euclidean distance) differs by at least the median of the differences that are not zero, and
    the Euclidean distance in all other columns is at most the 15th percentile of those distances.
    One selection judges every explanation alike.

    Args:
        X: Rows as the model gets them, standardised, shape (rows, columns).
        classes: Predicted class of each row; None for regression.
        groups: Columns by feature, where a feature has several; every column by itself if None.
        max_pairs: How many pairs a feature keeps, drawn at random where there are more.
        distance_percentile: How close is close.
        max_rows: Of more rows as many are drawn: memory grows with their square (5,000 rows: about
            0.9 GB).
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
    require_rows(rows, "X", least=2)
    require_whole_number("max_pairs", max_pairs)
    require_whole_number("max_rows", max_rows, least=2)
    require_number("distance_percentile", distance_percentile, least=0, most=100)
    require_whole_number("seed", seed, least=0)
    features = resolve_features(groups, argument="groups", columns=rows.shape[1], names=None)
    labels = _labels_of(classes, len(rows))

    rng = np.random.default_rng(seed)
    used = np.arange(len(rows))
    if len(used) > max_rows:
        used = np.sort(rng.choice(used, size=max_rows, replace=False))
    candidates = _pairs_within_classes(rows, labels, used)

    chosen = []
    for members in features.columns:
        isolating = _pairs_isolating(candidates, members, distance_percentile)
        if len(isolating) > max_pairs:
            isolating = np.sort(rng.choice(isolating, size=max_pairs, replace=False))
        chosen.append(isolating)

    pairs_per_feature = [len(pairs) for pairs in chosen]
    picked = np.concatenate(chosen)
    return Pairs(
        feature_names=features.names,
        feature=np.repeat(np.arange(len(chosen)), pairs_per_feature),
        first=candidates.first[picked],
        second=candidates.second[picked],
        rows=len(rows),
    )


def _labels_of(classes: ArrayLike | None, rows: int) -> AnyArray:
    """The class of each row; the same for all in regression."""
    labels = np.zeros(rows) if classes is None else array_of(classes, name="classes")
    if labels.shape != (rows,):
        raise ValueError(
            f"classes has the shape {labels.shape}; pass one class for each of the {rows} rows."
        )
    if labels.dtype.kind == "O":
        # Texts beside numbers have no order, and classes need none but their own.
        _, labels = np.unique(labels.astype(str), return_inverse=True)
    return labels


def _pairs_within_classes(rows: FloatArray, labels: AnyArray, used: IntArray) -> _Candidates:
    """All pairs of the used rows that have the same class, class by class."""
    # In the order of pdist.
    upper_first, upper_second = np.triu_indices(len(used), 1)
    first = used[upper_first]
    second = used[upper_second]

    same_class = np.flatnonzero(labels[first] == labels[second])
    class_by_class = np.argsort(labels[first[same_class]], kind="stable")
    positions = same_class[class_by_class]
    return _Candidates(
        rows=rows[used],
        first=first[positions],
        second=second[positions],
        positions=positions,
        distances=pdist(rows[used], "sqeuclidean")[positions],
    )


def _pairs_isolating(
    candidates: _Candidates, members: Sequence[int], distance_percentile: float
) -> IntArray:
    """Pairs that differ clearly in some columns and are close in all others."""
    rows = candidates.rows[:, list(members)]
    delta = pdist(rows, "sqeuclidean")[candidates.positions]
    differing = np.flatnonzero(delta > 0)
    if not len(differing):
        return differing

    # Squares are in the order of distances, and a threshold between two neighbours parts them
    # wherever it lies.
    others = np.maximum(candidates.distances - delta, 0.0)
    rounding = _ROUNDING * candidates.distances.max(initial=0.0)
    is_close = others <= np.percentile(others, distance_percentile) + rounding
    is_clear = delta >= np.median(delta[differing]) * (1 - _ROUNDING)
    return np.flatnonzero(is_clear & is_close)


def delta_agreement(attributions: ArrayLike, outputs: ArrayLike, pairs: Pairs) -> DeltaAgreement:
    """Compares changes of the output and of the attribution, over pairs that isolate a feature.

    Args:
        attributions: What an explanation assigns to each feature, shape (rows, features).
        outputs: What the model says, for the class both rows of a pair are predicted to be, shape
            (rows,).
        pairs: What `find_pairs` gives for the same rows.

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import delta_agreement, find_pairs
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> parts = np.column_stack([X[:, 0] ** 2, 3 * X[:, 1]])
        >>> delta_agreement(parts, parts.sum(axis=1), find_pairs(X)).pearson > 0.99
        True
    """
    assigned = as_array(attributions, "attributions", ndim=(2,))
    values = as_array(outputs, "outputs", ndim=(1,))
    if not isinstance(pairs, Pairs):
        raise TypeError(f"pairs must be what find_pairs(X) gives, found {quote(pairs)}.")
    features = len(pairs.feature_names)
    if assigned.shape != (pairs.rows, features) or len(values) != pairs.rows:
        raise ValueError(
            f"attributions have the shape {assigned.shape} and outputs has {len(values)} rows, "
            f"but the pairs were found among {pairs.rows} rows with {features} features."
        )

    explained = assigned[pairs.second, pairs.feature] - assigned[pairs.first, pairs.feature]
    changed = values[pairs.second] - values[pairs.first]
    correlation, error = _compare_deltas(explained, changed)
    if np.isnan(correlation) or np.isnan(error):
        reason = "no pairs of rows isolate a feature"
        if len(pairs):
            reason = "deltas are the same in all pairs"
        undefined(f"{reason}, so delta agreement is nan.")

    by_feature = []
    for position in range(features):
        own = pairs.feature == position
        by_feature.append(_compare_deltas(explained[own], changed[own]))
    correlations, errors = np.array(by_feature).T
    return DeltaAgreement(
        pearson=correlation,
        nrmse=error,
        feature_pearson=correlations,
        feature_nrmse=errors,
        pairs=len(pairs),
    )


def _compare_deltas(explained: FloatArray, changed: FloatArray) -> tuple[float, float]:
    """Correlation and normalised error of explained changes; nan where nothing varies."""
    if len(changed) < 2 or is_constant(changed):
        return float("nan"), float("nan")

    mean_square = ((explained - changed) ** 2).mean()
    error = float(np.sqrt(mean_square) / changed.std())
    return float(pearson(explained, changed)), error
