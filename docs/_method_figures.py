"""Draws the figures of docs/method.md: what averaging over a background does, and what rows correct.

python docs/_method_figures.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from _front import save

import nobsp

OUT = Path(__file__).parent / "pictures"
BLUE, ORANGE, GREY = "#1f7fd1", "#e8590c", "#8a8f98"
ROWS = 1000


def draw_background() -> None:
    """A cut through single rows, and their average."""

    def model(rows: np.ndarray) -> np.ndarray:
        return np.tanh(2 * rows[:, 0]) + 0.6 * rows[:, 0] * rows[:, 1]

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS, 2))
    explainer = nobsp.NObSP(model, features=["x", "other"], output_names=["f"]).fit(rows)
    x = np.linspace(-2, 2, 101)
    cuts = np.stack([model(np.column_stack([x, np.full_like(x, row[1])])) for row in rows[:32]])

    figure = plt.figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.plot(x, cuts.T, color=GREY, linewidth=0.7)
    left.plot(x, cuts.mean(0), color=BLUE, linewidth=2.5)
    left.set_title("32 background rows, each with x moved, and their mean", fontsize=10)
    right.plot(x, explainer["x"](x), color=BLUE, linewidth=2.5, label="function of x")
    right.plot(x, np.tanh(2 * x), color="black", linestyle=":", label="tanh 2x")
    right.set_title("what was learned; the rest is the pair's", fontsize=10)
    right.legend(frameon=False)
    for ax in (left, right):
        ax.set_xlabel("x")
    save(figure, OUT / "method-background.png")
    plt.close(figure)


def train_network(rows: np.ndarray, targets: np.ndarray) -> torch.nn.Module:
    """A small network, trained on the rows."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 1),
    )
    inputs = torch.tensor(rows, dtype=torch.float32)
    wanted = torch.tensor(targets, dtype=torch.float32)[:, None]
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(60):
        for batch in torch.randperm(len(inputs)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(network(inputs[batch]), wanted[batch]).backward()
            optimizer.step()
    return network.eval()


def draw_correction() -> None:
    """Partial dependence of correlated features, and what held-out rows make of it."""
    rng = np.random.default_rng(0)
    rows = rng.multivariate_normal([0, 0], [[1, 0.9], [0.9, 1]], size=2 * ROWS)
    network = train_network(rows[:ROWS], np.sin(1.5 * rows[:ROWS, 0]) + rows[:ROWS, 1])
    rows = rows[ROWS:]
    options = {"features": ["x", "other"], "output_names": ["f"], "interactions": 0}
    fitted = nobsp.NObSP(network, **options).fit(rows)
    average = nobsp.NObSP(network, ridge=1e4, **options).fit(rows)
    x = np.linspace(-2.2, 2.2, 101)
    truth = np.sin(1.5 * x)

    figure = plt.figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.scatter(*rows.T, s=4, color=GREY)
    left.set_title("rows of a network's table: correlation 0.9", fontsize=10)
    left.set_xlabel("x")
    left.set_ylabel("other")
    for label, explainer, colour in (
        ("average effect", average, GREY),
        ("corrected", fitted, BLUE),
    ):
        share = explainer.health().explained[0]
        curve = explainer["x"](x)
        right.plot(x, curve - curve.mean(), color=colour, label=f"{label}: R² {share:.3f}")
    right.plot(x, truth - truth.mean(), color="black", linestyle=":", label="sin 1.5x")
    right.set_title("the function of x, and held-out R² of all", fontsize=10)
    right.set_xlabel("x")
    right.legend(frameon=False)
    save(figure, OUT / "method-correction.png")
    plt.close(figure)


if __name__ == "__main__":
    draw_background()
    draw_correction()
