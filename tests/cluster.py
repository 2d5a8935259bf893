"""A Ray cluster of two processors on this machine, for the tests that need one."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from torch import Tensor, nn

from tests.processes import wait_until

# Ray's own: options that it sets itself and calls deprecated, what pandas says of its calls, and sockets left open.
CLUSTER_WARNINGS = (
    "ignore::DeprecationWarning:ray.data.context",
    "ignore:The inplace keyword in DataFrame.reset_index",
    "ignore::ResourceWarning",
)


@contextmanager
def cluster() -> Iterator[Any]:
    """Ray, started for the time being; its workers use one thread each and write nothing here."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with _one_at_a_time():
            _start(ray)
            yield ray
            ray.shutdown()
    finally:
        ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two clusters on two processors starve each other, so tests that run side by side wait for one another."""
    with open(Path(tempfile.gettempdir()) / f"nobsp-tests-ray-{os.getuid()}.lock", "w") as lock:
        wait_until(lambda: _taken(lock), "the Ray cluster of other tests had ended")
        yield


def _taken(lock: IO[str]) -> bool:
    """Whether the lock is ours now; it is given up when its file is closed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(ray: Any) -> None:
    """Starts Ray; on a busy machine its own patience may end before its server is up, so it is tried again."""
    for attempt in range(4):
        try:
            ray.init(
                address="local",
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=100 << 20,
                log_to_driver=False,
                logging_level="ERROR",
            )
            return
        except Exception as failure:  # Ray raises this very class where its node is slow
            ray.shutdown()
            if attempt == 3 or "timed out" not in str(failure).lower():
                raise
            time.sleep(5 * (attempt + 1))


class Mortal(nn.Module):
    """Kills a worker that runs it, on its so-manyth forward call, once in all; never the process that made it."""

    def __init__(self, inner: nn.Module, notice: Path, *, call: int) -> None:
        super().__init__()
        self.inner, self.notice, self.call = inner, str(notice), call
        self.home = os.getpid()
        # In a list, which all that stand for this module share.
        self.calls_away: list[None] = []

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.home:
            self.calls_away.append(None)
        if len(self.calls_away) == self.call and not os.path.exists(self.notice):
            Path(self.notice).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)
