"""Adds rows up in this process, and what every engine has in common."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from nobsp._typing import ModelLike, TableLike
from nobsp.arguments import path_of, quote, require_number
from nobsp.calibration.checkpoint import Checkpoint, Tracker
from nobsp.network.batches import with_progress

Value = TypeVar("Value")
# A State, or a tuple of them.
S = TypeVar("S", bound=Any)
# Adds a batch to a state, with what runs the model where there is one.
Work = Callable[..., None]

# "4GB", "512 MiB", "1000": a number and a unit.
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*")
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


class Local:
    """Calibrates in this process; the default.

    Args:
        checkpoint: A file in which the calibration is kept while it is under way. After an
            interruption the same call, on the same rows in the same order, resumes from there; rows
            that were added are read past, not run again. A file of other rows, options or of
            another model is an error. It holds a sample of the rows, and is removed when the
            calibration is done.
        every: Seconds between two writes of that file, which are what an interruption can cost.
        memory: Bytes that bases, sums and batches under way are laid out to fit in, as a number or
            as "4GB" or "512MiB"; the network, the data and the libraries are not in it. As
            published each feature has sums of its own; where these do not fit, features are fitted
            in several passes over the data, which must then be readable again, and `merge`, bands
            and checkpoints are not available.

    Example:
        >>> import nobsp, tempfile, torch
        >>> _ = torch.manual_seed(0)
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(3, 8), ReLU(), Linear(8, 1))
        >>> engine = nobsp.Local(
        ...     checkpoint=tempfile.mkdtemp() + "/under-way", every=300, memory="1GiB"
        ... )
        >>> nobsp.NObSP(model, interactions=0).fit(torch.randn(100, 3), engine=engine).terms_
        (('x0',), ('x1',), ('x2',))
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = 60.0,
        *,
        memory: int | str = "4GiB",
    ) -> None:
        require_number("every", every, least=0)
        self.checkpoint = checkpoint
        self.every = float(every)
        self.memory = parse_bytes(memory)

    @contextmanager
    def start(self, classes: Iterable[type] = ()) -> Iterator[Run]:
        """Begins a calibration, or resumes one.

        `classes` are the dataclasses that its checkpoint is made of.
        """
        checkpoint = self._open_checkpoint("", classes)
        yield Run(checkpoint, self.memory)
        if checkpoint is not None:
            # The calibration is done.
            checkpoint.path.unlink(missing_ok=True)

    def _open_checkpoint(self, suffix: str, classes: Iterable[type]) -> Checkpoint | None:
        """The checkpoint, beside others of the same calibration where it has a suffix."""
        if self.checkpoint is None:
            return None
        path = path_of(self.checkpoint, name="checkpoint")
        if not path.name:
            raise ValueError(
                f"checkpoint must be the name of a file, found {quote(self.checkpoint)}."
            )
        return Checkpoint(path.with_name(path.name + suffix), self.every, classes)


class Run:
    """One calibration under way in this process.

    Engines for several processes change how it is put together.
    """

    # How many processes have rows of their own.
    size = 1

    def __init__(self, checkpoint: Checkpoint | None, memory: int) -> None:
        self.checkpoint = checkpoint
        self.memory = memory

    def accumulate(
        self,
        source: Any,
        state: S,
        work: Work,
        *,
        model: ModelLike = None,
        name: str | None = None,
        progress: bool = False,
    ) -> S:
        """Adds all rows to a state, those of other processes included.

        `model.running()` is what `work` is given.
        """
        tracker = None
        if self.checkpoint is not None and name is not None:
            tracker = Tracker(self.checkpoint, name, state)
            state = tracker.state

        batches = with_progress(
            source,
            total=getattr(source, "rows", None),
            enabled=progress,
            description=name or "reading",
        )
        with adding_with(work, model) as add:
            for batch in batches:
                if tracker is None:
                    add(state, batch)
                elif not tracker.skip(batch):
                    add(state, batch)
                    tracker.added(batch)
                self._poll()

        if tracker is not None:
            tracker.finish()
        return self._combine(state, tracker)

    def decide(self, make: Callable[[], Value], *, name: str | None = None) -> Value:
        """What `make` gives, once for all processes.

        With a name, a resumed calibration finds it in its checkpoint.
        """
        decided = self._recall(name)
        if decided is None:
            # With a mark by which files that hold the very same value are told.
            decided = (secrets.token_hex(8), make())
            self._record(name, decided)
        value: Value = decided[1]
        return value

    def gather(self, value: Value) -> list[Value]:
        """What every process that has rows of its own passed, in their order."""
        return [value]

    def share(self, model: ModelLike) -> Any:
        """The model as `accumulate` takes it, once it is where it will be run."""
        return model

    def require_same(self, shared: dict[str, Any], own: dict[str, Any] | None = None) -> None:
        """An error where this is not the calibration in the checkpoint.

        An engine of several processes also raises one where another process is at a different
        calibration.
        """
        if self.checkpoint is not None:
            self.checkpoint.require_same({**shared, **(own or {})})

    def _poll(self) -> None:
        """Is called after every batch."""

    # of use to several processes
    def _combine(self, state: S, tracker: Tracker | None) -> S:  # noqa: ARG002
        return state

    def _recall(self, name: str | None) -> tuple[str, Any] | None:
        """What was decided before an interruption."""
        if self.checkpoint is None or name is None:
            return None
        return self.checkpoint.contents.decided.get(name)

    def _record(self, name: str | None, decided: tuple[str, Any]) -> None:
        """Writes at once what was decided: it may have taken long."""
        if self.checkpoint is not None and name is not None:
            self.checkpoint.contents.decided[name] = decided
            self.checkpoint.write()


