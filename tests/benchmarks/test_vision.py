"""The pieces of the vision benchmark that can be checked without trained weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.vision.candidates import blurred, both, resized
from benchmarks.vision.networks import SETTINGS, EfficientNetLite0, ResNet18ForSmallImages
from nobsp.vision.search import find_anatomy


def test_networks_have_the_published_sizes() -> None:
    lite, small = EfficientNetLite0(), ResNet18ForSmallImages(classes=10)
    assert sum(weight.numel() for weight in lite.parameters()) == 4_652_008
    assert sum(weight.numel() for weight in small.parameters()) == 11_173_962


def test_padding_halves_even_sizes_exactly() -> None:
    with torch.no_grad():
        assert EfficientNetLite0().eval().conv_stem(torch.zeros(1, 3, 65, 64)).shape[2:] == (33, 32)


def test_their_maps_are_found() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 64, 64)
    assert find_anatomy(EfficientNetLite0().eval(), x).layer == "act"
    assert find_anatomy(ResNet18ForSmallImages(classes=10).eval(), x[..., :32, :32]).layer == "layer4"


def test_smoothing_keeps_a_constant() -> None:
    np.testing.assert_allclose(blurred(np.full((2, 4, 5), 3.0)), 3.0)


def test_two_layers_are_combined_on_the_finer_grid() -> None:
    late, early = np.random.default_rng(0).normal(size=(2, 3, 3)), np.random.default_rng(1).normal(size=(2, 6, 6))
    combined = both(lambda *_: late, lambda *_: early, 0.0)(torch.zeros(2), np.zeros(2, dtype=np.int64))
    coarse = resized(late, (6, 6))
    np.testing.assert_allclose(combined, coarse / coarse.std((1, 2), keepdims=True))


def test_missing_weights_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOBSP_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"set NOBSP_DATA to a folder that has weights/resnet18_cifar10"):
        SETTINGS["resnet18"]()
