"""Maps can be resized and laid over images."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import numpy as np
import pytest
import torch

from nobsp.vision import ActivationMaps, NObSPCam
from nobsp.vision.maps import AGAINST, FOR, OPACITY, colour_maps
from tests.tolerances import SUMS, assert_same_to_rounding
from tests.vision.networks import averaged, images


@pytest.fixture(scope="module")
def maps() -> ActivationMaps:
    return NObSPCam(averaged()).fit(images(40))(images(5))


def test_resizing_keeps_a_constant_and_the_number_of_maps(maps: ActivationMaps) -> None:
    larger = maps.resize((24, 20))
    for kind in ("positive", "negative", "signed", "account", "contrast"):
        assert getattr(larger, kind).shape == (5, 24, 20)
    np.testing.assert_array_equal(larger.contributions, maps.contributions)
    np.testing.assert_allclose(larger.signed, larger.positive - larger.negative, atol=SUMS)
    assert_same_to_rounding(maps.resize(8).account, maps.account)


def test_several_targets_are_resized_too() -> None:
    several = NObSPCam(averaged()).fit(images(40))(images(5), target=[[0, 1]] * 5)
    assert several.resize(16).positive.shape == (5, 2, 16, 16)


@pytest.mark.parametrize("size", [0, -3, (4,), (3, 0), "large", 2.5, True])
def test_sizes_that_make_no_sense_are_refused(maps: ActivationMaps, size: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        maps.resize(size)


@pytest.mark.parametrize("kind", [None, "contrast", "positive", "negative", "signed", "account"])
def test_an_overlay_is_a_picture_of_the_images_size(maps: ActivationMaps, kind: Any) -> None:
    shown = maps.overlay(images(5), kind=kind)
    assert shown.shape == (5, 12, 12, 3)
    assert shown.dtype == np.float32
    assert shown.min() >= 0
    assert shown.max() <= 1


def test_without_opacity_only_the_image_is_seen(maps: ActivationMaps) -> None:
    pictures = images(5).sigmoid()
    np.testing.assert_allclose(
        maps.overlay(pictures, opacity=0.0), pictures.permute(0, 2, 3, 1), atol=1e-6
    )


def test_images_may_have_their_channels_last_be_grey_or_of_bytes(maps: ActivationMaps) -> None:
    pictures = images(5).sigmoid()
    first = maps.overlay(pictures)
    np.testing.assert_allclose(maps.overlay(pictures.permute(0, 2, 3, 1).numpy()), first, atol=1e-6)
    grey = maps.overlay(pictures[:, :1])
    np.testing.assert_allclose(grey, maps.overlay(pictures[:, :1].expand(-1, 3, -1, -1)), atol=1e-6)
    whole = (pictures * 255).round().to(torch.uint8)
    np.testing.assert_allclose(maps.overlay(whole), first, atol=0.01)


def test_half_precision_images_are_shown(maps: ActivationMaps) -> None:
    pictures = images(5).sigmoid()
    np.testing.assert_allclose(maps.overlay(pictures.bfloat16()), maps.overlay(pictures), atol=0.01)


def test_normalised_images_are_shown_in_their_own_colours(maps: ActivationMaps) -> None:
    pictures = images(5).sigmoid()
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    given = (pictures - mean[:, None, None]) / std[:, None, None]
    shown = maps.overlay(given, opacity=0.0, mean=mean, std=std)
    np.testing.assert_allclose(shown, pictures.permute(0, 2, 3, 1), atol=1e-6)
    with pytest.raises(ValueError, match="mean has 2 values, but the images have 3 channels"):
        maps.overlay(given, mean=(0.5, 0.5), std=std)


def test_pictures_show_the_account_against_the_others_unless_asked_otherwise(
    maps: ActivationMaps,
) -> None:
    x = images(5)
    np.testing.assert_array_equal(maps.overlay(x), maps.overlay(x, kind="contrast"))
    cam = NObSPCam(averaged()).fit(images(40))
    against = cam(x, target=0, against=2)
    np.testing.assert_array_equal(against.overlay(x), against.overlay(x, kind="account"))
    published = NObSPCam.as_published(averaged()).fit(images(40))(x)
    np.testing.assert_array_equal(published.overlay(x), published.overlay(x, kind="positive"))


def test_maps_remember_what_was_asked() -> None:
    cam = NObSPCam(averaged(), output_names=["cat", "dog", "fox", "owl"]).fit(images(40))
    for asked, words in (
        ({}, ("against=None", "scale='logit'")),
        ({"target": "dog", "against": 2}, ("target='dog'", "against='fox'")),
        ({"target": 3, "scale": "probability"}, ("target='owl'", "scale='probability'")),
    ):
        found = cam(images(3), **asked)  # type: ignore[arg-type]
        assert all(word in repr(found) for word in words)
    captions = {
        cam(images(3), **asked).caption()
        for asked in ({}, {"against": "mean"}, {"scale": "probability"})
    }  # type: ignore[arg-type]
    assert len(captions) == 3


def test_colour_is_strongest_where_the_map_is_largest() -> None:
    values = np.array([[[0.0, 1.0], [-4.0, 2.0]]])
    _, strength = colour_maps(values, kind="signed")
    np.testing.assert_allclose(strength, [[[0.0, 0.25], [1.0, 0.5]]])
    _, strength = colour_maps(values, kind="positive")
    np.testing.assert_allclose(strength, [[[0.0, 0.5], [0.0, 1.0]]])


def test_a_map_of_zeros_is_no_colour() -> None:
    _, strength = colour_maps(np.zeros((1, 2, 2)), kind="signed")
    assert not strength.any()


def test_evidence_for_and_against_have_different_colours() -> None:
    colours, _ = colour_maps(np.array([[[-1.0, 1.0]]]), kind="signed")
    blue, orange = colours[0, 0]
    assert blue[2] > blue[0]
    assert orange[0] > orange[2]
    for kind, colour in (("positive", orange), ("negative", blue)):
        np.testing.assert_array_equal(
            colour_maps(np.ones((1, 1, 1)), kind=kind)[0][0, 0, 0], colour
        )


def test_colours_are_those_of_the_report() -> None:
    page = resources.files("nobsp.reporting")
    light = (page / "page.css").read_text(encoding="utf-8").partition("}")[0]
    assert f"--for-map: {FOR}; --against-map: {AGAINST};" in light
    assert re.search(
        rf'id="opacity"[^>]* value="{OPACITY}"', (page / "page.html.j2").read_text(encoding="utf-8")
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": images(4)}, "expected 5 images"),
        ({"images": images(5)[:, :2]}, "channels; expected one or three"),
        ({"images": images(5), "kind": "both"}, "kind must be"),
        ({"images": images(5), "opacity": 2}, "opacity must lie between"),
    ],
)
def test_overlays_that_make_no_sense_are_refused(
    maps: ActivationMaps, options: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        maps.overlay(**options)


def test_several_targets_have_no_overlay() -> None:
    several = NObSPCam(averaged()).fit(images(40))(images(5), target=[[0, 1]] * 5)
    with pytest.raises(ValueError, match=r"choose one first, maps.of_target\(0\)"):
        several.overlay(images(5))
    assert several.of_target(0).overlay(images(5)).shape == (5, 12, 12, 3)


def test_maps_say_what_they_are(maps: ActivationMaps) -> None:
    for word in (
        "5 images",
        "8×8 locations",
        "layer='body'",
        "target='output 3'",
        "against=None",
        "scale='logit'",
    ):
        assert word in repr(maps)
    assert len(maps) == 5


def test_maps_of_some_images() -> None:
    maps = NObSPCam(averaged()).fit(images(20))(images(5, seed=1))
    assert len(maps[3]) == 1
    assert maps[3].account[0] == pytest.approx(maps.account[3], abs=0)
    assert maps[1:3].logits == pytest.approx(maps.logits[1:3], abs=0)
    assert len(maps[maps.confidence > 2]) == 0
    with pytest.raises(IndexError, match="out of range"):
        maps[5]


def test_maps_have_their_plots() -> None:
    pictures = images(2, seed=1)
    maps = NObSPCam(averaged()).fit(images(20))(pictures)
    assert maps.plot.cam_grid(pictures).shape == (2, 3)
