"""The Milvus backend: rows in a collection, in a local file or on a cluster, through one and the same client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.search import Kind, Space, rerank

# What one message holds at most; servers take 64 MB by default.
_MESSAGE_BYTES = 8 << 20
# Queries in one message, so that answers stay small.
_QUERIES = 256
# Limits of Milvus itself.
_LEAST_WIDTH, _MOST_WIDTH, _MOST_IDS = 2, 32768, 4096


@dataclass(frozen=True)
class Milvus:
    """Options of the Milvus backend.

    Args:
        uri: A local file whose name ends in ".db" (needs milvus-lite), or where a cluster is: "http://host:19530".
        collection: Name of the collection.
        token: "user:password" or an API key; never written to a file.
        replace: Whether `fit` may replace a collection of that name.
        timeout: Seconds after which a call that was not answered is an error.
        index_type: The kind of index Milvus builds; when None, "FLAT" in a local file, which is exact, and "AUTOINDEX"
            on a cluster.
        candidates: Rows measured for a query, at least four for each neighbour.
        candidates_by_activation: The same where candidates are found by activations and neighbours are sought by
            evidence for the query's class.
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


class Collection:
    """Rows in a collection: vectors to be searched, and whatever else is known of a row beside them.

    Rows are numbered from 0 without gaps: what is behind the first gap is left of an addition that was cut short, is
    not searched, and the next addition overwrites it. One process at a time may add. With `make`, a new collection is
    made for rows like these; without, the one that is there is opened.
    """

    def __init__(
        self,
        options: Milvus,
        spaces: dict[Kind, Space],
        *,
        evidence_shape: tuple[int, int] | None,
        make: Rows | None = None,
    ) -> None:
        self.options, self.spaces = options, spaces
        self.evidence_shape = evidence_shape
        self._client = _connect(options)
        if make is None:
            self._open()
        else:
            self._make(make)

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """Closes the connection, and a local file, which one process at a time can open."""
        self._client.close()

    def _make(self, rows: Rows) -> None:
        name = self.options.collection
        with self._reporting("make the collection"):
            if self._client.has_collection(name, timeout=self.options.timeout):
                if not self.options.replace:
                    raise ValueError(
                        f"Milvus at {self.options.uri!r} has a collection {name!r} already; choose another name, or "
                        "replace it with Milvus(..., replace=True)."
                    )
                self._client.drop_collection(name, timeout=self.options.timeout)
        kinds = _pymilvus().DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        widths = self._widths()
        for field, width in widths.items():
            if width > _MOST_WIDTH:
                raise ValueError(f"rows have {width} numbers for {field}, but Milvus takes at most {_MOST_WIDTH}.")
            schema.add_field(field, kinds.FLOAT_VECTOR, dim=max(_LEAST_WIDTH, width))
        for field in self.spaces:
            schema.add_field(f"{field}_length", kinds.DOUBLE)
        schema.add_field("predicted", kinds.INT64)
        schema.add_field("response", kinds.DOUBLE)
        if rows.labels is not None:
            if rows.labels.ndim == 2:
                raise ValueError('Milvus keeps one label a row; several are kept in memory: backend="usearch".')
            schema.add_field("label", kinds.DOUBLE if rows.labels.is_floating_point() else kinds.INT64)
        indices = self._client.prepare_index_params()
        index_type = self.options.index_type or ("FLAT" if self.options.local else "AUTOINDEX")
        for field in widths:
            indices.add_index(field, index_type=index_type if field in self.spaces else "FLAT", metric_type="IP")
        with self._reporting("make the collection"):
            self._client.create_collection(
                name, schema=schema, index_params=indices, consistency_level="Strong", timeout=self.options.timeout
            )
        self._fields = self._columns()
        self._count, self._behind = 0, False

    def _widths(self) -> dict[str, int]:
        """Vector fields and their widths."""
        widths: dict[str, int] = {kind: space.width for kind, space in self.spaces.items()}
        # Evidence for the own class alone follows from its vector and length.
        if self.evidence_shape is not None and (self.evidence_shape[0] > 1 or "own" not in self.spaces):
            widths["evidence"] = self.evidence_shape[0] * self.evidence_shape[1]
        return widths

    def _columns(self) -> dict[str, int]:
        with self._reporting("describe the collection"):
            about = self._client.describe_collection(self.options.collection, timeout=self.options.timeout)
        return {field["name"]: int(field.get("params", {}).get("dim", 0)) for field in about["fields"]}

    def _open(self) -> None:
        name = self.options.collection
        with self._reporting("open the collection"):
            if not self._client.has_collection(name, timeout=self.options.timeout):
                raise ValueError(f"Milvus at {self.options.uri!r} has no collection {name!r}.")
            self._fields = self._columns()
            for kind, width in self._widths().items():
                found, expected = self._fields.get(kind, 0), max(_LEAST_WIDTH, width)
                if found != expected:
                    has = f"vectors of width {found}" if found else "no vectors"
                    raise ValueError(
                        f"the collection {name!r} has {has} for {kind}, but the index has width {expected}; it belongs "
                        "to another index."
                    )
            if not {"id", "predicted", "response"} <= set(self._fields):
                raise ValueError(f"the collection {name!r} was not made by an index of nobsp.")
            self._client.load_collection(name, timeout=self.options.timeout)
        total = self._count_rows("")
        self._count = total if self._count_rows(f"id < {total}") == total else self._before_gap(total)
        self._behind = self._count < total

    def _count_rows(self, condition: str) -> int:
        with self._reporting("count the rows"):
            name, wanted = self.options.collection, ["count(*)"]
            found = self._client.query(name, filter=condition, output_fields=wanted, timeout=self.options.timeout)
        return int(found[0]["count(*)"])

    def _before_gap(self, total: int) -> int:
        """How many rows there are before the first number that is missing."""
        whole, broken = 0, total
        while whole + 1 < broken:
            middle = (whole + broken) // 2
            if self._count_rows(f"id < {middle}") == middle:
                whole = middle
            else:
                broken = middle
        return whole

    def add(self, rows: Rows) -> None:
        """Puts rows behind those that are there, message by message; each is there whole or not at all."""
        if self._behind:
            name, behind = self.options.collection, f"id >= {self._count}"
            with self._reporting("remove what an interrupted addition left"):
                self._client.delete(name, filter=behind, timeout=self.options.timeout)
            self._behind = False
        numbers = sum(self._fields.values())
        step = max(1, _MESSAGE_BYTES // (4 * numbers))
        for start in range(0, len(rows), step):
            part = rows.take(slice(start, start + step))
            with self._reporting("add rows"):
                self._client.insert(self.options.collection, self._records(part), timeout=self.options.timeout)
            self._count += len(part)

    def _records(self, rows: Rows) -> list[dict[str, Any]]:
        columns: dict[str, Sequence[Any]] = {"id": range(self._count, self._count + len(rows))}
        for kind, space in self.spaces.items():
            vectors, lengths = space.directions(rows, rows.predicted)
            columns[kind] = _pad(vectors.to(torch.float32))
            columns[f"{kind}_length"] = lengths.tolist()
        if "evidence" in self._fields:
            assert rows.evidence is not None
            columns["evidence"] = _pad(rows.evidence.flatten(1))
        columns["predicted"] = rows.predicted.tolist()
        columns["response"] = rows.response.tolist()
        if rows.labels is not None:
            columns["label"] = rows.labels.tolist()
        names = list(columns)
        return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def take(self, positions: Tensor) -> Rows:
        """Rows at some positions, as near to what was added as single precision has it."""
        wanted, place = torch.unique(positions, return_inverse=True)
        fields = [field for field in self._fields if field != "id"]
        step = min(_MOST_IDS, max(1, _MESSAGE_BYTES // (4 * sum(self._fields.values()))))
        records: dict[int, dict[str, Any]] = {}
        for ids in wanted.split(step):
            with self._reporting("fetch rows"):
                found = self._client.get(
                    self.options.collection, ids=ids.tolist(), output_fields=fields, timeout=self.options.timeout
                )
            records.update((int(record["id"]), record) for record in found)
        missing = [number for number in wanted.tolist() if number not in records]
        if missing:
            raise RuntimeError(f"row {missing[0]} is missing from the collection {self.options.collection!r}.")
        return self._rows([records[number] for number in wanted.tolist()]).take(place)

    def _rows(self, records: Sequence[dict[str, Any]]) -> Rows:
        def column(name: str, dtype: Any) -> Tensor:
            return torch.from_numpy(np.array([record[name] for record in records], dtype=dtype))

        def invert(kind: Kind) -> Tensor:
            space = self.spaces[kind]
            vectors = column(kind, np.float32).to(torch.float64)[:, : space.width]
            return space.invert(vectors, column(f"{kind}_length", np.float64)).to(torch.float32)

        evidence = None
        if "evidence" in self._fields:
            assert self.evidence_shape is not None
            classes, width = self.evidence_shape
            evidence = column("evidence", np.float32)[:, : classes * width].reshape(-1, classes, width)
        elif "own" in self.spaces and self.spaces["own"].evidence.coefficients is None:
            evidence = invert("own")[:, None]
        labels = None
        if "label" in self._fields:
            labels = column("label", np.float64 if isinstance(records[0]["label"], float) else np.int64)
        return Rows(
            activations=invert("activations"),
            evidence=evidence,
            predicted=column("predicted", np.int64),
            response=column("response", np.float64),
            labels=labels,
        )

    def nearest(
        self, space: Space, queries: Rows, k: int, leave: Tensor | None, *, walked: Space
    ) -> tuple[Tensor, Tensor]:
        """Positions and distances of rows near each query, found by Milvus and measured here."""
        kept = self.spaces.get(walked.kind)
        if kept is None or kept.metric != walked.metric:
            have = " and ".join(f"{kind} ({space.metric})" for kind, space in self.spaces.items())
            raise ValueError(
                f"the collection has vectors for {have}, not for {walked.kind} ({walked.metric}); make another one."
            )
        options = self.options
        wanted = max(options.candidates if walked.kind == space.kind else options.candidates_by_activation, 4 * k)
        wanted = min(wanted + (0 if leave is None else leave.shape[1]), len(self))
        parts = []
        for start in range(0, len(queries), _QUERIES):
            some = queries.take(slice(start, start + _QUERIES))
            left = None if leave is None else leave[start : start + _QUERIES]
            candidates = self._candidates(walked.kind, walked.probes(some, space), wanted)
            if left is not None:
                candidates[(candidates[:, :, None] == left[:, None, :]).any(2)] = -1
            parts.append(rerank(space, self.take, some, candidates, k))
        positions, distances = zip(*parts, strict=True)
        return torch.cat(positions), torch.cat(distances)

    def _candidates(self, field: str, probes: Tensor, count: int) -> Tensor:
        with self._reporting("search"):
            answers = self._client.search(
                self.options.collection,
                data=_pad(probes),
                anns_field=field,
                limit=count,
                filter=f"id < {self._count}" if self._behind else "",
                output_fields=["id"],
                search_params={"metric_type": "IP"},
                timeout=self.options.timeout,
            )
        found = torch.full((len(probes), count), -1)
        for number, answer in enumerate(answers):
            ids = [int(hit["id"]) for hit in answer]
            found[number, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        return found

    @contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """Errors of the server say what was being done, and where."""
        try:
            yield
        except _failures() as failure:
            raise RuntimeError(f"Milvus at {self.options.uri!r} failed to {what}: {_reason(failure)}") from failure


def _connect(options: Milvus) -> Any:
    library = _pymilvus()
    if options.local and not options.uri.endswith(".db"):
        raise ValueError(f'uri must be a local file that ends in ".db", or "http://host:port", found {options.uri!r}.')
    # The server of a local file takes the pings of an idle client for an attack, and gRPC then says so on stderr.
    quiet = {"grpc_options": {"grpc.keepalive_permit_without_calls": False}} if options.local else {}
    try:
        return library.MilvusClient(uri=options.uri, token=options.token, timeout=options.timeout, **quiet)
    except _failures() as failure:
        raise ConnectionError(
            f"Milvus cannot be reached at {options.uri!r}: {_reason(failure)}. A cluster has to be running; a local "
            "file can be open in one process at a time."
        ) from failure


def _pad(vectors: Tensor) -> list[Any]:
    """Vectors as lists; Milvus takes none of a single number."""
    short = _LEAST_WIDTH - vectors.shape[1]
    return (torch.nn.functional.pad(vectors, (0, short)) if short > 0 else vectors).tolist()


def _reason(failure: BaseException) -> str:
    return str(getattr(failure, "message", "") or failure).strip().rstrip(".")


def _failures() -> tuple[type[BaseException], ...]:
    library = _pymilvus()
    import grpc  # type: ignore[import-untyped]  # pymilvus brings it

    return (library.MilvusException, grpc.RpcError)


def _pymilvus() -> Any:
    try:
        import pymilvus
    except ImportError as missing:
        raise ImportError('backend="milvus" needs the pymilvus package: pip install "nobsp[milvus]".') from missing
    return pymilvus
