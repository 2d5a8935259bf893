"""Calibrations that are killed at random moments and run again, until one comes to its end; run as a script."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch

from nobsp import Local, NObSP
from nobsp.network.columns import Summary
from nobsp.published import Accumulator
from tests.tabular.nets import net, table
from tests.tabular.ranks import numbers

BATCHES, ROWS = 40, 50
# Which options, and whether the rows can be read only once.
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "terms": ({"interactions": [["x0", "x1"]]}, False),
    "complement": ({"reference": "complement", "interactions": 0}, False),
    "once": ({"baseline": "zero", "interactions": 0}, True),
}


class Slow:
    """Batches that take their time, so that there is some to be killed in."""

    def __init__(self, pause: float) -> None:
        self.X, self.pause = table("silu", BATCHES * ROWS), pause

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self.X), ROWS):
            time.sleep(self.pause)
            yield self.X[start : start + ROWS]


def calibrate(case: str, pause: float, engine: Local | None = None) -> NObSP:
    options, once = CASES[case]
    rows: Any = Slow(pause)
    return NObSP(net("silu", outputs=2), **options).fit(iter(rows) if once else rows, engine=engine)


def child(case: str, folder: Path, every: float) -> None:
    """Runs in a process of its own, and notes every batch that goes through the network."""
    # As published rows are added up a second time, which is when they go through the network.
    state = Accumulator if "reference" in CASES[case][0] else Summary
    update, log = state.update, os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def noted(self: Any, *given: Any) -> None:
        os.write(log, b"b")
        update(self, *given)

    state.update = noted  # type: ignore[method-assign,assignment]
    found = numbers(calibrate(case, 0.004, Local(folder / "under way", every)))
    (folder / "found").write_bytes(safetensors.torch.save(found))
    os._exit(0)


def forget_what_had_ended(folder: Path) -> None:
    """Empties the log where the kill came after the end of the fit, which removes its file.

    What the fit found was not written yet, so that all of it begins anew, as it should.
    """
    log = folder / "log"
    has_ended = log.exists() and log.stat().st_size >= BATCHES
    if has_ended and not (folder / "under way").exists():
        os.truncate(log, 0)


def main(case: str, folder: Path, every: float, kills: int, seed: int) -> None:
    moments, killed = random.Random(seed), 0
    while True:
        # A fork of several threads could wait for what the others held; nothing has run here yet.
        assert threading.active_count() == 1
        pid = os.fork()
        if pid == 0:
            try:
                child(case, folder, every)
            finally:
                os._exit(1)
        if killed < kills:
            time.sleep(moments.uniform(0.05, 0.6))
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                killed += 1
                forget_what_had_ended(folder)
                continue
            break
        assert os.waitpid(pid, 0)[1] == 0
        break
    (folder / "killed").write_text(str(killed))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
