"""Rows in batches through a network that is watched, and which of its outputs are explained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from nobsp._typing import ArrayLike
from nobsp.arguments import array_of, count, quote, refuse_unreadable
from nobsp.network.batches import first_non_finite
from nobsp.network.guest import device_and_dtype, evaluation_mode
from nobsp.network.readout import checked, outputs_of, require_function_of_row, tensors_in
from nobsp.parts.tape import Tape, recording

Target: TypeAlias = "int | Sequence[int] | Callable[[Any], Tensor] | None"
# How models refuse rows.
_REFUSALS = (RuntimeError, TypeError, NotImplementedError)
# Rows that are tried before anything is computed.
_TRIED_ROWS = 32
# Outputs that are explained where nobody chose: of more than these, those that rows are predicted
# as.
_MOST_OUTPUTS = 10


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as a model takes them."""

    tensor: Tensor
    device: torch.device
    batch_size: int

    def batches(self) -> Iterator[Tensor]:
        """Copies of some rows at a time: a model may write into its input."""
        for some in torch.split(self.tensor, int(self.batch_size)):
            yield some.to(self.device, copy=True)

    def batches_of_several(self) -> Iterator[Tensor]:
        """The same with at least two rows each; a single row is doubled.

        Torch takes other steps for a single row.
        """
        n_rows = len(self.tensor)
        if n_rows == 1:
            yield torch.cat([self.tensor, self.tensor]).to(self.device)
            return
        n_batches = min(math.ceil(n_rows / self.batch_size), n_rows // 2)
        for some in torch.tensor_split(self.tensor, n_batches):
            yield some.to(self.device, copy=True)


def read_rows(model: nn.Module, X: ArrayLike, *, name: str, batch_size: int) -> Rows:
    """Rows from a tensor, an array or a frame; an error where they are no numbers."""
    refuse_unreadable(X, name=name)
    if isinstance(X, Tensor):
        # Other layouts, such as images with channels last, become views that no part can be
        # followed through.
        tensor = X.detach().contiguous()
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() < 2):
            raise TypeError(f"{name} must be real numbers that can be added, found {tensor.dtype}.")
    else:
        array = array_of(X, name=name)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"{name} must be numbers, found dtype {array.dtype}.")
        # Torch knows neither the other byte order nor longer doubles.
        known = np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
        tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=known))
    if tensor.ndim < 2 or len(tensor) == 0:
        raise ValueError(
            f"{name} must have at least one row, each with at least one value, found the shape "
            f"{tuple(tensor.shape)}."
        )
    bad = first_non_finite(tensor)
    if bad is not None:
        raise ValueError(f"{name} has {float(tensor[bad])} in row {bad[0]}; pass finite numbers.")

    device, dtype = device_and_dtype(model)
    taken = _as_taken(model, tensor, device, dtype, name=name)
    return Rows(taken, device, int(batch_size))


def _as_taken(
    model: nn.Module, tensor: Tensor, device: torch.device, dtype: torch.dtype, *, name: str
) -> Tensor:
    """Real numbers in the model's precision, whole ones as they are where the model takes them."""
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        return tensor.to(dtype)
    # Embeddings refuse real numbers and linear layers refuse whole ones, so the model itself gives
    # the answer.
    first = tensor[:1].to(device, torch.int64)
    refusals = []
    with evaluation_mode(model) as run:
        for numbers in (first, first.to(dtype)):
            try:
                run(numbers.clone())
            except IndexError:
                # It looks the numbers up, and some are too large for its table: that is told later.
                break
            except _REFUSALS as refusal:
                refusals.append(_reason(refusal))
            else:
                break
    if len(refusals) == 2:
        raise ValueError(
            f"model cannot take rows of {name}, each of {_describe(tensor)}: of whole numbers it "
            f"says {refusals[0]!r}, of {dtype} {refusals[1]!r}."
        )
    return tensor.to(dtype if refusals else torch.int64)


def _describe(rows: Tensor) -> str:
    """The shape of each row, and which whole numbers there are."""
    shape = f"the shape {tuple(rows.shape[1:])}"
    if rows.is_floating_point():
        return shape
    return f"{shape} with numbers from {int(rows.min())} to {int(rows.max())}"


