"""The networks of the benchmark with their trained weights, each with the way it wants its images."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.architectures import architecture

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Imagenette's classes, in the order of their WordNet ids, among ImageNet's thousand.
IMAGENETTE_CLASSES = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)


@dataclass(frozen=True)
class Setting:
    """A trained network and the images it is explained on.

    Attributes:
        name: For the tables.
        model: In evaluation mode, taking images from 0 to 1.
        data: Name of the images.
        classes: Output of the network for each label.
        layer: Module whose output is the map that gradient-based methods use.
        earlier: A layer with a finer map, for candidates that look there too.
        size: Side in pixels to which images are brought; as stored if None.
    """

    name: str
    model: nn.Module
    data: str
    classes: tuple[int, ...]
    layer: str
    earlier: str
    size: int | None = None


class Normalised(nn.Module):
    """A network that is given images from 0 to 1 with the given mean and spread taken out.

    Deleting a region sets it to zero after normalisation, as in the paper, so normalisation comes first and the
    benchmark works on normalised images; this module only keeps the two numbers with the network.
    """

    def __init__(
        self, network: nn.Module, mean: tuple[float, ...], spread: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.network = network
        self.mean = torch.tensor(mean)[:, None, None]
        self.spread = torch.tensor(spread)[:, None, None]

    def prepare(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.spread

    def forward(self, prepared: Tensor) -> Tensor:
        result: Tensor = self.network(prepared)
        return result


def mobilenet_v2() -> Setting:
    network = architecture("mobilenet_v2", classes=1000)
    network.load_state_dict(_weights("mobilenet_v2_imagenet"))
    model = Normalised(network, *IMAGENET).eval()
    return Setting(
        "MobileNetV2, Imagenette",
        model,
        "imagenette",
        IMAGENETTE_CLASSES,
        "network.features.18",
        "network.features.13",
    )


def efficientnet_lite0() -> Setting:
    network = EfficientNetLite0()
    renamed = {
        ".".join(part.lstrip("_") for part in name.split(".")): v
        for name, v in _weights(_LITE).items()
    }
    network.load_state_dict(renamed)
    # The TensorFlow original subtracts 127 and divides by 128.
    model = Normalised(network, (127 / 255,) * 3, (128 / 255,) * 3).eval()
    return Setting(
        "EfficientNet-Lite0, Imagenette",
        model,
        "imagenette",
        IMAGENETTE_CLASSES,
        "network.act",
        "network.blocks.10",
    )


def resnet18_cifar10() -> Setting:
    network = ResNet18ForSmallImages(classes=10)
    network.load_state_dict(_weights("resnet18_cifar10"))
    model = Normalised(network, (0.0,) * 3, (1.0,) * 3).eval()
    return Setting(
        "ResNet-18, CIFAR-10",
        model,
        "cifar10",
        tuple(range(10)),
        "network.layer4",
        "network.layer3",
    )


def resnet20_cifar10() -> Setting:
    network = ResNet20(classes=10)
    network.load_state_dict(_weights("resnet20_cifar10"))
    model = Normalised(network, *IMAGENET).eval()
    return Setting(
        "ResNet-20, CIFAR-10",
        model,
        "cifar10",
        tuple(range(10)),
        "network.layer3",
        "network.layer2",
    )


SETTINGS = {
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_lite0": efficientnet_lite0,
    "resnet18": resnet18_cifar10,
    "resnet20": resnet20_cifar10,
}

_LITE = "efficientnet_lite0_imagenet"


def _weights(name: str) -> Mapping[str, Tensor]:
    root = os.environ.get("NOBSP_DATA")
    path = Path(root or ".") / "weights" / f"{name}_fp16.safetensors"
    if root is None or not path.is_file():
        raise FileNotFoundError(f"set NOBSP_DATA to a folder that has weights/{path.name}.")
    return {
        key: value.float() if value.is_floating_point() else value
        for key, value in load_file(path).items()
    }


# ---------------------------------------------------------------------- architectures


class _SameConv(nn.Conv2d):
    """Padded as TensorFlow does: what is missing is split, the odd pixel goes right and below."""

    def forward(self, x: Tensor) -> Tensor:
        missing = [
            max((-(-int(size) // stride) - 1) * stride + kernel - int(size), 0)
            for size, kernel, stride in zip(x.shape[2:], self.kernel_size, self.stride, strict=True)
        ]
        if any(
            rows % 2 for rows in missing
        ):  # what both sides get alike, the convolution pads faster itself
            x = functional.pad(x, (0, missing[1] % 2, 0, missing[0] % 2))
        both = [rows // 2 for rows in missing]
        return functional.conv2d(
            x, self.weight, self.bias, self.stride, both, self.dilation, self.groups
        )


class _InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = inputs * expand
        self.skip = stride == 1 and inputs == outputs
        self.expand = expand > 1
        if self.expand:
            self.expand_conv = _SameConv(inputs, inner, 1, bias=False)
            self.bn0 = nn.BatchNorm2d(inner, eps=1e-3)
        self.depthwise_conv = _SameConv(inner, inner, kernel, stride, groups=inner, bias=False)
        self.bn1 = nn.BatchNorm2d(inner, eps=1e-3)
        self.project_conv = _SameConv(inner, outputs, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu6(self.bn0(self.expand_conv(x))) if self.expand else x
        y = functional.relu6(self.bn1(self.depthwise_conv(y)))
        result: Tensor = self.bn2(self.project_conv(y))
        return x + result if self.skip else result


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0: EfficientNet-B0 without squeeze-and-excitation and with ReLU6."""

    # Blocks, kernel, stride, expansion, channels.
    STAGES = (
        (1, 3, 1, 1, 16),
        (2, 3, 2, 6, 24),
        (2, 5, 2, 6, 40),
        (3, 3, 2, 6, 80),
        (3, 5, 1, 6, 112),
        (4, 5, 2, 6, 192),
        (1, 3, 1, 6, 320),
    )

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv_stem, self.bn0 = _SameConv(3, 32, 3, 2, bias=False), nn.BatchNorm2d(32, eps=1e-3)
        blocks, width = [], 32
        for count, kernel, stride, expand, channels in self.STAGES:
            for number in range(count):
                step = stride if number == 0 else 1
                blocks.append(
                    _InvertedResidual(width, channels, kernel=kernel, stride=step, expand=expand)
                )
                width = channels
        self.blocks = nn.ModuleList(blocks)
        self.conv_head, self.bn1 = (
            _SameConv(width, 1280, 1, bias=False),
            nn.BatchNorm2d(1280, eps=1e-3),
        )
        self.act = nn.ReLU6()
        self.fc = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu6(self.bn0(self.conv_stem(x)))
        for block in self.blocks:
            x = block(x)
        x = self.act(self.bn1(self.conv_head(x)))
        result: Tensor = self.fc(x.mean((2, 3)))
        return result


