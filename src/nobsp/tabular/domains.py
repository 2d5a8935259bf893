"""What kind every feature is, and where its function is tabulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.network.adapted import Adapted
from nobsp.network.inputs import Summary
from nobsp.tabular.columns import Columns, input_values, level_labels
from nobsp.tabular.features import Feature
from nobsp.tabular.lookup import Chunk, Level, LevelAxis, NumberAxis
from nobsp.tabular.tabulate import Points, level_points, number_points, place_knots

Array = NDArray[np.float64]

# Categories with more levels are run through the network row by row, like features of several numbers.
MOST_LEVELS = 4096
# Most values of a column on which its encoding is looked up, where rows are known only as the network takes them.
_DECODED_POINTS = 4096


@dataclass(frozen=True, eq=False)
class Domain:
    """Where a feature's function is tabulated."""

    feature: Feature  # what the caller sees of it
    columns: tuple[int, ...]  # columns of the network's input
    # values in the caller's units, one row each, as the network takes them
    encode: Callable[[NDArray[np.generic]], Tensor]
    levels: LevelAxis | None = None  # the category's levels; None for numbers
    level_inputs: Tensor | None = None  # the levels as the network takes them
    span: tuple[float, float] | None = None  # the calibrated range of a number; None for others
    reaches: bool = True  # whether the network is followed beyond the range; not for a number of two values
    missing: Tensor | None = None  # what the preprocessing makes of a missing number; None where it takes none
    plain: bool = True  # whether the network takes the caller's own numbers
    # numbers of the caller's column that follow its distribution, where it passes an encoder
    seen: Array = field(default_factory=lambda: np.zeros(0))
    # numbers on either side of each of the model's thresholds, (thresholds, 2), where its functions are steps
    steps: Array = field(default_factory=lambda: np.zeros((0, 2)))

    @property
    def tabulated(self) -> bool:
        """Whether the feature has a table; several numbers at once have none."""
        return self.levels is not None or self.span is not None

    def points(self, rows: Chunk, *, quantiles: int, even: int, reach: Sequence[float]) -> Points:
        """Levels, or knots: some that follow the rows, some evenly spaced, some beyond the range."""
        if self.levels is not None and self.level_inputs is not None:
            return level_points(self.levels, self.level_inputs, self.columns)
        assert self.span is not None
        column = self.feature.columns[0]
        reach = tuple(reach) if self.reaches else ()
        x = self.seen if len(self.seen) else rows.numbers(column)
        inner, beyond = place_knots(x, self.span, quantiles=quantiles, even=even, reach=reach)
        knots = np.unique(np.concatenate([inner, self._accepted(beyond)]))
        if len(knots) == 1:  # a constant: a table needs two knots
            knots = np.array([knots[0], knots[0] + max(abs(knots[0]), 1.0)])
            return number_points(knots, column=column, columns=self.columns, encode=self._repeat, span=self.span)
        return number_points(knots, column=column, columns=self.columns, encode=self.encode, span=self.span)

    def step_points(self, rows: Chunk, steps: Array, *, quantiles: int) -> Points:
        """Knots on either side of some of the thresholds; in place of the others, knots that follow the rows."""
        assert self.span is not None
        low, high = self.span
        column = self.feature.columns[0]
        ends = min(low, float(self.steps.min())), max(high, float(self.steps.max()))
        width = ends[1] - ends[0] or max(abs(low), 1.0)
        knots = [steps.ravel(), np.array([ends[0] - width, low, high, ends[1] + width])]
        if len(steps) < len(self.steps):
            inner, _ = place_knots(rows.numbers(column), self.span, quantiles=quantiles, even=2, reach=())
            # None next to a threshold, where the two knots of that are.
            away = np.abs(inner[:, None] - steps.ravel()[None]).min(1, initial=np.inf) > 1e-6 * width
            knots.append(inner[away])
        found = np.unique(np.concatenate(knots))
        return number_points(found, column=column, columns=self.columns, encode=self.encode, span=self.span)

    def with_missing(self, points: Points) -> Points:
        """The same points and one for missing numbers, where the preprocessing takes them."""
        if self.missing is None or not isinstance(points.axis, NumberAxis):
            return points
        return Points(
            NumberAxis(points.axis.column, points.axis.knots, missing=True),
            torch.cat([points.inputs, self.missing]),
            points.columns,
            np.append(points.held, len(points)).astype(np.intp),
        )

    def own_columns(self, rows: Tensor) -> dict[int, NDArray[np.generic]]:
        """Rows as the network takes them, in the caller's units; what cannot be told is missing."""
        members, inputs = self.feature.columns, rows[:, list(self.columns)].double()
        if self.plain:
            return {member: inputs[:, place].numpy() for place, member in enumerate(members)}
        if self.levels is not None and self.level_inputs is not None:
            place, away = _nearest(inputs, self.level_inputs)
            known, levels = away <= 1e-6, self.levels.levels
            if isinstance(levels, tuple):
                named = np.array([*levels, None], dtype=object)  # the last stands for what is no level
                return {members[0]: named[np.where(known, place, len(levels))]}
            return {member: np.where(known, levels[place, at], np.nan) for at, member in enumerate(members)}
        if self.span is None:
            return {}
        grid = self.seen if len(self.seen) > 1 else np.linspace(*self.span, 256)
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, min(len(grid), _DECODED_POINTS)).astype(np.intp))]
        codes = self.encode(grid[:, None])
        # Columns that say whether a number is missing are the same for all that are not.
        way = codes[:, 0].numpy() if bool((codes[:, 1:] == codes[:1, 1:]).all()) else np.zeros(1)
        if len(way) > 1 and (np.diff(way) > 0).all():
            found = np.interp(inputs[:, 0].numpy(), way, grid)
        elif len(way) > 1 and (np.diff(way) < 0).all():
            found = np.interp(-inputs[:, 0].numpy(), -way, grid)
        else:
            found = _spread_over_ties(inputs, codes, grid)
        if self.missing is not None and not _is_encoded_alike(self.missing, codes):
            absent = (inputs - self.missing).abs().amax(1) <= 1e-9 * (1 + self.missing.abs().max())
            found = np.where(absent.numpy(), np.nan, found)
        return {members[0]: found}

    def _accepted(self, beyond: Array) -> Array:
        """Knots beyond the range that the preprocessing takes."""
        try:
            self.encode(beyond[:, None])
        except ValueError:
            return beyond[:0]
        return beyond

    def _repeat(self, knots: NDArray[np.generic]) -> Tensor:
        return self.encode(knots[:1]).expand(len(knots), -1)


