"""A calibration under way as a file, so that one that was interrupted can be resumed."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nobsp import serialization

KIND = "calibration under way"
VERSION = 2


@dataclass(frozen=True)
class Position:
    """How far a pass over the rows has come: rows and batches that were added, and a fingerprint of all of them."""

    rows: int = 0
    batches: int = 0
    digest: str = ""

    def after(self, batch: Tensor) -> Position:
        """The position behind a batch."""
        digest = hashlib.blake2b(f"{self.digest} {batch.dtype} {tuple(batch.shape)}".encode(), digest_size=16)
        digest.update(batch.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return Position(self.rows + len(batch), self.batches + 1, digest.hexdigest())


@dataclass(frozen=True, eq=False)
class Pass:
    """A pass over the rows: how far it has come, and what was added up so far."""

    position: Position
    complete: bool
    state: Any


@dataclass(frozen=True, eq=False)
class Contents:
    """What the file holds: what it is about, values that were decided, and passes, each by name."""

    about: dict[str, Any] = field(default_factory=dict)
    decided: dict[str, Any] = field(default_factory=dict)
    passes: dict[str, Pass] = field(default_factory=dict)


class Checkpoint:
    """Keeps a calibration in a file, written every so many seconds and whenever something was decided."""

    def __init__(self, path: Path, every: float, classes: Iterable[type]) -> None:
        self.path, self._every, self._written = path, every, time.monotonic()
        if not path.parent.is_dir():
            raise FileNotFoundError(f"checkpoint is in {str(path.parent)!r}, which is not a folder; create it first.")
        # Files that a killed process had begun to write, named as `serialization.write` names them.
        pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.part")
        for file in path.parent.iterdir():
            if pattern.fullmatch(file.name):
                shutil.rmtree(file, ignore_errors=True)
        self.contents, self._resumes = Contents(), path.exists()
        if self._resumes:
            known = (Contents, Pass, Position, *classes)
            try:
                found = serialization.load(path, kind=KIND, version=VERSION, classes=known)
                if not isinstance(found, Contents) or not all(isinstance(p, Pass) for p in found.passes.values()):
                    raise ValueError("it is damaged")
            except ValueError as failure:
                raise self.refuse(str(failure)) from failure
            self.contents = found

    def require_same(self, about: Mapping[str, Any]) -> None:
        """An error where the file is of other options, or of another model."""
        if self._resumes:
            for name, value in about.items():
                if self.contents.about.get(name) != value:
                    raise self.refuse(f"it is of another calibration ({name} differs)")
        self.contents.about.update(about)

    def refuse(self, reason: str) -> ValueError:
        """The error for a file that cannot be used."""
        return ValueError(
            f"checkpoint {str(self.path)!r} cannot be resumed: {reason.rstrip('.')}; remove it to start anew, or pass "
            "another path."
        )

    def record(self, name: str, decided: Any) -> None:
        """Keeps a value; it may have taken long to find, so the file is written at once."""
        self.contents.decided[name] = decided
        self.write()

    def write(self, *, if_due: bool = False) -> None:
        """Writes the file, atomically: it is always one whole state of the calibration."""
        if if_due and time.monotonic() - self._written < self._every:
            return
        serialization.save(self.path, self.contents, kind=KIND, version=VERSION)
        self._written = time.monotonic()

    def remove(self) -> None:
        """Removes the file: the calibration is done."""
        self.path.unlink(missing_ok=True)


class Tracker:
    """Follows one pass over the rows: skips those that its checkpoint holds, and keeps what is added."""

    def __init__(self, checkpoint: Checkpoint, name: str, state: Any) -> None:
        self._checkpoint, self._name = checkpoint, name
        self._found = checkpoint.contents.passes.get(name)
        self._position, self.state = Position(), state
        if self._found is None:
            return
        try:
            self.state = merge_states(state, self._found.state)
        except (ValueError, AttributeError, TypeError, KeyError) as failure:
            raise checkpoint.refuse(str(failure)) from failure
        if rows_of(self.state) != self._found.position.rows:
            raise checkpoint.refuse("it is damaged")

    def skip(self, batch: Tensor) -> bool:
        """Whether a batch is already held; the caller adds it otherwise."""
        held = 0 if self._found is None else self._found.position.batches
        if self._found is None or (self._position.batches >= held and not self._found.complete):
            return False
        self._position = self._position.after(batch)
        if self._position.batches >= held and self._position != self._found.position:
            raise self._other_rows()
        return True

    def added(self, batch: Tensor) -> None:
        """Counts a batch that was added, and writes the file where that is due."""
        self._position = self._position.after(batch)
        self._checkpoint.contents.passes[self._name] = Pass(self._position, False, self.state)
        self._checkpoint.write(if_due=True)

    def finish(self) -> None:
        """Ends the pass; an error where fewer rows came than are held."""
        if self._found is not None and self._position.batches < self._found.position.batches:
            raise self._other_rows()
        held = self._checkpoint.contents.passes.get(self._name, Pass(self._position, False, self.state))
        self._checkpoint.contents.passes[self._name] = replace(held, complete=True)

    def forget(self) -> None:
        """Leaves the pass out of later writes: its state is about to hold other processes' rows."""
        self._checkpoint.contents.passes.pop(self._name, None)

    def _other_rows(self) -> ValueError:
        rows = 0 if self._found is None else self._found.position.rows
        return self._checkpoint.refuse(
            f"it holds {rows} rows that are not the first ones of the data as it is read now, or the data has another "
            "number of rows (is it shuffled?)"
        )


def merge_states(first: Any, second: Any) -> Any:
    """Two states, or two tuples of states, as one."""
    if isinstance(first, tuple):
        return tuple(merge_states(a, b) for a, b in zip(first, second, strict=True))
    if type(first) is not type(second):
        raise TypeError(f"it holds a {type(second).__name__} where a {type(first).__name__} is needed")
    return first.merge(second)


def rows_of(state: Any) -> int:
    """How many rows a state, or a tuple of states, holds."""
    rows: int = (state[0] if isinstance(state, tuple) else state).rows
    return rows
