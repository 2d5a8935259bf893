"""Scores of one map on one network, image by image, kept from one run to the next."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.kept import FOLDER, Kept, fingerprint, package, rooms
from benchmarks.report import progress
from benchmarks.vision import candidates, networks, rivals, scenes, timing
from benchmarks.vision.candidates import BATCH, CANDIDATES, resized
from benchmarks.vision.masking import pixel_faithfulness
from benchmarks.vision.rivals import RIVALS
from benchmarks.vision.scenes import Effort, Scene, Split
from benchmarks.vision.transfer import NETWORKS, ten_way, with_head
from nobsp.metrics import deletion, gini_sparseness, region_deletion_auc, sparseness

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scores:
    """One map on one network, image by image.

    Attributes:
        auc: Region Deletion AUC.
        sparseness: The paper's formula, of the map's positive part at the size of the image; NaN where there is none.
        gini: Gini index of the same.
    """

    auc: Array
    sparseness: Array
    gini: Array


class Judge:
    """Judges maps on networks; what has been judged before is taken from the file.

    Args:
        effort: How many images.
        folder: Where results are kept; nowhere if None.
    """

    def __init__(self, effort: Effort, folder: Path | None = FOLDER) -> None:
        self.effort = effort
        self._kept = Kept(None if folder is None else folder / "vision.jsonl")
        # Taken once: code edited while a table is computed is not the code that computes it.
        common = (networks, ten_way, with_head, scenes, effort.calibration, package("torch"))
        self._rivals = fingerprint(*common, rivals, package("grad-cam"))
        self._ours = fingerprint(*common, candidates, scenes.EVIDENCE, rooms("projection"))
        # One scene at a time is in memory.
        self._scene = cache_of_one(
            lambda network, split: Scene(NETWORKS[network].make, split, effort, folder=folder)
        )

    def scores(self, network: str, split: Split, method: str) -> Scores:
        """On training images, or on validation images."""
        made = fingerprint(
            self._made_by(method), self.effort.train if split == "train" else self.effort.val
        )
        found = self._kept.cell(
            f"{network}, {split}, {method}", made, lambda: self._scored(network, split, method)
        )
        return Scores(
            **{name: np.array(values, dtype=np.float64) for name, values in found.items()}
        )

    def faithfulness(self, network: str, method: str) -> Array:
        """Correlation at the level of pixels, validation images."""
        made = fingerprint(self._made_by(method), self.effort, pixel_faithfulness)
        found = self._kept.cell(
            f"{network}, pixels, {method}", made, lambda: self._correlated(network, method)
        )
        return np.array(found, dtype=np.float64)

    def times_forward(self, network: str, method: str) -> Sequence[float]:
        """Processor time for one image, maps and forward pass, and its ratio to the forward pass alone."""
        made = fingerprint(self._made_by(method), timing)
        scene = self._scene(network, "val")
        return self._kept.cell(
            f"{network}, time, {method}", made, lambda: timing.times_forward(scene, method)
        )

    def _made_by(self, method: str) -> str:
        """Changes with whatever may change a map. Deletion curves change only with what it ranks; see `_deleted`."""
        return self._rivals if method in RIVALS else self._ours

    def _scored(self, network: str, split: Split, method: str) -> dict[str, list[float]]:
        progress(f"{network}, {split}: {method}")
        scene = self._scene(network, split)
        maps = maps_of(scene, method)
        positive = np.maximum(maps, 0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a map without positive values has no concentration
            concentration = {
                "sparseness": sparseness(positive).tolist(),
                "gini": gini_sparseness(positive).tolist(),
            }
        return {"auc": self._deleted(scene, maps), **concentration}

    def _deleted(self, scene: Scene, maps: Array) -> list[float]:
        """Deletion curves depend on a map only through the order in which it ranks regions."""
        side = deletion._patch_for(tuple(scene.images.shape), None)
        _, rank = deletion._ranked_regions(maps, side)
        seen = [hashlib.sha256(part.tobytes()).hexdigest() for part in (scene.images.numpy(), rank)]
        made = fingerprint(scene.setting.name, *seen, deletion, package("torch"))

        def curves() -> list[float]:
            found = region_deletion_auc(
                scene.run, scene.images, maps, target=scene.target, batch_size=32
            )
            return list(map(float, found.auc))

        return self._kept.cell("deletion", made, curves)

    def _correlated(self, network: str, method: str) -> list[float]:
        progress(f"{network}, pixels: {method}")
        scene = self._scene(network, "val")
        few = slice(0, self.effort.pixels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a map that is constant has no correlation
            found = pixel_faithfulness(
                lambda images: torch.from_numpy(scene.run(images)).softmax(1).numpy(),
                scene.images[few],
                maps_of(scene, method, self.effort.pixels),
                target=scene.target[few],
                runs=self.effort.runs,
                batch_size=BATCH,
            )
        return list(map(float, found))


def maps_of(scene: Scene, method: str, count: int | None = None) -> Array:
    """Maps at the size of the images."""
    count = len(scene.images) if count is None else count
    size = tuple(scene.images.shape[2:])
    if method in RIVALS:
        run = rivals.rival(scene.setting, method)
        starts = range(0, count, BATCH)
        parts = [run(scene.images[at : at + BATCH], scene.target[at : at + BATCH]) for at in starts]
        return np.concatenate(parts)[:count]
    found = torch.cat([CANDIDATES[method](seen) for seen in scene.seen[: -(-count // BATCH)]])[
        :count
    ]
    return np.asarray(resized(found, size).numpy(), dtype=np.float64)


def cache_of_one(make: Callable[[str, Split], Scene]) -> Callable[[str, Split], Scene]:
    """Remembers the last scene only: images and maps of several would not fit."""
    last: dict[tuple[str, Split], Scene] = {}

    def scene(network: str, split: Split) -> Scene:
        if (network, split) not in last:
            last.clear()
            last[network, split] = make(network, split)
        return last[network, split]

    return scene
