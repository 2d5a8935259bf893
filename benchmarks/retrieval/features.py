"""Penultimate activations of the networks, extracted once and kept in the cache folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.data import cache_folder, load_images
from benchmarks.vision.networks import SETTINGS, Normalised

SEED, CHUNK, BATCH = 0, 500, 25
Split = Literal["train", "val"]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """Which activations: of what images, at what size, by what network.

    Attributes:
        data: Name of the images.
        network: Name among the benchmark's networks.
        size: Side in pixels to which images are brought.
    """

    data: str
    network: str
    size: int


@dataclass(frozen=True)
class Features:
    """Activations entering the last layer, with the labels of the images.

    Attributes:
        activations: Shape (images, width), float32.
        labels: Class codes, shape (images,).
    """

    activations: Tensor
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, positions: Labels) -> Features:
        return Features(self.activations[torch.from_numpy(positions)], self.labels[positions])


def kept_below(cache: Path | None) -> Path:
    """Where activations and heads are kept: below the package's cache folder unless told otherwise."""
    return cache or cache_folder() / "retrieval"


def features(
    recipe: Recipe, split: Split, count: int | None = None, *, cache: Path | None = None
) -> Features:
    """Activations of a split in a fixed random order, so that the first few are a fair sample.

    They are written in chunks, so that an interrupted run goes on where it was. The folder's name has the weights'
    digest in it, so that other weights never get these activations.

    Args:
        recipe: Which activations.
        split: "train" or "val".
        count: How many; all when None.
        cache: Folder to keep them in.
    """
    images = load_images(recipe.data, split=split, size=recipe.size)
    order = np.random.default_rng(SEED).permutation(len(images))[:count]
    model = SETTINGS[recipe.network]().model
    name = f"{recipe.network}-{digest(model)}-{recipe.data}-{split}-{recipe.size}px"
    folder = kept_below(cache) / name
    folder.mkdir(parents=True, exist_ok=True)
    extract = without_head(model)
    parts = []
    for start in tqdm(
        range(0, len(order), CHUNK), desc=name, unit="chunk", leave=False, dynamic_ncols=True
    ):
        rows = order[start : start + CHUNK]
        path = folder / f"{start:06d}-{len(rows)}.safetensors"
        if not path.is_file():
            batches = [
                images.subset(some).array() for some in np.array_split(rows, -(-len(rows) // BATCH))
            ]
            keep(
                path,
                {"activations": torch.cat([extract(torch.from_numpy(batch)) for batch in batches])},
            )
        parts.append(load_file(path)["activations"])
    return Features(torch.cat(parts), images.labels[order])


def without_head(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """From images between 0 and 1 to what enters the network's last layer; the model is changed."""
    assert isinstance(model, Normalised)
    # The last child is the linear layer, or the block that ends in it.
    last = [name for name, _ in model.network.named_children()][-1]
    setattr(model.network, last, nn.Identity())

    @torch.inference_mode()
    def extract(images: Tensor) -> Tensor:
        result: Tensor = model(model.prepare(images))
        return result

    return extract


def digest(model: nn.Module) -> str:
    """Eight letters that change when any weight does."""
    known = hashlib.sha256()
    for name, value in model.state_dict().items():
        known.update(name.encode())
        known.update(value.contiguous().numpy().tobytes())
    return known.hexdigest()[:8]


def keep(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes a file that is there whole or not at all."""
    draft = path.with_suffix(f".{os.getpid()}")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, draft)
    os.replace(draft, path)
