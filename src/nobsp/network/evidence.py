"""What a fitted explainer shows of rows, in one form for tables, images and bare heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import AnyArray, TableLike
from nobsp.network.batches import batches_of, with_progress

# Evidence for no class, for the predicted one, or for every class.
Wanted = Literal["none", "own", "every"]

# Rows of given activations that are read at once.
_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class EvidenceBatch:
    """A batch of rows, float64 on the CPU."""

    activations: Tensor  # shape (rows, width)
    logits: Tensor  # shape (rows, outputs)
    # shape (rows, outputs or 1, terms); None where it is a multiple of the activations
    evidence: Tensor | None = None
    thumbnails: Tensor | None = None  # of images, shape (rows, 32, 32), bytes; None for other rows


@dataclass(frozen=True, eq=False)
class EvidenceSource:
    """A model that reads rows."""

    output_names: tuple[str, ...]  # names of the outputs
    link: str  # what follows the logits: "identity", "softmax", "log_softmax", "sigmoid" or "exp"
    about: str  # what is explained, in words: equal for the same terms, or the same map
    hash_model: Callable[[], str]  # works out what is equal for the same model only
    # numbers that are near each other only for calibrations that say the same; files round a little
    signature: Tensor
    # `read(X, wanted=, progress=)`, with evidence as far as it is wanted
    read: Callable[..., Iterator[EvidenceBatch]]
    # weight and bias, float64; None where layers stand between
    head: tuple[Tensor, Tensor] | None = None
    # β of contributions that are multiples of the activations, g_k = β_k (z_k − z̄_k), shape
    # (width, outputs), float64; None where contributions are worked out row by row
    coefficients: Tensor | None = None
    mean: Tensor | None = None  # z̄, shape (width,); None for the mean of whatever rows are read
    # labels of the classes as the model itself knows them, if it does
    classes: AnyArray | None = None

    @property
    def outputs(self) -> int:
        """How many outputs the model has."""
        return len(self.output_names)

    def fingerprint(self) -> str:
        """Equal for the same model and the same kind of evidence."""
        return f"{self.about} {self.hash_model()}"

    def logits(self, activations: Tensor) -> Tensor | None:
        """Logits that follow from activations, W z + b in float64; None where they do not."""
        if self.head is None:
            return None
        return activations.to(torch.float64) @ self.head[0].T + self.head[1]


def read_activations(
    X: TableLike, weight: Tensor, bias: Tensor, *, progress: bool, **_: Any
) -> Iterator[EvidenceBatch]:
    """Activations as they are given, and their logits.

    Evidence follows from them, whatever is wanted.
    """
    source = batches_of(X, batch_size=_AT_ONCE)
    if source.columns != weight.shape[1]:
        width = weight.shape[1]
        raise ValueError(
            f"X has {source.columns} columns but the head reads {width} activations; pass what "
            "enters it."
        )
    for batch in with_progress(source, total=source.rows, enabled=progress, description="reading"):
        z = batch.to(torch.float64)
        yield EvidenceBatch(z, z @ weight.T + bias)


def sign_coefficients(
    coefficients: Tensor | NDArray[np.float64], base: Tensor | NDArray[np.float64]
) -> Tensor:
    """Per output: base, length of the coefficients, and a weighted sum that permuting changes.

    The weights of the sum are in proportion to 1, 2, 3 and so on.
    """
    rows = torch.as_tensor(coefficients, dtype=torch.float64)
    places = torch.arange(1, len(rows) + 1, dtype=torch.float64) / len(rows)
    return torch.cat([torch.as_tensor(base, dtype=torch.float64), rows.norm(dim=0), places @ rows])
