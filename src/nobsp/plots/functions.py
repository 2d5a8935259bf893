"""Every feature's function as something to draw: which features, at which points, over which rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.plots import asked, colours
from nobsp.plots.canvas import SMALL, as_axes, checked_count
from nobsp.plots.curve_panels import Curve, draw_panels, new_panels
from nobsp.plots.features import Drawn, Feature, drawn
from nobsp.plots.tables import Table, columns_of
from nobsp.plots.wording import counted, labels_of, listed, shown
from nobsp.tabular.compiled import CompiledExplainer

Array = NDArray[np.float64]
Truth = Callable[[Any], Any]

# Levels of one category that still are told apart.
_MOST_LEVELS = 16
# A number that takes so few values is drawn as dots.
_FEW_VALUES = 12


def curves(
    explainer: Any,
    features: Any = None,
    *,
    output: int | str | None = None,
    data: Any = None,
    truth: Mapping[str, Truth] | None = None,
    points: int = 200,
    level: float = 0.9,
    max_display: int = 12,
    share_y: bool = True,
    ax: Any = None,
) -> Any:
    """Draws the learned functions: one panel a feature, with band, baseline and how the rows lie.

    A line is a function of numbers, pale where hardly any rows are; dots with whiskers are one of a number that takes
    few values; bars are the levels of a category. The shape at the foot of a panel shows how many rows there are along
    it. The dotted upright line is the baseline, at which a feature counts as inactive. All panels have one scale, so
    that a flat line means a feature that does little; it holds the functions where rows are, and may cut their ends.

    Args:
        explainer: A calibrated `NObSP`; a `CompiledExplainer`, which has no bands and does not know where the baseline
            is; or an `Explanation`, for the functions behind it over its rows.
        features: One name, or several; the strongest when None.
        output: Position or name of the output; all outputs, up to seven, when None.
        data: Rows to show how the data lies: a table or an `Explanation`. When None, those of the explanation, or
            calibrated rows where the explainer keeps some (not after loading, and not for pipelines).
        truth: Known functions by feature, to be called on values, or on levels of a category. As a contribution is
            centred, each is shifted by the constant that brings it closest over the rows.
        points: Points along a curve.
        level: Share of bootstrap curves inside the band.
        max_display: Most panels.
        share_y: Whether all panels have the same scale.
        ax: Axes to draw on, as many as there are panels; a new figure when None.

    Returns:
        The axes: one if a single feature is named, else an array of them.

    Raises:
        ValueError: If there is no such feature or output, or a feature has no curve.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> explainer = NObSP(model, features=["a", "b", "c"]).fit(torch.randn(300, 3))
        >>> axes = plots.curves(explainer)
        >>> len(axes)
        3
        >>> plots.curves(explainer, "a").get_xlabel()
        'a'
    """
    most = checked_count(max_display)
    what = drawn(explainer, "curves")
    outputs = _outputs(what, output, truth)
    functions = _functions(what, points=points, level=level)
    if features is None:
        chosen = _strongest(what, functions, outputs)[:most]
    else:
        chosen = asked.feature_positions(features, what.feature_names)[:most]
        for position in chosen:
            if position not in functions:
                raise ValueError(f"feature {what.feature_names[position]!r} is no function of one column: no curve.")
    if not chosen:
        raise ValueError("no feature is a function of one column, so there are no curves to draw.")
    table = what.table(data)
    made = []
    for position in chosen:
        curve = _with_rows(_of_outputs(functions[position], outputs), table)
        known = (truth or {}).get(curve.feature.name)
        made.append(_fewer_levels(curve if known is None else _with_truth(curve, known)))
    axes = new_panels(len(made)) if ax is None else as_axes(ax, len(made), "the plot of these curves")
    draw_panels(
        axes,
        made,
        names=labels_of(what.feature_names, 30),
        outputs=[shown(what.output_names[k], 24) for k in outputs],
        level=level,
        share_y=share_y,
        ours=ax is None,
    )
    if ax is None and features is None and len(made) < len(functions):
        note = f"the {len(made)} strongest of {counted(len(functions), 'function')}"
        axes[0].figure.supxlabel(note, fontsize=SMALL, color=colours.MUTED, x=0.99, ha="right")
    single = isinstance(features, str | int | np.integer)
    return axes[0] if single else np.array(axes, dtype=object)


def _outputs(what: Drawn, output: int | str | None, truth: Mapping[str, Truth] | None) -> list[int]:
    outputs = asked.some_outputs(output, what.output_names, what.of_outputs)
    if len(outputs) > len(colours.SERIES):
        raise ValueError(
            f"output must be chosen among {listed(what.output_names)}; {len(outputs)} cannot be told apart."
        )
    if truth and len(outputs) > 1:
        raise ValueError(f"truth is that of one output; choose it among {listed(what.output_names)}.")
    for name in truth or ():
        asked.feature_position(name, what.feature_names)
    return outputs


# ---------------------------------------------------------------------- points along each function


def _functions(what: Drawn, *, points: int, level: float) -> dict[int, Curve]:
    """The curve, for all outputs, of every feature that has one."""
    if isinstance(what.explainer, CompiledExplainer):
        return _compiled(what, points)
    table = columns_of(what.explainer.curves(points, level=level))
    outputs = len(what.output_names)
    found = {}
    for position, feature in enumerate(what.features):
        here = table["feature"] == feature.name
        if not here.any():
            continue
        # Rows come output by output, each with the same points.
        value, lower, upper = (
            table[column][here].astype(np.float64).reshape(outputs, -1).T for column in ("value", "lower", "upper")
        )
        x = np.arange(len(value)) if feature.category else table["x"][here].astype(np.float64)[: len(value)]
        dots = not feature.category and len(value) <= _FEW_VALUES
        found[position] = Curve(feature, x.astype(np.float64), value, lower, upper, dots)
    return found


def _compiled(what: Drawn, points: int) -> dict[int, Curve]:
    explainer: CompiledExplainer = what.explainer
    found = {}
    for position, feature in enumerate(what.features):
        if feature.category:
            x, value = np.arange(len(feature.levels), dtype=np.float64), explainer.curve(feature.name)[1]
        elif feature.span:
            knots, at_knots = explainer.curve(feature.name)
            low, high = feature.span
            x = np.union1d(np.linspace(low, high, points), knots[(knots > low) & (knots < high)])
            value = np.column_stack([np.interp(x, knots, column) for column in at_knots.T])
        else:
            continue
        none = np.full_like(value, np.nan)
        found[position] = Curve(feature, x, value, none, none)
    return found


def _strongest(what: Drawn, functions: Mapping[int, Curve], outputs: Sequence[int]) -> list[int]:
    """Features that have a curve, the strongest first."""
    sizes = dict.fromkeys(functions, 0.0)
    if isinstance(what.explainer, CompiledExplainer):  # which knows no rows, so all of the range counts alike
        sizes = {k: float(np.abs(curve.value[:, outputs]).mean(0).sum()) for k, curve in functions.items()}
    else:
        table = columns_of(what.explainer.importance("main"))
        place = {name: k for k, name in enumerate(what.feature_names)}
        wanted = {what.output_names[k] for k in outputs}
        for name, output, size in zip(table["feature"], table["output"], table["importance"], strict=True):
            if place[name] in sizes and output in wanted:
                sizes[place[name]] += float(size)
    return sorted(sizes, key=lambda k: (-sizes[k], k))


def _of_outputs(curve: Curve, outputs: Sequence[int]) -> Curve:
    """The same curve for some outputs only."""
    chosen = list(outputs)
    return replace(curve, value=curve.value[:, chosen], lower=curve.lower[:, chosen], upper=curve.upper[:, chosen])


def _with_rows(curve: Curve, table: Table | None) -> Curve:
    return curve if table is None else replace(curve, rows=curve.feature.places(table))


def _with_truth(curve: Curve, truth: Truth) -> Curve:
    """The curve with its known function, shifted by the constant that brings it closest over the rows."""
    feature, x = curve.feature, curve.x
    known = np.asarray(truth(_levels_as_given(feature) if feature.category else x), dtype=np.float64)
    if known.shape != x.shape:
        raise ValueError(f"truth of {feature.name!r} gives shape {known.shape} for {len(x)} values; give one each.")
    gap = curve.value[:, 0] - known
    if len(curve.rows):
        gap = gap[curve.rows.astype(int)] if feature.category else np.interp(curve.rows, x, gap)
    return replace(curve, truth=known + gap.mean())


def _levels_as_given(feature: Feature) -> NDArray[Any]:
    """Values of one column; of several, the names of the levels."""
    if len(feature.columns) > 1:
        return np.array(feature.labels, dtype=object)
    return np.array([level[0] for level in feature.levels], dtype=object)


def _fewer_levels(curve: Curve) -> Curve:
    """The same, of a category with many levels only those that contribute most."""
    feature = curve.feature
    if not feature.category or len(curve.x) <= _MOST_LEVELS:
        return curve
    kept = np.sort(np.argsort(-np.abs(curve.value).sum(1), kind="stable")[:_MOST_LEVELS])
    place = {float(level): float(position) for position, level in enumerate(kept)}
    return Curve(
        replace(
            feature,
            levels=tuple(feature.levels[k] for k in kept),
            labels=tuple(feature.labels[k] for k in kept),
            baseline=place.get(feature.baseline, np.nan),
        ),
        np.arange(len(kept), dtype=np.float64),
        curve.value[kept],
        curve.lower[kept],
        curve.upper[kept],
        rows=np.array([place[row] for row in curve.rows.tolist() if row in place]),
        truth=curve.truth[kept] if len(curve.truth) else curve.truth,
        left_out=len(feature.levels) - len(kept),
    )
