"""What two features do only together: a surface, where there are rows; and how strong it is for every two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count, join_names, require_whole_number
from nobsp.plots import _axes, _lookup
from nobsp.plots._axes import NORMAL, SMALL, Axes, add_note, colour_bar, get_axes, tidy, turn_labels
from nobsp.plots._lookup import Array, Output
from nobsp.plots.labels import decimals_for, format_number, short_labels, shorten, shorten_all
from nobsp.tabular.explanation import Explanation, output_position
from nobsp.tabular.lookup import Feature, LevelAxis

_NEAR = 0.055  # how far from a row a surface is still shown, as a share of the axis
_TAIL = 0.005  # rows so far out would shrink everything else, and are left out of the picture
_MOST_LEVELS = 24
_MOST_DOTS = 400


@dataclass(frozen=True, eq=False)
class _Side:
    """One side of a surface: its feature, levels if any, cells, and the rows along it (NaN for unknown levels)."""

    feature: Feature
    axis: LevelAxis | None
    at: Array
    edges: Array
    rows: Array
    reach: float  # how many cells from a row are shown

    def values(self, places: Array) -> NDArray[Any]:
        """The feature's own values at some places, one row each."""
        if self.axis is None:
            return places[:, None]
        levels = self.axis.levels
        known = np.array(levels, dtype=object)[:, None] if isinstance(levels, tuple) else levels
        return np.asarray(known[places.astype(int)])


def interaction(
    explainer: Any,
    pair: Any,
    *,
    output: Output = None,
    data: Any = None,
    points: int = 80,
    ax: Axes | None = None,
) -> Axes:
    """Draws the interaction of two features, what they contribute only together, where there are rows.

    Places far from any row are hatched: nothing is known there. Lines follow equal contributions, solid above zero and
    dashed below. Sides of categories have one stripe per level. Along either side it averages out: what it does on
    average is in the curves.

    Args:
        explainer: A calibrated `NObSP`, a `CompiledExplainer`, or an `Explanation`, for the functions behind it.
        pair: Two features, by name; the first runs along the bottom.
        output: Position or name of the output; may be left out where there is only one.
        data: Rows that show where the data is, as in `curves`; without any, the whole range is drawn.
        points: Points along each side of numbers.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> explainer = NObSP(model, features=list("abc"), interactions=[("a", "b")]).fit(torch.randn(300, 3))
        >>> plots.interaction(explainer, ("b", "a")).get_xlabel()
        'b'
    """
    require_whole_number("points", points, least=2)
    functions, rows, own = _lookup.find_drawn(explainer, "interaction")
    if isinstance(pair, str) or not isinstance(pair, Iterable) or len(tuple(pair)) != 2:
        raise ValueError(f"pair must be two features, found {pair!r}.")
    ends = [output_position(one, functions.feature_names, "feature") for one in pair]
    term = tuple(functions.feature_names[k] for k in ends)
    pairs = [one for one in functions.terms if len(one) == 2]
    if set(term) not in map(set, pairs):
        have = f"fitted are {join_names(pairs)}" if pairs else "none was"
        raise ValueError(
            f"the pair {term!r} was not fitted; {have}. Calibrate with interactions=[{term!r}]."
        )
    chosen = _lookup.one_output(output, functions.output_names, own)
    places, axes = (
        _lookup.row_places(functions, rows if data is None else data),
        functions.level_axes,
    )
    across, up = (
        _side(functions.features[k], axes.get(k), places[k] if places else np.zeros(0), int(points))
        for k in ends
    )
    right, top = (grid.ravel() for grid in np.meshgrid(across.at, up.at))
    values = functions.function(term, output=chosen)(across.values(right), up.values(top))
    surface = values.reshape(len(up.at), len(across.at))
    near = _near(across, up) if places else np.ones_like(surface, dtype=bool)
    ax = get_axes(ax, (5.6, 4.4))
    tidy(ax)
    _draw_surface(
        ax,
        across,
        up,
        np.ma.masked_array(surface, ~near),
        shorten(functions.output_names[chosen], 30),
    )
    _draw_rows(ax, across, up)
    for axis, side, name in zip(
        (ax.xaxis, ax.yaxis), (across, up), shorten_all(term, 36), strict=True
    ):
        axis.set_label_text(name, fontsize=NORMAL)
        if side.axis is not None:
            room = (
                40 if side is across else 10_000
            )  # upwards there is room for any number of labels
            turn_labels(axis, side.at, shorten_all(side.feature.labels, 16), room, 35)
    ax.set(xlim=across.edges[[0, -1]], ylim=up.edges[[0, -1]])
    if not places:
        add_note(ax, "rows are not known: parts may be without any")
    elif not near.all():
        add_note(ax, "hatched: no rows nearby")
    return ax


