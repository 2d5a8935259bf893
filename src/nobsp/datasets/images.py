"""The paper's image sets: `load_images` and the `Images` it gives."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nobsp.datasets.archives import Shelf
from nobsp.datasets.pictures import FOLDERS, PACKED, decoded, pillow, resized

IMAGE_SETS = (*PACKED, *FOLDERS)

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Images with labels, decoded when they are asked for.

    `images[i]` is an image as float32 in [0, 1], channels first, with its label, so that a torch `DataLoader` takes the
    whole as it is. Normalise as the network at hand wants it.

    Attributes:
        name: Which set.
        split: "train", or "val" for the held-out images.
        labels: Class codes, shape (images,).
        class_names: Names of the classes in the order of their codes.
        class_ids: What the files call the classes (WordNet ids, folder names, codes).
        size: Side in pixels to which images are brought; None if they stay as they are.
    """

    name: str
    split: Literal["train", "val"]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    class_ids: tuple[str, ...]
    size: int | None
    _pixels: Pixels | None = None
    _shelf: Shelf | None = None
    _files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(self, position: int) -> Pixels:
        """One image as it is stored, brought to `size`: uint8, shape (height, width, 3)."""
        if self._pixels is not None:
            image = self._pixels[position]
            return image if self.size is None else resized(image, self.size)
        assert self._shelf is not None
        return decoded(self._shelf.read(self._files[position]), size=self.size)

    def __getitem__(self, position: int) -> tuple[NDArray[np.float32], int]:
        if not -len(self) <= position < len(self):
            raise IndexError(f"position is {position} but there are {len(self)} images.")
        position %= len(self)
        image = np.ascontiguousarray(self.pixels(position).transpose(2, 0, 1))
        return image.astype(np.float32) / np.float32(255), int(self.labels[position])

    def __iter__(self) -> Iterator[tuple[NDArray[np.float32], int]]:
        return (self[position] for position in range(len(self)))

    def array(self) -> NDArray[np.float32]:
        """All images at once, float32 in [0, 1], shape (images, 3, height, width).

        Raises:
            ValueError: If images have different sizes.
        """
        first, _ = self[0]
        stacked = np.empty((len(self), *first.shape), dtype=np.float32)
        for position, (image, _) in enumerate(self):
            if image.shape != first.shape:
                raise ValueError(
                    f"images of {self.name} have different sizes, {first.shape[1:]} and {image.shape[1:]} among them; "
                    "pass size to load_images."
                )
            stacked[position] = image
        return stacked

    def subset(self, positions: Sequence[int] | NDArray[Any]) -> Images:
        """Some of the images, by position, in that order."""
        chosen = np.asarray(positions, dtype=np.int64)
        if chosen.ndim != 1 or len(chosen) == 0 or chosen.min() < 0 or chosen.max() >= len(self):
            raise ValueError(f"positions should be some of 0 to {len(self) - 1}, found {positions!r}.")
        return replace(
            self,
            labels=self.labels[chosen],
            _pixels=None if self._pixels is None else self._pixels[chosen],
            _files=tuple(self._files[position] for position in chosen) if self._files else (),
        )

    def __repr__(self) -> str:
        size = "of their own sizes" if self.size is None else f"{self.size} pixels wide"
        return f"Images({self.name!r}: {len(self):,} of {self.split!r}, {len(self.class_names)} classes, {size})"


def load_images(name: str, *, split: Literal["train", "val"] = "val", size: int | None = None) -> Images:
    """One of the paper's image sets.

    Args:
        name: "cifar10", "cifar100", "stl10", "dermamnist", "imagenette", "tiny_imagenet" or "ham10000", which has the
            images of DermaMNIST in their own resolution and another split.
        split: "train", or "val" for the images held out: the test images of CIFAR and STL-10.
        size: Bring images to this many pixels a side: the shorter side is resized, the middle is kept. As stored if
            None.

    Returns:
        The images, in the order of their files.

    Raises:
        ValueError: If there is no set or split of that name.
        FileNotFoundError: If the files are nowhere to be found; says which file to put where.
        ImportError: If images have to be decoded or resized and Pillow is not installed.

    Example:
        >>> from nobsp.datasets import load_images
        >>> images = load_images("imagenette", split="val", size=224)  # doctest: +SKIP
        >>> image, label = images[0]  # doctest: +SKIP
        >>> image.shape, images.class_names[label]  # doctest: +SKIP
        ((3, 224, 224), 'tench')
    """
    if name not in IMAGE_SETS:
        close = difflib.get_close_matches(str(name), IMAGE_SETS, n=1)
        hint = f" did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"there are no images named {name!r};{hint} known are {', '.join(IMAGE_SETS)}.")
    if split not in ("train", "val"):
        raise ValueError(f"split should be 'train' or 'val', found {split!r}.")
    if size is not None and size < 1:
        raise ValueError(f"size is {size}; pass at least 1.")
    if name in PACKED:
        pixels, labels, classes = PACKED[name](split)
        if size is not None and pixels.shape[1:3] != (size, size):
            pillow()  # better now than at the first image
        return Images(name, split, labels, classes, classes, size or pixels.shape[1], _pixels=pixels)
    pillow()
    found = FOLDERS[name](split)
    return Images(
        name, split, found.labels, found.class_names, found.class_ids, size, _shelf=found.shelf, _files=found.files
    )
