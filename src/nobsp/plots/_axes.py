"""Axes to draw on: the caller's, or those of a new figure; colours, sizes and manners that all plots share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nobsp._messages import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
else:
    Axes = Any

SMALL, NORMAL, LARGE = 8.0, 9.0, 10.5

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
MAIN, PAIR, LARGER = SERIES[:3]
PAIR_HATCH, LARGER_HATCH = "\\\\\\\\", "xxxx"
FOR, AGAINST, AGAINST_HATCH = "#C8501E", SERIES[0], "////"
RESIDUAL, RESIDUAL_HATCH = "#8C8C8C", "...."
MUTED = "#757575"  # the lightest grey that is still read on white (WCAG AA)
FAINT = "#D9D9D9"
ROWS = "#B5B5B5"
EMPTY = ("#F2F2F2", "#CFCFCF")  # ground and hatching where nothing is known
FOR_TINT, AGAINST_TINT = "#FF5A1F", "#2F86FF"  # laid over pictures, where both have to shine

# From dark to light all along, so that the order also shows in grey; the light end still shows on white.
LOW_TO_HIGH = ("#12235A", "#2E5C8A", "#6F8796", "#BF9A5C", "#F2B134")
# White is nothing. In grey both ends are dark: plots add solid lines above zero and dashed ones below.
AGAINST_TO_FOR = ("#2A6CB0", "#7DB3DE", "#F7F7F7", "#F2A582", "#C8502F")
NOTHING_TO_MUCH = ("#FFFFFF", "#CFE0EE", "#7FB0D5", "#2F78B2", "#08306B")


def new_figure(size: tuple[float, float]) -> Figure:
    """A figure in inches. Nothing is shown: in a notebook that is the notebook's job, in a script the caller's."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as missing:
        raise ImportError("plots need matplotlib: pip install 'nobsp[plot]'.") from missing
    return plt.figure(figsize=size, layout="constrained")


def get_axes(ax: Any, size: tuple[float, float]) -> Axes:
    """The caller's axes, or the only one of a new figure."""
    return get_panels(ax, 1, 1, size, "this plot")[0]


def get_panels(
    ax: Any, panels: int, across: int, size: tuple[float, float], what: str
) -> list[Axes]:
    """The caller's axes, or those of a new figure, so many in a row."""
    if ax is not None:
        return as_axes(ax, panels, what)
    figure = new_figure(size)
    return [figure.add_subplot(-(-panels // across), across, place + 1) for place in range(panels)]


def as_axes(ax: Any, panels: int, what: str) -> list[Axes]:
    """The caller's axes, as many as there are panels."""
    given = list(np.asarray(ax, dtype=object).ravel())
    wrong = next((one for one in given if not hasattr(one, "add_patch")), None)
    if wrong is not None:
        raise TypeError(
            f"ax must be matplotlib axes, found {type(wrong).__name__}; pass ax=figure.add_subplot()."
        )
    if len(given) != panels:
        wanted = f"{what} has {count(panels, 'panel')}; pass as many, or leave ax out"
        raise ValueError(f"ax has {len(given)} axes but {wanted}.")
    return given


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


def colour_bar(ax: Axes, shades: Any, label: str, **options: Any) -> Any:
    """A narrow bar beside the axes that tells what colours mean."""
    bar = ax.figure.colorbar(shades, ax=ax, aspect=28, pad=0.02, fraction=0.045, **options)
    bar.set_label(label, fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, length=3)
    bar.outline.set_visible(False)
    return bar


def legend_label(label: str) -> str:
    """A label that matplotlib does not leave out of legends, as it does where one begins with an underscore."""
    return f" {label}" if label.startswith("_") else label


def bars(
    ax: Axes, places: Any, widths: Any, *, left: Any, look: tuple[str, str], **options: Any
) -> None:
    """Bars along x, one per place, in a colour with a hatch."""
    style: dict[str, Any] = {"height": 0.62, "edgecolor": "white", "linewidth": 0.5, "zorder": 2}
    ax.barh(places, widths, left=left, color=look[0], hatch=look[1], **style, **options)


def turn_labels(axis: Any, places: Any, labels: Sequence[str], room: int, degrees: int) -> None:
    """Labels along an axis, turned where they have more characters than there is room for."""
    turned: dict[str, Any] = {"rotation": degrees, "ha": "right", "rotation_mode": "anchor"}
    axis.set_ticks(places, labels=labels, **(turned if sum(map(len, labels)) > room else {}))


def write_beside(ax: Axes, text: str, x: float, y: float, *, points: float = 4.0) -> None:
    """Small print beside a point: to its right, or to its left where `points` is negative."""
    side = "left" if points >= 0 else "right"
    ax.annotate(
        text, (x, y), (points, 0), textcoords="offset points", ha=side, va="center", fontsize=SMALL
    )


def text_colour(ax: Axes) -> Any:
    """The colour of text, which shows on any ground."""
    return ax.xaxis.label.get_color()


def blend(colours: Sequence[str]) -> Colormap:
    """All colours from the first over the others to the last."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("nobsp", colours)
