"""Damaged files: explainers, functions, cams, indexes and checkpoints with bytes, headers and descriptions changed."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import nobsp
from campaign.outcome import Outcome, defect, describe, find_fault, right
from campaign.part import Part, generator
from campaign.subjects import COLUMNS, fingerprint, make_rows, world

# Words by which an error may speak of the file.
NAMES = ("path", "file", "checkpoint", "damaged", "version", "decisions", "model")


@dataclass(frozen=True)
class Kind:
    """A kind of file: its bytes, and what can be read from it."""

    name: str
    content: bytes
    # reads the file and gives numbers that depend on all of it
    read: Callable[[Path], Any]


@cache
def kinds() -> tuple[Kind, ...]:
    """Every kind of file that is written, once a process."""
    subjects = world()
    return (
        Kind("explainer", _saved(subjects.explainer.save), _read_explainer),
        Kind("functions", _saved(subjects.compiled.save), _read_functions),
        Kind("cam", _saved(subjects.cam.save), _read_cam),
        Kind("index", _saved(subjects.index.save), _read_index),
        Kind("checkpoint", _checkpoint(), _read_checkpoint),
    )


def _saved(save: Callable[[Path], None]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        save(path)
        return path.read_bytes()


class _StopError(Exception):
    """Ends a calibration on the way."""


def _stream(end: int, *, stops: bool) -> Any:
    for part in range(end):
        yield make_rows(rows=8, seed=part)
    if stops:
        raise _StopError


def _calibrated(X: Any, path: Path) -> Any:
    explainer = nobsp.NObSP(
        world().network, baseline="zero", features=list(COLUMNS), interactions=0, background=4
    )
    return explainer.fit(X, engine=nobsp.Local(path, every=0))


def _checkpoint() -> bytes:
    """A calibration that was interrupted after half of its rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        with suppress(_StopError):
            _calibrated(_stream(3, stops=True), path)
        return path.read_bytes()


def _read_explainer(path: Path) -> Any:
    explainer = nobsp.NObSP.load(path, world().network)
    return _account(explainer(world().X[:6]))


def _read_functions(path: Path) -> Any:
    return _account(nobsp.Functions.load(path)(world().X[:6]))


def _account(explanation: Any) -> list[np.ndarray]:
    return [explanation.values, np.asarray(explanation.base_values), explanation.outside]


def _read_cam(path: Path) -> Any:
    maps = nobsp.NObSPCam.load(path, world().image_network)(world().images[:3])
    return [maps.account, maps.contrast, maps.residual]


def _read_index(path: Path) -> Any:
    index = nobsp.ContributionIndex.load(path, world().explainer)
    hits = index.query(world().X[:6], 3)
    return [hits.indices, hits.distances, np.asarray(hits.labels), index.prototypes(2).indices]


def _read_checkpoint(path: Path) -> Any:
    return _account(_calibrated(_stream(5, stops=False), path)(world().X[:6]))


@cache
def _expected(name: str) -> str:
    """What the file says while nothing has happened to it."""
    [kind] = [kind for kind in kinds() if kind.name == name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(kind.content)
        return fingerprint(_rounded(kind.read(path)))


def _rounded(values: list[Any]) -> list[Any]:
    """To nine digits, as two ways of reading may add up in another order."""
    return [
        np.round(value, 9) + 0.0 if np.asarray(value).dtype.kind == "f" else np.asarray(value)
        for value in values
    ]


# ---------------------------------------------------------------------- what happens to files


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        position = int(rng.integers(len(changed)))
        changed[position] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _truncate(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: int(rng.integers(len(content)))]


def _append(content: bytes, rng: np.random.Generator) -> bytes:
    return content + rng.bytes(int(rng.integers(1, 64)))


def _zero(content: bytes, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(content)))
    stop = min(len(content), start + int(rng.integers(1, 256)))
    return content[:start] + bytes(stop - start) + content[stop:]


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def _joined(header: str, tensors: bytes) -> bytes:
    encoded = header.encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + tensors


def _inflate_header(content: bytes, rng: np.random.Generator) -> bytes:
    size = int(rng.choice([2**63, 2**40, 2**31, len(content) + 1, 0]))
    return struct.pack("<Q", size) + content[8:]


def _tensor_names(header: dict[str, Any]) -> list[str]:
    return [name for name in header if name != "__metadata__"]


def _swap_tensors(content: bytes, rng: np.random.Generator) -> bytes:
    header, tensors = _split(content)
    names = _tensor_names(header)
    first, second = rng.choice(len(names), 2)
    one = names[int(first)]
    other = names[int(second)]
    header[one], header[other] = header[other], header[one]
    return _joined(json.dumps(header), tensors)


def _reshape(content: bytes, rng: np.random.Generator) -> bytes:
    header, tensors = _split(content)
    names = _tensor_names(header)
    entry = header[names[int(rng.integers(len(names)))]]
    choice = int(rng.integers(4))
    if choice == 0:
        entry["shape"] = entry["shape"][::-1]
    elif choice == 1:
        entry["shape"] = [1, *entry["shape"]]
    elif choice == 2:
        entry["shape"] = [2**40]
    else:
        entry["dtype"] = str(rng.choice(["F32", "I64", "U8", "BOOL", "F16", "X9"]))
    return _joined(json.dumps(header), tensors)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a description are that are no lists and no dictionaries."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in _leaves(value[key], (*path, key))]
    if isinstance(value, list):
        return [leaf for place, item in enumerate(value) for leaf in _leaves(item, (*path, place))]
    return [path]


