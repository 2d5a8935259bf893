"""Where every feature is tabulated, and what the network makes of it there, averaged over the background rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._messages import is_missing
from nobsp.network.adapted import Adapted
from nobsp.network.inputs import Summary
from nobsp.tabular.answers import (
    Mask,
    UnansweredError,
    answered_nodes,
    last_answered,
    run_where_answered,
)
from nobsp.tabular.budget import BudgetSpentError
from nobsp.tabular.columns import Columns, input_values, level_labels
from nobsp.tabular.lookup import Axis, Chunk, Feature, Level, LevelAxis, NumberAxis

Array = NDArray[np.float64]
Represent = Callable[[Tensor], Tensor]

# Numbers with at most so many distinct values have their knots there.
FEW_VALUES = 32
# Where a segment is cut first to see whether it bends: not in the middle, where a wave crosses its chord.
_CUT = 0.382
# Directions of a representation whose variance is below this share of the strongest are left to the prior.
_WEAKEST = 1e-6
# As far from straight as a function may be between knots, in units of the outputs.
_STRAIGHT = 1e-3
# Categories with more levels are run through the network row by row, like features of several numbers.
MOST_LEVELS = 4096
# Most values of a column on which its encoding is looked up, where rows are known only as the network takes them.
_DECODED_POINTS = 4096


@dataclass(frozen=True, eq=False)
class Points:
    """Where one feature is tabulated."""

    axis: Axis  # knots or levels, in the caller's units
    inputs: Tensor  # the same as the network takes them, (points, columns of the feature)
    columns: tuple[int, ...]  # of the network's input
    held: NDArray[
        np.intp
    ]  # for every point, where the one is that it is held at: itself, or the end of the range
    name: str = ""  # what the feature is called, for messages
    # which points stand for themselves, not for the last one that the preprocessing takes; None for all
    encoded: Mask | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def label(self, position: int) -> str:
        """A point in words, for messages."""
        if isinstance(self.axis, LevelAxis):
            return f"{self.name} = {self.axis.levels[position]!r}"
        if position >= len(self.axis.knots):
            return f"{self.name} missing"
        return f"{self.name} = {self.axis.knots[position]:.6g}"


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


def place_knots(
    x: Array, span: tuple[float, float], *, quantiles: int, even: int, reach: Sequence[float]
) -> tuple[Array, Array]:
    """Knots inside the calibrated range, some evenly spaced for heavy tails, and knots at `reach` ranges beyond it."""
    low, high = span
    x = x[np.isfinite(x)]
    distinct = np.unique(np.concatenate([x, [low, high]]))
    spread = high - low or max(abs(low), 1.0)
    if len(distinct) <= min(FEW_VALUES, quantiles + even):
        inner = distinct
    else:
        follow = np.quantile(
            distinct if len(distinct) < 3 * quantiles else x, np.linspace(0, 1, quantiles)
        )
        inner = np.unique(np.concatenate([follow, np.linspace(low, high, even), [low, high]]))
        # Knots closer than rounding of their distance would make slopes of nothing.
        size = np.maximum(np.abs(inner[1:]), np.abs(inner[:-1]))
        inner = inner[np.concatenate([[True], np.diff(inner) > 1e-12 * size])]
        inner[0], inner[-1] = low, high
    beyond = spread * np.array(reach)
    return inner, np.concatenate([low - beyond, high + beyond])


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


def compress(mean: Tensor, share: Tensor, *, most: int) -> Tensor:
    """Directions (width, rank) in which a table varies over the calibration rows, strongest first.

    Their lengths make the table vary along each by the square root of what it does: a ridge then pulls weak directions
    less than it would, and not as little as if all were alike. `share` is that of the rows at every point.
    """
    weighted = mean * share.sqrt()[:, None]
    tall = weighted.shape[0] >= weighted.shape[1]
    values, vectors = torch.linalg.eigh(weighted.T @ weighted if tall else weighted @ weighted.T)
    kept = (values > _WEAKEST * values[-1].clamp_min(1e-300)).nonzero().flatten().flip(0)[:most]
    directions = vectors[:, kept] if tall else weighted.T @ vectors[:, kept] / values[kept].sqrt()
    found: Tensor = directions / values[kept] ** 0.25
    return found


# Rows of the table that a choice of background rows is compared with, and how many choices are compared.
_COMPARED_ROWS = 512
_CANDIDATES = 64


def choose_background(
    rows: Tensor, count: int, numbers: Sequence[int], represent: Represent
) -> Tensor:
    """`count` rows that stand for all of them, columns of amounts (`numbers`) shifted to the mean of all rows.

    Of several random draws the one closest to the rows by energy distance is taken. The shift fixes the gauge between
    base and functions: without it the mean of the background moves with the draw.
    """
    chosen = rows
    if count < len(rows):
        generator = torch.Generator().manual_seed(
            0
        )  # our own: the caller's random numbers stay where they were
        scaled, spread = rows.to(torch.float64), rows.to(torch.float64).std(0, correction=0)
        scaled = (scaled - scaled.mean(0)) / torch.where(spread > 0, spread, 1.0)
        compared = scaled[torch.randperm(len(rows), generator=generator)[:_COMPARED_ROWS]]
        best, least = torch.arange(count), float("inf")
        for _ in range(_CANDIDATES):
            drawn = torch.randperm(len(rows), generator=generator)[:count]
            # 2 E|a − b| − E|a − a'|, less what does not depend on the draw
            within = torch.cdist(scaled[drawn], scaled[drawn]).sum() / max(count * (count - 1), 1)
            distance = float(2 * torch.cdist(scaled[drawn], compared).mean() - within)
            if distance < least:
                best, least = drawn, distance
        chosen = rows[best]
    if not rows.is_floating_point() or not len(numbers):
        return chosen.clone()
    return _shift_to_mean(chosen.to(torch.float64), rows, list(numbers), represent)


def _shift_to_mean(
    chosen: Tensor, rows: Tensor, columns: list[int], represent: Represent
) -> Tensor:
    """Background rows with some columns shifted to the mean of all rows, as far as the model answers there."""
    values = rows[:, columns].to(torch.float64)
    shift = values.mean(0) - chosen[:, columns].mean(0)
    # A mean that single outliers carry lies where no row does: nothing is shifted there.
    ends = values.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64), dim=0)
    shift = torch.where(shift.abs() <= ends[1] - ends[0], shift, 0.0)

    def shifted(by: Tensor) -> Tensor:
        moved = chosen.clone()
        moved[:, columns] += by
        return moved

    background = shifted(shift)
    if _answers(represent, background):
        return background
    # No column is shifted out of the rows' range, where the model's domain may end.
    leaves = (background[:, columns] < values.amin(0)) | (background[:, columns] > values.amax(0))
    background = shifted(torch.where(leaves.any(0), 0.0, shift))
    if _answers(represent, background):
        return background
    # Some models know nothing between the values of the rows, such as those that look up codes.
    return chosen


def _answers(represent: Represent, rows: Tensor) -> bool:
    """Whether the model gives finite answers for all of some rows."""
    answers, failure = run_where_answered(represent, rows, width=1, group=len(rows))
    return failure is None and bool(answers.isfinite().all())


@dataclass(frozen=True, eq=False)
class Domain:
    """Where a feature's function is tabulated."""

    feature: Feature  # what the caller sees of it
    columns: tuple[int, ...]  # columns of the network's input
    encode: Callable[
        [NDArray[np.generic]], Tensor
    ]  # values in the caller's units as the network takes them
    levels: LevelAxis | None = None  # the category's levels; None for numbers
    level_inputs: Tensor | None = None  # the levels as the network takes them
    span: tuple[float, float] | None = None  # the calibrated range of a number; None for others
    reaches: bool = (
        True  # whether the network is followed beyond the range; not for a number of two values
    )
    missing: Tensor | None = (
        None  # what the preprocessing makes of a missing number; None where it takes none
    )
    plain: bool = True  # whether the network takes the caller's own numbers
    seen: Array = field(
        default_factory=lambda: np.zeros(0)
    )  # numbers that follow an encoded column's distribution
    steps: Array = field(
        default_factory=lambda: np.zeros((0, 2))
    )  # on either side of thresholds, of a model of steps
    limits: tuple[float, float] = (
        -np.inf,
        np.inf,
    )  # the smallest and largest number that the model was found to answer

    @property
    def tabulated(self) -> bool:
        """Whether the feature has a table; several numbers at once have none."""
        return self.levels is not None or self.span is not None

    def points(self, rows: Chunk, *, quantiles: int, even: int, reach: Sequence[float]) -> Points:
        """Levels, or knots: some that follow the rows, some evenly spaced, some beyond the range."""
        if self.levels is not None and self.level_inputs is not None:
            return Points(
                self.levels,
                self.level_inputs,
                self.columns,
                np.arange(len(self.levels)),
                name=self.feature.name,
            )
        assert self.span is not None
        reach = tuple(reach) if self.reaches else ()
        x = self.seen if len(self.seen) else rows.numbers(self.feature.columns[0])
        inner, beyond = place_knots(x, self.span, quantiles=quantiles, even=even, reach=reach)
        beyond = beyond[(beyond >= self.limits[0]) & (beyond <= self.limits[1])]
        return self.number_points(np.unique(np.concatenate([inner, beyond])))

    def limited_to(self, points: Points, table: Table) -> Domain:
        """The same, known to end where a table of the feature had its last answers."""
        if not isinstance(points.axis, NumberAxis):
            return self
        knots = points.axis.knots
        usable = np.ones(len(knots), dtype=bool)
        for mask in (table.answered, points.encoded):
            if mask is not None:
                usable &= mask[: len(knots)]
        if usable.all():
            return self
        return replace(self, limits=(float(knots[usable].min()), float(knots[usable].max())))

    def number_points(self, knots: Array) -> Points:
        """Increasing knots as points, and one for missing numbers where the preprocessing takes them."""
        assert self.span is not None
        held = np.clip(np.searchsorted(knots, np.clip(knots, *self.span)), 0, len(knots) - 1)
        inputs, encoded = self._encode_or_hold(knots, held)
        if len(knots) == 1:  # a constant: a table needs two knots
            knots = np.array([knots[0], knots[0] + max(abs(knots[0]), 1.0)])
            inputs = inputs.expand(2, -1)
            held = np.zeros(2, dtype=np.intp)
            encoded = None
        if self.missing is not None:
            inputs = torch.cat([inputs, self.missing])
            held = np.append(held, len(held))
            encoded = None if encoded is None else np.append(encoded, True)
        axis = NumberAxis(self.feature.columns[0], knots, missing=self.missing is not None)
        return Points(
            axis,
            inputs,
            self.columns,
            held.astype(np.intp),
            name=self.feature.name,
            encoded=encoded,
        )

    def _encode_or_hold(self, knots: Array, held: NDArray[np.intp]) -> tuple[Tensor, Mask | None]:
        """Knots as the network takes them; those that the preprocessing does not take as the last that it does."""
        try:
            return self.encode(knots[:, None]), None
        except ValueError:
            encoded = held == np.arange(len(knots))
            inputs = {int(at): self.encode(knots[[at], None]) for at in np.flatnonzero(encoded)}

        inside = np.flatnonzero(encoded)
        outward = [*range(inside[0] - 1, -1, -1), *range(inside[-1] + 1, len(knots))]
        for at in outward:
            inward = at + 1 if at < inside[0] else at - 1
            inputs[at] = inputs[inward]
            if encoded[inward]:
                with suppress(ValueError):
                    inputs[at] = self.encode(knots[[at], None])
                    encoded[at] = True
        return torch.cat([inputs[at] for at in range(len(knots))]), encoded

    def step_points(self, rows: Chunk, steps: Array, *, quantiles: int) -> Points:
        """Knots on either side of some of the thresholds; in place of the others, knots that follow the rows."""
        assert self.span is not None
        low, high = self.span
        ends = min(low, float(self.steps.min())), max(high, float(self.steps.max()))
        width = ends[1] - ends[0] or max(abs(low), 1.0)
        outer = np.clip([ends[0] - width, ends[1] + width], *self.limits)
        knots = [np.clip(steps.ravel(), *self.limits), np.array([low, high]), outer]
        if len(steps) < len(self.steps):
            x = rows.numbers(self.feature.columns[0])
            inner, _ = place_knots(x, self.span, quantiles=quantiles, even=2, reach=())
            # None next to a threshold, where the two knots of that are.
            away = (
                np.abs(inner[:, None] - steps.ravel()[None]).min(1, initial=np.inf) > 1e-6 * width
            )
            knots.append(inner[away])
        return self.number_points(np.unique(np.concatenate(knots)))

    def own_columns(self, rows: Tensor) -> dict[int, NDArray[np.generic]]:
        """Rows as the network takes them, in the caller's units; what cannot be told is missing."""
        members, inputs = self.feature.columns, rows[:, list(self.columns)].double()
        if self.plain:
            return {member: inputs[:, place].numpy() for place, member in enumerate(members)}
        if self.levels is not None and self.level_inputs is not None:
            place, away = _nearest(inputs, self.level_inputs)
            known, levels = away <= 1e-6, self.levels.levels
            if isinstance(levels, tuple):
                named = np.array(
                    [*levels, None], dtype=object
                )  # the last stands for what is no level
                return {members[0]: named[np.where(known, place, len(levels))]}
            return {
                member: np.where(known, levels[place, at], np.nan)
                for at, member in enumerate(members)
            }
        if self.span is None:
            return {}
        grid = self.seen if len(self.seen) > 1 else np.linspace(*self.span, 256)
        grid = grid[
            np.unique(
                np.linspace(0, len(grid) - 1, min(len(grid), _DECODED_POINTS)).astype(np.intp)
            )
        ]
        codes = self.encode(grid[:, None])
        # Columns that say whether a number is missing are the same for all that are not.
        way = codes[:, 0].numpy() if bool((codes[:, 1:] == codes[:1, 1:]).all()) else np.zeros(1)
        turn = np.sign(way[-1] - way[0])
        if len(way) > 1 and (turn * np.diff(way) > 0).all():
            found = np.interp(turn * inputs[:, 0].numpy(), turn * way, grid)
        else:
            found = _spread_over_ties(inputs, codes, grid)
        if self.missing is not None:
            one, among = (
                codes.shape[1] == 1,
                bool(codes.amin() <= self.missing.amin() <= codes.amax()),
            )
            # A missing number that is encoded as some number is cannot be told from it.
            if not (among if one else bool(_nearest(self.missing, codes)[1][0] <= 1e-9)):
                absent = (inputs - self.missing).abs().amax(1) <= 1e-9 * (
                    1 + self.missing.abs().max()
                )
                found = np.where(absent.numpy(), np.nan, found)
        return {members[0]: found}


