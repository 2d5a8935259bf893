"""A model's layers by name, and what it means where a model cannot be run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from nobsp.arguments import suggest
from nobsp.network.guest import plain_name, unwrap


def find_part(
    module: nn.Module, layer: str | nn.Module, *, argument: str, offer: Iterable[str] = ()
) -> tuple[str, nn.Module]:
    """A module of the model that the caller named or passed, with its name.

    An error for any other offers the likely ones.
    """
    parts = {plain_name(name): part for name, part in module.named_modules(remove_duplicate=False)}
    if isinstance(layer, nn.Module):
        original = unwrap(layer)
        name = next((name for name, part in parts.items() if unwrap(part) is original), None)
        if name is None:
            raise ValueError(
                f"{argument} is a {type(original).__name__} that is not part of the model."
            )
        return name, parts[name]

    if not isinstance(layer, str):
        raise TypeError(
            f"{argument} must be a layer's name or the layer itself, found {type(layer).__name__}."
        )

    name = plain_name(layer)
    # As a DataParallel wrapper gives it, `module.fc` means `fc`.
    name = name if name in parts else name.removeprefix("module.")
    if name not in parts:
        known = dict.fromkeys([*offer, *filter(None, parts)])
        raise ValueError(f"{argument}={layer!r} is not in the model; {suggest(name, known)}")

    return name, parts[name]


def explain_failure(
    failure: Exception,
    x: Tensor,
    *,
    dtype: torch.dtype,
    device: torch.device,
    embedded: Sequence[int] = (),
) -> None:
    """Raise an error that says what to do, if `failure` is one of the known kinds; else return."""
    said = str(failure)
    # What torch and oneDNN say when a processor lacks a precision.
    lacks = "not implemented for" in said or "could not create a primitive" in said
    if dtype in (torch.float16, torch.bfloat16) and lacks:
        raise TypeError(
            f"model is {str(dtype).removeprefix('torch.')} and {device.type} cannot run it in that "
            f"precision ({said}); pass copy.deepcopy(model).float(), or move the model to a device "
            "that can."
        ) from failure

    if "shapes cannot be multiplied" in said and x.ndim == 2:
        rows = f"rows with {x.shape[1]} columns ({said})"
        raise ValueError(
            f"the model cannot take {rows}; pass the columns it was trained on."
        ) from failure

    if isinstance(failure, IndexError) and "out of range" in said:
        largest = [
            f"column {column} goes up to {float(x[:, column].max()):g}" for column in embedded
        ]
        details = f": {', '.join(largest)}" if largest else ""
        raise ValueError(
            f"the rows hold a code outside the range of an embedding{details}; use the codes the "
            "model was trained on."
        ) from failure
