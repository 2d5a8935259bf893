"""Breast cancer cells: what a network has learned to call malignant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn

from nobsp.demo.training import Standardised, seeded, train
from nobsp.neighbors import ContributionIndex
from nobsp.reporting import report
from nobsp.tabular import NObSP


@dataclass(frozen=True, eq=False)
class Cancer:
    """What was found."""

    accuracy: float
    fresh: int
    held_out: float
    explained: float
    pairs: int
    strongest: tuple[tuple[str, float], ...]


def run(page: Path, *, epochs: int) -> Cancer:
    """Trains, explains fresh cells, looks up their neighbours, and writes the page."""
    data = load_breast_cancer(as_frame=False)
    names = [str(name) for name in data.feature_names]
    malignant = (data.target == 0).astype(np.int64)
    x, fresh, y, truth = train_test_split(data.data, malignant, test_size=0.3, random_state=0, stratify=malignant)
    rows, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    with seeded(0):
        network = nn.Sequential(
            Standardised(rows), nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1)
        )
        train(
            network,
            rows,
            targets,
            loss=nn.functional.binary_cross_entropy_with_logits,
            epochs=epochs,
            rate=2e-3,
            decay=1.0,
        )
    explainer = NObSP(network, features=names, output_names=["malignant"]).fit(x)
    explanation = explainer(fresh)
    index = ContributionIndex(explainer, task="classification").fit(x, y)
    hits = index.query(fresh, k=8)
    right = (explanation.predictions[:, 0] > 0) == (truth == 1)
    report(
        explanation,
        page,
        title="What makes a cell look malignant",
        about=f"A network with two hidden layers, trained on {len(x)} cells of the Wisconsin breast cancer data and "
        f"explained on the {len(fresh)} others. Positive contributions speak for malignant. What is explained is the "
        "network, not the disease.",
        labels=truth,
        class_names=["benign", "malignant"],
        hits=hits,
    )
    sizes = np.abs(explanation.total()[:, :, 0]).mean(0)
    order = np.argsort(-sizes)
    return Cancer(
        accuracy=float(right.mean()),
        fresh=len(fresh),
        held_out=float(explainer.explained_[0]),
        explained=float(explanation.explained()[0]),
        pairs=sum(len(term) > 1 for term in explainer.terms_),
        strongest=tuple((names[k], float(sizes[k])) for k in order[:6]),
    )
