"""Known functions of five features, and samples of them with a given size and correlation."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

Array = NDArray[np.float64]
Pair = tuple[int, int]

FEATURES = 5
HELD_OUT = 200
NOISE = 0.01
SIZES = (200, 1000, 5000)
CORRELATIONS = (0.0, 0.5, 0.9)
ACTIVATIONS = ("ReLU", "SiLU")


@dataclass(frozen=True)
class Family:
    """A sum of functions of one feature each, and perhaps of pairs; None is a feature that plays no part.

    Every pair function averages to zero over either feature, as features are symmetric about zero and the functions
    odd: on average over the product of the marginals it holds nothing that one feature alone could explain, and the
    functions of one feature are the average effects, whatever the correlation.
    """

    formula: str
    singles: tuple[Callable[[Array], Array] | None, ...]
    pairs: tuple[tuple[Pair, Callable[[Array, Array], Array]], ...] = ()

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(k for k, f in enumerate(self.singles) if f is not None)

    @property
    def null(self) -> tuple[int, ...]:
        return tuple(k for k, f in enumerate(self.singles) if f is None)

    @property
    def true_pairs(self) -> tuple[Pair, ...]:
        return tuple(pair for pair, _ in self.pairs)


FAMILIES = {
    "smooth": Family(
        "sin 2x0 + x1²/2 + exp(x2)/2 + tanh 2x3 + 0·x4",
        (
            lambda x: np.sin(2 * x),
            lambda x: x**2 / 2,
            lambda x: np.exp(x) / 2,
            lambda x: np.tanh(2 * x),
            None,
        ),
    ),
    "kinked": Family(
        "|x0| + max(x1, 0) + clip(3x2, -1, 1) + sign(x3)·max(|x3| - 1/2, 0) + 0·x4",
        (
            np.abs,
            lambda x: np.maximum(x, 0),
            lambda x: np.clip(3 * x, -1, 1),
            lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
            None,
        ),
    ),
    "interactions": Family(
        "sin 2x0 + x1²/2 + max(x2, 0) + tanh 2x3 + 0·x4 + x0·x1 + tanh(2x2)·x3",
        (
            lambda x: np.sin(2 * x),
            lambda x: x**2 / 2,
            lambda x: np.maximum(x, 0),
            lambda x: np.tanh(2 * x),
            None,
        ),
        (((0, 1), lambda a, b: a * b), ((2, 3), lambda a, b: np.tanh(2 * a) * b)),
    ),
    "paper": Family(
        "|x0| + x1³ + exp x2 + sin 2x3 + 0·x4",
        (np.abs, lambda x: x**3, np.exp, lambda x: np.sin(2 * x), None),
    ),
}


@dataclass(frozen=True)
class Case:
    """One place in the grid.

    Attributes:
        family: Name of the functions.
        size: Rows for training, except in the paper's set, where 200 of its 1000 rows are held out.
        correlation: Between every two features, of the normal variables behind the uniform ones.
        activation: Of the network; None for what needs no network.
        seed: Of everything random.
    """

    family: str
    size: int
    correlation: float
    activation: str | None
    seed: int

    @property
    def training(self) -> int:
        return self.size - HELD_OUT if self.family == "paper" else self.size

    @property
    def data(self) -> Case:
        """The same place without its network: both activations learn from the same rows."""
        return Case(self.family, self.size, self.correlation, None, self.seed)

    @property
    def cell(self) -> tuple[str, int, float, str | None]:
        """The place without its seed: seeds are averaged over."""
        return self.family, self.size, self.correlation, self.activation

    def __str__(self) -> str:
        return "-".join(
            part
            for part in (
                self.family,
                f"n{self.size}",
                f"r{self.correlation}",
                self.activation,
                f"s{self.seed}",
            )
            if part
        )


@dataclass(frozen=True)
class Sample:
    """Rows to learn from, rows held out, and the truth on the latter.

    Attributes:
        inputs: Training rows, (rows, features).
        targets: Noisy sums of the functions on them.
        held_out: Rows for scoring.
        singles: Functions of one feature on the held-out rows, centred there, (rows, features).
        pairs: Functions of two features likewise, (rows,) each.
        output: Noise-free sum on the held-out rows.
        fresh: As many rows as there are training rows, from the same distribution, that no network saw.
    """

    inputs: Array
    targets: Array
    held_out: Array
    singles: Array
    pairs: dict[Pair, Array]
    output: Array
    fresh: Array

    @cached_property
    def baseline(self) -> Array:
        return self.inputs.mean(0)


def local_effects(case: Case, held_out: Array) -> Array:
    """What accumulated local effects are of the true functions, centred: with correlated features they take in a part
    of the interactions, the integral of the mean slope among rows where the feature has that value.
    """
    family = FAMILIES[case.family]
    rows = correlated_uniform(200_000, case.correlation, np.random.default_rng(0))
    edges = np.linspace(-2, 2, 201)
    effects = _of_one_feature(family, held_out)
    for (i, j), f in family.pairs:
        for feature, slope in (
            (i, (f(rows[:, i] + 1e-4, rows[:, j]) - f(rows[:, i] - 1e-4, rows[:, j])) / 2e-4),
            (j, (f(rows[:, i], rows[:, j] + 1e-4) - f(rows[:, i], rows[:, j] - 1e-4)) / 2e-4),
        ):
            place = np.clip(np.digitize(rows[:, feature], edges) - 1, 0, len(edges) - 2)
            mean = np.bincount(place, slope, len(edges) - 1) / np.maximum(
                np.bincount(place, minlength=200), 1
            )
            accumulated = np.concatenate([[0.0], np.cumsum(mean * np.diff(edges))])
            effects[:, feature] += np.interp(held_out[:, feature], edges, accumulated)
    return np.asarray(effects - effects.mean(0))


def shapley_values(case: Case, held_out: Array) -> Array:
    """What Shapley values are of the true functions, features taken apart: half of every pair to either side."""
    family = FAMILIES[case.family]
    values = _of_one_feature(family, held_out)
    for (i, j), f in family.pairs:
        half = f(held_out[:, i], held_out[:, j]) / 2
        values[:, i] += half
        values[:, j] += half
    return np.asarray(values - values.mean(0))


def _of_one_feature(family: Family, rows: Array) -> Array:
    return np.stack(
        [np.zeros(len(rows)) if f is None else f(rows[:, k]) for k, f in enumerate(family.singles)],
        axis=1,
    )


def grid(*, seeds: tuple[int, ...], paper_seeds: tuple[int, ...] = (0, 1, 2)) -> list[Case]:
    """Every place: the paper's set first, then small to large, so that a partial run says the most."""
    first, *later = [
        [
            Case("paper", 1000, rho, activation, seed)
            for rho, activation in itertools.product((0.0, 0.9), ACTIVATIONS)
        ]
        for seed in paper_seeds
    ]
    families = [name for name in FAMILIES if name != "paper"]
    rest = [
        Case(family, size, rho, activation, seed)
        for seed, size, family, rho, activation in itertools.product(
            seeds, SIZES, families, CORRELATIONS, ACTIVATIONS
        )
    ]
    return [*first, *rest, *itertools.chain(*later)]


