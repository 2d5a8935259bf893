"""Transformers that read a class token: a cheap picture from the first tokens, and numbers that add up when asked."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from nobsp import plots
from nobsp.vision import NObSPCam
from tests.vision.networks import Tokens, images, made


def test_the_default_is_a_picture_and_says_so() -> None:
    cam = NObSPCam(made(Tokens("class"))).fit(images(20))
    maps = cam(images(5, seed=1))
    assert cam.layer_ == "patches"
    assert maps.picture
    assert maps.kind == "contrast"
    assert np.array_equal(maps.account, maps.contrast)
    assert "picture" in maps.caption()
    assert "picture" in maps.caption("account")
    assert "picture" in repr(maps)
    assert np.isnan(cam.health().explained).all()
    assert np.abs(maps.class_token).max() == 0
    assert "picture" in [finding.code for finding in cam.health().findings]
    assert cam.health().healthy


def test_points_make_the_numbers_add_up() -> None:
    cam = NObSPCam(made(Tokens("class")), points=8).fit(images(20))
    maps = cam(images(5, seed=1))
    assert not maps.picture
    assert maps.unexplained < 0.02
    assert maps.kind == "contrast"
    assert "picture" not in [finding.code for finding in cam.health().findings]


def test_a_picture_takes_one_pass_there_and_back() -> None:
    model = made(Tokens("class"))
    cam = NObSPCam(model).fit(images(20))
    calls: list[int] = []
    model.mix.register_forward_pre_hook(lambda _, arguments: calls.append(len(arguments[0])))
    maps = cam(images(6, seed=1))
    assert sum(calls) == 6
    assert (maps.passes, maps.gradients) == (1.0, 1.0)


def test_evidence_without_a_place_is_told_beside_the_picture() -> None:
    cam = NObSPCam(made(Tokens("class")), layer="entry").fit(images(20))
    pictures = images(2, seed=1)
    maps = cam(pictures)
    much = dataclasses.replace(maps, class_token=np.full(2, 10.0))
    none = dataclasses.replace(maps, class_token=np.zeros(2))
    assert "has no place" in plots.cam_grid(much, pictures)[0, 0].get_ylabel()
    assert "has no place" not in plots.cam_grid(none, pictures)[0, 0].get_ylabel()


def test_a_picture_of_a_loaded_explainer_is_the_same(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = made(Tokens("class"))
    cam = NObSPCam(model).fit(images(20))
    cam.save(tmp_path / "cam.safetensors")
    loaded = NObSPCam.load(tmp_path / "cam.safetensors", model)
    asked = images(4, seed=1)
    assert np.allclose(loaded(asked).account, cam(asked).account, atol=1e-6)
    assert torch.equal(torch.tensor(loaded(asked).picture), torch.tensor(True))
