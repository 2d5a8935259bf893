"""Purity of neighbourhoods: by activations, by evidence for the own class (the paper), by evidence for the query's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.report import Cell, Column, Table, progress
from benchmarks.retrieval.cases import SMALLER, TINY, Case
from nobsp.neighbors import Neighbors

K = 8
ACTIVATIONS, OWN, QUERY = "activations", "own", "query"
# Mean and median purity, mean distance: the paper's table for ResNet-18 on all of TinyImageNet.
PAPER = {ACTIVATIONS: (0.654, 0.875, 0.855), OWN: (0.713, 1.000, 0.408)}


@dataclass(frozen=True)
class Looked:
    """A case and its queries' neighbours in each space."""

    case: Case
    hits: dict[str, Neighbors]


def looked_up(case: Case) -> Looked:
    """Neighbours of every query in the three spaces."""
    progress(
        f"{case.name}: neighbours of {len(case.queries):,} queries among {len(case.database):,} rows"
    )
    views = {
        ACTIVATIONS: case.index._view(space="activations"),
        OWN: case.index._view(target="own"),
        QUERY: case.index,
    }
    seen = case.index._read(case.queries.activations)
    return Looked(case, {name: view._query_rows(seen, K) for name, view in views.items()})


def purity_table(looked: Looked) -> Table:
    case = looked.case
    paper = case.recipe in (TINY, SMALLER)
    columns = [
        Column("space"),
        Column("purity to predicted: mean", ".3f"),
        Column("median", ".3f"),
        Column("purity to true: mean", ".3f"),
        Column("median", ".3f"),
        Column("distance: mean", ".3f"),
        Column("median", ".3f"),
    ]
    if paper:
        columns += [
            Column(name, ".3f") for name in ("paper: mean purity", "median purity", "mean distance")
        ]
    rows = []
    for space, hits in looked.hits.items():
        predicted, true = hits.purity, hits.purity_towards(case.queries.labels)
        cells: list[Cell] = [
            float(of(v)) for v in (predicted, true, hits.distances) for of in (np.mean, np.median)
        ]
        rows.append((_SPACES[space], *cells, *(PAPER.get(space, (None,) * 3) if paper else ())))
    accuracy = f"{case.head.accuracy(case.database):.1%} of the database, {case.right.mean():.1%} of the queries"
    return Table(
        f"Purity: {case.name}",
        tuple(columns),
        tuple(rows),
        f"{len(case.database):,} rows, {len(case.queries):,} queries, K={K}. The head is right on {accuracy}."
        + (_PAPER_NOTE if paper else ""),
    )


_SPACES = {
    ACTIVATIONS: "activations",
    OWN: "contributions, each row's own class (paper)",
    QUERY: "contributions, the query's class (default)",
}
_PAPER_NOTE = (
    " The paper's figures are for a ResNet-18 trained on TinyImageNet, 100,000 rows and 10,000 queries; it does not "
    "give the network's accuracy."
)


def purity_findings(found: list[Looked]) -> tuple[str, ...]:
    told = []
    for looked in found:
        case = looked.case
        own, activations, query = (looked.hits[name] for name in (OWN, ACTIVATIONS, QUERY))
        truth = case.queries.labels
        told.append(
            f"{case.name}: by each row's own class, purity towards the true label is "
            f"{own.purity_towards(truth).mean():.3f}, and the classifier's accuracy {case.right.mean():.3f}; by "
            f"activations it is {activations.purity_towards(truth).mean():.3f}, by evidence for the query's class "
            f"{query.purity_towards(truth).mean():.3f}. Mean distance goes from {activations.distances.mean():.3f} by "
            f"activations to {own.distances.mean():.3f} by own class."
        )
    return tuple(told)
