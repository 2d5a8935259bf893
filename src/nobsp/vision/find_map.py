"""Finds the spatial map that is pooled into the head, by running the model and comparing values."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from threading import local
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.network.find_head import Head, as_rows, tensors_in
from nobsp.network.hooks import Place, Side, input_of, plain, record_tensor
from nobsp.network.inference import device_and_dtype, evaluation_mode, unwrap
from nobsp.network.readout import Readout, checked
from nobsp.vision.feature_map import PACKED, FeatureMap, Reach, TokenModel
from nobsp.vision.grid import POOLINGS, Grid, Pooling, Space, grids_of, pooled, space_of

PROBE_IMAGES = 3
# Maps with fewer values per image than this are kept whole, to be compared with flattened vectors.
_SMALL = 1 << 17
# How many tensors back from the output a map is looked for when layers stand between map and head.
_LATEST = 96
# Of how many of the modules that a tensor passes it is tried to be put in.
_NAMES = 3


@dataclass(eq=False)
class _Seen:
    """A tensor met on the way, seen as channels over locations."""

    order: int
    name: str
    module: nn.Module
    call: int
    side: Side
    grid: Grid
    relu: bool
    shape: Space
    mean: Tensor  # (n, channels), as are the next two
    size: Tensor
    top: Tensor
    flat: Tensor | None
    raw: Tensor | None  # the tensor itself; kept of the latest ones

    def pooled(self, pooling: Pooling) -> Tensor | None:
        if pooling == "flatten":
            return self.flat
        parts = {"mean": [self.mean], "max": [self.top]}
        parts |= {"mean+max": [self.mean, self.top], "max+mean": [self.top, self.mean]}
        return torch.cat(parts[pooling], dim=1)

    def units(self) -> Tensor:
        """All of the map and the tokens before it, shape (n, units), as `FeatureMap.units_of` lays them out."""
        assert self.raw is not None
        maps, tokens = self.grid.maps(self.raw, self.shape), self.grid.prefix_tokens(self.raw)
        return torch.cat([maps.flatten(1), tokens.flatten(1)], dim=1).to("cpu", torch.float64)

    def misfit(self, images: Tensor) -> tuple[float, ...]:
        """Small where the locations have the proportions of the images, but for rounding; exact for tokens."""
        space = space_of(images)
        if len(space) == 2:
            aspect = space[0] / space[1]
            return (float(abs(self.shape[0] - aspect * self.shape[1]) >= max(1.5, 1.5 * aspect)),)
        if len(space) > 2:
            return tuple(
                abs(extent / whole - self.shape[0] / space[0]) for extent, whole in zip(self.shape, space, strict=True)
            )
        # Of (n, a, b), layers that work on the last axis say that it is the channels'.
        assert self.raw is not None
        parts = list(self.module.modules())
        widths = {part.out_features for part in parts if isinstance(part, nn.Linear)}
        widths |= {tuple(part.normalized_shape)[-1] for part in parts if isinstance(part, nn.LayerNorm)}
        odd = float((self.raw.shape[-1] in widths) != (self.grid.layout == "tokens"))
        return (odd,) if images.is_floating_point() else (float(abs(self.shape[0] - space[0])), odd)

    def rounding(self, pooling: Pooling) -> Tensor:
        size = self.size
        if pooling == "flatten":
            assert self.flat is not None
            return self.flat.abs()
        return size if pooling in ("mean", "max") else torch.cat([size, size], dim=1)


def find_map(
    model: nn.Module, images: Tensor, *, layer: str | nn.Module | None = None, head: str | nn.Module | None = None
) -> FeatureMap:
    """Run the model on some images and find its spatial map, and how the output depends on it."""
    module = checked(model)
    probe = images[:PROBE_IMAGES].detach()
    if isinstance(module, TokenModel):
        layer, head = (PACKED + one if isinstance(one, str) else one for one in (layer, head))
    _refuse_non_finite_state(module)
    chosen = None if layer is None else _find_named(module, layer)
    device, dtype = device_and_dtype(module)
    dtype_in = dtype if probe.is_floating_point() else probe.dtype
    readout: Readout | None = None
    try:
        outputs = _outputs(module, probe.to(device, dtype_in, copy=True))
        try:
            readout = Readout.find(module, probe, head=head)
        except ValueError:
            # No linear layer ends the model: its output may be the average of a map, or of a tail that needs no head.
            if head is not None or len(outputs) != 1 or not bool(torch.isfinite(outputs[0]).all()):
                raise
    except (RuntimeError, IndexError) as failure:
        raise ValueError(
            f"the model cannot take images of shape {tuple(probe.shape[1:])} ({failure}); pass images of the shape it "
            "was trained on, a single one as a batch of one, images[None]."
        ) from failure
    keep = None if chosen is None else chosen[1]
    seen, observed, counts = _observe(module, probe.to(device, dtype_in, copy=True), readout, keep)
    search = _Search(module, readout, probe, seen, observed, counts, device, dtype)
    return search.automatic() if chosen is None else search.chosen(*chosen)


def _outputs(module: nn.Module, x: Tensor) -> list[Tensor]:
    """What the model returns for each image; an error where that is a map per class."""
    with evaluation_mode(module) as run:
        found = tensors_in(run(x)).values()
    for output in found:
        if output.ndim > 2 and len(output) == len(x) and output[0, 0].numel() > 1:
            raise ValueError(
                f"the model returns a map per class, of shape {tuple(output.shape[1:])}, not one number; wrap it so "
                "that it averages them over the region to explain, e.g. model(x).mean((2, 3))."
            )
    rows = [as_rows(output, len(x)) for output in found]
    return [one for one in rows if one is not None]


@dataclass(frozen=True, eq=False)
class _Search:
    module: nn.Module
    readout: Readout | None
    probe: Tensor
    seen: list[_Seen]
    observed: Tensor  # the representation that enters the head, or the output
    counts: dict[str, int]
    device: torch.device
    dtype: torch.dtype

    @property
    def logits(self) -> Tensor:
        return self.observed if self.readout is None else self.readout.logits(self.observed)

    def automatic(self) -> FeatureMap:
        """The last map that is pooled into the head, or else the last on whose locations the output depends."""
        match = _best(self.seen, self.observed, self.dtype)
        if match is not None:
            return self.ready(self.feature_map(*match, "head"))
        pointless, passed_on = "", 0
        for views in self.latest():
            if id(views[0].raw) == passed_on:
                continue
            found = self.behind(views)
            if isinstance(found, FeatureMap):
                return self.ready(found)
            if found:
                pointless, passed_on = pointless or found, id(views[0].raw)
        raise ValueError(_no_map(pointless, self.seen))

    def chosen(self, name: str, part: nn.Module) -> FeatureMap:
        """The map of a layer that the caller named."""
        own = [seen for seen in self.seen if seen.module is part and seen.side == "output"]
        own = own or [seen for seen in self.seen if seen.module is part]
        if not own:
            raise ValueError(
                f"layer {name!r} ({type(part).__name__}) gives no map with more than one location for images of shape "
                f"{tuple(self.probe.shape[1:])}; choose an earlier layer."
            )
        match = _best(own, self.observed, self.dtype)
        if match is not None:
            return self.ready(self.feature_map(*match, "head"))
        last = max(seen.order for seen in own)
        found = self.behind([seen for seen in own if seen.order == last])
        if isinstance(found, FeatureMap):
            return self.ready(found)
        if found:
            raise ValueError(
                f"the output depends on no location of layer {name!r}, only on its first tokens; choose an earlier "
                "layer, or layer=None for the last that has one."
            )
        raise ValueError(
            f"the output depends on more than layer {name!r}: another path leads around it, so its map is no account "
            "of the output; choose a layer through which everything passes, or layer=None."
        )

    def feature_map(self, seen: _Seen, pooling: Pooling, reach: Reach, *, fixed_batch: bool = False) -> FeatureMap:
        calls = self.counts[seen.name]
        call = -1 if seen.call == calls - 1 else seen.call
        place = Place(seen.name, seen.module, call, seen.side, calls)
        outputs = int(self.logits.shape[1])
        head = None if self.readout is None else self.readout.head
        if head is None and reach == "head":
            eye, zero = torch.eye(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64)
            head = Head(eye, zero, name=seen.name)
        return FeatureMap(
            module=self.module,
            place=place,
            grid=seen.grid,
            relu=seen.relu,
            pooling=pooling,
            reach=reach,
            fixed_batch=fixed_batch,
            head=head,
            link="identity" if self.readout is None else self.readout.link,
            readout=self.readout,
            outputs=outputs,
            channels=int(seen.mean.shape[1]),
            shape=seen.shape,
            text=not self.probe.is_floating_point(),
            image_shape=tuple(self.probe.shape[1:]),
            device=self.device,
            dtype=self.dtype,
        )

    def ready(self, found: FeatureMap) -> FeatureMap:
        """The same, noting whether the tensor has other values at the end of a pass than when it was made."""
        place = dataclasses.replace(found.place, overwritten=True)
        dtype = self.dtype if self.probe.is_floating_point() else self.probe.dtype
        x = self.probe[:1].to(self.device, dtype, copy=True)
        with evaluation_mode(self.module) as run, record_tensor(found.place) as live, record_tensor(place) as copied:
            live.caught, copied.caught = [], []
            run(x)
            overwritten = not torch.equal(live.caught[place.call], copied.caught[place.call])
        return dataclasses.replace(found, place=place) if overwritten else found

    def latest(self) -> Iterator[list[_Seen]]:
        """Every way to see each tensor, from the last tensor back; first as a module's output, then as an input."""
        tensors: dict[int, dict[tuple[bool, int], list[_Seen]]] = {}
        for seen in self.seen:
            if seen.raw is not None:
                # Of outputs the outermost module's, of inputs too: that ends last, or begins first.
                key = (False, -seen.order) if seen.side == "output" else (True, seen.order)
                tensors.setdefault(id(seen.raw), {}).setdefault(key, []).append(seen)
        last = {one: max(abs(order) for _, order in names) for one, names in tensors.items()}
        for one in sorted(tensors, key=last.__getitem__, reverse=True):
            for key in sorted(tensors[one])[:_NAMES]:
                yield tensors[one][key]

    def behind(self, views: list[_Seen]) -> FeatureMap | str:
        """The map with all that follows as its tail; in words what is wrong, or "" where another path leads around it.

        The tensor is put into a pass over another image. Where the output then is what it was of the first, everything
        it needs went through the tensor. Of the ways to see it, one of which only the means count is the right one.
        """
        views = sorted(views, key=lambda one: (one.relu, one.misfit(self.probe), one.grid.layout, one.grid.prefix))
        full = views[0]
        fixed = False
        whole = self.feature_map(full, "flatten", "full")
        units = full.units()
        agrees = self.agrees(whole, units)
        if agrees is None:
            # Some models shape later tensors by the number of images.
            fixed, whole = True, dataclasses.replace(whole, fixed_batch=True)
            agrees = self.agrees(whole, units)
        if not agrees:
            return ""
        for view in views:
            for reach in ("point", "constant"):
                trial = self.feature_map(view, "mean", reach, fixed_batch=fixed)
                if self.agrees(trial, view.mean):
                    return trial
        text = not self.probe.is_floating_point()
        for kept in (0, -1) if text else (None,) if full.grid.prefix else ():
            # Of texts, the first or the last token may be all that is read.
            maps = torch.unflatten(units[:, : whole.map_units], 1, (whole.channels, -1))
            still = (maps.mean(0) * 0.5).expand_as(maps).clone()
            if kept is not None:
                still[..., kept] = maps[..., kept]
            if self.agrees(whole, torch.cat([still.flatten(1), units[:, whole.map_units :]], dim=1)):
                return full.name or "the model"
        return whole

    def agrees(self, trial: FeatureMap, units: Tensor) -> bool | None:
        """Whether units of the probe, put into a pass over another image, give its logits; None for an error."""
        other = 0.5 * self.probe[:1].flip(-1) if self.probe.is_floating_point() else _other_tokens(self.probe)
        every = torch.arange(len(units), device=self.device)
        try:
            with trial.behind(other) as tail, torch.no_grad():
                found = tail(units.to(self.device), every).detach().to("cpu", torch.float64)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            return None
        expected = self.logits
        scale = expected.abs().amax(1, keepdim=True)
        tolerance = min(256 * torch.finfo(self.dtype).eps, 0.05)
        return found.shape == expected.shape and bool(((found - expected).abs() <= tolerance * scale).all())


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


