"""The account and the loss of regions together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nobsp.vision import NObSPCam
from tests.vision.networks import averaged, images, made, through_layers


def test_a_region_s_loss_is_that_of_the_network_without_it() -> None:
    model, given = averaged(), images(6)
    cam = NObSPCam(model).fit(images(20, seed=1))
    found = cam.thorough(given, 2, regions=3)
    blurred = nn.functional.interpolate(
        nn.functional.adaptive_avg_pool2d(given, 3), size=(12, 12), mode="bilinear"
    )
    without = given.clone()
    without[:, :, 4:8, 8:] = blurred[:, :, 4:8, 8:]  # the region in the second row, third column
    with torch.no_grad():
        before, after = (torch.logit(model(x).softmax(1)[:, 2]) for x in (given, without))
    assert found.removal[:, 1, 2] == pytest.approx((before - after).numpy(), abs=1e-10)
    assert found.passes == 10


def test_both_parts_have_one_scale() -> None:
    cam = NObSPCam(through_layers()).fit(images(20, seed=1))
    found = cam.thorough(images(4), regions=4)

    def scaled(maps: np.ndarray) -> np.ndarray:
        return (maps - maps.mean((1, 2), keepdims=True)) / maps.std((1, 2), keepdims=True)

    assert found.thorough == pytest.approx(scaled(found.account) + scaled(found.removal), abs=1e-10)
    assert found.overlay(images(4)).shape == (4, 12, 12, 3)


def test_only_regions_that_the_account_ranks_high_are_tried() -> None:
    cam = NObSPCam(averaged()).fit(images(20, seed=1))
    every, some = cam.thorough(images(4), regions=4), cam.thorough(images(4), regions=4, most=5)
    assert some.passes == 6
    for row in range(4):
        tried = np.argsort(-some.account[row].ravel())[:5]
        left = np.setdiff1d(np.arange(16), tried)
        assert some.removal[row].ravel()[tried] == pytest.approx(
            every.removal[row].ravel()[tried], abs=1e-10
        )
        assert not some.removal[row].ravel()[left].any()


def test_signals_have_regions() -> None:
    body = nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    given = torch.randn(9, 2, 21, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cam = NObSPCam(made(nn.Sequential(body, nn.Linear(6, 3)))).fit(given)
    assert cam.thorough(given).thorough.shape == (9, 7)
    with pytest.raises(ValueError, match="regions must be"):
        cam.thorough(given, regions=0)
