"""Neighbours of a prediction: rows of a database whose predictions rest on similar evidence."""

# The former module first, as the function takes its name.
import nobsp.neighbors.audit  # noqa: F401
from nobsp.neighbors.auditing import Audit, audit
from nobsp.neighbors.backends import Milvus, Usearch
from nobsp.neighbors.duplicates import Duplicates
from nobsp.neighbors.index import ContributionIndex
from nobsp.neighbors.influence import Influence
from nobsp.neighbors.representers import RepresenterShares
from nobsp.neighbors.result import Neighbors, Prototypes
from nobsp.neighbors.selection import select

__all__ = [
    "Audit",
    "ContributionIndex",
    "Duplicates",
    "Influence",
    "Milvus",
    "Neighbors",
    "Prototypes",
    "RepresenterShares",
    "Usearch",
    "audit",
    "select",
]
