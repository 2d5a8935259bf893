"""All networks of the tables: those with their own weights, and MobileNetV2 with heads trained on other images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from benchmarks.data import load_images
from benchmarks.retrieval.features import Recipe, features
from benchmarks.retrieval.heads import REGULARISED, trained_head
from benchmarks.vision.networks import (
    Normalised,
    Setting,
    efficientnet_lite0,
    mobilenet_v2,
    resnet18_cifar10,
    resnet20_cifar10,
)


@dataclass(frozen=True)
class Network:
    """A network of the tables.

    Attributes:
        name: For the tables.
        make: Loads it.
        quoted: The row of the paper it stands beside, as network and data set; None where the paper has none.
        remark: How it differs from the paper's.
    """

    name: str
    make: Callable[[], Setting]
    quoted: tuple[str, str] | None
    remark: str


def with_head(name: str, data: str, size: int) -> Setting:
    """MobileNetV2 as trained on ImageNet, its last layer replaced by softmax regression on its own activations."""
    base = mobilenet_v2()
    recipe = Recipe(data, "mobilenet_v2", size)
    classes = len(load_images(data, split="train").class_names)
    head = trained_head(features(recipe, "train"), classes=classes, decay=REGULARISED)
    assert isinstance(base.model, Normalised)
    base.model.network.classifier = nn.Sequential(nn.Dropout(0.2), head.layer())
    base.model.eval()
    return Setting(name, base.model, data, tuple(range(classes)), base.layer, base.earlier, size)


def ten_way(make: Callable[[], Setting]) -> Setting:
    """A network trained on ImageNet that chooses among Imagenette's ten classes only, as one tuned on them would."""
    setting = make()
    assert isinstance(setting.model, Normalised)
    holder = setting.model.network
    name = [name for name, layer in holder.named_modules() if isinstance(layer, nn.Linear)][-1]
    whole = holder.get_submodule(name)
    assert isinstance(whole, nn.Linear)
    rows = list(setting.classes)
    few = nn.Linear(whole.in_features, len(rows))
    few.weight.data, few.bias.data = whole.weight.data[rows].clone(), whole.bias.data[rows].clone()
    holder.set_submodule(name, few)
    return replace(setting, classes=tuple(range(len(rows))))


NETWORKS = {
    "mobilenet_v2": Network(
        "MobileNetV2, Imagenette",
        partial(ten_way, mobilenet_v2),
        ("MobileNetV2", "Imagenette"),
        "trained on ImageNet, its head cut to the ten classes; the paper fine-tunes",
    ),
    "efficientnet_lite0": Network(
        "EfficientNet-Lite0, Imagenette",
        partial(ten_way, efficientnet_lite0),
        ("EfficientNet-B0", "Imagenette"),
        "Lite0, trained on ImageNet, its head cut to the ten classes; the paper fine-tunes B0",
    ),
    "resnet18": Network(
        "ResNet-18, CIFAR-10",
        resnet18_cifar10,
        ("ResNet-18", "CIFAR-10"),
        "trained from scratch at 32×32, as in the paper; other weights",
    ),
    "resnet20": Network("ResNet-20, CIFAR-10", resnet20_cifar10, None, "not in the paper"),
    "mobilenet_v2_tiny": Network(
        "MobileNetV2, TinyImageNet",
        partial(with_head, "MobileNetV2, TinyImageNet", "tiny_imagenet", 224),
        ("MobileNetV2", "TinyImageNet"),
        "a linear head on frozen activations; the paper fine-tunes",
    ),
    "mobilenet_v2_ham": Network(
        "MobileNetV2, HAM10000",
        partial(with_head, "MobileNetV2, HAM10000", "ham10000", 224),
        ("MobileNetV2", "DermaMNIST"),
        "a linear head on frozen activations; the same kind of images, another split and size",
    ),
    "mobilenet_v2_cifar10": Network(
        "MobileNetV2, CIFAR-10",
        partial(with_head, "MobileNetV2, CIFAR-10", "cifar10", 128),
        ("MobileNetV2", "CIFAR-10"),
        "a linear head on frozen activations; the paper trains from scratch",
    ),
}
# Those with weights of their own; the map is chosen on their training images. The other networks had no say in it.
PRETRAINED = CHOOSING = ("mobilenet_v2", "efficientnet_lite0", "resnet18", "resnet20")
