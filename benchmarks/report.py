"""What all benchmarks share: fair timing, tables, and files that say where and how they were made."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import nobsp

RESULTS = Path(__file__).parent / "results"


# ---------------------------------------------------------------------- values


@dataclass(frozen=True)
class Spread:
    """A measurement repeated, over seeds for instance: shown as mean ± standard deviation."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """Sample standard deviation; nothing is known of it from a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


@dataclass(frozen=True)
class Quoted:
    """A number another source reports, as mean ± standard deviation, with the digits it gives."""

    mean: float
    deviation: float
    digits: int = 3


Cell = str | float | int | bool | Spread | Quoted | None


@dataclass(frozen=True)
class Column:
    """Heading of a column and how its numbers are written."""

    name: str
    spec: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns; the first column says what a row is about."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row of {self.title!r} has {len(row)} cells, but there are {len(self.columns)} columns."
                )

    def text(self) -> str:
        """The table for a terminal."""
        cells = self._written()
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = ["  ".join(map(_padded, row, widths, range(len(row)))).rstrip() for row in cells]
        lines.insert(1, "  ".join("-" * width for width in widths))
        note = [textwrap.fill(self.note, 100)] if self.note else []
        return "\n".join([self.title, "", *lines, *note])

    def markdown(self) -> str:
        """The table for a page."""
        head, *body = self._written()
        rule = ["---" if i == 0 else "---:" for i in range(len(self.columns))]
        lines = [
            "| " + " | ".join(c.replace("|", "\\|") for c in row) + " |"
            for row in (head, rule, *body)
        ]
        note = ["", self.note] if self.note else []
        return "\n".join([f"## {self.title}", "", *lines, *note])

    def records(self) -> list[dict[str, Any]]:
        """One mapping a row, numbers unrounded."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, map(_plain, row), strict=True)) for row in self.rows]

    def _written(self) -> list[list[str]]:
        body = [
            [written(c, col.spec) for c, col in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]
        return [[column.name for column in self.columns], *body]


def written(cell: Cell, spec: str = "") -> str:
    """A cell as text: `spec` formats numbers, words stay as they are, nothing is a dash."""
    if cell is None:
        return "–"
    if isinstance(cell, Quoted):
        return f"{cell.mean:.{cell.digits}f} ± {cell.deviation:.{cell.digits}f}"
    if isinstance(cell, Spread):
        deviation = f" ± {cell.deviation:{spec}}" if len(cell.values) > 1 else ""
        return f"{cell.mean:{spec}}{deviation}"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return cell if isinstance(cell, str) else f"{cell:{spec}}"


def _padded(text: str, width: int, place: int) -> str:
    """Words of the first column start together, numbers of the others end together."""
    return text.ljust(width) if place == 0 else text.rjust(width)


def _plain(cell: Cell) -> Any:
    """A cell as JSON knows it, which has no infinities."""
    if isinstance(cell, Spread):
        return {"mean": cell.mean, "deviation": _plain(cell.deviation), "values": list(cell.values)}
    if isinstance(cell, Quoted):
        return {"mean": cell.mean, "deviation": cell.deviation}
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell


# ---------------------------------------------------------------------- timing


@dataclass(frozen=True)
class Race:
    """Two ways of doing the same, timed in turn.

    Attributes:
        first: Seconds of each run of the first.
        second: Seconds of each run of the second, each right after its counterpart.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]

    @property
    def medians(self) -> tuple[float, float]:
        return statistics.median(self.first), statistics.median(self.second)

    @property
    def ratio(self) -> float:
        """Median over the pairs of first / second: a slow spell of the machine hits both sides of a pair."""
        return statistics.median(a / b for a, b in zip(self.first, self.second, strict=True))


def seconds(work: Callable[[], object]) -> float:
    """How long one run of `work` takes."""
    _wait_for_device()
    start = time.perf_counter()
    work()
    _wait_for_device()
    return time.perf_counter() - start


def timed(work: Callable[[], object], *, warm_up: int = 1, repeats: int = 5) -> float:
    """Median seconds over several runs, the first ones not counted."""
    for _ in range(warm_up):
        work()
    return statistics.median(seconds(work) for _ in range(repeats))


