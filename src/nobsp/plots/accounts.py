"""How predictions come about: one row's account, those of all rows as a swarm, what matters and what is explained."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count, free_name, join_names, percent, require_whole_number
from nobsp.plots import _axes, _lookup, labels
from nobsp.plots._axes import Axes
from nobsp.plots._lookup import Array, Output
from nobsp.tabular.explanation import Explanation

_FOR, _AGAINST = (_axes.FOR, ""), (_axes.AGAINST, _axes.AGAINST_HATCH)
_RESIDUAL = (_axes.RESIDUAL, _axes.RESIDUAL_HATCH)
_KINDS = (
    ("main effects", (_axes.MAIN, "")),
    ("interactions, on top", (_axes.PAIR, _axes.PAIR_HATCH)),
    ("of three and more", (_axes.LARGER, _axes.LARGER_HATCH)),
    ("residual", _RESIDUAL),
)
_MOST_NUMBERS = 48  # windows that have room for a number
_MOST_POINTS = 2000  # rows that a swarm still shows one by one


def waterfall(
    ex: Explanation,
    row: Hashable = 0,
    *,
    output: Output = None,
    max_display: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """Draws the account of one row: from the base over every term and the residual to the prediction.

    The strongest terms come first. Terms that do not fit are put together, the residual never is. Bars to the left are
    hatched. A value outside the calibrated range is marked.

    Args:
        ex: An explanation.
        row: Position of the row, if a whole number; or its label in the index of the frame that was explained.
        output: Position or name of the output; may be left out where there is only one.
        max_display: Most bars of terms, the one that holds the rest among them.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> X = torch.randn(300, 3)
        >>> plots.waterfall(NObSP(model).fit(X)(X), row=7).get_title(loc="left")
        'row 7'
    """
    require_whole_number("max_display", max_display)
    position, title = _lookup.find_row(row, _lookup.require_explanation(ex, "waterfall"))
    chosen = _lookup.one_output(output, ex.output_names)
    one = ex[position]
    terms, base, residual = (
        one.values[0, :, chosen],
        float(one.base_values[chosen]),
        float(one.residual[0, chosen]),
    )
    order = np.argsort(-np.abs(terms), kind="stable")
    kept, rest = (
        (order, order[:0]) if len(order) <= max_display else np.split(order, [max_display - 1])
    )
    values = {
        name: ("" if column is None else f" = {labels.format_value(column[0])}")
        + "*" * bool(outside)
        for (name, column), outside in zip(
            _lookup.feature_values(one).items(), one.outside[0], strict=True
        )
    }
    steps = list(terms[kept])
    names = labels.term_labels(
        [one.terms[k] for k in kept], 36, names=one.feature_names, after=values
    )
    if len(rest):
        steps, names = [*steps, terms[rest].sum()], [*names, count(len(rest), "other term")]
    known = residual == residual
    ends = np.cumsum([base, *steps, residual if known else 0.0])
    decimals = labels.decimals_for(np.diff(ends))
    last = len(ends)
    ax = _axes.get_axes(ax, (7.4, 0.36 * (last + 1) + 1.1))
    _axes.tidy(ax, grid=True)
    for place, (start, value) in enumerate(zip(ends, [*steps, residual], strict=False), start=1):
        kind = "residual" if place == last - 1 else "for" if value >= 0 else "against"
        if kind == "residual" and not known:
            ax.text(
                start, place, "  not known", va="center", fontsize=_axes.SMALL, color=_axes.MUTED
            )
            break
        look = {"for": _FOR, "against": _AGAINST, "residual": _RESIDUAL}[kind]
        _axes.bars(ax, place, value, left=start, look=look, gid=kind)
        text = labels.format_number(value, decimals, "+")
        _axes.write_beside(ax, text, start + value, place, points=4 if value >= 0 else -4)
    for place, end in enumerate(ends):  # from each bar's end down to the next bar's beginning
        ax.plot([end, end], [place, place + 1], color=_axes.MUTED, linewidth=0.8, zorder=1)
    ax.plot(base, 0, marker="o", markersize=6, color=_axes.MUTED, zorder=3)
    ax.plot(ends[-1], last, marker="D", markersize=7, color=_axes.text_colour(ax), zorder=3)
    total = f"{'prediction' if known else 'base and terms'} = {labels.format_number(ends[-1], decimals)}"
    _axes.label_rows(
        ax, [f"base = {labels.format_number(base, decimals)}", *names, "residual", total]
    )
    ax.get_yticklabels()[-1].set_fontweight("bold")
    low, high = float(ends.min()), float(ends.max())
    room = 0.14 * ((high - low) or 1.0)  # for the numbers beside bars
    ax.set_xlim(low - room, high + room)
    ax.set_xlabel(labels.shorten(one.output_names[chosen], 60), fontsize=_axes.NORMAL)
    ax.set_title(title, loc="left", fontsize=_axes.LARGE)
    if one.outside.any():
        _axes.add_note(ax, "* outside the calibrated range")
    return ax


def ledger(
    ex: Explanation, *, output: Output = None, max_display: int = 10, ax: Axes | None = None
) -> Axes:
    """Draws what explains the variance of the outputs: main effects, what interactions add to them, and the residual.

    The share of main effects is what they explain on their own, 1 − var(prediction − their sum) / var(prediction);
    interactions of two, then of more features, get what is explained on top. The residual gets the rest, so that
    `1 - residual` is `ex.explained()`. A share below zero: larger terms make up for what these overdo.

    Args:
        ex: An explanation of at least two rows.
        output: Position or name of the output; all when None.
        max_display: Most outputs; those with the largest residual are shown.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        >>> X = torch.randn(300, 3)
        >>> plots.ledger(NObSP(model).fit(X)(X)).get_xlabel()
        'share of the variance of each output'
    """
    require_whole_number("max_display", max_display)
    ex = _lookup.known_rows(_lookup.require_explanation(ex, "ledger"), residual="ledger")
    outputs = np.array(_lookup.some_outputs(output, ex.output_names))
    shares = variance_shares(ex)[:, outputs]
    varying = ~np.isnan(shares[0])
    if not varying.any():
        raise ValueError(
            "no output varies over these rows, so there is no variance to account for; pass more rows."
        )
    kept = np.flatnonzero(varying)
    kept = np.sort(kept[np.argsort(-shares[-1, kept], kind="stable")[:max_display]])
    shares, names = shares[:, kept], [ex.output_names[k] for k in outputs[kept]]
    kinds = [
        k for k in range(4) if k in (0, 3) or any(min(len(term), 3) == k + 1 for term in ex.terms)
    ]
    shares = shares[kinds]
    ax = _axes.get_axes(ax, (7.4, 0.46 * len(names) + 1.5))
    _axes.tidy(ax)
    above, below = np.zeros(len(names)), np.zeros(len(names))
    for share, (label, look) in zip(shares, [_KINDS[k] for k in kinds], strict=True):
        left = np.where(share >= 0, above, below)
        _axes.bars(ax, range(len(names)), share, left=left, look=look, label=label, gid=label)
        for place, (begin, value) in enumerate(zip(left, share, strict=True)):
            if abs(value) >= 0.09:
                text = ax.text(begin + value / 2, place, percent(value), ha="center", va="center")
                text.set(color="white", fontweight="bold", fontsize=_axes.NORMAL)
                text.set_bbox({"facecolor": look[0], "edgecolor": "none", "pad": 1.5})
        above += np.maximum(share, 0.0)
        below += np.minimum(share, 0.0)
    for place, (end, left_over) in enumerate(zip(above, shares[-1], strict=True)):
        _axes.write_beside(ax, f"residual {percent(left_over)}", end, place)
    _axes.label_rows(ax, labels.shorten_all(names, 30))
    ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}".replace("-", "−"))
    ax.set_xlim(min(float(below.min()) * 1.08, 0.0), float(above.max()) * 1.17)
    ax.set_xlabel("share of the variance of each output", fontsize=_axes.NORMAL)
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(kinds),
        frameon=False,
        fontsize=_axes.SMALL,
    )
    if len(kept) < varying.sum():
        _axes.add_note(ax, f"{len(kept)} of {count(int(varying.sum()), 'output')}")
    return ax


def variance_shares(ex: Explanation) -> Array:
    """Shares of variance of main effects, pairs, larger terms and residual, (4, outputs); NaN where there is none."""
    parts = [
        ex[:, [len(term) <= size for term in ex.terms]].explained()
        for size in (1, 2, len(ex.feature_names))
    ]
    return np.diff([np.zeros_like(parts[0]), *parts, np.ones_like(parts[0])], axis=0)


def importance(
    what: Any, *, output: Output = None, max_display: int = 15, ax: Axes | None = None
) -> Axes:
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
        main, total = (np.abs(part.total()).mean(0) for part in (ex.order(1), ex))
        residual = np.abs(ex.residual).mean(0)
    else:
        functions = _lookup.find_functions(what, "importance")
        features, outputs = functions.feature_names, functions.output_names
        main, total = functions.importances["main"], functions.importances["total"]
        residual = np.full(len(outputs), np.nan)
    chosen = _lookup.some_outputs(output, outputs)
    main, total, residual = main[:, chosen], total[:, chosen], residual[chosen]
    names = [outputs[k] for k in chosen]
    if len(chosen) > len(_axes.SERIES):
        total, residual = total.sum(1, keepdims=True), residual.sum(keepdims=True)
        names = [count(len(chosen), "output")]
    order = np.argsort(-total.sum(1), kind="stable")[:max_display]
    has_residual = not np.isnan(residual).any()
    places = np.arange(len(order))
    ax = _axes.get_axes(ax, (6.6, 0.3 * (len(order) + has_residual) + 1.2))
    _axes.tidy(ax, grid=True)
    start, below = np.zeros(len(order)), 0.0
    for number, name in enumerate(names):
        label = _axes.legend_label(
            labels.shorten(name, 24) if len(names) > 1 else "with its interactions"
        )
        look = (_axes.SERIES[number], _axes.HATCHES[number])
        _axes.bars(ax, places, total[order, number], left=start, look=look, label=label)
        start = start + total[order, number]
        if has_residual:
            _axes.bars(ax, len(order), residual[number], left=below, look=_RESIDUAL, gid="residual")
            below += float(residual[number])
    alone = main.sum(1)[order]
    if not np.allclose(alone, start, rtol=1e-9, atol=0.0):
        ax.hlines(
            places, np.minimum(start, alone), np.maximum(start, alone), color=_axes.MUTED, zorder=3
        )
        [marks] = ax.plot(alone, places, "D", zorder=4, label="main effect alone", gid="main")
        marks.set(
            color=_axes.text_colour(ax),
            markersize=5.5,
            markerfacecolor="white",
            markeredgewidth=1.3,
        )
    if len(ax.get_legend_handles_labels()[1]) > 1:
        ax.legend(loc="lower right", frameon=False, fontsize=_axes.SMALL)
    short = labels.short_labels(features, 34)
    rows = [short[features[k]] for k in order]
    _axes.label_rows(ax, rows + [free_name("residual", rows)] * has_residual)
    ax.set_xlim(0.0, max(float(start.max()), float(alone.max()), below) * 1.06 or 1.0)
    single = f" to {labels.shorten(names[0], 24)}" if len(names) == 1 else ", summed over outputs"
    ax.set_xlabel(f"mean |contribution|{single}", fontsize=_axes.NORMAL)
    if len(order) < len(features):
        _axes.add_note(ax, f"the {len(order)} strongest of {count(len(features), 'feature')}")
    return ax


def beeswarm(
    ex: Explanation, *, output: Output = None, max_display: int = 12, ax: Axes | None = None
) -> Axes:
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
    names = labels.term_labels([ex.terms[k] for k in order], names=ex.feature_names)
    every = _lookup.feature_values(ex)
    ranks = [_ranks(every[ex.terms[k][0]], rows) if len(ex.terms[k]) == 1 else None for k in order]
    if not np.isnan(residual).any():
        swarms, names, ranks = (
            [*swarms, residual[rows]],
            [*names, free_name("residual", names)],
            [*ranks, None],
        )
    ax = _axes.get_axes(ax, (7.4, 0.42 * len(names) + 1.2))
    _axes.tidy(ax)
    ax.axvline(0.0, color=_axes.MUTED, linewidth=0.8, zorder=0)
    reach = max((float(np.abs(swarm).max()) for swarm in swarms), default=1.0) or 1.0
    size = float(np.clip(4000.0 / len(rows), 5.0, 18.0))
    shades = None
    for place, (swarm, rank) in enumerate(zip(swarms, ranks, strict=True)):
        y = place + _spread_out(swarm, 2 * reach)
        gid = "residual" if place == len(order) else "term"
        style: dict[str, Any] = {
            "s": size,
            "linewidths": 0,
            "rasterized": True,
            "zorder": 2,
            "gid": gid,
        }
        if rank is None:
            ax.scatter(swarm, y, color=_axes.RESIDUAL, **style)
        else:
            shades = ax.scatter(
                swarm, y, c=rank, cmap=_axes.blend(_axes.LOW_TO_HIGH), vmin=0.0, vmax=1.0, **style
            )
    _axes.label_rows(ax, names)
    ax.set_xlabel(
        f"contribution to {labels.shorten(ex.output_names[chosen], 40)}", fontsize=_axes.NORMAL
    )
    if shades is not None:
        bar = _axes.colour_bar(ax, shades, "", ticks=[0.0, 1.0])
        bar.ax.set_yticklabels(["low", "high"])
        bar.set_label("value of the feature", fontsize=_axes.SMALL, labelpad=-12)
    fewer = (
        f"the {len(order)} strongest of {count(len(ex.terms), 'term')}"
        if len(order) < len(ex.terms)
        else ""
    )
    sample = f"{len(rows):,} of {count(len(ex), 'row')}" if len(rows) < len(ex) else ""
    _axes.add_note(ax, ", ".join(filter(None, [fewer, sample])))
    return ax


def _ranks(column: NDArray[Any] | None, rows: NDArray[np.int_]) -> Array | None:
    """A feature's values in some rows as ranks from 0 to 1; None for what has no order."""
    from scipy.stats import rankdata

    values = None if column is None or isinstance(column[0], str) else _lookup.as_numbers(column)
    if values is None or not np.isfinite(values).all():
        return None
    return (
        np.asarray((rankdata(values)[rows] - 1) / (len(values) - 1)) if np.ptp(values) > 0 else None
    )


