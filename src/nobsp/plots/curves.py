"""Every feature's function in a panel.

Lines with bands, dots with whiskers, bars, and how the rows lie below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nobsp._typing import AnyArray, ArrayLike, BoolArray, FloatArray, TableLike
from nobsp.arguments import (
    count,
    join_names,
    quote,
    require_mapping,
    require_whole_number,
    with_minus,
)
from nobsp.deprecation import USUAL_CONFIDENCE, argument_of
from nobsp.plots import _axes, _lookup
from nobsp.plots._axes import (
    NORMAL,
    SMALL,
    Axes,
    AxesLike,
    get_panels,
    legend_label,
    text_colour,
    tidy,
    turn_labels,
)
from nobsp.plots._lookup import Explained
from nobsp.plots.labels import short_labels, shorten, shorten_all
from nobsp.tabular.functions import Functions
from nobsp.tabular.lookup import Feature, level_axes

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.lines import Line2D

Truth = Callable[[Any], ArrayLike]
# One name or position of a feature, or several; None for the strongest.
FeatureChoice: TypeAlias = Any

# Levels of one category that can still be distinguished.
_MOST_LEVELS = 16
# A number that takes so few values is drawn as dots.
_FEW_VALUES = 12
_TRUTH_DASHES: Any = (0, (4, 2))
# The part of a panel's height that is left free for how the rows lie.
_STRIP = 0.13
# How far bands, and functions where there are hardly any rows, may stretch a panel, as a share of
# what it has to hold.
_ROOM = 0.35
# Share of the rows at either end of a function that count as hardly any.
_HARDLY_ANY = 0.005
# Width of the bars of a level together, of 1.
_LEVEL_WIDTH = 0.78
# Characters of the label of the y axis that fit beside a small panel.
_MOST_CHARACTERS = 26


def _no_numbers() -> FloatArray:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class _Curve:
    """One feature's function where it is drawn, over numbers or positions of levels."""

    feature: Feature
    x: FloatArray
    # (points, outputs), as are the limits of the band, NaN where there is none.
    value: FloatArray
    lower: FloatArray
    upper: FloatArray
    # NaN where it is not drawn.
    baseline: float
    # Whether a number takes few values, so that there is nothing in between.
    dots: bool = False
    # Where the rows are.
    rows: FloatArray = field(default_factory=_no_numbers)
    # What the function is known to be, (points,).
    truth: FloatArray = field(default_factory=_no_numbers)
    # Levels that are not drawn.
    left_out: int = 0
    # Value, lower and upper of a missing number, (3, outputs); None where it has no place in the
    # table.
    missing: FloatArray | None = None

    @property
    def banded(self) -> bool:
        """Whether it has a band."""
        return not np.isnan(self.lower).all()

    @property
    def levels(self) -> bool:
        """Whether it is a function of categories."""
        return self.feature.kind == "levels"

    @property
    def apart(self) -> bool:
        """Whether there is nothing between its points."""
        return self.levels or self.dots

    @property
    def has_baseline(self) -> bool:
        """Whether its baseline is drawn."""
        return self.baseline == self.baseline

    @property
    def gap(self) -> float:
        """The least distance between two dots or levels."""
        return float(np.diff(self.x).min()) if len(self.x) > 1 else 1.0

    @property
    def covered(self) -> BoolArray:
        """Where along it all but a few rows lie; everywhere when rows are not known."""
        everywhere = np.ones(len(self.x), dtype=bool)
        if self.apart or not len(self.rows):
            return everywhere

        low, high = np.quantile(self.rows, [_HARDLY_ANY, 1 - _HARDLY_ANY])
        inside: BoolArray = (self.x >= low) & (self.x <= high)
        return inside if inside.sum() > 1 else everywhere


