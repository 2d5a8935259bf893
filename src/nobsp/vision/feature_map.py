"""A model as its spatial map and what is behind it.

That is a pooling and a linear head, or a tail of any layers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nobsp.network.batches import first_non_finite
from nobsp.network.guest import (
    Place,
    Visit,
    catching,
    checked_device,
    copied_to,
    count_rows,
    device_and_dtype,
    evaluation_mode,
    in_ordinary_modes,
    portable,
)
from nobsp.network.layers import explain_failure
from nobsp.network.readout import (
    LINKS,
    Head,
    Readout,
    exact,
    fingerprint_of,
    tensors_in,
)
from nobsp.vision.attention_flow import choose_attention
from nobsp.vision.held_scales import HeldScales, Tape
from nobsp.vision.one_tensor import PACKED, OneTensorModel

Layout = Literal["first", "last", "tokens"]
Space = tuple[int, ...]
Pooling = Literal["mean", "max", "mean+max", "max+mean", "flatten"]
# What of the map the layers behind it depend on. "head": its pooled units, which enter the linear
# head as they are. "point" and "constant": the channels' means, put in as a map of one location or
# as a constant map. "full": all of it, tokens without a place included.
Reach = Literal["head", "point", "constant", "full"]
# How maps come about that show where a class is and do not add up: by one gradient of the model's
# own pass, with what attention carries in it or without, or by one half-way from the mean map.
# Empty where maps add up.
Picture = Literal["", "own_pass", "attention", "half_way"]

POOLINGS: tuple[Pooling, ...] = ("mean", "max", "mean+max", "max+mean", "flatten")
# Class, distillation and register tokens that may stand before the patches.
_MOST_PREFIX = 8


@dataclass(frozen=True)
class Grid:
    """Where channels and locations are in a tensor."""

    layout: Layout  # channels "first", channels "last", or "tokens" for (n, tokens, channels)
    prefix: int = 0  # tokens that come before the patches and have no place in the image

    def maps(self, tensor: Tensor, space: Space) -> Tensor:
        """The tensor as (n, channels, *locations), sharing memory.

        `space` is the extent of the input.
        """
        if self.layout == "first":
            return tensor
        if self.layout == "last":
            return tensor.movedim(-1, 1)
        patches = tensor[:, self.prefix :]
        shape = grid_shape(patches.shape[1], space)
        if shape is None:
            raise ValueError(
                f"{patches.shape[1]} tokens do not fill a grid of the images' shape; "
                "pass images of the size that was calibrated on, or name another layer."
            )
        return torch.unflatten(patches.permute(0, 2, 1), 2, shape)

    def prefix_tokens(self, tensor: Tensor) -> Tensor:
        """Tokens without a place in the image, shape (n, prefix, channels)."""
        if self.layout == "tokens":
            return tensor[:, : self.prefix]
        return tensor.new_empty(len(tensor), 0, tensor.shape[1 if self.layout == "first" else -1])

    def tensor(self, maps: Tensor, prefix_tokens: Tensor) -> Tensor:
        """A tensor of the model's layout that holds `maps` and tokens before them."""
        if self.layout == "first":
            return maps
        if self.layout == "last":
            return maps.movedim(1, -1)
        return torch.cat([prefix_tokens, maps.flatten(2).permute(0, 2, 1)], dim=1)


def space_of(images: Tensor) -> Space:
    """Extent of an input: height and width, time, depth too, or the number of tokens."""
    return tuple(images.shape[2:] if images.ndim > 2 else images.shape[1:])


def grid_shape(locations: int, space: Space) -> Space | None:
    """Shape of a grid with so many cells and the input's proportions; None where there is none."""
    if len(space) != 2:
        return (locations,) if len(space) == 1 else None
    aspect = space[0] / space[1]
    guess = round((locations * aspect) ** 0.5)
    for height in (guess, guess - 1, guess + 1):
        if height > 0 and locations % height == 0:
            width = locations // height
            # One more row or column than the image's proportions ask for is rounding; more is
            # another grid.
            if abs(height - aspect * width) < max(1.0, aspect):
                return height, width
    return None


