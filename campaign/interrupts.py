"""Ctrl-C at random moments of fit, call, cam and query: everything is as before, and the next call works."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

import nobsp
from campaign.outcome import Outcome, defect, describe, right, unreached
from campaign.part import Part, generator
from campaign.subjects import Surroundings, make_images, make_rows, seeded

# Layers of the network: the more modules there are, the longer it takes to set their modes.
LAYERS = 40


@dataclass(frozen=True)
class Work:
    """A call that is interrupted."""

    name: str
    call: Callable[[], Any]
    models: tuple[nn.Module, ...]
    seconds: float  # how long it takes undisturbed
    expected: np.ndarray


def _deep_network() -> nn.Module:
    with seeded(0):
        layers: list[nn.Module] = [nn.Linear(3, 8)]
        for _ in range(LAYERS):
            layers += [nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 8)]
        model = nn.Sequential(*layers, nn.Linear(8, 2))
    model.train()
    return model


def _deep_image_network() -> nn.Module:
    with seeded(0):
        layers: list[nn.Module] = [nn.Conv2d(1, 4, 3, padding=1)]
        for _ in range(LAYERS // 4):
            layers += [nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(4, 4, 3, padding=1)]
        model = nn.Sequential(
            *layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        )
    model.train()
    return model


@cache
def works() -> tuple[Work, ...]:
    """All calls with what they give when nobody interrupts."""
    network = _deep_network()
    rows = make_rows(rows=60)
    images = make_images(images=8)
    image_network = _deep_image_network()
    explainer = nobsp.NObSP(network, interactions=0, background=4).fit(rows)
    cam = nobsp.NObSPCam(image_network).fit(images)
    index = nobsp.ContributionIndex(explainer).fit(rows, np.arange(60) % 2)

    def fit() -> np.ndarray:
        found = nobsp.NObSP(network, interactions=0, background=4).fit(rows)
        values: np.ndarray = found(rows[:4]).values
        return values

    calls: tuple[tuple[str, Callable[[], Any], nn.Module], ...] = (
        ("fit", fit, network),
        ("call", lambda: explainer(rows).values, network),
        ("cam", lambda: cam(images).account, image_network),
        ("query", lambda: index.query(rows, 3).distances, network),
    )
    timed = []
    for name, call, model in calls:
        call()
        started = time.perf_counter()
        expected = call()
        timed.append(Work(name, call, (model,), time.perf_counter() - started, expected))
    return tuple(timed)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def run(seed: int, case: int) -> Outcome:
    """One interrupt: by turns a signal of another thread, as Ctrl-C sends it, and one of a timer."""
    rng = generator(seed, "interrupts", case)
    every = works()
    work = every[case % len(every)]
    delay = max(1e-5, float(rng.uniform(0.0, work.seconds)))
    real = case // len(every) % 2 == 0
    sender = "Ctrl-C" if real else "a timer"
    text = f"{work.name} interrupted by {sender} after {1000 * delay:.2f} of {1000 * work.seconds:.1f} ms"
    torch.manual_seed(case)
    earlier = Surroundings.now(work.models)
    interrupted = _run_interrupted(work.call, delay, real=real)
    if changes := Surroundings.now(work.models).changes_since(earlier):
        works.cache_clear()
        return defect(text, f"changed {', '.join(changes)}")
    try:
        values = work.call()
    except Exception as error:  # noqa: BLE001 - the next call must work
        works.cache_clear()
        return defect(text, f"the next call fails: {describe(error)}")
    if not np.allclose(values, work.expected, atol=1e-6):
        return defect(text, "the next call gives other numbers")
    return right(text) if interrupted else unreached(text, "the call had ended before")


def _run_interrupted(call: Callable[[], Any], delay: float, *, real: bool) -> bool:
    """Whether a call was interrupted; signals that come after it are waited for, and meet nothing."""
    number = signal.SIGINT if real else signal.SIGALRM
    former = signal.signal(number, _interrupt)
    sender = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    try:
        try:
            if real:
                sender.start()
            else:
                signal.setitimer(signal.ITIMER_REAL, delay)
            call()
        except KeyboardInterrupt:
            return True
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sender.cancel()
            if real:
                sender.join()
        except KeyboardInterrupt:
            pass
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, former)


PART = Part(
    name="interrupts",
    tried="Ctrl-C and a timer at random moments of fit, call, cam and query, of models with up to 120 layers",
    must="model, hooks, threads and random numbers as before; the next call works",
    count=800,
    sample=20,
    run=run,
    seconds=120.0,
)
