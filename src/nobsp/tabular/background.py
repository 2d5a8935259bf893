"""Background rows: what stands outside a term while its function is measured."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Rows of the table that a choice of background rows is compared with, and how many choices are compared.
_COMPARED_ROWS = 512
_CANDIDATES = 64


def choose_background(rows: Tensor, count: int, numbers: Sequence[int]) -> Tensor:
    """`count` rows that stand for all of them, columns of amounts (`numbers`) shifted to the mean of all rows.

    Of several random draws the one closest to the rows by energy distance is taken. The shift fixes the gauge between
    base and functions: without it the mean of the background moves with the draw.
    """
    if count >= len(rows):
        chosen = rows
    else:
        generator = torch.Generator().manual_seed(0)  # our own: the caller's random numbers stay where they were
        scaled = _standardise(rows.to(torch.float64))
        compared = scaled[torch.randperm(len(rows), generator=generator)[:_COMPARED_ROWS]]
        best, least = torch.arange(count), float("inf")
        for _ in range(_CANDIDATES):
            drawn = torch.randperm(len(rows), generator=generator)[:count]
            distance = _energy_distance(scaled[drawn], compared)
            if distance < least:
                best, least = drawn, distance
        chosen = rows[best]
    if not rows.is_floating_point() or not len(numbers):
        return chosen.clone()
    chosen, columns = chosen.to(torch.float64).clone(), list(numbers)
    values = rows[:, columns].to(torch.float64)
    shift = values.mean(0) - chosen[:, columns].mean(0)
    # A mean that single outliers carry lies where no row does: nothing is shifted there.
    ends = values.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64), dim=0)
    chosen[:, columns] += torch.where(shift.abs() <= ends[1] - ends[0], shift, 0.0)
    return chosen


def _standardise(rows: Tensor) -> Tensor:
    spread = rows.std(0, correction=0)
    return (rows - rows.mean(0)) / torch.where(spread > 0, spread, torch.ones_like(spread))


def _energy_distance(drawn: Tensor, compared: Tensor) -> float:
    """2 E|a − b| − E|a − a'|, less what does not depend on the draw."""
    count = len(drawn)
    within = torch.cdist(drawn, drawn).sum() / max(count * (count - 1), 1)
    return float(2 * torch.cdist(drawn, compared).mean() - within)
