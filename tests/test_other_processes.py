"""What users hold goes to other processes: by pickle, by cloudpickle, and by a fork after it was used."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nobsp
from tests.processes import answer_of
from tests.tolerances import assert_same_to_rounding

ROWS = np.random.default_rng(0).normal(size=(80, 3))
IMAGES = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = np.arange(24) % 2


def explainer() -> nobsp.NObSP:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    return nobsp.NObSP(model, interactions=0).fit(ROWS)


def cam() -> nobsp.NObSPCam:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    return nobsp.NObSPCam(model).fit(IMAGES)


def index() -> nobsp.ContributionIndex:
    return nobsp.ContributionIndex(cam()).fit(IMAGES, LABELS)


# By name something to hold, and numbers that tell whether a copy is the same.
HELD: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "explainer": (explainer, lambda held: held(ROWS[:5]).values),
    "explanation": (lambda: explainer()(ROWS[:5]), lambda held: held.values),
    "functions": (lambda: explainer().compile(), lambda held: held(ROWS[:5]).values),
    "cam": (cam, lambda held: held(IMAGES[:2]).positive),
    "maps": (lambda: cam()(IMAGES[:2]), lambda held: held.positive),
    "index": (index, lambda held: held.query(IMAGES[:3], k=2).distances),
    "neighbors": (lambda: index().query(IMAGES[:3], k=2), lambda held: held.distances),
    "audit": (lambda: nobsp.audit(index()), lambda held: held.to_frame().to_numpy()[:, :1]),
}


@pytest.mark.parametrize("library", ["pickle", "cloudpickle"])
@pytest.mark.parametrize("name", HELD)
def test_a_copy_by_pickle_gives_the_same(name: str, library: str) -> None:
    writer = pickle if library == "pickle" else pytest.importorskip("cloudpickle")
    make, numbers_of = HELD[name]
    held = make()

    copy = pickle.loads(writer.dumps(held))  # noqa: S301 - written on the line itself

    assert_same_to_rounding(
        np.asarray(numbers_of(copy), dtype=np.float64),
        np.asarray(numbers_of(held), dtype=np.float64),
    )


def numbers_in_doubles(numbers_of: Callable[[Any], Any], held: Any) -> Any:
    return np.asarray(numbers_of(held), dtype=np.float64)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["explainer", "functions", "cam", "index"])
def test_a_child_forked_after_use_gives_the_same(name: str) -> None:
    make, numbers_of = HELD[name]
    held = make()
    expected = np.asarray(numbers_of(held), dtype=np.float64)

    received = answer_of(numbers_in_doubles, numbers_of, held, method="fork")

    assert_same_to_rounding(received, expected)
