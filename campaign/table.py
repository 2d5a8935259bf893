"""The table of docs/reliability.md, made of what was measured and of nothing else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from campaign.outcome import VERDICTS, Outcome
from campaign.part import Part
from campaign.parts import NAMES, part_named

# Counts of the last run of each part; the page is made of this file, so that parts can be run on different days.
RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
BEGIN = "<!-- table: begin -->"
END = "<!-- table: end -->"


def count_verdicts(outcomes: list[Outcome]) -> dict[str, int]:
    """How many cases were tried, and how they ended."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    return {"tried": len(outcomes), **{verdict: counts[verdict] for verdict in VERDICTS}}


def format_counts(rows: dict[str, dict[str, int]]) -> str:
    """One line a part, for the terminal."""
    lines = [f"{'part':<12}{'tried':>9}{'right':>9}{'clear':>9}{'missed':>9}{'defect':>9}"]
    for name, counts in rows.items():
        cells = "".join(f"{counts[column]:>9,}" for column in ("tried", *VERDICTS))
        lines.append(f"{name:<12}{cells}")
    return "\n".join(lines)


def write_page(new: dict[str, dict[str, int]]) -> None:
    """Puts new counts beside those of other parts, and all of them into the page."""
    results: dict[str, dict[str, int]] = {}
    if RESULTS.exists():
        results = json.loads(RESULTS.read_text())
    results.update(new)
    ordered = {name: results[name] for name in NAMES if name in results}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{_markdown(ordered)}\n{END}{after}")


def _markdown(results: dict[str, dict[str, int]]) -> str:
    lines = [
        "| part | what is tried | what must hold | tried | right | clear error | not reached | defect | seed |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, counts in results.items():
        part: Part = part_named(name)
        cells = " | ".join(f"{counts.get(column, 0):,}" for column in ("tried", *VERDICTS))
        lines.append(f"| {name} | {part.tried} | {part.must} | {cells} | {counts['seed']} |")
    return "\n".join(lines)
