"""What a model says, compared with what its head makes of the representation, pass by pass.

On the rows that the head was found with, the output is the head's. On other rows another path may take part: a branch
that was silent, a maximum that another layer wins, a correction behind the head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nobsp.network.readout import LINKS, Head, Readout, exact, tensors_in

# How often a sum is rounded between two ways of working it out: as many as where heads are looked for.
_ROUNDINGS_OF_SUMS = 16
_ROUNDINGS_OF_RESULTS = 8


def logits_said(readout: Readout, logits: Tensor, z: Tensor, result: Any) -> Tensor:
    """The logits W z + b, and those that the model's result stands for where it differs by more than rounding."""
    outputs = [
        exact(output).reshape(logits.shape)
        for output in tensors_in(result).values()
        if output.numel() == logits.numel() and output.is_floating_point()
    ]
    if not outputs:
        return logits

    expected = LINKS[readout.link](logits)
    # Of several outputs, the one that the head makes is the nearest.
    output = min(outputs, key=lambda candidate: float((candidate - expected).abs().sum()))
    allowed = _rounding(readout, logits, z)
    differs = (output - expected).abs() > _through_link(readout.link, expected, allowed)
    if not bool(differs.any()):
        return logits
    return torch.where(differs, _undo_link(readout.link, output, logits), logits)


def differs_from(entering: Tensor, pooled: Tensor, sizes: Tensor | None, eps: float) -> Tensor:
    """Rows in which what entered the head is not the pooled map, but for rounding; shape (rows,)."""
    size = pooled.abs() if sizes is None else pooled.abs() + sizes
    allowed = _ROUNDINGS_OF_RESULTS * eps * size + torch.finfo(pooled.dtype).tiny
    return ((entering - pooled).abs() > allowed).any(1)


def _rounding(readout: Readout, logits: Tensor, z: Tensor) -> Tensor:
    """How far rounding may carry W z + b, bounded by |w| |z| ≤ ‖w‖ ‖z‖: cheap beside a forward pass."""
    stored, summed = _precisions(readout)
    head: Head = readout.head
    bias = head.bias.abs().to(logits)
    norms = torch.linalg.vector_norm(head.weight, dim=1).to(logits)
    sizes = torch.linalg.vector_norm(exact(z), dim=1, keepdim=True).to(logits) * norms
    results = _ROUNDINGS_OF_RESULTS * stored * (logits.abs() + bias)
    sums: Tensor = _ROUNDINGS_OF_SUMS * summed * (sizes + bias)
    return sums + results


def _precisions(readout: Readout) -> tuple[float, float]:
    """Rounding of results and of sums, relative to their size."""
    stored = torch.finfo(readout.dtype).eps
    # Half precisions are summed in float32, so only their results are coarse.
    is_double = readout.dtype == torch.float64
    summed = torch.finfo(torch.float64 if is_double else torch.float32).eps
    tf32 = readout.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    coarse = tf32 or torch.get_float32_matmul_precision() != "highest"
    if readout.dtype == torch.float32 and coarse:
        summed = 2.0**-8
    return stored, summed


def _through_link(link: str, expected: Tensor, allowed: Tensor) -> Tensor:
    """How far rounding of logits, and of what follows them, may carry the output."""
    worst = allowed.amax(1, keepdim=True)
    if link == "log_softmax":
        return 2 * worst + allowed
    if link == "softmax":
        # Probabilities that the model's precision cannot tell from 0 and 1 say nothing about logits.
        return expected * 2 * worst + worst.clamp_max(1e-3)
    if link == "sigmoid":
        return expected * (1 - expected) * allowed + worst.clamp_max(1e-3)
    return allowed


def _undo_link(link: str, output: Tensor, logits: Tensor) -> Tensor:
    """Logits of an output; a softmax leaves a constant open, which is taken from the head's logits."""
    smallest = torch.finfo(torch.float32).tiny
    if link == "log_softmax":
        return output + logits.logsumexp(1, keepdim=True)
    if link == "softmax":
        return output.clamp_min(smallest).log() + logits.logsumexp(1, keepdim=True)
    if link == "sigmoid":
        return torch.logit(output, eps=1e-12)
    return output
