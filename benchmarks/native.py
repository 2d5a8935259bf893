"""Boosted trees with native categories: seconds to calibrate on Adult, with and without a limit of forward rows.

Adult in its own columns, without the weights of the census and the schooling that is there twice: 12 columns, of
which 7 are categories as pandas has them. Models learn from 10,000 rows, calibration has 4,000 others, shares are of
2,000 test rows. Times are of a new process for every model, after its imports and one small calibration.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.data import load
from benchmarks.report import Column, Report, Table, options, progress, publish
from nobsp import NObSP

TRAINED, CALIBRATED, UNSEEN = 10_000, 4_000, 2_000
SEED = 0
TREES = 200
# Seconds that a calibration may take.
ASKED = 30.0
# A limit of forward rows that is far below what is spent without one.
FEW_FORWARD_ROWS = 20_000
LEFT_OUT = ("fnlwgt", "education")
KINDS = ("XGBoost", "LightGBM", "CatBoost")
_ROOT = Path(__file__).parents[1]


def read_adult() -> tuple[Any, Any, Any]:
    """Training rows, their labels, and test rows whose levels all occur among the former."""
    import pandas as pd

    people = load("adult", seed=SEED, rows="all")
    frames = [pd.DataFrame(raw) for raw in (people.raw_train, people.raw_test)]
    frames = [frame.drop(columns=[name for name in LEFT_OUT if name in frame]) for frame in frames]
    text = [name for name in frames[0] if not pd.api.types.is_numeric_dtype(frames[0][name])]
    for name in text:
        kind = pd.CategoricalDtype(sorted(set(frames[0][name].fillna("missing"))))
        frames = [
            frame.assign(**{name: frame[name].fillna("missing").astype(kind)}) for frame in frames
        ]
    return frames[0], people.y_train, frames[1].dropna()[:UNSEEN]


def trained(kind: str, frame: Any, labels: Any) -> Any:
    """A boosted model that takes categories as they are."""
    import catboost
    import lightgbm
    import xgboost

    if kind == "XGBoost":
        model = xgboost.XGBClassifier(
            n_estimators=TREES,
            max_depth=4,
            learning_rate=0.1,
            enable_categorical=True,
            random_state=SEED,
            n_jobs=1,
        )
    elif kind == "LightGBM":
        model = lightgbm.LGBMClassifier(
            n_estimators=TREES, num_leaves=15, verbose=-1, random_state=SEED, n_jobs=1
        )
    else:
        model = catboost.CatBoostClassifier(
            iterations=TREES,
            depth=5,
            verbose=0,
            random_seed=SEED,
            thread_count=1,
            allow_writing_files=False,
            cat_features=[name for name in frame if str(frame[name].dtype) == "category"],
        )
    return model.fit(frame, labels)


def measure(kind: str) -> list[dict[str, Any]]:
    """Calibrations of a model, with all forward rows it wants and with few."""
    frame, labels, fresh = read_adult()
    model = trained(kind, frame[:TRAINED], labels[:TRAINED])
    rows = frame[TRAINED : TRAINED + CALIBRATED]
    NObSP(model, interactions=0).fit(rows[:100])

    results = []
    for limit in (None, FEW_FORWARD_ROWS):
        started, wall = time.process_time(), time.perf_counter()
        explainer = NObSP(model, max_forward_rows=limit).fit(rows)
        seconds = time.process_time() - started
        wall = time.perf_counter() - wall
        explanation = explainer(fresh)
        left = np.square(explanation.residual[:, 0]).mean()
        results.append(
            {
                "columns": rows.shape[1],
                "limit": limit,
                "seconds": seconds,
                "wall": wall,
                "interactions": sum(len(term) > 1 for term in explainer.terms_),
                "headline": float(explainer.explained_[0]),
                "share": float(1 - left / explanation.predictions[:, 0].var()),
            }
        )
    return results


def run_apart(kind: str) -> list[dict[str, Any]]:
    """The same in a process of its own."""
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.native", "--raw", kind],
        cwd=_ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    results: list[dict[str, Any]] = json.loads(completed.stdout.splitlines()[-1])
    return results


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--raw", default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.raw is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(json.dumps(measure(chosen.raw)), flush=True)
        return

    rows = []
    for kind in KINDS[:1] if chosen.quick else KINDS:
        progress(kind)
        rows += [(kind, result) for result in run_apart(kind)]
    table = Table(
        f"Adult, {CALIBRATED:,} calibration rows, {rows[0][1]['columns']} columns",
        (
            Column("model"),
            Column("most forward rows"),
            Column("processor time, s", ".1f"),
            Column("wall time, s", ".1f"),
            Column("interactions", ".0f"),
            Column("share explained, stated", ".3f"),
            Column("share explained, unseen rows", ".3f"),
        ),
        tuple(
            (
                kind,
                "as many as it takes" if result["limit"] is None else f"{result['limit']:,}",
                result["seconds"],
                result["wall"],
                float(result["interactions"]),
                result["headline"],
                result["share"],
            )
            for kind, result in rows
        ),
        "Wall time is that of a machine with other work to do.",
    )
    slow = [
        f"{kind} ({result['seconds']:.0f} s)"
        for kind, result in rows
        if result["limit"] is None and result["seconds"] > ASKED
    ]
    publish(
        Report(
            name="native",
            title="Boosted trees with native categories",
            tables=(table,),
            findings=(f"More than {ASKED:.0f} s of processor time: {', '.join(slow) or 'none'}.",),
            seeds=(SEED,),
            settings={"trees": TREES, "trained_on": TRAINED, "unseen": UNSEEN},
            packages=("xgboost-cpu", "lightgbm", "catboost", "pandas"),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
