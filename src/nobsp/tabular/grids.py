"""The network on knots and grids, averaged over the background rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from nobsp.tabular.lookup import Array, Chunk, NumberAxis, Places

Represent = Callable[[Tensor], Tensor]

# Where a segment is cut first to see whether it bends: not in the middle, where a wave crosses its chord.
_FIRST_CUT = 0.382
# Where segments are cut after that.
_LATER_CUTS = 0.5
# As far from straight as a function may be between knots, in units of the outputs: finer cannot be seen in a curve.
_STRAIGHT = 1e-3


class Table(NamedTuple):
    """The representation of some features on their points, averaged over the background."""

    mean: Tensor  # (points of each feature …, width)
    # the head's share for every background row by itself, (background, points …, outputs)
    outputs: Tensor
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
            sources = last_answered(answered, [points.held for points in features])
        except UnansweredError as error:
            node = error.args[0]
            labels = [points.label(index) for points, index in zip(features, node, strict=True)]
            raise self._unanswered(" and ".join(labels)) from self._failure

        stands_for_itself = np.all(np.array(sources) == np.indices(answered.shape), axis=0)
        nodes = tuple(torch.from_numpy(index) for index in sources)
        return Table(
            mean=table.mean[nodes],
            outputs=table.outputs.movedim(0, -1)[nodes].movedim(-1, 0),
            answered=stands_for_itself,
        )

    def ask(self, features: Sequence[Points]) -> Table:
        """The same as the model answers, NaN where it raises."""
        sizes = [len(points) for points in features]
        nodes = torch.cartesian_prod(*map(torch.arange, sizes)).view(-1, len(sizes))
        sides = [points.inputs[index] for points, index in zip(features, nodes.T, strict=True)]
        columns = [column for points in features for column in points.columns]

        means = []
        outputs = []
        for representation in self._over_background(columns, torch.cat(sides, 1)):
            means.append(representation.mean(1))
            outputs.append((representation @ self.weight).to(torch.float32))

        by_background = torch.cat(outputs).movedim(1, 0)
        return Table(
            mean=torch.cat(means).view(*sizes, -1),
            outputs=by_background.reshape(len(self.background), *sizes, -1),
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
        every = max(len(self.background) // count, 1)
        return Tabulator(
            self._represent,
            self.background[::every],
            self.weight,
            batch_size=self._batch_size,
        )

    def run(self, rows: Tensor, *, group: int = 1) -> Tensor:
        """Representations of rows, float64 on the CPU, in calls of at most the batch size.

        Rows for which the model raises are NaN, in groups of so many.
        """
        representations = []
        for batch in torch.split(rows, self._batch_size):
            self.forward_rows += len(batch)
            representation, failure = run_where_answered(
                self._represent,
                batch,
                width=len(self.weight),
                group=min(group, self._batch_size),
            )
            self._failure = failure or self._failure
            representations.append(representation)
        return torch.cat(representations)

    def rows(self, columns: Sequence[int], values: Tensor) -> Tensor:
        """Representation of features that have no table, averaged over the background."""
        return torch.cat([part.mean(1) for part in self._over_background(columns, values)])

    def require_answers(self, representation: Tensor, name: str) -> None:
        """An error where the model gave no finite answer for values of a feature or term that rows have."""
        if not bool(representation.isfinite().all()):
            raise self._unanswered(f"values of {name}") from self._failure

    def _over_background(self, columns: Sequence[int], values: Tensor) -> Iterator[Tensor]:
        """Representations with values (nodes, columns) put into every background row, (nodes, background, width)."""
        count = len(self.background)
        nodes_at_once = max(self._batch_size // count, 1)
        for part in torch.split(values, nodes_at_once):
            rows = self.background.repeat(len(part), 1)
            rows[:, list(columns)] = part.to(rows.dtype).repeat_interleave(count, 0)
            yield self.run(rows, group=count).view(len(part), count, -1)


# ---------------------------------------------------------------------- knots where a function bends


@dataclass(eq=False)
class _Line:
    """The table of one number, while knots are added to it."""

    knots: Array
    mean: Tensor  # (knots, width)
    outputs: Tensor  # (background, knots, outputs)
    answered: Mask  # which knots stand for themselves
    bends: Array  # per segment, how far from straight the function is where it was cut last

    def segments_to_cut(self, most: int) -> Places:
        """Segments that bend, in order; where there are more than so many, those that bend most."""
        by_bend = np.argsort(-self.bends, kind="stable")
        segments = np.sort(by_bend[:most])
        bending: Places = segments[self.bends[segments] > _STRAIGHT]
        return bending

    def cut(self, segments: Places, share: float) -> tuple[Places, Array]:
        """Segments that can be cut, and the numbers at which they are."""
        left = self.knots[segments]
        right = self.knots[segments + 1]
        numbers = left + share * (right - left)
        # Between two neighbours in floating point there is no number.
        is_between = (numbers > left) & (numbers < right)
        return segments[is_between], numbers[is_between]

    def between(self, segments: Places, share: float) -> Tensor:
        """The representation where segments are cut, if they were straight."""
        left = self.mean[segments]
        right = self.mean[segments + 1]
        return left + share * (right - left)

    def insert(self, segments: Places, numbers: Array, mean: Tensor, outputs: Tensor) -> None:
        """Adds a knot to each of some segments, whose halves bend as far as is known like the whole."""
        self.bends = np.insert(self.bends, segments + 1, self.bends[segments])
        knots = np.concatenate([self.knots, numbers])
        answered = np.concatenate([self.answered, np.ones(len(numbers), dtype=bool)])

        order = np.argsort(knots, kind="stable")
        self.knots = knots[order]
        self.answered = answered[order]
        self.mean = torch.cat([self.mean, mean])[order]
        self.outputs = torch.cat([self.outputs, outputs], 1)[:, order]


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
    count = len(first.axis.knots)
    mean, missing = table.mean.tensor_split([count])
    outputs, missing_outputs = table.outputs.tensor_split([count], 1)
    answered = _stand_for_themselves(first, table)
    line = _Line(
        knots=first.axis.knots,
        mean=mean,
        outputs=outputs,
        answered=answered,
        bends=_first_bends(domain, first.axis, answered, rows),
    )

    share = _FIRST_CUT
    while len(line.knots) < most:
        segments = line.segments_to_cut(most - len(line.knots))
        segments, numbers = line.cut(segments, share)
        if not len(segments):
            break
        try:
            _cut_segments(
                line,
                tabulate,
                domain,
                first,
                segments=segments,
                numbers=numbers,
                share=share,
                unit=unit,
            )
        except BudgetSpentError:
            break
        share = _LATER_CUTS

    refined = Table(
        mean=torch.cat([line.mean, missing]),
        outputs=torch.cat([line.outputs, missing_outputs], 1),
        answered=np.concatenate([line.answered, np.ones(len(missing), dtype=bool)]),
    )
    return domain.number_points(line.knots), refined


def _stand_for_themselves(points: Points, table: Table) -> Mask:
    """Which knots have values of their own, not those of another knot."""
    assert isinstance(points.axis, NumberAxis)
    count = len(points.axis.knots)
    own_values = np.ones(count, dtype=bool)
    if table.answered is not None:
        own_values &= table.answered[:count]
    if points.encoded is not None:
        own_values &= points.encoded[:count]
    return own_values


def _first_bends(domain: Domain, axis: NumberAxis, answered: Mask, rows: Chunk) -> Array:
    """Segments that may bend, as infinite: nothing was measured yet; zero for those that are not looked at."""
    assert domain.span is not None
    low, high = domain.span
    left = axis.knots[:-1]
    right = axis.knots[1:]
    bends = np.full(len(left), np.inf)
    # Where one end has the other's values, the function is held.
    bends[~(answered[1:] & answered[:-1])] = 0.0

    values = rows.numbers(axis.column)
    if len(np.unique(values[np.isfinite(values)])) <= FEW_VALUES:
        # Nothing is read between knots inside the range.
        bends[(left >= low) & (right <= high)] = 0.0
    return bends


def _cut_segments(
    line: _Line,
    tabulate: Tabulator,
    domain: Domain,
    first: Points,
    *,
    segments: Places,
    numbers: Array,
    share: float,
    unit: Tensor,
) -> None:
    """Asks the network where segments are cut, notes how far from straight it is, and adds the knots."""
    inputs = domain.encode(numbers[:, None])
    cuts = tabulate.ask([Points(first.axis, inputs, first.columns, held=segments)])
    answered = answered_nodes(cuts.mean, cuts.outputs)

    # Between two ends with answers the model has a gap: nothing can be followed there.
    line.bends[segments[~answered]] = 0.0
    segments = segments[answered]
    mean = cuts.mean[torch.from_numpy(answered)]
    outputs = cuts.outputs[:, torch.from_numpy(answered)]

    away = (mean - line.between(segments, share)) @ tabulate.weight / unit
    line.bends[segments] = away.abs().amax(1).numpy()
    line.insert(segments, numbers[answered], mean, outputs)
