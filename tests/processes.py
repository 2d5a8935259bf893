"""Processes and threads that tests start: each ends with its test, however that ends; no wait for one is endless."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NoReturn

# Long enough for any of them on a busy machine; what takes longer hangs.
LONGEST_RUN = 300.0
# A killed process is gone at once; this only bounds the wait for it.
LONGEST_DEATH = 30.0
# Between two looks at whether something has happened.
GLANCE = 0.01
# Milliseconds in which a page of a busy browser opens or changes.
PAGE_PATIENCE = 120_000


# ---------------------------------------------------------------------- other programs


def environment(**more: str) -> dict[str, str]:
    """Variables with which another Python finds the same packages; `more` are added."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)} | more


@contextmanager
def started(words: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process, killed with all that it started at the end of the block; `options` are those of `Popen`."""
    command = [str(word) for word in words]
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        _kill(process)


@contextmanager
def started_together(
    commands: Sequence[Sequence[object]], **options: Any
) -> Iterator[list[subprocess.Popen[Any]]]:
    """Several processes that need each other; all are killed at the end of the block."""
    processes: list[subprocess.Popen[Any]] = []
    try:
        for words in commands:
            command = [str(word) for word in words]
            processes.append(subprocess.Popen(command, start_new_session=True, **options))
        yield processes
    finally:
        for process in processes:
            _kill(process)


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
        written, complained = end_of(process, timeout=timeout)
    assert not check or process.returncode == 0, (
        f"{_name(process)} ended with {process.returncode}:\n{written}\n{complained}"
    )
    return subprocess.CompletedProcess(words, process.returncode, written, complained)


def run_python(
    code: str,
    *arguments: object,
    flags: Sequence[str] = (),
    check: bool = True,
    timeout: float = LONGEST_RUN,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run some lines in another Python that finds the same packages."""
    words = [sys.executable, *flags, "-c", code, *arguments]
    return run_process(words, check=check, timeout=timeout, **({"env": environment()} | options))


def end_of(
    process: subprocess.Popen[Any], said: str | None = None, *, timeout: float = LONGEST_RUN
) -> tuple[str, str]:
    """What a process wrote until it ended, to both of its streams; an assertion where it does not end."""
    try:
        return process.communicate(said, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{_name(process)} had not ended after {timeout:g} s") from None


def line_of(process: subprocess.Popen[Any], *, timeout: float = LONGEST_RUN) -> str:
    """The next line that a process writes; an assertion where none comes."""
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()), daemon=True)
    reader.start()
    reader.join(timeout)
    assert lines, f"{_name(process)} had written no line after {timeout:g} s"
    return lines[0]


def _name(process: subprocess.Popen[Any]) -> str:
    return " ".join(map(str, process.args))[:200]  # type: ignore[arg-type]


def _kill(process: subprocess.Popen[Any]) -> None:
    """Kill a process with its group, and what it began in groups of their own."""
    descendants = _descendants(process.pid)
    # The group outlives the process where it left children, and is gone where it left none.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for number in descendants:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait(LONGEST_DEATH)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):  # what was still to be written to a process that is gone
                stream.close()


def _descendants(number: int) -> list[int]:
    """The children of a process, and theirs, where the system tells."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))

    descendants: list[int] = []
    unvisited = [number]
    while unvisited:
        grown = children.get(unvisited.pop(), [])
        descendants += grown
        unvisited += grown
    return descendants


# ---------------------------------------------------------------------- copies of this process


def run_forked(work: Callable[[], object], *, timeout: float = LONGEST_RUN) -> int:
    """The exit code of a forked child that runs `work`: 0 where it returns, 1 where it raises.

    Only for what is promised of forks: where threads have run, a fork may wait for what they held.
    """
    child = os.fork()
    if child == 0:
        _run_and_exit(work)
    try:
        return _wait_for_child(child, timeout)
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def _run_and_exit(work: Callable[[], object]) -> NoReturn:
    """Whatever happens, a forked child must not go on as a second test run."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the parent is told by the exit code
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait_for_child(child: int, timeout: float) -> int:
    deadline = time.monotonic() + timeout
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        assert time.monotonic() < deadline, f"the forked child had not ended after {timeout:g} s"
        time.sleep(GLANCE)


def answer_of(
    work: Callable[..., Any],
    *arguments: Any,
    method: Literal["spawn", "fork"] = "spawn",
    timeout: float = LONGEST_RUN,
) -> Any:
    """What `work` returns in another process; an assertion where it does not."""
    context = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_send_answer, args=(work, arguments, sending), daemon=True)
    name = getattr(work, "__name__", repr(work))
    child.start()
    group = child.pid
    assert group is not None
    sending.close()
    try:
        assert receiving.poll(timeout), f"{name} had not answered after {timeout:g} s"
        try:
            return receiving.recv()
        except EOFError:
            child.join(LONGEST_DEATH)
            raise AssertionError(f"{name} ended with {child.exitcode} and no answer") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        child.kill()
        child.join(LONGEST_DEATH)
        receiving.close()


def _send_answer(work: Callable[..., Any], arguments: tuple[Any, ...], sending: Any) -> None:
    os.setsid()  # a group of its own, so that its children end with it
    sending.send(work(*arguments))


# ---------------------------------------------------------------------- threads and waits


def run_threads(*works: Callable[[], object], timeout: float = LONGEST_RUN) -> None:
    """Run all side by side to their ends; raises what one of them raised."""
    failures: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as failure:  # noqa: BLE001 - a thread's failure would go unseen
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if failures:
        raise failures[0]
    waiting = sum(thread.is_alive() for thread in threads)
    assert not waiting, f"{waiting} of {len(threads)} threads had not ended after {timeout:g} s"


def wait_until(
    condition: Callable[[], object], expected: str, *, timeout: float = LONGEST_RUN
) -> None:
    """Wait for a condition; an assertion says what was expected where it does not come."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout:g} s there was no sign that {expected}"
        time.sleep(GLANCE)
