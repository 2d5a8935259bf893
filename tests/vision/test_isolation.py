"""Channels put in alone or left out: the short way through a linear layer gives what whole maps give."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from nobsp.vision import isolation
from nobsp.vision.feature_map import FeatureMap
from nobsp.vision.find_map import find_map
from nobsp.vision.isolation import isolating, shaped
from tests.tolerances import assert_same_to_rounding
from tests.vision.networks import body, images, made, through_layers


def like_vgg(channels: int = 4, *, norm: bool = False) -> nn.Module:
    """A map that is flattened into two hidden layers, activations in place and dropout, as in VGG."""
    parts: dict[str, nn.Module] = {"body": body(channels), "pool": nn.AdaptiveAvgPool2d(3), "flat": nn.Flatten()}
    if norm:
        parts["norm"] = nn.LayerNorm(channels * 9)
    parts |= {"one": nn.Linear(channels * 9, 12), "act": nn.ReLU(inplace=True), "drop": nn.Dropout()}
    parts |= {"two": nn.Linear(12, 7), "act2": nn.ReLU(inplace=True), "head": nn.Linear(7, 3)}
    return made(nn.Sequential(OrderedDict(parts)))


class Around(nn.Module):
    """A second way around the hidden layer, which the head sees as well."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body(6)
        self.hidden = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.body(x).mean((2, 3))
        return self.head(torch.tanh(self.hidden(pooled)) * pooled)


def put_in(model: nn.Module, x: Tensor) -> tuple[FeatureMap, Tensor, Tensor]:
    """Where the map is, what is put in of it, and the baseline."""
    feature_map = find_map(model, x)
    with feature_map.running() as forward:
        inputs = shaped(forward(x).maps, feature_map.reach)
    return feature_map, inputs, inputs.mean(0)


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (like_vgg(), "one"),
        (through_layers(), "hidden"),
        (through_layers(pooled=False), "hidden"),
        (like_vgg(norm=True), None),  # what mixes channels first is no linear layer
        (made(Around()), None),  # the head learns of the map on another way too
    ],
)
def test_each_channel_alone_and_left_out_equals_whole_maps_put_in(model: nn.Module, layer: str | None) -> None:
    x = images(6)
    with torch.no_grad():
        feature_map, inputs, baseline = put_in(model, x)
        with isolating(feature_map, x[:1], inputs, baseline) as found:
            alone, others = found.both([0, 3])
            again = found.alone([3])
        place = isolation._FOUND[feature_map]
        with feature_map.behind(x[:1]) as tail:
            for position, channel in enumerate([0, 3]):
                only, but = baseline.expand_as(inputs).clone(), inputs.clone()
                only[:, channel], but[:, channel] = inputs[:, channel], baseline[channel]
                assert_same_to_rounding(alone[position], tail(only))
                assert_same_to_rounding(others[position], tail(but))
    assert_same_to_rounding(again[0], alone[1])
    assert (None if place is None else place.name) == layer
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_channels_are_grouped_so_that_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "AT_ONCE", 6 * 12 * 3)
    x = images(6)
    with torch.no_grad():
        feature_map, inputs, baseline = put_in(like_vgg(), x)
        with isolating(feature_map, x[:1], inputs, baseline) as found:
            assert list(found.chunks(4)) == [[0, 1, 2], [3]]


def test_half_precision_is_put_in_without_a_second_loss() -> None:
    x = images(6).bfloat16()
    model = like_vgg().bfloat16()
    with torch.no_grad():
        feature_map, inputs, baseline = put_in(model, x)
        with isolating(feature_map, x[:1], inputs.bfloat16(), baseline.bfloat16()) as found:
            alone = found.alone([1])[0]
        with feature_map.behind(x[:1]) as tail:
            only = baseline.expand_as(inputs).clone()
            only[:, 1] = inputs[:, 1]
            expected = tail(only).double()
    torch.testing.assert_close(alone, expected, rtol=0.0, atol=0.02 * float(expected.abs().max()))