def _spread_out(values: Array, width: float) -> Array:
    """Where to put points of about the same value, so that they lie beside each other: −0.4 to 0.4."""
    bins = np.floor(values / width * 160).astype(int)
    _, place, counts = np.unique(bins, return_inverse=True, return_counts=True)
    nth = np.empty(len(values))
    # In the order of the bins, how many came since each bin began.
    nth[np.argsort(place, kind="stable")] = np.arange(len(values)) - np.repeat(
        np.cumsum(counts) - counts, counts
    )
    # Alternately above and below the middle.
    offset = np.where(nth % 2 == 0, -nth / 2, (nth + 1) / 2)
    return np.asarray(0.8 * offset / max(float(counts.max()), 16.0))


def windows(
    ex: Explanation,
    row: Hashable = 0,
    *,
    sequence: str | None = None,
    output: Output = None,
    channels: Sequence[str] | None = None,
    channels_first: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draws what windows of a sequence contribute as a heat map: time along the bottom, a line for each channel.

    A window has its main effect and equal shares of its interactions, so that all windows, other features and the
    residual add up to the prediction less the base. What is below zero is hatched.

    Args:
        ex: An explanation whose features are windows of an input (n, time, channels) or (n, time).
        row: Position or label of the row, as in `waterfall`; None for the mean absolute value over all rows.
        sequence: Name of the input; may be left out where only one is a sequence.
        output: Position or name of the output; may be left out where there is only one.
        channels: Names of the channels.
        channels_first: Whether the input is (n, channels, time).
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> layers = torch.nn.Flatten(), torch.nn.Linear(24, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        >>> X = {"input": torch.randn(100, 12, 2)}
        >>> parts = {f"{t} to {t + 3}": ("input", slice(t, t + 4)) for t in (0, 4, 8)}
        >>> explainer = NObSP(torch.nn.Sequential(*layers), features=parts, interactions=0).fit(X)
        >>> plots.windows(explainer(X), row=3).get_xlabel()
        'time step'
    """
    from matplotlib.collections import PolyCollection

    chosen = _lookup.one_output(output, _lookup.require_explanation(ex, "windows").output_names)
    owner = _owners(ex, sequence)
    owner = owner if channels_first else owner.T
    names = (
        list(map(str, range(len(owner)))) if channels is None else labels.shorten_all(channels, 24)
    )
    if len(names) != len(owner):
        raise ValueError(
            f"channels has {len(names)} names but the sequence has {len(owner)}; pass one each."
        )
    members = np.array(
        [[name in term for name in ex.feature_names] for term in ex.terms], dtype=np.float64
    )
    shares = ex.values[:, :, chosen] @ (members / members.sum(1, keepdims=True))
    position, title = (None, count(len(ex), "row")) if row is None else _lookup.find_row(row, ex)
    values = (
        np.abs(shares[np.isfinite(shares).all(1)]).mean(0) if position is None else shares[position]
    )
    cells = values[owner]
    if not np.isfinite(cells).all():
        raise ValueError(
            f"row is {row!r}, of which contributions are not known: it has missing values."
        )
    largest = float(np.abs(cells).max()) or 1.0
    decimals = labels.decimals_for([largest])
    ax = _axes.get_axes(ax, (7.4, 0.36 * len(names) + 1.5))
    across, up = (np.arange(size + 1) - 0.5 for size in owner.shape[::-1])
    shades, least = (
        (_axes.NOTHING_TO_MUCH, 0.0) if position is None else (_axes.AGAINST_TO_FOR, -largest)
    )
    mesh = ax.pcolormesh(
        across, up, cells, cmap=_axes.blend(shades), vmin=least, vmax=largest, gid="windows"
    )
    mesh.set_rasterized(True)
    corners = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)])
    below = PolyCollection(
        [place + corners for place in np.argwhere(cells < 0)[:, ::-1]], hatch="///", linewidths=0
    )
    below.set(facecolor="none", edgecolor="#00000059", gid="against")
    ax.add_collection(below)
    line, place = np.nonzero(np.diff(owner, axis=1))
    ax.vlines(place + 0.5, line - 0.5, line + 0.5, color="white", linewidth=1.5)
    line, place = np.nonzero(np.diff(owner, axis=0))
    ax.hlines(line + 0.5, place - 0.5, place + 0.5, color="white", linewidth=1.5)
    drawn = np.unique(owner)
    for k in drawn if len(drawn) <= _MOST_NUMBERS else ():
        line, place = np.nonzero(owner == k)
        number = labels.format_number(float(values[k]), decimals, "" if position is None else "+")
        text = ax.text(
            place.mean(), line.mean(), number, ha="center", va="center", fontsize=_axes.SMALL
        )
        text.set_bbox({"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.0})
    ax.set_yticks(range(len(names)), labels=names)
    ax.tick_params(labelsize=_axes.SMALL, length=3)
    ax.spines[:].set_visible(False)
    ax.invert_yaxis()
    ax.set_xlabel("time step", fontsize=_axes.NORMAL)
    if position is not None:
        rest = float(
            ex.predictions[position, chosen] - ex.base_values[chosen] - values[drawn].sum()
        )
        _axes.add_note(
            ax, f"all else, residual included: {labels.format_number(rest, decimals, '+')}"
        )
    what = "mean |contribution|" if position is None else "contribution"
    _axes.colour_bar(ax, mesh, f"{what} to {labels.shorten(ex.output_names[chosen], 24)}")
    ax.set_title(title, loc="left", fontsize=_axes.LARGE)
    return ax


def _owners(ex: Explanation, sequence: str | None) -> NDArray[np.intp]:
    """The feature that each place of a sequence belongs to; its columns are named "series[time,channel]"."""
    names = getattr(ex.explainer, "column_names", None) or ()
    places = [re.fullmatch(r"(.+)\[(\d+)(?:,(\d+))?\]", name) for name in names]
    known = {place[1] for place in places if place and place[3]} or {
        place[1] for place in places if place
    }
    if not known:
        raise ValueError(
            "ex has no feature that is a window of a sequence; fit a model of inputs (n, time, channels)."
        )
    chosen = sequence if sequence is not None or len(known) > 1 else next(iter(known))
    columns = {column: place for column, place in enumerate(places) if place and place[1] == chosen}
    if not columns:
        raise ValueError(f"sequence is {sequence!r}; choose it among {join_names(sorted(known))}.")
    feature = {column: k for k, one in enumerate(ex.explainer.features) for column in one.columns}
    time, channel = ([int(place[part] or 0) for place in columns.values()] for part in (2, 3))
    owner = np.zeros((max(time) + 1, max(channel) + 1), dtype=np.intp)
    owner[time, channel] = [feature[column] for column in columns]
    return owner
