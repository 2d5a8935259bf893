"""Was the model trained on the calibration rows? A guess from rows made by swapping columns with near rows.

A model knows the noise of its training rows by heart, not that of rows beside them. So the headline is compared with R²
on rows of which half of the columns are those of one of five near neighbours (swapped), or of any other row (crossed),
for models that were trained on the calibration rows and for the same models calibrated on others, with independent and
with correlated columns. A finding could rest on it if one threshold told the two apart whatever the correlation.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.report import Column, Report, Table, options, progress, publish
from nobsp import NObSP

Array = NDArray[np.float64]

ROWS = 1000
COLUMNS = 20
FRESH_ROWS = 3000
CORRELATIONS = (0.0, 0.5, 0.9)
SEEDS = (0, 1, 2)
MODELS = ("network", "XGBoost")
NEIGHBOURS = 5
# Rows made by swapping.
SWAPPED_ROWS = 3000


@dataclass(frozen=True)
class Outcome:
    """R² of the same functions, by what they are judged on."""

    headline: float
    swapped: float
    crossed: float
    fresh: float


def draw(generator: np.random.Generator, count: int, correlation: float) -> Array:
    """Rows whose columns share one cause."""
    common = generator.normal(size=(count, 1))
    own = generator.normal(size=(count, COLUMNS))
    return np.asarray(np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own)


def train(model: str, rows: Array, targets: Array, seed: int) -> Any:
    """A model that knows its rows by heart."""
    if model == "XGBoost":
        from xgboost import XGBRegressor

        trees = XGBRegressor(n_estimators=60, max_depth=6, n_jobs=1, random_state=seed)
        return trees.fit(rows, targets)
    from sklearn.neural_network import MLPRegressor

    network = MLPRegressor(
        hidden_layer_sizes=(64, 64), alpha=0, max_iter=200, tol=0, random_state=seed
    )
    return network.fit(rows, targets)


def swap_columns(rows: Array, partners: NDArray[np.intp], generator: np.random.Generator) -> Array:
    """Rows with half of the columns, drawn for each row, of one of its partners."""
    chosen = generator.integers(0, len(rows), SWAPPED_ROWS)
    partner = partners[chosen, generator.integers(0, partners.shape[1], SWAPPED_ROWS)]
    is_swapped = generator.random((SWAPPED_ROWS, rows.shape[1])) < 0.5
    return np.where(is_swapped, rows[partner], rows[chosen])


def near_rows(rows: Array) -> NDArray[np.intp]:
    """The nearest rows of every row, itself left out."""
    scaled = torch.from_numpy((rows - rows.mean(0)) / rows.std(0))
    distances = torch.cdist(scaled, scaled).fill_diagonal_(torch.inf)
    return np.asarray(distances.topk(NEIGHBOURS, largest=False).indices.numpy())


def other_rows(rows: Array, generator: np.random.Generator) -> NDArray[np.intp]:
    """Any rows."""
    return generator.integers(0, len(rows), (len(rows), NEIGHBOURS))


def measure(model: str, correlation: float, seed: int, *, trained_on: bool) -> Outcome:
    """One model, calibrated on the rows it was trained on or on others."""
    generator = np.random.default_rng(seed)
    training = draw(generator, ROWS, correlation)
    signal = np.sin(2 * training[:, 0]) + training[:, 1] * training[:, 2] + training[:, 3]
    trained = train(model, training, signal + generator.normal(size=ROWS), seed)

    rows = training if trained_on else draw(generator, ROWS, correlation)
    fresh = draw(generator, FRESH_ROWS, correlation)
    swapped = swap_columns(rows, near_rows(rows), generator)
    crossed = swap_columns(rows, other_rows(rows, generator), generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer = NObSP(trained).fit(rows)
        return Outcome(
            headline=float(explainer.explained_[0]),
            swapped=float(explainer.score(swapped)),
            crossed=float(explainer.score(crossed)),
            fresh=float(explainer.score(fresh)),
        )


Place = tuple[
    str, float, bool
]  # the model, the correlation, and whether it was trained on the calibration rows


def main() -> None:
    chosen = options((__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    seeds = SEEDS[:1] if chosen.quick else SEEDS
    outcomes: dict[Place, list[Outcome]] = {}
    for model, correlation, trained_on in product(MODELS, CORRELATIONS, (True, False)):
        place = model, correlation, trained_on
        for seed in seeds:
            outcome = measure(model, correlation, seed, trained_on=trained_on)
            progress(f"{place}, seed {seed}: {outcome}")
            outcomes.setdefault(place, []).append(outcome)
    publish(report(outcomes, seeds), chosen)


def report(outcomes: dict[Place, list[Outcome]], seeds: tuple[int, ...]) -> Report:
    """The table, a place a row, and how well the loss by swapping tells."""
    rows = []
    losses: dict[bool, list[float]] = {True: [], False: []}
    for (model, correlation, trained_on), measured in outcomes.items():
        losses[trained_on] += [outcome.headline - outcome.swapped for outcome in measured]
        means = [
            float(np.mean([getattr(outcome, part) for outcome in measured]))
            for part in ("headline", "swapped", "crossed", "fresh")
        ]
        calibrated_on = "its training rows" if trained_on else "other rows"
        rows.append((model, correlation, calibrated_on, *means))
    table = Table(
        f"R² of the functions, {ROWS:,} rows × {COLUMNS} columns, mean over {len(seeds)} models each",
        (
            Column("model"),
            Column("correlation", ".1f"),
            Column("calibrated on"),
            Column("headline", ".3f"),
            Column("swapped", ".3f"),
            Column("crossed", ".3f"),
            Column("fresh", ".3f"),
        ),
        tuple(rows),
    )
    return Report(
        name="swapped",
        title="Was the model trained on the calibration rows? A guess by swapping columns",
        tables=(table,),
        findings=(separation(losses[True], losses[False]),),
        seeds=seeds,
        packages=("scikit-learn",),
    )


def separation(trained_on: list[float], others: list[float]) -> str:
    """How well the loss by swapping tells training rows from others."""
    pairs = [(mine, theirs) for mine in trained_on for theirs in others]
    right = float(np.mean([(mine > theirs) + 0.5 * (mine == theirs) for mine, theirs in pairs]))
    caught = float(np.mean([loss > max(others) for loss in trained_on]))
    return (
        f"The loss by swapping is larger on training rows than on others in {right:.0%} of all pairs of models; with a "
        f"threshold that no calibration on other rows exceeds ({max(others):.3f}), {caught:.0%} of those on training "
        "rows are noticed."
    )


if __name__ == "__main__":
    main()
