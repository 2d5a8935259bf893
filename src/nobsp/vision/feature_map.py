"""A model as its spatial map and what is behind it: a pooling and a linear head, or a tail of any layers."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nobsp.network.find_head import Head, tensors_in
from nobsp.network.hooks import Place, record_tensor, replace_tensor
from nobsp.network.inference import device_and_dtype, evaluation_mode, explain_failure
from nobsp.network.readout import Readout, checked, fingerprint_of
from nobsp.vision.grid import Grid, Pooling, Space, pooled, space_of

# What of the map the layers behind it depend on. "head": its pooled units, which enter the linear head as they are.
# "point" and "constant": the channels' means, put in as a map of one location or as a constant map. "full": all of it,
# tokens without a place included.
Reach = Literal["head", "point", "constant", "full"]


# Under which name a model that takes tokens by keywords is part of what runs it.
PACKED = "model."


class TokenModel(nn.Module):
    """Runs a model that takes tokens by keywords on one tensor (n, keywords, tokens)."""

    def __init__(self, model: nn.Module, keys: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.keys = model, keys

    def forward(self, packed: Tensor) -> Any:
        """What the model says."""
        return self.model(**{key: packed[:, place] for place, key in enumerate(self.keys)})


def as_taken(model: nn.Module, keys: tuple[str, ...]) -> nn.Module:
    """The model as one that takes a tensor: itself, or around it what hands out its keywords."""
    return TokenModel(checked(model), keys) if keys else model


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """What one forward pass shows, float64."""

    maps: Tensor  # shape (n, channels, *locations)
    logits: Tensor  # shape (n, outputs)
    units: Tensor  # what the layers behind the map depend on
    images: Tensor  # what the model was given
    typical: Tensor | None = None  # of tokens, the mean over those that are no padding, shape (n, channels)


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap:
    """Where a model's spatial map is and how its output depends on it."""

    module: nn.Module  # the model, without wrappers
    place: Place  # where the map passes
    grid: Grid  # its layout
    relu: bool  # whether a rectifier that is no module of its own follows before the pooling
    pooling: Pooling  # how the map becomes units; "flatten" where the layers behind it see all of it
    reach: Reach  # what of the map the layers behind it depend on
    fixed_batch: bool  # whether the layers behind the map want as many rows as there were images
    head: Head | None  # the linear head
    link: str  # what follows the head
    readout: Readout | None  # how to catch the representation that enters the head; None where there is no head
    outputs: int  # how many outputs the model has
    channels: int  # channels of the map
    shape: Space  # extent of the map for the images it was found with
    text: bool  # whether the input is codes of tokens
    image_shape: tuple[int, ...]  # channels, height and width of those images, or what other inputs have
    device: torch.device  # where the model lives
    dtype: torch.dtype  # in which precision it takes images

    @property
    def keys(self) -> tuple[str, ...]:
        """Under which keywords the model takes tokens; none for one that takes a tensor."""
        return self.module.keys if isinstance(self.module, TokenModel) else ()

    @property
    def direct(self) -> bool:
        """Whether the pooled map is what the linear head sees."""
        return self.reach == "head"

    @property
    def map_units(self) -> int:
        """How many numbers the pooling makes of the map."""
        factor = {"flatten": math.prod(self.shape), "mean+max": 2, "max+mean": 2}.get(self.pooling, 1)
        return self.channels * factor

    @property
    def units(self) -> int:
        """The same with tokens that have no place."""
        return self.map_units + (self.channels * self.grid.prefix if self.reach == "full" else 0)

    @property
    def layer(self) -> str:
        """The map in words: the module whose output it is, and what follows if that is no module."""
        name = self.place.name.removeprefix(PACKED if self.keys else "") or "the model"
        name = name if self.place.side == "output" else f"input of {name}"
        return f"relu({name})" if self.relu else name

    def __repr__(self) -> str:
        size = "×".join(map(str, (self.channels, *self.shape)))
        return f"FeatureMap(layer={self.layer!r}, map={size}, pooling={self.pooling!r}, reach={self.reach!r})"

    def described(self) -> dict[str, Any]:
        """Everything that must be the same for a calibration to apply, as JSON can hold it."""
        return {
            "layer": self.place.name,
            "call": self.place.call,
            "side": self.place.side,
            "layout": self.grid.layout,
            "prefix": self.grid.prefix,
            "relu": self.relu,
            "pooling": self.pooling,
            "reach": self.reach,
            "head": None if self.head is None else self.head.name,
            "channels": self.channels,
            "outputs": self.outputs,
        }

    def fingerprint(self) -> str:
        """SHA-256 over the model's state and the name of its head."""
        return fingerprint_of(self.module, "" if self.head is None else self.head.name)

    def on_current_device(self) -> FeatureMap:
        """The same on the device where the model is now."""
        device, dtype = device_and_dtype(self.module)
        if (device, dtype) == (self.device, self.dtype):
            return self
        readout = None if self.readout is None else dataclasses.replace(self.readout, device=device, dtype=dtype)
        return dataclasses.replace(self, device=device, dtype=dtype, readout=readout)

    def portable(self) -> FeatureMap:
        """The same with the model on the CPU, in a copy where it is elsewhere: a worker may not have that GPU."""
        if all(tensor.device.type == "cpu" for tensor in (*self.module.parameters(), *self.module.buffers())):
            return self
        other = copy.deepcopy(self)
        other.module.to("cpu")
        return other

    def moved(self) -> FeatureMap:
        """The same with the model on its device for good, in a process of its own."""
        self.module.to(self.device)
        return self.on_current_device()

    @contextmanager
    def running(self) -> Iterator[Callable[[Tensor], ForwardPass]]:
        """Hold the model in evaluation mode and hand out `forward(images)`: one forward pass, maps and logits.

        Hooks are gone and the model is as before at the end, whatever happened.
        """
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            run = stack.enter_context(evaluation_mode(self.module))
            here = stack.enter_context(record_tensor(self.place))
            logits_of = None if self.direct else stack.enter_context(self._observing_logits(run))

            def forward(images: Tensor) -> ForwardPass:
                here.caught = []
                try:
                    x = self._ready(images)
                    logits = run(x) if logits_of is None else logits_of(x, len(x))
                    caught: list[Tensor] = here.caught
                except (RuntimeError, IndexError) as failure:
                    explain_failure(failure, images, dtype=self.dtype, device=self.device)
                    if tuple(images.shape[1:]) != self.image_shape:
                        raise ValueError(
                            f"the model cannot take images of shape {tuple(images.shape[1:])} ({failure}); it was "
                            f"calibrated on images of shape {self.image_shape}."
                        ) from failure
                    raise
                finally:
                    del here.caught
                maps, tokens = self._maps(caught, images)
                units = pooled(maps, self.pooling)
                if logits_of is None:
                    assert self.head is not None
                    logits = units @ self.head.weight.to(maps.device).T + self.head.bias.to(maps.device)
                if tokens.numel():
                    units = torch.cat([units, tokens.flatten(1)], dim=1)
                typical = self._typical(maps, images) if self.text and self.reach == "full" else None
                return ForwardPass(maps, logits, units, images, typical)

            yield forward

    @contextmanager
    def behind(self, images: Tensor) -> Iterator[Callable[[Tensor, Tensor], Tensor]]:
        """Hand out `tail(units, rows)`: the logits, with their graph, of units put in the place of the map.

        The model is run on one image, whatever the number of rows, and the units are put in on the way. Of tokens it is
        run on those of `images` that `rows` name, since masks and lengths reach the layers behind the map too.
        """
        with ExitStack() as stack:
            run = stack.enter_context(evaluation_mode(self.module, gradients=True))
            there = stack.enter_context(replace_tensor(self.place))
            logits_of = stack.enter_context(self._observing_logits(run))
            shape = tuple(1 for _ in self.shape) if self.reach == "point" else self.shape

            def tail(units: Tensor, which: Tensor) -> Tensor:
                rows = len(units)
                if self.reach == "full":
                    maps = torch.unflatten(units[:, : self.map_units], 1, (self.channels, *shape))
                    tokens = torch.unflatten(units[:, self.map_units :], 1, (self.grid.prefix, self.channels))
                else:
                    maps = units.reshape(*units.shape, *(1 for _ in shape)).expand(-1, -1, *shape)
                    # Where only means count, other tokens do not, whatever they are.
                    tokens = units.new_zeros(rows, self.grid.prefix, self.channels)
                # A clone, since the next layer may work in place and leaves of a graph must not change.
                put_in = self.grid.tensor(maps, tokens).to(self.device, self.dtype)
                there.value, there.calls = put_in.clone(memory_format=torch.contiguous_format), 0
                try:
                    carrier = images[:1].expand(rows, *images.shape[1:]) if self.fixed_batch else images[:1]
                    carrier = carrier if images.is_floating_point() else images[which.to(images.device)]
                    return logits_of(self._ready(carrier), rows)
                finally:
                    del there.value

            yield tail

    def _typical(self, maps: Tensor, tokens: Tensor) -> Tensor:
        """Means of a text's tokens: lengths differ, so that a mean for each position would be one of padding too."""
        keys = self.keys
        if "attention_mask" not in keys or maps.shape[2] != tokens.shape[-1]:
            return maps.flatten(2).mean(2)
        mask = tokens[:, keys.index("attention_mask")].to(maps)
        return (maps * mask[:, None]).sum(2) / mask.sum(1, keepdim=True).clamp_min(1.0)

    @contextmanager
    def _observing_logits(self, run: Callable[[Tensor], Any]) -> Iterator[Callable[[Tensor, int], Tensor]]:
        """Hand out what runs the model and gives its logits in float64: W z + b, or the output itself."""
        if self.readout is None:

            def outputs_of(x: Tensor, rows: int) -> Tensor:
                output = next(iter(tensors_in(run(x)).values()))
                return _exact(output).reshape(rows, -1)

            yield outputs_of
            return
        with self.readout.listening() as heard:
            head = self.readout.head

            def logits_of(x: Tensor, rows: int) -> Tensor:
                z = _exact(heard(lambda: run(x), rows))
                return z @ head.weight.to(z.device).T + head.bias.to(z.device)

            yield logits_of

    def _ready(self, images: Tensor) -> Tensor:
        if self.readout is not None:
            return self.readout.ready(images)
        return images.to(self.device, self.dtype if images.is_floating_point() else images.dtype, copy=True)

    def _maps(self, caught: list[Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
        if len(caught) <= max(self.place.call, 0):
            raise RuntimeError(
                f"the layer {self.place.name!r} was called {len(caught)} times for these images, fewer than when the "
                "map was found; pass a model whose forward pass does not depend on the images."
            )
        tensor = caught[self.place.call]
        maps = self.grid.maps(tensor, space_of(images))
        if len(maps) != len(images) or maps.shape[1] != self.channels:
            raise ValueError(
                f"the layer {self.place.name!r} gave maps of shape {tuple(maps.shape)} for {len(images)} images; "
                f"expected one map of {self.channels} channels per image."
            )
        if self.pooling == "flatten" and tuple(maps.shape[2:]) != self.shape:
            raise ValueError(
                f"images of shape {tuple(images.shape[1:])} give a map of {tuple(maps.shape[2:])} locations, but the "
                f"layers behind it see every location by itself and were calibrated on {self.shape}; use images of "
                "one size."
            )
        maps = _exact(maps)
        # One sum is the cheapest pass that sees every value; it may also overflow, hence the second look.
        if not bool(torch.isfinite(maps.sum())) and not bool(torch.isfinite(maps).all()):
            bad = int(torch.nonzero(~torch.isfinite(maps))[0, 0])
            raise ValueError(
                f"the map of layer {self.place.name!r} is not finite for image {bad} of the batch; check the scale of "
                "the images and the precision of the model."
            )
        tokens = self.grid.prefix_tokens(tensor) if self.reach == "full" else tensor.new_empty(len(tensor), 0, 1)
        return (maps.clamp_min(0.0) if self.relu else maps), _exact(tokens)


def _exact(tensor: Tensor) -> Tensor:
    """Float64, on the CPU where the device has none."""
    return tensor.to("cpu" if tensor.device.type == "mps" else tensor.device, torch.float64)
