"""Ctrl-C at any line of fit, explain, maps and query: model, torch's modes and random numbers are as before.

KeyboardInterrupt is raised at sampled lines of the package, of contextlib and of torch, and what is told is seen inside
the caller's `except`, when nothing has been collected yet.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nobsp

# Lines that are interrupted in each call; evenly spread, from a start that differs for each call.
SAMPLES = 48
# Files whose lines are interrupted.
FILES = ("/nobsp/", "/torch/", "contextlib.py")
# These are run while Python imports or compares; they are no part of a call.
NOT_FILES = ("<frozen", "/torch/_dynamo/", "/torch/testing/")

# Python cannot raise where it runs the callback of a weak reference, and says so instead.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Tracer:
    """Counts lines of the watched files, and interrupts one of them."""

    def __init__(self, interrupted_line: int | None = None) -> None:
        self.interrupted_line = interrupted_line
        self.lines = 0
        self.position = "no line"
        self._watched: dict[str, bool] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        watched = self._watched.get(name)
        if watched is None:
            path = name.replace(os.sep, "/")
            watched = any(part in path for part in FILES) and not any(
                part in path for part in NOT_FILES
            )
            self._watched[name] = watched
        if not watched:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.interrupted_line:
                self.position = f"{name}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@dataclass(frozen=True)
class Call:
    """Something to interrupt, and the model that it is about."""

    model: nn.Module
    work: Callable[[], Any]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2)]
    return nn.Sequential(*layers).train()


def picture_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(4, 2),
    ).train()


def fit_call() -> Call:
    model = network()
    rows = np.random.default_rng(0).normal(size=(80, 3))
    return Call(model, lambda: nobsp.NObSP(model, interactions=0).fit(rows))


def explain_call() -> Call:
    model = network()
    rows = np.random.default_rng(0).normal(size=(80, 3))
    explainer = nobsp.NObSP(model, interactions=0).fit(rows)
    return Call(model, lambda: explainer(rows[:20]))


def cam_call() -> Call:
    model = picture_network()
    images = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    cam = nobsp.NObSPCam(model).fit(images)
    return Call(model, lambda: cam(images[:4]))


def cam_fit_call() -> Call:
    model = picture_network()
    images = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Call(model, lambda: nobsp.NObSPCam(model).fit(images))


def query_call() -> Call:
    model = picture_network()
    images = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    cam = nobsp.NObSPCam(model).fit(images)
    index = nobsp.ContributionIndex(cam).fit(images, np.arange(12) % 2)
    return Call(model, lambda: index.query(images[:3], k=2))


def state_of(model: nn.Module) -> dict[str, Any]:
    """Everything that a call must leave alone."""
    parts = list(model.modules())
    return {
        "training": [part.training for part in parts],
        "hooks": [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in parts],
        "tensors": [value.tolist() for value in model.state_dict().values()],
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(),
        "torch's numbers": torch.get_rng_state().tolist(),
        "numpy's numbers": [
            part.tolist() if isinstance(part, np.ndarray) else part
            for part in np.random.get_state()  # noqa: NPY002 - the global one is meant
        ],
        "Python's numbers": random.getstate(),
    }


def run_traced(work: Callable[[], Any], tracer: Tracer, seen: Callable[[], Any]) -> Any:
    """Runs under a tracer; what is seen right where the interrupt is caught, or at the end."""
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
    except KeyboardInterrupt:
        sys.settrace(before)
        return seen()
    finally:
        sys.settrace(before)
    return seen()


@pytest.mark.parametrize("make", [fit_call, explain_call, cam_fit_call, cam_call, query_call])
@pytest.mark.parametrize("surroundings", ["plain", "inference mode", "autocast"])
def test_an_interrupted_call_leaves_everything_as_it_was(
    make: Callable[[], Call], surroundings: str
) -> None:
    call = make()
    call.work()  # whatever is imported or cached at the first time
    before = state_of(call.model)
    whole = Tracer()
    run_traced(call.work, whole, lambda: None)
    samples = SAMPLES if surroundings == "plain" else SAMPLES // 3
    step = whole.lines / samples
    first = random.Random(make.__name__ + surroundings).uniform(0.0, step)

    for number in range(samples):
        tracer = Tracer(int(first + number * step) + 1)
        with surrounding(surroundings):
            expected = state_of(call.model)
            after = run_traced(call.work, tracer, lambda: state_of(call.model))
        changed = [name for name, value in after.items() if value != expected[name]]
        assert changed == [], f"interrupted at {tracer.position}"

    assert state_of(call.model) == before
    call.work()


def surrounding(name: str) -> Any:
    """What the caller has switched on."""
    if name == "inference mode":
        return torch.inference_mode()
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=name == "autocast")
