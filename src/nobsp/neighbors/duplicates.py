"""Near-duplicates: rows with nearly the same activations, or nearly the same images.

Images may also be shifted by a pixel, noisy or brighter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from nobsp._typing import AnyArray, NativeFrame
from nobsp.frames import frame_like
from nobsp.neighbors.search import pieces, spaced

if TYPE_CHECKING:
    from nobsp.neighbors.result import Neighbors

Array = NDArray[np.float64]
Pairs = NDArray[np.int64]

# Images whose correlation is at least this are the same; of 5,000 photographs of CIFAR-10, 6 pairs
# of others are.
_LEAST_CORRELATION = 0.95
# Where other images are alike too, as digits are, a pair must be this many times nearer to one than
# they are.
_TIMES_NEARER = 5.0
# What is always near enough to one: thumbnails are rounded to 256 steps.
_ROUNDING = 0.005
# Neighbours among coarser thumbnails that are looked at.
_N_CANDIDATES = 8
_COARSE_SIDE = 16
# Rows whose nearest neighbour says how alike images usually are.
_N_USUAL = 500
# Numbers of thumbnails or correlations held at once.
_MOST_NUMBERS = 1 << 23


@dataclass(frozen=True, eq=False, repr=False)
class Duplicates:
    """Rows of a database that are nearly the same.

    Attributes:
        pairs: Positions of two such rows, the smaller first, nearest pairs first, shape (pairs, 2);
            of other rows, their position and that in the database.
        distances: Distance of each pair in activation space.
        groups: Rows that are linked by pairs, largest group first; empty for other rows.
        conflicting: Whether the labels in a group differ, shape (groups,); None where the database
            has no labels.
        correlations: Correlation of the two images of a pair, at the shift where it is largest;
            None without images.
    """

    pairs: Pairs
    distances: Array
    groups: tuple[NDArray[np.int64], ...]
    conflicting: NDArray[np.bool_] | None
    correlations: Array | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def to_frame(self) -> NativeFrame:
        """One line per pair, as a pandas frame, or a polars one where pandas is missing."""
        columns: dict[str, AnyArray] = {
            "first": self.pairs[:, 0],
            "second": self.pairs[:, 1],
            "distance": self.distances,
        }
        if self.correlations is not None:
            columns["correlation"] = self.correlations
        if self.groups or len(self) == 0:
            columns["group"] = self._groups_of_pairs()
        if self.conflicting is not None:
            columns["conflicting"] = self.conflicting[columns["group"]]
        return frame_like(None, columns)

    def _groups_of_pairs(self) -> NDArray[np.int64]:
        """The group of every pair."""
        group_of: dict[int, int] = {}
        for number, members in enumerate(self.groups):
            group_of |= dict.fromkeys(members.tolist(), number)
        first_rows = self.pairs[:, 0].tolist()
        return np.array([group_of[row] for row in first_rows], dtype=np.int64)

    def __repr__(self) -> str:
        different = ""
        if self.conflicting is not None:
            different = f", {int(self.conflicting.sum())} with different labels"
        return f"Duplicates({len(self)} pairs in {len(self.groups)} groups{different})"


def near_pairs(hits: Neighbors, threshold: float) -> Pairs:
    """Queries and their neighbours within a distance, shape (pairs, 2)."""
    queries, columns = np.nonzero(hits.distances <= threshold)
    neighbours = hits.indices[queries, columns]
    return np.column_stack([queries, neighbours]).astype(np.int64)


def alike_pairs(
    thumbnails: Tensor, database: Tensor, candidates: NDArray[np.int64], *, own: bool
) -> Pairs:
    """Images and those of a database that are nearly the same.

    They differ at most by a shift of one pixel, noise, brightness or contrast.

    Args:
        thumbnails: Of the images.
        database: Of the database's rows, the same where `own`.
        candidates: Positions in the database to compare each image with, beside those whose
            thumbnails are nearest.
        own: Whether the images are those of the database, so that each is left out for itself.
    """
    by_thumbnail = _nearest_thumbnails(thumbnails, database, own=own)
    together = np.concatenate([candidates, by_thumbnail], axis=1)
    queries = np.repeat(np.arange(len(thumbnails)), together.shape[1])
    pairs = np.unique(np.column_stack([queries, together.ravel()]), axis=0)
    if own:
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]

    least = least_correlation(database)
    return pairs[correlate(thumbnails, database, pairs) >= least]


def least_correlation(database: Tensor) -> float:
    """The correlation from which on two images are the same: more where all images are alike."""
    if len(database) < 3:
        return _LEAST_CORRELATION
    some = spaced(len(database), _N_USUAL)
    nearest = _nearest_thumbnails(database[some], database, own=False)
    is_itself = nearest == some.numpy()[:, None]
    nearest_other = np.array([row[~own][0] for row, own in zip(nearest, is_itself, strict=True)])
    pairs = np.column_stack([np.arange(len(some)), nearest_other])
    usual = float(np.median(correlate(database[some], database, pairs)))

    most_apart = min(1 - _LEAST_CORRELATION, (1 - usual) / _TIMES_NEARER)
    return 1 - max(most_apart, _ROUNDING)


def _nearest_thumbnails(thumbnails: Tensor, database: Tensor, *, own: bool) -> NDArray[np.int64]:
    """Positions of the most similar coarse thumbnails, shape (images, few)."""
    asked = _coarse_vectors(thumbnails)
    known = _coarse_vectors(database)
    count = min(_N_CANDIDATES, len(database) - own)
    nearest = torch.empty(len(asked), count, dtype=torch.long)
    for piece in pieces(len(asked), len(known), numbers=_MOST_NUMBERS):
        similarity = asked[piece] @ known.T
        if own:
            rows = torch.arange(piece.start, piece.stop)
            similarity[rows - piece.start, rows] = -torch.inf
        nearest[piece] = similarity.topk(count, dim=1).indices
    return nearest.numpy()


def _coarse_vectors(thumbnails: Tensor) -> Tensor:
    small = functional.adaptive_avg_pool2d(thumbnails[:, None].float(), _COARSE_SIDE)
    return _standardise(small[:, 0])


def correlate(thumbnails: Tensor, database: Tensor, pairs: Pairs) -> Array:
    """Correlation of the thumbnails of each pair, the largest over shifts by at most one pixel."""
    side = thumbnails.shape[-1]
    inside = slice(1, side - 1)
    correlations = np.empty(len(pairs))
    for piece in pieces(len(pairs), side * side, numbers=_MOST_NUMBERS):
        first = thumbnails[torch.from_numpy(pairs[piece, 0])].float()
        second = database[torch.from_numpy(pairs[piece, 1])].float()
        centre = _standardise(first[:, inside, inside])
        best = torch.full((len(first),), -1.0)
        for down in range(3):
            for across in range(3):
                shifted = second[:, down : down + side - 2, across : across + side - 2]
                best = torch.maximum(best, (centre * _standardise(shifted)).sum(1))
        correlations[piece] = best.double().numpy()
    return correlations


def _standardise(thumbnails: Tensor) -> Tensor:
    """Vectors of mean zero and unit length; zero for an image of one colour."""
    vectors = thumbnails.flatten(1)
    vectors = vectors - vectors.mean(1, keepdim=True)
    lengths = vectors.norm(dim=1, keepdim=True)
    return vectors / torch.where(lengths > 1e-6, lengths, torch.inf)


def link_groups(pairs: Pairs, n_rows: int) -> tuple[NDArray[np.int64], ...]:
    """Rows that are linked by pairs, largest group first."""
    if len(pairs) == 0:
        return ()
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(len(pairs), dtype=np.int8)
    links = coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(n_rows, n_rows))
    members = np.unique(pairs)
    component = connected_components(links, directed=False)[1][members]
    order = np.argsort(component, kind="stable")
    groups = np.split(members[order], np.flatnonzero(np.diff(component[order])) + 1)
    return tuple(sorted(groups, key=lambda group: (-len(group), int(group[0]))))
