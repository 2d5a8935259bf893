"""What is explained is what the model says: other paths that wake up after `fit` are in the residual."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nobsp.vision import ActivationMaps, NObSPCam
from tests.tolerances import PASS, SINGLE
from tests.vision.networks import averaged, images, made


class Two(nn.Module):
    """The larger of two maps' maxima: which of them wins depends on the image."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Conv2d(1, 3, 3, padding=1)
        self.coarse = nn.Conv2d(1, 3, 3, padding=1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x).amax((2, 3))
        coarse = 3 * self.coarse(x).amax((2, 3)) - 4
        return torch.maximum(fine, coarse)


class Corrected(nn.Module):
    """Adds something behind the head, or to what enters it, where an image is bright."""

    def __init__(self, where: str, link: str = "identity") -> None:
        super().__init__()
        self.where = where
        self.link = link
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU())
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.body(x).mean((2, 3))
        bright = (x.mean((1, 2, 3)) - 1).clamp_min(0)[:, None]
        if self.where == "before":
            pooled = pooled + bright
        logits = self.head(pooled)
        if self.where == "behind":
            logits = logits + bright * torch.arange(4).to(logits)
        return logits.softmax(1) if self.link == "softmax" else logits


def two() -> tuple[nn.Module, Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Two().eval()
        quiet = torch.randn(16, 1, 16, 16)
        loud = 2 * torch.randn(16, 1, 16, 16)
    return model, quiet, loud


def gap(maps: ActivationMaps) -> np.ndarray:
    rows = np.arange(len(maps))
    gain = maps.logits[rows, maps.target] - maps.base_values[maps.target]
    return gain - maps.account.mean((1, 2)) - maps.class_token - maps.residual


def test_a_path_that_wakes_up_after_fit_is_in_the_residual() -> None:
    model, quiet, loud = two()
    cam = NObSPCam(model).fit(quiet)
    with pytest.warns(UserWarning, match="other paths than 'fine'"):
        maps = cam(loud)
    said = model(loud).detach().numpy()
    assert maps.logits == pytest.approx(said, abs=SINGLE * float(np.abs(said).max()))
    assert np.array_equal(maps.target, said.argmax(1))
    assert np.abs(gap(maps)).max() < SINGLE * np.abs(said).max()
    assert np.abs(maps.residual).max() > 1
    assert maps.unexplained > 0.1
    assert "unexplained" in repr(maps)


def test_images_without_another_path_are_exact() -> None:
    model, quiet, _ = two()
    maps = NObSPCam(model).fit(quiet)(quiet)
    assert np.abs(maps.residual).max() < PASS * np.abs(maps.logits).max()
    assert maps.unexplained < PASS
    assert "unexplained" not in repr(maps)


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("link", ["identity", "softmax"])
def test_what_is_added_before_or_behind_the_head_is_in_the_residual(where: str, link: str) -> None:
    model = made(Corrected(where, link))
    bright = images(6, seed=1) + 2
    cam = NObSPCam(model).fit(images(20))
    with pytest.warns(UserWarning, match="other paths than 'body'"):
        maps = cam(bright)
    said = model(bright).detach()
    explained = torch.from_numpy(maps.logits)
    if link == "softmax":
        explained = explained.softmax(1)
    assert torch.allclose(explained, said, atol=1e-9)
    assert np.abs(gap(maps)).max() < PASS * np.abs(maps.logits).max()
    assert maps.unexplained > 0.05


def test_a_share_of_another_path_on_calibration_is_in_the_health() -> None:
    model = made(Corrected("behind"))
    mixed = torch.cat([images(100), 0.1 * images(1, seed=1) + 1.05])
    with pytest.warns(UserWarning, match="another path"):
        cam = NObSPCam(model).fit(mixed)
    assert 0.01 < cam.health().unexplained < 0.25
    assert cam.health().findings[0].code == "another_path"


@pytest.mark.parametrize("coefficients", ["head", "calibrated"])
def test_a_model_whose_outputs_come_from_elsewhere_is_refused(coefficients: str) -> None:
    model = made(Corrected("behind"))
    mixed = torch.cat([images(20), images(40, seed=1) + 4])
    with pytest.raises(ValueError, match="other paths"):
        NObSPCam(model, coefficients=coefficients).fit(mixed)


def test_merged_calibrations_know_the_share_of_all_images() -> None:
    model = made(Corrected("behind"))
    quiet = images(200)
    bright = torch.cat([images(150, seed=2), 0.1 * images(1, seed=1) + 1.05])
    with pytest.warns(UserWarning, match="another path"):
        whole = NObSPCam(model).fit(torch.cat([quiet, bright]))
    with pytest.warns(UserWarning, match="another path"):
        other = NObSPCam(model).fit(bright)
    merged = NObSPCam(model).fit(quiet).merge(other)
    assert merged.health().unexplained == pytest.approx(whole.health().unexplained, rel=1e-9)


def test_removal_and_thorough_start_from_what_the_model_says() -> None:
    model = made(Corrected("behind"))
    bright = images(5, seed=1) + 2
    cam = NObSPCam(model).fit(images(20))
    chances = model(bright).detach().softmax(1).numpy()
    assert cam.removal(bright).probability[:, 0] == pytest.approx(chances.max(1), abs=1e-9)
    assert np.array_equal(cam.thorough(bright, regions=2).target, chances.argmax(1))


def test_an_index_holds_what_the_model_says() -> None:
    model = made(Corrected("behind"))
    bright = images(5, seed=1) + 2
    source = NObSPCam(model).fit(images(20)).evidence_source()
    (batch,) = source.read(bright, wanted="own", progress=False)
    assert torch.allclose(batch.logits, model(bright).detach(), atol=1e-9)


def test_rounding_of_single_precision_is_no_other_path() -> None:
    model = averaged(dtype=torch.float32)
    pictures = images(64, dtype=torch.float32)
    cam = NObSPCam(model).fit(pictures)
    assert cam.health().unexplained == 0
    assert cam(100 * pictures).unexplained < PASS
