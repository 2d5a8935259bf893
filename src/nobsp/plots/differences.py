"""What differs: parts of a gap with intervals, where on a range they arise, both functions."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from nobsp._typing import FloatArray
from nobsp.arguments import require_whole_number, with_minus
from nobsp.plots import _axes
from nobsp.plots._axes import (
    NORMAL,
    SMALL,
    Axes,
    Look,
    add_note,
    bars,
    get_axes,
    label_rows,
    tidy,
    turn_labels,
)
from nobsp.plots.labels import clean, escape, shorten_all

# A `Comparison`, told by its attributes.
ComparisonLike: TypeAlias = Any

# Points of a curve along a feature's range.
_CURVE_POINTS = 200
# Characters of labels below bars before they are turned.
_ROOM = 60


def gaps(
    comparison: ComparisonLike,
    *,
    output: int | str | None = None,
    max_display: int = 15,
    ax: Axes | None = None,
) -> Axes:
    """Draws every term's part of a gap with its interval, the largest first.

    Bars to the right make the first account's predictions larger, those to the left smaller. For
    two explainers on the same rows, bars are how far their functions lie apart.

    Args:
        comparison: What `nobsp.compare` found.
        output: Which output; may be left out where there is only one.
        max_display: Most parts; the others are not drawn, and counted in the title.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import numpy as np, nobsp
        >>> from nobsp import plots
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> explainer = nobsp.NObSP(lambda X: X[:, 0] + X[:, 1]).fit(X)
        >>> ax = plots.gaps(nobsp.compare(explainer(X[:100]), explainer(X[100:]), draws=100))
        >>> len(ax.get_yticklabels())
        3
    """
    _require_comparison(comparison)
    require_whole_number("max_display", max_display)
    position = comparison.find_output(output)
    measured = comparison.gap if comparison.change is None else comparison.change
    order = np.argsort(-np.abs(measured.value[:, position]), kind="stable")
    shown = order[:max_display]

    ax = get_axes(ax, (7.0, 0.32 * len(shown) + 1.3))
    tidy(ax, grid=True)
    names = shorten_all([clean(comparison.entries[entry]) for entry in shown], 30)
    for y, entry in enumerate(shown):
        value = float(measured.value[entry, position])
        _draw_part(ax, y, value, comparison.entries[entry])
        low = float(measured.lower[entry, position])
        high = float(measured.upper[entry, position])
        ax.plot(
            [low, high],
            [y, y],
            color=_axes.text_colour(ax),
            linewidth=1.4,
            zorder=3,
        )
    label_rows(ax, names)
    ax.axvline(
        0,
        color=_axes.MUTED,
        linewidth=0.8,
        zorder=1,
    )
    ax.set_xlabel(_what_is_drawn(comparison, position), fontsize=SMALL)
    ax.set_title(_title(comparison, position), loc="left", fontsize=NORMAL)
    if len(order) > len(shown):
        add_note(ax, f"{len(order) - len(shown)} smaller parts are not drawn")
    return ax


def _draw_part(ax: Axes, y: int, value: float, entry: str) -> None:
    """One bar, in the colour of its direction."""
    look = Look(_axes.FOR) if value >= 0 else Look(_axes.AGAINST, _axes.AGAINST_HATCH)
    if entry == "residual":
        look = Look(_axes.RESIDUAL, _axes.RESIDUAL_HATCH)
    bars(ax, [y], [value], left=0, look=look)


def _title(comparison: ComparisonLike, position: int) -> str:
    """Which two are compared, and the whole gap."""
    first, second = (escape(clean(name)) for name in comparison.names)
    output = escape(clean(comparison.output_names[position]))
    total = float(comparison.total.value[position])
    return f"{output}: {first} − {second}, {total:+.3g} in all".replace("-", "−")


def _what_is_drawn(comparison: ComparisonLike, position: int) -> str:
    """What bars and lines are."""
    intervals = f"lines: {comparison.confidence:.0%} intervals"
    if comparison.change is None:
        return f"part of the gap of mean predictions ({intervals})"
    share = float(comparison.explained[position])
    told = "" if np.isnan(share) else f"; terms explain {max(share, 0):.2f} of the difference"
    return f"spread of the difference of the two functions over the rows ({intervals}){told}"


def along(
    comparison: ComparisonLike,
    feature: str,
    *,
    output: int | str | None = None,
    bins: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """Draws where on its range a feature's part of a gap arises; the bars add up to the part.

    Args:
        comparison: What `nobsp.compare` found.
        feature: Its name.
        output: Which output; may be left out where there is only one.
        bins: Most bins of a number.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import numpy as np, nobsp
        >>> from nobsp import plots
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> explainer = nobsp.NObSP(lambda X: X[:, 0] + X[:, 1], features=["a", "b"]).fit(X)
        >>> ax = plots.along(nobsp.compare(explainer(X[:100]), explainer(X[100:]), draws=100), "a")
        >>> len(ax.patches)
        10
    """
    _require_comparison(comparison)
    table = comparison.along(feature, output=output, bins=bins)
    parts = np.asarray(table["part"], dtype=np.float64)
    ax = get_axes(ax, (7.0, 3.0))
    tidy(ax)
    colours = np.where(parts >= 0, _axes.FOR, _axes.AGAINST)
    hatches = ["" if part >= 0 else _axes.AGAINST_HATCH for part in parts]
    drawn = ax.bar(
        range(len(parts)),
        parts,
        color=colours,
        edgecolor="white",
        linewidth=0.5,
    )
    for bar, hatch in zip(drawn, hatches, strict=True):
        bar.set_hatch(hatch)
    ax.axhline(0, color=_axes.MUTED, linewidth=0.8)

    labels = [escape(clean(label)) for label in _bin_labels(table)]
    turn_labels(ax.xaxis, range(len(labels)), labels, room=_ROOM, degrees=35)
    first, second = (escape(clean(name)) for name in comparison.names)
    name = escape(clean(feature))
    ax.set_ylabel("part of the gap", fontsize=SMALL)
    title = f"{name}: {first} − {second}, {parts.sum():+.3g} in all".replace("-", "−")
    ax.set_title(title, loc="left", fontsize=NORMAL)
    return ax


def _bin_labels(table: Any) -> list[str]:
    """Names of levels, or ranges of numbers."""
    labels = []
    for low, high, level in zip(table["from"], table["to"], table["level"], strict=True):
        if level:
            labels.append(str(level))
        elif low == high:
            labels.append(with_minus(low, ".4g"))
        else:
            labels.append(f"{with_minus(low, '.3g')} to {with_minus(high, '.3g')}")
    return labels


def two_curves(
    comparison: ComparisonLike,
    feature: str,
    *,
    output: int | str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws a feature's function and where the rows of both sides lie.

    Where there are two explainers, the functions of both are drawn.

    Args:
        comparison: What `nobsp.compare` found.
        feature: Name of a number.
        output: Which output; may be left out where there is only one.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import numpy as np, nobsp
        >>> from nobsp import plots
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> explainer = nobsp.NObSP(lambda X: X[:, 0] + X[:, 1], features=["a", "b"]).fit(X)
        >>> comparison = nobsp.compare(explainer(X[:100]), explainer(X[100:]), draws=100)
        >>> len(plots.two_curves(comparison, "a").lines) > 0
        True
    """
    _require_comparison(comparison)
    position = comparison.find_output(output)
    columns = [np.asarray(values) for values in comparison.feature_values(feature)]
    if any(column.dtype.kind not in "biuf" for column in columns):
        raise ValueError(f"feature {feature!r} is no number; draw it with plots.along.")
    numbers = [column[np.isfinite(column)].astype(np.float64) for column in columns]
    low = min(float(column.min()) for column in numbers)
    high = max(float(column.max()) for column in numbers)

    ax = get_axes(ax, (7.0, 3.4))
    tidy(ax)
    x = np.linspace(low, high, _CURVE_POINTS)
    names = [escape(clean(name)) for name in comparison.names]
    n_curves = 1 if comparison.kind == "rows" else 2
    for number in range(n_curves):
        label = "both" if n_curves == 1 else names[number]
        ax.plot(
            x,
            comparison.curve(feature, x, side=number, output=position),
            color=_axes.SERIES[number],
            linestyle=_axes.DASHES[number],
            label=_axes.legend_label(label),
        )
    _draw_rows(
        ax,
        numbers,
        names,
        low=low,
        high=high,
        same=comparison.kind == "functions",
    )
    ax.set_xlabel(escape(clean(feature)), fontsize=NORMAL)
    ax.set_ylabel("contribution", fontsize=SMALL)
    ax.legend(fontsize=SMALL, frameon=False)
    return ax


def _draw_rows(
    ax: Axes,
    numbers: list[FloatArray],
    names: list[str],
    *,
    low: float,
    high: float,
    same: bool,
) -> None:
    """How the rows lie, as outlines at the foot of the axes."""
    edges = np.linspace(low, high, 31)
    shares = [np.histogram(column, edges)[0] / max(len(column), 1) for column in numbers]
    tallest = max(float(share.max()) for share in shares)
    bottom, top = ax.get_ylim()
    height = 0.28 * (top - bottom)
    foot = bottom - height
    for number, share in enumerate(shares[:1] if same else shares):
        heights = foot + height * 0.9 * share / tallest
        ax.stairs(
            heights,
            edges,
            baseline=foot,
            color=_axes.SERIES[number],
            linestyle=_axes.DASHES[number],
            linewidth=1.0,
            label=_axes.legend_label("rows" if same else f"rows of {names[number]}"),
        )
    ax.set_ylim(foot, top)


def _require_comparison(comparison: ComparisonLike) -> None:
    """Raises a TypeError for whatever is no comparison."""
    if not all(hasattr(comparison, name) for name in ("entries", "gap", "sides", "along")):
        raise TypeError(
            f"comparison must be what nobsp.compare returned, found {type(comparison).__name__}."
        )
