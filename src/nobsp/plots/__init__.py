"""Plots of explanations, with matplotlib: axes in, axes out, nothing shown."""

from nobsp.plots.accounts import ledger, waterfall
from nobsp.plots.functions import curves
from nobsp.plots.interactions import interaction
from nobsp.plots.maps import cam_grid
from nobsp.plots.pairs import interaction_matrix
from nobsp.plots.retrieval import retrieval_panel
from nobsp.plots.state import health
from nobsp.plots.strengths import beeswarm, importance

__all__ = [
    "beeswarm",
    "cam_grid",
    "curves",
    "health",
    "importance",
    "interaction",
    "interaction_matrix",
    "ledger",
    "retrieval_panel",
    "waterfall",
]