class _BasicBlock(nn.Module):
    """Two convolutions beside a shortcut, which is a convolution where shapes differ, or skips pixels and pads."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, padded: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Sequential()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = (
                _Padded(outputs - inputs)
                if padded
                else nn.Sequential(projection, nn.BatchNorm2d(outputs))
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.shortcut(x))


class _Padded(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        before = self.channels // 2
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.channels - before))


class _SmallImageResNet(nn.Module):
    """A 3×3 convolution without max pooling, stages of basic blocks, the mean, and a linear layer."""

    def __init__(self, widths: tuple[int, ...], blocks: int, *, classes: int, padded: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(3, widths[0], 3, 1, 1, bias=False),
            nn.BatchNorm2d(widths[0]),
        )
        self.stages = [f"layer{number}" for number in range(1, len(widths) + 1)]
        width = widths[0]
        for stage, channels in zip(self.stages, widths, strict=True):
            stride = 1 if stage == "layer1" else 2
            first = _BasicBlock(width, channels, stride, padded=padded)
            setattr(
                self,
                stage,
                nn.Sequential(
                    first, *(_BasicBlock(channels, channels, 1) for _ in range(blocks - 1))
                ),
            )
            width = channels
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        for stage in self.stages:
            x = getattr(self, stage)(x)
        result: Tensor = self.linear(x.mean((2, 3)))
        return result


class ResNet18ForSmallImages(_SmallImageResNet):
    """ResNet-18 with a stem for 32×32 images."""

    def __init__(self, classes: int) -> None:
        super().__init__((64, 128, 256, 512), 2, classes=classes, padded=False)


class ResNet20(_SmallImageResNet):
    """ResNet-20 for CIFAR-10: He et al. (2016), section 4.2, shortcuts without weights."""

    def __init__(self, classes: int) -> None:
        super().__init__((16, 32, 64), 3, classes=classes, padded=True)
