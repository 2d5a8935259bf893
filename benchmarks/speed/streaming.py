"""Memory and time of a calibration as rows grow, and of one with a thousand features.

Rows are made on the fly and forgotten; every calibration runs in a process of its own, whose peak of resident memory is
taken from the operating system. Where the allocator happens to put things moves that peak by some percent from run to
run, so each is run several times, in turn, and the medians are compared. The many features are fitted as published,
where each has sums of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from math import log
from typing import Any

import torch
from torch import Tensor

from benchmarks.networks import feed_forward
from benchmarks.report import Column, Report, Table, options, progress, publish
from benchmarks.speed.moments import peak_memory
from benchmarks.speed.ratios import Ratio
from nobsp import Local, NObSP

SEED, BATCH, COLUMNS, HIDDEN = 0, 8192, 8, (32, 32)
ROWS, QUICK_ROWS = (10**5, 10**6, 10**7), (10**5, 3 * 10**5)
REPEATS = 5
FEATURES, WIDTH, FEATURE_ROWS, LIMIT = 1000, 256, 1024, "4GiB"


def rows_on_the_fly(count: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    for start in range(0, count, BATCH):
        yield torch.randn(min(BATCH, count - start), COLUMNS, generator=generator)


def stream(count: int) -> None:
    network = feed_forward(COLUMNS, HIDDEN, 1, seed=SEED)
    NObSP(network, baseline="zero", interactions=0).fit(rows_on_the_fly(count))


def many_features(limit: str) -> None:
    network = feed_forward(FEATURES, (WIDTH,), 1, seed=SEED)
    X = torch.randn(FEATURE_ROWS, FEATURES, generator=torch.Generator().manual_seed(SEED))
    NObSP(network, reference="complement", interactions=0).fit(X, engine=Local(memory=limit))


def measured(case: str, argument: str, threads: int | None) -> dict[str, float]:
    """Seconds and peak megabytes of one calibration in a process of its own."""
    progress(f"{case} {argument}")
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.streaming",
        "--case",
        case,
        "--argument",
        argument,
    ]
    command += [] if threads is None else ["--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def run_case(chosen: argparse.Namespace) -> None:
    stream(2 * BATCH)  # libraries are loaded and buffers are made before the clock starts
    begun = time.perf_counter()
    if chosen.case == "stream":
        stream(int(chosen.argument))
    else:
        many_features(chosen.argument)
    taken = time.perf_counter() - begun
    print(json.dumps({"seconds": taken, "peak": peak_memory() / 1e6}))


def ratios(*, quick: bool) -> list[Ratio]:
    """For the table of all speeds: the most rows against the fewest, and a thousand features."""
    few, many = (QUICK_ROWS if quick else ROWS)[0], (QUICK_ROWS if quick else ROWS)[-1]
    threads = torch.get_num_threads()
    runs = [
        [measured("stream", str(n), threads) for n in (few, many)] for _ in range(1 if quick else 2)
    ]
    peaks = [[run["peak"] for run in pair] for pair in runs]
    shown = [f"{statistics.median(column):,.0f} MB" for column in zip(*peaks, strict=True)]
    what = f"peak memory of calibrating on a stream of {many:,} rows"
    longer = tuple(log(b["seconds"] / a["seconds"]) / log(many / few) for a, b in runs)
    found = [
        Ratio(
            what,
            shown[1],
            f"{few:,} rows: {shown[0]}",
            tuple(b / a for a, b in peaks),
            1.05,
            least=False,
        ),
        Ratio(
            f"time of calibrating on a stream, {few:,} to {many:,} rows",
            f"{statistics.median(1e6 * b['seconds'] / many for _, b in runs):.2f} µs a row",
            "rows to the power",
            longer,
            1.05,
            least=False,
        ),
    ]
    if not quick:
        peak = measured("features", LIMIT, threads)["peak"]
        what = (
            f"peak memory of {FEATURES:,} features of width {WIDTH}, as published, memory={LIMIT}"
        )
        share = peak * 1e6 / 2**32
        found.append(
            Ratio(
                what,
                f"{peak:,.0f} MB",
                f"the {LIMIT} allowed, Python included",
                (share,),
                1.0,
                least=False,
            )
        )
    return found


def report(chosen: argparse.Namespace) -> Report:
    counts = QUICK_ROWS if chosen.quick else ROWS
    runs = [
        {n: measured("stream", str(n), chosen.threads) for n in counts}
        for _ in range(1 if chosen.quick else REPEATS)
    ]
    streams = {
        n: {key: statistics.median(run[n][key] for run in runs) for key in ("seconds", "peak")}
        for n in counts
    }
    peaks = {n: sorted(run[n]["peak"] for run in runs) for n in counts}
    few, many = streams[counts[0]], streams[counts[-1]]
    growth = log(many["seconds"] / few["seconds"]) / log(counts[-1] / counts[0])
    tables = [
        Table(
            f"Rows of {COLUMNS} numbers, network {COLUMNS}-{'-'.join(map(str, HIDDEN))}-1, one pass",
            (
                Column("rows", ",d"),
                Column("seconds", ".1f"),
                Column("µs a row", ".2f"),
                Column("peak MB", ".0f"),
                Column("lowest", ".0f"),
                Column("highest", ".0f"),
            ),
            tuple(
                (n, s["seconds"], 1e6 * s["seconds"] / n, s["peak"], peaks[n][0], peaks[n][-1])
                for n, s in streams.items()
            ),
            f"Medians of {len(runs)} runs, with the lowest and highest peak among them.",
        )
    ]
    findings = [
        f"Peak memory at {counts[-1]:,} rows is {many['peak'] / few['peak']:.3f} times that at {counts[0]:,}.",
        f"Time grows as rows to the power {growth:.2f}.",
    ]
    if not chosen.quick:
        wide = {limit: measured("features", limit, chosen.threads) for limit in (LIMIT, "1GiB")}
        lines: tuple[tuple[Any, ...], ...] = tuple(
            (limit, w["seconds"], w["peak"]) for limit, w in wide.items()
        )
        tables.append(
            Table(
                f"{FEATURES} features of width {WIDTH}, each along its complement, {FEATURE_ROWS} rows",
                (Column("memory"), Column("seconds", ".1f"), Column("peak MB", ".0f")),
                lines,
                "The peak is the process's: Python, torch, the table and the network are in it.",
            )
        )
        findings.append(
            f"{FEATURES} features of width {WIDTH} take {wide[LIMIT]['peak']:,.0f} MB under memory={LIMIT}."
        )
    return Report(
        name="speed-streaming",
        title="Calibration of a stream: memory and time",
        tables=tuple(tables),
        findings=tuple(findings),
        seeds=(SEED,),
        settings={"batch": BATCH, "columns": COLUMNS, "hidden": HIDDEN},
    )


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0], threads=True)
    parser.add_argument("--case", choices=("stream", "features"), help=argparse.SUPPRESS)
    parser.add_argument("--argument", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    if chosen.case:
        run_case(chosen)
    else:
        publish(report(chosen), chosen)


if __name__ == "__main__":
    main()
