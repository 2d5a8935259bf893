"""The model is a guest: it is run, watched and left exactly as it came.

So are random numbers and torch's modes.

Forward passes run in a stand-in, so that nothing has to be put back. Where none can be made,
because the model refers to itself in ways that cannot be copied, the model is guarded during each
single pass.

Random numbers that a model draws in evaluation mode are noticed on every pass, and put back. Where
nobody else can draw meanwhile, states are compared before and after. If other threads may draw
numbers, or the process was forked, we do not read torch's state (its lock may be held); we watch
operations and save the state just before the first draw.

In this order: torch's modes, the visit, random numbers, the stand-in, layers and devices, counts.
"""

from __future__ import annotations

import copy
import functools
import gc
import os
import random
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from threading import local
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
)

from nobsp.arguments import quote
from nobsp.network.guard import Guard

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

Hook = Callable[..., Any]

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


def run_and_restore(work: Callable[[], Result], restore: Callable[[], object]) -> Result:
    """What `work` returns; afterwards all is put back, also when it raises or is interrupted.

    `restore` is called twice, as an interrupt may come in the middle of it: it must be such that it
    can be done any number of times.
    """
    try:
        try:
            return work()
        finally:
            restore()
    finally:
        restore()


def keeps_torch_modes(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, with torch's modes restored after it, even if it raises or is interrupted."""

    @wraps(function)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        modes = TorchModes.now()

        def run() -> Result:
            _ignore_default_device()
            return function(*args, **kwargs)

        return run_and_restore(run, modes.restore)

    return guarded


def in_ordinary_modes(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, run without gradients, autocast and inference mode.

    These modes of the caller are switched off for its duration.
    """

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
    # Torch's own object, which begins when it is made, in place of `torch.inference_mode`, whose
    # lines can be interrupted; it may be ended twice.
    no_inference: Any = None

    def run() -> Result:
        nonlocal no_inference
        if torch.is_inference_mode_enabled():
            no_inference = torch._C._InferenceMode(False)
        ordinary.restore()
        _ignore_default_device()
        return work()

    def restore() -> None:
        if no_inference is not None:
            no_inference.__exit__(None, None, None)
        modes.restore()

    return run_and_restore(run, restore)


class _NewTensors(TorchFunctionMode):
    """Puts tensors that are made on a device, unless they say where they belong."""

    def __init__(self, device: torch.device, *, of_caller: torch.device) -> None:
        super().__init__()
        self.device = device
        self.of_caller = of_caller  # where the caller wants them

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The result of the call, with a device where it has none."""
        options = dict(kwargs or {})
        if func in _device_constructors() and options.get("device") is None:
            options["device"] = self.device
        return func(*args, **options)


def _ignore_default_device() -> None:
    """Makes new tensors on the processor, wherever the caller wants them.

    `TorchModes.restore` ends it.
    """
    if torch._C._len_torch_function_stack() == 0:
        return
    of_caller = torch.get_default_device()
    if of_caller.type != "cpu":
        mode = _NewTensors(torch.device("cpu"), of_caller=of_caller)
        torch._C._push_on_torch_function_stack(mode)


def _device_of_caller() -> torch.device | None:
    """Where the caller makes new tensors, if that is elsewhere than on the processor."""
    depth = torch._C._len_torch_function_stack()
    modes = [torch._C._get_function_stack_at(level) for level in range(depth)]
    ours = [mode for mode in modes if isinstance(mode, _NewTensors)]
    return ours[-1].of_caller if ours else None


def _as_caller_makes_tensors() -> Any:
    """The caller's default device for the time of a pass: a model may make tensors too."""
    device = _device_of_caller()
    return nullcontext() if device is None else _NewTensors(device, of_caller=device)


def _on_processor(hook: Hook) -> Hook:
    """A hook that makes its tensors on the processor, though called in the middle of a pass."""

    @wraps(hook)
    def guarded(*args: Any, **options: Any) -> Any:
        device = _device_of_caller()
        if device is None:
            return hook(*args, **options)
        with _NewTensors(torch.device("cpu"), of_caller=device):
            return hook(*args, **options)

    return guarded


# ---------------------------------------------------------------------- the visit


Side = Literal["output", "input"]


class Visit:
    """Runs a model in evaluation mode, in any number of threads.

    Observers that are registered here see its modules.
    """

    def __init__(self, model: nn.Module, *, gradients: bool = False) -> None:
        self.model = model
        self.gradients = gradients
        self.draws_numbers = False  # whether the model has drawn random numbers so far
        # Buffers that are copied in inference mode could not be used for gradients.
        self._stand_in = run_in_ordinary_modes(lambda: make_stand_in(model))
        self._observers: list[Observer] = []

    def __call__(self, x: Tensor) -> Any:
        """The result of one forward pass."""
        count_rows(len(x))
        with (
            _ordinary_precision(x.device),
            _eagerly(self._runs_compiled_code()),
            _as_caller_makes_tensors(),
        ):
            return _in_grad_mode(self.gradients, lambda: self._forward(x))

    def part(self, module: nn.Module) -> nn.Module:
        """The module that is run in place of a module of the model."""
        return module if self._stand_in is None else self._stand_in.copy_of(module)

    @contextmanager
    def observing(self, part: nn.Module, side: Side, hook: Hook) -> Iterator[None]:
        """Calls `hook` before a module runs, with its keywords, or after it has run."""
        observer = Observer(self.part(part), side, _on_processor(hook))
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

        def run() -> Any:
            with draws:
                return self._run(x)

        def rewind() -> None:
            self.draws_numbers |= draws.rewind()

        return run_and_restore(run, rewind)

    def _run(self, x: Tensor) -> Any:
        if self._stand_in is not None:
            return self._stand_in.model(x)

        # Hooks of its own, so that the guard of another thread does not take them away.
        observers = [observer.copy() for observer in self._observers]
        guard = Guard(self.model, observers)

        def run() -> Any:
            guard.begin()
            return self.model(x)

        return run_and_restore(run, guard.end)

    def _runs_compiled_code(self) -> bool:
        """Whether a compiled part is run.

        It would not call hooks that were registered after it was compiled.
        """
        if self._stand_in is not None:
            return False
        parts = self.model.modules()
        return any(is_compiled(part) or part._compiled_call_impl is not None for part in parts)


@dataclass(eq=False)
class Observer:
    """A hook and the module it is for."""

    part: nn.Module
    side: Side
    hook: Hook

    def copy(self) -> Observer:
        """The same with a hook that can be told from this one's."""
        return Observer(self.part, self.side, partial(self.hook))

    def register(self) -> Any:
        """Lets the module call the hook; what is returned ends that."""
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
    """Runs work with or without gradients.

    The caller's grad mode and dispatch modes are as before, also when it is interrupted.
    """
    before = torch.is_grad_enabled()
    modes = len(_get_current_dispatch_mode_stack())

    def run() -> Any:
        torch._C._set_grad_enabled(gradients)
        return work()

    def restore() -> None:
        torch._C._set_grad_enabled(before)
        while len(_get_current_dispatch_mode_stack()) > modes:
            _pop_mode()

    return run_and_restore(run, restore)


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


# ---------------------------------------------------------------------- random numbers


# Of each operation whether it draws random numbers; there are a few hundred.
_is_random: dict[Any, bool] = {}


class Draws:
    """Watches one forward pass; afterwards all random numbers are as before."""

    def __init__(self, device: torch.device) -> None:
        self._happened: bool | None = None  # None until all is put back
        self._global_numbers = GlobalGeneratorStates.now()
        self._watch: _States | _DrawWatcher
        if self._global_numbers is not None and not _fork.happened and device.type == "cpu":
            self._watch = _States()
        else:
            self._watch = _DrawWatcher(device)

    def __enter__(self) -> None:
        self._watch.__enter__()

    def __exit__(self, *failure: Any) -> None:
        self._watch.__exit__(*failure)

    def rewind(self) -> bool:
        """Puts back what was changed, and says whether anything was.

        This may be done again where it was interrupted.
        """
        if self._happened is None:
            drew_here = self._watch.rewind()
            drew_globally = self._global_numbers is not None and self._global_numbers.rewind()
            self._happened = drew_here or drew_globally
        return self._happened


@dataclass(frozen=True, eq=False)
class GlobalGeneratorStates:
    """The states of numpy's and Python's global generators at one moment."""

    numpy_state: Any
    python_state: Any

    @classmethod
    def now(cls) -> GlobalGeneratorStates | None:
        """The states; None where other threads may draw as well.

        Rewinding would repeat the numbers that these draw.
        """
        if threading.active_count() > 1:
            return None
        # the global one is meant
        return cls(np.random.get_state(), random.getstate())  # noqa: NPY002

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
    is_like = name == other_name and others == other_others
    # Bytes are compared several times as fast as numbers, and this is done before and after every
    # pass.
    return is_like and bool(words.tobytes() == other_words.tobytes())


class _States:
    """Compares torch's state before and after."""

    def __init__(self) -> None:
        self._state = torch.get_rng_state()

    def __enter__(self) -> None:
        """Begins to watch."""

    def __exit__(self, *failure: Any) -> None:
        """Ends it."""

    def rewind(self) -> bool:
        # Not by an operation of torch: whoever records those of the pass would see it, but not
        # beside other threads.
        if self._state.numpy().tobytes() == torch.get_rng_state().numpy().tobytes():
            return False
        torch.set_rng_state(self._state)
        return True


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every operation of torch.

    Torch imports its compiler (about 1 s) only to exclude these methods. If nobody has imported it,
    we skip that.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        plain = cls.__dict__.get("__torch_dispatch__")
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        if plain is not None:
            hidden = cls.__dict__["__torch_dispatch__"]
            cls.__torch_dispatch__ = _hidden_if_needed(plain, hidden)  # type: ignore[method-assign]


def _hidden_if_needed(plain: Callable[..., Any], hidden: Callable[..., Any]) -> Callable[..., Any]:
    """A method as written, or as torch hides it once torch's compiler is loaded."""

    @wraps(plain)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        method = hidden if "torch._dynamo" in sys.modules else plain
        return method(*args, **kwargs)

    return dispatch


class _DrawWatcher(DispatchMode):
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
    """Whether this process was forked.

    Torch's lock may then be held by a thread that does not exist here.
    """

    happened = False

    def note(self) -> None:
        self.happened = True


_fork = _Fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork.note)

# -------------------------------------------------- the stand-in: modules copied, parameters shared


# Objects looked at, at most, in search of a way from a copy back to the model: some tens of
# milliseconds.
_MOST_OBJECTS = 50_000
# What leads to no module, or to what no forward pass runs.
_LEAVES = (
    *(str, bytes, int, float, complex, type(None), type, range, slice),
    *(ModuleType, CodeType, Tensor, np.ndarray, torch.dtype, torch.device, torch.fx.Graph),
)
# The commonest of these, told quickly.
_PLAIN = frozenset((type(None), bool, int, float, str, torch.dtype, torch.device))
# The dictionaries of hooks that every module has.
_HOOKS = frozenset(
    name
    for name in vars(nn.Module())
    if name.endswith(("_hooks", "_with_kwargs", "_always_called"))
)
# How deep modules are looked for in lists, dictionaries and partial functions; they may hold
# themselves.
_DEEPEST = 4
# What `_fill` sets by name; all other attributes are looked at one by one.
_FILLED = frozenset(
    (
        *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"),
        *("training", "_compiled_call_impl"),
    )
)


@dataclass(frozen=True, eq=False)
class StandIn:
    """Copies of a model's modules in evaluation mode, with its parameters and their own buffers."""

    model: nn.Module
    copies: Mapping[int, nn.Module]  # by the id of the module that each stands for

    def copy_of(self, part: nn.Module) -> nn.Module:
        """What stands for a module of the model."""
        return self.copies[id(part)]


def make_stand_in(model: nn.Module) -> StandIn | None:
    """A stand-in for `model`; None where the copies would lead back to the model itself."""
    parts = list(model.modules())
    kinds = {type(part) for part in parts}
    if not all(_can_be_copied(kind) for kind in kinds):
        return None

    # Wrappers are left out: a copy runs eagerly and in this process.
    unwrapped = {id(part): unwrap(part) for part in parts}
    distinct = {id(part): part for part in unwrapped.values()}
    try:
        shells = {own_id: object.__new__(type(part)) for own_id, part in distinct.items()}
    except TypeError:  # a class with memory of its own, made in C
        return None

    copies = {original_id: shells[id(part)] for original_id, part in unwrapped.items()}
    rewrite = _Rewrite(copies, {})
    for part in parts:
        for buffer in part._buffers.values():
            rewrite.buffer(buffer)

    references = _fill_all(shells, distinct, rewrite)
    known = {id(shell): shell for shell in shells.values()}
    if _lead_to(references, {id(part) for part in parts}, known):
        return None
    return StandIn(copies[id(model)], copies)


def _fill_all(
    shells: Mapping[int, nn.Module], originals: Mapping[int, nn.Module], rewrite: _Rewrite
) -> list[Any]:
    """Give all copies the attributes of what they stand for; what they then refer to."""
    kinds = {type(part) for part in originals.values()}
    slots = {kind: _slots(kind) for kind in kinds}
    references: list[Any] = []
    for original_id, part in originals.items():
        references += _fill(shells[original_id], part, slots[type(part)], rewrite)
    return references


def _can_be_copied(kind: type) -> bool:
    """Whether instances are told by their attributes alone."""
    if issubclass(kind, torch.jit.ScriptModule) or hasattr(kind, "__del__"):
        return False
    # These keep their state elsewhere, by the module's identity.
    return not any(base.__module__.startswith("torch.distributed.") for base in kind.__mro__)


def _fill(shell: nn.Module, part: nn.Module, slots: Iterable[str], rewrite: _Rewrite) -> list[Any]:
    """Gives a copy the attributes of what it stands for, and returns what it then refers to.

    Its tensors and submodules are not among that.
    """
    for name in slots:
        if hasattr(part, name):
            object.__setattr__(shell, name, getattr(part, name))

    attributes = vars(part)
    state = vars(shell)
    state.update(attributes)
    state["training"] = False
    state["_compiled_call_impl"] = None
    state["_parameters"] = attributes["_parameters"].copy()
    buffers = attributes["_buffers"]
    state["_buffers"] = {name: rewrite.buffer(own) for name, own in buffers.items()}
    children = attributes["_modules"]
    state["_modules"] = {name: rewrite.copies.get(id(own), own) for name, own in children.items()}
    state["_non_persistent_buffers_set"] = attributes["_non_persistent_buffers_set"].copy()

    references: list[Any] = []
    for name, value in attributes.items():
        # Most attributes are flags, numbers and empty dictionaries of hooks.
        if type(value) in _PLAIN or name in _FILLED:
            continue
        if name in _HOOKS:
            # Always a dictionary of its own: observers are registered in it.
            state[name] = type(value)()
            if value:
                state[name].update(rewrite.value(value))
                references.append(state[name])
            continue
        state[name] = rewrite.value(value)
        if not _is_plain_tuple(value):
            references.append(state[name])
    return [] if getattr(type(part), "refers_to_no_module", False) else references


def _is_plain_tuple(value: Any) -> bool:
    """Whether it is a tuple of flags, numbers and texts, such as the size of a kernel."""
    return type(value) is tuple and _PLAIN.issuperset(map(type, value))


def _slots(kind: type) -> tuple[str, ...]:
    """Names of attributes that are not in the dictionary of an instance."""
    declared = [base.__dict__.get("__slots__", ()) for base in kind.__mro__]
    names = [name for slots in declared for name in ((slots,) if isinstance(slots, str) else slots)]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@dataclass(frozen=True, eq=False)
class _Rewrite:
    """Replaces modules by their copies in what modules hold."""

    copies: Mapping[int, nn.Module]
    buffers: dict[int, Tensor]

    def buffer(self, tensor: Tensor | None) -> Tensor | None:
        """A copy of a buffer, the same wherever the buffer is."""
        if tensor is None:
            return tensor
        copy = self.buffers.get(id(tensor))
        if copy is None:
            if torch.nn.parameter.is_lazy(tensor):
                return tensor
            copy = tensor.detach().clone()
            self.buffers[id(tensor)] = copy
        return copy

    def value(self, value: Any, depth: int = 0) -> Any:
        """The same value, with copies in place of modules; only what holds some is made anew."""
        if depth > _DEEPEST:
            return value
        if isinstance(value, nn.Module):
            return self.copies.get(id(value), value)
        if isinstance(value, Tensor):
            return self.buffers.get(id(value), value)
        if isinstance(value, MethodType) and id(value.__self__) in self.copies:
            return MethodType(value.__func__, self.copies[id(value.__self__)])
        if type(value) is functools.partial:
            return self._partial(value, depth)
        if type(value) in (list, tuple):
            items = [self.value(item, depth + 1) for item in value]
            return value if _same(items, value) else type(value)(items)
        if type(value) in (dict, OrderedDict):
            items = [self.value(item, depth + 1) for item in value.values()]
            if _same(items, value.values()):
                return value
            return type(value)(zip(value, items, strict=True))
        return value

    def _partial(self, value: functools.partial[Any], depth: int) -> functools.partial[Any]:
        function = self.value(value.func, depth + 1)
        arguments = self.value(value.args, depth + 1)
        keywords = self.value(value.keywords, depth + 1)
        if _same((function, arguments, keywords), (value.func, value.args, value.keywords)):
            return value
        return functools.partial(function, *arguments, **keywords)


def _same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(first is second for first, second in zip(some, others, strict=True))


def _lead_to(roots: Iterable[Any], targets: set[int], known: Mapping[int, Any]) -> bool:
    """Whether a chain of references leads from the roots to a target, or is too long to tell."""
    waiting = list(roots)
    seen: dict[int, Any] = dict(known)
    while waiting:
        value = waiting.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        if id(value) in targets or len(seen) - len(known) > _MOST_OBJECTS:
            return True
        seen[id(value)] = value
        waiting.extend(_references(value))
    return False


def _references(value: Any) -> Iterable[Any]:
    """What an object refers to.

    Of a function, it is what it closes over, and the modules among its globals.
    """
    if isinstance(value, weakref.ref):
        return [value()]
    if not isinstance(value, FunctionType):
        return gc.get_referents(value)
    names = _global_names(value.__code__)
    modules = (value.__globals__.get(name) for name in names)
    return [
        *(value.__closure__ or ()),
        *(value.__defaults__ or ()),
        *(value.__kwdefaults__ or {}).values(),
        *vars(value).values(),
        *(module for module in modules if isinstance(module, nn.Module)),
    ]


def _global_names(code: CodeType) -> set[str]:
    """Names that a function looks up, those of functions inside it included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def is_compiled(part: nn.Module) -> bool:
    """Whether `part` came out of `torch.compile`, asked without loading the slow compiler."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(part, compiler.OptimizedModule)


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and parallel wrappers.

    These do not run the hooks of the original.
    """
    while True:
        if is_compiled(model):
            model = cast(nn.Module, model._orig_mod)
        elif isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        else:
            return model


def plain_name(name: str) -> str:
    """A module's name without what `torch.compile` puts into it."""
    return (name + ".").replace("_orig_mod.", "").rstrip(".")


# ---------------------------------------------------------------------- layers and devices


T = TypeVar("T")


@contextmanager
def evaluation_mode(module: nn.Module, *, gradients: bool = False) -> Iterator[Visit]:
    """Hands out what runs the model in evaluation mode; the model itself is left as it is.

    Visits may nest and overlap in threads. `gradients` builds graphs.
    """
    yield Visit(module, gradients=gradients)


def device_and_dtype(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and floating dtype of a module's input: those of its first floating tensor."""
    tensors = [*module.parameters(), *module.buffers()]
    for tensor in tensors:
        if tensor.is_meta:
            raise ValueError("model has no weights: it is on the device 'meta'; load them first.")
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return (tensors[0].device if tensors else torch.device("cpu")), torch.get_default_dtype()


def checked_device(device: torch.device | str | int | None, home: torch.device) -> torch.device:
    """The device that `device=` names, or the model's; an error where that cannot run anything."""
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
    """A copy of what holds a module, with the module's copy on another device.

    The module itself is not moved.
    """
    memo: dict[int, Any] = {}
    try:
        other = copy.deepcopy(holder, memo)
    except Exception as failure:
        raise ValueError(
            f"device={str(device)!r} needs a copy of the model, which cannot be copied "
            f"({failure}); move the model yourself, model.to(device), and leave device out."
        ) from failure
    memo[id(module)].to(device)
    return other


def portable(holder: T, module: nn.Module) -> T:
    """What holds a module, with the module on the CPU; a copy where it is elsewhere.

    A worker may not have the GPU that it is on.
    """
    tensors = (*module.parameters(), *module.buffers())
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return holder
    return copied_to(holder, module, torch.device("cpu"))


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
    """Shows `see` what modules are given or return; what it returns takes its place.

    This is done in threads that set `.on`.

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
    # Another thread, whose forward pass meets this hook half registered, may call it without
    # kwargs.
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
    """Hands out `catch(work, value=None)`: what `work` returns, and the tensor that passes.

    A value replaces that tensor.
    """
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
                    f"{position.name!r} was called {len(caught)} times for this batch, fewer than "
                    "on the probe; pass a model whose forward pass does not depend on the data, "
                    "and call this inside its with block."
                )
            return result, caught[position.call]

        yield catch


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Lets torch use `count` threads, and as many as before afterwards; None changes nothing."""
    if count is None:
        yield
        return

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


class OperationCounter(DispatchMode):
    """Counts multiplications and additions, without hooks on modules.

    Torch's own counter puts such hooks there.
    """

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


# ----------------------------------------------------------------- rows that went through the model


@dataclass
class Passes:
    """What was run in one thread."""

    rows: int = 0  # rows that went forward through the model, or through its last layers alone
    gradients: int = 0  # gradients, one for each row and each number that was differentiated


_counted: ContextVar[tuple[Passes, ...]] = ContextVar("_counted", default=())


@contextmanager
def counting_passes() -> Iterator[Passes]:
    """Hand out a count of what is run inside; counts inside counts see the same."""
    passes = Passes()
    token = _counted.set((*_counted.get(), passes))
    try:
        yield passes
    finally:
        _counted.reset(token)


def count_rows(rows: int) -> None:
    """Note rows that went forward."""
    for passes in _counted.get():
        passes.rows += rows


def count_gradients(rows: int) -> None:
    """Note gradients of rows."""
    for passes in _counted.get():
        passes.gradients += rows
