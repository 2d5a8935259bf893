"""Which class an image is about, on what scale and against what, however people give targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nobsp.arguments import require_choice, suggest
from nobsp.numerics import gauss_legendre

Against = int | str | Literal["runner-up", "others", "mean"] | None
Scale = Literal["logit", "probability"]

# Nodes of an integral, which are only that many where logits change by hundreds.
_MOST_NODES = 512


@dataclass(frozen=True, eq=False)
class Question:
    """For each image, classes to account for, and what is subtracted from each."""

    target: Tensor  # class numbers, shape (n, targets)
    # weights of the logits in what is accounted for: 1 for the target, shape (n, targets, outputs)
    classes: Tensor
    base: Tensor  # logits at the calibration mean, shape (outputs,)
    whole: Tensor  # what there is to account for
    confidence: Tensor  # probabilities of the targets, shape (n, targets)
    probability: bool = False  # whether it is about probabilities
    sigmoid: bool = False  # whether these come from a sigmoid, one class at a time

    def rows(self, rows: Tensor) -> Question:
        """The same about some of the images."""
        return replace(
            self, target=self.target[rows], classes=self.classes[rows], whole=self.whole[rows]
        )

    def gradient(self, classes: Tensor, logits: Tensor) -> Tensor:
        """Gradient of what is accounted for in the logits, at these logits.

        `classes` are some of the question's own.
        """
        if not self.probability:
            return classes
        chances = chances_of(logits, sigmoid=self.sigmoid)
        return (classes * chances).sum(-1, keepdim=True) * (
            classes - (classes * chances if self.sigmoid else chances)
        )

    def columns(self, matrix: Tensor, logits: Tensor) -> Tensor:
        """Columns per class, turned into columns of what is accounted for.

        From shape (units, outputs) to shape (n, targets, units).
        """
        return (self.mean_gradient(logits) if self.probability else self.classes) @ matrix.T

    def mean_gradient(self, logits: Tensor) -> Tensor:
        """Mean gradient of probabilities on the straight way from the base to the logits.

        Shape (n, targets, outputs).

        v_k = ∫₀¹ p_c (δ_ck − p_k) dt for a softmax, ∫₀¹ p_c (1 − p_c) dt for the target alone with
        a sigmoid, so that Σ_k v_k (logits_k − base_k) is the change of the probability p_c.
        """
        change = logits - self.base
        # The integrand is analytic up to a distance of π over the change of a difference of logits,
        # so Gauss and Legendre's rule has an error of exp(−2 n asinh(2π / change)): below rounding
        # with so many nodes.
        reach = float(
            (change.abs().amax(1) if self.sigmoid else change.amax(1) - change.amin(1)).max()
        )
        count = min(_MOST_NODES, math.ceil(18 / math.asinh(2 * math.pi / max(reach, 1.0))))
        nodes, weights = gauss_legendre(count)
        mean = torch.zeros_like(self.classes)
        for node, weight in zip(nodes, weights, strict=True):
            logits_on_the_way = self.base + node * change
            mean += weight * self.gradient(self.classes, logits_on_the_way[:, None])
        return mean

    def change(self, start: Tensor, stop: Tensor) -> Tensor:
        """The change of what is accounted for from one set of logits to another.

        Logits have shape (n, outputs), the change has shape (n, targets).
        """
        if self.probability:
            before, after = (chances_of(logits, sigmoid=self.sigmoid) for logits in (start, stop))
            return (after - before).gather(1, self.target)
        return torch.einsum("ntq,nq->nt", self.classes, stop - start)

    def size(self, logits: Tensor) -> Tensor:
        """How large what is accounted for is, or would usually be, shape (n, targets).

        An error is measured by it.
        """
        if self.probability:
            return self.whole.abs().clamp_min(0.01)
        usual = (logits - self.base).square().mean(1, keepdim=True).sqrt()
        return torch.maximum(self.whole.abs(), usual)

    def half_way(self, logits: Tensor) -> Question:
        """The same for each target's log-probability, by its gradient half-way from base to logits.

        Where a class is sure, the gradient at the image itself says next to nothing about its
        rivals.
        """
        rivals = chances_of((logits + self.base) / 2, sigmoid=self.sigmoid)
        return replace(self, classes=self.classes - rivals[:, None])

    def with_contrast(self, logits: Tensor) -> Question:
        """The same twice: as it is, and each target against the other classes.

        The other classes count in proportion to their softmax.
        """
        others = replace(self, classes=_own(logits, self.target) - _others(logits, self.target))
        return replace(
            self,
            target=torch.cat([self.target, self.target], 1),
            classes=torch.cat([self.classes, others.classes], 1),
            whole=torch.cat([self.whole, others.change(self.base.expand_as(logits), logits)], 1),
        )


@dataclass(eq=False)
class Targets:
    """Targets for a stream of images."""

    # one for all images, one for each, or several for each; None for what each image is taken for
    given: Any
    rival: Against  # what they are compared with; a class by its number
    outputs: int  # how many classes there are
    names: Sequence[str]  # their names
    scale: str = "logit"
    sigmoid: bool = False  # whether each class has a yes or no of its own

    def __post_init__(self) -> None:
        against = self.rival
        require_choice("scale", self.scale, ("logit", "probability"))
        if self.scale == "probability" and against is not None:
            raise ValueError(
                'scale="probability" has all other classes in it already; leave '
                f"against={against!r} out."
            )
        known = isinstance(against, str) and against in ("runner-up", "others", "mean")
        if known and self.outputs < 2:
            raise ValueError(
                f"against={against!r} needs at least two classes, but the model has one output."
            )
        if known and against == "others" and self.sigmoid:
            raise ValueError(
                'against="others" is for a softmax, but these classes have a sigmoid each; use '
                '"mean".'
            )
        self.rival = against if against is None or known else self._class(against, "against")
        self.given = None if self.given is None else self._classes(self.given)

    @property
    def several(self) -> bool:
        """Whether each image has a row of targets."""
        return self.given is not None and self.given.ndim == 2

    def require(self, count: int) -> None:
        """An error unless there are as many targets as images."""
        if self.given is not None and self.given.ndim and len(self.given) != count:
            raise ValueError(
                f"target has {len(self.given)} entries for {count} images; pass one per image."
            )

    def choose(self, logits: Tensor, start: int) -> Tensor:
        """Targets (n, targets) of the images with these logits; `start` numbers the first image."""
        count = len(logits)
        if self.given is None:
            return logits.argmax(1, keepdim=True)
        target: Tensor = self.given.to(logits.device)
        if target.ndim == 0:
            return target.expand(count, 1)
        if start + count > len(target):
            raise ValueError(
                f"target has {len(target)} entries but there are more images; pass one for each."
            )
        return target[start : start + count].reshape(count, -1)

    def question(self, target: Tensor, logits: Tensor, base: Tensor) -> Question:
        """The question about targets (n, targets) of images with these logits.

        It has a weight for every output.
        """
        base = base.to(logits)
        confidence = chances_of(logits, sigmoid=self.sigmoid).gather(1, target)
        classes = _own(logits, target)
        if self.rival is not None:
            classes = classes - self._rival(logits, target)
        question = Question(
            target,
            classes,
            base,
            confidence,
            confidence,
            probability=self.scale == "probability",
            sigmoid=self.sigmoid,
        )
        return replace(question, whole=question.change(base.expand_as(logits), logits))

    @property
    def against(self) -> str | None:
        """What is compared with, a class by its name."""
        return self.names[self.rival] if isinstance(self.rival, int) else self.rival

    @property
    def has_contrast(self) -> bool:
        """Whether the other classes can be compared with.

        They can where classes exclude each other and no other rival was named.
        """
        return (
            self.rival is None and self.scale == "logit" and not self.sigmoid and self.outputs > 1
        )

    def _rival(self, logits: Tensor, target: Tensor) -> Tensor:
        """Weights of the classes whose evidence is subtracted, shape (n, targets, outputs)."""
        if isinstance(self.rival, int):
            if bool((target == self.rival).any()):
                raise ValueError(
                    f"against and target are both {self.against!r} for an image; name another "
                    "class."
                )
            return _own(logits, torch.full_like(target, self.rival))
        if self.rival == "mean":
            return logits.new_full((*target.shape, self.outputs), 1.0 / self.outputs)
        others = _others(logits, target)
        return others if self.rival == "others" else _own(logits, others.argmax(2))

    def _class(self, label: Any, argument: str) -> int:
        classes = f"the model has {self.outputs} classes, numbered from 0"
        if isinstance(label, str):
            if label not in self.names:
                words = (
                    ' nor one of "runner-up", "others" and "mean"' if argument == "against" else ""
                )
                hint = suggest(label, self.names)
                raise ValueError(f"{argument}={label!r} is not a class{words}; {classes}: {hint}")
            return self.names.index(label)
        if isinstance(label, Tensor | np.ndarray) and np.prod(label.shape) == 1:
            label = label.item()
        if isinstance(label, bool | np.bool_) or not isinstance(label, int | np.integer):
            raise TypeError(
                f"{argument} must be a class number or name, found {type(label).__name__}."
            )
        if not 0 <= label < self.outputs:
            raise ValueError(f"{argument}={label} is out of range; {classes}.")
        return int(label)

    def _classes(self, target: Any) -> Tensor:
        try:
            array = np.asarray(target.detach().cpu() if isinstance(target, Tensor) else target)
        except ValueError as ragged:
            raise ValueError(
                "target has rows of different lengths; give every image as many targets."
            ) from ragged
        if array.ndim > 2 or array.size == 0:
            raise ValueError(
                f"target has shape {array.shape}; pass one class, one per image (n,), or several "
                "(n, k)."
            )
        numbers = np.vectorize(lambda label: self._class(label, "target"), otypes=[np.int64])(array)
        return torch.as_tensor(numbers)


def chances_of(logits: Tensor, *, sigmoid: bool) -> Tensor:
    """Probabilities of the classes."""
    return logits.sigmoid() if sigmoid else logits.softmax(-1)


def _own(logits: Tensor, target: Tensor) -> Tensor:
    """1 for the target, shape (n, targets, outputs)."""
    return one_hot(target, logits.shape[1]).to(logits)


def _others(logits: Tensor, target: Tensor) -> Tensor:
    """Softmax over all classes but the target, shape (n, targets, outputs)."""
    rest = logits[:, None].repeat(1, target.shape[1], 1)
    return rest.scatter_(2, target[..., None], -torch.inf).softmax(2)
