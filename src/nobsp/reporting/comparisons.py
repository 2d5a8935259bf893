"""What a page tells of a comparison: the gap, its parts, where they arise, both functions.

The parts are shown where they arise on the features' ranges.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from nobsp._typing import AnyArray
from nobsp.arguments import count
from nobsp.frames import is_missing
from nobsp.reporting.sheets import (
    Bar,
    Bars,
    Curve,
    Grid,
    Line,
    Section,
    Sheet,
    number_text,
    standing_of,
)

# A `Comparison`, told by its attributes.
ComparisonLike: TypeAlias = Any

# Parts of an output that are listed, features whose range is followed, and outputs that have
# sections.
MOST_PARTS = 25
MOST_FEATURES = 6
MOST_OUTPUTS = 6
_POINTS = 120
# Levels that are listed one by one.
_MOST_LEVELS = 20

_METHODS = {
    "rows": (
        "One explainer, two tables. Every prediction is a base, one contribution per term and a "
        "residual; the base is the same for all rows, so the gap of the mean predictions is the "
        "sum of the gaps of the mean contributions and of the residual's."
    ),
    "functions": (
        "Two explainers, the same rows. A term's two functions are subtracted row by row: their "
        "mean difference is its part of the gap, and the spread of their difference is how far "
        "they lie apart. The test asks whether two calibrations of one model would lie as far "
        "apart; it does not know how models were trained."
    ),
    "trainings": (
        "Several trainings of each model, the same rows. The mean function of each is taken and "
        "the two are subtracted row by row: the mean difference is a term's part of the gap, the "
        "spread of the difference how far the two lie apart. The test asks whether trainings of "
        "one model would make means as far apart (a functional F test, by how far the trainings of "
        "each lie from their mean)."
    ),
    "both": (
        "Two explainers, two tables. With m the mean of a term, first index the model, second the "
        "rows: change of rows is m(b, a) − m(b, b), change of functions m(a, b) − m(b, b), and "
        "what is left of m(a, a) − m(b, b) is change of both (the threefold decomposition of "
        "Oaxaca and Blinder)."
    ),
}

_CALIBRATIONS_DRAWN = (
    "Intervals draw the rows anew, in groups where these were named, and the functions as other "
    "calibrations of the same kind would give them. They do not know of the models' own training."
)
_TRAININGS_DRAWN = (
    "Intervals draw the rows anew, in groups where these were named, and the functions as other "
    "trainings of the same kind would give them."
)


def comparison_sheet(comparison: ComparisonLike, *, title: str | None, about: str | None) -> Sheet:
    """Everything that a page shows of a comparison."""
    outputs = range(min(len(comparison.output_names), MOST_OUTPUTS))
    sections = []
    # Of models that predict the same, all that differs is rounding.
    if comparison.kind != "functions" or not np.isnan(comparison.explained).all():
        for output in outputs:
            sections += _sections_of(comparison, output)
    sections.append(_method(comparison))
    return Sheet(
        title=title or f"{comparison.names[0]} and {comparison.names[1]}: what differs",
        about=about or "",
        headline=_headline(comparison),
        facts=_facts(comparison),
        findings=comparison.findings,
        sections=tuple(sections),
        numbers=_numbers(comparison),
        standing=standing_of(float(comparison.explained[0]))
        if comparison.kind == "functions"
        else "",
    )


def _headline(comparison: ComparisonLike) -> tuple[str, str]:
    """The gap; of two models on the same rows how much of their difference the terms tell."""
    headline = comparison.headline
    if comparison.kind == "functions":
        share = float(comparison.explained[0])
        text = "–" if np.isnan(share) else f"{max(share, 0.0):.2f}"
        return text, f"{headline[0].upper()}{headline[1:]}."
    # Others begin with a name, which is written as it is.
    return number_text(float(f"{comparison.total.value[0]:.3g}"), signed=True), f"{headline}."


def _facts(comparison: ComparisonLike) -> tuple[tuple[str, str], ...]:
    """Rows, outputs and intervals in words."""
    facts = []

    for number, name in enumerate(comparison.names):
        means = ", ".join(
            number_text(mean)
            if len(comparison.output_names) == 1
            else f"{output}: {number_text(mean)}"
            for output, mean in zip(
                comparison.output_names[:MOST_OUTPUTS],
                comparison.mean_predictions[number],
                strict=False,
            )
        )
        facts.append((name, f"{_rows(comparison, number)}; mean prediction {means}"))
    scale = (
        "the model's outputs; of classes these are logits, not probabilities"
        if comparison.scale == "output"
        else "probabilities"
    )
    facts.append(("Scale", scale))
    again = "other calibrations of the functions"
    if _has_trainings(comparison):
        again = "other trainings of the models"
        counts = " and ".join(map(str, comparison.n_trainings))
        facts.append(("Trainings", f"{counts}; their means are compared"))
    facts.append(
        ("Intervals", f"{comparison.confidence:.0%}, over other draws of the rows and {again}")
    )
    return tuple(facts)


def _rows(comparison: ComparisonLike, number: int) -> str:
    """How many rows a side has, in how many groups, and whether some count more than others."""
    side = comparison.sides[number]
    words = count(len(side), "row")
    n_units = int(side.units.max()) + 1
    if n_units < len(side):
        words += f" in {count(n_units, 'group')}"
    if not np.allclose(side.weights, side.weights[0]):
        words += ", weighted"
    return words


def _has_trainings(comparison: ComparisonLike) -> bool:
    """Whether a side is the mean of several trainings."""
    return bool(max(comparison.n_trainings) > 1)


def _sections_of(comparison: ComparisonLike, output: int) -> list[Section]:
    """Parts, ranges and functions of one output."""
    several = len(comparison.output_names) > 1
    suffix = f" of {comparison.output_names[output]}" if several else ""
    key = f"-{output}" if several else ""
    first, second = comparison.names
    sections = [
        Section(
            key=f"parts{key}",
            title=f"Parts{suffix}",
            lead=f"What each term adds to {first} less {second}. The parts add up to "
            f"{number_text(comparison.total.value[output], signed=True)}.",
            blocks=(_parts(comparison, output), *_tables(comparison, output)),
        )
    ]
    features = _strongest_features(comparison, output)
    ranges = tuple(_along(comparison, feature, output) for feature in features)
    if ranges:
        sections.append(
            Section(
                key=f"ranges{key}",
                title=f"Along the range{suffix}",
                lead="Where on its range a feature's own part arises; the bars of a feature "
                "add up to it.",
                blocks=ranges,
            )
        )
    functions = tuple(
        function
        for function in (_function(comparison, feature, output) for feature in features)
        if function is not None
    )
    if functions:
        sections.append(
            Section(
                key=f"functions{key}",
                title=f"Functions{suffix}",
                lead="What each feature adds to a prediction, by its value.",
                blocks=functions,
            )
        )

    return sections


def _parts(comparison: ComparisonLike, output: int) -> Bars:
    """Every entry's part with its interval, the largest first."""
    values = comparison.gap.value[:, output]
    order = np.argsort(-np.abs(values), kind="stable")
    bars = [
        Bar(
            name=comparison.entries[entry],
            value=float(values[entry]),
            low=float(comparison.gap.lower[entry, output]),
            high=float(comparison.gap.upper[entry, output]),
        )
        for entry in order[:MOST_PARTS]
    ]
    more = len(order) - len(bars)
    return Bars("", tuple(bars), f"{more} smaller parts are not listed." if more > 0 else "")


