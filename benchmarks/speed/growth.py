"""How the time of a calibration grows with rows, features, width and outputs, as fitted exponents.

One of the four is made larger while the others stay, and the slope of log time over log size is fitted by least
squares, once a round. Networks have one hidden layer and random weights; what they compute does not change the time,
but for the directions that each feature uses of the representation, on which all terms together depend.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.networks import feed_forward
from benchmarks.report import Column, Report, Spread, Table, options, progress, publish, seconds
from benchmarks.speed.ratios import Ratio, seconds_of
from nobsp import NObSP

SEED, BATCH = 0, 4096
START = {"rows": 8192, "features": 8, "width": 64, "outputs": 2}
# Past the 16,384 rows that bases are found on, which take the same time however many follow.
SIZES = {
    "rows": (32_768, 65_536, 131_072, 262_144),
    "features": (8, 16, 32, 64),
    "width": (64, 128, 256),
    "outputs": (2, 8, 32, 128),
}
QUICK_SIZES = {"rows": (32_768, 65_536), "features": (8, 16), "width": (32, 64), "outputs": (2, 16)}
# What the largest term of the cost grows with; none where several have their say at these sizes.
TARGETS = {
    ("terms", "rows"): 1.05,
    ("terms", "outputs"): 1.0,
    ("complement", "rows"): 1.05,
    ("complement", "features"): 1.1,
    ("complement", "outputs"): 1.0,
}


@dataclass(frozen=True)
class Growth:
    """Seconds by size, one list a round."""

    reference: str
    axis: str
    sizes: tuple[int, ...]
    rounds: list[list[float]]

    @property
    def exponents(self) -> tuple[float, ...]:
        return tuple(exponent(self.sizes, times) for times in self.rounds)

    @property
    def medians(self) -> list[float]:
        return [statistics.median(column) for column in zip(*self.rounds, strict=True)]


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Slope of log time over log size.

    Example:
        >>> round(exponent([1, 2, 4], [3.0, 12.0, 48.0]), 6)
        2.0
    """
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    return statistics.linear_regression(x, y).slope


def calibration_seconds(reference: str, shape: Mapping[str, int]) -> float:
    generator = torch.Generator().manual_seed(SEED)
    X = torch.randn(shape["rows"], shape["features"], generator=generator)
    network = feed_forward(shape["features"], (shape["width"],), shape["outputs"], seed=SEED)
    explainer = NObSP(network, reference=reference, interactions=0, ridge=1e-4, batch_size=BATCH)
    return seconds(lambda: explainer.fit(X))


def measure(sizes: Mapping[str, tuple[int, ...]], *, repeats: int) -> list[Growth]:
    found = [
        Growth(reference, axis, sizes[axis], [])
        for reference in ("terms", "complement")
        for axis in sizes
    ]
    for growth in found:
        calibration_seconds(growth.reference, START)  # warm-up
    for turn in range(repeats):
        progress(f"growth: round {turn + 1} of {repeats}")
        for growth in found:
            shapes = [{**START, growth.axis: size} for size in growth.sizes]
            growth.rounds.append([calibration_seconds(growth.reference, shape) for shape in shapes])
    return found


def ratios(*, quick: bool) -> list[Ratio]:
    """For the table of all speeds."""
    found = []
    for growth in measure(QUICK_SIZES if quick else SIZES, repeats=2 if quick else 3):
        first, last = growth.sizes[0], growth.sizes[-1]
        target = TARGETS.get((growth.reference, growth.axis))
        what = f'time with {growth.axis}, {first:,} to {last:,}, reference="{growth.reference}"'
        times = f"{seconds_of([growth.medians[0]])} to {seconds_of([growth.medians[-1]])}"
        found.append(
            Ratio(what, times, f"{growth.axis} to the power", growth.exponents, target, least=False)
        )
    return found


def main() -> None:
    chosen = options((__doc__ or "").splitlines()[0], threads=True).parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    grown = measure(QUICK_SIZES if chosen.quick else SIZES, repeats=2 if chosen.quick else 3)
    rows = tuple(
        (
            f"{growth.reference}, {growth.axis}",
            ", ".join(f"{size:,}" for size in growth.sizes),
            ", ".join(f"{time:.2f}" for time in growth.medians),
            Spread(growth.exponents),
        )
        for growth in grown
    )
    by_name = {
        (growth.reference, growth.axis): statistics.median(growth.exponents) for growth in grown
    }
    report = Report(
        name="speed-growth",
        title="How the time of a calibration grows",
        tables=(
            Table(
                "Time to the power of each size",
                (
                    Column("reference, and what grows"),
                    Column("sizes"),
                    Column("seconds"),
                    Column("exponent", ".2f"),
                ),
                rows,
                f"What does not grow stays at {START}. Exponents are means over rounds.",
            ),
        ),
        findings=(
            f"Time grows as rows to the power {by_name['terms', 'rows']:.2f} with all terms at once, "
            f"{by_name['complement', 'rows']:.2f} as published.",
            f"As published it grows as features to the power {by_name['complement', 'features']:.2f}; with all terms "
            f"at once, {by_name['terms', 'features']:.2f}.",
        ),
        seeds=(SEED,),
        settings={**START, "hidden layers": 1},
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
