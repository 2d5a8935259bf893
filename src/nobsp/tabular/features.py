"""What a feature is: its name and kind, its levels or range, and where its function is tabulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._messages import is_missing
from nobsp.network.adapted import Adapted
from nobsp.network.inputs import Summary
from nobsp.tabular.answers import Mask
from nobsp.tabular.columns import Columns, input_values, level_labels
from nobsp.tabular.lookup import Array, Axis, Chunk, Feature, Level, LevelAxis, NumberAxis

# Numbers with at most so many distinct values have their knots there.
FEW_VALUES = 32


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

    def limited_to(self, points: Points, answered: Mask | None) -> Domain:
        """The same, known to end where a table of the feature had its last answers."""
        if not isinstance(points.axis, NumberAxis):
            return self
        knots = points.axis.knots
        usable = np.ones(len(knots), dtype=bool)
        for mask in (answered, points.encoded):
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
