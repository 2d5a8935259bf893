"""What attention carries to the token that is read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nobsp.vision import NObSPCam
from nobsp.vision.attention_flow import attend, carry, choose_attention
from nobsp.vision.find_map import find_map
from nobsp.vision.held_scales import HeldScales
from tests.vision.networks import Tokens, images, made


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


MASKS = {
    "none": None,
    "boolean": torch.ones(5, 5, dtype=torch.bool).tril(),
    "added": numbers(5, 5),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_written_out_is_that_of_torch(mask: str, scale: float | None) -> None:
    query, key, value = numbers(3, 2, 4, 5, 6)
    options = {"attn_mask": MASKS[mask], "scale": scale}
    attended = attend(query, key, value, **options)
    assert attended is not None
    result, attention = attended
    expected = functional.scaled_dot_product_attention(query, key, value, **options)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(attention @ value, expected)


def test_attention_that_is_not_among_all_alike_is_left_to_torch() -> None:
    query, key, value = numbers(3, 2, 4, 5, 6)
    assert attend(query, key, value, is_causal=True) is None
    assert attend(query[..., :3, :], key, value) is None
    with HeldScales() as scales:
        result = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert not scales.softmaxes
    expected = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_the_softmax_inside_of_multi_head_attention_is_seen(need_weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    tokens = numbers(3, 5, 8).requires_grad_()
    expected = module(tokens, tokens, tokens, need_weights=need_weights)[0]
    with HeldScales() as scales:
        result = module(tokens, tokens, tokens, need_weights=need_weights)[0]
    torch.testing.assert_close(result, expected)
    chosen = choose_attention(scales.softmaxes, n_images=3, locations=4, most_prefix=8)
    assert [attention.reshape(3, 2, 5, 5).shape for attention in chosen] == [(3, 2, 5, 5)]


def test_the_row_that_is_carried_is_that_of_the_whole_product() -> None:
    attention = list(numbers(3, 2, 4, 6, 6).softmax(-1))
    gradients = list(numbers(3, 2, 4, 6, 6).flip(0))
    # The output reads the first of two tokens without a place, and behind the last block that one alone.
    gradients[-1] = gradients[-1] * (torch.arange(6) == 0)[:, None]
    carried = carry(attention, gradients, n_images=2, locations=4)

    product = torch.eye(6, dtype=torch.float64).expand(2, 6, 6)
    for weights, slopes in zip(attention, gradients, strict=True):
        product = product + (weights * slopes).mean(1) @ product
    torch.testing.assert_close(carried, product[:, 0, 2:])


def test_softmaxes_that_are_no_attention_among_the_places_are_not_chosen() -> None:
    leaf = torch.zeros(1, requires_grad=True)
    over_classes = leaf + numbers(3, 10)
    in_windows = leaf + numbers(12, 2, 4, 4)
    without_class_token = leaf + numbers(3, 2, 16, 16)
    every = [over_classes, in_windows, without_class_token]
    assert choose_attention(every, n_images=3, locations=16, most_prefix=8) == []


class ClassTokenLast(Tokens):
    """The class token stands behind the patches."""

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([patches, self.first.expand(len(x), -1, -1)], dim=1)
        logits: Tensor = self.head(self.norm(self.mix(tokens))[:, -1])
        return logits


def test_a_class_token_behind_the_patches_is_no_place_of_the_image() -> None:
    model = made(ClassTokenLast("class"))
    feature_map = find_map(model, images(3))
    assert (feature_map.layer, feature_map.grid.prefix) == ("patches", 0)
    maps = NObSPCam(model).fit(images(20))(images(4, seed=1))
    # Not all in the last place, which the class token would take for a patch after a token before them.
    share = abs(maps.account[:, -1, -1]) / abs(maps.account).sum((1, 2))
    assert (share < 0.9).all()
