"""How predictions come about: one row's account as a waterfall, and what explains the variance of all rows."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from nobsp._messages import count, percent, require_whole_number
from nobsp.plots import _axes, _lookup, colours
from nobsp.plots._axes import Axes
from nobsp.plots._lookup import Array, Output
from nobsp.plots.labels import decimals_for, format_number, format_value, shorten, shorten_all, term_labels
from nobsp.tabular.explanation import Explanation

_FOR, _AGAINST = (colours.FOR, ""), (colours.AGAINST, colours.AGAINST_HATCH)
_RESIDUAL = (colours.RESIDUAL, colours.RESIDUAL_HATCH)
_KINDS = (
    ("main effects", (colours.MAIN, "")),
    ("interactions, on top", (colours.PAIR, colours.PAIR_HATCH)),
    ("of three and more", (colours.LARGER, colours.LARGER_HATCH)),
    ("residual", _RESIDUAL),
)


def waterfall(
    ex: Explanation, row: Hashable = 0, *, output: Output = None, max_display: int = 10, ax: Axes | None = None
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
    position = _lookup.row_position(row, _lookup.require_explanation(ex, "waterfall"))
    chosen = _lookup.one_output(output, ex.output_names)
    one = ex[position]
    terms, base, residual = one.values[0, :, chosen], float(one.base_values[chosen]), float(one.residual[0, chosen])
    order = np.argsort(-np.abs(terms), kind="stable")
    kept, rest = (order, order[:0]) if len(order) <= max_display else np.split(order, [max_display - 1])
    values = {
        name: ("" if column is None else f" = {format_value(column[0])}") + "*" * bool(outside)
        for (name, column), outside in zip(_lookup.feature_values(one).items(), one.outside[0], strict=True)
    }
    steps = list(terms[kept])
    names = term_labels([one.terms[k] for k in kept], 36, names=one.feature_names, after=values)
    if len(rest):
        steps, names = [*steps, terms[rest].sum()], [*names, count(len(rest), "other term")]
    known = residual == residual
    ends = np.cumsum([base, *steps, residual if known else 0.0])
    decimals = decimals_for(np.diff(ends))
    last = len(ends)
    ax = _axes.get_axes(ax, (7.4, 0.36 * (last + 1) + 1.1))
    _axes.tidy(ax, grid=True)
    for place, (start, value) in enumerate(zip(ends, [*steps, residual], strict=False), start=1):
        kind = "residual" if place == last - 1 else "for" if value >= 0 else "against"
        if kind == "residual" and not known:
            ax.text(start, place, "  not known", va="center", fontsize=_axes.SMALL, color=colours.MUTED)
            break
        look = {"for": _FOR, "against": _AGAINST, "residual": _RESIDUAL}[kind]
        _axes.bars(ax, place, value, left=start, look=look, gid=kind)
        text = format_number(value, decimals, "+")
        _axes.write_beside(ax, text, start + value, place, points=4 if value >= 0 else -4)
    for place, end in enumerate(ends):  # from each bar's end down to the next bar's beginning
        ax.plot([end, end], [place, place + 1], color=colours.MUTED, linewidth=0.8, zorder=1)
    ax.plot(base, 0, marker="o", markersize=6, color=colours.MUTED, zorder=3)
    ax.plot(ends[-1], last, marker="D", markersize=7, color=_axes.text_colour(ax), zorder=3)
    total = f"{'prediction' if known else 'base and terms'} = {format_number(ends[-1], decimals)}"
    _axes.label_rows(ax, [f"base = {format_number(base, decimals)}", *names, "residual", total])
    ax.get_yticklabels()[-1].set_fontweight("bold")
    low, high = float(ends.min()), float(ends.max())
    room = 0.14 * ((high - low) or 1.0)  # for the numbers beside bars
    ax.set_xlim(low - room, high + room)
    ax.set_xlabel(shorten(one.output_names[chosen], 60), fontsize=_axes.NORMAL)
    called = position if isinstance(row, int | np.integer) else shorten(str(row), 40)
    ax.set_title(f"row {called}", loc="left", fontsize=_axes.LARGE)
    if one.outside.any():
        _axes.add_note(ax, "* outside the calibrated range")
    return ax


def ledger(ex: Explanation, *, output: Output = None, max_display: int = 10, ax: Axes | None = None) -> Axes:
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
        raise ValueError("no output varies over these rows, so there is no variance to account for; pass more rows.")
    kept = np.flatnonzero(varying)
    kept = np.sort(kept[np.argsort(-shares[-1, kept], kind="stable")[:max_display]])
    shares, names = shares[:, kept], [ex.output_names[k] for k in outputs[kept]]
    kinds = [k for k in range(4) if k in (0, 3) or any(min(len(term), 3) == k + 1 for term in ex.terms)]
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
    _axes.label_rows(ax, shorten_all(names, 30))
    ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}".replace("-", "−"))
    ax.set_xlim(min(float(below.min()) * 1.08, 0.0), float(above.max()) * 1.17)
    ax.set_xlabel("share of the variance of each output", fontsize=_axes.NORMAL)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(kinds), frameon=False, fontsize=_axes.SMALL)
    if len(kept) < varying.sum():
        _axes.add_note(ax, f"{len(kept)} of {count(int(varying.sum()), 'output')}")
    return ax


def variance_shares(ex: Explanation) -> Array:
    """Shares of variance that main effects, pairs, larger terms and the residual explain, shape (4, outputs).

    NaN for outputs that do not vary; else each column adds up to one.
    """
    parts = [ex[:, [len(term) <= size for term in ex.terms]].explained() for size in (1, 2, len(ex.feature_names))]
    return np.diff([np.zeros_like(parts[0]), *parts, np.ones_like(parts[0])], axis=0)
