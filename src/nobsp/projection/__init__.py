"""Algebra of oblique projections on moments of rows; knows no networks."""

from nobsp.projection.moments import Moments, merge_all
from nobsp.projection.partial import ChannelRegression, PartialRegression, channel_coefficients, partial_coefficients
from nobsp.projection.ridge import Ridge, Spectrum, spectrum

__all__ = [
    "ChannelRegression",
    "Moments",
    "PartialRegression",
    "Ridge",
    "Spectrum",
    "channel_coefficients",
    "merge_all",
    "partial_coefficients",
    "spectrum",
]