def _rate(rate: float) -> str:
    return "below 0.001" if rate < 0.001 else f"{rate:.3f}"


def _tables(comparison: ComparisonLike, output: int) -> list[Grid]:
    """How far functions lie apart, or the three parts of a change of rows and functions."""
    if comparison.change is not None:
        changes = comparison.change.value[:, output]
        order = np.argsort(-changes, kind="stable")[:MOST_PARTS]
        size = float(changes.max())
        rows = tuple(
            (
                comparison.entries[entry],
                number_text(changes[entry], size=size),
                f"[{number_text(comparison.change.lower[entry, output], size=size)}, "
                f"{number_text(comparison.change.upper[entry, output], size=size)}]",
                _tested(comparison.p_value[entry, output]),
                _tested(comparison.q_value[entry, output]),
            )
            for entry in order
            if comparison.entries[entry] != "base"
        )
        columns = ("", "spread of the difference", "interval", "p-value", "false discovery rate")
        what = "trainings" if _has_trainings(comparison) else "two calibrations"
        note = f"p-values are for functions as far apart as {what} of one model are."
        return [Grid("How far the two functions lie apart", columns, rows, note)]
    if not comparison.parts:
        return []
    sizes = np.abs(comparison.gap.value[:, output])
    order = np.argsort(-sizes, kind="stable")[:MOST_PARTS]
    size = float(sizes.max())
    rows = tuple(
        (
            comparison.entries[entry],
            *(
                number_text(part.value[entry, output], signed=True, size=size)
                for part in comparison.parts.values()
            ),
            number_text(comparison.gap.value[entry, output], signed=True, size=size),
        )
        for entry in order
    )
    columns = ("", "change of rows", "change of functions", "of both", "in all")
    note = "– where a model was not run on the other's rows."

    return [Grid("Three parts", columns, rows, note)]


def _tested(number: float) -> str:
    return "–" if np.isnan(number) else _rate(number)


def _strongest_features(comparison: ComparisonLike, output: int) -> list[str]:
    """Features of one column with the largest parts, or changes, of their own."""
    measured = comparison.gap if comparison.change is None else comparison.change
    sizes = {}
    for name in comparison.feature_names:
        if (name,) in comparison.terms:
            sizes[name] = abs(float(measured.value[comparison.entries.index(name), output]))
    strongest = sorted(sizes, key=lambda name: -sizes[name])
    usable = []
    for name in strongest:
        try:
            comparison.feature_values(name)
        except ValueError:
            continue  # made of several columns
        usable.append(name)
        if len(usable) == MOST_FEATURES:
            break
    return usable


