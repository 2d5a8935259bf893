"""Dataclasses of tensors and arrays as one safetensors file with JSON metadata, without pickle.

`save` and `load` take a whole value; `write` and `read` take tensors by name beside anything JSON
can hold. Whatever is in a file, reading it gives the value that was written, or a `ValueError` that
says what is wrong with the file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np

from nobsp.arguments import path_of
from nobsp.drafts import check_path, replacing
from nobsp.tensorfile import DamagedError, Framework, loads_strictly, read_tensors, write_tensors

if TYPE_CHECKING:  # files of arrays are written and read where there is no torch
    from torch import Tensor

# More columns than any calibration can have: products of so many would take terabytes.
_MOST_COLUMNS = 1 << 20
# Keys of equal hash that a dictionary or a set may have; with many, filling it would take for ever.
_MOST_ALIKE = 64
# Letters of what was found in its place, in messages.
_EXCERPT = 60
# Fields that earlier files do not have; they then have their default.
_LATER_FIELDS = {"Seen": frozenset({"has_missing"})}
# Classes that had another name when files were written.
_FORMER_NAMES = {"CompiledExplainer": "Functions"}
# What a description that does not fit together ends in; too deep a nesting is a RuntimeError.
_MISFITS = (
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RuntimeError,
    OverflowError,
    AssertionError,
    ZeroDivisionError,
)


def save(path: str | os.PathLike[str], value: Any, *, kind: str, version: int) -> None:
    """Writes a value, atomically: the file is whole or not there."""
    tensors: dict[str, Any] = {}
    about = pack(value, tensors)
    write(
        path,
        kind=kind,
        version=version,
        tensors=tensors,
        about=about,
    )


def load(
    path: str | os.PathLike[str],
    *,
    kind: str,
    version: int,
    classes: Iterable[type] = (),
    framework: Framework = "pt",
    of: type = object,
    mapped: bool = False,
) -> Any:
    """Reads what `save` wrote, a value `of` this type."""
    tensors, about = read(
        path,
        kind=kind,
        version=version,
        framework=framework,
        mapped=mapped,
    )
    with damage_in_words(path):
        value = unpack(about, tensors, classes)
        if tensors:
            raise ValueError("it has tensors that nothing uses")
        if not isinstance(value, of):
            raise ValueError(f"it does not hold a {of.__name__}")
    return value


class damage_in_words:  # noqa: N801 - it is used as a function
    """Makes whatever goes wrong with the contents of a file a `ValueError` that names the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Begins to look."""

    def __exit__(self, kind: Any, failure: BaseException | None, trace: Any) -> None:
        """Says what went wrong."""
        if not isinstance(failure, (ValueError, *_MISFITS)):
            return
        reason = str(failure).rstrip(".")
        if not isinstance(failure, ValueError):
            reason = f"its parts do not fit together ({type(failure).__name__}: {reason})"
        raise ValueError(
            f"path {str(self._path)!r} is damaged or of another version: {reason}."
        ) from failure


def pack(value: Any, tensors: dict[str, Any]) -> Any:
    """A description of `value` that JSON can hold; tensors and arrays are put into `tensors`."""
    kind = type(value)
    if isinstance(value, np.generic):
        return pack(value.item(), tensors)
    if value is None or isinstance(value, bool | str | int | float):
        return _pack_plain(value)
    if kind in (list, tuple, frozenset, dict):
        return _pack_container(value, tensors)
    if isinstance(value, np.ndarray) or _is_tensor(value):
        return _pack_tensor(value, tensors)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: pack(getattr(value, field.name), tensors) for field in _fields(kind)}
        return {"@class": kind.__name__, "fields": fields}

    if kind.__module__ == "nobsp.projection.moments" and kind.__name__ == "Moments":
        return {"@moments": pack((value.blocks, value.state() if value.rows else None), tensors)}

    raise TypeError(f"a {kind.__name__} cannot be saved.")


def _pack_plain(value: bool | str | float | None) -> Any:
    """A text, a number or None; subclasses of these lose what they add."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if math.isfinite(value) else {"@float": str(float(value))}


def _pack_container(value: Any, tensors: dict[str, Any]) -> Any:
    """A list, or another container under its name, since JSON has no other."""
    if isinstance(value, dict):
        pairs = [[pack(key, tensors), pack(inner, tensors)] for key, inner in value.items()]
        return {"@dict": pairs}
    # Sets have no order of their own, and the same value is to give the same file.
    ordered = sorted(value, key=repr) if isinstance(value, frozenset) else value
    members = [pack(inner, tensors) for inner in ordered]
    return members if isinstance(value, list) else {f"@{type(value).__name__}": members}


def _pack_tensor(value: Any, tensors: dict[str, Any]) -> dict[str, str]:
    """A reference to a tensor or an array."""
    is_array = isinstance(value, np.ndarray)
    if is_array and (value.dtype.kind not in "biuf" or value.dtype.itemsize > 8):
        raise TypeError(f"an array of {value.dtype} cannot be saved; only numbers can.")
    name = str(len(tensors))
    tensors[name] = value
    return {"@array" if is_array else "@tensor": name}


