"""Runs a model in evaluation mode, observes its modules, and leaves it and the random numbers as they were.

Forward passes run in a stand-in (see `stand_in`), so that nothing has to be put back. Where none can be made, because
the model refers to itself in ways that cannot be copied, the model is guarded during each single pass.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

from nobsp.network.passes import count_rows
from nobsp.network.random_numbers import Draws
from nobsp.network.stand_in import is_compiled, make_stand_in

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Where autocast may be on; asking for other kinds of devices may fail.
_AUTOCAST = ("cpu", "cuda")


@dataclass(frozen=True)
class TorchModes:
    """The modes at one moment."""

    gradients: bool
    autocast: tuple[bool, ...]
    threads: int
    dispatch_modes: int
    function_modes: int

    @classmethod
    def now(cls) -> TorchModes:
        """Those of this thread."""
        return cls(
            gradients=torch.is_grad_enabled(),
            autocast=tuple(torch.is_autocast_enabled(device) for device in _AUTOCAST),
            threads=torch.get_num_threads(),
            dispatch_modes=len(_get_current_dispatch_mode_stack()),
            function_modes=torch._C._len_torch_function_stack(),
        )

    def restore(self) -> None:
        """Make them what they were; this may be done again."""
        torch._C._set_grad_enabled(self.gradients)
        for device, enabled in zip(_AUTOCAST, self.autocast, strict=True):
            if torch.is_autocast_enabled(device) != enabled:
                torch.set_autocast_enabled(device, enabled)
        # Asked first: setting the number starts threads where none were.
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        while len(_get_current_dispatch_mode_stack()) > self.dispatch_modes:
            _pop_mode()
        while torch._C._len_torch_function_stack() > self.function_modes:
            torch._C._pop_torch_function_stack()


def keeps_torch_modes(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, after which torch's modes are as before, also when it raises or is interrupted."""

    @wraps(function)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        modes = TorchModes.now()
        # Twice: an interrupt may come in the middle of restoring, which can be done any number of times.
        try:
            try:
                return function(*args, **kwargs)
            finally:
                modes.restore()
        finally:
            modes.restore()

    return guarded


