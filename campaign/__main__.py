"""Runs the campaign: `python -m campaign [--part files] [--case 1234] [--seed 0] [--count 100] [--write]`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

# Before torch is loaded, here and in the workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from campaign.outcome import Outcome
from campaign.part import Part
from campaign.parts import NAMES, part_named
from campaign.runner import run_cases, run_part
from campaign.table import count_verdicts, format_counts, write_page


def main() -> int:
    """Exit code 1 where there was a defect."""
    options = _parse()
    if options.minutes is not None:
        os.environ["CAMPAIGN_MINUTES"] = str(options.minutes)
    if options.case is not None:
        return _run_one(part_named(options.part or "inputs"), options.seed, options.case)
    names = [options.part] if options.part else list(NAMES)
    rows: dict[str, dict[str, int]] = {}
    for name in names:
        part = part_named(name)
        count = part.count if options.count is None else min(options.count, part.count)
        if options.sample:
            count = part.sample
        rows[name] = _run_many(part, options, count)
    print(format_counts(rows))
    if options.write:
        write_page(rows)
    return int(any(counts["defect"] for counts in rows.values()))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--part", choices=NAMES, help="one part; all of them otherwise")
    parser.add_argument("--case", type=int, help="one case, with all details")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers")
    parser.add_argument("--count", type=int, help="at most so many cases a part")
    parser.add_argument("--minutes", type=float, help="how long the soak runs")
    parser.add_argument("--sample", action="store_true", help="the few cases that the tests run")
    parser.add_argument("--fresh", action="store_true", help="forget the cases of an earlier run")
    parser.add_argument("--write", action="store_true", help="write counts into the documentation")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("build/campaign"),
        help="where outcomes are kept, so that an interrupted run goes on",
    )
    return parser.parse_args()


def _run_one(part: Part, seed: int, case: int) -> int:
    [(_, outcome)] = run_cases(part, seed, [case])
    print(f"{part.name} {case}: {outcome.case}")
    print(f"{outcome.verdict}: {outcome.detail}")
    return int(outcome.verdict == "defect")


def _run_many(part: Part, options: argparse.Namespace, count: int) -> dict[str, int]:
    started = time.monotonic()

    def tell(number: int, outcome: Outcome) -> None:
        if outcome.verdict == "defect":
            print(f"{part.name} {number}: {outcome.case}: {outcome.detail}", flush=True)
        if number % 500 == 499:
            seconds = time.monotonic() - started
            print(f"{part.name}: {number + 1:,} of {count:,}, {seconds:.0f} s", file=sys.stderr)

    record = run_part(
        part,
        seed=options.seed,
        count=count,
        folder=options.folder,
        fresh=options.fresh,
        report=tell,
    )
    counts = count_verdicts(list(record.outcomes.values()))
    return {**counts, "seed": options.seed}


if __name__ == "__main__":
    sys.exit(main())
