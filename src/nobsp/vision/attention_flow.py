"""What attention carries to the token that is read, by the gradient of the pass itself.

It is one row of a product over blocks.

With A the attention of a block (n, heads, tokens, tokens) and ∇A the gradient of what is asked for,

    C = mean over heads of A ⊙ ∇A,    r = e (I + C_L) (I + C_{L−1}) … (I + C_1),

e being 1 at the tokens without a place that the output reads. The product is that of Chefer, Gur
and Wolf (2021), who leave out what is negative; here what speaks against a class keeps its sign.
Carried from the last block to the first, only a row of it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SOFTMAXES = (functional.softmax, torch.softmax, Tensor.softmax)


def _copy_without_overrides(function: Any) -> Callable[..., Any]:
    """A copy of a torch function that skips modes itself, so that they see what it calls."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


# What `nn.MultiheadAttention` calls.
multi_head_attention = _copy_without_overrides(functional.multi_head_attention_forward)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor] | None:
    """The result of `scaled_dot_product_attention`, and the attention itself.

    None where tokens do not see all others alike.
    """
    is_square = query.shape[-2] == key.shape[-2]
    if not is_square or dropout_p > 0 or is_causal or enable_gqa:
        return None

    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    attention = scores.softmax(-1)
    return attention @ value, attention


def choose_attention(
    softmaxes: Sequence[Tensor], *, n_images: int, locations: int, most_prefix: int
) -> list[Tensor]:
    """The softmaxes that are attention among all places and at least one token more.

    Shape (n, heads, tokens, tokens).
    """
    chosen = []
    for softmax in softmaxes:
        tokens = softmax.shape[-1]
        is_attention = softmax.ndim in (3, 4) and softmax.shape[-2] == tokens
        if not is_attention or not 1 <= tokens - locations <= most_prefix:
            continue
        if softmax.requires_grad and len(softmax) % n_images == 0:
            chosen.append(softmax)
    sizes = {softmax.shape[-1] for softmax in chosen}
    return chosen if len(sizes) == 1 else []


def carry(
    attention: Sequence[Tensor], gradients: Sequence[Tensor], *, n_images: int, locations: int
) -> Tensor:
    """r of the places, shape (n, locations); zero where no token without a place is read."""
    tokens = attention[0].shape[-1]
    prefix = tokens - locations
    products = [
        (weights.detach() * slopes).reshape(n_images, -1, tokens, tokens)
        for weights, slopes in zip(attention, gradients, strict=True)
    ]
    is_read = products[-1][:, :, :prefix].abs().sum((1, 3)) > 0
    row = functional.pad(is_read.to(products[-1].dtype), (0, locations))[:, None]
    for product in reversed(products):
        row = row + row @ product.mean(1)
    return row[:, 0, prefix:]
