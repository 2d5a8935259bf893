"""Every feature's function in a panel: lines with bands, dots with whiskers, bars, and how the rows lie below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count, join_names, require_whole_number
from nobsp.arguments import quote, require_mapping
from nobsp.plots import _axes, _lookup
from nobsp.plots._axes import (
    NORMAL,
    SMALL,
    Axes,
    get_panels,
    legend_label,
    text_colour,
    tidy,
    turn_labels,
)
from nobsp.plots._lookup import Array
from nobsp.plots.labels import short_labels, shorten, shorten_all
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.explanation import output_position
from nobsp.tabular.lookup import Feature

Truth = Callable[[Any], Any]

_MOST_LEVELS = 16  # of one category that can still be distinguished
_FEW_VALUES = 12  # a number that takes so few is drawn as dots
_TRUTH_DASHES: Any = (0, (4, 2))
_STRIP = 0.13  # the part of a panel's height that is kept free for how the rows lie
# How far bands, and functions where there are hardly any rows, may stretch a panel, as a share of what it has to hold.
_ROOM = 0.35
_HARDLY_ANY = 0.005  # rows at either end of a function


@dataclass(frozen=True, eq=False)
class _Curve:
    """One feature's function where it is drawn, over numbers or positions of levels."""

    feature: Feature
    x: Array
    value: Array  # (points, outputs), as are the limits of the band, NaN where there is none
    lower: Array
    upper: Array
    baseline: float  # NaN where it is not drawn
    dots: bool = False  # whether a number takes few values, so that there is nothing in between
    rows: Array = field(default_factory=lambda: np.zeros(0))
    truth: Array = field(
        default_factory=lambda: np.zeros(0)
    )  # what the function is known to be, (points,)
    left_out: int = 0  # levels that are not drawn
    # value, lower and upper of a missing number, (3, outputs); None where it has no place in the table
    missing: Array | None = None

    @property
    def banded(self) -> bool:
        return not np.isnan(self.lower).all()

    @property
    def levels(self) -> bool:
        return self.feature.kind == "levels"

    @property
    def gap(self) -> float:  # between two dots or levels
        return float(np.diff(self.x).min()) if len(self.x) > 1 else 1.0

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Where along it all but a few rows lie; everywhere when rows are not known."""
        if not self.levels and not self.dots and len(self.rows):
            low, high = np.quantile(self.rows, [_HARDLY_ANY, 1 - _HARDLY_ANY])
            inside: NDArray[np.bool_] = (self.x >= low) & (self.x <= high)
            if inside.sum() > 1:
                return inside
        return np.ones(len(self.x), dtype=bool)


def curves(
    explainer: Any,
    features: Any = None,
    *,
    output: _lookup.Output = None,
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
    prediction. A line is a function of numbers, pale where hardly any rows are; dots with whiskers are one of a number
    that takes few values; bars are the levels of a category. The shape at the foot shows how the rows lie, the dotted
    line the baseline, the point that `from_baseline` measures from. The scale holds the functions where rows are.

    Args:
        explainer: A calibrated `NObSP`, a `CompiledExplainer`, or an `Explanation`, for the functions behind it.
        features: One name, or several; when None the strongest, by their total importance.
        output: Position or name of the output; all outputs, up to seven, when None.
        data: Rows, to show how they lie: a table or an `Explanation`. When None, those of the explanation, or
            calibrated rows where the explainer keeps some (not after loading, and not for pipelines).
        truth: Known functions by feature, of values or of levels; each is shifted to lie closest over the rows.
        points: Points along a curve.
        level: Share of the curves inside the band that other rows of the same kind would give.
        max_display: Most panels.
        share_y: Whether all panels have the same scale.
        ax: Axes to draw on, as many as there are panels; a new figure when None.

    Returns:
        The axes: one if a single feature is named, else an array of them.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> len(plots.curves(NObSP(model).fit(torch.randn(300, 3))))
        3
    """
    require_whole_number("max_display", max_display)
    functions, rows, own = _lookup.find_drawn(explainer, "curves")
    names = functions.output_names
    outputs = _lookup.some_outputs(output, names, own)
    if len(outputs) > len(_axes.SERIES):
        raise ValueError(
            f"output must be chosen among {join_names(names)}; {len(outputs)} cannot be distinguished."
        )
    require_mapping("truth", truth, wanted="functions by feature")
    if truth and len(outputs) > 1:
        raise ValueError(f"truth is that of one output; choose it among {join_names(names)}.")
    known = {
        output_position(name, functions.feature_names, "feature"): true
        for name, true in (truth or {}).items()
    }
    found = _curves(functions, outputs, points=points, level=level)
    single = isinstance(features, str) or _lookup.is_position(features)
    if features is None:
        sizes = functions.importances["total"][:, outputs].sum(1)
        chosen = sorted(found, key=lambda k: (-sizes[k], k))[:max_display]
    else:
        wanted = [features] if single else _listed(features)[:max_display]
        chosen = [output_position(one, functions.feature_names, "feature") for one in wanted]
        for k in chosen:
            if k not in found:
                raise ValueError(
                    f"feature {functions.feature_names[k]!r} is no function of one column: no curve."
                )
    if not chosen:
        why = "no feature is a function of one column" if features is None else "features is empty"
        raise ValueError(f"{why}, so there are no curves to draw.")
    places = _lookup.row_places(functions, rows if data is None else data)
    made = []
    for k in chosen:
        curve = found[k]
        if places:
            curve = _over_rows(functions, outputs, curve, places[k][np.isfinite(places[k])])
        made.append(
            _fewer_levels(_with_truth(functions, k, curve, known[k]) if k in known else curve)
        )
    across = 3 if len(made) in (5, 6) else min(len(made), 4)
    size = (
        (2.55 * across + 0.9, 2.15 * -(-len(made) // across) + 0.55)
        if len(made) > 1
        else (5.2, 3.6)
    )
    axes = get_panels(ax, len(made), across, size, "the plot of these curves")
    labels = [shorten(names[k], 24) for k in outputs]
    effect = "average effect" + (f" on {labels[0]}" if len(labels) == 1 else "")
    if len(made) > 1 and len(effect) > 26:
        effect = effect.replace(" on ", "\non ", 1)
    short = short_labels(functions.feature_names, 30)
    for place, (panel, curve) in enumerate(zip(axes, made, strict=True)):
        _draw(panel, curve)
        panel.set_ylim(*_limits(made if share_y else [curve]))
        more = f" ({count(curve.left_out, 'more level')})" if curve.left_out else ""
        panel.set_xlabel(short[curve.feature.name] + more, fontsize=NORMAL)
        spot = panel.get_subplotspec()
        first = place == 0 or spot is None or spot.is_first_col()
        panel.set_ylabel(effect if first else "", fontsize=NORMAL)
        if ax is None and share_y and not first:
            panel.tick_params(labelleft=False)
    _draw_legend(axes[0], made, labels, level, outside=ax is None)
    if ax is None and features is None and len(made) < len(found):
        note = f"the {len(made)} strongest of {count(len(found), 'function')}"
        axes[0].figure.supxlabel(note, fontsize=SMALL, color=_axes.MUTED, x=0.99, ha="right")
    return axes[0] if single else np.array(axes, dtype=object)


def _curves(
    functions: CompiledExplainer, outputs: Sequence[int], *, points: int, level: float
) -> dict[int, _Curve]:
    """The curve, for some outputs, of every feature that has one."""
    table = functions.curves(points, level=level)
    columns = [
        np.asarray(table[name], dtype=np.float64) for name in ("x", "value", "lower", "upper")
    ]
    found = {}
    for k, feature in enumerate(functions.features):
        here = np.asarray(table["feature"]) == feature.name
        if here.any():
            # Rows come output by output, each with the same points.
            each = len(functions.output_names)
            x, value, lower, upper = (
                part[here].reshape(each, -1).T[:, outputs] for part in columns
            )
            along = np.arange(len(x), dtype=np.float64) if feature.kind == "levels" else x[:, 0]
            missing = None
            if feature.kind != "levels" and np.isnan(along[-1]):
                missing = np.stack([value[-1], lower[-1], upper[-1]])
                along, value, lower, upper = (part[:-1] for part in (along, value, lower, upper))
            found[k] = _Curve(
                feature,
                along,
                value,
                lower,
                upper,
                float(functions.baseline[k]),
                missing=missing,
            )
    return found


def _over_rows(
    functions: CompiledExplainer, outputs: Sequence[int], curve: _Curve, rows: Array
) -> _Curve:
    """The curve over some rows; at their values alone where a number takes few."""
    values = np.unique(rows)
    if curve.levels or not 0 < 2 * len(values) <= len(rows) or len(values) > _FEW_VALUES:
        return replace(curve, rows=rows)
    value = np.column_stack(
        [functions.function(curve.feature.name, output=k)(values) for k in outputs]
    )
    lower, upper = (
        value
        + np.column_stack([np.interp(values, curve.x, away) for away in (limit - curve.value).T])
        for limit in (curve.lower, curve.upper)
    )
    return replace(curve, x=values, value=value, lower=lower, upper=upper, rows=rows, dots=True)


def _with_truth(functions: CompiledExplainer, k: int, curve: _Curve, truth: Truth) -> _Curve:
    """The curve with its known function, shifted by the constant that brings it closest over the rows."""
    feature, x = curve.feature, curve.x
    given: Any = x
    if curve.levels:  # values of one column; of several, the names of the levels
        axis = functions.level_axes[k]
        own = axis.levels if isinstance(axis.levels, tuple) else axis.levels[:, 0]
        given = np.array(feature.labels if len(axis.columns) > 1 else own, dtype=object)
    known = np.asarray(truth(given))
    if known.shape != x.shape:
        raise ValueError(
            f"truth of {feature.name!r} gives shape {known.shape} for {len(x)} values; give one each."
        )
    gap = curve.value[:, 0] - known.astype(np.float64)
    if len(curve.rows):
        gap = gap[curve.rows.astype(int)] if curve.levels else np.interp(curve.rows, x, gap)
    return replace(curve, truth=known + gap.mean())


def _fewer_levels(curve: _Curve) -> _Curve:
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


def _limits(made: Sequence[_Curve]) -> tuple[float, float]:
    """Limits that hold the functions where rows are, most of the rest, and a strip for the rows."""
    needed = np.concatenate(
        [
            *(curve.value[curve.covered].ravel() for curve in made),
            *(curve.missing[0] for curve in made if curve.missing is not None),
        ]
    )
    low, high = float(needed.min(initial=0.0)), float(needed.max(initial=0.0))
    room = _ROOM * (high - low)
    parts = [
        part.ravel()
        for curve in made
        for part in (curve.value, curve.lower, curve.upper, curve.truth)
    ]
    parts += [curve.missing.ravel() for curve in made if curve.missing is not None]
    every = np.append(np.concatenate(parts), [low, high])
    low, high = max(float(np.nanmin(every)), low - room), min(float(np.nanmax(every)), high + room)
    height = (high - low) or 1.0
    return low - height * (0.06 + _STRIP * 1.15), high + 0.06 * height


def _draw(ax: Axes, curve: _Curve) -> None:
    tidy(ax)
    ax.axhline(0.0, color=_axes.FAINT, linewidth=0.8, zorder=0.5)
    (_draw_apart if curve.levels or curve.dots else _draw_lines)(ax, curve)
    if curve.baseline == curve.baseline:
        ax.axvline(
            curve.baseline,
            color=_axes.MUTED,
            linewidth=1.0,
            linestyle=":",
            zorder=0.8,
            gid="baseline",
        )
    if not curve.levels:
        beside = 0.6 * curve.gap if curve.dots else 0.03 * (float(curve.x[-1] - curve.x[0]) or 1.0)
        ax.set_xlim(curve.x[0] - beside, curve.x[-1] + beside)
        ax.locator_params(axis="x", nbins=5)
        if curve.dots and len(curve.x) <= 6:
            ax.set_xticks(curve.x)
        if curve.missing is not None:
            _draw_missing(ax, curve, beside)
    if len(curve.truth):
        apart = curve.levels or curve.dots
        [line] = ax.plot(
            curve.x, curve.truth, color=text_colour(ax), linewidth=1.3, zorder=4, gid="truth"
        )
        line.set(linestyle="none" if apart else _TRUTH_DASHES, marker="D" if apart else "")
        line.set(markersize=4.5, markerfacecolor="none")
    if len(curve.rows):
        _draw_rows(ax, curve)


def _draw_missing(ax: Axes, curve: _Curve, beside: float) -> None:
    """What a missing number contributes, as a dot with its own tick to the right of the function."""
    assert curve.missing is not None
    low, high = ax.get_xlim()
    place = high + 0.06 * (high - low)
    values, lower, upper = curve.missing
    for number, value in enumerate(values):
        whiskers = None
        if curve.banded:
            whiskers = np.clip([[value - lower[number]], [upper[number] - value]], 0.0, None)
        ax.errorbar(
            [place],
            [value],
            yerr=whiskers,
            fmt=_axes.MARKERS[number],
            markersize=4.5,
            elinewidth=1.2,
            color=_axes.SERIES[number],
            zorder=3,
            gid="missing",
        )
    ax.axvline(high, color=_axes.FAINT, linewidth=0.8, zorder=0.5)
    ax.set_xlim(low, place + beside + 0.03 * (high - low))
    ticks = [tick for tick in ax.get_xticks() if low <= tick <= high]
    ax.set_xticks([*ticks, place], [*(f"{tick:g}" for tick in ticks), "missing"])


def _draw_lines(ax: Axes, curve: _Curve) -> None:
    covered = curve.covered
    # All but its ends, from which the pale parts go on.
    inner = covered.copy()
    inner[1:] &= covered[:-1]
    inner[:-1] &= covered[1:]
    for number, (value, low, high) in enumerate(
        zip(curve.value.T, curve.lower.T, curve.upper.T, strict=True)
    ):
        style: dict[str, Any] = {"color": _axes.SERIES[number], "linestyle": _axes.DASHES[number]}
        if curve.banded:
            ax.fill_between(
                curve.x,
                low,
                high,
                color=style["color"],
                alpha=0.2,
                linewidth=0,
                zorder=2,
                gid="band",
            )
        ax.plot(
            curve.x, np.where(inner, np.nan, value), linewidth=1.4, alpha=0.5, zorder=2.5, **style
        )
        ax.plot(curve.x[covered], value[covered], linewidth=2.0, zorder=3, gid="function", **style)


def _draw_apart(ax: Axes, curve: _Curve) -> None:
    """Bars of levels, or dots of a number that takes few values, those of several outputs beside each other."""
    outputs = curve.value.shape[1]
    for number, (value, lower, upper) in enumerate(
        zip(curve.value.T, curve.lower.T, curve.upper.T, strict=True)
    ):
        whiskers = np.clip([value - lower, upper - value], 0.0, None) if curve.banded else None
        style: dict[str, Any] = {"color": _axes.SERIES[number], "gid": "function"}
        x = curve.x + (0.78 if curve.levels else 0.5 * curve.gap) * ((number + 0.5) / outputs - 0.5)
        if curve.levels:
            style |= {
                "hatch": _axes.HATCHES[number],
                "edgecolor": "white",
                "linewidth": 0.5,
                "alpha": 0.85,
            }
            ax.bar(x, value, width=0.94 * 0.78 / outputs, zorder=2, **style)
            ax.errorbar(
                x,
                value,
                yerr=whiskers,
                fmt="none",
                ecolor=text_colour(ax),
                elinewidth=1.0,
                zorder=3,
            )
        else:
            dashes, marker = _axes.DASHES[number], _axes.MARKERS[number]
            ax.plot(
                x, value, color=style["color"], linestyle=dashes, linewidth=0.8, alpha=0.5, zorder=2
            )
            ax.errorbar(
                x,
                value,
                yerr=whiskers,
                fmt=marker,
                markersize=4.5,
                elinewidth=1.2,
                zorder=3,
                **style,
            )
    if curve.levels:
        turn_labels(ax.xaxis, curve.x, shorten_all(curve.feature.labels, 14), 22, 40)
        ax.set_xlim(-0.6, len(curve.x) - 0.4)


def _draw_rows(ax: Axes, curve: _Curve) -> None:
    """How the rows lie, as a grey shape at the foot of the panel."""
    style: dict[str, Any] = {
        "color": _axes.ROWS,
        "transform": ax.get_xaxis_transform(),
        "zorder": 1,
        "gid": "rows",
    }
    if curve.levels or curve.dots:
        where, counts = np.unique(curve.rows, return_counts=True)
        ax.bar(where, _STRIP * counts / counts.max(), width=0.5 * curve.gap, **style)
    else:
        counts, edges = np.histogram(curve.rows, bins=32, range=(curve.x[0], curve.x[-1]))
        ax.stairs(_STRIP * counts / max(counts.max(), 1), edges, fill=True, **style)


def _draw_legend(
    ax: Axes, made: Sequence[_Curve], outputs: Sequence[str], level: float, *, outside: bool
) -> None:
    """Says what is what: above all panels of a figure of ours, or in the caller's first axes where it is needed."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def line(colour: Any, dashes: Any, width: float) -> Line2D:
        return Line2D([], [], color=colour, linestyle=dashes, linewidth=width)

    truth = any(len(curve.truth) for curve in made)
    names = [legend_label(name) for name in outputs] if len(outputs) > 1 else ["average effect"]
    looks = zip(_axes.SERIES, _axes.DASHES, names, strict=False)
    entries: list[tuple[Any, str]] = [
        (line(colour, dashes, 2.0), name) for colour, dashes, name in looks
    ]
    if any(curve.banded for curve in made):
        entries.append((Patch(facecolor=_axes.SERIES[0], alpha=0.2), f"{level:.0%} band"))
    if truth:
        entries.append((line(text_colour(ax), _TRUTH_DASHES, 1.3), "truth"))
    if any(curve.baseline == curve.baseline for curve in made):
        entries.append((line(_axes.MUTED, ":", 1.0), "baseline"))
    if any(len(curve.rows) for curve in made):
        entries.append((Patch(facecolor=_axes.ROWS), "rows"))
    if outside:
        columns = -(-len(entries) // 2) if len(made) == 1 and len(entries) > 4 else len(entries)
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": columns}
        ax.figure.legend(*zip(*entries, strict=True), frameon=False, fontsize=SMALL, **place)
    elif len(outputs) > 1 or truth:
        ax.legend(*zip(*entries, strict=True), frameon=False, fontsize=SMALL)


def _listed(features: Any) -> list[Any]:
    """Several features, as they were passed."""
    if isinstance(features, type | bytes | Mapping) or not isinstance(features, Iterable):
        raise TypeError(f"features must be a name, a position or a list, found {quote(features)}.")
    return list(features)
