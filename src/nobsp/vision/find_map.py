"""Finds the spatial map that is pooled into the head, by running the model and comparing values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from threading import local
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.network.calls import input_of, plain
from nobsp.network.guest import home_of, unwrapped, visiting
from nobsp.network.outputs import as_rows, tensors_in
from nobsp.network.places import Place, Side, reading
from nobsp.network.readout import Readout, checked
from nobsp.network.search import Head
from nobsp.vision.feature_map import FeatureMap, Reach, Route
from nobsp.vision.grid import POOLINGS, Grid, Pooling, grids_of, pooled

PROBE_IMAGES = 3
# Maps with fewer values per image than this are kept whole, to be compared with flattened vectors.
_SMALL = 1 << 17
# How far back from the head a map is looked for when layers stand between pooling and head.
_LATEST = 24


@dataclass(frozen=True, eq=False)
class _Seen:
    """A tensor met on the way, seen as channels over locations."""

    order: int
    name: str
    module: nn.Module
    call: int
    side: Side
    grid: Grid
    relu: bool
    shape: tuple[int, int]
    mean: Tensor  # (n, channels), as are the next two
    size: Tensor
    top: Tensor
    flat: Tensor | None
    first_token: Tensor | None

    def pooled(self, pooling: Pooling) -> Tensor | None:
        if pooling == "flatten":
            return self.flat
        parts = {"mean": [self.mean], "max": [self.top]}
        parts |= {"mean+max": [self.mean, self.top], "max+mean": [self.top, self.mean]}
        return torch.cat(parts[pooling], dim=1)

    def rounding(self, pooling: Pooling) -> Tensor:
        size = self.size
        if pooling == "flatten":
            assert self.flat is not None
            return self.flat.abs()
        return size if pooling in ("mean", "max") else torch.cat([size, size], dim=1)


def find_map(
    model: nn.Module, images: Tensor, *, layer: str | nn.Module | None = None, head: str | nn.Module | None = None
) -> FeatureMap:
    """Run the model on some images and find its spatial map, the pooling and the head.

    Args:
        model: A network that classifies images.
        images: A few typical images.
        layer: The module whose output is the map, or its name; found when None.
        head: The last linear layer or its name; found when None.

    Raises:
        TypeError: If `model` is no module that can be observed, or its precision cannot be run here.
        ValueError: If the model cannot take the images, ends in no linear layer, has no map that feeds its head, or
            `layer` is not in it.

    Example:
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        >>> model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
        >>> find_map(model, torch.randn(3, 3, 16, 16))
        FeatureMap(layer='0', map=8×14×14, pooling='mean', route='direct')
    """
    module = checked(model)
    probe = images[:PROBE_IMAGES].detach()
    _refuse_non_finite_state(module)
    chosen = None if layer is None else _named(module, layer)
    device, dtype = home_of(module)
    readout: Readout | None
    try:
        readout = Readout.find(module, probe, head=head)
    except (RuntimeError, IndexError) as failure:
        raise ValueError(
            f"the model cannot take images of shape {tuple(probe.shape[1:])} ({failure}); pass images of the shape it "
            "was trained on."
        ) from failure
    except ValueError:
        # No linear layer ends the model, but its output may be the average of a map, one channel a class.
        seen, z, counts = _observed(module, probe.to(device, dtype), None)
        if head is not None or z is None or _best(seen, z, dtype) is None:
            raise
        readout = None
    else:
        assert readout is not None
        seen, z, counts = _observed(module, readout.ready(probe), readout)
    assert z is not None
    search = _Search(module, readout, probe, seen, z, counts, device, dtype)
    found = search.automatic(required=chosen is None)
    if chosen is None:
        assert found is not None
        return found
    return search.chosen(*chosen, found)


@dataclass(frozen=True, eq=False)
class _Search:
    module: nn.Module
    readout: Readout | None
    probe: Tensor
    seen: list[_Seen]
    z: Tensor
    counts: dict[str, int]
    device: torch.device
    dtype: torch.dtype

    def automatic(self, *, required: bool) -> FeatureMap | None:
        match = _best(self.seen, self.z, self.dtype)
        if match is not None:
            return self.feature_map(*match, route="direct")
        reader = self.reads_one_token()
        if reader is None:
            for seen in self.latest():
                reach = self.reach_of(seen)
                if reach is not None:
                    return self.feature_map(self.source_of(seen, reach), "mean", route="tail", reach=reach)
        if not required:
            return None
        raise ValueError(_no_map(reader, self.seen))

    def chosen(self, name: str, part: nn.Module, found: FeatureMap | None) -> FeatureMap:
        """The map a caller asked for: exact where it is pooled into the head, else by regression."""
        own = [seen for seen in self.seen if seen.module is part and seen.side == "output"]
        if not own:
            raise ValueError(
                f"layer {name!r} ({type(part).__name__}) gives no map with more than one location for images of shape "
                f"{tuple(self.probe.shape[1:])}; choose an earlier layer."
            )
        match = _best(own, self.z, self.dtype)
        if match is not None:
            return self.feature_map(*match, route="direct")
        if found is not None and found.route == "tail":
            for seen in own:
                reach = self.reach_of(seen) if _same_map(seen, found) else None
                if reach is not None:
                    return self.feature_map(seen, "mean", route="tail", reach=reach)
        last = max(seen.call for seen in own)
        aspect = self.probe.shape[2] / self.probe.shape[3]
        plausible = [seen for seen in own if seen.call == last and not seen.relu]
        plausible.sort(key=lambda seen: (abs(seen.shape[0] / seen.shape[1] - aspect) > 0.5, seen.grid.prefix))
        return self.feature_map(plausible[0], "mean", route="regression")

    def feature_map(self, seen: _Seen, pooling: Pooling, *, route: Route, reach: Reach = "full") -> FeatureMap:
        calls = self.counts[seen.name]
        call = -1 if seen.call == calls - 1 else seen.call
        place = Place(seen.name, seen.module, call, seen.side, calls)
        place = dataclasses.replace(place, overwritten=self.is_overwritten(place))
        outputs = self.z.shape[1]
        identity = Head(
            torch.eye(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64), name=f"{seen.name}"
        )
        return FeatureMap(
            module=self.module,
            place=place,
            grid=seen.grid,
            relu=seen.relu,
            pooling=pooling,
            route=route,
            head=identity if self.readout is None else self.readout.head,
            link="identity" if self.readout is None else self.readout.link,
            readout=self.readout,
            reach=reach,
            channels=int(seen.mean.shape[1]),
            shape=seen.shape,
            image_shape=(int(self.probe.shape[1]), int(self.probe.shape[2]), int(self.probe.shape[3])),
            device=self.device,
            dtype=self.dtype,
        )

    def is_overwritten(self, place: Place) -> bool:
        """Whether the tensor has other values at the end of the pass than when it was made."""
        kept = dataclasses.replace(place, overwritten=True)
        x = self.probe[:1].to(self.device, self.dtype, copy=True)
        with visiting(self.module) as run, reading(place) as live, reading(kept) as copied:
            live.caught, copied.caught = [], []
            run(x)
            return not torch.equal(live.caught[place.call], copied.caught[place.call])

    def latest(self) -> Iterator[_Seen]:
        """Maps from the last one back, outputs before inputs, those that need no rectifier first."""
        orders = sorted({seen.order for seen in self.seen}, reverse=True)[:_LATEST]
        for order in orders:
            yield from sorted((s for s in self.seen if s.order == order), key=lambda s: (s.relu, s.grid.layout))

    def reach_of(self, seen: _Seen) -> Reach | None:
        """What of this map the head depends on; None where the head depends on something else too.

        The map is put into a pass over another image. Where the head then sees what it saw of the first, everything
        it needs went through the map.
        """
        assert self.readout is not None
        trial = self.feature_map(seen, "mean", route="tail")
        with trial.running() as forward:
            maps = forward(self.probe).maps
        # Another image: the head must not learn of it on other ways than through the map.
        other = 0.5 * self.probe[:1].flip(-1)
        means = maps.mean((2, 3), keepdim=True)
        with trial.behind(other) as tail:
            if not self.same(tail, maps):
                return None
            if self.same(tail, means):
                return "point"
            if self.same(tail, means.expand_as(maps)):
                return "constant"
        # A map of which all matters is taken as it lies; a transposed reading of it would not be noticed.
        return "full" if seen.grid.layout == "nchw" or seen.grid.prefix else None

    def source_of(self, seen: _Seen, reach: Reach) -> _Seen:
        """The module whose output a module's input is: easier to recognise for the reader, and the same values."""
        if seen.side == "output":
            return seen
        for one in reversed(self.seen):
            alike = one.side == "output" and (one.grid, one.relu, one.shape) == (seen.grid, seen.relu, seen.shape)
            if alike and torch.equal(one.mean, seen.mean) and self.reach_of(one) == reach:
                return one
        return seen

    def same(self, tail: Any, maps: Tensor) -> bool:
        try:
            z = tail(maps).to("cpu", torch.float64)
        except (RuntimeError, ValueError, IndexError):
            return False
        scale = self.z.abs().amax(1, keepdim=True)
        eps = torch.finfo(self.dtype).eps
        return z.shape == self.z.shape and bool(((z - self.z).abs() <= 256 * eps * scale).all())

    def reads_one_token(self) -> str | None:
        """The layer whose first token the head reads, where that is so."""
        for seen in reversed(self.seen):
            token = seen.first_token
            if token is not None and token.shape == self.z.shape:
                eps = torch.finfo(self.dtype).eps
                if torch.allclose(token, self.z, rtol=16 * eps, atol=16 * eps):
                    return seen.name
        return None


