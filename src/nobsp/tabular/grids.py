"""The network on knots and grids, averaged over background rows.

Tables reach beyond the calibrated range, where a model may raise or give no finite number. A knot
there that the model cannot answer takes the answer of the last one, seen from the range, that it
can; inside the range such a value is an error that names it.

In this order: the tabulator, where the model answers, knots where a function bends, background
rows. How fine tables are, and what forward rows that takes, is in `effort.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import BoolArray
from nobsp.network.columns import Subset
from nobsp.network.readout import Represent
from nobsp.tabular.effort import DIRECT_BACKGROUND, BudgetSpentError
from nobsp.tabular.features import Domain, Points
from nobsp.tabular.lookup import Array, Chunk, NumberAxis, Places

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
