"""Accounts of logits location by location.

With t the units of a map (pooled channels, or all of the map where later layers see all of it) and
t̄ their calibration mean, the account of an output f is

    A = (t − t̄) ⊙ s,    s = ∫₀¹ ∂f(t̄ + a (t − t̄)) da,    Σ A = f(t) − f(t̄).

Where the pooled map enters the linear head, s is the head's weights and nothing is integrated.
Elsewhere the integral is Gauss and Legendre's. What is missed is the residual: the error of the
integral, and whatever the model says that did not pass through the map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nobsp.network.guest import count_gradients
from nobsp.vision.feature_map import FeatureMap, ForwardPass, Pooling, per_channel, spread
from nobsp.vision.held_scales import Tape
from nobsp.vision.targets import Question, Targets

Coefficients = Literal["head", "calibrated"]
Tail = Callable[[Tensor, Tensor], Tensor]

# Points of the integral: more of them are taken for images whose residual is above the tolerance.
POINTS: tuple[int, ...] = (8, 16, 32)
# Pooled units cost next to nothing beside the pass that carries them.
POINTS_OF_POOLED: tuple[int, ...] = (16, 64)
# A picture from the first tokens takes no more: where a class is shows long before the numbers add
# up.
POINTS_OF_PICTURE: tuple[int, ...] = (1,)
# How much more than the gradient's part counts in a picture what attention carries, both at one
# spread.
SHARE_OF_ATTENTION = 2.0
# How many times the points that were asked for; more than once for images that miss more than is
# allowed. Whoever asks for fewer than 8 wants them cheap.
_MORE_POINTS = (1, 2, 4, 8)
# The residual that is allowed, as a share of what is accounted for.
TOLERANCE = 1e-2
# How often a logit is rounded on its way through the layers behind the map, relative to its own
# precision.
_ROUNDINGS = 4
# Numbers of units that are put into the layers behind the map at once, and weights of outputs in
# what is asked.
_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Answer:
    """What `ActivationMaps` says of a batch, by its names, in float64.

    All but the logits have an axis of targets.
    """

    positive: Tensor
    negative: Tensor
    signed: Tensor
    account: Tensor
    contrast: Tensor
    contributions: Tensor
    class_token: Tensor
    target: Tensor
    residual: Tensor
    confidence: Tensor
    logits: Tensor

    @classmethod
    def join(cls, answers: Sequence[Answer]) -> Answer:
        """Answers about some targets each of the same images, as one about all."""
        first = answers[0]
        if len(answers) == 1:
            return first
        parts = {
            field.name: torch.cat([getattr(answer, field.name) for answer in answers], dim=1)
            for field in fields(cls)
            if field.name != "logits"
        }
        return replace(first, **parts)


def answer(
    account: Account,
    feature_map: FeatureMap,
    seen: ForwardPass,
    target: Tensor,
    *,
    targets: Targets,
    contrast: bool,
) -> Answer:
    """What there is to say of targets (n, targets); of many, some at a time."""
    answers = []
    most_targets = max(1, _AT_ONCE // seen.logits.numel())
    for some in torch.split(target, most_targets, dim=1):
        question = targets.question(some, seen.logits, account.base)
        answers.append(_answer(account, feature_map, seen, question, contrast=contrast))
    return Answer.join(answers)


def _answer(
    account: Account,
    feature_map: FeatureMap,
    seen: ForwardPass,
    question: Question,
    *,
    contrast: bool,
) -> Answer:
    """Units times their slopes, put back where they came from.

    Where the maps are pictures, what attention carries is added.
    """
    maps = seen.maps
    pooling = feature_map.pooling
    size = feature_map.map_units
    n_targets = question.target.shape[1]
    mean = account.mean.to(maps.device)

    asked = question
    if contrast:
        is_picture = account.is_picture(feature_map)
        asked = (
            question.half_way(seen.logits) if is_picture else question.with_contrast(seen.logits)
        )
    shift = _shift_by_mask(feature_map, seen, asked, mean)
    slopes, carried = account.slopes(feature_map, seen, replace(asked, whole=asked.whole - shift))
    slopes_of_map = slopes[..., :size]
    slopes_of_tokens = slopes[..., size:]

    located = _locate(feature_map, maps, mean[:size], slopes_of_map)
    if carried is not None:
        located = _add_carried(located, carried)
    change_of_tokens = seen.units[:, size:] - mean[size:]
    tokens = (slopes_of_tokens * change_of_tokens[:, None]).sum(2) + shift

    change_of_map = seen.units[:, :size] - mean[:size]
    evidence = slopes_of_map[:, :n_targets] * change_of_map[:, None]  # g_k
    positive, negative = _spread_halves(maps, evidence, pooling)

    accounted = located.flatten(2).mean(2) + tokens
    return Answer(
        positive=positive,
        negative=negative,
        signed=positive - negative,
        account=located[:, :n_targets],
        contrast=located[:, -n_targets:],
        contributions=per_channel(evidence, feature_map.channels, pooling),
        class_token=tokens[:, :n_targets],
        target=question.target,
        residual=question.whole - accounted[:, :n_targets],
        confidence=question.confidence,
        logits=seen.logits,
    )


def _spread_halves(maps: Tensor, evidence: Tensor, pooling: Pooling) -> tuple[Tensor, Tensor]:
    """Σ_k u_k max(±g_k, 0), with u_k the map behind unit k and g_k its evidence."""
    halves = torch.cat([evidence.clamp_min(0.0), (-evidence).clamp_min(0.0)], dim=1)
    positive, negative = torch.split(spread(maps, halves, pooling), evidence.shape[1], dim=1)
    return positive, negative


def _shift_by_mask(
    feature_map: FeatureMap, seen: ForwardPass, question: Question, mean: Tensor
) -> Tensor:
    """How far a text's own mask moves the output at the mean map; zero for other inputs."""
    if seen.typical is None:
        return torch.zeros_like(question.whole)
    n_texts = len(seen.maps)
    with feature_map.behind(seen.images) as tail, torch.no_grad():
        own_base = tail(mean.expand(n_texts, -1), torch.arange(n_texts)).detach()
    return question.change(question.base.expand_as(own_base), own_base)


