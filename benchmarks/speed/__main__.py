"""Everything about speed in one table: each row a ratio, measured in one run with warm-up and repeats.

Every part runs in a process of its own, so that no part's memory or failure is another's. What a part found is kept
as soon as it is there, and the files are written anew after each: an interrupted run goes on with `--resume`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.kept import FOLDER, Kept, fingerprint, rooms
from benchmarks.report import Report, options, progress
from benchmarks.speed.ratios import Ratio, table

PARTS = (
    "calibration",
    "channels",
    "moments",
    "compiled",
    "growth",
    "processes",
    "threads",
    "cam",
    "streaming",
)
NOTE = (
    "Ratios are medians over repeats in which both sides run in turn, after a warm-up; one with '≥' says how many "
    "times as fast, or as many, one with '≤' how many times as long, or as much. What is slow is run in part and "
    "scaled, as its line says: every feature of the loop, every channel of Algorithm 1 and every row of an explainer "
    "costs the same. Powers are slopes of log time over log size."
)


def found_in_a_process(part: str, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """What a part finds, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed", "--part", part]
    command += ["--quick"] if chosen.quick else []
    command += ["--threads", str(chosen.threads)] if chosen.threads else []
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_part(chosen: argparse.Namespace) -> None:
    module = importlib.import_module(f"benchmarks.speed.{chosen.part}")
    # Libraries print what they like; only the last line is the answer.
    answer, sys.stdout = sys.stdout, sys.stderr
    found: list[Ratio] = module.ratios(quick=chosen.quick)
    print(json.dumps([ratio.plain() for ratio in found]), file=answer)


def report(
    found: dict[str, list[Ratio]], failed: list[str], spent: float, *, quick: bool
) -> Report:
    every = [ratio for part in found.values() for ratio in part]
    aimed = [ratio for ratio in every if ratio.target is not None]
    missed = [ratio for ratio in aimed if not ratio.met]
    findings = [f"{len(aimed) - len(missed)} of {len(aimed)} targets are met."]
    findings += [
        f"Missed: {r.what}, {r.against.split(':')[0]}: {r.cells()[3]}, aimed at {r.cells()[5]}."
        for r in missed
    ]
    findings += [f"Not measured, as it failed: {part}." for part in failed]
    return Report(
        name="speed",
        title="How fast, and how that grows: every ratio in one run",
        tables=(table("Ratios", every, NOTE),),
        findings=tuple(findings),
        seeds=(0,),
        settings={"quick": quick, "parts": tuple(found), "minutes": round(spent / 60, 1)},
        packages=("captum", "effector", "shap", "torchvision"),
    )


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0], threads=True)
    parser.add_argument(
        "--resume", action="store_true", help="keep what an interrupted run has found"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=PARTS,
        help="these parts only; prints, writes no files",
    )
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    if chosen.part:
        run_part(chosen)
        return
    path = FOLDER / ("speed-quick.jsonl" if chosen.quick else "speed.jsonl")
    if not chosen.resume:
        path.unlink(missing_ok=True)
    kept = Kept(path)
    found: dict[str, list[Ratio]] = {}
    failed: list[str] = []
    spent = 0.0
    writes = not (chosen.quick or chosen.print_only) and chosen.only == PARTS
    code = rooms("projection", "network", "tabular", "vision")
    for part in chosen.only:
        progress(f"== {part}")
        module = (Path(__file__).parent / f"{part}.py").read_text(encoding="utf-8")
        about = fingerprint(module, code, chosen.threads or torch.get_num_threads(), os.cpu_count())
        try:
            done = kept.cell(part, about, partial(_timed, part, chosen))
        except (subprocess.CalledProcessError, json.JSONDecodeError, IndexError) as failure:
            progress(f"{part} failed: {failure}")
            failed.append(part)
        else:
            found[part], spent = (
                [Ratio.of(plain) for plain in done["ratios"]],
                spent + done["seconds"],
            )
        if writes and found:
            report(found, failed, spent, quick=chosen.quick).write()
    print(report(found, failed, spent, quick=chosen.quick).text())
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; run again with --resume to try these only.")


def _timed(part: str, chosen: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    found = found_in_a_process(part, chosen)
    return {"ratios": found, "seconds": time.perf_counter() - start}


if __name__ == "__main__":
    main()
