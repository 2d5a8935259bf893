"""Every feature's function as something to draw: which features, at which points, over which rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count, join_names, require_whole_number
from nobsp.plots import _lookup, colours
from nobsp.plots._axes import SMALL, as_axes
from nobsp.plots.curve_panels import Curve, draw_panels, new_panels
from nobsp.plots.labels import short_labels, shorten
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.lookup import LevelAxis

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
    """Draws every feature's average effect: one panel a feature, with band, baseline and how the rows lie.

    A curve is what the model predicts with the feature at x, averaged over the other features' values, less the mean
    prediction; see `NObSP.curves`. A line is a function of numbers, pale where hardly any rows are; dots with whiskers
    are one of a number that takes few values; bars are the levels of a category. The shape at the foot of a panel shows
    how many rows there are along it. The dotted upright line is the baseline, the point that `from_baseline` measures
    from. All panels have one scale, so that a flat line means a feature that does little; it holds the functions where
    rows are, and may cut their ends.

    Args:
        explainer: A calibrated `NObSP`, a `CompiledExplainer`, or an `Explanation`, for the functions behind it over
            its rows.
        features: One name, or several; when None the strongest, by their total importance.
        output: Position or name of the output; all outputs, up to seven, when None.
        data: Rows to show how the data lies: a table or an `Explanation`. When None, those of the explanation, or
            calibrated rows where the explainer keeps some (not after loading, and not for pipelines).
        truth: Known functions by feature, to be called on values, or on levels of a category. As a contribution is
            centred, each is shifted by the constant that brings it closest over the rows.
        points: Points along a curve.
        level: Share of the curves inside the band that other rows of the same kind would give.
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
    require_whole_number("max_display", max_display)
    what = _lookup.find_drawn(explainer, "curves")
    functions = what.functions
    outputs = _outputs(what, output, truth)
    found = _curves(functions, outputs, points=points, level=level)
    if features is None:
        sizes = functions.importances["total"][:, outputs].sum(1)
        chosen = sorted(found, key=lambda k: (-sizes[k], k))[:max_display]
    else:
        chosen = _lookup.feature_positions(features, functions.feature_names)[:max_display]
        for k in chosen:
            if k not in found:
                raise ValueError(f"feature {functions.feature_names[k]!r} is no function of one column: no curve.")
    if not chosen:
        raise ValueError("no feature is a function of one column, so there are no curves to draw.")
    places = what.places(data)
    made = []
    for k in chosen:
        curve = found[k]
        if places is not None:
            curve = _over_rows(functions, outputs, curve, places[k][np.isfinite(places[k])])
        known = (truth or {}).get(curve.feature.name)
        made.append(_fewer_levels(curve if known is None else _with_truth(functions, k, curve, known)))
    axes = new_panels(len(made)) if ax is None else as_axes(ax, len(made), "the plot of these curves")
    draw_panels(
        axes,
        made,
        names=short_labels(functions.feature_names, 30),
        outputs=[shorten(functions.output_names[k], 24) for k in outputs],
        level=level,
        share_y=share_y,
        ours=ax is None,
    )
    if ax is None and features is None and len(made) < len(found):
        note = f"the {len(made)} strongest of {count(len(found), 'function')}"
        axes[0].figure.supxlabel(note, fontsize=SMALL, color=colours.MUTED, x=0.99, ha="right")
    single = isinstance(features, str | int | np.integer)
    return axes[0] if single else np.array(axes, dtype=object)


def _outputs(what: _lookup.Drawn, output: int | str | None, truth: Mapping[str, Truth] | None) -> list[int]:
    names = what.functions.output_names
    outputs = _lookup.some_outputs(output, names, what.of_outputs)
    if len(outputs) > len(colours.SERIES):
        raise ValueError(f"output must be chosen among {join_names(names)}; {len(outputs)} cannot be told apart.")
    if truth and len(outputs) > 1:
        raise ValueError(f"truth is that of one output; choose it among {join_names(names)}.")
    for name in truth or ():
        _lookup.feature_position(name, what.functions.feature_names)
    return outputs


