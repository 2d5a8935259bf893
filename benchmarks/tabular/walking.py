"""Walks the tables, seeds and methods; what is already known is taken from the file of results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.data import TABLES
from benchmarks.kept import FOLDER, Kept, source
from benchmarks.report import RESULTS, Spread, options
from benchmarks.tabular.methods import METHODS, PAIRS, SINGLES, TOTAL, Method

Scores = dict[str, Any]
Found = dict[tuple[str, str], list[Scores]]

SEEDS, QUICK_SEEDS = (0, 1, 2), (0,)
# What depends on the estimator that the package has by default; Algorithm 1 and the rivals do not.
ESTIMATED = (SINGLES, PAIRS, TOTAL)
# What stored results call a method that has another name now.
_FORMER_NAMES = {"NObSP, total effects": TOTAL}
QUICK_TABLES = ("iris", "wine", "diabetes")
NAMES = {
    "iris": "Iris",
    "breast_cancer": "Breast Cancer",
    "wine": "Wine",
    "adult": "Adult",
    "german_credit": "German Credit",
    "bank_marketing": "Bank Marketing",
    "covertype": "Covertype",
    "diabetes": "Diabetes",
    "california_housing": "California Housing",
}


def asked(description: str) -> argparse.Namespace:
    """What the caller wants: which tables and seeds, and whether results are only shown."""
    parser = options(description)
    parser.add_argument(
        "--tables", nargs="+", choices=TABLES, help="these only; prints, writes no files"
    )
    parser.add_argument(
        "--known", action="store_true", help="report what earlier runs found, compute nothing"
    )
    parser.add_argument(
        "--ours",
        action="store_true",
        help="measure what depends on the default estimator, and take all else from the stored results",
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # these networks are too small for a second thread to pay its way
    chosen.print_only |= chosen.tables is not None
    chosen.seeds = QUICK_SEEDS if chosen.quick else SEEDS
    chosen.tables = chosen.tables or (QUICK_TABLES if chosen.quick else TABLES)
    return chosen


def walk(
    chosen: argparse.Namespace,
    name: str,
    score: Callable[..., Scores],
    settings: Mapping[str, Mapping[str, Any]],
    *,
    rows: int,
) -> Found:
    """Scores by table and method, one a seed.

    Args:
        chosen: What was asked for; a quick run keeps nothing.
        name: Of the file of results so far.
        score: Gives the scores of a method's attributions on a table and seed.
        settings: Options of each method that is compared.
        rows: Most test rows to explain.
    """
    kept = Kept(None if chosen.quick else FOLDER / f"{name}.jsonl")
    scoring = source(score)
    found: Found = {}
    bar = tqdm(
        list(_cells(chosen.tables, chosen.seeds, settings)),
        desc=name,
        unit="cell",
        dynamic_ncols=True,
    )
    for table, seed, method in bar:
        if chosen.ours and method not in ESTIMATED:
            continue
        cell = f"{table}, seed {seed}, {method}"
        bar.set_postfix_str(cell)
        fingerprint = _method(method).fingerprint(settings[method], rows, scoring)
        if chosen.known:
            scores = kept.get(cell, fingerprint)
        else:
            scores = kept.cell(
                cell,
                fingerprint,
                partial(score, table, seed, method, rows=rows, **settings[method]),
            )
        found.setdefault((table, method), []).append(scores)
    return {place: scores for place, scores in found.items() if None not in scores}


def stored(name: str, title: str, score: str, *, facts: Mapping[str, str]) -> Found:
    """A score of an earlier run by table and method, one a seed, as the file of results has it.

    Args:
        name: Of the results.
        title: How the title of their table begins.
        score: What the table's cells are.
        facts: Columns of one number a table that are scores of every method, and which ones.
    """
    results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    [rows] = [rows for key, rows in results["tables"].items() if key.startswith(title)]
    keys = {told: key for key, told in NAMES.items()}
    found: Found = {}
    for row in rows:
        known = {told: row[column] for column, told in facts.items()}
        for method, cell in row.items():
            if isinstance(cell, dict):
                place = keys[row["table"]], _FORMER_NAMES.get(method, method)
                found[place] = [{score: value, **known} for value in cell["values"]]
    return found


def told_again(found: Found, tables: Sequence[str]) -> str:
    """What was measured again beside figures of an earlier run, and on which tables."""
    measured = [table for table in tables if all((table, method) in found for method in ESTIMATED)]
    others = [NAMES[table] for table in tables if table not in measured]
    told = f"{', '.join(ESTIMATED)} were measured again with the present estimator"
    if others:
        told += f" on {', '.join(NAMES[table] for table in measured)}, not on {', '.join(others)}"
    return told + "; all else is of an earlier run."


def _method(name: str) -> Method:
    """A method by its name, which may go on with what is special about its settings."""
    return next(method for known, method in METHODS.items() if name.startswith(known))


def _cells(
    tables: Sequence[str], seeds: Sequence[int], methods: Mapping[str, Any]
) -> Iterator[tuple[str, int, str]]:
    """One network after another, so that it is trained once for all methods."""
    for table in tables:
        for seed in seeds:
            for method in methods:
                yield table, seed, method


def spread(found: Found, table: str, method: str, score: str) -> Spread | None:
    """A score over seeds; None where not every seed was run."""
    known = found.get((table, method))
    return Spread(tuple(scores[score] for scores in known)) if known else None


def mean(found: Found, table: str, method: str, score: str) -> float | None:
    """Its mean; None likewise."""
    known = spread(found, table, method, score)
    return known.mean if known else None


def those(tables: Sequence[str], agree: Callable[[str], bool | None]) -> str:
    """How many tables, and which, something holds for; None is a table on which it cannot be said."""
    said = {table: agree(table) for table in tables}
    named = [NAMES[table] for table, answer in said.items() if answer]
    count = sum(answer is not None for answer in said.values())
    return f"{len(named)} of {count}" + (f" ({', '.join(named)})" if named else "")


def not_run(found: Found, tables: Sequence[str], methods: Iterable[str]) -> tuple[str, ...]:
    """A sentence naming what is missing; none where nothing is."""
    missing = [
        f"{method} on {NAMES[table]}"
        for table in tables
        for method in methods
        if (table, method) not in found
    ]
    return (f"Not run on every seed, and left out: {'; '.join(missing)}.",) if missing else ()
