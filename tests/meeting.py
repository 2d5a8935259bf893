"""Processes that meet under `torch.distributed`, started by hand or by `torchrun`, and ended whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from tests.processes import kill_group

TIMEOUT = 240


def meet(module: str, task: str, size: int, folder: Path, *, dying: Collection[int] = ()) -> None:
    """Runs `python -m module task rank size folder` for every rank; all but the dying ones must end well."""
    workers = []
    try:
        for rank in range(size):
            with open(folder / f"said-{rank}.txt", "w") as said:
                command = [sys.executable, "-m", module, task, str(rank), str(size), str(folder)]
                workers.append(
                    subprocess.Popen(
                        command,
                        env=_environment(),
                        stdout=said,
                        stderr=said,
                        start_new_session=True,
                    )
                )
        for rank, worker in enumerate(workers):
            code = worker.wait(timeout=TIMEOUT)
            assert code == 0 or rank in dying, (folder / f"said-{rank}.txt").read_text()
    finally:
        for worker in workers:
            kill_group(worker)


def torchrun(module: str, task: str, size: int, folder: Path) -> None:
    """Runs `torchrun -m module task folder`, whose ranks find each other by what it puts into their environment."""
    # --standalone, but with an address of its own: a machine need not know its name.
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, f"--nproc-per-node={size}"]
    with open(folder / "said.txt", "w") as said:
        agent = subprocess.Popen(
            [*command, "-m", module, task, folder],
            env=_environment(),
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            code = agent.wait(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            agent.terminate()  # it ends its workers, which have groups of their own, before itself
            code = agent.wait(timeout=60)
        finally:
            kill_group(agent)
    assert code == 0, (folder / "said.txt").read_text()


def _environment() -> dict[str, str]:
    path = os.pathsep.join(place or "." for place in sys.path)
    return os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
