"""The same cases of several tables with an earlier copy of the package, ours only: what became better, worse or slower.

`--before PATH` names the earlier copy. Every case runs in a process of its own, with either copy, and is kept: a run
that is stopped goes on where it was. Cases are some of `recovery`, `unseen`, `headline`, `bands` and `trees`, with the
rows and models of these tables; what their rivals do is there.

Times are taken apart from that: both copies in turn, each time in a new process that calibrates several times. The
first calibration also loads what the package loads late; imports are in none. Of every kind the fastest is taken, as
other work on the machine can only add to it.
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

from benchmarks.kept import FOLDER, Kept, fingerprint, rooms
from benchmarks.report import Column, Report, Table, options, progress, publish

_ROOT = Path(__file__).parents[1]
# Rooms of the package whose code decides what calibrations give.
_CODE = ("network", "models", "tabular", "projection")
# Most seconds that one case may take on a busy machine.
_LONGEST = 600
# Seeds of tree models that no other table uses.
TREE_SEEDS = (21, 22)

# Processes of either copy that are timed, and calibrations in each.
TURNS = 2
CALIBRATIONS = 3
# Most that a calibration may take, as a multiple of the earlier copy's.
MOST_SLOWER = 1.10
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
    scores = score(asked, ours.default(asked)["NObSP"])
    pairs = scores["pairs"]
    return {
        "R² of single functions": scores["main"],
        "R² of true pairs": float(np.mean(pairs)) if pairs else float("nan"),
    }


def explain_unseen(table: str, rows: int) -> Scores:
    """A network of `unseen`."""
    from benchmarks.tabular import unseen

    found = unseen.ours(unseen.Case(table, unseen.PERCEPTRON, 0, rows, 0))
    return {
        "R² on unseen rows": float(np.mean(found["shares"])),
        "headline": float(np.mean(found["headline"])),
        "pairs": float(len(found["pairs"])),
    }


def state(name: str) -> Scores:
    """A case of `headline`."""
    from benchmarks.tabular import headline

    found = headline.judged(name, 0)
    return {
        "R² on unseen rows": found["truth"],
        "headline": found["headline"],
        "pairs": float(found["pairs"]),
    }


def boosted_model(kind: str, seed: int) -> tuple[Any, Any, Any]:
    """A boosted model of California of `trees`, its calibration rows and fresh rows."""
    from benchmarks import trees
    from benchmarks.data import load

    data = load("california_housing", seed=seed, rows="all")
    X = np.concatenate([data.X_train, data.X_test])
    y = np.concatenate([data.y_train, data.y_test])
    order = np.random.default_rng(seed).permutation(len(X))
    ends = np.cumsum([trees.TRAINED, trees.CALIBRATED, trees.UNSEEN])
    train, rows, fresh = np.split(order[: ends[-1]], ends[:-1])
    model = trees.boosters(seed, classes=False)[kind].fit(X[train], y[train])
    return model, X[rows], X[fresh]


def explain_trees(kind: str, seed: int) -> Scores:
    """How well a boosted model is explained."""
    from benchmarks import trees
    from nobsp import NObSP

    model, rows, fresh = boosted_model(kind, seed)
    explainer = NObSP(model).fit(rows)
    explanation = explainer(fresh)
    return {
        "R² on unseen rows": trees.share(explanation.residual[:, 0], explanation.predictions[:, 0]),
        "headline": float(explainer.explained_[0]),
        "pairs": float(sum(len(term) == 2 for term in explainer.terms_)),
        "triples": float(sum(len(term) == 3 for term in explainer.terms_)),
    }


def known_functions(number: int) -> tuple[Any, Any]:
    """A network of the quick grid of `recovery`, and its rows."""
    from benchmarks.recovery.designs import quick_grid
    from benchmarks.recovery.problems import problem

    here = problem(quick_grid()[number], FOLDER / "networks")
    return here.trained, here.sample.inputs


def network_of_california(rows: int) -> tuple[Any, Any]:
    """A network of `unseen`, and its calibration rows."""
    from benchmarks.tabular import unseen

    case = unseen.Case("california_housing", unseen.PERCEPTRON, 0, rows, 0)
    data, network = unseen.found(case.table, case.network, case.seed)
    return network, unseen.drawn(case, data)


def small_table() -> tuple[Any, Any]:
    """A network of 32 and 16 units that learnt four functions and a product, and 500 rows of 8 columns."""
    from safetensors.torch import load_file, save_file

    from benchmarks.networks import feed_forward, train

    generator = np.random.default_rng(0)
    X = generator.normal(size=(1500, 8))
    y = np.sin(X[:, 0]) + X[:, 1] ** 2 + X[:, 2] * X[:, 3] + 0.5 * X[:, 4]
    y += 0.1 * generator.normal(size=len(X))
    network = feed_forward(8, (32, 16), 1, seed=0)
    path = FOLDER / "networks" / "small-table.safetensors"
    if path.exists():
        network.double().load_state_dict(load_file(path))
        return network.eval(), X[1000:]
    learning = torch.as_tensor(X[:1000]), torch.as_tensor(y[:1000])[:, None]
    train(network, *learning, seed=0, epochs=60, batch_size=64)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), path)
    return network.eval(), X[1000:]


def timed_cases() -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Models and rows whose calibration is timed."""
    return {
        "known functions, 5 columns, 800 rows, independent": partial(known_functions, 0),
        "the same, correlation 0.9": partial(known_functions, 1),
        "known interactions, 5 columns, 1,000 rows": partial(known_functions, 4),
        "small network, 8 columns, 500 rows": small_table,
        "California, 128-64 network, 500 rows": partial(network_of_california, 500),
        "California, 128-64 network, 2,000 rows": partial(network_of_california, 2000),
        "California, XGBoost, 2,000 rows": lambda: boosted_model("XGBoost", 21)[:2],
    }