def own_columns(domains: Sequence[Domain], rows: Tensor) -> dict[int, NDArray[np.generic]]:
    """Rows as the network takes them, in the caller's units by column."""
    return {
        column: values for domain in domains for column, values in domain.own_columns(rows).items()
    }


def describe(
    columns: Columns, adapted: Adapted, summary: Summary, categories: frozenset[int], k: int
) -> Domain:
    """Where a feature is tabulated."""
    name, members = columns.features.names[k], tuple(columns.members[k])
    group, plain, column = (
        tuple(columns.features.columns[k]),
        adapted.encode is None,
        columns.column(k),
    )

    def encode(values: NDArray[np.generic]) -> Tensor:
        with np.errstate(all="ignore"):  # what is not finite in the end is an error there
            return input_values(columns, adapted, k, values)

    def levels(known: tuple[Level, ...] | Array, inputs: Tensor, labels: Iterable[str]) -> Domain:
        feature = Feature(name, members, "levels", labels=tuple(labels))
        return Domain(feature, group, encode, LevelAxis(members, known), inputs, plain=plain)

    numbers = Domain(Feature(name, members, "numbers"), group, encode, plain=plain)
    if not group:
        return replace(numbers, feature=Feature(name, members, "unused"))
    if texts := columns.texts(k):
        odd = [level for level in texts if not (is_missing(level) or isinstance(level, Level))]
        if odd:
            kind = type(odd[0]).__name__
            advice = "write them as text"
            if kind in ("Timestamp", "datetime", "date", "datetime64", "Timedelta", "timedelta"):
                advice = (
                    "a date has no function of its own. Explain a function of numbers that dates are made from, such "
                    "as days since a day, month or weekday, which puts the dates together and calls the model"
                )
            raise TypeError(f"feature {name!r} has levels of type {kind}; {advice}.")
        rows = np.empty((len(texts), 1), dtype=object)
        rows[:, 0] = texts
        if len(texts) > MOST_LEVELS:
            return numbers
        try:
            inputs = encode(rows)
        except (TypeError, ValueError):
            if not is_missing(texts[-1]):
                raise
            texts, inputs = (
                texts[:-1],
                encode(rows[:-1]),
            )  # a level of its own only where the model takes it
        if is_missing(texts[-1]) and bool((inputs[:-1] == inputs[-1]).all(1).any()):
            texts, inputs = texts[:-1], inputs[:-1]  # and is not filled in with another
        kept = tuple(None if type(text).__name__ == "NAType" else text for text in texts)
        return levels(
            kept, inputs, ("missing" if is_missing(text) else str(text) for text in texts)
        )
    if plain:
        if k in categories:
            counted = summary.levels_of(k, group)
            if counted is None or len(counted[0]) > MOST_LEVELS:
                return numbers
            return levels(counted[0].numpy(), counted[0], level_labels(columns, k, counted[0]))
        ranges = tuple((float(summary.minimum[c]), float(summary.maximum[c])) for c in group)
    else:
        known = np.array([] if column is None else column.levels or [], dtype=np.float64)
        if len(known) and not _takes_values_between(encode, known):
            if len(known) > MOST_LEVELS:
                return numbers
            return levels(known[:, None], encode(known[:, None]), (f"{value:g}" for value in known))
        ranges = tuple(
            (span[0], span[1]) for span in (columns.seen[member].span for member in members) if span
        )
    if len(members) != 1 or len(ranges) != 1:
        return replace(numbers, feature=replace(numbers.feature, ranges=ranges))
    missing = None
    if not plain:
        with suppress(ValueError, TypeError):  # where the preprocessing takes none
            missing = encode(np.array([[np.nan]]))
    return replace(
        numbers,
        feature=Feature(name, members, "number", ranges=ranges),
        span=ranges[0],
        reaches=not (
            plain
            and (known_levels := summary.tallies[k].joint) is not None
            and len(known_levels[0]) <= 2
        ),
        missing=missing,
        seen=np.zeros(0) if column is None else column.quantiles,
        steps=adapted.steps.get(members[0], np.zeros((0, 2))),
    )


