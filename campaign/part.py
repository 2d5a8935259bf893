"""A part of the campaign: numbered cases, each made from the seed and its number alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from campaign.outcome import Outcome

# A gigabyte more than a case began with is a defect wherever nothing else is said.
MEMORY_LIMIT = 2**30


@dataclass(frozen=True)
class Part:
    """One row of the table."""

    name: str
    tried: str  # what is tried, for the table
    must: str  # what must hold, for the table
    count: int  # how many cases a whole run has
    sample: int  # how many of them `make test` runs
    run: Callable[[int, int], Outcome]  # (seed, number of the case) -> how it ended
    seconds: float = 120.0  # after which a case counts as hung, also on a busy machine
    memory: int = MEMORY_LIMIT  # bytes that a case may need beside what was there


def generator(seed: int, part: str, case: int) -> np.random.Generator:
    """Random numbers of one case, the same in every run."""
    return np.random.default_rng([seed, *part.encode(), case])
