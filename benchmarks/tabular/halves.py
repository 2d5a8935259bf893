"""Would other rows have given other curves? Two halves of California Housing, one network with every kind of layer.

The network has batch norm, dropout and layer norm. Two calibrations on 7,500 rows each that share none are compared
curve by curve: the correlation of the two, and the spread of their difference as a share of the curve's own, at 199
quantiles of the feature, from 0.5% to 99.5%; and the correlation from 2% to 98%, without the tails that rest on few
rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from benchmarks import kept
from benchmarks.data import load
from benchmarks.networks import train
from benchmarks.report import Cell, Column, Report, Table, options, publish
from benchmarks.tabular import problems
from nobsp import NObSP

SEEDS, ROWS, ASKED, EPOCHS = (0, 1, 2, 3), 7500, 0.95, 20
QUANTILES = np.linspace(0.005, 0.995, 199)
WITHIN = (QUANTILES >= 0.02) & (QUANTILES <= 0.98)


def network_of(inputs: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(inputs, 128), nn.BatchNorm1d(128), nn.SiLU(), nn.Dropout(0.1),
            nn.Linear(128, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 1),
        )  # fmt: skip


def measured(seed: int, *, rows: int, epochs: int) -> dict[str, Any]:
    data = load("california_housing", seed=seed)
    targets = torch.as_tensor(problems.standardised(data)[0])[:, None]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # dropout draws from torch's own generator
        network = train(
            network_of(data.X_train.shape[1], seed),
            torch.as_tensor(data.X_train),
            targets,
            seed=seed,
            epochs=epochs,
            batch_size=256,
        )
    said = network(torch.as_tensor(data.X_test, dtype=torch.float64)).detach().numpy()[:, 0]
    truth = problems.standardised(data)[1]
    order = np.random.default_rng(seed).permutation(len(data.X_train))
    halves = [
        np.asarray(data.X_train[order[k * rows : (k + 1) * rows]], dtype=np.float64)
        for k in range(2)
    ]
    fits = [NObSP(network, features=list(data.groups)).fit(half) for half in halves]
    curves = {}
    for place, name in enumerate(data.groups):
        grid = np.quantile(np.concatenate([half[:, place] for half in halves]), QUANTILES)
        first, second = (fit.function(name)(grid) for fit in fits)
        curves[name] = {
            "correlation": float(np.corrcoef(first, second)[0, 1]),
            "within": float(np.corrcoef(first[WITHIN], second[WITHIN])[0, 1]),
            "difference": float((first - second).std() / ((first + second) / 2).std()),
            "spread": float(((first + second) / 2).std() / said.std()),
        }
    return {
        "curves": curves,
        "r2": float(1 - np.square(truth - said).mean() / truth.var()),
        "shares": [float(fit(data.X_test).explained()[0]) for fit in fits],
        "pairs": [sum(len(term) == 2 for term in fit.terms_) for fit in fits],
    }


_PRINT = kept.fingerprint(
    measured,
    repr((QUANTILES, WITHIN)),
    network_of,
    train,
    kept.rooms("projection", "network", "tabular"),
)


def main() -> None:
    chosen = options((__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    results = kept.Kept(None if chosen.quick else kept.FOLDER / "halves.jsonl")
    sizes = {"rows": 2000, "epochs": 4} if chosen.quick else {"rows": ROWS, "epochs": EPOCHS}
    seeds = SEEDS[:1] if chosen.quick else SEEDS
    found = {
        seed: results.cell(
            f"seed {seed}", kept.fingerprint(_PRINT, sizes), partial(measured, seed, **sizes)
        )
        for seed in tqdm(seeds, desc="halves", unit="network", dynamic_ncols=True)
    }
    names = list(found[seeds[0]]["curves"])
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            *(
                found[seed]["curves"][name][part]
                for seed in seeds
                for part in ("correlation", "within", "difference")
            ),
        )
        for name in names
    ]
    every = {
        (name, seed): found[seed]["curves"][name]["correlation"] for name in names for seed in seeds
    }
    within = [found[seed]["curves"][name]["within"] for name in names for seed in seeds]
    low = [
        f"{name}, seed {seed} ({value:.3f})"
        for (name, seed), value in every.items()
        if value < ASKED
    ]
    headings = [
        Column(f"{what}, seed {seed}", spec)
        for seed in seeds
        for what, spec in (("correlation", ".4f"), ("without tails", ".4f"), ("difference", ".3f"))
    ]
    publish(
        Report(
            name="halves",
            title="Curves from two halves of the data",
            tables=(
                Table(
                    "One row a curve",
                    (Column("feature"), *headings),
                    tuple(rows),
                    "Without tails: from the 2% to the 98% quantile. Difference: its standard deviation as a share of "
                    "the curve's.",
                ),
            ),
            findings=(
                f"The lowest correlation of a curve between halves is {min(every.values()):.3f} (asked: ≥ {ASKED}, "
                f"{'MISSED: ' + '; '.join(low) if low else 'met'}); without tails it is "
                f"{min(within):.3f}.",
                *(
                    f"Seed {seed}: the network's R² on test rows is {r['r2']:.3f}; the halves keep {r['pairs'][0]} and "
                    f"{r['pairs'][1]} pairs and carry {r['shares'][0]:.3f} and {r['shares'][1]:.3f} of it on test rows."
                    for seed, r in found.items()
                ),
            ),
            seeds=seeds,
            settings={**sizes, "network": "128 BatchNorm SiLU Dropout(0.1), 64 LayerNorm SiLU"},
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
