"""Where a model answers: it may raise, or give no finite number, for values that no row has.

Tables reach beyond the calibrated range. A knot there that the model cannot answer takes the answer of the last one,
seen from the range, that it can; inside the range such a value is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.tabular.budget import BudgetSpentError

Mask = NDArray[np.bool_]


class UnansweredError(ValueError):
    """The model gives no finite answer for values inside the calibrated range."""


def run_where_answered(
    represent: Callable[[Tensor], Tensor], rows: Tensor, *, width: int, group: int
) -> tuple[Tensor, Exception | None]:
    """Representations in float64 on the CPU, NaN where the model raises, and what it raised last.

    A batch that raises is halved until the rows are found, in whole groups: those of one knot are lost together.
    """
    try:
        # Warnings of numpy would be about values that we chose.
        with np.errstate(all="ignore"):
            return represent(rows).to("cpu", torch.float64), None
    except (BudgetSpentError, MemoryError, OSError, torch.OutOfMemoryError):
        raise  # about the machine, not about the values
    except Exception as failure:  # noqa: BLE001 - models check their domain with errors of any kind
        if len(rows) <= group:
            nothing = torch.full((len(rows), width), torch.nan, dtype=torch.float64)
            return nothing, failure

    groups = -(-len(rows) // group)
    middle = (groups // 2) * group
    first, first_failure = run_where_answered(represent, rows[:middle], width=width, group=group)
    second, second_failure = run_where_answered(represent, rows[middle:], width=width, group=group)
    return torch.cat([first, second]), second_failure or first_failure


def answered_nodes(mean: Tensor, outputs: Tensor) -> Mask:
    """Which nodes of a grid have finite answers over all background rows."""
    finite = mean.isfinite().all(-1)
    # Outputs are kept in single precision, where they may overflow although their mean does not.
    finite &= outputs.isfinite().all(-1).all(0)
    return finite.numpy()


def last_answered(answered: Mask, held: Sequence[NDArray[np.intp]]) -> list[NDArray[np.intp]]:
    """For every node of a grid, the node whose answer it takes, as indices along every axis.

    Args:
        answered: Which nodes have an answer, one dimension per axis.
        held: Per axis, the node at the end of the calibrated range for every node beyond it; itself for others.

    Raises:
        UnansweredError: With the indices of a node inside the range that has no answer.
    """
    inward: list[NDArray[np.intp]] = []
    for ends in held:
        nodes = np.arange(len(ends), dtype=np.intp)
        inward.append(nodes + np.sign(ends - nodes))

    reliable = answered.copy()
    for axis, steps in enumerate(inward):
        _distrust_beyond(reliable, axis, steps)

    sources: list[NDArray[np.intp]] = list(np.indices(answered.shape, dtype=np.intp))
    while True:
        is_lacking = ~reliable[tuple(sources)]
        if not is_lacking.any():
            return sources

        moved: list[NDArray[np.intp]] = [
            np.where(is_lacking, steps[index], index)
            for steps, index in zip(inward, sources, strict=True)
        ]
        stayed = [new == old for new, old in zip(moved, sources, strict=True)]
        is_stuck = is_lacking & np.all(stayed, axis=0)
        if is_stuck.any():
            node = tuple(int(index[is_stuck][0]) for index in sources)
            raise UnansweredError(node)
        sources = moved


def _distrust_beyond(reliable: Mask, axis: int, inward: NDArray[np.intp]) -> None:
    """Marks what lies further out than an unanswered node: past the end of a domain, answers mean nothing."""
    lines = np.moveaxis(reliable, axis, 0)
    below = np.flatnonzero(inward > np.arange(len(inward)))[::-1]
    above = np.flatnonzero(inward < np.arange(len(inward)))
    for node in (*below, *above):
        lines[node] &= lines[inward[node]]
