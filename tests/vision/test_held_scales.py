"""Gradients through normalisations whose scale is held."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nobsp.vision import NObSPCam
from nobsp.vision.find_map import find_map
from nobsp.vision.held_scales import HeldScales
from nobsp.vision.maps import Kind
from tests.vision.networks import Tokens, images, made


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("axes", [1, 2])
def test_the_gradient_of_layer_norm_takes_the_spread_for_a_constant(
    axes: int, weighted: bool
) -> None:
    x = numbers(4, 3, 5).requires_grad_()
    shape = x.shape[-axes:]
    weight = numbers(*shape) if weighted else None
    bias = numbers(*shape) + 1 if weighted else None
    upstream = numbers(4, 3, 5).flip(0)

    with HeldScales() as scales:
        held = functional.layer_norm(x, shape, weight, bias)
    (gradient,) = torch.autograd.grad(held, x, upstream)

    over = tuple(range(-axes, 0))
    spread = (x.detach().var(over, correction=0, keepdim=True) + 1e-5).sqrt()
    by_hand = (x - x.mean(over, keepdim=True)) / spread
    if weight is not None and bias is not None:
        by_hand = by_hand * weight + bias
    (expected,) = torch.autograd.grad(by_hand, x, upstream)
    assert scales.count == 1
    torch.testing.assert_close(held, functional.layer_norm(x, shape, weight, bias))
    torch.testing.assert_close(gradient, expected)


def test_the_gradient_of_rms_norm_takes_the_size_for_a_constant() -> None:
    x = numbers(4, 5).requires_grad_()
    module = nn.RMSNorm(5, dtype=torch.float64)
    upstream = numbers(4, 5).flip(0)
    with HeldScales() as scales:
        held = module(x)
    (gradient,) = torch.autograd.grad(held, x, upstream)

    eps = torch.finfo(torch.float64).eps
    size = (x.detach().square().mean(1, keepdim=True) + eps).sqrt()
    assert scales.count == 1
    torch.testing.assert_close(held, module(x))
    torch.testing.assert_close(gradient, upstream / size)


def test_the_taped_pass_says_what_the_model_says_and_nothing_stays_switched_on() -> None:
    model = made(Tokens("class"))
    shown = images(4, seed=1)
    maps = NObSPCam(model).fit(images(20))(shown)
    torch.testing.assert_close(torch.from_numpy(maps.logits), model(shown).detach())
    assert torch._C._len_torch_function_stack() == 0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["contrast", "account"])
def test_a_picture_is_held_gradient_times_change_and_what_attention_carries(kind: Kind) -> None:
    model = made(Tokens("class"))
    known = images(20)
    shown = images(4, seed=1)
    cam = NObSPCam(model, kind=kind).fit(known)
    maps = cam(shown, target=1)

    change = (model.patches(shown) - model.patches(known).mean(0)).detach()
    patches = model.patches(shown).detach().requires_grad_()
    tokens = patches.flatten(2).transpose(1, 2)
    tokens = torch.cat([model.first.expand(len(shown), -1, -1), tokens], dim=1)
    with HeldScales() as scales:
        logits = model.head(model.norm(model.mix(tokens))[:, 0])
    (attention,) = scales.softmaxes
    weights = functional.one_hot(torch.ones(4, dtype=torch.int64), logits.shape[1]).double()
    if kind == "contrast":
        # The gradient of the log-probability half-way from the base.
        weights = weights - ((logits.detach() + torch.from_numpy(cam.base_values_)) / 2).softmax(1)
    gradient, slopes = torch.autograd.grad((weights * logits).sum(), [patches, attention])

    by_gradient = (gradient * change).sum(1).flatten(1)
    # One block, whose class token is read: row 0 of I + C.
    carried = (attention.detach() * slopes).mean(1)[:, 0, 1:]
    factor = by_gradient.std(1, keepdim=True) / carried.std(1, keepdim=True)
    together = (by_gradient + 2 * factor * carried) / 3
    expected = by_gradient.shape[1] * together.unflatten(1, change.shape[2:])
    torch.testing.assert_close(torch.from_numpy(maps.account), expected)
    torch.testing.assert_close(torch.from_numpy(maps.contrast), expected)
    assert maps.kind == kind
    assert maps.caption().startswith("picture")


class OwnNorm(nn.LayerNorm):
    """Layer normalisation written out, which cannot be told from other arithmetic."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch names it
        centred = input - input.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def test_without_a_known_normalisation_the_gradient_is_half_way() -> None:
    model = made(Tokens("class"))
    model.norm = OwnNorm(8, dtype=torch.float64)
    model.mix.norm1 = OwnNorm(8, dtype=torch.float64)
    model.mix.norm2 = OwnNorm(8, dtype=torch.float64)
    assert find_map(model, images(3)).picture == "half_way"
    maps = NObSPCam(model).fit(images(20))(images(6, seed=1))
    assert maps.picture
    assert (maps.passes, maps.gradients) == (2.0, 1.0)


def test_several_targets_share_one_pass() -> None:
    model = made(Tokens("class"))
    cam = NObSPCam(model).fit(images(20))
    shown = images(5, seed=1)
    both = cam(shown, target=[[0, 2]] * 5)
    assert (both.passes, both.gradients) == (1.0, 2.0)
    torch.testing.assert_close(both.account[:, 1], cam(shown, target=2).account)
