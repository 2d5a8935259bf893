"""Locations taken out one after another, each time the one without which the class loses most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.vision.feature_map import FeatureMap, ForwardPass
from nobsp.vision.grid import spread

Array = NDArray[np.float64]

# Evidence of all classes and locations held at once, in numbers.
_AT_ONCE = 2**23

# Evidence beyond this has moved any probability to 0 or 1; its exponential still is a number.
_MOST = 300.0


@dataclass(frozen=True, eq=False, repr=False)
class Removal:
    """In which order locations have to go for a class to go fastest, and what is left of its probability.

    The account says what a location brings while all others stay. Here each step counts what the steps before have
    left: once a face is gone, what matters is what tells the animal from the class that leads then. The head is linear
    in the pooled map, so every step is exact, and no further pass through the network is needed.

    Attributes:
        order: Per location its step, 1 for the first to go, shape (n, height, width).
        probability: The target's probability before any step and after each, shape (n, locations + 1).
        target: Class each image was asked about, shape (n,).
        output_names: Names of the classes.
        layer: Where in the model the map is.
    """

    order: NDArray[np.int64]
    probability: Array
    target: NDArray[np.int64]
    output_names: tuple[str, ...]
    layer: str

    @property
    def importance(self) -> Array:
        """The order as a map: from 1 where a location is the first to go down to 1 / locations for the last."""
        locations = self.probability.shape[1] - 1
        return np.asarray((locations + 1 - self.order) / locations)

    def __len__(self) -> int:
        return len(self.order)

    def __repr__(self) -> str:
        size = f"{self.order.shape[1]}×{self.order.shape[2]}"
        return f"Removal({len(self)} images, {size} locations, layer={self.layer!r})"


def adds_up(feature_map: FeatureMap) -> bool:
    """Whether the logits are a sum over locations, so that one can be taken out of it."""
    return feature_map.direct and feature_map.pooling in ("mean", "flatten")


def remove_locations(
    feature_map: FeatureMap, seen: ForwardPass, target: Tensor, *, sigmoid: bool
) -> tuple[Tensor, Tensor]:
    """Steps at which locations go, shape (n, height, width), and the target's probability; see `remove_one_by_one`."""
    assert feature_map.head is not None
    weight = feature_map.head.weight.to(seen.maps.device)
    locations = seen.maps.shape[2] * seen.maps.shape[3]
    at_once = max(1, _AT_ONCE // (len(weight) * locations))
    parts = []
    for first in range(0, len(target), at_once):
        here = slice(first, first + at_once)
        maps = seen.maps[here]
        evidence = spread(maps, weight.expand(len(maps), -1, -1), feature_map.pooling).flatten(2) / locations
        parts.append(remove_one_by_one(seen.logits[here], evidence, target[here], sigmoid=sigmoid))
    order, chances = (torch.cat(part) for part in zip(*parts, strict=True))
    return torch.unflatten(order, 1, seen.maps.shape[2:]), chances


def remove_one_by_one(
    logits: Tensor, evidence: Tensor, target: Tensor, *, sigmoid: bool = False
) -> tuple[Tensor, Tensor]:
    """Steps at which locations go, and the target's probability from before the first step to after the last.

    With e_k(l) what location l brings to the logit ℓ_k, the odds against the target c without l are
        Σ_{k≠c} exp(ℓ_k − ℓ_c) · exp(e_c(l) − e_k(l)),
    one product for all locations. The location that makes them largest goes, and ℓ changes by what it brought.
    """
    rows = torch.arange(len(logits), device=logits.device)
    own, brought = logits[rows, target], evidence[rows, target]
    if sigmoid:
        gap, apart = -own[:, None], brought[:, None]
    else:
        gap, apart = (logits - own[:, None]).scatter(1, target[:, None], -torch.inf), brought[:, None] - evidence
    pull = apart.clamp(-_MOST, _MOST).exp()
    order = torch.zeros(brought.shape, dtype=torch.int64, device=logits.device)
    chances = [torch.sigmoid(-gap.logsumexp(1))]
    for step in range(1, order.shape[1] + 1):
        top = gap.amax(1, keepdim=True)
        odds = (torch.bmm((gap - top).exp()[:, None], pull)[:, 0].log() + top).masked_fill(order > 0, -torch.inf)
        against, gone = odds.max(1)
        order[rows, gone] = step
        gap = gap + apart[rows, :, gone]
        chances.append(torch.sigmoid(-against))
    return order, torch.stack(chances, dim=1)
