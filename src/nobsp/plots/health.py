"""Is the calibration healthy.

What is explained of each output, how much of each term is its own, what was noticed.
"""

from __future__ import annotations

import textwrap
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import FloatArray
from nobsp.arguments import count, number_outputs, percent, require_whole_number
from nobsp.plots import _axes
from nobsp.plots._axes import NORMAL, SMALL, Axes, get_axes, label_rows, tidy, write_beside
from nobsp.plots.labels import clean, escape, shorten_all, term_labels

# The health of a calibration, of tables or of images: each has its own attributes.
State: TypeAlias = Any

# Less of an output's variance explained is doubtful.
_EXPLAINED = 0.8
# And so is less of a term's spread that is its own.
_OWN = 0.01
# A difference between R² on all rows and on those inside the range that is worth a ring.
_WORTH_A_RING = 0.002
# Findings below a plot; more would be longer than the plot.
_MOST_FINDINGS = 6
_MARKS = {"error": "✗", "warning": "!", "note": "·"}
# Mean width of a letter as a share of its size.
_LETTER_WIDTH = 0.6
_POINTS_PER_INCH = 72


def health(what: Any, *, max_display: int = 15, ax: Axes | None = None) -> Axes:
    """Draws what to know before believing an explanation.

    First the held-out R² of every output, the worst first; a ring shows the same without rows
    outside the range fitted on. Then, for tables, how much of each term's spread the other terms
    cannot reproduce, the least first: what has hardly any of its own may as well be another term's.
    Crosses are doubtful. Below stand the findings, errors first.

    Args:
        what: A calibrated `NObSP` or `NObSPCam`, a `Functions`, or what its `health()`
            returned.
        max_display: Most outputs, and most terms; those that are least well off are shown.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        ... )
        >>> ax = plots.health(NObSP(model).fit(torch.randn(300, 3)))
        >>> ax.get_title(loc="left").partition(" ")[0]
        '300'
    """
    require_whole_number("max_display", max_display)
    state = _state_of(what)
    explained = np.array(state.explained, dtype=np.float64)
    worst_outputs = _smallest(explained)
    outputs = worst_outputs[:max_display]

    terms = getattr(state, "terms", ())
    own_shares = np.array([term.unique_share for term in terms], dtype=np.float64)
    least_own = _smallest(own_shares)
    shown_terms = least_own[:max_display]

    lines = len(outputs) + len(shown_terms)
    ax = get_axes(ax, (7.4, 0.28 * max(lines, 1) + 1.7 + 0.2 * len(state.findings)))
    tidy(ax, grid=True)
    inside = np.array(getattr(state, "inside", state.explained), dtype=np.float64)
    for y, output in enumerate(outputs):
        _draw_output(ax, y, explained[output], inside[output])
    for y, term in enumerate(shown_terms, start=len(outputs)):
        _draw_own_share(ax, y, own_shares[term])
    output_labels = shorten_all(_output_names(what, len(explained)), 26)
    all_term_labels = term_labels([term.term for term in terms], 26)
    _label_lines(
        ax,
        [output_labels[position] for position in outputs],
        [all_term_labels[position] for position in shown_terms],
    )

    caption = _caption(
        with_terms=len(shown_terms) > 0,
        more_outputs=len(worst_outputs) - len(outputs),
        more_terms=len(least_own) - len(shown_terms),
    )
    _write_around(ax, state, caption)
    return ax


