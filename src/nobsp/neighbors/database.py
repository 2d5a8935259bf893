"""Where an index is kept: its backend, and all of it as one file, mapped into memory when read."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nobsp import serialization
from nobsp.neighbors.evidence import Outcomes, Rows
from nobsp.neighbors.milvus import Collection, Milvus
from nobsp.neighbors.search import Backend, Evidence, Exact, Fitted, InMemory, Kind, Metric, Space
from nobsp.neighbors.usearch import Graphs, Usearch
from nobsp.network.evidence import EvidenceSource

KIND = "contribution index"
VERSION = 4

# How far coefficients of the same calibration may differ: those that went through a file were rounded.
_ROUNDING = 1e-5


def build_backend(
    options: Usearch | Milvus | None, spaces: dict[Kind, Space], rows: Rows, *, device: torch.device | str | None
) -> Backend:
    """A new backend with rows in it."""
    backend: Backend
    if isinstance(options, Milvus):
        shape = None if rows.evidence is None else (rows.evidence.shape[1], rows.evidence.shape[2])
        backend = Collection(options, spaces, evidence_shape=shape, make=rows)
    elif isinstance(options, Usearch):
        backend = Graphs(options, spaces.get("own", spaces["activations"]))
    else:
        backend = Exact(device)
    backend.add(rows)
    return backend


def indexed_spaces(spaces: Mapping[Kind, Space], kind: Kind, metric: str) -> dict[Kind, Space]:
    """The spaces that a collection or a graph has vectors for."""
    kinds: tuple[Kind, ...] = ("activations", "own") if kind == "own" else ("activations",)
    return {name: spaces[name] if metric == "euclidean" else spaces[name].cosine() for name in kinds}


@dataclass(frozen=True, eq=False)
class Stored:
    """What a file holds: spaces without their coefficients, which are the explainer's; no rows where Milvus has them.

    A damaged graph would make usearch read outside its memory, so each has a checksum.
    """

    fingerprint: str
    signature: Tensor
    options: dict[str, Any]
    outcomes: Outcomes
    classes: list[Any] | None
    mean: Tensor | None
    spaces: dict[Kind, Space]
    labelled: bool
    indexed: tuple[Kind, Metric]
    backend: Usearch | Milvus | None
    rows: Rows | None
    evidence_shape: tuple[int, int] | None
    graphs: dict[str, Tensor]
    checksums: dict[str, int]


_STORED = (Evidence, Milvus, Outcomes, Rows, Space, Stored, Usearch)


def save(path: str | os.PathLike[str], fitted: Fitted, options: Mapping[str, Any]) -> None:
    """Writes an index; rows that are in Milvus stay there."""
    backend, outcomes = fitted.backend, fitted.outcomes
    graphs = backend.tensors() if isinstance(backend, Graphs) else {}
    used: Usearch | Milvus | None = backend.options if isinstance(backend, Graphs) else None
    if isinstance(backend, Collection):
        used = replace(backend.options, token="", replace=False)
    stored = Stored(
        fingerprint=fitted.source.fingerprint(),
        signature=fitted.source.signature,
        options=dict(options),
        outcomes=replace(outcomes, classes=None),
        classes=None if outcomes.classes is None else outcomes.classes.tolist(),
        mean=fitted.evidence.mean,
        spaces={kind: replace(space, evidence=Evidence()) for kind, space in fitted.spaces.items()},
        labelled=fitted.labelled,
        indexed=fitted.indexed,
        backend=used,
        rows=backend.rows if isinstance(backend, InMemory) else None,
        evidence_shape=backend.evidence_shape if isinstance(backend, Collection) else None,
        graphs=graphs,
        checksums={name: _checksum(graph) for name, graph in graphs.items()},
    )
    serialization.save(path, stored, kind=KIND, version=VERSION)


def load(
    path: str | os.PathLike[str],
    source: EvidenceSource,
    *,
    backend: Usearch | Milvus | str | None,
    device: torch.device | str | None,
) -> tuple[Fitted, dict[str, Any], Usearch | Milvus | None]:
    """Reads an index: what was fitted, the options it was made with, and those of its backend."""
    stored = serialization.load(path, kind=KIND, version=VERSION, classes=_STORED)
    if not isinstance(stored, Stored):
        raise ValueError(f"path {str(path)!r} is damaged: it does not hold an index.")
    if stored.fingerprint != source.fingerprint() or not _near(stored.signature, source.signature):
        raise ValueError(
            f"path {str(path)!r} holds an index that was made with another explainer; pass the very explainer (or "
            "head) it was made with, or make the index anew."
        )
    if any(stored.checksums.get(name) != _checksum(graph) for name, graph in stored.graphs.items()):
        raise ValueError("the file is damaged: a graph in it is not the one that was written.")
    outcomes = replace(stored.outcomes, classes=None if stored.classes is None else np.asarray(stored.classes))
    evidence = Evidence()
    if source.coefficients is not None:
        evidence = Evidence(outcomes.per_class(source.coefficients).T.contiguous(), stored.mean)
    spaces = {kind: replace(space, evidence=evidence) for kind, space in stored.spaces.items()}
    used = _choose_options(stored.backend, backend)
    indexed = indexed_spaces(spaces, *stored.indexed)
    place: Backend
    if isinstance(used, Milvus):
        place = Collection(used, indexed, evidence_shape=stored.evidence_shape)
    elif isinstance(used, Usearch):
        place = Graphs(used, indexed.get("own", indexed["activations"]), stored.rows, stored.graphs)
    else:
        place = Exact(device, stored.rows)
    fitted = Fitted(source, outcomes, evidence, spaces, place, stored.labelled, stored.indexed)
    return fitted, stored.options, used


def _choose_options(kept: Usearch | Milvus | None, given: Usearch | Milvus | str | None) -> Usearch | Milvus | None:
    """Options of the backend: those in the file, or others that the same rows allow for."""
    in_milvus = isinstance(kept, Milvus)
    if given is not None and in_milvus != isinstance(given, Milvus):
        where = "in Milvus" if in_milvus else "in the file"
        raise ValueError(f"backend {given!r} cannot be used: the rows of this index are {where}.")
    if given == "exact":
        return None
    return given if isinstance(given, Usearch | Milvus) else kept


def _checksum(graph: Tensor) -> int:
    return zlib.crc32(graph.numpy().data)


def _near(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a - b).abs() <= _ROUNDING * (1e-3 * b.abs().max() + b.abs())).all())
