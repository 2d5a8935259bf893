"""Algebra of oblique projections on moments of rows; knows no networks."""

from nobsp.projection.moments import Moments, merge_all, update_in_turn
from nobsp.projection.partial import Ridge, channel_coefficients, partial_coefficients, spectrum

__all__ = [
    "Moments",
    "Ridge",
    "channel_coefficients",
    "merge_all",
    "partial_coefficients",
    "spectrum",
    "update_in_turn",
]
