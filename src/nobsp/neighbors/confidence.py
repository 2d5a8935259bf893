"""How far to trust a prediction or a label: a weighted vote of neighbours, class centroids, and both with the softmax.

Rows are compared after columns were decorrelated (`Centroids.transform`): activations that many channels share make
everything look alike. The numbers below were chosen on TinyImageNet, and checked on CIFAR-10 and Imagenette.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.spaces import Space, pieces

Array = NDArray[np.float64]
Take = Callable[[Tensor], Rows]

# Neighbours by activations that have a vote.
VOTERS = 50
# A neighbour counts exp(this · cosine); a centroid likewise.
_SHARPNESS, _CENTROID_SHARPNESS = 20.0, 10.0
# A class without a single vote is not impossible.
_FLOOR = 0.01
# Rows from which centroids are computed; of a larger database, so many evenly spaced ones.
MOST_ROWS = 200_000
# A class with fewer rows has no percentile of its own.
_FEWEST_ROWS = 20
# Past so many columns, decorrelating them takes minutes, and they are left as they are.
_MOST_COLUMNS = 4096
# Queries whose neighbours are decorrelated together, and numbers gathered at once.
_QUERIES, _AT_ONCE = 2048, 1 << 22
# Folds of the cross-validated joint confidence; fewer right or wrong predictions than two in each do not allow it.
_FOLDS = 5


# ---------------------------------------------------------------------- class centroids


@dataclass(frozen=True, eq=False)
class Centroids:
    """What the labelled rows of a database say of their classes, in the space of z-scored activations."""

    space: Space
    take: Take  # rows of the database at positions
    positions: Tensor  # rows of the database that were counted, in order
    members: Tensor  # how many of them are of each class, (classes,), float64
    sums: Tensor  # of the unit vectors of each class, (classes, width)
    usual: Array  # distance that 95% of a class's rows stay within, each measured from the mean of the others
    # T = ((R + I) / 2)^(−1/2), R the correlations of the columns, so that directions that many columns share count
    # less; None where there are too many columns. And sums over each class of the unit vectors along T x.
    transform: Tensor | None
    directions: Tensor

    def distances(self, rows: Rows, leave: Tensor | None = None) -> Array:
        """From each row to the centroid of its predicted class, without the rows to leave out; infinite without any.

        A row that stays in the centroid of its label draws it nearer, and so gives its label away.
        """
        found = []
        for piece in pieces(len(rows), self.space.width * (1 if leave is None else 1 + leave.shape[1])):
            part = rows.take(piece)
            total, members = self.sums[part.predicted], self.members[part.predicted]
            if leave is not None:
                labels, vectors = self.left_out(leave[piece])
                same = (labels == part.predicted[:, None]).to(torch.float64)
                total = total - (same[:, None] @ vectors)[:, 0]
                members = members - same.sum(1)
            away = (self.space.vectors(part, part.predicted) - total / members[:, None]).square().sum(1).sqrt()
            found.append(torch.where(members > 0, away, torch.inf))
        return torch.cat(found).numpy()

    def left_out(self, leave: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and vectors of rows that queries leave out, label −1 for those that no centroid holds."""
        repeated = (leave[:, :, None] == leave[:, None, :]).tril(-1).any(2)
        held = torch.isin(leave, self.positions) & ~repeated
        rows = self.take(leave.clamp_min(0).flatten())
        assert rows.labels is not None
        labels = torch.where(held, rows.labels.reshape(leave.shape), -1)
        return labels, self.space.vectors(rows, rows.predicted).reshape(*leave.shape, -1)

    def decorrelate(self, vectors: Tensor) -> Tensor:
        """Vectors of unit length along T x; rows of zeros stay."""
        return _unit(vectors if self.transform is None else vectors @ self.transform)