def curves(
    explainer: Explained,
    features: FeatureChoice = None,
    *,
    output: _lookup.Output = None,
    data: TableLike | None = None,
    truth: Mapping[str, Truth] | None = None,
    points: int = 200,
    confidence: float = USUAL_CONFIDENCE,
    max_display: int = 12,
    share_y: bool = True,
    ax: AxesLike = None,
    level: float | None = None,
) -> Any:
    """Draws every feature's average effect.

    One panel per feature, with band, baseline and how the rows lie.

    A curve is what the model predicts with the feature at x, averaged over background rows that
    give the other features their values, less its mean over the rows; where features depend on each
    other, the part of that which no other term explains (`from_average` of the health's terms tells
    how far that is from partial dependence). A line is a function of numbers, pale where hardly any
    rows are; dots with whiskers are one of a number that takes few values; bars are the levels of a
    category. The shape at the foot shows how the rows lie, the dotted line the baseline, the point
    that `from_baseline` measures from. The scale holds the functions where rows are.

    Args:
        explainer: A calibrated `NObSP`, a `Functions`, or an `Explanation`, for the
            functions behind it.
        features: One name, or several; when None the strongest, by their total importance.
        output: Position or name of the output; all outputs, up to seven, when None.
        data: Rows, to show how they lie: a table or an `Explanation`. When None, those of the
            explanation, or calibrated rows where the explainer keeps some (not after loading).
        truth: Known functions by feature, of values or of levels; each is shifted to lie closest
            over the rows.
        points: Points along a curve.
        confidence: Share of the curves inside the band that other rows of the same kind would give.
        max_display: Most panels.
        share_y: Whether all panels have the same scale.
        ax: Axes to draw on, as many as there are panels; a new figure when None.
        level: Former name of `confidence`; goes away with nobsp 1.0.

    Returns:
        The axes: one if a single feature is named, else an array of them.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(3, 16), ReLU(), Linear(16, 1))
        >>> len(plots.curves(NObSP(model).fit(torch.randn(300, 3))))
        3
    """
    confidence = argument_of("level", level, present="confidence", current=confidence)
    require_whole_number("max_display", max_display)
    drawn = _lookup.find_drawn(explainer, "curves")
    functions = drawn.functions
    require_mapping("truth", truth, wanted="functions by feature")
    outputs = _chosen_outputs(output, drawn, with_truth=bool(truth))
    every_curve = _curves(functions, outputs, points=points, confidence=confidence)

    chosen = _chosen_features(functions, features, outputs, every_curve, most=max_display)
    is_shortened = features is None and len(chosen) < len(every_curve)
    shown = _with_rows_and_truth(
        functions,
        outputs,
        {feature: every_curve[feature] for feature in chosen},
        positions=_lookup.row_places(functions, drawn.rows if data is None else data),
        known=_known_functions(functions, truth),
    )

    axes = _panels_for(ax, len(shown))
    output_labels = [shorten(functions.output_names[position], 24) for position in outputs]
    _draw_panels(
        axes,
        shown,
        feature_labels=short_labels(functions.feature_names, 30),
        effect=_effect_label(output_labels, panels=len(shown)),
        share_y=share_y,
        own_figure=ax is None,
    )
    _draw_legend(axes[0], shown, output_labels, confidence, outside=ax is None)
    if ax is None and is_shortened:
        _note_choice(axes[0], shown=len(shown), of=len(every_curve))
    return axes[0] if _is_single(features) else np.array(axes, dtype=object)


def _panels_for(ax: AxesLike, n_panels: int) -> list[Axes]:
    """The axes that were passed, or those of a new figure."""
    across = _panels_across(n_panels)
    size = _figure_size(n_panels, across)
    return get_panels(ax, n_panels, across, size, "the plot of these curves")


def _note_choice(panel: Axes, *, shown: int, of: int) -> None:
    """Writes below the panels that there are more functions."""
    note = f"the {shown} strongest of {count(of, 'function')}"
    panel.figure.supxlabel(note, fontsize=SMALL, color=_axes.MUTED, x=0.99, ha="right")


