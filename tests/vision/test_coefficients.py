"""Coefficients are those of Algorithm 1, channel by channel, and the head's own weights in the limit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.vision import NObSPCam
from nobsp.vision.feature_map import pooled
from nobsp.vision.means import MapMeans
from tests.projection.oracles import algorithm_1
from tests.tolerances import CONTRIBUTIONS, PASS, SUMS
from tests.vision.networks import Functional, averaged, images, made, through_layers


def units_and_logits(cam: NObSPCam, x: Tensor) -> tuple[Tensor, Tensor]:
    feature_map = cam._fitted.feature_map
    with feature_map.running() as forward:
        found = forward(x)
    return pooled(found.maps, feature_map.pooling), found.logits


def one_by_one(units: Tensor, logits: Tensor, ridge: float) -> NDArray[np.float64]:
    """The paper's Algorithm 1, run for each unit against all the others, on raw rows."""
    rows = []
    for k in range(units.shape[1]):
        others = [j for j in range(units.shape[1]) if j != k]
        rows.append(algorithm_1(units[:, [k]], units[:, others], logits, (ridge, ridge))[0])
    return np.array(rows)


@pytest.mark.parametrize("ridge", [1e-4, 1e-2, 1.0])
def test_coefficients_are_those_of_algorithm_1_channel_by_channel(ridge: float) -> None:
    x = images(80)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the strongest of them leaves little of the logits
        cam = NObSPCam.as_published(averaged(channels=12), ridge=ridge, batch_size=13).fit(x)
    expected = one_by_one(*units_and_logits(cam, x), ridge)
    np.testing.assert_allclose(
        cam.coefficients_, expected, rtol=0, atol=CONTRIBUTIONS * np.abs(expected).max()
    )


@pytest.mark.parametrize("how", ["max", "concat"])
def test_other_poolings_are_regressed_unit_by_unit_as_well(how: str) -> None:
    x = images(80)
    cam = NObSPCam.as_published(made(Functional(how))).fit(x)
    expected = one_by_one(*units_and_logits(cam, x), 1e-4)
    np.testing.assert_allclose(
        cam.coefficients_, expected, rtol=0, atol=CONTRIBUTIONS * np.abs(expected).max()
    )


def test_the_ridge_can_be_relative() -> None:
    x = images(80)
    cam = NObSPCam.as_published(averaged(), ridge=1e-2, ridge_scale="relative").fit(x)
    units, logits = units_and_logits(cam, x)
    centred = units - units.mean(0)
    amount = 1e-2 * float(centred.square().sum()) / units.shape[1]
    np.testing.assert_allclose(cam.coefficients_, one_by_one(units, logits, amount), rtol=1e-9)


def test_with_enough_images_and_no_ridge_they_are_the_weights_of_the_head() -> None:
    model = averaged()
    cam = NObSPCam.as_published(model, ridge=0.0).fit(images(60))
    np.testing.assert_allclose(
        cam.coefficients_, model.head.weight.detach().numpy().T, rtol=1e-9, atol=SUMS
    )


def test_the_weights_of_the_head_need_only_means() -> None:
    model = averaged()
    cam = NObSPCam(model, coefficients="head", batch_size=7).fit(images(60))
    state = cam._fitted.calibration
    assert isinstance(state, MapMeans)
    units, _ = units_and_logits(cam, images(60))
    torch.testing.assert_close(state.units, units.mean(0), rtol=SUMS, atol=PASS)
    np.testing.assert_array_equal(cam.coefficients_, model.head.weight.detach().numpy().T)


def test_a_null_channel_contributes_nothing() -> None:
    model = averaged()
    with torch.no_grad():
        model.body[2].weight[3] = 0.0
        model.body[2].bias[3] = -1.0  # rectified to zero everywhere
        model.head.weight[:, 4] = 0.0  # alive, but the head does not listen
    x = images(200)
    for coefficients in ("calibrated", "head"):
        found = NObSPCam(model, coefficients=coefficients, ridge=1e-8).fit(x)(x[:9]).contributions
        assert np.abs(found[:, 3]).max() == 0.0
        assert np.abs(found[:, 4]).max() < 1e-6 * np.abs(found).max()


def test_fewer_images_than_channels_are_diagnosed() -> None:
    with pytest.warns(UserWarning, match="Fewer samples than channels"):
        cam = NObSPCam.as_published(averaged(channels=24), ridge=1e-8).fit(images(20))
    health = cam.health()
    assert not health.healthy
    assert "Fewer samples than channels (20 ≤ 24)" in str(health)
    assert "shrink towards zero" in str(health)
    weights = cam.model.head.weight.detach().numpy()
    assert np.abs(cam.coefficients_).max() < 0.5 * np.abs(weights).max()
    assert (
        NObSPCam.as_published(averaged(channels=24), ridge=1e-8).fit(images(400)).health().healthy
    )


def test_layers_between_map_and_head_have_no_coefficients() -> None:
    with pytest.raises(ValueError, match="its channels have no coefficients"):
        NObSPCam.as_published(through_layers()).fit(images(60))
    with pytest.raises(AttributeError, match="have no coefficients"):
        NObSPCam(through_layers()).fit(images(60)).coefficients_  # noqa: B018
