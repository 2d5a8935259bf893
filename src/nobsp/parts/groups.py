"""Which units, channels and heads of a network can be removed, found on the tape of a forward pass.

A layer's outputs can go where one other layer alone reads them, and every step between the two
treats each channel by itself: an activation, a batch norm, a depthwise convolution, pooling.
Residual streams and outputs stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.parts.operations import (
    active_values,
    is_attention,
    is_pointwise,
    is_product,
    is_weighted,
)
from nobsp.parts.stream import Graph
from nobsp.parts.tape import Step, Tape

_POOLING = frozenset(
    (
        "mean",
        "avg_pool1d",
        "avg_pool2d",
        "_adaptive_avg_pool2d",
        "adaptive_avg_pool2d",
        "max_pool2d_with_indices",
        "adaptive_max_pool2d",
    )
)
_BATCH_NORMS = frozenset(("native_batch_norm", "_native_batch_norm_legit_no_training"))
_SAME_NUMBERS = frozenset(("clone", "alias", "contiguous", "_to_copy", "neg"))
_ELEMENTWISE = frozenset(("mul", "add", "sub", "rsub", "div", "pow", "erf", "neg", "exp"))
_VIEWS = frozenset(("view", "_unsafe_view", "reshape", "_reshape_alias", "flatten", "squeeze"))
# Among how many tensors the layers of heads are looked for: behind reshapes, slices, rotations and
# scores that are capped.
_DEEPEST = 100


@dataclass(frozen=True)
class Group:
    """Parts that go together: rows of some layers, and columns with which another reads them."""

    consumer: str  # the layer that reads the parts
    producers: tuple[str, ...]  # the layers that make them
    # batch norms, activations with slopes and depthwise convolutions between
    channelwise: tuple[str, ...]
    count: int  # how many parts there are
    width: int  # columns of the consumer that belong to a part
    kind: str  # "units", "channels", "heads", or "head groups" that share keys and values
    attention: str = ""  # the layer whose heads they are
    heads_each: int = 1  # heads of a part: several where these share keys and values
    norm: str = ""  # the batch norm that alone reads what the consumer returns

    @property
    def of_heads(self) -> bool:
        """Whether parts are heads of attention, or several that go together."""
        return self.kind in ("heads", "head groups")

    @property
    def name(self) -> str:
        """What people call the layer that has these parts.

        It is the layer that makes them, or the attention with its heads.
        """
        return self.attention or " and ".join(self.producers)


@dataclass(frozen=True, eq=False)
class Chain:
    """What stands between a layer and the one that reads it."""

    producers: tuple[str, ...]
    channelwise: tuple[str, ...] = ()
    spread: int = 1  # columns that a channel has become by flattening

    def after(self, module: str) -> Chain:
        """The same with one more layer between."""
        return replace(self, channelwise=(*self.channelwise, module))


@dataclass(frozen=True, eq=False)
class Finder:
    """Looks for groups."""

    model: nn.Module
    tape: Tape
    altered: Mapping[str, str] = field(default_factory=dict)  # layers with hooks and such, and why
    returned: tuple[Tensor, ...] = ()  # all that the model returns, not its outputs alone

    @cached_property
    def graph(self) -> Graph:
        """What is computed from what."""
        return Graph(self.tape, active_values(self.tape))

    @cached_property
    def layers(self) -> dict[str, nn.Module]:
        """All layers by name."""
        return dict(self.model.named_modules())

    @cached_property
    def activations(self) -> dict[str, tuple[Step, ...]]:
        """Layers without weights whose steps all work number by number.

        An example is a GELU that is written out.
        """
        steps: dict[str, list[Step]] = {}
        for step in self.tape.steps:
            steps.setdefault(step.module, []).append(step)
        return {
            name: tuple(own)
            for name, own in steps.items()
            if all(is_pointwise(step) or step.name in _ELEMENTWISE for step in own)
            and not any(self.layers[name].children())
            and not any(True for _ in self.layers[name].parameters())
        }

    @cached_property
    def readers(self) -> Counter[int]:
        """How many steps read each tensor; an activation that is written out counts as one."""
        keys: dict[int, set[Any]] = {}
        for position, step in enumerate(self.tape.steps):
            key = step.module if step.module in self.activations else position
            for number in step.inputs:
                keys.setdefault(number, set()).add(key)
        readers = Counter({number: len(own) for number, own in keys.items()})
        readers[self.tape.output] += 1
        for number, tensor in enumerate(self.tape.values):
            if number != self.tape.output and any(_is_same(tensor, own) for own in self.returned):
                readers[number] += 1
        return readers

    def _entering_activation(self, module: str) -> int | None:
        """The one tensor that an activation reads from outside."""
        steps = self.activations[module]
        own = {number for step in steps for number in step.outputs}
        read = {
            number
            for step in steps
            for number in step.inputs
            if number in self.graph.active and number not in own
        }
        return read.pop() if len(read) == 1 else None

    @cached_property
    def calls(self) -> Counter[str]:
        """How often each layer with weights ran."""
        return Counter(step.module for step in self.tape.steps if is_weighted(step))

    @cached_property
    def channelwise_calls(self) -> Counter[str]:
        """How often each batch norm, and each activation with slopes, ran."""
        names = (*_BATCH_NORMS, "_prelu_kernel")
        return Counter(step.module for step in self.tape.steps if step.name in names)

    @cached_property
    def shared_weights(self) -> frozenset[int]:
        """Identities of weights that several layers have.

        Cutting them in one layer would untie it from the others.
        """
        owners = Counter(
            id(weight)
            for layer in self.layers.values()
            for weight in layer.parameters(recurse=False)
        )
        return frozenset(weight for weight, count in owners.items() if count > 1)

    def find(self) -> tuple[list[Group], list[tuple[str, str]]]:
        """Groups in the order of the forward pass, and layers that keep all parts, with why."""
        groups: list[Group] = []
        reasons: dict[str, str] = {}
        for step in self.tape.steps:
            reader = step.module
            if not is_weighted(step) or is_attention(step) or not self._has_parts(reader):
                continue
            if _is_depthwise(self.layers[reader]) and not is_plain_layer(self.layers[reader]):
                # What is behind it reads its channels and those before it alike.
                continue
            refusal = self._why_not(reader)
            if refusal:
                refusal = f"{reader} reads what it makes, and cannot read less ({refusal})"
            else:
                group = self._group(step)
                if isinstance(group, Group):
                    groups.append(group)
                    continue
                refusal = group
            for maker in self._makers(step):
                reasons.setdefault(maker, self._why_of_maker(maker, refusal))
        return groups, self._whole_layers(groups, reasons)

    def _has_parts(self, name: str) -> bool:
        """Whether a layer is of a kind that makes units or channels, able to lose them or not."""
        layer = self.layers.get(name)
        return layer is not None and (isinstance(layer, _LAYERS) or is_plain_layer(layer))

    def _why_of_maker(self, name: str, refusal: str) -> str:
        """Why a layer keeps all it makes, given why its reader does not read less."""
        layer = self.layers[name]
        if _is_depthwise(layer):
            return f"it treats each channel by itself, and those that it reads stay: {refusal}"
        return refusal if is_plain_layer(layer) else _why_not_plain(layer)

    def _makers(self, step: Step) -> list[str]:
        """The layers that make what a step reads, with no other layer between."""
        makers = []
        known = set(self.graph.parents(step.outputs[0]))
        waiting = list(known)
        while waiting:
            value = waiting.pop()
            before = self.graph.step(value)
            if before is None:
                continue
            if is_weighted(before) and self._has_parts(before.module):
                makers.append(before.module)
                if not _is_depthwise(self.layers[before.module]):
                    continue
            further = [parent for parent in self.graph.parents(value) if parent not in known]
            known.update(further)
            waiting += further
        return makers

    def _whole_layers(
        self, groups: Sequence[Group], reasons: Mapping[str, str]
    ) -> list[tuple[str, str]]:
        """Layers that keep all their parts, each with the reason, in order of the forward pass."""
        heads = (
            "its heads cannot be told apart (nn.MultiheadAttention with tokens first, extra keys, "
            "hooks, or weights that are used)"
        )
        whole = [
            (name, heads)
            for name, layer in self.layers.items()
            if isinstance(layer, nn.MultiheadAttention)
        ]
        smaller = {name for group in groups for name in (*group.producers, *group.channelwise)}
        in_heads = [f"{name}." for name, _ in whole]
        for name in self._layers_that_ran():
            if isinstance(self.layers.get(name), nn.RNNBase | nn.RNNCellBase):
                whole.append((name, "it is recurrent: its units read each other"))
            elif name not in smaller and self._has_parts(name):
                whole.append((name, reasons.get(name) or self._why_unread(name)))
            elif not self._has_parts(name) and self._multiplies_itself(name):
                reason = "it multiplies with a parameter of its own, in no layer that can be cut"
                whole.append((name, reason))

        ran = {step.module for step in self.tape.steps}
        for name in self.layers:
            is_seen = name in ran or any(name.startswith(start) for start in in_heads)
            if self._has_parts(name) and not is_seen:
                whole.append((name, "it is not called for these rows"))
        return whole

    def _layers_that_ran(self) -> list[str]:
        """Names of layers in the order of the forward pass."""
        return list(dict.fromkeys(step.module for step in self.tape.steps))

    def _multiplies_itself(self, name: str) -> bool:
        """Whether a layer that is none of torch's multiplies what it reads with own weights."""
        layer = self.layers.get(name)
        if layer is None or isinstance(layer, nn.MultiheadAttention):
            return False
        own = {
            weight.untyped_storage().data_ptr()
            for weight in layer.parameters(recurse=False)
            if weight.ndim > 1
        }
        return any(
            self.tape.values[number].untyped_storage().data_ptr() in own
            for step in self.tape.steps
            if own and step.module == name and is_product(step)
            for number in step.inputs
            if self.tape.values[number].layout == torch.strided
        )

    def _why_unread(self, name: str) -> str:
        """Why no layer reads what a layer makes of the input."""
        made = {step.outputs[0] for step in self.tape.steps if step.module == name}
        if made.isdisjoint(self.graph.active):
            return "what it makes does not depend on the input, as a bias of positions does not"
        if self._is_multiplied(made, name):
            return "no linear layer or convolution reads what it makes"
        return "it makes what the network returns"

    def _is_multiplied(self, made: Collection[int], name: str) -> bool:
        """Whether other steps with weights come after what a layer makes."""
        after = set(made)
        for step in self.tape.steps:
            if step.module == name or after.isdisjoint(step.inputs):
                continue
            if is_weighted(step):
                return True
            after.update(step.outputs)
        return False

    def _why_not(self, name: str) -> str:
        """Why a layer cannot read fewer parts; empty where it can."""
        layer = self.layers.get(name)
        if name in self.altered:
            return self.altered[name]
        if layer is None or not is_plain_layer(layer):
            return _why_not_plain(layer)
        if self.calls[name] > 1:
            return "it is used more than once"
        if id(layer.weight) in self.shared_weights:
            return "it shares its weights with another layer"
        return ""

    def _group(self, step: Step) -> Group | str:
        """The parts that a layer reads, or why they have to stay."""
        name = step.module
        entering = self.graph.parents(step.outputs[0])
        if len(entering) != 1:
            return f"{name} reads what it makes together with another tensor"
        layer = self.layers[name]
        is_map = isinstance(layer, nn.Conv1d | nn.Conv2d)
        chain = self._trace(entering[0], is_map=is_map)
        if isinstance(chain, Chain):
            count = n_outputs(self.layers[chain.producers[0]])
            taps = n_columns(layer) // n_inputs(layer)
            kind = "channels" if is_map else "units"
            width = chain.spread * taps
            return Group(
                name,
                chain.producers,
                chain.channelwise,
                count,
                width,
                kind,
                norm=self._norm_after(step),
            )
        heads = self._heads(entering[0], name)

        return heads if heads is not None else chain

    def _norm_after(self, step: Step) -> str:
        """The batch norm that reads what a layer returns and nothing else, as nothing else does."""
        value = step.outputs[0]
        if self.readers[value] > 1:
            return ""
        for reader in self.tape.steps:
            is_norm = reader.name in _BATCH_NORMS and self.channelwise_calls[reader.module] == 1
            if value in reader.inputs and is_norm:
                return reader.module
        return ""

    def _trace(self, value: int, *, is_map: bool) -> Chain | str:
        """The way back to the layers that made a tensor; channels are second in a map, or last.

        Where there is no such way, the reason in words.
        """
        if self.readers[value] > 1:
            return "what it makes is read in more than one place, as in a residual stream"
        step = self.graph.step(value)
        if step is None:
            return "it reads the input"
        parents = self.graph.parents(value)
        if is_weighted(step):
            return self._at_layer(step, parents, is_map=is_map)
        if step.name in _BATCH_NORMS or self._has_slopes(step, value, is_map=is_map):
            return self._further(parents[0], step.module, is_map=is_map)
        if step.module in self.activations:
            entering = self._entering_activation(step.module)
            if entering is not None:
                return self._trace(entering, is_map=is_map)
        if step.name == "mul" and len(parents) == 2:
            return self._gated(parents, is_map=is_map)
        if len(parents) != 1:
            mixed = "is added to" if step.name == "add" else f"is mixed by {step.name} with"
            return f"what it makes {mixed} other tensors, as in a residual stream"

        return self._through(step, value, parents[0], is_map=is_map)

    def _has_slopes(self, step: Step, value: int, *, is_map: bool) -> bool:
        """Whether a step is an activation with a slope of its own for every channel."""
        layer = self.layers.get(step.module)
        by_channel = isinstance(layer, nn.PReLU) and layer.num_parameters > 1
        # Channels are second, which in a vector is last.
        return by_channel and (is_map or self.tape.values[value].ndim == 2)

    def _at_layer(self, step: Step, parents: Sequence[int], *, is_map: bool) -> Chain | str:
        """The layer that made a tensor.

        Where that treats every channel by itself, the way goes further back.
        """
        layer = self.layers.get(step.module)
        if _is_depthwise(layer) and self.calls[step.module] == 1:
            return self._further(parents[0], step.module, is_map=is_map)
        if not self._has_parts(step.module):
            owner = step.module or "the model itself"
            return f"{step.name} of {owner} stands between it and the layer that reads it"
        reason = self._why_not(step.module)
        if isinstance(layer, nn.Conv1d | nn.Conv2d) != is_map and len(step.inputs) > 1:
            reason = reason or "a reshape stands between it and the layer that reads it"
        return reason or Chain((step.module,))

    def _further(self, value: int, module: str, *, is_map: bool) -> Chain | str:
        """The way back through a layer that treats every channel by itself."""
        reason = self.altered.get(module, "")
        if self.channelwise_calls[module] > 1:
            reason = "it is used more than once"
        if reason:
            return f"{module}, which comes after it, cannot be cut ({reason})"
        chain = self._trace(value, is_map=is_map)
        return chain.after(module) if isinstance(chain, Chain) else chain

    def _gated(self, parents: tuple[int, ...], *, is_map: bool) -> Chain | str:
        """A product of two tensors, as in gated units: a part is a channel of both."""
        first, second = (self._trace(parent, is_map=is_map) for parent in parents)
        if isinstance(first, str):
            return first
        if isinstance(second, str):
            return second
        counts = {n_outputs(self.layers[name]) for name in (*first.producers, *second.producers)}
        if len(counts) > 1 or first.spread != second.spread:
            return "the tensors that are multiplied have different channels"
        return Chain(
            first.producers + second.producers,
            first.channelwise + second.channelwise,
            first.spread,
        )

    def _through(self, step: Step, value: int, parent: int, *, is_map: bool) -> Chain | str:
        """A step that treats every channel by itself."""
        if is_pointwise(step) or step.name in _SAME_NUMBERS or step.name in ("mul", "div"):
            scalar = len(step.inputs) == 1 or all(
                self.tape.values[number].numel() == 1 for number in step.inputs if number != parent
            )
            if not scalar:
                return f"{step.name} weighs channels differently"
            return self._trace(parent, is_map=is_map)
        before = self.tape.values[parent].shape
        after = self.tape.values[value].shape
        pools = step.name in _POOLING and len(before) > 2 and before[1] == after[1]
        if pools and (is_map or len(after) == 2):
            return self._trace(parent, is_map=True)
        if step.name in _VIEWS:
            return self._view(before, after, parent, is_map=is_map)
        between = "a layer norm" if step.name == "native_layer_norm" else step.name
        return f"{between} stands between it and the layer that reads it"

    def _view(self, before: Any, after: Any, parent: int, *, is_map: bool) -> Chain | str:
        """A reshape: tokens laid end to end, or a map made a vector."""
        flattened = len(before) == 4 and len(after) == 2 and before[0] == after[0]
        if flattened and not is_map and after[1] == before[1] * before[2] * before[3]:
            chain = self._trace(parent, is_map=True)
            if not isinstance(chain, Chain):
                return chain
            return replace(chain, spread=chain.spread * before[2] * before[3])
        if not is_map and before[-1] == after[-1]:
            return self._trace(parent, is_map=False)
        return "a reshape stands between it and the layer that reads it"

    def _heads(self, value: int, consumer: str) -> Group | str | None:
        """Heads of attention that an output projection reads, or why they stay.

        None where there are no heads.
        """
        heads = self.graph.heads_behind(value)
        if heads is None or heads.count < 2:
            return None
        step = self.graph.step(heads.value)
        assert step is not None, "heads are made by a step"
        mixed = [number for number in step.inputs if number in self.graph.active]
        producers = tuple(
            dict.fromkeys(name for number in mixed for name in self._linear_behind(number))
        )
        if not producers or any(self._why_not(name) for name in producers):
            return None
        layer = self.layers[consumer]
        columns = n_columns(layer)
        count = self._count_parts(producers, heads.count, columns)
        if count == 1:
            return "all heads share their keys and values"
        if count is None:
            return None
        attention = consumer.rpartition(".")[0]
        inside = _common(producers)
        if isinstance(layer, nn.Linear) and not inside.startswith(attention):
            attention = inside

        return Group(
            consumer,
            producers,
            (),
            count,
            columns // count,
            "heads" if count == heads.count else "head groups",
            attention or inside,
            heads_each=heads.count // count,
        )

    def _count_parts(self, producers: Sequence[str], n_heads: int, n_columns: int) -> int | None:
        """How many parts heads make: heads that share keys and values go together.

        None where what the producers make does not belong to heads one after another.
        """
        n_made = [n_outputs(self.layers[name]) for name in producers]
        fewest = min(n_made)
        if n_columns % n_heads or any(made % n_columns and made != fewest for made in n_made):
            return None
        if fewest >= n_columns:
            return n_heads

        # Keys and values are those of fewer heads, each of which several heads read.
        per_head = n_columns // n_heads
        count = fewest // per_head
        is_shared_evenly = fewest % per_head == 0 and count > 0 and n_heads % count == 0
        return count if is_shared_evenly else None

    def _linear_behind(self, value: int) -> list[str]:
        """Layers that made queries, keys, values or weights of attention."""
        waiting = [value]
        seen = set(waiting)
        names = []
        while waiting and len(seen) < _DEEPEST:
            number = waiting.pop()
            step = self.graph.step(number)
            if step is None:
                continue
            if is_weighted(step) and step.name != "bmm":
                layer = self.layers.get(step.module)
                if layer is not None and is_plain_layer(layer):
                    names.append(step.module)
                continue
            for parent in self.graph.parents(number):
                if parent not in seen:
                    seen.add(parent)
                    waiting.append(parent)
        return sorted(names)


