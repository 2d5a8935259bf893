"""Runs a model in evaluation mode and leaves it exactly as it came; says what its failures mean."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

_WRAPPERS = (DataParallel, DistributedDataParallel)


def is_compiled(part: nn.Module) -> bool:
    """Whether `part` came out of `torch.compile`; asked without loading the compiler, which is slow."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(part, compiler.OptimizedModule)


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, `DataParallel` and `DistributedDataParallel` wrappers.

    Replicas and compiled graphs do not run the hooks of the original, and their parameters are the same
    objects anyway, so the original is what we run.
    """
    while True:
        if is_compiled(model):
            model = cast(nn.Module, model._orig_mod)
        elif isinstance(model, _WRAPPERS):
            model = model.module
        else:
            return model


@dataclass
class _Stay:
    """What has to be put back once the last visitor of a submodule has gone."""

    visitors: int
    training: bool
    buffers: dict[str, tuple[Tensor | None, Tensor | None]]  # name -> the tensor itself, a copy of its values


# Keyed by identity and only while somebody visits; the value keeps the module alive, so ids are not reused.
_stays: dict[int, tuple[nn.Module, _Stay]] = {}
_door = threading.Lock()


def _arrive(parts: list[nn.Module]) -> None:
    for part in parts:
        _, stay = _stays.setdefault(id(part), (part, _Stay(0, part.training, _buffers_of(part))))
        stay.visitors += 1
        # Not part.eval(): user code may override train() with side effects (merging adapters, say).
        part.training = False


def _leave(parts: list[nn.Module]) -> None:
    for part in parts:
        _, stay = _stays[id(part)]
        stay.visitors -= 1
        if stay.visitors == 0:
            del _stays[id(part)]
            part.training = stay.training
            _restore_buffers(part, stay.buffers)


def _buffers_of(part: nn.Module) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    return {
        name: (tensor, None if tensor is None else tensor.detach().clone()) for name, tensor in part._buffers.items()
    }


def _restore_buffers(part: nn.Module, buffers: dict[str, tuple[Tensor | None, Tensor | None]]) -> None:
    for name in part._buffers.keys() - buffers.keys():
        del part._buffers[name]
    for name, (tensor, values) in buffers.items():
        part._buffers[name] = tensor
        if tensor is not None and values is not None and not torch.equal(tensor, values):
            with torch.no_grad():
                tensor.copy_(values)


@contextmanager
def evaluation_mode(module: nn.Module, *, gradients: bool = False) -> Iterator[Callable[[Tensor], Any]]:
    """Evaluation mode for the duration; every submodule gets its own flag and buffers back.

    Visits may nest and may overlap in several threads: the first visitor notes the state, the last one
    restores it.

    With `gradients`, runs build a graph, for gradients in what a hook puts in.
    """
    parts = list(module.modules())
    compiled = any(is_compiled(part) or part._compiled_call_impl is not None for part in parts)
    with _door:
        _arrive(parts)

    def run(x: Tensor) -> Any:
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(gradients))
            stack.enter_context(torch.autocast(device_type=x.device.type, enabled=False))
            if compiled:
                # A compiled part would not call hooks registered after it was compiled.
                if not hasattr(torch.compiler, "set_stance"):
                    raise TypeError("model is compiled, which needs torch 2.6 or newer; pass the original module.")
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(_untouched_generators(x.device))
            return module(x)

    try:
        yield run
    finally:
        with _door:
            _leave(parts)


@contextmanager
def _untouched_generators(device: torch.device) -> Iterator[None]:
    """Undo what a forward pass drew, and only then: other threads may be drawing too."""
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        if not torch.equal(cpu, torch.get_rng_state()):
            torch.set_rng_state(cpu)
        if cuda is not None and not torch.equal(cuda, torch.cuda.get_rng_state(device)):
            torch.cuda.set_rng_state(cuda, device)


def device_and_dtype(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and floating dtype in which a module expects its input: those of its first floating tensor."""
    tensors = [*module.parameters(), *module.buffers()]
    for tensor in tensors:
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return (tensors[0].device if tensors else torch.device("cpu")), torch.get_default_dtype()


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
