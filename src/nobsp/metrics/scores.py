"""Scores of attributions: known functions recovered, effects of removal, concentration, deltas, regions of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.spatial.distance import pdist
from scipy.special import softmax

from nobsp._messages import require_whole_number
from nobsp.metrics import arrays
from nobsp.metrics.arrays import (
    Array,
    Model,
    as_array,
    is_constant,
    mean_of_known,
    require_shape,
    undefined,
)
from nobsp.network.inputs import resolve_features

Groups = Mapping[str, Any] | None
# The paper's sizes, and 4 pixels below them, which again cut an image into 8 x 8 regions.
_PATCH_SIZES = ((224, 32), (128, 16), (64, 8), (0, 4))


@dataclass(frozen=True, eq=False, repr=False)
class FunctionReproduction:
    """How well the functions that made the data were recovered.

    Attributes:
        r2: Per feature, R² of the contribution against the true function, both centred; nan where it plays no part.
        nrmse: Per feature, root mean squared error as a share of the true function's standard deviation; nan likewise.
        null_attribution: Per feature that plays no part, the mean absolute centred contribution; nan for the others.
        reconstruction_r2: R² of the summed contributions against the model's outputs, both centred; nan without any.
    """

    r2: Array
    nrmse: Array
    null_attribution: Array
    reconstruction_r2: float

    @property
    def mean_r2(self) -> float:
        """The Function Reproduction Score: mean R² over the features that play a part."""
        return mean_of_known(self.r2)

    @property
    def mean_nrmse(self) -> float:
        """Mean normalised error over the features that play a part."""
        return mean_of_known(self.nrmse)

    @property
    def mean_null_attribution(self) -> float:
        """Mean absolute contribution of the features that play no part; nan if all do."""
        return mean_of_known(self.null_attribution)

    def __repr__(self) -> str:
        return (
            f"FunctionReproduction(mean_r2={self.mean_r2:.3f}, mean_nrmse={self.mean_nrmse:.3f}, "
            f"mean_null_attribution={self.mean_null_attribution:.3g}, reconstruction_r2={self.reconstruction_r2:.3f})"
        )


def function_reproduction(
    contributions: Any, truth: Any, *, outputs: Any = None
) -> FunctionReproduction:
    """Compares contributions with the functions they should be, feature by feature.

    Additive functions are known up to a constant each, so both sides are centred first. A feature whose true function
    is constant plays no part: its contribution counts as a false positive and has no R².

    Args:
        contributions: What an explanation assigns to each feature, shape (rows, features).
        truth: The true functions at the same rows, same shape.
        outputs: What the explained model says, shape (rows,), to score the sum of the contributions as well.

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import function_reproduction
        >>> x = np.linspace(-1, 1, 50)
        >>> truth = np.column_stack([x**2, np.sin(3 * x), 0 * x])
        >>> function_reproduction(truth + 5.0, truth, outputs=truth.sum(axis=1)).mean_r2
        1.0
    """
    found, true = (
        as_array(contributions, "contributions", ndim=(2,)),
        as_array(truth, "truth", ndim=(2,)),
    )
    require_shape(found, "contributions", rows=2, like=true, called="truth")
    found, null = found - found.mean(axis=0), is_constant(true.T)
    true = true - true.mean(axis=0)
    if null.all():
        undefined(
            "every true function is constant: there is nothing to reproduce, so its scores are nan."
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        unexplained = np.where(null, np.nan, ((found - true) ** 2).mean(axis=0) / true.var(axis=0))
    reconstruction = float("nan")
    if outputs is not None:
        said = as_array(outputs, "outputs")
        if said.size != len(found):
            raise ValueError(
                f"outputs has the shape {said.shape}; pass one number for each of the {len(found)} rows."
            )
        if is_constant(said.ravel()):
            undefined("outputs are constant, so the R² of their reconstruction is nan.")
        else:
            error = found.sum(axis=1) - (said.ravel() - said.mean())
            reconstruction = float(1.0 - (error**2).mean() / said.var())
    sizes = np.where(null, np.abs(found).mean(axis=0), np.nan)
    return FunctionReproduction(1.0 - unexplained, np.sqrt(unexplained), sizes, reconstruction)


def sparseness(attributions: Any) -> Array:
    """The paper's formula, 1 - |a|₁ / (√n |a|₂): 0 if all n absolute values are equal, 1 - 1/√n if one is not zero.

    This is not what Quantus calls sparseness; see `gini_sparseness`. Neither says whether an explanation is right.

    Args:
        attributions: One explanation a row; further dimensions are flattened.

    Returns:
        One number a row; nan for rows of zeros.

    Example:
        >>> from nobsp.metrics import sparseness
        >>> sparseness([[1.0, 1.0, -1.0, 1.0], [0.0, 3.0, 0.0, 0.0]])
        array([0. , 0.5])
    """
    values = _magnitudes(attributions)
    with np.errstate(invalid="ignore"):
        return np.asarray(
            1.0 - values.sum(axis=1) / np.sqrt(values.shape[1] * (values**2).sum(axis=1))
        )


def gini_sparseness(attributions: Any) -> Array:
    """The Gini index of the absolute values, which Quantus calls sparseness: 0 if all are equal, 1 - 1/n for one of n.

    Arguments, results and errors are those of `sparseness`.

    Example:
        >>> from nobsp.metrics import gini_sparseness
        >>> gini_sparseness([[1.0, 1.0, -1.0, 1.0], [0.0, 3.0, 0.0, 0.0]])
        array([0.  , 0.75])
    """
    values = _magnitudes(attributions)
    count = values.shape[1]
    weights = 2 * np.arange(1, count + 1) - count - 1
    with np.errstate(invalid="ignore"):
        return np.asarray(
            (np.sort(values, axis=1) * weights).sum(axis=1) / (count * values.sum(axis=1))
        )


def _magnitudes(attributions: Any) -> Array:
    """Absolute values of each row as shares of its largest; nan for rows of zeros."""
    values = as_array(attributions, "attributions")
    if values.ndim < 2:
        raise ValueError(f"attributions has the shape {values.shape}; pass one explanation a row.")
    values = np.abs(values.reshape(len(values), -1))
    if values.shape[1] < 2:
        raise ValueError("attributions have one value a row; concentration needs at least two.")
    largest = values.max(axis=1, keepdims=True)
    zeros = int((largest == 0).sum())
    if zeros:
        undefined(
            f"{zeros} of {len(values)} rows are zero throughout, so their sparseness is nan.",
            depth=2,
        )
    # Both measures ignore scale; dividing by the largest value keeps squares of tiny ones from vanishing.
    with np.errstate(invalid="ignore"):
        return np.asarray(values / largest)


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """Attributed importance beside the effect of removal.

    Attributes:
        correlation: Spearman correlation between the two; nan if either is the same for all features.
        importance: Mean absolute attribution of each feature.
        effect: Mean absolute change of the output when the feature is set to the baseline.
    """

    correlation: float
    importance: Array = field(repr=False)
    effect: Array = field(repr=False)


def removal_effects(
    model: Model,
    X: Any,
    *,
    baseline: Any,
    groups: Groups = None,
    target: Any = None,
    batch_size: int = 4096,
) -> Array:
    """How the output of each row changes when one feature, or group of columns, is set to the baseline.

    Effects belong to the model, not to an explanation: compute them once and judge every method by them.

    Args:
        model: A torch module, or a function from rows to outputs.
        X: Rows, shape (rows, columns).
        baseline: One number for all columns, or one a column.
        groups: Columns by feature, where a feature has several; every column by itself if None.
        target: The output to watch, or one a row; what the model predicts (the largest output) if None.
        batch_size: Rows a forward pass.

    Returns:
        Output minus output without the feature, shape (rows, features).

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import removal_effects
        >>> removal_effects(lambda X: X @ np.array([2.0, -1.0]), np.ones((1, 2)), baseline=0.0)
        array([[ 2., -1.]])
    """
    rows = as_array(X, "X", ndim=(2,))
    columns = rows.shape[1]
    reference = as_array(baseline, "baseline", ndim=(0, 1))
    if reference.ndim and len(reference) != columns:
        raise ValueError(
            f"baseline has {len(reference)} values but X has {columns} columns; pass one value a column."
        )
    reference = np.broadcast_to(reference, (columns,))
    features = resolve_features(groups, columns=columns, names=None).columns
    with arrays.running(model, batch_size=batch_size) as run:
        before = run(rows)
        watched = np.arange(len(rows)), arrays.targets_of(target, before)
        effects = np.empty((len(rows), len(features)))
        for position, members in enumerate(map(list, features)):
            without = rows.copy()
            without[:, members] = reference[members]
            effects[:, position] = before[watched] - run(without)[watched]
    return effects


def attribution_faithfulness(
    attributions: Any, effects: Any, *, groups: Groups = None
) -> Faithfulness:
    """Spearman correlation between mean absolute attributions and mean absolute effects of removal.

    Args:
        attributions: Shape (rows, features); (rows, columns) if `groups` says which columns to add up.
        effects: What `removal_effects` gives, shape (rows, features).
        groups: Columns by feature, where attributions come column by column and effects do not.

    Example:
        >>> from nobsp.metrics import attribution_faithfulness
        >>> attribution_faithfulness([[3.0, -2.0, 0.1]], [[2.5, -2.2, 0.3]]).correlation > 0.99
        True
    """
    given, change = (
        as_array(attributions, "attributions", ndim=(2,)),
        as_array(effects, "effects", ndim=(2,)),
    )
    if groups is not None:
        features = resolve_features(groups, columns=given.shape[1], names=None)
        given = np.column_stack(
            [given[:, list(members)].sum(axis=1) for members in features.columns]
        )
    require_shape(
        given,
        f"attributions{' added up by groups' if groups else ''}",
        like=change,
        called="effects",
    )
    if given.shape[1] < 2:
        raise ValueError("there is one feature, but ranking features needs at least two.")
    importance, effect = np.abs(given).mean(axis=0), np.abs(change).mean(axis=0)
    correlation = float(arrays.spearman(importance, effect))
    if np.isnan(correlation):
        undefined(
            "all features have the same importance or the same effect, so their correlation is nan."
        )
    return Faithfulness(correlation, importance, effect)


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


@dataclass(frozen=True, eq=False)
class DeltaAgreement:
    """Explanation deltas beside the model's, over pairs of rows.

    Attributes:
        pearson: Correlation over all pairs of all features.
        nrmse: Root mean squared difference as a share of the standard deviation of the model's deltas.
        feature_pearson: Correlation over the pairs of one feature; nan without pairs or without variation.
        feature_nrmse: Likewise.
        pairs: How many pairs.
    """

    pearson: float
    nrmse: float
    feature_pearson: Array = field(repr=False)
    feature_nrmse: Array = field(repr=False)
    pairs: int


def find_pairs(
    X: Any,
    *,
    classes: Any = None,
    groups: Groups = None,
    max_pairs: int = 800,
    distance_percentile: float = 15.0,
    max_rows: int = 5000,
    seed: int = 0,
) -> Pairs:
    """Pairs of observed rows that differ in one feature and are close in all others.

    For each feature, among all pairs of rows with the same predicted class: the feature (a group by its Euclidean
    distance) differs by at least the median of the differences that are not zero, and the Euclidean distance in all
    other columns is at most the 15th percentile of those distances. One selection judges every explanation alike.

    Args:
        X: Rows as the model gets them, standardised, shape (rows, columns).
        classes: Predicted class of each row; None for regression.
        groups: Columns by feature, where a feature has several; every column by itself if None.
        max_pairs: How many pairs a feature keeps, drawn at random where there are more.
        distance_percentile: How close is close.
        max_rows: Of more rows as many are drawn: memory grows with their square (5,000 rows: about 0.9 GB).
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
    count = len(rows)
    features = resolve_features(groups, columns=rows.shape[1], names=None)
    require_whole_number("max_pairs", max_pairs)
    require_whole_number("max_rows", max_rows, least=2)
    if not 0 <= distance_percentile <= 100:
        raise ValueError(
            f"distance_percentile is {distance_percentile}; pass a number from 0 to 100."
        )
    labels = np.zeros(count) if classes is None else np.asarray(classes)
    if labels.shape != (count,):
        raise ValueError(
            f"classes has the shape {labels.shape}; pass one class for each of the {count} rows."
        )
    rng = np.random.default_rng(seed)
    used = np.arange(len(rows))
    if len(used) > max_rows:
        used = np.sort(rng.choice(used, size=max_rows, replace=False))
    first, second = (used[side] for side in np.triu_indices(len(used), 1))  # in the order of pdist
    same = np.flatnonzero(labels[first] == labels[second])
    same = same[np.argsort(labels[first[same]], kind="stable")]  # class by class
    first, second, rows = first[same], second[same], rows[used]
    everywhere = pdist(rows, "sqeuclidean")[same]
    # What the difference of two sums leaves of an exact zero must not decide which pairs are close.
    rounding = 1e-12 * everywhere.max(initial=0.0)
    chosen = []
    for members in features.columns:
        delta = pdist(rows[:, list(members)], "sqeuclidean")[same]
        found = np.flatnonzero(delta > 0)
        if len(found):
            others = np.maximum(everywhere - delta, 0.0)
            # Squares are in the order of distances, and a threshold between two neighbours parts them wherever it lies.
            close = others <= np.percentile(others, distance_percentile) + rounding
            found = np.flatnonzero((delta >= np.median(delta[found]) * (1 - 1e-12)) & close)
        chosen.append(
            np.sort(rng.choice(found, size=max_pairs, replace=False))
            if len(found) > max_pairs
            else found
        )
    feature, picked = (
        np.repeat(np.arange(len(chosen)), list(map(len, chosen))),
        np.concatenate(chosen),
    )
    return Pairs(features.names, feature, first[picked], second[picked], count)


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
        >>> delta_agreement(parts, parts.sum(axis=1), find_pairs(X)).pearson > 0.99
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
        why = (
            "deltas are the same in all pairs"
            if len(pairs)
            else "no pairs of rows isolate a feature"
        )
        undefined(f"{why}, so delta agreement is nan.")
    by_feature = [pairs.feature == position for position in range(features)]
    correlations, errors = np.array(
        [_agreement(explained[own], changed[own]) for own in by_feature]
    ).T
    return DeltaAgreement(*overall, correlations, errors, len(pairs))


