"""Levels that calibration did not see: each has a code of its own for as long as one call needs it, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(eq=False)
class UnseenLevels:
    """By column the levels that were met, in the order of their codes."""

    _numbers: dict[int, dict[Hashable, int]] = field(default_factory=dict)

    def number(self, column: int, level: Hashable) -> int:
        """How many other unseen levels of the column came before this one."""
        numbers = self._numbers.setdefault(column, {})
        return numbers.setdefault(level, len(numbers))

    def of_column(self, column: int) -> list[Hashable]:
        """The levels of a column, each at the position that is its number."""
        return list(self._numbers.get(column, ()))


class _Current(threading.local):
    """What this thread is in the middle of; rows are encoded and run by the same thread."""

    levels: UnseenLevels | None = None


_current = _Current()


@contextmanager
def unseen_levels() -> Iterator[UnseenLevels]:
    """Gives levels that calibration did not see codes that hold until the end of the block, in this thread."""
    before = _current.levels
    levels = UnseenLevels()
    try:
        _current.levels = levels
        yield levels
    finally:
        _current.levels = before


def current_unseen_levels() -> UnseenLevels | None:
    """The levels of the block that this thread is in; None outside of any."""
    return _current.levels
