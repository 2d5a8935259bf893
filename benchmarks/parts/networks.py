"""Networks that are made smaller, with images or rows to calibrate on and to judge by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.data.files import cache_folder
from benchmarks.data.images import Images, load_images
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
class Labelled:
    """Rows and their classes."""

    rows: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def some(self, positions: Tensor) -> Labelled:
        return Labelled(self.rows[positions], self.labels[positions])

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(torch.split(self.rows, size), torch.split(self.labels, size), strict=True)


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained network and its rows."""

    name: str
    model: nn.Module
    calibration: Labelled  # labels are for rivals that need them
    choosing: Labelled  # training rows that nothing is fitted to: for every choice between methods
    test: Labelled  # for the table alone
    training: Labelled  # for an epoch of training after parts were taken out
    classes: tuple[int, ...] | None = None  # the outputs that count

    def outputs(self, model: nn.Module, rows: Tensor) -> Tensor:
        """The outputs that count."""
        model.eval()
        with torch.no_grad():
            outputs = torch.cat([model(batch) for batch in torch.split(rows, 100)])
        return outputs if self.classes is None else outputs[:, list(self.classes)]

    @cached_property
    def whole(self) -> Tensor:
        """What the network gives for test rows with nothing removed."""
        return self.outputs(self.model, self.test.rows)

    def accuracy(self, model: nn.Module, judged: Labelled) -> float:
        return accuracy(self.outputs(model, judged.rows), judged)

    def judge(self, model: nn.Module) -> dict[str, float]:
        """On test rows: accuracy, and the squared change of the outputs as a share of their variance."""
        outputs = self.outputs(model, self.test.rows)
        change = (outputs - self.whole).square().sum(1).mean() / self.whole.var(0).sum()
        return {"accuracy": accuracy(outputs, self.test), "change": float(change)}


def accuracy(outputs: Tensor, judged: Labelled) -> float:
    return float((outputs.argmax(1) == judged.labels).double().mean())


@dataclass(frozen=True)
class Counts:
    """How many rows of each kind."""

    calibration: int
    test: int
    choosing: int = 1000
    training: int = 10_000
    # The first of the test rows in a fixed order were looked at while the method was made.
    looked_at: int = 1000

    @property
    def known(self) -> int:
        return max(self.training, self.calibration) + self.choosing


def _split(
    name: str,
    model: nn.Module,
    known: Labelled,
    unseen: Labelled,
    counts: Counts,
    seed: int,
    classes: tuple[int, ...] | None = None,
) -> Subject:
    order = torch.as_tensor(np.random.default_rng(seed).permutation(len(known)))
    unread = torch.arange(counts.looked_at, min(counts.looked_at + counts.test, len(unseen)))
    calibrated = counts.calibration
    chosen_on = order[calibrated : calibrated + counts.choosing]
    others = torch.cat([order[:calibrated], order[calibrated + counts.choosing :]])
    return Subject(
        name,
        model,
        calibration=known.some(order[:calibrated]),
        choosing=known.some(chosen_on),
        test=unseen.some(unread),
        training=known.some(others[: counts.training]),
        classes=classes,
    )


def _in_fixed_order(data: str, split: str, count: int, size: int | None = None) -> Images:
    images = load_images(data, split=split, size=size)  # type: ignore[arg-type]
    return images.subset(np.random.default_rng(0).permutation(len(images))[:count])


def of_images(setting: Setting, counts: Counts) -> Callable[[int], Subject]:
    """A network of the image benchmarks; calibrated on training images, judged on test images."""

    def read(split: str, count: int) -> Labelled:
        images = _in_fixed_order(setting.data, split, count, setting.size)
        prepared = setting.model.prepare(torch.from_numpy(images.array()))
        return Labelled(prepared, torch.as_tensor(images.labels))

    known = read("train", counts.known)
    unseen = read("val", counts.looked_at + counts.test)
    classes = None if setting.data == "cifar10" else setting.classes
    return lambda seed: _split(setting.name, setting.model, known, unseen, counts, seed, classes)


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


