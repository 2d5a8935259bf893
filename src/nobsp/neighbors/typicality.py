"""How typical rows are of a database, and how far that lowers the trust in their predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.search import Fitted, pieces, spaced, unit_length

Array = NDArray[np.float64]
Positions = NDArray[np.int64]

# Rows of the database that typicality is measured against.
_REFERENCE_ROWS = 1000
# Neighbours by evidence, and by activations as they are, that distances are averaged over.
N_NEAREST_BY_EVIDENCE = 8
_N_NEAREST_BY_ACTIVATIONS = 10
# Numbers gathered at once.
_MOST_NUMBERS = 1 << 22
# By how much the log-odds of being right follow log(typicality). Chosen on networks of CIFAR-10 and
# Imagenette that were shown skin lesions, digits and noise, as the least that keeps them below the
# median of known images.
_ODDS_WEIGHT = 0.3
# How fast trust falls beyond the furthest row of the database: a power of typicality.
_STEEPNESS = 8


@dataclass(frozen=True, eq=False)
class Reference:
    """How far rows of the database are from their neighbours, for others to be compared with."""

    distances: Array  # one column per space
    nearby: Positions  # their neighbours by activations

    def __len__(self) -> int:
        return len(self.distances)

    def typicality(self, distances: Array) -> Array:
        """Share of the database's rows that are further from their neighbours.

        For rows further away than all of them, it falls exponentially.

        Distances in the two spaces are summed in units from their median to their 84th percentile.
        """
        middle = np.median(self.distances, axis=0)
        spread = np.percentile(self.distances, 84, axis=0) - middle
        spread = np.where(spread > 0, spread, 1.0)
        scaled = (self.distances - middle) / spread
        own = np.sort(scaled.sum(1))
        asked = ((distances - middle) / spread).sum(1)

        n_nearer = np.searchsorted(own, asked, side="left")
        n_further = len(own) - n_nearer
        share = np.minimum((n_further + 1.0) / (len(own) + 1.0), 1.0)

        furthest = float(own[-1])
        tail = max(furthest - float(np.median(own)), 1e-12)
        beyond = np.maximum(asked - furthest, 0.0)
        typicality: Array = share * np.exp(-beyond / tail)
        return typicality


def trust_classes(chance: Array, typicality: Array, n_reference: int) -> Array:
    """Probabilities that predicted classes are right, lowered where rows are not typical.

    The log-odds follow the logarithm of the typicality, whose mean is −1 over rows like those of
    the database, so that theirs are moved up as much as down. Beyond the furthest row of the
    database the probability falls with a power.
    """
    tiny = np.finfo(np.float64).tiny
    for_it = np.log(np.maximum(chance, tiny))
    against_it = np.log(np.maximum(1 - chance, tiny))
    log_typicality = np.log(np.maximum(typicality, tiny))

    log_odds = for_it - against_it + _ODDS_WEIGHT * (1 + log_typicality)
    log_odds = np.clip(log_odds, -700, 700)
    moved_chance = 1 / (1 + np.exp(-log_odds))
    return trust_values(moved_chance, typicality, n_reference)


def trust_values(chance: Array, typicality: Array, n_reference: int) -> Array:
    """Probabilities that predicted values are near, lowered for rows far away.

    Far away is further than any row of the database.
    """
    within_reach = np.minimum(1.0, typicality * (n_reference + 1))
    trusted: Array = chance * within_reach**_STEEPNESS
    return trusted


def reference_positions(fitted: Fitted) -> Tensor:
    """Rows of a database to compare others with: all of a small one, else evenly spaced ones."""
    return spaced(len(fitted.backend), _REFERENCE_ROWS)


def neighbour_distances(fitted: Fitted, rows: Rows, by_evidence: Array, voters: Positions) -> Array:
    """Mean distances to the 8 nearest by evidence and to the 10 nearest voters by activations.

    Activations are taken as they are.

    The latter are brought to unit length without centring: a network answers strange inputs with
    little of everything.
    """
    by_activations = np.empty(len(rows))
    width = voters.shape[1] * rows.activations.shape[1]
    for piece in pieces(len(rows), width, numbers=_MOST_NUMBERS):
        own = unit_length(rows.activations[piece].to(torch.float64))
        near = torch.from_numpy(voters[piece])
        voting_rows = fitted.backend.take(near.flatten())
        others = unit_length(voting_rows.activations.to(torch.float64))
        differences = others.reshape(*near.shape, -1) - own[:, None]

        distances = differences.square().sum(2).sqrt()
        nearest = distances.sort(dim=1).values[:, :_N_NEAREST_BY_ACTIVATIONS]
        by_activations[piece] = nearest.mean(1).numpy()
    nearest_by_evidence = by_evidence[:, :N_NEAREST_BY_EVIDENCE].mean(1)
    return np.column_stack([nearest_by_evidence, by_activations])
