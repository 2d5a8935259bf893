"""What a calibration of maps adds up over images, and the accounts that it solves for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nobsp.network.guest import counting_passes
from nobsp.projection import Moments, Ridge, channel_coefficients
from nobsp.vision.account import Account, Coefficients, Tail, answer
from nobsp.vision.feature_map import FeatureMap, ForwardPass
from nobsp.vision.targets import Targets

CHANNELS = "channels"
OUTPUTS = "outputs"
GAPS = "gaps"

# Of how far the logits vary over the calibration images, what may come from elsewhere than the map.
MOST_UNEXPLAINED = 0.25
# Units whose slopes are found by differences at once.
_UNITS_AT_ONCE = 1024


@dataclass(eq=False)
class MapMeans:
    """Means of units and of logits: all that the head's own weights, or an integral, need."""

    units: Tensor  # means of the map's units, float64; zeros before the first image
    logits: Tensor  # means of the logits
    rows: int = 0  # images seen
    variation: float = 0.0  # sum of squares of logits less their means
    missed: float = 0.0  # sum of squares of what of the logits did not come from the pooled map

    def update(self, seen: ForwardPass) -> None:
        """Adds a batch."""
        units = (seen.units if seen.typical is None else seen.typical).cpu()
        logits = seen.logits.cpu()
        before = logits - self.logits

        self.rows += len(logits)
        self.units = self.units + (units - self.units).sum(0) / self.rows
        self.logits = self.logits + before.sum(0) / self.rows
        self.variation += float((before * (logits - self.logits)).sum())
        if seen.gaps is not None:
            self.missed += float(seen.gaps.square().sum())

    def merge(self, other: MapMeans) -> MapMeans:
        """Both calibrations together."""
        rows = self.rows + other.rows
        share = other.rows / max(rows, 1)
        apart = float((other.logits - self.logits).square().sum())
        between = self.rows * share * apart
        return MapMeans(
            units=torch.lerp(self.units, other.units, share),
            logits=torch.lerp(self.logits, other.logits, share),
            rows=rows,
            variation=self.variation + other.variation + between,
            missed=self.missed + other.missed,
        )

    def solve(
        self,
        feature_map: FeatureMap,
        ridge: Ridge,  # noqa: ARG002 - as the other account takes it
        images: Tensor,
        points: int | None,
    ) -> Account:
        """The head's weights, or where to integrate from; tried out on some images."""
        mean = self.units
        if len(mean) < feature_map.units:  # one mean for all tokens
            mean = mean.repeat_interleave(feature_map.units // len(mean))
        if feature_map.direct:
            return self._solve_direct(feature_map, mean)

        base, slopes = _base_and_slopes(feature_map, mean, images)
        account = Account(
            coefficients=slopes,
            mean=mean,
            base=base,
            mean_logits=self.logits,
            explained=torch.ones(feature_map.outputs, dtype=torch.float64),
            points=points,
        )
        with counting_passes() as passes:
            share = _share_carried(account, feature_map, images)
        # Pictures do not add up, and by how much says nothing about them.
        if account.is_picture(feature_map) or self._is_constant(feature_map.dtype):
            share = math.nan
        return replace(
            account,
            explained=account.explained * share,
            passes=passes.rows / len(images),
            gradients=passes.gradients / len(images),
        )

    def _solve_direct(self, feature_map: FeatureMap, mean: Tensor) -> Account:
        """The head's weights; an error where much of the logits came along another path."""
        assert feature_map.head is not None
        weight = feature_map.head.weight
        unexplained = _unexplained(feature_map, self.missed, self.variation)
        share = math.nan if self._is_constant(feature_map.dtype) else 1 - unexplained**2
        explained = torch.full((feature_map.outputs,), share, dtype=torch.float64)
        return Account(
            coefficients=weight.T.clone(),
            mean=mean,
            base=weight @ mean + feature_map.head.bias,
            mean_logits=self.logits,
            explained=explained,
            unexplained=unexplained,
        )

    def _is_constant(self, dtype: torch.dtype) -> bool:
        """Whether logits differ between images by no more than the model's rounding."""
        spread = math.sqrt(max(self.variation, 0.0) / max(self.rows, 1))
        rounding = torch.finfo(dtype).eps * float(torch.linalg.vector_norm(self.logits))
        return spread <= 4 * rounding


def _unexplained(feature_map: FeatureMap, missed: float, variation: float) -> float:
    """How much of the logits came from elsewhere than the map, as a share of how far they vary.

    Raises a ValueError where the share is large.
    """
    if missed == 0.0:
        return 0.0
    share = math.sqrt(missed / max(variation, missed))
    if share > MOST_UNEXPLAINED:
        raise ValueError(
            f"{share:.0%} of how far the outputs vary over these images does not come from "
            f"{feature_map.layer!r}: other paths lead to the output too. Choose a layer= through "
            "which everything passes, or wrap the model."
        )
    return share


def _base_and_slopes(
    feature_map: FeatureMap, mean: Tensor, images: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Logits at the mean map, and perhaps slopes of the layers behind it, by differences.

    Slopes are given only where these layers give no gradient, and are None elsewhere.
    """
    with feature_map.behind(images[:1]) as tail:
        start = mean[None].to(feature_map.device)
        with torch.enable_grad():
            units = start.clone().requires_grad_()
            logits = tail(units, torch.zeros(1, dtype=torch.int64))
        base = logits[0].detach().cpu()
        if logits.requires_grad:
            every = torch.ones_like(logits)
            gradient = torch.autograd.grad(logits, units, every, allow_unused=True)[0]
            if gradient is not None:
                return base, None
        # Quantised layers give no gradient.
        return base, _slopes_by_differences(feature_map, tail, start).cpu()


def _share_carried(account: Account, feature_map: FeatureMap, images: Tensor) -> float:
    """What the account carries of the squares of some images' logits."""
    with feature_map.running(taping=account.needs_tape(feature_map)) as forward:
        seen = forward(images)
    targets = Targets(None, None, outputs=feature_map.outputs, names=())
    target = targets.choose(seen.logits, 0)
    answered = answer(account, feature_map, seen, target, targets=targets, contrast=False)
    whole = targets.question(target, seen.logits, account.base).whole
    missed = answered.residual.square().sum()
    return 1 - float(missed / whole.square().sum().clamp_min(1e-300))


def _slopes_by_differences(feature_map: FeatureMap, tail: Tail, start: Tensor) -> Tensor:
    """Weights (units, outputs) of layers that are linear but for rounding.

    They are measured unit by unit, on both sides of the mean.
    """
    if feature_map.reach == "full":
        behind = f"the layers behind {feature_map.layer!r}"
        raise ValueError(
            f"{behind} give no gradients (quantised ones, say); pass the model in floating point."
        )
    step = start.abs().max().clamp_min(1e-6)
    slopes = []
    for piece in torch.split(torch.eye(start.shape[1]).to(start) * step, _UNITS_AT_ONCE):
        first = torch.zeros(len(piece), dtype=torch.int64)
        above = tail(start + piece, first).detach()
        below = tail(start - piece, first).detach()
        slopes.append((above - below) / (2 * step))
    return torch.cat(slopes)


@dataclass(eq=False)
class ChannelMoments:
    """Moments of the pooled channels; those of the logits follow from the head."""

    moments: Moments  # of the channels
    # of one number per image: the size of what of its logits did not come from the pooled map
    gaps: Moments = field(default_factory=lambda: Moments({GAPS: 1}))

    @property
    def rows(self) -> int:
        """Images seen."""
        return self.moments.rows

    def update(self, seen: ForwardPass) -> None:
        """Adds a batch."""
        self.moments.update({CHANNELS: seen.units.cpu()})
        if seen.gaps is None:
            sizes = torch.zeros(len(seen.units), 1, dtype=torch.float64)
        else:
            sizes = torch.linalg.vector_norm(seen.gaps.cpu(), dim=1, keepdim=True)
        self.gaps.update({GAPS: sizes})

    def merge(self, other: ChannelMoments) -> ChannelMoments:
        """Both calibrations together, as if read in one pass."""
        return ChannelMoments(self.moments.merge(other.moments), self.gaps.merge(other.gaps))

    def all_reduce(self, reduce: Callable[[Moments], Moments]) -> None:
        """Makes these the moments of all ranks' images."""
        self.moments = reduce(self.moments)
        self.gaps = reduce(self.gaps)

    def solve(
        self,
        feature_map: FeatureMap,
        ridge: Ridge,
        images: Tensor,  # noqa: ARG002 - as the other account takes it
        points: int | None,  # noqa: ARG002
    ) -> Account:
        """The coefficients, by Algorithm 1 in closed form."""
        assert feature_map.head is not None
        weight = feature_map.head.weight
        mean = self.moments.mean(CHANNELS)
        fit = channel_coefficients(with_outputs(self.moments, weight), ridge=ridge)

        # 1 − Var(y − Σ_k g_k) / Var(y) per output, y being W z; NaN for one that does not vary.
        gram = self.moments.product(CHANNELS, CHANNELS)
        left_over = weight.T - fit.coefficients
        total = (weight.T * (gram @ weight.T)).sum(0)
        left = (left_over * (gram @ left_over)).sum(0)
        explained = torch.where(total > 0, 1 - left / total, torch.nan)

        base = weight @ mean + feature_map.head.bias
        return Account(
            coefficients=fit.coefficients,
            mean=mean,
            base=base,
            mean_logits=base,
            explained=explained,
            unique_share=fit.unique_share,
            note=fit.note,
            unexplained=_unexplained(feature_map, self._missed(), float(total.sum())),
        )

    def _missed(self) -> float:
        """Sum of squares of what of the logits did not come from the pooled map."""
        centred = float(self.gaps.product(GAPS, GAPS)[0, 0])
        return centred + self.rows * float(self.gaps.mean(GAPS)[0]) ** 2


def start_calibration(
    feature_map: FeatureMap, coefficients: Coefficients
) -> MapMeans | ChannelMoments:
    """A calibration that has seen no image."""
    if coefficients == "head":
        has_lengths = feature_map.text and feature_map.reach == "full"
        width = feature_map.channels if has_lengths else feature_map.units
        return MapMeans(
            units=torch.zeros(width, dtype=torch.float64),
            logits=torch.zeros(feature_map.outputs, dtype=torch.float64),
        )
    if not feature_map.direct:
        hint = (
            'its channels have no coefficients; leave coefficients="head", which integrates '
            "through them"
        )
        raise ValueError(f"layers stand between {feature_map.layer!r} and the output: {hint}.")
    return ChannelMoments(Moments({CHANNELS: feature_map.units}))


def with_outputs(moments: Moments, weight: Tensor) -> Moments:
    """Moments of [z | W z] from those of z alone.

    The head is linear, so its outputs need not be gathered.
    """
    state = moments.state()
    gram = moments.products
    cross = gram @ weight.T
    upper = torch.cat([gram, cross], dim=1)
    lower = torch.cat([cross.T, weight @ cross], dim=1)
    products = torch.cat([upper, lower])

    extended: dict[str, Any] = dict(state)
    extended["products"] = products[*torch.triu_indices(*products.shape)]
    for name in ("origin", "offset"):
        extended[name] = torch.cat([state[name], weight @ state[name]])
    return Moments.from_state({CHANNELS: weight.shape[1], OUTPUTS: len(weight)}, extended)
