"""Gathering moments, against the bare matrix product; and that memory does not grow with the rows.

`Moments.update` checks its rows, takes them to float64, shifts them and adds up their products. The bare product
is `addmm_` of XᵀX in float64 on rows that are already there and already converted: all of XᵀX, as a caller without
Moments would write it. Moments take only the panels on and above the diagonal, about half of that; the same half
as bare calls is timed as well, so that what the rest of `update` costs is not hidden behind what symmetry saves.

Peak memory is that of a fresh process per number of rows, rows being made in batches and forgotten.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.report import Column, Race, Report, Table, options, progress, publish, race
from benchmarks.speed.ratios import Ratio, raced
from nobsp.projection import Moments

BATCH, SEED, PANEL = 4096, 0, 64
WIDTHS = (130, 407, 1480, 3000)
QUICK_WIDTHS = (130, 407)
MEMORY_WIDTH = 64
MEMORY_ROWS = (1_000_000, 10_000_000)
QUICK_MEMORY_ROWS = (100_000, 1_000_000)


# ---------------------------------------------------------------------- speed


@dataclass(frozen=True)
class Speed:
    """Updates raced against the whole bare product and against half of it."""

    width: int
    dtype: str
    full: Race
    half: Race

    @property
    def rows_per_second(self) -> float:
        return BATCH / self.full.medians[0]


def measure(width: int, dtype: torch.dtype, *, repeats: int) -> Speed:
    name = str(dtype).removeprefix("torch.")
    progress(f"{width} columns, {name} rows")
    generator = torch.Generator().manual_seed(SEED)
    batch = torch.randn(BATCH, width, generator=generator, dtype=torch.float64).to(dtype)
    converted = batch.to(torch.float64)
    moments = Moments({"rows": width}).update(batch)
    out = torch.zeros(width, width, dtype=torch.float64)

    def update() -> Moments:
        return moments.update(batch)

    def full() -> torch.Tensor:
        return out.addmm_(converted.T, converted)

    def half() -> None:
        for start in range(0, width, PANEL):
            stop = start + PANEL
            out[start:stop, start:].addmm_(converted[:, start:stop].T, converted[:, start:])

    return Speed(
        width, name, race(update, full, repeats=repeats), race(update, half, repeats=repeats)
    )


def speed_table(speeds: list[Speed]) -> Table:
    return Table(
        f"One update with a batch of {BATCH} rows against the bare matrix product",
        (
            Column("columns"),
            Column("rows given in"),
            Column("update, ms", ".2f"),
            Column("bare product, ms", ".2f"),
            Column("ratio", ".2f"),
            Column("bare half, ms", ".2f"),
            Column("ratio to half", ".2f"),
            Column("rows/s", ",.0f"),
        ),
        tuple(
            (
                str(s.width),
                s.dtype,
                1e3 * s.full.medians[0],
                1e3 * s.full.medians[1],
                s.full.ratio,
                1e3 * s.half.medians[1],
                s.half.ratio,
                s.rows_per_second,
            )
            for s in speeds
        ),
        "Ratios are medians over pairs of runs taken in turn. 'bare half' is the part on and above the diagonal.",
    )


# ---------------------------------------------------------------------- memory


@dataclass(frozen=True)
class Memory:
    """Peak memory of a process that saw this many rows, in bytes: before the first row, and in all."""

    rows: int
    before: int
    peak: int
    seconds: float


def memory(rows: int) -> Memory:
    """Runs a fresh process over `rows` rows and asks for its peak memory."""
    progress(f"{rows:,} rows in a fresh process")
    start = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.speed.moments", "--stream", str(rows)]
    command += ["--threads", str(torch.get_num_threads())]
    answer = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    ).stdout
    before, peak = map(int, answer.split())
    return Memory(rows, before, peak, time.perf_counter() - start)


def stream(rows: int) -> tuple[int, int]:
    """Peak memory before and after updating moments with `rows` rows made on the fly."""
    generator = torch.Generator().manual_seed(SEED)
    moments = Moments({"rows": MEMORY_WIDTH})
    before = peak_memory()
    for start in range(0, rows, BATCH):
        count = min(BATCH, rows - start)
        moments.update(torch.randn(count, MEMORY_WIDTH, generator=generator))
    if moments.rows != rows:
        raise RuntimeError(f"{rows} rows were made, but moments hold {moments.rows}.")
    return before, peak_memory()


def peak_memory() -> int:
    """Most memory this process has held so far, in bytes.

    On Linux `getrusage` also counts what the parent held when it started this process; VmHWM does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_table(memories: list[Memory]) -> Table:
    return Table(
        f"Peak memory of a process that sees rows of {MEMORY_WIDTH} columns in batches of {BATCH}",
        (
            Column("rows"),
            Column("before the first row, MiB", ".1f"),
            Column("peak, MiB", ".1f"),
            Column("added by the rows, MiB", ".1f"),
            Column("seconds", ".1f"),
        ),
        tuple(
            (
                f"{m.rows:,}",
                m.before / 2**20,
                m.peak / 2**20,
                (m.peak - m.before) / 2**20,
                m.seconds,
            )
            for m in memories
        ),
        "Seconds include starting the process and drawing the rows.",
    )


def ratios(*, quick: bool) -> list[Ratio]:
    """For the table of all speeds."""
    found = []
    for width in QUICK_WIDTHS if quick else WIDTHS[:-1]:
        speed = measure(width, torch.float64, repeats=5 if quick else max(9, 4000 // width))
        what = f"moments of a batch of {BATCH:,} rows × {width:,} columns"
        found.append(
            raced(
                what,
                speed.full.first,
                "the bare matrix product",
                speed.full.second,
                target=1.3,
                cost=True,
            )
        )
    return found


def main() -> None:
    parser = options(
        "Time moments against bare matrix products, and measure their memory.", threads=True
    )
    parser.add_argument(
        "--stream", type=int, metavar="ROWS", help="only print peak memory for this many rows"
    )
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    if chosen.stream:
        print(*stream(chosen.stream))
        return
    widths = QUICK_WIDTHS if chosen.quick else WIDTHS
    # Short runs are the noisy ones, so they are repeated more often.
    repeats = {width: 5 if chosen.quick else max(5, 8000 // width) for width in widths}
    speeds = [
        measure(w, d, repeats=repeats[w]) for w in widths for d in (torch.float64, torch.float32)
    ]
    memories = [memory(rows) for rows in (QUICK_MEMORY_ROWS if chosen.quick else MEMORY_ROWS)]
    worst, best = (choose(speeds, key=lambda s: s.full.ratio) for choose in (max, min))
    slowest = max(s.half.ratio for s in speeds)
    growth = abs(memories[-1].peak / memories[0].peak - 1)
    report = Report(
        name="speed-moments",
        title="Streaming moments against the bare matrix product, and their memory",
        tables=(speed_table(speeds), memory_table(memories)),
        findings=(
            f"An update takes at most {worst.full.ratio:.2f} times the bare product of the same rows (1.3 was aimed "
            f"at), with {worst.width} columns of {worst.dtype}; with {best.width} of {best.dtype} it takes "
            f"{best.full.ratio:.2f} times.",
            f"Against the half of the product that symmetry leaves to be done it takes at most {slowest:.2f} times.",
            f"From {memories[0].rows:,} to {memories[-1].rows:,} rows peak memory changes by {100 * growth:.1f}%.",
        ),
        seeds=(SEED,),
        settings={"batch": BATCH, "precision": "float64"},
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