def describe(
    columns: Columns, adapted: Adapted, summary: Summary, categories: frozenset[int]
) -> tuple[list[Domain], dict[int, NDArray[np.generic]]]:
    """Every feature's domain, and the sample's rows in the caller's units by column."""
    domains: list[Domain] = []
    own: dict[int, NDArray[np.generic]] = {}
    for feature in range(len(columns.features)):
        domain = replace(_domain(columns, adapted, summary, categories, feature), plain=adapted.encode is None)
        domains.append(domain)
        own |= domain.own_columns(summary.sample)
    return domains, own


def _domain(columns: Columns, adapted: Adapted, summary: Summary, categories: frozenset[int], k: int) -> Domain:
    name, members = columns.features.names[k], tuple(columns.members[k])
    group = tuple(columns.features.columns[k])

    def encode(values: NDArray[np.generic]) -> Tensor:
        with np.errstate(all="ignore"):  # what is not finite in the end is an error there
            return input_values(columns, adapted, k, values)

    if not group:
        return Domain(Feature(name, members, "unused"), group, encode)
    if k in columns.text_levels:
        levels = columns.text_levels[k]
        odd = [level for level in levels if not isinstance(level, Level)]
        if odd:
            raise TypeError(f"feature {name!r} has levels of type {type(odd[0]).__name__}; write them as text.")
        rows = np.empty((len(levels), 1), dtype=object)
        rows[:, 0] = levels
        labels = tuple(map(str, levels))
        return _levels(Feature(name, members, "levels", labels=labels), group, encode, tuple(levels), encode(rows))
    if adapted.encode is None:
        if k in categories:
            counted = summary.levels_of(k, group)
            if counted is None or len(counted[0]) > MOST_LEVELS:
                return Domain(Feature(name, members, "numbers"), group, encode)
            labels = tuple(level_labels(columns, k, counted[0]))
            feature = Feature(name, members, "levels", labels=labels)
            return _levels(feature, group, encode, counted[0].numpy(), counted[0])
        ranges = tuple((float(summary.minimum[c]), float(summary.maximum[c])) for c in group)
    else:
        numbers = columns.number_levels.get(k)
        if numbers and not _takes_values_between(encode, np.array(numbers)):
            known = np.array(numbers, dtype=np.float64)[:, None]
            labels = tuple(f"{value:g}" for value in numbers)
            return _levels(Feature(name, members, "levels", labels=labels), group, encode, known, encode(known))
        spans = [columns.ranges[member] for member in members]
        ranges = tuple((span[0], span[1]) for span in spans if len(span) == 2)
    if len(members) != 1 or len(ranges) != 1:
        return Domain(Feature(name, members, "numbers", ranges=ranges), group, encode)
    few = adapted.encode is None and k in summary.levels and len(summary.levels[k][0]) <= 2
    missing = None if adapted.encode is None else _missing(encode)
    feature = Feature(name, members, "number", ranges=ranges)
    return Domain(
        feature,
        group,
        encode,
        span=ranges[0],
        reaches=not few,
        missing=missing,
        seen=columns.quantiles.get(k, np.zeros(0)),
        steps=adapted.steps.get(members[0], np.zeros((0, 2))),
    )


