"""The network on knots and grids, averaged over the background rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nobsp.tabular.answers import (
    Mask,
    UnansweredError,
    answered_nodes,
    last_answered,
    run_where_answered,
)
from nobsp.tabular.budget import BudgetSpentError
from nobsp.tabular.features import FEW_VALUES, Domain, Points
from nobsp.tabular.lookup import Chunk, NumberAxis

Represent = Callable[[Tensor], Tensor]


# Where a segment is cut first to see whether it bends: not in the middle, where a wave crosses its chord.
_CUT = 0.382


# As far from straight as a function may be between knots, in units of the outputs.
_STRAIGHT = 1e-3


class Table(NamedTuple):
    """The representation of one or two features on their points, averaged over the background."""

    mean: Tensor  # (points of each feature …, width)
    outputs: Tensor  # the head's share for every background row by itself, (background, points …, outputs)
    # at which points the model answered, (points …); elsewhere values are those of another point. None for all
    answered: Mask | None = None


class Tabulator:
    """Runs the network on grids of points, the other features as in the background rows; counts forward rows."""

    def __init__(
        self, represent: Represent, background: Tensor, weight: Tensor, *, batch_size: int
    ) -> None:
        self._represent = represent
        self._batch_size = batch_size
        self._failure: Exception | None = None
        self.background = background
        self.weight = weight
        self.forward_rows = 0

    def __call__(self, features: Sequence[Points]) -> Table:
        """The table of some features, held where the model gives no answer beyond the calibrated range."""
        table = self.ask(features)
        answered = answered_nodes(table.mean, table.outputs)
        if answered.all():
            return table

        try:
            place = last_answered(answered, [points.held for points in features])
        except UnansweredError as nowhere:
            node = nowhere.args[0]
            labels = [points.label(at) for points, at in zip(features, node, strict=True)]
            raise self._unanswered(" and ".join(labels)) from self._failure

        itself = np.all(np.array(place) == np.indices(answered.shape), axis=0)
        nodes = tuple(torch.from_numpy(index) for index in place)
        return Table(
            mean=table.mean[nodes],
            outputs=table.outputs.movedim(0, -1)[nodes].movedim(-1, 0),
            answered=itself,
        )

    def ask(self, features: Sequence[Points]) -> Table:
        """The same as the model answers, NaN where it raises."""
        sizes = [len(points) for points in features]
        count = len(self.background)
        nodes = torch.cartesian_prod(*map(torch.arange, sizes)).view(-1, len(sizes))
        values = torch.cat(
            [points.inputs[place] for points, place in zip(features, nodes.T, strict=True)], 1
        )
        columns = [column for points in features for column in points.columns]

        means = []
        outputs = []
        for z in self._over_background(columns, values):
            means.append(z.mean(1))
            outputs.append((z @ self.weight).to(torch.float32))
        return Table(
            mean=torch.cat(means).view(*sizes, -1),
            outputs=torch.cat(outputs).movedim(1, 0).reshape(count, *sizes, -1),
        )

    def _unanswered(self, values: str) -> UnansweredError:
        reason = "it gives no finite number there"
        if self._failure is not None:
            reason = f"it raises {type(self._failure).__name__}: {self._failure}"
        return UnansweredError(
            f"the model cannot be asked for {values}, inside the range of the calibration rows, with the other "
            f"features as in other rows ({reason}). Leave out the rows that reach such values, or pass a model that "
            "answers there."
        )

    def with_rows(self, count: int) -> Tabulator:
        """The same over so many of the background rows."""
        rows = self.background[:: max(len(self.background) // count, 1)]
        return Tabulator(self._represent, rows, self.weight, batch_size=self._batch_size)

    def run(self, rows: Tensor, *, group: int = 1) -> Tensor:
        """Representations of rows, float64 on the CPU, in calls of at most the batch size.

        Rows for which the model raises are NaN, in groups of so many.
        """
        parts = []
        for batch in torch.split(rows, self._batch_size):
            self.forward_rows += len(batch)
            found, failure = run_where_answered(
                self._represent,
                batch,
                width=len(self.weight),
                group=min(group, self._batch_size),
            )
            self._failure = failure or self._failure
            parts.append(found)
        return torch.cat(parts)

    def rows(self, columns: Sequence[int], values: Tensor) -> Tensor:
        """Representation of features that have no table, averaged over the background."""
        return torch.cat([z.mean(1) for z in self._over_background(columns, values)])

    def require_answers(self, representation: Tensor, name: str) -> None:
        """An error where the model gave no finite answer for values of a feature or term that rows have."""
        if not bool(representation.isfinite().all()):
            raise self._unanswered(f"values of {name}") from self._failure

    def _over_background(self, columns: Sequence[int], values: Tensor) -> Iterator[Tensor]:
        """Representations with values (nodes, columns) put into every background row, (nodes, background, width)."""
        count = len(self.background)
        for part in torch.split(values, max(self._batch_size // count, 1)):
            rows = self.background.repeat(len(part), 1)
            rows[:, list(columns)] = part.to(rows.dtype).repeat_interleave(count, 0)
            yield self.run(rows, group=count).view(len(part), count, -1)


def refine_knots(
    tabulate: Tabulator,
    domain: Domain,
    first: Points,
    table: Table,
    rows: Chunk,
    *,
    unit: Tensor,
    most: int,
) -> tuple[Points, Table]:
    """Adds knots to a table where the function is further than a thousandth of a unit from straight.

    It ends early where no more forward rows are left.
    """
    assert isinstance(first.axis, NumberAxis)
    assert domain.span is not None
    knots = first.axis.knots
    mean, missing = table.mean.tensor_split([len(knots)])
    outputs, missing_outputs = table.outputs.tensor_split([len(knots)], 1)
    answered = np.ones(len(knots), dtype=bool)
    if table.answered is not None:
        answered &= table.answered[: len(knots)]
    if first.encoded is not None:
        answered &= first.encoded[: len(knots)]

    # Per segment, how far from straight what it is a part of was found.
    bend = np.full(len(knots) - 1, np.inf)
    # Where one end has the other's values, the function is held.
    bend[~(answered[1:] & answered[:-1])] = 0.0
    values = rows.numbers(first.axis.column)
    if len(np.unique(values[np.isfinite(values)])) <= FEW_VALUES:
        # Nothing is read between knots inside the range.
        bend[(knots[:-1] >= domain.span[0]) & (knots[1:] <= domain.span[1])] = 0.0

    cut = _CUT
    while len(knots) < most:
        # Where knots run out, the segments that bend most have them.
        left = np.sort(np.argsort(-bend, kind="stable")[: most - len(knots)])
        left = left[bend[left] > _STRAIGHT]
        middle = knots[left] + cut * (knots[left + 1] - knots[left])
        # In the caller's units two knots may be neighbours already.
        apart = (middle > knots[left]) & (middle < knots[left + 1])
        left = left[apart]
        middle = middle[apart]
        if not len(left):
            break

        cuts = Points(first.axis, domain.encode(middle[:, None]), first.columns, left)
        try:
            new = tabulate.ask([cuts])
        except BudgetSpentError:
            break
        known = answered_nodes(new.mean, new.outputs)
        bend[left[~known]] = 0.0  # the model has a gap there: its ends have answers
        left = left[known]
        middle = middle[known]
        new_mean = new.mean[torch.from_numpy(known)]
        straight = mean[left] + cut * (mean[left + 1] - mean[left])
        bend[left] = ((new_mean - straight) @ tabulate.weight / unit).abs().amax(1).numpy()

        order = np.argsort(np.concatenate([knots, middle]), kind="stable")
        bend = np.insert(bend, left + 1, bend[left])
        knots = np.concatenate([knots, middle])[order]
        answered = np.concatenate([answered, known[known]])[order]
        mean = torch.cat([mean, new_mean])[order]
        outputs = torch.cat([outputs, new.outputs[:, torch.from_numpy(known)]], 1)[:, order]
        cut = 0.5

    points = domain.number_points(knots)
    return points, Table(
        mean=torch.cat([mean, missing]),
        outputs=torch.cat([outputs, missing_outputs], 1),
        answered=np.concatenate([answered, np.ones(len(missing), dtype=bool)]),
    )
