"""Neighbours of a prediction: rows of a database whose predictions rest on similar evidence."""

from nobsp.neighbors.audit import Audit, audit
from nobsp.neighbors.curation import Influence, select
from nobsp.neighbors.index import ContributionIndex
from nobsp.neighbors.milvus import Milvus
from nobsp.neighbors.result import Duplicates, Neighbors, Prototypes
from nobsp.neighbors.usearch import Usearch

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