def _is_same(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory."""
    return (
        tensor.layout == other.layout == torch.strided
        and tensor.numel() > 0
        and tensor.shape == other.shape
        and tensor.data_ptr() == other.data_ptr()
    )


def _common(names: tuple[str, ...]) -> str:
    """The layer that all of some layers are inside of."""
    words = [name.split(".")[:-1] for name in names]
    shared = []
    for level in zip(*words, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# Layers that make units or channels; of these only the first three can lose any.
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Bilinear, *_TRANSPOSED)


def is_plain_layer(layer: nn.Module) -> bool:
    """Whether a layer is W h + b over all channels.

    It is a linear layer, a convolution, or the linear layer of GPT-2.
    """
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros"
    return isinstance(layer, nn.Linear) or is_transposed(layer)


def _why_not_plain(layer: nn.Module | None) -> str:
    """Why a layer is not W h + b over all channels."""
    if isinstance(layer, nn.Conv3d):
        return "convolutions of volumes, nn.Conv3d, are not taken apart"
    if isinstance(layer, _TRANSPOSED):
        return f"transposed convolutions, nn.{type(layer).__name__}, are not taken apart"
    if isinstance(layer, nn.Bilinear):
        return "nn.Bilinear multiplies the tensors that it reads by each other"
    if isinstance(layer, nn.Conv1d | nn.Conv2d) and layer.groups > 1:
        return f"its channels are in {layer.groups} groups, each of which reads some channels only"
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return f"its padding is {layer.padding_mode!r}, and not of zeros"
    return "it is no linear layer or convolution over all channels"


def is_transposed(layer: nn.Module) -> bool:
    """Whether it is the linear layer of GPT-2, whose weights lie the other way round."""
    weight = getattr(layer, "weight", None)
    return type(layer).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2


def _is_depthwise(layer: nn.Module | None) -> bool:
    return (
        isinstance(layer, nn.Conv1d | nn.Conv2d)
        and layer.groups == layer.in_channels == layer.out_channels
    )


def n_outputs(layer: nn.Module) -> int:
    """Channels that a layer makes."""
    return int(weight_of(layer).shape[1 if is_transposed(layer) else 0])


def n_inputs(layer: nn.Module) -> int:
    """Channels that a layer reads."""
    return int(weight_of(layer).shape[0 if is_transposed(layer) else 1])


def n_columns(layer: nn.Module) -> int:
    """Numbers that one output of a layer is made of."""
    return weight_of(layer).numel() // n_outputs(layer)


def weight_of(layer: nn.Module) -> Tensor:
    """Its weights."""
    weight = layer.weight
    assert isinstance(weight, Tensor), "only layers with weights get here"
    return weight
