"""Axes to draw on: the caller's, or those of a new figure; sizes and manners that all plots share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nobsp._messages import count
from nobsp.plots.colours import FAINT, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure
else:
    Axes = Any

SMALL, NORMAL, LARGE = 8.0, 9.0, 10.5


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


def get_panels(ax: Any, panels: int, across: int, size: tuple[float, float], what: str) -> list[Axes]:
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
        raise TypeError(f"ax must be matplotlib axes, found {type(wrong).__name__}; pass ax=figure.add_subplot().")
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


def bars(ax: Axes, places: Any, widths: Any, *, left: Any, look: tuple[str, str], **options: Any) -> None:
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
    ax.annotate(text, (x, y), (points, 0), textcoords="offset points", ha=side, va="center", fontsize=SMALL)


def text_colour(ax: Axes) -> Any:
    """The colour of text, which shows on any ground."""
    return ax.xaxis.label.get_color()
