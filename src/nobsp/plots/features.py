"""An explainer as it is drawn: every feature's place in the table, its range or its levels, and its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.plots.asked import is_explainer
from nobsp.plots.tables import Table, as_numbers, single_column, table_of
from nobsp.plots.wording import in_full
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.lookup import LevelAxis, NumberAxis

Array = NDArray[np.float64]
Level = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Feature:
    """One feature along which something is drawn.

    Attributes:
        name: What it is called.
        columns: Its columns in the caller's table.
        levels: The values of a category, one per column each; empty for numbers.
        labels: What the levels are called.
        span: Smallest and largest calibrated number; empty for categories and where there is no line to walk along.
        baseline: Where on its axis the baseline is, a number or the position of a level; NaN where it is not known.
    """

    name: str
    columns: tuple[int, ...]
    levels: tuple[Level, ...] = ()
    labels: tuple[str, ...] = ()
    span: tuple[float, ...] = ()
    baseline: float = np.nan

    @property
    def category(self) -> bool:
        """Whether it has levels and no order between them."""
        return bool(self.levels)

    def places(self, table: Table) -> Array:
        """Where each row is on the feature's axis; rows with unknown levels are left out."""
        columns = [table.column(column) for column in self.columns]
        if not self.category:
            numbers = as_numbers(columns[0])
            return np.zeros(0) if numbers is None else np.asarray(numbers[np.isfinite(numbers)])
        return _known(self.levels_at(columns))

    def levels_at(self, columns: Sequence[NDArray[Any]]) -> Array:
        """Positions of the levels of some rows; NaN where a level is unknown."""
        known = {tuple(map(_comparable, level)): float(place) for place, level in enumerate(self.levels)}
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return np.array([known.get(tuple(map(_comparable, row)), np.nan) for row in rows])


