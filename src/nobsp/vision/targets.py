"""Which class an image is about, on what scale and against what: targets in all the ways people give them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

Against = int | str | Literal["runner-up", "others", "mean"] | None
Scale = Literal["logit", "probability"]

# Nodes of an integral, which are only that many where logits change by hundreds.
_MOST_NODES = 512


@dataclass(frozen=True, eq=False)
class Question:
    """For each image, classes to account for, and what is subtracted from each."""

    target: Tensor  # class numbers, shape (n, targets)
    rival: Tensor | None  # weights of the classes whose evidence is subtracted, shape (n, targets, outputs), or None
    base: Tensor  # logits at the calibration mean, shape (outputs,)
    whole: Tensor  # what there is to account for
    confidence: Tensor  # probabilities of the targets, shape (n, targets)
    probability: bool = False  # whether it is about probabilities
    sigmoid: bool = False  # whether these come from a sigmoid, one class at a time

    def rows(self, rows: Tensor) -> Question:
        """The same about some of the images."""
        rival = None if self.rival is None else self.rival[rows]
        return replace(self, target=self.target[rows], rival=rival, whole=self.whole[rows])

    def weights(self, logits: Tensor, target: int) -> Tensor:
        """Gradient in the logits, where these are, of what is accounted for of one target, shape (n, outputs)."""
        own = one_hot(self.target[:, target], logits.shape[1]).to(logits)
        if not self.probability:
            return own if self.rival is None else own - self.rival[:, target]
        chances = chances_of(logits, sigmoid=self.sigmoid)
        return (own * chances).sum(1, keepdim=True) * (own - (own * chances if self.sigmoid else chances))

    def columns(self, matrix: Tensor, logits: Tensor) -> Tensor:
        """Columns per class (units, outputs) as those of what is accounted for, (n, targets, units)."""
        if self.probability:
            return probability_weights(self.base, logits, self.target, sigmoid=self.sigmoid) @ matrix.T
        own = matrix.T[self.target]
        return own if self.rival is None else own - self.rival @ matrix.T

    def change(self, start: Tensor, stop: Tensor) -> Tensor:
        """How far what is accounted for goes from one set of logits (n, outputs) to another, shape (n, targets)."""
        if self.probability:
            one, other = (chances_of(logits, sigmoid=self.sigmoid) for logits in (start, stop))
            return (other - one).gather(1, self.target)
        departure = stop - start
        own = departure.gather(1, self.target)
        return own if self.rival is None else own - torch.einsum("ntq,nq->nt", self.rival, departure)

    def size(self, logits: Tensor) -> Tensor:
        """How large what is accounted for is, or would usually be, shape (n, targets): an error is measured by it."""
        if self.probability:
            return self.whole.abs().clamp_min(0.01)
        usual = (logits - self.base).square().mean(1, keepdim=True).sqrt()
        return torch.maximum(self.whole.abs(), usual)

    def with_contrast(self, logits: Tensor) -> Question:
        """The same twice: as it is, and each target against the other classes in proportion to their softmax."""
        others = _others(logits, self.target)
        alone = replace(self, rival=others)
        mine = torch.zeros_like(others) if self.rival is None else self.rival
        return replace(
            self,
            target=torch.cat([self.target, self.target], 1),
            rival=torch.cat([mine, others], 1),
            whole=torch.cat([self.whole, alone.change(self.base.expand_as(logits), logits)], 1),
        )


class Targets:
    """Targets for a stream of images."""

    def __init__(
        self,
        given: Any,
        against: Against,
        *,
        outputs: int,
        names: Sequence[str],
        scale: str = "logit",
        sigmoid: bool = False,
    ) -> None:
        self._outputs, self._names, self.sigmoid = outputs, list(names), sigmoid
        self._classes = f"the model has {outputs} classes, numbered from 0"
        if scale not in ("logit", "probability"):
            raise ValueError(f'scale must be "logit" or "probability", found {scale!r}.')
        if scale == "probability" and against is not None:
            raise ValueError(f'scale="probability" has all other classes in it already; leave against={against!r} out.')
        self._probability = scale == "probability"
        self._against = self._checked_against(against)
        # What is the same for every image, or one or more for each; else what each image is taken for.
        self._single: int | None = None
        self._fixed: Tensor | None = None
        many = isinstance(given, Sequence | Tensor | np.ndarray) and not isinstance(given, str)
        if many and getattr(given, "ndim", 1) > 0:
            self._fixed = self._rows(given)
        elif given is not None:
            self._single = self._class(given, "target")

    @property
    def several(self) -> bool:
        """Whether each image has a row of targets."""
        return self._fixed is not None and self._fixed.ndim == 2

    def require(self, count: int) -> None:
        """An error unless there are as many targets as images."""
        if self._fixed is not None and len(self._fixed) != count:
            raise ValueError(f"target has {len(self._fixed)} entries for {count} images; pass one per image.")

    def question(self, logits: Tensor, start: int, base: Tensor) -> Question:
        """The question for the images whose logits these are, the first of them number `start`."""
        count = len(logits)
        if self._single is not None:
            target = torch.full((count, 1), self._single, device=logits.device)
        elif self._fixed is None:
            target = logits.argmax(1, keepdim=True)
        else:
            if start + count > len(self._fixed):
                raise ValueError(f"target has {len(self._fixed)} entries but there are more images; pass one for each.")
            target = self._fixed[start : start + count].to(logits.device)
            target = target if target.ndim == 2 else target[:, None]
        base = base.to(logits)
        confidence = chances_of(logits, sigmoid=self.sigmoid).gather(1, target)
        rival = None if self._probability else self._rival(logits, target)
        question = Question(target, rival, base, confidence, confidence, self._probability, self.sigmoid)
        return replace(question, whole=question.change(base.expand_as(logits), logits))

    @property
    def against(self) -> str | None:
        """What is compared with, a class by its name."""
        return self._names[self._against] if isinstance(self._against, int) else self._against

    @property
    def has_contrast(self) -> bool:
        """Whether the other classes can be compared with: they exclude each other, and no other rival was named."""
        return self._against is None and not self._probability and not self.sigmoid and self._outputs > 1

    def _rival(self, logits: Tensor, target: Tensor) -> Tensor | None:
        if self._against is None:
            return None
        weights = logits.new_zeros(*target.shape, self._outputs)
        if isinstance(self._against, int):
            if bool((target == self._against).any()):
                name = self._names[self._against]
                raise ValueError(f"against and target are both {name!r} for an image; name another class.")
            weights[..., self._against] = 1.0
            return weights
        if self._against == "mean":
            return weights + 1.0 / self._outputs
        if self._against == "others":
            return _others(logits, target)
        rest = logits[:, None].expand_as(weights).clone()
        rest.scatter_(2, target[..., None], -torch.inf)
        return weights.scatter_(2, rest.argmax(2, keepdim=True), 1.0)

    def _checked_against(self, against: Against) -> int | str | None:
        if against is None or against in ("runner-up", "others", "mean"):
            if against is not None and self._outputs < 2:
                raise ValueError(f"against={against!r} needs at least two classes, but the model has one output.")
            if against == "others" and self.sigmoid:
                raise ValueError(
                    'against="others" is for a softmax, but these classes have a sigmoid each; use "mean".'
                )
            return against
        if isinstance(against, str) and against not in self._names:
            known = 'None, "runner-up", "others", "mean", or a class'
            raise ValueError(f"against must be {known}, found {against!r}; {self._classes}.")
        return self._class(against, "against")

    def _class(self, given: Any, argument: str) -> int:
        if isinstance(given, str):
            if given not in self._names:
                raise ValueError(f"{argument}={given!r} is not a class; {self._classes}.")
            return self._names.index(given)
        if isinstance(given, Tensor | np.ndarray):
            given = given.item()
        if isinstance(given, bool | np.bool_) or not isinstance(given, int | np.integer):
            raise TypeError(f"{argument} must be a class number or name, found {type(given).__name__}.")
        if not 0 <= given < self._outputs:
            raise ValueError(f"{argument}={given} is out of range; {self._classes}.")
        return int(given)

    def _rows(self, given: Any) -> Tensor:
        if isinstance(given, Tensor):
            given = given.detach().cpu().numpy()
        try:
            array = np.asarray(given)
        except ValueError as ragged:
            raise ValueError("target has rows of different lengths; give every image as many targets.") from ragged
        if array.dtype.kind in "UO":
            array = np.vectorize(lambda one: self._class(one, "target"), otypes=[np.int64])(array)
        if array.dtype.kind not in "iu":
            raise TypeError(f"target must hold class numbers, found {array.dtype}.")
        if array.ndim > 2 or array.size == 0:
            raise ValueError(f"target has shape {array.shape}; pass one class, one per image (n,), or several (n, k).")
        bad = array[(array < 0) | (array >= self._outputs)]
        if bad.size:
            raise ValueError(f"target holds {bad[0]}, which is out of range; {self._classes}.")
        return torch.from_numpy(array.astype(np.int64))


def chances_of(logits: Tensor, *, sigmoid: bool) -> Tensor:
    """Probabilities of the classes."""
    return logits.sigmoid() if sigmoid else logits.softmax(-1)


def _others(logits: Tensor, target: Tensor) -> Tensor:
    """Softmax over all classes but the target, shape (n, targets, outputs)."""
    rest = logits[:, None].repeat(1, target.shape[1], 1)
    return rest.scatter_(2, target[..., None], -torch.inf).softmax(2)


def probability_weights(start: Tensor, stop: Tensor, target: Tensor, *, sigmoid: bool) -> Tensor:
    """Mean gradient of the target's probability p_c in the logits on the straight way from one to the other.

    v_k = ∫₀¹ p_c (δ_ck − p_k) dt for a softmax, ∫₀¹ p_c (1 − p_c) dt for the target alone with a sigmoid, so that
    Σ_k v_k (stop_k − start_k) is the change of the probability.
    """
    change = stop - start
    # The integrand is analytic up to a distance of π over the change of a difference of logits, so Gauss and Legendre's
    # rule has an error of exp(−2 n asinh(2π / change)): below rounding with so many nodes.
    reach = float((change.amax(1) - change.amin(1) if not sigmoid else change.abs().amax(1)).max())
    count = min(_MOST_NODES, math.ceil(18 / math.asinh(2 * math.pi / max(reach, 1.0))))
    nodes, shares = np.polynomial.legendre.leggauss(count)
    own = one_hot(target, stop.shape[1]).to(stop)
    weights = torch.zeros_like(own)
    for place, share in zip((nodes + 1) / 2, shares / 2, strict=True):
        chances = chances_of(start + place * change, sigmoid=sigmoid)
        of_target = chances.gather(1, target)[..., None]
        rest = own * of_target if sigmoid else chances[:, None]
        weights += share * of_target * (own - rest)
    return weights