def _along(comparison: ComparisonLike, feature: str, output: int) -> Bars:
    """A feature's part by bins of its range."""
    table = comparison.along(feature, output=output, bins=8)
    part = np.asarray(table["part"], dtype=np.float64)
    order = np.arange(len(part))
    if len(part) > _MOST_LEVELS:
        order = np.sort(np.argsort(-np.abs(part), kind="stable")[:_MOST_LEVELS])
    first, second = comparison.names
    bars = []

    for row in order:
        low, high, level = table["from"][row], table["to"][row], table["level"][row]
        name = str(level) if level else f"{number_text(low)} to {number_text(high)}"
        if not level and low == high:
            name = number_text(low)
        shares = f"{table['share_a'][row]:.1%} of {first}, {table['share_b'][row]:.1%} of {second}"
        if comparison.kind == "functions":
            shares = f"{table['share_a'][row]:.1%} of the rows"
        bars.append(Bar(name, float(part[row]), note=shares))
    more = len(part) - len(bars)
    note = f"{more} levels with smaller parts are not listed." if more > 0 else ""
    size = float(np.abs(part).max(initial=0.0))
    return Bars(f"{feature}: {number_text(part.sum(), signed=True, size=size)}", tuple(bars), note)


def _function(comparison: ComparisonLike, feature: str, output: int) -> Curve | Bars | None:
    """A feature's function over the rows' values: bars where values are few, else a line.

    None where there is no function to show.
    """
    if comparison.scale != "output":
        return None
    columns = [np.asarray(values) for values in comparison.feature_values(feature)]
    if any(column.dtype.kind not in "biuf" for column in columns):
        present = {
            value for column in columns for value in column.tolist() if not is_missing(value)
        }
        levels = np.array(sorted(present, key=str), dtype=object)
        return _bars_by_level(comparison, feature, levels, output)

    together = np.concatenate([column.astype(np.float64) for column in columns])
    distinct = np.unique(together[np.isfinite(together)])
    if not len(distinct):
        return None
    if len(distinct) <= _MOST_LEVELS:
        return _bars_by_level(comparison, feature, distinct, output)

    # Codes of categories have no function between them.
    is_whole = bool((distinct == np.round(distinct)).all())
    x = distinct if is_whole else np.linspace(distinct[0], distinct[-1], _POINTS)
    lines = _lines(comparison, feature, x, output)
    return None if lines is None else Curve(feature, lines)


def _bars_by_level(
    comparison: ComparisonLike, feature: str, levels: AnyArray, output: int
) -> Bars | None:
    """What the feature adds at each level, in both models where there are two."""
    shown = levels[:_MOST_LEVELS]
    lines = _lines(comparison, feature, shown, output)
    if lines is None:
        return None
    bars = []
    for position, level in enumerate(shown):
        name = number_text(float(level)) if isinstance(level, float) else str(level)
        for line in lines:
            label = name if len(lines) == 1 else f"{name}, {line.name}"
            bars.append(Bar(label, float(line.y[position])))
    more = len(levels) - len(shown)
    return Bars(feature, tuple(bars), f"{more} further levels are not listed." if more else "")


def _lines(
    comparison: ComparisonLike, feature: str, x: AnyArray, output: int
) -> tuple[Line, ...] | None:
    """The function of either side at some values; one where both sides have the same."""
    lines = []
    n_lines = 1 if comparison.kind == "rows" else 2
    for number in range(n_lines):
        try:
            values = comparison.curve(feature, x, side=number, output=output)
        except (TypeError, ValueError):
            return None
        lines.append(Line(comparison.names[number], x, np.nan_to_num(values)))
    return tuple(lines)


def _method(comparison: ComparisonLike) -> Section:
    """How it was computed, and what it cannot say."""
    return Section(
        key="method",
        title="Method",
        paragraphs=(
            _METHODS["trainings" if _has_trainings(comparison) else comparison.kind],
            _TRAININGS_DRAWN if _has_trainings(comparison) else _CALIBRATIONS_DRAWN,
            "A part says how the model's predictions differ, not why the world does: no part is a "
            "cause.",
        ),
    )


def _numbers(comparison: ComparisonLike) -> dict[str, Any]:
    """What the page tells, for machines."""

    def known(array: Any) -> Any:
        values = np.asarray(array, dtype=np.float64)
        objects: Any = values.astype(object)
        objects[~np.isfinite(values)] = None
        return objects.tolist()

    return {
        "kind": comparison.kind,
        "names": list(comparison.names),
        "entries": list(comparison.entries),
        "outputs": list(comparison.output_names),
        "level": comparison.confidence,
        "trainings": list(comparison.n_trainings),
        "total": known(comparison.total.value),
        "gap": known(comparison.gap.value),
        "lower": known(comparison.gap.lower),
        "upper": known(comparison.gap.upper),
        "p_value": known(comparison.p_value),
        "q_value": known(comparison.q_value),
        "change": None if comparison.change is None else known(comparison.change.value),
        "explained": None if comparison.explained is None else known(comparison.explained),
    }
