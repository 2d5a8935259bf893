"""Finds the spatial map that is pooled into the head, by running the model and comparing values."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nobsp.network.batches import first_non_finite
from nobsp.network.guest import (
    Place,
    Side,
    catching,
    device_and_dtype,
    evaluation_mode,
    hooked,
    plain_name,
)
from nobsp.network.layers import find_part
from nobsp.network.readout import (
    Head,
    Readout,
    checked,
    outputs_of,
    require_function_of_row,
    tensors_in,
)
from nobsp.vision.bottlenecks import trace_graph
from nobsp.vision.feature_map import (
    POOLINGS,
    FeatureMap,
    Grid,
    Layout,
    Picture,
    Pooling,
    Reach,
    Space,
    grids_of,
    pooled,
    space_of,
)
from nobsp.vision.one_tensor import PACKED, OneTensorModel
from nobsp.vision.time_axis import TimeAxis

PROBE_IMAGES = 3
# How many tensors back from the output a map is looked for when layers stand between map and head.
_LATEST = 96
# Of how many tensors from the input on the values are held: the first tokens are among them.
_EARLIEST = 48
# How many of these are tried as the entrance of a model that reads one token.
_ENTRANCES = 8
# Of how many of the modules that a tensor passes it is tried to be put in.
_NAMES = 3
# How often logits are rounded on two ways through a model, at most; and where images hardly differ.
_MOST_ROUNDINGS = 256
_FEWEST_ROUNDINGS = 8
# How torch says that a batch has too many axes or too few, as a ValueError.
_WRONG_AXES = "D input (got"


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
    channels: int
    poolings: list[Pooling]  # those that make the representation of it
    raw: Tensor | None = None  # the tensor itself; held of the first and the latest ones
    # of a sequence, the layout that the model's layers take it to have
    walked: Layout | None = None
    steps: int | None = None  # how many time steps the input has, where that is known

    def units(self, *, means: bool = False) -> Tensor:
        """All of the map and the tokens before it, or the channels' means.

        They are laid out as in `FeatureMap.units`.
        """
        assert self.raw is not None
        maps = self.grid.maps(self.raw, self.shape)
        tokens = self.grid.prefix_tokens(self.raw)
        maps = maps.clamp_min(0.0) if self.relu else maps
        units = (
            pooled(maps.double(), "mean")
            if means
            else torch.cat([maps.flatten(1), tokens.flatten(1)], dim=1)
        )
        return units.to("cpu", torch.float64)

    def misfit(self, images: Tensor) -> tuple[float, ...]:
        """Small where the locations have the proportions of the images, but for rounding.

        It is exact for tokens.
        """
        space = space_of(images)
        if len(space) == 2:
            aspect = space[0] / space[1]
            return (float(abs(self.shape[0] - aspect * self.shape[1]) >= max(1.5, 1.5 * aspect)),)
        if len(space) > 2:
            return tuple(
                abs(extent / whole - self.shape[0] / space[0])
                for extent, whole in zip(self.shape, space, strict=True)
            )
        if not images.is_floating_point():
            return (float(abs(self.shape[0] - space[0])), self._misfit_of_widths())
        against_time = self.walked is not None and self.walked != self.grid.layout
        # A class token before the time steps is none of them.
        other_length = self.steps is not None and self.shape[0] != self.steps
        return (float(against_time), float(other_length), self._misfit_of_widths())

    def _misfit_of_widths(self) -> float:
        """Of (n, a, b), layers that work on the last axis say that it is the channels'."""
        assert self.raw is not None
        parts = list(self.module.modules())
        widths = {part.out_features for part in parts if isinstance(part, nn.Linear)}
        widths |= {
            tuple(part.normalized_shape)[-1] for part in parts if isinstance(part, nn.LayerNorm)
        }
        return float((self.raw.shape[-1] in widths) != (self.grid.layout == "tokens"))


def _advice_on_shape(shape: tuple[int, ...]) -> str:
    """What to do about images of a shape that a model does not take."""
    colours = (1, 3, 4)
    if len(shape) == 3 and shape[2] in colours and shape[0] not in colours:
        return "their channels are last: pass images.permute(0, 3, 1, 2), or transpose of an array"
    if len(shape) == 3 and shape[0] == 1:
        return (
            "they are grey: pass images.repeat(1, 3, 1, 1), pictures as .convert('RGB'), to a "
            "model of colours"
        )
    return (
        "pass images of the shape it was trained on, a single one as a batch of one, images[None], "
        "and at least two to calibrate"
    )


