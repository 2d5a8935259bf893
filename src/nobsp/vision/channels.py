"""Coefficients for pooled channels: moments gathered batch by batch, all channels solved at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from nobsp.projection import Moments, Ridge, channel_coefficients
from nobsp.vision.feature_map import FeatureMap, ForwardPass
from nobsp.vision.grid import Pooling, pooled, spread
from nobsp.vision.question import Question

Coefficients = Literal["calibrated", "head"]

UNITS, OUTPUTS = "channels", "outputs"


@dataclass(frozen=True, eq=False)
class Answer:
    """What an explainer says about some images, float64.

    Attributes:
        positive: Σ_k u_k max(g_k, 0), shape (n, targets, height, width).
        negative: Σ_k u_k max(−g_k, 0).
        account: Evidence location by location; its mean is the sum of the contributions.
        contributions: g_k, shape (n, targets, units).
    """

    positive: Tensor
    negative: Tensor
    account: Tensor
    contributions: Tensor


@dataclass(frozen=True, eq=False)
class ChannelEvidence:
    """Contributions g_k = β_k (z_k − z̄_k) of pooled channels.

    Attributes:
        coefficients: β, shape (units, outputs).
        mean: z̄, shape (units,).
        base: Mean logits over the calibration images, shape (outputs,).
        explained: Share of each logit's variance that the contributions carry; NaN where it is not known.
        unique_share: Per unit, the share of its spread that the others cannot reproduce; None for head weights.
        ridge: The λ used.
        note: What is wrong with the calibration; empty when all is well.
    """

    coefficients: Tensor
    mean: Tensor
    base: Tensor
    explained: Tensor
    unique_share: Tensor | None
    ridge: float
    note: str

    def answer(self, feature_map: FeatureMap, seen: ForwardPass, question: Question, *_: Any) -> Answer:
        """Maps for the classes asked about, from one product with the channels."""
        maps = seen.maps
        beta = question.of_columns(self.coefficients.to(maps.device))
        centred = pooled(maps, feature_map.pooling) - self.mean.to(maps.device)
        contributions = beta * centred[:, None]
        asked = beta.shape[1]
        weights = torch.cat([contributions.clamp_min(0.0), (-contributions).clamp_min(0.0), beta], dim=1)
        positive, negative, evidence = torch.split(spread(maps, weights, feature_map.pooling), asked, dim=1)
        constant = beta @ self.mean.to(maps.device)
        return Answer(positive, negative, evidence - constant[..., None, None], contributions)

    def cast(self, dtype: torch.dtype) -> ChannelEvidence:
        """The same with what there is much of in another precision: in single, maps move by less than a millionth."""
        share = None if self.unique_share is None else self.unique_share.to(dtype)
        return replace(
            self, coefficients=self.coefficients.to(dtype), explained=self.explained.to(dtype), unique_share=share
        )


@dataclass(eq=False)
class Means:
    """Running means of rows, in float64.

    Attributes:
        mean: Shape (width,); zeros before the first row.
        rows: How many rows were added.

    Example:
        >>> means = Means(torch.zeros(1))
        >>> means.update(torch.tensor([[1.0]]))
        >>> means.update(torch.tensor([[3.0], [5.0]]))
        >>> means.mean, means.rows
        (tensor([3.], dtype=torch.float64), 3)
    """

    mean: Tensor
    rows: int = 0

    def update(self, rows: Tensor) -> None:
        """Adds rows."""
        self.rows += len(rows)
        mean = self.mean.to(torch.float64)
        self.mean = mean + (rows.to(mean) - mean).sum(0) / self.rows

    def merge(self, other: Means) -> Means:
        """Both together."""
        rows = self.rows + other.rows
        return Means(self.mean + (other.mean - self.mean) * (other.rows / max(rows, 1)), rows)


@dataclass(eq=False)
class ChannelMeans:
    """Means of the pooled channels: all that the head's own weights need.

    Attributes:
        pooling: How maps become channels.
        means: Of the channels.
    """

    pooling: Pooling
    means: Means

    @property
    def rows(self) -> int:
        """Images seen."""
        return self.means.rows

    def update(self, seen: ForwardPass) -> None:
        """Adds a batch."""
        self.means.update(pooled(seen.maps, self.pooling).cpu())

    def merge(self, other: ChannelMeans) -> ChannelMeans:
        """Both calibrations together."""
        return replace(self, means=self.means.merge(other.means))

    def solve(self, feature_map: FeatureMap, *_: Any, **__: Any) -> ChannelEvidence:
        """The head's weights."""
        weight, mean = feature_map.head.weight, self.means.mean
        every = torch.ones(len(weight), dtype=torch.float64)
        return ChannelEvidence(weight.T.clone(), mean, weight @ mean + feature_map.head.bias, every, None, 0.0, "")