def _trained(
    make: Callable[[], nn.Module], known: Labelled, epochs: int, *, flips: bool = True
) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        steps = epochs * (len(known) // 100)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3, total_steps=steps)
        for epoch in range(epochs):
            progress(f"ViT, epoch {epoch + 1} of {epochs}")
            order = torch.randperm(len(known))
            for batch in torch.split(order[: len(known) // 100 * 100], 100):
                flip = flips and float(torch.rand(())) < 0.5
                rows = known.rows[batch]
                optimizer.zero_grad()
                outputs = model(rows.flip(3) if flip else rows)
                functional.cross_entropy(outputs, known.labels[batch]).backward()
                optimizer.step()
                schedule.step()
    return model.eval()


def vit(counts: Counts, *, epochs: int) -> Callable[[int], Subject]:
    """A small transformer trained on the training images that are there; kept for later runs."""

    def read(split: str) -> Labelled:
        images = _in_fixed_order("cifar10", split, 10_000)
        return Labelled(torch.from_numpy(images.array()) * 4 - 2, torch.as_tensor(images.labels))

    known = read("train")
    unseen = read("val")
    weights = cache_folder() / "prune" / f"vit-{epochs}.pt"
    if weights.is_file():
        model = SmallViT().eval()
        model.load_state_dict(torch.load(weights, weights_only=True))
    else:
        model = _trained(SmallViT, known, epochs)
        weights.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), weights)
    return lambda seed: _split("ViT, CIFAR-10", model, known, unseen, counts, seed)


def digits() -> Callable[[int], Subject]:
    """A transformer small enough to be trained in seconds, on scikit-learn's digits of eight pixels a side."""
    values, classes = load_digits(return_X_y=True)
    rows = torch.as_tensor(values).float().reshape(-1, 1, 8, 8) / 8 - 1
    everything = Labelled(rows, torch.as_tensor(classes))
    order = torch.as_tensor(np.random.default_rng(1).permutation(len(rows)))
    known = everything.some(order[:1200])
    unseen = everything.some(order[1200:])
    small = partial(SmallViT, 48, 3, colours=1, patch=2, tokens=16)
    model = _trained(small, known, 25, flips=False)
    counts = Counts(calibration=600, test=600, choosing=200, looked_at=0)
    return lambda seed: _split("ViT, digits", model, known, unseen, counts, seed)


def adult(counts: Counts) -> Callable[[int], Subject]:
    """A network of two hidden layers on a table."""
    table = load("adult", rows=24_000)
    known = Labelled(torch.as_tensor(table.X_train).float(), torch.as_tensor(table.y_train))
    unseen = Labelled(torch.as_tensor(table.X_test).float(), torch.as_tensor(table.y_test))
    network = feed_forward(known.rows.shape[1], (128, 64), 2, seed=0)
    train(network, known.rows, known.labels, seed=0, epochs=15, loss=nn.CrossEntropyLoss())
    model = network.float().eval()
    return lambda seed: _split("MLP, Adult", model, known, unseen, counts, seed)


def makers(*, quick: bool) -> dict[str, Callable[[], Callable[[int], Subject]]]:
    """Per network what makes its subject from a seed; the network is trained or read once."""

    def some(calibration: int, test: int, **others: int) -> Counts:
        if quick:
            return Counts(calibration, 200, **{**others, "choosing": 200, "training": 400})
        return Counts(calibration, test, **others)

    imagenette = some(200, 400, choosing=200, training=600, looked_at=200)
    return {
        "resnet20": lambda: of_images(resnet20_cifar10(), some(400, 1000, training=2000)),
        "resnet18": lambda: of_images(
            resnet18_cifar10(), some(400, 500, choosing=200, training=1000)
        ),
        "mobilenet": lambda: of_images(mobilenet_v2(), imagenette),
        "vit": lambda: vit(some(400, 1000, training=3000), epochs=1 if quick else 6),
        "digits": digits,
        "mlp": lambda: adult(some(2000, 4800, looked_at=0)),
    }
