"""Tables measured again, ours only, beside the results of an earlier version, cell by cell.

`--former FOLDER` has the earlier results of six tables. Cells of `unseen` and `recovery` are computed where they are
not kept; of `headline`, `bands`, `trees` and `models` the present results are read. What rivals do is in the tables
themselves. Scatter: standard deviation of the earlier cell over its draws, where it had several.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import kept
from benchmarks.recovery import explainers
from benchmarks.recovery.designs import grid
from benchmarks.recovery.problems import problem
from benchmarks.recovery.run import _fresh, _scored
from benchmarks.report import RESULTS, Column, Report, Table, options, progress, publish
from benchmarks.tabular import unseen

UNSEEN = "R² on unseen rows"
# A difference this small is not told as a loss, whatever the scatter.
LEAST = 0.005

UNSEEN_KEPT = (
    "Rows of `unseen` were measured earlier than the others, by other code, and not again."
)

# Why cells are lower, as measured apart from this table.
REASONS = {
    "recovery: interactions, 200, 0.0, ReLU": "by chance: over eight draws of its rows the difference is −0.002 on "
    "average, with a standard error of 0.0015",
    "recovery: interactions, 5000, 0.9, ReLU": "a stronger ridge is chosen, which explains less by 0.00001 of the "
    "variance; where so little did buy a weaker one, scores ranged from 0.906 to 0.982 over six draws of 1,000 rows",
}

# Table, case, score, earlier value, present value, scatter of the earlier one.
Row = tuple[str, str, str, float, float, float | None]


def records(folder: Path, name: str, title: str) -> list[dict[str, Any]]:
    """Rows of a table of some results."""
    tables = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["tables"]
    [rows] = [rows for key, rows in tables.items() if key.startswith(title)]
    return list(rows)


def mean_of(cell: Any) -> float:
    return float(cell["mean"] if isinstance(cell, dict) else cell)


def scatter_of(cell: Any) -> float | None:
    return cell["deviation"] if isinstance(cell, dict) else None


def unseen_rows(former: Path) -> Iterator[Row]:
    """Shares on unseen rows."""
    results = kept.Kept(kept.FOLDER / "unseen.jsonl")
    about = kept.fingerprint(unseen._PRINTS[unseen.OURS], 0)
    every: unseen.Found = {}
    for case in unseen.cases(quick=False):
        progress(case.cell)
        cell = f"{case.cell}, {unseen.OURS}"
        every[case] = {unseen.OURS: results.cell(cell, about, partial(unseen.ours, case))}

    earlier = records(former, "unseen", "Share of the variance")
    for place, cells in unseen.places(every).items():
        name, network, rows = unseen.told(place)
        [before] = [
            row
            for row in earlier
            if (row["table"], row["network"], row["rows"]) == (name, network, rows)
        ]
        now = statistics.fmean(unseen.mean_share(cell[unseen.OURS]) for cell in cells)
        share = before["NObSP"]
        yield (
            "unseen",
            f"{name}, {network}, {rows:,} rows",
            UNSEEN,
            mean_of(share),
            now,
            scatter_of(share),
        )


def kept_unseen_rows() -> Iterator[Row]:
    """The same, as they were measured the last time."""
    for row in records(RESULTS, "reruns", "Ours, earlier and now"):
        if row["table"] == "unseen":
            yield (
                "unseen", row["case"], row["score"], row["earlier"], row["now"], row["scatter"]
            )  # fmt: skip


def recovery_rows(former: Path) -> Iterator[Row]:
    """Known functions of one feature, seeds averaged."""
    results = kept.Kept(kept.FOLDER / "recovery.jsonl")
    ours = explainers.EXPLAINERS[0]
    scores: dict[tuple[Any, ...], list[float]] = {}
    for case in grid(seeds=(0,)):
        progress(str(case))
        here = problem(case, kept.FOLDER / "networks")
        found = results.cell(
            f"{case}, {ours.name}", ours.fingerprint(here), partial(_scored, _fresh(here), ours)
        )
        scores.setdefault(case.cell, []).append(found["NObSP"]["main"])

    earlier = records(former, "recovery", "R² of the functions of one feature")
    for row in earlier:
        cell = (row["functions"], row["n"], row["correlation"], row["network"])
        if cell in scores:
            now = statistics.fmean(scores[cell])
            yield "recovery", ", ".join(map(str, cell)), "R²", row["NObSP"], now, None


def read_rows(former: Path) -> Iterator[Row]:
    """Headlines and bands, as present and earlier results have them."""
    title = "Headline against fresh rows"
    for before, now in zip(
        records(former, "headline", title), records(RESULTS, "headline", title), strict=True
    ):
        for score, column in (("R² on fresh rows", "truth"), ("headline", "headline")):
            cells = before[column], now[column]
            yield (
                "headline",
                now["case"],
                score,
                mean_of(cells[0]),
                mean_of(cells[1]),
                scatter_of(cells[0]),
            )
    title = "One row a curve"
    for before, now in zip(
        records(former, "bands", title), records(RESULTS, "bands", title), strict=True
    ):
        case = f"{now['design']}, {now['curve']}"
        # Earlier, one large calibration was California's truth.
        column = "of the first large one" if now["design"] == "California" else "coverage"
        coverage = now.get(column, now["coverage"])
        yield "bands", case, "coverage", before["coverage"], coverage, None


def read_models(former: Path) -> Iterator[Row]:
    """Tree models and models of other libraries, as present and earlier results have them."""
    title = "Share of the margin's variance"
    for before, now in zip(
        records(former, "trees", title), records(RESULTS, "trees", title), strict=True
    ):
        cells = before["NObSP"], now["NObSP"]
        case = f"{now['table']}, {now['model']}"
        yield "trees", case, UNSEEN, mean_of(cells[0]), mean_of(cells[1]), scatter_of(cells[0])

    column = "share explained, unseen rows"
    earlier = {row["model"]: row[column] for row in records(former, "models", "One row a model")}
    for now in records(RESULTS, "models", "One row a model"):
        yield "models", now["model"], UNSEEN, earlier[now["model"]], now[column], None


def _tell_lower(row: Row) -> str:
    """A cell that is lower, by how much, and why where that is known."""
    name = f"{row[0]}: {row[1]}"
    reason = REASONS.get(name, "cause not known")
    return f"{name} ({row[4] - row[3]:+.3f}; {reason})"


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--former", type=Path, required=True, help="folder of the earlier results")
    parser.add_argument(
        "--keep-unseen",
        action="store_true",
        help="rows of `unseen` as the present results have them",
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        *(kept_unseen_rows() if chosen.keep_unseen else unseen_rows(chosen.former)),
        *recovery_rows(chosen.former),
        *read_rows(chosen.former),
        *read_models(chosen.former),
    ]
    shares = [row for row in rows if row[0] != "bands" and row[2] != "headline"]
    lower = [row for row in shares if row[3] - row[4] > max(LEAST, row[5] or 0.0)]
    higher = sum(row[4] - row[3] > max(LEAST, row[5] or 0.0) for row in shares)
    told = "; ".join(_tell_lower(row) for row in lower)
    covered = [row for row in rows if row[0] == "bands" and row[3] - row[4] > 0.1]
    uncovered = "; ".join(f"{row[1]} ({row[3]:.2f} to {row[4]:.2f})" for row in covered)
    table = Table(
        "Ours, earlier and now",
        (
            Column("table"),
            Column("case"),
            Column("score"),
            Column("earlier", ".4f"),
            Column("now", ".4f"),
            Column("difference", "+.4f"),
            Column("scatter", ".4f"),
        ),
        tuple((*row[:5], row[4] - row[3], row[5]) for row in rows),
    )
    publish(
        Report(
            name="reruns",
            title="Tables measured again, beside the second version's results",
            tables=(table,),
            findings=(
                f"Of {len(shares)} shares {higher} are higher by more than {LEAST} and their scatter, "
                f"{len(lower)} lower: {told or 'none'}.",
                f"Bands whose coverage is lower by more than 0.1: {uncovered or 'none'}.",
                *([UNSEEN_KEPT] if chosen.keep_unseen else []),
            ),
            seeds=(0, 1, 2),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
