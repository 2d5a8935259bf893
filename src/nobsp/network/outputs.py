"""Finds the tensors in whatever a model returns, and what follows the head on the way to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

# From the simplest to the most involved: the order in which explanations of an output are preferred.
LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda logits: logits,
    "log_softmax": lambda logits: torch.log_softmax(logits, dim=-1),
    "softmax": lambda logits: torch.softmax(logits, dim=-1),
    "sigmoid": torch.sigmoid,
}


def tensors_in(result: Any) -> dict[str, Tensor]:
    """Tensors of a model's result by path; only `logits` where the result has such an entry."""
    return dict(_walk(result, ""))


def _walk(result: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(result, Tensor):
        yield path, result
    elif isinstance(result, Mapping):
        keys = ["logits"] if result.get("logits") is not None else list(result)
        for key in keys:
            yield from _walk(result[key], f"{path}[{key!r}]")
    elif getattr(result, "logits", None) is not None:
        yield from _walk(result.logits, f"{path}.logits")
    elif isinstance(result, tuple | list):
        for position, part in enumerate(result):
            yield from _walk(part, f"{path}[{position}]")
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        for field in dataclasses.fields(result):
            yield from _walk(getattr(result, field.name), f"{path}.{field.name}")


def as_rows(output: Tensor, rows: int) -> Tensor | None:
    """The output as (rows, outputs) in float64 on the CPU, reshapes undone; None where that cannot be."""
    per_row = output.ndim > 0 and output.shape[0] == rows
    if not (per_row or rows == 1) or output.numel() == 0 or output.is_complex():
        return None
    return output.detach().to("cpu", torch.float64).reshape(rows, -1)


def allowance(z: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """How far a model's own rounding may carry its logits from W z + b in float64, elementwise.

    Two parts: products summed in the working precision, bounded through |z| |W|ᵀ; and the stored result,
    rounded to `dtype`. Half precisions are summed in float32, so only their results are coarse.
    """
    stored = torch.finfo(dtype).eps
    summed = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    if dtype == torch.float32 and _reduced_products(device):
        summed = 2.0**-8
    exact = z @ weight.T
    size = z.abs() @ weight.abs().T
    return 4 * stored * (exact.abs() + bias.abs()) + 16 * summed * (size + bias.abs()) + 1e-300


def _reduced_products(device: torch.device) -> bool:
    tf32 = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return tf32 or torch.get_float32_matmul_precision() != "highest"


def compare(logits: Tensor, output: Tensor, allowed: Tensor, link: str, dtype: torch.dtype) -> tuple[bool, float]:
    """Whether `output` is `link(logits)` within rounding, and the largest difference."""
    expected = LINKS[link](logits)
    difference = (expected - output).abs()
    coarse = 8 * torch.finfo(dtype).eps
    worst = allowed.amax(dim=-1, keepdim=True)
    if link == "identity":
        tolerance = allowed
    elif link == "log_softmax":
        tolerance = 2 * worst + coarse * (expected.abs() + logits.abs().amax(dim=-1, keepdim=True))
    elif link == "softmax":
        tolerance = expected * (2 * worst + coarse * (1 + logits.abs().amax(dim=-1, keepdim=True))) + coarse
    else:
        tolerance = expected * (1 - expected) * allowed + coarse
    largest = float(difference.max())
    return bool((difference <= tolerance).all()), largest
