"""Rows as an index keeps them, and where they come from: explainers, or linear heads on given activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.network.evidence import EvidenceSource, read_activations, sign_coefficients
from nobsp.tabular import CompiledExplainer, NObSP
from nobsp.vision import NObSPCam


def find_evidence(explainer: Any) -> EvidenceSource:
    """What a fitted NObSP, a fitted NObSPCam, or a linear head on activations that are there already shows of rows."""
    if isinstance(explainer, NObSP | NObSPCam):
        return explainer._evidence()
    if isinstance(explainer, nn.Linear):
        return _read_head(explainer)
    if isinstance(explainer, CompiledExplainer):
        raise TypeError(
            "explainer is compiled: it has no network, so it knows neither activations nor the predicted class; pass "
            "the NObSP it was compiled from."
        )
    hint = " Make NObSP(model) or NObSPCam(model) and fit it first." if isinstance(explainer, nn.Module) else ""
    raise TypeError(
        "explainer must be a fitted NObSP, a fitted NObSPCam, or the torch.nn.Linear that reads the activations "
        f"passed as X; found {type(explainer).__name__}.{hint}"
    )


def _read_head(head: nn.Linear) -> EvidenceSource:
    """A linear head on given activations; contributions are measured from the database's mean."""
    weight = head.weight.detach().to("cpu", torch.float64)
    bias = torch.zeros(len(weight), dtype=torch.float64)
    if head.bias is not None:
        bias = head.bias.detach().to("cpu", torch.float64)
    return EvidenceSource(
        output_names=tuple(f"class {number}" for number in range(len(weight))),
        link="identity",
        about=f"head {tuple(weight.shape)}",
        hash_model=str,  # its weights are in the signature, and there is nothing else to the model
        signature=sign_coefficients(weight.T, bias),
        read=partial(read_activations, weight=weight, bias=bias),
        head=(weight, bias),
        coefficients=weight.T,
    )


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
