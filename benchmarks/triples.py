"""California, XGBoost: how much of shallow and deep trees pairs and triples carry, beside TreeHFD in the same run.

Seeds are ones that no threshold of the package was chosen on. TreeHFD is an install of its own (`pip install treehfd`);
without it its column is empty.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import numpy as np
import torch

from benchmarks.data import load
from benchmarks.report import Column, Report, Table, options, progress, publish
from benchmarks.trees import share
from nobsp import NObSP

TRAINED, CALIBRATED, UNSEEN = 12_000, 2_000, 2_000
SEEDS = (11, 12)
_SHALLOW = 4
# Trees and their depth, and the share on unseen rows that is asked for.
MODELS = {(200, 4): "TreeHFD's", (300, 6): "0.965"}


def measure(trees: int, depth: int, seed: int) -> tuple[Any, ...]:
    """One model: ours, and TreeHFD for shallow trees, which it is made for."""
    from xgboost import XGBRegressor

    data = load("california_housing", seed=seed, rows="all")
    X = np.concatenate([data.X_train, data.X_test])
    y = np.concatenate([data.y_train, data.y_test])
    order = np.random.default_rng(1000 + seed).permutation(len(X))
    ends = np.cumsum([TRAINED, CALIBRATED, UNSEEN])
    train, rows, fresh = np.split(order[: ends[-1]], ends[:-1])
    model = XGBRegressor(
        n_estimators=trees, max_depth=depth, learning_rate=0.1, n_jobs=1, random_state=seed
    ).fit(X[train], y[train])

    start = time.process_time()
    explainer = NObSP(model).fit(X[rows])
    seconds = time.process_time() - start
    explanation = explainer(X[fresh])
    ours = share(explanation.residual[:, 0], explanation.predictions[:, 0])

    theirs, their_seconds = None, None
    if depth <= _SHALLOW:  # of deeper ones it takes very long
        theirs, their_seconds = explain_by_treehfd(model, X[rows], X[fresh])
    orders = [len(term) for term in explainer.terms_]
    return (
        f"{trees} × depth {depth}",
        str(seed),
        ours,
        float(explainer.explained_[0]),
        orders.count(2),
        orders.count(3),
        seconds,
        theirs,
        their_seconds,
        MODELS[trees, depth],
    )


def explain_by_treehfd(model: Any, rows: Any, fresh: Any) -> tuple[float | None, float | None]:
    """TreeHFD's share on unseen rows, and its seconds; None where it is not installed."""
    if importlib.util.find_spec("treehfd") is None:
        return None, None
    from treehfd import XGBTreeHFD

    start = time.process_time()
    tree = XGBTreeHFD(model)
    tree.fit(rows, verbose=False)
    seconds = time.process_time() - start
    mains, orders = tree.predict(fresh, verbose=False)
    predictions = model.predict(fresh)
    account = tree.eta0 + mains.sum(1) + orders.sum(1)
    return share(account - predictions, predictions), seconds


def main() -> None:
    chosen = options((__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in SEEDS[:1] if chosen.quick else SEEDS:
        for trees, depth in MODELS:
            progress(f"{trees} trees of depth {depth}, seed {seed}")
            rows.append(measure(trees, depth, seed))
    table = Table(
        f"Share explained on {UNSEEN:,} unseen rows, {CALIBRATED:,} calibration rows",
        (
            Column("trees"),
            Column("seed"),
            Column("NObSP", ".4f"),
            Column("held out", ".4f"),
            Column("pairs", ".0f"),
            Column("triples", ".0f"),
            Column("NObSP, s", ".1f"),
            Column("TreeHFD", ".4f"),
            Column("TreeHFD, s", ".1f"),
            Column("asked"),
        ),
        tuple(rows),
        "Seconds are processor time of one thread, once, on a busy machine.",
    )
    publish(
        Report(
            name="triples",
            title="Pairs and triples of boosted trees, beside TreeHFD",
            tables=(table,),
            findings=tuple(
                f"{row[0]}, seed {row[1]}: {row[2]:.4f}"
                + (f", TreeHFD {row[7]:.4f}." if row[7] is not None else ".")
                for row in rows
            ),
            seeds=SEEDS,
            packages=("scikit-learn",),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
