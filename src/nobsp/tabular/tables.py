"""Tables of single features, pairs and triples together, each without what belongs to the others.

Every table is an average over background rows r, which are few. What larger terms make there on average is part of it:

    z̄_a(x) contains the mean over r of T_ab(x, b_r) + T_abc(x, b_r, c_r),
    z̄_ab(x, y) contains the mean over r of T_abc(x, y, c_r).

That part belongs to the larger term, which has it already, and is taken out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.tabular.features import Domain, Points
from nobsp.tabular.grids import Table, Tabulator
from nobsp.tabular.lookup import Chunk
from nobsp.tabular.pieces import TablePiece
from nobsp.tabular.purification import (
    average_over,
    occupancy,
    places_of,
    purify,
    transfer,
    transfer_grid,
)

# Most directions of a representation, by how many features a term has: all terms share the regression's columns.
MOST_DIRECTIONS = {1: 24, 2: 32, 3: 16}
# Products below this are as good as none.
_FAINTEST = 1e-300
# Directions of a representation whose variance is below this share of the strongest are left to the prior.
_WEAKEST = 1e-6


@dataclass(frozen=True, eq=False)
class Main:
    """The table of one feature."""

    points: Points
    table: Table


@dataclass(frozen=True, eq=False)
class Lines:
    """Where the grids of pairs, or those of triples, have their lines, by feature."""

    points: dict[int, Points] = field(default_factory=dict)
    shares: dict[int, Tensor] = field(default_factory=dict)  # of the calibration rows

    @classmethod
    def of(cls, points: Mapping[int, Points], rows: Chunk) -> Lines:
        """Lines with the share of the rows at each."""
        return cls(dict(points), {k: occupancy(line, rows) for k, line in points.items()})

    def places(self, domains: Sequence[Domain], rows: Tensor) -> dict[int, Tensor]:
        """Where on the lines some rows of the network's input are, (rows, points) by feature."""
        places = {}
        for k, points in self.points.items():
            chunk = Chunk(domains[k].own_columns(rows), slice(0, len(rows)))
            places[k] = places_of(points, chunk)
        return places


@dataclass(frozen=True, eq=False)
class Grid:
    """The table of several features."""

    term: Subset
    points: tuple[Points, ...]
    shares: tuple[Tensor, ...]
    pure: Tensor  # the purified representation, (points …, width)
    outputs: Tensor  # the head's share for every background row, (background, points …, outputs)

    @classmethod
    def tabulate(cls, tabulate: Tabulator, term: Subset, lines: Lines) -> Grid:
        """Runs the network on the grid."""
        points = tuple(lines.points[k] for k in term)
        shares = tuple(lines.shares[k] for k in term)
        table = tabulate(points)
        return cls(term, points, shares, purify(table.mean, shares), table.outputs)

    def less(self, margin: Tensor) -> Grid:
        """The grid without what belongs to a larger term."""
        return replace(self, pure=self.pure - purify(margin, self.shares))

    def piece(self, weight: Tensor) -> TablePiece:
        """The term as the regression sees it."""
        flat = self.pure.flatten(0, -2)
        share = self.shares[0]
        for other in self.shares[1:]:
            share = torch.outer(share, other).flatten()
        basis = compress(flat, share, most=MOST_DIRECTIONS[len(self.term)])
        return TablePiece(self.term, self.points, flat @ weight, flat @ basis)


@dataclass(frozen=True, eq=False)
class Tables:
    """All tables, from which the pieces of the regression are made."""

    domains: Sequence[Domain]
    rows: Chunk  # the calibration rows
    weight: Tensor  # the head's coefficients
    background: Tensor  # of the tables of single features
    pair_background: Tensor
    mains: dict[int, Main]
    pair_lines: Lines = field(default_factory=Lines)
    pairs: tuple[Grid, ...] = ()
    triple_lines: Lines = field(default_factory=Lines)
    triples: tuple[Grid, ...] = ()

    @cached_property
    def pair_places(self) -> dict[int, Tensor]:
        """Where on the lines of pairs every background row is."""
        return self.pair_lines.places(self.domains, self.background)

    @cached_property
    def triple_places(self) -> dict[int, Tensor]:
        """Where on the lines of triples every background row is."""
        return self.triple_lines.places(self.domains, self.background)

    def pure_pairs(self) -> tuple[Grid, ...]:
        """Grids of pairs without what triples make of them over the background rows."""
        if not self.triples:
            return self.pairs
        places = self.triple_lines.places(self.domains, self.pair_background)
        pairs = {grid.term: grid for grid in self.pairs}
        for triple in self.triples:
            triple_places = [places[k] for k in triple.term]
            for sides in combinations(range(3), 2):
                term = tuple(triple.term[side] for side in sides)
                if term not in pairs:
                    continue
                margin = average_over(triple.pure, triple_places, sides=sides)
                lines = [triple.points[side] for side in sides]
                moved = transfer_grid(lines, margin, pairs[term].points)
                pairs[term] = pairs[term].less(moved)
        return tuple(pairs.values())

    def pure_means(self, pairs: Sequence[Grid]) -> dict[int, Tensor]:
        """Tables of single features without what larger terms make of them over the background rows."""
        means = {k: main.table.mean for k, main in self.mains.items()}
        for grids, places in ((pairs, self.pair_places), (self.triples, self.triple_places)):
            for grid in grids:
                for side, k in enumerate(grid.term):
                    here = [places[other] for other in grid.term]
                    margin = average_over(grid.pure, here, sides=(side,))
                    means[k] = means[k] - transfer(grid.points[side], margin, self.mains[k].points)
        return means

    def pieces(self) -> tuple[dict[int, TablePiece], list[TablePiece]]:
        """Every table as the regression sees it: of single features, and of pairs and triples."""
        pairs = self.pure_pairs()
        means = self.pure_means(pairs)
        singles = {}
        for k, main in self.mains.items():
            share = occupancy(main.points, self.rows)
            mean = means[k] - share @ means[k]
            basis = compress(mean, share, most=MOST_DIRECTIONS[1])
            singles[k] = TablePiece((k,), (main.points,), mean @ self.weight, mean @ basis)
        return singles, [grid.piece(self.weight) for grid in (*pairs, *self.triples)]


def count_nodes(lines: Mapping[int, Points], term: Subset) -> int:
    """Nodes of a term's grid."""
    return int(np.prod([len(lines[k]) for k in term]))


def compress(mean: Tensor, share: Tensor, *, most: int) -> Tensor:
    """Directions (width, rank) in which a table varies over the calibration rows, strongest first.

    Their lengths make the table vary along each by the square root of what it does: a ridge then pulls weak directions
    less than it would, and not as little as if all were alike. `share` is that of the rows at every point.
    """
    weighted = mean * share.sqrt()[:, None]
    # The smaller of the two products has the same eigenvalues.
    is_tall = weighted.shape[0] >= weighted.shape[1]
    product = weighted.T @ weighted if is_tall else weighted @ weighted.T
    # Numbers near the smallest there are have lost their digits, and the solver may not converge on them.
    product = product.where(product.abs() > _FAINTEST, 0.0)
    values, vectors = torch.linalg.eigh(product)

    is_strong = values > _WEAKEST * values[-1].clamp_min(_FAINTEST)
    strongest = is_strong.nonzero().flatten().flip(0)[:most]
    values = values[strongest]
    directions = vectors[:, strongest]
    if not is_tall:
        directions = weighted.T @ directions / values.sqrt()
    scaled: Tensor = directions / values**0.25
    return scaled
