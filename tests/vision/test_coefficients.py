"""Coefficients are those of Algorithm 1, channel by channel, and the head's own weights in the limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nobsp.vision import NObSPCam
from nobsp.vision.channels import ChannelMeans
from nobsp.vision.grid import pooled
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
    cam = NObSPCam(averaged(channels=12), ridge=ridge, batch_size=13).fit(x)
    expected = one_by_one(*units_and_logits(cam, x), ridge)
    np.testing.assert_allclose(cam.coefficients_, expected, rtol=0, atol=CONTRIBUTIONS * np.abs(expected).max())


@pytest.mark.parametrize("how", ["max", "concat"])
def test_other_poolings_are_regressed_unit_by_unit_as_well(how: str) -> None:
    x = images(80)
    cam = NObSPCam(made(Functional(how))).fit(x)
    expected = one_by_one(*units_and_logits(cam, x), 1e-4)
    np.testing.assert_allclose(cam.coefficients_, expected, rtol=0, atol=CONTRIBUTIONS * np.abs(expected).max())


def test_a_layer_chosen_by_the_caller_is_regressed_by_algorithm_1() -> None:
    x = images(80)
    cam = NObSPCam(averaged(), layer="body.1").fit(x)
    expected = one_by_one(*units_and_logits(cam, x), 1e-4)
    np.testing.assert_allclose(cam.coefficients_, expected, rtol=0, atol=CONTRIBUTIONS * np.abs(expected).max())


def test_the_ridge_can_be_relative() -> None:
    x = images(80)
    cam = NObSPCam(averaged(), ridge=1e-2, ridge_scale="relative").fit(x)
    units, logits = units_and_logits(cam, x)
    centred = units - units.mean(0)
    amount = 1e-2 * float(centred.square().sum()) / units.shape[1]
    np.testing.assert_allclose(cam.coefficients_, one_by_one(units, logits, amount), rtol=1e-9)


def test_with_enough_images_and_no_ridge_they_are_the_weights_of_the_head() -> None:
    model = averaged()
    cam = NObSPCam(model, ridge=0.0).fit(images(60))
    np.testing.assert_allclose(cam.coefficients_, model.head.weight.detach().numpy().T, rtol=1e-9, atol=SUMS)


def test_the_weights_of_the_head_need_only_means() -> None:
    model = averaged()
    cam = NObSPCam(model, coefficients="head", batch_size=7).fit(images(60))
    state = cam._fitted.calibration
    assert isinstance(state, ChannelMeans)
    units, _ = units_and_logits(cam, images(60))
    torch.testing.assert_close(state.means.mean, units.mean(0), rtol=SUMS, atol=PASS)
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
    cam = NObSPCam(averaged(channels=24), ridge=1e-8).fit(images(20))
    health = cam.health()
    assert not health.healthy
    assert "Fewer samples than channels (20 ≤ 24)" in str(health)
    assert "shrink towards zero" in str(health)
    weights = cam.model.head.weight.detach().numpy()
    assert np.abs(cam.coefficients_).max() < 0.5 * np.abs(weights).max()
    assert NObSPCam(averaged(channels=24), ridge=1e-8).fit(images(400)).health().healthy


# ---------------------------------------------------------------------- layers between map and head


def representation(model: nn.Module, pooled_rows: Tensor) -> Tensor:
    """What the layers between map and head make of the pooled map: z, from the penultimate layer."""
    with torch.no_grad():
        return model.act(model.hidden(pooled_rows.flatten(1)))


def by_definition(model: nn.Module, rows: Tensor, ridge: float) -> NDArray[np.float64]:
    """Contributions (images, channels, classes) by Algorithm 1 with channels as features, step by step."""
    with torch.no_grad():
        logits = model.head(representation(model, rows))
    rest = rows.mean(0)
    parts = []
    for c in range(rows.shape[1]):
        alone, others = rest.expand_as(rows).clone(), rows.clone()
        alone[:, c], others[:, c] = rows[:, c], rest[c]
        z, reference = representation(model, alone), representation(model, others)
        beta = algorithm_1(z, reference, logits, (ridge, ridge))
        parts.append((z - z.mean(0)).numpy() @ beta)
    return np.stack(parts, axis=1)


@pytest.mark.parametrize("pooled_first", [True, False])
def test_a_fully_connected_head_equals_the_general_algorithm(pooled_first: bool) -> None:
    model, x = through_layers(pooled=pooled_first), images(120)
    with torch.no_grad():
        rows = model.pool(model.body(x))
    expected = by_definition(model, rows, 1e-4)
    cam = NObSPCam(model).fit(x)
    assert cam.route_ == "tail"
    classes = np.tile(np.arange(3), (len(x), 1))
    found = cam(x, target=classes).contributions.transpose(0, 2, 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=CONTRIBUTIONS * np.abs(expected).max())


def test_layers_between_map_and_head_with_the_weights_of_the_head() -> None:
    model, x = through_layers(), images(60)
    with torch.no_grad():
        rows = model.pool(model.body(x))
    alone = rows.mean(0).expand_as(rows).clone()
    alone[:, 2] = rows[:, 2]
    z = representation(model, alone)
    expected = (z - z.mean(0)) @ model.head.weight.detach().T
    found = NObSPCam(model, coefficients="head").fit(x)(x, target=1).contributions[:, 2]
    np.testing.assert_allclose(found, expected[:, 1].numpy(), rtol=1e-9, atol=SUMS)


def test_a_representation_wider_than_the_images_are_many_is_diagnosed() -> None:
    health = NObSPCam(through_layers(hidden=40)).fit(images(30)).health()
    assert "Fewer samples than the representation is wide (30 ≤ 40)" in str(health)


def test_a_linear_layer_between_pooling_and_head_changes_nothing_at_full_order() -> None:
    # Two linear layers in a row are one, so the contributions are those of the product of their weights.
    model = through_layers(channels=5, hidden=5)
    model.act = nn.Identity()
    x = images(200)
    found = NObSPCam(model, coefficients="head").fit(x)(x, target=0)
    assert np.abs(found.residual).max() < CONTRIBUTIONS