def unpack(said: Any, tensors: dict[str, Any], classes: Iterable[type] = ()) -> Any:
    """The value that `pack` described; tensors are taken out of `tensors` as they are used."""
    reader = _Reader({kind.__name__: kind for kind in classes}, tensors)
    try:
        return reader.restore(said)
    except _MISFITS as wrong:
        raise ValueError(
            f"its parts do not fit together ({type(wrong).__name__}: {wrong})"
        ) from wrong


@dataclasses.dataclass(frozen=True, eq=False)
class _Reader:
    """Makes values of descriptions."""

    classes: dict[str, type]
    tensors: dict[str, Any]

    def restore(self, said: Any) -> Any:
        """A value as its description says."""
        match said:
            case None | bool() | int() | float() | str():
                return said
            case list():
                return [self.restore(inner) for inner in said]
            case {"@class": str(name), "fields": dict(fields), **rest} if not rest:
                return self._instance(name, fields)
            case {**entries} if len(entries) == 1:
                [(tag, content)] = entries.items()
                return self._tagged(str(tag), content)
        raise ValueError(f"{str(said)[:_EXCERPT]!r} is not understood")

    def _tagged(self, tag: str, content: Any) -> Any:
        """A value that JSON has no form for."""
        match tag, content:
            case "@tuple", list():
                return tuple(self.restore(inner) for inner in content)
            case "@frozenset", list():
                members = [self.restore(inner) for inner in content]
                _require_hashes_apart(members)
                return frozenset(members)
            case "@dict", list():
                return self._dictionary(content)
            case "@float", "nan" | "inf" | "-inf":
                return float(content)
            case "@array", str():
                tensor = self.tensors.pop(content)
                return tensor.numpy() if _is_tensor(tensor) else tensor
            case "@tensor", str():
                tensor = self.tensors.pop(content)
                is_array = isinstance(tensor, np.ndarray)
                return import_module("torch").from_numpy(tensor) if is_array else tensor
            case "@moments", _:
                return _restored_moments(self.restore(content))
        raise ValueError(f"{str({tag: content})[:_EXCERPT]!r} is not understood")

    def _dictionary(self, pairs: list[Any]) -> dict[Any, Any]:
        """A dictionary; an error where a key stands twice."""
        restored = [(self.restore(key), self.restore(inner)) for key, inner in pairs]
        _require_hashes_apart([key for key, _ in restored])
        content = dict(restored)
        if len(content) != len(pairs):
            raise ValueError("a key stands twice in the same dictionary")
        return content

    def _instance(self, name: str, fields: dict[str, Any]) -> Any:
        """An instance of a known class, with all of its fields and values of their types."""
        name = _FORMER_NAMES.get(name, name)
        if name not in self.classes:
            raise ValueError(f"it holds a {name!r}, which does not belong there")
        kind = self.classes[name]
        different = fields.keys() ^ {field.name for field in _fields(kind)}
        if different := different - (_LATER_FIELDS.get(name, frozenset()) - fields.keys()):
            raise ValueError(
                f"{name!r} has other fields than it should ({', '.join(sorted(different))})"
            )
        values = {key: self.restore(inner) for key, inner in fields.items()}
        hints = _type_hints(kind)
        for key, value in values.items():
            if key in hints and not _fits(value, hints[key]):
                raise ValueError(f"{key!r} of {name!r} is a {type(value).__name__}")
        return kind(**values)


def _require_hashes_apart(keys: Sequence[Any]) -> None:
    """Raises a ValueError where a file was made so that too many of its keys share a hash.

    Each of them would be compared with all others.
    """
    n_hashes = len({hash(key) for key in keys})
    if len(keys) > _MOST_ALIKE * (n_hashes + 1):
        raise ValueError("its keys are made to be confused with each other")


