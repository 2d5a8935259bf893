"""Plots of explanations, with matplotlib: axes in, axes out, nothing shown."""

from typing import TYPE_CHECKING

from nobsp.elsewhere import PLOT_FUNCTIONS, describe_unknown
from nobsp.plots.accounts import ledger, waterfall
from nobsp.plots.curves import curves
from nobsp.plots.differences import along, gaps, two_curves
from nobsp.plots.dissection import lens, parts
from nobsp.plots.health import health
from nobsp.plots.importances import beeswarm, importance
from nobsp.plots.interaction import interaction, interaction_matrix
from nobsp.plots.maps import cam_grid, confusions, signal, words, words_html
from nobsp.plots.retrieval import retrieval_panel
from nobsp.plots.sequences import windows

__all__ = [
    "along",
    "beeswarm",
    "cam_grid",
    "confusions",
    "curves",
    "gaps",
    "health",
    "importance",
    "interaction",
    "interaction_matrix",
    "ledger",
    "lens",
    "parts",
    "retrieval_panel",
    "signal",
    "two_curves",
    "waterfall",
    "windows",
    "words",
    "words_html",
]

# Type checkers do not see this, so that misspelt names are an error to them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        module = "module 'nobsp.plots'"
        if name.startswith("_"):
            raise AttributeError(f"{module} has no attribute {name!r}")
        raise AttributeError(
            describe_unknown(module, name, known=__all__, elsewhere=PLOT_FUNCTIONS)
        )