def time_calibrations(name: str) -> list[float]:
    """Processor time of calibrations one after another, the first of which is the process' first."""
    from nobsp import NObSP

    model, rows = timed_cases()[name]()
    seconds = []
    for _ in range(CALIBRATIONS):
        start = time.process_time()
        NObSP(model).fit(rows)
        seconds.append(time.process_time() - start)
    return seconds


def times_of(name: str, folders: dict[str, Path]) -> list[Any]:
    """First and later calibrations with either copy, the fastest of each, and the medians of the later ones."""
    # Training a network would load what a first calibration may load.
    timed_cases()[name]()
    first: dict[str, list[float]] = {copy: [] for copy in folders}
    later: dict[str, list[float]] = {copy: [] for copy in folders}
    for turn in range(TURNS):
        for copy in list(folders)[:: 1 if turn % 2 else -1]:
            progress(f"{name}, {copy}, turn {turn + 1} of {TURNS}")
            seconds = run_apart(folders[copy], "--time", name)
            first[copy].append(seconds[0])
            later[copy] += seconds[1:]
    before, now = folders
    medians = [float(np.median(later[copy])) for copy in folders]
    return [
        name,
        min(first[before]),
        min(first[now]),
        min(first[now]) / min(first[before]),
        min(later[before]),
        min(later[now]),
        min(later[now]) / min(later[before]),
        medians[1] / medians[0],
    ]


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


def run_apart(folder: Path, option: str, name: str) -> Any:
    """A case with the package of a folder, in a process of its own."""
    paths = os.pathsep.join([str(folder.resolve() / "src"), str(_ROOT)])
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.differences", option, name],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_LONGEST,
    )
    return json.loads(completed.stdout.splitlines()[-1])


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="folder of the earlier copy")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--known", action="store_true", help="report what earlier runs found")
    parser.add_argument("--raw", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--time", default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.raw is not None or chosen.time is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = time_calibrations(chosen.time) if chosen.time else all_cases()[chosen.raw]()
            print(json.dumps(result), flush=True)
        return

    kept = Kept(FOLDER / "differences.jsonl")
    rows: list[tuple[Any, ...]] = []
    for name in all_cases():
        copies = {"before": chosen.before, "now": _ROOT}
        scores: dict[str, Scores | None] = {}
        for copy, folder in copies.items():
            about = fingerprint(
                Path(__file__).read_text(), copy, rooms(*_CODE) if folder == _ROOT else ""
            )
            if chosen.only in name and folder is not None and not chosen.known:
                progress(f"{name}, {copy}")
                run = partial(run_apart, folder, "--raw", name)
                scores[copy] = kept.cell(f"{name}, {copy}", about, run)
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
    )
    timed: list[tuple[Any, ...]] = []
    about = fingerprint(Path(__file__).read_text(), rooms(*_CODE))
    for name in timed_cases():
        if chosen.only in name and chosen.before is not None and not chosen.known:
            folders = {"before": chosen.before, "now": _ROOT}
            found = kept.cell(f"time of {name}", about, partial(times_of, name, folders))
        else:
            found = kept.get(f"time of {name}", about)
        if found is not None:
            timed.append(tuple(found))
    times = Table(
        "Seconds of a calibration",
        (
            Column("model and rows"),
            Column("first, before", ".3f"),
            Column("first, now", ".3f"),
            Column("ratio", ".2f"),
            Column("later, before", ".3f"),
            Column("later, now", ".3f"),
            Column("ratio, later", ".2f"),
            Column("ratio of medians, later", ".2f"),
        ),
        tuple(timed),
        f"Processor time of one thread, the fastest of {TURNS} processes for the first calibration and of "
        f"{TURNS * (CALIBRATIONS - 1)} for later ones; imports of torch and of the package are not counted. On a busy "
        "machine, where the same calibration takes up to a third more from one time to the next.",
    )
    slower = [f"{row[0]} ({row[6]:.2f})" for row in timed if row[6] > MOST_SLOWER]
    slower_first = [f"{row[0]} ({row[3]:.2f})" for row in timed if row[3] > MOST_SLOWER]
    shares = [row for row in rows if row[1].startswith("R²")]
    worse = [f"{row[0]} ({row[1]}, {row[4]:+.3f})" for row in shares if row[4] < -0.005]
    findings = []
    if shares:
        higher = sum(row[4] > 0.005 for row in shares)
        findings.append(
            f"Of {len(shares)} shares {higher} are higher by more than 0.005, {len(worse)} lower: "
            f"{'; '.join(worse) or 'none'}."
        )
    if timed:
        findings.append(
            f"Of {len(timed)} calibrations those that take more than {MOST_SLOWER:.2f} of the time of the second "
            f"version: first ones of a process {', '.join(slower_first) or 'none'}; later ones "
            f"{', '.join(slower) or 'none'}."
        )
    publish(
        Report(
            name="differences",
            title="The same cases with the second version",
            tables=tuple(part for part in (table, times) if part.rows),
            findings=tuple(findings),
            seeds=(0, *TREE_SEEDS),
            packages=("scikit-learn",),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