def _missing(encode: Callable[[NDArray[np.generic]], Tensor]) -> Tensor | None:
    """What the preprocessing makes of a missing number; None where it takes none."""
    try:
        return encode(np.array([[np.nan]]))
    except (ValueError, TypeError):
        return None


def _levels(
    feature: Feature,
    group: tuple[int, ...],
    encode: Callable[[NDArray[np.generic]], Tensor],
    levels: tuple[Level, ...] | Array,
    inputs: Tensor,
) -> Domain:
    if len(inputs) > MOST_LEVELS:
        return Domain(Feature(feature.name, feature.columns, "numbers"), group, encode)
    return Domain(feature, group, encode, LevelAxis(feature.columns, levels), inputs)


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


def _is_encoded_alike(missing: Tensor, codes: Tensor) -> bool:
    """Whether a missing number is encoded as some number is, so that nothing tells the two apart."""
    if codes.shape[1] == 1:
        return bool((codes.amin() <= missing).all() and (missing <= codes.amax()).all())
    return bool(_nearest(missing, codes)[1][0] <= 1e-9)


def _spread_over_ties(rows: Tensor, codes: Tensor, grid: Array) -> Array:
    """Per row a number with its code; rows of one code share the numbers that have it evenly, as bins do."""
    distinct, owner = torch.unique(codes, dim=0, return_inverse=True)
    place, found = _nearest(rows, distinct)[0], np.zeros(len(rows))
    for code in np.unique(place):
        mine, numbers = np.flatnonzero(place == code), grid[(owner == int(code)).numpy()]
        found[mine] = numbers[(np.arange(len(mine)) * len(numbers) // max(len(mine), 1)) % len(numbers)]
    return found


def _nearest(rows: Tensor, known: Tensor) -> tuple[NDArray[np.intp], Array]:
    """Per row the position of the nearest of some known ones, and how far it is, as a share of their size."""
    if not len(rows):
        return np.zeros(0, np.intp), np.zeros(0)
    found = [torch.cdist(part, known).min(1) for part in torch.split(rows, 1024)]
    place = torch.cat([part.indices for part in found]).numpy().astype(np.intp)
    size = 1 + float(known.abs().max())
    return place, torch.cat([part.values for part in found]).numpy() / size
