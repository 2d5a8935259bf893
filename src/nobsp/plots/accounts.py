"""How predictions come about: one row's account, and what explains the variance of the outputs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import FloatArray
from nobsp.arguments import count, percent, require_whole_number
from nobsp.plots import _axes, _lookup, labels
from nobsp.plots._axes import Axes, Look
from nobsp.plots._lookup import Output
from nobsp.tabular.explanation import Explanation

_FOR = Look(_axes.FOR)
_AGAINST = Look(_axes.AGAINST, _axes.AGAINST_HATCH)
_RESIDUAL = Look(_axes.RESIDUAL, _axes.RESIDUAL_HATCH)
# Kinds of terms, by how many features they have, and the residual.
_KINDS = (
    ("main effects", Look(_axes.MAIN)),
    ("interactions, on top", Look(_axes.PAIR, _axes.PAIR_HATCH)),
    ("of three and more", Look(_axes.LARGER, _axes.LARGER_HATCH)),
    ("residual", _RESIDUAL),
)
# Shares of variance that have room for a number inside their bar.
_ROOM_FOR_NUMBER = 0.09


@dataclass(frozen=True)
class _Account:
    """One row's way from the base to the prediction."""

    base: float
    # Contributions, strongest first, with their labels; the rest in one step at the end.
    steps: list[float]
    names: list[str]
    # NaN where the model's output is not known.
    residual: float

    @property
    def is_complete(self) -> bool:
        """Whether the residual is known."""
        return self.residual == self.residual

    @property
    def ends(self) -> FloatArray:
        """Where the base and every step end, the residual last."""
        residual = self.residual if self.is_complete else 0.0
        return np.cumsum([self.base, *self.steps, residual])


