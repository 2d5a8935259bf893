"""Readers of the published image files: arrays where the format is one block, lists of files where it is a folder."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from nobsp.datasets.archives import Shelf, shelf_of
from nobsp.datasets.files import Source, data_roots, find, locate

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Packed = tuple[Pixels, Labels, tuple[str, ...]]

# Where the classes of Imagenette, in the order of their codes, stand among the thousand of ImageNet.
IMAGENETTE_IN_IMAGENET = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)


def pillow() -> ModuleType:
    """`PIL.Image`.

    Raises:
        ImportError: If Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as failure:
        raise ImportError("decoding and resizing images needs Pillow; run: pip install pillow") from failure
    return Image


def decoded(content: bytes, *, size: int | None = None) -> Pixels:
    """An encoded image as uint8 in red, green and blue, shape (height, width, 3).

    Args:
        content: The bytes of a JPEG, PNG, BMP, ...
        size: Resize the shorter side to this and keep the middle; as it is if None.
    """
    pixels = np.asarray(pillow().open(io.BytesIO(content)).convert("RGB"))
    return pixels if size is None else resized(pixels, size)


def resized(pixels: Pixels, size: int) -> Pixels:
    """An image with its shorter side brought to `size`, of which the middle square is kept.

    Args:
        pixels: Shape (height, width, 3).
        size: Side in pixels.
    """
    height, width = pixels.shape[:2]
    if (height, width) == (size, size):
        return pixels
    scale = size / min(height, width)
    height, width = max(size, round(height * scale)), max(size, round(width * scale))
    image = pillow().fromarray(pixels).resize((width, height), pillow().Resampling.BILINEAR)
    top, left = (height - size) // 2, (width - size) // 2
    return np.asarray(image)[top : top + size, left : left + size]


# ---------------------------------------------------------------------- one block of pixels

_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR10 = Source(
    names=("cifar10/cifar-10-binary.tar.gz",),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    archive_sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_CIFAR100 = Source(
    names=("cifar100/cifar-100-binary.tar.gz",),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    archive_sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)
_STL10 = Source(
    names=("stl10/stl10_binary.tar.gz",),
    url="http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    archive_md5="91f7769df0f17e558f3565bffb0c7dfb",
)
_DERMAMNIST = Source(
    names=("dermamnist/dermamnist.npz",),
    url="https://zenodo.org/records/10519652/files/dermamnist.npz?download=1",
    archive_md5="0744692d530f8e62ec473284d019b0c7",
)
_DERMAMNIST_CLASSES = (
    "actinic keratoses", "basal cell carcinoma", "benign keratosis-like lesions", "dermatofibroma", "melanoma",
    "melanocytic nevi", "vascular lesions",
)  # fmt: skip


def read_cifar10(split: str) -> Packed:
    """CIFAR-10: PNG files with one image a row beside their labels, or else the binary archive.

    Of the training batches those that are there are taken: data_batch_1.png with data_batch_1_labels.json, and so on.
    """
    sheets = (
        [(f"data_batch_{k}.png", f"data_batch_{k}_labels.json") for k in range(1, 6)]
        if split == "train"
        else [("test_batch.png", "test_labels.json")]
    )
    found = [(png, labels) for png, labels in sheets if find(Source((f"cifar10/{png}",))) is not None]
    if found:
        blocks = [_sheet(png, labels) for png, labels in found]
        return (
            np.concatenate([pixels for pixels, _ in blocks]),
            np.concatenate([labels for _, labels in blocks]),
            _CIFAR10_CLASSES,
        )
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] if split == "train" else ["test_batch.bin"]
    pixels, labels = _binary_rows(b"".join(_members(locate(_CIFAR10), names)), label_bytes=1)
    return pixels, labels, _CIFAR10_CLASSES


