"""Pictures as people have them: Pillow images, paths, folders and lists of arrays, as one tensor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


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
    mode = {1: "L", 3: "RGB"}.get(channels or 0)
    if mode is None:
        mode = "L" if picture.mode in ("1", "L") else "RGB"
    pixels = np.asarray(picture.convert(mode), dtype=np.float32) / 255.0
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(pixels, 2, 0)))
