"""Neighbours of a prediction: rows of a database whose predictions rest on similar evidence."""

from nobsp.neighbors.audit import Audit, audit
from nobsp.neighbors.backends import Milvus, Usearch
from nobsp.neighbors.index import ContributionIndex
from nobsp.neighbors.result import Duplicates, Influence, Neighbors, Prototypes, select

__all__ = [
    "Audit",
    "ContributionIndex",
    "Duplicates",
    "Influence",
    "Milvus",
    "Neighbors",
    "Prototypes",
    "Usearch",
    "audit",
    "select",
]
