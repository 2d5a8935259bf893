"""Axes to draw on, the caller's or those of a new figure.

Colours, sizes and habits that all plots share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from nobsp.arguments import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
else:
    Axes = Any

# One pair of axes, or any number of them in a list or array of any shape; None for a new figure.
AxesLike: TypeAlias = Any
# A number, or one per bar.
Lengths: TypeAlias = Any

# Sizes of letters, in points.
SMALL = 8.0
NORMAL = 9.0
LARGE = 10.5

# Colours for people who see few of them too and, with hatches and dashes, in grey.
# Okabe and Ito's colours, darkest contrast first; yellow is left out, for it vanishes on white.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#5B5B5B")
DASHES: Any = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (3, 1)),
    (0, (8, 2)),
    (0, (2, 2)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "||||", "++++")

# What each thing looks like in every plot it is in.
MAIN = SERIES[0]
PAIR = SERIES[1]
PAIR_HATCH = "\\\\\\\\"
LARGER = SERIES[2]
LARGER_HATCH = "xxxx"
FOR = "#C8501E"
AGAINST = SERIES[0]
AGAINST_HATCH = "////"
RESIDUAL = "#8C8C8C"
RESIDUAL_HATCH = "...."
# The lightest grey that is still read on white (WCAG AA).
MUTED = "#757575"
FAINT = "#D9D9D9"
ROWS = "#B5B5B5"
# Ground and hatching where nothing is known.
EMPTY = ("#F2F2F2", "#CFCFCF")
# Laid over pictures, where these have to shine.
FOR_TINT = "#FF5A1F"
AGAINST_TINT = "#2F86FF"

# From dark to light all along, so that the order also shows in grey; the light end still shows on
# white.
LOW_TO_HIGH = ("#12235A", "#2E5C8A", "#6F8796", "#BF9A5C", "#F2B134")
# White is nothing. In grey both ends are dark: plots add solid lines above zero and dashed ones
# below.
AGAINST_TO_FOR = ("#2A6CB0", "#7DB3DE", "#F7F7F7", "#F2A582", "#C8502F")
NOTHING_TO_MUCH = ("#FFFFFF", "#CFE0EE", "#7FB0D5", "#2F78B2", "#08306B")


class Look(NamedTuple):
    """Colour and hatch of a bar."""

    colour: str
    hatch: str = ""


def new_figure(size: tuple[float, float]) -> Figure:
    """A figure in inches.

    Nothing is shown: in a notebook that is the notebook's job, in a script the caller's.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as missing:
        raise ImportError("plots need matplotlib: pip install 'nobsp[plot]'.") from missing
    return plt.figure(figsize=size, layout="constrained")


def get_axes(ax: AxesLike, size: tuple[float, float]) -> Axes:
    """The caller's axes, or the only one of a new figure."""
    [axes] = get_panels(ax, 1, 1, size, "this plot")
    return axes


def get_panels(
    ax: AxesLike, panels: int, across: int, size: tuple[float, float], plot: str
) -> list[Axes]:
    """The caller's axes, or those of a new figure with this many in a row."""
    if ax is not None:
        return as_axes(ax, panels, plot)

    figure = new_figure(size)
    down = -(-panels // across)
    return [figure.add_subplot(down, across, number) for number in range(1, panels + 1)]


def as_axes(ax: AxesLike, panels: int, plot: str) -> list[Axes]:
    """The caller's axes, as many as there are panels."""
    passed = list(np.asarray(ax, dtype=object).ravel())
    for axes in passed:
        if not hasattr(axes, "add_patch"):
            raise TypeError(
                f"ax must be matplotlib axes, found {type(axes).__name__}; "
                "pass ax=figure.add_subplot()."
            )
    if len(passed) != panels:
        wanted = f"{plot} has {count(panels, 'panel')}; pass as many, or leave ax out"
        raise ValueError(f"ax has {len(passed)} axes but {wanted}.")
    return passed


def tidy(ax: Axes, *, grid: bool = False) -> None:
    """Two spines, small ticks, and faint upright lines where a grid is wanted."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(labelsize=SMALL, color=MUTED, length=3)
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_offset_text().set_fontsize(SMALL)

    if grid:
        ax.grid(axis="x", color=FAINT, linewidth=0.6)
        ax.set_axisbelow(True)


def label_rows(ax: Axes, names: Sequence[str]) -> None:
    """Names down the left side, the first on top."""
    ax.set_yticks(range(len(names)), labels=list(names), fontsize=NORMAL)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def bare(ax: Axes) -> None:
    """No ticks: for pictures."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)


def add_note(ax: Axes, text: str) -> None:
    """A remark in small print at the upper right."""
    ax.set_title(text, loc="right", fontsize=SMALL, color=MUTED)


def colour_bar(ax: Axes, shades: ScalarMappable, label: str, **options: Any) -> Colorbar:
    """A narrow bar beside the axes that tells what colours mean."""
    bar = ax.figure.colorbar(shades, ax=ax, aspect=28, pad=0.02, fraction=0.045, **options)
    bar.set_label(label, fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, length=3)
    bar.outline.set_visible(False)
    return bar


def legend_label(label: str) -> str:
    """A label that matplotlib shows in legends also if it begins with an underscore."""
    return f" {label}" if label.startswith("_") else label


def bars(
    ax: Axes, positions: Lengths, widths: Lengths, *, left: Lengths, look: Look, **options: Any
) -> None:
    """Bars along x, one per position, in a colour with a hatch."""
    ax.barh(
        positions,
        widths,
        left=left,
        color=look.colour,
        hatch=look.hatch,
        height=0.62,
        edgecolor="white",
        linewidth=0.5,
        zorder=2,
        **options,
    )


def turn_labels(
    axis: Axis, positions: Lengths, labels: Sequence[str], *, room: int, degrees: int
) -> None:
    """Labels along an axis, turned where they have more characters than there is room for."""
    if sum(map(len, labels)) <= room:
        axis.set_ticks(positions, labels=labels)
        return
    axis.set_ticks(
        positions,
        labels=labels,
        rotation=degrees,
        ha="right",
        rotation_mode="anchor",
    )


def write_beside(ax: Axes, text: str, x: float, y: float, *, points: float = 4.0) -> None:
    """Small print beside a point: to its right, or to its left where `points` is negative."""
    ax.annotate(
        text,
        xy=(x, y),
        xytext=(points, 0),
        textcoords="offset points",
        ha="left" if points >= 0 else "right",
        va="center",
        fontsize=SMALL,
    )


def text_colour(ax: Axes) -> Any:
    """The colour of text, which shows on any ground."""
    return ax.xaxis.label.get_color()


def blend(colours: Sequence[str]) -> Colormap:
    """All colours from the first over the others to the last."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("nobsp", colours)
