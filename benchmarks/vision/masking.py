"""Faithfulness at the level of pixels: do maps rank pixels by what masking them does to the model?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.metrics.arrays import (
    Array,
    Model,
    as_array,
    as_images,
    pearson,
    running,
    targets_of,
    undefined,
)


def pixel_faithfulness(
    model: Model,
    images: Any,
    maps: Any,
    *,
    target: Any = None,
    baseline: float = 0.0,
    subset_size: int = 224,
    runs: int = 100,
    seed: int = 0,
    batch_size: int = 64,
) -> Array:
    """Pearson correlation, image by image, between attributions and the effect of masking random pixels.

    In each run `subset_size` of the values of an image, each channel of a pixel counting for itself, are set to the
    baseline; their attributions are added up and set against the drop of the target's output. This is the Faithfulness
    Correlation of Bhatt et al. (2020) as Quantus computes it; with maps as coarse as class activation maps it is close
    to zero for every method.

    Args:
        model: A torch module, or a function from images to outputs of shape (images, outputs). Quantus watches
            probabilities, so let the model end in a softmax to compare with it.
        images: Shape (images, channels, height, width).
        maps: Attributions, shape (images, height, width), the same for every channel, or the shape of `images`.
        target: The output to watch, or one an image; the largest output if None.
        baseline: What masked values are set to.
        subset_size: Values masked a run.
        runs: How many random subsets.
        seed: Decides the subsets.
        batch_size: Images a forward pass.

    Returns:
        One correlation an image; nan where the output or the attribution never changes.

    Warns:
        UndefinedScoreWarning: If some correlation is nan.
    """
    values = as_images(images)
    attributions = as_array(maps, "maps", ndim=(3, 4))
    if attributions.ndim == 3:
        attributions = attributions[:, None]
    if attributions.shape not in (values.shape, (len(values), 1, *values.shape[2:])):
        raise ValueError(
            f"maps have the shape {np.shape(maps)} but images have {values.shape}; resize the maps."
        )
    size = values[0].size
    if not 1 <= subset_size <= size:
        raise ValueError(
            f"subset_size is {subset_size} but an image has {size} values; pass 1 to {size}."
        )

    def draw(image: int) -> NDArray[np.int64]:
        rng = np.random.default_rng((seed, image))
        return np.stack([rng.choice(size, subset_size, replace=False) for _ in range(runs)])

    weights = np.broadcast_to(attributions, values.shape)
    scores = correlation_over(model, values, weights, draw, target, baseline, batch_size)
    unknown = int(np.isnan(scores).sum())
    if unknown:
        undefined(
            f"masking never changed the output, or attributions are constant, in {unknown} images."
        )
    return scores


def correlation_over(
    model: Model,
    images: NDArray[Any],
    attributions: Array,
    subsets_of: Callable[[int], NDArray[np.int64]],
    target: Any,
    baseline: float,
    batch_size: int,
) -> Array:
    """Correlations over subsets, shape (runs, subset), that belong to each image whatever the batches are."""
    scores = np.empty(len(images))
    with running(model, batch_size=batch_size) as run:
        before = run(images)
        chosen = targets_of(target, before)
        for image, (values, weights) in enumerate(zip(images, attributions, strict=True)):
            subsets = subsets_of(image)
            after = []
            for start in range(0, len(subsets), batch_size):
                part = subsets[start : start + batch_size]
                masked = np.repeat(values.reshape(1, -1), len(part), axis=0)
                np.put_along_axis(masked, part, baseline, axis=1)
                after.append(run(masked.reshape(len(part), *values.shape))[:, chosen[image]])
            drops = before[image, chosen[image]] - np.concatenate(after)
            scores[image] = pearson(weights.reshape(-1)[subsets].sum(axis=1), drops)
    return scores
