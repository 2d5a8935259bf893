"""Damaged files of every kind, with bytes, headers and contents changed.

Half of the files with another header or description get a checksum that fits, as if they had been written on purpose:
what reads them behind the checksum is tried as well.
"""

from __future__ import annotations

import contextlib
import io
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
import pandas as pd

import nobsp
from campaign.outcome import Outcome, defect, describe, find_fault, right
from campaign.part import Part, generator
from campaign.subjects import CLASSES, COLUMNS, ROWS, fingerprint, make_rows, world
from nobsp import tensorfile
from nobsp.cli import main

# Words by which an error may speak of the file.
NAMES = ("path", "file", "checkpoint", "damaged", "version", "decisions", "model")


@dataclass(frozen=True)
class Kind:
    """A kind of file: its bytes, and what can be read from it."""

    name: str
    content: bytes
    # reads the file and gives numbers that depend on all of it
    read: Callable[[Path], Any]
    file_name: str = "file"


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
        Kind("decisions", _decisions(), _read_decisions, file_name="decisions.json"),
        Kind("decisions.csv", _decisions_table(), _read_decisions, file_name="decisions.csv"),
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


def _chosen() -> list[dict[str, Any]]:
    """Decisions as a page saves them."""
    decisions = []
    for row, choice in enumerate(("keep", "relabel", "drop", "relabel", "drop")):
        decision = {
            "row": row,
            "name": str(row),
            "decision": choice,
            "given_label": CLASSES[row % 3],
            "new_label": CLASSES[(row + 1) % 3] if choice == "relabel" else "",
        }
        decisions.append(decision)
    return decisions


def _decisions() -> bytes:
    return json.dumps(_chosen(), indent=1).encode()


def _decisions_table() -> bytes:
    return pd.DataFrame(_chosen()).to_csv(index=False).encode()


class RefusedError(ValueError):
    """A command ended with a message instead of a result."""


def _read_decisions(path: Path) -> Any:
    """What `nobsp audit --apply` leaves of a table; the message where it refuses."""
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        table = Path(folder) / "table.csv"
        frame = pd.DataFrame(make_rows(rows=ROWS), columns=list(COLUMNS))
        labels = np.array(CLASSES)[np.arange(ROWS) % 3]
        frame.assign(label=labels).to_csv(table, index=False)
        out = Path(folder) / "out"
        words = ["audit", "--data", table, "--target", "label", "--apply", path, "--out", out]
        messages = io.StringIO()
        with contextlib.redirect_stderr(messages), contextlib.redirect_stdout(io.StringIO()):
            code = main([str(word) for word in words])
        if code != 0:
            raise RefusedError(messages.getvalue())
        cleaned = (out / "cleaned.csv").read_bytes()
        return [np.frombuffer(cleaned, dtype=np.uint8)]


@cache
def _expected(name: str) -> str:
    """What the file says while nothing has happened to it."""
    [kind] = [kind for kind in kinds() if kind.name == name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / kind.file_name
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


def _sign(content: bytes) -> bytes:
    """The same with a checksum that fits; as it is where there is nothing that a checksum could be made of."""
    try:
        header, tensors = _split(content)
        metadata = header.pop("__metadata__")
        entries = {name: tensorfile._entry(name, described) for name, described in header.items()}
        digest = tensorfile._Digest(entries, metadata)
    except (ValueError, TypeError, KeyError, AttributeError, struct.error):
        return content
    digest.add(memoryview(tensors))
    metadata["checksum"] = digest.hexdigest()
    return _joined(json.dumps({"__metadata__": metadata, **header}), tensors)


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


def _change_list(content: bytes, rng: np.random.Generator) -> bytes:
    """One value of a list of decisions becomes another, or stands there twice, or goes."""
    decisions = _chosen()
    decision = decisions[int(rng.integers(len(decisions)))]
    name = str(rng.choice(list(decision)))
    strange = [None, -1, 10**30, 1e308, "x" * 1000, "", [], {}, True, "🐝", "=1+1", "keep", "drop"]
    choice = int(rng.integers(4))
    if choice == 0:
        decision.pop(name)
    elif choice == 1:
        decisions.append(dict(decision))
    else:
        decision[name] = strange[int(rng.integers(len(strange)))]
    if content.startswith(b"["):
        return json.dumps(decisions).encode()
    return pd.DataFrame(decisions).to_csv(index=False).encode()


Damage = Callable[[bytes, np.random.Generator], bytes]

ANY_FILE: tuple[Damage, ...] = (_flip, _truncate, _append, _zero, _other_kind, _foreign)
DECISIONS: tuple[Damage, ...] = (*ANY_FILE, _change_list, _change_list, _change_list)
TENSORS: tuple[Damage, ...] = (
    *ANY_FILE,
    _inflate_header,
    _swap_tensors,
    _reshape,
    _replace_value,
    _replace_value,
    _deepen,
    _duplicate_key,
    _other_version,
    _poison,
)
# Damages that leave a header of which a checksum can be made.
SIGNABLE = (_swap_tensors, _reshape, _replace_value, _deepen, _duplicate_key, _poison)


def run(seed: int, case: int) -> Outcome:
    """One damaged file, read and used."""
    rng = generator(seed, "files", case)
    every = kinds()
    kind = every[case % len(every)]
    damages = DECISIONS if kind.name.startswith("decisions") else TENSORS
    damage = damages[case // len(every) % len(damages)]
    changed = damage(kind.content, rng)
    text = f"{kind.name}: {damage.__name__.strip('_').replace('_', ' ')}"
    signed = damage in SIGNABLE and rng.random() < 0.5
    if signed:
        changed = _sign(changed)
        text += ", with a checksum that fits"
    if changed == kind.content:
        return right(f"{text}, unchanged")
    # The working folder is the case's own, so that whatever a file makes its reader create is seen.
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        path = Path(folder) / kind.file_name
        path.write_bytes(changed)
        outcome = _read(kind, path, text, meant=signed or kind.name.startswith("decisions"))
        left = sorted(entry.name for entry in Path(folder).iterdir() if entry != path)
    if left:
        return defect(text, f"reading it left {', '.join(left)}")
    return outcome


def _read(kind: Kind, path: Path, text: str, *, meant: bool) -> Outcome:
    """How reading ends; a file that was written so on purpose may say something else, in finite numbers."""
    try:
        values = kind.read(path)
    except RefusedError as refusal:
        if "Traceback" in str(refusal) or "--apply" not in str(refusal):
            return defect(text, f"not in words: {refusal}")
        return Outcome("clear", text, str(refusal))
    except Exception as error:  # noqa: BLE001 - what is raised is what is judged
        fault = find_fault(error, NAMES, may_quote=True)
        if fault is None:
            return Outcome("clear", text, describe(error))
        return defect(text, f"{fault}: {describe(error)}")
    if fingerprint(_rounded(values)) == _expected(kind.name):
        return right(text)
    if not meant:
        return defect(text, "read without an error, and says something else")
    if any(value.dtype.kind == "f" and not np.isfinite(value).all() for value in values):
        return defect(text, "read without an error, and says NaN")
    return right(f"{text}, another file")


PART = Part(
    name="files",
    tried="explainers, functions, cams, indexes, checkpoints and decisions with flipped bits, cut off, with swapped, "
    "inflated, deep and duplicate headers, other versions, strange values, half of these with a checksum that fits",
    must="refused in words, or read as equal (in finite numbers where the checksum fits); no hang, no gigabyte, "
    "nothing created, no code run",
    count=10_000,
    sample=70,
    run=run,
)
