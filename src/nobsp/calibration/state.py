"""What is added up over rows: declared once, and run by any engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable


@runtime_checkable
class State(Protocol):
    """A dataclass that rows are added to, in memory that does not grow with them.

    A new one holds no rows. It is sent to other processes as it is, and saved by `nobsp.serialization`, so it holds
    tensors and plain values, no model and no data. Two more methods are used where a state has them:
    `thin(total) -> Self` gives what is worth sending to others where all have `total` rows together, and
    `all_reduce(reduce) -> None` replaces its moments by those of all ranks, `moments = reduce(moments)`, which is
    cheaper than sending them.
    """

    @property
    def rows(self) -> int:
        """How many rows were added."""

    def update(self, batch: Any) -> None:
        """Adds a batch of rows."""

    def merge(self, other: Self) -> Self:
        """These rows and then the other's; neither changes. Associative, and a state without rows changes nothing."""


@dataclass(eq=False)
class Fold:
    """A state of anything that is made of a batch and joined with what was made of those before."""

    make: Callable[[Any], Any] | None  # makes it of a batch; it is not sent with what was made
    join: Callable[[Any, Any], Any]  # joins two of them, in the order of their rows
    value: Any = None  # what was made; None before the first batch
    rows: int = 0  # how many batches there were

    def update(self, batch: Any) -> None:
        """Adds a batch."""
        assert self.make is not None
        made = self.make(batch)
        self.value = made if self.rows == 0 else self.join(self.value, made)
        self.rows += 1

    def merge(self, other: Fold) -> Fold:
        """These batches and then the other's."""
        if not self.rows or not other.rows:
            return self if self.rows else other
        return replace(self, value=self.join(self.value, other.value), rows=self.rows + other.rows)

    def thin(self, total: int) -> Fold:  # noqa: ARG002 - of any number
        """Only what was made."""
        return replace(self, make=None)
