"""One view of explainers, class activation maps and linear heads: what each shows of a batch of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from nobsp.network.batches import batches_of, with_progress
from nobsp.tabular import CompiledExplainer, NObSP
from nobsp.tabular.calibration import contributions
from nobsp.tabular.reading import as_model_takes, running_on
from nobsp.vision import NObSPCam
from nobsp.vision.grid import pooled
from nobsp.vision.images import images_of
from nobsp.vision.tail import TailEvidence

# Evidence for no class, for the predicted one, or for every class.
Wanted = Literal["none", "own", "every"]

# Rows of given activations that are read at once.
_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class Testimony:
    """What a model shows of a batch, float64 on the CPU.

    Attributes:
        activations: Shape (rows, width).
        logits: Shape (rows, outputs).
        evidence: Shape (rows, outputs or 1, terms); None where it is a multiple of the activations.
    """

    activations: Tensor
    logits: Tensor
    evidence: Tensor | None


@dataclass(frozen=True, eq=False)
class Multiples:
    """Contributions that are multiples of the activations, g_k = β_k (z_k − z̄_k).

    Attributes:
        coefficients: β, shape (width, outputs), float64.
        mean: z̄, shape (width,); None for the mean of the database.
    """

    coefficients: Tensor
    mean: Tensor | None


class Witness(Protocol):
    """What an index asks of a model.

    Attributes:
        outputs: How many outputs the model has.
        output_names: Their names.
        link: What follows the logits: "identity", "softmax", "log_softmax", "sigmoid" or "exp".
        classes: Labels of the classes as the model itself knows them; None where it knows none.
        multiples: How contributions follow from activations; None where they have to be worked out row by row.
    """

    outputs: int
    output_names: tuple[str, ...]
    link: str
    classes: np.ndarray[Any, Any] | None
    multiples: Multiples | None

    def testimonies(self, X: Any, *, wanted: Wanted, progress: bool) -> Iterator[Testimony]:
        """Reads rows batch by batch, with evidence as far as it is wanted."""

    def logits(self, activations: Tensor) -> Tensor | None:
        """Logits that follow from activations, float64; None where they do not."""

    def fingerprint(self) -> str:
        """Equal for the same model."""

    def signature(self) -> Tensor:
        """Some numbers that are near each other only for calibrations that say the same; files round a little."""


def witness_of(explainer: Any) -> Witness:
    """The view of a fitted NObSP, a fitted NObSPCam, or a linear head on activations that are there already."""
    if isinstance(explainer, NObSP):
        return TableWitness(explainer)
    if isinstance(explainer, NObSPCam):
        return CamWitness(explainer)
    if isinstance(explainer, nn.Linear):
        return HeadWitness(explainer)
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


class HeadWitness:
    """A linear head on activations that somebody has already; contributions are measured from the database's mean."""

    def __init__(self, head: nn.Linear) -> None:
        weight = head.weight.detach().to("cpu", torch.float64)
        self._weight, self._bias = weight, torch.zeros(len(weight), dtype=torch.float64)
        if head.bias is not None:
            self._bias = head.bias.detach().to("cpu", torch.float64)
        self.outputs = len(weight)
        self.output_names = tuple(f"class {number}" for number in range(self.outputs))
        self.link = "identity"
        self.classes: np.ndarray[Any, Any] | None = None
        self.multiples: Multiples | None = Multiples(weight.T, None)

    def testimonies(self, X: Any, *, wanted: Wanted, progress: bool) -> Iterator[Testimony]:  # noqa: ARG002
        """Activations as they are given, and their logits."""
        yield from _given(X, self._weight, self._bias, progress=progress)

    def logits(self, activations: Tensor) -> Tensor | None:
        """W z + b."""
        return activations.to(torch.float64) @ self._weight.T + self._bias

    def fingerprint(self) -> str:
        """Of the head's shape; its weights are in the signature, as there is nothing else to the model."""
        return f"head {tuple(self._weight.shape)}"

    def signature(self) -> Tensor:
        """Lengths of the weights, and where a fixed direction leads."""
        return _signature(self._weight.T, self._bias)


