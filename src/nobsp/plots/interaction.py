"""What two features do only together: a surface, where there are rows.

And how strong it is for every two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nobsp._typing import AnyArray, BoolArray, FloatArray, TableLike
from nobsp.arguments import count, join_names, require_whole_number
from nobsp.numerics import evenly_spaced
from nobsp.plots import _axes, _lookup
from nobsp.plots._axes import NORMAL, SMALL, Axes, add_note, colour_bar, get_axes, tidy, turn_labels
from nobsp.plots._lookup import Explained, Output
from nobsp.plots.labels import decimals_for, format_number, short_labels, shorten, shorten_all
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.functions import Functions
from nobsp.tabular.lookup import Feature, LevelAxis, level_axes

# A masked array, which numpy has no type for that mypy could check.
Masked: TypeAlias = Any
Pair: TypeAlias = frozenset[str]

# How far from a row a surface is still shown, as a share of the axis.
_NEAR = 0.055
# Rows so far out would shrink everything else, and are left out of the picture.
_TAIL = 0.005
# Levels that can still be distinguished.
_MOST_LEVELS = 24
# Rows drawn as dots; more would hide the surface.
_MOST_DOTS = 400
# Cells of two categories that have room for a number each.
_MOST_NUMBERS = 64
# Points across a stripe of a category.
_STRIPE_POINTS = 9
# Multiples of it spread any number of rows evenly.
_GOLDEN_RATIO = 0.6180339887
# Labels across have room for so many characters; upwards for any number.
_ROOM_ACROSS = 40
_ROOM_UPWARDS = 10_000


@dataclass(frozen=True, eq=False)
class _Side:
    """One side of a surface."""

    feature: Feature
    # The levels of a category; None for numbers.
    axis: LevelAxis | None
    # Middles and edges of the cells.
    at: FloatArray
    edges: FloatArray
    # The rows along it, NaN for unknown levels.
    rows: FloatArray
    # How many cells from a row are shown.
    reach: float

    @property
    def is_category(self) -> bool:
        """Whether it has levels."""
        return self.axis is not None

    @property
    def width(self) -> float:
        """From the first edge to the last."""
        return float(self.edges[-1] - self.edges[0])

    def values(self, positions: FloatArray) -> AnyArray:
        """The feature's own values at some positions, one row each."""
        if self.axis is None:
            return positions[:, None]

        levels = self.axis.levels
        known = np.array(levels, dtype=object)[:, None] if isinstance(levels, tuple) else levels
        return np.asarray(known[positions.astype(int)])

    def holds(self, positions: FloatArray) -> BoolArray:
        """Whether positions lie between the first and the last edge."""
        return np.asarray((positions >= self.edges[0]) & (positions <= self.edges[-1]))


class _Strengths(NamedTuple):
    """How strongly features act together."""

    features: Sequence[str]
    # By pair, the strongest first.
    by_pair: Mapping[Pair, float]
    # Pairs that have a term of their own.
    fitted: set[Pair]


