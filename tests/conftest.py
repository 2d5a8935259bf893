"""What every test shares: threads, property tests that repeat themselves under CI, one browser a worker."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch and numpy are loaded: two workers with two threads each would fight over two cores. OMP_NUM_THREADS says
# how many otherwise, for all libraries; processes that tests start inherit this.
THREADS = os.environ.setdefault("OMP_NUM_THREADS", "1")
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, THREADS)
# Before gRPC is loaded, with a Milvus client: it would start its threads again in every fork of a worker, which now and
# then end the child before it becomes another program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(int(THREADS))
# A run in the background of a script ignores Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Factorising matrices takes as long as the machine is slow, so no example has a deadline.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", parent=settings.get_profile("local"), derandomize=True, print_blob=True
)
settings.register_profile("brief", parent=settings.get_profile("ci"), max_examples=5)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(autouse=True)
def _figures_are_closed() -> Iterator[None]:
    """Figures that a test leaves open would make matplotlib warn in a later test of the same worker."""
    yield
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")


def _surroundings() -> dict[str, Any]:
    """What a test must leave as it was: all later tests of its worker live in it."""
    return {
        "threads of torch": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "default type": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "folder": os.getcwd(),
        "handler of Ctrl-C": signal.getsignal(signal.SIGINT),
        "a timer": signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0),
        "process group": torch.distributed.is_initialized(),
    }


@pytest.fixture(autouse=True)
def _surroundings_are_kept() -> Iterator[None]:
    """A test that leaves something behind fails itself, and not a later one."""
    before = _surroundings()
    yield
    after = _surroundings()
    changed = [name for name, value in before.items() if after[name] != value]
    assert changed == [], f"the test leaves behind other {', '.join(changed)}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real Chromium. Playwright can be started once in a process, so all tests share it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or "/usr/bin/chromium"
    if not Path(chromium).exists():
        pytest.skip("chromium is not installed; to have it: sudo apt-get install chromium")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()