def _curves(functions: CompiledExplainer, outputs: Sequence[int], *, points: int, level: float) -> dict[int, Curve]:
    """The curve, for some outputs, of every feature that has one."""
    table = functions.curves(points, level=level)
    names, every = np.asarray(table["feature"]), len(functions.output_names)
    found = {}
    for k, feature in enumerate(functions.features):
        here = names == feature.name
        if not here.any():
            continue
        # Rows come output by output, each with the same points.
        x, value, lower, upper = (
            np.asarray(table[name], dtype=np.float64)[here].reshape(every, -1).T
            for name in ("x", "value", "lower", "upper")
        )
        levels = feature.kind == "levels"
        found[k] = Curve(
            feature,
            np.arange(len(x), dtype=np.float64) if levels else x[:, 0],
            value[:, outputs],
            lower[:, outputs],
            upper[:, outputs],
            baseline=float(functions.baseline[k]),
        )
    return found


def _over_rows(functions: CompiledExplainer, outputs: Sequence[int], curve: Curve, rows: Array) -> Curve:
    """The curve over some rows; at their values alone where a number takes few."""
    values = np.unique(rows)
    if curve.levels or not 0 < 2 * len(values) <= len(rows) or len(values) > _FEW_VALUES:
        return replace(curve, rows=rows)
    value = np.column_stack([functions.function(curve.feature.name, output=k)(values) for k in outputs])
    lower, upper = (
        value + np.column_stack([np.interp(values, curve.x, away) for away in (limit - curve.value).T])
        for limit in (curve.lower, curve.upper)
    )
    return replace(curve, x=values, value=value, lower=lower, upper=upper, rows=rows, dots=True)


def _with_truth(functions: CompiledExplainer, k: int, curve: Curve, truth: Truth) -> Curve:
    """The curve with its known function, shifted by the constant that brings it closest over the rows."""
    feature, x = curve.feature, curve.x
    known = np.asarray(truth(_levels_as_given(functions.level_axes[k], feature.labels) if curve.levels else x))
    if known.shape != x.shape:
        raise ValueError(f"truth of {feature.name!r} gives shape {known.shape} for {len(x)} values; give one each.")
    gap = curve.value[:, 0] - known.astype(np.float64)
    if len(curve.rows):
        gap = gap[curve.rows.astype(int)] if curve.levels else np.interp(curve.rows, x, gap)
    return replace(curve, truth=known + gap.mean())


def _levels_as_given(axis: LevelAxis, labels: Sequence[str]) -> NDArray[Any]:
    """Values of one column; of several, the names of the levels."""
    if isinstance(axis.levels, tuple):
        return np.array(axis.levels, dtype=object)
    return np.array(labels, dtype=object) if len(axis.columns) > 1 else axis.levels[:, 0].astype(object)


def _fewer_levels(curve: Curve) -> Curve:
    """The same, of a category with many levels only those that contribute most."""
    if not curve.levels or len(curve.x) <= _MOST_LEVELS:
        return curve
    kept = np.sort(np.argsort(-np.abs(curve.value).sum(1), kind="stable")[:_MOST_LEVELS])
    place = {float(level): float(position) for position, level in enumerate(kept)}
    return replace(
        curve,
        feature=replace(curve.feature, labels=tuple(curve.feature.labels[k] for k in kept)),
        baseline=place.get(curve.baseline, np.nan),
        x=np.arange(len(kept), dtype=np.float64),
        value=curve.value[kept],
        lower=curve.lower[kept],
        upper=curve.upper[kept],
        rows=np.array([place[row] for row in curve.rows.tolist() if row in place]),
        truth=curve.truth[kept] if len(curve.truth) else curve.truth,
        left_out=len(curve.x) - len(kept),
    )
