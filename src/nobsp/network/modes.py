"""Torch's modes (gradients, autocast, number of threads) are as before when a call ends, however it ends.

Context managers put such modes back as well, but Ctrl-C may come while one of them begins or ends, and a generator that
was interrupted puts them back only when it is collected: after the caller's `except`, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

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

    @classmethod
    def now(cls) -> TorchModes:
        """Those of this thread."""
        return cls(
            gradients=torch.is_grad_enabled(),
            autocast=tuple(torch.is_autocast_enabled(device) for device in _AUTOCAST),
            threads=torch.get_num_threads(),
            dispatch_modes=len(_get_current_dispatch_mode_stack()),
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
