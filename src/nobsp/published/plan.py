"""What is fixed before rows are added up: the terms, and a basis of each term's representation.

Sums of two calibrations can be added only where both have the same plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nobsp.network.columns import Subset, Summary, among
from nobsp.projection import spectrum
from nobsp.projection.partial import EPSILON
from nobsp.published.isolation import IsolatedRepresentation, Isolation, Represent

# Names of the blocks of columns whose products are added up.
OUTPUTS = "outputs"
TARGET = "target"
REFERENCE = "reference"

# Rows of the sample that a value too rare to be in it is put into: with one host row the value
# would appear in a single context.
HOSTS = 8
# Most rows that are made for the rare values of one feature, where such values are many.
MOST_RARE_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Plan:
    """What must be agreed on before rows are added up, so that shards can be merged."""

    isolation: Isolation  # features, baseline and how isolated inputs are made
    terms: tuple[Subset, ...]  # the terms to fit, as positions of features; single features first
    bases: dict[Subset, Tensor]  # per term, orthonormal directions (width, rank) of z_S

    def fingerprint(self) -> str:
        """Equal for plans whose moments may be added up."""
        digest = hashlib.sha256(repr((self.terms, self.isolation.features)).encode())
        for tensor in (self.isolation.baseline, *(self.bases[term] for term in self.terms)):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def widths_by_term(self, width: int, outputs: int) -> dict[Subset, dict[str, int]]:
        """Per term, the widths of the blocks of columns [target | reference | outputs]."""
        return {
            term: {TARGET: self.bases[term].shape[1], REFERENCE: width, OUTPUTS: outputs}
            for term in self.terms
        }

    def bytes_of_bases(self) -> int:
        """What the bases take in memory."""
        return sum(basis.numel() * basis.element_size() for basis in self.bases.values())

    def only(self, terms: Sequence[Subset]) -> Plan:
        """The plan of some of the terms."""
        bases = {term: self.bases[term] for term in terms}
        return replace(self, terms=tuple(terms), bases=bases)


def make_plan(
    isolation: Isolation,
    represent: Represent,
    sample: Tensor,
    terms: Sequence[Subset],
    *,
    rare: Tensor,
) -> Plan:
    """Fixes every term's basis from a sample of rows, and from rows of values too rare for it."""
    rows = torch.cat([sample, rare])
    bases = {
        representation.subset: _basis(representation).cpu().clone()
        for representation in isolation.representations(represent, rows, terms)
    }
    return Plan(isolation, tuple(terms), bases)


def _basis(representation: IsolatedRepresentation) -> Tensor:
    """Orthonormal directions (width, rank) in which the centred representation of a term varies."""
    z = representation.rows
    rows = z.to(torch.float64)
    n_rows, width = rows.shape

    counts = representation.counts().to(torch.float64)
    mean = (counts @ rows) / counts.sum()
    centred = (rows - mean) * counts.sqrt()[:, None]

    # Products hold directions down to the square root of rounding, as deep as single precision
    # goes.
    if n_rows > width and z.dtype != torch.float64:
        return spectrum(centred.T @ centred, rows=n_rows).vectors

    triangular = torch.linalg.qr(centred, mode="r").R
    _, singular_values, directions = torch.linalg.svd(triangular, full_matrices=False)
    above_rounding = singular_values > singular_values[:1] * max(n_rows, width) * EPSILON
    above_rounding[n_rows - 1 :] = False  # centring takes one direction
    basis: Tensor = directions[above_rounding].T
    return basis


def rare_rows(summary: Summary, isolation: Isolation) -> Tensor:
    """Rows with levels and extremes that the sample lacks: a basis without them would drop them."""
    sample = summary.sample
    if summary.rows <= len(sample):
        return sample[:0]

    hosts = summary.some_rows(HOSTS)
    rows = [sample[:0]]
    for feature, group in enumerate(isolation.features.columns):
        columns = list(group)
        if feature in summary.levels or feature in isolation.categories:
            for level_columns, levels in _known_levels(summary, feature, columns):
                unseen = levels[~among(levels, sample[:, level_columns])]
                rows.append(_put_in(hosts, level_columns, unseen))
        elif len(columns) == 1:
            extremes = torch.stack([summary.minimum[columns], summary.maximum[columns]])
            rows.append(_put_in(hosts, columns, extremes))
    return torch.cat(rows)


def _known_levels(
    summary: Summary, feature: int, columns: list[int]
) -> list[tuple[list[int], Tensor]]:
    """The levels of a category, or of each of its columns where they are too many together."""
    joint = summary.levels_of(feature, tuple(columns))
    if joint is not None:
        return [(columns, joint[0])]
    levels_by_column = summary.codes.get(feature, {})
    return [([columns[position]], levels[0]) for position, levels in levels_by_column.items()]


def _put_in(hosts: Tensor, columns: Sequence[int], values: Tensor) -> Tensor:
    """Rows that hold the values in some columns, each in several hosts where there are few."""
    copies = min(len(hosts), MOST_RARE_ROWS // max(len(values), 1))
    copies = max(copies, 1)
    host_of_row = torch.arange(copies * len(values)) % len(hosts)

    rows = hosts[host_of_row]
    rows[:, list(columns)] = values.repeat_interleave(copies, dim=0)
    return rows