def fit_centroids(space: Space, take: Take, count: int, classes: int) -> Centroids:
    """Centroids of the classes, by the labels of a database of `count` rows."""
    positions = torch.arange(count)
    if count > MOST_ROWS:
        positions = torch.linspace(0, count - 1, MOST_ROWS, dtype=torch.float64).long()
    width = space.width
    sums = torch.zeros(classes, width, dtype=torch.float64)
    products = torch.zeros(width, width, dtype=torch.float64) if width <= _MOST_COLUMNS else None
    found = []
    for piece in pieces(len(positions), width):
        rows = take(positions[piece])
        assert rows.labels is not None
        vectors, lengths = space.directions(rows, rows.predicted)
        sums.index_add_(0, rows.labels, vectors)
        found.append(rows.labels)
        if products is not None:
            scores = vectors * lengths[:, None]
            products += scores.T @ scores
    labels = torch.cat(found)
    members = torch.bincount(labels, minlength=classes).to(torch.float64)
    transform = None
    if products is not None:
        # Halfway to uncorrelated columns; all the way, rare directions would be noise.
        values, axes = torch.linalg.eigh((products / len(positions) + torch.eye(width, dtype=torch.float64)) / 2)
        transform = (axes * values.rsqrt()) @ axes.T
    known = Centroids(space, take, positions, members, sums, np.empty(0), transform, torch.zeros_like(sums))
    distances = []
    for piece in pieces(len(positions), width):
        rows, own = take(positions[piece]), labels[piece]
        vectors = space.vectors(rows, rows.predicted)
        known.directions.index_add_(0, own, known.decorrelate(vectors))
        # A row pulls the mean of its class towards itself, so it is measured from that of the others.
        others = (members[own] - 1)[:, None]
        distances.append((vectors - (sums[own] - vectors) / others).square().sum(1).sqrt())
    away = torch.cat(distances).numpy()
    finite = np.isfinite(away)
    usual = np.full(classes, np.percentile(away[finite], 95) if finite.any() else np.inf)
    for number in range(classes):
        own_distances = away[(labels.numpy() == number) & finite]
        if len(own_distances) >= _FEWEST_ROWS:
            usual[number] = np.percentile(own_distances, 95)
    return Centroids(space, take, positions, members, sums, usual, transform, known.directions)


# ---------------------------------------------------------------------- neighbours and centroids about each row


@dataclass(frozen=True, eq=False)
class Support:
    """What neighbours and centroids give to the classes of each row."""

    confidence: Array  # log-odds of the softmax probability of the predicted class
    vote: Array  # logarithm of the vote for the predicted class
    agreed: Array  # log-odds of the predicted class by softmax and vote together, q_c ∝ p_c (V_c + 0.01)
    suggested: NDArray[np.int64]  # the class that they give most to
    label: Array | None  # what they give to the label; None without labels

    def fixed_rule(self) -> Array:
        """The joint confidence without labels to fit it on: the probability on which softmax and vote agree."""
        chance: Array = np.exp(-np.logaddexp(0.0, -self.agreed))  # a logistic curve without overflow
        return chance


def weigh_support(
    centroids: Centroids,
    rows: Rows,
    log_probabilities: Tensor,
    voters: NDArray[np.int64],
    *,
    labels: Tensor | None,
    leave: Tensor | None,
) -> Support:
    """Vote of `voters`, the positions of each row's neighbours, and centroids without the rows to leave out."""
    parts = []
    for start in range(0, len(rows), _QUERIES):
        lot = slice(start, start + _QUERIES)
        some = rows.take(lot)
        own = centroids.decorrelate(centroids.space.vectors(some, some.predicted))
        votes = (_vote(centroids, own, torch.from_numpy(voters[lot])) + _FLOOR).log()
        cosines, members = _towards_centroids(centroids, own, None if leave is None else leave[lot])
        given = _CENTROID_SHARPNESS * cosines + votes
        label = (some.predicted if labels is None else labels[lot])[:, None]
        share = given.softmax(1).gather(1, label)[:, 0]
        parts.append(
            (
                log_odds(log_probabilities[lot], some.predicted),
                votes.gather(1, some.predicted[:, None])[:, 0],
                log_odds(log_probabilities[lot] + votes, some.predicted),
                given.argmax(1),
                # Where no other row has the label, nothing is known of it, and it gets what chance would give.
                torch.where(members.gather(1, label)[:, 0] > 0, share, 1 / given.shape[1]),
            )
        )
    confidence, vote, agreed, suggested, support = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    return Support(confidence, vote, agreed, suggested, None if labels is None else support)


