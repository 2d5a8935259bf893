"""What the layers behind the map make of one channel put in alone, or left out, for many channels at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import local
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from nobsp.network.guest import visiting
from nobsp.network.places import Place, reading, replacing
from nobsp.vision.feature_map import FeatureMap, Reach

Tail = Callable[[Tensor], Tensor]

# Values put into the model in one go.
AT_ONCE = 1 << 24


@dataclass(frozen=True, eq=False)
class Isolation:
    """Representations of images of which one channel is kept, or all but one; the others are at the baseline.

    Attributes:
        images: How many images there are.
        largest: Most values that one image takes on its way.
        alone: Takes channels to representations, float64, shape (channels, images, width).
        both: The same with those of the images without each channel.
    """

    images: int
    largest: int
    alone: Callable[[Sequence[int]], Tensor]
    both: Callable[[Sequence[int]], tuple[Tensor, Tensor]]

    def chunks(self, channels: int) -> Iterator[list[int]]:
        """Channels in groups small enough to be put into the model at once."""
        at_once = max(1, AT_ONCE // (self.images * self.largest))
        for start in range(0, channels, at_once):
            yield list(range(start, min(start + at_once, channels)))


@contextmanager
def isolating(feature_map: FeatureMap, image: Tensor, inputs: Tensor, baseline: Tensor) -> Iterator[Isolation]:
    """Put channels of images into the model alone.

    Where the first thing that mixes channels behind the map is a linear layer (VGG, AlexNet, MobileNetV3), that layer
    is run once: one channel more or less changes what it gives by that channel's columns of its weights.

    Args:
        feature_map: Where the map is.
        image: Any image the model takes, shape (1, channels, height, width).
        inputs: What to put in, as `shaped` gives it, shape (images, channels, height, width).
        baseline: Map of an inactive channel, shape (channels, height, width).
    """
    baseline = baseline.to(inputs.device)
    locations = 1 if feature_map.reach == "point" else feature_map.shape[0] * feature_map.shape[1]
    width = feature_map.head.weight.shape[1]
    # The model is run outside of the caller's autocast; so is what is computed in its stead.
    with torch.autocast(feature_map.device.type, enabled=False), feature_map.behind(image) as tail:
        entrance = _entrance_of(feature_map, image, tail, baseline)
        if entrance is None:
            whole = _WholeMaps(tail, inputs, baseline)
            yield Isolation(len(inputs), max(feature_map.channels * locations, width), whole.alone, whole.both)
            return
        with _entering(feature_map, image, tail, entrance) as door:
            through = _ThroughDoor.of(door, inputs, baseline)
            yield Isolation(len(inputs), max(door.layer.out_features, width), through.alone, through.both)


def shaped(maps: Tensor, reach: Reach) -> Tensor:
    """Maps as the layers behind them need them: their means where only those matter."""
    return maps if reach == "full" else maps.mean((2, 3), keepdim=True)


# ---------------------------------------------------------------------- whole maps


@dataclass(frozen=True, eq=False)
class _WholeMaps:
    tail: Tail
    inputs: Tensor
    baseline: Tensor

    def alone(self, channels: Sequence[int]) -> Tensor:
        def one(channel: int) -> Tensor:
            rows = self.baseline.to(self.inputs).expand_as(self.inputs).clone()
            rows[:, channel] = self.inputs[:, channel]
            return rows

        return _in_pieces(self.tail, [one(channel) for channel in channels])

    def both(self, channels: Sequence[int]) -> tuple[Tensor, Tensor]:
        def other(channel: int) -> Tensor:
            rows = self.inputs.clone()
            rows[:, channel] = self.baseline[channel].to(self.inputs)
            return rows

        return self.alone(channels), _in_pieces(self.tail, [other(channel) for channel in channels])


def _in_pieces(tail: Tail, rows: list[Tensor]) -> Tensor:
    """The representation of all rows, float64, in as few runs of the model as memory allows."""
    together = torch.cat(rows)
    at_once = max(1, AT_ONCE // max(together[0].numel(), 1))
    z = torch.cat([tail(piece) for piece in torch.split(together, at_once)])
    return torch.unflatten(_exact(z), 0, (len(rows), -1))


# ---------------------------------------------------------------------- through a linear layer


@dataclass(frozen=True, eq=False)
class _Door:
    """A linear layer through which everything goes that the head learns of the map, channel beside channel."""

    layer: nn.Linear
    tail: Tail
    given: local
    gave: local
    rest: Tail

    def enter(self, maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the layer is given for maps, what it gives, and the representation that comes of it."""
        self.given.caught, self.gave.caught = [], []
        try:
            z = self.tail(maps)
            (given,), (gave,) = self.given.caught, self.gave.caught
        finally:
            del self.given.caught, self.gave.caught
        return given, gave, z


@contextmanager
def _entering(feature_map: FeatureMap, image: Tensor, tail: Tail, layer: Place) -> Iterator[_Door]:
    assert feature_map.readout is not None
    assert isinstance(layer.module, nn.Linear)
    readout = feature_map.readout
    with ExitStack() as stack:
        run = stack.enter_context(visiting(feature_map.module))
        heard = stack.enter_context(readout.listening())
        given = stack.enter_context(reading(Place(layer.name, layer.module, 0, "input", overwritten=True)))
        gave = stack.enter_context(reading(Place(layer.name, layer.module, 0, "output", overwritten=True)))
        there = stack.enter_context(replacing(Place(layer.name, layer.module, 0, "output")))

        def rest(rows: Tensor) -> Tensor:
            there.value, there.calls = rows.to(feature_map.dtype), 0
            try:
                return heard(lambda: run(readout.ready(image)), len(rows))
            finally:
                del there.value

        yield _Door(layer.module, tail, given, gave, rest)