def _observe(
    module: nn.Module, x: Tensor, readout: Readout | None, keep: nn.Module | None
) -> tuple[list[_Seen], Tensor, dict[str, int]]:
    """Every spatial tensor of one forward pass, the representation (or the output), and calls per module."""
    with _watching(module, x, keep) as (seen, counts), evaluation_mode(module) as run:
        if readout is None:
            rows = (as_rows(tensor, len(x)) for tensor in tensors_in(run(x.clone())).values())
            return seen, next(one for one in rows if one is not None), counts
        with readout.listening() as heard:
            z = heard(lambda: run(x.clone()), len(x))
    return seen, z.to("cpu", torch.float64), counts


@contextmanager
def _watching(module: nn.Module, x: Tensor, keep: nn.Module | None) -> Iterator[tuple[list[_Seen], dict[str, int]]]:
    seen: list[_Seen] = []
    counts: dict[str, int] = {}
    order = 0
    here = local()
    here.watching = True
    images, space = x.detach().clone(), space_of(x)
    handles = []
    kept: deque[list[_Seen]] = deque()

    def note(name: str, part: nn.Module, call: int, side: Side, found: Any) -> None:
        nonlocal order
        if not isinstance(found, Tensor) or not found.is_floating_point() or found.ndim not in (3, len(space) + 2):
            return
        if found.shape[0] != len(images) or (found.shape == images.shape and torch.equal(found, images)):
            return
        order += 1
        views = list(_views(order, name, part, call, side, found.detach(), space, text=not images.is_floating_point()))
        if views:
            # A copy, since the model may write into it, and one for all modules it passes; older ones are let go.
            same = (group[0].raw for group in kept if group[0].raw is not None and torch.equal(group[0].raw, found))
            raw = next(same, None)
            raw = found.detach().clone() if raw is None else raw
            kept.append(views)
            for view in views:
                view.raw = raw
            while len(kept) > _LATEST:
                for view in kept.popleft():
                    view.raw = view.raw if view.module is keep else None
        seen.extend(views)

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
    order: int, name: str, part: nn.Module, call: int, side: Side, found: Tensor, space: Space, *, text: bool
) -> Iterator[_Seen]:
    signed = bool((found < 0).any())
    # Of a text, every token has its place.
    for grid in grids_of(found, space, prefixes=1) if text else grids_of(found, space):
        maps = grid.maps(found, space)
        for relu in (False, True) if signed else (False,):
            used = maps.clamp_min(0.0) if relu else maps
            small = used[0].numel() <= _SMALL and grid.layout == "first"
            yield _Seen(
                order=order,
                name=name,
                module=part,
                call=call,
                side=side,
                grid=grid,
                relu=relu,
                shape=tuple(maps.shape[2:]),
                mean=used.flatten(2).mean(2, dtype=torch.float64).cpu(),
                size=used.abs().flatten(2).mean(2, dtype=torch.float64).cpu(),
                top=used.flatten(2).amax(2).to("cpu", torch.float64),
                flat=pooled(used, "flatten").to("cpu", torch.float64) if small else None,
                raw=None,
            )