class CamWitness:
    """Pooled channels of images; activations that were pooled before are taken as they are."""

    def __init__(self, cam: NObSPCam) -> None:
        fitted = cam._fitted
        self._cam, self._anatomy = cam, fitted.anatomy
        self.outputs = fitted.anatomy.outputs
        self.output_names = fitted.output_names
        # A single output of a network that is explained class by class is a logit.
        self.link = "sigmoid" if self.outputs == 1 else fitted.anatomy.link
        self.classes: np.ndarray[Any, Any] | None = None
        evidence = fitted.evidence
        self.multiples: Multiples | None = None
        if not isinstance(evidence, TailEvidence):
            self.multiples = Multiples(evidence.coefficients, evidence.mean)

    def testimonies(self, X: Any, *, wanted: Wanted, progress: bool) -> Iterator[Testimony]:
        """One forward pass over images, or activations (rows, units) as they are."""
        if isinstance(X, Tensor | np.ndarray) and X.ndim == 2:
            if self._anatomy.route != "direct":
                raise ValueError(
                    f"X has shape {tuple(X.shape)}, but the logits do not follow from the pooled channels of this "
                    "network: layers stand between map and head; pass the images."
                )
            head = self._anatomy.head
            yield from _given(X, head.weight, head.bias, progress=progress)
            return
        fitted = self._cam._fitted
        source = images_of(X, batch_size=self._cam.batch_size, argument="X")
        with self._cam._running():
            anatomy = fitted.anatomy.at_home()
            with anatomy.looking() as look:
                bar = with_progress(source, total=source.count, enabled=progress, description="looking")
                for batch in bar:
                    view = look(batch)
                    evidence = None
                    if isinstance(fitted.evidence, TailEvidence):
                        units = view.maps.mean((2, 3))
                        if wanted != "none":
                            asked = None if wanted == "own" else _every_class(view.logits)
                            targets = self._cam._targets(asked, None, "logit")
                            question = targets.question(view.logits, 0, fitted.evidence.base)
                            answer = fitted.evidence.answer(anatomy, view, question, fitted.image)
                            evidence = answer.contributions.cpu()
                    else:
                        units = pooled(view.maps, anatomy.pooling)
                    yield Testimony(units.cpu(), view.logits.cpu(), evidence)

    def logits(self, activations: Tensor) -> Tensor | None:
        """W z + b, where the pooled channels are what enters the head."""
        if self._anatomy.route != "direct":
            return None
        head = self._anatomy.head
        return activations.to(torch.float64) @ head.weight.T + head.bias

    def fingerprint(self) -> str:
        """Of the model and the place of its map."""
        return f"cam {self._anatomy.fingerprint()} {sorted(self._anatomy.described().items())}"

    def signature(self) -> Tensor:
        """Of the coefficients."""
        evidence = self._cam._fitted.evidence
        return _signature(evidence.coefficients, evidence.base)


class TableWitness:
    """Rows of a table: representation, logits, and every term's contribution to every output."""

    def __init__(self, explainer: NObSP) -> None:
        fitted = explainer._fitted
        self._explainer = explainer
        self.outputs = fitted.readout.outputs
        self.output_names = fitted.output_names
        self.link = fitted.adapted.link or fitted.readout.link
        classes = getattr(explainer.model, "classes_", None)
        self.classes: np.ndarray[Any, Any] | None = None if classes is None else np.asarray(classes)
        self.multiples: Multiples | None = None

    def testimonies(self, X: Any, *, wanted: Wanted, progress: bool) -> Iterator[Testimony]:
        """The rows themselves and their isolated inputs are run once each."""
        fitted = self._explainer._fitted
        source = fitted.source(X, batch_size=self._explainer.batch_size)
        seen = 0
        with running_on(fitted.readout, self._explainer.device) as represent:
            for batch in with_progress(source, total=source.rows, enabled=progress, description="explaining"):
                inputs = as_model_takes(batch, fitted.readout)
                fitted.outside(inputs, first_row=seen)  # a level that calibration did not see is an error here
                seen += len(batch)
                z = represent(inputs)
                logits = fitted.readout.logits(z).cpu()
                evidence = None
                if wanted != "none":
                    evidence = contributions(fitted.plan, fitted.solution, represent, inputs).transpose(1, 2)
                yield Testimony(z.cpu().to(torch.float64), logits, evidence)

    def logits(self, activations: Tensor) -> Tensor | None:
        """W z + b."""
        return self._explainer._fitted.readout.logits(activations)

    def fingerprint(self) -> str:
        """Of the model and the terms."""
        fitted = self._explainer._fitted
        return f"table {fitted.readout.fingerprint()} {fitted.plan.terms}"

    def signature(self) -> Tensor:
        """Of every term's coefficients."""
        solution = self._explainer._fitted.solution
        matrices = [solution.matrices[term] for term in self._explainer._fitted.plan.terms]
        return torch.cat([_signature(matrix, solution.base) for matrix in matrices])


def _given(X: Any, weight: Tensor, bias: Tensor, *, progress: bool) -> Iterator[Testimony]:
    source = batches_of(X, batch_size=_AT_ONCE)
    if source.columns != weight.shape[1]:
        raise ValueError(
            f"X has {source.columns} columns but the head reads {weight.shape[1]} activations; pass what enters it."
        )
    for batch in with_progress(source, total=source.rows, enabled=progress, description="reading"):
        z = batch.to(torch.float64)
        yield Testimony(z, z @ weight.T + bias, None)


def _every_class(logits: Tensor) -> Tensor:
    return torch.arange(logits.shape[1], device=logits.device).expand_as(logits)


def _signature(coefficients: Tensor, base: Tensor) -> Tensor:
    """Per output: base, length of the coefficients, and their sum weighted by 1, 2, 3, ..., which permuting changes."""
    places = torch.arange(1, len(coefficients) + 1, dtype=torch.float64) / len(coefficients)
    return torch.cat([base, coefficients.norm(dim=0), places @ coefficients]).to(torch.float64)
