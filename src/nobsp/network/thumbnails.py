"""Small grey copies of images, by which repeated images are found again."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Rows and columns of a thumbnail: fine enough to tell photographs apart, a kilobyte each.
SIDE = 32


def make_thumbnails(images: Tensor) -> Tensor | None:
    """Grey copies of 32 × 32 pixels, each from its darkest to its brightest as 0 to 255; None for what is no image.

    >>> make_thumbnails(torch.rand(2, 3, 64, 48)).shape
    torch.Size([2, 32, 32])
    """
    if images.ndim != 4 or not images.is_floating_point():
        return None
    grey = images.mean(1, keepdim=True)
    small = functional.adaptive_avg_pool2d(grey, SIDE)[:, 0]

    darkest = small.amin((1, 2), keepdim=True)
    spread = small.amax((1, 2), keepdim=True) - darkest
    scaled = (small - darkest) / spread.clamp_min(1e-12)
    return (255 * scaled).round().to(torch.uint8).cpu()
