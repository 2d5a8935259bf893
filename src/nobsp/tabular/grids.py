"""The network on knots and grids, averaged over background rows, and what that may cost.

Tables reach beyond the calibrated range, where a model may raise or give no finite number. A knot
there that the model cannot answer takes the answer of the last one, seen from the range, that it
can; inside the range such a value is an error that names it.

In this order: the tabulator, where the model answers, knots where a function bends, background
rows; then forward rows, planned, counted, limited and announced, and how fine tables are.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import BoolArray
from nobsp.network.columns import Subset
from nobsp.network.guest import OperationCounter
from nobsp.network.readout import Represent
from nobsp.tabular.features import Domain, Points
from nobsp.tabular.lookup import Array, Chunk, NumberAxis, Places
from nobsp.tabular.setting import SOME_ROWS

if TYPE_CHECKING:
    from nobsp.tabular.shortcut import Shortcut


class Averages(NamedTuple):
    """The representation of some features on their points, averaged over the background."""

    mean: Tensor  # (points of each feature …, width)
    # what the head makes of it for every background row by itself, (background, points …, outputs)
    outputs: Tensor  # less a constant
    # at which points the model answered, (points …); elsewhere values are those of another point.
    # None for all
    answered: BoolArray | None = None

    def put(self, nodes: Places, answers: Averages) -> None:
        """Writes answers at some of the nodes, which are one below the other."""
        positions = torch.from_numpy(nodes)
        self.mean[positions] = answers.mean
        self.outputs[:, positions] = answers.outputs


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Nodes of a grid of some features, one below the other."""

    columns: tuple[int, ...]  # of the network's input
    inputs: Tensor  # what these columns hold, (nodes, columns)
    inside: BoolArray  # which are in the calibrated range
    sizes: tuple[int, ...]  # points of each side of the whole grid

    @classmethod
    def of(cls, features: Sequence[Points]) -> _Nodes:
        """All nodes; those of the last side run fastest."""
        sizes = tuple(len(points) for points in features)
        sides = [
            _repeat_side(points.inputs, side=side, sizes=sizes)
            for side, points in enumerate(features)
        ]
        inside = np.ones(sizes, dtype=bool)
        for side, points in enumerate(features):
            shape = [1] * len(sizes)
            shape[side] = sizes[side]
            inside &= points.inside.reshape(shape)
        columns = tuple(column for points in features for column in points.columns)
        return cls(columns, torch.cat(sides, 1), inside.ravel(), sizes)

    def __len__(self) -> int:
        return len(self.inputs)

    def only(self, positions: Places) -> _Nodes:
        """Some of the nodes."""
        return replace(
            self, inputs=self.inputs[torch.from_numpy(positions)], inside=self.inside[positions]
        )

    def on_grid(self, table: Averages) -> Averages:
        """Averages at all nodes, with a dimension for each side."""
        return Averages(
            mean=table.mean.view(*self.sizes, -1),
            outputs=table.outputs.reshape(len(table.outputs), *self.sizes, -1),
        )


class _RaisedError(Exception):
    """The model raised for one of the rows of a call."""


