"""Algorithm 1 as published: isolated and reference inputs, sums over rows, partial regressions.

The way is isolation → plan → sums → algorithm: which inputs are run, what is fixed beforehand, what
is added up over rows, and the coefficients and contributions that follow from the sums. Lines 1 to
4 of Algorithm 1 are in `nobsp.projection.partial`, which `algorithm` calls for every term.
"""

from nobsp.published.algorithm import Published, Solution, join_solutions, solve
from nobsp.published.isolation import Isolation, subsets_of
from nobsp.published.plan import Plan, make_plan, rare_rows
from nobsp.published.sums import (
    Accumulator,
    add_rows,
    add_rows_and_summarise,
    room_for_moments,
    split_plan,
)

__all__ = [
    "Accumulator",
    "Isolation",
    "Plan",
    "Published",
    "Solution",
    "add_rows",
    "add_rows_and_summarise",
    "join_solutions",
    "make_plan",
    "rare_rows",
    "room_for_moments",
    "solve",
    "split_plan",
    "subsets_of",
]