def _sheet(png: str, labels: str) -> tuple[Pixels, Labels]:
    pixels = decoded(locate(Source((f"cifar10/{png}",))).read_bytes()).reshape(-1, 32, 32, 3)
    beside = locate(Source((f"cifar10/{labels}",), by_hand=f"It holds the labels of {png}."))
    codes = np.array(json.loads(beside.read_text(encoding="utf-8")), dtype=np.int64)
    if codes.shape != (len(pixels),):
        raise ValueError(f"{png} has {len(pixels)} images but {labels} has labels of the shape {codes.shape}.")
    return pixels, codes


def read_cifar100(split: str) -> Packed:
    """CIFAR-100 with its hundred fine classes."""
    rows, names = _members(locate(_CIFAR100), ["train.bin" if split == "train" else "test.bin", "fine_label_names.txt"])
    pixels, labels = _binary_rows(rows, label_bytes=2)
    return pixels, labels, tuple(names.decode("utf-8").split())


def _binary_rows(rows: bytes, *, label_bytes: int) -> tuple[Pixels, Labels]:
    """CIFAR's binary rows: labels, of which the last is the finest, then the planes of red, green and blue."""
    width = label_bytes + 3 * 32 * 32
    if len(rows) == 0 or len(rows) % width:
        raise ValueError(f"a CIFAR file has {len(rows)} bytes, which is no multiple of {width}; fetch it again.")
    table = np.frombuffer(rows, dtype=np.uint8).reshape(-1, width)
    planes = table[:, label_bytes:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), table[:, label_bytes - 1].astype(np.int64)


def read_stl10(split: str) -> Packed:
    """STL-10, labelled images; its planes are stored column by column and its classes count from 1."""
    part = "train" if split == "train" else "test"
    pixels, labels, names = _members(locate(_STL10), [f"{part}_X.bin", f"{part}_y.bin", "class_names.txt"])
    planes = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 3, 96, 96)
    codes = np.frombuffer(labels, dtype=np.uint8).astype(np.int64) - 1
    if len(codes) != len(planes):
        raise ValueError(f"STL-10 has {len(planes)} images but {len(codes)} labels in {part!r}; fetch it again.")
    return np.ascontiguousarray(planes.transpose(0, 3, 2, 1)), codes, tuple(names.decode("utf-8").split())


def read_dermamnist(split: str) -> Packed:
    """DermaMNIST at 28 by 28 pixels."""
    with np.load(locate(_DERMAMNIST), allow_pickle=False) as box:
        pixels, labels = box[f"{split}_images"], box[f"{split}_labels"]
    return np.asarray(pixels, dtype=np.uint8), labels.reshape(-1).astype(np.int64), _DERMAMNIST_CLASSES


