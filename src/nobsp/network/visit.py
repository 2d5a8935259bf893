"""Runs a model in evaluation mode, observes its modules, and leaves it and the random numbers as they were.

Forward passes run in a stand-in (see `stand_in`), so that nothing has to be put back. Where none can be made, because
the model refers to itself in ways that cannot be copied, the model is guarded during each single pass.

Random numbers that a model draws in evaluation mode are noticed on every pass, and put back. Where nobody else can draw
meanwhile, states are compared before and after. Otherwise rewinding would repeat the numbers of other threads, and even
asking torch for its state takes a lock that another thread, or one that a fork has left behind, may hold: operations
are watched then, and nothing is asked for until the model draws.

A model must be a function of its row: the same output for a row every time, whatever rows are beside it.
"""

from __future__ import annotations

import functools
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
)

from nobsp.network.progress import count_rows
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

# Of each operation whether it draws random numbers; there are a few hundred.
_is_random: dict[Any, bool] = {}


class Draws:
    """Watches one forward pass; afterwards all random numbers are as before."""

    def __init__(self, device: torch.device) -> None:
        self._happened: bool | None = None  # None until all is put back
        self._global_numbers = GlobalNumbers.now()
        self._watch: _States | _Operations
        if self._global_numbers is not None and not _fork.happened and device.type == "cpu":
            self._watch = _States()
        else:
            self._watch = _Operations(device)

    def __enter__(self) -> None:
        self._watch.__enter__()

    def __exit__(self, *failure: Any) -> None:
        self._watch.__exit__(*failure)

    def rewind(self) -> bool:
        """Put back what was changed, and say whether anything was; this may be done again where it was interrupted."""
        if self._happened is None:
            drew_here = self._watch.rewind()
            drew_globally = self._global_numbers is not None and self._global_numbers.rewind()
            self._happened = drew_here or drew_globally
        return self._happened


@dataclass(frozen=True, eq=False)
class GlobalNumbers:
    """The states of numpy's and Python's global generators at one moment."""

    numpy_state: Any
    python_state: Any

    @classmethod
    def now(cls) -> GlobalNumbers | None:
        """The states; None where other threads may draw as well, whose numbers rewinding would repeat."""
        if threading.active_count() > 1:
            return None
        return cls(np.random.get_state(), random.getstate())  # noqa: NPY002 - the global one is meant

    def move_on(self) -> None:
        """Draw one number from each, so that the next ones are others."""
        np.random.random_sample()  # noqa: NPY002
        random.random()

    def rewind(self) -> bool:
        """Put back what has changed since, and say whether anything had."""
        rewound = False
        if not _is_same(self.numpy_state, np.random.get_state()):  # noqa: NPY002
            np.random.set_state(self.numpy_state)  # noqa: NPY002
            rewound = True
        if self.python_state != random.getstate():
            random.setstate(self.python_state)
            rewound = True
        return rewound


def _is_same(before: Any, after: Any) -> bool:
    """Whether two states of numpy's generator are equal: position first, then the words."""
    name, words, *others = before
    other_name, other_words, *other_others = after
    return name == other_name and others == other_others and np.array_equal(words, other_words)


class _States:
    """Compares torch's state before and after."""

    def __init__(self) -> None:
        self._state = torch.get_rng_state()

    def __enter__(self) -> None:
        """Begins to watch."""

    def __exit__(self, *failure: Any) -> None:
        """Ends it."""

    def rewind(self) -> bool:
        if torch.equal(self._state, torch.get_rng_state()):
            return False
        torch.set_rng_state(self._state)
        return True


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes torch's state before the first operation of this thread that draws."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._states: tuple[Tensor, Tensor | None] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_random = _is_random.get(func)
        if is_random is None:
            is_random = torch.Tag.nondeterministic_seeded in func.tags
            _is_random[func] = is_random
        if is_random and self._states is None:
            on_gpu = self._device.type == "cuda"
            gpu_state = torch.cuda.get_rng_state(self._device) if on_gpu else None
            self._states = torch.get_rng_state(), gpu_state
        return func(*args, **kwargs) if kwargs else func(*args)

    def rewind(self) -> bool:
        if self._states is None:
            return False
        cpu_state, gpu_state = self._states
        torch.set_rng_state(cpu_state)
        if gpu_state is not None:
            torch.cuda.set_rng_state(gpu_state, self._device)
        return True


class _Fork:
    """Whether this process was forked: torch's lock may then be held by a thread that does not exist here."""

    happened = False

    def note(self) -> None:
        self.happened = True


