"""The network on knots and grids, averaged over background rows.

Tables reach beyond the calibrated range, where a model may raise or give no finite number. A knot there that the model
cannot answer takes the answer of the last one, seen from the range, that it can; inside the range such a value is an
error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import BoolArray
from nobsp.network.forest import Forest
from nobsp.tabular.effort import BudgetSpentError, Represent
from nobsp.tabular.features import Domain, Points
from nobsp.tabular.lookup import Array, Chunk, NumberAxis, Places
from nobsp.tabular.rows import Sample


class Table(NamedTuple):
    """The representation of some features on their points, averaged over the background."""

    mean: Tensor  # (points of each feature …, width)
    # the head's share for every background row by itself, (background, points …, outputs)
    outputs: Tensor
    # at which points the model answered, (points …); elsewhere values are those of another point. None for all
    answered: BoolArray | None = None


# Rows on which trees that were read are compared with the model.
_COMPARED_ROWS = 512
# Libraries add up trees in single precision, a few hundred of them.
_ROUNDING_OF_TREES = 1e-5


@dataclass(frozen=True, eq=False)
class Shortcut:
    """Tables of a model of trees without forward passes; the rows that they stand for are counted all the same."""

    forest: Forest
    spend: Callable[[int], None]

    def table(self, tabulate: Tabulator, features: Sequence[Points]) -> Table | None:
        """The table of some features; None where one of them is not a single column of ascending numbers."""
        lines = [_ascending_line(points) for points in features]
        if any(line is None for line in lines):
            return None

        sizes = [len(points) for points in features]
        self.spend(int(np.prod(sizes)) * len(tabulate.background))
        mean, outputs = self.forest.answer_on_grid(
            tabulate.background.double().numpy(),
            [points.columns[0] for points in features],
            [line for line in lines if line is not None],
            tabulate.weight.numpy(),
        )
        return Table(torch.from_numpy(mean), torch.from_numpy(outputs).to(torch.float32))


def _ascending_line(points: Points) -> Array | None:
    """The numbers of a side, ascending and the missing one last; None where they are not."""
    if len(points.columns) != 1:
        return None
    numbers: Array = points.inputs[:, 0].double().numpy()
    known = numbers[:-1] if np.isnan(numbers[-1]) else numbers
    return numbers if bool((np.diff(known) >= 0).all()) else None


def find_shortcut(
    forest: Forest | None, sample: Sample, weight: Tensor, *, spend: Callable[[int], None]
) -> Shortcut | None:
    """A shortcut where trees were read as the model answers: compared on calibration rows, whose answers are known."""
    if forest is None or not len(sample):
        return None
    some = sample.some(_COMPARED_ROWS)
    walked = torch.from_numpy(forest.answer(some.inputs.double().numpy())) @ weight
    # What is left is what the head adds, the same for every row.
    added = some.outputs - walked
    off = (added - added.mean(0)).abs().max()
    scale = walked.abs().max() + some.outputs.abs().max()
    return Shortcut(forest, spend) if float(off) <= _ROUNDING_OF_TREES * float(scale) else None


class Tabulator:
    """Runs the network on grids of points, the other features as in the background rows; counts forward rows."""

    def __init__(
        self,
        represent: Represent,
        background: Tensor,
        weight: Tensor,
        *,
        batch_size: int,
        shortcut: Shortcut | None = None,
    ) -> None:
        self._represent = represent
        self._shortcut = shortcut
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
        table = None if self._shortcut is None else self._shortcut.table(self, features)
        if table is not None:
            self.forward_rows += len(self.background) * table.mean[..., 0].numel()
            return table

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
            shortcut=self._shortcut,
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


# ---------------------------------------------------------------------- where the model answers


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


def answered_nodes(mean: Tensor, outputs: Tensor) -> BoolArray:
    """Which nodes of a grid have finite answers over all background rows."""
    finite = mean.isfinite().all(-1)
    # Outputs are kept in single precision, where they may overflow although their mean does not.
    finite &= outputs.isfinite().all(-1).all(0)
    return finite.numpy()


def last_answered(answered: BoolArray, held: Sequence[NDArray[np.intp]]) -> list[NDArray[np.intp]]:
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


def _distrust_beyond(reliable: BoolArray, axis: int, inward: NDArray[np.intp]) -> None:
    """Marks what lies further out than an unanswered node: past the end of a domain, answers mean nothing."""
    lines = np.moveaxis(reliable, axis, 0)
    below = np.flatnonzero(inward > np.arange(len(inward)))[::-1]
    above = np.flatnonzero(inward < np.arange(len(inward)))
    for node in (*below, *above):
        lines[node] &= lines[inward[node]]


# ---------------------------------------------------------------------- knots where a function bends


# Where a segment is cut first to see whether it bends: not in the middle, where a wave crosses its chord.
_FIRST_CUT = 0.382
# Where segments are cut after that.
_LATER_CUTS = 0.5
# As far from straight as a function may be between knots, in units of the outputs: finer cannot be seen in a curve.
_STRAIGHT = 1e-3


@dataclass(eq=False)
class _Line:
    """The table of one number, while knots are added to it."""

    knots: Array
    mean: Tensor  # (knots, width)
    outputs: Tensor  # (background, knots, outputs)
    answered: BoolArray  # which knots stand for themselves
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


def _stand_for_themselves(points: Points, table: Table) -> BoolArray:
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
    """Segments that may bend, as infinite: nothing was measured yet; zero for those that are not looked at."""
    assert domain.span is not None
    low, high = domain.span
    left = axis.knots[:-1]
    right = axis.knots[1:]
    bends = np.full(len(left), np.inf)
    # Where one end has the other's values, the function is held.
    bends[~(answered[1:] & answered[:-1])] = 0.0

    values = rows.numbers(axis.column)
    if bool(np.isin(values[np.isfinite(values)], axis.knots).all()):
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


# ---------------------------------------------------------------------- background rows: few rows that stand for all


# Most that background rows are drawn apart: more would be outliers' work.
MOST_STRETCH = 2.0
# Rows of the table that a draw of background rows is compared with: distances to all of them would take long.
_ROWS_OF_A_DRAW = 512
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
        shortcut: Shortcut | None = None,
    ) -> None:
        self._represent = represent
        self._shortcut = shortcut
        self._background = background
        self._rows = rows
        self._weight = weight
        self._numbers = numbers
        self._batch_size = batch_size
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
                self._represent,
                rows,
                self._weight,
                batch_size=self._batch_size,
                shortcut=self._shortcut,
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
    compared = scaled[torch.randperm(len(rows), generator=generator)[:_ROWS_OF_A_DRAW]]

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
