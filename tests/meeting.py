"""Processes that meet under `torch.distributed`, started by hand or by `torchrun`, and ended whatever happens."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from tests.processes import end_of, environment, run_process, started


def meet(module: str, task: str, size: int, folder: Path, *, dying: Collection[int] = ()) -> None:
    """Runs `python -m module task rank size folder` for every rank; all but the dying ones must end well."""
    with ExitStack() as stack:
        workers = []
        for rank in range(size):
            said = stack.enter_context(open(folder / f"said-{rank}.txt", "w"))
            words = [sys.executable, "-m", module, task, rank, size, folder]
            variables = environment(GLOO_SOCKET_IFNAME="lo")
            workers.append(
                stack.enter_context(started(words, env=variables, stdout=said, stderr=said))
            )
        for rank, worker in enumerate(workers):
            end_of(worker)
            well = worker.returncode == 0 or rank in dying
            assert well, (folder / f"said-{rank}.txt").read_text()


def torchrun(module: str, task: str, size: int, folder: Path) -> None:
    """Runs `torchrun -m module task folder`, whose ranks find each other by what it puts into their environment."""
    # --standalone, but with an address of its own: a machine need not know its name.
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, f"--nproc-per-node={size}"]
    run_process([*command, "-m", module, task, folder], env=environment(GLOO_SOCKET_IFNAME="lo"))