def _agreement(explained: Array, changed: Array) -> tuple[float, float]:
    if len(changed) < 2 or is_constant(changed):
        return float("nan"), float("nan")
    error = float(np.sqrt(((explained - changed) ** 2).mean()) / changed.std())
    return float(arrays.pearson(explained, changed)), error


@dataclass(frozen=True, eq=False, repr=False)
class RegionCurves:
    """What removing, or inserting, region after region does to the target's probability.

    Attributes:
        auc: Area under each image's curve.
        curves: Per image the normalised drop (deletion) or probability (insertion), from no region to all of them.
        fractions: Share of the regions removed or inserted at each step.
        target: The class watched, per image.
        patch: Side of a region in pixels.
    """

    auc: Array
    curves: Array
    fractions: Array
    target: NDArray[np.int64]
    patch: int

    @property
    def mean(self) -> float:
        """Mean area over the images."""
        return float(self.auc.mean())

    def __repr__(self) -> str:
        return f"RegionCurves(mean={self.mean:.3f}, {len(self.auc)} images, {self.patch}-pixel regions)"


def region_deletion_auc(
    model: Model,
    images: Any,
    maps: Any,
    *,
    target: Any = None,
    outputs: Literal["logits", "probabilities"] = "logits",
    patch: int | None = None,
    steps: int = 10,
    baseline: Any = 0.0,
    batch_size: int = 64,
    insert: bool = False,
) -> RegionCurves:
    """Masks the regions a map ranks highest and integrates the drop of the target's probability.

    Regions are ranked by the mean of the map in them (equal ones from top left to bottom right); at step s of `steps`
    the first s/steps of them are masked. The drop is 1 - p of the masked image / p of the image, with p the target's
    probability, integrated over the masked share by trapezoids: higher is better.

    Args:
        model: A torch module, or a function from images to outputs of shape (images, classes).
        images: Shape (images, channels, height, width).
        maps: One map an image, at the image's size, shape (images, height, width).
        target: The class to watch, or one an image; the predicted one if None.
        outputs: What the model returns: a softmax is applied to "logits".
        patch: Side of a region in pixels; 32, 16, 8 or 4 for sides of at least 224, 128, 64 or fewer pixels if None.
        steps: How many steps from nothing to everything.
        baseline: What masked pixels become: a number, one a channel, or images.
        batch_size: Images a forward pass.
        insert: Whether to start from the baseline and uncover regions instead; see `region_insertion_auc`.

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import region_deletion_auc
        >>> images = np.zeros((1, 1, 8, 8)); images[..., :4, :4] = 1.0
        >>> brightness = lambda images: np.stack([images.sum(axis=(1, 2, 3)), np.zeros(len(images))], axis=1)
        >>> good = region_deletion_auc(brightness, images, images[:, 0])
        >>> bad = region_deletion_auc(brightness, images, -images[:, 0])
        >>> good.mean > bad.mean
        True
    """
    values, heat = arrays.as_images(images), as_array(maps, "maps", ndim=(3,))
    if heat.shape != (len(values), *values.shape[2:]):
        raise ValueError(
            f"maps have the shape {heat.shape} but images have {values.shape}; pass one map an image, resized to it."
        )
    if outputs not in ("logits", "probabilities"):
        raise ValueError(f"outputs should be 'logits' or 'probabilities', found {outputs!r}.")
    require_whole_number("steps", steps)
    side = _patch_for(values.shape, patch)
    blank = as_array(baseline, "baseline").astype(values.dtype)
    try:
        blank = np.broadcast_to(blank[:, None, None] if blank.ndim == 1 else blank, values.shape)
    except ValueError as failure:
        wrong = f"baseline has the shape {np.shape(baseline)} but images have {values.shape}"
        raise ValueError(f"{wrong}; pass a number, one a channel, or images.") from failure
    place, rank = _ranked_regions(heat, side)
    regions = rank.shape[1]
    taken = np.rint(np.linspace(0, regions, steps + 1)).astype(np.int64)
    curves = np.empty((len(values), steps + 1))
    with arrays.running(model, batch_size=batch_size) as run:
        whole = _probabilities(run(values), outputs)
        chosen = arrays.targets_of(target, whole)
        start = whole[np.arange(len(values)), chosen]
        # Batch by batch, so that there is never a second copy of all images.
        for first in range(0, len(values), batch_size):
            here = slice(first, first + batch_size)
            for step, count in enumerate(taken):
                top = (rank[here] < count)[:, place][:, None]
                found = _probabilities(
                    run(np.where(top == insert, values[here], blank[here])), outputs
                )
                curves[here, step] = found[np.arange(len(found)), chosen[here]]
    # A probability may have underflown to zero; there is then nothing left to drop.
    curves /= np.maximum(start, np.finfo(np.float64).tiny)[:, None]
    curves, fractions = curves if insert else 1.0 - curves, taken / regions
    return RegionCurves(trapezoid(curves, fractions, axis=1), curves, fractions, chosen, side)