@dataclass(frozen=True, eq=False)
class _ThroughDoor:
    """Images and the baseline as the linear layer takes them, shape (rows, channels, values), and what it gives."""

    door: _Door
    given: Tensor
    gave: Tensor
    given_at_rest: Tensor
    gave_at_rest: Tensor

    @classmethod
    def of(cls, door: _Door, inputs: Tensor, baseline: Tensor) -> _ThroughDoor:
        pieces = torch.split(inputs, max(1, AT_ONCE // door.layer.in_features))
        given, gave = zip(*(door.enter(piece)[:2] for piece in pieces), strict=True)
        given_at_rest, gave_at_rest, _ = door.enter(baseline.to(inputs)[None])
        channels = len(baseline)
        rows, at_rest = _blocks(torch.cat(given), channels), _blocks(given_at_rest, channels)
        return cls(door, _wide(rows), _wide(torch.cat(gave)), _wide(at_rest), _wide(gave_at_rest))

    def alone(self, channels: Sequence[int]) -> Tensor:
        return self._through([self.gave_at_rest + self._effect(channel) for channel in channels])

    def both(self, channels: Sequence[int]) -> tuple[Tensor, Tensor]:
        effects = [self._effect(channel) for channel in channels]
        alone = self._through([self.gave_at_rest + effect for effect in effects])
        return alone, self._through([self.gave - effect for effect in effects])

    def _effect(self, channel: int) -> Tensor:
        """What the channel adds to what the layer gives."""
        weight = _blocks(self.door.layer.weight.detach(), self.given.shape[1])[:, channel]
        return (self.given[:, channel] - self.given_at_rest[:, channel]) @ _wide(weight).T

    def _through(self, rows: list[Tensor]) -> Tensor:
        return torch.unflatten(_exact(self.door.rest(torch.cat(rows))), 0, (len(rows), -1))


# The linear layer of each feature_map, None where there is none such: finding it runs the model.
_FOUND: WeakKeyDictionary[FeatureMap, Place | None] = WeakKeyDictionary()


def _entrance_of(feature_map: FeatureMap, image: Tensor, tail: Tail, baseline: Tensor) -> Place | None:
    """The linear layer through which everything goes, channel beside channel; None where there is none."""
    if feature_map not in _FOUND:
        _FOUND[feature_map] = _found_entrance(feature_map, image, tail, baseline)
    return _FOUND[feature_map]


def _found_entrance(feature_map: FeatureMap, image: Tensor, tail: Tail, baseline: Tensor) -> Place | None:
    """Two maps mixed channel by channel are put in: the layer must take a mixture of what it takes of each."""
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(2, *baseline.shape, generator=generator).to(baseline.device, feature_map.dtype)
    first, second = baseline.to(draw) + draw * baseline.abs().mean().to(draw)
    mine = (torch.rand(len(baseline), 1, 1, generator=generator) < 0.5).to(baseline.device)
    maps = torch.stack([first, second, torch.where(mine, first, second), torch.where(mine, second, first)])
    layers = [
        Place(name, module, 0, "input", overwritten=True)
        for name, module in feature_map.module.named_modules()
        if isinstance(module, nn.Linear) and module.in_features % feature_map.channels == 0
    ]
    with ExitStack() as stack:
        heard = [stack.enter_context(reading(layer)) for layer in layers]
        for one in heard:
            one.caught = []
        expected = tail(maps)
    for layer, one in zip(layers, heard, strict=True):
        if len(one.caught) != 1 or one.caught[0].ndim != 2 or len(one.caught[0]) != len(maps):
            continue
        of_first, of_second, mixed, opposite = _blocks(one.caught[0], feature_map.channels)
        beside = torch.equal(mixed, torch.where(mine[..., 0], of_first, of_second))
        if not beside or not torch.equal(opposite, torch.where(mine[..., 0], of_second, of_first)):
            continue
        with _entering(feature_map, image, tail, layer) as door:
            given, gave, _ = door.enter(maps)
            try:
                z = door.rest(gave.clone())  # an activation in place would write into it
            except (RuntimeError, ValueError, IndexError):
                continue  # the head itself, or other things are made of the one image beside this
            if _close(door.layer(given), gave) and _close(z, expected):
                return layer
    return None


def _close(found: Tensor, expected: Tensor) -> bool:
    # What is looked for is another layer's doing, not rounding.
    size = float(expected.abs().max())
    return bool((found - expected).abs().max() <= torch.finfo(expected.dtype).eps ** 0.5 * size)


def _blocks(rows: Tensor, channels: int) -> Tensor:
    return torch.unflatten(rows, 1, (channels, -1))


def _wide(tensor: Tensor) -> Tensor:
    """Single precision at least: sums and differences of halves would lose what one channel does."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def _exact(z: Tensor) -> Tensor:
    return z.to("cpu" if z.device.type == "mps" else z.device, torch.float64)
