"""Which features matter: mean sizes of contributions, and every row's contributions as a swarm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count, require_whole_number
from nobsp.plots import _axes, _lookup, colours
from nobsp.plots._axes import Axes
from nobsp.plots._lookup import Array, Output
from nobsp.plots.labels import short_labels, shorten, term_labels
from nobsp.tabular.explanation import Explanation

# Rows that a swarm still shows one by one.
_MOST_POINTS = 2000


def importance(what: Any, *, output: Output = None, max_display: int = 15, ax: Axes | None = None) -> Axes:
    """Draws how much each feature contributes on average, strongest first.

    The bar is the mean absolute value of everything the feature takes part in, its main effect and its interactions
    together. The diamond is that of the main effect alone, which may also be more. With several outputs the bars are
    stacked, and the diamond is the sum. The residual's own size stands below, as far as it is known.

    Args:
        what: An `Explanation`, measured on its rows; or an `NObSP` or `CompiledExplainer`, on calibration rows.
        output: Position or name of the output; all when None.
        max_display: Most features.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> ax = plots.importance(NObSP(model).fit(torch.randn(300, 3)))
        >>> len(ax.get_yticklabels())
        3
    """
    require_whole_number("max_display", max_display)
    if isinstance(what, Explanation):
        ex = _lookup.known_rows(_lookup.require_explanation(what, "importance"))
        features, outputs = ex.feature_names, ex.output_names
        main = np.zeros((len(features), len(outputs)))
        for position, term in enumerate(ex.terms):
            if len(term) == 1:
                main[features.index(term[0])] = np.abs(ex.values[:, position]).mean(0)
        total, residual = np.abs(ex.total()).mean(0), np.abs(ex.residual).mean(0)
    else:
        functions = _lookup.find_functions(what, "importance")
        features, outputs = functions.feature_names, functions.output_names
        main, total = functions.importances["main"], functions.importances["total"]
        residual = np.full(len(outputs), np.nan)
    chosen = _lookup.some_outputs(output, outputs)
    main, total, residual = main[:, chosen], total[:, chosen], residual[chosen]
    names = [outputs[k] for k in chosen]
    if len(chosen) > len(colours.SERIES):
        total, residual = total.sum(1, keepdims=True), residual.sum(keepdims=True)
        names = [count(len(chosen), "output")]
    order = np.argsort(-total.sum(1), kind="stable")[:max_display]
    has_residual = not np.isnan(residual).any()
    places = np.arange(len(order))
    ax = _axes.get_axes(ax, (6.6, 0.3 * (len(order) + has_residual) + 1.2))
    _axes.tidy(ax, grid=True)
    start, below = np.zeros(len(order)), 0.0
    for number, name in enumerate(names):
        label = _axes.legend_label(shorten(name, 24) if len(names) > 1 else "with its interactions")
        look = (colours.SERIES[number], colours.HATCHES[number])
        _axes.bars(ax, places, total[order, number], left=start, look=look, label=label)
        start = start + total[order, number]
        if has_residual:
            look = (colours.RESIDUAL, colours.RESIDUAL_HATCH)
            _axes.bars(ax, len(order), residual[number], left=below, look=look, gid="residual")
            below += float(residual[number])
    alone = main.sum(1)[order]
    if not np.allclose(alone, start, rtol=1e-9, atol=0.0):
        ax.hlines(places, np.minimum(start, alone), np.maximum(start, alone), color=colours.MUTED, zorder=3)
        [marks] = ax.plot(alone, places, "D", zorder=4, label="main effect alone", gid="main")
        marks.set(color=_axes.text_colour(ax), markersize=5.5, markerfacecolor="white", markeredgewidth=1.3)
    if len(ax.get_legend_handles_labels()[1]) > 1:
        ax.legend(loc="lower right", frameon=False, fontsize=_axes.SMALL)
    short = short_labels(features, 34)
    rows = [short[features[k]] for k in order]
    _axes.label_rows(ax, rows + [_residual_label(rows)] * has_residual)
    ax.set_xlim(0.0, max(float(start.max()), float(alone.max()), below) * 1.06 or 1.0)
    single = f" to {shorten(names[0], 24)}" if len(names) == 1 else ", summed over outputs"
    ax.set_xlabel(f"mean |contribution|{single}", fontsize=_axes.NORMAL)
    if len(order) < len(features):
        _axes.add_note(ax, f"the {len(order)} strongest of {count(len(features), 'feature')}")
    return ax


def beeswarm(ex: Explanation, *, output: Output = None, max_display: int = 12, ax: Axes | None = None) -> Axes:
    """Draws every row's contributions, a swarm for each term, strongest first, and one for the residual.

    Each point is a row. Main effects and interactions are ordered by their own mean absolute contribution. A point's
    colour, from dark to light, is the feature's value from low to high, by rank; points of categories, groups and
    interactions are grey.

    Args:
        ex: An explanation.
        output: Position or name of the output; may be left out where there is only one.
        max_display: Most terms.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> X = torch.randn(300, 3)
        >>> plots.beeswarm(NObSP(model).fit(X)(X)).get_yticklabels()[-1].get_text()
        'residual'
    """
    require_whole_number("max_display", max_display)
    ex = _lookup.known_rows(_lookup.require_explanation(ex, "beeswarm"))
    chosen = _lookup.one_output(output, ex.output_names)
    values, residual = ex.values[:, :, chosen], ex.residual[:, chosen]
    order = np.argsort(-np.abs(values).mean(0), kind="stable")[:max_display]
    rows = np.linspace(0, len(ex) - 1, min(len(ex), _MOST_POINTS)).astype(int)
    swarms = [values[rows, k] for k in order]
    names = term_labels([ex.terms[k] for k in order], names=ex.feature_names)
    every = _lookup.feature_values(ex)
    ranks = [_ranks(every[ex.terms[k][0]], rows) if len(ex.terms[k]) == 1 else None for k in order]
    if not np.isnan(residual).any():
        swarms, names, ranks = [*swarms, residual[rows]], [*names, _residual_label(names)], [*ranks, None]
    ax = _axes.get_axes(ax, (7.4, 0.42 * len(names) + 1.2))
    _axes.tidy(ax)
    ax.axvline(0.0, color=colours.MUTED, linewidth=0.8, zorder=0)
    reach = max((float(np.abs(swarm).max()) for swarm in swarms), default=1.0) or 1.0
    size = float(np.clip(4000.0 / len(rows), 5.0, 18.0))
    shades = None
    for place, (swarm, rank) in enumerate(zip(swarms, ranks, strict=True)):
        y = place + _spread_out(swarm, 2 * reach)
        gid = "residual" if place == len(order) else "term"
        style: dict[str, Any] = {"s": size, "linewidths": 0, "rasterized": True, "zorder": 2, "gid": gid}
        if rank is None:
            ax.scatter(swarm, y, color=colours.RESIDUAL, **style)
        else:
            shades = ax.scatter(swarm, y, c=rank, cmap=colours.blend(colours.LOW_TO_HIGH), vmin=0.0, vmax=1.0, **style)
    _axes.label_rows(ax, names)
    ax.set_xlabel(f"contribution to {shorten(ex.output_names[chosen], 40)}", fontsize=_axes.NORMAL)
    if shades is not None:
        bar = _axes.colour_bar(ax, shades, "", ticks=[0.0, 1.0])
        bar.ax.set_yticklabels(["low", "high"])
        bar.set_label("value of the feature", fontsize=_axes.SMALL, labelpad=-12)
    fewer = f"the {len(order)} strongest of {count(len(ex.terms), 'term')}" if len(order) < len(ex.terms) else ""
    sample = f"{len(rows):,} of {count(len(ex), 'row')}" if len(rows) < len(ex) else ""
    _axes.add_note(ax, ", ".join(filter(None, [fewer, sample])))
    return ax


def _residual_label(names: Sequence[str]) -> str:
    """The residual's label, in brackets where a feature has it too."""
    label = "residual"
    while label in names:
        label = f"({label})"
    return label


def _ranks(column: NDArray[Any] | None, rows: NDArray[np.int_]) -> Array | None:
    """A feature's values in some rows as ranks from 0 to 1; None for what has no order."""
    from scipy.stats import rankdata

    values = None if column is None or isinstance(column[0], str) else _lookup.as_numbers(column)
    if values is None or not np.isfinite(values).all():
        return None
    return np.asarray((rankdata(values)[rows] - 1) / (len(values) - 1)) if np.ptp(values) > 0 else None


def _spread_out(values: Array, width: float) -> Array:
    """Where to put points of about the same value, so that they lie beside each other: −0.4 to 0.4."""
    bins = np.floor(values / width * 160).astype(int)
    _, place, counts = np.unique(bins, return_inverse=True, return_counts=True)
    nth = np.empty(len(values))
    # In the order of the bins, how many came since each bin began.
    nth[np.argsort(place, kind="stable")] = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    # Alternately above and below the middle.
    offset = np.where(nth % 2 == 0, -nth / 2, (nth + 1) / 2)
    return np.asarray(0.8 * offset / max(float(counts.max()), 16.0))
