"""An index as one file and back: rows, units and graphs in safetensors, mapped into memory when they are read."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from nobsp import store
from nobsp.neighbours.approximate import Graphs, Usearch
from nobsp.neighbours.backends import Backend, Exact, Kept
from nobsp.neighbours.milvus import Collection, Milvus
from nobsp.neighbours.outcomes import Outcomes
from nobsp.neighbours.rows import Rows
from nobsp.neighbours.spaces import Evidence, Kind, Space
from nobsp.neighbours.witness import Witness

Found = TypeVar("Found")

KIND = "contribution index"
VERSION = 1

# How far coefficients of the same calibration may differ: those that went through a file were rounded.
_ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class Fitted:
    """A database: how rows are read, what the outputs stand for, in which units they are measured, where they are.

    Attributes:
        witness: How the model is asked.
        outcomes: What its outputs stand for.
        evidence: How contributions come about.
        spaces: The spaces rows can be compared in.
        backend: Where the rows are.
        labelled: Whether they have labels.
        known: What was worked out about the rows, by name, with how many there were then.
    """

    witness: Witness
    outcomes: Outcomes
    evidence: Evidence
    spaces: dict[Kind, Space]
    backend: Backend
    labelled: bool
    known: dict[str, tuple[int, Any]] = field(default_factory=dict)

    def about_rows(self, name: str, work: Callable[[], Found]) -> Found:
        """What `work` finds out about the rows, once for as long as none are added."""
        if self.known.get(name, (-1,))[0] != len(self.backend):
            self.known[name] = len(self.backend), work()
        found: Found = self.known[name][1]
        return found

    def space(self, kind: Kind, metric: str) -> Space:
        """One of the spaces, with z-scores or as things are."""
        if kind not in self.spaces:
            missing = "the class of a query" if kind == "query" else "any class"
            options = 'space="contributions", target="query"' if kind == "query" else 'space="contributions"'
            raise ValueError(f"the index keeps no evidence for {missing}; make it with {options}.")
        return self.spaces[kind] if metric == "euclidean" else self.spaces[kind].as_it_is()


def made(
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


def bytes_in_memory(backend: Backend) -> int:
    """What a backend holds of its rows in memory."""
    return backend.kept.rows.bytes() if isinstance(backend, Exact | Graphs) else 0


def save(path: str | os.PathLike[str], fitted: Fitted, options: Mapping[str, Any]) -> None:
    """Writes an index; rows that are in Milvus stay there."""
    tensors: dict[str, Tensor] = {"signature": fitted.witness.signature()}
    for kind, space in fitted.spaces.items():
        tensors |= {f"spaces/{kind}/{name}": table for name, table in space.tables().items()}
    if fitted.evidence.mean is not None:
        tensors["mean"] = fitted.evidence.mean
    backend = fitted.backend
    about: dict[str, Any] = {
        "fingerprint": fitted.witness.fingerprint(),
        "options": dict(options),
        "outcomes": fitted.outcomes.described(),
        "labelled": fitted.labelled,
        "kinds": list(fitted.spaces),
        "backend": {"name": "exact"},
    }
    if isinstance(backend, Collection):
        place = {name: value for name, value in asdict(backend.options).items() if name not in ("token", "replace")}
        about["backend"] = {"name": "milvus", "options": place, "evidence_shape": backend.evidence_shape}
    else:
        assert isinstance(backend, Exact | Graphs)
        rows = backend.kept.rows
        held = {field.name: getattr(rows, field.name) for field in fields(rows)}
        tensors |= {f"rows/{name}": value for name, value in held.items() if value is not None}
        if isinstance(backend, Graphs):
            graphs = backend.tensors()
            tensors |= {f"graphs/{name}": graph for name, graph in graphs.items()}
            sums = {name: _sum(graph) for name, graph in graphs.items()}
            about["backend"] = {"name": "usearch", "options": asdict(backend.options), "sums": sums}
    # Tables of different spaces may share memory, which a file cannot.
    seen: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.untyped_storage().data_ptr() in seen:
            tensors[name] = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
    store.save(path, kind=KIND, version=VERSION, tensors=tensors, about=about)


def load(
    path: str | os.PathLike[str],
    witness: Witness,
    *,
    backend: Usearch | Milvus | str | None,
    device: torch.device | str | None,
) -> tuple[Fitted, dict[str, Any], Usearch | Milvus | None]:
    """Reads an index: what was fitted, the options it was made with, and those of its backend."""
    tensors, about = store.load(path, kind=KIND, version=VERSION)
    try:
        if about["fingerprint"] != witness.fingerprint() or not _near(tensors["signature"], witness.signature()):
            raise ValueError(
                f"path {str(path)!r} holds an index that was made with another explainer; pass the very explainer (or "
                "head) it was made with, or make the index anew."
            )
        outcomes = Outcomes.restored(about["outcomes"])
        evidence = Evidence()
        if witness.multiples is not None:
            beta = outcomes.per_class(witness.multiples.coefficients).T.contiguous()
            evidence = Evidence(beta, tensors["mean"])
        spaces: dict[Kind, Space] = {
            kind: Space(kind, "euclidean", evidence, **_under(tensors, f"spaces/{kind}/")) for kind in about["kinds"]
        }
        kept = about["backend"]
        options = _options(kept, backend)
        place = _placed(options, kept, tensors, spaces, about["options"], device)
    except KeyError as missing:
        raise ValueError(f"path {str(path)!r} lacks a part of the index ({missing}).") from missing
    fitted = Fitted(witness, outcomes, evidence, spaces, place, about["labelled"])
    return fitted, about["options"], options


def searched(spaces: Mapping[Kind, Space], *, own: bool, metric: str) -> dict[Kind, Space]:
    """The spaces that a collection has vectors for."""
    kinds: tuple[Kind, ...] = ("activations", "own") if own else ("activations",)
    return {kind: spaces[kind] if metric == "euclidean" else spaces[kind].as_it_is() for kind in kinds}


def _placed(
    options: Usearch | Milvus | None,
    kept: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    spaces: dict[Kind, Space],
    made_with: Mapping[str, Any],
    device: torch.device | str | None,
) -> Backend:
    own = made_with["space"] == "contributions" and made_with["target"] == "own"
    found = searched(spaces, own=own, metric=made_with["metric"])
    if isinstance(options, Milvus):
        shape = kept["evidence_shape"]
        return Collection(options, found, evidence_shape=None if shape is None else (shape[0], shape[1]))
    rows = Rows(**{"evidence": None} | _under(tensors, "rows/"))
    if isinstance(options, Usearch):
        main = found.get("own", found["activations"])
        graphs = _under(tensors, "graphs/")
        if any(kept["sums"][name] != _sum(graph) for name, graph in graphs.items()):
            raise ValueError("the file is damaged: a graph in it is not the one that was written.")
        return Graphs(options, main, Kept(rows), graphs)
    return Exact(device, Kept(rows))


def _options(kept: Mapping[str, Any], asked: Usearch | Milvus | str | None) -> Usearch | Milvus | None:
    """Options of the backend: those in the file, or others that the same rows allow for."""
    if (kept["name"] == "milvus") != (isinstance(asked, Milvus) or (asked is None and kept["name"] == "milvus")):
        where = "in Milvus" if kept["name"] == "milvus" else "in the file"
        raise ValueError(f"backend {asked!r} cannot be used: the rows of this index are {where}.")
    if isinstance(asked, Usearch | Milvus):
        return asked
    if asked == "exact" or (asked is None and kept["name"] == "exact"):
        return None
    if kept["name"] == "milvus":
        return Milvus(**kept["options"])
    return Usearch(**kept.get("options", {}))


def _sum(graph: Tensor) -> int:
    """Tells whether a graph is as it was written: one whose edges lead astray would end the process."""
    return zlib.crc32(graph.numpy().data)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _near(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a - b).abs() <= _ROUNDING * (1e-3 * b.abs().max() + b.abs())).all())