@contextmanager
def adding_with(work: Work, model: ModelLike) -> Iterator[Callable[[Any, Any], None]]:
    """What adds a batch to a state while a model runs, or without any."""
    if model is None:
        yield work
        return
    with model.running() as running:
        yield lambda state, batch: work(state, batch, running)


def choose_engine(engine: Local | None, X: TableLike) -> Local:
    """The engine asked for.

    Else all ranks where there are several, Ray for its own datasets, and this process.
    """
    from nobsp.calibration import Ranks, RayCluster

    if engine is None:
        dist = initialised()
        if dist is not None and dist.get_world_size() > 1:
            return Ranks()
        return RayCluster() if is_ray(X) else Local()
    if not isinstance(engine, Local):
        raise TypeError(
            "engine must be nobsp.Local(), Ranks(), RayCluster() or None, found "
            f"{type(engine).__name__}."
        )
    return engine


def parse_bytes(size: int | str, *, argument: str = "memory") -> int:
    """A number of bytes, given as such or in words."""
    parsed = 0
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.lower())
        if match is not None and match[2] in _UNITS:
            parsed = int(float(match[1]) * _UNITS[match[2]])
    elif isinstance(size, int) and not isinstance(size, bool):
        parsed = size

    if parsed <= 0:
        raise ValueError(
            f'{argument} must be a number of bytes, or a text such as "4GB", found {size!r}.'
        )
    return parsed


def is_ray(X: TableLike) -> bool:
    """Whether `X` is of Ray's making; asked without loading Ray."""
    return type(X).__module__.partition(".")[0] == "ray"


def initialised() -> Any:
    """`torch.distributed` where a process group was initialised; else None."""
    # Without this module nobody can have initialised it.
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        return None
    return dist if dist.is_initialized() else None


@runtime_checkable
class State(Protocol):
    """A dataclass that rows are added to, in memory that does not grow with them.

    A new one holds no rows. It is sent to other processes and saved as it is, so it holds tensors
    and plain values. Two more methods are used where a state has them: `thin(total) -> Self` gives
    what is worth sending where all have `total` rows together, and `all_reduce(reduce) -> None`
    replaces its moments by `reduce(moments)`, those of all ranks, which is cheaper.
    """

    # How many rows were added.
    rows: int

    def update(self, batch: Any) -> None:
        """Adds a batch of rows."""

    def merge(self, other: Self) -> Self:
        """These rows and then the other's; neither changes.

        Associative, and a state without rows changes nothing.
        """


@dataclass(eq=False)
class Fold:
    """A state of anything that is made of a batch and joined with what was made of those before."""

    # Makes it of a batch; it is not sent with what was made.
    make: Callable[[Any], Any] | None
    # Joins two of them, in the order of their rows.
    join: Callable[[Any, Any], Any]
    # What was made; None before the first batch.
    value: Any = None
    # How many batches there were.
    rows: int = 0

    def update(self, batch: Any) -> None:
        """Adds a batch."""
        assert self.make is not None
        addition = self.make(batch)
        self.value = addition if self.rows == 0 else self.join(self.value, addition)
        self.rows += 1

    def merge(self, other: Fold) -> Fold:
        """These batches and then the other's."""
        if not self.rows:
            return other
        if not other.rows:
            return self
        return replace(self, value=self.join(self.value, other.value), rows=self.rows + other.rows)

    def thin(self, total: int) -> Fold:  # noqa: ARG002 - of any number
        """Only what was made."""
        return replace(self, make=None)