def _reason(failure: BaseException) -> str:
    """The first line of what a model says."""
    return (str(failure).splitlines() or [type(failure).__name__])[0]


@contextmanager
def watching(model: nn.Module, target: Target) -> Iterator[Callable[[Tensor], Tape]]:
    """Hands out `record(batch)`: the tape of a forward pass."""

    def choose(result: Any) -> Tensor:
        if callable(target):
            return _chosen_by_caller(target(result))
        return result_of(result)

    with evaluation_mode(model) as visit, recording(visit, model) as record:
        yield lambda batch: record(batch, choose)


def result_of(result: Any) -> Tensor:
    """The outputs in what a model returns: its logits, or its first tensor."""
    tensors = tensors_in(result)
    if not tensors:
        raise ValueError(f"model returned {quote(result)}, which holds no tensor.")
    return next(iter(tensors.values()))


def _chosen_by_caller(chosen: object) -> Tensor:
    if not isinstance(chosen, Tensor):
        raise TypeError(
            f"target must return a tensor with one row for each row of X, found {quote(chosen)}."
        )
    if not chosen.is_floating_point():
        raise TypeError(
            f"target must return real numbers, which have slopes, found {chosen.dtype}; pass the "
            "numbers that a class is chosen by."
        )
    return chosen


def require_deterministic(model: nn.Module, rows: Rows, *, name: str = "X") -> None:
    """An error where a model cannot take rows, or its answers cannot be relied on.

    Such answers are NaN, differ each time, or depend on the rows beside.
    """
    _, dtype = device_and_dtype(model)
    some = _rows_to_try(rows.tensor)
    with evaluation_mode(model) as run:
        try:
            outputs = outputs_of(run(some.to(rows.device, copy=True)), len(some))
        except (RuntimeError, IndexError) as failure:
            raise ValueError(
                f"model cannot take rows of {name}, each of {_describe(some)} ({_reason(failure)})."
            ) from failure
        if not all(bool(output.isfinite().all()) for output in outputs.values()):
            raise ValueError(
                f"model answers NaN or infinity for rows of {name}; leave them out, or check their "
                "scale."
            )
        require_function_of_row(
            run, lambda x: x.to(rows.device, copy=True), some, outputs_of, dtype
        )


def _rows_to_try(tensor: Tensor) -> Tensor:
    """Some rows, and of whole numbers also those with the smallest and the largest.

    Tables that have these two have all between.
    """
    first = tensor[:_TRIED_ROWS]
    if tensor.dtype != torch.int64:
        return first
    by_row = tensor.flatten(1)
    extremes = torch.stack([by_row.amin(1).argmin(), by_row.amax(1).argmax()])
    return torch.cat([first[: _TRIED_ROWS - 2], tensor[extremes]])


def choose_outputs(outputs: Tensor, target: Target) -> tuple[int, ...]:
    """Which outputs are explained: those asked for, all of a few, or those that are predicted.

    The last are the outputs that rows are predicted as.
    """
    n_outputs = outputs.shape[1]
    if target is None or callable(target):
        if n_outputs <= _MOST_OUTPUTS:
            return tuple(range(n_outputs))
        counts = torch.bincount(outputs.argmax(1), minlength=n_outputs)
        order = counts.argsort(descending=True, stable=True)[:_MOST_OUTPUTS]
        return tuple(sorted(int(number) for number in order if counts[number] > 0))

    if isinstance(target, Tensor | np.ndarray):
        target = target.tolist()
    numbers = [target] if isinstance(target, int | np.integer) else target
    if isinstance(numbers, str) or not isinstance(numbers, Sequence) or not numbers:
        raise TypeError(
            "target must be an output's number, several, a function or None, found "
            f"{quote(target)}."
        )
    for number in numbers:
        whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not whole or not -n_outputs <= number < n_outputs:
            raise ValueError(
                f"target={quote(target)}: the model has {count(n_outputs, 'output')}, counted from "
                "0."
            )
    columns = tuple(int(number) % n_outputs for number in numbers)
    if len(set(columns)) < len(columns):
        raise ValueError(f"target={quote(target)} names an output twice; pass each once.")
    return columns


def module_of(model: object) -> nn.Module:
    """The module to run, without wrappers."""
    return checked(model)  # type: ignore[arg-type]  # it raises for whatever is no module
