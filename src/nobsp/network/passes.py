"""Counts rows that go forward through a model, and rows of which a gradient is taken, while a call runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


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
