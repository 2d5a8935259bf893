"""What a calibration costs: forward rows are counted, limited, and announced where they take long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

Represent = Callable[[Tensor], Tensor]

logger = logging.getLogger("nobsp")

# Rows that finding the head takes: calls of a few rows, and some of the whole probe.
PROBING_ROWS = 128
PROBING_CALLS = 6
# Share of a limit that the rows used for finding the head may have.
_PROBE_SHARE = 0.01
FEWEST_PROBE_ROWS = 16
# Shares of what is left when full tables do not fit: of the calibration rows, then of single features and of screening.
_SAMPLE_SHARE = 0.25
_MAINS_SHARE = 0.5
_SCREEN_SHARE = 0.2
# Grids of pairs leave some rows for knots where single features bend.
PAIRS_SHARE = 0.8
# Fewer background rows than this tell little: after that, knots are saved.
FEWEST_BACKGROUND = 4
# Seconds of a calibration that are announced before it goes on.
_LONG = 60.0


class BudgetSpentError(RuntimeError):
    """More forward rows would be needed than are left."""


@dataclass(eq=False)
class Meter:
    """Counts forward rows, and stops before there are more than the limit."""

    limit: int | None = None
    spent: int = 0
    seconds: float = 0.0  # in the model
    reserved: int = 0  # rows that terms without tables will need
    reduced: bool = False  # whether tables are coarser than they would be without a limit

    @property
    def left(self) -> float:
        """Rows that may still run."""
        return float("inf") if self.limit is None else self.limit - self.spent - self.reserved

    def count(self, represent: Represent) -> Represent:
        """The same function of rows, counted."""

        def counted(rows: Tensor) -> Tensor:
            if len(rows) > self.left:
                self.reduced = True
                raise BudgetSpentError(f"{len(rows)} rows, but {self.left} are left")
            self.spent += len(rows)
            start = time.perf_counter()
            answers = represent(rows)
            self.seconds += time.perf_counter() - start
            return answers

        return counted

    @property
    def seconds_per_row(self) -> float:
        """Measured on the rows so far."""
        return self.seconds / max(self.spent, 1)


def probe_rows(limit: int | None, available: int) -> int:
    """How many rows find the head."""
    if limit is None:
        return available
    return min(available, max(int(limit * _PROBE_SHARE), FEWEST_PROBE_ROWS))


def probing_cost(rows: int) -> int:
    """Forward rows that finding the head takes at most."""
    return PROBING_ROWS + PROBING_CALLS * rows


@dataclass(frozen=True)
class Costs:
    """Forward rows that a calibration takes at least."""

    sample: int  # the calibration rows themselves
    direct: int  # terms that run through the model row by row
    knots: int  # of all features, before refinement
    background: int  # rows that each knot is averaged over
    screen: int  # of all pairs

    @property
    def total(self) -> int:
        """All of them."""
        return self.sample + self.direct + self.knots * self.background + self.screen


@dataclass(frozen=True)
class Plan:
    """How a limit is spent: what is less than it would be without."""

    sample: int
    background: int
    share_of_knots: float  # of those of full tables
    screen: int


def plan_spending(costs: Costs, left: float) -> Plan | None:
    """Where rows are saved; None where full tables of single features and screening fit.

    Fewer background rows come before fewer knots.
    """
    if costs.total <= left:
        return None
    rows = int(left * _SAMPLE_SHARE)
    per_row = 1 + costs.direct / max(costs.sample, 1)
    sample = max(min(costs.sample, int(rows / per_row)), 2)
    rest = left - sample * per_row
    for_mains = rest * (_MAINS_SHARE if costs.screen else 1.0)
    background = int(for_mains // max(costs.knots, 1))
    background = min(max(background, min(FEWEST_BACKGROUND, costs.background)), costs.background)
    share = min(for_mains / max(costs.knots * background, 1), 1.0)
    return Plan(
        sample=sample,
        background=background,
        share_of_knots=share,
        screen=int(rest * _SCREEN_SHARE),
    )


def fewer_pairs(sizes: Iterable[int], background: int, left: float) -> int:
    """How many of the first grids fit into what is left."""
    total = 0
    count = 0
    for nodes in sizes:
        total += nodes * background
        if total > left:
            break
        count += 1
    return count


def announcement(rows: float, seconds_per_row: float, *, least_seconds: float = _LONG) -> str:
    """How long so many forward rows will take, in words; empty where that is not long."""
    seconds = rows * seconds_per_row
    if seconds <= least_seconds:
        return ""
    duration = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    return (
        f"calibrating takes about {duration}: some {rows:,.0f} forward rows at "
        f"{1000 * seconds_per_row:.3g} ms each. NObSP(model, max_forward_rows=...) limits them."
    )


def announce(rows: float, seconds_per_row: float) -> None:
    """Says on the package's logger, which prints it on stderr by default, when a calibration will take long."""
    message = announcement(rows, seconds_per_row)
    if message:
        logger.warning(message)
