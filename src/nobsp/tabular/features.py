"""One description of a feature, used by fitting, curves, plots, the report and files. Needs numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "levels", "numbers", "unused"]


@dataclass(frozen=True)
class Feature:
    """A feature as the caller's table has it."""

    name: str  # what it is called
    columns: tuple[int, ...]  # positions of its columns in the caller's table
    # "number" for one column of numbers, "levels" for a category, "numbers" for what has no table (several columns of
    # numbers at once, or a category of very many levels), "unused" for what the model never sees
    kind: Kind = "number"
    # per column of numbers, the smallest and the largest calibrated value; empty for categories
    ranges: tuple[tuple[float, float], ...] = ()
    labels: tuple[str, ...] = ()  # what the levels of a category are called

    @property
    def span(self) -> tuple[float, float] | None:
        """The calibrated range of one number; None for other kinds."""
        return self.ranges[0] if self.kind == "number" and self.ranges else None
