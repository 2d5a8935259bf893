"""What a model shows of rows: activations, evidence per class, the predicted class and the confidence in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as an index keeps them: single precision where there is much, so that a row found again is at distance 0.

    Attributes:
        activations: The representation z that enters the head, or the pooled channels, shape (rows, width), float32.
        evidence: Contributions of every term to every class, shape (rows, classes, terms), float32; a single class
            where only that of the predicted one is kept; None where they are multiples of the activations.
        predicted: Number of the predicted class; zero throughout for a regression.
        response: Confidence in the predicted class; for a regression the predicted value.
        labels: Class numbers, or values for a regression; None where there are none.
        logits: Logits of every class, float64; None where they are not kept.
    """

    activations: Tensor
    evidence: Tensor | None
    predicted: Tensor
    response: Tensor
    labels: Tensor | None = None
    logits: Tensor | None = None

    def __len__(self) -> int:
        return len(self.activations)

    def bytes(self) -> int:
        """Memory of what there is much of."""
        much = (self.activations, self.evidence)
        return sum(tensor.numel() * tensor.element_size() for tensor in much if tensor is not None)

    def take(self, positions: Tensor | slice) -> Rows:
        """Some of the rows."""
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        some: dict[str, Any] = {name: None if value is None else value[positions] for name, value in chosen.items()}
        return Rows(**some)

    def without_logits(self) -> Rows:
        """The same without logits, which nothing in a database needs."""
        return replace(self, logits=None)


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows of several batches one after another."""
    if len(parts) == 1:
        return parts[0]

    def whole(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values)

    everything: dict[str, Any] = {field.name: whole(field.name) for field in fields(Rows)}
    return Rows(**everything)
