"""`nn.MultiheadAttention` as two linear layers, of which heads can be taken out."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from nobsp.parts.altered import why_altered


class SplitAttention(nn.Module):
    """Self-attention with all heads' queries, keys and values in one linear layer.

    A projection follows.

    Takes what `nn.MultiheadAttention` takes where query, key and value are the same tensor with
    rows first. It may have any number of heads, whatever the width of the stream.
    """

    # Asked for by nn.TransformerEncoderLayer: rows come first, and torch's fast path, which reads
    # weights where nn.MultiheadAttention has them, is not for this layer.
    batch_first = True
    _qkv_same_embed_dim = False
    in_proj_weight = None
    in_proj_bias = None

    def __init__(
        self, qkv: nn.Linear, out_proj: nn.Linear, num_heads: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.qkv = qkv
        self.out_proj = out_proj
        self.num_heads = num_heads
        self.dropout = dropout
        self.head_dim = qkv.out_features // (3 * num_heads)

    @classmethod
    def of(cls, attention: nn.MultiheadAttention) -> SplitAttention:
        """The same attention."""
        projection = attention.out_proj
        split = cls(
            _linear(attention.in_proj_weight, attention.in_proj_bias),
            _linear(projection.weight, projection.bias),
            attention.num_heads,
            dropout=attention.dropout,
        )
        return split.train(attention.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,  # noqa: ARG002 - as nn.MultiheadAttention has it
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: ARG002 - as nn.MultiheadAttention has it
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Attention of a sequence to itself; weights are not returned."""
        if key is not query or value is not query:
            raise ValueError("this attention is one of a sequence to itself; pass one tensor.")
        n_rows, length, _ = query.shape
        qkv = self.qkv(query).reshape(n_rows, length, 3, self.num_heads, self.head_dim)
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mask = _joined(attn_mask, key_padding_mask, query)
        mixed = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal and mask is None,
        )
        return self.out_proj(mixed.transpose(1, 2).reshape(n_rows, length, -1)), None


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A layer with copies of some weights.

    None are drawn, so that torch's random numbers go on as they would.
    """
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return layer


def _joined(attn_mask: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
    """Both masks as numbers that are added to scores."""
    total: Tensor | None = None
    for mask in (attn_mask, None if padding is None else padding[:, None, None, :]):
        if mask is None:
            continue
        added = mask
        if mask.dtype == torch.bool:
            added = torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)
        total = added if total is None else total + added
    return total


def can_split(attention: nn.Module) -> bool:
    """Whether heads of an attention layer can be told apart in two linear layers."""
    return (
        isinstance(attention, nn.MultiheadAttention)
        and attention.batch_first
        and attention.in_proj_weight is not None
        and attention.bias_k is None
        and not attention.add_zero_attn
        and attention.num_heads > 1
        and not why_altered(attention)
        and not why_altered(attention.out_proj)
    )


def split_attention(model: nn.Module) -> nn.Module:
    """A copy of a model whose attention layers have heads that can go."""
    model = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        if can_split(layer):
            assert isinstance(layer, nn.MultiheadAttention), "only those can be split"
            set_layer(model, name, SplitAttention.of(layer))
    return model


def restore_whole(model: nn.Module, original: nn.Module, changed: set[str]) -> None:
    """Gives layers that kept all their heads back as they were."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, SplitAttention) and name not in changed:
            set_layer(model, name, copy.deepcopy(original.get_submodule(name)))
    for layer in model.modules():
        if isinstance(layer, nn.TransformerEncoder) and _has_split(layer):
            # Nested tensors are for torch's fast path alone.
            layer.use_nested_tensor = False


def _has_split(model: nn.Module) -> bool:
    return any(isinstance(layer, SplitAttention) for layer in model.modules())


def set_layer(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Puts a layer in the place of another."""
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, layer)
