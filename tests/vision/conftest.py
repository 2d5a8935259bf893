"""Architectures of torchvision, and a small network trained on scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks import architectures


@pytest.fixture
def architecture() -> Callable[..., nn.Module]:
    """A torchvision architecture by its name, with random weights."""
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    return architectures.architecture


@pytest.fixture
def timm_model(architecture: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """A timm model by its name, with random weights."""
    architectures.torchvision_models()  # timm imports torchvision, which has to be helped first
    timm = pytest.importorskip("timm", reason="timm is not installed")

    def make(name: str, **options: Any) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: nn.Module = timm.create_model(name, pretrained=False, num_classes=5, **options)
        return model.eval()

    return make


@dataclass(frozen=True)
class Digits:
    """A trained network with the images it was not trained on."""

    model: nn.Sequential
    train: Tensor
    test: Tensor
    labels: Tensor


@pytest.fixture(scope="session")
def digits() -> Digits:
    """A convolutional network that reads handwritten digits, trained in a few seconds."""
    data = load_digits()
    pictures = torch.from_numpy(data.images)[:, None].float() / 16
    classes = torch.from_numpy(data.target)
    train, test = slice(0, 1400), slice(1400, None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(24, 10),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(12):
            for rows in torch.randperm(1400).split(100):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(pictures[rows]), classes[rows]).backward()
                optimizer.step()
    model.zero_grad(set_to_none=True)
    return Digits(model.eval(), pictures[train], pictures[test], classes[test])
