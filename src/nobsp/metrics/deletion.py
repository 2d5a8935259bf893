"""Regions of images removed, or inserted, in the order a map ranks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.integrate import trapezoid
from scipy.special import softmax

from nobsp._typing import AnyArray, ArrayLike, FloatArray, IntArray
from nobsp.arguments import require_choice, require_whole_number
from nobsp.metrics.arrays import Model, as_array, as_images, at_target, running, targets_of

OutputKind = Literal["logits", "probabilities"]
# Least side of an image and side of its regions: the paper's sizes, and 4 pixels below them, which
# again cut an image into 8 x 8 regions.
_PATCH_SIZES = ((224, 32), (128, 16), (64, 8), (0, 4))
# A softmax in single precision may exceed one by rounding.
_PROBABILITY_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class RegionCurves:
    """What removing, or inserting, region after region does to the target's probability.

    Attributes:
        auc: Area under each image's curve.
        curves: Per image the normalised drop (deletion) or probability (insertion), from no region
            to all of them.
        fractions: Share of the regions removed or inserted at each step.
        target: The class watched, per image.
        patch: Side of a region in pixels.
    """

    auc: FloatArray
    curves: FloatArray
    fractions: FloatArray
    target: IntArray
    patch: int

    @property
    def mean(self) -> float:
        """Mean area over the images."""
        return float(self.auc.mean())

    def __repr__(self) -> str:
        images = len(self.auc)
        return f"RegionCurves(mean={self.mean:.3f}, {images} images, {self.patch}-pixel regions)"


def region_deletion_auc(
    model: Model,
    images: ArrayLike,
    maps: ArrayLike,
    *,
    target: ArrayLike | None = None,
    outputs: OutputKind = "logits",
    patch: int | None = None,
    steps: int = 10,
    baseline: ArrayLike = 0.0,
    batch_size: int = 64,
    insert: bool = False,
) -> RegionCurves:
    """Masks the regions a map ranks highest and integrates the drop of the target's probability.

    Regions are ranked by the mean of the map in them (equal ones from top left to bottom right); at
    step s of `steps` the first s/steps of them are masked. The drop is 1 - p of the masked image /
    p of the image, with p the target's probability, integrated over the masked share by trapezoids:
    higher is better.

    Args:
        model: A torch module, or a function from images to outputs of shape (images, classes).
        images: Shape (images, channels, height, width).
        maps: One map per image, at the image's size, shape (images, height, width).
        target: The class to watch, or one per image; the predicted one if None.
        outputs: What the model returns: a softmax is applied to "logits".
        patch: Side of a region in pixels; 32, 16, 8 or 4 for sides of at least 224, 128, 64 or
            fewer pixels if None.
        steps: How many steps from nothing to everything.
        baseline: What masked pixels become: a number, one per channel, or images.
        batch_size: Images per forward pass.
        insert: Whether to start from the baseline and uncover regions instead; see
            `region_insertion_auc`.

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import region_deletion_auc
        >>> images = np.zeros((1, 1, 8, 8)); images[..., :4, :4] = 1.0
        >>> def brightness(images):
        ...     total = images.sum(axis=(1, 2, 3))
        ...     return np.stack([total, np.zeros(len(images))], axis=1)
        >>> good = region_deletion_auc(brightness, images, images[:, 0])
        >>> bad = region_deletion_auc(brightness, images, -images[:, 0])
        >>> good.mean > bad.mean
        True
    """
    pixels = as_images(images)
    heat = _checked_maps(maps, pixels)
    require_choice("outputs", outputs, ("logits", "probabilities"))
    require_whole_number("steps", steps)
    side = _patch_for(pixels.shape, patch)
    blank = _baseline_images(baseline, pixels)

    region_of_pixel, rank = _ranked_regions(heat, side)
    regions = rank.shape[1]
    changed_regions = np.rint(np.linspace(0, regions, steps + 1)).astype(np.int64)
    curves = np.empty((len(pixels), steps + 1))
    with running(model, batch_size=batch_size) as run:
        whole = _probabilities(run(pixels), outputs)
        classes = targets_of(target, whole)
        start = at_target(whole, classes)

        # Batch by batch, so that there is never a second copy of all images.
        for first in range(0, len(pixels), batch_size):
            batch = slice(first, first + batch_size)
            for step, changed in enumerate(changed_regions):
                is_changed = (rank[batch] < changed)[:, region_of_pixel][:, None]
                masked = np.where(is_changed == insert, pixels[batch], blank[batch])
                probabilities = _probabilities(run(masked), outputs)
                curves[batch, step] = at_target(probabilities, classes[batch])

    # A probability may have underflown to zero; there is then nothing left to drop.
    curves /= np.maximum(start, np.finfo(np.float64).tiny)[:, None]
    if not insert:
        curves = 1.0 - curves
    fractions = changed_regions / regions
    return RegionCurves(
        auc=trapezoid(curves, fractions, axis=1),
        curves=curves,
        fractions=fractions,
        target=classes,
        patch=side,
    )


def region_insertion_auc(
    model: Model,
    images: ArrayLike,
    maps: ArrayLike,
    *,
    target: ArrayLike | None = None,
    outputs: OutputKind = "logits",
    patch: int | None = None,
    steps: int = 10,
    baseline: ArrayLike = 0.0,
    batch_size: int = 64,
) -> RegionCurves:
    """The counterpart of deletion.

    Starts from the baseline and uncovers the highest-ranked regions first.

    The curve is the target's probability as a share of that of the whole image: higher is better,
    and more than 1 is possible where parts of the image speak against the target. Arguments are
    those of `region_deletion_auc`.
    """
    return region_deletion_auc(
        model,
        images,
        maps,
        target=target,
        outputs=outputs,
        patch=patch,
        steps=steps,
        baseline=baseline,
        batch_size=batch_size,
        insert=True,
    )


def _checked_maps(maps: ArrayLike, images: AnyArray) -> FloatArray:
    """One map per image, at the image's size."""
    heat = as_array(maps, "maps", ndim=(3,))
    if heat.shape != (len(images), *images.shape[2:]):
        raise ValueError(
            f"maps have the shape {heat.shape} but images have {images.shape}; "
            "pass one map per image, resized to it."
        )
    return heat


