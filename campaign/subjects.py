"""Small models, rows and explainers that cases are tried on, and what must be left of them afterwards."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import nobsp

COLUMNS = ("age", "income", "rooms")
CLASSES = ("red", "green", "blue")
ROWS = 24
IMAGES = 10


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws torch's random numbers from a seed without changing anybody's state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def make_network(
    *, columns: int = 3, outputs: int = 3, hidden: int = 6, seed: int = 0
) -> nn.Module:
    """A small network on a table."""
    with seeded(seed):
        return nn.Sequential(nn.Linear(columns, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def make_image_network(*, outputs: int = 3, seed: int = 0) -> nn.Module:
    """A small network on images of one channel."""
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, outputs),
        )


def make_rows(*, rows: int = ROWS, columns: int = 3, seed: int = 0) -> np.ndarray:
    """Standard normal rows."""
    return np.random.default_rng(seed).normal(size=(rows, columns))


def make_images(*, images: int = IMAGES, size: int = 8, seed: int = 0) -> torch.Tensor:
    """Images of one channel."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(images, 1, size, size, generator=generator)


@dataclass(frozen=True)
class World:
    """Everything that public functions are called on; made once a process."""

    network: nn.Module
    X: np.ndarray
    frame: pd.DataFrame
    labels: np.ndarray
    explainer: Any
    compiled: Any
    explanation: Any
    image_network: nn.Module
    images: torch.Tensor
    cam: Any
    maps: Any
    index: Any
    hits: Any
    audit: Any

    @property
    def models(self) -> tuple[nn.Module, ...]:
        """The modules that belong to the caller."""
        return (self.network, self.image_network)


@cache
def world() -> World:
    """The subjects of this process."""
    network = make_network()
    X = make_rows()
    frame = pd.DataFrame(X, columns=list(COLUMNS))
    labels = np.arange(ROWS) % len(CLASSES)
    pairs = [("age", "income")]
    explainer = nobsp.NObSP(
        network, features=list(COLUMNS), background=4, interactions=pairs, output_names=CLASSES
    ).fit(X)
    image_network = make_image_network()
    images = make_images()
    cam = nobsp.NObSPCam(image_network, output_names=CLASSES).fit(images)
    index = nobsp.ContributionIndex(explainer).fit(X, labels)
    return World(
        network=network,
        X=X,
        frame=frame,
        labels=labels,
        explainer=explainer,
        compiled=explainer.compile(),
        explanation=explainer(X),
        image_network=image_network,
        images=images,
        cam=cam,
        maps=cam(images),
        index=index,
        hits=index.query(X, 3),
        audit=nobsp.audit(index, X, labels, k=3),
    )


def fingerprint(value: Any) -> str:
    """A hash that changes whenever numbers of an array, a tensor or a frame do; of other values, nothing."""
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided and value.device.type == "cpu":
            detached = value.detach().contiguous()
            digest.update(repr((detached.dtype, tuple(detached.shape))).encode())
            if detached.numel():
                digest.update(detached.flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        digest.update(repr((value.dtype, value.shape)).encode())
        digest.update(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())
    elif isinstance(value, pd.DataFrame):
        digest.update(repr((list(value.columns), list(map(str, value.dtypes)))).encode())
        digest.update(repr(value.to_numpy().tolist()).encode())
    elif isinstance(value, list | tuple):
        for item in value:
            _add(digest, item)
    elif isinstance(value, nn.Module):
        digest.update(module_state(value).encode())


def module_state(model: nn.Module) -> str:
    """Weights, modes, gradients and hooks of a module."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.device} {tensor.dtype}".encode())
        if tensor.device.type == "cpu":
            digest.update(
                tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            )
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {parameter.requires_grad} {parameter.grad is None}".encode())
    for name, module in model.named_modules():
        hooks = (
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            len(module._backward_hooks),
            len(module._backward_pre_hooks),
        )
        digest.update(f"{name} {module.training} {hooks}".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Surroundings:
    """What a call may not change beside the model."""

    random_torch: str
    random_numpy: str
    random_python: int
    threads: int
    gradients: bool
    dtype: torch.dtype
    models: tuple[str, ...]

    @classmethod
    def now(cls, models: tuple[nn.Module, ...]) -> Surroundings:
        """As they are."""
        state = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one is what could change
        return cls(
            random_torch=fingerprint(torch.get_rng_state()),
            random_numpy=repr(state),
            random_python=hash(random.getstate()),
            threads=torch.get_num_threads(),
            gradients=torch.is_grad_enabled(),
            dtype=torch.get_default_dtype(),
            models=tuple(module_state(model) for model in models),
        )

    def changes_since(self, earlier: Surroundings) -> list[str]:
        """Names of what differs."""
        return [
            name
            for name in Surroundings.__dataclass_fields__
            if getattr(self, name) != getattr(earlier, name)
        ]
