"""What tests start ends with them, and a wait that is too long says what it waited for."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.processes import run_process, started

# Writes the number of a child that would live on for a minute.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(60)
"""
LONGEST_WAIT = 30.0


def is_running(number: int) -> bool:
    """Whether a process exists and is not merely waited for by its parent."""
    try:
        status = Path(f"/proc/{number}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def fail_beside_a_process(note: Path) -> None:
    with started([sys.executable, "-c", PARENT, note]):
        deadline = time.monotonic() + LONGEST_WAIT
        while not note.exists() or not note.read_text():
            assert time.monotonic() < deadline, "the process never wrote its child's number"
            time.sleep(0.01)
        raise ZeroDivisionError


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="the system has no /proc")
def test_a_failing_test_ends_its_process_and_the_children_of_that(tmp_path: Path) -> None:
    note = tmp_path / "child"

    with pytest.raises(ZeroDivisionError):
        fail_beside_a_process(note)

    child = int(note.read_text())
    deadline = time.monotonic() + LONGEST_WAIT
    while is_running(child):
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.01)


def test_a_process_that_hangs_is_named() -> None:
    with pytest.raises(AssertionError, match=r"time\.sleep.*not ended after"):
        run_process([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)