def in_ordinary_modes(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same, run without gradients, autocast and inference mode, whatever the caller has switched on."""

    @wraps(function)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return run_in_ordinary_modes(partial(function, *args, **kwargs))

    return guarded


def run_in_ordinary_modes(work: Callable[[], Result]) -> Result:
    """What `work` returns, run without gradients, autocast and inference mode."""
    modes = TorchModes.now()
    ordinary = TorchModes(
        gradients=False,
        autocast=tuple(False for _ in _AUTOCAST),
        threads=modes.threads,
        dispatch_modes=modes.dispatch_modes,
        function_modes=modes.function_modes,
    )
    # Torch's own object, which begins when it is made, in place of `torch.inference_mode`, whose lines can be
    # interrupted; it may be ended twice.
    no_inference: Any = None

    try:
        try:
            if torch.is_inference_mode_enabled():
                no_inference = torch._C._InferenceMode(False)
            ordinary.restore()
            return work()
        finally:
            if no_inference is not None:
                no_inference.__exit__(None, None, None)
            modes.restore()
    finally:
        if no_inference is not None:
            no_inference.__exit__(None, None, None)
        modes.restore()


Side = Literal["output", "input"]
Hook = Callable[..., Any]


class Visit:
    """Runs a model in evaluation mode, in any number of threads; what is registered here sees its modules."""

    def __init__(self, model: nn.Module, *, gradients: bool = False) -> None:
        self.model = model
        self.gradients = gradients
        self.draws_numbers = False  # whether the model has drawn random numbers so far
        # Buffers that are copied in inference mode could not be used for gradients.
        self._stand_in = run_in_ordinary_modes(lambda: make_stand_in(model))
        self._observers: list[_Observer] = []

    def __call__(self, x: Tensor) -> Any:
        """The result of one forward pass."""
        count_rows(len(x))
        with _ordinary_precision(x.device), _eagerly(self._runs_compiled_code()):
            return _in_grad_mode(self.gradients, lambda: self._forward(x))

    def part(self, module: nn.Module) -> nn.Module:
        """What is run in the place of a module of the model."""
        return module if self._stand_in is None else self._stand_in.copy_of(module)

    @contextmanager
    def observing(self, part: nn.Module, side: Side, hook: Hook) -> Iterator[None]:
        """Calls `hook` before a module runs, with its keywords, or after it has run."""
        observer = _Observer(self.part(part), side, hook)
        if self._stand_in is not None:
            handle = observer.register()
            try:
                yield
            finally:
                handle.remove()
            return

        self._observers.append(observer)
        try:
            yield
        finally:
            self._observers.remove(observer)

    def _forward(self, x: Tensor) -> Any:
        # On every pass: a model may draw only where a row asks for it, or from its tenth pass on.
        draws = Draws(x.device)
        # Twice: an interrupt may come in the middle of rewinding, which can be done any number of times.
        try:
            try:
                with draws:
                    return self._run(x)
            finally:
                self.draws_numbers |= draws.rewind()
        finally:
            self.draws_numbers |= draws.rewind()

    def _run(self, x: Tensor) -> Any:
        if self._stand_in is not None:
            return self._stand_in.model(x)

        guard = _Guard(self.model, list(self._observers))
        # Twice: an interrupt may come in the middle of ending, which can be done any number of times.
        try:
            try:
                guard.begin()
                return self.model(x)
            finally:
                guard.end()
        finally:
            guard.end()

    def _runs_compiled_code(self) -> bool:
        """Whether a compiled part is run, which would not call hooks registered after it was compiled."""
        if self._stand_in is not None:
            return False
        parts = self.model.modules()
        return any(is_compiled(part) or part._compiled_call_impl is not None for part in parts)


@dataclass(eq=False)
class _Observer:
    """A hook and the module it is for."""

    part: nn.Module
    side: Side
    hook: Hook

    def register(self) -> Any:
        if self.side == "input":
            return self.part.register_forward_pre_hook(self.hook, with_kwargs=True)
        return self.part.register_forward_hook(self.hook)

    def unregister(self) -> None:
        """Take the hook away wherever it is; also where registering it was interrupted."""
        part = self.part
        for hooks in (part._forward_pre_hooks, part._forward_hooks):
            for number in [number for number, hook in hooks.items() if hook is self.hook]:
                hooks.pop(number, None)
                part._forward_pre_hooks_with_kwargs.pop(number, None)


def _in_grad_mode(gradients: bool, work: Callable[[], Any]) -> Any:
    """Run with or without gradients; the caller's grad mode and dispatch modes are as before, also when interrupted."""
    before = torch.is_grad_enabled()
    modes = len(_get_current_dispatch_mode_stack())
    try:
        try:
            torch._C._set_grad_enabled(gradients)
            return work()
        finally:
            torch._C._set_grad_enabled(before)
    finally:
        torch._C._set_grad_enabled(before)
        while len(_get_current_dispatch_mode_stack()) > modes:
            _pop_mode()


def _ordinary_precision(device: torch.device) -> Any:
    """No autocast."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device_type=device.type, enabled=False)


def _eagerly(compiled: bool) -> Any:
    """Without compiled code, where there is any."""
    if not compiled:
        return nullcontext()
    if not hasattr(torch.compiler, "set_stance"):
        raise TypeError(
            "model is compiled, which needs torch 2.6 or newer; pass the original module."
        )
    return torch.compiler.set_stance("force_eager")


@dataclass(eq=False)
class _Noted:
    """The state of a module to which it returns when the last guard ends."""

    part: nn.Module
    training: bool
    # By name the buffer itself and a copy of its values.
    buffers: dict[str, tuple[Tensor | None, Tensor | None]]
    guards: set[_Guard] = field(default_factory=set)

    @classmethod
    def of(cls, part: nn.Module) -> _Noted:
        buffers = {
            name: (buffer, None if buffer is None else buffer.detach().clone())
            for name, buffer in part._buffers.items()
        }
        return cls(part, part.training, buffers)

    def restore(self) -> None:
        """Give the module its flag and buffers back; this may be done again."""
        self.part.training = self.training
        for name in self.part._buffers.keys() - self.buffers.keys():
            del self.part._buffers[name]
        for name, (buffer, values) in self.buffers.items():
            self.part._buffers[name] = buffer
            if buffer is not None and values is not None and not torch.equal(buffer, values):
                with torch.no_grad():
                    buffer.copy_(values)


# By the module's id, and only while a guard holds it, which keeps the module alive.
_noted: dict[int, _Noted] = {}
_door = threading.RLock()


class _Guard:
    """Holds a model in evaluation mode and observed during one forward pass; other threads may do the same."""

    def __init__(self, model: nn.Module, observers: list[_Observer]) -> None:
        self.thread = threading.get_ident()
        self.parts = list(model.modules())
        # Hooks of its own, so that the guard of another thread does not take them away.
        self.observers = [
            _Observer(observer.part, observer.side, functools.partial(observer.hook))
            for observer in observers
        ]

    def begin(self) -> None:
        """Note, then change: what is not noted yet is not changed yet."""
        with _door:
            for part in self.parts:
                noted = _noted.get(id(part))
                if noted is None:
                    noted = _Noted.of(part)
                    _noted[id(part)] = noted
                noted.guards.add(self)
                # Not part.eval(): user code may override train() with side effects (merging adapters, say).
                part.training = False
            for observer in self.observers:
                observer.register()

    def end(self) -> None:
        """Take hooks away, and restore what no other guard holds; this may be done again."""
        with _door:
            for observer in self.observers:
                observer.unregister()
            for part in self.parts:
                noted = _noted.get(id(part))
                if noted is None:
                    continue
                noted.guards.discard(self)
                if not noted.guards:
                    noted.restore()
                    _noted.pop(id(part), None)


def _leave_other_threads_behind() -> None:
    """In a forked child the other threads do not exist: their guards end, and the lock they may hold is renewed."""
    global _door
    _door = threading.RLock()
    gone = {
        guard
        for noted in _noted.values()
        for guard in noted.guards
        if guard.thread != threading.get_ident()
    }
    for guard in gone:
        guard.end()
    for noted in [noted for noted in _noted.values() if not noted.guards]:
        noted.restore()
        _noted.pop(id(noted.part), None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_other_threads_behind)
