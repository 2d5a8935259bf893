"""Folders of images as batches a network takes, read when they are needed."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nobsp.cli.console import Misuse, close_to

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
PRESETS: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
    "none": ((0.0,), (1.0,)),
}


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images of a folder, prepared the way a network takes them.

    Attributes:
        folder: Where they are.
        paths: The files, in order.
        labels: The folder each lies in, taken for its class; None for images that lie in none.
        classes: All those folders, in the order in which classes are usually numbered.
        size: Height and width they are brought to; None to leave them.
        squash: Whether to squash them to it, or to cut what is too long.
        grey: Whether they have one channel.
        mean: Subtracted, one number a channel.
        std: Divided by.
        batch_size: Images in a batch.
    """

    folder: Path
    paths: tuple[Path, ...]
    labels: tuple[str | None, ...]
    classes: tuple[str, ...]
    size: tuple[int, int] | None
    squash: bool
    grey: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, len(self), self.batch_size):
            yield self.batch(range(start, min(start + self.batch_size, len(self))))

    def batch(self, positions: Sequence[int]) -> Tensor:
        """Some of the images, (n, channels, height, width)."""
        import numpy as np
        import torch

        pixels = [self._pixels(self.paths[position]) for position in positions]
        shapes = {one.shape[:2] for one in pixels}
        if len(shapes) > 1:
            found = " and ".join(f"{height}×{width}" for height, width in sorted(shapes)[:2])
            raise Misuse(
                f"the images of {self.folder} have different sizes, such as {found}; bring them to one with --size."
            )
        stacked = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255.0
        return (stacked - self._column(self.mean)) / self._column(self.std)

    @property
    def names(self) -> list[str]:
        """Where in the folder each image is."""
        return [path.relative_to(self.folder).as_posix() for path in self.paths]

    def shown(self, batch: Tensor) -> Tensor:
        """A batch as it looks: from 0 to 1."""
        return (batch * self._column(self.std) + self._column(self.mean)).clamp(0.0, 1.0)

    def chosen(self, positions: Sequence[int]) -> Pictures:
        """Some of the images."""
        return replace(
            self,
            paths=tuple(self.paths[position] for position in positions),
            labels=tuple(self.labels[position] for position in positions),
        )

    def _column(self, numbers: Sequence[float]) -> Tensor:
        import torch

        return torch.tensor(numbers)[None, :, None, None]

    def _pixels(self, path: Path) -> Any:
        import numpy as np
        from PIL import Image, ImageOps

        with _opened(path) as opened:
            picture = ImageOps.exif_transpose(opened).convert("L" if self.grey else "RGB")
        if self.size is not None:
            height, width = self.size
            bring = picture.resize if self.squash else lambda size, how: ImageOps.fit(picture, size, how)
            picture = bring((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.uint8)
        return pixels[:, :, None] if self.grey else pixels


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from PIL import Image

    try:
        with Image.open(path) as opened:
            yield opened
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as failure:
        raise ValueError(f"{path} cannot be read as an image ({failure}); repair it or take it out.") from failure


def require_image(path: Path) -> None:
    """Complains about a file that is no image, or not a whole one."""
    with _opened(path) as opened:
        opened.draft("L", (1, 1))  # a JPEG is read as small as it goes, which is fast; others are read as they are
        opened.load()


def find_pictures(folder: Path, options: Namespace, *, option: str, batch_size: int) -> Pictures:
    """The images of a folder and of the folders in it, in the order of their names."""
    if not folder.is_dir():
        beside = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
        hint = close_to(folder.name, beside) if beside else ""
        raise Misuse(f"{option} {folder}: there is no such folder{f'; {hint}' if 'did you' in hint else '.'}")
    try:
        import PIL  # noqa: F401
    except ImportError as missing:
        raise ImportError("reading images needs Pillow: pip install pillow.") from missing
    found = sorted(
        Path(home, name) for home, _, names in os.walk(folder) for name in names if name.lower().endswith(SUFFIXES)
    )
    if not found:
        raise Misuse(f"{option} {folder} holds no images ({', '.join(suffix[1:] for suffix in SUFFIXES)}).")
    inside = [path.relative_to(folder).parts for path in found]
    mean, std = normalisation(options)
    return Pictures(
        folder=folder,
        paths=tuple(found),
        labels=tuple(parts[0] if len(parts) > 1 else None for parts in inside),
        classes=tuple(sorted({parts[0] for parts in inside if len(parts) > 1})),
        size=_size(options.size),
        squash=options.fit == "squash",
        grey=options.channels == 1,
        mean=mean,
        std=std,
        batch_size=batch_size,
    )


def normalisation(options: Namespace) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread per channel, from --normalise or from --mean and --std."""
    channels = options.channels
    named = options.normalise or ("imagenet" if channels == 3 else "none")
    if named not in PRESETS:
        raise Misuse(f"--normalise {named}: {close_to(named, list(PRESETS))}")
    mean, std = PRESETS[named]
    mean, std = options.mean or mean, options.std or std
    for option, numbers in (("--mean", mean), ("--std", std)):
        if len(numbers) not in (1, channels):
            said = "imagenet has three channels" if numbers in PRESETS["imagenet"] else f"found {len(numbers)} numbers"
            raise Misuse(f"{option} takes one number, or one for each of the {channels} channels; {said}.")
    if any(number <= 0 for number in std):
        raise Misuse(f"--std must be above zero, found {min(std):g}.")
    return tuple(_each(mean, channels)), tuple(_each(std, channels))


def _each(numbers: Sequence[float], channels: int) -> list[float]:
    return list(numbers) if len(numbers) == channels else list(numbers) * channels


def _size(given: Sequence[int] | None) -> tuple[int, int] | None:
    if given is None:
        return None
    if len(given) > 2 or any(side < 1 for side in given):
        raise Misuse(f"--size takes a side, or height and width, in pixels; found {' '.join(map(str, given))}.")
    return (given[0], given[-1])
