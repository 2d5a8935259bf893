"""What neighbours' labels say of a row's class, written down plainly: the recipe that `nobsp.audit` follows.

Kept apart from the package, so that its numbers can be checked against these, and so that the choices in the recipe
(how many neighbours, how sharply they are weighed, whitened or not) can be varied.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp
from torch import Tensor

from benchmarks.retrieval.features import Labels

Array = NDArray[np.float64]

# A class without a single neighbour is not impossible.
FLOOR = 0.01


def standardised(rows: Tensor, like: Tensor) -> Tensor:
    """Rows in units of the spread of others."""
    return (rows - like.mean(0)) / like.std(0).clamp_min(1e-6)


def whitening(standard: Tensor) -> Tensor:
    """T = ((R + I)/2)^(−1/2), R the correlations of columns: directions that many channels share count less."""
    product = (standard.T @ standard / len(standard)).double()
    values, vectors = torch.linalg.eigh((product + torch.eye(len(product))) / 2)
    return (vectors * values.rsqrt()).to(standard.dtype)


def unit(rows: Tensor) -> Tensor:
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-12)


def similarities(queries: Tensor, database: Tensor, candidates: NDArray[np.int64]) -> Array:
    """Cosines of each query with its candidates; rows of both are of unit length."""
    parts = [
        torch.einsum("qd,qkd->qk", some, database[torch.from_numpy(found)])
        for some, found in zip(
            queries.split(200), np.split(candidates, range(200, len(candidates), 200)), strict=True
        )
    ]
    return torch.cat(parts).double().numpy()


def vote(similarity: Array, labels: Labels, *, classes: int, sharpness: float) -> Array:
    """Share of each class among neighbours that count exp(sharpness · similarity), shape (queries, classes)."""
    weights = np.exp(sharpness * (similarity - similarity.max(1, keepdims=True)))
    shares = np.zeros((len(weights), classes))
    np.add.at(shares, (np.arange(len(weights))[:, None], labels), weights)
    result: Array = shares / weights.sum(1, keepdims=True)
    return result


def agreed(logits: Array, votes: Array, *, say: float = 1.0) -> Array:
    """Log-probabilities of the classes when softmax and vote are both heard: p V^say, brought to sum to one."""
    both = log_softmax(logits, axis=1) + say * np.log(votes + FLOOR)
    result: Array = both - logsumexp(both, axis=1, keepdims=True)
    return result


def log_odds(log_probability: Array) -> Array:
    """log p − log(1 − p), finite also where p rounds to one."""
    known = np.minimum(log_probability, -1e-12)
    result: Array = known - np.log(-np.expm1(known))
    return result
