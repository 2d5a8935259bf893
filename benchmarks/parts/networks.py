"""Networks that are made smaller, with images or rows to calibrate on and to judge by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.data.images import load_images
from benchmarks.data.tables import load
from benchmarks.networks import feed_forward, train
from benchmarks.report import progress
from benchmarks.vision.networks import (
    Setting,
    mobilenet_v2,
    resnet18_cifar10,
    resnet20_cifar10,
)


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained network and its rows."""

    name: str
    model: nn.Module
    calibration: Tensor
    labels: Tensor  # of the calibration rows: for rivals that need them
    test: Tensor
    truth: Tensor
    classes: tuple[int, ...] | None = None  # the outputs that count
    blocks: tuple[str, ...] = ()  # layers whose channels Torch-Pruning is told to thin

    def accuracy(self, model: nn.Module) -> float:
        right = 0
        model.eval()
        with torch.no_grad():
            for rows, truth in zip(
                torch.split(self.test, 100), torch.split(self.truth, 100), strict=True
            ):
                outputs = model(rows)
                if self.classes is not None:
                    outputs = outputs[:, list(self.classes)]
                right += int((outputs.argmax(1) == truth).sum())
        return right / len(self.test)


def of_images(setting: Setting, *, seed: int, calibration: int, test: int) -> Subject:
    """A network of the image benchmarks; calibrated on training images, judged on test images."""
    chosen = np.random.default_rng(seed)

    def read(split: str, count: int, order: np.random.Generator) -> tuple[Tensor, Tensor]:
        images = load_images(setting.data, split=split, size=setting.size)  # type: ignore[arg-type]
        some = images.subset(order.permutation(len(images))[:count])
        return setting.model.prepare(torch.from_numpy(some.array())), torch.as_tensor(some.labels)

    rows, labels = read("train", calibration, chosen)
    # The same test images for every calibration sample.
    test_rows, truth = read("val", test, np.random.default_rng(0))
    classes = None if setting.data == "cifar10" else setting.classes
    return Subject(setting.name, setting.model, rows, labels, test_rows, truth, classes)


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = width // num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n_rows, length, _ = x.shape
        qkv = self.qkv(x).reshape(n_rows, length, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).reshape(n_rows, length, -1))


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SmallViT(nn.Module):
    """Averaged tokens; of 32 pixels a side and three colours, patches of four pixels, unless told otherwise."""

    def __init__(
        self,
        width: int = 72,
        depth: int = 4,
        num_heads: int = 6,
        *,
        colours: int = 3,
        patch: int = 4,
        tokens: int = 64,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(colours, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT + self.places
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def trained_vit(*, epochs: int) -> nn.Module:
    """Trained on the training images that are there."""
    images = load_images("cifar10", split="train")
    rows = torch.from_numpy(images.array()) * 4 - 2
    return _trained(SmallViT, rows, torch.as_tensor(images.labels), epochs)


def _trained(
    make: Callable[[], nn.Module], rows: Tensor, labels: Tensor, epochs: int, *, flips: bool = True
) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        steps = epochs * (len(rows) // 100)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3, total_steps=steps)
        for epoch in range(epochs):
            progress(f"ViT, epoch {epoch + 1} of {epochs}")
            order = torch.randperm(len(rows))
            for batch in torch.split(order[: len(rows) // 100 * 100], 100):
                flip = flips and float(torch.rand(())) < 0.5
                flipped = rows[batch].flip(3) if flip else rows[batch]
                optimizer.zero_grad()
                functional.cross_entropy(model(flipped), labels[batch]).backward()
                optimizer.step()
                schedule.step()
    return model.eval()


def vit(*, seed: int, calibration: int, test: int, model: nn.Module) -> Subject:
    chosen = np.random.default_rng(seed)
    known = load_images("cifar10", split="train")
    unseen = load_images("cifar10", split="val")
    some = known.subset(chosen.permutation(len(known))[:calibration])
    others = unseen.subset(np.random.default_rng(0).permutation(len(unseen))[:test])
    return Subject(
        "ViT, CIFAR-10",
        model,
        torch.from_numpy(some.array()) * 4 - 2,
        torch.as_tensor(some.labels),
        torch.from_numpy(others.array()) * 4 - 2,
        torch.as_tensor(others.labels),
    )


def digits(*, seed: int, model: nn.Module | None = None) -> Subject:
    """A transformer small enough to be trained in seconds, on scikit-learn's digits of eight pixels a side."""
    values, classes = load_digits(return_X_y=True)
    rows = torch.as_tensor(values).float().reshape(-1, 1, 8, 8) / 8 - 1
    labels = torch.as_tensor(classes)
    order = torch.as_tensor(np.random.default_rng(0).permutation(len(rows)))
    known = order[:1200]
    unseen = order[1200:]
    if model is None:
        small = partial(SmallViT, 48, 3, colours=1, patch=2, tokens=16)
        model = _trained(small, rows[known], labels[known], 25, flips=False)
    chosen = known[np.random.default_rng(seed).permutation(len(known))[:600]]
    return Subject("ViT, digits", model, rows[chosen], labels[chosen], rows[unseen], labels[unseen])


def adult(*, seed: int, calibration: int, test: int, model: nn.Module | None = None) -> Subject:
    table = load("adult", rows=12_000)
    rows = torch.as_tensor(table.X_train).float()
    labels = torch.as_tensor(table.y_train)
    if model is None:
        network = feed_forward(rows.shape[1], (128, 64), 2, seed=0)
        train(network, rows, labels, seed=0, epochs=15, loss=nn.CrossEntropyLoss())
        model = network.float().eval()
    chosen = np.random.default_rng(seed).permutation(len(rows))[:calibration]
    return Subject(
        "MLP, Adult",
        model,
        rows[chosen],
        labels[chosen],
        torch.as_tensor(table.X_test).float()[:test],
        torch.as_tensor(table.y_test)[:test],
    )


def makers(*, quick: bool) -> dict[str, Callable[[], Callable[[int], Subject]]]:
    """Per network what makes its subject from a seed; the network is trained or read once."""
    few = 200 if quick else None

    def images(
        setting: Callable[[], Setting], calibration: int, test: int
    ) -> Callable[[int], Subject]:
        ready = setting()
        return lambda seed: of_images(ready, seed=seed, calibration=calibration, test=few or test)

    def transformer() -> Callable[[int], Subject]:
        model = trained_vit(epochs=1 if quick else 5)
        return lambda seed: vit(seed=seed, calibration=400, test=few or 1000, model=model)

    def small_transformer() -> Callable[[int], Subject]:
        first = digits(seed=0)
        return lambda seed: digits(seed=seed, model=first.model)

    def mlp() -> Callable[[int], Subject]:
        first = adult(seed=0, calibration=2000, test=few or 2400)
        return lambda seed: adult(seed=seed, calibration=2000, test=few or 2400, model=first.model)

    return {
        "resnet20": lambda: images(resnet20_cifar10, 400, 1000),
        "resnet18": lambda: images(resnet18_cifar10, 400, 300),
        "mobilenet": lambda: images(mobilenet_v2, 200, 200),
        "vit": transformer,
        "digits": small_transformer,
        "mlp": mlp,
    }
