"""Pictures as people have them: Pillow images, paths, folders and lists of arrays, as one tensor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")

# Grey pictures whose values go beyond eight bits.
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
_EIGHT_BITS = 255
_SIXTEEN_BITS = 65535


def is_picture(value: Any) -> bool:
    """Whether this is an image of Pillow, without loading Pillow."""
    return any(kind.__module__.startswith("PIL.") for kind in type(value).__mro__)


def is_path(value: Any) -> bool:
    """Whether this names a file or a folder."""
    return isinstance(value, str | os.PathLike)


def picture_files(folder: Any, argument: str) -> list[Path]:
    """The pictures of a folder and of the folders in it, in the order of their names."""
    files = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(f"{argument} is the folder {str(folder)!r}, which holds no pictures.")
    return files


def pictures_in(images: Any, argument: str) -> list[Any] | None:
    """The pictures and paths that were passed, a folder's files in its place; None where it is something else."""
    listed = [images] if is_picture(images) or is_path(images) else images
    if not isinstance(listed, list | tuple) or not listed:
        return None
    if not all(is_picture(image) or is_path(image) for image in listed):
        return None

    if len(listed) == 1 and is_path(listed[0]) and Path(listed[0]).is_dir():
        return list(picture_files(listed[0], argument))
    return list(listed)


def read_pictures(pictures: Sequence[Any], argument: str, *, channels: int | None) -> Tensor:
    """Pictures and paths as (n, channels, height, width) from 0 to 1, without any other preparation."""
    return stack_images([_pixels(picture, argument, channels) for picture in pictures], argument)


def stack_images(images: Sequence[Any], argument: str) -> Tensor:
    """Images of one shape as one tensor."""
    shapes = sorted({tuple(image.shape) for image in images})
    if len(shapes) > 1:
        raise ValueError(
            f"{argument} has images of the shapes {shapes[:4]}; bring them to one size first."
        )
    return torch.stack([torch.as_tensor(image) for image in images])


def _pixels(picture: Any, argument: str, channels: int | None) -> Tensor:
    from PIL import Image, ImageOps

    if is_path(picture):
        try:
            with Image.open(picture) as opened:
                opened.load()
                picture = ImageOps.exif_transpose(opened)
        except FileNotFoundError as missing:
            raise FileNotFoundError(
                f"{argument}: there is no file or folder {str(picture)!r}."
            ) from missing
        except (OSError, ValueError, SyntaxError) as failure:
            raise ValueError(
                f"{argument}: {str(picture)!r} cannot be read as a picture ({failure}); leave it out."
            ) from failure
    if picture.mode in DEEP_MODES:
        grey = _deep_pixels(picture, argument)[None]
        return torch.from_numpy(np.repeat(grey, 3 if channels == 3 else 1, axis=0))

    mode = {1: "L", 3: "RGB"}.get(channels or 0)
    if mode is None:
        mode = "L" if picture.mode in ("1", "L") else "RGB"
    pixels = np.asarray(picture.convert(mode), dtype=np.float32) / 255.0
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(pixels, 2, 0)))


def _deep_pixels(picture: Any, argument: str) -> NDArray[np.float32]:
    """Grey of more than eight bits from 0 to 1, by its mode's own range: Pillow would cut it off at 255."""
    values = np.asarray(picture)
    if values.size == 0:
        raise ValueError(f"{argument} has a picture of size {picture.size}, without pixels.")

    low, high = values.min(), values.max()
    holds = f"{argument} has a picture of mode {picture.mode!r} with values from {low} to {high}"
    if picture.mode == "F":
        # NaN fails this comparison too.
        if not (low >= 0 and high <= 1):
            raise ValueError(f"{holds}; of floats, 0 to 1 is taken: scale it to that first.")
        return values.astype(np.float32)

    if picture.mode == "I":
        # Sixteen bits are often kept so. Small values may be eight bits or a dark picture of sixteen.
        if low < 0 or high > _SIXTEEN_BITS:
            raise ValueError(
                f"{holds}, and its range is not known; divide by it and pass floats from 0 to 1."
            )
        if 0 < high <= _EIGHT_BITS:
            raise ValueError(
                f"{holds}, which may be of 8 bits or of 16; convert it to mode 'L' or 'I;16' first."
            )
    return (values.astype(np.float64) / _SIXTEEN_BITS).astype(np.float32)
