"""Where an index keeps rows beside memory: usearch's graphs, Milvus, or a memory-mapped file."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import NoneType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nobsp import serialization
from nobsp.arguments import require_choice, require_whole_number
from nobsp.neighbors.evidence import Outcomes, Rows
from nobsp.neighbors.search import (
    Backend,
    Evidence,
    Exact,
    Fitted,
    Kind,
    Space,
    pieces,
    unit_length,
)
from nobsp.network.evidence import EvidenceSource

KIND = "contribution index"
VERSION = 5
# How far coefficients of the same calibration may differ: those that went through a file were
# rounded.
_ROUNDING = 1e-5
# Vectors of so many numbers are kept in eight bits each.
_LONG = 128
# What one message holds at most; servers take 64 MB by default.
_MESSAGE_BYTES = 8 << 20
# Limits of Milvus itself.
_LEAST_WIDTH = 2
_MOST_WIDTH = 32768
_MOST_IDS = 4096
# The least that options of usearch may be.
_LEAST_OPTIONS = {
    "connectivity": 2,
    "expansion_add": 1,
    "expansion_search": 1,
    "candidates": 1,
    "candidates_by_activation": 1,
    "threads": 0,
}


@dataclass(frozen=True)
class Usearch:
    """Options of the usearch backend.

    The graph is walked with vectors in `dtype`; the candidates it finds are then measured with the
    rows themselves, in double precision, so that distances are exact and rounding costs no
    neighbours.

    Args:
        connectivity: Edges of each row in the graph.
        expansion_add: How widely the graph is searched when a row is added.
        expansion_search: How widely it is searched for a query: the more, the fewer neighbours are
            missed.
        dtype: Precision of the vectors in the graph: "i8", "f16" or "f32"; when None, "i8" for
            vectors of 128 numbers and more, in which roundings average out, and "f32" for shorter
            ones.
        candidates: Rows measured for a query, at least four for each neighbour.
        candidates_by_activation: The same where the graph is of activations and neighbours are
            sought by evidence for the query's class.
        threads: Threads to build and search with; one per processor when 0.
    """

    connectivity: int = 16
    expansion_add: int = 128
    expansion_search: int = 128
    dtype: Literal["i8", "f16", "f32"] | None = None
    candidates: int = 32
    candidates_by_activation: int = 256
    threads: int = 0

    def __post_init__(self) -> None:
        """Checks the options, and makes numbers of numpy those that usearch takes."""
        require_choice("dtype", self.dtype, ("i8", "f16", "f32", None))
        for name, least in _LEAST_OPTIONS.items():
            require_whole_number(name, getattr(self, name), least=least)
            object.__setattr__(self, name, int(getattr(self, name)))


class Graphs(Exact):
    """Rows in memory or in a file, with a graph for each space they are searched in.

    Evidence for the query's class has no graph of its own, as every class would need one:
    candidates are found by activations. The graph of `space` grows with the rows, those of others
    when they are searched; `stored` graphs, as bytes of a file, are used where they are until rows
    are added.
    """

    def __init__(
        self,
        options: Usearch,
        space: Space,
        rows: Rows | None = None,
        stored: Mapping[str, Tensor] | None = None,
    ) -> None:
        _usearch()
        super().__init__(rows=rows)
        self.options = options
        self.space = space
        self._graphs: dict[str, Any] = {}
        self._stored = dict(stored or {})

    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there, and into the graph."""
        super().add(rows)
        self.graph(self.space)

    def candidates(
        self, queries: Rows, k: int, leave: Tensor | None, *, space: Space, walked: Space
    ) -> Tensor:
        """Positions of rows among which nearly always the nearest are."""
        graph = self.graph(walked)
        wanted = self._wanted(k, leave, direct=walked.kind == space.kind)
        probes = walked.probes(queries, space).numpy()
        # An expansion below the number of rows wanted would leave some of them out.
        graph.expansion_search = max(self.options.expansion_search, wanted)
        positions = self._search(graph, probes, wanted, leave)
        short = torch.nonzero((positions >= 0).sum(1) < k)[:, 0]
        if len(short):
            # A walk may end in a corner of the graph; such queries are compared with every row.
            left = None if leave is None else leave[short]
            positions[short] = self._search(graph, probes[short.numpy()], wanted, left, exact=True)
        return positions

    def _search(
        self, graph: Any, probes: Any, wanted: int, leave: Tensor | None, *, exact: bool = False
    ) -> Tensor:
        """Positions of candidates, −1 where there are fewer."""
        matches = graph.search(probes, wanted, exact=exact, threads=self.options.threads)
        keys = torch.from_numpy(matches.keys.astype(np.int64)).reshape(len(probes), -1)
        n_found = np.asarray(getattr(matches, "counts", [len(matches)]), dtype=np.int64)
        counts = torch.from_numpy(n_found)
        keys[torch.arange(keys.shape[1]) >= counts[:, None]] = -1
        if leave is not None:
            keys[(keys[:, :, None] == leave[:, None, :]).any(2)] = -1
        return torch.nn.functional.pad(keys, (0, wanted - keys.shape[1]), value=-1)

    def graph(self, space: Space) -> Any:
        """The graph of a space with all rows in it; it is made, or added to, when it is needed."""
        name = f"{space.kind}/{space.metric}"
        if name not in self._graphs:
            self._graphs[name] = self._open(name, space)
        graph = self._graphs[name]
        rows = self.rows
        done = len(graph)
        if done < len(rows) and name in self._stored:
            # A graph that is mapped from a file is read-only.
            graph = self._graphs[name] = _restore(self._stored.pop(name), view=False)
        for piece in pieces(len(rows) - done, space.width):
            keys = torch.arange(piece.start + done, piece.stop + done)
            part = rows.take(keys)
            vectors = space.vectors(part).to(torch.float32).numpy()
            graph.add(keys.numpy(), vectors, threads=self.options.threads)
        return graph

    def _open(self, name: str, space: Space) -> Any:
        if name in self._stored:
            graph = _restore(self._stored[name], view=True)
            if graph.ndim != space.width:
                raise ValueError(
                    f"the graph in the file has {graph.ndim} columns but the rows have "
                    f"{space.width}."
                )
            return graph
        options = self.options
        return _usearch().Index(
            ndim=space.width,
            metric="ip",
            dtype=options.dtype or ("i8" if space.width >= _LONG else "f32"),
            connectivity=options.connectivity,
            expansion_add=options.expansion_add,
        )

    def tensors(self) -> dict[str, Tensor]:
        """The graphs as bytes."""
        whole = {
            name: np.frombuffer(graph.save(), dtype=np.uint8)
            for name, graph in self._graphs.items()
        }
        unopened = {name: bytes_ for name, bytes_ in self._stored.items() if name not in whole}
        return unopened | {name: torch.from_numpy(array.copy()) for name, array in whole.items()}


