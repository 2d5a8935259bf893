"""What a feature is: columns, name, kind, levels or range, and where its function is tabulated.

In this order: the caller's columns, how their values become the network's input, categories; then
the domain of a feature, its points, and which kind it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import AnyArray, ArrayLike, BaselineLike, BoolArray, FloatArray, Frame, TableLike
from nobsp.arguments import suggest, warn_caller
from nobsp.frames import frame_of, is_missing, match_columns
from nobsp.network.adapted import Adapted, grouping_rows
from nobsp.network.columns import (
    MOST_CODES,
    MOST_LEVELS,
    Features,
    Summary,
    resolve_features,
)
from nobsp.numerics import evenly_spaced
from nobsp.tabular.decoding import decode_levels, decode_numbers, snap_to_known
from nobsp.tabular.lookup import (
    Array,
    Axis,
    Chunk,
    Feature,
    Level,
    LevelAxis,
    NumberAxis,
    Places,
    value_rows,
)
from nobsp.tabular.seen import MOST_NUMBERS, Seen, look_at

# What a caller may say about features: their names, or names with the columns of each.
FeatureOption = Sequence[str] | Mapping[str, Any] | None

# Baselines that are words, and are worked out from the rows.
_BASELINE_WORDS = ("mean", "zero", "median", "mode")


@dataclass(frozen=True, eq=False)
class Columns:
    """How the caller's table becomes the network's input, feature by feature."""

    features: Features  # the features, with columns of the *encoded* input
    names: tuple[str, ...] | None  # names of the caller's columns, where they have any
    count: int  # how many columns the caller's table has
    members: tuple[tuple[int, ...], ...]  # per feature, the caller's columns it stands for
    seen: tuple[Seen, ...] = ()  # what each of the caller's columns holds; empty without encoder

    def column(self, feature: int) -> Seen | None:
        """What a feature's own column holds; None for several columns, and without encoder."""
        members = self.members[feature]
        if not self.seen or len(members) != 1:
            return None
        return self.seen[members[0]]

    def texts(self, feature: int) -> list[Any]:
        """The values of a feature whose own column is not numeric; none for others."""
        column = self.column(feature)
        if column is None or column.numeric:
            return []
        return column.levels or []

    def merge(self, other: Columns) -> Columns:
        """The columns of two shares of a table, with the levels and ranges of both."""
        most_levels = _most_levels(self.members, self.features.columns)
        merged = []
        for position, (mine, theirs) in enumerate(zip(self.seen, other.seen, strict=True)):
            merged.append(mine.merge(theirs, most_levels.get(position, 0)))
        return replace(self, seen=tuple(merged))


def _most_levels(
    members: Sequence[Sequence[int]], encoded: Sequence[Sequence[int]]
) -> dict[int, int]:
    """By the caller's column that is a feature, the most numbers of it that are kept.

    An encoder may know no value in between.
    """
    most = {}
    for group, columns in zip(members, encoded, strict=True):
        if len(group) == 1:
            most[group[0]] = min(MOST_NUMBERS, max(MOST_LEVELS, len(columns) + 1))
    return most


# --------------------------------------------------------------------- which columns make a feature


