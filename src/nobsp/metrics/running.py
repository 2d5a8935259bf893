"""Runs what the caller passes as a model, a torch module or any function, batch by batch, on arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nobsp.metrics.arrays import Array, as_array
from nobsp.network.guest import home_of, unwrapped, visiting

Model = nn.Module | Callable[[Any], Any]


@contextmanager
def running(model: Model, *, batch_size: int) -> Iterator[Callable[[NDArray[Any]], Array]]:
    """A function from rows to outputs of shape (rows, outputs).

    A torch module is run in evaluation mode, without gradients, on its own device and in its own precision, and is
    left as it was. Any other function gets arrays and may return an array or a tensor.

    Args:
        model: A torch module or a function.
        batch_size: Rows a call.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; pass at least 1.")
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise TypeError(f"model should be a torch module or a function, found {type(model).__name__}.")
        yield lambda rows: _in_batches(model, rows, batch_size)
        return
    module = unwrapped(model)
    device, dtype = home_of(module)
    with visiting(module) as run:
        yield lambda rows: _in_batches(
            lambda batch: run(torch.as_tensor(batch, dtype=dtype, device=device)), rows, batch_size
        )


def _in_batches(run: Callable[[Any], Any], rows: NDArray[Any], batch_size: int) -> Array:
    found = []
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        outputs = as_array(run(batch), "what the model returned", ndim=(1, 2))
        if len(outputs) != len(batch):
            raise ValueError(f"the model returned {len(outputs)} outputs for {len(batch)} rows.")
        found.append(outputs.reshape(len(batch), -1))
    return np.concatenate(found)
