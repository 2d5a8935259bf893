"""Random numbers that a model draws in evaluation mode are noticed on every pass, and put back.

Where nobody else can draw meanwhile, states are compared before and after. Otherwise rewinding would repeat the numbers
of other threads, and even asking torch for its state takes a lock that another thread, or one that a fork has left
behind, may hold: operations are watched then, and nothing is asked for until the model draws.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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
