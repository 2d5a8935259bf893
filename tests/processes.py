"""Processes that tests start: each has a group of its own, which is killed when the test is over, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

# Long enough for any of them on a busy machine; a process that takes longer hangs.
LONGEST_RUN = 300.0
# A killed process is gone at once; this only bounds the wait for it.
LONGEST_DEATH = 30.0


@contextmanager
def started(words: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process, killed with all that it started at the end of the block; `options` are those of `Popen`."""
    command = [str(word) for word in words]
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        kill_group(process)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that `started` began, and all that it began in turn."""
    # The group outlives the process where it left children, and is gone where it left none.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(LONGEST_DEATH)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):  # what was still to be written to a process that is gone
                stream.close()


def run_process(
    words: Sequence[object],
    *,
    check: bool = True,
    timeout: float = LONGEST_RUN,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run to the end; an assertion that says which process it was, and what it wrote, where that fails or hangs."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started(words, **(pipes | options)) as process:
        try:
            written, complained = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{_name(words)} had not ended after {timeout:g} s") from None
    assert not check or process.returncode == 0, (
        f"{_name(words)} ended with {process.returncode}:\n{complained}"
    )
    return subprocess.CompletedProcess(words, process.returncode, written, complained)


def _name(words: Sequence[object]) -> str:
    return " ".join(map(str, words))[:200]
