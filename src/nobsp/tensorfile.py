"""Safetensors files, written with equal bytes for equal contents, read with every size checked.

The library of that name draws the order of the metadata anew for every file, keeps some memory of
every tensor that it reads, and takes the last of two equal names. The format itself is small: eight
bytes for the length of a header, the header in JSON, and the tensors one after another.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:  # files of arrays are written and read where there is no torch
    from torch import Tensor

Framework = Literal["pt", "numpy"]

_METADATA = "__metadata__"
_CHECKSUM = "checksum"
# Bytes of the length of the header, and what the header is filled up to, so that tensors are
# aligned.
_LENGTH_BYTES = 8
# What numpy of any version takes for a shape: so many lengths, and no more bytes than can be
# counted.
_MOST_DIMENSIONS = 32
_MOST_BYTES = 1 << 62
# The largest header that the safetensors library reads.
_LONGEST_HEADER = 100_000_000
# Names in the format, the bytes of a number, and what numpy and torch call it.
_DTYPES: dict[str, tuple[int, str, str]] = {
    "BOOL": (1, "bool", "bool"),
    "U8": (1, "uint8", "uint8"),
    "I8": (1, "int8", "int8"),
    "U16": (2, "uint16", "uint16"),
    "I16": (2, "int16", "int16"),
    "F16": (2, "float16", "float16"),
    "BF16": (2, "", "bfloat16"),
    "U32": (4, "uint32", "uint32"),
    "I32": (4, "int32", "int32"),
    "F32": (4, "float32", "float32"),
    "U64": (8, "uint64", "uint64"),
    "I64": (8, "int64", "int64"),
    "F64": (8, "float64", "float64"),
}
_OF_NUMPY = {numpy_name: name for name, (_, numpy_name, _) in _DTYPES.items() if numpy_name}
_OF_TORCH = {f"torch.{torch_name}": name for name, (_, _, torch_name) in _DTYPES.items()}


class DamagedError(ValueError):
    """A file that is not what was written, or none of this format."""


@dataclass(frozen=True)
class _Entry:
    """A tensor in a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def write_tensors(
    file: IO[bytes], tensors: Mapping[str, Tensor | np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Writes tensors and texts, and a checksum of all of them."""
    names = {name: _dtype_name(tensor) for name, tensor in tensors.items()}
    # Long numbers first, so that each is aligned.
    ordered = sorted(tensors, key=lambda name: (-_DTYPES[names[name]][0], name))

    header: dict[str, Any] = {}
    position = 0
    for name in ordered:
        shape = [int(length) for length in tensors[name].shape]
        stop = position + math.prod(shape) * _DTYPES[names[name]][0]
        header[name] = {"dtype": names[name], "shape": shape, "data_offsets": [position, stop]}
        position = stop

    entries = {name: _entry(name, described) for name, described in header.items()}
    digest = _Digest(entries, metadata)
    contents = {name: _raw_bytes(tensors[name]) for name in ordered}
    for name in ordered:
        digest.add(contents[name])
    texts = {**metadata, _CHECKSUM: digest.hexdigest()}
    encoded = json.dumps(
        {_METADATA: dict(sorted(texts.items())), **header},
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()
    encoded += b" " * (-len(encoded) % _LENGTH_BYTES)

    file.write(len(encoded).to_bytes(_LENGTH_BYTES, "little"))
    file.write(encoded)
    for name in ordered:
        file.write(contents[name])


def read_tensors(
    path: str | os.PathLike[str],
    *,
    framework: Framework,
    require: Callable[[Mapping[str, str]], None],
    mapped: bool = False,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors and texts of a file.

    Args:
        path: The file.
        framework: Whether to make torch's tensors or numpy's arrays.
        require: Looks at the texts, and raises where a file of this kind is not wanted, before
            tensors are read.
        mapped: Whether to map the file into memory, which processes then share, instead of reading
            it.

    Raises:
        DamagedError: If it is no such file, or not the one that was written.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header, start = _read_header(file, size)
        metadata = _texts(header.pop(_METADATA, {}))
        require(metadata)
        entries = {name: _entry(name, described) for name, described in header.items()}
        _require_no_gaps(entries, size - start)
        content = _content(file, start, size, mapped=mapped)

    _require_checksum(entries, metadata, content)
    make = _as_array if framework == "numpy" else _as_tensor
    return {name: make(name, entry, content) for name, entry in entries.items()}, metadata


def loads_strictly(text: str | bytes) -> Any:
    """JSON in which no name stands twice in an object, and all numbers are numbers."""
    try:
        return json.loads(
            text, object_pairs_hook=_object_without_duplicates, parse_constant=_no_number
        )
    except RecursionError as failure:
        raise ValueError("it is nested too deeply") from failure


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name stands twice in the same object")
    return content


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _dtype_name(tensor: Any) -> str:
    """What the format calls the numbers of a tensor."""
    is_array = isinstance(tensor, np.ndarray)
    known = _OF_NUMPY if is_array else _OF_TORCH
    # numpy puts a byte order before names of dtypes that are not the machine's own.
    called = tensor.dtype.newbyteorder("=").name if is_array else str(tensor.dtype)
    if called not in known:
        raise TypeError(f"a tensor of {called} cannot be saved.")
    return known[called]


def _raw_bytes(tensor: Any) -> memoryview:
    """A tensor's numbers row by row, lowest byte first."""
    if isinstance(tensor, np.ndarray):
        array = np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<"))
        return array.reshape(-1).view(np.uint8).data
    torch = sys.modules["torch"]
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if not len(flat):
        return memoryview(b"")
    array = flat.view(torch.uint8).numpy()
    if sys.byteorder == "big":
        width = flat.element_size()
        array = np.ascontiguousarray(array.reshape(-1, width)[:, ::-1]).reshape(-1)
    view: memoryview = array.data
    return view


def _read_header(file: IO[bytes], size: int) -> tuple[dict[str, Any], int]:
    """What the header says, and where tensors begin."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    start = _LENGTH_BYTES + length
    if size < _LENGTH_BYTES or start > size or length > _LONGEST_HEADER:
        raise DamagedError("its header does not fit into it")
    try:
        header = loads_strictly(file.read(length).decode())
    except ValueError as failure:
        raise DamagedError(f"its header cannot be read ({failure})") from failure
    if not isinstance(header, dict):
        raise DamagedError("its header is not an object")
    return header, start


def _texts(content: Any) -> dict[str, str]:
    """The texts beside the tensors."""
    if not isinstance(content, dict) or not all(isinstance(text, str) for text in content.values()):
        raise DamagedError("its metadata are not texts")
    return dict(content)


def _entry(name: str, described: Any) -> _Entry:
    """A tensor as the header describes it, with sizes that fit together."""
    match described:
        case {
            "dtype": str(dtype),
            "shape": list(shape),
            "data_offsets": [int(start), int(stop)],
            **rest,
        } if not rest and dtype in _DTYPES:
            width = _DTYPES[dtype][0]
            if _is_shape(shape, width) and math.prod(shape) * width == stop - start and start >= 0:
                return _Entry(dtype, tuple(shape), start, stop)
    raise DamagedError(f"tensor {name!r} is described wrongly")


def _is_shape(shape: list[Any], width: int) -> bool:
    """Whether a tensor can have this shape.

    An empty one, too, has lengths that numpy and torch multiply.
    """
    if len(shape) > _MOST_DIMENSIONS:
        return False
    if not all(type(length) is int and 0 <= length <= _MOST_BYTES for length in shape):
        return False
    n_bytes: int = math.prod(length or 1 for length in shape) * width
    return n_bytes <= _MOST_BYTES


def _require_no_gaps(entries: Mapping[str, _Entry], size: int) -> None:
    """An error unless the tensors fill the file, one after another."""
    position = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.stop)):
        if entry.start != position:
            raise DamagedError("its tensors overlap or leave gaps")
        position = entry.stop
    if position != size:
        raise DamagedError(f"its tensors have {position} bytes, and it holds {size}")


def _content(file: IO[bytes], start: int, size: int, *, mapped: bool) -> memoryview:
    """The bytes of all tensors."""
    if mapped and size > start:
        # Pages are copied when they are written to, so that the file stays as it is.
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY))[start:]
    content = bytearray(size - start)
    view = memoryview(content)
    position = 0
    while position < len(content):
        count = file.readinto(view[position:])  # type: ignore[attr-defined]
        if not count:
            raise DamagedError("it became shorter while it was read")
        position += count
    return view


class _Digest:
    """A checksum of everything in a file."""

    def __init__(self, entries: Mapping[str, _Entry], metadata: Mapping[str, str]) -> None:
        described = [
            [name, entry.dtype, entry.shape, entry.start] for name, entry in sorted(entries.items())
        ]
        texts = sorted((key, text) for key, text in metadata.items() if key != _CHECKSUM)
        self._hash = hashlib.sha256(json.dumps([described, texts]).encode())

    def add(self, content: memoryview) -> None:
        """Adds bytes of tensors, in the order in which they are in the file."""
        self._hash.update(content)

    def hexdigest(self) -> str:
        """The checksum as text."""
        return f"sha256:{self._hash.hexdigest()}"


def _require_checksum(
    entries: Mapping[str, _Entry], metadata: Mapping[str, str], content: memoryview
) -> None:
    """An error where a file is not the one that was written; earlier versions wrote no checksum."""
    if _CHECKSUM not in metadata:
        return
    digest = _Digest(entries, metadata)
    digest.add(content)
    if digest.hexdigest() != metadata[_CHECKSUM]:
        raise DamagedError(
            "its checksum does not match, so that it is not the file that was written"
        )


def _as_array(name: str, entry: _Entry, content: memoryview) -> np.ndarray:
    """A tensor as an array of numpy."""
    width, numpy_name, _ = _DTYPES[entry.dtype]
    if not numpy_name:
        raise DamagedError(f"tensor {name!r} is of {entry.dtype}, which numpy does not know")
    raw = np.frombuffer(content, dtype=np.uint8, count=entry.stop - entry.start, offset=entry.start)
    if entry.dtype == "BOOL" and raw.size and raw.max() > 1:
        raise DamagedError(f"tensor {name!r} has truth values other than 0 and 1")
    if raw.ctypes.data % width:
        raw = raw.copy()
    dtype = np.dtype(numpy_name).newbyteorder("<")
    return raw.view(dtype).astype(numpy_name, copy=False).reshape(entry.shape)


def _as_tensor(name: str, entry: _Entry, content: memoryview) -> Any:
    """A tensor of torch."""
    torch = import_module("torch")
    if entry.stop == entry.start:
        return torch.empty(entry.shape, dtype=getattr(torch, _DTYPES[entry.dtype][2]))
    if entry.dtype == "BF16":
        halves = _Entry("U16", entry.shape, entry.start, entry.stop)
        return torch.from_numpy(_as_array(name, halves, content)).view(torch.bfloat16)
    return torch.from_numpy(_as_array(name, entry, content))
