"""Algorithm 1 as published, beside the plain script that somebody who knows the paper would write.

The script takes feature by feature: one pass over the isolated inputs, one over the reference inputs, two solves by
Cholesky for all outputs at once. It is timed in single and in double precision, with one thread of torch and with two,
in turns with `NObSP.as_published(network).fit(X)`, on 4,000 rows × 54 columns, width 200, 7 outputs. Fit also checks
the rows, finds the head, counts levels and explains where it fits badly; bands and tables are made when asked for.

The machine may be busy: the fastest of all turns is compared, and the median stands beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.networks import feed_forward
from benchmarks.report import Column, Report, Table, options, progress, publish, seconds
from benchmarks.speed.calibration import HIDDEN, OUTPUTS, ROWS, SEED, table
from nobsp import NObSP

RIDGE = 1e-4
THREADS = (1, 2)


@torch.no_grad()
def plain_script(network: nn.Sequential, X: Tensor, dtype: torch.dtype) -> Tensor:
    """Coefficients of every feature, (features, width, outputs): Algorithm 1 in twenty lines."""
    body = network[:-1]
    baseline = X.mean(0)
    outputs = network(X).to(dtype)
    outputs = outputs - outputs.mean(0)
    ridge = RIDGE * torch.eye(HIDDEN[-1], dtype=dtype)

    coefficients = []
    for feature in range(X.shape[1]):
        isolated = baseline.repeat(len(X), 1)
        isolated[:, feature] = X[:, feature]
        reference = X.clone()
        reference[:, feature] = baseline[feature]
        target = body(isolated).to(dtype)
        others = body(reference).to(dtype)
        both_sides = torch.cat([target - target.mean(0), outputs], dim=1)
        others = others - others.mean(0)
        factor = torch.linalg.cholesky(others.T @ others + ridge)
        left = both_sides - others @ torch.cholesky_solve(others.T @ both_sides, factor)
        target_left, outputs_left = left.split([HIDDEN[-1], OUTPUTS], dim=1)
        factor = torch.linalg.cholesky(target_left.T @ target_left + ridge)
        coefficients.append(torch.cholesky_solve(target_left.T @ outputs_left, factor))
    return torch.stack(coefficients)


@dataclass(frozen=True)
class Timing:
    """Seconds of one way in every turn."""

    way: str
    threads: int
    seconds: list[float]

    @property
    def fastest(self) -> float:
        return min(self.seconds)


def measure(*, turns: int) -> list[Timing]:
    """Every way in turns, with each number of threads."""
    X = table()
    network = feed_forward(X.shape[1], HIDDEN, OUTPUTS, seed=SEED)
    ways: dict[str, Callable[[], object]] = {
        "as_published(network).fit(X)": lambda: NObSP.as_published(network).fit(X),
        "plain script, single precision": lambda: plain_script(network, X, torch.float32),
        "plain script, double precision": lambda: plain_script(network, X, torch.float64),
    }
    timings = []
    before = torch.get_num_threads()
    for threads in THREADS:
        torch.set_num_threads(threads)
        of_threads = [Timing(way, threads, []) for way in ways]
        for work in ways.values():
            work()
        for turn in range(turns):
            progress(f"{threads} threads: turn {turn + 1} of {turns}")
            for timing in of_threads:
                timing.seconds.append(seconds(ways[timing.way]))
        for timing in of_threads:
            progress(f"  {timing.way}: {timing.fastest:.3f} s at best")
        timings += of_threads
    torch.set_num_threads(before)
    return timings


def largest_difference() -> float:
    """Between contributions of the fit and of the script in double precision, as a share of the outputs' spread."""
    X = table()
    network = feed_forward(X.shape[1], HIDDEN, OUTPUTS, seed=SEED)
    values = torch.from_numpy(NObSP.as_published(network).fit(X)(X).values)
    coefficients = plain_script(network, X, torch.float64)
    with torch.no_grad():
        spread = network(X).double().std(0)
        worst = 0.0
        for feature, of_feature in enumerate(coefficients):
            isolated = X.mean(0).repeat(len(X), 1)
            isolated[:, feature] = X[:, feature]
            target = network[:-1](isolated).double()
            contributions = (target - target.mean(0)) @ of_feature
            worst = max(worst, float(((contributions - values[:, feature]).abs() / spread).max()))
    return worst


def main() -> None:
    chosen = options(__doc__.splitlines()[0]).parse_args()
    turns = 3 if chosen.quick else 9
    timings = measure(turns=turns)
    fit = {timing.threads: timing for timing in timings if "fit" in timing.way}
    rows = tuple(
        (
            timing.way,
            timing.threads,
            timing.fastest,
            statistics.median(timing.seconds),
            timing.fastest / fit[timing.threads].fastest,
        )
        for timing in timings
    )
    findings = [
        f"With {threads} thread{'s' if threads > 1 else ''} the fit is "
        + " and ".join(
            f"{timing.fastest / fit[threads].fastest:.2f} times as fast as the {timing.way}"
            for timing in timings
            if timing.threads == threads and "script" in timing.way
        )
        + "."
        for threads in THREADS
    ]
    report = Report(
        name="speed-published",
        title=f"Algorithm 1 beside a plain script: {ROWS:,} rows × 54 columns, width {HIDDEN[-1]}, {OUTPUTS} outputs",
        tables=(
            Table(
                "Seconds",
                (
                    Column("way"),
                    Column("threads", "d"),
                    Column("fastest", ".3f"),
                    Column("median", ".3f"),
                    Column("fastest, relative to fit", ".2f"),
                ),
                rows,
                f"{turns} turns each, one after another.",
            ),
        ),
        findings=(
            *findings,
            f"Contributions differ by at most {largest_difference():.1e} of the outputs' spread (double precision).",
        ),
        seeds=(SEED,),
        settings={"rows": ROWS, "hidden": HIDDEN, "turns": turns, "ridge": RIDGE},
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
