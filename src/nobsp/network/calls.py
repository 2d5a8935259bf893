"""Watches the linear layers of a model while it runs: who was called, with what, and on which rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any

import torch
from torch import Tensor, nn

_COMPILED = "_orig_mod."


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a linear layer: its input rows, where they line up with the model's rows."""

    name: str
    layer: nn.Module
    index: int  # how many times this layer had been called before
    z: Tensor | None  # (rows, width), a copy
    source: Tensor  # the very tensor the layer was given, to see whether it is overwritten later
    positions: int  # at how many positions of each row the layer was applied

    @property
    def overwritten(self) -> bool:
        """Whether the model changed the layer's input in place after the call."""
        return self.z is not None and not torch.equal(self.z, rows_entering(self.layer, self.source, len(self.z)))


def is_linear(layer: nn.Module) -> bool:
    """Linear layers and 1x1 convolutions: layers whose output is W z + b at every position."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return all(size == 1 for size in layer.kernel_size) and layer.groups == 1
    return isinstance(layer, nn.Linear)


def linear_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Every linear layer by its name in `module`, compiled parts under their plain names."""
    return {plain(name): part for name, part in module.named_modules() if is_linear(part)}


def plain(name: str) -> str:
    """A module's name without what `torch.compile` puts into it."""
    return (name + ".").replace(_COMPILED, "").rstrip(".")


def weight_of(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight (outputs, width) and bias (outputs,) in float64 on the CPU; zeros for a missing bias."""
    with torch.no_grad():
        weight = torch.as_tensor(layer.weight).detach().to("cpu", torch.float64, copy=True).flatten(1)
        if layer.bias is None:
            return weight, torch.zeros(len(weight), dtype=torch.float64)
        return weight, torch.as_tensor(layer.bias).detach().to("cpu", torch.float64, copy=True)


def input_of(args: tuple[Any, ...], rest: tuple[Any, ...]) -> Tensor:
    """The tensor a layer was called with, given by position or as `input=`; with its graph where one is built."""
    tensor: Tensor = args[0] if args else next(iter(rest[0].values()))
    return tensor if torch.is_grad_enabled() else tensor.detach()


def positions_of(layer: nn.Module, source: Tensor, rows: int) -> int:
    """At how many positions of every row a layer was applied; 0 if its input has other rows."""
    channels = source.shape[1 if isinstance(layer, nn.Conv1d | nn.Conv2d) else -1]
    per_row = source.numel() // channels if channels else 0
    lined_up = rows > 0 and per_row % rows == 0 and (source.shape[0] == rows or rows == 1)
    return per_row // rows if lined_up else 0


def rows_entering(layer: nn.Module, source: Tensor, rows: int) -> Tensor:
    """The layer's input as (rows, width); a convolution's input is averaged over its positions.

    A 1x1 convolution followed by global average pooling is linear in the pooled input:
    mean(W z + b) = W mean(z) + b.
    """
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return source.flatten(2).mean(dim=2)
    return source.reshape(rows, -1)


@contextmanager
def watching(layers: Mapping[str, nn.Module], *, rows: int, sizes: set[int]) -> Iterator[list[Call]]:
    """Record every call of `layers` made by this thread; hooks are gone afterwards, whatever happened."""
    calls: list[Call] = []
    here = local()
    here.watching = True
    counts: dict[str, int] = {}
    handles = []

    def hook_for(name: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
            if not getattr(here, "watching", False):
                return
            source = input_of(args, rest)
            index = counts[name] = counts.get(name, -1) + 1
            positions = positions_of(layer, source, rows)
            outputs = int(torch.as_tensor(layer.weight).shape[0])
            pooled = isinstance(layer, nn.Conv1d | nn.Conv2d) and positions > 0
            usable = outputs in sizes and (pooled or positions == 1)
            z = rows_entering(layer, source, rows).clone() if usable else None
            calls.append(Call(name, layer, index, z, source if usable else source.new_empty(0), positions))

        return hook

    try:
        for name, layer in layers.items():
            handles.append(layer.register_forward_hook(hook_for(name), with_kwargs=True))
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def catching(layer: nn.Module, *, copy: bool) -> Iterator[local]:
    """Append the inputs of `layer` to the current thread's `.caught`, where it has one."""
    here = local()

    def hook(_: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        caught = getattr(here, "caught", None)
        if caught is not None:
            source = input_of(args, rest)
            caught.append(source.clone() if copy else source)

    handle = layer.register_forward_hook(hook, with_kwargs=True)
    try:
        yield here
    finally:
        handle.remove()