def _takes_values_between(encode: Callable[[NDArray[np.generic]], Tensor], known: Array) -> bool:
    """Whether a value next to one that occurred is encoded next to it; one-hot encoders know no value in between."""
    if len(known) < 2:
        return False
    try:
        near, ends = encode((known[:-1] + 1e-6 * np.diff(known))[:, None]), encode(known[:, None])
    except ValueError:
        return False
    range_of_codes = (ends.amax(0) - ends.amin(0)).sum()
    return bool(((near - ends[:-1]).abs().sum(1) <= 1e-3 * range_of_codes).all())


def _spread_over_ties(rows: Tensor, codes: Tensor, grid: Array) -> Array:
    """Per row a number with its code; rows of one code share the numbers that have it evenly, as bins do."""
    distinct, owner = torch.unique(codes, dim=0, return_inverse=True)
    place, found = _nearest(rows, distinct)[0], np.zeros(len(rows))
    for code in np.unique(place):
        mine, numbers = np.flatnonzero(place == code), grid[(owner == int(code)).numpy()]
        found[mine] = numbers[
            (np.arange(len(mine)) * len(numbers) // max(len(mine), 1)) % len(numbers)
        ]
    return found


def _nearest(rows: Tensor, known: Tensor) -> tuple[NDArray[np.intp], Array]:
    """Per row the position of the nearest of some known ones, and how far it is, as a share of their size."""
    if not len(rows):
        return np.zeros(0, np.intp), np.zeros(0)
    found = [torch.cdist(part, known).min(1) for part in torch.split(rows, 1024)]
    place = torch.cat([part.indices for part in found]).numpy().astype(np.intp)
    size = 1 + float(known.abs().max())
    return place, torch.cat([part.values for part in found]).numpy() / size