def _restore(graph: Tensor, *, view: bool) -> Any:
    stored: Any = graph.numpy()
    try:
        if (index := _usearch().Index.restore(memoryview(stored), view=view)) is not None:
            return index
    except (RuntimeError, ValueError):
        pass
    raise ValueError("the graph in the file cannot be read.")


def _usearch() -> Any:
    return _import("usearch.index", "usearch", "ann")


def _import(module: str, package: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as missing:
        raise ImportError(
            f'this backend needs the {package} package: pip install "nobsp[{extra}]".'
        ) from missing


@dataclass(frozen=True)
class Milvus:
    """Options of the Milvus backend.

    Args:
        uri: A local file whose name ends in ".db" (needs milvus-lite), or where a cluster is:
            "http://host:19530".
        collection: Name of the collection.
        token: "user:password" or an API key; never written to a file.
        replace: Whether `fit` may replace a collection of that name.
        timeout: Seconds after which a call that was not answered is an error.
        index_type: The kind of index Milvus builds; when None, "FLAT" in a local file, which is
            exact, and "AUTOINDEX" on a cluster.
        candidates: Rows measured for a query, at least four for each neighbour.
        candidates_by_activation: The same where candidates are found by activations and neighbours
            are sought by evidence for the query's class.
    """

    uri: str = "nobsp-neighbors.db"
    collection: str = "nobsp"
    token: str = ""
    replace: bool = False
    timeout: float = 30.0
    index_type: str | None = None
    candidates: int = 64
    candidates_by_activation: int = 128

    @property
    def local(self) -> bool:
        """Whether it is a file."""
        return "://" not in self.uri


class Collection(Backend):
    """Rows in a collection: vectors to be searched, and beside them what else is known of a row.

    Rows are numbered from 0 without gaps: what is behind the first gap is left of an addition that
    was cut short, is not searched, and the next addition overwrites it. One process at a time may
    add. With `make`, a new collection is made for rows like these; without, the one that is there
    is opened.
    """

    at_once = 256  # queries in one message, so that answers stay small

    def __init__(
        self,
        options: Milvus,
        spaces: dict[Kind, Space],
        evidence_shape: tuple[int, int] | None,
        make: Rows | None,
    ) -> None:
        self.options = options
        self.spaces = spaces
        self.evidence_shape = evidence_shape
        self._client = _connect(options)
        # of vector fields
        self._widths: dict[str, int] = {kind: space.width for kind, space in spaces.items()}
        # Evidence for the own class alone follows from its vector and length.
        if evidence_shape is not None and (evidence_shape[0] > 1 or "own" not in spaces):
            self._widths["evidence"] = evidence_shape[0] * evidence_shape[1]
        exists = self._call("has_collection", "look for the collection")
        if make is None:
            self._open(exists)
        else:
            self._make(make, exists)

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """Closes the connection, and a local file, which one process at a time can open."""
        self._client.close()

    def _call(self, method: str, what: str, **arguments: Any) -> Any:
        """Asks the server about the collection; its errors say what was being done, and where."""
        ask = getattr(self._client, method)
        try:
            return ask(self.options.collection, timeout=self.options.timeout, **arguments)
        except _failures() as failure:
            raise RuntimeError(
                f"Milvus at {self.options.uri!r} failed to {what}: {_reason(failure)}"
            ) from failure

    def _make(self, rows: Rows, exists: bool) -> None:
        if exists and not self.options.replace:
            where = f"{self.options.collection!r} at {self.options.uri!r}"
            raise ValueError(
                f"Milvus has a collection {where} already; choose another, or Milvus(..., "
                "replace=True)."
            )

        kinds = _pymilvus().DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        indices = self._client.prepare_index_params()
        index_type = self.options.index_type or ("FLAT" if self.options.local else "AUTOINDEX")
        for field, width in self._widths.items():
            if width > _MOST_WIDTH:
                raise ValueError(
                    f"rows have {width} numbers for {field}, but Milvus takes at most "
                    f"{_MOST_WIDTH}."
                )
            schema.add_field(field, kinds.FLOAT_VECTOR, dim=max(_LEAST_WIDTH, width))
            indices.add_index(
                field, index_type=index_type if field in self.spaces else "FLAT", metric_type="IP"
            )

        for field in (*(f"{kind}_length" for kind in self.spaces), "response"):
            schema.add_field(field, kinds.DOUBLE)
        schema.add_field("predicted", kinds.INT64)
        if rows.labels is not None:
            if rows.labels.ndim == 2:
                raise ValueError(
                    'Milvus keeps one label per row; several are kept in memory: backend="usearch".'
                )
            schema.add_field(
                "label", kinds.DOUBLE if rows.labels.is_floating_point() else kinds.INT64
            )

        if exists:
            self._call("drop_collection", "replace the collection")
        self._call(
            "create_collection",
            "make the collection",
            schema=schema,
            index_params=indices,
            consistency_level="Strong",
        )
        self._fields = self._columns()
        self._count = 0
        self._behind = False

    def _columns(self) -> dict[str, int]:
        """Fields of the collection, and the width of those that are vectors."""
        about = self._call("describe_collection", "describe the collection")
        return {
            field["name"]: int(field.get("params", {}).get("dim", 0)) for field in about["fields"]
        }

    def _open(self, exists: bool) -> None:
        name = self.options.collection
        if not exists:
            raise ValueError(f"Milvus at {self.options.uri!r} has no collection {name!r}.")

        self._fields = self._columns()
        for kind, width in self._widths.items():
            stored_width = self._fields.get(kind, 0)
            expected = max(_LEAST_WIDTH, width)
            if stored_width != expected:
                raise ValueError(
                    f"the collection {name!r} has vectors of width {stored_width} for {kind}, not "
                    f"{expected}; it belongs to another index."
                )

        if not {"id", "predicted", "response"} <= set(self._fields):
            raise ValueError(f"the collection {name!r} was not made by an index of nobsp.")

        self._call("load_collection", "open the collection")
        total = self._count_rows("")
        self._count = self._count_before_gap(total)
        self._behind = self._count < total

    def _count_before_gap(self, total: int) -> int:
        """How many rows there are before the first number that is missing."""
        if self._count_rows(f"id < {total}") == total:
            return total
        whole = 0
        broken = total
        while whole + 1 < broken:
            middle = (whole + broken) // 2
            if self._count_rows(f"id < {middle}") == middle:
                whole = middle
            else:
                broken = middle
        return whole

    def _count_rows(self, condition: str) -> int:
        answer = self._call("query", "count the rows", filter=condition, output_fields=["count(*)"])
        return int(answer[0]["count(*)"])

    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there, message by message.

        Each message is there whole or not at all.
        """
        if self._behind:
            self._call(
                "delete", "remove what an interrupted addition left", filter=f"id >= {self._count}"
            )
            self._behind = False
        for start in range(0, len(rows), self._in_message):
            part = rows.take(slice(start, start + self._in_message))
            self._call("insert", "add rows", data=self._records(part))
            self._count += len(part)

    @property
    def _in_message(self) -> int:
        return max(1, _MESSAGE_BYTES // (4 * sum(self._fields.values())))

    def _records(self, rows: Rows) -> list[dict[str, Any]]:
        columns: dict[str, Sequence[Any]] = {"id": range(self._count, self._count + len(rows))}
        for kind, space in self.spaces.items():
            scaled = space.scaled(rows)
            columns[kind] = _pad(unit_length(scaled).to(torch.float32))
            columns[f"{kind}_length"] = torch.linalg.vector_norm(scaled, dim=1).tolist()
        if "evidence" in self._fields and rows.evidence is not None:
            columns["evidence"] = _pad(rows.evidence.flatten(1))
        columns |= {"predicted": rows.predicted.tolist(), "response": rows.response.tolist()}
        if rows.labels is not None:
            columns["label"] = rows.labels.tolist()
        return [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]

    def take(self, positions: Tensor) -> Rows:
        """Rows at some positions, as near to what was added as single precision has it."""
        wanted, position_of = torch.unique(positions, return_inverse=True)
        fields = [field for field in self._fields if field != "id"]
        records: dict[int, dict[str, Any]] = {}
        for ids in wanted.split(min(_MOST_IDS, self._in_message)):
            fetched = self._call("get", "fetch rows", ids=ids.tolist(), output_fields=fields)
            records.update((int(record["id"]), record) for record in fetched)
        missing = [number for number in wanted.tolist() if number not in records]
        if missing:
            raise RuntimeError(
                f"row {missing[0]} is missing from the collection {self.options.collection!r}."
            )
        return self._rows([records[number] for number in wanted.tolist()]).take(position_of)

    def _rows(self, records: Sequence[dict[str, Any]]) -> Rows:
        def column(name: str, dtype: type[np.generic]) -> Tensor:
            return torch.from_numpy(np.array([record[name] for record in records], dtype=dtype))

        def invert(kind: Kind) -> Tensor:
            space = self.spaces[kind]
            vectors = column(kind, np.float32).to(torch.float64)[:, : space.width]
            return space.invert(vectors, column(f"{kind}_length", np.float64)).to(torch.float32)

        evidence = None
        labels = None
        if "evidence" in self._fields and self.evidence_shape is not None:
            flat = column("evidence", np.float32)[:, : self._widths["evidence"]]
            evidence = flat.reshape(-1, *self.evidence_shape)
        elif "own" in self.spaces and self.spaces["own"].evidence.coefficients is None:
            evidence = invert("own")[:, None]
        if "label" in self._fields:
            labels = column(
                "label", np.float64 if isinstance(records[0]["label"], float) else np.int64
            )
        predicted = column("predicted", np.int64)
        response = column("response", np.float64)
        return Rows(invert("activations"), evidence, predicted, response, labels)

    def candidates(
        self, queries: Rows, k: int, leave: Tensor | None, *, space: Space, walked: Space
    ) -> Tensor:
        """Positions of rows near each query, as Milvus finds them."""
        searchable = self.spaces.get(walked.kind)
        if searchable is None or searchable.metric != walked.metric:
            have = " and ".join(f"{kind} ({space.metric})" for kind, space in self.spaces.items())
            raise ValueError(
                f"the collection has {have}, not {walked.kind} ({walked.metric}); make another one."
            )

        answers = self._call(
            "search",
            "search",
            data=_pad(walked.probes(queries, space)),
            anns_field=walked.kind,
            limit=(count := self._wanted(k, leave, direct=walked.kind == space.kind)),
            filter=f"id < {self._count}" if self._behind else "",
            output_fields=["id"],
            search_params={"metric_type": "IP"},
        )
        positions = torch.full((len(queries), count), -1)
        for number, answer in enumerate(answers):
            positions[number, : len(answer)] = torch.tensor(
                [int(hit["id"]) for hit in answer], dtype=torch.long
            )

        if leave is not None:
            positions[(positions[:, :, None] == leave[:, None, :]).any(2)] = -1
        return positions


def _connect(options: Milvus) -> Any:
    library = _pymilvus()
    if options.local and not options.uri.endswith(".db"):
        raise ValueError(
            'uri must be a local file that ends in ".db", or "http://host:port", found '
            f"{options.uri!r}."
        )
    # The server of a local file takes the pings of an idle client for an attack, and gRPC then says
    # so on stderr.
    quiet = (
        {"grpc_options": {"grpc.keepalive_permit_without_calls": False}} if options.local else {}
    )
    try:
        return library.MilvusClient(
            uri=options.uri, token=options.token, timeout=options.timeout, **quiet
        )
    except _failures() as failure:
        hint = "a cluster has to be running; a local file can be open in one process at a time"
        raise ConnectionError(
            f"Milvus cannot be reached at {options.uri!r}: {_reason(failure)}; {hint}."
        ) from failure


def _pad(vectors: Tensor) -> list[Any]:
    """Vectors as lists; Milvus takes none of a single number."""
    short = _LEAST_WIDTH - vectors.shape[1]
    return (torch.nn.functional.pad(vectors, (0, short)) if short > 0 else vectors).tolist()


def _reason(failure: BaseException) -> str:
    return str(getattr(failure, "message", "") or failure).strip().rstrip(".")


def _failures() -> tuple[type[BaseException], ...]:
    return _pymilvus().MilvusException, import_module("grpc").RpcError  # which pymilvus brings


def _pymilvus() -> Any:
    return _import("pymilvus", "pymilvus", "milvus")


def make_backend(
    options: Usearch | Milvus | None,
    spaces: dict[Kind, Space],
    source: Rows | Mapping[str, Any],
    *,
    device: torch.device | str | None,
) -> Backend:
    """An empty backend for rows like these, or that of a file."""
    if isinstance(options, Milvus):
        if isinstance(source, Rows):
            shape = (
                None
                if source.evidence is None
                else (source.evidence.shape[1], source.evidence.shape[2])
            )
            return Collection(options, spaces, shape, source)
        return Collection(options, spaces, source["evidence_shape"], None)
    rows, graphs = (None, {}) if isinstance(source, Rows) else (source["rows"], source["graphs"])
    if isinstance(options, Usearch):
        return Graphs(options, spaces.get("own", spaces["activations"]), rows, graphs)
    return Exact(device, rows)


def indexed_spaces(spaces: Mapping[Kind, Space], kind: Kind, metric: str) -> dict[Kind, Space]:
    """The spaces that a collection or a graph has vectors for."""
    kinds: tuple[Kind, ...] = ("activations", "own") if kind == "own" else ("activations",)
    return {
        name: spaces[name] if metric == "euclidean" else spaces[name].cosine() for name in kinds
    }


def save(path: str | os.PathLike[str], fitted: Fitted, options: Mapping[str, Any]) -> None:
    """Writes an index; rows that are in Milvus stay there."""
    backend = fitted.backend
    outcomes = fitted.outcomes
    graphs = backend.tensors() if isinstance(backend, Graphs) else {}
    used = backend.options

    if isinstance(used, Milvus):
        used = replace(used, token="", replace=False)
    stored = {
        "fingerprint": fitted.source.fingerprint(),
        "signature": fitted.source.signature,
        "options": dict(options),
        "outcomes": replace(outcomes, classes=None),
        "classes": None if outcomes.classes is None else outcomes.classes.tolist(),
        "mean": fitted.evidence.mean,
        # Without their coefficients, which are the explainer's.
        "spaces": {
            kind: replace(space, evidence=Evidence()) for kind, space in fitted.spaces.items()
        },
        "labelled": fitted.labelled,
        "indexed": fitted.indexed,
        "backend": used,
        "rows": backend.rows if isinstance(backend, Exact) else None,
        "evidence_shape": backend.evidence_shape if isinstance(backend, Collection) else None,
        "graphs": graphs,
        # A damaged graph would make usearch read outside its memory.
        "checksums": {name: _checksum(graph) for name, graph in graphs.items()},
    }
    serialization.save(path, stored, kind=KIND, version=VERSION)


def load(
    path: str | os.PathLike[str],
    source: EvidenceSource,
    *,
    backend: Usearch | Milvus | str | None,
    device: torch.device | str | None,
) -> tuple[Fitted, dict[str, Any], Usearch | Milvus | None]:
    """Reads an index: what was fitted, the options it was made with, and those of its backend.

    Where rows are in Milvus, the caller says where that is: a file must not make anybody connect.
    """
    known = (Evidence, Milvus, Outcomes, Rows, Space, Usearch)
    stored: dict[str, Any] = serialization.load(
        path, kind=KIND, version=VERSION, classes=known, of=dict, mapped=True
    )
    with serialization.damage_in_words(path):
        _require_whole(stored)
        same = stored["fingerprint"] == source.fingerprint()
        same = same and _near(stored["signature"], source.signature)
    if not same:
        raise ValueError(
            f"path {str(path)!r} holds an index made with another explainer; pass the very one."
        )

    used = _chosen_backend(stored["backend"], backend)
    with serialization.damage_in_words(path):
        classes = stored["classes"]
        labels = None if classes is None else np.asarray(classes)
        outcomes = replace(stored["outcomes"], classes=labels)
        evidence = Evidence()
        if source.coefficients is not None:
            coefficients = outcomes.per_class(source.coefficients).T.contiguous()
            evidence = Evidence(coefficients, stored["mean"])
        spaces = {
            kind: replace(space, evidence=evidence) for kind, space in stored["spaces"].items()
        }
        _require_fitting_spaces(spaces, outcomes)
        _require_fitting_rows(stored["rows"], outcomes, spaces)
        indexed = indexed_spaces(spaces, *stored["indexed"])
    restored = make_backend(used, indexed, stored, device=device)
    fitted = Fitted(
        source, outcomes, evidence, spaces, restored, stored["labelled"], stored["indexed"]
    )
    return fitted, stored["options"], used


def _chosen_backend(
    written: Usearch | Milvus | None, wanted: Usearch | Milvus | str | None
) -> Usearch | Milvus | None:
    """The backend to use: that of the file, or another one for the same rows."""
    in_milvus = isinstance(written, Milvus)
    if wanted is None:
        if isinstance(written, Milvus):
            raise ValueError(
                f"the rows of this index are in Milvus (collection {written.collection!r} at "
                f"{written.uri!r} when it was saved); pass backend=Milvus(uri=..., collection=...) "
                "to say where they are now."
            )
        return written
    if in_milvus != isinstance(wanted, Milvus):
        where = "in Milvus" if in_milvus else "in the file"
        raise ValueError(f"backend {wanted!r} cannot be used: the rows of this index are {where}.")
    return None if isinstance(wanted, str) else wanted


# What a file of an index holds, by the sort of each.
_STORED: dict[str, tuple[type, ...]] = {
    "fingerprint": (str,),
    "signature": (Tensor,),
    "options": (dict,),
    "outcomes": (Outcomes,),
    "classes": (list, NoneType),
    "mean": (Tensor, NoneType),
    "spaces": (dict,),
    "labelled": (bool,),
    "indexed": (tuple,),
    "backend": (Usearch, Milvus, NoneType),
    "rows": (Rows, NoneType),
    "evidence_shape": (tuple, NoneType),
    "graphs": (dict,),
    "checksums": (dict,),
}
_OPTIONS = frozenset({"space", "target", "metric", "task", "output", "memory_limit"})


def _require_whole(stored: Mapping[str, Any]) -> None:
    """An error where anything is missing, of another sort, or not finite."""
    if missing := _STORED.keys() - stored.keys():
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    for name, kinds in _STORED.items():
        if not isinstance(stored[name], kinds):
            raise ValueError(f"its {name} is a {type(stored[name]).__name__}")
    if stored["options"].keys() != _OPTIONS:
        raise ValueError("its options are others than an index has")
    if (stored["rows"] is None) != isinstance(stored["backend"], Milvus):
        raise ValueError("it does not say where its rows are")
    for name, graph in stored["graphs"].items():
        # A damaged graph would make usearch read outside its memory.
        if stored["checksums"].get(name) != _checksum(graph):
            raise ValueError("a graph in it is not the one that was written")

    for name in ("signature", "mean"):
        _require_finite(name, stored[name])
    for kind, space in stored["spaces"].items():
        if kind != space.kind:
            raise ValueError(f"it calls a space of {space.kind} {kind}")
        for name in ("origin", "unit", "centre"):
            _require_finite(name, getattr(space, name))
    if stored["rows"] is not None:
        for name in ("activations", "evidence", "response", "labels"):
            _require_finite(name, getattr(stored["rows"], name))


def _require_fitting_spaces(spaces: Mapping[Kind, Space], outcomes: Outcomes) -> None:
    """An error where what a space subtracts and multiplies with is not as wide as its vectors."""
    for kind, space in spaces.items():
        width = space.unit.numel()
        origins = outcomes.count if kind == "query" else 1
        fits = space.unit.shape == (width,) and space.origin.shape == (origins, width)
        centre = space.centre
        if not fits or (centre is not None and centre.shape != (width,)):
            raise ValueError(f"the scale of its {kind} is not as wide as its vectors")

        coefficients = space.evidence.coefficients
        mean = space.evidence.mean
        if coefficients is not None and (mean is None or mean.shape != coefficients.shape[1:]):
            raise ValueError("its mean is not that of its explainer's units")


def _require_fitting_rows(
    rows: Rows | None, outcomes: Outcomes, spaces: Mapping[Kind, Space]
) -> None:
    """An error where rows are not equally many, or not as wide as the spaces say."""
    if rows is None:
        return

    columns = [value for value in vars(rows).values() if value is not None]
    if any(column.ndim == 0 or len(column) != len(rows) for column in columns):
        raise ValueError("its rows are not equally many in all of their columns")
    if rows.logits is not None and rows.logits.shape != (len(rows), outcomes.count):
        raise ValueError("its rows have logits of other classes")
    if rows.activations.ndim != 2 or (rows.evidence is not None and rows.evidence.ndim != 3):
        raise ValueError("its rows have another shape")
    if spaces["activations"].width != rows.activations.shape[1]:
        raise ValueError("its rows are not as wide as its space")

    _require_sorts(rows)
    for space in spaces.values():
        space.vectors(rows.take(slice(0, 1)))  # whatever else does not fit together shows here
    _require_known_classes(rows, outcomes)


def _require_known_classes(rows: Rows, outcomes: Outcomes) -> None:
    """An error where rows are predicted or labelled as classes that are not there."""
    if not _are_below(rows.predicted, outcomes.count):
        raise ValueError("its rows are predicted as classes that are not there")
    labels_are_numbers = outcomes.classes is not None and not outcomes.several
    labels = rows.labels if labels_are_numbers else None
    if labels is not None and not _are_below(labels, outcomes.count):
        raise ValueError("its rows are labelled as classes that are not there")


def _are_below(numbers: Tensor, count: int) -> bool:
    """Whether no number is below zero, and all are below `count`."""
    return not len(numbers) or 0 <= int(numbers.min()) <= int(numbers.max()) < count


def _require_sorts(rows: Rows) -> None:
    """An error where columns of rows hold numbers of another sort."""
    floating = (rows.activations, rows.evidence, rows.response, rows.logits)
    if not all(column is None or column.is_floating_point() for column in floating):
        raise ValueError("its activations, evidence or responses are of another type")
    if rows.predicted.dtype != torch.int64 or rows.predicted.ndim != 1 or rows.response.ndim != 1:
        raise ValueError("its predictions are of another type")


def _require_finite(name: str, values: Tensor | None) -> None:
    """An error for numbers that are not finite, with which a search would not end."""
    if values is None or not values.is_floating_point() or not values.numel():
        return
    # Without a copy: the rows of an index may fill the memory.
    lowest, highest = torch.aminmax(values)
    if not bool(torch.isfinite(lowest) & torch.isfinite(highest)):
        raise ValueError(f"its {name} has numbers that are not finite")


def _checksum(graph: Tensor) -> int:
    return zlib.crc32(graph.numpy().data)


def _near(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(
        ((a - b).abs() <= _ROUNDING * (1e-3 * b.abs().max() + b.abs())).all()
    )
