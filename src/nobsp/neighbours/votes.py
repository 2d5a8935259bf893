"""What labelled rows near a row say of its class: a vote of neighbours, and the centres of the classes.

Whoever votes is compared after columns were decorrelated (`Centroids.transform`): activations that many channels share
make everything look alike. The numbers below were chosen on TinyImageNet, and checked on CIFAR-10 and Imagenette.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.neighbours.centroids import Centroids
from nobsp.neighbours.evidence import Rows

Array = NDArray[np.float64]

# Neighbours by activations that have a vote.
VOTERS = 50
# A neighbour counts exp(this · cosine); a centre likewise.
_SHARPNESS, _CENTRE_SHARPNESS = 20.0, 10.0
# A class without a single vote is not impossible.
_FLOOR = 0.01
# Queries looked at together: their neighbours are decorrelated once. And numbers gathered at once.
_LOT, _AT_ONCE = 2048, 1 << 22


@dataclass(frozen=True, eq=False)
class Opinion:
    """What is thought of each row.

    Attributes:
        confidence: Log-odds of the softmax probability of the predicted class.
        vote: Logarithm of the vote for the predicted class.
        agreed: Log-odds of the predicted class when softmax and vote are both heard, q_c ∝ p_c (V_c + 0.01).
        suggested: The class that neighbours and centres speak for.
        support: What they give to the label; None where there are no labels.
    """

    confidence: Array
    vote: Array
    agreed: Array
    suggested: NDArray[np.int64]
    support: Array | None


def opinion(
    centroids: Centroids,
    asked: Rows,
    log_chances: Tensor,
    voters: NDArray[np.int64],
    *,
    labels: Tensor | None,
    leave: Tensor | None,
) -> Opinion:
    """Hears neighbours and centres about every row.

    Args:
        centroids: The classes of the database.
        asked: The rows.
        log_chances: Logarithms of the classes' probabilities, shape (rows, classes).
        voters: Positions of each row's neighbours by activations, shape (rows, any).
        labels: Class numbers of the rows, where they have labels.
        leave: Rows of the database that are left out for each row.
    """
    parts = []
    for start in range(0, len(asked), _LOT):
        lot = slice(start, start + _LOT)
        some = asked.take(lot)
        own = centroids.decorrelated(centroids.space.vectors(some, some.predicted))
        votes = (_votes(centroids, own, torch.from_numpy(voters[lot])) + _FLOOR).log()
        lost = None if leave is None else centroids.left_out(leave[lot])
        spoken = _spoken(centroids, own, lost) + votes
        parts.append(
            (
                log_odds(log_chances[lot], some.predicted),
                votes.gather(1, some.predicted[:, None])[:, 0],
                log_odds(log_chances[lot] + votes, some.predicted),
                spoken.argmax(1),
                _supported(centroids, spoken, some.predicted if labels is None else labels[lot], lost),
            )
        )
    confidence, vote, agreed, suggested, support = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    return Opinion(confidence, vote, agreed, suggested, None if labels is None else support)


def log_odds(log_weights: Tensor, chosen: Tensor) -> Tensor:
    """Log-odds of one class among weights that need not sum to one: log w_c − log Σ of the others.

    Example:
        >>> log_odds(torch.tensor([[1.0, 2.0, 6.0]]).log(), torch.tensor([2])).exp().round(decimals=5)
        tensor([2.])
    """
    own = log_weights.gather(1, chosen[:, None])
    others = log_weights.scatter(1, chosen[:, None], -torch.inf)
    return own[:, 0] - others.logsumexp(1)


def _votes(centroids: Centroids, own: Tensor, voters: Tensor) -> Tensor:
    """Share of each class among the neighbours, the more alike ones counting more, shape (rows, classes)."""
    distinct, place = torch.unique(voters, return_inverse=True)
    near, labels = _near(centroids, distinct)
    shares = torch.zeros(len(own), len(centroids.members), dtype=torch.float64)
    step = max(1, _AT_ONCE // max(1, voters.shape[1] * own.shape[1]))
    for start in range(0, len(own), step):
        some = place[start : start + step]
        similar = torch.einsum("qd,qkd->qk", own[start : start + step].to(torch.float32), near[some]).double()
        weights = torch.softmax(_SHARPNESS * similar, dim=1)
        shares[start : start + step].scatter_add_(1, labels[some], weights)
    return shares


def _near(centroids: Centroids, positions: Tensor) -> tuple[Tensor, Tensor]:
    vectors, labels = [], []
    for some in torch.split(positions, max(1, _AT_ONCE // centroids.space.width)):
        rows = centroids.take(some)
        assert rows.labels is not None
        vectors.append(centroids.decorrelated(centroids.space.vectors(rows, rows.predicted)).to(torch.float32))
        labels.append(rows.labels)
    return torch.cat(vectors), torch.cat(labels)


def _spoken(centroids: Centroids, own: Tensor, lost: tuple[Tensor, Tensor] | None) -> Tensor:
    """Logarithms, up to a constant, of what the centres give to each class."""
    centres = centroids.directions
    cosines = own @ _directed(centres).T
    if lost is not None:
        labels, vectors = lost
        same = ((labels[:, :, None] == labels[:, None, :]) & (labels >= 0)[:, :, None]).to(torch.float64)
        without = _directed(centres[labels.clamp_min(0)] - same @ centroids.decorrelated(vectors))
        queries, places = torch.nonzero(labels >= 0, as_tuple=True)
        cosines[queries, labels[queries, places]] = (own[queries] * without[queries, places]).sum(1)
    return _CENTRE_SHARPNESS * cosines


def _supported(centroids: Centroids, spoken: Tensor, labels: Tensor, lost: tuple[Tensor, Tensor] | None) -> Tensor:
    """The label's share; that of chance where no other row has the label, so that nothing is known of it."""
    members = centroids.members[labels]
    if lost is not None:
        members = members - (lost[0] == labels[:, None]).sum(1)
    share = spoken.softmax(1).gather(1, labels[:, None])[:, 0]
    return torch.where(members > 0, share, 1 / spoken.shape[1])


def _directed(vectors: Tensor) -> Tensor:
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    # What is left of a class that lost its only row is rounding.
    return vectors / torch.where(lengths > 1e-9, lengths, torch.inf)