def _side(feature: Feature, axis: LevelAxis | None, rows: Array, points: int) -> _Side:
    if axis is not None:
        if len(axis) > _MOST_LEVELS:
            most = f"at most {_MOST_LEVELS} can be distinguished"
            raise ValueError(f"feature {feature.name!r} has {len(axis)} levels; {most}.")
        places = np.arange(len(axis), dtype=np.float64)
        return _Side(feature, axis, places, np.append(places - 0.5, places[-1] + 0.5), rows, 0.0)
    low, high = feature.ranges[0]
    finite = rows[np.isfinite(rows)]
    if len(finite):
        inner = np.quantile(finite, [_TAIL, 1 - _TAIL])
        low, high = (float(inner[0]), float(inner[1])) if inner[0] < inner[1] else (low, high)
    edges = np.linspace(low, high if high > low else low + 1.0, points + 1)
    return _Side(feature, None, (edges[:-1] + edges[1:]) / 2, edges, rows, _NEAR * points)


def _near(across: _Side, up: _Side) -> NDArray[np.bool_]:
    """Which cells have a row in them or nearby."""
    from scipy.ndimage import distance_transform_edt

    known = np.isfinite(across.rows) & np.isfinite(up.rows)
    held = np.histogram2d(up.rows[known], across.rows[known], bins=[up.edges, across.edges])[0] > 0
    if not held.any():
        return held
    # In units of how far a row reaches; from one level to another it does not.
    units = [1.0 / (side.reach or 1e-6) for side in (up, across)]
    return np.asarray(distance_transform_edt(~held, sampling=units) <= 1.0)


def _draw_surface(ax: Axes, across: _Side, up: _Side, surface: Any, output: str) -> None:
    from matplotlib.patches import Rectangle

    width, height = across.edges[-1] - across.edges[0], up.edges[-1] - up.edges[0]
    empty, lines = _axes.EMPTY
    ground = Rectangle(
        (across.edges[0], up.edges[0]), width, height, facecolor=empty, edgecolor=lines, hatch="///"
    )
    ground.set(linewidth=0, zorder=0, gid="no rows")
    ax.add_patch(ground)
    largest = (float(np.abs(surface).max()) if surface.count() else 0.0) or 1.0
    shades = _axes.blend(_axes.AGAINST_TO_FOR)
    mesh = ax.pcolormesh(
        across.edges, up.edges, surface, cmap=shades, vmin=-largest, vmax=largest, zorder=1
    )
    mesh.set(rasterized=True, gid="surface")
    colour_bar(ax, mesh, f"joint effect on {output}")
    for side, line in ((across, ax.axvline), (up, ax.axhline)):
        for edge in side.edges[1:-1] if side.axis is not None else ():
            line(edge, color="white", linewidth=1.5, zorder=2)
    if across.axis is None or up.axis is None:
        _draw_lines(ax, across, up, surface, largest)
    elif surface.size <= 64:
        for down, right in zip(*np.nonzero(~np.ma.getmaskarray(surface)), strict=True):
            value = surface[down, right]
            label = format_number(float(value), decimals_for([largest]), "+")
            text = ax.text(right, down, label, ha="center", va="center", fontsize=SMALL)
            text.set_color("white" if abs(value) > 0.6 * largest else "black")


