"""The guard of a model without a stand-in: its own modules run, and are put back after a pass."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from nobsp.network.guest import Observer


@dataclass(eq=False)
class _Noted:
    """The state of a module to which it returns when the last guard ends."""

    part: nn.Module
    training: bool
    # By name the buffer itself and a copy of its values.
    buffers: dict[str, tuple[Tensor | None, Tensor | None]]
    guards: set[Guard] = field(default_factory=set)

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
_noted_lock = threading.RLock()


class Guard:
    """Holds a model in evaluation mode and observed during one forward pass.

    Other threads may do the same.
    """

    def __init__(self, model: nn.Module, observers: Sequence[Observer]) -> None:
        self.thread = threading.get_ident()
        self.parts = list(model.modules())
        self.observers = observers  # no other guard's

    def begin(self) -> None:
        """Note, then change: what is not noted yet is not changed yet."""
        with _noted_lock:
            for part in self.parts:
                noted = _noted.get(id(part))
                if noted is None:
                    noted = _Noted.of(part)
                    _noted[id(part)] = noted
                noted.guards.add(self)
                # Not part.eval(): user code may override train() with side effects (merging
                # adapters, say).
                part.training = False
            for observer in self.observers:
                observer.register()

    def end(self) -> None:
        """Take hooks away, and restore what no other guard holds; this may be done again."""
        with _noted_lock:
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


def leave_other_threads_behind() -> None:
    """Ends the guards of threads that do not exist in a forked child.

    The lock that such threads may hold is renewed.
    """
    global _noted_lock
    _noted_lock = threading.RLock()
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
    os.register_at_fork(after_in_child=leave_other_threads_behind)
