"""Do more threads pay, and what do two calibrations side by side cost each other?

One calibration (3,000 rows, 8 features, 128-64 SiLU, ten pairs) with one and with two threads, each in a process of its
own, in turn; and two such processes side by side, with one thread each and with two each, as happens when somebody
starts two jobs on two cores and sets nothing. Processes warm up with one calibration, wait for each other, and time the
next ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Column, Report, Table, options, progress, publish
from benchmarks.speed.ratios import Ratio, raced

SEED, ROWS, FEATURES, PAIRS = 0, 3000, 8, 10
TOGETHER, ALONE, CROWDED, PARTED = (
    "two threads",
    "one thread",
    "two processes of two",
    "two processes of one",
)


def child(threads: int, repeats: int) -> None:
    """Calibrates after a line on stdin; prints the seconds of all repeats."""
    import torch

    from benchmarks.networks import feed_forward
    from nobsp import NObSP

    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(SEED)
    X = torch.randn(ROWS, FEATURES, generator=generator)
    model = feed_forward(FEATURES, (128, 64), 1, seed=SEED, activation=torch.nn.SiLU).eval()
    NObSP(model, interactions=PAIRS).fit(X)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    for _ in range(repeats):
        NObSP(model, interactions=PAIRS).fit(X)
    print(json.dumps((time.perf_counter() - start) / repeats), flush=True)


def run(threads: int, processes: int, repeats: int) -> float:
    """Seconds of a calibration, of the slower process where there are two."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.threads",
        "--child",
        str(threads),
        "--repeats",
        str(repeats),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    running = [
        subprocess.Popen(
            command,
            env=environment,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "ready":
            if process.poll() is not None:
                raise RuntimeError("a process that was to calibrate has ended.")
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return max(float(json.loads(process.communicate()[0].splitlines()[-1])) for process in running)


def measure(*, rounds: int, repeats: int) -> dict[str, list[float]]:
    ways = {ALONE: (1, 1), TOGETHER: (2, 1), PARTED: (1, 2), CROWDED: (2, 2)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        progress(f"threads: round {turn + 1} of {rounds}")
        for name, (threads, processes) in ways.items():
            times[name].append(run(threads, processes, repeats))
    return times


def ratios(*, quick: bool) -> list[Ratio]:
    """For the table of all speeds."""
    times = measure(rounds=2 if quick else 5, repeats=1 if quick else 3)
    what = f"calibrate {ROWS:,} rows × {FEATURES} features, {PAIRS} pairs"
    return [
        raced(f"{what}, {TOGETHER}", times[TOGETHER], ALONE, times[ALONE], target=1.05, cost=True),
        raced(f"{what}, {CROWDED}", times[CROWDED], PARTED, times[PARTED], target=1.5, cost=True),
    ]


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen.child, chosen.repeats)
        return
    times = measure(rounds=2 if chosen.quick else 5, repeats=1 if chosen.quick else 3)
    alone = raced("", times[TOGETHER], "", times[ALONE], cost=True).ratio
    crowded = raced("", times[CROWDED], "", times[PARTED], cost=True).ratio
    publish(
        Report(
            name="speed-threads",
            title="Threads: alone, and two processes side by side",
            tables=(
                Table(
                    "Seconds of a calibration",
                    (Column("way"), Column("fastest", ".2f"), Column("median", ".2f")),
                    tuple(
                        (name, min(values), statistics.median(values))
                        for name, values in times.items()
                    ),
                ),
            ),
            findings=(
                f"Two threads take {alone:.2f} times as long as one (asked: no longer, up to 5% of noise).",
                f"Side by side, two threads each take {crowded:.2f} times as long as one each (asked: at most 1.5).",
            ),
            seeds=(SEED,),
            settings={"rows": ROWS, "features": FEATURES, "pairs": PAIRS, "hidden": (128, 64)},
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
