"""Calibrating a table explainer, against the obvious loop and against the work that cannot be avoided.

The obvious loop is Algorithm 1 as one would type it in: feature by feature and class by class, both matrices
inverted each time. Every feature costs the same, so it is timed on some and scaled to all. Two forms are timed:

    as printed      `y - Z @ A @ y`, which Python takes from the left: an N×N matrix on the way
    with brackets   `y - Z @ (A @ y)`, which somebody who saw that would write

Then:

    fit             `NObSP.as_published(network).fit(X)`
    vectorised      Algorithm 1 as somebody would write it who knows linear algebra: feature by feature, all classes at
                    once, Gram matrices and solves by Cholesky, double precision
    forward passes  the network run on the same isolated and reference inputs, and nothing else
    floor           those forward passes, and for every feature the one symmetric product that has the full
                    width: the reference's
    all at once     `NObSP(network, interactions=0).fit(X)`, the default without pairs: other work for the same
                    question, and the same floor to compare it with

Both networks see the same 4,000 rows of 10 numbers and 44 zero-one columns, the shape of Covertype.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.networks import feed_forward
from benchmarks.report import Column, Report, Table, options, progress, publish, seconds
from benchmarks.speed.ratios import Ratio, raced
from nobsp import NObSP
from nobsp.network.columns import isolated, reference

ROWS, NUMBERS, FLAGS, OUTPUTS, RIDGE, SEED = 4000, 10, 44, 7, 1e-4, 0
HIDDEN = (20, 200)


def table() -> Tensor:
    """Rows of numbers and flags in single precision."""
    generator = torch.Generator().manual_seed(SEED)
    numbers = torch.randn(ROWS, NUMBERS, generator=generator)
    return torch.cat([numbers, (torch.rand(ROWS, FLAGS, generator=generator) < 0.1).float()], dim=1)


@torch.no_grad()
def obvious_loop(
    network: nn.Sequential, X: Tensor, features: range, *, brackets: bool
) -> list[Tensor]:
    """Algorithm 1 for some features, one class after another, as one would type it in."""
    body, eye = network[:-1], RIDGE * torch.eye(HIDDEN[-1], dtype=torch.float64)
    baseline = X.double().mean(0).float()
    outputs = network(X).double()
    outputs = outputs - outputs.mean(0)
    found = []
    for feature in features:
        target = body(isolated(X[:, [feature]], baseline, [feature])).double()
        others = body(reference(X, baseline, [feature])).double()
        target, others = target - target.mean(0), others - others.mean(0)
        columns = []
        for output in range(OUTPUTS):
            solver = torch.linalg.inv(others.T @ others + eye) @ others.T
            y = outputs[:, output]
            if brackets:
                y_left, target_left = y - others @ (solver @ y), target - others @ (solver @ target)
            else:
                y_left, target_left = y - others @ solver @ y, target - others @ solver @ target
            columns.append(
                torch.linalg.inv(target_left.T @ target_left + eye) @ (target_left.T @ y_left)
            )
        found.append(torch.stack(columns, dim=1))
    return found


@torch.no_grad()
def vectorised(network: nn.Sequential, X: Tensor) -> Tensor:
    """Algorithm 1 for all features, all classes at once, without inverses or N×N matrices."""
    body, ridge = network[:-1], RIDGE * torch.eye(HIDDEN[-1], dtype=torch.float64)
    baseline = X.double().mean(0).float()
    outputs = network(X).double()
    outputs = outputs - outputs.mean(0)
    found = []
    for feature in range(X.shape[1]):
        target = body(isolated(X[:, [feature]], baseline, [feature])).double()
        others = body(reference(X, baseline, [feature])).double()
        target, others = target - target.mean(0), others - others.mean(0)
        factor = torch.linalg.cholesky(others.T @ others + ridge)
        left = torch.cat([target, outputs], dim=1)
        left = left - others @ torch.cholesky_solve(others.T @ left, factor)
        target_left, y_left = left[:, : HIDDEN[-1]], left[:, HIDDEN[-1] :]
        factor = torch.linalg.cholesky(target_left.T @ target_left + ridge)
        found.append(torch.cholesky_solve(target_left.T @ y_left, factor))
    return torch.stack(found)


@torch.no_grad()
def forward_passes(network: nn.Sequential, X: Tensor) -> list[Tensor]:
    """The representations a calibration needs: distinct isolated inputs, and every reference input."""
    body, baseline = network[:-1], X.double().mean(0).float()
    for feature in range(X.shape[1]):
        values = torch.unique(X[:, feature])
        rows = baseline.expand(len(values), -1).clone()
        rows[:, feature] = values
        body(rows)
    return [body(reference(X, baseline, [feature])) for feature in range(X.shape[1])]


def products(representations: list[Tensor]) -> None:
    """The symmetric product of every reference."""
    out = torch.zeros(HIDDEN[-1], HIDDEN[-1], dtype=torch.float64)
    for representation in representations:
        rows = representation.double()
        out.addmm_(rows.T, rows)


@torch.no_grad()
def difference(
    network: nn.Sequential, X: Tensor, features: range, loop: list[Tensor], explainer: NObSP
) -> float:
    """Largest difference of the contributions on the calibration rows, as a share of the outputs' spread."""
    baseline = X.double().mean(0).float()
    values = explainer(X).values
    spread = network(X).double().std(0)
    worst = 0.0
    for feature, coefficients in zip(features, loop, strict=True):
        target = network[:-1](isolated(X[:, [feature]], baseline, [feature])).double()
        published = (target - target.mean(0)) @ coefficients
        found = torch.from_numpy(values[:, feature])
        worst = max(worst, float(((published - found).abs() / spread).max()))
    return worst


