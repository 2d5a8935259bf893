"""A calibration under way as a file, so that one that was interrupted can be resumed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nobsp import serialization
from nobsp.drafts import sweep

KIND = "calibration under way"
VERSION = 3


@dataclass(frozen=True, eq=False)
class Pass:
    """A pass over the rows: the sums so far, how far it has come, and a fingerprint of its rows."""

    state: Any
    rows: int = 0
    batches: int = 0
    digest: str = ""
    complete: bool = False

    def after(self, batch: Tensor) -> Pass:
        """The same behind a batch."""
        digest = hashlib.blake2b(
            f"{self.digest} {batch.dtype} {tuple(batch.shape)}".encode(), digest_size=16
        )
        digest.update(batch.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        rows = self.rows + len(batch)
        batches = self.batches + 1
        return replace(self, rows=rows, batches=batches, digest=digest.hexdigest())


@dataclass(frozen=True, eq=False)
class Contents:
    """What the file holds: what it is about, values that were decided, and passes, each by name."""

    about: dict[str, Any] = field(default_factory=dict)
    decided: dict[str, Any] = field(default_factory=dict)
    passes: dict[str, Pass] = field(default_factory=dict)


class Checkpoint:
    """Keeps a calibration in a file, written at intervals and whenever something is decided.

    The interval is in seconds.
    """

    def __init__(self, path: Path, every: float, classes: Iterable[type]) -> None:
        self.path = path
        self._every = every
        self._written = time.monotonic()
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"checkpoint is in {str(path.parent)!r}, which is not a folder; create it first."
            )

        sweep(path)
        self.contents = Contents()
        self._resumes = path.exists()
        if self._resumes:
            known = (Contents, Pass, *classes)
            try:
                self.contents = serialization.load(
                    path, kind=KIND, version=VERSION, classes=known, of=Contents
                )
                if not all(isinstance(held, Pass) for held in self.contents.passes.values()):
                    raise ValueError("it is damaged")
            except ValueError as failure:
                raise self.refuse(str(failure)) from failure

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
            f"checkpoint {str(self.path)!r} cannot be resumed: {reason.rstrip('.')}; remove it to "
            "start anew, or pass another path."
        )

    def write(self, *, if_due: bool = False) -> None:
        """Writes the file, atomically: it is always one whole state of the calibration."""
        if if_due and time.monotonic() - self._written < self._every:
            return
        serialization.save(self.path, self.contents, kind=KIND, version=VERSION)
        self._written = time.monotonic()


class Tracker:
    """Follows one pass over the rows: skips those in its checkpoint, and keeps what is added."""

    def __init__(self, checkpoint: Checkpoint, name: str, state: Any) -> None:
        self._checkpoint = checkpoint
        self._name = name
        self._held = checkpoint.contents.passes.get(name)
        if self._held is not None:
            try:
                state = merge_states(state, self._held.state)
            except (ValueError, AttributeError, TypeError, KeyError, RuntimeError) as failure:
                raise checkpoint.refuse(str(failure)) from failure
            if rows_of(state) != self._held.rows:
                raise checkpoint.refuse("it is damaged")
        self.state = state
        self._now = Pass(state)

    def skip(self, batch: Tensor) -> bool:
        """Whether a batch is already held; the caller adds it otherwise."""
        held = self._held
        if held is None or (self._now.batches >= held.batches and not held.complete):
            return False
        self._now = self._now.after(batch)
        self._require_held(self._now.batches < held.batches or self._now.digest == held.digest)
        return True

    def added(self, batch: Tensor) -> None:
        """Counts a batch that was added, and writes the file where that is due."""
        self._checkpoint.contents.passes[self._name] = self._now = self._now.after(batch)
        self._checkpoint.write(if_due=True)

    def finish(self) -> None:
        """Ends the pass; an error where fewer rows came than are held."""
        self._require_held(self._held is None or self._now.batches >= self._held.batches)
        self._checkpoint.contents.passes[self._name] = replace(self._now, complete=True)

    def forget(self) -> None:
        """Leaves the pass out of later writes: its state is about to hold other processes' rows."""
        self._checkpoint.contents.passes.pop(self._name, None)

    def _require_held(self, same: bool) -> None:
        if not same and self._held is not None:
            now = (
                "the first ones of the data as it is read now, or it has another number of rows "
                "(is it shuffled?)"
            )
            raise self._checkpoint.refuse(f"it holds {self._held.rows} rows that are not {now}")


def merge_states(first: Any, second: Any) -> Any:
    """Two states, or two tuples of states, as one."""
    if isinstance(first, tuple):
        return tuple(merge_states(a, b) for a, b in zip(first, second, strict=True))
    if type(first) is not type(second):
        raise TypeError(
            f"it holds a {type(second).__name__} where a {type(first).__name__} is needed"
        )
    return first.merge(second)


def rows_of(state: Any) -> int:
    """How many rows a state, or a tuple of states, holds."""
    rows: int = (state[0] if isinstance(state, tuple) else state).rows
    return rows
