"""A model must be a function of its row: what is none is refused, and random numbers are put back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nobsp
from nobsp.network.readout import NotAFunctionError


class CentredOnItsBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y - y.mean(0)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.layers(x), 0.5, training=True)


def noisy_function(rows: Any) -> Any:
    return rows[:, 0] + np.random.default_rng().normal(size=len(rows))


def globally_noisy_function(rows: Any) -> Any:
    return rows[:, 0] + np.random.normal(size=len(rows))  # noqa: NPY002 - the global one is meant


def function_of_the_batch(rows: Any) -> Any:
    return rows[:, 0] - rows[:, 0].mean()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (CentredOnItsBatch(), "other rows"),
        (
            nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False)),
            "other rows",
        ),
        (function_of_the_batch, "other rows"),
        (Dropping(), "not deterministic"),
        (noisy_function, "not deterministic"),
        (globally_noisy_function, "not deterministic"),
    ],
)
def test_a_model_that_is_no_function_of_its_row_is_refused(model: Any, reason: str) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3))
    state = torch.get_rng_state()
    with pytest.raises(NotAFunctionError, match=reason):
        nobsp.NObSP(model).fit(rows)
    assert torch.equal(torch.get_rng_state(), state)


def test_maps_of_a_model_that_mixes_its_batch_are_refused() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )
    with pytest.raises(NotAFunctionError):
        nobsp.NObSPCam(network).fit(torch.rand(12, 1, 8, 8))
