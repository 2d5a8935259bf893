"""Runs cases one after another in a process of its own: numbers in on stdin, outcomes out as lines of JSON.

    python -m campaign.worker PART SEED

Whatever a case writes to stdout goes to stderr, so that outcomes stand alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import traceback
import warnings
from typing import TextIO

# Before torch is loaded: cases are small, and several workers may share the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from campaign.outcome import Outcome, defect
from campaign.part import Part
from campaign.parts import part_named

# More than any case needs, less than what would bring a machine down.
DATA_LIMIT = 6 * 2**30


def run_checked(part: Part, seed: int, case: int) -> Outcome:
    """A case with its memory measured; what it raises itself is a defect too."""
    before = _reset_peak()
    try:
        outcome = part.run(seed, case)
    except Exception as error:  # noqa: BLE001 - a case that fails must not end the others
        place = traceback.extract_tb(error.__traceback__)[-1]
        return defect(
            f"{part.name} {case}",
            f"{type(error).__name__}: {error} [{place.filename}:{place.lineno}]",
        )
    grown = _peak() - before
    if grown > part.memory:
        return defect(outcome.case, f"took {grown / 2**20:,.0f} MiB; {outcome.detail}")
    return outcome


def _reset_peak() -> int:
    """Bytes in use now, from which the peak is counted."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
    return _peak()


def _peak() -> int:
    """The most bytes in use since the last reset; of the whole life of the process where that cannot be told."""
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Answers every number with an outcome until there are no more."""
    answers = _take_stdout()
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_LIMIT, DATA_LIMIT))
    warnings.simplefilter("ignore")
    part = part_named(sys.argv[1])
    seed = int(sys.argv[2])
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        outcome = run_checked(part, seed, int(line))
        answers.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
        answers.flush()


def _take_stdout() -> TextIO:
    """The stream of answers; from now on `print` goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    main()
