"""Accounts of logits location by location, and what they are calibrated from.

With t the units of a map (pooled channels, or all of the map where later layers see all of it) and t̄ their calibration
mean, the account of an output f is

    A = (t − t̄) ⊙ s,    s = ∫₀¹ ∂f(t̄ + a (t − t̄)) da,    Σ A = f(t) − f(t̄).

Where the pooled map enters the linear head, s is the head's weights and nothing is integrated. Elsewhere the integral
is Gauss and Legendre's, and what it misses is the residual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nobsp.base import Finding, describe_findings, is_healthy
from nobsp.projection import Moments, Ridge, channel_coefficients
from nobsp.vision.feature_map import FeatureMap, ForwardPass, per_channel, spread
from nobsp.vision.targets import Question, Targets

Coefficients = Literal["head", "calibrated"]
Tail = Callable[[Tensor, Tensor], Tensor]

CHANNELS, OUTPUTS = "channels", "outputs"

# Points of the integral, of which larger numbers are taken for images whose residual is above the tolerance, as a share
# of what is accounted for. Pooled units cost next to nothing beside the pass that carries them.
POINTS: tuple[int, ...] = (8, 16, 32)
POINTS_OF_POOLED, TOLERANCE = (16, 64), 1e-2
# Numbers of units that are put into the layers behind the map at once, and weights of outputs in what is asked.
_AT_ONCE = 2**22
# A mean of fewer images says little about what is usual; an integral that carries less is not to be relied on.
FEW_IMAGES, LEAST_CARRIED = 16, 0.99


def answer(
    account: Account,
    feature_map: FeatureMap,
    seen: ForwardPass,
    target: Tensor,
    *,
    targets: Targets,
    contrast: bool,
) -> dict[str, Tensor]:
    """What `ActivationMaps` says of targets (n, targets), float64, by its names; of many, some at a time."""
    parts = []
    for some in torch.split(target, max(1, _AT_ONCE // seen.logits.numel()), dim=1):
        question = targets.question(some, seen.logits, account.base)
        parts.append(_answer(account, feature_map, seen, question, contrast=contrast))
    found = {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}
    return found | {"logits": seen.logits}


def _answer(
    account: Account,
    feature_map: FeatureMap,
    seen: ForwardPass,
    question: Question,
    *,
    contrast: bool,
) -> dict[str, Tensor]:
    """Units times their slopes, put back where they came from."""
    maps, pooling, size = seen.maps, feature_map.pooling, feature_map.map_units
    targets, mean = question.target.shape[1], account.mean.to(maps.device)
    asked = question.with_contrast(seen.logits) if contrast else question
    shift = torch.zeros_like(asked.whole)
    if seen.typical is not None:
        # With a text's own mask, the output at the mean map is another than without.
        with feature_map.behind(seen.images) as tail, torch.no_grad():
            own = tail(mean.expand(len(maps), -1), torch.arange(len(maps))).detach()
        shift = asked.change(asked.base.expand_as(own), own)
        asked = replace(asked, whole=asked.whole - shift)
    slopes = account.slopes(feature_map, seen, asked)
    own, rest = slopes[..., :size], slopes[..., size:]
    if pooling == "flatten":
        located = spread(maps - torch.unflatten(mean[:size], 0, maps.shape[1:]), own, pooling)
    else:
        reference = own @ mean[:size]
        located = spread(maps, own, pooling) - reference.reshape(
            *reference.shape, *(1 for _ in maps.shape[2:])
        )
    tokens = (rest * (seen.units[:, size:] - mean[size:])[:, None]).sum(2) + shift
    # g_k, and Σ_k u_k max(±g_k, 0) with u_k the map behind unit k.
    evidence = own[:, :targets] * (seen.units[:, :size] - mean[:size])[:, None]
    both = torch.cat([evidence.clamp_min(0.0), (-evidence).clamp_min(0.0)], dim=1)
    positive, negative = torch.split(spread(maps, both, pooling), targets, dim=1)
    return {
        "positive": positive,
        "negative": negative,
        "signed": positive - negative,
        "account": located[:, :targets],
        "contrast": located[:, -targets:],
        "contributions": per_channel(evidence, feature_map.channels, pooling),
        "class_token": tokens[:, :targets],
        "target": question.target,
        "residual": question.whole - (located.flatten(2).mean(2) + tokens)[:, :targets],
        "confidence": question.confidence,
    }


@dataclass(frozen=True, eq=False)
class Account:
    """Contributions g_k = β_k (t_k − t̄_k) of units, or integrated gradients of the layers behind the map."""

    coefficients: (
        Tensor | None
    )  # β, shape (units, outputs); None where layers stand between that are not linear
    mean: Tensor  # t̄, shape (units,)
    base: Tensor  # logits at the mean map, shape (outputs,)
    mean_logits: Tensor  # mean logits of the calibration images; the same where all is linear
    # share of each logit's variance that contributions carry, NaN where it is not known; of integrals the share of the
    # logits that they carried on some images, one and the same for every output
    explained: Tensor
    unique_share: Tensor | None = (
        None  # per unit, the share of its spread that the others cannot reproduce
    )
    note: str = ""  # what is wrong with the calibration; empty when all is well
    points: int | None = None  # how many the integral has, where that was asked for

    def slopes(self, feature_map: FeatureMap, seen: ForwardPass, question: Question) -> Tensor:
        """β or mean gradients of what is asked for, shape (n, targets, units)."""
        if self.coefficients is not None:
            return question.columns(self.coefficients.to(seen.maps.device), seen.logits)
        points = POINTS if feature_map.reach == "full" else POINTS_OF_POOLED
        points = points if self.points is None else (self.points,)
        start, readout = self.mean.to(seen.maps.device), feature_map.readout
        linear = readout is not None and not question.probability
        if readout is not None and linear:
            # The head has one gradient everywhere, so that what is asked of the logits is asked of what enters it.
            question = replace(
                question, classes=question.classes @ readout.head.weight.to(question.classes)
            )
        with feature_map.behind(seen.images, head=not linear) as tail:
            return integrate(tail, start, seen.units, seen.logits, question, points)

    def require_finite(self) -> None:
        """An error where a number that every map depends on is not finite."""
        for tensor in (self.coefficients, self.mean, self.base, self.mean_logits):
            if tensor is not None and not bool(tensor.isfinite().all()):
                raise ValueError("its means or coefficients are not finite")

    def cast(self, dtype: torch.dtype) -> Account:
        """The same with what there is much of in another precision: in single, maps move by less than a millionth."""
        much = (self.coefficients, self.explained, self.unique_share)
        coefficients, explained, share = (None if one is None else one.to(dtype) for one in much)
        assert explained is not None
        return replace(self, coefficients=coefficients, explained=explained, unique_share=share)


def integrate(
    tail: Tail,
    start: Tensor,
    stop: Tensor,
    logits: Tensor,
    question: Question,
    points: Sequence[int] = POINTS,
) -> Tensor:
    """Mean gradients (n, targets, units) on the line from `start` to `stop`; more points for rows that miss much."""
    change = stop - start
    slopes = stop.new_zeros(len(stop), question.target.shape[1], stop.shape[1])
    allowed = TOLERANCE * question.size(logits)
    rows = torch.arange(len(stop), device=stop.device)
    for count in points:
        slopes[rows] = _mean_gradients(tail, start, change[rows], question.rows(rows), rows, count)
        missed = question.whole[rows] - (slopes[rows] * change[rows, None]).sum(2)
        rows = rows[(missed.abs() > allowed[rows]).any(1)]
        if not len(rows):
            break
    return slopes


def _mean_gradients(
    tail: Tail, start: Tensor, change: Tensor, question: Question, rows: Tensor, points: int
) -> Tensor:
    """∫₀¹ ∂f(start + a change) da by Gauss and Legendre's rule."""
    nodes, shares = (
        torch.as_tensor(part).to(change) for part in np.polynomial.legendre.leggauss(points)
    )
    count, targets = len(change), question.target.shape[1]
    slopes = change.new_zeros(count, targets, change.shape[1])
    every = torch.arange(points * count, device=change.device)
    for piece in torch.split(every, max(1, _AT_ONCE // change.shape[1])):
        row, node = piece % count, piece // count
        units = (start + (nodes[node, None] + 1) / 2 * change[row]).requires_grad_()
        with torch.enable_grad():
            logits = tail(units, rows[row])
        for target in range(targets):
            weights = question.gradient(question.classes[row, target], logits.detach())
            (gradient,) = torch.autograd.grad(
                logits, units, weights, retain_graph=target + 1 < targets
            )
            slopes[:, target].index_add_(0, row, shares[node, None] / 2 * gradient)
    return slopes


@dataclass(eq=False)
class MapMeans:
    """Means of the units and of the logits: all that the head's own weights, or an integral, need."""

    units: Tensor  # means of the map's units, float64; zeros before the first image
    logits: Tensor  # means of the logits
    rows: int = 0  # images seen

    def update(self, seen: ForwardPass) -> None:
        """Adds a batch."""
        self.rows += len(seen.logits)
        units = (seen.units if seen.typical is None else seen.typical).cpu()
        self.units = self.units + (units - self.units).sum(0) / self.rows
        self.logits = self.logits + (seen.logits.cpu() - self.logits).sum(0) / self.rows

    def merge(self, other: MapMeans) -> MapMeans:
        """Both calibrations together."""
        rows = self.rows + other.rows
        share = other.rows / max(rows, 1)
        return MapMeans(
            torch.lerp(self.units, other.units, share),
            torch.lerp(self.logits, other.logits, share),
            rows,
        )

    def solve(
        self,
        feature_map: FeatureMap,
        ridge: Ridge,  # noqa: ARG002 - as the other account takes it
        images: Tensor,
        points: int | None,
    ) -> Account:
        """The head's weights, or where to integrate from; tried out on some images."""
        mean, mean_logits = self.units, self.logits
        if len(mean) < feature_map.units:  # one mean for all tokens
            mean = mean.repeat_interleave(feature_map.units // len(mean))
        every = torch.ones(feature_map.outputs, dtype=torch.float64)
        if feature_map.direct:
            assert feature_map.head is not None
            weight, bias = feature_map.head.weight, feature_map.head.bias
            return Account(weight.T.clone(), mean, weight @ mean + bias, mean_logits, every)
        with feature_map.behind(images[:1]) as tail:
            start = mean[None].to(feature_map.device)
            with torch.enable_grad():
                units = start.clone().requires_grad_()
                logits = tail(units, torch.zeros(1, dtype=torch.int64))
            base, slopes, ones = logits[0].detach().cpu(), None, torch.ones_like(logits)
            # Quantised layers give no gradient.
            if (
                not logits.requires_grad
                or torch.autograd.grad(logits, units, ones, allow_unused=True)[0] is None
            ):
                slopes = _slopes_by_differences(feature_map, tail, start).cpu()
        account = Account(slopes, mean, base, mean_logits, every, points=points)
        with feature_map.running() as forward:
            seen = forward(images)
        targets = Targets(None, None, outputs=feature_map.outputs, names=())
        target = targets.choose(seen.logits, 0)
        missed = answer(account, feature_map, seen, target, targets=targets, contrast=False)[
            "residual"
        ]
        whole = targets.question(target, seen.logits, base).whole
        share = 1 - float(missed.square().sum() / whole.square().sum().clamp_min(1e-300))
        return replace(account, explained=every * share)


def _slopes_by_differences(feature_map: FeatureMap, tail: Tail, start: Tensor) -> Tensor:
    """Weights (units, outputs) of layers that are linear but for rounding, unit by unit on both sides of the mean."""
    if feature_map.reach == "full":
        behind = f"the layers behind {feature_map.layer!r}"
        raise ValueError(
            f"{behind} give no gradients (quantised ones, say); pass the model in floating point."
        )
    step = start.abs().max().clamp_min(1e-6)
    parts = []
    for piece in torch.split(torch.eye(start.shape[1]).to(start) * step, 1024):
        first = torch.zeros(len(piece), dtype=torch.int64)
        parts.append(
            (tail(start + piece, first) - tail(start - piece, first)).detach() / (2 * step)
        )
    return torch.cat(parts)


@dataclass(eq=False)
class ChannelMoments:
    """Moments of the pooled channels; those of the logits follow from the head."""

    moments: Moments  # of the channels

    @property
    def rows(self) -> int:
        """Images seen."""
        return self.moments.rows

    def update(self, seen: ForwardPass) -> None:
        """Adds a batch."""
        self.moments.update({CHANNELS: seen.units.cpu()})

    def merge(self, other: ChannelMoments) -> ChannelMoments:
        """Both calibrations together, as if read in one pass."""
        return ChannelMoments(self.moments.merge(other.moments))

    def all_reduce(self, reduce: Callable[[Moments], Moments]) -> None:
        """Makes these the moments of all ranks' images."""
        self.moments = reduce(self.moments)

    def solve(
        self,
        feature_map: FeatureMap,
        ridge: Ridge,
        images: Tensor,  # noqa: ARG002 - as the other account takes it
        points: int | None,  # noqa: ARG002
    ) -> Account:
        """The coefficients, by Algorithm 1 in closed form."""
        assert feature_map.head is not None
        weight, mean = feature_map.head.weight, self.moments.mean(CHANNELS)
        fit = channel_coefficients(with_outputs(self.moments, weight), ridge=ridge)
        # 1 − Var(y − Σ_k g_k) / Var(y) per output, y being W z; NaN for one that does not vary.
        gram = self.moments.product(CHANNELS, CHANNELS)
        total, left = (
            (rows * (gram @ rows)).sum(0) for rows in (weight.T, weight.T - fit.coefficients)
        )
        explained = torch.where(total > 0, 1 - left / total, torch.nan)
        base = weight @ mean + feature_map.head.bias
        return Account(fit.coefficients, mean, base, base, explained, fit.unique_share, fit.note)


def start_calibration(
    feature_map: FeatureMap, coefficients: Coefficients
) -> MapMeans | ChannelMoments:
    """A calibration that has seen no image."""
    if coefficients == "head":
        width = (
            feature_map.channels
            if feature_map.text and feature_map.reach == "full"
            else feature_map.units
        )
        units, logits = (torch.zeros(n, dtype=torch.float64) for n in (width, feature_map.outputs))
        return MapMeans(units, logits)
    if not feature_map.direct:
        hint = 'its channels have no coefficients; leave coefficients="head", which integrates through them'
        raise ValueError(f"layers stand between {feature_map.layer!r} and the output: {hint}.")
    return ChannelMoments(Moments({CHANNELS: feature_map.units}))


def with_outputs(moments: Moments, weight: Tensor) -> Moments:
    """Moments of [z | W z] from those of z alone: the head is linear, so its outputs need not be gathered."""
    state, gram = moments.state(), moments.products
    cross = gram @ weight.T
    products = torch.cat([torch.cat([gram, cross], 1), torch.cat([cross.T, weight @ cross], 1)])
    extended: dict[str, Any] = {**state, "products": products[*torch.triu_indices(*products.shape)]}
    extended |= {
        name: torch.cat([state[name], weight @ state[name]]) for name in ("origin", "offset")
    }
    return Moments.from_state({CHANNELS: weight.shape[1], OUTPUTS: len(weight)}, extended)


@dataclass(frozen=True, repr=False)
class CamHealth:
    """The state of a calibration."""

    findings: tuple[Finding, ...]  # what is worth knowing, warnings first; empty when all is well
    rows: int  # calibration images
    channels: int  # units that have a coefficient each
    dead: int  # channels that never varied over the calibration images
    # share of each logit's variance that the contributions carry, NaN for one that does not vary; where layers stand
    # between map and head, what the integral carried of the first images, for all alike
    explained: tuple[float, ...]
    layer: str  # where the map is
    direct: bool  # whether the pooled map is what the linear head sees; else layers stand between

    @property
    def healthy(self) -> bool:
        """Whether there is no warning."""
        return is_healthy(self.findings)

    def __repr__(self) -> str:
        known = [share for share in self.explained if share == share]
        carried = f"{max(min(known), 0.0):.1%}" if known else "–"
        first = f"{self.rows} images, {self.channels} channels of {self.layer!r}; {carried} or more of each logit."
        return "\n".join([first, *describe_findings(self.findings)])


def examine(feature_map: FeatureMap, account: Account, *, rows: int) -> CamHealth:
    """Collects everything that is worth knowing about a calibration, warnings first."""
    layer, full = feature_map.layer, feature_map.reach == "full"
    explained = account.explained.double()
    known = explained[~explained.isnan()]
    least = float(known.min()) if len(known) else 1.0
    dead = 0 if account.unique_share is None else int((account.unique_share == 0).sum())
    found: dict[str, str] = {}  # messages by code, of which these may be warnings
    if account.note:
        found["coefficients"] = account.note
    elif account.coefficients is None and least < LEAST_CARRIED:
        found["quadrature"] = (
            f"The integral through the layers behind {layer!r} misses much of the logits of the first images (it "
            f"carries {max(least, 0.0):.1%} of their squares) with up to {account.points or POINTS[-1]} points; read "
            "maps.residual along with the maps, or choose a later layer."
        )
    elif account.coefficients is not None and least < 0.8:
        found["weak"] = (
            f"The coefficients carry only {least:.1%} of a logit's variance: the ridge is too strong for these "
            'channels, or the images are too few. Use a smaller ridge, more images, or coefficients="head".'
        )
    warnings = tuple(found)
    if account.coefficients is None:
        apart = account.base - account.mean_logits
        largest = int(apart.abs().argmax())
        found["integral"] = (
            f"Layers stand between {layer!r} and the output, which see {'all of it' if full else 'only its means'}: "
            "gradients are integrated through them, and maps.residual is the integral's error. Accounts start from the "
            f"output at the mean map, which is up to {abs(float(apart[largest])):.3g} away from the mean output, a "
            f"constant (output {largest})."
        )
        if feature_map.head is None:
            found["no_head"] = (
                "No linear layer makes the model's output, so the output is explained as it is."
            )
        if full and feature_map.grid.prefix:
            tokens = feature_map.grid.prefix
            better = "an earlier layer= costs more passes and gives better maps"
            found["class_token"] = (
                f"{tokens} tokens of {layer!r} have no place: see maps.class_token; {better}."
            )
    if dead:
        found["dead"] = (
            f"{dead} channels never varied over the calibration images and add nothing; vary the images."
        )
    if rows < FEW_IMAGES:
        found["few_images"] = (
            f"The reference is a mean of {rows} images only: what all have in common is in no account. Use more."
        )
    if max(feature_map.shape) < 4:
        size, inputs = (
            "×".join(map(str, one)) for one in (feature_map.shape, feature_map.image_shape[1:])
        )
        found["coarse"] = (
            f"The map has only {size} locations for inputs of {inputs}; larger ones give finer maps."
        )
    findings = [
        Finding("warning" if code in warnings else "note", code, "", said)
        for code, said in found.items()
    ]
    shares = tuple(explained.tolist())
    return CamHealth(
        tuple(findings), rows, feature_map.units, dead, shares, layer, feature_map.direct
    )