def interaction(
    explainer: Explained,
    pair: Iterable[int | str],
    *,
    output: Output = None,
    data: TableLike | None = None,
    points: int = 80,
    ax: Axes | None = None,
) -> Axes:
    """Draws what two features contribute only together, where there are rows.

    Places far from any row are hatched: nothing is known there. Lines follow equal contributions,
    solid above zero and dashed below. Sides of categories have one stripe per level. Along either
    side it averages out: what it does on average is in the curves.

    Args:
        explainer: A calibrated `NObSP`, a `Functions`, or an `Explanation`, for the
            functions behind it.
        pair: Two features, by name; the first runs along the bottom.
        output: Position or name of the output; may be left out where there is only one.
        data: Rows that show where the data is, as in `curves`; without any, the whole range is
            drawn.
        points: Points along each side of numbers.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(3, 16), ReLU(), Linear(16, 1))
        >>> explainer = NObSP(model, features=list("abc"), interactions=[("a", "b")])
        >>> explainer = explainer.fit(torch.randn(300, 3))
        >>> plots.interaction(explainer, ("b", "a")).get_xlabel()
        'b'
    """
    require_whole_number("points", points, least=2)
    drawn = _lookup.find_drawn(explainer, "interaction")
    functions = drawn.functions
    numbers = _pair_positions(functions, pair)
    term = tuple(functions.feature_names[number] for number in numbers)
    chosen = _lookup.one_output(output, functions.output_names, drawn.outputs)

    positions = _lookup.row_places(functions, drawn.rows if data is None else data)
    across, up = (
        _side(functions, number, positions[number] if positions else np.zeros(0), int(points))
        for number in numbers
    )
    grid_x, grid_y = np.meshgrid(across.at, up.at)
    function = functions.function(term, output=chosen)
    surface = function(across.values(grid_x.ravel()), up.values(grid_y.ravel()))
    surface = surface.reshape(grid_x.shape)
    is_near = _near_rows(across, up) if positions else np.ones_like(surface, dtype=bool)

    ax = get_axes(ax, (5.6, 4.4))
    tidy(ax)
    output_name = shorten(functions.output_names[chosen], 30)
    _draw_surface(ax, across, up, np.ma.masked_array(surface, ~is_near), output_name)
    _draw_rows(ax, across, up)
    _label_sides(ax, across, up, term)
    if not positions:
        add_note(ax, "rows are not known: parts may be without any")
    elif not is_near.all():
        add_note(ax, "hatched: no rows nearby")
    return ax


def _label_sides(ax: Axes, across: _Side, up: _Side, term: Sequence[str]) -> None:
    """Names of the two features, and of the levels of those that are categories."""
    across_label, up_label = shorten_all(term, 36)
    ax.set_xlabel(across_label, fontsize=NORMAL)
    ax.set_ylabel(up_label, fontsize=NORMAL)
    for axis, side, room in ((ax.xaxis, across, _ROOM_ACROSS), (ax.yaxis, up, _ROOM_UPWARDS)):
        if side.is_category:
            labels = shorten_all(side.feature.labels, 16)
            turn_labels(axis, side.at, labels, room=room, degrees=35)
    ax.set(xlim=across.edges[[0, -1]], ylim=up.edges[[0, -1]])


def _pair_positions(functions: Functions, pair: Iterable[int | str]) -> list[int]:
    """Positions of two features whose interaction was fitted."""
    names = [] if isinstance(pair, str) or not isinstance(pair, Iterable) else list(pair)
    if len(names) != 2:
        raise ValueError(f"pair must be two features, found {pair!r}.")

    positions = [
        _lookup.feature_position(name, functions.feature_names, argument="pair") for name in names
    ]
    term = tuple(functions.feature_names[position] for position in positions)
    fitted = [other for other in functions.terms if len(other) == 2]
    if set(term) not in map(set, fitted):
        available = f"fitted are {join_names(fitted)}" if fitted else "none was"
        raise ValueError(
            f"the pair {term!r} was not fitted; {available}. "
            f"Calibrate with interactions=[{term!r}]."
        )
    return positions


def _side(functions: Functions, number: int, rows: FloatArray, points: int) -> _Side:
    """The cells of a feature: one per level, or so many along its range."""
    feature = functions.features[number]
    axis = level_axes(functions).get(number)
    if axis is not None:
        return _category_side(feature, axis, rows)

    low, high = feature.ranges[0]
    finite = rows[np.isfinite(rows)]
    if len(finite):
        inner_low, inner_high = np.quantile(finite, [_TAIL, 1 - _TAIL])
        if inner_low < inner_high:
            low = float(inner_low)
            high = float(inner_high)
    edges = np.linspace(low, high if high > low else low + 1.0, points + 1)
    return _Side(
        feature=feature,
        axis=None,
        at=(edges[:-1] + edges[1:]) / 2,
        edges=edges,
        rows=rows,
        reach=_NEAR * points,
    )


