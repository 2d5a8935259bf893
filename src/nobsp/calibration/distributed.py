"""Processes that calibrate together under `torch.distributed`.

Each has its own rows, all end with the same.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar

from nobsp.calibration.checkpoint import Tracker, merge_states
from nobsp.calibration.local import Local, Run, initialised

Value = TypeVar("Value")
S = TypeVar("S", bound=Any)

# Seconds of work between two polls of the other ranks, at first and later on. It bounds how long a
# rank waits for the others at a time, and how long a failure stays unnoticed.
_FIRST_POLL = 0.5
_LONGEST_POLL = 30.0


class Ranks(Local):
    """Calibrates together with the other processes of a `torch.distributed` group.

    Every rank calls `fit` with its own share of the rows, which may be uneven or empty, and ends
    with the same calibration on all rows: the one a single process would reach on the shares one
    after another, but for rounding and the sample of rows past 16,384. An error on one rank is an
    error on all. This is the default where `torch.distributed` is initialised with more than one
    process.

    Args:
        group: The process group; all processes when None. It may be one for GPUs: calibration makes
            its own beside it.
        checkpoint: As in `Local`; every rank has its own file beside this path.
        every: Seconds between two writes of that file.
        memory: As in `Local`; the smallest of all ranks counts.

    Example:
        >>> import nobsp
        >>> engine = nobsp.Ranks(checkpoint="under-way.safetensors", every=300)
        >>> # under torchrun, on every rank: explainer.fit(own_rows, engine=engine)
    """

    def __init__(
        self,
        group: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = 60.0,
        memory: int | str = "4GiB",
    ) -> None:
        super().__init__(checkpoint, every, memory=memory)
        self.group = group

    @contextmanager
    def start(self, classes: Iterable[type] = ()) -> Iterator[Run]:
        """Begins a calibration.

        Its process group is left when the block ends, and an error is told to all ranks.
        """
        dist = initialised()
        if dist is None:
            raise ValueError(
                "engine is Ranks, but torch.distributed.init_process_group was not called; call it "
                "first."
            )
        if dist.get_world_size(self.group) == 1:
            with super().start(classes) as alone:
                yield alone
            return

        own_group = self._new_group(dist)
        run = RankRun(own_group, self.memory)
        try:
            try:
                # Before anything else: ranks with other settings must not wait for each other in
                # different places.
                run.memory = min(run.gather(self.memory))
                run.checkpoint = self._open_checkpoint(f".rank-{run.rank}-of-{run.size}", classes)
                yield run
            except Exception as failure:
                run.abort(failure)
                raise

            # No rank removes its file while another may still fail.
            run.gather(None)
            if run.checkpoint is not None:
                run.checkpoint.path.unlink(missing_ok=True)
        finally:
            dist.destroy_process_group(own_group)

    def _new_group(self, dist: Any) -> Any:
        """A group for the time of the calibration: on the CPU, whatever the models train on."""
        if self.group is None:
            return dist.new_group(backend="gloo")
        members = dist.get_process_group_ranks(self.group)
        return dist.new_group(members, backend="gloo", use_local_synchronization=True)


class RankRun(Run):
    """A calibration under way on several ranks.

    One that fails says so in the next `gather`, where all then stop.
    """

    def __init__(self, group: Any, memory: int) -> None:
        import torch.distributed as dist

        super().__init__(None, memory)
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._stopped = False
        self._interval = _FIRST_POLL
        self._next = time.monotonic() + self._interval

    def gather(self, value: Value) -> list[Value]:
        """What every rank passed, in their order."""
        return [passed for _, passed in self._exchange((None, value))]

    def decide(self, make: Callable[[], Value], *, name: str | None = None) -> Value:
        """What `make` gives on the first rank, or gave before an interruption, handed to all."""
        import torch.distributed as dist

        recalled = self._recall(name)
        marks = self.gather(None if recalled is None else recalled[0])
        knowing = [rank for rank, mark in enumerate(marks) if mark is not None]
        if len({marks[rank] for rank in knowing}) > 1:
            raise ValueError(
                "the ranks' checkpoints are of different calibrations; remove them to start anew."
            )

        source = knowing[0] if knowing else 0
        decided = recalled
        if not knowing and self.rank == source:
            decided = (secrets.token_hex(8), make())
        self.gather(None)
        message = [decided]
        with self._answered():
            global_source = dist.get_global_rank(self._group, source)
            dist.broadcast_object_list(message, src=global_source, group=self._group)

        [decided] = message
        assert decided is not None
        if recalled is None:
            self._record(name, decided)
        value: Value = decided[1]
        return value

    def require_same(self, shared: dict[str, Any], own: dict[str, Any] | None = None) -> None:
        """An error where ranks differ in what they share, or this differs from the checkpoint."""
        first, *others = self.gather(shared)
        for rank, theirs in enumerate(others, start=1):
            for name, value in theirs.items():
                if value != first[name]:
                    raise ValueError(
                        f"{name} differs between rank 0 and rank {rank}; all must have the same."
                    )
        super().require_same(shared, own)

    def abort(self, failure: BaseException) -> None:
        """Says that this rank has failed, wherever the others are."""
        if self._stopped:
            return
        try:
            self._exchange((f"{type(failure).__name__}: {failure}", None), raising=False)
        except RuntimeError as silence:
            # Nobody is left to be told; the failure itself is what matters.
            failure.add_note(str(silence))

    def _poll(self) -> None:
        """Tells the others, every so often, that this rank is at work.

        Process groups allow only so long a wait.
        """
        if time.monotonic() >= self._next:
            self.gather(True)
            self._interval = min(2 * self._interval, _LONGEST_POLL)
            self._next = time.monotonic() + self._interval

    def _combine(self, state: S, tracker: Tracker | None) -> S:
        """What all ranks' rows come to, the same on each."""
        # Until all have done their work.
        while any(self.gather(False)):
            pass
        self._poll_again_soon()

        if isinstance(state, tuple):
            return tuple(self._combine(part, tracker) for part in state)  # type: ignore[return-value]
        if hasattr(state, "all_reduce"):
            if tracker is not None:
                tracker.forget()
            with self._answered():
                state.all_reduce(lambda moments: moments.all_reduce(self._group))
            return state

        total = sum(self.gather(state.rows))
        own = state.thin(total) if hasattr(state, "thin") else state
        gathered = self.gather(own if state.rows else None)
        parts = [part for part in gathered if part is not None]
        whole: S = reduce(merge_states, parts) if parts else state
        return whole

    def _poll_again_soon(self) -> None:
        """Sets the polls of the others back to short intervals."""
        self._interval = _FIRST_POLL
        self._next = time.monotonic() + _FIRST_POLL

    def _exchange(
        self, message: tuple[str | None, Any], *, raising: bool = True
    ) -> list[tuple[str | None, Any]]:
        """An error or None, and a value, of every rank."""
        import torch.distributed as dist

        messages: list[Any] = [None] * self.size
        with self._answered():
            dist.all_gather_object(messages, message, group=self._group)

        failures = [
            f"rank {rank} failed with {error}"
            for rank, (error, _) in enumerate(messages)
            if error is not None
        ]
        if failures and raising:
            self._stopped = True
            raise RuntimeError(
                f"calibration stopped on all {self.size} ranks: {'; '.join(failures)}"
            )
        return messages

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Says so where another rank does not answer."""
        try:
            yield
        except RuntimeError as failure:
            self._stopped = True
            raise RuntimeError(
                f"calibration stopped on rank {self.rank}: another of the {self.size} ranks ended, "
                "or did not answer in time; look at what it said last."
            ) from failure