class Tabulator:
    """Runs the network on grids of points, the other features as in the background rows."""

    def __init__(
        self,
        represent: Represent,
        background: Tensor,
        head_weight: Tensor,
        *,
        batch_size: int,
        shortcut: Shortcut | None = None,
        raising: set[Subset] | None = None,
    ) -> None:
        self._represent = represent
        self._shortcut = shortcut
        self._batch_size = batch_size
        # Features beyond whose range the model is known to raise, by their columns.
        self._raising = set() if raising is None else raising
        self._failure: Exception | None = None
        self._origin: Tensor | None = None
        self.background = background
        self.head_weight = head_weight

    def __call__(self, features: Sequence[Points]) -> Averages:
        """The table of some features.

        Where the model gives no answer beyond the calibrated range, it goes on as at the last one.
        """
        table = self._ask_outwards(features)
        answered = answered_nodes(table.mean, table.outputs)
        if answered.all():
            return table

        try:
            sources = last_answered(answered, [points.clamped_to for points in features])
        except UnansweredError as error:
            raise self._unanswered_at(features, error.args[0]) from self._failure

        stands_for_itself = np.all(np.array(sources) == np.indices(answered.shape), axis=0)
        nodes = tuple(torch.from_numpy(index) for index in sources)
        return Averages(
            mean=table.mean[nodes],
            outputs=table.outputs.movedim(0, -1)[nodes].movedim(-1, 0),
            answered=stands_for_itself,
        )

    def ask(self, features: Sequence[Points]) -> Averages:
        """The averages of some features as the model answers, NaN where it raises."""
        table = None if self._shortcut is None else self._shortcut.table(self, features)
        if table is not None:
            return table
        nodes = _Nodes.of(features)
        return nodes.on_grid(self._average(nodes))

    def answers_beyond(self, points: Points) -> bool:
        """Whether one background row is answered at a feature's last points beyond its range.

        Where it is not, they will be asked one by one.
        """
        beyond = np.flatnonzero(~points.inside)
        if self._shortcut is not None or not len(beyond):
            return True
        ends = _Nodes.of([points]).only(np.unique(beyond[[0, -1]]))
        is_answered = self.with_rows(1)._answered(ends) is not None
        if not is_answered:
            self._raising.add(points.columns)
        return is_answered

    def look_inside(self, lines: Sequence[Points]) -> None:
        """Asks the points of a feature that are in its range, with one background row.

        Raises:
            UnansweredError: If one is not answered, as would be found with all background rows.
        """
        first_row = self.with_rows(1)
        for line in lines:
            first_row._ask_inside([line], _Nodes.of([line]), np.flatnonzero(line.inside))

    def _ask_outwards(self, features: Sequence[Points]) -> Averages:
        """The averages of some features; where the model raises, those inside the range first.

        Halving all rows until those that raise are found would run most of them several times.
        """
        if self._shortcut is not None:
            return self.ask(features)

        nodes = _Nodes.of(features)
        if not (len(features) == 1 and features[0].columns in self._raising):
            self._failure = None
            with suppress(_RaisedError):
                return nodes.on_grid(self._average(nodes, together=True))

        is_inside = nodes.inside
        inside = np.flatnonzero(is_inside)
        answers = self._ask_inside(features, nodes, inside)
        table = Averages(
            mean=answers.mean.new_full((len(nodes), answers.mean.shape[-1]), torch.nan),
            outputs=answers.outputs.new_full(
                (len(self.background), len(nodes), answers.outputs.shape[-1]), torch.nan
            ),
        )
        table.put(inside, answers)

        beyond = np.flatnonzero(~is_inside)
        if len(features) > 1 and len(beyond):
            table.put(beyond, self._average(nodes.only(beyond)))
        if len(features) > 1:
            return nodes.on_grid(table)

        self._raising.add(features[0].columns)
        for side in (beyond[beyond < inside[0]][::-1], beyond[beyond > inside[0]]):
            for node in side:
                answer = self._answered(nodes.only(node[None]))
                if answer is None:  # nothing further out means anything
                    break
                table.put(node[None], answer)
        return table

    def _ask_inside(self, features: Sequence[Points], nodes: _Nodes, inside: Places) -> Averages:
        """The averages at nodes inside the range; an UnansweredError where one has none."""
        table = self._answered(nodes.only(inside))
        if table is not None:
            return table

        while len(inside) > 1:
            half = len(inside) // 2
            is_first = self._answered(nodes.only(inside[:half])) is None
            inside = inside[:half] if is_first else inside[half:]
        self._answered(nodes.only(inside))  # for what it raises
        node = np.unravel_index(inside[0], nodes.sizes)
        raise self._unanswered_at(features, [int(index) for index in node]) from self._failure

    def _answered(self, nodes: _Nodes) -> Averages | None:
        """The averages at some nodes; None where one of them is not answered."""
        self._failure = None
        try:
            table = self._average(nodes, together=True)
        except _RaisedError:
            return None
        return table if bool(answered_nodes(table.mean, table.outputs).all()) else None

    def _average(self, nodes: _Nodes, *, together: bool = False) -> Averages:
        """The averages at nodes one below the other, NaN where the model raises.

        With `together` it ends with a _RaisedError then.
        """
        means = []
        outputs = []
        for representation in self._over_background(nodes.columns, nodes.inputs, together=together):
            means.append(representation.mean(1))
            outputs.append(self.shorten(representation @ self.head_weight))
        return Averages(mean=torch.cat(means), outputs=torch.cat(outputs).movedim(1, 0))

    def shorten(self, outputs: Tensor) -> Tensor:
        """Outputs in single precision, less the median of the first ones.

        A large mean would take their digits.

        A constant is nothing to what they are for: bands, steps and strengths.
        """
        if self._origin is None:
            flat = outputs.reshape(-1, outputs.shape[-1])
            answered = flat[flat.isfinite().all(1)]
            if not len(answered):
                return outputs.to(torch.float32)
            self._origin = answered.median(0).values
        return (outputs - self._origin).to(torch.float32)

    def _unanswered_at(self, features: Sequence[Points], node: Sequence[int]) -> UnansweredError:
        labels = [points.label(index) for points, index in zip(features, node, strict=True)]
        return self._unanswered(" and ".join(labels))

    def _unanswered(self, values: str) -> UnansweredError:
        reason = "it gives no number below 1e38 there"
        if self._failure is not None:
            reason = f"it raises {type(self._failure).__name__}: {self._failure}"
        return UnansweredError(
            f"the model cannot be asked for {values}, inside the range of the calibration rows, "
            f"with the other features as in other rows ({reason}). Leave out the rows that reach "
            "such values, pass a model that answers there, or make one feature of columns that "
            "limit each other, such as a start and an end: "
            'features={"span": ["start", "end"], …}.'
        )

    def with_rows(self, count: int) -> Tabulator:
        """This tabulator over about `count` of the background rows, at even distances."""
        every = max(len(self.background) // count, 1)
        return Tabulator(
            self._represent,
            self.background[::every],
            self.head_weight,
            batch_size=self._batch_size,
            shortcut=self._shortcut,
            raising=self._raising,
        )

    def run(self, rows: Tensor, *, group: int = 1) -> Tensor:
        """Representations of rows, float64 on the CPU, in calls of at most the batch size.

        Rows for which the model raises are NaN, all `group` rows that belong together.
        """
        representations = []
        for batch in torch.split(rows, self._batch_size):
            representation, failure = run_where_answered(
                self._represent,
                batch,
                width=len(self.head_weight),
                group=min(group, self._batch_size),
            )
            self._failure = failure or self._failure
            representations.append(representation)
        return join(representations)

    def average_rows(self, columns: Sequence[int], values: Tensor) -> Tensor:
        """Representation of features that have no table, averaged over the background."""
        return torch.cat([part.mean(1) for part in self._over_background(columns, values)])

    def require_answers(self, representation: Tensor, name: str) -> None:
        """Raises an UnansweredError where the model gave no finite answer for values of rows.

        They are values of the feature or term `name`.
        """
        if not bool(representation.isfinite().all()):
            raise self._unanswered(f"values of {name}") from self._failure

    def _over_background(
        self, columns: Sequence[int], values: Tensor, *, together: bool = False
    ) -> Iterator[Tensor]:
        """Representations with values put into every background row.

        Shape (nodes, background, width), for values of shape (nodes, columns). With `together` a
        call that raises is not repeated in parts: it ends with a _RaisedError.
        """
        count = len(self.background)
        nodes_at_once = max(self._batch_size // count, 1)
        for part in torch.split(values, nodes_at_once):
            repeated = self.background.expand(len(part), *self.background.shape)
            rows = repeated.clone(memory_format=torch.contiguous_format)
            for position, column in enumerate(columns):
                rows[:, :, column] = part[:, position, None].to(rows.dtype)
            group = len(part) * count if together else count
            representation = self.run(rows.flatten(0, 1), group=group)
            if together and self._failure is not None:
                raise _RaisedError
            yield representation.view(len(part), count, -1)


def _repeat_side(inputs: Tensor, *, side: int, sizes: Sequence[int]) -> Tensor:
    """The points of one side of a grid at all nodes, shape (nodes, columns).

    The last side runs fastest.
    """
    shape = [1] * len(sizes)
    shape[side] = sizes[side]
    return inputs.reshape(*shape, -1).expand(*sizes, -1).flatten(0, -2)


def join(parts: Sequence[Tensor]) -> Tensor:
    """Parts one below the other; a single one as it is, without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


# ---------------------------------------------------------------------- where the model answers


class UnansweredError(ValueError):
    """The model gives no finite answer for values inside the calibrated range."""


def run_where_answered(
    represent: Callable[[Tensor], Tensor], rows: Tensor, *, width: int, group: int
) -> tuple[Tensor, Exception | None]:
    """Representations in float64 on the CPU, NaN where the model raises, and what it raised last.

    A batch that raises is halved until the rows are found, in whole groups: those of one knot are
    lost together.
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


def answered_nodes(mean: Tensor, outputs: Tensor) -> BoolArray:
    """Which nodes of a grid have finite answers over all background rows."""
    # A finite sum has finite parts only, and is had sooner than a look at each of them.
    if math.isfinite(float(mean.sum()) + float(outputs.sum())):
        return np.ones(mean.shape[:-1], dtype=bool)

    finite = mean.isfinite().all(-1)
    # Outputs are kept in single precision, where they may overflow although their mean does not.
    finite &= outputs.isfinite().all(-1).all(0)
    return finite.numpy()


def last_answered(answered: BoolArray, clamped_to: Sequence[Places]) -> list[Places]:
    """For every node of a grid, the node whose answer it takes, as indices along every axis.

    Args:
        answered: Which nodes have an answer, one dimension per axis.
        clamped_to: Per axis, the node at the end of the calibrated range for every node beyond it;
            itself for others.

    Raises:
        UnansweredError: With the indices of a node inside the range that has no answer.
    """
    inward: list[NDArray[np.intp]] = []
    for ends in clamped_to:
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


def _distrust_beyond(reliable: BoolArray, axis: int, inward: NDArray[np.intp]) -> None:
    """Marks what lies further out than an unanswered node as not reliable.

    Past the end of a domain, answers mean nothing.
    """
    lines = np.moveaxis(reliable, axis, 0)
    below = np.flatnonzero(inward > np.arange(len(inward)))[::-1]
    above = np.flatnonzero(inward < np.arange(len(inward)))
    for node in (*below, *above):
        lines[node] &= lines[inward[node]]


# --------------------------------------------------------------------- knots where a function bends


# Where a segment is cut first to see whether it bends: not in the middle, where a wave crosses its
# chord.
_FIRST_CUT = 0.382
# Where segments are cut after that.
_LATER_CUTS = 0.5
# Largest distance from a straight line between knots, in standard deviations of the outputs; less
# would not show in a plot.
_STRAIGHT = 1e-3


@dataclass(frozen=True, eq=False)
class _Cuts:
    """Where some segments of a line are cut in two."""

    segments: Places  # by the position of their left knot
    numbers: Array  # the numbers at which they are
    share: float  # how far along each that is

    def only(self, mask: BoolArray) -> _Cuts:
        """Some of the cuts."""
        return replace(self, segments=self.segments[mask], numbers=self.numbers[mask])


@dataclass(eq=False)
class _Line:
    """The table of one number, while knots are added to it."""

    knots: Array
    mean: Tensor  # (knots, width)
    outputs: Tensor  # (background, knots, outputs)
    answered: BoolArray  # which knots stand for themselves
    bends: Array  # per segment, how far from straight the function is where it was cut last

    def segments_to_cut(self, most: int) -> Places:
        """Segments that bend, in order; where there are more than `most`, those that bend most."""
        by_bend = np.argsort(-self.bends, kind="stable")
        segments = np.sort(by_bend[:most])
        bending: Places = segments[self.bends[segments] > _STRAIGHT]
        return bending

    def cut(self, segments: Places, share: float) -> _Cuts:
        """Cuts of those among the segments that can be cut."""
        left = self.knots[segments]
        right = self.knots[segments + 1]
        numbers = left + share * (right - left)
        # Between two neighbours in floating point there is no number.
        is_between = (numbers > left) & (numbers < right)
        return _Cuts(segments, numbers, share).only(is_between)

    def if_straight(self, cuts: _Cuts) -> Tensor:
        """The representation where segments are cut, if they were straight."""
        left = self.mean[cuts.segments]
        right = self.mean[cuts.segments + 1]
        return left + cuts.share * (right - left)

    def insert(self, cuts: _Cuts, mean: Tensor, outputs: Tensor) -> None:
        """Adds a knot at each cut; both halves are taken to bend like the whole.

        Nothing else is known of them yet.
        """
        self.bends = np.insert(self.bends, cuts.segments + 1, self.bends[cuts.segments])
        knots = np.concatenate([self.knots, cuts.numbers])
        answered = np.concatenate([self.answered, np.ones(len(cuts.numbers), dtype=bool)])

        order = np.argsort(knots, kind="stable")
        self.knots = knots[order]
        self.answered = answered[order]
        self.mean = torch.cat([self.mean, mean])[order]
        self.outputs = torch.cat([self.outputs, outputs], 1)[:, order]


def refine_knots(
    tabulator: Tabulator,
    domain: Domain,
    first: Points,
    table: Averages,
    rows: Chunk,
    *,
    unit: Tensor,
    most: int,
) -> tuple[Points, Averages]:
    """Adds knots to a table where its function is over a thousandth of a unit from straight.

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
        cuts = line.cut(segments, share)
        if not len(cuts.segments):
            break
        try:
            _add_knots(line, cuts, tabulator, domain, first, unit=unit)
        except BudgetSpentError:
            break
        share = _LATER_CUTS

    refined = Averages(
        mean=torch.cat([line.mean, missing]),
        outputs=torch.cat([line.outputs, missing_outputs], 1),
        answered=np.concatenate([line.answered, np.ones(len(missing), dtype=bool)]),
    )
    return domain.number_points(line.knots), refined


def _stand_for_themselves(points: Points, table: Averages) -> BoolArray:
    """Which knots have values of their own, not those of another knot."""
    assert isinstance(points.axis, NumberAxis)
    count = len(points.axis.knots)
    own_values = np.ones(count, dtype=bool)
    if table.answered is not None:
        own_values &= table.answered[:count]
    if points.encoded is not None:
        own_values &= points.encoded[:count]
    return own_values


def _first_bends(domain: Domain, axis: NumberAxis, answered: BoolArray, rows: Chunk) -> Array:
    """Per segment infinity where it may bend, and zero where it is not looked at.

    Infinite, because nothing was measured yet.
    """
    assert domain.span is not None
    low, high = domain.span
    left = axis.knots[:-1]
    right = axis.knots[1:]
    bends = np.full(len(left), np.inf)
    # Where one end has the other's values, the function is constant.
    bends[~(answered[1:] & answered[:-1])] = 0.0

    values = rows.numbers(axis.column)
    if bool(np.isin(values[np.isfinite(values)], axis.knots).all()):
        # Nothing is read between knots inside the range.
        bends[(left >= low) & (right <= high)] = 0.0
    return bends


def _add_knots(
    line: _Line,
    cuts: _Cuts,
    tabulator: Tabulator,
    domain: Domain,
    first: Points,
    *,
    unit: Tensor,
) -> None:
    """Asks the network where segments are cut, notes how far from straight it is, adds knots."""
    inputs = domain.encode(cuts.numbers[:, None])
    points = Points(first.axis, inputs, first.columns, clamped_to=cuts.segments)
    table = tabulator.ask([points])
    answered = answered_nodes(table.mean, table.outputs)

    # Between two ends with answers the model has a gap: nothing can be followed there.
    line.bends[cuts.segments[~answered]] = 0.0
    cuts = cuts.only(answered)
    mean = table.mean[torch.from_numpy(answered)]
    outputs = table.outputs[:, torch.from_numpy(answered)]

    away = (mean - line.if_straight(cuts)) @ tabulator.head_weight / unit
    line.bends[cuts.segments] = away.abs().amax(1).numpy()
    line.insert(cuts, mean, outputs)


# ----------------------------------------------------- background rows: few rows that stand for all


# Most that background rows are drawn apart: more would be outliers' work.
MOST_STRETCH = 2.0
# Rows of the table that a draw of background rows is compared with: distances to all of them would
# take long.
_ROWS_OF_A_DRAW = 512
# Draws that are compared: a single one may miss a tail of the rows.
_DRAWS = 64
# Between these quantiles of a column its middle lies: no mean is shifted further than their
# distance.
_MIDDLE_HALF = (0.25, 0.75)


class Backgrounds:
    """Tabulators over few or many of the background rows, each made once."""

    def __init__(
        self,
        represent: Represent,
        background: int | Tensor,
        rows: Tensor,
        head_weight: Tensor,
        *,
        shifted_columns: Sequence[int],
        batch_size: int,
        shortcut: Shortcut | None = None,
        raising: set[Subset] | None = None,
    ) -> None:
        self._represent = represent
        self._shortcut = shortcut
        self._background = background
        self._rows = rows
        self._head_weight = head_weight
        self._columns_to_shift = shifted_columns
        self._batch_size = batch_size
        self._raising = set() if raising is None else raising
        self._tabulators: dict[int, Tabulator] = {}
        self._spread: Tabulator | None = None

    @property
    def are_cheap(self) -> bool:
        """Whether tables take no forward passes."""
        return self._shortcut is not None

    @property
    def most(self) -> int:
        """Background rows there can be."""
        if isinstance(self._background, Tensor):
            return len(self._background)
        return min(self._background, len(self._rows))

    def of_rows(self, count: int) -> Tabulator:
        """A tabulator over `count` rows, or as many as there are."""
        count = min(count, self.most)
        if count not in self._tabulators:
            rows = self._choose(count)
            self._tabulators[count] = Tabulator(
                self._represent,
                rows,
                self._head_weight,
                batch_size=self._batch_size,
                shortcut=self._shortcut,
                raising=self._raising,
            )
        return self._tabulators[count]

    def with_spread(self) -> Tabulator:
        """A tabulator over few rows whose amounts are spread as they are in the calibration rows.

        For terms without a table: they are not purified over the calibration rows, and few
        background rows are too close to their mean. A feature that multiplies another one's square
        would be shown too weak.
        """
        if self._spread is None:
            rows = self.of_rows(DIRECT_BACKGROUND).background
            if not isinstance(self._background, Tensor):
                rows = _respread(rows, self._rows, list(self._columns_to_shift))
            self._spread = Tabulator(
                self._represent, rows, self._head_weight, batch_size=self._batch_size
            )
        return self._spread

    def _choose(self, count: int) -> Tensor:
        if isinstance(self._background, Tensor):
            if count == len(self._background):
                return self._background
            rows = self._background
        else:
            rows = self._rows
        return choose_background(rows, count, self._columns_to_shift, self._represent)


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
    """`count` rows that stand for all, with columns of amounts shifted to the mean of all rows.

    `numbers` are the columns of amounts.

    Without the shift, the split between base and curves would depend on which rows were drawn.
    """
    chosen = rows if count >= len(rows) else rows[draw_rows(rows, count)]
    if not rows.is_floating_point() or not len(numbers):
        return chosen.clone()
    return _shift_to_mean(chosen.to(torch.float64), rows, list(numbers), represent)


def draw_rows(rows: Tensor, count: int) -> Tensor:
    """Positions of `count` rows: the random draw closest to all rows by energy distance.

    It is the best of several draws.
    """
    # A generator of our own: the caller's random numbers stay where they were.
    generator = torch.Generator().manual_seed(0)
    scaled = _standardize(rows.to(torch.float64))
    compared = scaled[torch.randperm(len(rows), generator=generator)[:_ROWS_OF_A_DRAW]]
    draws = torch.stack(
        [torch.randperm(len(rows), generator=generator)[:count] for _ in range(_DRAWS)]
    )

    distances = _energy_distances(scaled, draws, compared)
    is_known = distances.isfinite()
    if not bool(is_known.any()):  # with missing numbers in every draw
        return torch.arange(count)
    return draws[int(torch.where(is_known, distances, torch.inf).argmin())]


def _standardize(rows: Tensor) -> Tensor:
    """Columns with mean zero and standard deviation one; constant ones are zero."""
    spread = rows.std(0, correction=0)
    return (rows - rows.mean(0)) / torch.where(spread > 0, spread, 1.0)


def _energy_distances(rows: Tensor, draws: Tensor, compared: Tensor) -> Tensor:
    """2 E|a − b| − E|a − a'| of every draw, less what does not depend on it; all draws at once."""
    n_draws, count = draws.shape
    drawn = rows[draws]
    within = torch.cdist(drawn, drawn).sum((1, 2)) / max(count * (count - 1), 1)

    # A row that several draws have is compared once.
    distinct, position = torch.unique(draws, return_inverse=True)
    away = torch.cdist(rows[distinct], compared).mean(1)
    return 2 * away[position].view(n_draws, count).mean(1) - within


def _shift_to_mean(
    chosen: Tensor, rows: Tensor, columns: list[int], represent: Represent
) -> Tensor:
    """Background rows with some columns shifted to the mean of all rows.

    They are shifted as far as the model answers there.
    """
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


# ------------------------------------------------------------------- what it may cost: forward rows


logger = logging.getLogger("nobsp")

# Shares of what is left when full tables do not fit: of the calibration rows, then of single
# features and of screening.
_SAMPLE_SHARE = 0.25
# The same at most where terms without tables run through the model for each of these rows: few
# rows would fit them badly.
_MOST_SAMPLE_SHARE = 0.6
_MAINS_SHARE = 0.5
_SCREEN_SHARE = 0.2
# Of fewer rows, features may have a few knots more.
_KNOTS_MARGIN = 1.1
# Grids of pairs leave some rows for knots where single features bend.
PAIRS_SHARE = 0.8
# Fewer background rows than this tell little: after that, knots are saved.
FEWEST_LIMITED_BACKGROUND = 4
# Background rows that calibration rows leave room for; there are fewer where even so the coarsest
# tables do not fit.
_LEAST_BACKGROUND = 2
# Seconds of a calibration that are announced before it goes on.
_LONG = 60.0
# A call of fewer rows, and of less time, is mostly what any call takes, however few its rows.
_TIMED_ROWS = 64
_TIMED_SECONDS = 1.0


class BudgetSpentError(RuntimeError):
    """More forward rows would be needed than are left."""


@dataclass(eq=False)
class Meter:
    """Counts forward rows, and stops before there are more than the limit."""

    limit: int | None = None
    spent: int = 0
    # of the fastest call so far: the first ones load what the model needs, and other work may get
    # in between
    seconds_per_row: float = float("inf")
    is_timed: bool = (
        False  # whether a call had rows enough, or took long enough, to tell the time of a row
    )
    reserved: int = 0  # rows that terms without tables will need
    reduced: bool = False  # whether tables are coarser than they would be without a limit

    @property
    def left(self) -> float:
        """Rows that may still run."""
        return float("inf") if self.limit is None else self.limit - self.spent - self.reserved

    @contextmanager
    def reserving(self, rows: int) -> Iterator[None]:
        """Keeps a number of rows for later, until the block ends or they are released."""
        self.reserve(rows)
        try:
            yield
        finally:
            self.release()

    def reserve(self, rows: int) -> None:
        """Keeps a number of rows for later, until they are released."""
        self.reserved = rows

    def release(self) -> None:
        """Frees the forward rows that were reserved: what they were meant for runs now."""
        self.reserved = 0

    def spend(self, rows: int) -> None:
        """Counts rows before they are answered for; an error where they are too many."""
        if rows > self.left:
            self.reduced = True
            left = max(int(self.left), 0)
            raise BudgetSpentError(f"{rows} rows would be next, but {left} are left")
        self.spent += rows

    def count(self, represent: Represent) -> Represent:
        """A function of rows that counts the rows it is asked about."""

        def counted(rows: Tensor) -> Tensor:
            self.spend(len(rows))
            start = time.perf_counter()
            answers = represent(rows)
            seconds = time.perf_counter() - start
            self.seconds_per_row = min(self.seconds_per_row, seconds / max(len(rows), 1))
            self.is_timed |= len(rows) >= _TIMED_ROWS or seconds >= _TIMED_SECONDS
            return answers

        return counted


@dataclass(frozen=True)
class Costs:
    """Forward rows that a calibration takes at least."""

    sample: int  # the calibration rows themselves
    direct_runs: int  # how often a row runs for terms without a table, background rows counted
    knots: int  # of all features, before refinement
    background: int  # rows that each knot is averaged over
    screen: int  # of all pairs
    grids: int = 0  # of as many pairs as are tested at most; not among those that it takes at least
    sure_grids: int = 0  # of interactions that were named, or of the smallest as many as were asked
    coarsest_grids: int = 0  # of the same at their coarsest
    coarsest_knots: int = 0  # of all features, at their coarsest; with background rows tried twice

    ends: int = 0  # for finding out beyond which features' range the model raises

    @property
    def coarsest(self) -> float:
        """What tables take that cannot be coarser: of single features, and of sure interactions."""
        background = min(_LEAST_BACKGROUND, self.background)
        return self.ends + self.coarsest_knots * background + self.coarsest_grids / PAIRS_SHARE

    @property
    def direct(self) -> int:
        """Terms that run through the model row by row."""
        return self.direct_for(self.sample)

    def direct_for(self, rows: int) -> int:
        """The same for so many calibration rows: directions, the regression, and importances.

        Importances are those of the baseline, too. Background rows are tried at most twice before
        they are used (see `_shift_to_mean`).
        """
        runs = min(rows, SOME_ROWS) + min(rows, DIRECT_ROWS) + min(rows, MEASURED_DIRECTLY) + 1 + 2
        return self.direct_runs * runs

    @property
    def sample_share(self) -> float:
        """Share of a limit for the calibration rows, with terms without tables."""
        if not self.direct_runs:
            return _SAMPLE_SHARE
        wanted = (self.sample + self.direct) / self.total
        return min(max(wanted, _SAMPLE_SHARE), _MOST_SAMPLE_SHARE)

    def rows_for(self, limit: int) -> int:
        """How many calibration rows so many forward rows pay for, terms without tables included."""
        numbers = range(self.sample + 1)
        return bisect_right(numbers, limit, key=lambda rows: rows + self.direct_for(rows)) - 1

    @property
    def total(self) -> int:
        """All that it takes at least."""
        return self.without_grids + self.sure_grids

    @property
    def without_grids(self) -> int:
        """The same without grids of interactions."""
        return self.sample + self.direct + self.knots * self.background + self.screen

    def rest(self, left: float) -> tuple[float, float]:
        """Rows that run after the calibration rows, if few features interact, and if many do."""
        # Knots added where functions bend usually take about as much again.
        few = 2 * self.without_grids - self.sample
        least_grids = min(self.sure_grids, self.grids)
        return min(few + least_grids, left), min(few + self.grids, left)


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
    # More calibration rows are of no use where they leave nothing for tables.
    for_rows = min(left * costs.sample_share, left - costs.coarsest)
    sample = max(costs.rows_for(int(for_rows)), 2)
    rest = left - costs.ends - sample - costs.direct_for(sample)
    for_mains = rest * (_MAINS_SHARE if costs.screen or costs.grids else 1.0)
    if costs.sure_grids:
        for_mains = max(for_mains, rest - costs.screen - costs.sure_grids)
        for_mains = max(min(for_mains, rest - costs.coarsest_grids / PAIRS_SHARE), 0)
    knots = _KNOTS_MARGIN * costs.knots + 1  # and the mean over the background itself
    affordable = int((rest - costs.coarsest_grids / PAIRS_SHARE) // max(costs.coarsest_knots, 1))
    fewest = max(min(FEWEST_LIMITED_BACKGROUND, affordable), 1)
    background = min(max(int(for_mains // knots), fewest), costs.background)
    share = min(for_mains / (knots * background), 1.0)
    if not (costs.screen or costs.grids):
        # Tables have some knots at whatever share, and nothing else gives way where all don't fit.
        spare = rest / background - costs.coarsest_knots
        share = max(min(share, spare / max(costs.knots - costs.coarsest_knots, 1)), 0.0)
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


def announcement(rows: float, most_rows: float, seconds_per_row: float) -> str:
    """How long a calibration will take, in words.

    Empty where that is not long even if many features interact.
    """
    if most_rows * seconds_per_row <= _LONG:
        return ""
    duration = f"about {_in_words(rows * seconds_per_row)}"
    number = f"some {rows:,.0f}"
    if most_rows > rows:
        duration += f", or up to {_in_words(most_rows * seconds_per_row)} if many features interact"
        number += f" to {most_rows:,.0f}"
    return (
        f"calibrating takes {duration}: {number} forward rows at {1000 * seconds_per_row:.3g} ms "
        "each. NObSP(model, max_forward_rows=...) limits them."
    )


def announcement_of_grids(grids: int, rows: float, seconds_per_row: float) -> str:
    """How long the grids of the interactions found will take; empty where that is not long."""
    if rows * seconds_per_row <= _LONG:
        return ""
    return (
        f"tables of {grids} interactions take about {_in_words(rows * seconds_per_row)}: "
        f"{rows:,.0f} forward rows."
    )


def announce(message: str) -> None:
    """Says on the package's logger that something will take long.

    The logger prints on stderr by default. An empty message is not logged.
    """
    if message:
        logger.warning(message)


def _in_words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


# ---------------------------------------------------------------------- how fine tables are


# How far beyond the calibrated range the network is followed, as shares of the range on either
# side. Far: a network of linear pieces goes on as straight lines, and unseen rows of heavy-tailed
# columns lie there.
MAIN_REACH = (0.05, 0.25, 1.0, 4.0, 20.0, 100.0)
# The same for grids of pairs: fewer, as every line is run with every line of the other side.
PAIR_REACH = (0.25, 2.0, 16.0, 100.0)
# The same for grids of triples: a little, and held from there on.
TRIPLE_REACH = (0.5,)
# Forward rows that the tables of single features share where features are many.
MAIN_ROWS = 2_000_000
# Fewest background rows then: averages over fewer depend on which rows were drawn.
FEWEST_BACKGROUND = 8
# Background rows that a calibration has by default; knots are saved only where these are too many.
USUAL_BACKGROUND = 32
# Most nodes of a pair's grid; two categories of very many levels are left to the residual.
MOST_PAIR_NODES = 4096
# Most nodes of a triple's grid; categories of many levels are left to the residual.
MOST_TRIPLE_NODES = 8192
# Lines that a number is taken to have in grids of pairs and triples before they are made, and the
# most nodes of these.
_USUAL_GRIDS = {2: (32, MOST_PAIR_NODES), 3: (12, MOST_TRIPLE_NODES)}
# Evenly spaced lines of a triple's side: its ends and its middle.
EVEN_LINES_OF_TRIPLES = 3
# Thresholds that any feature has at least in a grid, where the model steps and it has so many.
FEWEST_THRESHOLDS = 3
# Most thresholds of a model of steps in a feature's table: each takes two knots, which all
# background rows run through.
MOST_STEPS = 512
# Background rows of terms that run through the network row by row: every row that is explained pays
# for each.
DIRECT_BACKGROUND = 8
# Rows of a regression with such terms.
DIRECT_ROWS = 2048
# Rows on which its importance is measured.
MEASURED_DIRECTLY = 256
# Most evenly spaced lines of a number while pairs are screened: the others follow the rows.
_EVEN_SCREENED = 3
# Rows on which operations are counted: a batch, as some models do work once per batch.
COUNTED_ROWS = 8
# Operations of a forward row up to which full tables take some minutes on a laptop.
_MOST_OPERATIONS = 5_000_000


@dataclass(frozen=True)
class Effort:
    """How much of the network's time a calibration takes.

    That is, how many background rows, knots and lines it has at most.
    """

    background: int  # rows over which tables of single features are averaged
    quantiles: int  # knots of a feature that follow the rows, before refinement
    even: int  # knots that are evenly spaced
    most_knots: int  # after refinement
    pair_background: int  # rows over which grids of pairs are averaged
    pair_quantiles: int  # lines of a pair's side that follow the rows
    pair_even: int  # lines that are evenly spaced
    most_pairs: int  # that are tested
    screen_lines: int  # of a number, while all pairs are screened
    screen_background: int
    screen_budget: int  # forward rows of the screening
    triple_background: int  # rows over which grids of triples are averaged
    triple_quantiles: int  # lines of a triple's side that follow the rows
    most_triples: int  # that are put on trial; none are looked for where it is zero
    reach: tuple[float, ...] = MAIN_REACH  # how far beyond the range single features are followed
    share_of_steps: float = 1.0  # of a feature's thresholds in its table, where the model steps

    def within(self, plan: Plan) -> Effort:
        """This effort with fewer forward rows."""
        share = plan.share_of_knots
        return replace(
            self,
            background=plan.background,
            quantiles=max(int(self.quantiles * share), 3),
            even=max(int(self.even * share), 2),
            reach=self.reach if share == 1.0 else self.reach[1::3],
            share_of_steps=share,
            screen_budget=min(self.screen_budget, plan.screen),
        )

    def count_steps(self, steps: int) -> int:
        """Thresholds in a feature's table, of so many that it has."""
        return max(int(min(steps, MOST_STEPS) * self.share_of_steps), min(steps, 2))

    def shared(self, features: int) -> Effort:
        """This effort for a table of `features` features, whose own tables share forward rows."""
        rows = MAIN_ROWS // features
        fewest_knots = self.quantiles + self.even + 2 * len(MAIN_REACH)

        background = self.background
        if rows < fewest_knots * USUAL_BACKGROUND:
            affordable = max(rows // fewest_knots, FEWEST_BACKGROUND)
            background = min(background, affordable)

        knots = max(rows // min(background, USUAL_BACKGROUND), fewest_knots)
        return replace(self, background=background, most_knots=min(self.most_knots, knots))

    def coarser_triples(self) -> Effort:
        """This effort with about half of the nodes of a triple's grid."""
        return replace(self, triple_quantiles=self.triple_quantiles // 2)

    def coarser_pairs(self) -> Effort:
        """This effort with about a third of the nodes of a pair's grid."""
        return replace(
            self,
            pair_quantiles=self.pair_quantiles // 2,
            pair_even=self.pair_even // 3,
        )


# For models that answer quickly: a few hundred thousand forward rows in all.
FULL = Effort(
    background=1 << 30,  # as many as the caller asks for
    quantiles=25,  # one for every 4% of the rows
    even=9,  # heavy tails have no quantiles
    most_knots=192,  # about the points of a drawn curve
    pair_background=16,  # grids have hundreds of nodes: half of the usual rows
    pair_quantiles=20,  # with the even ones and those beyond the range, some 36 lines a side
    pair_even=10,
    most_pairs=48,  # each adds up to 32 columns to the regression, which has room for 1,000
    screen_lines=8,  # enough to see a bend; strengths need no more
    screen_background=6,  # every pair is screened, so rows are dear
    screen_budget=1_000_000,  # past it grids become coarser
    triple_background=8,  # a triple's grid has thousands of nodes
    triple_quantiles=7,  # with the even ones and those beyond the range, some 12 lines a side
    most_triples=24,  # of the 64 at most that are screened
)


# For models of many operations per row, such as large transformers: some ten thousand forward rows.
ECONOMY = Effort(
    background=8,  # the fewest that averages can do with
    quantiles=11,  # one for every 10% of the rows
    even=5,
    most_knots=24,  # little is refined
    pair_background=6,
    pair_quantiles=6,  # some 15 lines a side
    pair_even=3,
    most_pairs=12,  # grids of pairs take most of the time
    screen_lines=4,  # one more than the coarsest
    screen_background=3,
    screen_budget=20_000,
    triple_background=4,  # of triples that the caller named
    triple_quantiles=4,
    most_triples=0,  # none are looked for
)


def count_operations(represent: Represent, rows: Tensor) -> float:
    """Operations of a forward row: counted, as a clock depends on the machine."""
    with OperationCounter() as counter:
        represent(rows)
    return float(counter.total) / len(rows)


def choose_effort(operations: float, features: int) -> Effort:
    """How much of the network's time a calibration takes, by the operations of a forward row."""
    effort = FULL if operations <= _MOST_OPERATIONS else ECONOMY
    return effort.shared(features)


def first_points(domain: Domain, chunk: Chunk, effort: Effort) -> Points:
    """Points of a feature's own table before it is refined.

    Where the model steps, they are at as many of the steps as there may be.
    """
    if len(domain.steps):
        count = effort.count_steps(len(domain.steps))
        evenly = np.linspace(0, len(domain.steps) - 1, count).round().astype(int)
        return domain.step_points(chunk, domain.steps[evenly], quantiles=effort.quantiles)
    return domain.points(
        chunk,
        quantiles=effort.quantiles,
        even=effort.even,
        reach=effort.reach,
        most_values=effort.most_knots // 2,  # as many as refining gives to a number that bends
    )


def screen_points(domain: Domain, chunk: Chunk, lines: int) -> Points:
    """Points of a feature in the coarse grids on which pairs are screened."""
    even = min(lines, _EVEN_SCREENED)
    return domain.points(chunk, quantiles=lines, even=even, reach=())


def count_pair_nodes(sizes: Sequence[int]) -> int:
    """Nodes of the grids of all pairs of features; `sizes` are the features' numbers of points.

    Grids that are too large are left out.
    """
    nodes = np.triu(np.outer(sizes, sizes), 1)
    return int(nodes[nodes <= MOST_PAIR_NODES].sum())


def least_costs(
    domains: Sequence[Domain],
    chunk: Chunk,
    effort: Effort,
    *,
    background: int,
    interactions: Sequence[Subset] | int | None,
) -> Costs:
    """Forward rows that full tables of single features and screening take at least."""
    tabulated = [domain for domain in domains if domain.tabulated]
    named = interactions if isinstance(interactions, Sequence) else ()
    are_screened = interactions is None or (isinstance(interactions, int) and interactions > 0)
    if isinstance(interactions, int):
        most_pairs = interactions
    else:
        most_pairs = effort.most_pairs if interactions is None else len(named)
    sure, coarsest = _sure_grid_rows(domains, chunk, effort, background, interactions)
    coarsest_effort = effort.within(Plan(sample=0, background=1, share_of_knots=0.0, screen=0))
    return Costs(
        sample=chunk.count,
        direct_runs=_count_direct_runs(domains, named)
        * min(DIRECT_BACKGROUND, background, chunk.count),
        knots=sum(len(first_points(domain, chunk, effort)) for domain in tabulated),
        background=min(effort.background, background, chunk.count),
        screen=_screening_rows(tabulated, chunk, effort, background) if are_screened else 0,
        grids=max(
            _grid_rows(tabulated, effort, most_pairs) * min(effort.pair_background, background),
            sure,
        ),
        sure_grids=sure,
        coarsest_grids=coarsest,
        coarsest_knots=sum(
            len(first_points(domain, chunk, coarsest_effort)) + _more_of_fewer_rows(domain)
            for domain in tabulated
        )
        + 2,
        ends=2 * sum(domain.levels is None for domain in tabulated),
    )


def _sure_grid_rows(
    domains: Sequence[Domain],
    chunk: Chunk,
    effort: Effort,
    background: int,
    interactions: Sequence[Subset] | int | None,
) -> tuple[int, int]:
    """Forward rows of grids that are made whatever is found: as usual, and at their coarsest.

    Those of the interactions that were named, or of as many pairs as were asked for, which are
    taken to be the smallest.
    """
    if not interactions:
        return 0, 0
    coarsest = effort.coarser_pairs().coarser_pairs().coarser_triples()
    usual_lines = _lines_by_order(domains, chunk, effort)
    coarse_lines = _lines_by_order(domains, chunk, coarsest)
    terms: Sequence[Subset]
    if isinstance(interactions, int):
        terms = _smallest_pairs(usual_lines[2], interactions)
    else:
        terms = [term for term in interactions if has_grid(term, domains)]

    background_rows = {2: effort.pair_background, 3: effort.triple_background}
    usual = coarse = 0
    for term in terms:
        order = len(term)
        nodes = math.prod(usual_lines[order][k] for k in term)
        usual += nodes * min(background_rows[order], background)
        coarse += math.prod(coarse_lines[order][k] + _more_of_fewer_rows(domains[k]) for k in term)
    return usual, coarse


def _more_of_fewer_rows(domain: Domain) -> int:
    """Knots that fewer calibration rows add: the ends of the range are no quantiles of theirs."""
    return 0 if domain.levels is not None else 2


def _lines_by_order(
    domains: Sequence[Domain], chunk: Chunk, effort: Effort
) -> dict[int, list[int]]:
    """Lines of every feature in grids of pairs, and in those of triples; none without a table.

    Where the model steps, as many as a feature has at least.
    """
    lines: dict[int, list[int]] = {2: [], 3: []}
    for domain in domains:
        lines[2].append(
            _count_lines(domain, chunk, effort.pair_quantiles, effort.pair_even, PAIR_REACH)
        )
        lines[3].append(
            _count_lines(
                domain, chunk, effort.triple_quantiles, EVEN_LINES_OF_TRIPLES, TRIPLE_REACH
            )
        )
    return lines


def _count_lines(
    domain: Domain, chunk: Chunk, quantiles: int, even: int, reach: tuple[float, ...]
) -> int:
    """Lines of a feature in a grid."""
    if not domain.tabulated:
        return 0
    if len(domain.steps):
        few = domain.steps[:FEWEST_THRESHOLDS]
        return len(domain.step_points(chunk, few, quantiles=quantiles // 2))
    return len(domain.points(chunk, quantiles=quantiles, even=even, reach=reach))


def _smallest_pairs(lines: Sequence[int], most: int) -> list[Subset]:
    """The pairs of features with the smallest grids, `most` of them."""
    with_table = [k for k, count in enumerate(lines) if count]
    fewest_lines = sorted(with_table, key=lambda k: lines[k])[: most + 1]
    pairs: Iterable[Subset] = combinations(sorted(fewest_lines), 2)
    return sorted(pairs, key=lambda pair: lines[pair[0]] * lines[pair[1]])[:most]


def has_grid(term: Subset, domains: Sequence[Domain]) -> bool:
    """Whether a pair or triple has a grid: all features have tables, levels are not too many."""
    lines, most = _USUAL_GRIDS[len(term)]
    if not all(domains[k].tabulated for k in term):
        return False
    return math.prod(len(domains[k].levels or ()) or lines for k in term) <= most


def _grid_rows(tabulated: Sequence[Domain], effort: Effort, most_pairs: int) -> int:
    """Nodes of as many grids of pairs as are tested at most, of the usual size."""
    lines_of_numbers = effort.pair_quantiles + effort.pair_even + 2 * len(PAIR_REACH)
    sides = [len(domain.levels or ()) or lines_of_numbers for domain in tabulated]
    all_pairs = len(sides) * (len(sides) - 1) // 2
    if not all_pairs:
        return 0
    usual_nodes = min(count_pair_nodes(sides) / all_pairs, MOST_PAIR_NODES)
    return int(min(most_pairs, all_pairs) * usual_nodes)


def _count_direct_runs(domains: Sequence[Domain], named: Sequence[Subset]) -> int:
    """How often every row runs for features, and terms that were named, without a table."""
    runs = sum(1 for domain in domains if domain.columns and not domain.tabulated)
    for term in named:
        if not has_grid(term, domains):
            runs += (1 << len(term)) - 1  # once for every subset of the features but the empty one
    return runs


def _screening_rows(
    tabulated: Sequence[Domain], chunk: Chunk, effort: Effort, background: int
) -> int:
    """Forward rows of screening all pairs; none where it does not fit, and grids are coarser."""
    sizes = [len(screen_points(domain, chunk, effort.screen_lines)) for domain in tabulated]
    rows = count_pair_nodes(sizes) * min(effort.screen_background, background)
    return rows if rows <= effort.screen_budget else 0
