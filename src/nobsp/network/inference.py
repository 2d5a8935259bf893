"""Runs a model in evaluation mode, watches its layers, and leaves it exactly as it came; says what failures mean."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import local
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nobsp.arguments import quote, suggest
from nobsp.network.stand_in import unwrap
from nobsp.network.visit import Side, Visit

T = TypeVar("T")


@contextmanager
def evaluation_mode(module: nn.Module, *, gradients: bool = False) -> Iterator[Visit]:
    """Hands out what runs the model in evaluation mode; the model itself is left as it is.

    Visits may nest and overlap in threads. `gradients` builds graphs.
    """
    yield Visit(module, gradients=gradients)


def device_and_dtype(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and floating dtype in which a module expects its input: those of its first floating tensor."""
    tensors = [*module.parameters(), *module.buffers()]
    for tensor in tensors:
        if tensor.is_meta:
            raise ValueError("model has no weights: it is on the device 'meta'; load them first.")
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return (tensors[0].device if tensors else torch.device("cpu")), torch.get_default_dtype()


def checked_device(device: torch.device | str | int | None, home: torch.device) -> torch.device:
    """The device that `device=` names, or where the model is; an error where it cannot run anything."""
    if device is None:
        return home
    try:
        away = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as failure:
        raise ValueError(
            f"device={quote(device)} is not the name of a device ({failure})."
        ) from failure

    if away.type == "meta":
        raise ValueError('device="meta" holds no numbers; name a device that can compute.')
    accelerator = getattr(torch, away.type, None)
    available = getattr(accelerator, "is_available", None)
    if away.type != "cpu" and available is not None and not available():
        raise ValueError(
            f"device={str(device)!r} is not available here; pass device=None or 'cpu'."
        )
    if away.type == "cuda" and (away.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(f"device={str(device)!r} does not exist: this machine has {count}.")

    # "cuda" without a number means the one that is current: where the model is there, it stays.
    same_kind = away.type == home.type and away.index is None
    return home if same_kind else away


def copied_to(holder: T, module: nn.Module, device: torch.device) -> T:
    """A copy of what holds a module, with the module's copy on another device; the module itself is not moved."""
    memo: dict[int, Any] = {}
    try:
        other = copy.deepcopy(holder, memo)
    except Exception as failure:
        raise ValueError(
            f"device={str(device)!r} needs a copy of the model, which cannot be copied ({failure}); move the model "
            "yourself, model.to(device), and leave device out."
        ) from failure
    memo[id(module)].to(device)
    return other


def portable(holder: T, module: nn.Module) -> T:
    """What holds a module, with that on the CPU, in a copy where it is elsewhere: a worker may not have that GPU."""
    tensors = (*module.parameters(), *module.buffers())
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return holder
    return copied_to(holder, module, torch.device("cpu"))


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
            f"model is {str(dtype).removeprefix('torch.')} and {device.type} cannot run it in that precision "
            f"({said}); pass copy.deepcopy(model).float(), or move the model to a device that can."
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
            f"the rows hold a code outside the range of an embedding{details}; use the codes the model was trained on."
        ) from failure


@dataclass(frozen=True, eq=False)
class Place:
    """Where to look in a model."""

    name: str  # the module's name in the model; empty for the model itself
    module: nn.Module  # the module
    call: int  # which of its calls in a forward pass; -1 for the last
    side: Side  # whether it is what the module returns or what it is given
    calls: int = 1  # how many calls it gets in a forward pass
    # whether the model changes the tensor later, so that it has to be copied at once
    overwritten: bool = False


See = Callable[[str, nn.Module, Any], Any]


@contextmanager
def hooked(visit: Visit, parts: Mapping[str, nn.Module], side: Side, see: See) -> Iterator[local]:
    """Shows `see` what modules are given or return, in threads that set `.on`; what it returns takes its place.

    `see` gets the module that runs, which need not be the one in `parts` but has its weights.
    """
    here = local()
    with ExitStack() as observers:
        for name, part in parts.items():
            hook = partial(_show_input if side == "input" else _show_output, here, see, name)
            observers.enter_context(visit.observing(part, side, hook))
        yield here


def _show_input(
    here: local,
    see: See,
    name: str,
    part: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Show what a module is given: its first argument, or its first keyword where it has none."""
    # Another thread, whose forward pass meets this hook half registered, may call it without kwargs.
    if not getattr(here, "on", False) or kwargs is None:
        return None

    first = None if args else next(iter(kwargs), None)
    shown = args[0] if args else kwargs.get(first or "")
    replacement = see(name, part, shown)
    if replacement is None:
        return None
    if first is None:
        return (replacement, *args[1:]), kwargs
    return args, {**kwargs, first: replacement}


def _show_output(here: local, see: See, name: str, part: nn.Module, _: Any, result: Any) -> Any:
    """Show what a module returns."""
    if not getattr(here, "on", False):
        return None
    return see(name, part, result)


@contextmanager
def catching(visit: Visit, position: Place) -> Iterator[Callable[..., tuple[Any, Tensor]]]:
    """Hands out `catch(work, value=None)`: what `work` returns, and the tensor that passes; a value replaces it."""
    chosen = position.call if position.call >= 0 else position.calls - 1

    def see(_: str, __: nn.Module, passing: Any) -> Tensor | None:
        if isinstance(passing, Tensor):
            passing = passing if torch.is_grad_enabled() else passing.detach()
            passing = passing.clone() if position.overwritten else passing
        here.caught.append(passing)
        return here.value if len(here.caught) - 1 == chosen else None

    with hooked(visit, {position.name: position.module}, position.side, see) as here:

        def catch(work: Callable[[], Any], value: Tensor | None = None) -> tuple[Any, Tensor]:
            here.on = True
            here.caught = []
            here.value = value
            try:
                result = work()
                caught = here.caught
            finally:
                here.on = False
                here.caught = []
                here.value = None

            if len(caught) <= max(position.call, 0):
                raise RuntimeError(
                    f"{position.name!r} was called {len(caught)} times for this batch, fewer than on the probe; pass a "
                    "model whose forward pass does not depend on the data, and call this inside its with block."
                )
            return result, caught[position.call]

        yield catch


def plain(name: str) -> str:
    """A module's name without what `torch.compile` puts into it."""
    return (name + ".").replace("_orig_mod.", "").rstrip(".")


def find_part(
    module: nn.Module, layer: str | nn.Module, *, argument: str, offer: Iterable[str] = ()
) -> tuple[str, nn.Module]:
    """A module of the model that the caller named or passed, with its name; an error offers the likely ones."""
    parts = {plain(name): part for name, part in module.named_modules(remove_duplicate=False)}
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

    name = plain(layer)
    # As a DataParallel wrapper gives it, `module.fc` means `fc`.
    name = name if name in parts else name.removeprefix("module.")
    if name not in parts:
        known = dict.fromkeys([*offer, *filter(None, parts)])
        raise ValueError(f"{argument}={layer!r} is not in the model; {suggest(name, known)}")

    return name, parts[name]


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Lets torch use so many threads, and as many as before afterwards; None changes nothing."""
    if count is None:
        yield
        return

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts multiplications and additions; without the hooks on modules that torch's own counter puts."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils.flop_counter import flop_registry

        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += int(count(*args, **kwargs, out_val=result))
        return result
