"""Runs a part in a child process that is replaced when it hangs or dies, and keeps what came of every case."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from campaign.outcome import Outcome, defect
from campaign.part import Part

# Loading torch and making the first subjects on a busy machine.
START_SECONDS = 300.0


class Worker:
    """A child process that runs cases of one part; whatever happens, it ends with the `with` block."""

    def __init__(self, part: Part, seed: int) -> None:
        self._part = part
        self._seed = seed
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def run(self, case: int) -> Outcome:
        """One case; a worker that hangs or dies is a defect, and the next case gets another."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(f"{case}\n")
            process.stdin.flush()
            line = self._read_line(self._part.seconds)
        except BrokenPipeError:
            line = ""
        if line is None:
            self._end()
            return defect(f"{self._part.name} {case}", f"hung for {self._part.seconds:.0f} s")
        if not line:
            code = process.wait(timeout=60)
            tail = self._last_words()
            self._end()
            return defect(
                f"{self._part.name} {case}", f"the process died with {_ending(code)}; {tail}"
            )
        return Outcome(**json.loads(line))

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "campaign.worker", self._part.name, str(self._seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
            # A group of its own, so that whatever a case started ends with it.
            start_new_session=True,
        )
        if self._read_line(START_SECONDS) != "ready\n":
            tail = self._last_words()
            self._end()
            raise RuntimeError(f"a worker for part {self._part.name!r} did not start: {tail}")
        return self._process

    def _read_line(self, seconds: float) -> str | None:
        """A line, "" where the worker has ended, None where it takes longer."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout=seconds):
                return None
        return self._process.stdout.readline()

    def _last_words(self) -> str:
        assert self._stderr is not None
        self._stderr.seek(0)
        lines = self._stderr.read().strip().split("\n")
        return lines[-1][:300]

    def _end(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process = None


def run_cases(part: Part, seed: int, cases: Iterable[int]) -> Iterator[tuple[int, Outcome]]:
    """All cases in their order, in as few processes as live through them."""
    with Worker(part, seed) as worker:
        for case in cases:
            yield case, worker.run(case)


@dataclasses.dataclass
class Record:
    """What came of the cases of a part so far, on disk: a run that was interrupted goes on after the last of them."""

    path: Path
    outcomes: dict[int, Outcome] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, part: Part, seed: int, *, fresh: bool) -> Record:
        """The record of a part under a seed; `fresh` forgets an earlier one."""
        folder.mkdir(parents=True, exist_ok=True)
        record = cls(folder / f"{part.name}-{seed}.jsonl")
        if fresh:
            record.path.unlink(missing_ok=True)
        if record.path.exists():
            for line in record.path.read_text().splitlines():
                entry = json.loads(line)
                number = entry.pop("number")
                record.outcomes[number] = Outcome(**entry)
        return record

    def add(self, number: int, outcome: Outcome) -> None:
        """Keeps an outcome; details only of defects, as there are tens of thousands of the others."""
        self.outcomes[number] = outcome
        entry = {"number": number, **dataclasses.asdict(outcome)}
        if outcome.verdict != "defect":
            entry["detail"] = ""
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def run_part(
    part: Part,
    *,
    seed: int,
    count: int,
    folder: Path,
    fresh: bool = False,
    report: Callable[[int, Outcome], None] | None = None,
) -> Record:
    """The cases 0 to count − 1 that the record lacks."""
    record = Record.of(folder, part, seed, fresh=fresh)
    missing = [number for number in range(count) if number not in record.outcomes]
    for number, outcome in run_cases(part, seed, missing):
        record.add(number, outcome)
        if report is not None:
            report(number, outcome)
    return record


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
