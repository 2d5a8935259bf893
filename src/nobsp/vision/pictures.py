"""Pictures as people have them, as one tensor.

These are Pillow images, paths, folders and lists of arrays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# Formats that files are read as, whatever they are called: Pillow would hand PostScript to another
# program.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

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
    named = (path for path in Path(folder).rglob("*") if path.suffix.lower() in SUFFIXES)
    # Devices and pipes may be called like pictures too, and never end.
    files = sorted(path for path in named if path.is_file())
    if not files:
        raise ValueError(f"{argument} is the folder {str(folder)!r}, which holds no pictures.")
    return files


def pictures_in(images: Any, argument: str) -> list[Any] | None:
    """The pictures and paths that were passed; None where it is something else.

    In place of a folder there are its files.
    """
    listed = [images] if is_picture(images) or is_path(images) else images
    if not isinstance(listed, list | tuple) or not listed:
        return None
    if not all(is_picture(image) or is_path(image) for image in listed):
        return None

    if len(listed) == 1 and is_path(listed[0]) and Path(listed[0]).is_dir():
        return list(picture_files(listed[0], argument))
    return list(listed)


@dataclass(frozen=True, eq=False)
class PictureBatches:
    """Pictures and paths, read a batch at a time whenever they are gone through."""

    pictures: Sequence[Any]
    argument: str
    channels: int
    batch_size: int

    def __iter__(self) -> Iterator[Tensor]:
        first_shape: torch.Size | None = None
        for start in range(0, len(self.pictures), self.batch_size):
            some = self.pictures[start : start + self.batch_size]
            batch = read_pictures(some, self.argument, channels=self.channels)
            first_shape = first_shape or batch.shape[1:]
            if batch.shape[1:] != first_shape:
                _refuse_shapes({tuple(first_shape), tuple(batch.shape[1:])}, self.argument)
            yield batch


def channels_of(pictures: Sequence[Any], argument: str) -> int:
    """One where all pictures are grey, else three; of files no more than their heads are read."""
    from PIL import Image

    grey = ("1", "L", *DEEP_MODES)
    for picture in pictures:
        if not is_path(picture):
            mode = picture.mode
        else:
            with _readable(picture, argument), Image.open(picture, formats=FORMATS) as opened:
                mode = opened.mode
        if mode not in grey:
            return 3
    return 1


def read_pictures(pictures: Sequence[Any], argument: str, *, channels: int | None) -> Tensor:
    """Pictures and paths as (n, channels, height, width), from 0 to 1, not prepared otherwise."""
    return stack_images([_pixels(picture, argument, channels) for picture in pictures], argument)


def stack_images(images: Sequence[Any], argument: str) -> Tensor:
    """Images of one shape as one tensor."""
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        _refuse_shapes(shapes, argument)
    return torch.stack([torch.as_tensor(image) for image in images])


def _refuse_shapes(shapes: set[tuple[int, ...]], argument: str) -> NoReturn:
    raise ValueError(
        f"{argument} has images of the shapes {sorted(shapes)[:4]}; bring them to one size first."
    )


@contextmanager
def _readable(path: Any, argument: str) -> Iterator[None]:
    """Errors of what is done to a file, in words."""
    from PIL import Image

    try:
        yield
    except FileNotFoundError as missing:
        raise FileNotFoundError(
            f"{argument}: there is no file or folder {str(path)!r}; of texts pass the tokens, as "
            "tokenizer(texts, padding=True, return_tensors='pt') makes them."
            if " " in str(path).strip() and not Path(path).suffix
            else f"{argument}: there is no file or folder {str(path)!r}."
        ) from missing
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as failure:
        raise ValueError(
            f"{argument}: {str(path)!r} cannot be read as a picture ({failure}); leave it out."
        ) from failure


def _pixels(picture: Any, argument: str, channels: int | None) -> Tensor:
    from PIL import Image, ImageOps

    if is_path(picture):
        with _readable(picture, argument), Image.open(picture, formats=FORMATS) as opened:
            opened.load()
            picture = ImageOps.exif_transpose(opened)
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
    """Grey pixels of more than eight bits, from 0 to 1, by the range of the picture's mode.

    Pillow would cut them off at 255.
    """
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
        # Sixteen bits are often kept so. Small values may be eight bits or a dark picture of
        # sixteen.
        if low < 0 or high > _SIXTEEN_BITS:
            raise ValueError(
                f"{holds}, and its range is not known; divide by it and pass floats from 0 to 1."
            )
        if 0 < high <= _EIGHT_BITS:
            raise ValueError(
                f"{holds}, which may be of 8 bits or of 16; convert it to mode 'L' or 'I;16' first."
            )
    return (values.astype(np.float64) / _SIXTEEN_BITS).astype(np.float32)
