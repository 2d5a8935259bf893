"""Explain, cam, query and fit in a loop: memory, threads, handles and hooks stay flat."""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass

import numpy as np

import nobsp
from campaign.outcome import Outcome, defect, right
from campaign.part import Part
from campaign.subjects import make_rows, world

# How long a whole run takes, and the sample of the tests.
MINUTES = float(os.environ.get("CAMPAIGN_MINUTES", "120"))
# Samples that a slope is fitted to; the first tenth is left out, in which caches fill.
SAMPLES = 200
WARM_UP = 0.2
# On a busy machine a short run goes on until it has so many: a slope needs some.
FEWEST_SAMPLES = 20
# Growth below this is the allocator's own: what it keeps for the next call differs from sample to sample.
NOISE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Sample:
    """What the process holds at a moment."""

    memory: float
    threads: float
    handles: float
    hooks: float


def _sample() -> Sample:
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    hooks = sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks)
        for model in world().models
        for module in model.modules()
    )
    return Sample(
        memory=float(pages * os.sysconf("SC_PAGE_SIZE")),
        threads=float(threading.active_count()),
        handles=float(len(os.listdir("/proc/self/fd"))),
        hooks=float(hooks),
    )


def _round(number: int) -> None:
    """One call of everything."""
    subjects = world()
    rows = make_rows(rows=24, seed=number % 7)
    subjects.explainer(rows)
    subjects.compiled(rows)
    subjects.cam(subjects.images)
    subjects.index.query(rows, 3)
    nobsp.NObSP(subjects.network, interactions=0, background=4).fit(rows)


def find_growth(values: np.ndarray, *, noise: float) -> str | None:
    """How much a series grows from its start to its end, if that is more than its own scatter and `noise`."""
    kept = values[int(WARM_UP * len(values)) :]
    places = np.arange(len(kept)) / max(len(kept) - 1, 1)
    slope, start = np.polyfit(places, kept, 1)
    scatter = float((kept - (start + slope * places)).std())
    if slope > max(3 * scatter, noise):
        return f"grows by {slope:,.0f} over the run (scatter {scatter:,.0f})"
    return None


def run(_: int, __: int) -> Outcome:
    """One run of so many minutes."""
    end = time.monotonic() + 60 * MINUTES
    samples: list[Sample] = []
    rounds = 0
    pause = 60 * MINUTES / SAMPLES
    following = time.monotonic()
    while time.monotonic() < end or len(samples) < FEWEST_SAMPLES:
        _round(rounds)
        rounds += 1
        if time.monotonic() >= following:
            samples.append(_sample())
            following += pause
    text = f"{rounds:,} rounds of five calls in {MINUTES:g} minutes"
    for name, noise in (
        ("memory", NOISE_BYTES),
        ("threads", 0.5),
        ("handles", 0.5),
        ("hooks", 0.5),
    ):
        series = np.array([getattr(sample, name) for sample in samples])
        if problem := find_growth(series, noise=noise):
            return defect(text, f"{name} {problem}")
    return right(text)


PART = Part(
    name="soak",
    tried="explain, functions, cam, query and fit in a loop",
    must="slopes of memory, threads, handles and hooks within their own scatter",
    count=1,
    sample=1,
    run=run,
    seconds=60 * MINUTES + 120,
)
