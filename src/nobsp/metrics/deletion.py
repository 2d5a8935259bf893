"""Deletion and insertion of image regions: does the class go where the map says it is? (paper, section V-B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.special import softmax

from nobsp._messages import require_whole_number
from nobsp.metrics.arrays import Array, Model, as_array, as_images, running, targets_of

# The paper's sizes, and 4 pixels below them, which again cut an image into 8 x 8 regions.
_PATCH_SIZES = ((224, 32), (128, 16), (64, 8), (0, 4))


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
    values, heat = as_images(images), as_array(maps, "maps", ndim=(3,))
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
    with running(model, batch_size=batch_size) as run:
        whole = _probabilities(run(values), outputs)
        chosen = targets_of(target, whole)
        start = whole[np.arange(len(values)), chosen]
        # Batch by batch, so that there is never a second copy of all images.
        for first in range(0, len(values), batch_size):
            here = slice(first, first + batch_size)
            for step, count in enumerate(taken):
                top = (rank[here] < count)[:, place][:, None]
                found = _probabilities(run(np.where(top == insert, values[here], blank[here])), outputs)
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
        raise ValueError(f"patch is {patch} but images are {shape[2]} by {shape[3]} pixels; pass 1 to {side}.")
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
            raise ValueError(f"outputs='probabilities' but the model returned {found}; pass outputs='logits'.")
        return outputs
    if outputs.shape[1] < 2:
        raise ValueError("the model returned one output an image; a softmax needs at least two classes.")
    return np.asarray(softmax(outputs, axis=1))
