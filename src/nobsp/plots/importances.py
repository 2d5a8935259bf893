"""What matters: the mean size of contributions per feature, and those of all rows as a swarm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import AnyArray, FloatArray
from nobsp.arguments import count, free_name, require_whole_number
from nobsp.numerics import evenly_spaced
from nobsp.plots import _axes, _lookup, labels
from nobsp.plots._axes import Axes, Look
from nobsp.plots._lookup import Explained, Output
from nobsp.tabular.explanation import Explanation

if TYPE_CHECKING:
    from matplotlib.collections import PathCollection

_RESIDUAL = Look(_axes.RESIDUAL, _axes.RESIDUAL_HATCH)
# Rows that a swarm still shows one by one.
_MOST_POINTS = 2000
# Bins of a swarm: points in the same one lie beside each other.
_SWARM_BINS = 160
# A bin of so many points fills a swarm's height; fewer stay closer together.
_FULL_BIN = 16.0


@dataclass(frozen=True)
class _Importances:
    """Mean sizes of what features contribute."""

    features: Sequence[str]
    outputs: Sequence[str]
    # Of main effects alone, and with all interactions, (features, outputs).
    main: FloatArray
    total: FloatArray
    # Per output; NaN where it is not known.
    residual: FloatArray

    def of_outputs(self, chosen: Sequence[int]) -> _Importances:
        """Those of some outputs; of more than can be told apart, their sum."""
        total = self.total[:, chosen]
        residual = self.residual[chosen]
        names = [self.outputs[position] for position in chosen]
        if len(chosen) > len(_axes.SERIES):
            total = total.sum(1, keepdims=True)
            residual = residual.sum(keepdims=True)
            names = [count(len(chosen), "output")]
        return _Importances(
            features=self.features,
            outputs=names,
            main=self.main[:, chosen],
            total=total,
            residual=residual,
        )


class _Swarm(NamedTuple):
    """One line of points."""

    name: str
    values: FloatArray
    # From 0 to 1, the colours of the points; None for grey ones.
    ranks: FloatArray | None


def importance(
    what: Explained, *, output: Output = None, max_display: int = 15, ax: Axes | None = None
) -> Axes:
    """Draws how much each feature contributes on average, strongest first.

    The bar is the mean absolute value of everything the feature takes part in, its main effect and
    its interactions together. The diamond is that of the main effect alone, which may also be more.
    With several outputs the bars are stacked, and the diamond is the sum. The residual's own size
    stands below, as far as it is known.

    Args:
        what: An `Explanation`, measured on its rows; or an `NObSP` or `Functions`, on
            calibration rows.
        output: Position or name of the output; all when None.
        max_display: Most features.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(3, 16), ReLU(), Linear(16, 1))
        >>> ax = plots.importance(NObSP(model).fit(torch.randn(300, 3)))
        >>> len(ax.get_yticklabels())
        3
    """
    require_whole_number("max_display", max_display)
    measured = _measure(what)
    sizes = measured.of_outputs(_lookup.some_outputs(output, measured.outputs))
    names = sizes.outputs

    order = np.argsort(-sizes.total.sum(1), kind="stable")[:max_display]
    has_residual = not np.isnan(sizes.residual).any()
    ax = _axes.get_axes(ax, (6.6, 0.3 * (len(order) + has_residual) + 1.2))
    _axes.tidy(ax, grid=True)
    ends = _draw_totals(ax, sizes.total[order], names)
    residual_end = 0.0
    if has_residual:
        residual_end = _draw_residual(ax, len(order), sizes.residual)
    main_alone = sizes.main.sum(1)[order]
    if not np.allclose(main_alone, ends, rtol=1e-9, atol=0.0):
        _draw_main(ax, main_alone, ends)
    if len(ax.get_legend_handles_labels()[1]) > 1:
        ax.legend(loc="lower right", frameon=False, fontsize=_axes.SMALL)

    short = labels.short_labels(sizes.features, 34)
    rows = [short[sizes.features[feature]] for feature in order]
    if has_residual:
        rows.append(free_name("residual", rows))
    _axes.label_rows(ax, rows)
    longest = max(float(ends.max()), float(main_alone.max()), residual_end)
    ax.set_xlim(0.0, longest * 1.06 or 1.0)
    subject = f" to {labels.shorten(names[0], 24)}" if len(names) == 1 else ", summed over outputs"
    ax.set_xlabel(f"mean |contribution|{subject}", fontsize=_axes.NORMAL)
    if len(order) < len(sizes.features):
        features = count(len(sizes.features), "feature")
        _axes.add_note(ax, f"the {len(order)} strongest of {features}")
    return ax


def _measure(what: Explained) -> _Importances:
    """Sizes over the rows of an explanation, or as they were when the functions were calibrated."""
    if isinstance(what, Explanation):
        ex = _lookup.known_rows(_lookup.require_explanation(what, "importance"))
        return _Importances(
            features=ex.feature_names,
            outputs=ex.output_names,
            main=np.abs(ex.order(1).total()).mean(0),
            total=np.abs(ex.total()).mean(0),
            residual=np.abs(ex.residual).mean(0),
        )

    functions = _lookup.find_functions(what, "importance")
    return _Importances(
        features=functions.feature_names,
        outputs=functions.output_names,
        main=functions.importances["main"],
        total=functions.importances["total"],
        residual=np.full(len(functions.output_names), np.nan),
    )


def _draw_totals(ax: Axes, total: FloatArray, names: Sequence[str]) -> FloatArray:
    """A bar per feature, outputs stacked; returns where the bars end."""
    positions = np.arange(len(total))
    ends = np.zeros(len(total))
    for number, name in enumerate(names):
        label = labels.shorten(name, 24) if len(names) > 1 else "with its interactions"
        look = Look(_axes.SERIES[number], _axes.HATCHES[number])
        _axes.bars(
            ax,
            positions,
            total[:, number],
            left=ends,
            look=look,
            label=_axes.legend_label(label),
        )
        ends = ends + total[:, number]
    return ends


def _draw_residual(ax: Axes, y: int, residual: FloatArray) -> float:
    """The residuals of the outputs, stacked; returns where they end."""
    end = 0.0
    for size in residual:
        _axes.bars(
            ax,
            y,
            size,
            left=end,
            look=_RESIDUAL,
            gid="residual",
        )
        end += float(size)
    return end


def _draw_main(ax: Axes, alone: FloatArray, ends: FloatArray) -> None:
    """A diamond per feature for its main effect alone, tied to the end of its bar."""
    positions = np.arange(len(alone))
    nearer = np.minimum(ends, alone)
    farther = np.maximum(ends, alone)
    ax.hlines(positions, nearer, farther, color=_axes.MUTED, zorder=3)

    [marks] = ax.plot(
        alone,
        positions,
        "D",
        zorder=4,
        label="main effect alone",
        gid="main",
    )
    marks.set(
        color=_axes.text_colour(ax),
        markersize=5.5,
        markerfacecolor="white",
        markeredgewidth=1.3,
    )


def beeswarm(
    ex: Explanation, *, output: Output = None, max_display: int = 12, ax: Axes | None = None
) -> Axes:
    """Draws every row's contributions: a swarm per term, strongest first, and one of residuals.

    Each point is a row. Main effects and interactions are ordered by their own mean absolute
    contribution. A point's colour, from dark to light, is the feature's value from low to high, by
    rank; points of categories, groups and interactions are grey.

    Args:
        ex: An explanation.
        output: Position or name of the output; may be left out where there is only one.
        max_display: Most terms.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(3, 16), ReLU(), Linear(16, 1))
        >>> X = torch.randn(300, 3)
        >>> plots.beeswarm(NObSP(model).fit(X)(X)).get_yticklabels()[-1].get_text()
        'residual'
    """
    require_whole_number("max_display", max_display)
    ex = _lookup.known_rows(_lookup.require_explanation(ex, "beeswarm"))
    chosen = _lookup.one_output(output, ex.output_names)
    sizes = np.abs(ex.values[:, :, chosen]).mean(0)
    order = np.argsort(-sizes, kind="stable")[:max_display]
    rows = evenly_spaced(len(ex), _MOST_POINTS)
    swarms = _swarms(ex, chosen, order, rows)

    ax = _axes.get_axes(ax, (7.4, 0.42 * len(swarms) + 1.2))
    _axes.tidy(ax)
    ax.axvline(
        0.0,
        color=_axes.MUTED,
        linewidth=0.8,
        zorder=0,
    )
    shades = _draw_swarms(ax, swarms, terms=len(order))
    _axes.label_rows(ax, [swarm.name for swarm in swarms])
    name = labels.shorten(ex.output_names[chosen], 40)
    ax.set_xlabel(f"contribution to {name}", fontsize=_axes.NORMAL)
    if shades is not None:
        bar = _axes.colour_bar(ax, shades, "", ticks=[0.0, 1.0])
        bar.ax.set_yticklabels(["low", "high"])
        bar.set_label("value of the feature", fontsize=_axes.SMALL, labelpad=-12)

    notes = []
    if len(order) < len(ex.terms):
        notes.append(f"the {len(order)} strongest of {count(len(ex.terms), 'term')}")
    if len(rows) < len(ex):
        notes.append(f"{len(rows):,} of {count(len(ex), 'row')}")
    _axes.add_note(ax, ", ".join(notes))
    return ax


def _swarms(
    ex: Explanation, output: int, order: NDArray[np.intp], rows: NDArray[np.intp]
) -> list[_Swarm]:
    """A swarm per term in this order, and one of the residual where it is known."""
    terms = [ex.terms[position] for position in order]
    names = labels.term_labels(terms, names=ex.feature_names)
    columns = _lookup.feature_values(ex)
    swarms = []
    for position, term, name in zip(order, terms, names, strict=True):
        ranks = _ranks(columns[term[0]], rows) if len(term) == 1 else None
        swarms.append(_Swarm(name, ex.values[rows, position, output], ranks))

    residual = ex.residual[:, output]
    if not np.isnan(residual).any():
        swarms.append(_Swarm(free_name("residual", names), residual[rows], None))
    return swarms


def _draw_swarms(ax: Axes, swarms: Sequence[_Swarm], *, terms: int) -> PathCollection | None:
    """All points; returns those of the last swarm in colour, for the colour bar."""
    reach = max((float(np.abs(swarm.values).max()) for swarm in swarms), default=1.0) or 1.0
    points = len(swarms[0].values) if swarms else 1
    size = float(np.clip(4000.0 / points, 5.0, 18.0))
    coloured = None
    for number, swarm in enumerate(swarms):
        y = number + _spread_out(swarm.values, 2 * reach)
        drawn = ax.scatter(
            swarm.values,
            y,
            s=size,
            linewidths=0,
            rasterized=True,
            zorder=2,
            gid="residual" if number == terms else "term",
        )
        if swarm.ranks is None:
            drawn.set_color(_axes.RESIDUAL)
        else:
            drawn.set(
                array=swarm.ranks,
                cmap=_axes.blend(_axes.LOW_TO_HIGH),
                clim=(0.0, 1.0),
            )
            coloured = drawn

    return coloured


def _ranks(column: AnyArray | None, rows: NDArray[np.intp]) -> FloatArray | None:
    """A feature's values in some rows as ranks from 0 to 1; None for what has no order."""
    from scipy.stats import rankdata

    if column is None or isinstance(column[0], str):
        return None
    values = _lookup.as_numbers(column)
    if values is None or not np.isfinite(values).all() or np.ptp(values) == 0:
        return None
    return np.asarray((rankdata(values)[rows] - 1) / (len(values) - 1))


def _spread_out(values: FloatArray, width: float) -> FloatArray:
    """Where to put points of about the same value, so that they lie beside each other.

    −0.4 to 0.4.
    """
    bins = np.floor(values / width * _SWARM_BINS).astype(int)
    _, bin_of_point, counts = np.unique(bins, return_inverse=True, return_counts=True)

    # In the order of the bins, how many points came since each bin began.
    bin_starts = np.cumsum(counts) - counts
    number_in_bin = np.empty(len(values))
    in_order = np.argsort(bin_of_point, kind="stable")
    number_in_bin[in_order] = np.arange(len(values)) - np.repeat(bin_starts, counts)

    # Alternately above and below the middle.
    is_even = number_in_bin % 2 == 0
    offset = np.where(is_even, -number_in_bin / 2, (number_in_bin + 1) / 2)
    return np.asarray(0.8 * offset / max(float(counts.max()), _FULL_BIN))
