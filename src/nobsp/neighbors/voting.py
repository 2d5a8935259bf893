"""What labelled rows say of others' classes: a vote of neighbours, and centroids of the classes.

Rows are compared after columns were decorrelated (`Centroids.transform`): activations that many
channels share make everything look alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.search import Fitted, Space, pieces, spaced, unit_length
from nobsp.neighbors.tuning import TUNING

# What is left of the direction of a class that lost its only row is rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Centroids:
    """What a database's labelled rows say of their classes, in the space of z-scored activations.

    Attributes:
        space: Where rows are compared.
        take: Rows of the database at positions.
        positions: Rows of the database that were counted, in order.
        members: How many of them are of each class, shape (classes,), float64.
        transform: T = ((R + I) / 2)^(−1/2), R the correlations of the columns, so that directions
            that many columns share count less; None where there are too many columns.
        directions: Sums over each class of the unit vectors along T x, shape (classes, width).
    """

    space: Space
    take: Callable[[Tensor], Rows]
    positions: Tensor
    members: Tensor
    transform: Tensor | None
    directions: Tensor

    def decorrelate(self, rows: Rows) -> Tensor:
        """Vectors of unit length along T x; rows of zeros stay."""
        vectors = self.space.vectors(rows)
        if self.transform is not None:
            vectors = vectors @ self.transform
        return unit_length(vectors)

    def cosines(self, vectors: Tensor, leave: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosines of rows to centroids without the rows left out, and the members that remain.

        Both have the shape (rows, classes).
        """
        cosines = vectors @ unit_length(self.directions).T
        members = self.members.repeat(len(vectors), 1)
        if leave is None:
            return cosines, members

        is_repeated = (leave[:, :, None] == leave[:, None, :]).tril(-1).any(2)
        is_counted = torch.isin(leave, self.positions) & ~is_repeated
        left_rows = self.take(leave.clamp_min(0).flatten())
        labels = left_rows.truth.reshape(leave.shape)
        left_vectors = self.decorrelate(left_rows).reshape(*leave.shape, -1)
        members.scatter_add_(1, labels, -is_counted.to(torch.float64))

        is_same_class = labels[:, :, None] == labels[:, None, :]
        taken_out = (is_same_class & is_counted[:, None, :]).to(torch.float64) @ left_vectors
        without = unit_length(self.directions[labels] - taken_out, _ROUNDING)
        queries, columns = torch.nonzero(is_counted, as_tuple=True)
        classes = labels[queries, columns]
        cosines[queries, classes] = (vectors[queries] * without[queries, columns]).sum(1)
        return cosines, members


def fit_centroids(fitted: Fitted) -> Centroids:
    """Centroids of the classes, by a database's labels; none if rows may have several classes."""
    space = fitted.space("activations", "euclidean")
    take = fitted.backend.take
    n_classes = 0 if fitted.outcomes.several else fitted.outcomes.count
    positions = spaced(len(fitted.backend), TUNING.most_centroid_rows)
    centroids = Centroids(
        space=space,
        take=take,
        positions=positions,
        members=torch.zeros(n_classes, dtype=torch.float64),
        transform=_find_transform(space, take, positions),
        directions=torch.zeros(n_classes, space.width, dtype=torch.float64),
    )
    if n_classes == 0:
        return centroids

    for piece in pieces(len(positions), space.width):
        rows = take(positions[piece])
        centroids.directions.index_add_(0, rows.truth, centroids.decorrelate(rows))
        centroids.members.add_(torch.bincount(rows.truth, minlength=n_classes))
    return centroids


def _find_transform(
    space: Space, take: Callable[[Tensor], Rows], positions: Tensor
) -> Tensor | None:
    """T that decorrelates columns halfway; None where there are too many of them."""
    if space.width > TUNING.most_columns:
        return None
    products = torch.zeros(space.width, space.width, dtype=torch.float64)
    for piece in pieces(len(positions), space.width):
        scores = space.scaled(take(positions[piece]))
        products += scores.T @ scores

    # Halfway to uncorrelated columns; all the way, rare directions would be noise.
    identity = torch.eye(space.width, dtype=torch.float64)
    values, axes = torch.linalg.eigh((products / len(positions) + identity) / 2)
    transform: Tensor = (axes * values.rsqrt()) @ axes.T
    return transform


def count_votes(centroids: Centroids, vectors: Tensor, voters: Tensor) -> Tensor:
    """Share of each class among the neighbours, shape (rows, classes).

    Neighbours that are more alike count more.
    """
    distinct, columns = torch.unique(voters, return_inverse=True)
    vector_parts = []
    label_parts = []
    for piece in pieces(len(distinct), centroids.space.width, numbers=TUNING.most_numbers):
        rows = centroids.take(distinct[piece])
        vector_parts.append(centroids.decorrelate(rows).to(torch.float32))
        label_parts.append(rows.truth)
    voter_vectors = torch.cat(vector_parts)
    labels = torch.cat(label_parts)

    has_several = labels.ndim == 2
    n_classes = labels.shape[1] if has_several else len(centroids.members)
    shares = torch.zeros(len(vectors), n_classes, dtype=torch.float64)
    width = voters.shape[1] * vectors.shape[1]
    for piece in pieces(len(vectors), width, numbers=TUNING.most_numbers):
        nearby = columns[piece]
        own = vectors[piece].to(torch.float32)
        cosines = torch.einsum("qd,qkd->qk", own, voter_vectors[nearby]).double()
        weights = torch.softmax(TUNING.vote_sharpness * cosines, dim=1)
        if has_several:
            shares[piece] = torch.einsum("qk,qkc->qc", weights, labels[nearby].double())
        else:
            shares[piece].scatter_add_(1, labels[nearby], weights)
    return shares
