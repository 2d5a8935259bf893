"""Real architectures, calibrated and asked: the account of a map adds up to the logit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from nobsp.vision import NObSPCam
from tests.vision.networks import images


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "mobilenet_v2",
        "efficientnet_b0",
        "regnet_y_400mf",
        "densenet121",
        "squeezenet1_1",
        "swin_t",
    ],
)
def test_the_account_of_a_real_network_adds_up(
    name: str, architecture: Callable[..., nn.Module]
) -> None:
    model = architecture(name, classes=7)
    x = images(6, size=64, dtype=torch.float32)
    with torch.no_grad():
        logits = model(x).double().numpy()

    maps = NObSPCam(model, coefficients="head").fit(x)(x[:3], target=[0, 3, 6])

    found = maps.account.mean((1, 2)) + np.ravel(maps.residual)
    expected = (logits - logits.mean(0))[[0, 1, 2], [0, 3, 6]]
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(logits).max())


def test_a_timm_transformer_with_averaged_tokens_adds_up(
    timm_model: Callable[..., nn.Module],
) -> None:
    model = timm_model("vit_tiny_patch16_224", global_pool="avg", fc_norm=False, img_size=64)
    x = images(6, size=64, dtype=torch.float32)
    with torch.no_grad():
        logits = model(x).double().numpy()

    maps = NObSPCam(model, coefficients="head").fit(x)(x[:3], target=4)

    assert maps.account.shape == (3, 4, 4)
    found = maps.account.mean((1, 2)) + np.ravel(maps.residual)
    np.testing.assert_allclose(
        found, (logits - logits.mean(0))[:3, 4], atol=1e-4 * np.abs(logits).max()
    )
