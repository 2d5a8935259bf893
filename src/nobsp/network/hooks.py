"""Hooks: what layers are given and give, recorded or replaced; linear layers, embeddings, any module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any, Literal

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
def record_calls(layers: Mapping[str, nn.Module], *, rows: int, sizes: set[int]) -> Iterator[list[Call]]:
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
def record_inputs(layer: nn.Module, *, copy: bool) -> Iterator[local]:
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


Side = Literal["output", "input"]


@dataclass(frozen=True, eq=False)
class Place:
    """Where to look in a model."""

    name: str  # the module's name in the model; empty for the model itself
    module: nn.Module  # the module
    call: int  # which of its calls in a forward pass; -1 for the last
    side: Side  # whether it is what the module returns or what it is given
    calls: int = 1  # how many calls it gets in a forward pass
    # whether the model changes that tensor in place later, so that it has to be copied at once
    overwritten: bool = False


@contextmanager
def record_tensor(place: Place) -> Iterator[local]:
    """Append what passes the place to the current thread's `.caught`, where it has one.

    Only tensors are kept; all calls of the module are, so that the last can be told.
    """
    here = local()

    def hook(_: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        caught = getattr(here, "caught", None)
        if caught is None:
            return
        found = input_of(args, rest) if place.side == "input" else rest[-1]
        if isinstance(found, Tensor):
            found = found.detach()
            caught.append(found.clone() if place.overwritten else found)

    if place.side == "input":
        handle = place.module.register_forward_pre_hook(hook, with_kwargs=True)
    else:
        handle = place.module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield here
    finally:
        handle.remove()


@contextmanager
def replace_tensor(place: Place) -> Iterator[local]:
    """Put the current thread's `.value`, where it has one, in the place of what passes there.

    The thread sets `.value` and `.calls = 0` before each forward pass.
    """
    here = local()

    def wanted() -> Tensor | None:
        value: Tensor | None = getattr(here, "value", None)
        if value is None:
            return None
        here.calls += 1
        chosen = place.call if place.call >= 0 else place.calls - 1
        return value if here.calls - 1 == chosen else None

    def after(_: nn.Module, *__: Any) -> Tensor | None:
        return wanted()

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        # Another thread, whose forward pass meets this hook half registered, may call it without kwargs.
        value = wanted()
        if value is None or kwargs is None:
            return None
        if args:
            return (value, *args[1:]), kwargs
        return args, {**kwargs, next(iter(kwargs)): value}

    if place.side == "input":
        handle = place.module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = place.module.register_forward_hook(after)
    try:
        yield here
    finally:
        handle.remove()


def embedded_columns(
    module: nn.Module, run: Callable[[Tensor], Any], probe: Tensor, prepare: Callable[[Tensor], Tensor]
) -> tuple[int, ...]:
    """Columns of `probe` whose integer part, up to a constant shift, is looked up in an embedding.

    Columns that equal a lookup in every row of the probe but could do so by chance (constant columns, two
    columns with the same codes) are decided by changing that column and looking again.
    """
    layers = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    if not layers or probe.ndim != 2:
        return ()

    def lookups_of(rows: Tensor) -> list[tuple[Tensor, int]]:
        with _lookups(layers, rows=len(rows)) as lookups:
            run(prepare(rows))
        return lookups

    codes = probe.detach().to("cpu", torch.float64).trunc()
    before = lookups_of(probe)
    found: set[int] = set()
    for number, (looked_up, levels) in enumerate(before):
        shift = looked_up[:, None].to(torch.float64) - codes
        constant_shift = (shift == shift[:1]).all(dim=0)
        columns = [int(column) for column in constant_shift.nonzero().flatten()]
        varies = bool((looked_up != looked_up[0]).any())
        if varies and len(columns) == 1:
            found.add(columns[0])
            continue
        for column in set(columns) - found:
            changed = _another_level(probe, column, looked_up, levels)
            after = lookups_of(changed)
            if len(after) != len(before) or not torch.equal(after[number][0], looked_up):
                found.add(column)
    return tuple(sorted(found))


def _another_level(probe: Tensor, column: int, looked_up: Tensor, levels: int) -> Tensor:
    """The probe with one column moved to the next valid code, so that no lookup leaves the embedding."""
    step = (looked_up + 1) % levels - looked_up
    changed = probe.detach().clone()
    changed[:, column] += step.to(changed.device, changed.dtype)
    return changed


@contextmanager
def _lookups(layers: Sequence[nn.Module], *, rows: int) -> Iterator[list[tuple[Tensor, int]]]:
    """Index vectors looked up during a forward pass, one value per row, each with its number of levels."""
    lookups: list[tuple[Tensor, int]] = []
    here = local()
    here.watching = True

    def hook(layer: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        if not getattr(here, "watching", False):
            return
        indices = input_of(args, rest)
        if indices.ndim == 0 or indices.shape[0] != rows:
            return
        levels = int(torch.as_tensor(layer.weight).shape[0])
        for position in indices.to("cpu", torch.int64).reshape(rows, -1).T:
            lookups.append((position.clone(), levels))

    handles = [layer.register_forward_hook(hook, with_kwargs=True) for layer in layers]
    try:
        yield lookups
    finally:
        for handle in handles:
            handle.remove()
