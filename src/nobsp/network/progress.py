"""Counts while a call runs: rows on a progress bar, and rows that go through the model.

Bars share no lock with other processes, and where none is shown nothing of tqdm is loaded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

from nobsp.arguments import require_flag

Batch = TypeVar("Batch", bound=Any)


class Counter(Protocol):
    """What counts steps."""

    def update(self, steps: int = 1) -> object:
        """Count some more."""


class _Silent:
    """Counts nothing and shows nothing."""

    def update(self, steps: int = 1) -> None:
        """Do nothing."""


@contextmanager
def progress_bar(
    *, enabled: bool, description: str, unit: str, total: int | None = None, scaled: bool = False
) -> Iterator[Counter]:
    """Hands out a counter: a bar on stderr (or in the notebook) if enabled, else one that does nothing."""
    require_flag("progress", enabled)
    if not enabled:
        yield _Silent()
        return

    with _bar_class()(total=total, desc=description, unit=unit, unit_scale=scaled) as bar:
        yield bar


def with_progress(
    iterable: Iterable[Batch], *, total: int | None, enabled: bool, description: str
) -> Iterator[Batch]:
    """Pass batches through, counting their rows on a progress bar."""
    require_flag("progress", enabled)
    if not enabled:
        yield from iterable
        return

    with progress_bar(
        enabled=True, description=description, unit=" rows", total=total, scaled=True
    ) as bar:
        for batch in iterable:
            yield batch
            bar.update(len(batch))


@cache
def _bar_class() -> Any:
    """The bar of the terminal or the notebook, with a lock of this process alone and without a monitor thread."""
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        # The monitor thread only redraws bars that stand still, and would live on in the process.
        monitor_interval = 0

    def renew_lock() -> None:
        Bar.set_lock(threading.RLock())

    # tqdm's own lock is one of multiprocessing: a process killed while it holds it blocks all its relatives.
    renew_lock()
    # A thread that holds the lock while another forks does not exist in the child.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew_lock)
    return Bar


@dataclass
class Passes:
    """What was run in one thread."""

    rows: int = 0  # rows that went forward through the model, or through its last layers alone
    gradients: int = 0  # gradients, one for each row and each number that was differentiated


_counted: ContextVar[tuple[Passes, ...]] = ContextVar("_counted", default=())


@contextmanager
def counting_passes() -> Iterator[Passes]:
    """Hand out a count of what is run inside; counts inside counts see the same."""
    passes = Passes()
    token = _counted.set((*_counted.get(), passes))
    try:
        yield passes
    finally:
        _counted.reset(token)


def count_rows(rows: int) -> None:
    """Note rows that went forward."""
    for passes in _counted.get():
        passes.rows += rows


def count_gradients(rows: int) -> None:
    """Note gradients of rows."""
    for passes in _counted.get():
        passes.gradients += rows
