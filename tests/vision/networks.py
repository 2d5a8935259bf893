"""Small networks with every kind of pooling and head, and images that make them differ."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn


def images(
    count: int,
    *,
    size: int = 12,
    channels: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Images with structure at several scales, so that channels correlate the way real ones do."""
    generator = torch.Generator().manual_seed(seed)
    fine = torch.randn(count, channels, size, size, generator=generator, dtype=torch.float64)
    coarse = torch.randn(count, channels, 3, 3, generator=generator, dtype=torch.float64)
    return (0.6 * fine + nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")).to(
        dtype
    )


def made(network: nn.Module, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The network with weights from a seed of its own; the caller's random state is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in network.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
    return network.to(dtype).eval()


def body(channels: int = 6) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, channels, 3), nn.ReLU())


def averaged(
    channels: int = 6, classes: int = 4, *, dtype: torch.dtype = torch.float64
) -> nn.Module:
    """Convolutions, global average pooling, linear head."""
    parts = {"body": body(channels), "pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten()}
    return made(nn.Sequential(OrderedDict(parts, head=nn.Linear(channels, classes))), dtype=dtype)


def through_layers(
    channels: int = 5, hidden: int = 7, classes: int = 3, *, pooled: bool = True
) -> nn.Module:
    """Fully connected layers between the (pooled) map and the head."""
    side = 1 if pooled else 2
    parts: dict[str, nn.Module] = {
        "body": body(channels),
        "pool": nn.AdaptiveAvgPool2d(side),
        "flat": nn.Flatten(),
    }
    parts |= {"hidden": nn.Linear(channels * side**2, hidden), "act": nn.Tanh()}
    return made(nn.Sequential(OrderedDict(parts, head=nn.Linear(hidden, classes))))


class Functional(nn.Module):
    """Pooling and rectifier as functions, not modules; the rectifier in place, as in DenseNet."""

    def __init__(self, how: str, channels: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.how = how
        self.features = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, channels, 3))
        width = {"concat": 2 * channels, "flatten": channels * 64}.get(how, channels)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.features(x)
        if self.how == "mean":
            maps = nn.functional.relu(maps, inplace=True)
            return self.classifier(nn.functional.adaptive_avg_pool2d(maps, 1).flatten(1))
        if self.how == "max":
            return self.classifier(maps.amax((2, 3)))
        if self.how == "concat":
            return self.classifier(torch.cat([maps.amax((2, 3)), maps.mean((2, 3))], dim=1))
        if self.how == "flatten":
            return self.classifier(maps.flatten(1))
        powers = maps.clamp_min(1e-6).pow(3).mean((2, 3)).pow(1 / 3)  # generalised mean
        return self.classifier(powers)


class Tokens(nn.Module):
    """Patches as tokens behind a class token; the head reads the patches' mean or the class token."""

    def __init__(self, reads: str, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.reads = reads
        self.patches = nn.Conv2d(3, width, 3, stride=3)
        self.first = nn.Parameter(
            torch.randn(1, 1, width, generator=torch.Generator().manual_seed(0))
        )
        self.entry = nn.Identity()
        self.mix = nn.TransformerEncoderLayer(
            width, 2, 16, batch_first=True, dropout=0.0, activation="gelu"
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], dim=1)
        tokens = self.norm(self.mix(self.entry(tokens)))
        return self.head(tokens[:, 0] if self.reads == "class" else tokens[:, 1:].mean(1))


class ClassMaps(nn.Module):
    """A map per class, rectified and averaged, as in SqueezeNet: no linear layer ends the network."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.body = body()
        self.classes = nn.Conv2d(6, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.body(x)).relu().mean((2, 3))


class Skipping(nn.Module):
    """A second path to the head that bypasses the map."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.body(x)
        return self.head(maps.mean((2, 3)) * x.mean((1, 2, 3))[:, None])