def _same_map(seen: _Seen, found: FeatureMap) -> bool:
    return seen.module is found.place.module or (
        seen.mean.shape[1] == found.channels and seen.shape == found.shape and seen.grid == found.grid
    )


def _best(seen: list[_Seen], z: Tensor, dtype: torch.dtype) -> tuple[_Seen, Pooling] | None:
    """The last map that is pooled into `z`: a module's own output before something derived from it."""
    hits = [(one, pooling) for one in seen for pooling in POOLINGS if _matches(one, pooling, z, dtype)]
    if not hits:
        return None
    return max(hits, key=lambda hit: (hit[0].side == "output", not hit[0].relu, hit[0].order, -POOLINGS.index(hit[1])))


def _matches(seen: _Seen, pooling: Pooling, z: Tensor, dtype: torch.dtype) -> bool:
    made = seen.pooled(pooling)
    if made is None or made.shape != z.shape:
        return False
    allowed = 8 * torch.finfo(dtype).eps * (z.abs() + seen.rounding(pooling)) + 1e-300
    return bool(((made - z).abs() <= allowed).all()) and bool((z != 0).any())


# ---------------------------------------------------------------------- watching a forward pass


def _observed(
    module: nn.Module, x: Tensor, readout: Readout | None
) -> tuple[list[_Seen], Tensor | None, dict[str, int]]:
    """Every spatial tensor of one forward pass, the representation (or the output), and calls per module."""
    with _watching(module, x) as (seen, counts), visiting(module) as run:
        if readout is None:
            rows = [as_rows(tensor, len(x)) for tensor in tensors_in(run(x.clone())).values()]
            outputs = [one for one in rows if one is not None]
            return seen, (outputs[0] if outputs else None), counts
        with readout.listening() as heard:
            z = heard(lambda: run(x.clone()), len(x))
    return seen, z.to("cpu", torch.float64), counts


