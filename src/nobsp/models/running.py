"""A function of numpy rows as a torch module."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]
Function = Callable[[Array], Any]


class Runs(nn.Module):
    """Runs a function on float64 rows; with `weight` its values enter a linear head, without they are the outputs."""

    def __init__(
        self, function: Function, *, weight: Array | None = None, bias: Array | None = None, about: bytes = b""
    ) -> None:
        super().__init__()
        self.function = function
        self.head = None if weight is None else linear(weight, bias)
        digest = np.frombuffer(hashlib.sha256(about).digest(), dtype=np.uint8).copy()
        self.register_buffer("digest", torch.from_numpy(digest))
        # Rows are given in the precision of the first floating tensor: whole double numbers.
        self.register_buffer("precision", torch.zeros(0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Values, or what the head makes of them."""
        found = self.function(np.ascontiguousarray(x.detach().cpu().numpy()))
        values = torch.from_numpy(np.array(numbers_of(found, len(x)), dtype=np.float64))
        return values if self.head is None else self.head(values)


def linear(weight: Array, bias: Array | None = None) -> nn.Linear:
    """A linear layer with given weights in float64, without drawing random numbers."""
    outputs, width = weight.shape
    layer = nn.Linear(width, outputs, dtype=torch.float64, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.array(weight, dtype=np.float64)))
        layer.bias.copy_(torch.from_numpy(np.zeros(outputs) if bias is None else np.array(bias, dtype=np.float64)))
    return layer


def numbers_of(found: Any, rows: int) -> Array:
    """What a function returned as (rows, outputs), or an error that says what it was."""
    found = found.detach().cpu().numpy() if isinstance(found, Tensor) else found
    try:
        values = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError) as failure:
        raise TypeError(
            f"the model returned a {type(found).__name__} that is not numbers ({failure}); pass a function that "
            "returns one row of numbers for every row."
        ) from failure
    if values.ndim == 0 or len(values) != rows:
        raise ValueError(
            f"the model returned shape {values.shape} for {rows} rows; it must return one row of numbers for each."
        )
    return values.reshape(rows, -1)


def log_odds(probabilities: Array) -> Array:
    """Log-odds of the second of two classes, or centred logarithms; probabilities of 0 are taken as 1e-12."""
    logs = np.log(np.clip(probabilities, 1e-12, None))
    if probabilities.shape[1] == 2:
        return logs[:, 1:] - logs[:, :1]
    centred: Array = logs - logs.mean(1, keepdims=True)
    return centred