def quick_grid() -> list[Case]:
    """A few places that show the most in about two minutes."""
    return [
        Case("paper", 1000, 0.0, "ReLU", 0),
        Case("paper", 1000, 0.9, "ReLU", 0),
        Case("smooth", 200, 0.5, "SiLU", 0),
        Case("kinked", 200, 0.9, "ReLU", 0),
        Case("interactions", 1000, 0.5, "ReLU", 0),
    ]


def correlated_uniform(rows: int, correlation: float, random: np.random.Generator) -> Array:
    """Uniform on [-2, 2] each, tied together by a Gaussian copula with one correlation throughout."""
    covariance = (1 - correlation) * np.eye(FEATURES) + correlation
    normal = random.standard_normal((rows, FEATURES)) @ np.linalg.cholesky(covariance).T
    return np.asarray(4 * norm.cdf(normal) - 2)


def sample(case: Case) -> Sample:
    """The rows of one place in the grid; the same case gives the same rows."""
    family = FAMILIES[case.family]
    tag = zlib.crc32(f"{case.family}-{case.size}-{case.correlation}".encode())
    random = np.random.default_rng([case.seed, tag])
    inputs = correlated_uniform(case.training + HELD_OUT, case.correlation, random)
    singles = _of_one_feature(family, inputs)
    pairs = {(i, j): f(inputs[:, i], inputs[:, j]) for (i, j), f in family.pairs}
    output = singles.sum(1) + sum(pairs.values(), np.zeros(len(inputs)))
    targets = output + NOISE * random.standard_normal(len(inputs))
    fresh = correlated_uniform(case.training, case.correlation, random)
    train, test = slice(0, case.training), slice(case.training, None)
    return Sample(
        inputs=inputs[train],
        targets=targets[train],
        held_out=inputs[test],
        singles=singles[test] - singles[test].mean(0),
        pairs={pair: values[test] - values[test].mean() for pair, values in pairs.items()},
        output=output[test],
        fresh=fresh,
    )
