"""Progress bars that share no lock with other processes, and nothing at all of tqdm where no bar is shown."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
