"""Known functions: a network is trained on their sum, and gives them back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nobsp.demo.training import seeded, train
from nobsp.metrics import function_reproduction
from nobsp.reporting import report
from nobsp.tabular import NObSP

Array = NDArray[np.float64]

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "x1": np.abs,
    "x2": lambda x: x**3,
    "x3": np.exp,
    "x4": lambda x: np.sin(2 * x),
    "x5": lambda x: 0.0 * x,
}
FORMULAS = {"x1": "|x₁|", "x2": "x₂³", "x3": "exp x₃", "x4": "sin 2x₄", "x5": "nothing"}
SAMPLES, TRAINING, NOISE = 1000, 800, 0.01


@dataclass(frozen=True, eq=False)
class Synthetic:
    """What was found."""

    accuracy: float
    recovered: dict[str, float]
    null: float
    held_out: float
    explained: float
    curves: dict[str, tuple[Array, Array, Array]]

    @property
    def mean(self) -> float:
        """Mean R² of the recovered functions."""
        return float(np.mean(list(self.recovered.values())))


def run(page: Path, *, epochs: int) -> Synthetic:
    """Trains, explains, scores against the truth, and writes the page."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, size=(SAMPLES, len(FUNCTIONS)))
    true = np.column_stack([function(x[:, k]) for k, function in enumerate(FUNCTIONS.values())])
    y = true.sum(1) + NOISE * rng.normal(size=SAMPLES)
    rows, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    with seeded(0):
        network = nn.Sequential(
            nn.Linear(len(FUNCTIONS), 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        train(network, rows[:TRAINING], targets[:TRAINING], loss=nn.functional.mse_loss, epochs=epochs)
    explainer = NObSP(network, features=list(FUNCTIONS), output_names=["y"]).fit(rows[:TRAINING])
    explanation = explainer(x[TRAINING:])
    single = explanation.values[:, : len(FUNCTIONS), 0]
    outputs = explanation.predictions[:, 0]
    scores = function_reproduction(single, true[TRAINING:], outputs=outputs, feature_names=FUNCTIONS)
    report(
        explanation,
        page,
        title="Known functions, recovered from a network",
        about=f"A network with two hidden layers saw {TRAINING} samples of y = |x1| + x2³ + exp x3 + sin 2x4 + noise, "
        "and a fifth column that plays no part. Dashed lines are the functions that made the data; the network was "
        "never told them.",
        labels=y[TRAINING:],
        truth=FUNCTIONS,
    )
    error = float(np.mean((outputs - y[TRAINING:]) ** 2) / np.var(y[TRAINING:]))
    return Synthetic(
        accuracy=1.0 - error,
        recovered={name: float(r2) for name, r2 in zip(FUNCTIONS, scores.r2, strict=True) if np.isfinite(r2)},
        null=scores.mean_null_attribution / float(outputs.std()),
        held_out=float(explainer.explained_[0]),
        explained=float(explanation.explained()[0]),
        curves=_curves(explainer, x[TRAINING:]),
    )


def _curves(explainer: NObSP, rows: Array) -> dict[str, tuple[Array, Array, Array]]:
    grid = np.linspace(-2.0, 2.0, 81)
    curves = {}
    for k, (name, function) in enumerate(FUNCTIONS.items()):
        learned = explainer.function(name)
        here, there = learned(grid) - learned(rows[:, k]).mean(), function(grid) - function(rows[:, k]).mean()
        curves[name] = (grid, here, there)
    return curves
