"""One process against two that calibrate together under `torch.distributed`, each with one thread.

Two processes are started and meet over gloo. In every round the first calibrates alone on all rows while the second
waits, and then both together, each on half of them: Algorithm 1, which adds up all rows, where fitting all terms at
once takes a sample of them. Solving and settling the plan are in both times, as they are done once. Merging is one
reduction of the sums.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.networks import feed_forward
from benchmarks.report import Column, Report, Table, options, progress, publish, seconds
from benchmarks.speed.ratios import Ratio, raced
from nobsp import Local, NObSP

SEED, SIZE, FEATURES, HIDDEN = 0, 2, 20, (128, 64)
ROWS, QUICK_ROWS = 200_000, 20_000


def rank(number: int, meeting: str, rows: int, repeats: int) -> None:
    """What one of the processes does; the first prints both ways' seconds, and how far the results are apart."""
    torch.set_num_threads(1)
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=SIZE)
    X = torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(SEED))
    share = X[number * rows // SIZE : (number + 1) * rows // SIZE]
    network = feed_forward(FEATURES, HIDDEN, 1, seed=SEED)
    explainer = NObSP.as_published(network)
    times: dict[str, list[float]] = {"alone": [], "together": []}
    for turn in range(repeats + 1):
        dist.barrier()
        alone = seconds(lambda: explainer.fit(X, engine=Local())) if number == 0 else 0.0
        curve = explainer.function("x0")([1.0, -1.0])[0] if number == 0 else 0.0
        dist.barrier()
        together = seconds(lambda: explainer.fit(share))
        if turn:  # the first round warms up
            times["alone"].append(alone)
            times["together"].append(together)
    off = abs(float(explainer.function("x0")([1.0, -1.0])[0]) - float(curve))
    if number == 0:
        print(json.dumps({**times, "difference": off}))
    dist.destroy_process_group()


def measure(rows: int, *, repeats: int) -> dict[str, list[float]]:
    progress(f"processes: {SIZE}, {rows:,} rows")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.speed.processes",
            "--meeting",
            f"{folder}/meeting",
        ]
        command += ["--rows", str(rows), "--repeats", str(repeats)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        home = Path(__file__).parents[2]
        others = [
            subprocess.Popen([*command, "--rank", str(n)], env=environment, cwd=home)
            for n in range(1, SIZE)
        ]
        try:
            first = subprocess.run(
                [*command, "--rank", "0"],
                env=environment,
                cwd=home,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            for other in others:
                other.wait(timeout=60)
        finally:
            for other in others:
                other.kill()
                other.wait()
    found: dict[str, list[float]] = json.loads(first.stdout)
    return found


def ratios(*, quick: bool) -> list[Ratio]:
    """For the table of all speeds."""
    rows = QUICK_ROWS if quick else ROWS
    times = measure(rows, repeats=1 if quick else 5)
    what = f"calibrate {rows:,} rows × {FEATURES} features as published in {SIZE} processes, one thread each"
    return [raced(what, times["together"], "one process, one thread", times["alone"], target=1.7)]


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--rank", type=int, help="be one of the processes")
    parser.add_argument("--meeting", help="the file over which they meet")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--repeats", type=int)
    chosen = parser.parse_args()
    if chosen.rank is not None:
        rank(chosen.rank, chosen.meeting, chosen.rows, chosen.repeats)
        return
    rows = QUICK_ROWS if chosen.quick else ROWS
    times = measure(rows, repeats=2 if chosen.quick else 7)
    ratio = raced("", times["together"], "", times["alone"]).ratio
    lines = tuple(
        (name, min(times[name]), sorted(times[name])[len(times[name]) // 2])
        for name in ("alone", "together")
    )
    report = Report(
        name="speed-processes",
        title=f"One process against {SIZE}: {rows:,} rows × {FEATURES} features",
        tables=(
            Table(
                "Seconds of a calibration",
                (Column("way"), Column("fastest", ".2f"), Column("median", ".2f")),
                lines,
            ),
        ),
        findings=(
            f"Two processes are {ratio:.2f} times as fast as one; what they find differs by {times['difference']:.0e}.",
        ),
        seeds=(SEED,),
        settings={"rows": rows, "features": FEATURES, "hidden": HIDDEN, "threads a process": 1},
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
