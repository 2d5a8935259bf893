"""Is the calibration healthy? What is explained of each output, how much of each term is its own, what was found."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count, number_outputs, percent, require_whole_number
from nobsp.plots import _axes
from nobsp.plots._axes import NORMAL, SMALL, Axes, get_axes, label_rows, tidy, write_beside
from nobsp.plots._lookup import Array
from nobsp.plots.labels import clean, escape, shorten_all, term_labels

_EXPLAINED = 0.8  # less of an output's variance explained is doubtful
_OWN = 0.01  # and so is less of a term's spread that is its own
_MOST_FINDINGS = 6
_MARKS = {"error": "✗", "warning": "!", "note": "·"}


def health(what: Any, *, max_display: int = 15, ax: Axes | None = None) -> Axes:
    """Draws what to know before believing an explanation.

    First the held-out R² of every output, the worst first; a ring shows the same without rows outside the range fitted
    on. Then, for tables, how much of each term's spread the other terms cannot reproduce, the least first: what has
    hardly any of its own may as well be another term's. Crosses are doubtful. Below stand the findings, errors first.

    Args:
        what: A calibrated `NObSP` or `NObSPCam`, a `CompiledExplainer`, or what its `health()` returned.
        max_display: Most outputs, and most terms; those that are least well off are shown.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> plots.health(NObSP(model).fit(torch.randn(300, 3))).get_title(loc="left").partition(" ")[0]
        '300'
    """
    require_whole_number("max_display", max_display)
    state = what.health() if callable(getattr(what, "health", None)) else what
    if not all(hasattr(state, name) for name in ("findings", "explained", "rows")):
        raise TypeError(f"health draws an explainer or its health(), found {type(what).__name__}.")
    explained = np.array(state.explained, dtype=np.float64)
    named = next(
        (getattr(what, name) for name in ("output_names_", "output_names") if hasattr(what, name)),
        None,
    )
    outputs = shorten_all(named or number_outputs(len(explained)), 26)
    worst, left_out = _least(explained, max_display)
    terms = getattr(state, "terms", ())
    own = np.array([term.unique_share for term in terms], dtype=np.float64)
    least, more_left_out = _least(own, max_display)
    of_terms = term_labels([term.term for term in terms], 26)
    ax = get_axes(
        ax, (7.4, 0.28 * max(len(worst) + len(least), 1) + 1.7 + 0.2 * len(state.findings))
    )
    inches = ax.get_window_extent().width / ax.figure.dpi
    words = _findings(
        state, max(int(inches * 72 / (0.6 * SMALL)), 30)
    )  # about what fits under the axes
    tidy(ax, grid=True)
    inside = np.array(getattr(state, "inside", state.explained), dtype=np.float64)
    for place, (share, within) in enumerate(zip(explained[worst], inside[worst], strict=True)):
        text, reach = f"{share:.3f}", share
        if abs(within - share) > 0.002:
            text, reach = f"{share:.3f} ({within:.3f} inside)", max(share, within)
            [ring] = ax.plot(max(within, 0.0), place, "o", color=_axes.MAIN, zorder=4, gid="inside")
            ring.set(markersize=7, markerfacecolor="none", markeredgewidth=1.4)
        _draw_share(ax, place, share, _EXPLAINED, _axes.MAIN, text, at=reach)
    for place, share in enumerate(own[least], start=len(worst)):
        text = f"{share:.2%}" if share < 0.01 else percent(share)
        _draw_share(ax, place, share, _OWN, _axes.RESIDUAL, text, at=share)
    if len(worst) and len(least):
        ax.axhline(len(worst) - 0.5, color=_axes.MUTED, linewidth=0.8, zorder=1)
    label_rows(ax, [outputs[k] for k in worst] + [of_terms[k] for k in least])
    for label in ax.get_yticklabels()[: len(worst)]:
        label.set_fontweight("bold")
    ax.set_xlim(-0.03, 1.3)
    ax.set_xticks([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axis = "R² of each output" + (
        ", in bold; share of each term's spread that is its own" if len(least) else ""
    )
    axis += "".join(
        f"; {n} more {what}" for n, what in ((left_out, "outputs"), (more_left_out, "terms")) if n
    )
    ax.set_xlabel(f"{axis}\n\n{words}", fontsize=SMALL)
    ax.xaxis.label.set(horizontalalignment="left", x=0.0)
    ax.set_title(_headline(state), loc="left", fontsize=NORMAL)
    return ax


def _least(shares: Array, most: int) -> tuple[NDArray[np.intp], int]:
    """Positions of the smallest shares that are known, and how many more there are."""
    known = np.flatnonzero(np.isfinite(shares))
    order = known[np.argsort(shares[known], kind="stable")]
    return order[:most], max(len(order) - most, 0)


def _draw_share(
    ax: Axes, place: int, share: float, doubtful: float, colour: str, text: str, *, at: float
) -> None:
    """A line from zero to a share, with a cross at its end where it is doubtful, and a text behind `at`."""
    weak = share < doubtful
    colour, end = _axes.FOR if weak else colour, float(np.clip(share, 0.0, 1.0))
    ax.plot([0.0, end], [place, place], color=colour, linewidth=2.0, zorder=2)
    ax.plot(
        end,
        place,
        marker="X" if weak else "o",
        markersize=7,
        color=colour,
        zorder=3,
        clip_on=False,
        gid="share",
    )
    write_beside(ax, text.replace("-", "−"), float(np.clip(at, 0.0, 1.0)), place, points=7)


def _headline(state: Any) -> str:
    if hasattr(state, "terms"):
        size = f"{count(state.rows, 'row')}, {count(len(state.terms), 'term')}, {state.headline}"
    else:
        shares = [share for share in state.explained if share == share]
        worst = f"the worst R² is {min(shares):.3f}" if shares else "no output varies"
        size = f"{count(state.rows, 'image')}, {count(state.channels, 'channel')}, {worst}"
    return f"{size}: {'healthy' if state.healthy else 'read the findings'}".replace("R² -", "R² −")


def _findings(state: Any, characters: int) -> str:
    """Findings in words, the worst first."""
    lines = []
    order = sorted(state.findings, key=lambda finding: list(_MARKS).index(finding.severity))
    for finding in order[:_MOST_FINDINGS]:
        subject = f"{clean(finding.subject)}: " if getattr(finding, "subject", "") else ""
        line = f"{_MARKS[finding.severity]} {finding.severity}: {subject}{clean(finding.message)}"
        lines += textwrap.wrap(line, characters, subsequent_indent="   ", break_long_words=True)
    if len(order) > _MOST_FINDINGS:
        lines.append(f"and {count(len(order) - _MOST_FINDINGS, 'other finding')}")
    return escape("\n".join(lines or ["Nothing to worry about."]))