def _draw_lines(ax: Axes, across: _Side, up: _Side, surface: Any, largest: float) -> None:
    """Lines of equal contributions, dashed below zero; stripe by stripe along a category."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(9, symmetric=True).tick_values(-largest, largest)
    levels = [level for level in ticks if 1e-9 * largest < abs(level) < largest]
    stripes: list[tuple[Array, Array, Any]] = [(across.at, up.at, surface)]
    inside = np.linspace(-0.5, 0.5, 9)  # across a stripe
    if up.axis is not None:
        stripes = [
            (across.at, k + inside, np.ma.stack([line] * 9)) for k, line in enumerate(surface)
        ]
    elif across.axis is not None:
        stripes = [
            (k + inside, up.at, np.ma.stack([line] * 9, 1)) for k, line in enumerate(surface.T)
        ]
    for x, y, part in stripes:
        drawn = [level for level in levels if part.count() and part.min() < level < part.max()]
        if drawn:
            lines = ax.contour(x, y, part, levels=drawn, colors="#333333", linewidths=0.7, zorder=2)
            ax.clabel(
                lines,
                fontsize=SMALL - 1,
                fmt=lambda level: f"{level:+g}".replace("-", "−"),
                inline_spacing=2,
            )


def _draw_rows(ax: Axes, across: _Side, up: _Side) -> None:
    """Some rows, as dots; beside each other where they share a level."""
    if len(across.rows) == 0 or (across.axis is not None and up.axis is not None):
        return
    some = np.linspace(0, len(across.rows) - 1, min(len(across.rows), _MOST_DOTS)).astype(int)
    # The golden ratio spreads any number of rows evenly.
    beside = ((np.arange(len(some)) * 0.6180339887) % 1.0 - 0.5) * 0.6
    x, y = (side.rows[some] + (beside if side.axis is not None else 0.0) for side in (across, up))
    inside = (
        (x >= across.edges[0]) & (x <= across.edges[-1]) & (y >= up.edges[0]) & (y <= up.edges[-1])
    )
    ax.plot(
        x[inside], y[inside], ".", markersize=2.2, color="black", alpha=0.35, zorder=3, gid="rows"
    )


def interaction_matrix(
    what: Any, *, output: Output = None, max_display: int = 12, ax: Axes | None = None
) -> Axes:
    """Draws how strong the interaction of every two features is, as a share of an output's spread.

    A framed cell is a pair that was fitted, and so has a term of its own. Features in the strongest pairs come first.

    Args:
        what: An `NObSP` or a `CompiledExplainer`: every pair as screened, for the output it matters to most. Or an
            `Explanation`: the fitted pairs, standard deviation of their contributions over that of the predictions.
        output: Position or name of the output, for an `Explanation`; the largest of all when None.
        max_display: Most features.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> len(plots.interaction_matrix(NObSP(model).fit(torch.randn(300, 3))).get_xticklabels())
        2
    """
    from matplotlib.patches import Rectangle

    require_whole_number("max_display", max_display)
    features, pairs, fitted = _strengths(what, output)
    shown: list[str] = []
    for pair in pairs:
        new = sorted(pair - set(shown), key=features.index)
        if len(shown) + len(new) <= max(max_display, 2):
            shown += new
    # Below the diagonal: the first feature has no row, and the last no column.
    matrix = np.full((len(shown) - 1, len(shown) - 1), np.nan)
    for (right, first), (down, second) in combinations(enumerate(shown), 2):
        matrix[down - 1, right] = pairs.get(frozenset((first, second)), np.nan)
    largest = float(np.nanmax(matrix)) or 1.0
    side = 0.42 * len(shown)
    ax = get_axes(ax, (side + 3.0, side + 1.5))
    mesh = ax.imshow(
        matrix, cmap=_axes.blend(_axes.NOTHING_TO_MUCH), vmin=0.0, vmax=largest, aspect="equal"
    )
    for down, right in zip(*np.nonzero(~np.isnan(matrix)), strict=True):
        strength = matrix[down, right]
        cell = ax.text(
            right, down, f"{100 * strength:.{int(strength < 0.095)}f}", ha="center", va="center"
        )
        cell.set(color="white" if strength > 0.55 * largest else "black", fontsize=SMALL)
        if frozenset((shown[right], shown[down + 1])) in fitted:
            cell.set_fontweight("bold")
            frame: dict[str, Any] = {"edgecolor": _axes.PAIR, "linewidth": 2.0, "gid": "fitted"}
            ax.add_patch(Rectangle((right - 0.46, down - 0.46), 0.92, 0.92, fill=False, **frame))
    labels = short_labels(features, 26)
    names = [labels[name] for name in shown]
    turn_labels(ax.xaxis, range(len(matrix)), names[:-1], 0, 40)
    ax.set_yticks(range(len(matrix)), labels=names[1:])
    ax.tick_params(length=0, labelsize=NORMAL)
    ax.spines[:].set_visible(False)
    decimals = 0 if largest > 0.04 else 1
    colour_bar(ax, mesh, "share of spread", format=lambda share, _: f"{share:.{decimals}%}")
    some = (
        f", {len(shown)} of {count(len(features), 'feature')}" if len(shown) < len(features) else ""
    )
    add_note(ax, f"in percent, framed: fitted{some}")
    return ax


def _strengths(
    what: Any, output: Output
) -> tuple[tuple[str, ...], dict[frozenset[str], float], set[Any]]:
    """Features, how strongly pairs of them act together, strongest first, and which pairs have a term."""
    if isinstance(what, Explanation):
        ex = _lookup.known_rows(
            _lookup.require_explanation(what, "interaction_matrix"), residual="interaction_matrix"
        )
        names, outputs = ex.feature_names, _lookup.some_outputs(output, ex.output_names)
        spread = ex.predictions[:, outputs].std(0)
        found = {}
        for position, term in enumerate(ex.terms):
            if len(term) == 2:
                effect = ex.values[:, position, outputs].std(0)
                found[frozenset(term)] = float(
                    (effect[spread > 0] / spread[spread > 0]).max(initial=0.0)
                )
        if not found:
            raise ValueError(
                'the explanation has no pairs; calibrate with interactions="auto", a number or a list.'
            )
        fitted = set(found)
    else:
        functions = _lookup.find_functions(what, "interaction_matrix")
        if output is not None:
            raise ValueError(
                "output cannot be chosen for screened pairs; pass an Explanation to look at one output."
            )
        if not functions.strengths:
            raise ValueError(
                'no pairs were screened; calibrate with interactions="auto", or pass an Explanation.'
            )
        names = functions.feature_names
        found = {
            frozenset(names[k] for k in pair): strength
            for pair, strength in functions.strengths.items()
        }
        fitted = {frozenset(names[k] for k in table.features) for table in functions.tables}
    return names, dict(sorted(found.items(), key=lambda item: -item[1])), fitted
