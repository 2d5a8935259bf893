"""What tests start ends with them, and a wait that is too long says what it waited for."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.processes import (
    answer_of,
    line_of,
    run_forked,
    run_process,
    run_threads,
    started,
    wait_until,
)

# Writes the number of a child, in a group of its own, that would live on for a minute.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(60)
"""


def is_running(number: int) -> bool:
    """Whether a process exists and is not merely waited for by its parent."""
    try:
        status = Path(f"/proc/{number}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def fail_beside_a_process(note: Path) -> None:
    with started([sys.executable, "-c", PARENT, note]):
        wait_until(
            lambda: note.exists() and note.read_text(), "the process wrote its child's number"
        )
        raise ZeroDivisionError


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="the system has no /proc")
def test_a_failing_test_ends_its_process_and_the_children_of_that(tmp_path: Path) -> None:
    note = tmp_path / "child"

    with pytest.raises(ZeroDivisionError):
        fail_beside_a_process(note)

    child = int(note.read_text())
    wait_until(lambda: not is_running(child), "the child had ended")


def test_a_process_that_hangs_is_named() -> None:
    with pytest.raises(AssertionError, match=r"time\.sleep.*not ended after"):
        run_process([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)


def sleep_for_a_minute() -> None:
    time.sleep(60)


def raise_an_error() -> None:
    raise ZeroDivisionError


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_says_how_it_ended_and_is_not_waited_for_without_end() -> None:
    assert run_forked(lambda: None) == 0
    assert run_forked(raise_an_error) == 1
    with pytest.raises(AssertionError, match="forked child had not ended"):
        run_forked(sleep_for_a_minute, timeout=0.1)


def test_an_answer_that_does_not_come_is_told_by_name() -> None:
    with pytest.raises(AssertionError, match="sleep_for_a_minute had not answered"):
        answer_of(sleep_for_a_minute, timeout=0.1)
    with pytest.raises(AssertionError, match="raise_an_error ended with 1 and no answer"):
        answer_of(raise_an_error)


def test_a_line_that_does_not_come_is_told() -> None:
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (
        started(words, stdout=subprocess.PIPE, text=True) as silent,
        pytest.raises(AssertionError, match="had written no line"),
    ):
        line_of(silent, timeout=0.1)


def test_threads_that_fail_or_wait_are_told() -> None:
    with pytest.raises(ZeroDivisionError):
        run_threads(raise_an_error, lambda: None)
    never = threading.Event()
    try:
        with pytest.raises(AssertionError, match="1 of 2 threads had not ended"):
            run_threads(lambda: never.wait(60), lambda: None, timeout=0.1)
    finally:
        never.set()


# What starts a process or waits for a thread, and may be called in tests/processes.py alone.
STARTS = {
    ("os", "fork"),
    ("subprocess", "run"),
    ("subprocess", "Popen"),
    ("subprocess", "call"),
    ("subprocess", "check_call"),
    ("subprocess", "check_output"),
    ("multiprocessing", "get_context"),
    ("multiprocessing", "Process"),
    ("multiprocessing", "Pool"),
}
# Scripts that tests run in a process of their own, which forks before it has any other thread.
SCRIPTS = {
    "tests/meeting.py",
    "tests/neighbors/interrupted.py",
    "tests/tabular/interrupted.py",
}


def calls_in(path: Path) -> set[tuple[str, str]]:
    """Functions that are called by the name of their module."""
    nodes = ast.walk(ast.parse(path.read_text()))
    functions = [node.func for node in nodes if isinstance(node, ast.Call)]
    return {
        (function.value.id, function.attr)
        for function in functions
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    }


def test_all_tests_start_their_processes_here() -> None:
    root = Path(__file__).parents[1]
    own = {"tests/processes.py", *SCRIPTS}
    strangers = {
        name: sorted(calls_in(path) & STARTS)
        for path in (root / "tests").rglob("*.py")
        if (name := path.relative_to(root).as_posix()) not in own and calls_in(path) & STARTS
    }
    assert strangers == {}
