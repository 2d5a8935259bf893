"""How much processor time a map takes, forward pass included, through each method's own interface."""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.vision.candidates import ACCOUNT, BATCH, CHOSEN, PAPER, PROBABILITY
from benchmarks.vision.rivals import RIVALS, Method, rival
from benchmarks.vision.scenes import Scene
from nobsp.vision import NObSPCam

FORWARD = "forward pass alone"
BATCHES, TURNS = 2, 9


def times_forward(scene: Scene, name: str) -> tuple[float, float]:
    """Processor time of a method for one image, in milliseconds, and how many times that of the forward pass alone.

    The two run in turn on the same batches; medians.
    """
    method, forward = timed_method(scene, name), timed_method(scene, FORWARD)
    images, target = scene.images[: BATCH * BATCHES], scene.target[: BATCH * BATCHES]
    took, alone = [], []
    for turn in range(TURNS + 1):
        for start in range(0, len(images), BATCH):
            here = slice(start, start + BATCH)
            for run, times in ((forward, alone), (method, took)):
                began = time.process_time()
                run(images[here], target[here])
                if turn:  # the first warms up
                    times.append(1e3 * (time.process_time() - began) / len(images[here]))
    return statistics.median(took), statistics.median(
        a / b for a, b in zip(took, alone, strict=True)
    )


def timed_method(scene: Scene, name: str) -> Method:
    """A method as people call it. Calibration is not timed, so any images do for it."""
    if name in RIVALS:
        return rival(scene.setting, name)
    model = scene.setting.model
    if name == FORWARD:
        return torch.no_grad()(lambda images, _: model(images).numpy())
    head = NObSPCam(model, coefficients="head").fit(scene.images[:BATCH])
    maps = {
        PAPER: lambda images, target: head(images, target).positive,
        ACCOUNT: lambda images, target: head(images, target).account,
        PROBABILITY: lambda images, target: head(images, target, scale="probability").account,
        CHOSEN: lambda images, target: head.removal(images, target).importance,
    }
    return maps[name]