def region_insertion_auc(model: Model, images: Any, maps: Any, **options: Any) -> RegionCurves:
    """The counterpart of deletion: starts from the baseline and uncovers the highest-ranked regions first.

    The curve is the target's probability as a share of that of the whole image: higher is better, and more than 1 is
    possible where parts of the image speak against the target. Arguments are those of `region_deletion_auc`.
    """
    return region_deletion_auc(model, images, maps, insert=True, **options)


def _patch_for(shape: tuple[int, ...], patch: int | None) -> int:
    side = min(shape[2:])
    if patch is None:
        return next(size for least, size in _PATCH_SIZES if side >= least)
    if not 1 <= patch <= side:
        raise ValueError(
            f"patch is {patch} but images are {shape[2]} by {shape[3]} pixels; pass 1 to {side}."
        )
    return patch


def _ranked_regions(heat: Array, side: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Region of every pixel, shape (height, width), and rank of every region, shape (images, regions)."""
    height, width = heat.shape[1:]
    across = -(-width // side)
    place = (np.arange(height) // side)[:, None] * across + np.arange(width) // side
    size = np.bincount(place.ravel())
    means = np.stack([np.bincount(place.ravel(), weights=one.ravel()) / size for one in heat])
    order = np.argsort(-means, axis=1, kind="stable")
    return place, np.argsort(order, axis=1)


def _probabilities(outputs: Array, kind: str) -> Array:
    if kind == "probabilities":
        if outputs.min() < 0 or outputs.max() > 1 + 1e-6:
            found = f"{outputs.min():g} to {outputs.max():g}"
            raise ValueError(
                f"outputs='probabilities' but the model returned {found}; pass outputs='logits'."
            )
        return outputs
    if outputs.shape[1] < 2:
        raise ValueError(
            "the model returned one output an image; a softmax needs at least two classes."
        )
    return np.asarray(softmax(outputs, axis=1))