@contextmanager
def _advice_on_failure(shape: tuple[int, ...]) -> Iterator[None]:
    """Says what to do where a model fails on images of a shape."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as failure:
        if isinstance(failure, ValueError) and _WRONG_AXES not in str(failure):
            raise
        raise ValueError(
            f"the model cannot take images of shape {shape} ({failure}); {_advice_on_shape(shape)}."
        ) from failure


def find_map(
    model: nn.Module,
    images: Tensor,
    *,
    layer: str | nn.Module | None = None,
    head: str | nn.Module | None = None,
) -> FeatureMap:
    """Run the model on some images and find its spatial map, and how the output depends on it."""
    module = checked(model)
    probe = images[:PROBE_IMAGES].detach()
    if isinstance(module, OneTensorModel):
        layer = PACKED + layer if isinstance(layer, str) else layer
        head = PACKED + head if isinstance(head, str) else head

    device, dtype = device_and_dtype(module)  # which refuses a model without weights
    _refuse_non_finite_state(module)
    chosen = None if layer is None else find_part(module, layer, argument="layer")
    x = probe.to(device, dtype if probe.is_floating_point() else probe.dtype, copy=True)
    with _advice_on_failure(tuple(probe.shape[1:])):
        with evaluation_mode(module) as run:
            require_function_of_row(run, torch.clone, x, outputs_of, dtype)
            result = run(x.clone())
        _refuse_dense_outputs(result, len(probe))
        z, readout = _find_representation(module, probe, result, head)

    makes = partial(_makes, z, torch.finfo(dtype).eps)
    seen, counts = _observe(module, x, makes, None if chosen is None else chosen[1])
    logits = z if readout is None else readout.logits(z)
    about = replace(
        _map_to_be_found(module, probe, readout),
        outputs=int(logits.shape[1]),
        carrier=x[:1],
        device=device,
        dtype=dtype,
    )
    search = _Search(about, probe, seen, logits, counts)
    return search.ready(search.find(chosen))


def _map_to_be_found(module: nn.Module, probe: Tensor, readout: Readout | None) -> FeatureMap:
    """What is the same of all maps that are tried; the rest is filled in for each."""
    return FeatureMap(
        module=module,
        place=Place(name="", module=module, call=-1, side="output"),
        grid=Grid("first"),
        relu=False,
        pooling="flatten",
        reach="full",
        head=None if readout is None else readout.head,
        readout=readout,
        outputs=0,
        channels=0,
        shape=(),
        text=not probe.is_floating_point(),
        image_shape=tuple(probe.shape[1:]),
        carrier=probe[:1],
        device=probe.device,
        dtype=probe.dtype,
    )


def _refuse_dense_outputs(result: Any, n_images: int) -> None:
    """An error where a model returns something for every location or token, and not a number."""
    for path, output in tensors_in(result).items():
        shape = tuple(output.shape)
        if len(shape) < 3 or shape[0] != n_images or math.prod(shape[2:]) < 2:
            continue
        if len(shape) == 3:
            what, chosen = "numbers for every token", "[:, 3] for the fourth"
        elif len(shape) == 4:
            what, chosen = "a map per class", "[:, 5, 20:40, 20:40].mean((1, 2))"
        else:
            what, chosen = "a volume per class", "[:, 5].mean((1, 2, 3))"
        raise ValueError(
            f"the model returns {what}, of shape {shape[1:]}, not one number; say which number to "
            f"explain, e.g. output=lambda out: out{path}{chosen}."
        )


def _find_representation(
    module: nn.Module, probe: Tensor, result: Any, head: str | nn.Module | None
) -> tuple[Tensor, Readout | None]:
    """What enters the head, and how it is read.

    Where no linear layer ends the model, these are the output itself and None.

    That may be the average of a map, or of a tail that needs no head.
    """
    try:
        readout = Readout.find(module, probe, head=head)
        return readout.represent(probe).to("cpu", torch.float64), readout
    except ValueError:
        z, *more = outputs_of(result, len(probe)).values()
        if head is not None or more or not bool(torch.isfinite(z).all()):
            raise
        return z, None


@dataclass(frozen=True, eq=False)
class _Search:
    about: FeatureMap  # what is the same of all that are tried
    probe: Tensor
    seen: list[_Seen]
    logits: Tensor
    counts: Counter[str]

    def find(self, chosen: tuple[str, nn.Module] | None) -> FeatureMap:
        """The last map pooled into the head, or else the last whose locations affect the output.

        Where the caller has chosen a layer, its own.
        """
        own = self._views_of(chosen)
        match = self.best(own)
        if match is not None:
            return match

        pointless = ""
        passed_on = 0
        candidates: Iterable[list[_Seen]] = self.latest()
        if chosen is not None:
            candidates = [[seen for seen in own if seen.order == own[-1].order]]
        parts = {plain_name(name): part for name, part in self.about.module.named_modules()}
        carrier = self.probe.to(self.about.carrier)
        graph = trace_graph(self.about.module, carrier, parts)
        for views in candidates:
            passage = (views[0].name, views[0].call, views[0].side)
            if id(views[0].raw) == passed_on or graph.leads_around(passage):
                continue
            tried = self.behind(views)
            if isinstance(tried, FeatureMap):
                return self.entrance(tried) if pointless and chosen is None else tried
            if tried:
                pointless = pointless or tried
                passed_on = id(views[0].raw)

        raise _why_no_map(pointless, None if chosen is None else chosen[0])

    def _views_of(self, chosen: tuple[str, nn.Module] | None) -> list[_Seen]:
        """All that was seen, or what a chosen layer returns.

        Where that layer returns no map, what it is given.
        """
        own = self.seen
        what = "no layer of the model gives"
        if chosen is not None:
            own = [seen for seen in own if seen.module is chosen[1]]
            own = [seen for seen in own if seen.side == "output"] or own
            what = f"layer {chosen[0]!r} does not give"

        if not own:
            raise ValueError(
                f"{what} a map with more than one location for images of shape "
                f"{tuple(self.probe.shape[1:])}; maps need a convolutional network or a "
                "transformer, an earlier layer, or larger images."
            )
        return own

    def entrance(self, later: FeatureMap) -> FeatureMap:
        """The first map with as many locations, for a model that reads only one token.

        It shows what each place brings to that token.

        Further on, the token that is read has taken up much of what the places bring, and no place
        has it any more.
        """
        locations = math.prod(later.shape)
        tensors: dict[int, list[_Seen]] = {}
        for seen in self.seen:
            if seen.raw is not None and math.prod(seen.shape) == locations:
                tensors.setdefault(id(seen.raw), []).append(seen)
        for group in list(tensors.values())[:_ENTRANCES]:
            views = [seen for seen in group if seen.order == group[0].order]
            tried = self.behind(views)
            if isinstance(tried, FeatureMap) and math.prod(tried.shape) == locations:
                return dataclasses.replace(tried, picture=self.picture_of(tried))
        return later

    def picture_of(self, entrance: FeatureMap) -> Picture:
        """How to show where a class is from the first tokens.

        Empty for sequences, which have numbers that add up instead.
        """
        if entrance.text or len(entrance.shape) == 1:
            return ""
        if entrance.reach != "full" or entrance.relu:
            return "half_way"
        with entrance.running(taping=True) as forward:
            tape = forward(self.probe).tape
        if tape is None:
            return "half_way"
        return "attention" if tape.attention else "own_pass"

    def best(self, seen: list[_Seen]) -> FeatureMap | None:
        """The last map that is pooled into the head.

        A module's own output comes before something derived from it.
        """
        hits = [(tensor, pooling) for tensor in seen for pooling in tensor.poolings]

        def rank(hit: tuple[Any, Any]) -> tuple[bool, bool, int, int]:
            seen_at, pooling = hit
            return (
                seen_at.side == "output",
                not seen_at.relu,
                seen_at.order,
                -POOLINGS.index(pooling),
            )

        return self.feature_map(*max(hits, key=rank), "head") if hits else None

    def feature_map(
        self, seen: _Seen, pooling: Pooling, reach: Reach, *, fixed_batch: bool = False
    ) -> FeatureMap:
        calls = self.counts[seen.name]
        position = Place(
            seen.name, seen.module, -1 if seen.call == calls - 1 else seen.call, seen.side, calls
        )
        described = dataclasses.replace(
            self.about, place=position, grid=seen.grid, relu=seen.relu, shape=seen.shape
        )
        head = described.head
        if head is None and reach == "head":
            eye = torch.eye(described.outputs, dtype=torch.float64)
            head = Head(eye, eye.new_zeros(described.outputs), name=seen.name)
        return dataclasses.replace(
            described,
            channels=seen.channels,
            pooling=pooling,
            reach=reach,
            fixed_batch=fixed_batch,
            head=head,
        )

    def ready(self, feature_map: FeatureMap) -> FeatureMap:
        """The same map, noting whether its tensor is overwritten before the end of a pass."""
        copied_place = dataclasses.replace(feature_map.place, overwritten=True)
        x = self.about.carrier.clone()
        with (
            evaluation_mode(self.about.module) as run,
            catching(run, feature_map.place) as live,
            catching(run, copied_place) as copied,
        ):
            (_, before), after = live(lambda: copied(lambda: run(x)))
            overwritten = not torch.equal(before, after)
        return dataclasses.replace(feature_map, place=copied_place) if overwritten else feature_map

    def latest(self) -> Iterator[list[_Seen]]:
        """Every way to see each tensor, from the last tensor back.

        First as the output of a module, then as an input.
        """
        tensors: dict[int, dict[tuple[bool, int], list[_Seen]]] = {}
        for seen in self.seen:
            if seen.raw is not None:
                # Of outputs the outermost module's, of inputs too: that ends last, or begins first.
                key = (False, -seen.order) if seen.side == "output" else (True, seen.order)
                tensors.setdefault(id(seen.raw), {}).setdefault(key, []).append(seen)
        last = {tensor: max(abs(order) for _, order in names) for tensor, names in tensors.items()}
        for tensor in sorted(tensors, key=last.__getitem__, reverse=True):
            for key in sorted(tensors[tensor])[:_NAMES]:
                yield tensors[tensor][key]

    def behind(self, views: list[_Seen]) -> FeatureMap | str:
        """The map with all that follows as its tail.

        Otherwise in words what is wrong, or "" where another path leads around it.

        The tensor is put into a pass over another image. Where the output then is what it was of
        the first, everything it needs went through the tensor. Of the ways to see it, one of which
        only the means count is the right one.
        """
        views = sorted(
            views,
            key=lambda view: (
                view.relu,
                view.misfit(self.probe),
                view.grid.layout,
                view.grid.prefix,
            ),
        )
        full = views[0]
        fixed = False
        whole = self.feature_map(full, "flatten", "full")
        units = full.units()
        agrees = self.agrees(whole, units)
        if agrees is None:
            # Some models shape later tensors by the number of images.
            fixed = True
            whole = dataclasses.replace(whole, fixed_batch=True)
            agrees = self.agrees(whole, units)

        if not agrees:
            return ""

        for view in views:
            for reach in ("point", "constant"):
                trial = self.feature_map(view, "mean", reach, fixed_batch=fixed)
                if self.agrees(trial, view.units(means=True)):
                    return self.lighten(trial, view.units(means=True))

        # Of sequences, one token may be all that is read; of images, those before the patches, or
        # one behind them.
        is_sequence = whole.text or len(whole.shape) == 1
        if is_sequence or full.grid.prefix:
            read = self.locations_read(whole, units)
            if read is not None and int(read.max()) <= 1:
                return full.name or "the model"

        return self.lighten(whole, units)

    def locations_read(self, trial: FeatureMap, units: Tensor) -> Tensor | None:
        """On how many locations of the map each probe image's output depends.

        None where that is not known.
        """
        other = self.other(trial)
        every = torch.arange(len(units), device=self.about.device)
        put_in = units.to(self.about.device).requires_grad_()
        with dataclasses.replace(trial, carrier=other).behind(other) as tail, torch.enable_grad():
            output = tail(put_in, every)
            if not output.requires_grad:
                return None
            weights = torch.linspace(1, 2, output.shape[1]).to(output)
            (gradient,) = torch.autograd.grad((output * weights).sum(), put_in)
        by_location = torch.unflatten(gradient[:, : trial.map_units], 1, (trial.channels, -1))
        return (by_location.abs().sum(1) > 0).sum(1)

    def other(self, trial: FeatureMap) -> Tensor:
        """Another input, into whose pass a map of the probe is put."""
        return _other_tokens(self.probe) if trial.text else 0.5 * self.probe[:1].flip(-1)

    def lighten(self, feature_map: FeatureMap, units: Tensor) -> FeatureMap:
        """The same with the smallest image that suffices for the layers before the map.

        They have to be run, but their result is not used.
        """
        for step in (8, 4, 2) if not feature_map.text else ():
            thinned = (slice(None, None, step) for _ in feature_map.image_shape[1:])
            small = feature_map.carrier[(slice(None), slice(None), *thinned)].clone()
            if self.agrees(feature_map, units, small):
                return dataclasses.replace(feature_map, carrier=small)
        return feature_map

    def agrees(self, trial: FeatureMap, units: Tensor, other: Tensor | None = None) -> bool | None:
        """Whether units of the probe, put into another image's pass, give the probe's logits.

        None where the pass raises an error.
        """
        if other is None:
            other = self.other(trial)
        every = torch.arange(len(units), device=self.about.device)
        try:
            with dataclasses.replace(trial, carrier=other).behind(other) as tail, torch.no_grad():
                answers = tail(units.to(self.about.device), every).detach().to("cpu", torch.float64)
        except Exception:  # noqa: BLE001 - whatever a model does with an image of another size
            return None
        expected = self.logits
        return answers.shape == expected.shape and bool(
            ((answers - expected).abs() <= self._allowed()).all()
        )

    def _allowed(self) -> Tensor:
        """How far answers may be from logits: by rounding, but less than two images' logits differ.

        A model that says nearly the same of all images would agree with any tensor otherwise.
        """
        eps = torch.finfo(self.about.dtype).eps
        scale = self.logits.abs().amax(1, keepdim=True)
        allowed = min(_MOST_ROUNDINGS * eps, 0.05) * scale
        if self.about.dtype in (torch.float16, torch.bfloat16):
            return allowed  # their rounding is as large as such differences
        least = _FEWEST_ROUNDINGS * eps * scale
        spread = (self.logits - self.logits.mean(0)).abs().max()
        if bool((spread <= least).all()):
            return allowed  # all images are the same to it, which is told elsewhere
        return torch.minimum(allowed, (spread / 8).clamp_min(least))


def _why_no_map(pointless: str, layer: str | None) -> ValueError:
    """An error about a model in which no map makes the output by itself.

    Or about the layer that the caller chose.
    """
    if pointless:
        return ValueError(
            f"the output depends on no location of {pointless!r}, only on its first tokens; name a "
            "layer through which everything passes with layer=..., e.g. the block before the last."
        )
    if layer is None:
        return ValueError(
            "no map of the model makes the output by itself: other paths lead there too. Name one "
            "through which everything passes with layer=..., or wrap the model so that there is "
            "one."
        )
    return ValueError(
        f"layer {layer!r} does not make the output by itself: other paths lead there too. Choose "
        "one through which everything passes, or layer=None, or wrap the model."
    )


def _observe(
    module: nn.Module, x: Tensor, makes: Callable[[Tensor, Pooling], bool], keep: nn.Module | None
) -> tuple[list[_Seen], Counter[str]]:
    """Every spatial tensor of one forward pass, and how it makes the representation; all calls."""
    observer = _Observer(module, x, makes, keep)
    with (
        evaluation_mode(module) as run,
        hooked(run, observer.parts, "input", observer.before) as inputs,
        hooked(run, observer.parts, "output", observer.after) as outputs,
    ):
        inputs.on = True
        outputs.on = True
        run(x.clone())
    observer.note_time_axis()
    return observer.seen, observer.counts


class _Observer:
    """Notes the spatial tensors that pass while a model runs once."""

    def __init__(
        self,
        module: nn.Module,
        x: Tensor,
        makes: Callable[[Tensor, Pooling], bool],
        keep: nn.Module | None,
    ) -> None:
        self.parts = {plain_name(name): part for name, part in module.named_modules()}
        self.seen: list[_Seen] = []
        self.counts: Counter[str] = Counter()
        self._images = x.detach().clone()
        self._space = space_of(x)
        self._makes = makes
        self._keep = keep  # the module whose tensors are held, however many come after them
        self._order = 0
        self._recent: deque[list[_Seen]] = deque()
        self._time_axis = TimeAxis()
        self._is_sequence = len(self._space) == 1 and self._images.is_floating_point()

    def before(self, name: str, part: nn.Module, passing: Any) -> None:
        """Looks at what a module is given."""
        self.counts[name] += 1
        if self._is_sequence:
            self._time_axis.note(part, passing)
        self._note("input", name, passing)

    def after(self, name: str, _: nn.Module, passing: Any) -> None:
        """Looks at what a module returns."""
        self._note("output", name, passing)

    def note_time_axis(self) -> None:
        """Tells views of sequences along which axis layers walked."""
        if not self._is_sequence:
            return
        layout = self._time_axis.layout_of(self._images)
        steps = None if layout is None else self._images.shape[1 if layout == "tokens" else 2]
        for view in self.seen:
            view.steps = steps
            if view.raw is not None and view.raw.ndim == 3:
                view.walked = self._time_axis.layout_of(view.raw)

    def _note(self, side: Side, name: str, passing: Any) -> None:
        if not self._is_spatial(passing):
            return
        # Pixels are no map of their own unless they are asked for; time steps are.
        is_input = passing.shape == self._images.shape and torch.equal(passing, self._images)
        if is_input and not self._is_sequence and self.parts[name] is not self._keep:
            return

        self._order += 1
        passage = _Passage(self._order, name, self.parts[name], self.counts[name] - 1, side)
        is_text = not self._images.is_floating_point()
        views = list(_views(passage, passing.detach(), self._space, self._makes, text=is_text))
        if views:
            self._hold(views, passing.detach())
        self.seen.extend(views)

    def _is_spatial(self, passing: Any) -> bool:
        """Whether a tensor may be a map of these images."""
        if not isinstance(passing, Tensor) or not passing.is_floating_point():
            return False
        has_axes = passing.ndim in (3, len(self._space) + 2)
        return has_axes and passing.shape[0] == len(self._images)

    def _hold(self, views: list[_Seen], passing: Tensor) -> None:
        """Gives views a copy of a tensor, as the model may write into it.

        There is one copy for all modules that it passes; older copies are let go.
        """
        held = [group[0].raw for group in self._recent if group[0].raw is not None]
        raw = next((tensor for tensor in held if torch.equal(tensor, passing)), None)
        if raw is None:
            raw = passing.clone()
        for view in views:
            view.raw = raw

        self._recent.append(views)
        while len(self._recent) > _LATEST:
            for view in self._recent.popleft():
                if view.module is not self._keep and view.order > _EARLIEST:
                    view.raw = None


class _Passage(NamedTuple):
    """Where a tensor passes."""

    order: int
    name: str
    module: nn.Module
    call: int
    side: Side


def _views(
    passage: _Passage,
    passing: Tensor,
    space: Space,
    makes: Callable[[Tensor, Pooling], bool],
    *,
    text: bool,
) -> Iterator[_Seen]:
    """Every way to see a tensor as a map, and how each makes the representation."""
    signed = bool((passing < 0).any())

    # Of a text, every token has its place.
    for grid in grids_of(passing, space, prefixes=1) if text else grids_of(passing, space):
        maps = grid.maps(passing, space)
        first = grid.layout == "first"
        for relu in (False, True) if signed else (False,):
            used = maps.clamp_min(0.0) if relu else maps
            poolings = [
                pooling
                for pooling in POOLINGS
                if makes(used, pooling) and (pooling != "flatten" or first)
            ]
            yield _Seen(
                order=passage.order,
                name=passage.name,
                module=passage.module,
                call=passage.call,
                side=passage.side,
                grid=grid,
                relu=relu,
                shape=tuple(maps.shape[2:]),
                channels=maps.shape[1],
                poolings=poolings,
            )


def _makes(z: Tensor, eps: float, maps: Tensor, pooling: Pooling) -> bool:
    """Whether pooled maps are a representation, but for rounding."""
    parts = pooling.split("+")
    whole = pooling == "flatten"
    width = maps[0].numel() if whole else maps.shape[1] * len(parts)
    if z.shape[1] != width or not bool(z.any()):
        return False

    pooled_map = pooled(maps.double(), pooling).cpu()
    sizes = pooled(maps.double().abs(), "flatten" if whole else "mean")
    allowed = 8 * eps * (z.abs() + sizes.cpu().repeat(1, len(parts))) + 1e-300
    return bool(((pooled_map - z).abs() <= allowed).all())


def _other_tokens(tokens: Tensor) -> Tensor:
    """Other texts of the same lengths, made of codes in reverse.

    Codes at the ends stay, because they may be for padding.
    """
    other = tokens.clone()
    for row in other if other.ndim == 2 else other[:, 0]:
        inner = torch.nonzero((row != row[0]) & (row != row[-1]))[:, 0]
        row[inner] = row[inner.flip(0)]
    return other


def _refuse_non_finite_state(module: nn.Module) -> None:
    """Raises a ValueError for weights that are not finite, and for NaN anywhere.

    Infinities among the buffers are allowed, because masks may mean them.
    """
    weights = {id(weight) for weight in module.parameters()}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor) or first_non_finite(tensor.detach()) is None:
            continue
        if id(tensor) in weights or bool(torch.isnan(tensor.detach()).any()):
            raise ValueError(
                f"the model's {plain_name(name)!r} has values that are not finite; load its "
                "weights again."
            )