def _category_side(feature: Feature, axis: LevelAxis, rows: FloatArray) -> _Side:
    """One cell per level."""
    if len(axis) > _MOST_LEVELS:
        raise ValueError(
            f"feature {feature.name!r} has {len(axis)} levels; "
            f"at most {_MOST_LEVELS} can be distinguished."
        )
    positions = np.arange(len(axis), dtype=np.float64)
    return _Side(
        feature=feature,
        axis=axis,
        at=positions,
        edges=np.append(positions - 0.5, positions[-1] + 0.5),
        rows=rows,
        reach=0.0,
    )


def _near_rows(across: _Side, up: _Side) -> BoolArray:
    """Which cells have a row in them or nearby."""
    from scipy.ndimage import distance_transform_edt

    known = np.isfinite(across.rows) & np.isfinite(up.rows)
    counts, _, _ = np.histogram2d(up.rows[known], across.rows[known], bins=[up.edges, across.edges])
    has_rows = np.asarray(counts > 0)
    if not has_rows.any():
        return has_rows

    # In units of how far a row reaches; from one level to another it does not.
    units = [1.0 / (side.reach or 1e-6) for side in (up, across)]
    return np.asarray(distance_transform_edt(~has_rows, sampling=units) <= 1.0)


def _draw_surface(ax: Axes, across: _Side, up: _Side, surface: Masked, output: str) -> None:
    """The surface in colour on a hatched ground, with lines of equal contributions or numbers."""
    _draw_ground(ax, across, up)
    largest = (float(np.abs(surface).max()) if surface.count() else 0.0) or 1.0
    mesh = ax.pcolormesh(
        across.edges,
        up.edges,
        surface,
        cmap=_axes.blend(_axes.AGAINST_TO_FOR),
        vmin=-largest,
        vmax=largest,
        zorder=1,
    )
    mesh.set(rasterized=True, gid="surface")
    colour_bar(ax, mesh, f"joint effect on {output}")

    for side, draw_line in ((across, ax.axvline), (up, ax.axhline)):
        if side.is_category:
            for edge in side.edges[1:-1]:
                draw_line(edge, color="white", linewidth=1.5, zorder=2)

    if not (across.is_category and up.is_category):
        _draw_lines(ax, across, up, surface, largest)
    elif surface.size <= _MOST_NUMBERS:
        _write_numbers(ax, surface, largest)


def _draw_ground(ax: Axes, across: _Side, up: _Side) -> None:
    """A hatched ground, which shows where nothing is known."""
    from matplotlib.patches import Rectangle

    corner = (across.edges[0], up.edges[0])
    empty, lines = _axes.EMPTY
    ground = Rectangle(corner, across.width, up.width, facecolor=empty, edgecolor=lines)
    ground.set(
        hatch="///",
        linewidth=0,
        zorder=0,
        gid="no rows",
    )
    ax.add_patch(ground)


def _write_numbers(ax: Axes, surface: Masked, largest: float) -> None:
    """The joint effect of every two levels, in their cell."""
    decimals = decimals_for([largest])
    known = np.argwhere(~np.ma.getmaskarray(surface))
    for down, right in known:
        value = float(surface[down, right])
        label = format_number(value, decimals, "+")
        text = ax.text(
            right,
            down,
            label,
            ha="center",
            va="center",
            fontsize=SMALL,
        )
        text.set_color("white" if abs(value) > 0.6 * largest else "black")


