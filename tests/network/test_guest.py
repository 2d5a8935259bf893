"""The caller's model and random numbers survive interrupts, threads, forks and devices."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nobsp
from nobsp.network import Readout
from nobsp.network.guest import evaluation_mode
from tests.processes import LONGEST_RUN, run_forked
from tests.tolerances import assert_same_to_rounding

# Every so-manyth line of our own code is interrupted; a prime, so that loops are met at different places.
EVERY = 29

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")


class Deep(nn.Module):
    """About 180 modules with dropout and running statistics."""

    def __init__(self, *, entangled: bool) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)) for _ in range(45)
        ]
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(4, 2)
        if entangled:
            self.finish = lambda z: self.head(z)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def deep(*, entangled: bool) -> Deep:
    torch.manual_seed(0)
    return Deep(entangled=entangled).train()


def state_of(model: nn.Module) -> list[Any]:
    flags = [part.training for part in model.modules()]
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    buffers = [buffer.tolist() for buffer in model.buffers()]
    return [flags, hooks, buffers, torch.is_grad_enabled(), torch.get_rng_state().tolist()]


class InterruptAt:
    """Raises KeyboardInterrupt at the so-manyth line that is run in the package's forward passes."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.raised = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if "nobsp/network" not in frame.f_code.co_filename.replace(os.sep, "/"):
            return self if event == "call" else None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.raised = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("entangled", [False, True])
def test_an_interrupt_at_any_line_leaves_the_model_as_it_was(entangled: bool) -> None:
    model = deep(entangled=entangled)
    x = torch.randn(8, 4)
    readout = Readout.find(model, x)
    expected = readout.represent(x)
    before = state_of(model)
    tracer = sys.gettrace()
    line = 1
    interrupted = 0
    while True:
        interrupt = InterruptAt(line)
        sys.settrace(interrupt)
        try:
            readout.represent(x)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(tracer)
        assert state_of(model) == before, f"interrupted at line event {line}"
        if not interrupt.raised:
            break
        # Entangled models take more lines; steps grow so that the test stays short.
        line += EVERY + line // 8
    assert interrupted > 20
    torch.testing.assert_close(readout.represent(x), expected)


@pytest.fixture
def without_collections() -> Iterator[None]:
    """No cyclic garbage collection.

    Python cannot raise in callbacks of the collector: it reports the interrupt and forgets it. Hypothesis adds one,
    which swallowed 93 of 4,368 interrupts; without hypothesis none of 6,252 was reported.
    """
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collections")
@pytest.mark.parametrize("entangled", [False, True])
def test_real_signals_leave_the_model_as_it_was(entangled: bool) -> None:
    model = deep(entangled=entangled)
    x = torch.randn(8, 4)
    readout = Readout.find(model, x)
    before = state_of(model)
    interrupted = 0
    for delay in np.linspace(1e-4, 0.02, 100):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, float(delay))
            for _ in range(1000):
                readout.represent(x)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        assert state_of(model) == before, f"interrupted after {delay} s"
    assert interrupted == 100


