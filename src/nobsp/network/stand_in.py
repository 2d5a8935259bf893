"""A stand-in for a model: its modules copied, its parameters shared, so that the model itself is never touched.

Whatever happens to a stand-in (evaluation mode, hooks, written buffers), and however it ends (an exception, Ctrl-C, a
fork), the model keeps its flags, buffers and hooks, because nobody changed them.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

# Objects looked at, at most, in search of a way from a copy back to the model: some tens of milliseconds.
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
# How deep modules are looked for in lists, dictionaries and partial functions; they may hold themselves.
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
    """Copies of the modules of a model, in evaluation mode, with its parameters and with buffers of their own."""

    model: nn.Module
    copies: Mapping[int, nn.Module]  # by the id of the module that each stands for

    def copy_of(self, part: nn.Module) -> nn.Module:
        """What stands for a module of the model."""
        return self.copies[id(part)]


def make_stand_in(model: nn.Module) -> StandIn | None:
    """A stand-in for `model`; None where something would lead from the copies back to the model itself."""
    parts = list(model.modules())
    kinds = {type(part) for part in parts}
    if not all(_can_be_copied(kind) for kind in kinds):
        return None

    # Wrappers are left out: a copy runs eagerly and in this process.
    inner = {id(part): unwrap(part) for part in parts}
    try:
        shells = {id(part): object.__new__(type(part)) for part in inner.values()}
    except TypeError:  # a class with memory of its own, made in C
        return None

    copies = {own: shells[id(part)] for own, part in inner.items()}
    rewrite = _Rewrite(copies, {})
    for part in parts:
        for buffer in part._buffers.values():
            rewrite.buffer(buffer)
    slots = {kind: _slots(kind) for kind in {type(part) for part in inner.values()}}
    references: list[Any] = []
    for part in {id(part): part for part in inner.values()}.values():
        references += _fill(shells[id(part)], part, slots[type(part)], rewrite)

    known = {id(shell): shell for shell in shells.values()}
    if _lead_to(references, {id(part) for part in parts}, known):
        return None
    return StandIn(copies[id(model)], copies)


def _can_be_copied(kind: type) -> bool:
    """Whether instances are told by their attributes alone."""
    if issubclass(kind, torch.jit.ScriptModule) or hasattr(kind, "__del__"):
        return False
    # These keep their state elsewhere, by the module's identity.
    return not any(base.__module__.startswith("torch.distributed.") for base in kind.__mro__)


def _fill(shell: nn.Module, part: nn.Module, slots: Iterable[str], rewrite: _Rewrite) -> list[Any]:
    """Give a copy the attributes of what it stands for; what it then refers to beside its tensors and submodules."""
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
        """The same value, with copies in the place of modules; only what holds some is made anew."""
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
    """What an object refers to; of a function what it closes over, and the modules among its globals."""
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
