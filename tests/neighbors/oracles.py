"""Neighbours by definition: numpy, double precision, every distance written out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def z_scores(rows: Array, mean: Array, spread: Array) -> Array:
    """Columns in units of their spread; columns that do not vary are zero."""
    varies = spread > 1e-9
    return np.where(varies, (rows - mean) / np.where(varies, spread, 1.0), 0.0)


def of_unit_length(rows: Array) -> Array:
    lengths = np.sqrt((rows**2).sum(1, keepdims=True))
    return rows / np.where(lengths > 0, lengths, 1.0)


def distances(database: Array, queries: Array, metric: str) -> Array:
    """Every distance between vectors of unit length."""
    if metric == "cosine":
        return 1 - queries @ database.T
    return np.array([np.sqrt(((database - query) ** 2).sum(1)) for query in queries])


def compared(
    activations: tuple[Array, Array],
    evidence: tuple[Array, Array],
    predicted: tuple[NDArray[Any], NDArray[Any]],
    *,
    space: str,
    target: str,
    metric: str,
) -> Array:
    """Distances of every query to every row of the database.

    Args:
        activations: Of the database and of the queries, shape (rows, width).
        evidence: Contributions to every class, shape (rows, classes, terms).
        predicted: Predicted classes.
        space: "activations" or "contributions".
        target: "own" or "query".
        metric: "euclidean" or "cosine".
    """
    count = len(predicted[1])
    if space == "activations":
        mean, spread = activations[0].mean(0), activations[0].std(0)
        if metric == "cosine":
            spread = np.ones_like(spread)
        vectors = [of_unit_length(z_scores(rows, mean, spread)) for rows in activations]
        return distances(vectors[0], vectors[1], metric)
    if target == "own":
        own = [
            rows[np.arange(len(rows)), chosen]
            for rows, chosen in zip(evidence, predicted, strict=True)
        ]
        mean, spread = own[0].mean(0), own[0].std(0)
        if metric == "cosine":
            mean, spread = np.zeros_like(mean), np.ones_like(spread)
        vectors = [of_unit_length(z_scores(rows, mean, spread)) for rows in own]
        return distances(vectors[0], vectors[1], metric)
    pooled = np.sqrt(evidence[0].var(0).mean(0))
    table = np.empty((count, len(evidence[0])))
    for query, number in enumerate(predicted[1]):
        database, asked = evidence[0][:, number], evidence[1][query : query + 1, number]
        mean, spread = database.mean(0), pooled
        if metric == "cosine":
            mean, spread = np.zeros_like(mean), np.ones_like(spread)
        vectors = [of_unit_length(z_scores(rows, mean, spread)) for rows in (database, asked)]
        table[query] = distances(vectors[0], vectors[1], metric)[0]
    return table


def nearest(table: Array, k: int) -> tuple[NDArray[np.int64], Array]:
    """The k smallest of each row, equal ones by position."""
    order = np.argsort(table, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(table, order, 1)
