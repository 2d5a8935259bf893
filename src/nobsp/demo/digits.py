"""Handwritten digits: where a convolutional network reads them, and which labels it does not believe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from nobsp.demo.training import seeded, train
from nobsp.neighbors import ContributionIndex, audit
from nobsp.reporting import report
from nobsp.vision import ActivationMaps, NObSPCam

PLANTED = 24
_SHOWN = 60


@dataclass(frozen=True, eq=False)
class Example:
    """An image and its map laid over it, (height, width, 3) each, and which digit it is."""

    image: NDArray[np.float32]
    overlay: NDArray[np.float32]
    digit: int


@dataclass(frozen=True, eq=False)
class Suspect:
    """An image, (height, width, 3), the label it was given, and the one its neighbours have."""

    image: NDArray[np.float32]
    given: int
    suggested: int


@dataclass(frozen=True, eq=False)
class Digits:
    """What was found; `gap` is the largest distance of map and residual from the class's centred logit."""

    accuracy: float
    fresh: int
    gap: float
    planted: int
    suspected: int
    caught: int
    examples: list[Example]
    suspects: list[Suspect]


def run(page: Path, *, epochs: int) -> Digits:
    """Trains, makes maps, audits labels of which some were planted wrong, and writes the page."""
    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    split = train_test_split(images, data.target, test_size=1 / 3, random_state=0, stratify=data.target)
    x, fresh, y, truth = (torch.from_numpy(part) for part in split)
    with seeded(0):
        network = _network()
        train(network, x, y, loss=nn.functional.cross_entropy, epochs=epochs, rate=5e-3, decay=1e-2)
    names = [str(digit) for digit in range(10)]
    cam = NObSPCam(network, output_names=names).fit(x)
    maps = cam(fresh)
    predicted = maps.logits.argmax(1)
    right = predicted == truth.numpy()
    index = ContributionIndex(cam).fit(x, y)
    given, planted = _some_made_wrong(truth.numpy())
    audited = audit(index, fresh, given)
    assert audited.mislabels is not None  # labels were given
    suspected = np.flatnonzero(audited.mislabels)
    caught = [int(row) for row in suspected if row in planted]
    shown = _worth_seeing(right, truth.numpy())
    order = np.argsort(-maps.logits[shown], axis=1)[:, :3]
    report(
        cam(fresh[shown], order),
        page,
        title="Where a network reads digits",
        about=f"A small convolutional network, trained on {len(x):,} of scikit-learn's handwritten digits and "
        "explained on digits it has not seen. Those it gets wrong come first.",
        explainer=cam,
        images=fresh[shown],
        labels=truth[shown].numpy(),
        hits=index.query(fresh[shown], k=8),
        gallery=x,
    )
    return Digits(
        accuracy=float(right.mean()),
        fresh=len(fresh),
        gap=_gap(maps),
        planted=len(planted),
        suspected=len(suspected),
        caught=len(caught),
        examples=_examples(maps, fresh, truth.numpy()),
        suspects=[Suspect(_pixels(fresh, row), int(given[row]), int(audited.suggested[row])) for row in caught[:12]],
    )


def _network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(nn.Sequential(*layers), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _worth_seeing(right: NDArray[np.bool_], truth: NDArray[np.int64]) -> list[int]:
    """What the network gets wrong, and then some of every digit."""
    wrong = [int(k) for k in np.flatnonzero(~right)]
    each = [np.flatnonzero(right & (truth == digit)) for digit in range(10)]
    rest = [int(ones[turn]) for turn in range(_SHOWN) for ones in each if turn < len(ones)]
    return (wrong + rest)[:_SHOWN]


def _gap(maps: ActivationMaps) -> float:
    """How far the account is from adding up, over all images."""
    rows = np.arange(len(maps))
    centred = maps.logits[rows, maps.target] - maps.base_values[maps.target]
    return float(np.abs(maps.account.mean((1, 2)) - centred).max())


def _some_made_wrong(truth: NDArray[np.int64]) -> tuple[NDArray[np.int64], set[int]]:
    """The labels with some of them moved to another digit, and which those are."""
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(truth), PLANTED, replace=False)
    given = truth.copy()
    given[chosen] = (given[chosen] + rng.integers(1, 10, PLANTED)) % 10
    return given, {int(row) for row in chosen}


def _examples(maps: ActivationMaps, images: Tensor, truth: NDArray[np.int64]) -> list[Example]:
    """The surest of each digit among those that are right, as it is and with its map."""
    overlays = maps.overlay(images, opacity=0.85)
    examples = []
    for digit in range(10):
        own = np.flatnonzero((maps.target == digit) & (truth == digit))
        if len(own):
            surest = int(own[np.argmax(maps.confidence[own])])
            examples.append(Example(_pixels(images, surest), overlays[surest], digit))
    return examples


def _pixels(images: Tensor, position: int) -> NDArray[np.float32]:
    """One image as red, green and blue."""
    return np.repeat(images[position].numpy().transpose(1, 2, 0), 3, axis=2)
