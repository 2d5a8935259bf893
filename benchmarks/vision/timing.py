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
BATCHES, TURNS = 2, 5


def milliseconds(scene: Scene, name: str) -> float:
    """Median over batches; processor time, since the machine may have other work."""
    method = timed_method(scene, name)
    images, target = scene.images[: BATCH * BATCHES], scene.target[: BATCH * BATCHES]
    took = []
    for turn in range(TURNS + 1):
        for start in range(0, len(images), BATCH):
            here = slice(start, start + BATCH)
            began = time.process_time()
            method(images[here], target[here])
            if turn:  # the first warms up
                took.append(1e3 * (time.process_time() - began) / len(images[here]))
    return statistics.median(took)


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