def _other_tokens(tokens: Tensor) -> Tensor:
    """Other texts of the same lengths: codes in reverse, but for those at the ends, which may be for padding."""
    other = tokens.clone()
    for row in other if other.ndim == 2 else other[:, 0]:
        inner = torch.nonzero((row != row[0]) & (row != row[-1]))[:, 0]
        row[inner] = row[inner.flip(0)]
    return other


# ---------------------------------------------------------------------- what a caller named


def _find_named(module: nn.Module, layer: str | nn.Module) -> tuple[str, nn.Module]:
    parts = {plain(name): part for name, part in module.named_modules(remove_duplicate=False)}
    if isinstance(layer, nn.Module):
        wanted = unwrap(layer)
        for name, part in parts.items():
            if unwrap(part) is wanted:
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


def _no_map(pointless: str, seen: list[_Seen]) -> str:
    if pointless:
        return (
            f"the output depends on no location of {pointless!r}, only on its first tokens, and no earlier layer "
            "passes everything on; name a layer with layer=..., e.g. the block before the last."
        )
    if not seen:
        return (
            "no layer of the model gives a map with more than one location, so there is nothing to show evidence on. "
            "Maps need a convolutional network or a transformer, or larger images."
        )
    return (
        "no map of the model makes its output by itself: other paths lead there too. Wrap the model so that one layer "
        "passes everything on, and name it with layer=..."
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