@dataclass(frozen=True, eq=False)
class Drawn:
    """An explainer, calibrated or compiled, with what plots need to know of it.

    Attributes:
        explainer: The explainer itself.
        features: Its features.
        terms: Its terms, as names of features.
        output_names: Names of its outputs.
        column_names: Names of the caller's columns, where they have any.
        column_count: How many columns the caller's table has.
        rows: Some rows: those of the explanation it came with, or calibrated ones; None where there are none.
        of_outputs: Outputs that are drawn unless others are asked for.
    """

    explainer: Any
    features: tuple[Feature, ...]
    terms: tuple[tuple[str, ...], ...]
    output_names: tuple[str, ...]
    column_names: tuple[str, ...] | None
    column_count: int
    rows: Any
    of_outputs: tuple[int, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(feature.name for feature in self.features)

    def table(self, data: Any) -> Table | None:
        """The caller's rows, or those that are known where none are given."""
        given = self.rows if data is None else data
        if given is None or len(given) == 0:
            return None
        return table_of(given, names=self.column_names, count=self.column_count)


def drawn(given: Any, plot: str) -> Drawn:
    """What plots need to know of an explainer, or of the one behind an explanation.

    Raises:
        TypeError: If there is none.
        NotFittedError: If it is not calibrated.
        ValueError: If the explanation is a contrast of outputs.
    """
    if isinstance(given, Explanation):
        return _behind(given, plot)
    if isinstance(given, CompiledExplainer):
        return _compiled(given)
    if is_explainer(given):
        return _calibrated(given)
    raise TypeError(f"{plot} draws an NObSP, a CompiledExplainer or an Explanation, found {type(given).__name__}.")


def _behind(ex: Explanation, plot: str) -> Drawn:
    if ex.explainer is None:
        raise TypeError(
            f"{plot} draws functions, and this explanation no longer has its explainer; pass the explainer itself."
        )
    what = drawn(ex.explainer, plot)
    unknown = [name for name in ex.output_names if name not in what.output_names]
    if unknown:
        raise ValueError(
            f"{plot} draws functions of the model's outputs, and {unknown[0]!r} is none; pass the explainer itself."
        )
    return replace(what, rows=ex, of_outputs=tuple(what.output_names.index(name) for name in ex.output_names))


def values_of(ex: Explanation) -> dict[str, NDArray[Any] | None]:
    """Every feature's values in the rows of an explanation; None where they are not one value each.

    Levels of a category of several columns go by their names. Without the explainer behind it, an explanation does not
    know which columns a group was made of.
    """
    if ex.explainer is None:
        return {name: single_column(ex, name) for name in ex.feature_names}
    what = drawn(ex.explainer, "values")
    table = table_of(ex, names=what.column_names, count=what.column_count)
    found: dict[str, NDArray[Any] | None] = dict.fromkeys(ex.feature_names)
    for feature in what.features:
        if len(feature.columns) == 1:
            found[feature.name] = table.column(feature.columns[0])
        elif feature.category:
            places = feature.levels_at([table.column(column) for column in feature.columns])
            labels = np.array([*feature.labels, "?"], dtype=object)
            found[feature.name] = labels[np.where(np.isnan(places), len(feature.labels), places).astype(int)]
    return found


# ---------------------------------------------------------------------- compiled explainers


def _compiled(explainer: CompiledExplainer) -> Drawn:
    features = []
    for position, feature in enumerate(explainer.features):
        axes = explainer.compiled[position].axes
        axis = axes[0] if len(axes) == 1 else None
        made = Feature(feature.name, feature.columns)
        if isinstance(axis, NumberAxis):
            made = Feature(feature.name, feature.columns, span=feature.ranges[0])
        elif isinstance(axis, LevelAxis):
            found = [(level,) for level in axis.levels] if isinstance(axis.levels, tuple) else axis.levels.tolist()
            levels = tuple(tuple(level) for level in found)
            labels = _labels(levels, [_called(explainer.column_names, column) for column in feature.columns])
            made = Feature(feature.name, feature.columns, levels=levels, labels=labels)
        features.append(made)
    return Drawn(
        explainer=explainer,
        features=tuple(features),
        terms=explainer.terms,
        output_names=explainer.output_names,
        column_names=explainer.column_names,
        column_count=explainer.column_count,
        rows=None,
        of_outputs=tuple(range(len(explainer.output_names))),
    )


def _labels(levels: Sequence[Level], names: Sequence[str]) -> tuple[str, ...]:
    """What levels are called: their value, or the one-hot columns that are on."""
    if len(names) == 1:
        return tuple(in_full(level[0]) for level in levels)
    values = np.array(levels, dtype=np.float64)
    high, low = values.max(0), values.min(0)
    if ((values == high) | (values == low)).all():
        on = (values == high) & (high > low)
        return tuple(" + ".join(name for name, here in zip(names, row, strict=True) if here) or "(none)" for row in on)
    return tuple(", ".join(f"{n}={in_full(v)}" for n, v in zip(names, row, strict=True)) for row in levels)


def _called(names: Sequence[str] | None, column: int) -> str:
    return f"x{column}" if names is None else names[column]


# ---------------------------------------------------------------------- calibrated explainers


def _calibrated(explainer: Any) -> Drawn:
    fitted = explainer._fitted  # raises where it is not calibrated; no public name tells columns, levels and rows
    columns, plain = fitted.columns, fitted.adapted.encode is None
    return Drawn(
        explainer=explainer,
        features=tuple(_feature(fitted, position, plain=plain) for position in range(len(columns.members))),
        terms=explainer.terms_,
        output_names=explainer.output_names_,
        column_names=columns.names,
        column_count=columns.count,
        # Behind an encoder the kept rows are no longer in the caller's units.
        rows=fitted.summary.sample.numpy() if plain else None,
        of_outputs=tuple(range(len(explainer.output_names_))),
    )


def _feature(fitted: Any, position: int, *, plain: bool) -> Feature:
    columns, summary = fitted.columns, fitted.summary
    name, members = columns.features.names[position], tuple(columns.members[position])
    group = columns.features.columns[position]
    names = [_called(columns.names, member) for member in members]

    def category(levels: Sequence[Level]) -> Feature:
        return Feature(
            name, members, tuple(levels), _labels(levels, names), baseline=_baseline_level(fitted, position, levels)
        )

    if position in columns.text_levels:
        return category([(level,) for level in columns.text_levels[position]])
    if plain and position in fitted.plan.isolation.categories:
        known = summary.levels_of(position, group)
        return Feature(name, members) if known is None else category([tuple(row) for row in known[0].tolist()])
    if len(members) != 1 or not group:
        return Feature(name, members)
    if plain:
        column = group[0]
        span = float(summary.minimum[column]), float(summary.maximum[column])
        return Feature(name, members, span=span, baseline=float(fitted.plan.isolation.baseline[column]))
    if len(group) > 1:  # a one-hot encoder knows no number in between
        return category([(level,) for level in columns.number_levels.get(position, [])])
    span = tuple(columns.ranges[members[0]])
    return Feature(name, members, span=span, baseline=_baseline_number(fitted, position, span))


def _baseline_level(fitted: Any, position: int, levels: Sequence[Level]) -> float:
    """Which level the baseline is."""
    if not levels:
        return np.nan
    same = np.isclose(_encoded(fitted, position, levels), _target(fitted, position), rtol=1e-6, atol=1e-9).all(1)
    return float(same.argmax()) if same.any() else np.nan


def _baseline_number(fitted: Any, position: int, span: tuple[float, ...]) -> float:
    """Where the preprocessing takes the baseline's value, if it keeps the order of the numbers."""
    if not span:
        return np.nan
    numbers = np.linspace(span[0], span[1], 201)
    way, target = _encoded(fitted, position, [(x,) for x in numbers])[:, 0], float(_target(fitted, position)[0])
    if way[0] > way[-1]:
        way, numbers = way[::-1], numbers[::-1]
    between = way[0] <= target <= way[-1] and way[0] < way[-1] and bool((np.diff(way) >= 0).all())
    return float(np.interp(target, way, numbers)) if between else np.nan


def _encoded(fitted: Any, position: int, values: Sequence[Level]) -> Array:
    from nobsp.tabular.columns import input_values

    rows = np.array(values, dtype=object)
    return np.asarray(input_values(fitted.columns, fitted.adapted, position, rows).numpy())


def _target(fitted: Any, position: int) -> Array:
    return np.asarray(fitted.plan.isolation.baseline[list(fitted.columns.features.columns[position])].numpy())


def _comparable(value: Any) -> Any:
    # A float32 copy of a table holds the same levels.
    return float(np.float32(value)) if isinstance(value, int | float) else value


def _known(places: Array) -> Array:
    return np.asarray(places[~np.isnan(places)])
