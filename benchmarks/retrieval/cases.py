"""The databases, queries and heads of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import progress
from benchmarks.retrieval.features import Features, Labels, Recipe, features
from benchmarks.retrieval.heads import FITTING, REGULARISED, Head, own_head, trained_head
from nobsp.neighbors import ContributionIndex

TINY = Recipe("tiny_imagenet", "mobilenet_v2", 224)
SMALLER = Recipe("tiny_imagenet", "mobilenet_v2", 128)
CIFAR = Recipe("cifar10", "resnet18", 32)
IMAGENETTE = Recipe("imagenette", "mobilenet_v2", 224)
# Not looked at before every constant of the joint confidence was fixed; those of label scores were chosen on it too.
HELD_OUT = Recipe("ham10000", "mobilenet_v2", 224)
TITLES = {
    TINY: "TinyImageNet, MobileNetV2",
    SMALLER: "TinyImageNet at 128 pixels, MobileNetV2",
    CIFAR: "CIFAR-10, ResNet-18",
    IMAGENETTE: "Imagenette, MobileNetV2",
    HELD_OUT: "HAM10000, MobileNetV2",
}
# Without an entry, the network's own head is used.
HEADS = {TINY: (FITTING, REGULARISED), SMALLER: (FITTING,), HELD_OUT: (REGULARISED,)}
KINDS = {FITTING: "head that fits", REGULARISED: "regularised head"}
# Rows of the database and queries; all there are in a full run.
QUICK = {TINY: (1000, 500), CIFAR: (1000, 500), IMAGENETTE: (500, 1000), HELD_OUT: (500, 281)}


@dataclass(frozen=True)
class Case:
    """A classifier with its database and its queries.

    Attributes:
        recipe: Where the activations are from.
        kind: Of its head.
        head: What reads the activations.
        database: Rows whose labels are known.
        queries: Held-out rows.
    """

    recipe: Recipe
    kind: str
    head: Head
    database: Features
    queries: Features

    @property
    def name(self) -> str:
        return f"{TITLES[self.recipe]}, {self.kind}"

    @property
    def classes(self) -> int:
        return len(self.head.weight)

    @cached_property
    def index(self) -> ContributionIndex:
        """Its database, by evidence for the query's class."""
        return ContributionIndex(self.head.layer()).fit(
            self.database.activations, self.database.labels
        )

    @cached_property
    def predicted(self) -> Labels:
        """Class of each query, by the head."""
        found: Labels = self.head.logits(self.queries.activations).argmax(1).numpy()
        return found

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which queries are classified correctly."""
        return np.equal(self.predicted, self.queries.labels)


def cases(*, quick: bool, cache: Path | None) -> Iterator[Case]:
    """Every case whose files are there; the others are named as not run."""
    for recipe in QUICK if quick else TITLES:
        try:
            yield from _of(recipe, QUICK[recipe] if quick else (None, None), cache)
        except FileNotFoundError as missing:
            progress(f"{TITLES[recipe]} is not run: {missing}")


def _of(
    recipe: Recipe, counts: tuple[int | None, int | None], cache: Path | None
) -> Iterator[Case]:
    progress(f"{TITLES[recipe]}: activations")
    rows, held_out = counts
    database, queries = (
        features(recipe, "train", rows, cache=cache),
        features(recipe, "val", held_out, cache=cache),
    )
    if recipe not in HEADS:
        yield Case(recipe, "its own head", own_head(recipe), database, queries)
    for decay in HEADS.get(recipe, ()):
        progress(f"{TITLES[recipe]}: {KINDS[decay]}")
        head = trained_head(database, classes=classes_of(database), decay=decay, cache=cache)
        yield Case(recipe, KINDS[decay], head, database, queries)


def classes_of(rows: Features) -> int:
    return int(rows.labels.max()) + 1