def _draw_lines(ax: Axes, across: _Side, up: _Side, surface: Masked, largest: float) -> None:
    """Lines of equal contributions, dashed below zero; stripe by stripe along a category."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(9, symmetric=True).tick_values(-largest, largest)
    levels = [level for level in ticks if 1e-9 * largest < abs(level) < largest]
    for x, y, part in _stripes(across, up, surface):
        if not part.count():
            continue
        inside = [level for level in levels if part.min() < level < part.max()]
        if inside:
            lines = ax.contour(
                x, y, part, levels=inside, colors="#333333", linewidths=0.7, zorder=2
            )
            ax.clabel(
                lines,
                fontsize=SMALL - 1,
                fmt=_signed,
                inline_spacing=2,
            )


def _signed(level: float) -> str:
    """A number with its sign, a minus as wide as a plus."""
    return f"{level:+g}".replace("-", "−")


def _stripes(
    across: _Side, up: _Side, surface: Masked
) -> list[tuple[FloatArray, FloatArray, Masked]]:
    """Parts of a surface with where they are: all of it, or one per level of a category."""
    inside = np.linspace(-0.5, 0.5, _STRIPE_POINTS)
    if up.is_category:
        return [
            (across.at, level + inside, np.ma.stack([line] * _STRIPE_POINTS))
            for level, line in enumerate(surface)
        ]
    if across.is_category:
        return [
            (level + inside, up.at, np.ma.stack([line] * _STRIPE_POINTS, 1))
            for level, line in enumerate(surface.T)
        ]
    return [(across.at, up.at, surface)]


def _draw_rows(ax: Axes, across: _Side, up: _Side) -> None:
    """Some rows, as dots; beside each other where they share a level."""
    if len(across.rows) == 0 or (across.is_category and up.is_category):
        return

    rows = evenly_spaced(len(across.rows), _MOST_DOTS)
    beside = ((np.arange(len(rows)) * _GOLDEN_RATIO) % 1.0 - 0.5) * 0.6
    x = across.rows[rows]
    if across.is_category:
        x = x + beside
    y = up.rows[rows]
    if up.is_category:
        y = y + beside

    inside = across.holds(x) & up.holds(y)
    [dots] = ax.plot(x[inside], y[inside], ".", markersize=2.2, color="black")
    dots.set(alpha=0.35, zorder=3, gid="rows")


def interaction_matrix(
    what: Explained, *, output: Output = None, max_display: int = 12, ax: Axes | None = None
) -> Axes:
    """Draws how strong the interaction of every two features is, as a share of an output's spread.

    A framed cell is a pair that was fitted, and so has a term of its own. Features in the strongest
    pairs come first.

    Args:
        what: An `NObSP` or a `Functions`: every pair as screened, for the output it matters
            to most. Or an `Explanation`: the fitted pairs, standard deviation of their
            contributions over that of the predictions.
        output: Position or name of the output, for an `Explanation`; the largest of all when None.
        max_display: Most features.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(3, 16), ReLU(), Linear(16, 1))
        >>> len(plots.interaction_matrix(NObSP(model).fit(torch.randn(300, 3))).get_xticklabels())
        2
    """
    require_whole_number("max_display", max_display)
    strengths = _measure_strengths(what, output)
    shown = _strongest_features(strengths, max(max_display, 2))
    matrix = _below_diagonal(shown, strengths.by_pair)
    largest = float(np.nanmax(matrix)) or 1.0

    side = 0.42 * len(shown)
    ax = get_axes(ax, (side + 3.0, side + 1.5))
    shades = _axes.blend(_axes.NOTHING_TO_MUCH)
    mesh = ax.imshow(
        matrix,
        cmap=shades,
        vmin=0.0,
        vmax=largest,
        aspect="equal",
    )
    for down, right in np.argwhere(~np.isnan(matrix)):
        is_fitted = frozenset((shown[right], shown[down + 1])) in strengths.fitted
        _draw_strength(ax, down, right, matrix[down, right], largest=largest, framed=is_fitted)

    labels = short_labels(strengths.features, 26)
    names = [labels[name] for name in shown]
    turn_labels(ax.xaxis, range(len(matrix)), names[:-1], room=0, degrees=40)
    ax.set_yticks(range(len(matrix)), labels=names[1:])
    ax.tick_params(length=0, labelsize=NORMAL)
    ax.spines[:].set_visible(False)
    decimals = 0 if largest > 0.04 else 1
    colour_bar(ax, mesh, "share of spread", format=lambda share, _: f"{share:.{decimals}%}")

    note = "in percent, framed: fitted"
    if len(shown) < len(strengths.features):
        note += f", {len(shown)} of {count(len(strengths.features), 'feature')}"
    add_note(ax, note)
    return ax


def _strongest_features(strengths: _Strengths, most: int) -> list[str]:
    """Features in the order of the strongest pairs, as many as are shown."""
    shown: list[str] = []
    for pair in strengths.by_pair:
        new = sorted(pair - set(shown), key=strengths.features.index)
        if len(shown) + len(new) <= most:
            shown += new
    return shown


def _below_diagonal(features: Sequence[str], strengths: Mapping[Pair, float]) -> FloatArray:
    """Strengths of all pairs; the first feature has no row, and the last no column."""
    size = len(features) - 1
    matrix = np.full((size, size), np.nan)
    for (right, first), (down, second) in combinations(enumerate(features), 2):
        matrix[down - 1, right] = strengths.get(frozenset((first, second)), np.nan)
    return matrix


def _draw_strength(
    ax: Axes, down: int, right: int, strength: float, *, largest: float, framed: bool
) -> None:
    """The strength of a pair in percent, in a frame where it was fitted."""
    from matplotlib.patches import Rectangle

    decimals = 1 if strength < 0.095 else 0
    text = ax.text(right, down, f"{100 * strength:.{decimals}f}", ha="center", va="center")
    text.set(color="white" if strength > 0.55 * largest else "black", fontsize=SMALL)
    if framed:
        text.set_fontweight("bold")
        frame = Rectangle((right - 0.46, down - 0.46), 0.92, 0.92, fill=False)
        frame.set(edgecolor=_axes.PAIR, linewidth=2.0, gid="fitted")
        ax.add_patch(frame)


def _measure_strengths(what: Explained, output: Output) -> _Strengths:
    """Strengths of the fitted pairs over rows, or of all pairs as they were screened."""
    if isinstance(what, Explanation):
        ex = _lookup.require_explanation(what, "interaction_matrix")
        return _strengths_over_rows(_lookup.known_rows(ex, residual="interaction_matrix"), output)

    functions = _lookup.find_functions(what, "interaction_matrix")
    if output is not None:
        raise ValueError(
            "output cannot be chosen for screened pairs; pass an Explanation to look at one output."
        )
    return _screened_strengths(functions)


def _strengths_over_rows(ex: Explanation, output: Output) -> _Strengths:
    """Spread of each fitted pair's contributions, as a share of that of the predictions."""
    outputs = _lookup.some_outputs(output, ex.output_names)
    spread = ex.predictions[:, outputs].std(0)
    varies = spread > 0
    strengths = {}
    for position, term in enumerate(ex.terms):
        if len(term) == 2:
            effect = ex.values[:, position, outputs].std(0)
            shares = effect[varies] / spread[varies]
            strengths[frozenset(term)] = float(shares.max(initial=0.0))

    if not strengths:
        raise ValueError(
            'the explanation has no pairs; calibrate with interactions="auto", a number or a list.'
        )
    return _Strengths(ex.feature_names, _strongest_first(strengths), set(strengths))


def _screened_strengths(functions: Functions) -> _Strengths:
    """How strong every pair was when interactions were looked for."""
    if not functions.strengths:
        raise ValueError(
            'no pairs were screened; calibrate with interactions="auto", or pass an Explanation.'
        )

    names = functions.feature_names
    strengths = {
        frozenset(names[feature] for feature in pair): strength
        for pair, strength in functions.strengths.items()
    }
    fitted = {frozenset(names[feature] for feature in table.features) for table in functions.tables}
    return _Strengths(names, _strongest_first(strengths), fitted)


def _strongest_first(strengths: Mapping[Pair, float]) -> dict[Pair, float]:
    """The same, in the order of strength."""
    return dict(sorted(strengths.items(), key=lambda item: -item[1]))
