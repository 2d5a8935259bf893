"""The paper's image sets: `load_images` and the `Images` it returns."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import pooch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.data.files import cache_folder, data_roots, explain_offline, find, read, retrieve

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


class Archive:
    """Files below a folder, or in an uncompressed tar file, each read alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Where each file lies in the tar file, and how long it is; for a folder only the names matter."""
        if self.path.is_dir():
            files = (file for file in self.path.rglob("*") if file.is_file())
            return {file.relative_to(self.path).as_posix(): (0, -1) for file in files}
        with tarfile.open(self.path, "r:") as tar:
            return {
                one.name.removeprefix("./"): (one.offset_data, one.size)
                for one in tar
                if one.isfile()
            }

    def read(self, name: str) -> bytes:
        """The content of one file."""
        offset, size = self.places[name]
        with (self.path / name if self.path.is_dir() else self.path).open("rb") as file:
            file.seek(offset)
            return file.read(size)


@dataclass(frozen=True, eq=False)
class Images:
    """Images with labels, decoded when they are needed.

    `images[i]` is an image as float32 in [0, 1], channels first, with its label, so that a torch `DataLoader` takes the
    whole as it is. `class_ids` are the files' names of the classes; `size` is None if images keep their own size.
    """

    name: str
    split: Literal["train", "val"]
    labels: Labels
    class_names: tuple[str, ...]
    class_ids: tuple[str, ...]
    size: int | None
    _pixels: Pixels | None = None
    _archive: Archive | None = None
    _files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(self, position: int) -> Pixels:
        """One image as it is stored, brought to `size`: uint8, shape (height, width, 3)."""
        if self._archive is not None:
            image = _decode(self._archive.read(self._files[position]))
        else:
            assert self._pixels is not None
            image = self._pixels[position]
        return image if self.size is None else _resize(image, self.size)

    def __getitem__(self, position: int) -> tuple[NDArray[np.float32], int]:
        image = np.ascontiguousarray(self.pixels(position).transpose(2, 0, 1))
        return image.astype(np.float32) / np.float32(255), int(self.labels[position])

    def __iter__(self) -> Iterator[tuple[NDArray[np.float32], int]]:
        return (self[position] for position in range(len(self)))

    def array(self) -> NDArray[np.float32]:
        """All images at once, float32 in [0, 1], shape (images, 3, height, width)."""
        images = [image for image, _ in self]
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            raise ValueError(
                f"images of {self.name} have different sizes, {shapes}; pass size to load_images."
            )
        return np.stack(images)

    def subset(self, positions: Sequence[int] | NDArray[Any]) -> Images:
        """Some of the images, by position, in that order."""
        chosen = np.asarray(positions, dtype=np.int64)
        return replace(
            self,
            labels=self.labels[chosen],
            _pixels=None if self._pixels is None else self._pixels[chosen],
            _files=tuple(self._files[position] for position in chosen) if self._files else (),
        )


def load_images(
    name: str, *, split: Literal["train", "val"] = "val", size: int | None = None
) -> Images:
    """One of the paper's image sets, in the order of its files.

    "val" are the images held out, the test images of CIFAR. `size` brings images to that many pixels a side: the
    shorter side is resized, the middle is kept; as stored if None.
    """
    if name not in IMAGE_SETS:
        raise ValueError(f"there are no images named {name!r}; known are {', '.join(IMAGE_SETS)}.")
    if split not in ("train", "val"):
        raise ValueError(f"split should be 'train' or 'val', found {split!r}.")
    if name == "cifar10":
        pixels, labels = _read_cifar10(split)
        return Images(
            name, split, labels, _CIFAR10_CLASSES, _CIFAR10_CLASSES, size or 32, _pixels=pixels
        )
    url, known_hash, processor, meanings = _FOLDERS[name]
    folder = next((root / name for root in data_roots() if (root / name / "train").is_dir()), None)
    folder = folder or find(f"{name}/{name}.tar")
    if folder is None:
        with explain_offline(f"{name}/{name}.tar", url):
            if processor is None:
                raise OSError(
                    "it is downloaded by hand; put images into train/CLASS/ and val/CLASS/"
                )
            folder = retrieve(f"{name}/{name}.tar", url, known_hash=known_hash, processor=processor)
    archive = Archive(folder)
    files, labels, class_ids = _list_files(archive, split)
    words = next((file for file in archive.places if PurePosixPath(file).name == "words.txt"), None)
    if words is not None:
        lines = [
            line.split("\t")
            for line in archive.read(words).decode("utf-8").splitlines()
            if "\t" in line
        ]
        meanings = {wnid: names.partition(",")[0].strip() for wnid, names in lines}
    class_names = tuple(meanings.get(kind, kind) for kind in class_ids)
    return Images(name, split, labels, class_names, class_ids, size, _archive=archive, _files=files)


def _decode(content: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def _resize(pixels: Pixels, size: int) -> Pixels:
    """The shorter side brought to `size`, of which the middle square is kept."""
    height, width = pixels.shape[:2]
    if (height, width) == (size, size):
        return pixels
    scale = size / min(height, width)
    height, width = max(size, round(height * scale)), max(size, round(width * scale))
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    top, left = (height - size) // 2, (width - size) // 2
    return np.asarray(image)[top : top + size, left : left + size]


# ---------------------------------------------------------------------- CIFAR-10: one block of pixels

_CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def _read_cifar10(split: str) -> tuple[Pixels, Labels]:
    """CIFAR-10: PNG files with one image a row beside their labels, or else torchvision's download.

    Of the training batches those that are there are taken: data_batch_1.png with data_batch_1_labels.json, and so on.
    """
    names = [f"data_batch_{k}" for k in range(1, 6)] if split == "train" else ["test_batch"]
    sheets = [(find(f"cifar10/{name}.png"), name) for name in names]
    blocks = [_read_sheet(path, name) for path, name in sheets if path is not None]
    if blocks:
        return np.concatenate([pixels for pixels, _ in blocks]), np.concatenate(
            [labels for _, labels in blocks]
        )
    from torchvision.datasets import CIFAR10

    with explain_offline("cifar10/test_batch.png", "torchvision's copy of CIFAR-10"):
        published = CIFAR10(cache_folder() / "cifar10", train=split == "train", download=True)
    return published.data, np.array(published.targets, dtype=np.int64)


def _read_sheet(path: Path, name: str) -> tuple[Pixels, Labels]:
    pixels = _decode(read(path)).reshape(-1, 32, 32, 3)
    beside = path.with_name("test_labels.json" if name == "test_batch" else f"{name}_labels.json")
    labels = np.array(json.loads(beside.read_text(encoding="utf-8")), dtype=np.int64)
    if labels.shape != (len(pixels),):
        raise ValueError(
            f"{path.name} has {len(pixels)} images but {beside.name} has labels of shape {labels.shape}."
        )
    return pixels, labels


# ---------------------------------------------------------------------- one file an image, in folders by class


def _list_files(archive: Archive, split: str) -> tuple[tuple[str, ...], Labels, tuple[str, ...]]:
    """The image files of a split with their class codes, and all classes, sorted."""
    listed: dict[str, str] = {}
    names = sorted(archive.places)
    # TinyImageNet as published names the classes of its held-out images in a list.
    for file in (name for name in names if PurePosixPath(name).name == "val_annotations.txt"):
        rows = [line.split("\t") for line in archive.read(file).decode("utf-8").splitlines()]
        listed |= {row[0]: row[1] for row in rows if len(row) > 1}
    found: list[tuple[str, str]] = []
    classes: set[str] = set()
    for name in names:
        path = PurePosixPath(name)
        part = next((part for part in ("train", "val") if part in path.parts[:-2]), None)
        if part is None or path.suffix.lower() not in (".jpeg", ".jpg", ".png"):
            continue
        kind = path.parts[path.parts.index(part) + 1]
        kind = listed.get(path.name, kind) if part == "val" else kind
        classes.add(kind)
        if part == split:
            found.append((name, kind))
    if not found:
        raise ValueError(
            f"{archive.path} has no images below {split}/; put them into {split}/CLASS/."
        )
    ids = tuple(sorted(classes))
    codes = np.array([ids.index(kind) for _, kind in found], dtype=np.int64)
    return tuple(name for name, _ in found), codes, ids


_IMAGENETTE_NAMES = {
    "n01440764": "tench", "n02102040": "English springer", "n02979186": "cassette player", "n03000684": "chain saw",
    "n03028079": "church", "n03394916": "French horn", "n03417042": "garbage truck", "n03425413": "gas pump",
    "n03445777": "golf ball", "n03888257": "parachute",
}  # fmt: skip
_HAM10000_NAMES = {
    "akiec": "actinic keratoses", "bcc": "basal cell carcinoma", "bkl": "benign keratosis-like lesions",
    "df": "dermatofibroma", "mel": "melanoma", "nv": "melanocytic nevi", "vasc": "vascular lesions",
}  # fmt: skip


# Where sets in folders by class are downloaded, and what their classes are called.
_FOLDERS: dict[str, tuple[str, str | None, Any, dict[str, str]]] = {
    "imagenette": (
        "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz",
        "sha256:569b4497c98db6dd29f335d1f109cf315fe127053cedf69010d047f0188e158c",
        pooch.Untar(),
        _IMAGENETTE_NAMES,
    ),
    "tiny_imagenet": (
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de", pooch.Unzip(), {}
    ),
    # Downloaded by hand, and put into folders train/CLASS/ and val/CLASS/.
    "ham10000": ("https://doi.org/10.7910/DVN/DBW86T", None, None, _HAM10000_NAMES),
}  # fmt: skip
IMAGE_SETS = ("cifar10", *_FOLDERS)
