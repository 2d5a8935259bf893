"""Calibrates class activation maps on a Ray dataset: its workers look at the images, and sums are solved here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nobsp.network.on_ray import first_batch, gathered, portable, rows_at_once
from nobsp.vision.anatomy import Anatomy
from nobsp.vision.images import KEYS, images_of
from nobsp.vision.keeping import Calibration

# Images whose sums are sent at a time.
_MOST_IMAGES = 512


def first_images(dataset: Any, *, batch_size: int) -> Tensor:
    """The first images of a Ray dataset, checked like any others."""
    batch = first_batch(dataset, batch_size, argument="images", batch_format="numpy")
    return images_of(_images(batch, "images"), batch_size=batch_size).first


def looked_at(
    dataset: Any,
    anatomy: Anatomy,
    begin: Callable[[Anatomy], Calibration],
    *,
    batch_size: int,
    progress: bool,
) -> Calibration:
    """What all images of a Ray dataset come to.

    Args:
        dataset: The Ray dataset.
        anatomy: Where the map is, in the model where it is to run.
        begin: Makes a calibration that has seen nothing.
        batch_size: Most images in one forward call.
        progress: Whether to show Ray's progress bars.
    """
    size = anatomy.image_shape[0] * anatomy.image_shape[1] * anatomy.image_shape[2]
    looker = _Looker(portable(anatomy, anatomy.module), begin, anatomy.device, batch_size)
    found: Calibration | None = gathered(
        dataset,
        looker,
        _joined,
        rows=rows_at_once(batch_size, most=_MOST_IMAGES, row_bytes=4 * size),
        batch_format="numpy",
        model=True,
        device=anatomy.device,
        progress=progress,
    )
    if found is None:
        raise ValueError("images gave none when it was read again; pass a dataset that gives the same every time.")
    return found


@dataclass(frozen=True, eq=False)
class _Looker:
    """Looks at batches in a worker."""

    anatomy: Anatomy
    begin: Callable[[Anatomy], Calibration]
    device: torch.device
    batch_size: int

    def __call__(self) -> Callable[[Mapping[str, Any]], Calibration]:
        """What looks at a batch, with the model where it is to run."""
        self.anatomy.module.to(self.device)
        return replace(self, anatomy=self.anatomy.at_home()).looked_at

    def looked_at(self, batch: Mapping[str, Any]) -> Calibration:
        """What a batch comes to."""
        said = "images (in one of its batches)"
        calibration = self.begin(self.anatomy)
        with torch.no_grad(), self.anatomy.looking() as look:
            for images in images_of(_images(batch, said), batch_size=self.batch_size, argument=said):
                calibration.update(self.anatomy, look(images))
        return calibration


def _joined(first: Any, second: Any) -> Any:
    return first.merge(second)


def _images(batch: Mapping[str, Any], argument: str) -> Any:
    """The column of a batch that holds images."""
    keys = list(batch) if len(batch) == 1 else [key for key in KEYS if key in batch]
    if not keys:
        raise TypeError(
            f"{argument} has the columns {sorted(map(str, batch))}; name that of the images {KEYS[1]!r}, or select it."
        )
    column = np.asarray(batch[keys[0]])
    if column.dtype == object:
        shapes = sorted({np.shape(image) for image in column}, key=str)
        raise ValueError(f"{argument} has images of the shapes {shapes[:4]}; bring them to one size first.")
    return column.copy()  # it is Ray's, and not to be written to
