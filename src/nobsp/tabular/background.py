"""Background rows: few rows that stand for all, over which the network is averaged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nobsp.tabular.answers import run_where_answered
from nobsp.tabular.grids import Represent, Tabulator

# Most that background rows are drawn apart: more would be outliers' work.
MOST_STRETCH = 2.0
# Rows of the table that a draw of background rows is compared with: distances to all of them would take long.
_COMPARED_ROWS = 512
# Draws that are compared: a single one may miss a tail of the rows.
_DRAWS = 64
# Between these quantiles of a column its middle lies: no mean is shifted further than their distance.
_MIDDLE_HALF = (0.25, 0.75)


class Backgrounds:
    """Tabulators over few or many of the background rows, each made once."""

    def __init__(
        self,
        represent: Represent,
        background: int | Tensor,
        rows: Tensor,
        weight: Tensor,
        *,
        numbers: Sequence[int],
        batch_size: int,
    ) -> None:
        self._represent = represent
        self._background = background
        self._rows = rows
        self._weight = weight
        self._numbers = numbers
        self._batch_size = batch_size
        self._tabulators: dict[int, Tabulator] = {}
        self._spread: Tabulator | None = None

    @property
    def most(self) -> int:
        """Background rows there can be."""
        if isinstance(self._background, Tensor):
            return len(self._background)
        return min(self._background, len(self._rows))

    @property
    def forward_rows(self) -> int:
        """Rows that ran through the network so far."""
        rows = sum(tabulate.forward_rows for tabulate in self._tabulators.values())
        return rows if self._spread is None else rows + self._spread.forward_rows

    def of_rows(self, count: int) -> Tabulator:
        """A tabulator over so many rows, or as many as there are."""
        count = min(count, self.most)
        if count not in self._tabulators:
            rows = self._choose(count)
            self._tabulators[count] = Tabulator(
                self._represent, rows, self._weight, batch_size=self._batch_size
            )
        return self._tabulators[count]

    def with_spread(self, count: int) -> Tabulator:
        """The same, the amounts in its rows spread as they are in the calibration rows.

        For terms without a table: nothing purifies them, and few background rows are too close to their mean. A
        feature that multiplies another one's square would be shown too weak.
        """
        if self._spread is None:
            rows = self.of_rows(count).background
            if not isinstance(self._background, Tensor):
                rows = _respread(rows, self._rows, list(self._numbers))
            self._spread = Tabulator(
                self._represent, rows, self._weight, batch_size=self._batch_size
            )
        return self._spread

    def _choose(self, count: int) -> Tensor:
        if isinstance(self._background, Tensor):
            if count == len(self._background):
                return self._background
            rows = self._background
        else:
            rows = self._rows
        return choose_background(rows, count, self._numbers, self._represent)


def _respread(background: Tensor, rows: Tensor, columns: list[int]) -> Tensor:
    """Background rows whose columns have the standard deviation of all rows, inside their range."""
    if not columns or not background.is_floating_point() or len(background) < 2:
        return background

    values = rows[:, columns].double()
    few = background[:, columns].double()
    spread_of_few = few.std(0, correction=0).clamp_min(1e-300)
    stretch = values.std(0, correction=0) / spread_of_few
    stretch = stretch.clamp(1 / MOST_STRETCH, MOST_STRETCH)

    centre = few.mean(0)
    stretched = centre + (few - centre) * stretch
    inside = stretched.clamp(values.amin(0), values.amax(0))

    moved = background.clone()
    moved[:, columns] = inside.to(background.dtype)
    return moved


def choose_background(
    rows: Tensor, count: int, numbers: Sequence[int], represent: Represent
) -> Tensor:
    """`count` rows that stand for all of them, columns of amounts (`numbers`) shifted to the mean of all rows.

    The shift fixes the gauge between base and functions: without it the mean of the background moves with the draw.
    """
    chosen = rows if count >= len(rows) else rows[draw_rows(rows, count)]
    if not rows.is_floating_point() or not len(numbers):
        return chosen.clone()
    return _shift_to_mean(chosen.to(torch.float64), rows, list(numbers), represent)


def draw_rows(rows: Tensor, count: int) -> Tensor:
    """Positions of `count` rows: of several random draws the one closest to all rows by energy distance."""
    # A generator of our own: the caller's random numbers stay where they were.
    generator = torch.Generator().manual_seed(0)
    scaled = _standardize(rows.to(torch.float64))
    compared = scaled[torch.randperm(len(rows), generator=generator)[:_COMPARED_ROWS]]

    best = torch.arange(count)
    least = float("inf")
    for _ in range(_DRAWS):
        drawn = torch.randperm(len(rows), generator=generator)[:count]
        distance = _energy_distance(scaled[drawn], compared)
        if distance < least:
            best = drawn
            least = distance
    return best


def _standardize(rows: Tensor) -> Tensor:
    """Columns with mean zero and standard deviation one; constant ones are zero."""
    spread = rows.std(0, correction=0)
    return (rows - rows.mean(0)) / torch.where(spread > 0, spread, 1.0)


def _energy_distance(drawn: Tensor, compared: Tensor) -> float:
    """2 E|a − b| − E|a − a'|, less what does not depend on the draw."""
    pairs = len(drawn) * (len(drawn) - 1)
    within = torch.cdist(drawn, drawn).sum() / max(pairs, 1)
    across = torch.cdist(drawn, compared).mean()
    return float(2 * across - within)


def _shift_to_mean(
    chosen: Tensor, rows: Tensor, columns: list[int], represent: Represent
) -> Tensor:
    """Background rows with some columns shifted to the mean of all rows, as far as the model answers there."""
    values = rows[:, columns].to(torch.float64)
    shift = values.mean(0) - chosen[:, columns].mean(0)
    # A mean that single outliers carry lies where no row does: nothing is shifted there.
    quartiles = values.quantile(torch.tensor(_MIDDLE_HALF, dtype=torch.float64), dim=0)
    shift = torch.where(shift.abs() <= quartiles[1] - quartiles[0], shift, 0.0)

    shifted = _shift_columns(chosen, columns, shift)
    if _answers(represent, shifted):
        return shifted

    # No column is shifted out of the rows' range, where the model's domain may end.
    below = shifted[:, columns] < values.amin(0)
    above = shifted[:, columns] > values.amax(0)
    leaves_range = (below | above).any(0)
    shifted = _shift_columns(chosen, columns, torch.where(leaves_range, 0.0, shift))
    if _answers(represent, shifted):
        return shifted

    # Some models know nothing between the values of the rows, such as those that look up codes.
    return chosen


def _shift_columns(rows: Tensor, columns: list[int], shift: Tensor) -> Tensor:
    """A copy of rows with some columns shifted."""
    moved = rows.clone()
    moved[:, columns] += shift
    return moved


def _answers(represent: Represent, rows: Tensor) -> bool:
    """Whether the model gives finite answers for all of some rows."""
    answers, failure = run_where_answered(represent, rows, width=1, group=len(rows))
    return failure is None and bool(answers.isfinite().all())
