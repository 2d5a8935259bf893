"""Several processes of which one is killed, never comes or is slow; and a killed worker of Ray."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from campaign.outcome import Outcome, clear, defect, right
from campaign.part import Part, generator

RANKS = 2
# What the group itself is told; a failure must come within this and the time a process takes to start.
GROUP_SECONDS = 30
STATED_SECONDS = 120.0
SITUATIONS = ("killed", "slow", "absent", "ray")


def _rows(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).normal(size=(400, 3))


class _Batches:
    """Rows of a rank in batches; something happens to the last rank on the way."""

    def __init__(self, rank: int, situation: str, batch: int) -> None:
        self.rank = rank
        self.situation = situation
        self.batch = batch

    def __iter__(self) -> Any:
        for number, rows in enumerate(np.split(_rows(self.rank), 10)):
            last = self.rank == RANKS - 1
            if last and number == self.batch and self.situation == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if last and number == self.batch and self.situation == "slow":
                time.sleep(2.0)
            yield rows


def _explainer() -> Any:
    import nobsp
    from campaign.subjects import make_network

    return nobsp.NObSP.as_published(make_network(), baseline="zero")


def _work(rank: int, situation: str, batch: int, port: int, folder: Path) -> None:
    """The life of one rank."""
    import torch

    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=GROUP_SECONDS),
    )
    values = _explainer().fit(_Batches(rank, situation, batch))(_rows(0)[:5]).values
    np.save(folder / f"{rank}.npy", values)


@cache
def _expected() -> np.ndarray:
    values: np.ndarray = _explainer().fit(np.concatenate([_rows(0), _rows(1)]))(_rows(0)[:5]).values
    return values


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def run(seed: int, case: int) -> Outcome:
    """One meeting of two ranks."""
    rng = generator(seed, "ranks", case)
    situation = SITUATIONS[case % len(SITUATIONS)]
    batch = int(rng.integers(10))
    text = f"{situation} at batch {batch}"
    if situation == "ray":
        return _run_ray(text, batch)
    present = RANKS - 1 if situation == "absent" else RANKS
    port = _free_port()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        processes = [_start(rank, situation, batch, port, Path(folder)) for rank in range(present)]
        try:
            messages = [process.communicate(timeout=STATED_SECONDS)[1] for process in processes]
        except subprocess.TimeoutExpired:
            return defect(text, f"a rank still waits after {STATED_SECONDS:.0f} s")
        finally:
            for process in processes:
                process.kill()
                process.wait()
        seconds = time.monotonic() - started
        if situation != "slow":
            if processes[0].returncode == 0:
                return defect(text, "the first rank ended as if nothing had happened")
            return clear(text, f"after {seconds:.1f} s: {messages[0].strip().splitlines()[-1]}")
        for rank in range(RANKS):
            path = Path(folder) / f"{rank}.npy"
            if not path.exists():
                return defect(text, f"rank {rank} failed: {messages[rank].strip()[-200:]}")
            if not np.allclose(np.load(path), _expected(), atol=1e-6):
                return defect(text, f"rank {rank} has other numbers")
    return right(text)


def _start(rank: int, situation: str, batch: int, port: int, folder: Path) -> subprocess.Popen[str]:
    words = [str(rank), situation, str(batch), str(port), str(folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "campaign.ranks", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


RAY = """
import os, signal, sys
from pathlib import Path
import numpy as np, ray, torch
from campaign.ranks import _rows
from campaign.subjects import make_network
import nobsp

class Mortal(torch.nn.Module):
    def __init__(self, inner, notice, home, call):
        super().__init__()
        self.inner, self.notice, self.home, self.call, self.calls = inner, notice, home, call, 0
    def forward(self, x):
        self.calls += os.getpid() != self.home
        if self.calls == self.call and not os.path.exists(self.notice):
            Path(self.notice).write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)

folder, call = Path(sys.argv[1]), int(sys.argv[2])
ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 << 20,
         log_to_driver=False, logging_level="ERROR")
model = Mortal(make_network(), str(folder / "killed"), os.getpid(), call)
X = np.concatenate([_rows(0), _rows(1)])
data = ray.data.from_numpy(X) if False else ray.data.from_items([{"a": r[0], "b": r[1], "c": r[2]} for r in X])
values = nobsp.NObSP.as_published(model, baseline="zero").fit(data)(_rows(0)[:5]).values
np.save(folder / "values.npy", values)
ray.shutdown()
"""


def _run_ray(text: str, batch: int) -> Outcome:
    """A worker of Ray that is killed on one of its calls; Ray runs its share again."""
    try:
        import ray  # noqa: F401 - only whether it is there
    except ImportError:
        return clear(text, "not tried: ray is not installed")
    settings = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", RAY, folder, str(batch + 1)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | settings,
        )
        try:
            message = process.communicate(timeout=3 * STATED_SECONDS)[1]
        except subprocess.TimeoutExpired:
            return defect(text, f"still waits after {3 * STATED_SECONDS:.0f} s")
        finally:
            process.kill()
            process.wait()
        path = Path(folder) / "values.npy"
        if not path.exists():
            return defect(text, message.strip()[-250:])
        if not np.allclose(np.load(path), _expected(), atol=1e-6):
            return defect(text, "other numbers")
        killed = (Path(folder) / "killed").exists()
    return right(text if killed else f"{text}, which no worker came to")


PART = Part(
    name="ranks",
    tried="a rank killed in a reduction, a rank that never comes, a slow rank, a killed worker of Ray",
    must=f"a clear failure within {STATED_SECONDS:.0f} s, or the right result",
    count=80,
    sample=2,
    run=run,
    seconds=400.0,
)

if __name__ == "__main__":
    _work(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
