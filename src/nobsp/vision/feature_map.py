"""A vision model as its spatial map, the way that map is pooled, and the linear head behind it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nobsp.network.failures import explain_failure
from nobsp.network.guest import home_of, visiting
from nobsp.network.places import Place, reading, replacing
from nobsp.network.readout import Readout, fingerprint_of
from nobsp.network.search import Head
from nobsp.vision.grid import Grid, Pooling, pooled

# "direct": the pooled map is the representation. "tail": layers stand between the pooled map and the head.
# "regression": the map was chosen by the caller and something else than pooling follows.
Route = Literal["direct", "tail", "regression"]
# What of the map the layers behind it depend on: its means over locations, given as a map of one location or as a
# constant map, or all of it.
Reach = Literal["point", "constant", "full"]


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap:
    """Where a model's spatial map is and how the head hangs on it.

    Attributes:
        module: The model, without wrappers.
        place: Where the map passes.
        grid: Its layout.
        relu: Whether a rectifier that is no module of its own follows before the pooling.
        pooling: How the map becomes the units that coefficients belong to.
        route: How it reaches the head.
        head: The linear head; the identity where the map's means are the outputs themselves.
        link: What follows the head.
        readout: How to catch the representation that enters the head; None where the head is the identity.
        reach: What of the map the layers before the head depend on; only for the route "tail".
        channels: Channels of the map.
        shape: Height and width of the map for the images it was found with.
        image_shape: Channels, height and width of those images.
        device: Where the model lives.
        dtype: In which precision it takes images.
    """

    module: nn.Module
    place: Place
    grid: Grid
    relu: bool
    pooling: Pooling
    route: Route
    head: Head
    link: str
    readout: Readout | None
    reach: Reach
    channels: int
    shape: tuple[int, int]
    image_shape: tuple[int, int, int]
    device: torch.device
    dtype: torch.dtype

    @property
    def units(self) -> int:
        """How many numbers the pooling makes of the map."""
        factor = {"flatten": self.shape[0] * self.shape[1], "mean+max": 2, "max+mean": 2}.get(self.pooling, 1)
        return self.channels * factor

    @property
    def outputs(self) -> int:
        """How many classes the head has."""
        return int(self.head.weight.shape[0])

    @property
    def layer(self) -> str:
        """The map in words: the module whose output it is, and what follows if that is no module."""
        name = self.place.name or "the model"
        name = name if self.place.side == "output" else f"input of {name}"
        return f"relu({name})" if self.relu else name

    def __repr__(self) -> str:
        size = f"{self.channels}×{self.shape[0]}×{self.shape[1]}"
        return f"FeatureMap(layer={self.layer!r}, map={size}, pooling={self.pooling!r}, route={self.route!r})"

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
            "route": self.route,
            "reach": self.reach,
            "head": self.head.name,
            "channels": self.channels,
            "outputs": self.outputs,
        }

    def fingerprint(self) -> str:
        """SHA-256 over the model's state and the name of its head."""
        return fingerprint_of(self.module, self.head.name)

    def on_current_device(self) -> FeatureMap:
        """The same on the device where the model is now."""
        device, dtype = home_of(self.module)
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
            run = stack.enter_context(visiting(self.module))
            here = stack.enter_context(reading(self.place))
            needs_representation = self.route != "direct" and self.readout is not None
            heard = stack.enter_context(self.readout.listening()) if self.readout and needs_representation else None

            def forward(images: Tensor) -> ForwardPass:
                here.caught = []
                try:
                    x = self._ready(images)
                    if heard is None:
                        result = run(x)
                        representation = None
                    else:
                        representation = heard(lambda: run(x), len(x))
                        result = None
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
                del result
                maps = self._maps(caught, images)
                return ForwardPass(maps, self._logits(maps, representation))

            yield forward

    def _ready(self, images: Tensor) -> Tensor:
        return images.to(self.device, self.dtype) if self.readout is None else self.readout.ready(images)

    def _maps(self, caught: list[Tensor], images: Tensor) -> Tensor:
        if len(caught) <= max(self.place.call, 0):
            raise RuntimeError(
                f"the layer {self.place.name!r} was called {len(caught)} times for these images, fewer than when the "
                "map was found; pass a model whose forward pass does not depend on the images."
            )
        maps = self.grid.maps(caught[self.place.call], images.shape[2] / images.shape[3])
        if len(maps) != len(images) or maps.shape[1] != self.channels:
            raise ValueError(
                f"the layer {self.place.name!r} gave maps of shape {tuple(maps.shape)} for {len(images)} images; "
                f"expected one map of {self.channels} channels per image."
            )
        if self.pooling == "flatten" and tuple(maps.shape[2:]) != self.shape:
            raise ValueError(
                f"images of shape {tuple(images.shape[1:])} give a map of {tuple(maps.shape[2:])} locations, but every "
                f"location has its own coefficient and they were found for {self.shape}; use images of one size."
            )
        maps = _exact(maps)
        # One sum is the cheapest pass that sees every value; it may also overflow, hence the second look.
        if not bool(torch.isfinite(maps.sum())) and not bool(torch.isfinite(maps).all()):
            bad = int(torch.nonzero(~torch.isfinite(maps))[0, 0])
            raise ValueError(
                f"the map of layer {self.place.name!r} is not finite for image {bad} of the batch; check the scale of "
                "the images and the precision of the model."
            )
        return maps.clamp_min(0.0) if self.relu else maps

    def _logits(self, maps: Tensor, representation: Tensor | None) -> Tensor:
        z = pooled(maps, self.pooling) if representation is None else _exact(representation)
        weight, bias = self.head.weight.to(z.device), self.head.bias.to(z.device)
        return z @ weight.T + bias

    @contextmanager
    def behind(self, image: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
        """Hand out `tail(maps)`: the representation the layers behind the map make of maps put in its place.

        The model is run on one image, whatever the number of maps, and the maps are put in on the way.

        Args:
            image: Any image the model takes, shape (1, channels, height, width).
        """
        assert self.readout is not None
        readout = self.readout
        with visiting(self.module) as run, readout.listening() as heard, replacing(self.place) as there:
            with reading(dataclasses.replace(self.place, overwritten=True)) as here:
                here.caught = []
                run(readout.ready(image))
                template = here.caught[self.place.call]
                del here.caught

            locations = self.grid.maps(template, image.shape[2] / image.shape[3]).shape[2:]

            def tail(maps: Tensor) -> Tensor:
                if self.reach == "constant":
                    maps = maps.expand(-1, -1, *locations)
                there.value = self.grid.tensor(maps.to(self.device, self.dtype), template)
                there.calls = 0
                try:
                    return heard(lambda: run(readout.ready(image)), len(maps))
                finally:
                    del there.value

            yield tail


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """What one forward pass shows, float64.

    Attributes:
        maps: Shape (n, channels, height, width).
        logits: W z + b, shape (n, outputs).
    """

    maps: Tensor
    logits: Tensor


def _exact(tensor: Tensor) -> Tensor:
    """Float64, on the CPU where the device has none."""
    return tensor.to("cpu" if tensor.device.type == "mps" else tensor.device, torch.float64)
