"""Says in the caller's words why a model could not be run on some rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# What torch and oneDNN say when a processor lacks a precision.
_NO_SUCH_PRECISION = ("not implemented for", "could not create a primitive")


def explain_failure(
    failure: Exception, x: Tensor, *, dtype: torch.dtype, device: torch.device, embedded: Sequence[int] = ()
) -> None:
    """Raise an error that says what to do, if `failure` is one of the known kinds; else return."""
    said = str(failure)
    if dtype in (torch.float16, torch.bfloat16) and any(words in said for words in _NO_SUCH_PRECISION):
        raise TypeError(
            f"model is {str(dtype).removeprefix('torch.')} and {device.type} cannot run it in that precision "
            f"({said}); pass copy.deepcopy(model).float(), or move the model to a device that can."
        ) from failure
    if "shapes cannot be multiplied" in said and x.ndim == 2:
        raise ValueError(
            f"the model cannot take rows with {x.shape[1]} columns ({said}); pass the columns it was trained on."
        ) from failure
    if isinstance(failure, IndexError) and "out of range" in said:
        reach = [f"column {column} goes up to {float(x[:, column].max()):g}" for column in embedded]
        found = f": {', '.join(reach)}" if reach else ""
        raise ValueError(
            f"the rows hold a code outside the range of an embedding{found}; use the codes the model was trained on."
        ) from failure