@dataclass(eq=False)
class ChannelMoments:
    """Moments of the pooled channels, and of the logits where these are no product of the channels and the head.

    Attributes:
        pooling: How maps become channels.
        moments: Of the channels, and of the logits where they have a block.
    """

    pooling: Pooling
    moments: Moments

    @property
    def rows(self) -> int:
        """Images seen."""
        return self.moments.rows

    def update(self, seen: ForwardPass) -> None:
        """Adds a batch."""
        blocks = {UNITS: pooled(seen.maps, self.pooling).cpu()}
        if OUTPUTS in self.moments.blocks:
            blocks[OUTPUTS] = seen.logits.cpu()
        self.moments.update(blocks)

    def merge(self, other: ChannelMoments) -> ChannelMoments:
        """Both calibrations together, as if read in one pass."""
        return replace(self, moments=self.moments.merge(other.moments))

    def all_reduce(self, reduce: Callable[[Moments], Moments]) -> None:
        """Makes these the moments of all ranks' images."""
        self.moments = reduce(self.moments)

    def solve(self, feature_map: FeatureMap, ridge: Ridge, *_: Any, **__: Any) -> ChannelEvidence:
        """The coefficients, by Algorithm 1 in closed form."""
        weight, direct = feature_map.head.weight, OUTPUTS not in self.moments.blocks
        moments = with_outputs(self.moments, weight) if direct else self.moments
        fit = channel_coefficients(moments, ridge=ridge, channels=UNITS, outputs=OUTPUTS)
        mean = moments.mean(UNITS)
        base = weight @ mean + feature_map.head.bias if direct else moments.mean(OUTPUTS)
        explained = explained_share(moments, fit.coefficients)
        return ChannelEvidence(fit.coefficients, mean, base, explained, fit.unique_share, fit.ridge, fit.note)


def start_channels(feature_map: FeatureMap, coefficients: Coefficients) -> ChannelMeans | ChannelMoments:
    """A calibration of pooled channels that has seen no image."""
    if coefficients == "head":
        return ChannelMeans(feature_map.pooling, Means(torch.zeros(feature_map.units, dtype=torch.float64)))
    logits = {} if feature_map.route == "direct" else {OUTPUTS: feature_map.outputs}
    return ChannelMoments(feature_map.pooling, Moments({UNITS: feature_map.units, **logits}))


def with_outputs(moments: Moments, weight: Tensor) -> Moments:
    """Moments of [z | W z] from those of z alone: the head is linear, so its outputs need not be gathered.

    Example:
        >>> rows = torch.tensor([[0.0, 1.0], [2.0, 5.0], [4.0, 0.0]])
        >>> moments = with_outputs(Moments({"channels": 2}).update(rows), torch.tensor([[1.0, 1.0]]))
        >>> moments.product("channels", "outputs")
        tensor([[ 6.],
                [12.]], dtype=torch.float64)
    """
    weight = weight.to(torch.float64)
    state = moments.state()
    gram = state["products"]
    cross = gram @ weight.T
    products = torch.cat([torch.cat([gram, cross], dim=1), torch.cat([cross.T, weight @ cross], dim=1)])
    extended = {
        **state,
        "origin": torch.cat([state["origin"], weight @ state["origin"]]),
        "offset": torch.cat([state["offset"], weight @ state["offset"]]),
        "products": products,
    }
    return Moments.from_state({UNITS: len(gram), OUTPUTS: len(weight)}, extended)


def explained_share(moments: Moments, coefficients: Tensor) -> Tensor:
    """1 − Var(y − Σ_k g_k) / Var(y) per output; NaN for an output that does not vary."""
    gram, cross = moments.product(UNITS, UNITS), moments.product(UNITS, OUTPUTS)
    total = moments.product(OUTPUTS, OUTPUTS).diagonal()
    carried = (coefficients * (gram @ coefficients)).sum(0)
    left = total - 2 * (coefficients * cross).sum(0) + carried
    return torch.where(total > 0, 1 - left / total, torch.nan)