def columns_of(
    X: TableLike,
    adapted: Adapted,
    features: FeatureOption,
    *,
    width: int,
    names: Sequence[str] | None,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> Columns:
    """Settles the features for a table and a model.

    `groups` are the columns that a preprocessing makes of each of the caller's, where they are
    known already.
    """
    if adapted.resolve is not None:
        features = adapted.resolve(features)
    if adapted.encode is None:
        return _plain_columns(adapted, features, width=width, names=names)

    X, frame = whole_table(X, adapted)
    if groups is None:
        groups = adapted.groups(grouping_rows(X))
    return _encoded_columns(X, frame, adapted, features, names=names, groups=groups)


def _plain_columns(
    adapted: Adapted, features: FeatureOption, *, width: int, names: Sequence[str] | None
) -> Columns:
    """Columns that the network takes as they are."""
    known = names if names is not None else adapted.feature_names
    resolved = resolve_features(features, columns=width, names=known)
    if known is None and features is not None and not isinstance(features, Mapping):
        # A frame that is explained later is matched to the names of this option.
        known = resolved.names
    return Columns(
        features=resolved,
        names=None if known is None else tuple(known),
        count=width,
        members=resolved.columns,
    )


def _encoded_columns(
    X: TableLike,
    frame: Frame | None,
    adapted: Adapted,
    features: FeatureOption,
    *,
    names: Sequence[str] | None,
    groups: Mapping[str, Sequence[int]],
) -> Columns:
    """Columns that a preprocessing encodes, with what each of them holds."""
    known = adapted.feature_names or names
    own_names = tuple(known or (f"x{i}" for i in range(X.shape[1])))
    resolved = resolve_features(features, columns=len(own_names), names=own_names)

    encoded = []
    for members in resolved.columns:
        of_members = [groups.get(own_names[member], ()) for member in members]
        encoded.append(tuple(column for columns in of_members for column in columns))

    most_levels = _most_levels(resolved.columns, encoded)
    seen = []
    for position, name in enumerate(own_names):
        seen.append(look_at(X, frame, position, name, most_levels.get(position, 0)))

    return Columns(
        features=Features(resolved.names, tuple(encoded)),
        names=tuple(known) if known else None,
        count=len(own_names),
        members=resolved.columns,
        seen=tuple(seen),
    )


def whole_table(X: TableLike, adapted: Adapted) -> tuple[TableLike, Frame | None]:
    """A table for a scikit-learn pipeline, and the same table as narwhals sees it.

    Its columns are in the order of the pipeline.
    """
    frame = frame_of(X)
    if frame is not None:
        frame = match_columns(frame, argument="X", columns=adapted.feature_names)
        return frame.to_native(), frame
    if isinstance(X, np.ndarray):
        return X, None
    raise TypeError(
        f"X must be one frame or array where the model is a pipeline, found {type(X).__name__}."
    )


# ---------------------------------------------------- the caller's values as the network takes them


def input_values(columns: Columns, adapted: Adapted, feature: int, values: ArrayLike) -> Tensor:
    """Values of one feature, as the caller writes them, as columns of the network's input."""
    name = columns.features.names[feature]
    rows = value_rows(values, len(columns.members[feature]), name)
    encoded_columns = columns.features.columns[feature]

    if adapted.encode is None:
        try:
            inputs = np.asarray(rows, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"values of {name!r} must be numbers ({error}).") from error
    elif len(rows) == 0 or not encoded_columns:
        inputs = np.zeros((len(rows), len(encoded_columns)))
    else:
        inputs = _encode_values(columns, adapted, feature, rows)

    if not np.isfinite(inputs).all():
        raise ValueError(f"values of {name!r} must be finite, found NaN or infinity.")
    return torch.tensor(inputs, dtype=torch.float64)


def _encode_values(
    columns: Columns, adapted: Adapted, feature: int, values: AnyArray
) -> FloatArray:
    """Values of one feature through the preprocessing, with typical values in the other columns."""
    _, encoded = encode_typical_rows(columns, adapted, {feature: values})
    inputs: FloatArray = encoded[:, list(columns.features.columns[feature])]
    return inputs


def encode_typical_rows(
    columns: Columns, adapted: Adapted, values: Mapping[int, AnyArray]
) -> tuple[AnyArray, FloatArray]:
    """Rows with these values of some features, and typical values elsewhere.

    The rows are given as the caller has them and as the network takes them.
    """
    assert adapted.encode is not None
    typical = [column.typical for column in columns.seen]
    n_rows = len(next(iter(values.values())))
    rows = np.tile(np.array(typical, dtype=object), (n_rows, 1))
    for feature, own in values.items():
        rows[:, list(columns.members[feature])] = own
    try:
        if not any(isinstance(value, str) for value in typical):
            rows = rows.astype(np.float64)
        return rows, adapted.encode(rows)
    except (TypeError, ValueError) as error:
        # Another column, of dates say, may be what does not pass.
        for feature, members in enumerate(columns.members):
            for member in members:
                _require_storable(columns.features.names[feature], [typical[member]])
        names = " and ".join(repr(columns.features.names[feature]) for feature in values)
        raise ValueError(
            f"values of {names} do not pass the model's preprocessing ({error})."
        ) from error


def input_baseline(columns: Columns, adapted: Adapted, baseline: BaselineLike) -> BaselineLike:
    """A baseline in the caller's units, as the network's input; words such as "mean" stay."""
    if adapted.encode is None or isinstance(baseline, str):
        return baseline
    if isinstance(baseline, Mapping):
        return {
            name: _feature_baseline(columns, adapted, name, value)
            for name, value in baseline.items()
        }

    row = np.asarray(baseline, dtype=object).ravel()
    if len(row) != columns.count:
        raise ValueError(
            f"baseline has {len(row)} values but the table has {columns.count} columns; pass one "
            "each."
        )
    by_name = {}
    for feature, name in enumerate(columns.features.names):
        own = row[list(columns.members[feature])]
        by_name[name] = input_values(columns, adapted, feature, own[None])[0].numpy()
    return by_name


def _feature_baseline(
    columns: Columns, adapted: Adapted, name: str, value: BaselineLike
) -> BaselineLike:
    """The baseline of one feature: a word, a level or numbers."""
    feature = columns.features.index(name, argument="baseline")
    levels = columns.texts(feature)
    if isinstance(value, str) and value not in levels:
        if value in _BASELINE_WORDS or not levels:
            return value
        raise ValueError(
            f"baseline for {name!r} is {value!r}, which was not seen; {suggest(value, levels)}"
        )
    row = np.asarray(value, dtype=object).ravel()
    return input_values(columns, adapted, feature, row[None]).numpy()[0]


# ---------------------------------------------------------------------- categories


def categories_of(
    columns: Columns, summary: Summary, embedded: Sequence[int], *, integer: bool
) -> frozenset[int]:
    """Features whose mean is no possible value.

    These are embedded codes, text, and groups of two-valued columns (one-hot).
    """
    categories = {feature for feature in range(len(columns.features)) if columns.texts(feature)}
    for feature, group in enumerate(columns.features.columns):
        if integer or any(column in embedded for column in group):
            categories.add(feature)
            counted = summary.codes.get(feature, ())
            if feature not in summary.levels and len(counted) < len(group):
                warn_caller(
                    f"the codes of feature {columns.features.names[feature]!r} are not whole, or "
                    f"span more than the {MOST_CODES:,} that are counted; codes that calibration "
                    "did not see will not be refused."
                )
        elif len(group) > 1 and bool(summary.two_valued[list(group)].all()):
            categories.add(feature)
    return frozenset(categories)


def level_labels(columns: Columns, feature: int, levels: Tensor) -> list[str]:
    """What to call each level: its number, the one-hot columns that are on, or all its values."""
    members = columns.members[feature]
    if len(members) == 1:
        return [f"{value:g}" for value in levels[:, 0].tolist()]

    names = [columns.names[member] if columns.names else f"x{member}" for member in members]
    has_two_values = [len(torch.unique(column)) <= 2 for column in levels.T]
    if all(has_two_values):
        return _labels_of_flags(names, levels)

    labels = []
    for row in levels.tolist():
        values = [f"{name}={value:g}" for name, value in zip(names, row, strict=True)]
        labels.append(", ".join(values))
    return labels


def _labels_of_flags(names: Sequence[str], levels: Tensor) -> list[str]:
    """Levels of one-hot columns by the names of those that are on."""
    largest = levels.amax(0)
    is_on = (levels == largest) & (largest > levels.amin(0))

    labels = []
    for row in is_on.tolist():
        names_on = [name for name, on in zip(names, row, strict=True) if on]
        labels.append(" + ".join(names_on) or "(none)")
    return labels


# ---------------------------------------------------------- where a feature's function is tabulated


Encode = Callable[[NDArray[np.generic]], Tensor]

# Numbers with at most this many distinct values have their knots there.
FEW_VALUES = 32
# Rows that each value of a number has on average, where numbers are taken to be whole, or codes:
# one knot at each.
_ROWS_OF_A_VALUE = 4
# A flag, whose thresholds say nothing: LightGBM writes that of 0 and 1 as 1e-35.
_VALUES_OF_A_FLAG = 2
# Categories with more levels are run through the network row by row, like features of several
# numbers.
MOST_TABLED_LEVELS = 4096
# Knots closer than this share of their size are one: their distance is rounding, and slopes would
# be noise.
_LEAST_DISTANCE = 1e-12
# Knots that follow the rows stay this share of the range away from thresholds, which have two knots
# of their own.
_NEXT_TO_A_THRESHOLD = 1e-6
# Most values of a column on which its encoding is looked up, where rows are known only as the
# network takes them.
_DECODED_POINTS = 4096
# The same where only the range of a column is known.
_POINTS_OF_A_RANGE = 256
# How far a value between two known ones is tried, and how far its code may move, as shares of their
# distances.
_STEP_BETWEEN = 1e-6
_LARGEST_MOVE = 1e-3
# What libraries call the types of dates and durations, and those of times of day.
_DATES = ("Timestamp", "datetime", "date", "datetime64", "Timedelta", "timedelta", "Period")
_TIMES = ("time",)


@dataclass(frozen=True, eq=False)
class Points:
    """Where one feature is tabulated."""

    axis: Axis  # knots or levels, in the caller's units
    inputs: Tensor  # the same as the network takes them, (points, columns of the feature)
    columns: tuple[int, ...]  # of the network's input
    # for every point the position of the point it is clamped to: itself, or the end of the range
    clamped_to: Places
    name: str = ""  # what the feature is called, for messages
    # which points stand for themselves, not for the last one that the preprocessing takes; None for
    # all
    encoded: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def inside(self) -> BoolArray:
        """Which points are in the calibrated range."""
        inside: BoolArray = self.clamped_to == np.arange(len(self))
        return inside

    def label(self, position: int) -> str:
        """A point in words, for messages."""
        if isinstance(self.axis, LevelAxis):
            return f"{self.name} = {self.axis.levels[position]!r}"
        if position >= len(self.axis.knots):
            return f"{self.name} missing"
        return f"{self.name} = {self.axis.knots[position]:.6g}"


def place_knots(
    x: Array,
    span: tuple[float, float],
    *,
    quantiles: int,
    even: int,
    reach: Sequence[float],
    most_values: int = 0,
    on_values: bool = False,
) -> tuple[Array, Array]:
    """Knots inside the calibrated range, and knots at `reach` ranges beyond it.

    Some of those inside are evenly spaced, for heavy tails; `on_values` moves them to the nearest
    number that occurs.

    Numbers that take few values have a knot at each: up to `most_values` of them, where several
    rows take each.
    """
    low, high = span
    x = x[np.isfinite(x)]

    distinct = np.unique(np.concatenate([x, [low, high]]))
    are_repeated = len(x) >= _ROWS_OF_A_VALUE * len(distinct)
    few = max(min(FEW_VALUES, quantiles + even), most_values if are_repeated else 0)
    if len(distinct) <= few:
        inner = distinct
    else:
        # Quantiles of few values would fall on the same ones again and again.
        followed = distinct if len(distinct) < 3 * quantiles else x
        at_quantiles = np.quantile(followed, np.linspace(0, 1, quantiles))
        evenly_spaced = np.linspace(low, high, even)
        inner = np.unique(np.concatenate([at_quantiles, evenly_spaced, [low, high]]))
        inner = _without_near_twins(inner)
        if on_values:
            nearest = np.abs(inner[:, None] - distinct[None]).argmin(1)
            inner = np.unique(distinct[nearest])
        inner[0] = low
        inner[-1] = high

    width = high - low or max(abs(low), 1.0)
    beyond = width * np.array(reach)
    return inner, np.concatenate([low - beyond, high + beyond])


def _without_near_twins(knots: Array) -> Array:
    """Increasing knots without those that differ from the one before by rounding only."""
    size = np.maximum(np.abs(knots[1:]), np.abs(knots[:-1]))
    is_apart = np.diff(knots) > _LEAST_DISTANCE * size
    apart: Array = knots[np.concatenate([[True], is_apart])]
    return apart


@dataclass(frozen=True, eq=False)
class Domain:
    """Where a feature's function is tabulated."""

    feature: Feature  # what the caller sees of it
    columns: tuple[int, ...]  # columns of the network's input
    encode: Encode  # values in the caller's units as the network takes them
    levels: LevelAxis | None = None  # the category's levels; None for numbers
    level_inputs: Tensor | None = None  # the levels as the network takes them
    span: tuple[float, float] | None = None  # the calibrated range of a number; None for others
    # whether the network is followed beyond the range; not for a number of two values
    reaches: bool = True
    # what the preprocessing makes of a missing number; None where it takes none
    missing: Tensor | None = None
    plain: bool = True  # whether the network takes the caller's own numbers
    # numbers that follow an encoded column's distribution
    seen: Array = field(default_factory=lambda: np.zeros(0))
    # on either side of the thresholds of a model of steps, (thresholds, 2)
    steps: Array = field(default_factory=lambda: np.zeros((0, 2)))
    # whether its function is only asked at numbers that occur
    on_values: bool = False
    # the smallest and largest number for which the model is known to answer
    limits: tuple[float, float] = (-np.inf, np.inf)

    @property
    def tabulated(self) -> bool:
        """Whether the feature has a table; several numbers at once have none."""
        return self.levels is not None or self.span is not None

    def points(
        self,
        rows: Chunk,
        *,
        quantiles: int,
        even: int,
        reach: Sequence[float],
        most_values: int = 0,
    ) -> Points:
        """Levels, or knots: some follow the rows, some are even, some lie beyond the range."""
        if self.levels is not None and self.level_inputs is not None:
            return self._level_points(self.levels, self.level_inputs)

        assert self.span is not None
        x = self.seen if len(self.seen) else rows.numbers(self.feature.columns[0])
        inner, beyond = place_knots(
            x,
            self.span,
            quantiles=quantiles,
            even=even,
            reach=tuple(reach) if self.reaches else (),
            most_values=most_values,
            on_values=self.on_values,
        )

        lowest, highest = self.limits
        beyond = beyond[(beyond >= lowest) & (beyond <= highest)]
        return self.number_points(np.unique(np.concatenate([inner, beyond])))

    def _level_points(self, levels: LevelAxis, inputs: Tensor) -> Points:
        """Every level of a category."""
        return Points(
            axis=levels,
            inputs=inputs,
            columns=self.columns,
            clamped_to=np.arange(len(levels)),
            name=self.feature.name,
        )

    def number_points(self, knots: Array) -> Points:
        """Increasing knots as points, and one for missing numbers if preprocessing takes them."""
        assert self.span is not None
        inside = np.clip(knots, *self.span)
        clamped_to = np.clip(np.searchsorted(knots, inside), 0, len(knots) - 1)
        inputs, encoded = self._encode_or_clamp(knots, clamped_to)

        if len(knots) == 1:  # a constant: a table needs two knots
            step = max(abs(knots[0]), 1.0)
            knots = np.array([knots[0], knots[0] + step])
            inputs = inputs.expand(2, -1)
            clamped_to = np.zeros(2, dtype=np.intp)
            encoded = None

        if self.missing is not None:
            inputs = torch.cat([inputs, self.missing])
            clamped_to = np.append(clamped_to, len(clamped_to))
            encoded = None if encoded is None else np.append(encoded, True)

        return Points(
            axis=NumberAxis(self.feature.columns[0], knots, missing=self.missing is not None),
            inputs=inputs,
            columns=self.columns,
            clamped_to=clamped_to.astype(np.intp),
            name=self.feature.name,
            encoded=encoded,
        )

    def _encode_or_clamp(self, knots: Array, clamped_to: Places) -> tuple[Tensor, BoolArray | None]:
        """Knots as the network takes them.

        Those that the preprocessing does not take are clamped to the last one that it does.
        """
        try:
            return self.encode(knots[:, None]), None
        except ValueError:
            encoded = clamped_to == np.arange(len(knots))
            inside = np.flatnonzero(encoded)
            inputs = {int(knot): self.encode(knots[[knot], None]) for knot in inside}

        outward = [*range(inside[0] - 1, -1, -1), *range(inside[-1] + 1, len(knots))]
        for knot in outward:
            inward = knot + 1 if knot < inside[0] else knot - 1
            inputs[knot] = inputs[inward]
            if encoded[inward]:
                with suppress(ValueError):
                    inputs[knot] = self.encode(knots[[knot], None])
                    encoded[knot] = True

        return torch.cat([inputs[knot] for knot in range(len(knots))]), encoded

    def step_points(self, rows: Chunk, steps: Array, *, quantiles: int) -> Points:
        """Knots on either side of some thresholds, and knots that follow the rows.

        The latter are in place of the other thresholds.
        """
        assert self.span is not None
        low, high = self.span
        first = min(low, float(self.steps.min()))
        last = max(high, float(self.steps.max()))
        width = last - first or max(abs(low), 1.0)

        x = rows.numbers(self.feature.columns[0])
        if len(np.unique(x[np.isfinite(x)])) <= _VALUES_OF_A_FLAG:
            steps = steps[:0]  # between the values of a flag nothing is read
        beside_thresholds = np.clip(steps.ravel(), *self.limits)
        outer = np.clip([first - width, last + width], *self.limits)
        knots = [beside_thresholds, np.array([low, high]), outer]

        if len(steps) < len(self.steps):
            inner, _ = place_knots(x, self.span, quantiles=quantiles, even=2, reach=())
            distances = np.abs(inner[:, None] - steps.ravel()[None]).min(1, initial=np.inf)
            knots.append(inner[distances > _NEXT_TO_A_THRESHOLD * width])

        return self.number_points(np.unique(np.concatenate(knots)))

    def limited_to(self, points: Points, answered: BoolArray | None) -> Domain:
        """The domain, known to end at the last of some points for which the model answered."""
        if not isinstance(points.axis, NumberAxis):
            return self

        knots = points.axis.knots
        usable = np.ones(len(knots), dtype=bool)
        for mask in (answered, points.encoded):
            if mask is not None:
                usable &= mask[: len(knots)]
        if usable.all():
            return self

        limits = (float(knots[usable].min()), float(knots[usable].max()))
        return replace(self, limits=limits)

    def own_columns(self, rows: Tensor) -> dict[int, NDArray[np.generic]]:
        """Rows as the network takes them, in the caller's units; what cannot be told is missing."""
        members = self.feature.columns
        inputs = rows[:, list(self.columns)].double()
        if self.plain:
            return {member: inputs[:, k].numpy() for k, member in enumerate(members)}
        if self.levels is not None and self.level_inputs is not None:
            return decode_levels(inputs, self.levels, self.level_inputs)
        if self.span is None:
            return {}
        return {members[0]: self._decode_numbers(inputs)}

    def _decode_numbers(self, inputs: Tensor) -> Array:
        """The numbers whose codes some rows have, NaN for those of missing ones."""
        numbers = self._numbers_to_compare()
        codes = self.encode(numbers[:, None])
        return decode_numbers(inputs, codes, numbers, self.missing)

    def _numbers_to_compare(self) -> Array:
        """Increasing numbers of the column, few enough to compare rows with their codes."""
        assert self.span is not None
        if len(self.seen) <= 1:
            return np.linspace(*self.span, _POINTS_OF_A_RANGE)
        positions = evenly_spaced(len(self.seen), _DECODED_POINTS)
        return self.seen[np.unique(positions)]


def own_columns(domains: Sequence[Domain], rows: Tensor) -> dict[int, NDArray[np.generic]]:
    """Rows as the network takes them, in the caller's units by column."""
    columns: dict[int, NDArray[np.generic]] = {}
    for domain in domains:
        columns |= domain.own_columns(rows)
    return columns


# ---------------------------------------------------------------------- which kind a feature is


@dataclass(frozen=True, eq=False)
class Outline:
    """A feature before its kind is known."""

    name: str
    members: tuple[int, ...]  # of the caller's columns
    columns: tuple[int, ...]  # of the network's input
    encode: Encode  # values in the caller's units as the network takes them
    plain: bool  # whether the network takes the caller's own numbers

    @classmethod
    def of(cls, columns: Columns, adapted: Adapted, position: int) -> Outline:
        """The feature at a position."""

        def encode(values: NDArray[np.generic]) -> Tensor:
            # A result that is not finite is an error there; numpy need not warn of it here.
            with np.errstate(all="ignore"):
                return input_values(columns, adapted, position, values)

        return cls(
            name=columns.features.names[position],
            members=tuple(columns.members[position]),
            columns=tuple(columns.features.columns[position]),
            encode=encode,
            plain=adapted.encode is None,
        )


def describe(
    columns: Columns,
    adapted: Adapted,
    summary: Summary,
    categories: frozenset[int],
    position: int,
) -> Domain:
    """Where the feature at a position is tabulated."""
    outline = Outline.of(columns, adapted, position)
    if not outline.columns:
        return unused_domain(outline)

    texts = columns.texts(position)
    if texts:
        return text_domain(outline, texts)

    if not outline.plain:
        return describe_encoded(outline, columns, adapted, position)

    if position in categories:
        counted = summary.levels_of(position, outline.columns)
        if counted is None or len(counted[0]) > MOST_TABLED_LEVELS:
            return untabulated_domain(outline)
        levels = counted[0]
        labels = level_labels(columns, position, levels)
        return level_domain(outline, levels.numpy(), levels, labels)

    return describe_plain(outline, adapted, summary, position)


def describe_plain(outline: Outline, adapted: Adapted, summary: Summary, position: int) -> Domain:
    """One or several numbers that the network takes as they are."""
    smallest = summary.minimum[list(outline.columns)].tolist()
    largest = summary.maximum[list(outline.columns)].tolist()
    ranges = tuple(zip(smallest, largest, strict=True))
    if len(outline.members) != 1 or len(ranges) != 1:
        return untabulated_domain(outline, ranges)

    joint_levels = summary.tallies[position].joint
    has_two_values = joint_levels is not None and len(joint_levels[0]) <= 2
    domain = number_domain(outline, ranges[0], adapted)
    return replace(domain, reaches=not has_two_values)


def describe_encoded(outline: Outline, columns: Columns, adapted: Adapted, position: int) -> Domain:
    """Numbers that a preprocessing encodes.

    They are levels where it knows no value between those that occurred.
    """
    column = columns.column(position)
    known = np.array([] if column is None else column.levels or [], dtype=np.float64)
    if len(known) and not _takes_values_between(outline.encode, known):
        has_missing = column is not None and column.has_missing
        return encoded_level_domain(outline, known, has_missing=has_missing)

    spans = [columns.seen[member].span for member in outline.members]
    ranges = tuple((span[0], span[1]) for span in spans if span)
    if len(outline.members) != 1 or len(ranges) != 1:
        return untabulated_domain(outline, ranges)

    domain = number_domain(outline, ranges[0], adapted)
    is_own = _missing_moves_own_columns(columns, adapted, position)
    return replace(
        domain,
        missing=_encode_missing(outline.encode) if is_own else None,
        seen=np.zeros(0) if column is None else column.quantiles,
    )


def unused_domain(outline: Outline) -> Domain:
    """What the model never sees."""
    feature = Feature(outline.name, outline.members, "unused")
    return Domain(feature, outline.columns, outline.encode, plain=outline.plain)


def untabulated_domain(outline: Outline, ranges: tuple[tuple[float, float], ...] = ()) -> Domain:
    """What has no table: several numbers at once, or a category of very many levels."""
    feature = Feature(outline.name, outline.members, "numbers", ranges=ranges)
    return Domain(feature, outline.columns, outline.encode, plain=outline.plain)


def number_domain(outline: Outline, span: tuple[float, float], adapted: Adapted) -> Domain:
    """One number with its calibrated range."""
    member = outline.members[0]
    return Domain(
        feature=Feature(outline.name, outline.members, "number", ranges=(span,)),
        columns=outline.columns,
        encode=outline.encode,
        plain=outline.plain,
        span=span,
        steps=adapted.steps.get(member, np.zeros((0, 2))),
    )


def level_domain(
    outline: Outline,
    levels: tuple[Level, ...] | Array,
    inputs: Tensor,
    labels: Iterable[str],
    *,
    filled_in: int | None = None,
) -> Domain:
    """A category with its levels, unless these are too many for a table."""
    if len(levels) > MOST_TABLED_LEVELS:
        return untabulated_domain(outline)
    return Domain(
        feature=Feature(outline.name, outline.members, "levels", labels=tuple(labels)),
        columns=outline.columns,
        encode=outline.encode,
        plain=outline.plain,
        levels=LevelAxis(outline.members, levels, filled_in),
        level_inputs=inputs,
    )


def encoded_level_domain(outline: Outline, numbers: Array, *, has_missing: bool = False) -> Domain:
    """Numbers as levels, such as those of a one-hot encoder.

    A missing number that rows have, and that the encoder tells from all others, is one of them.
    """
    if len(numbers) > MOST_TABLED_LEVELS:
        return untabulated_domain(outline)
    inputs = outline.encode(numbers[:, None])
    labels = [f"{number:g}" for number in numbers]
    absent = _encode_missing(outline.encode)
    filled_in = None if absent is None else _position_of(absent, inputs)
    if has_missing and absent is not None and filled_in is None:
        numbers = np.append(numbers, np.nan)
        inputs = torch.cat([inputs, absent])
        labels.append("missing")
    return level_domain(outline, numbers[:, None], inputs, labels, filled_in=filled_in)


def text_domain(outline: Outline, texts: list[Any]) -> Domain:
    """A column of text or of other names."""
    _require_storable(outline.name, texts)
    if len(texts) > MOST_TABLED_LEVELS:
        return untabulated_domain(outline)

    rows = np.empty((len(texts), 1), dtype=object)
    rows[:, 0] = texts
    try:
        inputs = outline.encode(rows)
    except (TypeError, ValueError):
        if not is_missing(texts[-1]):
            raise
        # Missing is a level only where the preprocessing takes it.
        texts = texts[:-1]
        inputs = outline.encode(rows[:-1])

    # Nor is it one where the preprocessing fills in another level.
    filled_in = None
    if is_missing(texts[-1]):
        filled_in = _position_of(inputs[-1:], inputs[:-1])
        if filled_in is not None:
            texts = texts[:-1]
            inputs = inputs[:-1]

    levels = tuple(None if type(text).__name__ == "NAType" else text for text in texts)
    labels = ["missing" if is_missing(text) else str(text) for text in texts]
    return level_domain(outline, levels, inputs, labels, filled_in=filled_in)


def _require_storable(name: str, levels: Sequence[object]) -> None:
    """An error where levels are neither text nor numbers, which no file can hold."""
    odd = [level for level in levels if not (is_missing(level) or isinstance(level, Level))]
    if not odd:
        return

    kind = type(odd[0]).__name__
    advice = "write them as text"
    if kind in (*_DATES, *_TIMES):
        what, number = (
            ("times", "minutes since midnight")
            if kind in _TIMES
            else ("dates", "days since a date")
        )
        advice = (
            f"{what} are neither numbers nor categories. Calibrate on numbers instead, such as "
            f"{number}, and explain a function that turns these back into {what} and calls the "
            "model; the page How-to, Dates, of the documents shows it"
        )
    raise TypeError(f"feature {name!r} has levels of type {kind}; {advice}.")


def _encode_missing(encode: Encode) -> Tensor | None:
    """What a preprocessing makes of a missing number; None where it takes none."""
    with suppress(ValueError, TypeError):
        return encode(np.array([[np.nan]]))
    return None


def _missing_moves_own_columns(columns: Columns, adapted: Adapted, position: int) -> bool:
    """Whether a missing number changes no column of the network's input but its feature's own.

    A column that says that a number is missing is nobody's where calibration saw none missing.
    """
    typical = [columns.seen[member].typical for member in columns.members[position]]
    absent = [np.nan] * len(typical)
    try:
        _, encoded = encode_typical_rows(
            columns, adapted, {position: np.array([typical, absent], dtype=object)}
        )
    except (TypeError, ValueError):
        return False

    others = np.ones(encoded.shape[1], dtype=bool)
    others[list(columns.features.columns[position])] = False
    return bool((encoded[0, others] == encoded[1, others]).all())


def _position_of(row: Tensor, rows: Tensor) -> int | None:
    """Position of the first of some rows that equals a row; None where none does."""
    same = (rows == row).all(1).nonzero().flatten().tolist()
    return same[0] if same else None


def _takes_values_between(encode: Encode, known: Array) -> bool:
    """Whether a value next to one that occurred is encoded next to it.

    One-hot encoders know no value in between.
    """
    if len(known) < 2:
        return False

    between = known[:-1] + _STEP_BETWEEN * np.diff(known)
    try:
        codes_between = encode(between[:, None])
        codes = encode(known[:, None])
    except ValueError:
        return False

    range_of_codes = (codes.amax(0) - codes.amin(0)).sum()
    moves = (codes_between - codes[:-1]).abs().sum(1)
    return bool((moves <= _LARGEST_MOVE * range_of_codes).all())


def decoded_rows(
    columns: Columns, adapted: Adapted, summary: Summary, rows: Tensor
) -> NDArray[np.object_]:
    """Rows that a preprocessing encoded, in the caller's units.

    None where these cannot be told.
    """
    domains = []
    for feature in range(len(columns.features)):
        domains.append(describe(columns, adapted, summary, frozenset(), feature))

    table = np.full((len(rows), columns.count), None, dtype=object)
    for column, values in own_columns(domains, rows.double()).items():
        known = columns.seen[column].quantiles
        is_number = values.dtype.kind == "f" and len(known)
        table[:, column] = snap_to_known(values.astype(np.float64), known) if is_number else values
    return table