def _restored_moments(content: Any) -> Any:
    """Moments, with every size checked before anything is allocated."""
    from nobsp.projection import Moments

    blocks, state = content
    widths = list(blocks.values())
    if not all(type(width) is int and width >= 0 for width in widths):
        raise ValueError("widths of its blocks are not numbers of columns")
    size = sum(widths)
    if size > _MOST_COLUMNS:
        raise ValueError(f"its blocks have {size} columns, more than a calibration can have")
    if state is None:
        return Moments(blocks)
    if state["origin"].shape != (size,) or state["offset"].shape != (size,):
        raise ValueError(f"its means are not those of {size} columns")
    if state["products"].shape != (size * (size + 1) // 2,):
        raise ValueError(f"its products are not those of {size} columns")
    if not all(bool(state[name].isfinite().all()) for name in ("origin", "offset", "products")):
        raise ValueError("its sums have numbers that are not finite")
    if int(state["rows"]) < 1 or not math.isfinite(float(state["weight"])):
        raise ValueError("it has no number of rows")
    return Moments.from_state(blocks, state)


def _fields(kind: type) -> list[dataclasses.Field[Any]]:
    """The fields that make an instance."""
    return [field for field in dataclasses.fields(kind) if field.init]


@cache
def _type_hints(kind: type) -> dict[str, Any]:
    """Types of a dataclass's fields, without those that are only imported for type checkers."""
    hints: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        try:
            hints |= typing.get_type_hints(
                type(kind.__name__, (), {"__annotations__": {field.name: field.type}}),
                globalns=vars(sys.modules[kind.__module__]),
            )
        except (NameError, TypeError, AttributeError):
            continue
    return hints


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the sort that a type stands for, and what it contains of theirs."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, argument) for argument in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type) or kind in (Any, object):
        return True
    if kind in _NUMBERS:
        return type(value) in _NUMBERS[kind]
    return _sort_of(type(value)) == _sort_of(kind) and _contents_fit(value, hint)


def _contents_fit(value: Any, hint: Any) -> bool:
    """Whether what a tuple, list, set or dictionary contains is of the types it should have."""
    arguments = typing.get_args(hint)
    if not arguments:
        return True
    if isinstance(value, dict) and len(arguments) == 2:
        key_type, value_type = arguments
        return all(
            _fits(key, key_type) and _fits(inner, value_type) for key, inner in value.items()
        )
    if typing.get_origin(hint) is tuple and Ellipsis not in arguments:
        if len(value) != len(arguments):
            return False
        return all(_fits(inner, hint) for inner, hint in zip(value, arguments, strict=True))
    if isinstance(value, tuple | list | frozenset):
        return all(_fits(inner, arguments[0]) for inner in value)
    return True


def _sort_of(kind: type) -> str:
    """Numbers, texts, tensors, rows of values, mappings, or a class of its own."""
    for sort, classes in _SORTS.items():
        if issubclass(kind, classes):
            return sort
    return "tensor" if kind.__name__ in ("Tensor", "Parameter") else kind.__name__


# What a number may be: a position is whole, and JSON writes 1.0 as it likes.
_NUMBERS: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}
# Lists and tuples are alike here: a description may hold either.
_SORTS: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "text": (str,),
    "tensor": (np.ndarray,),
    "mapping": (Mapping,),
    "values": (Sequence, Set),
}


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # where it was not loaded, nothing is a tensor
    return torch is not None and isinstance(value, torch.Tensor)


def write(
    path: str | os.PathLike[str],
    *,
    kind: str,
    version: int,
    tensors: Mapping[str, Tensor | np.ndarray],
    about: Any,
) -> None:
    """Writes tensors and a description, atomically: the file is whole or not there."""
    target = check_path(path)
    metadata = {
        "format": "nobsp",
        "kind": kind,
        "version": str(version),
        "about": json.dumps(about),
    }
    with replacing(target) as draft:
        save_file(tensors, str(draft), metadata=metadata)


def save_file(tensors: Mapping[str, Any], path: str, *, metadata: dict[str, str]) -> None:
    """Writes arrays with numpy alone, and with torch where there are tensors."""
    with open(path, "wb") as file:
        write_tensors(file, tensors, metadata)


def read(
    path: str | os.PathLike[str],
    *,
    kind: str,
    version: int,
    framework: Framework = "pt",
    mapped: bool = False,
) -> tuple[dict[str, Any], Any]:
    """Reads what `write` wrote, as torch tensors or as numpy arrays."""
    if not path_of(path).is_file():
        raise FileNotFoundError(f"path {str(path)!r} is not a file.")
    require = partial(_require_kind, path, kind=kind, version=version)
    try:
        tensors, metadata = read_tensors(path, framework=framework, require=require, mapped=mapped)
    except DamagedError as damaged:
        raise ValueError(
            f"path {str(path)!r} is damaged or no safetensors file: {damaged}."
        ) from damaged
    try:
        return tensors, loads_strictly(metadata["about"])
    except (KeyError, ValueError) as damaged:
        raise ValueError(
            f"path {str(path)!r} is damaged: its description cannot be read ({damaged})."
        ) from damaged


# What reads the files of other kinds.
_LOADERS = {
    "tabular explainer": "nobsp.NObSP.load(path, model)",
    "compiled explainer": "nobsp.Functions.load(path)",
    "class activation maps": "nobsp.NObSPCam.load(path, model)",
    "contribution index": "nobsp.ContributionIndex.load",
}


def _require_kind(
    path: str | os.PathLike[str], metadata: Mapping[str, str], *, kind: str, version: int
) -> None:
    """An error where a file holds something else, or another version of it."""
    is_ours = metadata.get("format") == "nobsp"
    if not is_ours or metadata.get("kind") != kind:
        held = metadata.get("kind") if is_ours else "something else"
        advice = f"; read it with {_LOADERS[held]}" if held in _LOADERS else ""
        raise ValueError(f"path {str(path)!r} does not hold a nobsp {kind} but {held}{advice}.")
    if metadata.get("version") != str(version):
        raise ValueError(
            f"path {str(path)!r} has layout version {metadata.get('version')}, but this nobsp "
            f"reads version {version}; use the nobsp that wrote it."
        )
