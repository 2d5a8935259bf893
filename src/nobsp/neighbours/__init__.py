"""Neighbours of a prediction: rows of a database whose predictions rest on similar evidence."""

from nobsp.neighbours.audit import Audit, audit
from nobsp.neighbours.index import ContributionIndex
from nobsp.neighbours.milvus import Milvus
from nobsp.neighbours.result import Duplicates, Neighbours, Prototypes
from nobsp.neighbours.usearch import Usearch

__all__ = [
    "Audit",
    "ContributionIndex",
    "Duplicates",
    "Milvus",
    "Neighbours",
    "Prototypes",
    "Usearch",
    "audit",
]
