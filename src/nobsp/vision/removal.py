"""Locations taken out one after another, and regions of the input taken out one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from nobsp._typing import ArrayLike, ImagesLike
from nobsp.network.readout import log_odds
from nobsp.vision.feature_map import FeatureMap, ForwardPass, spread
from nobsp.vision.maps import lay_over, resize_maps

Array = NDArray[np.float64]

# Evidence of all classes and locations held at once, in numbers.
_AT_ONCE = 2**23
# Evidence beyond this has moved any probability to 0 or 1; its exponential still is a number.
_MOST = 300.0


@dataclass(frozen=True, eq=False, repr=False)
class Removal:
    """The order in which locations have to go for a class to go fastest, and what is left of it.

    What is left is told by the probability of the class.

    The head is linear in the pooled map, so every step is exact, and no further pass through the
    network is needed.
    """

    order: NDArray[np.int64]  # per location its step, 1 for the first to go, shape (n, *locations)
    probability: (
        Array  # the target's probability before any step and after each, shape (n, locations + 1)
    )
    target: NDArray[np.int64]  # class each image was asked about, shape (n,)
    output_names: tuple[str, ...]  # names of the classes
    layer: str  # where in the model the map is

    @property
    def importance(self) -> Array:
        """The order as a map: 1 for the first location to go, 1 / locations for the last."""
        locations = self.probability.shape[1] - 1
        return np.asarray((locations + 1 - self.order) / locations)

    def overlay(
        self,
        images: ImagesLike,
        *,
        opacity: float = 0.5,
        mean: ArrayLike = None,
        std: ArrayLike = None,
    ) -> NDArray[np.float32]:
        """Images with the importance laid over them, as `ActivationMaps.overlay` does."""
        return lay_over(
            self.importance, images, kind="positive", opacity=opacity, mean=mean, std=std
        )

    def __len__(self) -> int:
        return len(self.order)

    def __repr__(self) -> str:
        size = "×".join(map(str, self.order.shape[1:]))
        return f"Removal({len(self)} images, {size} locations, layer={self.layer!r})"


def remove_locations(
    feature_map: FeatureMap, seen: ForwardPass, target: Tensor, *, sigmoid: bool
) -> tuple[Tensor, Tensor]:
    """Steps at which locations go, shape (n, *locations), and the target's probability.

    See `remove_one_by_one`.
    """
    assert feature_map.head is not None
    weight = feature_map.head.weight.to(seen.maps.device)
    locations = seen.maps[0, 0].numel()
    parts = []
    for some in torch.split(
        torch.arange(len(target)), max(1, _AT_ONCE // (len(weight) * locations))
    ):
        evidence = spread(
            seen.maps[some], weight.expand(len(some), -1, -1), feature_map.pooling
        ).flatten(2)
        parts.append(
            remove_one_by_one(
                seen.logits[some], evidence / locations, target[some], sigmoid=sigmoid
            )
        )
    order, chances = (torch.cat(part) for part in zip(*parts, strict=True))
    return torch.unflatten(order, 1, seen.maps.shape[2:]), chances


def remove_one_by_one(
    logits: Tensor, evidence: Tensor, target: Tensor, *, sigmoid: bool = False
) -> tuple[Tensor, Tensor]:
    """Steps at which locations go, and the target's probability before the first and after each.

    With e_k(l) what location l brings to the logit ℓ_k, the odds against the target c without l are
        Σ_{k≠c} exp(ℓ_k − ℓ_c) · exp(e_c(l) − e_k(l)),
    one product for all locations. The location that makes them largest goes, and ℓ changes by what
    it brought.
    """
    rows = torch.arange(len(logits), device=logits.device)
    own = logits[rows, target]
    brought = evidence[rows, target]
    if sigmoid:
        gap = -own[:, None]
        apart = brought[:, None]
    else:
        gap = (logits - own[:, None]).scatter(1, target[:, None], -torch.inf)
        apart = brought[:, None] - evidence

    pull = apart.clamp(-_MOST, _MOST).exp()
    order = torch.zeros(brought.shape, dtype=torch.int64, device=logits.device)
    chances = [torch.sigmoid(-gap.logsumexp(1))]
    for step in range(1, order.shape[1] + 1):
        top = gap.amax(1, keepdim=True)
        odds = (torch.bmm((gap - top).exp()[:, None], pull)[:, 0].log() + top).masked_fill(
            order > 0, -torch.inf
        )
        against, gone = odds.max(1)
        order[rows, gone] = step
        gap = gap + apart[rows, :, gone]
        chances.append(torch.sigmoid(-against))

    return order, torch.stack(chances, dim=1)


@dataclass(frozen=True, eq=False, repr=False)
class ThoroughMaps:
    """Where a class is, by what regions bring and by what is lost without them.

    See `NObSPCam.thorough`.
    """

    # account and removal, each standardised over the image's regions, added up, shape (n, *regions)
    thorough: Array
    account: Array  # the account of the logit, averaged over each region
    # by how much the target's log-odds fall without the region; 0 for regions that were not tried
    removal: Array
    passes: int  # forward passes an image took
    target: NDArray[np.int64]  # class each image was asked about, shape (n,)
    output_names: tuple[str, ...]  # names of the classes

    def __len__(self) -> int:
        return len(self.thorough)

    def __repr__(self) -> str:
        size = "×".join(map(str, self.thorough.shape[1:]))
        return (
            f"ThoroughMaps({len(self)} images, {size} regions, {self.passes} forward passes an "
            "image)"
        )

    def overlay(
        self,
        images: ImagesLike,
        *,
        opacity: float = 0.5,
        mean: ArrayLike = None,
        std: ArrayLike = None,
    ) -> NDArray[np.float32]:
        """Images with the thorough map laid over them, as `ActivationMaps.overlay` does."""
        return lay_over(self.thorough, images, kind="signed", opacity=opacity, mean=mean, std=std)


def lose_regions(
    feature_map: FeatureMap,
    seen: ForwardPass,
    target: Tensor,
    tried: Tensor,
    regions: int,
    size: int,
    sigmoid: bool,
) -> Tensor:
    """By how much log-odds fall without each of the `tried` regions, shape (n, regions).

    `tried` has shape (n, tries); regions that are not tried have 0.

    A region becomes what the image is there when blurred to one value a region, so that its
    surroundings go on. `size` are images of one pass.
    """
    images = seen.images
    space = images.shape[2:]
    number = torch.zeros(space, dtype=torch.int64, device=images.device)
    for axis, extent in enumerate(space):
        along = torch.arange(extent, device=images.device) * regions // extent
        number = number * regions + along.reshape(
            [extent if at == axis else 1 for at in range(len(space))]
        )

    blurred = resize_maps(average_regions(images, regions), space)
    before = log_odds(seen.logits, target, sigmoid=sigmoid)
    lost = before.new_zeros(len(before), regions ** len(space))
    with feature_map.running() as forward:
        for some in torch.split(torch.arange(tried.numel(), device=tried.device), size):
            rows = some // tried.shape[1]
            region = tried.flatten()[some]
            here = rows.to(images.device)
            gone = number == region.to(images.device).reshape(-1, *(1 for _ in space))
            changed = torch.where(gone[:, None], blurred[here], images[here])
            lost[rows, region] = before[rows] - log_odds(
                forward(changed).logits, target[rows], sigmoid=sigmoid
            )

    return lost


def average_regions(maps: Tensor, regions: int) -> Tensor:
    """Means over a grid of so many regions a side."""
    axes = maps.ndim - 2
    pool: Any = (
        functional.adaptive_avg_pool1d,
        functional.adaptive_avg_pool2d,
        functional.adaptive_avg_pool3d,
    )
    averaged: Tensor = pool[axes - 1](maps, (regions,) * axes)
    return averaged


def standardise(maps: Tensor) -> Tensor:
    """Values of each row less their mean, by their standard deviation."""
    axes = tuple(range(1, maps.ndim))
    centred = maps - maps.mean(axes, keepdim=True)
    return centred / centred.square().mean(axes, keepdim=True).sqrt().clamp_min(1e-12)
