"""SIGKILL while something is written: the old file or the new one is there, and the next write sweeps what is left."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from campaign.outcome import Outcome, defect, describe, right
from campaign.part import Part, generator
from campaign.writing import ADD, APPLY, CHECKPOINT, REPORT, SAVE, Writer, leftovers

WRITERS = (SAVE, ADD, CHECKPOINT, REPORT, APPLY)

# Kills of each kind of write in a whole run.
KILLS = 200
# The longest time after the first write at which the process is killed.
LATEST = 0.08


def run(seed: int, case: int) -> Outcome:
    """A process that writes again and again, killed at a random moment."""
    rng = generator(seed, "kills", case)
    writer = WRITERS[case % len(WRITERS)]
    delay = float(rng.uniform(0.0, LATEST))
    text = f"{writer.name} killed after {1000 * delay:.1f} ms"
    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        folder = Path(name)
        try:
            kill_while_writing(writer, folder, delay)
            writer.check(folder)
            writer.write(folder, 0)
            writer.check(folder)
        except Exception as error:  # noqa: BLE001 - whatever a half-written file causes
            return defect(text, describe(error))
        if left := leftovers(folder):
            return defect(text, f"the next write left {', '.join(left[:3])}")
    return right(text)


def kill_while_writing(writer: Writer, folder: Path, delay: float) -> None:
    """Starts a copy of this process that writes, waits for its first write, and kills it."""
    writer.write(folder, 0)  # whatever is loaded late is loaded before the copy
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _write_for_ever(writer, folder, writing)
    os.close(writing)
    try:
        os.read(reading, 1)
        time.sleep(delay)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


def _write_for_ever(writer: Writer, folder: Path, writing: int) -> None:
    """The life of the copy; it never returns."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.write(writing, b".")
    try:
        for number in range(1, 10_000):
            writer.write(folder, number)
    finally:
        os._exit(0)


PART = Part(
    name="kills",
    tried="SIGKILL during save, add, checkpoint, report and audit --apply",
    must="the old file or the new one; the next write sweeps what is left",
    count=KILLS * len(WRITERS),
    sample=10,
    run=run,
    seconds=180.0,
)