def _locate(feature_map: FeatureMap, maps: Tensor, mean: Tensor, slopes: Tensor) -> Tensor:
    """Evidence per location, shape (n, targets, *locations)."""
    pooling = feature_map.pooling
    if pooling == "flatten":
        return spread(maps - torch.unflatten(mean, 0, maps.shape[1:]), slopes, pooling)
    reference = slopes @ mean
    single_locations = [1] * (maps.ndim - 2)
    return spread(maps, slopes, pooling) - reference.reshape(*reference.shape, *single_locations)


def _add_carried(located: Tensor, carried: Tensor) -> Tensor:
    """Evidence per location, with what attention carries from there.

    What is carried is first brought to the spread of the evidence, image by image.
    """
    own, other = (maps.flatten(2).std(2, correction=0) for maps in (located, carried))
    factor = own / torch.where(other > 0, other, 1.0)
    single_locations = [1] * (located.ndim - 2)
    scaled = carried * factor.reshape(*factor.shape, *single_locations)
    together = (located + SHARE_OF_ATTENTION * scaled) / (1 + SHARE_OF_ATTENTION)
    return torch.where((other > 0).reshape(*factor.shape, *single_locations), together, located)


@dataclass(frozen=True, eq=False)
class Account:
    """Contributions g_k = β_k (t_k − t̄_k) of units, or integrated gradients.

    The latter are those of the layers behind the map.
    """

    # β, shape (units, outputs); None where layers stand between that are not linear
    coefficients: Tensor | None
    mean: Tensor  # t̄, shape (units,)
    base: Tensor  # logits at the mean map, shape (outputs,)
    mean_logits: Tensor  # mean logits of the calibration images; the same where all is linear
    # share of each logit's variance that contributions carry, NaN where it is not known; of
    # integrals the share of the logits that they carried on some images, one and the same for every
    # output
    explained: Tensor
    # per unit, the share of its spread that the others cannot reproduce
    unique_share: Tensor | None = None
    note: str = ""  # what is wrong with the calibration; empty when all is well
    points: int | None = None  # how many the integral has, where that was asked for
    # what of the calibration images' logits did not pass through the map, as a share of how far
    # they vary
    unexplained: float = 0.0
    # forward passes and gradients that an image's account took, on some images
    passes: float = 1.0
    gradients: float = 0.0

    def slopes(
        self, feature_map: FeatureMap, seen: ForwardPass, question: Question
    ) -> tuple[Tensor, Tensor | None]:
        """β or mean gradients of what is asked for, shape (n, targets, units).

        And what attention carries from every location, of pictures by a transformer's own pass.
        """
        if self.coefficients is not None:
            return question.columns(self.coefficients.to(seen.maps.device), seen.logits), None

        if seen.tape is not None:
            return self._slopes_on_tape(feature_map, seen, seen.tape, question)

        points = POINTS if feature_map.reach == "full" else POINTS_OF_POOLED
        if self.is_picture(feature_map):
            points = POINTS_OF_PICTURE
        if self.points is not None:
            points = (self.points,)
            if self.points >= POINTS[0]:
                points = tuple(self.points * times for times in _MORE_POINTS)
        readout = feature_map.readout
        is_linear = readout is not None and not question.probability
        if readout is not None and is_linear:
            # The head has one gradient everywhere, so that what is asked of the logits is asked of
            # what enters it.
            weight = readout.head.weight.to(question.classes)
            question = replace(question, classes=question.classes @ weight)
        with feature_map.behind(seen.images, head=not is_linear) as tail:
            start = self.mean.to(seen.maps.device)
            eps = torch.finfo(feature_map.dtype).eps
            return integrate(tail, start, seen.units, seen.logits, question, points, eps=eps), None

    def _slopes_on_tape(
        self, feature_map: FeatureMap, seen: ForwardPass, tape: Tape, question: Question
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of the model's own pass, and what attention carries in it."""
        weights = question.classes
        if question.probability:
            # At the image itself a sure probability hardly moves; on the way from the base it did.
            weights = question.mean_gradient(seen.logits)
        if feature_map.readout is not None:
            weights = weights @ feature_map.readout.head.weight.to(weights)
        return feature_map.slopes_on_tape(tape, weights, seen.images)

    def is_picture(self, feature_map: FeatureMap) -> bool:
        """Whether maps are pictures of where a class is, which do not add up.

        They are made by one gradient at the first tokens.
        """
        return bool(feature_map.picture) and self.points is None

    def needs_tape(self, feature_map: FeatureMap) -> bool:
        """Whether that gradient is the one of the model's own pass."""
        return self.is_picture(feature_map) and feature_map.picture in ("own_pass", "attention")

    def require_finite(self) -> None:
        """An error where a number that every map depends on is not finite."""
        for tensor in (self.coefficients, self.mean, self.base, self.mean_logits):
            if tensor is not None and not bool(tensor.isfinite().all()):
                raise ValueError("its means or coefficients are not finite")

    def require_fits(self, feature_map: FeatureMap) -> None:
        """Raises a ValueError where tensors do not fit the units and outputs of a map.

        A file that was changed may hold such tensors.
        """
        units = (feature_map.units,)
        outputs = (feature_map.outputs,)
        shapes = {
            "coefficients": (self.coefficients, units + outputs),
            "mean": (self.mean, units),
            "base": (self.base, outputs),
            "mean_logits": (self.mean_logits, outputs),
            "explained": (self.explained, outputs),
            "unique_share": (self.unique_share, units),
        }
        for name, (tensor, shape) in shapes.items():
            if tensor is None:
                continue
            if tuple(tensor.shape) != shape or tensor.dtype != torch.float64:
                held = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
                raise ValueError(f"its {name} is {held} where the model needs {shape}")

        if feature_map.direct and feature_map.head is not None:
            head = feature_map.head
            expected = head.weight.double() @ self.mean.double() + head.bias
            # The head may be in single precision.
            size = float((head.weight.double().abs() @ self.mean.double().abs()).max())
            if not torch.allclose(self.base.double(), expected, rtol=1e-4, atol=1e-4 * size):
                raise ValueError("its base is not what the head makes of its mean")

    def cast(self, dtype: torch.dtype) -> Account:
        """The same account with its large tensors in another precision.

        In single precision, maps move by less than a millionth.
        """
        coefficients = self.coefficients
        unique_share = self.unique_share
        return replace(
            self,
            coefficients=None if coefficients is None else coefficients.to(dtype),
            explained=self.explained.to(dtype),
            unique_share=None if unique_share is None else unique_share.to(dtype),
        )


def integrate(
    tail: Tail,
    start: Tensor,
    stop: Tensor,
    logits: Tensor,
    question: Question,
    points: Sequence[int] = POINTS,
    *,
    eps: float = 0.0,
) -> Tensor:
    """Mean gradients (n, targets, units) on the line from `start` to `stop`.

    Rows whose integral misses much get more points.

    `eps` is the rounding of the model, relative to its logits: what is missed by no more is no
    error of the integral.
    """
    change = stop - start
    slopes = stop.new_zeros(len(stop), question.target.shape[1], stop.shape[1])
    # More points do not help against the rounding of the logits themselves.
    rounding = _ROUNDINGS * eps * logits.abs().amax(1, keepdim=True)
    allowed = torch.maximum(TOLERANCE * question.size(logits), rounding)
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
    rule = np.polynomial.legendre.leggauss(points)
    nodes = (torch.as_tensor(rule[0]).to(change) + 1) / 2
    shares = torch.as_tensor(rule[1]).to(change) / 2

    count = len(change)
    n_targets = question.target.shape[1]
    slopes = change.new_zeros(count, n_targets, change.shape[1])
    every = torch.arange(points * count, device=change.device)
    for piece in torch.split(every, max(1, _AT_ONCE // change.shape[1])):
        row = piece % count
        node = piece // count
        units = (start + nodes[node, None] * change[row]).requires_grad_()
        with torch.enable_grad():
            logits = tail(units, rows[row])
        count_gradients(len(piece) * n_targets)
        for target in range(n_targets):
            weights = question.gradient(question.classes[row, target], logits.detach())
            (gradient,) = torch.autograd.grad(
                logits, units, weights, retain_graph=target + 1 < n_targets
            )
            slopes[:, target].index_add_(0, row, shares[node, None] * gradient)
    return slopes
