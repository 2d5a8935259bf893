"""Does the model ever fall where it should rise? It is asked itself, along every row's own line.

A line goes through a row: all its values stay, one feature takes every value of its range. Tables
only say where to look. A model of steps is asked once on every step, so that nothing between two
values can be missed; others are asked at the knots of the feature's table and at values between
which the table changes alike. A feature of whole numbers is asked at these alone: there is no half
of a bedroom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from nobsp._typing import AnyArray, ArrayLike, FloatArray, Shape, TableLike
from nobsp.arguments import (
    require_choice,
    require_number,
    require_whole_number,
    suggest,
    weights_of,
    with_minus,
)
from nobsp.frames import group_codes, replace_column, take_rows
from nobsp.network.readout import Represent, as_model_takes
from nobsp.numerics import clopper_pearson
from nobsp.tabular.explanation import apply_link
from nobsp.tabular.features import input_values
from nobsp.tabular.fitted import CalibratedModel
from nobsp.tabular.indexing import output_position
from nobsp.tabular.lookup import LevelAxis, NumberAxis, Places, read_columns

# Steps smaller than this share of the predictions' spread are rounding, where nobody says
# otherwise.
USUAL_TOLERANCE = 1e-4
# Knots of a table at which models that are no steps are asked, and further values where the table
# is steep.
MOST_KNOTS = 65
STEEP_VALUES = 64
# A feature of whole numbers is asked at each of them, up to so many: about as many as other
# features are asked at.
MOST_WHOLE_NUMBERS = 256
# Rows on which it is tried whether a model of trees is constant between its thresholds, and what
# counts as constant.
_TRIED_ROWS = 16
_SAME = 1e-6
# Counterexamples that are kept, the worst.
MOST_COUNTEREXAMPLES = 10
# Share of rows that repeat others from which on it is worth saying that a bound counts each of
# them.
_MANY_REPEATS = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class ShapeCheck:
    """Whether a model keeps a shape along one feature, as `NObSP.check_shape` asked it.

    Attributes:
        feature: The feature.
        shape: What was asked.
        output: Which output.
        tolerance: What a row's line may deviate without counting.
        within: The range of values, of a number; None for levels.
        n_rows: Rows whose lines were followed.
        n_values: Values that the feature took on every line.
        exact: Whether the model was asked on every step it has, or at every whole number of a
            feature that has no others, so that nothing lies between; elsewhere a break between two
            values may have been missed.
        n_broken: Rows whose line breaks the shape.
        rate: Their share, by weight where rows are weighted.
        bound: With so large a `confidence`, at most this share of rows of the same kind break it
            (Clopper and Pearson's upper end, for as many rows as `n_draws`).
        confidence: That of the two-sided interval whose upper end `bound` is.
        worst: The largest break, in units of the output; 0 where there is none.
        broken_rows: Positions in `X` of the rows whose line breaks the shape.
        counterexamples: Rows to feed to the model oneself, as a table like `X`: two after one
            another for each of the worst breaks (three for convex and concave), which differ in the
            feature alone. None where there is none.
        predictions: What the model says to each of them.
        breaks: How large each of these breaks is, one per counterexample.
        link: What the model applies to the output afterwards; "identity" where nothing is applied.
        scale: What the shape is of: "output" before the link, such as a class's logit, or
            "probability" after it.
        one_of_several: Whether the model has other outputs.
        n_within: Rows whose own value lies in `within`, where that was passed; None where it was
            not, or is not known.
        n_draws: How many rows, drawn one by one and of equal weight, would tell as much: `n_rows`
            without weights and groups.
        n_repeats: Rows that repeat an earlier one exactly, where no groups say whether these belong
            together.

    Example:
        >>> import numpy as np, nobsp
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> explainer = nobsp.NObSP(lambda X: X[:, 0] * X[:, 1], features=["a", "b"]).fit(X)
        >>> check = explainer.check_shape("a", "increasing", X)
        >>> bool(check.n_broken == (X[:, 1] < 0).sum()), check.counterexamples.shape
        (True, (20, 2))
    """

    feature: str
    shape: str
    output: str
    tolerance: float
    within: tuple[float, float] | None
    n_rows: int
    n_values: int
    exact: bool
    n_broken: int
    rate: float
    bound: float
    confidence: float
    worst: float
    broken_rows: Places
    counterexamples: TableLike | None
    predictions: FloatArray
    breaks: FloatArray
    link: str = "identity"
    one_of_several: bool = False
    n_within: int | None = None
    scale: str = "output"
    n_draws: float = float("nan")
    n_repeats: int = 0

    @property
    def asked(self) -> str:
        """What was asked in words: feature and shape, of which output, on which scale."""
        words = f"{self.feature} {self.shape}"
        if self.one_of_several:
            words += f" for {self.output}"
        if self.link == "identity":
            return words
        side = "after" if self.scale == "probability" else "before"
        return f"{words}, {side} the model's {self.link}"

    @property
    def note(self) -> str:
        """What is worth knowing before the verdict is believed; empty where nothing is."""
        notes = []
        if self.n_within == 0 and self.within is not None:
            low, high = self.within
            notes.append(
                f"no row's own {self.feature} lies between {with_minus(low, 'g')} and "
                f"{with_minus(high, 'g')}"
            )
        if self.n_repeats >= _MANY_REPEATS * self.n_rows:
            notes.append(
                f"{self.n_repeats:,} of {self.n_rows:,} rows repeat others, and the bound takes "
                "each for a draw of its own; say with groups which belong together, if some do"
            )
        return "; ".join(notes)

    @property
    def holds(self) -> bool:
        """Whether no row that was tried breaks it."""
        return self.n_broken == 0

    def __repr__(self) -> str:
        where = f"{self.n_rows:,} rows, {self.n_values:,} values each"
        if self.holds:
            verdict = "holds on all rows tried"
        else:
            verdict = (
                f"broken by {self.n_broken:,} rows ({self.rate:.2%}), by {self.worst:.3g} at worst"
            )
        if self.n_draws < self.n_rows:
            where += f", worth {self.n_draws:,.0f} independent ones"
        unseen = "" if self.exact else "; between the values the model was not asked"
        if self.note:
            unseen += f"; {self.note}"
        return (
            f"ShapeCheck({self.asked}: {verdict}; at most {self.bound:.2%} of such rows "
            f"with {self.confidence:.0%} confidence; {where}{unseen})"
        )


@dataclass(frozen=True, eq=False)
class _Line:
    """The values that a feature takes on every row's line."""

    values: AnyArray  # in the caller's units, (values,)
    inputs: Tensor  # as the network takes them, (values, columns)
    columns: list[int]  # of the network's input
    positions: FloatArray  # where the values are, for slopes
    exact: bool
    within: tuple[float, float] | None


def check_shape(
    fitted: CalibratedModel,
    represent: Represent,
    feature: str,
    shape: str,
    X: TableLike,
    *,
    tolerance: float | None,
    output: int | str | None,
    within: tuple[float, float] | None,
    most_rows: int | None,
    confidence: float,
    batch_size: int,
    scale: str,
    sample_weight: ArrayLike | None,
    groups: ArrayLike | None,
) -> ShapeCheck:
    """Follows every row's line; see `NObSP.check_shape`."""
    _require_arguments(shape, tolerance, confidence, most_rows, X)
    question = _Question(
        feature=feature,
        number=_feature_number(fitted, feature),
        shape=shape,
        output=_chosen_output(output, fitted.functions.output_names),
        within=within,
    )
    model = _Asked(
        fitted,
        represent,
        output=question.output,
        link=_link_of(scale, fitted.functions.link),
        batch_size=batch_size,
    )
    sample = _Sample.of(len(X), most_rows, sample_weight, groups)
    rows = X if len(sample.positions) == len(X) else take_rows(X, sample.positions)
    inputs = model.inputs(rows)

    line = _line_of(
        fitted,
        question,
        model.trying(inputs),
        is_whole=_is_count(fitted, X, question.number),
    )
    outputs = _require_answers(model.follow(inputs, line))
    if tolerance is None:
        tolerance = USUAL_TOLERANCE * float(np.nanstd(model.predict(inputs)))
    breaks = _Breaks.of(outputs, line, shape, tolerance=tolerance)
    examples = _Examples.of(model, rows, question.number, line, breaks)

    check = _verdict(fitted, question, line, sample, breaks, examples, confidence=confidence)
    return replace(
        check,
        scale=scale,
        n_within=None if within is None else _count_within(fitted, rows, question.number, line),
        n_repeats=0 if groups is not None else len(inputs) - len(torch.unique(inputs, dim=0)),
    )


@dataclass(frozen=True)
class _Question:
    """What the model is asked."""

    feature: str
    number: int  # the feature's position
    shape: str
    output: int
    within: tuple[float, float] | None


def _require_answers(outputs: FloatArray) -> FloatArray:
    """Outputs along the rows' lines, an error where a row has none."""
    if not np.isfinite(outputs).any(1).all():
        raise ValueError("X has rows for which the model gives no finite answer; leave them out.")
    return outputs


def _verdict(
    fitted: CalibratedModel,
    question: _Question,
    line: _Line,
    sample: _Sample,
    breaks: _Breaks,
    examples: _Examples,
    *,
    confidence: float,
) -> ShapeCheck:
    """How many rows break the shape, by how much, and what that says of other rows."""
    names = fitted.functions.output_names
    broken = breaks.broken
    rate = sample.share_of(broken)
    _, bound = clopper_pearson(rate * sample.n_draws, sample.n_draws, confidence)

    return ShapeCheck(
        feature=question.feature,
        shape=question.shape,
        output=names[question.output],
        tolerance=breaks.tolerance,
        within=line.within,
        n_rows=len(breaks.sizes),
        n_values=len(line.values),
        exact=line.exact,
        n_broken=len(broken),
        rate=rate,
        bound=bound,
        confidence=confidence,
        worst=float(breaks.sizes[broken].max(initial=0.0)),
        broken_rows=sample.positions[broken],
        counterexamples=examples.table,
        predictions=examples.predictions,
        breaks=breaks.sizes[breaks.worst],
        link=fitted.functions.link,
        one_of_several=len(names) > 1,
        n_draws=sample.n_draws,
    )


def _link_of(scale: str, link: str) -> str | None:
    """What is applied to the outputs on the scale that was asked for; None for nothing."""
    require_choice("scale", scale, ("output", "probability"))
    if scale == "output":
        return None
    usable = "softmax" if link == "log_softmax" else link
    if usable not in ("softmax", "sigmoid", "exp"):
        raise ValueError(
            'scale="probability" needs a model that applies a softmax, a sigmoid or an '
            "exponential, but its link is "
            f"{link!r}; explain a model that ends in one, or leave scale out."
        )
    return usable


def _count_within(fitted: CalibratedModel, rows: TableLike, number: int, line: _Line) -> int | None:
    """Rows whose own value lies in the range; None where values are no numbers."""
    values = _own_numbers(fitted, rows, number)
    if line.within is None or values is None:
        return None
    low, high = line.within
    return int(((values >= low) & (values <= high)).sum())


def _own_numbers(fitted: CalibratedModel, rows: TableLike, number: int) -> FloatArray | None:
    """Every row's own value of a feature; None where these are no numbers."""
    columns, _ = read_columns(fitted.functions, rows)
    member = fitted.functions.features[number].columns[0]
    try:
        return np.asarray(columns[member], dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _is_count(fitted: CalibratedModel, rows: TableLike, number: int) -> bool:
    """Whether a feature has whole numbers only, in these rows and in those calibrated on."""
    is_whole = _are_whole(_own_numbers(fitted, rows, number))
    return is_whole and _are_whole(_calibrated_numbers(fitted, number))


def _calibrated_numbers(fitted: CalibratedModel, number: int) -> FloatArray | None:
    """Values of a feature that the calibration rows had; None where they are not known."""
    member = fitted.functions.features[number].columns[0]
    if fitted.columns.seen:  # of a preprocessing, in the caller's units
        seen = fitted.columns.seen[member]
        known = seen.quantiles if len(seen.quantiles) else seen.levels or ()
        return np.asarray(known, dtype=np.float64)

    # Counts are kept in files, where rows need not be.
    summary = fitted.summary
    counted = summary.levels.get(number) or summary.codes.get(number, {}).get(0)
    if counted is not None:
        return np.asarray(counted[0], dtype=np.float64).ravel()
    return summary.sample[:, member].double().numpy()


def _are_whole(values: FloatArray | None) -> bool:
    """Whether all known values are whole numbers, as counts, codes and booleans are.

    False where none are known.
    """
    if values is None:
        return False
    known = values[np.isfinite(values)]
    return bool(len(known)) and bool((known == np.rint(known)).all())


def _require_arguments(
    shape: str, tolerance: float | None, confidence: float, most_rows: int | None, X: TableLike
) -> None:
    """Raises where an argument cannot be meant."""
    require_choice("shape", shape, get_args(Shape))
    require_number("confidence", confidence, above=0, below=1)
    if most_rows is not None:
        require_whole_number("most_rows", most_rows)
    if tolerance is not None:
        require_number("tolerance", tolerance, least=0)
    elif shape == "bounded":
        raise ValueError(
            'tolerance must be given for "bounded": by how much the feature alone may move a '
            "prediction."
        )
    if len(getattr(X, "shape", ())) != 2 or len(X) == 0:
        raise ValueError("X must be an array, a tensor or a frame with at least one row.")


def _feature_number(fitted: CalibratedModel, feature: str) -> int:
    """The position of a feature, or an error with the names that are close."""
    names = fitted.functions.feature_names
    if not isinstance(feature, str) or feature not in names:
        raise ValueError(f"there is no feature {feature!r}; {suggest(feature, names)}")
    return names.index(feature)


def _chosen_output(output: int | str | None, names: tuple[str, ...]) -> int:
    """Position of an output, which must be named where there are several."""
    if output is None and len(names) > 1:
        raise ValueError(f"output must be chosen among {', '.join(map(repr, names))}.")
    return output_position(0 if output is None else output, names)


@dataclass(frozen=True, eq=False)
class _Sample:
    """The rows that are judged, and how much they tell about others."""

    positions: Places  # in the caller's table
    weights: FloatArray  # of each, the largest 1
    n_draws: float  # as many independent rows of equal weight tell as much

    @classmethod
    def of(
        cls,
        n_rows: int,
        most: int | None,
        sample_weight: ArrayLike | None,
        groups: ArrayLike | None,
    ) -> _Sample:
        """All rows that weigh something, or at most `most` drawn by chance.

        A bound needs rows that nobody picked.

        Rows of one group count as one draw, since each may do what the others do. With W the
        groups' weights, a share scatters as that of (Σ W)² / Σ W² independent draws does (Kish).
        """
        weights = (
            np.ones(n_rows) if sample_weight is None else weights_of(sample_weight, n_rows=n_rows)
        )
        codes = np.arange(n_rows) if groups is None else group_codes(groups, n_rows=n_rows)

        positions = np.flatnonzero(weights)
        if most is not None and len(positions) > most:
            drawn = np.random.default_rng(0).choice(len(positions), size=most, replace=False)
            positions = positions[np.sort(drawn)]
        weights = weights[positions] / weights[positions].max()
        totals = np.bincount(codes[positions], weights=weights)
        return cls(
            positions=positions.astype(np.intp),
            weights=np.asarray(weights, dtype=np.float64),
            n_draws=float(totals.sum() ** 2 / np.square(totals).sum()),
        )

    def share_of(self, rows: Places) -> float:
        """The share of some of the rows, by weight."""
        return float(self.weights[rows].sum() / self.weights.sum())


# ---------------------------------------------------------------------- where the model is asked


# What the model says along the lines of a few rows, (rows, values).
Ask = Callable[["_Line"], FloatArray]


def _line_of(fitted: CalibratedModel, question: _Question, ask: Ask, *, is_whole: bool) -> _Line:
    """The values at which the model is asked; `ask` tries out whether it is one of steps.

    Where `is_whole`, the rows to be asked about have whole numbers only.
    """
    number = question.number
    feature = fitted.functions.features[number]
    table = next((table for table in fitted.functions.tables if table.features == (number,)), None)
    axis = table.axes[0] if table is not None and table.axes else None

    if isinstance(axis, LevelAxis):
        return _level_line(fitted, question, axis)
    if feature.kind == "unused" or (table is not None and not table.axes):
        raise ValueError(
            f"feature {feature.name!r} cannot be checked: the model does not use it, or all "
            "calibration rows have the same value, so that every shape holds."
        )
    if not isinstance(axis, NumberAxis) or feature.span is None or table is None:
        raise ValueError(
            f"feature {feature.name!r} cannot be checked: it is neither a single number nor a "
            "category; choose another, or calibrate with its columns as features of their own."
        )

    low, high = _read_range(question.within, feature.span)
    is_whole = is_whole and _are_whole(np.array(feature.span))
    if is_whole:
        low, high = _whole_range(feature.name, low, high)
        if high - low < MOST_WHOLE_NUMBERS:
            every_number = np.arange(low, high + 1)
            return _number_line(fitted, number, every_number, (low, high), exact=True)

    heights = table.values[: len(axis.knots), question.output]
    steep = _values_where_steep(axis.knots, heights, low, high)
    steep = np.unique(np.rint(steep)) if is_whole else steep
    if not fitted.adapted.steps:
        return _number_line(fitted, number, steep, (low, high), exact=False)
    return _line_of_steps(fitted, question, steep, (low, high), ask, is_whole=is_whole)


def _line_of_steps(
    fitted: CalibratedModel,
    question: _Question,
    steep: FloatArray,
    within: tuple[float, float],
    ask: Ask,
    *,
    is_whole: bool,
) -> _Line:
    """A value on every step of a model of trees.

    Where the model is not constant on a step, also values where the table is steep.
    """
    number = question.number
    column = fitted.functions.features[number].columns[0]
    steps = fitted.adapted.steps.get(column, np.zeros((0, 2)))
    if is_whole:
        steps = np.column_stack([np.floor(steps[:, 0]), np.ceil(steps[:, 1])])
    values = _values_on_steps(steps, within, shape=question.shape)
    line = _number_line(fitted, number, values, within, exact=True)
    if _is_constant_between(line, steps, lambda x: _between(fitted, number, x), ask):
        return line

    # Trees with a line in every leaf, for example.
    values = np.unique(np.concatenate([values, steep]))
    return _number_line(fitted, number, values, within, exact=False)


def _level_line(fitted: CalibratedModel, question: _Question, axis: LevelAxis) -> _Line:
    """All levels of a feature."""
    values, positions = _level_values(axis, question.feature, question.shape)
    return _Line(
        values=values,
        inputs=input_values(fitted.columns, fitted.adapted, question.number, values[:, None]),
        columns=list(fitted.columns.features.columns[question.number]),
        positions=positions,
        exact=True,
        within=None,
    )


def _values_on_steps(steps: FloatArray, within: tuple[float, float], *, shape: str) -> FloatArray:
    """A value on every step of a model that is constant between its thresholds.

    Slopes need both sides of each threshold, levels only one.
    """
    low, high = within
    sides = steps.ravel() if shape in ("convex", "concave") else steps[:, 1:].ravel()
    inner = sides[(sides > low) & (sides <= high)]
    return np.unique(np.concatenate([[low], inner, [high]]))


def _number_line(
    fitted: CalibratedModel,
    number: int,
    values: FloatArray,
    within: tuple[float, float],
    *,
    exact: bool,
) -> _Line:
    """Some values of a feature that is a number."""
    columns = list(fitted.columns.features.columns[number])
    inputs = input_values(fitted.columns, fitted.adapted, number, values[:, None])
    return _Line(values, inputs, columns, positions=values, exact=exact, within=within)


def _between(fitted: CalibratedModel, number: int, values: FloatArray) -> Tensor:
    """Values of a feature as the network takes them."""
    return input_values(fitted.columns, fitted.adapted, number, values[:, None])


def _is_constant_between(
    line: _Line, steps: FloatArray, encode: Callable[[FloatArray], Tensor], ask: Ask
) -> bool:
    """Whether a model says in the middle between two thresholds what it says beside them."""
    ends = np.unique(np.concatenate([[line.values[0]], steps[:, 1], [line.values[-1]]]))
    ends = ends[(ends >= line.values[0]) & (ends <= line.values[-1])]
    starts = ends[:-1]
    middles = starts + np.diff(ends) / 2
    at_starts = ask(replace(line, values=starts, inputs=encode(starts)))
    at_middles = ask(replace(line, values=middles, inputs=encode(middles)))
    difference = np.abs(at_middles - at_starts).max(initial=0.0)
    return bool(difference <= _SAME * (1 + np.abs(at_starts).max(initial=0.0)))


def _level_values(axis: LevelAxis, name: str, shape: str) -> tuple[AnyArray, FloatArray]:
    """The levels of a category, in the order of their numbers where they are some."""
    if isinstance(axis.levels, tuple) or len(axis.columns) > 1:
        if shape != "bounded" or len(axis.columns) > 1:
            raise ValueError(
                f"the levels of {name!r} are names, which have no order; only "
                '"bounded" can be asked of a category in one column.'
            )
        levels = np.array(axis.levels, dtype=object)
        return levels, np.arange(len(levels), dtype=np.float64)
    numbers = np.sort(np.asarray(axis.levels, dtype=np.float64)[:, 0])
    numbers = numbers[np.isfinite(numbers)]  # a missing one has no place among them
    return numbers, numbers


def _read_range(
    within: tuple[float, float] | None, span: tuple[float, float]
) -> tuple[float, float]:
    """The caller's range, or the calibrated one."""
    if within is None:
        return span
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise ValueError(f"within must be a pair (low, high), found {within!r}.")
    low = require_number("within", within[0])
    high = require_number("within", within[1])
    if not low < high:
        raise ValueError(f"within must be a pair (low, high) with low < high, found {within!r}.")
    return low, high


def _whole_range(name: str, low: float, high: float) -> tuple[float, float]:
    """The whole numbers at the ends of a range, of which there must be two at least."""
    first = float(np.ceil(low))
    last = float(np.floor(high))
    if not first < last:
        raise ValueError(
            f"within must hold at least two whole numbers, as the values of {name!r} are, found "
            f"{(low, high)!r}."
        )
    return first, last


def _values_where_steep(
    knots: FloatArray, values: FloatArray, low: float, high: float
) -> FloatArray:
    """Knots of a table, and values between which the table changes by equal amounts."""
    inside = knots[(knots > low) & (knots < high)]
    picked = (
        inside[np.unique(np.linspace(0, len(inside) - 1, MOST_KNOTS).astype(int))]
        if len(inside)
        else inside
    )

    grid = np.unique(np.concatenate([[low], inside, [high]]))
    heights = np.interp(grid, knots, values)
    climbed = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(heights)))])
    steep = np.zeros(0)
    if climbed[-1] > 0:
        steep = np.interp(np.linspace(0, climbed[-1], STEEP_VALUES + 2)[1:-1], climbed, grid)
    even = np.linspace(low, high, MOST_KNOTS)
    return np.unique(np.concatenate([picked, steep, even]))