def log_odds(log_weights: Tensor, chosen: Tensor) -> Tensor:
    """Log-odds of one class among weights that need not sum to one: log w_c − log Σ of the others.

    >>> log_odds(torch.tensor([[1.0, 2.0, 6.0]]).log(), torch.tensor([2])).exp().round(decimals=5)
    tensor([2.])
    """
    own = log_weights.gather(1, chosen[:, None])
    others = log_weights.scatter(1, chosen[:, None], -torch.inf)
    return own[:, 0] - others.logsumexp(1)


def _vote(centroids: Centroids, own: Tensor, voters: Tensor) -> Tensor:
    """Share of each class among the neighbours, the more alike ones counting more, shape (rows, classes)."""
    distinct, place = torch.unique(voters, return_inverse=True)
    near, found = [], []
    for some in torch.split(distinct, max(1, _AT_ONCE // centroids.space.width)):
        rows = centroids.take(some)
        assert rows.labels is not None
        near.append(centroids.decorrelate(centroids.space.vectors(rows, rows.predicted)).to(torch.float32))
        found.append(rows.labels)
    vectors, labels = torch.cat(near), torch.cat(found)
    shares = torch.zeros(len(own), len(centroids.members), dtype=torch.float64)
    step = max(1, _AT_ONCE // max(1, voters.shape[1] * own.shape[1]))
    for start in range(0, len(own), step):
        some = place[start : start + step]
        similar = torch.einsum("qd,qkd->qk", own[start : start + step].to(torch.float32), vectors[some]).double()
        shares[start : start + step].scatter_add_(1, labels[some], torch.softmax(_SHARPNESS * similar, dim=1))
    return shares


def _towards_centroids(centroids: Centroids, own: Tensor, leave: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cosines to the centroids without the rows to leave out, and what members are left, both (rows, classes)."""
    cosines = own @ _unit(centroids.directions).T
    members = centroids.members.repeat(len(own), 1)
    if leave is not None:
        labels, vectors = centroids.left_out(leave)
        held = labels >= 0
        members.scatter_add_(1, labels.clamp_min(0), -held.to(torch.float64))
        same = ((labels[:, :, None] == labels[:, None, :]) & held[:, :, None]).to(torch.float64)
        without = centroids.directions[labels.clamp_min(0)] - same @ centroids.decorrelate(vectors)
        queries, places = torch.nonzero(held, as_tuple=True)
        # What is left of a class that lost its only row is rounding.
        cosines[queries, labels[queries, places]] = (own[queries] * _unit(without, 1e-9)[queries, places]).sum(1)
    return cosines, members


def _unit(vectors: Tensor, least: float = 0.0) -> Tensor:
    """Vectors of unit length; zero where they are no longer than `least`."""
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(lengths > least, lengths, torch.inf)


# ---------------------------------------------------------------------- joint confidence


def fit_confidence(signals: dict[str, Array], right: NDArray[np.bool_]) -> Any:
    """A logistic regression on z-scored signals to the probability that a prediction is right."""
    return _regression().fit(np.column_stack(list(signals.values())), right)


def cross_validate(signals: dict[str, Array], right: NDArray[np.bool_], *, seed: int = 0) -> Array | None:
    """Joint confidence of each row by a regression that was fitted without it; None where too few are right or wrong.

    Folds are drawn with a seed of their own, of rows sorted by their signals: the same rows get the same numbers in
    whatever order they come.
    """
    if min(right.sum(), (~right).sum()) < 2 * _FOLDS:
        return None
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    order = np.lexsort([right, *reversed(signals.values())])
    table = np.column_stack(list(signals.values()))[order]
    result = np.empty(len(right))
    result[order] = cross_val_predict(_regression(), table, right[order], cv=folds, method="predict_proba")[:, 1]
    return result


def _regression() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