def _baseline_images(baseline: ArrayLike, images: AnyArray) -> AnyArray:
    """What masked pixels become, for every pixel of every image."""
    blank = as_array(baseline, "baseline").astype(images.dtype)
    if blank.ndim == 1:
        blank = blank[:, None, None]
    try:
        return np.broadcast_to(blank, images.shape)
    except ValueError as failure:
        raise ValueError(
            f"baseline has the shape {np.shape(baseline)} but images have {images.shape}; "
            "pass a number, one per channel, or images."
        ) from failure


def _patch_for(shape: tuple[int, ...], patch: int | None) -> int:
    """Side of a region: the one asked for, or that which goes with the images' size."""
    side = min(shape[2:])
    if patch is None:
        return next(size for least, size in _PATCH_SIZES if side >= least)
    require_whole_number("patch", patch)
    if patch > side:
        raise ValueError(
            f"patch is {patch} but images are {shape[2]} by {shape[3]} pixels; pass 1 to {side}."
        )
    return patch


def _ranked_regions(heat: FloatArray, side: int) -> tuple[IntArray, IntArray]:
    """Region of every pixel (height, width), and rank of every region (images, regions)."""
    height, width = heat.shape[1:]
    regions_across = -(-width // side)
    row_of_regions = np.arange(height) // side
    column_of_regions = np.arange(width) // side
    region_of_pixel = row_of_regions[:, None] * regions_across + column_of_regions

    flat = region_of_pixel.ravel()
    pixels = np.bincount(flat)
    means = [np.bincount(flat, weights=image.ravel()) / pixels for image in heat]
    order = np.argsort(-np.stack(means), axis=1, kind="stable")
    return region_of_pixel, np.argsort(order, axis=1)


def _probabilities(outputs: FloatArray, kind: OutputKind) -> FloatArray:
    """Probabilities from what a model returned."""
    if kind == "logits":
        if outputs.shape[1] < 2:
            raise ValueError(
                "the model returned one output per image; a softmax needs at least two classes."
            )
        return np.asarray(softmax(outputs, axis=1))

    if outputs.min() < 0 or outputs.max() > 1 + _PROBABILITY_ROUNDING:
        raise ValueError(
            "outputs='probabilities' but the model returned "
            f"{outputs.min():g} to {outputs.max():g}; pass outputs='logits'."
        )
    return outputs