# ---------------------------------------------------------------------- asking


@dataclass(frozen=True, eq=False)
class _Asked:
    """One output of the model, on the scale that was asked for."""

    fitted: CalibratedModel
    represent: Represent
    output: int
    link: str | None  # what is applied to the outputs; None for nothing
    batch_size: int

    def inputs(self, rows: TableLike) -> Tensor:
        """Rows of the caller's as the network takes them."""
        return torch.cat(list(self.fitted.source(rows, self.batch_size)))

    def predict(self, inputs: Tensor) -> FloatArray:
        """The output for rows as the network takes them."""
        readout = self.fitted.readout
        parts = []
        for batch in torch.split(inputs, self.batch_size):
            representation = self.represent(as_model_takes(batch, readout))
            parts.append(readout.logits(representation).cpu().double())
        outputs = np.asarray(torch.cat(parts).numpy())
        if self.link is not None:
            outputs = apply_link(outputs, self.link)
        return outputs[:, self.output]

    def follow(self, rows: Tensor, line: _Line) -> FloatArray:
        """What the model says along every row's line, (rows, values)."""
        n_values = len(line.values)
        outcomes = np.empty(len(rows) * n_values)
        for numbers in torch.split(torch.arange(len(outcomes)), self.batch_size):
            inputs = rows[numbers // n_values].clone()
            inputs[:, line.columns] = line.inputs[numbers % n_values].to(inputs)
            outcomes[numbers.numpy()] = self.predict(inputs)
        return outcomes.reshape(len(rows), n_values)

    def trying(self, inputs: Tensor) -> Ask:
        """Follows the lines of the first few rows."""
        return partial(self.follow, inputs[:_TRIED_ROWS])


# ---------------------------------------------------------------------- judging

# How large a break is, and at which values it shows.
Break = tuple[float, tuple[int, ...]]


def _find_break(shape: str, positions: FloatArray, outcomes: FloatArray) -> Break:
    """The largest break of a shape on one line."""
    sign = -1.0 if shape in ("decreasing", "concave") else 1.0
    judge: Callable[[FloatArray, FloatArray], Break] = _largest_fall
    if shape in ("convex", "concave"):
        judge = _largest_bulge
    elif shape == "bounded":
        judge = _largest_move
    known = np.flatnonzero(np.isfinite(outcomes))
    size, places = judge(positions[known], sign * outcomes[known])
    return size, tuple(int(known[position]) for position in places)


def _largest_fall(_: FloatArray, outcomes: FloatArray) -> Break:
    """How far a line falls below what it had reached."""
    reached = np.maximum.accumulate(outcomes)
    after = int((reached - outcomes).argmax())
    before = int(outcomes[: after + 1].argmax())
    return float(outcomes[before] - outcomes[after]), (before, after)


def _largest_move(_: FloatArray, outcomes: FloatArray) -> Break:
    """How far apart the lowest and the highest point of a line are."""
    low = int(outcomes.argmin())
    high = int(outcomes.argmax())
    return float(outcomes[high] - outcomes[low]), (min(low, high), max(low, high))


def _largest_bulge(positions: FloatArray, outcomes: FloatArray) -> Break:
    """How far a line lies above a chord of its own: above the largest convex function below it."""
    corners = _lower_hull(positions, outcomes)
    below = np.interp(positions, positions[corners], outcomes[corners])
    middle = int((outcomes - below).argmax())
    size = float(outcomes[middle] - below[middle])
    after = int(np.searchsorted(corners, middle, side="left"))
    if after == 0 or corners[min(after, len(corners) - 1)] == middle:
        return 0.0, (0, 0, 0)
    return size, (int(corners[after - 1]), middle, int(corners[after]))


def _lower_hull(x: FloatArray, y: FloatArray) -> Places:
    """Positions of the corners of the largest convex function below some points, x increasing."""
    corners: list[int] = []
    for point in range(len(x)):
        while len(corners) > 1:
            first, second = corners[-2:]
            is_above = (y[second] - y[first]) * (x[point] - x[first]) >= (y[point] - y[first]) * (
                x[second] - x[first]
            )
            if not is_above:
                break
            corners.pop()
        corners.append(point)
    return np.array(corners, dtype=np.intp)


@dataclass(frozen=True, eq=False)
class _Breaks:
    """Where the lines of rows break a shape."""

    sizes: FloatArray  # how large the largest break of every row is
    points: list[tuple[int, ...]]  # positions of the line's values that show it
    tolerance: float

    @classmethod
    def of(cls, outputs: FloatArray, line: _Line, shape: str, *, tolerance: float) -> _Breaks:
        """Those of outputs along every row's line, (rows, values)."""
        breaks = [_find_break(shape, line.positions, outcomes) for outcomes in outputs]
        return cls(
            sizes=np.array([size for size, _ in breaks]),
            points=[points for _, points in breaks],
            tolerance=float(tolerance),
        )

    @cached_property
    def broken(self) -> Places:
        """The rows whose line breaks the shape."""
        return np.flatnonzero(self.sizes > self.tolerance)

    @cached_property
    def worst(self) -> Places:
        """Those with the largest breaks, the largest first."""
        order = np.argsort(-self.sizes[self.broken], kind="stable")
        return self.broken[order][:MOST_COUNTEREXAMPLES]


@dataclass(frozen=True, eq=False)
class _Examples:
    """Counterexamples as rows of the caller's table."""

    table: TableLike | None
    predictions: FloatArray

    @classmethod
    def of(
        cls, model: _Asked, rows: TableLike, number: int, line: _Line, breaks: _Breaks
    ) -> _Examples:
        """Each of the worst rows as often as its break takes values, each with one of them."""
        if not len(breaks.worst):
            return cls(None, np.zeros(0))
        points = [breaks.points[row] for row in breaks.worst]
        repeated = np.repeat(breaks.worst, [len(positions) for positions in points])
        values = line.values[np.concatenate(points)]

        functions = model.fitted.functions
        member = functions.features[number].columns[0]
        columns, _ = read_columns(functions, rows)
        dtype = columns[member].dtype
        if dtype.kind in "biu" and (values == values.astype(dtype)).all():
            values = values.astype(dtype)
        name = None if functions.column_names is None else functions.column_names[member]
        table = replace_column(take_rows(rows, repeated), values, position=member, name=name)
        return cls(table, model.predict(model.inputs(table)))
