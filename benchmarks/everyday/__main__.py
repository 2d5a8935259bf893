"""Everyday situations: is the headline true, or does a finding say that it is not? Before and after.

Every situation is an ordinary model and rows as people have them. `headline` is what the explainer states of itself,
`fresh` is R² on rows that nobody saw. A row is "met" where both agree within 0.05, or a finding names the problem.
`--before PATH` measures the same situations with another copy of the package, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.everyday.registry import TOLERANCE, Outcome, Situation, all_situations
from benchmarks.report import Cell, Column, Report, Table, options, progress, publish

_ROOT = Path(__file__).parents[2]
# Most seconds that all situations may take with another copy of the package.
_LONGEST = 3600


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="folder of another copy of the package")
    parser.add_argument("--only", default="", help="situations whose name contains this")
    parser.add_argument("--raw", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)

    situations = [s for name, s in all_situations().items() if chosen.only in name]
    if chosen.raw:
        for situation in situations:
            print(json.dumps({"name": situation.name, **asdict(situation.run())}), flush=True)
        return

    before = {} if chosen.before is None else measure_other_copy(chosen.before, chosen.only)
    after = {}
    for situation in situations:
        after[situation.name] = situation.run()
        progress(f"{situation.name}: {after[situation.name]}")
    publish(report(situations, before, after), chosen)


def measure_other_copy(folder: Path, only: str) -> dict[str, Outcome]:
    """The same situations with the package of another folder."""
    command = [sys.executable, "-m", "benchmarks.everyday", "--raw", "--only", only]
    paths = os.pathsep.join([str(folder.resolve() / "src"), str(_ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths}
    completed = subprocess.run(
        command,
        cwd=_ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_LONGEST,
    )
    outcomes = {}
    for line in completed.stdout.splitlines():
        fields = json.loads(line)
        name = fields.pop("name")
        codes = tuple(fields.pop("codes"))
        outcomes[name] = Outcome(**fields, codes=codes)
    return outcomes


def report(
    situations: list[Situation], before: dict[str, Outcome], after: dict[str, Outcome]
) -> Report:
    """The table, a situation a row."""
    rows = [_row(situation, before.get(situation.name), after) for situation in situations]
    missed = [s.name for s in situations if not s.holds(after[s.name])]
    met = len(situations) - len(missed)
    findings = [
        f"{met} of {len(situations)} situations are met: the headline is within {TOLERANCE} of the truth, or a finding "
        f"names the problem. Missed: {'; '.join(missed) or 'none'}."
    ]
    if before:
        held = sum(s.holds(before[s.name]) for s in situations)
        findings.append(f"Before, {held} of {len(situations)} were.")
    columns = (
        Column("situation"),
        Column("headline before", ".3f"),
        Column("fresh before", ".3f"),
        Column("headline", ".3f"),
        Column("fresh", ".3f"),
        Column("findings"),
        Column("met"),
    )
    note = "A dash: not measured, or not available in that version."
    return Report(
        name="everyday",
        title="Is the headline true in everyday use?",
        tables=(Table("Headline beside truth", columns, tuple(rows), note),),
        findings=tuple(findings),
        seeds=(0,),
        packages=("scikit-learn",),
    )


def _row(
    situation: Situation, before: Outcome | None, after: dict[str, Outcome]
) -> tuple[Cell, ...]:
    outcome = after[situation.name]
    earlier = before or Outcome()
    return (
        situation.name,
        earlier.failure or earlier.headline,
        earlier.fresh,
        outcome.headline,
        outcome.fresh,
        outcome.failure or ", ".join(outcome.codes) or None,
        "met" if situation.holds(outcome) else "MISSED",
    )


if __name__ == "__main__":
    main()
