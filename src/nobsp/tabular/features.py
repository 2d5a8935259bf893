"""One description of a feature, used by fitting, curves, plots, the report and files. Needs numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "levels", "numbers", "unused"]


@dataclass(frozen=True)
class Feature:
    """A feature as the caller's table has it.

    Attributes:
        name: What it is called.
        columns: Positions of its columns in the caller's table.
        kind: "number" for one column of numbers, "levels" for a category, "numbers" for what has no table (several
            columns of numbers at once, or a category of very many levels), "unused" for what the model never sees.
        ranges: Per column of numbers, the smallest and the largest calibrated value; empty for categories.
        labels: What the levels of a category are called.
    """

    name: str
    columns: tuple[int, ...]
    kind: Kind = "number"
    ranges: tuple[tuple[float, float], ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def span(self) -> tuple[float, float] | None:
        """The calibrated range of one number; None for other kinds."""
        return self.ranges[0] if self.kind == "number" and self.ranges else None