def test_random_numbers_of_other_threads_are_not_repeated() -> None:
    model = deep(entangled=False)
    x = torch.randn(64, 4)
    readout = Readout.find(model, x)
    ended = threading.Event()

    def explain() -> None:
        while not ended.is_set():
            readout.represent(x)

    threads = [threading.Thread(target=explain) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        torch.manual_seed(1)
        drawn = [float(torch.rand(())) for _ in range(4000)]
    finally:
        ended.set()
        for thread in threads:
            thread.join(LONGEST_RUN)
    torch.manual_seed(1)
    assert drawn == [float(torch.rand(())) for _ in range(4000)]


@contextmanager
def another_thread() -> Iterator[None]:
    """A thread that could draw random numbers at any moment."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, args=(LONGEST_RUN,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LONGEST_RUN)


def refuse(*_: Any) -> None:
    raise AssertionError("the generator's lock can block two threads, and a forked child")


def test_beside_other_threads_a_model_that_draws_nothing_asks_for_no_random_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = deep(entangled=False)
    monkeypatch.setattr(torch, "get_rng_state", refuse)
    monkeypatch.setattr(torch, "set_rng_state", refuse)
    with another_thread():
        Readout.find(model, torch.randn(8, 4)).represent(torch.randn(8, 4))


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_asks_for_no_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model = deep(entangled=False)
    x = torch.randn(8, 4)
    monkeypatch.setattr(torch, "get_rng_state", refuse)
    monkeypatch.setattr(threading, "active_count", lambda: 1)

    assert run_forked(lambda: Readout.find(model, x).represent(x)) == 0


class DrawsLater(nn.Module):
    """Draws numbers of all three generators from its third pass on, and hardly uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.passes: list[None] = []

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append(None)
        y: Tensor = self.head(x)
        if len(self.passes) < 3:
            return y
        noise = torch.rand(()) + random.random() + np.random.rand()  # noqa: NPY002
        return y + 1e-30 * noise


@pytest.mark.parametrize("threads", [1, 2])
def test_numbers_that_are_first_drawn_on_a_later_pass_are_put_back(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = DrawsLater()
    x = torch.randn(8, 4)
    monkeypatch.setattr(threading, "active_count", lambda: threads)
    torch_state = torch.get_rng_state()
    python_state = random.getstate()
    numpy_position = np.random.get_state()[2]  # noqa: NPY002 - the global one is meant

    with evaluation_mode(model) as run:
        noticed = []
        for _ in range(4):
            run(x)
            noticed.append(run.draws_numbers)

    assert noticed == [False, False, True, True]
    assert torch.equal(torch.get_rng_state(), torch_state)
    # Rewinding those would repeat the numbers of other threads, where there are some.
    if threads == 1:
        assert random.getstate() == python_state
        assert np.random.get_state()[2] == numpy_position  # noqa: NPY002


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("entangled", [False, True])
def test_a_child_forked_while_a_thread_explains_finds_the_model_as_it_was(entangled: bool) -> None:
    model = deep(entangled=entangled)
    x = torch.randn(8, 4)
    inside = threading.Event()
    release = threading.Event()

    def wait(*_: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            release.wait(LONGEST_RUN)

    def explain() -> None:
        with evaluation_mode(model) as run:
            run(x)

    def look_and_explain() -> None:
        assert all(part.training for part in model.modules())
        explain()
        assert all(part.training for part in model.modules())

    handle = model.head.register_forward_hook(wait)
    thread = threading.Thread(target=explain)
    thread.start()
    try:
        assert inside.wait(LONGEST_RUN), "the thread's forward pass never began"
        code = run_forked(look_and_explain)
    finally:
        release.set()
        thread.join(LONGEST_RUN)
        handle.remove()
    assert code == 0
    assert all(part.training for part in model.modules())


@pytest.mark.parametrize("device", ["meta", "cuda:99", "no such device"])
def test_a_device_that_cannot_compute_is_refused_and_the_model_stays(device: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    rows = np.random.default_rng(0).normal(size=(40, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="device"):
        nobsp.NObSP(model, device=device).fit(rows)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def function_that_draws(rows: Any) -> Any:
    """A function of its row that draws numbers it hardly uses."""
    noise = np.random.rand() + random.random()  # noqa: NPY002 - the global ones are meant
    return rows[:, 0] + 1e-12 * noise


def test_global_numbers_that_a_model_draws_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    rows = np.random.default_rng(0).normal(size=(60, 3))
    explainer = nobsp.NObSP(function_that_draws, interactions=0)
    numpy_state = np.random.get_state()[1:3]  # noqa: NPY002
    python_state = random.getstate()

    explainer.fit(rows)
    explainer(rows)

    words, position = np.random.get_state()[1:3]  # noqa: NPY002
    assert position == numpy_state[1]
    assert np.array_equal(words, numpy_state[0])
    assert random.getstate() == python_state


class MakesTensors(nn.Module):
    """Makes a tensor in every pass, and notes where."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.devices: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        self.devices.append(torch.zeros(1).device.type)
        result: Tensor = self.layers(x)
        return result


def numbers_of_all_calls(network: nn.Module, rows: Any) -> list[np.ndarray]:
    """What the calls that make tensors of their own give."""
    explainer = nobsp.NObSP(network, interactions=0, background=8).fit(rows)
    index = nobsp.ContributionIndex(explainer).fit(rows, np.arange(len(rows)) % 2)
    functions = explainer.compile()
    checked = explainer.check_shape("x0", "increasing", rows, output=0)
    return [
        explainer(rows).values,
        np.asarray(explainer.score(rows)),
        np.asarray(explainer.health(rows).explained),
        np.asarray(functions.fidelity(rows, network)),
        np.asarray(checked.rate),
        index.query(rows, 3).distances,
        nobsp.audit(index, rows, np.arange(len(rows)) % 2, k=3).joint,
    ]


def test_a_default_device_is_the_models_alone() -> None:
    # No numbers are on "meta", so that it stands for a card whose tensors cannot be mixed with ours.
    network = MakesTensors().eval()
    rows = np.random.default_rng(0).normal(size=(60, 3))
    expected = numbers_of_all_calls(network, rows)
    network.devices.clear()
    torch.set_default_device("meta")
    try:
        computed = numbers_of_all_calls(network, rows)
        assert torch.zeros(1).device.type == "meta"
    finally:
        torch.set_default_device(None)
    assert set(network.devices) == {"meta"}
    for with_device, without in zip(computed, expected, strict=True):
        assert_same_to_rounding(with_device, without)