def _members(archive: Path, names: list[str]) -> list[bytes]:
    """Members of a tar file by the last part of their names, in the order asked for."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive) as tape:
        for entry in tape:
            last = PurePosixPath(entry.name).name
            content = tape.extractfile(entry) if last in names and entry.isfile() else None
            if content is not None:
                found[last] = content.read()
            if len(found) == len(names):
                break
    absent = [name for name in names if name not in found]
    if absent:
        raise ValueError(f"{archive} has no {', '.join(absent)} in it; fetch it again.")
    return [found[name] for name in names]


PACKED: dict[str, Callable[[str], Packed]] = {
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "stl10": read_stl10,
    "dermamnist": read_dermamnist,
}

# ---------------------------------------------------------------------- one file an image

_BY_CLASS = "Put the images into folders train/CLASS/ and val/CLASS/ below it."
_IMAGENETTE = Source(
    names=("imagenette/imagenette.tar",),
    url="https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz",
    archive_sha256="569b4497c98db6dd29f335d1f109cf315fe127053cedf69010d047f0188e158c",
    gunzip=True,
)
_IMAGENETTE_NAMES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}
_TINY_IMAGENET = Source(
    names=("tiny_imagenet/tiny_imagenet.tar", "tiny_imagenet/tiny-imagenet-200.zip"),
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    saved_as="tiny_imagenet/tiny-imagenet-200.zip",
    archive_md5="90528d7ca1a48142e341f4ef8d21d0de",
)
_HAM10000 = Source(
    names=("ham10000/ham10000.tar",),
    by_hand="HAM10000 is published at https://doi.org/10.7910/DVN/DBW86T and has to be fetched by hand. " + _BY_CLASS,
)
_HAM10000_NAMES = {
    "akiec": "actinic keratoses",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis-like lesions",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "melanocytic nevi",
    "vasc": "vascular lesions",
}
_ENDINGS = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True, eq=False)
class Listing:
    """Image files with labels.

    Attributes:
        shelf: What they are read from.
        files: Their names on it.
        labels: Their class codes.
        class_ids: The classes as files call them, sorted.
        class_names: The same as people call them.
    """

    shelf: Shelf
    files: tuple[str, ...]
    labels: Labels
    class_ids: tuple[str, ...]
    class_names: tuple[str, ...]


def read_imagenette(split: str) -> Listing:
    """Imagenette, classes by WordNet id."""
    return _listing(_shelf("imagenette", _IMAGENETTE), split, _IMAGENETTE_NAMES)


def read_tiny_imagenet(split: str) -> Listing:
    """TinyImageNet-200, in folders by class or as published, with the classes of the held-out images in a list."""
    shelf = _shelf("tiny_imagenet", _TINY_IMAGENET)
    meant: dict[str, str] = {}
    words = next((name for name in shelf.names() if PurePosixPath(name).name == "words.txt"), None)
    if words is not None:
        lines = [line.split("\t") for line in shelf.read(words).decode("utf-8").splitlines() if "\t" in line]
        meant = {wnid: names.partition(",")[0].strip() for wnid, names in lines}
    return _listing(shelf, split, meant)


def read_ham10000(split: str) -> Listing:
    """HAM10000 in folders by diagnosis."""
    return _listing(_shelf("ham10000", _HAM10000), split, _HAM10000_NAMES)


def _shelf(name: str, source: Source) -> Shelf:
    for root in data_roots():
        if (root / name / "train").is_dir():
            return shelf_of(root / name)
    return shelf_of(locate(source))


def _listing(shelf: Shelf, split: str, meant: dict[str, str]) -> Listing:
    names = shelf.names()
    listed = _annotations(shelf, names)
    found: list[tuple[str, str]] = []
    classes: set[str] = set()
    for name in names:
        path = PurePosixPath(name)
        part = next((part for part in ("train", "val") if part in path.parts[:-2]), None)
        if part is None or path.suffix.lower() not in _ENDINGS:
            continue
        kind = path.parts[path.parts.index(part) + 1]
        if part == "val":
            kind = listed.get(path.name, kind)
        classes.add(kind)
        if part == split:
            found.append((name, kind))
    if not found:
        raise ValueError(f"there are no images below {split}/ in the archive or folder. {_BY_CLASS}")
    ids = tuple(sorted(classes))
    code = {kind: position for position, kind in enumerate(ids)}
    return Listing(
        shelf=shelf,
        files=tuple(name for name, _ in found),
        labels=np.array([code[kind] for _, kind in found], dtype=np.int64),
        class_ids=ids,
        class_names=tuple(meant.get(kind, kind) for kind in ids),
    )


def _annotations(shelf: Shelf, names: list[str]) -> dict[str, str]:
    """Class of each held-out image of TinyImageNet as published; empty elsewhere."""
    file = next((name for name in names if PurePosixPath(name).name == "val_annotations.txt"), None)
    if file is None:
        return {}
    rows = [line.split("\t") for line in shelf.read(file).decode("utf-8").splitlines()]
    return {row[0]: row[1] for row in rows if len(row) > 1}


FOLDERS: dict[str, Callable[[str], Listing]] = {
    "imagenette": read_imagenette,
    "tiny_imagenet": read_tiny_imagenet,
    "ham10000": read_ham10000,
}