def grids_of(tensor: Tensor, space: Space, *, prefixes: int = _MOST_PREFIX) -> Iterator[Grid]:
    """Every way to see a tensor as channels over more than one location."""
    # (n, c, 1, 1) and (n, 1, 1, c) are pooled vectors and no maps of one channel.
    if tensor.ndim == len(space) + 2 and tensor[0, 0].numel() > 1 and tensor[0, ..., 0].numel() > 1:
        yield Grid("first")
        if len(space) > 1:
            yield Grid("last")
    if tensor.ndim == 3 and tensor.shape[2] > 1:
        for prefix in range(min(prefixes, tensor.shape[1] - 1)):
            if (
                tensor.shape[1] - prefix > 1
                and grid_shape(tensor.shape[1] - prefix, space) is not None
            ):
                yield Grid("tokens", prefix)


def pooled(maps: Tensor, pooling: Pooling) -> Tensor:
    """What a pooling makes of maps, shape (n, units).

    It is the representation, where the head reads the pooled map.
    """
    flat = maps.flatten(2)
    if pooling == "flatten":
        return flat.flatten(1)
    return torch.cat(
        [flat.mean(2) if part == "mean" else flat.amax(2) for part in pooling.split("+")], dim=1
    )


def spread(maps: Tensor, weights: Tensor, pooling: Pooling) -> Tensor:
    """Σ_k weight_k u_k(h, w): weighted units put back where they came from.

    u_k(h, w) are the maps behind unit k of the representation z; averaged over the locations they
    give z_k. For a mean-pooled channel that is the channel's map itself. A maximum sits, times the
    number of locations, where it was found (equal maxima share), and an entry of a flattened map at
    its own location.
    """
    flat = maps.flatten(2)
    locations = flat.shape[2]
    if pooling == "flatten":
        result = locations * torch.einsum(
            "ntcp,ncp->ntp", torch.unflatten(weights, 2, flat.shape[1:]), flat
        )
    else:
        if "max" in pooling:
            top = flat == flat.amax(2, keepdim=True)
            peaks = flat * top * (locations / top.sum(2, keepdim=True))
        parts = [flat if part == "mean" else peaks for part in pooling.split("+")]
        result = torch.bmm(weights, parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
    return torch.unflatten(result, 2, maps.shape[2:])


def per_channel(values: Tensor, channels: int, pooling: Pooling) -> Tensor:
    """Values of units (..., units), summed to those of their channels (..., channels)."""
    if pooling == "flatten":
        return torch.unflatten(values, -1, (channels, -1)).sum(-1)
    return torch.unflatten(values, -1, (-1, channels)).sum(-2)


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """What one forward pass shows, float64."""

    maps: Tensor  # shape (n, channels, *locations)
    logits: Tensor  # what the model says, shape (n, outputs)
    units: Tensor  # what the layers behind the map depend on
    images: Tensor  # what the model was given
    # of tokens, the mean over those that are no padding, shape (n, channels)
    typical: Tensor | None = None
    # what of the logits does not come from the pooled map, shape (n, outputs); None where all does,
    # or where layers stand between
    gaps: Tensor | None = None
    tape: Tape | None = None  # the pass's own graph, where that was asked for and there is one


@dataclass(frozen=True, eq=False)
class _Testimony:
    """What a model says in one pass."""

    result: Any  # as the model returns it
    entering: Tensor  # what enters the head, or the output where there is no head, float64
    logits: Tensor  # shape (n, outputs), float64


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Where a model's spatial map is and how its output depends on it."""

    module: nn.Module  # the model, without wrappers
    place: Place  # where the map passes
    grid: Grid  # its layout
    relu: bool  # whether a rectifier that is no module of its own follows before the pooling
    pooling: (
        Pooling  # how the map becomes units; "flatten" where the layers behind it see all of it
    )
    reach: Reach  # what of the map the layers behind it depend on
    head: Head | None  # the linear head
    # how to catch the representation that enters the head; None where there is no head
    readout: Readout | None
    outputs: int  # how many outputs the model has
    channels: int  # channels of the map
    shape: Space  # extent of the map for the images it was found with
    text: bool  # whether the input is codes of tokens
    # channels, height and width of those images, or what other inputs have
    image_shape: tuple[int, ...]
    # an image that carries what is put in the place of the map through the layers before it
    carrier: Tensor
    device: torch.device  # where the model lives
    dtype: torch.dtype  # in which precision it takes images
    # whether the layers behind the map want as many rows as there were images
    fixed_batch: bool = False
    # where the map is the first of many, of an image, so that one gradient is a picture but no sum
    picture: Picture = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """Under which keywords the model takes tokens; none for one that takes a tensor."""
        return self.module.keys if isinstance(self.module, OneTensorModel) else ()

    @property
    def inside(self) -> str:
        """What precedes the names of the model's own modules."""
        return PACKED if isinstance(self.module, OneTensorModel) else ""

    @property
    def has_time_second(self) -> bool:
        """Whether the input is a sequence (n, time, channels)."""
        if self.text or len(self.image_shape) != 2:
            return False
        is_input = self.place.name == self.inside.rstrip(".") and self.place.side == "input"
        if is_input or self.image_shape[0] == self.image_shape[1]:
            return self.grid.layout == "tokens"
        return self.shape == (self.image_shape[0],)

    @property
    def link(self) -> str:
        """What follows the head."""
        return "identity" if self.readout is None else self.readout.link

    @property
    def direct(self) -> bool:
        """Whether the pooled map is what the linear head sees."""
        return self.reach == "head"

    @property
    def map_units(self) -> int:
        """How many numbers the pooling makes of the map."""
        return self.channels * (
            math.prod(self.shape) if self.pooling == "flatten" else len(self.pooling.split("+"))
        )

    @property
    def units(self) -> int:
        """The same with tokens that have no place."""
        return self.map_units + (self.channels * self.grid.prefix if self.reach == "full" else 0)

    @property
    def layer(self) -> str:
        """The map in words: the module whose output it is, and what follows.

        The latter is told only where it is no module.
        """
        name = self.place.name.removeprefix(self.inside) or "the model"
        name = name if self.place.side == "output" else f"input of {name}"
        return f"relu({name})" if self.relu else name

    def described(self) -> dict[str, Any]:
        """Everything that must be the same for a calibration to apply, as JSON can hold it."""
        position = self.place
        grid = self.grid
        description = {
            "layer": position.name,
            "call": position.call,
            "side": position.side,
            "layout": grid.layout,
        }
        description |= {
            "prefix": grid.prefix,
            "relu": self.relu,
            "pooling": self.pooling,
            "reach": self.reach,
        }
        head = None if self.head is None else self.head.name
        return description | {"head": head, "channels": self.channels, "outputs": self.outputs}

    def fingerprint(self) -> str:
        """SHA-256 over the model's state and the name of its head."""
        return fingerprint_of(self.module, "" if self.head is None else self.head.name)

    def on_current_device(self) -> FeatureMap:
        """The same on the device where the model is now."""
        device, dtype = device_and_dtype(self.module)
        if (device, dtype) == (self.device, self.dtype):
            return self
        readout = (
            None
            if self.readout is None
            else dataclasses.replace(self.readout, device=device, dtype=dtype)
        )
        return dataclasses.replace(self, device=device, dtype=dtype, readout=readout)

    def on_device(self, device: torch.device | str | None) -> FeatureMap:
        """The same, run on a device: in a copy of the model where that is elsewhere."""
        home, _ = device_and_dtype(self.module)
        away = checked_device(device, home)
        if away == home:
            return self.on_current_device()
        return copied_to(self, self.module, away).on_current_device()

    def portable(self) -> FeatureMap:
        """The same with the model on the CPU, in a copy where it is elsewhere."""
        return portable(self, self.module)

    def moved(self) -> FeatureMap:
        """The same with the model on its device for good, in a process of its own."""
        self.module.to(self.device)
        return self.on_current_device()

    @contextmanager
    def running(self, *, taping: bool = False) -> Iterator[Callable[[Tensor], ForwardPass]]:
        """Hold the model in evaluation mode and hand out `forward(images)`.

        It gives maps and logits by one forward pass.

        With `taping` the pass has its graph, for gradients that need no further pass.
        """
        with (
            evaluation_mode(self.module, gradients=taping) as run,
            catching(run, self.place) as catch,
            self._testifying(run) as testify,
        ):

            @in_ordinary_modes
            def forward(images: Tensor) -> ForwardPass:
                ready = self._ready(images)
                try:
                    if taping:
                        return self._tape_pass(images, ready, testify, catch)
                    testimony, tensor = catch(lambda: testify(ready, len(images)))
                except (RuntimeError, IndexError) as failure:
                    self._explain_failure(failure, images)
                    raise
                return self._read_pass(images, tensor, testimony)

            yield forward

    def _tape_pass(
        self,
        images: Tensor,
        ready: Tensor,
        testify: Callable[[Tensor, int], _Testimony],
        catch: Callable[..., tuple[Any, Tensor]],
    ) -> ForwardPass:
        """A pass with its graph, in which normalisations keep their scales."""
        with torch.enable_grad(), HeldScales() as scales:
            # A clone, since a model may write into its input, but not into a leaf of a graph.
            entering_model = ready.detach().clone().requires_grad_().clone()
            testimony, tensor = catch(lambda: testify(entering_model, len(images)))

        tape = None
        if scales.count and tensor.requires_grad and not self.place.overwritten:
            locations = math.prod(self.shape)
            attention = choose_attention(
                scales.softmaxes,
                n_images=len(images),
                locations=locations,
                most_prefix=_MOST_PREFIX,
            )
            tape = Tape(
                tensor=tensor,
                entering=testimony.entering,
                attention=tuple(attention),
                locations=locations,
            )
        said = _Testimony(
            result=testimony.result,
            entering=testimony.entering.detach(),
            logits=testimony.logits.detach(),
        )
        return dataclasses.replace(self._read_pass(images, tensor.detach(), said), tape=tape)

    def slopes_on_tape(
        self, tape: Tape, weights: Tensor, images: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients (n, sums, units) of weighted sums (n, sums, width) of what enters the head.

        And what attention carries from every location (n, sums, *locations), where that is known.
        """
        gradients = []
        carried = []
        for slopes in tape.slopes(weights):
            maps = exact(self.grid.maps(slopes.gradient, space_of(images)))
            tokens = exact(self.grid.prefix_tokens(slopes.gradient))
            gradients.append(torch.cat([maps.flatten(1), tokens.flatten(1)], dim=1))
            if slopes.carried is not None:
                carried.append(torch.unflatten(exact(slopes.carried), 1, maps.shape[2:]))
        return torch.stack(gradients, dim=1), torch.stack(carried, dim=1) if carried else None

    def _explain_failure(self, failure: Exception, images: Tensor) -> None:
        """Raise an error that says what to do where images have another shape; else return."""
        explain_failure(failure, images, dtype=self.dtype, device=self.device)
        shape = tuple(images.shape[1:])
        if shape != self.image_shape:
            inputs = "texts" if self.text else "images"
            raise ValueError(
                f"the model cannot take {inputs} of shape {shape} ({failure}); it was calibrated "
                f"on {inputs} of shape {self.image_shape}."
            ) from failure

    def _read_pass(self, images: Tensor, tensor: Tensor, testimony: _Testimony) -> ForwardPass:
        """Maps, units and logits of a pass.

        Logits are the model's wherever the pooled map does not give them.
        """
        maps, tokens = self._maps(tensor, images)
        units = pooled(maps, self.pooling)
        logits = testimony.logits
        gaps = None
        if self.direct:
            logits, gaps = self._compare(maps, units, testimony)
        if tokens.numel():
            units = torch.cat([units, tokens.flatten(1)], dim=1)

        has_lengths = self.text and self.reach == "full"
        typical = self._typical(maps, images) if has_lengths else None
        return ForwardPass(
            maps=maps, logits=logits, units=units, images=images, typical=typical, gaps=gaps
        )

    def _compare(
        self, maps: Tensor, units: Tensor, testimony: _Testimony
    ) -> tuple[Tensor, Tensor | None]:
        """The model's logits, and by how much they differ from the head's of the pooled map.

        They are exact where they are the head's.
        """
        assert self.head is not None
        explained = self.head.logits(units)
        entering = testimony.entering
        eps = torch.finfo(self.dtype).eps
        differs = differs_from(entering, units, None, eps)
        if bool(differs.any()) and self.pooling != "flatten":
            # Sums of both signs cancel, so that their rounding is that of larger numbers.
            sizes = pooled(maps.abs(), "mean").repeat(1, len(self.pooling.split("+")))
            differs = differs_from(entering, units, sizes, eps)

        logits = torch.where(differs[:, None], self.head.logits(entering), explained)
        if self.readout is not None:
            logits = logits_said(self.readout, logits, entering, testimony.result)
        gaps = logits - explained
        return logits, gaps if bool(gaps.any()) else None

    @contextmanager
    def behind(
        self, images: Tensor, *, head: bool = True
    ) -> Iterator[Callable[[Tensor, Tensor], Tensor]]:
        """Hand out `tail(units, rows)`: the logits, with graph, of units put in place of the map.

        Without the head, what enters it. The model is run on one small image, whatever the number
        of rows, and the units are put in on the way. Of tokens it is run on those of `images` that
        `rows` name, since masks and lengths reach the layers behind the map too.
        """
        shape = tuple(1 for _ in self.shape) if self.reach == "point" else self.shape
        with (
            evaluation_mode(self.module, gradients=True) as run,
            catching(run, self.place) as catch,
            self._observing(run, head=head) as observe,
        ):

            def tail(units: Tensor, which: Tensor) -> Tensor:
                rows = len(units)
                if self.reach == "full":
                    maps = torch.unflatten(units[:, : self.map_units], 1, (self.channels, *shape))
                    tokens = torch.unflatten(
                        units[:, self.map_units :], 1, (self.grid.prefix, self.channels)
                    )
                else:
                    maps = units.reshape(*units.shape, *(1 for _ in shape)).expand(-1, -1, *shape)
                    # Where only means count, other tokens do not, whatever they are.
                    tokens = units.new_zeros(rows, self.grid.prefix, self.channels)
                # A clone, since the next layer may work in place and leaves of a graph must not
                # change.
                put_in = self.grid.tensor(maps, tokens).to(self.device, self.dtype)
                put_in = put_in.clone(memory_format=torch.contiguous_format)
                carrier = images[which.to(images.device)] if self.text else self.carrier
                carrier = carrier.expand(rows, *carrier.shape[1:]) if self.fixed_batch else carrier
                # The model is seen to run on the carrier; behind the map it runs on all rows.
                count_rows(rows - len(carrier))
                answers: Tensor = catch(lambda: observe(self._ready(carrier), rows), put_in)[0]
                return answers

            yield tail

    def _typical(self, maps: Tensor, tokens: Tensor) -> Tensor:
        """Means of a text's tokens, over all positions.

        Lengths differ, so that a mean for each position would be one of padding too.
        """
        keys = self.keys
        if "attention_mask" not in keys or maps.shape[2] != tokens.shape[-1]:
            return maps.flatten(2).mean(2)
        mask = tokens[:, keys.index("attention_mask")].to(maps)
        return (maps * mask[:, None]).sum(2) / mask.sum(1, keepdim=True).clamp_min(1.0)

    @contextmanager
    def _testifying(self, run: Visit) -> Iterator[Callable[[Tensor, int], _Testimony]]:
        """Hand out what runs the model and gives what it says."""
        readout = self.readout
        if readout is None:

            def testify(x: Tensor, rows: int) -> _Testimony:
                result = run(x)
                output = exact(next(iter(tensors_in(result).values()))).reshape(rows, -1)
                return _Testimony(result=result, entering=output, logits=output)

            yield testify
            return

        with readout.listening(run) as heard:

            def testify_by_head(x: Tensor, rows: int) -> _Testimony:
                results: list[Any] = []
                entering = exact(heard(lambda: results.append(run(x)), rows))
                with torch.no_grad():  # numbers are compared; only `entering` may have a graph
                    logits = readout.logits(entering)
                    if not self.direct:
                        logits = logits_said(readout, logits, entering, results[0])
                return _Testimony(result=results[0], entering=entering, logits=logits)

            yield testify_by_head

    @contextmanager
    def _observing(
        self, run: Visit, *, head: bool = True
    ) -> Iterator[Callable[[Tensor, int], Tensor]]:
        """Hand out what runs the model and gives its logits in float64, or what enters its head.

        Logits are W z + b, or the output itself where there is no head; z is what enters the head.
        """
        if self.readout is None:
            yield lambda x, rows: exact(next(iter(tensors_in(run(x)).values()))).reshape(rows, -1)
            return
        finish = self.readout.logits if head else exact
        with self.readout.listening(run) as heard:
            yield lambda x, rows: finish(heard(lambda: run(x), rows))

    def _ready(self, images: Tensor) -> Tensor:
        if self.readout is not None:
            return self.readout.ready(images)
        return images.to(
            self.device, self.dtype if images.is_floating_point() else images.dtype, copy=True
        )

    def _maps(self, tensor: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """The map, checked, and tokens without a place."""
        maps = self.grid.maps(tensor, space_of(images))
        if len(maps) != len(images) or maps.shape[1] != self.channels:
            gave = (
                f"{self.place.name!r} gave maps of shape {tuple(maps.shape)} for {len(images)} "
                "images"
            )
            raise ValueError(
                f"the layer {gave}; expected one map of {self.channels} channels per image."
            )

        if self.pooling == "flatten" and tuple(maps.shape[2:]) != self.shape:
            gave = (
                f"images of shape {tuple(images.shape[1:])} give a map of {tuple(maps.shape[2:])} "
                "locations"
            )
            raise ValueError(
                f"{gave}, but calibrated were those of {self.shape}; use images of one size."
            )

        maps = exact(maps)
        bad = first_non_finite(maps)
        if bad is not None:
            hint = "check the scale of the images and the precision of the model"
            raise ValueError(
                f"the map of {self.place.name!r} is not finite for image {bad[0]} of the batch; "
                f"{hint}."
            )

        tokens = (
            self.grid.prefix_tokens(tensor)
            if self.reach == "full"
            else tensor.new_empty(len(tensor), 0, 1)
        )
        return (maps.clamp_min(0.0) if self.relu else maps), exact(tokens)


# ------------------------------------------------------ what the model says, compared with its head

# On the rows that the head was found with, the output is the head's. On other rows another path may
# take part: a branch that was silent, a maximum that another layer wins, a correction behind the
# head.


# How often a sum is rounded between two ways of working it out: as many as where heads are looked
# for.
_ROUNDINGS_OF_SUMS = 16
_ROUNDINGS_OF_RESULTS = 8


def logits_said(readout: Readout, logits: Tensor, z: Tensor, result: Any) -> Tensor:
    """The logits W z + b; where the model's result differs by more than rounding, its own."""
    outputs = [
        exact(output).reshape(logits.shape)
        for output in tensors_in(result).values()
        if output.numel() == logits.numel() and output.is_floating_point()
    ]
    if not outputs:
        return logits

    expected = LINKS[readout.link](logits)
    # Of several outputs, the one that the head makes is the nearest.
    output = min(outputs, key=lambda candidate: float((candidate - expected).abs().sum()))
    allowed = _rounding(readout, logits, z)
    differs = (output - expected).abs() > _through_link(readout.link, expected, allowed)
    if not bool(differs.any()):
        return logits
    return torch.where(differs, _undo_link(readout.link, output, logits), logits)


def differs_from(entering: Tensor, pooled: Tensor, sizes: Tensor | None, eps: float) -> Tensor:
    """Rows in which what entered the head is not the pooled map, up to rounding, shape (rows,)."""
    size = pooled.abs() if sizes is None else pooled.abs() + sizes
    allowed = _ROUNDINGS_OF_RESULTS * eps * size + torch.finfo(pooled.dtype).tiny
    return ((entering - pooled).abs() > allowed).any(1)


def _rounding(readout: Readout, logits: Tensor, z: Tensor) -> Tensor:
    """How far rounding may carry W z + b, bounded by |w| |z| ≤ ‖w‖ ‖z‖.

    The bound is cheap beside a forward pass.
    """
    stored, summed = _precisions(readout)
    head: Head = readout.head
    bias = head.bias.abs().to(logits)
    norms = torch.linalg.vector_norm(head.weight, dim=1).to(logits)
    sizes = torch.linalg.vector_norm(exact(z), dim=1, keepdim=True).to(logits) * norms
    results = _ROUNDINGS_OF_RESULTS * stored * (logits.abs() + bias)
    sums: Tensor = _ROUNDINGS_OF_SUMS * summed * (sizes + bias)
    return sums + results


def _precisions(readout: Readout) -> tuple[float, float]:
    """Rounding of results and of sums, relative to their size."""
    stored = torch.finfo(readout.dtype).eps
    # Half precisions are summed in float32, so only their results are coarse.
    is_double = readout.dtype == torch.float64
    summed = torch.finfo(torch.float64 if is_double else torch.float32).eps
    tf32 = readout.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    coarse = tf32 or torch.get_float32_matmul_precision() != "highest"
    if readout.dtype == torch.float32 and coarse:
        summed = 2.0**-8
    return stored, summed


def _through_link(link: str, expected: Tensor, allowed: Tensor) -> Tensor:
    """How far rounding of logits, and of what follows them, may carry the output."""
    worst = allowed.amax(1, keepdim=True)
    if link == "log_softmax":
        return 2 * worst + allowed
    if link == "softmax":
        # Probabilities that the model's precision cannot tell from 0 and 1 say nothing about
        # logits.
        return expected * 2 * worst + worst.clamp_max(1e-3)
    if link == "sigmoid":
        return expected * (1 - expected) * allowed + worst.clamp_max(1e-3)
    return allowed


def _undo_link(link: str, output: Tensor, logits: Tensor) -> Tensor:
    """Logits of an output.

    A softmax leaves a constant open, which is taken from the head's logits.
    """
    smallest = torch.finfo(torch.float32).tiny
    if link == "log_softmax":
        return output + logits.logsumexp(1, keepdim=True)
    if link == "softmax":
        return output.clamp_min(smallest).log() + logits.logsumexp(1, keepdim=True)
    if link == "sigmoid":
        return torch.logit(output, eps=1e-12)
    return output