def waterfall(
    ex: Explanation,
    row: Hashable = 0,
    *,
    output: Output = None,
    max_display: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """Draws the account of one row.

    From the base over every term and the residual to the prediction.

    The strongest terms come first. Terms that do not fit are put together, the residual never is.
    Bars to the left are hatched. A value outside the calibrated range is marked.

    Args:
        ex: An explanation.
        row: Position of the row, if a whole number; or its label in the index of the frame that was
            explained.
        output: Position or name of the output; may be left out where there is only one.
        max_display: Most bars of terms, the one that holds the rest among them.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(3, 16), ReLU(), Linear(16, 1))
        >>> X = torch.randn(300, 3)
        >>> plots.waterfall(NObSP(model).fit(X)(X), row=7).get_title(loc="left")
        'row 7'
    """
    require_whole_number("max_display", max_display)
    position, title = _lookup.find_row(row, _lookup.require_explanation(ex, "waterfall"))
    chosen = _lookup.one_output(output, ex.output_names)
    explained = ex[position]
    account = _account_of(explained, chosen, max_display)

    ends = account.ends
    last = len(ends)
    ax = _axes.get_axes(ax, (7.4, 0.36 * (last + 1) + 1.1))
    _axes.tidy(ax, grid=True)
    decimals = labels.decimals_for(np.diff(ends))
    _draw_account(ax, account, decimals)
    ax.plot(
        account.base,
        0,
        marker="o",
        markersize=6,
        color=_axes.MUTED,
        zorder=3,
    )
    ax.plot(
        ends[-1],
        last,
        marker="D",
        markersize=7,
        color=_axes.text_colour(ax),
        zorder=3,
    )

    first_label = f"base = {labels.format_number(account.base, decimals)}"
    total = "prediction" if account.is_complete else "base and terms"
    last_label = f"{total} = {labels.format_number(ends[-1], decimals)}"
    _axes.label_rows(ax, [first_label, *account.names, "residual", last_label])
    ax.get_yticklabels()[-1].set_fontweight("bold")

    low = float(ends.min())
    high = float(ends.max())
    # For the numbers beside bars.
    room = 0.14 * ((high - low) or 1.0)
    ax.set_xlim(low - room, high + room)
    ax.set_xlabel(labels.shorten(explained.output_names[chosen], 60), fontsize=_axes.NORMAL)
    ax.set_title(title, loc="left", fontsize=_axes.LARGE)
    if explained.outside.any():
        _axes.add_note(ax, "* outside the calibrated range")
    return ax


def _account_of(ex: Explanation, output: int, max_display: int) -> _Account:
    """The account of an explanation of one row."""
    contributions = ex.values[0, :, output]
    order = np.argsort(-np.abs(contributions), kind="stable")
    shown = order if len(order) <= max_display else order[: max_display - 1]
    rest = order[len(shown) :]

    terms = [ex.terms[term] for term in shown]
    steps = list(contributions[shown])
    names = labels.term_labels(terms, 36, names=ex.feature_names, after=_value_labels(ex))
    if len(rest):
        steps.append(contributions[rest].sum())
        names.append(count(len(rest), "other term"))
    return _Account(
        base=float(ex.base_values[output]),
        steps=steps,
        names=names,
        residual=float(ex.residual[0, output]),
    )


def _value_labels(ex: Explanation) -> dict[str, str]:
    """What is written behind each feature of one row: its value, and a star outside the range."""
    texts = {}
    columns = _lookup.feature_values(ex)
    for (name, column), is_outside in zip(columns.items(), ex.outside[0], strict=True):
        value = "" if column is None else f" = {labels.format_value(column[0])}"
        texts[name] = f"{value}*" if is_outside else value
    return texts


def _draw_account(ax: Axes, account: _Account, decimals: int) -> None:
    """A bar per step from where the last one ended, its number beside it, and lines between."""
    ends = account.ends
    for y, (start, value) in enumerate(zip(ends, account.steps, strict=False), start=1):
        kind = "for" if value >= 0 else "against"
        look = _FOR if value >= 0 else _AGAINST
        _draw_step(
            ax,
            y,
            start,
            value,
            look=look,
            kind=kind,
            decimals=decimals,
        )

    residual_y = len(ends) - 1
    if account.is_complete:
        _draw_step(
            ax,
            residual_y,
            ends[-2],
            account.residual,
            look=_RESIDUAL,
            kind="residual",
            decimals=decimals,
        )
    else:
        text = ax.text(ends[-2], residual_y, "  not known", va="center", fontsize=_axes.SMALL)
        text.set_color(_axes.MUTED)

    # From each bar's end down to the next bar's beginning.
    for y, end in enumerate(ends):
        ax.plot(
            [end, end],
            [y, y + 1],
            color=_axes.MUTED,
            linewidth=0.8,
            zorder=1,
        )


def _draw_step(
    ax: Axes, y: int, start: float, value: float, *, look: Look, kind: str, decimals: int
) -> None:
    """A bar from `start` with its number beside it."""
    _axes.bars(
        ax,
        y,
        value,
        left=start,
        look=look,
        gid=kind,
    )
    text = labels.format_number(value, decimals, "+")
    _axes.write_beside(ax, text, start + value, y, points=4 if value >= 0 else -4)


def ledger(
    ex: Explanation, *, output: Output = None, max_display: int = 10, ax: Axes | None = None
) -> Axes:
    """Draws what explains the variance of the outputs.

    Main effects, what interactions add to them, and the residual.

    The share of main effects is their R² on their own, 1 − mean((prediction − base − their sum)²) /
    var(prediction); interactions of two, then of more features, get what is explained on top. The
    residual gets the rest, so that `1 - residual` is `ex.explained()`. A share below zero: larger
    terms make up for what these overdo.

    Args:
        ex: An explanation of at least two rows.
        output: Position or name of the output; all when None.
        max_display: Most outputs; those with the largest residual are shown.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(3, 16), ReLU(), Linear(16, 2))
        >>> X = torch.randn(300, 3)
        >>> plots.ledger(NObSP(model).fit(X)(X)).get_xlabel()
        'share of the variance of each output'
    """
    require_whole_number("max_display", max_display)
    ex = _lookup.known_rows(_lookup.require_explanation(ex, "ledger"), residual="ledger")
    outputs = np.array(_lookup.some_outputs(output, ex.output_names))
    every_share = variance_shares(ex)[:, outputs]
    varying = np.flatnonzero(~np.isnan(every_share[0]))
    if not len(varying):
        raise ValueError(
            "no output varies over these rows, so there is no variance to account for; "
            "pass more rows."
        )

    shown = _largest_residuals(every_share[-1], varying, max_display)
    kinds = _kinds_of(ex.terms)
    shares = every_share[:, shown][kinds]
    names = [ex.output_names[position] for position in outputs[shown]]
    ax = _axes.get_axes(ax, (7.4, 0.46 * len(names) + 1.5))
    _axes.tidy(ax)
    above, below = _draw_shares(ax, shares, kinds)
    for y, (end, left_over) in enumerate(zip(above, shares[-1], strict=True)):
        _axes.write_beside(ax, f"residual {percent(left_over)}", end, y)

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
    if len(shown) < len(varying):
        _axes.add_note(ax, f"{len(shown)} of {count(len(varying), 'output')}")
    return ax


def variance_shares(ex: Explanation) -> FloatArray:
    """Shares of variance of main effects, pairs, larger terms and residual, (4, outputs).

    NaN stands for outputs that do not vary.
    """
    explained = []
    for largest in (1, 2, len(ex.feature_names)):
        is_included = [len(term) <= largest for term in ex.terms]
        explained.append(ex[:, is_included].explained())

    nothing = np.zeros_like(explained[0])
    everything = np.ones_like(explained[0])
    return np.diff([nothing, *explained, everything], axis=0)


def _largest_residuals(
    residuals: FloatArray, varying: NDArray[np.intp], most: int
) -> NDArray[np.intp]:
    """The outputs of which most is left over, in the order they came."""
    order = np.argsort(-residuals[varying], kind="stable")
    return np.sort(varying[order[:most]])


def _kinds_of(terms: Sequence[Sequence[str]]) -> list[int]:
    """Positions among `_KINDS`.

    Main effects and the residual always, larger terms if there are any.
    """
    sizes = {min(len(term), 3) for term in terms}
    larger = [size - 1 for size in (2, 3) if size in sizes]
    return [0, *larger, 3]


def _draw_shares(
    ax: Axes, shares: FloatArray, kinds: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Stacked bars; where those above zero end, and those below it."""
    outputs = shares.shape[1]
    above = np.zeros(outputs)
    below = np.zeros(outputs)
    for share, kind in zip(shares, kinds, strict=True):
        label, look = _KINDS[kind]
        left = np.where(share >= 0, above, below)
        _axes.bars(
            ax,
            range(outputs),
            share,
            left=left,
            look=look,
            label=label,
            gid=label,
        )
        for y, (start, value) in enumerate(zip(left, share, strict=True)):
            if abs(value) >= _ROOM_FOR_NUMBER:
                text = ax.text(start + value / 2, y, percent(value), ha="center", va="center")
                text.set(color="white", fontweight="bold", fontsize=_axes.NORMAL)
                text.set_bbox({"facecolor": look.colour, "edgecolor": "none", "pad": 1.5})

        above += np.maximum(share, 0.0)
        below += np.minimum(share, 0.0)
    return above, below
