"""Tensors, arrays, loaders, iterables and Ray datasets as batches for a model.

They may hold images, signals, volumes or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nobsp._typing import AnyArray, ImagesLike
from nobsp.arguments import refuse_unreadable
from nobsp.calibration import Run
from nobsp.calibration.local import is_ray
from nobsp.calibration.ray import RayRows, RayRun, first_batch
from nobsp.network.batches import (
    NoRowsError,
    check_batch_size,
    count_ahead,
    first_non_finite,
    open_stream,
)
from nobsp.vision.find_map import PROBE_IMAGES
from nobsp.vision.one_tensor import same_inputs
from nobsp.vision.pictures import PictureBatches, channels_of, pictures_in, stack_images

# Images of a Ray dataset whose sums are sent at a time.
AT_ONCE = 512
# Under which names dictionaries of a loader carry their images.
KEYS = ("pixel_values", "images", "image", "x", "inputs")
# What of a tokenizer's output a model is given.
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
SHAPES = (
    "(n, channels, height, width), (n, channels, time), (n, channels, depth, height, width) or "
    "tokens (n, length)"
)


@dataclass(frozen=True, eq=False)
class Images:
    """Images in batches no larger than asked for: floating tensors, or integer ones of tokens."""

    rows: int | None  # how many images there are, or None where it is not known before reading
    first: Tensor  # the first batch, looked at without losing it
    _open: Callable[[], Iterator[Tensor]] = field(repr=False)
    keys: tuple[str, ...] = ()  # keywords of the model that the second axis holds
    pixels: str = ""  # keyword of the images, where other inputs come with them
    fixed: dict[str, Tensor] = field(default_factory=dict)  # these inputs, the same for all images

    def __iter__(self) -> Iterator[Tensor]:
        return self._open()


@dataclass(eq=False)
class DatasetImages(RayRows):
    """A Ray dataset's images; `first` are the first of them."""

    first: Tensor = field(kw_only=True)
    keys: tuple[str, ...] = ()
    pixels: str = ""
    fixed: dict[str, Tensor] = field(default_factory=dict)


def read_images(run: Run, images: ImagesLike, *, batch_size: int) -> Images | DatasetImages:
    """The images of a calibration; all processes get the same `first`.

    Only one of the processes needs to have any images.
    """
    if isinstance(run, RayRun):
        if not is_ray(images):
            kind = type(images).__name__
            raise TypeError(
                f"engine is RayCluster, but images is a {kind}; pass a ray.data.Dataset, or no "
                "engine."
            )

        batch = first_batch(images, PROBE_IMAGES, argument="images", batch_format="numpy")
        first = _read_block(batch, batch_size=batch_size, argument="images").first
        read = partial(_read_block, batch_size=batch_size)
        size = first[0].numel() * first.element_size()
        return DatasetImages(
            images, read, batch_size, size, batch_format="numpy", most_rows=AT_ONCE, first=first
        )

    if is_ray(images):
        raise ValueError(
            f"images is a Ray dataset, but the engine has {run.size} processes that read images "
            "themselves; call fit in one process with engine=nobsp.RayCluster(), or pass each its "
            "share as an iterable of batches."
        )

    try:
        source = images_of(images, batch_size=batch_size)
    except NoRowsError:
        if run.size == 1:
            raise
        source = Images(0, torch.empty(0), lambda: iter(()))

    # A copy: what is sent would take all of a larger tensor along.
    firsts = [
        first
        for first in run.gather(source.first[:PROBE_IMAGES].to("cpu", copy=True))
        if len(first)
    ]
    if not firsts:
        raise ValueError(f"images is empty on all {run.size} ranks.")

    return replace(source, first=firsts[0])


def _read_block(
    block: Mapping[str, Any], *, batch_size: int, argument: str = "images (in one of its batches)"
) -> Images:
    """The images of a dataset's block, in one of its workers."""
    column = np.asarray(
        next(iter(block.values())) if len(block) == 1 else _images_in(block, argument)
    )
    if column.dtype == object:
        shapes = sorted({np.shape(image) for image in column}, key=str)
        raise ValueError(
            f"{argument} has images of the shapes {shapes[:4]}; bring them to one size first."
        )
    return images_of(
        column.copy(), batch_size=batch_size, argument=argument
    )  # it is Ray's, not to be written to


