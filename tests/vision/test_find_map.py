"""The map that is pooled into the head is found by running the model, whatever the pooling looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nobsp.vision.feature_map import pooled
from nobsp.vision.find_map import find_map
from tests.tolerances import assert_same_to_rounding
from tests.vision.networks import (
    ClassMaps,
    Functional,
    Skipping,
    Tokens,
    averaged,
    body,
    images,
    made,
    through_layers,
)

# Name of the layer whose map it is, and what of it counts.
ARCHITECTURES = {
    "resnet18": ("layer4", "head"),
    "resnet50": ("layer4", "head"),
    "mobilenet_v2": ("features", "head"),
    "mobilenet_v3_small": ("features", "point"),
    "efficientnet_b0": ("features", "head"),
    "regnet_y_400mf": ("trunk_output", "head"),
    "convnext_tiny": ("features", "point"),
    "densenet121": ("relu(features)", "head"),
    "squeezenet1_1": ("classifier.2", "head"),
    "shufflenet_v2_x0_5": ("conv5", "head"),
    "mnasnet0_5": ("layers", "head"),
    "swin_t": ("permute", "head"),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_of_torchvision_are_understood(
    name: str, architecture: Callable[..., nn.Module]
) -> None:
    model = architecture(name)
    x = images(3, size=64, dtype=torch.float32)
    feature_map = find_map(model, x)
    assert (feature_map.layer, feature_map.reach) == ARCHITECTURES[name]
    with feature_map.running() as forward:
        found = forward(x)
    with torch.no_grad():
        torch.testing.assert_close(found.logits.float(), model(x), rtol=1e-4, atol=1e-5)


# Of timm: options, layer, pooling, reach.
TIMM: dict[str, tuple[str, dict[str, Any], str, str, str]] = {
    "average": ("resnet18", {}, "layer4", "mean", "head"),
    "maximum": ("resnet18", {"global_pool": "max"}, "layer4", "max", "head"),
    "both": ("resnet18", {"global_pool": "catavgmax"}, "layer4", "mean+max", "head"),
    "LayerNorm before the head": ("convnext_atto", {}, "norm_pre", "mean", "point"),
    "averaged tokens": (
        "vit_tiny_patch16_224",
        {"global_pool": "avg", "fc_norm": False, "img_size": 64},
        "norm",
        "mean",
        "head",
    ),
    "averaged tokens, normalised": (
        "vit_tiny_patch16_224",
        {"global_pool": "avg", "img_size": 64},
        "norm",
        "mean",
        "point",
    ),
    "windows": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 64, "window_size": 4},
        "norm",
        "mean",
        "head",
    ),
}


@pytest.mark.parametrize("case", TIMM)
def test_models_of_timm_are_understood(case: str, timm_model: Callable[..., nn.Module]) -> None:
    name, given, layer, pooling, reach = TIMM[case]
    feature_map = find_map(timm_model(name, **given), images(2, size=64, dtype=torch.float32))
    assert (feature_map.layer, feature_map.pooling, feature_map.reach) == (layer, pooling, reach)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_a_model_that_reads_a_class_token_is_explained_where_its_patches_enter(
    name: str, timm_model: Callable[..., nn.Module]
) -> None:
    feature_map = find_map(timm_model(name, img_size=64), images(2, size=64, dtype=torch.float32))
    assert (feature_map.layer, feature_map.reach, feature_map.shape) == (
        "patch_embed.proj",
        "full",
        (4, 4),
    )
    assert feature_map.picture
    assert feature_map.grid.prefix == 0


class Faint(nn.Module):
    """Says nearly the same of all images, as transformers do whose branches begin with small scales."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 6, 3, stride=2)
        self.wide = nn.Linear(6 * 7 * 7, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = self.wide(self.body(x).flatten(1))
        return self.head(1 + 3e-5 * places.tanh())


def test_a_map_must_tell_images_apart_that_a_model_hardly_tells_apart() -> None:
    torch.manual_seed(0)
    feature_map = find_map(Faint(), images(3, size=16, dtype=torch.float32))

    # Its means alone, or its positive part, give logits that are only as good as those of any other image.
    assert (feature_map.layer, feature_map.reach, feature_map.relu) == ("body", "full", False)


def test_a_convolution_as_head_is_seen_through() -> None:
    model = made(nn.Sequential(body(), nn.Conv2d(6, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    feature_map = find_map(model, images(3))
    assert (feature_map.layer, feature_map.head.name, feature_map.reach, feature_map.channels) == (
        "0",
        "1",
        "head",
        6,
    )


def test_a_fully_connected_head_sees_the_map_location_by_location(
    architecture: Callable[..., nn.Module],
) -> None:
    feature_map = find_map(architecture("alexnet"), images(2, size=96, dtype=torch.float32))
    assert (feature_map.layer, feature_map.reach) == ("avgpool", "full")


@pytest.mark.parametrize(
    ("how", "pooling", "layer"),
    [
        ("mean", "mean", "relu(features)"),
        ("max", "max", "features"),
        ("concat", "max+mean", "features"),
        ("flatten", "flatten", "features"),
    ],
)
def test_poolings_that_are_no_modules_are_recognised_by_their_values(
    how: str, pooling: str, layer: str
) -> None:
    model = made(Functional(how))
    x = images(3)
    feature_map = find_map(model, x)
    assert (feature_map.pooling, feature_map.layer, feature_map.reach) == (pooling, layer, "head")
    with feature_map.running() as forward:
        found = forward(x)
    logits = (
        pooled(found.maps, feature_map.pooling) @ feature_map.head.weight.T + feature_map.head.bias
    )
    with torch.no_grad():
        assert_same_to_rounding(logits, model(x))


def test_a_map_overwritten_in_place_is_read_as_it_was_pooled() -> None:
    model = made(Functional("mean"))
    feature_map = find_map(model, images(3))
    assert feature_map.place.overwritten
    with feature_map.running() as forward:
        assert float(forward(images(3)).maps.min()) == 0.0


def test_another_kind_of_pooling_goes_through_the_layers_behind_the_map() -> None:
    feature_map = find_map(made(Functional("generalised")), images(3))
    assert (feature_map.layer, feature_map.reach) == ("features", "full")


@pytest.mark.parametrize(("pooled_first", "reach"), [(True, "point"), (False, "full")])
def test_layers_between_pooling_and_head_are_noticed(pooled_first: bool, reach: str) -> None:
    feature_map = find_map(through_layers(pooled=pooled_first), images(3))
    assert feature_map.reach == reach


def test_an_average_pooling_of_fixed_size_gets_constant_maps() -> None:
    model = through_layers()
    model.pool = nn.AvgPool2d(8)
    feature_map = find_map(model, images(3))
    assert (feature_map.reach, feature_map.layer) == ("constant", "body")


def test_averaged_tokens_are_put_back_on_their_grid() -> None:
    feature_map = find_map(made(Tokens("mean")), images(3))
    assert (feature_map.grid.layout, feature_map.grid.prefix, feature_map.shape) == (
        "tokens",
        1,
        (4, 4),
    )


def test_the_grid_of_tokens_has_the_shape_of_the_image() -> None:
    wide = torch.cat([images(3), images(3, seed=1)], dim=3)
    assert find_map(made(Tokens("mean")), wide).shape == (4, 8)


def test_a_class_token_is_part_of_what_is_put_in() -> None:
    feature_map = find_map(made(Tokens("class")), images(3), layer="entry")
    assert (feature_map.layer, feature_map.reach, feature_map.grid.prefix) == ("entry", "full", 1)
    assert not feature_map.picture
    assert feature_map.units == 8 * (16 + 1)


def test_a_layer_of_which_only_the_class_token_counts_is_refused() -> None:
    with pytest.raises(ValueError, match="depends on no location of 'norm'"):
        find_map(made(Tokens("class")), images(3), layer="norm")


class ChannelsLast(nn.Module):
    """A map with its channels last, averaged, and a neck before the head."""

    def __init__(self, neck: nn.Module, width: int) -> None:
        super().__init__()
        self.conv, self.act, self.neck, self.head = (
            nn.Conv2d(3, 7, 3),
            nn.GELU(),
            neck,
            nn.Linear(width, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.neck(self.act(self.conv(x).permute(0, 2, 3, 1)).mean((1, 2))))


@pytest.mark.parametrize(
    ("neck", "width"), [(nn.LayerNorm(7), 7), (nn.Sequential(nn.Linear(7, 9), nn.GELU()), 9)]
)
def test_channels_last_before_a_neck_are_channels(neck: nn.Module, width: int) -> None:
    feature_map = find_map(made(ChannelsLast(neck, width)), images(3))
    assert (feature_map.grid.layout, feature_map.channels, feature_map.shape) == (
        "last",
        7,
        (10, 10),
    )


class NoHead(nn.Module):
    """Cosines with rows of a buffer, as CLIP has them: no layer makes the output."""

    def __init__(self, *, fixed_batch: bool = False) -> None:
        super().__init__()
        self.fixed_batch = fixed_batch
        self.body = body()
        self.register_buffer("words", torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        count = len(x)
        pooled_map = self.body(x).mean((2, 3))
        z = nn.functional.normalize(pooled_map.view(count, 6) if self.fixed_batch else pooled_map)
        return 10 * z @ self.words.T


@pytest.mark.parametrize("fixed_batch", [False, True])
def test_an_output_that_no_layer_makes_needs_no_head(fixed_batch: bool) -> None:
    feature_map = find_map(made(NoHead(fixed_batch=fixed_batch)), images(3))
    assert (feature_map.layer, feature_map.reach, feature_map.head) == ("body", "point", None)
    assert feature_map.fixed_batch == fixed_batch


def test_a_map_per_class_as_output_is_refused_with_what_to_do() -> None:
    model = made(nn.Sequential(body(), nn.Conv2d(6, 3, 1)))
    with pytest.raises(ValueError, match=r"returns a map per class.*output="):
        find_map(model, images(3))


def test_a_map_of_the_classes_themselves_needs_no_head() -> None:
    feature_map = find_map(made(ClassMaps()), images(3))
    assert (feature_map.layer, feature_map.relu) == ("relu(classes)", True)
    assert torch.equal(feature_map.head.weight, torch.eye(4, dtype=torch.float64))


def test_a_second_path_to_the_head_is_not_overlooked() -> None:
    with pytest.raises(ValueError, match=r"no map of the model makes the output by itself"):
        find_map(made(Skipping()), images(3))


def test_a_named_layer_or_module_is_taken() -> None:
    model = averaged()
    by_name = find_map(model, images(3), layer="body.3")
    by_module = find_map(model, images(3), layer=model.body[3])
    assert by_name.layer == by_module.layer == "body.3"
    assert by_name.reach == "head"


def test_a_layer_that_other_layers_follow_is_put_in_whole() -> None:
    assert find_map(averaged(), images(3), layer="body.1").reach == "full"


def test_a_layer_with_a_way_around_it_is_refused() -> None:
    with pytest.raises(ValueError, match="other paths lead there too"):
        find_map(made(Skipping()), images(3), layer="body")


def test_a_misspelt_layer_gets_the_close_matches() -> None:
    with pytest.raises(ValueError, match=r"'bodi.1' is not in the model; did you mean 'body.1'"):
        find_map(averaged(), images(3), layer="bodi.1")


def test_a_module_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="not part of the model"):
        find_map(averaged(), images(3), layer=nn.ReLU())


def test_a_layer_without_locations_is_refused() -> None:
    with pytest.raises(ValueError, match="more than one location"):
        find_map(averaged(), images(3), layer="flat")


def test_a_model_without_a_map_is_refused() -> None:
    flat = made(nn.Sequential(nn.Flatten(), nn.Linear(3 * 144, 8), nn.ReLU(), nn.Linear(8, 2)))
    with pytest.raises(
        ValueError, match="no layer of the model gives a map with more than one location"
    ):
        find_map(flat, images(3))


def test_images_the_model_cannot_take_are_named_by_their_shape() -> None:
    with pytest.raises(ValueError, match=r"cannot take images of shape \(1, 12, 12\)"):
        find_map(averaged(), images(3, channels=1))


def test_weights_that_are_not_finite_are_named() -> None:
    model = averaged()
    with torch.no_grad():
        model.body[0].weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"'body.0.weight' has values that are not finite"):
        find_map(model, images(3))


def test_a_mask_of_infinities_is_no_mistake() -> None:
    model = averaged()
    model.register_buffer("mask", torch.full((3,), -torch.inf))
    assert find_map(model, images(3)).layer == "body"


class Reused(nn.Module):
    """One rectifier called three times; the map is its second result."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 5, 3), nn.Conv2d(5, 6, 3)
        self.act = nn.ReLU()
        self.head = nn.Linear(6, 4)
        self.side = nn.Conv2d(3, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.act(self.two(self.act(self.one(x))))
        self.act(self.side(x))
        return self.head(maps.mean((2, 3)))


def test_the_right_call_of_a_module_that_is_called_often_is_taken() -> None:
    model = made(Reused())
    feature_map = find_map(model, images(3))
    assert (feature_map.place.name, feature_map.place.call, feature_map.place.calls) == (
        "act",
        1,
        3,
    )
    with feature_map.running() as forward, torch.no_grad():
        assert_same_to_rounding(forward(images(2)).logits, model(images(2)))


class SeveralScales(nn.Module):
    """Scores from every scale, as detectors have them: no late map carries them all."""

    def __init__(self, scales: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
        self.scales = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1) for _ in range(scales))
        self.heads = nn.ModuleList(nn.Conv2d(6, 3, 1) for _ in range(scales))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        scores = []
        for scale, head in zip(self.scales, self.heads, strict=True):
            x = scale(x).tanh()
            scores.append(head(x).square().mean((2, 3)))
        return torch.stack(scores).sum(0)


def test_maps_that_do_not_carry_everything_are_not_tried_one_by_one() -> None:
    model = made(SeveralScales(12))
    passes: list[int] = []
    model.stem.register_forward_pre_hook(lambda *_: passes.append(1))
    feature_map = find_map(model, images(3))
    assert feature_map.layer in ("stem", "scales.0")
    assert len(passes) < 30
