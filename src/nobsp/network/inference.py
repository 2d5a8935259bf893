"""Runs a model in evaluation mode, watches its layers, and leaves it exactly as it came; says what failures mean."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from threading import local
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from nobsp._messages import suggest

T = TypeVar("T")


def is_compiled(part: nn.Module) -> bool:
    """Whether `part` came out of `torch.compile`; asked without loading the compiler, which is slow."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(part, compiler.OptimizedModule)


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and parallel wrappers: those do not run the hooks of the original."""
    while True:
        if is_compiled(model):
            model = cast(nn.Module, model._orig_mod)
        elif isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        else:
            return model


@dataclass
class _Stay:
    """What has to be put back once the last visitor of a submodule has gone."""

    part: nn.Module
    training: bool
    buffers: dict[
        str, tuple[Tensor | None, Tensor | None]
    ]  # name -> the tensor itself, a copy of its values
    visitors: int = 0

    def leave(self) -> None:
        self.visitors -= 1
        if self.visitors:
            return
        part = _stays.pop(id(self.part)).part
        part.training = self.training
        for name in part._buffers.keys() - self.buffers.keys():
            del part._buffers[name]
        for name, (tensor, values) in self.buffers.items():
            part._buffers[name] = tensor
            if tensor is not None and values is not None and not torch.equal(tensor, values):
                with torch.no_grad():
                    tensor.copy_(values)


# By identity and only while somebody visits; a stay keeps its module alive, so ids are not reused.
_stays: dict[int, _Stay] = {}
_door = threading.Lock()


@contextmanager
def evaluation_mode(
    module: nn.Module, *, gradients: bool = False
) -> Iterator[Callable[[Tensor], Any]]:
    """Hands out what runs the model in evaluation mode; every submodule gets its own flag and buffers back.

    Visits may nest and overlap in threads: the first notes the state, the last restores it. `gradients` builds graphs.
    """
    parts = list(module.modules())
    compiled = any(is_compiled(part) or part._compiled_call_impl is not None for part in parts)
    with _door:
        for part in parts:
            if id(part) not in _stays:
                own = part._buffers.items()
                kept = {
                    name: (one, None if one is None else one.detach().clone()) for name, one in own
                }
                _stays[id(part)] = _Stay(part, part.training, kept)
            _stays[id(part)].visitors += 1
            # Not part.eval(): user code may override train() with side effects (merging adapters, say).
            part.training = False

    def run(x: Tensor) -> Any:
        # A compiled part would not call hooks registered after it was compiled.
        if compiled and not hasattr(torch.compiler, "set_stance"):
            raise TypeError(
                "model is compiled, which needs torch 2.6 or newer; pass the original module."
            )
        eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        with (
            torch.set_grad_enabled(gradients),
            torch.autocast(device_type=x.device.type, enabled=False),
            eager,
            _untouched_generators(x.device),
        ):
            return module(x)

    try:
        yield run
    finally:
        with _door:
            for part in parts:
                _stays[id(part)].leave()


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


@contextmanager
def moved_to(module: nn.Module, device: torch.device | str | None) -> Iterator[torch.device]:
    """Holds the model on another device where one is asked for, and hands out which; it is brought back."""
    home, _ = device_and_dtype(module)
    away = home if device is None else torch.device(device)
    if away != home:
        module.to(away)
    try:
        yield away
    finally:
        if away != home:
            module.to(home)


def portable(model: T, module: nn.Module) -> T:
    """What holds a module, with that on the CPU, in a copy where it is elsewhere: a worker may not have that GPU."""
    if all(tensor.device.type == "cpu" for tensor in (*module.parameters(), *module.buffers())):
        return model
    memo: dict[int, Any] = {}
    other = copy.deepcopy(model, memo)
    memo[id(module)].to("cpu")
    return other


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
        reach = [f"column {column} goes up to {float(x[:, column].max()):g}" for column in embedded]
        found = f"an embedding{': ' if reach else ''}{', '.join(reach)}; use the codes the model was trained on"
        raise ValueError(f"the rows hold a code outside the range of {found}.") from failure


Side = Literal["output", "input"]


@dataclass(frozen=True, eq=False)
class Place:
    """Where to look in a model."""

    name: str  # the module's name in the model; empty for the model itself
    module: nn.Module  # the module
    call: int  # which of its calls in a forward pass; -1 for the last
    side: Side  # whether it is what the module returns or what it is given
    calls: int = 1  # how many calls it gets in a forward pass
    overwritten: bool = (
        False  # whether the model changes the tensor later, so that it has to be copied at once
    )


@contextmanager
def hooked(
    parts: Mapping[str, nn.Module], side: Side, see: Callable[[str, nn.Module, Any], Any]
) -> Iterator[local]:
    """Shows `see` what modules are given or return, in threads that set `.on`; what it returns takes its place."""
    here = local()

    def hook_for(name: str) -> Any:
        def before(
            part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
        ) -> Any:
            # Another thread, whose forward pass meets this hook half registered, may call it without kwargs.
            if not getattr(here, "on", False) or kwargs is None:
                return None
            first = None if args else next(iter(kwargs), None)
            value = see(name, part, args[0] if args else kwargs.get(first or ""))
            if value is None:
                return None
            return (
                ((value, *args[1:]), kwargs) if first is None else (args, {**kwargs, first: value})
            )

        def after(part: nn.Module, _: Any, result: Any) -> Any:
            return see(name, part, result) if getattr(here, "on", False) else None

        return before if side == "input" else after

    with ExitStack() as handles:
        for name, part in parts.items():
            if side == "input":
                handles.callback(
                    part.register_forward_pre_hook(hook_for(name), with_kwargs=True).remove
                )
            else:
                handles.callback(part.register_forward_hook(hook_for(name)).remove)
        yield here


@contextmanager
def catching(place: Place) -> Iterator[Callable[..., tuple[Any, Tensor]]]:
    """Hands out `catch(work, value=None)`: what `work` returns, and the tensor that passes; a value replaces it."""
    chosen = place.call if place.call >= 0 else place.calls - 1

    def see(_: str, __: nn.Module, found: Any) -> Tensor | None:
        if isinstance(found, Tensor):
            found = found if torch.is_grad_enabled() else found.detach()
            found = found.clone() if place.overwritten else found
        here.caught.append(found)
        return here.value if len(here.caught) - 1 == chosen else None

    with hooked({place.name: place.module}, place.side, see) as here:

        def catch(work: Callable[[], Any], value: Tensor | None = None) -> tuple[Any, Tensor]:
            here.on, here.caught, here.value = True, [], value
            try:
                result, caught = work(), here.caught
            finally:
                here.on, here.caught, here.value = False, [], None
            if len(caught) <= max(place.call, 0):
                raise RuntimeError(
                    f"{place.name!r} was called {len(caught)} times for this batch, fewer than on the probe; pass a "
                    "model whose forward pass does not depend on the data, and call this inside its with block."
                )
            return result, caught[place.call]

        yield catch


def plain(name: str) -> str:
    """A module's name without what `torch.compile` puts into it."""
    return (name + ".").replace("_orig_mod.", "").rstrip(".")


def find_part(
    module: nn.Module, given: str | nn.Module, *, argument: str, offer: Iterable[str] = ()
) -> tuple[str, nn.Module]:
    """A module of the model that the caller named or passed, with its name; an error offers the likely ones."""
    parts = {plain(name): part for name, part in module.named_modules(remove_duplicate=False)}
    if isinstance(given, nn.Module):
        wanted = unwrap(given)
        name = next((name for name, part in parts.items() if unwrap(part) is wanted), None)
        if name is None:
            raise ValueError(
                f"{argument} is a {type(wanted).__name__} that is not part of the model."
            )
        return name, parts[name]
    if not isinstance(given, str):
        raise TypeError(
            f"{argument} must be a layer's name or the layer itself, found {type(given).__name__}."
        )
    name = plain(given)
    # As a DataParallel wrapper gives it, `module.fc` means `fc`.
    name = name if name in parts else name.removeprefix("module.")
    if name not in parts:
        known = dict.fromkeys([*offer, *filter(None, parts)])
        raise ValueError(f"{argument}={given!r} is not in the model; {suggest(name, known)}")
    return name, parts[name]


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Lets torch use so many threads, and as many as before afterwards; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
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