def images_of(
    images: ImagesLike,
    *,
    batch_size: int,
    argument: str = "images",
    image_shape: tuple[int, ...] | None = None,
) -> Images:
    """Read images of any kind in batches; one of shape `image_shape` is a batch of its own."""
    size = check_batch_size(batch_size)
    images = _as_people_have_them(images, argument, image_shape, batch_size=size)
    keys = _keys(images)
    if isinstance(images, Tensor | np.ndarray | Mapping):
        if isinstance(images, Mapping):
            whole = _batch(images, argument, 0)
        else:
            whole = _checked(images, argument)
        if len(whole) == 0:
            raise NoRowsError(f"{argument} is empty.")
        first = next(_pieces(whole, size, argument, 0))
        pixels, fixed = _other_inputs(images)
        return Images(
            rows=len(whole),
            first=first,
            _open=lambda: _pieces(whole, size, argument, 0),
            keys=keys,
            pixels=pixels,
            fixed=fixed,
        )

    first_batch, batches, _ = open_stream(images, argument)
    begun = _batch(first_batch, argument, 0)
    if len(begun) == 0:
        raise ValueError(f"batch 0 of {argument} is empty.")
    pixels, fixed = _other_inputs(first_batch)

    def read() -> Iterator[Tensor]:
        seen = 0
        for number, batch in enumerate(batches()):
            if not same_inputs(_other_inputs(batch)[1], fixed):
                raise ValueError(
                    f"batch {number} of {argument} has other {sorted(fixed)} than the first; "
                    "inputs beside the images must be the same for all of them."
                )
            tensor = _batch(batch, argument, number)
            yield from _pieces(tensor, size, argument, seen)
            seen += len(tensor)

    is_listed = isinstance(images, PictureBatches)
    return Images(
        rows=len(images.pictures) if is_listed else count_ahead(images),
        first=next(_pieces(begun, size, argument, 0)),
        _open=read,
        keys=_keys(first_batch),
        pixels=pixels,
        fixed=fixed,
    )


def _as_people_have_them(
    images: ImagesLike, argument: str, image_shape: tuple[int, ...] | None, *, batch_size: int
) -> Any:
    """Single images and lists of them as one tensor, pictures and files as batches.

    Anything else stays as it is.
    """
    images = _unlisted(images, argument)
    if isinstance(images, Tensor | np.ndarray):
        if image_shape is not None:
            _refuse_channels_last(tuple(images.shape), image_shape, argument)
        is_single = image_shape is not None and tuple(images.shape) == tuple(image_shape)
        return images[None] if is_single else images
    pictures = pictures_in(images, argument)
    if pictures is not None:
        channels = channels_of(pictures, argument) if image_shape is None else image_shape[0]
        return PictureBatches(pictures, argument, channels=channels, batch_size=batch_size)
    if not isinstance(images, list | tuple) or not images:
        return images

    are_arrays = all(isinstance(image, Tensor | np.ndarray) for image in images)
    # A list of batches has one more axis: of images, each has three.
    if isinstance(images, list) and are_arrays and all(image.ndim == 3 for image in images):
        return stack_images(images, argument)
    return images


def _is_of_numbers(values: object) -> bool:
    """Whether these are lists, nested or not, that end in plain numbers."""
    while isinstance(values, list | tuple) and values:
        values = values[0]
    return isinstance(values, int | float | np.integer | np.floating)


def _is_of_lines(values: list[Any] | tuple[Any, ...]) -> bool:
    """Whether these are arrays or tensors of one axis, such as the tokens of each text."""
    return bool(values) and all(
        isinstance(line, Tensor | np.ndarray) and line.ndim == 1 for line in values
    )


def _unlisted(values: Any, argument: str) -> Any:
    """Nested lists of numbers as a tensor, whole ones as tokens; anything else as it is."""
    if not isinstance(values, list | tuple):
        return values
    if _is_of_lines(values):
        values = [line.tolist() for line in values]
    if not _is_of_numbers(values):
        return values
    if not isinstance(values[0], list | tuple):
        raise TypeError(
            f"{argument} is a list of numbers; of a single text pass [tokens], a list of its list."
        )

    try:
        array = np.array(values)
    except ValueError as failure:
        raise ValueError(
            f"{argument} has lists of different lengths; texts are brought to one length by "
            "tokenizer(texts, padding=True, return_tensors='pt')."
        ) from failure
    if array.dtype.kind not in "iufb":
        raise TypeError(f"{argument} has lists in which not everything is a number.")
    whole = array.dtype.kind in "iu"
    return _tensor_of(array.astype(np.int64 if whole else np.float32), argument)


def _refuse_channels_last(
    shape: tuple[int, ...], image_shape: tuple[int, ...], argument: str
) -> None:
    """An error for images, or a single one, with the channels behind height and width."""
    last = (*image_shape[1:], image_shape[0])
    if len(last) == 3 and shape[-3:] == last and last != tuple(image_shape):
        axes = "2, 0, 1" if len(shape) == 3 else "0, 3, 1, 2"
        raise ValueError(
            f"{argument} has shape {shape}, with the channels last; pass "
            f"{argument}.permute({axes}) of a tensor, {argument}.transpose({axes}) of an array."
        )


