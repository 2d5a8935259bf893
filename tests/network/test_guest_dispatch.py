"""Modes that see torch's operations load its compiler for nobody, and stay hidden from it where it is loaded."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from nobsp.network.guest import DispatchMode, _hidden_if_needed
from tests.processes import run_python

FIT = """
import sys
import numpy as np, torch
from nobsp import NObSP
network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
explainer = NObSP(network.eval()).fit(np.random.default_rng(0).normal(size=(60, 3)))
explainer(np.zeros((2, 3)))
print("torch._dynamo" in sys.modules)
"""


class Counter(DispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_calibrating_a_network_does_not_load_torchs_compiler() -> None:
    assert run_python(FIT).stdout.strip() == "False"


def test_every_operation_is_seen() -> None:
    numbers = torch.ones(3)
    with Counter() as counter:
        numbers + numbers
        numbers * numbers
    assert counter.count == 2


def test_methods_are_hidden_once_the_compiler_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    method = _hidden_if_needed(lambda: "plain", lambda: "hidden")
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert method() == "plain"
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    assert method() == "hidden"
