"""Layers between map and head: calibrated in seconds, silent for no longer than a minute, with advice that helps."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nobsp.vision import NObSPCam, tail
from nobsp.vision.find_map import find_map
from nobsp.vision.tail import TailCalibration, TailEvidence, row_basis
from tests.projection.oracles import algorithm_1, normal
from tests.tolerances import CONTRIBUTIONS, SUMS
from tests.vision.networks import images, through_layers
from tests.vision.test_isolation import like_vgg


def evidence_of(cam: NObSPCam) -> TailEvidence:
    evidence = cam._fitted.evidence
    assert isinstance(evidence, TailEvidence)
    return evidence


def test_mobilenet_v3_is_calibrated_in_seconds_and_its_account_adds_up(
    architecture: Callable[..., nn.Module],
) -> None:
    model, x = architecture("mobilenet_v3_small"), images(12, size=64, dtype=torch.float32)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None  # with statistics of its own, so that activations do not vanish
    with torch.no_grad():
        model.train()(x)
    model.eval()
    began = time.process_time()
    cam = NObSPCam(model).fit(x)
    maps = cam(x[:3], target=2)
    assert time.process_time() - began < 30  # a factorisation as wide as the representation would take 100 and more
    np.testing.assert_allclose(
        maps.account.mean((1, 2)), maps.contributions.sum(1), rtol=1e-6, atol=1e-9 * np.abs(maps.contributions).max()
    )
    centred = maps.logits[:, 2] - maps.base_values[2]
    np.testing.assert_allclose(maps.account.mean((1, 2)) + maps.residual, centred, rtol=CONTRIBUTIONS, atol=SUMS)
    # 576 channels, and a curve each that is nearly straight; not as many directions as images.
    assert float(evidence_of(cam).ranks.double().mean()) < 6


@pytest.mark.parametrize("count", [5, 60])
def test_two_hidden_layers_behind_a_flattened_map_equal_the_general_algorithm(count: int) -> None:
    model, x = like_vgg(), images(count)
    with torch.no_grad():
        rows = model.pool(model.body(x))

        def representation(maps: Tensor) -> Tensor:
            return model.act2(model.two(model.act(model.one(maps.flatten(1)))))

        logits, rest = model(x), rows.mean(0)
        expected = []
        for channel in range(rows.shape[1]):
            only, but = rest.expand_as(rows).clone(), rows.clone()
            only[:, channel], but[:, channel] = rows[:, channel], rest[channel]
            z = representation(only)
            beta = algorithm_1(z, representation(but), logits, (1e-4, 1e-4))
            expected.append((z - z.mean(0)).numpy() @ beta)
    cam = NObSPCam(model).fit(x)
    found = cam(x, target=np.tile(np.arange(3), (count, 1))).contributions
    whole = np.stack(expected, axis=2)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-8 * np.abs(whole).max())


def test_rounding_of_a_model_in_single_precision_is_no_direction() -> None:
    model = through_layers(hidden=9)
    model.act = nn.Identity()  # a channel then moves the representation along a straight line
    cam = NObSPCam(model.float()).fit(images(40, dtype=torch.float32))
    assert evidence_of(cam).ranks.tolist() == [1] * 5


@pytest.mark.parametrize("rank", [3, 60])
def test_a_basis_holds_every_direction_that_is_used(rank: int) -> None:
    rows = normal(0, 150, rank) @ normal(1, rank, 130)
    basis = row_basis(rows)
    assert basis.shape == (130, rank)
    torch.testing.assert_close(rows @ basis @ basis.T, rows, rtol=0, atol=1e-9 * float(rows.abs().max()))


@pytest.mark.parametrize("shape", [(150, 130), (130, 150), (40, 90)])
def test_a_basis_leaves_out_nothing_but_rounding(shape: tuple[int, int]) -> None:
    strength = torch.logspace(0, -5, 70, dtype=torch.float64)
    rows = (normal(0, shape[0], 70) * strength) @ normal(1, 70, shape[1])
    single = rows.float().double()
    rounding = 2 * torch.finfo(torch.float32).eps * float(torch.linalg.vector_norm(rows))
    basis = row_basis(single, rounding=rounding)
    torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1], dtype=torch.float64), rtol=0, atol=SUMS)
    left = torch.linalg.vector_norm(single - single @ basis @ basis.T)
    assert float(left) <= rounding * 2
    assert basis.shape[1] <= 70


# ---------------------------------------------------------------------- how many images are kept


def test_more_images_are_kept_than_the_representation_is_wide(architecture: Callable[..., nn.Module]) -> None:
    model, x = architecture("alexnet"), images(2, size=224, dtype=torch.float32)
    with torch.no_grad():
        feature_map = find_map(model, x)
    width = feature_map.head.weight.shape[1]
    assert width == 4096
    assert TailCalibration.start(feature_map, "calibrated").room > width
    assert TailCalibration.start(feature_map, "head").room == 256


def test_advice_to_use_more_images_can_be_followed() -> None:
    said = str(NObSPCam(through_layers(hidden=40)).fit(images(30)).health())
    assert "Calibrate on more than 40 images" in said
    assert "Fewer samples" not in str(NObSPCam(through_layers(hidden=40)).fit(images(41)).health())


def test_where_more_images_would_not_be_kept_the_weights_of_the_head_are_advised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "KEPT_BYTES", 30 * 4 * 9 * 8)  # thirty maps of four channels in double precision
    x = images(50)
    said = str(NObSPCam(like_vgg()).fit(x).health())
    assert "Fewer samples" not in said
    monkeypatch.setattr(tail, "KEPT_BYTES", 6 * 4 * 9 * 8)
    said = str(NObSPCam(like_vgg()).fit(x).health())
    assert "(6 ≤ 7)" in said
    assert 'No more than 6 maps of this size are kept. Use coefficients="head".' in said
    assert "Calibrate on more" not in said
    assert "Fewer samples" not in str(NObSPCam(like_vgg(), coefficients="head").fit(x).health())


# ---------------------------------------------------------------------- how long it takes


def test_a_long_solution_is_announced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    x = images(30)
    NObSPCam(like_vgg()).fit(x)
    assert not caplog.messages
    monkeypatch.setattr(tail, "_PATIENCE", 0.0)
    monkeypatch.setattr("nobsp.vision.isolation.AT_ONCE", 1)
    NObSPCam(like_vgg()).fit(x)
    (said,) = caplog.messages
    assert "4 channels on 30 images" in said
    assert "takes about 1 min, while" in said
    assert 'coefficients="head"' in said


def test_progress_is_shown_over_the_channels(capsys: pytest.CaptureFixture[str]) -> None:
    NObSPCam(like_vgg()).fit(images(30), progress=True)
    assert "solving channels: 100%" in capsys.readouterr().err
