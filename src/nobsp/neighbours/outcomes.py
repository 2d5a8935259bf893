"""What the outputs of a model stand for: classes or a value, and how the caller writes them as labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.neighbours.evidence import Rows
from nobsp.network.evidence import EvidenceBatch, EvidenceSource, Wanted
from nobsp.tabular.explanation import output_position

Task = Literal["classification", "regression"]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Classes as logits and evidence per class, or the one output of a regression.

    A single logit is written as two classes, −l/2 and l/2, whose softmax is its sigmoid: whatever follows knows only
    models with a logit per class.

    Attributes:
        task: "classification" or "regression".
        outputs: How many outputs the model has.
        output: Which of them a regression is about.
        sigmoid: Whether every class has a probability of its own.
        classes: Label of every class; None for a regression.
    """

    task: Task
    outputs: int
    output: int
    sigmoid: bool
    classes: NDArray[Any] | None

    @property
    def count(self) -> int:
        """How many classes there are; one for a regression."""
        return 1 if self.classes is None else len(self.classes)

    def per_class(self, values: Tensor) -> Tensor:
        """Values per output (..., outputs) as values per class (..., classes)."""
        if self.task == "regression":
            return values[..., self.output : self.output + 1]
        return torch.cat([-values / 2, values / 2], dim=-1) if self.outputs == 1 else values

    def rows(self, batch: EvidenceBatch, *, wanted: Wanted) -> Rows:
        """A batch as rows of an index, in their precision."""
        logits = self.per_class(batch.logits)
        predicted = logits.argmax(1)
        evidence = batch.evidence
        if evidence is not None:
            if evidence.shape[1] == batch.logits.shape[1]:
                evidence = self.per_class(evidence.transpose(1, 2)).transpose(1, 2)
            if wanted == "own" and evidence.shape[1] > 1:
                evidence = evidence[torch.arange(len(evidence)), predicted][:, None]
            evidence = evidence.to(torch.float32).contiguous()
        response = logits[:, 0] if self.task == "regression" else self.log_chances(logits).exp().amax(1)
        return Rows(batch.activations.to(torch.float32), evidence, predicted, response, logits=logits)

    def log_chances(self, logits: Tensor) -> Tensor:
        """Logarithms of the classes' probabilities; they sum to one unless each class has a sigmoid of its own."""
        return torch.nn.functional.logsigmoid(logits) if self.sigmoid else logits.log_softmax(1)

    def encoded(self, labels: Any, count: int) -> Tensor:
        """Labels as class numbers, or as values for a regression."""
        given = label_array(labels, count)
        if self.classes is None:
            if given.dtype.kind not in "fiub":
                raise TypeError(f"labels of a regression must be numbers, found {given.dtype}.")
            return torch.from_numpy(given.astype(np.float64))
        order = np.argsort(self.classes, kind="stable")
        known = self.classes[order]
        if (given.dtype.kind in "US") != (known.dtype.kind in "US"):
            raise TypeError(f"labels hold {_shown(given)}, but the classes are {_shown(known)}; {_HOW}")
        place = np.searchsorted(known, given).clip(0, len(known) - 1)
        wrong = known[place] != given
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"labels holds {given[row].item()!r} (row {row}), which is none of the classes {_shown(self.classes)}; "
                f"{_HOW}"
            )
        return torch.from_numpy(order[place].astype(np.int64))

    def decoded(self, codes: Tensor) -> NDArray[Any]:
        """Class numbers as the caller writes classes; values as they are."""
        return codes.numpy().copy() if self.classes is None else self.classes[codes.numpy()]


_HOW = "pass class numbers from 0, the names of the outputs, or classes=[...] with the label of every class."


def outcomes_of(
    source: EvidenceSource,
    *,
    task: Task | Literal["auto"],
    output: int | str | None,
    classes: Any,
    labels: NDArray[Any] | None,
) -> Outcomes:
    """Settles what the outputs stand for.

    With task="auto" a model of several outputs is a classifier, and so is one whose output passes a sigmoid. A single
    output that nothing follows may be a logit or a value: it is a logit where the labels take exactly two values.
    """
    if task not in ("auto", "classification", "regression"):
        raise ValueError(f'task must be "auto", "classification" or "regression", found {task!r}.')
    if task == "auto":
        logit = source.outputs > 1 or source.link in ("sigmoid", "softmax", "log_softmax")
        logit = logit or classes is not None or source.classes is not None
        logit = logit or (labels is not None and len(np.unique(labels)) == 2)
        task = "classification" if logit else "regression"
    if task == "regression":
        if source.outputs > 1 and output is None:
            raise ValueError(f"output must be chosen among {', '.join(map(repr, source.output_names))}.")
        chosen = 0 if output is None else output_position(output, source.output_names)
        return Outcomes("regression", source.outputs, chosen, False, None)
    if output is not None:
        raise ValueError('output is for task="regression"; a classifier is searched by its predicted class.')
    named = _classes(source, classes, labels)
    return Outcomes("classification", source.outputs, 0, source.link == "sigmoid" and source.outputs > 1, named)


def _classes(source: EvidenceSource, classes: Any, labels: NDArray[Any] | None) -> NDArray[Any]:
    count = max(2, source.outputs)
    if classes is not None:
        given = np.asarray(classes)
        if given.ndim != 1 or len(given) != count or len(np.unique(given)) != count:
            raise ValueError(f"classes must be {count} different labels, one per class in order, found {classes!r}.")
        return given
    if source.classes is not None and len(source.classes) == count:
        return source.classes
    if labels is not None and labels.dtype.kind in "US":
        if source.outputs == 1:
            raise ValueError(
                "labels are names, but a single output does not say which of them it stands for; pass "
                "classes=[label where the logit is negative, label where it is positive]."
            )
        return np.asarray(source.output_names)
    return np.arange(count)


def label_array(labels: Any, count: int, *, argument: str = "labels") -> NDArray[Any]:
    """Labels of any kind as a plain array of one per row."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    elif hasattr(labels, "to_numpy"):
        labels = labels.to_numpy()
    array = np.asarray(labels)
    if array.dtype.kind == "O":
        array = np.array(array.tolist())
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{argument} has shape {array.shape}; pass one label per row, not one column per class.")
    if len(array) != count:
        raise ValueError(f"{argument} has {len(array)} entries for {count} rows.")
    if array.dtype.kind not in "fiubUS":
        raise TypeError(f"{argument} must be numbers or names, found {array.dtype}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{argument} has no number in row {int((~np.isfinite(array)).argmax())}; leave such rows out.")
    return array


def _shown(values: NDArray[Any]) -> str:
    shown = ", ".join(repr(value.item()) for value in np.unique(values)[:6])
    return f"[{shown}{', ...' if len(np.unique(values)) > 6 else ''}]"
