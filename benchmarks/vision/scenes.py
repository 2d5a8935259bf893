"""A network before its images, loaded when first looked at, and masked images that are run only once."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.data import load_images
from benchmarks.kept import fingerprint, rooms
from benchmarks.report import progress
from benchmarks.vision.candidates import BATCH, Seen, seen_by
from benchmarks.vision.networks import Setting
from nobsp.vision import NObSPCam, account, feature_map, images
from nobsp.vision.account import Coefficients

SEED = 0
# The code that decides what is seen of an image, and what a calibration finds in it.
EVIDENCE = fingerprint(feature_map, account, images)

Split = Literal["train", "val"]


@dataclass(frozen=True)
class Effort:
    """How many images.

    Attributes:
        train: Training images to choose a map on.
        val: Validation images to judge it on.
        calibration: Training images to calibrate on, or as many as there are.
        pixels: Validation images for the correlation at the level of pixels.
        runs: Random subsets of pixels an image.
    """

    train: int = 100
    val: int = 200
    calibration: int = 2000
    pixels: int = 30
    runs: int = 100


QUICK = Effort(train=2, val=4, calibration=48, pixels=2, runs=10)


class Scene:
    """A network and some images of one split, calibrated on training images.

    Args:
        make: Loads the network.
        split: Which images to show: the first of a fixed random order.
        effort: How many.
        folder: Where calibrations are kept; nowhere if None.
    """

    def __init__(
        self, make: Callable[[], Setting], split: Split, effort: Effort, *, folder: Path | None
    ) -> None:
        self._make, self._split, self._effort, self._folder = make, split, effort, folder

    @cached_property
    def setting(self) -> Setting:
        return self._make()

    @cached_property
    def images(self) -> Tensor:
        count = self._effort.train if self._split == "train" else self._effort.val
        return torch.cat(list(self._batches(self._split, count)))

    @cached_property
    def target(self) -> NDArray[np.int64]:
        """The class predicted for each image."""
        result: NDArray[np.int64] = self.run(self.images.numpy()).argmax(1)
        return result

    @cached_property
    def run(self) -> Remembering:
        return Remembering(self.setting.model, self.images[:BATCH])

    @cached_property
    def calibrated(self) -> NObSPCam:
        return self._fitted(None)

    @cached_property
    def earlier(self) -> NObSPCam:
        """Calibrated on an earlier layer."""
        return self._fitted(self.setting.earlier)

    def _fitted(self, layer: str | None) -> NObSPCam:
        model, count = self.setting.model, self._effort.calibration
        known = fingerprint(self.setting.name, layer, count, EVIDENCE, rooms("projection"))
        path = (
            None if self._folder is None else self._folder / "calibrations" / f"{known}.safetensors"
        )
        if path is not None and path.is_file():
            return NObSPCam.load(path, model)
        progress(f"{self.setting.name}: calibrating {layer or 'the pooled layer'}")
        coefficients: Coefficients = "calibrated" if layer is None else "head"
        cam = NObSPCam(model, layer=layer, coefficients=coefficients).fit(
            self._batches("train", count)
        )
        if path is None:
            return cam
        path.parent.mkdir(parents=True, exist_ok=True)
        cam.save(path)
        return NObSPCam.load(path, model)  # what is read another time, to the last digit

    @cached_property
    def seen(self) -> list[Seen]:
        """The images as the network and its calibration see them."""
        return list(
            seen_by(self.calibrated, self.images, self.target, earlier=lambda: self.earlier)
        )

    def _batches(self, split: Split, count: int) -> Iterator[Tensor]:
        data = load_images(self.setting.data, split=split, size=self.setting.size)
        order = np.random.default_rng(SEED).permutation(len(data))[:count]
        for start in range(0, len(order), BATCH):
            array = data.subset(order[start : start + BATCH]).array()
            yield self.setting.model.prepare(torch.from_numpy(array))  # type: ignore[operator]


class Remembering:
    """A network that is run only on images it has not been shown before; the same to rounding.

    Maps that rank regions alike mask the same pixels, and many do for the first and the last steps. What is run is a
    copy with its normalisations folded into its convolutions, in batches of one size.

    Args:
        model: The network, in evaluation mode.
        example: Images of the size that will be shown.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        with torch.no_grad(), warnings.catch_warnings():
            # torch.compile, which is to replace it, needs a compiler, and minutes for what is run for minutes.
            warnings.simplefilter("ignore", DeprecationWarning)
            traced = torch.jit.trace(model, example)  # type: ignore[no-untyped-call]
            self._run = torch.jit.optimize_for_inference(traced)
        self._known: dict[bytes, NDArray[np.float32]] = {}

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = np.ascontiguousarray(images, dtype=np.float32)
        keys = [hashlib.blake2b(row, digest_size=16).digest() for row in rows]
        new = [
            place
            for key, place in {key: place for place, key in enumerate(keys)}.items()
            if key not in self._known
        ]
        for start in range(0, len(new), BATCH):
            here = new[start : start + BATCH]
            with torch.no_grad():
                logits = self._run(torch.from_numpy(rows[here])).numpy()
            self._known.update({keys[place]: one for place, one in zip(here, logits, strict=True)})
        return np.stack([self._known[key] for key in keys])