def _replace_value(content: bytes, rng: np.random.Generator) -> bytes:
    """One value of the description becomes another."""
    header, tensors = _split(content)
    description = json.loads(header["__metadata__"]["about"])
    leaves = _leaves(description)
    path = leaves[int(rng.integers(len(leaves)))]
    strange = [None, -1, 2**62, 10**30, 0.5, 1e308, "x" * 1000, "", [], {}, True, [[[]]]]
    strange += [{"@float": "nan"}, {"@class": "Path", "fields": {}}, {"@array": "0"}]
    inner = description
    for step in path[:-1]:
        inner = inner[step]
    if not path:
        description = strange[int(rng.integers(len(strange)))]
    else:
        inner[path[-1]] = strange[int(rng.integers(len(strange)))]
    header["__metadata__"]["about"] = json.dumps(description)
    return _joined(json.dumps(header), tensors)


def _deepen(content: bytes, rng: np.random.Generator) -> bytes:
    header, tensors = _split(content)
    depth = int(rng.choice([500, 5_000, 100_000]))
    opening = str(rng.choice(["[", '{"@tuple": [']))
    closing = "]" if opening == "[" else "]}"
    header["__metadata__"]["about"] = opening * depth + closing * depth
    return _joined(json.dumps(header), tensors)


def _duplicate_key(content: bytes, rng: np.random.Generator) -> bytes:
    """One key of the header, or of the description, twice; readers differ in which one counts."""
    header, tensors = _split(content)
    if rng.random() < 0.5:
        about = header["__metadata__"]["about"]
        header["__metadata__"]["about"] = about.replace("{", '{"@class": "Other", ', 1)
        return _joined(json.dumps(header), tensors)
    names = _tensor_names(header)
    name = names[int(rng.integers(len(names)))]
    other = header[names[int(rng.integers(len(names)))]]
    text = json.dumps(header)
    return _joined(f"{text[:-1]}, {json.dumps(name)}: {json.dumps(other)}}}", tensors)


def _other_version(content: bytes, rng: np.random.Generator) -> bytes:
    header, tensors = _split(content)
    field = str(rng.choice(["version", "kind", "format"]))
    header["__metadata__"][field] = str(rng.choice(["0", "999", "-1", "", "nobsp", "1e9", "🐝"]))
    return _joined(json.dumps(header), tensors)


def _other_kind(content: bytes, rng: np.random.Generator) -> bytes:
    """A whole file, but of another kind."""
    others = [kind.content for kind in kinds() if kind.content != content]
    return others[int(rng.integers(len(others)))]


def _poison(content: bytes, rng: np.random.Generator) -> bytes:
    """NaN, infinity or huge numbers in one tensor."""
    header, tensors = _split(content)
    floats = [name for name in _tensor_names(header) if header[name]["dtype"] in ("F64", "F32")]
    entry = header[floats[int(rng.integers(len(floats)))]]
    start, stop = entry["data_offsets"]
    dtype = "<f8" if entry["dtype"] == "F64" else "<f4"
    values = np.frombuffer(tensors[start:stop], dtype=dtype).copy()
    if len(values):
        with np.errstate(over="ignore"):
            values[int(rng.integers(len(values)))] = rng.choice([np.nan, np.inf, -np.inf, 1e300])
    return _joined(json.dumps(header), tensors[:start] + values.tobytes() + tensors[stop:])


def _foreign(content: bytes, rng: np.random.Generator) -> bytes:
    choices = [
        b"",
        b"PK\x03\x04" + content,
        b"\x80\x04\x95" + content,
        rng.bytes(200),
        b"{}",
        b"[]",
    ]
    return choices[int(rng.integers(len(choices)))]


DAMAGES: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (
    _flip,
    _truncate,
    _append,
    _zero,
    _inflate_header,
    _swap_tensors,
    _reshape,
    _replace_value,
    _replace_value,
    _deepen,
    _duplicate_key,
    _other_version,
    _other_kind,
    _poison,
    _foreign,
)


def run(seed: int, case: int) -> Outcome:
    """One damaged file, read and used."""
    rng = generator(seed, "files", case)
    every = kinds()
    kind = every[case % len(every)]
    damage = DAMAGES[case // len(every) % len(DAMAGES)]
    changed = damage(kind.content, rng)
    text = f"{kind.name}: {damage.__name__.strip('_').replace('_', ' ')}"
    if changed == kind.content:
        return right(f"{text}, unchanged")
    # The working folder is the case's own, so that whatever a file makes its reader create is seen.
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        path = Path(folder) / "file"
        path.write_bytes(changed)
        outcome = _read(kind, path, text)
        left = sorted(entry.name for entry in Path(folder).iterdir() if entry.name != "file")
    if left:
        return defect(text, f"reading it left {', '.join(left)}")
    return outcome


def _read(kind: Kind, path: Path, text: str) -> Outcome:
    try:
        values = kind.read(path)
    except Exception as error:  # noqa: BLE001 - what is raised is what is judged
        fault = find_fault(error, NAMES, may_quote=True)
        if fault is None:
            return Outcome("clear", text, describe(error))
        return defect(text, f"{fault}: {describe(error)}")
    if fingerprint(_rounded(values)) != _expected(kind.name):
        return defect(text, "read without an error, and says something else")
    return right(text)


PART = Part(
    name="files",
    tried="explainers, functions, cams, indexes and checkpoints with flipped bits, cut off, with swapped, "
    "inflated, deep and duplicate headers, other versions, strange values",
    must="refused in words, or read as equal; no hang, no gigabyte, nothing created, no code run",
    count=10_000,
    sample=60,
    run=run,
)