@contextmanager
def _watching(module: nn.Module, x: Tensor) -> Iterator[tuple[list[_Seen], dict[str, int]]]:
    seen: list[_Seen] = []
    counts: dict[str, int] = {}
    order = 0
    here = local()
    here.watching = True
    images = x.detach().clone()
    handles = []

    def note(name: str, part: nn.Module, call: int, side: Side, found: Any) -> None:
        nonlocal order
        if not isinstance(found, Tensor) or not found.is_floating_point() or found.ndim not in (3, 4):
            return
        if found.shape[0] != len(images) or (found.shape == images.shape and torch.equal(found, images)):
            return
        order += 1
        seen.extend(_views(order, name, part, call, side, found.detach(), images.shape[2] / images.shape[3]))

    def hooks_for(name: str) -> tuple[Any, Any]:
        def before(part: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
            if getattr(here, "watching", False):
                counts[name] = counts.get(name, 0) + 1
                if args or (rest and rest[0]):
                    given = args[0] if args else next(iter(rest[0].values()))
                    if isinstance(given, Tensor):
                        note(name, part, counts[name] - 1, "input", input_of(args, rest))

        def after(part: nn.Module, _: tuple[Any, ...], *rest: Any) -> None:
            if getattr(here, "watching", False):
                note(name, part, counts[name] - 1, "output", rest[-1])

        return before, after

    try:
        for name, part in module.named_modules():
            before, after = hooks_for(plain(name))
            handles.append(part.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(part.register_forward_hook(after, with_kwargs=True))
        yield seen, counts
    finally:
        for handle in handles:
            handle.remove()


def _views(
    order: int, name: str, part: nn.Module, call: int, side: Side, found: Tensor, aspect: float
) -> Iterator[_Seen]:
    first = found[:, 0].to("cpu", torch.float64) if found.ndim == 3 else None
    signed = bool((found < 0).any())
    for grid in grids_of(found, aspect):
        maps = grid.maps(found, aspect)
        for relu in (False, True) if signed else (False,):
            used = maps.clamp_min(0.0) if relu else maps
            small = used[0].numel() <= _SMALL and grid.layout == "nchw"
            yield _Seen(
                order=order,
                name=name,
                module=part,
                call=call,
                side=side,
                grid=grid,
                relu=relu,
                shape=(int(maps.shape[2]), int(maps.shape[3])),
                mean=used.mean((2, 3), dtype=torch.float64).cpu(),
                size=used.abs().mean((2, 3), dtype=torch.float64).cpu(),
                top=used.amax((2, 3)).to("cpu", torch.float64),
                flat=pooled(used, "flatten").to("cpu", torch.float64) if small else None,
                first_token=first,
            )


# ---------------------------------------------------------------------- what a caller named


def _named(module: nn.Module, layer: str | nn.Module) -> tuple[str, nn.Module]:
    parts = {plain(name): part for name, part in module.named_modules(remove_duplicate=False)}
    if isinstance(layer, nn.Module):
        wanted = unwrapped(layer)
        for name, part in parts.items():
            if unwrapped(part) is wanted:
                return name, part
        raise ValueError(f"layer is a {type(wanted).__name__} that is not part of the model.")
    if not isinstance(layer, str):
        raise TypeError(f"layer must be a module's name or the module itself, found {type(layer).__name__}.")
    name = plain(layer)
    bare = name.removeprefix("module.")
    name = bare if name not in parts and bare in parts else name
    if name not in parts or not name:
        close = get_close_matches(name, [part for part in parts if part], n=3)
        top = [part for part, _ in module.named_children()]
        hint = f"did you mean {', '.join(map(repr, close))}? " if close else ""
        raise ValueError(f"layer={layer!r} is not in the model; {hint}its parts are {', '.join(map(repr, top))}.")
    return name, parts[name]


def _no_map(reader: str | None, seen: list[_Seen]) -> str:
    if reader is not None:
        return (
            f"the head reads one token of {reader or 'the model'!r} (a class token): no map is pooled into it, so no "
            "map is an account of its logits. Use a model that averages its patch tokens (in timm, global_pool='avg'), "
            "or name a layer, e.g. layer="
            + repr(reader)
            + ": the logits are then regressed on its pooled channels, and "
            "the residual says what that misses."
        )
    if not seen:
        return (
            "no layer of the model gives a map with more than one location, so there is nothing to show evidence on. "
            "Maps need a convolutional network, or larger images."
        )
    return (
        "no map of the model feeds its head by itself: other paths lead there too. Name a layer with layer=...; the "
        "logits are then regressed on its pooled channels, and the residual says what that misses."
    )


def _refuse_non_finite_state(module: nn.Module) -> None:
    """NaN is a mistake anywhere; infinities are in weights, but masks among the buffers may mean them."""
    weights = {id(weight) for weight in module.parameters()}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        total = tensor.detach().sum()
        if bool(torch.isfinite(total)):
            continue
        bad = ~torch.isfinite(tensor.detach()) if id(tensor) in weights else torch.isnan(tensor.detach())
        if bool(bad.any()):
            raise ValueError(f"the model's {plain(name)!r} has values that are not finite; load its weights again.")