def race(
    first: Callable[[], object], second: Callable[[], object], *, warm_up: int = 2, repeats: int = 9
) -> Race:
    """Times two ways alternately, so that neither has the quieter machine; they take turns at going first."""
    for _ in range(warm_up):
        first()
        second()
    pairs = []
    for turn in range(repeats):
        if turn % 2 == 0:
            a = seconds(first)
            pairs.append((a, seconds(second)))
        else:
            b = seconds(second)
            pairs.append((seconds(first), b))
    return Race(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# ---------------------------------------------------------------------- reports


def machine() -> dict[str, Any]:
    """What the numbers were measured on, without anything that names the machine."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "threads": torch.get_num_threads(),
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python, this package, torch, numpy and whatever else a benchmark used."""
    found = {name: metadata.version(name) for name in ("torch", "numpy", *packages)}
    return {"python": platform.python_version(), "nobsp": nobsp.__version__, **found}


@dataclass(frozen=True)
class Report:
    """What a benchmark found, with all that is needed to find it again.

    Attributes:
        name: File name without ending.
        title: One line saying what was measured.
        tables: The numbers.
        findings: What they say, a sentence each.
        seeds: Seeds of everything random.
        settings: Sizes, counts and options by name.
        packages: Further packages whose versions matter.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    findings: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    packages: tuple[str, ...] = ()

    def text(self) -> str:
        tables = [table.text() for table in self.tables]
        findings = [
            textwrap.fill(f, 100, initial_indent="- ", subsequent_indent="  ")
            for f in self.findings
        ]
        return "\n\n".join([self.title, *tables, "\n".join(["What this shows", "", *findings])])

    def markdown(self) -> str:
        about = [
            _sentence("Machine", machine()),
            _sentence("Versions", versions(*self.packages)),
            _sentence("Settings", self.settings),
            "Seeds: " + ", ".join(map(str, self.seeds)) + ".",
        ]
        findings = "\n".join(f"- {finding}" for finding in self.findings)
        tables = [table.markdown() for table in self.tables]
        return "\n\n".join([f"# {self.title}", findings, *tables, "## How", *about]) + "\n"

    def json(self) -> str:
        content = {
            "name": self.name,
            "title": self.title,
            "findings": list(self.findings),
            "tables": {table.title: table.records() for table in self.tables},
            "notes": {table.title: table.note for table in self.tables if table.note},
            "seeds": list(self.seeds),
            "settings": dict(self.settings),
            "machine": machine(),
            "versions": versions(*self.packages),
        }
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, directory: Path = RESULTS) -> tuple[Path, Path]:
        """Writes NAME.json for machines and NAME.md for people."""
        directory.mkdir(parents=True, exist_ok=True)
        paths = directory / f"{self.name}.json", directory / f"{self.name}.md"
        for path, content in zip(paths, (self.json(), self.markdown()), strict=True):
            path.write_text(content, encoding="utf-8")
        return paths


def options(description: str, *, threads: bool = False) -> argparse.ArgumentParser:
    """The options every benchmark has, and `--threads` for those where it decides what is measured."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--quick", action="store_true", help="smaller and faster; prints, writes no files"
    )
    parser.add_argument("--print-only", action="store_true", help="write no files")
    if threads:
        parser.add_argument(
            "--threads", type=int, help="threads of torch; as many as torch chooses by default"
        )
    return parser


def publish(report: Report, chosen: argparse.Namespace) -> None:
    """Prints the report and, unless it is a quick or print-only run, writes its files."""
    print(report.text())
    if chosen.quick or chosen.print_only:
        return
    written_files = ", ".join(str(path.relative_to(RESULTS.parents[1])) for path in report.write())
    progress(f"wrote {written_files}")


def progress(message: str) -> None:
    """Says what goes on, apart from the results."""
    print(message, file=sys.stderr, flush=True)


def _sentence(label: str, facts: Mapping[str, Any]) -> str:
    told = [
        f"{name.replace('_', ' ')} {_told(value)}"
        for name, value in facts.items()
        if value is not None
    ]
    return f"{label}: " + ", ".join(told) + "."


def _told(value: Any) -> str:
    return (
        ", ".join(map(str, value))
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gb() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None
