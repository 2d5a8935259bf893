"""Progress bars: none without being asked for, and no lock that a killed process could keep."""

from __future__ import annotations

import os
import signal
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

import nobsp
from nobsp.network.batches import progress_bar, with_progress
from tests.processes import LONGEST_RUN, answer_of, run_forked

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")


def die_with_tqdms_lock() -> None:
    """Be killed while holding tqdm's lock between processes."""
    from tqdm import tqdm

    tqdm.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)


def fit_and_call(*, progress: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    rows = np.random.default_rng(0).normal(size=(64, 3))
    explainer = nobsp.NObSP(model).fit(rows, progress=progress)
    explainer(rows)


def fit_maps(*, progress: bool) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    images = torch.rand(24, 1, 8, 8)
    cam = nobsp.NObSPCam(network).fit(images, progress=progress)
    cam(images)


def query_an_index(*, progress: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    rows = np.random.default_rng(0).normal(size=(64, 3))
    explainer = nobsp.NObSP(model).fit(rows, progress=progress)
    index = nobsp.ContributionIndex(explainer)
    index.fit(rows, progress=progress)
    index.query(rows[:2], k=2, progress=progress)


def work_after_a_death(progress: bool) -> list[str]:
    """Names of the threads there are when all work is done."""
    from tqdm import tqdm

    tqdm.get_lock()  # before the fork, which then shares it
    code = run_forked(die_with_tqdms_lock)
    assert code == -signal.SIGKILL
    for work in (fit_and_call, fit_maps, query_an_index):
        work(progress=progress)
    return [thread.name for thread in threading.enumerate()]


@needs_fork
@pytest.mark.parametrize("progress", [False, True])
def test_a_process_killed_with_tqdms_lock_blocks_nothing(progress: bool) -> None:
    threads = answer_of(work_after_a_death, progress)
    assert not [name for name in threads if "tqdm" in name.lower()]


def test_without_a_bar_nothing_of_tqdm_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    with progress_bar(enabled=False, description="reading", unit=" rows") as bar:
        bar.update(3)
    batches = list(with_progress([[1, 2], [3]], total=3, enabled=False, description="reading"))
    assert batches == [[1, 2], [3]]
    assert "tqdm" not in sys.modules


def test_a_shown_bar_starts_no_thread_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.enumerate()
    with progress_bar(enabled=True, description="reading", unit=" rows", total=3) as bar:
        bar.update(3)
    assert threading.enumerate() == before
    assert "3/3" in capsys.readouterr().err


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_forked_while_a_thread_draws_a_bar_can_draw_its_own() -> None:
    with progress_bar(enabled=True, description="parent", unit=" rows") as bar:
        lock = type(bar).get_lock()  # type: ignore[attr-defined]
        held = threading.Event()
        release = threading.Event()

        def hold() -> None:
            with lock:
                held.set()
                release.wait(LONGEST_RUN)

        def draw() -> None:
            with progress_bar(enabled=True, description="child", unit=" rows"):
                pass

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert held.wait(LONGEST_RUN), "the thread never took the lock"
            code = run_forked(draw)
        finally:
            release.set()
            holder.join(LONGEST_RUN)
    assert code == 0