_fork = _Fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork.note)

# Rows that are tried: a batch mean of 32 rows is far from one of 16, and dear models are not run for long.
_MOST_ROWS = 32
# How far outputs may differ, as a share of their spread: sums are rounded differently in batches of other sizes.
_SHARE_OF_SPREAD = 1e-3
# The same in units of the model's precision, for outputs that hardly differ from row to row.
_ROUNDING = 32
# Precision of products in TensorFloat-32.
_TF32_EPS = 2.0**-10

Outputs = Mapping[str, Tensor]


class NotAFunctionError(ValueError):
    """The model's output for a row is not determined by the row."""


def require_function_of_row(
    run: Visit,
    prepare: Callable[[Tensor], Tensor],
    rows: Tensor,
    outputs_of: Callable[[Any, int], Outputs],
    dtype: torch.dtype,
) -> None:
    """An error where running the model again, or beside other rows, or in a smaller batch gives something else."""
    rows = rows[:_MOST_ROWS]
    count = len(rows)
    first = outputs_of(run(prepare(rows)), count)
    with _other_numbers(rows.device, drawn=run.draws_numbers):
        again = outputs_of(run(prepare(rows)), count)

    tolerance = {path: _tolerance(output, dtype) for path, output in first.items()}
    difference = _worst(first, again, tolerance)
    if difference is not None:
        raise _not_deterministic(difference)

    half = (count + 1) // 2
    repeated = torch.arange(count, device=rows.device) % half
    for chosen in (repeated, repeated[:half]):
        if count < 2:
            break
        try:
            beside = outputs_of(run(prepare(rows[chosen])), len(chosen))
        except Exception:  # noqa: BLE001 - a model of one batch size; what else is wrong is said where it is run
            continue
        expected = {path: output[chosen.cpu()] for path, output in first.items()}
        difference = _worst(expected, beside, tolerance)
        if difference is not None and run.draws_numbers:
            raise _not_deterministic(difference)
        if difference is not None:
            raise NotAFunctionError(
                f"the model's output for a row depends on the other rows of its batch: it differs by up to "
                f"{difference:.3g} beside other rows. A batch mean, or batch normalisation without running statistics, "
                "does so; pass a model that treats each row by itself."
            )


def _not_deterministic(difference: float) -> NotAFunctionError:
    return NotAFunctionError(
        f"the model is not deterministic: its output for the same row differs by up to {difference:.3g} from one run "
        "to the next. Pass a model without random numbers or state in evaluation mode, or one that averages them out."
    )


@contextmanager
def _other_numbers(device: torch.device, *, drawn: bool) -> Iterator[None]:
    """Lets a model that draws random numbers draw others than before, and puts the generators back."""
    if not drawn:
        yield
        return
    gpus = [device] if device.type == "cuda" else []
    global_numbers = GlobalNumbers.now()
    try:
        with torch.random.fork_rng(devices=gpus):
            torch.rand(1, device=device)
            if global_numbers is not None:
                global_numbers.move_on()
            yield
    finally:
        if global_numbers is not None:
            global_numbers.rewind()


def _tolerance(output: Tensor, dtype: torch.dtype) -> float:
    """How far two runs may differ by rounding."""
    # Models of other libraries take doubles and may work in single precision.
    eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    if torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32:
        eps = max(eps, _TF32_EPS)
    known = output[output.isfinite()]
    if not known.numel():
        return 0.0
    spread = float(_spread(output))
    size = float(known.abs().max())
    return max(_SHARE_OF_SPREAD, _ROUNDING * eps) * spread + _ROUNDING * eps * size


def _spread(output: Tensor) -> Tensor:
    """The largest range of an output over the rows."""
    low = torch.where(output.isfinite(), output, torch.inf).amin(0)
    high = torch.where(output.isfinite(), output, -torch.inf).amax(0)
    return (high - low).clamp_min(0.0).max()


def _worst(expected: Outputs, repeated: Outputs, tolerance: Mapping[str, float]) -> float | None:
    """The largest difference where one is beyond tolerance; infinite where outputs are missing or no numbers."""
    for path, output in expected.items():
        other = repeated.get(path)
        if other is None or other.shape != output.shape:
            return torch.inf
        same = (output == other) | (output.isnan() & other.isnan())
        differences = torch.where(same, 0.0, (output - other).abs())
        largest = float(differences.nan_to_num(nan=torch.inf).max())
        if largest > tolerance[path]:
            return largest
    return None