def _chosen_outputs(output: _lookup.Output, drawn: _lookup.Drawn, *, with_truth: bool) -> list[int]:
    """The outputs to draw, few enough to be distinguished."""
    names = drawn.functions.output_names
    outputs = _lookup.some_outputs(output, names, drawn.outputs)
    if len(outputs) > len(_axes.SERIES):
        raise ValueError(
            f"output must be chosen among {join_names(names)}; "
            f"{len(outputs)} cannot be distinguished."
        )
    if with_truth and len(outputs) > 1:
        raise ValueError(f"truth is that of one output; choose it among {join_names(names)}.")
    return outputs


def _strongest(
    functions: Functions, outputs: Sequence[int], curves: Mapping[int, _Curve]
) -> list[int]:
    """Features that have a curve, by their total importance."""
    if not curves:
        raise ValueError("no feature is a function of one column, so there are no curves to draw.")
    sizes = functions.importances["total"][:, outputs].sum(1)
    return sorted(curves, key=lambda feature: (-sizes[feature], feature))


def _is_single(features: FeatureChoice) -> bool:
    """Whether one feature is named, and not a list of one."""
    return isinstance(features, str) or _lookup.is_position(features)


def _chosen_features(
    functions: Functions,
    features: FeatureChoice,
    outputs: Sequence[int],
    curves: Mapping[int, _Curve],
    *,
    most: int,
) -> list[int]:
    """Positions of the features that were named.

    Where none was, the strongest of all that have a curve.
    """
    if features is None:
        return _strongest(functions, outputs, curves)[:most]
    wanted = [features] if _is_single(features) else _listed(features)[:most]
    if not wanted:
        raise ValueError("features is empty, so there are no curves to draw.")

    names = functions.feature_names
    chosen = [_lookup.feature_position(feature, names, argument="features") for feature in wanted]
    for feature in chosen:
        if feature not in curves:
            raise ValueError(
                f"feature {names[feature]!r} is not a function of one column, so it has no curve."
            )
    return chosen


def _listed(features: Iterable[int | str]) -> list[int | str]:
    """Several features, as they were passed."""
    if isinstance(features, type | bytes | Mapping) or not isinstance(features, Iterable):
        raise TypeError(f"features must be a name, a position or a list, found {quote(features)}.")
    return list(features)


def _with_rows_and_truth(
    functions: Functions,
    outputs: Sequence[int],
    curves: Mapping[int, _Curve],
    *,
    positions: Mapping[int, FloatArray],
    known: Mapping[int, Truth],
) -> list[_Curve]:
    """Curves of some features with the rows under them and the known functions over them."""
    shown = []
    for feature, curve in curves.items():
        if positions:
            rows = positions[feature][np.isfinite(positions[feature])]
            curve = _over_rows(functions, outputs, curve, rows)
        if feature in known:
            curve = _with_truth(functions, feature, curve, known[feature])
        shown.append(_fewer_levels(curve))
    return shown


def _known_functions(functions: Functions, truth: Mapping[str, Truth] | None) -> dict[int, Truth]:
    """Known functions by the position of their feature."""
    names = functions.feature_names
    return {
        _lookup.feature_position(name, names, argument="truth"): function
        for name, function in (truth or {}).items()
    }


def _panels_across(panels: int) -> int:
    """How many panels stand in a row."""
    return 3 if panels in (5, 6) else min(panels, 4)


