"""The same cases of several tables with an earlier copy of the package, ours only: what became better, worse or slower.

`--before PATH` names the earlier copy. Every case runs in a process of its own, with either copy, and is kept: a run
that is stopped goes on where it was. Cases are some of `recovery`, `unseen`, `headline`, `bands` and `trees`, with the
rows and models of these tables; what their rivals do is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.kept import FOLDER, Kept, fingerprint
from benchmarks.report import Column, Report, Table, options, progress, publish

_ROOT = Path(__file__).parents[1]
# Most seconds that one case may take on a busy machine.
_LONGEST = 600
# Seeds of tree models that no other table uses.
TREE_SEEDS = (21, 22)

# What a case gives: names of scores and their values.
Scores = dict[str, float]


def recover(number: int) -> Scores:
    """Known functions of the quick grid of `recovery`."""
    from benchmarks.recovery import ours
    from benchmarks.recovery.designs import quick_grid
    from benchmarks.recovery.problems import problem
    from benchmarks.recovery.run import _fresh
    from benchmarks.recovery.scores import score

    here = problem(quick_grid()[number], FOLDER / "networks")
    asked = _fresh(here)
    start = time.process_time()
    scores = score(asked, ours.default(asked)["NObSP"])
    seconds = time.process_time() - start
    pairs = scores["pairs"]
    return {
        "R² of single functions": scores["main"],
        "R² of true pairs": float(np.mean(pairs)) if pairs else float("nan"),
        "seconds": seconds,
    }


def explain_unseen(table: str, rows: int) -> Scores:
    """A network of `unseen`."""
    from benchmarks.tabular import unseen

    found = unseen.ours(unseen.Case(table, unseen.PERCEPTRON, 0, rows, 0))
    return {
        "R² on unseen rows": float(np.mean(found["shares"])),
        "headline": float(np.mean(found["headline"])),
        "pairs": float(len(found["pairs"])),
        "seconds": found["seconds"],
    }


def state(name: str) -> Scores:
    """A case of `headline`."""
    from benchmarks.tabular import headline

    start = time.process_time()
    found = headline.judged(name, 0)
    return {
        "R² on unseen rows": found["truth"],
        "headline": found["headline"],
        "pairs": float(found["pairs"]),
        "seconds, with training": time.process_time() - start,
    }


def explain_trees(kind: str, seed: int) -> Scores:
    """A boosted model of California of `trees`."""
    from benchmarks import trees
    from benchmarks.data import load
    from nobsp import NObSP

    data = load("california_housing", seed=seed, rows="all")
    X = np.concatenate([data.X_train, data.X_test])
    y = np.concatenate([data.y_train, data.y_test])
    order = np.random.default_rng(seed).permutation(len(X))
    ends = np.cumsum([trees.TRAINED, trees.CALIBRATED, trees.UNSEEN])
    train, rows, fresh = np.split(order[: ends[-1]], ends[:-1])
    model = trees.boosters(seed, classes=False)[kind].fit(X[train], y[train])

    start = time.process_time()
    explainer = NObSP(model).fit(X[rows])
    seconds = time.process_time() - start
    explanation = explainer(X[fresh])
    return {
        "R² on unseen rows": trees.share(explanation.residual[:, 0], explanation.predictions[:, 0]),
        "headline": float(explainer.explained_[0]),
        "pairs": float(sum(len(term) == 2 for term in explainer.terms_)),
        "triples": float(sum(len(term) == 3 for term in explainer.terms_)),
        "seconds": seconds,
    }


def all_cases() -> dict[str, Callable[[], Scores]]:
    """Every case by the name of its table and its own."""
    cases: dict[str, Callable[[], Scores]] = {}
    grid = (
        "paper, 1,000 rows, independent",
        "paper, 1,000 rows, correlation 0.9",
        "smooth, 200 rows, 0.5",
        "kinked, 200 rows, 0.9",
        "interactions, 1,000 rows, 0.5",
    )
    for number, name in enumerate(grid):
        cases[f"recovery: {name}"] = partial(recover, number)
    for kind in ("XGBoost", "LightGBM"):
        for seed in TREE_SEEDS:
            cases[f"trees: California, {kind}, seed {seed}"] = partial(explain_trees, kind, seed)
    for table, rows in (
        ("california_housing", 500),
        ("california_housing", 2000),
        ("german_credit", 400),
        ("adult", 2000),
        ("bank_marketing", 2000),
    ):
        cases[f"unseen: {table}, {rows:,} rows"] = partial(explain_unseen, table, rows)
    for name in (
        "100 features, 2,000 rows",
        "30 correlated features, the 300 training rows",
        "California Housing, 300 rows",
    ):
        cases[f"headline: {name}"] = partial(state, name)
    return cases


def run_apart(folder: Path, name: str) -> Scores:
    """A case with the package of a folder, in a process of its own."""
    paths = os.pathsep.join([str(folder.resolve() / "src"), str(_ROOT)])
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.differences", "--raw", name],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_LONGEST,
    )
    scores: Scores = json.loads(completed.stdout.splitlines()[-1])
    return scores


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="folder of the earlier copy")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--known", action="store_true", help="report what earlier runs found")
    parser.add_argument("--raw", default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.raw is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(json.dumps(all_cases()[chosen.raw]()), flush=True)
        return

    kept = Kept(FOLDER / "differences.jsonl")
    rows: list[tuple[Any, ...]] = []
    for name in all_cases():
        copies = {"before": chosen.before, "now": _ROOT}
        scores: dict[str, Scores | None] = {}
        for copy, folder in copies.items():
            about = fingerprint(Path(__file__).read_text(), copy)
            if chosen.only in name and folder is not None and not chosen.known:
                progress(f"{name}, {copy}")
                scores[copy] = kept.cell(f"{name}, {copy}", about, partial(run_apart, folder, name))
            else:
                scores[copy] = kept.get(f"{name}, {copy}", about)
        before, now = scores["before"], scores["now"]
        if before is None or now is None:
            continue
        for score, value in now.items():
            if not np.isnan(value):
                rows.append((name, score, before[score], value, value - before[score]))

    table = Table(
        "Ours before and now",
        (
            Column("case"),
            Column("score"),
            Column("before", ".3f"),
            Column("now", ".3f"),
            Column("difference", "+.3f"),
        ),
        tuple(rows),
        "Seconds are processor time of one thread, once, on a busy machine.",
    )
    shares = [row for row in rows if row[1].startswith("R²")]
    worse = [f"{row[0]} ({row[1]}, {row[4]:+.3f})" for row in shares if row[4] < -0.005]
    publish(
        Report(
            name="differences",
            title="The same cases with the second version",
            tables=(table,),
            findings=(
                f"Of {len(shares)} shares {sum(row[4] > 0.005 for row in shares)} are higher by more than 0.005, "
                f"{len(worse)} lower: {'; '.join(worse) or 'none'}.",
            ),
            seeds=(0, *TREE_SEEDS),
            packages=("scikit-learn",),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