def _write_around(ax: Axes, state: State, caption: str) -> None:
    """Writes the headline above the plot, and below it what is drawn and the findings."""
    ax.set_xlim(-0.03, 1.3)
    ax.set_xticks([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    ax.set_xlabel(f"{caption}\n\n{_describe_findings(state, _characters(ax))}", fontsize=SMALL)
    ax.xaxis.label.set(horizontalalignment="left", x=0.0)
    ax.set_title(_headline(state), loc="left", fontsize=NORMAL)


def _label_lines(ax: Axes, outputs: list[str], terms: list[str]) -> None:
    """Names of outputs, which stand out, and of terms below them, with a line between the two."""
    label_rows(ax, [*outputs, *terms])
    for label in ax.get_yticklabels()[: len(outputs)]:
        label.set_fontweight("bold")
    if outputs and terms:
        ax.axhline(len(outputs) - 0.5, color=_axes.MUTED, linewidth=0.8, zorder=1)


def _state_of(what: Any) -> State:
    """The health of an explainer, or the health itself."""
    state = what.health() if callable(getattr(what, "health", None)) else what
    if not all(hasattr(state, name) for name in ("findings", "explained", "rows")):
        raise TypeError(f"health draws an explainer or its health(), found {type(what).__name__}.")
    return state


def _output_names(what: Any, outputs: int) -> tuple[str, ...]:
    """Names of the outputs, numbered where there are none."""
    for attribute in ("output_names_", "output_names"):
        if hasattr(what, attribute):
            return getattr(what, attribute) or number_outputs(outputs)
    return number_outputs(outputs)


def _smallest(shares: FloatArray) -> NDArray[np.intp]:
    """Positions of the shares that are known, the smallest first."""
    known = np.flatnonzero(np.isfinite(shares))
    return known[np.argsort(shares[known], kind="stable")]


def _characters(ax: Axes) -> int:
    """About how many characters fit on a line under the axes."""
    inches = ax.get_window_extent().width / ax.figure.dpi
    return max(int(inches * _POINTS_PER_INCH / (_LETTER_WIDTH * SMALL)), 30)


def _draw_output(ax: Axes, y: int, share: float, inside: float) -> None:
    """The R² of an output, with a ring at that inside the range where it is another."""
    text = f"{share:.3f}"
    text_at = share
    if abs(inside - share) > _WORTH_A_RING:
        text = f"{share:.3f} ({inside:.3f} inside)"
        text_at = max(share, inside)
        [ring] = ax.plot(
            max(inside, 0.0),
            y,
            "o",
            color=_axes.MAIN,
            zorder=4,
            gid="inside",
        )
        ring.set(markersize=7, markerfacecolor="none", markeredgewidth=1.4)
    _draw_share(
        ax,
        y,
        share,
        doubtful=_EXPLAINED,
        colour=_axes.MAIN,
        text=text,
        text_at=text_at,
    )


def _draw_own_share(ax: Axes, y: int, share: float) -> None:
    """How much of a term's spread is its own."""
    text = f"{share:.2%}" if share < _OWN else percent(share)
    _draw_share(
        ax,
        y,
        share,
        doubtful=_OWN,
        colour=_axes.RESIDUAL,
        text=text,
        text_at=share,
    )


def _draw_share(
    ax: Axes, y: int, share: float, *, doubtful: float, colour: str, text: str, text_at: float
) -> None:
    """A line from zero to a share, with a cross at its end where it is doubtful, and a text."""
    is_doubtful = share < doubtful
    if is_doubtful:
        colour = _axes.FOR
    end = float(np.clip(share, 0.0, 1.0))

    ax.plot(
        [0.0, end],
        [y, y],
        color=colour,
        linewidth=2.0,
        zorder=2,
    )
    ax.plot(
        end,
        y,
        marker="X" if is_doubtful else "o",
        markersize=7,
        color=colour,
        zorder=3,
        clip_on=False,
        gid="share",
    )
    x = float(np.clip(text_at, 0.0, 1.0))
    write_beside(ax, text.replace("-", "−"), x, y, points=7)


def _caption(*, with_terms: bool, more_outputs: int, more_terms: int) -> str:
    """What the lines are, and how many are not shown."""
    text = "R² of each output"
    if with_terms:
        text += ", in bold; share of each term's spread that is its own"
    if more_outputs:
        text += f"; {more_outputs} more outputs"
    if more_terms:
        text += f"; {more_terms} more terms"
    return text


def _headline(state: State) -> str:
    """The calibration in a line.

    Its size, how much is explained, and whether to read the findings.
    """
    if hasattr(state, "terms"):
        size = f"{count(state.rows, 'row')}, {count(len(state.terms), 'term')}, {state.headline}"
    else:
        known = [share for share in state.explained if share == share]
        worst = f"the worst R² is {min(known):.3f}" if known else "no output varies"
        size = f"{count(state.rows, 'image')}, {count(state.channels, 'channel')}, {worst}"

    verdict = "healthy" if state.healthy else "read the findings"
    return f"{size}: {verdict}".replace("R² -", "R² −")


def _describe_findings(state: State, characters: int) -> str:
    """Findings in words, the worst first."""
    severities = list(_MARKS)
    findings = sorted(state.findings, key=lambda finding: severities.index(finding.severity))
    lines = []
    for finding in findings[:_MOST_FINDINGS]:
        subject = f"{clean(finding.subject)}: " if getattr(finding, "subject", "") else ""
        line = f"{_MARKS[finding.severity]} {finding.severity}: {subject}{clean(finding.message)}"
        lines += textwrap.wrap(line, characters, subsequent_indent="   ", break_long_words=True)

    more = len(findings) - _MOST_FINDINGS
    if more > 0:
        lines.append(f"and {count(more, 'other finding')}")
    return escape("\n".join(lines or ["Nothing to worry about."]))
