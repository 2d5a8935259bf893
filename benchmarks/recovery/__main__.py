"""Recovers known functions with NObSP and its peers over families, sizes, correlations and activations.

A run that was interrupted goes on where it was; results depend on the code and packages that made them, so that
only what changed is computed again.
"""

from __future__ import annotations

import os

# Before torch is loaded: a second thread does not pay its way on networks this small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.networks import REGRESSION_HIDDEN
from benchmarks.recovery import peers, problems
from benchmarks.recovery.designs import FAMILIES, HELD_OUT, NOISE, grid, quick_grid
from benchmarks.recovery.run import run
from benchmarks.recovery.tables import (
    findings,
    nothing_table,
    null_table,
    pairs_table,
    recovery_table,
    standing_table,
    target_table,
)
from benchmarks.report import RESULTS, Report, options, publish

PACKAGES = ("captum", "effector", "interpret-core", "shap")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--seeds", type=int, default=1, help="seeds of the grid; the paper's set has three"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no further case after that"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    seeds = tuple(range(chosen.seeds))
    cases = quick_grid() if chosen.quick else grid(seeds=seeds)
    outcomes = run(cases, cache=RESULTS / ".cache", minutes=chosen.minutes)
    report = Report(
        name="recovery",
        title="Known functions recovered from trained networks, by NObSP and by others",
        tables=(
            target_table(outcomes),
            standing_table(outcomes),
            recovery_table(outcomes),
            pairs_table(outcomes),
            null_table(outcomes),
            nothing_table(outcomes),
        ),
        findings=findings(outcomes),
        seeds=tuple(sorted({case.seed for case in outcomes})),
        settings={
            **{f"functions_{name}": family.formula for name, family in FAMILIES.items()},
            "held_out": HELD_OUT,
            "noise": NOISE,
            "inputs": "uniform on [-2, 2], Gaussian copula",
            "hidden": REGRESSION_HIDDEN,
            "training_steps": problems.STEPS,
            "batch": problems.BATCH,
            "learning_rate": problems.LEARNING_RATE,
            "weight_decay": problems.WEIGHT_DECAY,
            "ALE_bins": peers.ALE_BINS,
            "SHAP_background": peers.SHAP_BACKGROUND,
            "gradient_steps": peers.GRADIENT_STEPS,
            "RHALE": "bins by dynamic programming, the package's default",
            "bins": f"{peers.MOST_BINS} a feature, {peers.PAIR_BINS} a side of a pair, by a fifth held out",
            "EBM": str(peers.BOOSTING),
            "grid_seeds": list(seeds),
        },
        packages=PACKAGES,
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