@dataclass(frozen=True)
class Times:
    """Seconds of every way in each round, the loops scaled to all features, and how far the results are apart."""

    printed: list[float]
    loop: list[float]
    vectorised: list[float]
    fit: list[float]
    terms: list[float]
    forward: list[float]
    products: list[float]
    features: int
    scaled_from: int
    difference: float

    @property
    def floor(self) -> list[float]:
        return [a + b for a, b in zip(self.forward, self.products, strict=True)]

    def ratios(self) -> list[Ratio]:
        what = f"calibrate {ROWS:,} rows × {self.features} columns, width {HIDDEN[-1]}, {OUTPUTS} outputs, as published"
        printed = "the obvious loop, scaled from 1 feature"
        brackets = f"the loop with brackets set well, scaled from {self.scaled_from}"
        return [
            raced(what, self.fit, printed, self.printed, target=40),
            raced(what, self.fit, brackets, self.loop),
            raced(
                what,
                self.fit,
                "bare forward passes and products",
                self.floor,
                cost=True,
                target=1.3,
            ),
            raced(what, self.fit, "a plainly vectorised Algorithm 1", self.vectorised, target=1.3),
            raced(
                what.replace("as published", "all features at once"),
                self.terms,
                "bare forward passes and products of Algorithm 1",
                self.floor,
                cost=True,
                target=1.3,
            ),
        ]


def measure(*, repeats: int, timed_features: range) -> Times:
    X = table()
    network = feed_forward(X.shape[1], HIDDEN, OUTPUTS, seed=SEED)
    progress("calibration: warming up")
    explainer = NObSP.as_published(network).fit(X)
    coefficients = obvious_loop(network, X, timed_features, brackets=True)
    representations = forward_passes(network, X)
    count = X.shape[1]
    vectorised(network, X)
    NObSP(network, interactions=0).fit(X)
    off = difference(network, X, timed_features, coefficients, explainer)
    times = Times([], [], [], [], [], [], [], count, len(timed_features), off)
    scale = count / len(timed_features)
    for turn in range(repeats):
        progress(f"calibration: round {turn + 1} of {repeats}")
        times.fit.append(seconds(lambda: NObSP.as_published(network).fit(X)))
        times.vectorised.append(seconds(lambda: vectorised(network, X)))
        times.terms.append(seconds(lambda: NObSP(network, interactions=0).fit(X)))
        times.forward.append(seconds(lambda: forward_passes(network, X)))
        times.products.append(seconds(lambda: products(representations)))
        times.loop.append(
            scale * seconds(lambda: obvious_loop(network, X, timed_features, brackets=True))
        )
        times.printed.append(
            count * seconds(lambda: obvious_loop(network, X, timed_features[:1], brackets=False))
        )
    return times


def ratios(*, quick: bool) -> list[Ratio]:
    """For the table of all speeds."""
    return measure(
        repeats=2 if quick else 5, timed_features=range(8, 10) if quick else range(7, 13)
    ).ratios()


def main() -> None:
    chosen = options(__doc__.splitlines()[0], threads=True).parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    repeats, timed_features = (2, range(8, 10)) if chosen.quick else (5, range(7, 13))
    times = measure(repeats=repeats, timed_features=timed_features)
    as_printed, brackets, to_floor, plainly, at_once = (ratio.ratio for ratio in times.ratios())
    rows = (
        ("loop as printed (scaled)", statistics.median(times.printed), as_printed),
        ("loop with brackets (scaled)", statistics.median(times.loop), brackets),
        ("plainly vectorised", statistics.median(times.vectorised), plainly),
        ("fit, all included", statistics.median(times.fit), 1.0),
        ("fit, all features at once", statistics.median(times.terms), at_once / to_floor),
        ("forward passes alone", statistics.median(times.forward), None),
        ("symmetric products alone", statistics.median(times.products), None),
        ("floor: both", statistics.median(times.floor), 1 / to_floor),
    )
    report = Report(
        name="speed-calibration",
        title="Calibrating 4,000 rows × 54 columns, width 200, 7 outputs, complement reference",
        tables=(
            Table(
                "Seconds, and times the fit",
                (Column("way"), Column("seconds", ".3f"), Column("relative to fit", ".2f")),
                rows,
                f"The loops are timed on 1 and on {len(timed_features)} of {times.features} features and scaled.",
            ),
        ),
        findings=(
            f"The fit is {as_printed:.0f} times as fast as the obvious loop as printed (target: 40), and "
            f"{brackets:.0f} times as fast as the loop with its brackets set well.",
            f"It takes {to_floor:.1f} times the floor of bare forward passes and one product a feature (target: 1.3), "
            f"and is {plainly:.1f} times as fast as a plainly vectorised Algorithm 1 (target: 1.3).",
            f"All features at once, the default without pairs, take {at_once:.1f} times that floor (target: 1.3).",
            f"Contributions differ by at most {times.difference:.1e} of the outputs' spread.",
        ),
        seeds=(SEED,),
        settings={
            "rows": ROWS,
            "numbers": NUMBERS,
            "flags": FLAGS,
            "hidden": HIDDEN,
            "repeats": repeats,
        },
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
