"""A linear head on activations, and small networks on tables and images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nobsp import NObSP, NObSPCam


@dataclass(frozen=True)
class Headed:
    """A linear head with activations of known labels.

    Attributes:
        head: The head.
        database: Activations, shape (rows, width).
        labels: Their labels.
        queries: Other activations.
        truth: Their labels.
    """

    head: nn.Linear
    database: Tensor
    labels: NDArray[np.int64]
    queries: Tensor
    truth: NDArray[np.int64]

    def evidence(self, rows: Tensor) -> NDArray[np.float64]:
        """w_c ⊙ (z − z̄) by definition, shape (rows, classes, width)."""
        weight = self.head.weight.detach().double().numpy()
        mean = self.database.double().numpy().mean(0)
        return weight[None] * (rows.double().numpy() - mean)[:, None]

    def predicted(self, rows: Tensor) -> NDArray[np.int64]:
        weight, bias = self.head.weight.detach().double(), self.head.bias.detach().double()
        return (rows.double() @ weight.T + bias).argmax(1).numpy()


def headed(rows: int = 400, width: int = 12, classes: int = 4, *, seed: int = 0) -> Headed:
    """Rectified activations around a centre per class, with a column that does not vary."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=generator)

    def drawn(count: int) -> tuple[Tensor, NDArray[np.int64]]:
        labels = torch.randint(classes, (count,), generator=generator)
        activations = (
            centres[labels] + 1.5 * torch.randn(count, width, generator=generator)
        ).relu()
        activations[:, 3] = 1.5
        return activations, labels.numpy()

    head = nn.Linear(width, classes)
    with torch.no_grad():
        head.weight.copy_(centres + 0.3 * torch.randn(classes, width, generator=generator))
        head.bias.copy_(-centres.relu().square().sum(1) / 2)
    database, labels = drawn(rows)
    queries, truth = drawn(40)
    return Headed(head, database, labels, queries, truth)


@dataclass(frozen=True)
class Explained:
    """A fitted explainer with rows and labels."""

    explainer: Any
    rows: Tensor
    labels: NDArray[np.int64]
    queries: Tensor


def on_a_table() -> Explained:
    """Three classes of a small network on five columns."""
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    X = torch.randn(300, 5, generator=generator, dtype=torch.float64)
    labels = (
        (model(X) + torch.randn(300, 3, generator=generator, dtype=torch.float64) / 3)
        .argmax(1)
        .numpy()
    )
    explainer = NObSP(model, interactions=0).fit(X)
    return Explained(
        explainer, X, labels, torch.randn(20, 5, generator=generator, dtype=torch.float64)
    )


def on_images() -> Explained:
    """Four classes of a small convolutional network."""
    generator = torch.Generator().manual_seed(2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        model = nn.Sequential(body, nn.Linear(6, 4)).double()
    images = torch.randn(120, 3, 8, 8, generator=generator, dtype=torch.float64)
    labels = model(images).argmax(1).numpy()
    cam = NObSPCam(model).fit(images)
    return Explained(
        cam, images, labels, torch.randn(10, 3, 8, 8, generator=generator, dtype=torch.float64)
    )
