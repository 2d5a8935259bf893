"""Processes that calibrate together under `torch.distributed`: each has its own rows, all end with the same."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from nobsp.projection import Moments

Value = TypeVar("Value")

# Seconds of work between two looks at how the others are doing, at first and later on. It bounds how long a rank
# waits for the others at a time, and how long a failure stays unnoticed.
_FIRST_LOOK = 0.5
_LONGEST_LOOK = 30.0


class Ranks:
    """The processes of one calibration, or the only one.

    Everything passes through `gather`, in which every rank says how it is doing before it says anything else.
    A rank that fails anywhere between two of them says so in the next one, and all others stop there too.

    Args:
        group: A process group that carries CPU tensors; None for a process on its own.
        rank: This process.
        size: How many there are.

    Example:
        >>> Ranks().gather("mine")
        ['mine']
    """

    def __init__(self, group: Any = None, *, rank: int = 0, size: int = 1) -> None:
        self._group, self.rank, self.size = group, rank, size
        self._stopped = False

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self._group is None

    def gather(self, value: Value) -> list[Value]:
        """What every rank passed, in their order.

        Raises:
            RuntimeError: If another rank failed, with its number and its error, or does not answer.
        """
        if self.alone:
            return [value]
        return [found for _, found in self._exchange((None, value))]

    def decide(self, make: Callable[[], Value]) -> Value:
        """What `make` gives on the first rank, handed to all."""
        if self.alone:
            return make()
        decided: Value = self.hand_out(make() if self.rank == 0 else None, source=0)
        return decided

    def hand_out(self, value: Any, *, source: int) -> Any:
        """What one rank has, handed to all."""
        if self.alone:
            return value
        import torch.distributed as dist

        self.gather(None)
        box = [value]
        with self._answered():
            dist.broadcast_object_list(box, src=dist.get_global_rank(self._group, source), group=self._group)
        return box[0]

    def work(self, steps: Iterator[object]) -> None:
        """Takes every step of this rank's work, and waits until all ranks have taken theirs.

        Ranks look at one another every so often: none waits for another's whole work at a time, which
        may take longer than a process group has patience for.
        """
        if self.alone:
            for _ in steps:
                pass
            return
        busy, look = True, _FIRST_LOOK
        while True:
            until = time.monotonic() + look
            while busy and time.monotonic() < until:
                busy = next(steps, _DONE) is not _DONE
            if not any(self.gather(busy)):
                return
            look = min(2 * look, _LONGEST_LOOK)

    def all_reduce(self, parts: dict[str, list[Moments]]) -> None:
        """Replaces every rank's moments by those of all ranks' rows, block by block."""
        if self.alone:
            return
        self.gather(None)
        with self._answered():
            for blocks in parts.values():
                for number, block in enumerate(blocks):
                    blocks[number] = block.all_reduce(self._group)

    def tell(self, failure: BaseException) -> None:
        """Says that this rank has failed, wherever the others are."""
        if not self.alone and not self._stopped:
            self._exchange((f"{type(failure).__name__}: {failure}", None), speak=False)

    def _exchange(self, said: tuple[str | None, Any], *, speak: bool = True) -> list[tuple[str | None, Any]]:
        import torch.distributed as dist

        heard: list[Any] = [None] * self.size
        with self._answered():
            dist.all_gather_object(heard, said, group=self._group)
        failures = [f"rank {rank} failed with {error}" for rank, (error, _) in enumerate(heard) if error is not None]
        if failures and speak:
            self._stopped = True
            raise RuntimeError(f"calibration stopped on all {self.size} ranks: {'; '.join(failures)}")
        return heard

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as failure:
            self._stopped = True
            raise RuntimeError(
                f"calibration stopped on rank {self.rank}: another of the {self.size} ranks ended, or did not answer "
                "in time; look at what it said last."
            ) from failure


_DONE = object()


def require_same(ranks: Ranks, mine: str, what: str) -> None:
    """An error on every rank where one has another model, or other options, than the first."""
    found = ranks.gather(mine)
    for rank, theirs in enumerate(found):
        if theirs != found[0]:
            raise ValueError(f"{what} differs between rank 0 and rank {rank}; calibrations add up for one only.")


@contextmanager
def together(enabled: bool) -> Iterator[Ranks]:
    """The ranks of the initialised process group, or this process alone where there is none.

    A group of its own is made for the time of the calibration: on the CPU, whatever the models train on. All ranks
    leave it together, in good order or with an error each.
    """
    # Without this module nobody can have initialised it.
    dist = sys.modules.get("torch.distributed")
    if not enabled or dist is None or not dist.is_available() or not dist.is_initialized():
        yield Ranks()
        return
    if dist.get_world_size() == 1:
        yield Ranks()
        return
    group = dist.new_group(backend="gloo")
    ranks = Ranks(group, rank=dist.get_rank(), size=dist.get_world_size())
    try:
        try:
            yield ranks
        except Exception as failure:
            _tell(ranks, failure)
            raise
        ranks.gather(None)
    finally:
        dist.destroy_process_group(group)


def _tell(ranks: Ranks, failure: BaseException) -> None:
    try:
        ranks.tell(failure)
    except RuntimeError as silence:  # nobody is left to be told; the failure itself is what matters
        failure.add_note(str(silence))
