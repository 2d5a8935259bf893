"""Algebra of oblique projections on matrices and their moments; knows no networks."""

from nobsp.projection.moments import Moments, merge_all
from nobsp.projection.oblique import (
    centred,
    complement_projector,
    oblique_coefficients,
    oblique_projector,
    orthonormal_basis,
    project,
    transfer_matrix,
)
from nobsp.projection.overlap import Overlap, overlap
from nobsp.projection.partial import (
    ChannelRegression,
    PartialRegression,
    channel_coefficients,
    partial_coefficients,
)
from nobsp.projection.ridge import Ridge, Spectrum, spectrum
from nobsp.projection.terms import TermsRegression, compress, pure_sign, terms_coefficients

__all__ = [
    "ChannelRegression",
    "Moments",
    "Overlap",
    "PartialRegression",
    "Ridge",
    "Spectrum",
    "TermsRegression",
    "centred",
    "channel_coefficients",
    "complement_projector",
    "compress",
    "merge_all",
    "oblique_coefficients",
    "oblique_projector",
    "orthonormal_basis",
    "overlap",
    "partial_coefficients",
    "project",
    "pure_sign",
    "spectrum",
    "terms_coefficients",
    "transfer_matrix",
]
