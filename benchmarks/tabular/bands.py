"""Do bands cover? One network, many calibrations on 1,000 fresh rows each, and the curve that all of them estimate.

The band of a curve claims to hold, point by point, nine in ten of the curves that other rows of the same kind would
give. The truth is the mean curve of four calibrations on 16,000 other rows, whose own error, which no band knows of, is
about an eighth of that at 1,000 rows; it is the limit of the method, which is what the band is about: not the
network's error, nor what NObSP misses however many rows it has. Points are the 5% to 95% quantiles. How far the large
calibrations differ among themselves tells how well the truth is known.

    correlated        sin 2x0 + x1²/2 + 0.7·x0·x2, normal, x0 and x1 correlated by 0.7
    products          x0·x1² + tanh(2x2)·x3, independent normals
    two interactions  sin 2x0 + x1²/2 + x0·x1 + tanh(2x2)·x3, normal, correlation 0.5 throughout
    additive          sin 2x0 + x1²/2 + exp(x2)/2 + tanh 2x3, normal, correlation 0.9 throughout
    California        for information: there are not enough rows. The truth is the mean of a calibration on 12,000 rows
                      and one on the other 8,640, of which the calibrations of 1,000 rows are drawn and share some
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from benchmarks import kept
from benchmarks.networks import train
from benchmarks.report import Cell, Column, Report, Table, options, publish
from benchmarks.tabular import problems, unseen
from benchmarks.tabular.problems import Array
from nobsp import NObSP

LEVEL, ROWS, MANY, CALIBRATIONS, TRUTHS, ASKED = 0.9, 1000, 16_000, 16, 4, 0.80
QUANTILES = np.linspace(0.05, 0.95, 19)


@dataclass(frozen=True)
class Design:
    """A function of normal columns with given correlations."""

    covariance: Array
    function: Callable[[Array], Array]

    def draw(self, rows: int, random: np.random.Generator) -> Array:
        normal = random.standard_normal((rows, len(self.covariance)))
        return np.asarray(normal @ np.linalg.cholesky(self.covariance).T)


def _alike(features: int, correlation: float) -> Array:
    return np.asarray((1 - correlation) * np.eye(features) + correlation)


DESIGNS = {
    "correlated": Design(
        np.array([[1, 0.7, 0], [0.7, 1, 0], [0, 0, 1]]),
        lambda x: np.sin(2 * x[:, 0]) + x[:, 1] ** 2 / 2 + 0.7 * x[:, 0] * x[:, 2],
    ),
    "products": Design(
        _alike(4, 0.0), lambda x: x[:, 0] * x[:, 1] ** 2 + np.tanh(2 * x[:, 2]) * x[:, 3]
    ),
    "two interactions": Design(
        _alike(4, 0.5),
        lambda x: (
            np.sin(2 * x[:, 0])
            + x[:, 1] ** 2 / 2
            + x[:, 0] * x[:, 1]
            + np.tanh(2 * x[:, 2]) * x[:, 3]
        ),
    ),
    "additive": Design(
        _alike(4, 0.9),
        lambda x: (
            np.sin(2 * x[:, 0]) + x[:, 1] ** 2 / 2 + np.exp(x[:, 2]) / 2 + np.tanh(2 * x[:, 3])
        ),
    ),
}
CALIFORNIA = "California"
NOTHING: dict[str, Any] = {"curves": {}}


def network_of(design: Design, seed: int) -> nn.Module:
    random = np.random.default_rng(seed)
    X = design.draw(6000, random)
    y = torch.as_tensor(design.function(X))[:, None]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(X.shape[1], 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )
    return train(
        network, torch.as_tensor(X), y, seed=seed, epochs=30, batch_size=256, learning_rate=2e-3
    )


def measured(name: str, *, seed: int, calibrations: int, truths: int, many: int) -> dict[str, Any]:
    """Per curve: coverage, error and band, over all calibrations."""
    random = np.random.default_rng([seed, 1])
    if name == CALIFORNIA:
        data, network = unseen.found(unseen.CALIFORNIA, unseen.PERCEPTRON, 0)
        names = list(data.groups)
        pool, apart = data.X_train[:12_000], np.concatenate([data.X_train[12_000:], data.X_test])

        def draw(rows: int) -> Array:
            source = pool if rows > ROWS else apart
            return np.asarray(source[random.permutation(len(source))[:rows]], dtype=np.float64)

        large = [draw(many), np.asarray(apart, dtype=np.float64)]
    else:
        design = DESIGNS[name]
        network, names = network_of(design, seed), [f"x{k}" for k in range(len(design.covariance))]
        draw = partial(design.draw, random=random)
        large = [draw(many) for _ in range(truths)]
    explainer = partial(NObSP, network, features=names)
    fits = [explainer().fit(rows) for rows in large]
    grids = {
        f: np.quantile(np.concatenate([rows[:, k] for rows in large]), QUANTILES)
        for k, f in enumerate(names)
    }
    limits = {f: np.stack([fit.function(f)(grid) for fit in fits]) for f, grid in grids.items()}
    found: dict[str, list[Any]] = {f: [] for f in names}
    pairs = []
    for _ in range(calibrations):
        fit = explainer().fit(draw(ROWS))
        pairs.append(sum(len(term) == 2 for term in fit.terms_))
        curves = {
            key: np.asarray(column)
            for key, column in dict(fit.curves(points=400, confidence=LEVEL)).items()
        }
        for f, grid in grids.items():
            here = curves["feature"] == f
            value, low, high = (
                np.interp(grid, curves["x"][here].astype(float), curves[side][here].astype(float))
                for side in ("value", "lower", "upper")
            )
            found[f].append((value, low, high))
    curves_said = {}
    for f in names:
        value, low, high = (np.stack(part) for part in zip(*found[f], strict=True))
        truth = limits[f].mean(0)
        curves_said[f] = {
            "coverage": float(((low <= truth) & (truth <= high)).mean()),
            "coverage of one": float(((low <= limits[f][0]) & (limits[f][0] <= high)).mean()),
            "rms": float(np.sqrt(np.square(value - truth).mean())),
            "scatter": float(np.sqrt(value.var(0, ddof=1).mean())),
            "band": float(np.sqrt(np.square((high - low) / 2 / 1.6449).mean())),
            "spread": float(truth.std()),
            "differ": float(np.sqrt(limits[f].var(0, ddof=1).mean())),
        }
    return {
        "curves": curves_said,
        "pairs": pairs,
        "pairs_of_truth": [len(fit.terms_) - len(names) for fit in fits],
    }


def _formulas() -> list[str]:
    probe = np.random.default_rng(0).normal(size=(5, 4))
    return [
        repr((design.covariance.tolist(), design.function(probe).tolist()))
        for design in DESIGNS.values()
    ]


_PRINT = kept.fingerprint(
    measured, network_of, repr(QUANTILES), ROWS, LEVEL, *_formulas(), unseen.found.__wrapped__,
    problems.trained, kept.rooms("projection", "network", "tabular"),
)  # fmt: skip


def main() -> None:
    chosen = options((__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    results = kept.Kept(None if chosen.quick else kept.FOLDER / "bands.jsonl")
    sizes = (
        {"calibrations": 4, "truths": 2, "many": 4000}
        if chosen.quick
        else {"calibrations": CALIBRATIONS, "truths": TRUTHS, "many": MANY}
    )
    names = [*DESIGNS] if chosen.quick else [*DESIGNS, CALIFORNIA]
    found = {
        name: results.cell(
            name, kept.fingerprint(_PRINT, sizes), partial(measured, name, seed=0, **sizes)
        )
        for name in tqdm(names, desc="bands", unit="design", dynamic_ncols=True)
    }
    publish(report(found, sizes), chosen)


def report(found: dict[str, dict[str, Any]], sizes: dict[str, int]) -> Report:
    rows: list[tuple[Cell, ...]] = []
    missed = []
    for name, result in found.items():
        for feature, said in result["curves"].items():
            good = said["coverage"] >= ASKED
            if not good and name != CALIFORNIA:
                missed.append(f"{feature} of {name} ({said['coverage']:.2f})")
            rows.append(
                (
                    name, feature, said["coverage"], said["coverage of one"], said["rms"], said["scatter"],
                    said["band"], said["differ"], said["spread"],
                    None if name == CALIFORNIA else "met" if good else "MISSED",
                )
            )  # fmt: skip
    judged = [row[2] for row in rows if row[0] != CALIFORNIA]
    informed = [row[2] for row in rows if row[0] == CALIFORNIA]
    of_one = [row[3] for row in rows if row[0] == CALIFORNIA]
    # Of two large calibrations: the root of two is from a standard deviation to a difference.
    apart = [
        2**0.5 * said["differ"] / said["band"]
        for said in found.get(CALIFORNIA, NOTHING)["curves"].values()
    ]
    california = (
        f" California, for information: {min(informed):.2f} to {max(informed):.2f}, and {min(of_one):.2f} to "
        f"{max(of_one):.2f} of the curve of 12,000 rows alone, which was the truth in earlier versions of this table; "
        f"from that of the other 8,640 rows it differs by {min(apart):.1f} to {max(apart):.1f} of the band's sd."
        if informed
        else ""
    )
    pairs = "; ".join(
        f"{name} {min(r['pairs'])} to {max(r['pairs'])} (truth {', '.join(map(str, r['pairs_of_truth']))})"
        for name, r in found.items()
    )
    return Report(
        name="bands",
        title="Coverage of the 90% bands",
        tables=(
            Table(
                "One row a curve",
                (
                    Column("design"), Column("curve"), Column("coverage", ".2f"),
                    Column("of the first large one", ".2f"), Column("rms error", ".4f"),
                    Column("scatter", ".4f"), Column("band's sd", ".4f"), Column("large ones differ", ".4f"),
                    Column("curve's spread", ".3f"), Column(f"≥ {ASKED}"),
                ),
                tuple(rows),
                "Coverage: share of points and calibrations whose band holds the truth, the mean of the large "
                "calibrations; beside it the share that holds the first of these alone. Scatter: standard deviation of "
                "the curves around their own mean; where the error is larger, 1,000 rows give another curve on average "
                "than many. The band's sd is half its width over 1.645. Large ones differ: standard deviation of the "
                "large calibrations at a point. Where that is near the band's sd, as it is for California, none of "
                "them is a truth by itself, and the mean of two is uncertain by 0.7 of it.",
            ),
        ),
        findings=(
            f"Coverage of the nominal {LEVEL:.0%} band lies between {min(judged):.2f} and {max(judged):.2f}, "
            f"{sum(c >= ASKED for c in judged)} of {len(judged)} curves at {ASKED} or more; below: "
            f"{', '.join(missed) or 'none'}.{california}",
            f"Pairs kept at {ROWS:,} rows: {pairs}.",
        ),
        seeds=(0,),
        settings={"calibrations": sizes["calibrations"], "rows": ROWS, "rows_of_truth": sizes["many"],
                  "calibrations_of_truth": sizes["truths"], "network": "64-64 SiLU"},
    )  # fmt: skip


if __name__ == "__main__":
    main()