def _other_inputs(batch: Any) -> tuple[str, dict[str, Tensor]]:
    """Keyword of the images where tokens come with them, and these tokens."""
    if not isinstance(batch, Mapping) or TOKENS[0] not in batch:
        return "", {}
    pixels = next((key for key in KEYS if key in batch), None)
    if pixels is None:
        return "", {}
    return pixels, {key: torch.as_tensor(batch[key]) for key in TOKENS if key in batch}


def _keys(batch: Any) -> tuple[str, ...]:
    """Keywords of a tokenizer's output that are handed on; none if there are pixels to explain."""
    if not isinstance(batch, Mapping) or TOKENS[0] not in batch or _other_inputs(batch)[0]:
        return ()
    return tuple(key for key in TOKENS if key in batch)


def _batch(batch: Any, argument: str, number: int) -> Tensor:
    where = f"batch {number} of {argument}"
    if _keys(batch):
        return torch.stack(
            [
                _checked(_unlisted(batch[key], f"{key} of {where}"), f"{key} of {where}").long()
                for key in _keys(batch)
            ],
            dim=1,
        )
    if isinstance(batch, Mapping):
        batch = _images_in(batch, where)
    elif isinstance(batch, tuple | list) and batch and not _is_of_numbers(batch):
        batch = batch[0]
    return _checked(_unlisted(batch, where), where)


def _images_in(batch: Mapping[str, Any], argument: str) -> Any:
    entries = [batch[key] for key in KEYS if key in batch]
    if not entries:
        raise TypeError(
            f"{argument} has {sorted(map(str, batch))}, none of which is one of {list(KEYS)}; "
            "rename one."
        )
    return entries[0]


def _checked(batch: Any, argument: str) -> Tensor:
    refuse_unreadable(batch, name=argument)
    if isinstance(batch, np.ndarray):
        batch = _tensor_of(batch, argument)
    if not isinstance(batch, Tensor):
        raise TypeError(
            f"{argument} is a {type(batch).__name__}; expected a tensor (n, channels, height, "
            "width)."
        )
    whole = not batch.is_floating_point() and batch.dtype != torch.bool
    if batch.ndim not in ((2, 3, 4, 5) if whole else (3, 4, 5)):
        hint = " A table is explained by nobsp.NObSP(model)." if batch.ndim == 2 else ""
        raise ValueError(f"{argument} has shape {tuple(batch.shape)}; expected {SHAPES}.{hint}")
    if whole and batch.ndim == 2:
        return batch.detach()
    if not batch.is_floating_point():
        hint = (
            "convert to floating point and normalise the way the model was trained, e.g. "
            "images.float() / 255, or images.float() where the model does that itself"
        )
        raise TypeError(f"{argument} is of {str(batch.dtype).removeprefix('torch.')}; {hint}.")
    return batch.detach()


def _tensor_of(array: AnyArray, argument: str) -> Tensor:
    """An array as a tensor; an error in words for what torch has no numbers for."""
    try:
        return torch.from_numpy(np.ascontiguousarray(array))
    except (TypeError, ValueError) as failure:
        raise TypeError(
            f"{argument} has dtype {array.dtype}; convert it first, e.g. with .astype(np.float32)."
        ) from failure


def _pieces(batch: Tensor, size: int, argument: str, seen: int) -> Iterator[Tensor]:
    for start in range(0, len(batch), size):
        piece = batch[start : start + size]
        bad = first_non_finite(piece)
        if bad is not None:
            number = bad[0] + start + seen
            raise ValueError(
                f"image {number} of {argument} has a value that is not finite; leave it out or "
                "repair it."
            )
        yield piece


# ------------------------------------------------------ thumbnails, by which images are found again

# Rows and columns of a thumbnail: fine enough to tell photographs apart, a kilobyte each.
_THUMBNAIL_SIDE = 32


def make_thumbnails(images: Tensor) -> Tensor | None:
    """Grey copies of 32 × 32 pixels, each from its darkest to its brightest as 0 to 255.

    None for what is no image.

    >>> make_thumbnails(torch.rand(2, 3, 64, 48)).shape
    torch.Size([2, 32, 32])
    """
    if images.ndim != 4 or not images.is_floating_point():
        return None
    grey = images.mean(1, keepdim=True)
    small = functional.adaptive_avg_pool2d(grey, _THUMBNAIL_SIDE)[:, 0]

    darkest = small.amin((1, 2), keepdim=True)
    spread = small.amax((1, 2), keepdim=True) - darkest
    scaled = (small - darkest) / spread.clamp_min(1e-12)
    return (255 * scaled).round().to(torch.uint8).cpu()
