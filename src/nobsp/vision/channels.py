"""Coefficients for pooled channels: moments gathered batch by batch, all channels solved at once."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from nobsp.projection import Moments, Ridge, channel_coefficients
from nobsp.vision.anatomy import Anatomy, Look
from nobsp.vision.grid import pooled, spread
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

    def answer(self, anatomy: Anatomy, look: Look, question: Question) -> Answer:
        """Maps for the classes asked about, from one product with the channels."""
        maps = look.maps
        beta = question.of_columns(self.coefficients.to(maps.device))
        centred = pooled(maps, anatomy.pooling) - self.mean.to(maps.device)
        contributions = beta * centred[:, None]
        asked = beta.shape[1]
        weights = torch.cat([contributions.clamp_min(0.0), (-contributions).clamp_min(0.0), beta], dim=1)
        positive, negative, evidence = torch.split(spread(maps, weights, anatomy.pooling), asked, dim=1)
        constant = beta @ self.mean.to(maps.device)
        return Answer(positive, negative, evidence - constant[..., None, None], contributions)


class Means:
    """Running means of rows, in float64: all that the head's own weights need.

    Example:
        >>> means = Means(1).update(torch.tensor([[1.0]])).update(torch.tensor([[3.0], [5.0]]))
        >>> means.mean, means.rows
        (tensor([3.], dtype=torch.float64), 3)
    """

    def __init__(self, width: int) -> None:
        self.rows = 0
        self.mean = torch.zeros(width, dtype=torch.float64)

    def update(self, rows: Tensor) -> Self:
        """Adds rows."""
        self.rows += len(rows)
        self.mean = self.mean + (rows.to(self.mean) - self.mean).sum(0) / self.rows
        return self

    def merge(self, other: Means) -> Means:
        """Both together."""
        joined = Means(len(self.mean))
        joined.rows = self.rows + other.rows
        if joined.rows:
            joined.mean = self.mean + (other.mean - self.mean) * (other.rows / joined.rows)
        return joined


class ChannelCalibration:
    """Gathers what the coefficients of pooled channels need, in memory that does not grow with the images.

    Args:
        anatomy: Where the map is.
        coefficients: "calibrated", or "head", which needs only means.
    """

    def __init__(self, anatomy: Anatomy, coefficients: Coefficients) -> None:
        self._direct = anatomy.route == "direct"
        self._coefficients = coefficients
        blocks = {UNITS: anatomy.units}
        if not self._direct:
            blocks[OUTPUTS] = anatomy.outputs
        self.state: Moments | Means = Means(anatomy.units) if coefficients == "head" else Moments(blocks)

    @property
    def rows(self) -> int:
        """Images seen."""
        return self.state.rows

    def update(self, anatomy: Anatomy, look: Look) -> None:
        """Adds a batch."""
        units = pooled(look.maps, anatomy.pooling).cpu()
        if isinstance(self.state, Means):
            self.state.update(units)
        elif self._direct:
            self.state.update({UNITS: units})
        else:
            self.state.update({UNITS: units, OUTPUTS: look.logits.cpu()})

    def merge(self, other: ChannelCalibration) -> ChannelCalibration:
        """Both calibrations together, as if read in one pass."""
        mine, theirs = self.state, other.state
        if isinstance(mine, Moments) and isinstance(theirs, Moments):
            return self.with_state(mine.merge(theirs))
        assert isinstance(mine, Means)
        assert isinstance(theirs, Means)
        return self.with_state(mine.merge(theirs))

    def with_state(self, state: Moments | Means) -> ChannelCalibration:
        """The same kind of calibration with what other images came to."""
        other = copy.copy(self)
        other.state = state
        return other

    def solve(self, anatomy: Anatomy, ridge: Ridge) -> ChannelEvidence:
        """The coefficients."""
        weight, bias = anatomy.head.weight, anatomy.head.bias
        if isinstance(self.state, Means):
            mean = self.state.mean
            every = torch.ones(len(weight), dtype=torch.float64)
            return ChannelEvidence(weight.T.clone(), mean, weight @ mean + bias, every, None, 0.0, "")
        moments = with_outputs(self.state, weight) if self._direct else self.state
        fit = channel_coefficients(moments, ridge=ridge, channels=UNITS, outputs=OUTPUTS)
        base = weight @ moments.mean(UNITS) + bias if self._direct else moments.mean(OUTPUTS)
        explained = explained_share(moments, fit.coefficients)
        return ChannelEvidence(
            fit.coefficients, moments.mean(UNITS), base, explained, fit.unique_share, fit.ridge, fit.note
        )


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
