"""Makes layers smaller in place: rows of those that make parts, columns of their reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nobsp.parts.groups import Group, is_transposed, n_inputs, n_outputs, weight_of
from nobsp.parts.removal import columns_of

# What attention layers call their number of heads.
_HEAD_COUNTS = (
    "num_heads",
    "num_attention_heads",
    "n_heads",
    "n_head",
    "heads",
    "nhead",
    "num_key_value_heads",
    "num_kv_heads",
)
# What they call the width of all heads together.
_HEAD_WIDTHS = ("all_head_size", "split_size", "embed_dim", "attn_dim", "inner_dim", "hidden_size")


def columns_entering(layer: nn.Module, entering: Tensor) -> Tensor:
    """What a layer multiplies with its weights, (rows, positions, columns).

    Of a convolution these are all patches.
    """
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        padded = functional.pad(entering, _zeros_around(layer))
        if isinstance(layer, nn.Conv1d):
            # A sequence is an image of one line.
            patches = functional.unfold(
                padded.unsqueeze(2),
                (1, layer.kernel_size[0]),
                dilation=(1, layer.dilation[0]),
                stride=(1, layer.stride[0]),
            )
        else:
            patches = functional.unfold(
                padded, layer.kernel_size, dilation=layer.dilation, stride=layer.stride
            )
        return patches.mT
    return entering.reshape(len(entering), -1, entering.shape[-1])


def _zeros_around(layer: nn.Conv1d | nn.Conv2d) -> list[int]:
    """How many zeros a convolution puts before and behind each axis, the last axis first."""
    zeros: list[int] = []
    for axis in reversed(range(len(layer.kernel_size))):
        if layer.padding == "valid":
            zeros += [0, 0]
        elif layer.padding == "same":
            total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            before = total // 2
            zeros += [before, total - before]
        else:
            zeros += [int(layer.padding[axis])] * 2
    return zeros


def outputs_leaving(layer: nn.Module, leaving: Tensor) -> Tensor:
    """What a layer returns, (rows, positions, outputs)."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return leaving.flatten(2).mT
    return leaving.reshape(len(leaving), -1, leaving.shape[-1])


def matrix_of(layer: nn.Module) -> Tensor:
    """W with u = h W + b, (columns, outputs), in float64 on the CPU."""
    weight = weight_of(layer).detach().to("cpu", torch.float64)
    return weight.clone() if is_transposed(layer) else weight.flatten(1).T.clone()


def shrink(layers: Mapping[str, nn.Module], group: Group, alive: Tensor) -> None:
    """Makes the layers before the consumer smaller, and removes its own columns.

    The consumer keeps the weights it has for the other columns.
    """
    for name in dict.fromkeys(group.producers):
        _keep_rows(layers[name], _rows_of(layers[name], group, alive))
    for name in group.channelwise:
        _keep_channels(layers[name], alive)

    consumer = layers[group.consumer]
    columns = columns_of(alive, group.width)
    # Inputs of a part: one channel, all places of a map that was flattened, or a head.
    inputs_each = n_inputs(consumer) // group.count
    remaining = matrix_of(consumer)[columns]
    set_matrix(consumer, remaining, inputs=inputs_each * len(alive))
    if group.of_heads:
        _tell_heads(layers[group.attention], group, len(alive))


def take_over(layers: Mapping[str, nn.Module], group: Group, matrix: Tensor, shift: Tensor) -> None:
    """Gives the consumer new weights for the parts that stayed, and shifts its outputs.

    The shift is a constant that is added to them.
    """
    consumer = layers[group.consumer]
    set_matrix(consumer, matrix)
    weight = weight_of(consumer)
    shift = shift.to(weight)
    subtracted = getattr(layers.get(group.norm), "running_mean", None)
    if isinstance(consumer.bias, Tensor):
        bias = consumer.bias
        consumer.bias = _parameter(bias.detach() + shift, bias)
    elif isinstance(subtracted, Tensor):
        # The batch norm behind it takes the shift on: no new parameter is needed.
        subtracted.sub_(shift)
    else:
        consumer.bias = _parameter(shift, weight)


def _rows_of(producer: nn.Module, group: Group, alive: Tensor) -> Tensor:
    """Rows of a producer that belong to the parts that stay.

    Where queries, keys and values are one layer, these are the rows of each of the three; where
    heads share keys and values, a layer that makes these has fewer rows for a part.
    """
    if not group.of_heads:
        return alive
    n_made = n_outputs(producer)
    n_read = group.count * group.width
    if n_made < n_read:
        return columns_of(alive, n_made // group.count)

    within = columns_of(alive, group.width)
    starts = range(0, n_made, n_read)
    return torch.cat([start + within for start in starts])


def _parameter(values: Tensor, former: Tensor) -> nn.Parameter:
    """A parameter in the place of another: on its device, in its precision, frozen if that was."""
    copied = values.to(former).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(copied, requires_grad=former.requires_grad)


def _keep_rows(layer: nn.Module, rows: Tensor) -> None:
    """A layer that makes fewer outputs."""
    weight = weight_of(layer)
    values = weight.detach()
    remaining = values[:, rows] if is_transposed(layer) else values[rows]
    layer.weight = _parameter(remaining, weight)
    if isinstance(layer.bias, Tensor):
        bias = layer.bias
        layer.bias = _parameter(bias.detach()[rows], bias)
    _tell_size(layer, "outputs", len(rows))


def _keep_channels(layer: nn.Module, alive: Tensor) -> None:
    """A batch norm, activation with slopes or depthwise convolution for fewer channels."""
    for name, tensor in list(layer.named_parameters(recurse=False)):
        setattr(layer, name, _parameter(tensor.detach()[alive], tensor))
    for name, buffer in list(layer.named_buffers(recurse=False)):
        if buffer.ndim:
            setattr(layer, name, buffer[alive].clone())
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        layer.groups = layer.in_channels = layer.out_channels = len(alive)
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = len(alive)
    else:
        setattr(layer, "num_features", len(alive))  # noqa: B010 - a batch norm of any kind


def set_matrix(layer: nn.Module, matrix: Tensor, *, inputs: int | None = None) -> None:
    """Puts W into a layer that reads so many channels; as many as before by default."""
    weight = weight_of(layer)
    if inputs is None:
        inputs = n_inputs(layer)
    if is_transposed(layer):
        values = matrix
    else:
        outputs, _, *taps = weight.shape
        values = matrix.T.reshape(outputs, inputs, *taps)
    layer.weight = _parameter(values, weight)
    _tell_size(layer, "inputs", inputs)


def _tell_size(layer: nn.Module, side: Literal["inputs", "outputs"], size: int) -> None:
    """Changes the number of inputs or outputs that a layer remembers."""
    if is_transposed(layer):
        names = {"inputs": "nx", "outputs": "nf"}
    elif isinstance(layer, nn.Linear):
        names = {"inputs": "in_features", "outputs": "out_features"}
    else:
        names = {"inputs": "in_channels", "outputs": "out_channels"}
    setattr(layer, names[side], size)


def _tell_heads(attention: nn.Module, group: Group, left: int) -> None:
    """Changes the numbers of heads that an attention layer remembers."""
    n_heads = group.count * group.heads_each
    # Of heads that share keys and values, layers remember both: how many query, and how many share.
    counts = {n_heads: left * group.heads_each, group.count: left}
    for name in _HEAD_COUNTS:
        remembered = getattr(attention, name, None)
        if remembered in counts:
            setattr(attention, name, counts[remembered])

    together = group.count * group.width
    for name in _HEAD_WIDTHS:
        if getattr(attention, name, None) == together:
            setattr(attention, name, left * group.width)
