"""One row of the table of speeds: what was measured, against what, how many times, and what was aimed at."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.report import Cell, Column, Table


@dataclass(frozen=True)
class Ratio:
    """A ratio with all its repeats.

    Attributes:
        what: What was done.
        ours: How much it took, or gave, in words with its unit.
        against: What it is compared with, with its own amount.
        values: The ratio in each repeat.
        target: What was aimed at; None where nothing was.
        least: Whether the target is the least it should be, as for a speed-up; else the most, as for a cost.
    """

    what: str
    ours: str
    against: str
    values: tuple[float, ...]
    target: float | None = None
    least: bool = True

    @property
    def ratio(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.ratio >= self.target if self.least else self.ratio <= self.target

    def plain(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Ratio:
        return cls(**{**plain, "values": tuple(plain["values"])})

    def cells(self) -> tuple[Cell, ...]:
        aimed = (
            None if self.target is None else f"{'≥' if self.least else '≤'} {number(self.target)}"
        )
        return (
            self.what,
            self.ours,
            self.against,
            number(self.ratio),
            _range(self.values),
            aimed,
            self.met,
        )


def number(value: float) -> str:
    """Three digits, and none of them behind the point where they would not mean anything.

    Example:
        >>> number(1967.3), number(41.27), number(2.9), number(0.0712)
        ('1,967', '41.3', '2.90', '0.0712')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return (
        f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
        if abs(value) >= 0.1
        else f"{value:.3g}"
    )


def seconds_of(times: Sequence[float]) -> str:
    """The median of some times, with a unit that suits it.

    Example:
        >>> seconds_of([0.0021]), seconds_of([3.0, 2.0, 9.0]), seconds_of([4e-7])
        ('2.10 ms', '3.00 s', '0.40 µs')
    """
    median = statistics.median(times)
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if factor * median >= 1:
            return f"{number(factor * median)} {unit}"
    return f"{number(1e6 * median)} µs"


def raced(
    what: str,
    ours: Sequence[float],
    against: str,
    others: Sequence[float],
    *,
    target: float | None = None,
    cost: bool = False,
) -> Ratio:
    """A ratio of times taken in turn: how many times as fast as the other, or, as a cost, how many times as long."""
    pairs = list(zip(ours, others, strict=True))
    values = tuple(a / b if cost else b / a for a, b in pairs)
    return Ratio(
        what, seconds_of(ours), f"{against}: {seconds_of(others)}", values, target, least=not cost
    )


def table(title: str, ratios: Sequence[Ratio], note: str) -> Table:
    """The ratios as one table."""
    names = ("what", "ours", "against", "ratio", "lowest to highest", "target", "met")
    return Table(title, tuple(map(Column, names)), tuple(ratio.cells() for ratio in ratios), note)


def _range(values: Sequence[float]) -> str | None:
    return None if len(values) < 2 else f"{number(min(values))} to {number(max(values))}"
