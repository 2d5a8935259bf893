"""One palette for all plots, for people who see few colours too and, with hatches and dashes, in grey."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

# Okabe and Ito's colours, darkest contrast first; yellow is left out, for it vanishes on white.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#5B5B5B")
DASHES: Any = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1)), (0, (8, 2)), (0, (2, 2)))
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


def blend(colours: Sequence[str]) -> Colormap:
    """All colours from the first over the others to the last."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("nobsp", colours)
