"""How a tensor lays out the locations of its input, and how those are pooled into a representation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Layout = Literal["first", "last", "tokens"]
Space = tuple[int, ...]
Pooling = Literal["mean", "max", "mean+max", "max+mean", "flatten"]

POOLINGS: tuple[Pooling, ...] = ("mean", "max", "mean+max", "max+mean", "flatten")

# Class, distillation and register tokens that may stand before the patches.
_MOST_PREFIX = 8


@dataclass(frozen=True)
class Grid:
    """Where channels and locations are in a tensor."""

    layout: Layout  # channels "first", channels "last", or "tokens" for (n, tokens, channels)
    prefix: int = 0  # tokens that come before the patches and have no place in the image

    def maps(self, tensor: Tensor, space: Space) -> Tensor:
        """The tensor as (n, channels, *locations) of an input with the extent `space`, sharing memory."""
        if self.layout == "first":
            return tensor
        if self.layout == "last":
            return tensor.movedim(-1, 1)
        patches = tensor[:, self.prefix :]
        shape = grid_shape(patches.shape[1], space)
        if shape is None:
            raise ValueError(f"{patches.shape[1]} tokens do not fill a grid of the input's shape.")
        return torch.unflatten(patches.permute(0, 2, 1), 2, shape)

    def prefix_tokens(self, tensor: Tensor) -> Tensor:
        """Tokens without a place in the image, shape (n, prefix, channels)."""
        if self.layout == "tokens":
            return tensor[:, : self.prefix]
        return tensor.new_empty(len(tensor), 0, tensor.shape[1 if self.layout == "first" else -1])

    def tensor(self, maps: Tensor, prefix_tokens: Tensor) -> Tensor:
        """A tensor of the model's layout that holds `maps` and tokens before them."""
        if self.layout == "first":
            return maps
        if self.layout == "last":
            return maps.movedim(1, -1)
        return torch.cat([prefix_tokens, maps.flatten(2).permute(0, 2, 1)], dim=1)


def space_of(images: Tensor) -> Space:
    """Extent of an input: height and width, time, depth too, or the number of tokens."""
    return tuple(images.shape[2:] if images.ndim > 2 else images.shape[1:])


def grid_shape(locations: int, space: Space) -> Space | None:
    """Shape of a grid with so many cells and the input's proportions; None where there is none."""
    if len(space) != 2:
        return (locations,) if len(space) == 1 else None
    aspect = space[0] / space[1]
    guess = round((locations * aspect) ** 0.5)
    for height in (guess, guess - 1, guess + 1):
        if height > 0 and locations % height == 0:
            width = locations // height
            # One more row or column than the image's proportions ask for is rounding; more is another grid.
            if abs(height - aspect * width) < max(1.0, aspect):
                return height, width
    return None


def grids_of(tensor: Tensor, space: Space, *, prefixes: int = _MOST_PREFIX) -> Iterator[Grid]:
    """Every way to see a tensor as channels over more than one location."""
    # (n, c, 1, 1) and (n, 1, 1, c) are pooled vectors and no maps of one channel.
    if tensor.ndim == len(space) + 2 and tensor[0, 0].numel() > 1 and tensor[0, ..., 0].numel() > 1:
        yield Grid("first")
        if len(space) > 1:
            yield Grid("last")
    if tensor.ndim == 3 and tensor.shape[2] > 1:
        for prefix in range(min(prefixes, tensor.shape[1] - 1)):
            if tensor.shape[1] - prefix > 1 and grid_shape(tensor.shape[1] - prefix, space) is not None:
                yield Grid("tokens", prefix)


def pooled(maps: Tensor, pooling: Pooling) -> Tensor:
    """What a pooling makes of maps, shape (n, units): the representation, where that is what it is."""
    flat = maps.flatten(2)
    if pooling == "mean":
        return flat.mean(2)
    if pooling == "max":
        return flat.amax(2)
    if pooling == "flatten":
        return flat.flatten(1)
    halves = [flat.mean(2), flat.amax(2)]
    return torch.cat(halves if pooling == "mean+max" else halves[::-1], dim=1)


def spread(maps: Tensor, weights: Tensor, pooling: Pooling) -> Tensor:
    """Σ_k weight_k u_k(h, w): weighted units put back where they came from.

    u_k(h, w) are the maps behind unit k of the representation z; averaged over the locations they give z_k. For a
    mean-pooled channel that is the channel's map itself. A maximum sits, times the number of locations, where it was
    found (equal maxima share), and an entry of a flattened map at its own location.
    """
    flat = maps.flatten(2)
    locations = flat.shape[2]
    if pooling == "mean":
        result = torch.bmm(weights, flat)
    elif pooling == "flatten":
        result = locations * torch.einsum("ntcp,ncp->ntp", torch.unflatten(weights, 2, flat.shape[1:]), flat)
    else:
        top = flat == flat.amax(2, keepdim=True)
        peaks = flat * top * (locations / top.sum(2, keepdim=True))
        if pooling == "max":
            result = torch.bmm(weights, peaks)
        else:
            halves = [flat, peaks] if pooling == "mean+max" else [peaks, flat]
            result = torch.bmm(weights, torch.cat(halves, dim=1))
    return torch.unflatten(result, 2, maps.shape[2:])


def per_channel(values: Tensor, channels: int, pooling: Pooling) -> Tensor:
    """Values of the units (..., units) summed to those of the channels they came from (..., channels)."""
    if pooling in ("mean", "max"):
        return values
    if pooling == "flatten":
        return torch.unflatten(values, -1, (channels, -1)).sum(-1)
    return torch.unflatten(values, -1, (2, channels)).sum(-2)
