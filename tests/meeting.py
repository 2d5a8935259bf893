"""Processes that meet under `torch.distributed`, started by hand or by `torchrun`, and ended whatever happens.

Ranks are forked by a process that has imported what they need and done nothing else, so that this is imported once:

    python -m tests.meeting module task size folder
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import NoReturn

from tests.processes import environment, run_process

# How each rank ended, in the order of ranks.
CODES = "codes.json"


def meet(module: str, task: str, size: int, folder: Path, *, dying: Collection[int] = ()) -> None:
    """Runs `run_rank(task, rank, size, folder)` of a module for every rank; all but the dying ones must end well."""
    words = [sys.executable, "-m", "tests.meeting", module, task, size, folder]
    run_process(words, env=environment(GLOO_SOCKET_IFNAME="lo"))
    codes = json.loads((folder / CODES).read_text())
    for rank, code in enumerate(codes):
        assert code == 0 or rank in dying, (folder / f"said-{rank}.txt").read_text()


def torchrun(module: str, task: str, size: int, folder: Path) -> None:
    """Runs `torchrun -m module task folder`, whose ranks find each other by what it puts into their environment."""
    # --standalone, but with an address of its own: a machine need not know its name.
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, f"--nproc-per-node={size}"]
    run_process([*command, "-m", module, task, folder], env=environment(GLOO_SOCKET_IFNAME="lo"))


def fork_ranks(module: str, task: str, size: int, folder: Path) -> None:
    """Forks all ranks, and notes how they ended."""
    work = importlib.import_module(module)
    _require_one_thread()
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            _be_rank(work, task, rank, size, folder)
        children.append(child)

    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    (folder / CODES).write_text(json.dumps(codes))


def _require_one_thread() -> None:
    """A fork of several threads could wait for what the others held."""
    threads = Path("/proc/self/task")
    if threads.is_dir():
        count = len(list(threads.iterdir()))
        assert count == 1, f"importing has started {count - 1} threads"


def _be_rank(work: object, task: str, rank: int, size: int, folder: Path) -> NoReturn:
    """Whatever happens, a rank must not go on as a second parent."""
    said = os.open(folder / f"said-{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    code = 1
    try:
        work.run_rank(task, rank, size, folder)  # type: ignore[attr-defined]
        code = 0
    except BaseException:  # noqa: BLE001 - the parent is told by the exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    fork_ranks(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
