"""Neighbours of a prediction: rows of a database whose predictions rest on similar evidence."""

from nobsp.neighbours.approximate import Usearch
from nobsp.neighbours.audit import Audit, audit
from nobsp.neighbours.hits import Neighbours
from nobsp.neighbours.index import ContributionIndex
from nobsp.neighbours.joint import JointConfidence
from nobsp.neighbours.milvus import Milvus
from nobsp.neighbours.prototypes import Duplicates, Prototypes

__all__ = [
    "Audit",
    "ContributionIndex",
    "Duplicates",
    "JointConfidence",
    "Milvus",
    "Neighbours",
    "Prototypes",
    "Usearch",
    "audit",
]
