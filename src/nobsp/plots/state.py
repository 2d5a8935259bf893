"""Is the calibration healthy? How much of each term is its own, what the terms carry, and what was found."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from nobsp.plots import colours
from nobsp.plots.canvas import NORMAL, SMALL, beside, checked_count, one_axes, rows_of_names, tidy
from nobsp.plots.wording import counted, escaped, percent, plain, shown_apart, terms_shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What `health` itself warns of: less than this of a term's spread is its own, or of an output's variance is carried.
_OWN = 0.01
_CARRIED = 0.8
_LEAST = 1e-3
_MOST_FINDINGS = 6


def health(what: Any, *, max_display: int = 15, ax: Axes | None = None) -> Axes:
    """Draws what to know before believing an explanation.

    For tables a bar is how much of a term's spread no other term can reproduce, the least first; below 1%, in the
    shaded part, the function rests on few rows. For images a bar is how much of a class's logit the channels carry.
    Below stand the findings, in words.

    Args:
        what: A calibrated `NObSP` or `NObSPCam`, or what its `health()` returned.
        max_display: Most bars; those that are least well off are shown.
        ax: Axes to draw on; a new figure when None.

    Returns:
        The axes.

    Raises:
        TypeError: If it is something else.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> explainer = NObSP(model, features=["a", "b", "c"]).fit(torch.randn(300, 3))
        >>> ax = plots.health(explainer.health())
        >>> ax.get_title(loc="left").partition(" ")[0]
        '300'
    """
    most = checked_count(max_display)
    state = what.health() if callable(getattr(what, "health", None)) else what
    if not all(hasattr(state, name) for name in ("findings", "explained", "rows")):
        raise TypeError(f"health draws an explainer or its health(), found {type(what).__name__}.")
    of_terms = hasattr(state, "terms")
    if of_terms:
        shares = np.array([term.unique_share for term in state.terms], dtype=np.float64)
        names = terms_shown([term.term for term in state.terms], 26)
    else:
        shares = np.array(state.explained, dtype=np.float64)
        given = getattr(what, "output_names", None) or [f"class {position}" for position in range(len(shares))]
        names = shown_apart(given, 26)
    known = np.flatnonzero(np.isfinite(shares))
    order = known[np.argsort(shares[known], kind="stable")][:most]
    ax = one_axes(ax, (7.4, 0.28 * max(len(order), 1) + 1.5 + 0.2 * len(state.findings)))
    words = _findings(state, _characters(ax))
    tidy(ax, grid=True)
    limit = _OWN if of_terms else _CARRIED
    left = _LEAST if of_terms else 0.0
    ax.axvspan(left, limit, color=colours.FAINT, alpha=0.6, linewidth=0, zorder=0, gid="doubtful")
    for place, position in enumerate(order):
        share, weak = float(shares[position]), bool(shares[position] < limit)
        colour = colours.FOR if weak else colours.MAIN
        ax.plot([left, max(share, left)], [place, place], color=colour, linewidth=2.0, zorder=2)
        ax.plot(max(share, left), place, marker="X" if weak else "o", markersize=7, color=colour, zorder=3, gid="share")
        text = f"{share:.2%}" if share < 0.01 else percent(share)
        beside(ax, text, max(share, left), place, points=7)
    rows_of_names(ax, [names[k] for k in order])
    if of_terms:
        ax.set_xscale("log")
        ax.set_xticks([0.001, 0.01, 0.1, 1.0], labels=["0.1%", "1%", "10%", "100%"])
        ax.minorticks_off()
        ax.set_xlim(left, 2.2)
        axis = "share of a term's spread that is its own"
    else:
        ax.set_xlim(0.0, 1.12)
        ax.set_xticks([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], labels=["0%", "20%", "40%", "60%", "80%", "100%"])
        axis = "share of a logit's variance that the channels carry"
    if len(order) < len(known):
        axis += f": the least {len(order)} of {len(known)}"
    ax.set_xlabel(f"{axis}\n\n{words}", fontsize=SMALL)
    ax.xaxis.label.set_horizontalalignment("left")
    ax.xaxis.label.set_x(0.0)
    ax.set_title(_headline(state, of_terms), loc="left", fontsize=NORMAL)
    return ax


def _characters(ax: Axes) -> int:
    """About how many characters of small print fit under the axes."""
    inches = ax.get_window_extent().width / ax.figure.dpi
    return max(int(inches * 72 / (0.6 * SMALL)), 30)


def _headline(state: Any, of_terms: bool) -> str:
    shares = [share for share in state.explained if share == share]
    carried = percent(min(shares)) if shares else "–"
    rows = counted(state.rows, "row" if of_terms else "image")
    parts = counted(len(state.terms), "term") if of_terms else counted(state.channels, "channel")
    verdict = "healthy" if state.healthy else "read the warnings"
    return f"{rows}, {parts} carry at least {carried} of each output: {verdict}"


def _findings(state: Any, characters: int) -> str:
    """Findings in words, warnings first."""
    lines = []
    for finding in state.findings[:_MOST_FINDINGS]:
        subject = f"{plain(finding.subject)}: " if getattr(finding, "subject", "") else ""
        mark = "!" if finding.severity == "warning" else "·"
        lines += textwrap.wrap(
            f"{mark} {subject}{plain(finding.message)}", characters, subsequent_indent="   ", break_long_words=True
        )
    more = len(state.findings) - _MOST_FINDINGS
    if more > 0:
        lines.append(f"and {counted(more, 'other finding')}")
    return escaped("\n".join(lines or ["Nothing to worry about."]))