def _figure_size(panels: int, across: int) -> tuple[float, float]:
    """Size of a figure with this many panels, in inches."""
    if panels == 1:
        return (5.2, 3.6)
    down = -(-panels // across)
    return (2.55 * across + 0.9, 2.15 * down + 0.55)


def _effect_label(outputs: Sequence[str], *, panels: int) -> str:
    """The label of the y axes, on two lines where a small panel has no room for one."""
    if len(outputs) > 1:
        return "average effect"

    label = f"average effect on {outputs[0]}"
    if panels > 1 and len(label) > _MOST_CHARACTERS:
        return label.replace(" on ", "\non ", 1)
    return label


def _draw_panels(
    axes: Sequence[Axes],
    curves: Sequence[_Curve],
    *,
    feature_labels: Mapping[str, str],
    effect: str,
    share_y: bool,
    own_figure: bool,
) -> None:
    """Every curve in its panel, with labels; the y axis is labelled in the first column only."""
    for number, (panel, curve) in enumerate(zip(axes, curves, strict=True)):
        _draw(panel, curve)
        panel.set_ylim(*_limits(curves if share_y else [curve]))
        more = f" ({count(curve.left_out, 'more level')})" if curve.left_out else ""
        panel.set_xlabel(feature_labels[curve.feature.name] + more, fontsize=NORMAL)

        position = panel.get_subplotspec()
        is_first = number == 0 or position is None or position.is_first_col()
        panel.set_ylabel(effect if is_first else "", fontsize=NORMAL)
        if own_figure and share_y and not is_first:
            panel.tick_params(labelleft=False)


def _curves(
    functions: Functions, outputs: Sequence[int], *, points: int, confidence: float
) -> dict[int, _Curve]:
    """The curve, for some outputs, of every feature that has one."""
    table = functions.curves(points, confidence=confidence)
    every_output = len(functions.output_names)

    def column(name: str, is_own: BoolArray) -> FloatArray:
        # Rows come output by output, each with the same points.
        values = np.asarray(table[name], dtype=np.float64)[is_own]
        return values.reshape(every_output, -1).T[:, outputs]

    curves = {}
    for number, feature in enumerate(functions.features):
        is_own = np.asarray(table["feature"]) == feature.name
        if not is_own.any():
            continue
        x = column("x", is_own)[:, 0]
        if feature.kind == "levels":
            x = np.arange(len(x), dtype=np.float64)
        curve = _Curve(
            feature=feature,
            x=x,
            value=column("value", is_own),
            lower=column("lower", is_own),
            upper=column("upper", is_own),
            baseline=float(functions.baseline[number]),
        )
        curves[number] = _missing_apart(curve)
    return curves


def _missing_apart(curve: _Curve) -> _Curve:
    """The curve with the point of missing numbers, if it has one, beside the others."""
    if curve.levels or not np.isnan(curve.x[-1]):
        return curve
    return replace(
        curve,
        x=curve.x[:-1],
        value=curve.value[:-1],
        lower=curve.lower[:-1],
        upper=curve.upper[:-1],
        missing=np.stack([curve.value[-1], curve.lower[-1], curve.upper[-1]]),
    )


def _over_rows(
    functions: Functions, outputs: Sequence[int], curve: _Curve, rows: FloatArray
) -> _Curve:
    """The curve over some rows; at their values alone where a number takes few."""
    values = np.unique(rows)
    takes_few = 0 < 2 * len(values) <= len(rows) and len(values) <= _FEW_VALUES
    if curve.levels or not takes_few:
        return replace(curve, rows=rows)

    name = curve.feature.name
    columns = [functions.function(name, output=output)(values) for output in outputs]
    value = np.column_stack(columns)
    return replace(
        curve,
        x=values,
        value=value,
        lower=value + _interpolate(values, curve.x, curve.lower - curve.value),
        upper=value + _interpolate(values, curve.x, curve.upper - curve.value),
        rows=rows,
        dots=True,
    )


def _interpolate(at: FloatArray, x: FloatArray, columns: FloatArray) -> FloatArray:
    """Columns of numbers over x, read at other points."""
    return np.column_stack([np.interp(at, x, column) for column in columns.T])


def _with_truth(functions: Functions, number: int, curve: _Curve, truth: Truth) -> _Curve:
    """The curve with its known function, shifted to lie closest over the rows."""
    x = curve.x
    known = np.asarray(truth(_level_values(functions, number) if curve.levels else x))
    if known.shape != x.shape:
        raise ValueError(
            f"truth of {curve.feature.name!r} gives shape {known.shape} for {len(x)} values; "
            "give one each."
        )

    difference = curve.value[:, 0] - known.astype(np.float64)
    if len(curve.rows) and curve.levels:
        difference = difference[curve.rows.astype(int)]
    elif len(curve.rows):
        difference = np.interp(curve.rows, x, difference)
    return replace(curve, truth=known + difference.mean())


def _level_values(functions: Functions, number: int) -> AnyArray:
    """What the levels of a feature are: values of one column.

    Of several, the names of the levels.
    """
    axis = level_axes(functions)[number]
    if len(axis.columns) > 1:
        return np.array(functions.features[number].labels, dtype=object)

    levels = axis.levels if isinstance(axis.levels, tuple) else axis.levels[:, 0]
    return np.array(levels, dtype=object)


def _fewer_levels(curve: _Curve) -> _Curve:
    """The same, of a category with many levels only those that contribute most."""
    if not curve.levels or len(curve.x) <= _MOST_LEVELS:
        return curve

    sizes = np.abs(curve.value).sum(1)
    shown = np.sort(np.argsort(-sizes, kind="stable")[:_MOST_LEVELS])
    new_position = {float(level): float(position) for position, level in enumerate(shown)}
    rows = [new_position[row] for row in curve.rows.tolist() if row in new_position]
    labels = tuple(curve.feature.labels[level] for level in shown)
    return replace(
        curve,
        feature=replace(curve.feature, labels=labels),
        baseline=new_position.get(curve.baseline, np.nan),
        x=np.arange(len(shown), dtype=np.float64),
        value=curve.value[shown],
        lower=curve.lower[shown],
        upper=curve.upper[shown],
        rows=np.array(rows),
        truth=curve.truth[shown] if len(curve.truth) else curve.truth,
        left_out=len(curve.x) - len(shown),
    )


def _limits(curves: Sequence[_Curve]) -> tuple[float, float]:
    """Limits that hold the functions where rows are, most of the rest, and a strip for the rows."""
    missing = [curve.missing for curve in curves if curve.missing is not None]
    covered = [curve.value[curve.covered].ravel() for curve in curves]
    needed = np.concatenate([*covered, *(points[0] for points in missing)])
    low = float(needed.min(initial=0.0))
    high = float(needed.max(initial=0.0))

    room = _ROOM * (high - low)
    drawn = [np.array([low, high]), *(points.ravel() for points in missing)]
    for curve in curves:
        drawn += [
            curve.value.ravel(),
            curve.lower.ravel(),
            curve.upper.ravel(),
            curve.truth.ravel(),
        ]
    everything = np.concatenate(drawn)
    low = max(float(np.nanmin(everything)), low - room)
    high = min(float(np.nanmax(everything)), high + room)

    height = (high - low) or 1.0
    return low - height * (0.06 + _STRIP * 1.15), high + 0.06 * height


def _draw(ax: Axes, curve: _Curve) -> None:
    """One curve with its baseline, its known function and its rows."""
    tidy(ax)
    ax.axhline(
        0.0,
        color=_axes.FAINT,
        linewidth=0.8,
        zorder=0.5,
    )
    if curve.levels:
        _draw_levels(ax, curve)
    elif curve.dots:
        _draw_dots(ax, curve)
    else:
        _draw_lines(ax, curve)

    if curve.has_baseline:
        line = ax.axvline(
            curve.baseline,
            color=_axes.MUTED,
            linewidth=1.0,
            linestyle=":",
        )
        line.set(zorder=0.8, gid="baseline")
    if not curve.levels:
        width = float(curve.x[-1] - curve.x[0]) or 1.0
        margin = 0.6 * curve.gap if curve.dots else 0.03 * width
        ax.set_xlim(curve.x[0] - margin, curve.x[-1] + margin)
        ax.locator_params(axis="x", nbins=5)
        if curve.dots and len(curve.x) <= 6:
            ax.set_xticks(curve.x)
        if curve.missing is not None:
            _draw_missing(ax, curve, curve.missing, margin)
    if len(curve.truth):
        _draw_truth(ax, curve)
    if len(curve.rows):
        _draw_rows(ax, curve)


def _draw_missing(ax: Axes, curve: _Curve, missing: FloatArray, margin: float) -> None:
    """What a missing number contributes: a dot with its own tick to the right of the function."""
    low, high = ax.get_xlim()
    width = high - low
    x = high + 0.06 * width
    for output, (value, lower, upper) in enumerate(missing.T):
        whiskers = None
        if curve.banded:
            whiskers = np.clip([[value - lower], [upper - value]], 0.0, None)
        ax.errorbar(
            [x],
            [value],
            yerr=whiskers,
            fmt=_axes.MARKERS[output],
            markersize=4.5,
            elinewidth=1.2,
            color=_axes.SERIES[output],
            zorder=3,
            gid="missing",
        )

    ax.axvline(
        high,
        color=_axes.FAINT,
        linewidth=0.8,
        zorder=0.5,
    )
    ax.set_xlim(low, x + margin + 0.03 * width)
    # The word is about a quarter of a small panel wide: a number beside it would run into it.
    ticks = [tick for tick in ax.get_xticks() if low <= tick <= x - 0.25 * width]
    labels = [with_minus(tick, "g") for tick in ticks]
    ax.set_xticks([*ticks, x], [*labels, "missing"])


def _draw_truth(ax: Axes, curve: _Curve) -> None:
    """The known function: diamonds where there is nothing between points, else a dashed line."""
    [line] = ax.plot(curve.x, curve.truth, color=text_colour(ax), linewidth=1.3)
    line.set(
        zorder=4,
        gid="truth",
        markersize=4.5,
        markerfacecolor="none",
    )
    if curve.apart:
        line.set(linestyle="none", marker="D")
    else:
        line.set(linestyle=_TRUTH_DASHES)


def _draw_lines(ax: Axes, curve: _Curve) -> None:
    """A line per output with its band, pale where hardly any rows are."""
    covered = curve.covered
    # All but its ends, from which the pale parts go on.
    inner = covered.copy()
    inner[1:] &= covered[:-1]
    inner[:-1] &= covered[1:]

    for output, value in enumerate(curve.value.T):
        colour = _axes.SERIES[output]
        dashes = _axes.DASHES[output]
        if curve.banded:
            low = curve.lower[:, output]
            high = curve.upper[:, output]
            band = ax.fill_between(
                curve.x,
                low,
                high,
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
            band.set(zorder=2, gid="band")

        outer = np.where(inner, np.nan, value)
        [pale] = ax.plot(
            curve.x,
            outer,
            color=colour,
            linestyle=dashes,
            linewidth=1.4,
        )
        pale.set(alpha=0.5, zorder=2.5)
        [line] = ax.plot(
            curve.x[covered], value[covered], color=colour, linestyle=dashes, linewidth=2.0
        )
        line.set(zorder=3, gid="function")


def _whiskers(curve: _Curve, output: int) -> FloatArray | None:
    """How far the band reaches below and above each point; None without a band."""
    if not curve.banded:
        return None
    value = curve.value[:, output]
    below = value - curve.lower[:, output]
    above = curve.upper[:, output] - value
    return np.clip([below, above], 0.0, None)


def _beside(output: int, outputs: int) -> float:
    """Where the points of an output stand beside those of others, as a share of their width."""
    return (output + 0.5) / outputs - 0.5


def _draw_levels(ax: Axes, curve: _Curve) -> None:
    """Bars of levels, those of several outputs beside each other."""
    outputs = curve.value.shape[1]
    for output, value in enumerate(curve.value.T):
        x = curve.x + _LEVEL_WIDTH * _beside(output, outputs)
        ax.bar(
            x,
            value,
            width=0.94 * _LEVEL_WIDTH / outputs,
            zorder=2,
            color=_axes.SERIES[output],
            gid="function",
            hatch=_axes.HATCHES[output],
            edgecolor="white",
            linewidth=0.5,
            alpha=0.85,
        )
        ax.errorbar(
            x,
            value,
            yerr=_whiskers(curve, output),
            fmt="none",
            ecolor=text_colour(ax),
            elinewidth=1.0,
            zorder=3,
        )

    labels = shorten_all(curve.feature.labels, 14)
    turn_labels(ax.xaxis, curve.x, labels, room=22, degrees=40)
    ax.set_xlim(-0.6, len(curve.x) - 0.4)


def _draw_dots(ax: Axes, curve: _Curve) -> None:
    """Dots of a number that takes few values, those of several outputs beside each other."""
    outputs = curve.value.shape[1]
    for output, value in enumerate(curve.value.T):
        x = curve.x + 0.5 * curve.gap * _beside(output, outputs)
        colour = _axes.SERIES[output]
        [line] = ax.plot(
            x,
            value,
            color=colour,
            linestyle=_axes.DASHES[output],
            linewidth=0.8,
        )
        line.set(alpha=0.5, zorder=2)
        ax.errorbar(
            x,
            value,
            yerr=_whiskers(curve, output),
            fmt=_axes.MARKERS[output],
            markersize=4.5,
            elinewidth=1.2,
            zorder=3,
            color=colour,
            gid="function",
        )


def _draw_rows(ax: Axes, curve: _Curve) -> None:
    """How the rows lie, as a grey shape at the foot of the panel."""
    foot = ax.get_xaxis_transform()
    if curve.apart:
        values, counts = np.unique(curve.rows, return_counts=True)
        ax.bar(
            values,
            _STRIP * counts / counts.max(),
            width=0.5 * curve.gap,
            color=_axes.ROWS,
            transform=foot,
            zorder=1,
            gid="rows",
        )
        return

    counts, edges = np.histogram(curve.rows, bins=32, range=(curve.x[0], curve.x[-1]))
    ax.stairs(
        _STRIP * counts / max(counts.max(), 1),
        edges,
        fill=True,
        color=_axes.ROWS,
        transform=foot,
        zorder=1,
        gid="rows",
    )


def _draw_legend(
    ax: Axes, curves: Sequence[_Curve], outputs: Sequence[str], confidence: float, *, outside: bool
) -> None:
    """Says what is what.

    Above all panels of a new figure, or in the caller's first axes where it is needed.
    """
    entries = _legend_entries(ax, curves, outputs, confidence)
    names = [name for name, _ in entries]
    handles = [handle for _, handle in entries]
    if outside:
        columns = len(entries)
        if len(curves) == 1 and len(entries) > 4:
            columns = -(-len(entries) // 2)
        ax.figure.legend(
            handles,
            names,
            frameon=False,
            fontsize=SMALL,
            loc="outside upper center",
            ncols=columns,
        )
    elif len(outputs) > 1 or any(len(curve.truth) for curve in curves):
        ax.legend(handles, names, frameon=False, fontsize=SMALL)


def _legend_entries(
    ax: Axes, curves: Sequence[_Curve], outputs: Sequence[str], confidence: float
) -> list[tuple[str, Artist]]:
    """The name of each thing that is drawn, and what stands for it."""
    from matplotlib.patches import Patch

    names = [legend_label(name) for name in outputs]
    if len(outputs) == 1:
        names = ["average effect"]
    entries: list[tuple[str, Artist]] = []
    for number, name in enumerate(names):
        entries.append((name, _legend_line(_axes.SERIES[number], _axes.DASHES[number], 2.0)))

    if any(curve.banded for curve in curves):
        entries.append((f"{confidence:.0%} band", Patch(facecolor=_axes.SERIES[0], alpha=0.2)))
    if any(len(curve.truth) for curve in curves):
        entries.append(("truth", _legend_line(text_colour(ax), _TRUTH_DASHES, 1.3)))
    if any(curve.has_baseline for curve in curves):
        entries.append(("baseline", _legend_line(_axes.MUTED, ":", 1.0)))
    if any(len(curve.rows) for curve in curves):
        entries.append(("rows", Patch(facecolor=_axes.ROWS)))
    return entries


def _legend_line(colour: Any, dashes: Any, width: float) -> Line2D:
    """A line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        color=colour,
        linestyle=dashes,
        linewidth=width,
    )
