"""Dataclasses of tensors and arrays as one safetensors file with JSON metadata, without pickle.

`save` and `load` take a whole value; `write` and `read` take tensors by name beside anything JSON can hold.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:  # files of arrays are written and read where there is no torch
    from torch import Tensor

Framework = Literal["pt", "numpy"]


def save(path: str | os.PathLike[str], value: Any, *, kind: str, version: int) -> None:
    """Writes a value, atomically: the file is whole or not there."""
    tensors: dict[str, Any] = {}
    about = pack(value, tensors)
    write(path, kind=kind, version=version, tensors=tensors, about=about)


def load(
    path: str | os.PathLike[str],
    *,
    kind: str,
    version: int,
    classes: Iterable[type] = (),
    framework: Framework = "pt",
    of: type = object,
) -> Any:
    """Reads what `save` wrote, a value `of` this type."""
    tensors, about = read(path, kind=kind, version=version, framework=framework)
    try:
        value = unpack(about, tensors, classes)
        if tensors or not isinstance(value, of):
            raise ValueError(
                "it has tensors that nothing uses"
                if tensors
                else f"it does not hold a {of.__name__}"
            )
        return value
    except ValueError as damaged:
        reason = str(damaged).rstrip(".")
        raise ValueError(
            f"path {str(path)!r} is damaged or of another version: {reason}."
        ) from damaged


def pack(value: Any, tensors: dict[str, Any]) -> Any:
    """A description of `value` that JSON can hold; its tensors and arrays are put into `tensors`."""
    kind = type(value)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return pack(value.item(), tensors)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"@float": str(float(value))}
    if kind is list:
        return [pack(inner, tensors) for inner in value]
    if kind is tuple:
        return {"@tuple": [pack(inner, tensors) for inner in value]}
    if kind is frozenset:
        return {"@frozenset": [pack(inner, tensors) for inner in sorted(value, key=repr)]}
    if kind is dict:
        return {
            "@dict": [[pack(key, tensors), pack(inner, tensors)] for key, inner in value.items()]
        }
    if isinstance(value, np.ndarray) or _is_tensor(value):
        if isinstance(value, np.ndarray) and (
            value.dtype.kind not in "biuf" or value.dtype.itemsize > 8
        ):
            raise TypeError(f"an array of {value.dtype} cannot be saved; only numbers can.")
        name = str(len(tensors))
        tensors[name] = value
        return {"@array" if isinstance(value, np.ndarray) else "@tensor": name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: pack(getattr(value, field.name), tensors) for field in _fields(kind)}
        return {"@class": kind.__name__, "fields": fields}
    if kind.__module__ == "nobsp.projection.moments" and kind.__name__ == "Moments":
        return {"@moments": pack((value.blocks, value.state() if value.rows else None), tensors)}
    raise TypeError(f"a {kind.__name__} cannot be saved.")


def unpack(said: Any, tensors: dict[str, Any], classes: Iterable[type] = ()) -> Any:
    """The value that `pack` described; tensors are taken out of `tensors` as they are used."""
    known = {kind.__name__: kind for kind in classes}

    def restore(said: Any) -> Any:
        match said:
            case None | bool() | int() | float() | str():
                return said
            case list():
                return [restore(inner) for inner in said]
            case {"@tuple": list(items), **rest} if not rest:
                return tuple(restore(inner) for inner in items)
            case {"@frozenset": list(items), **rest} if not rest:
                return frozenset(restore(inner) for inner in items)
            case {"@dict": list(items), **rest} if not rest:
                return {restore(key): restore(inner) for key, inner in items}
            case {"@float": "nan" | "inf" | "-inf" as name, **rest} if not rest:
                return float(name)
            case {"@array": name, **rest} if not rest:
                found = tensors.pop(name)
                return found.numpy() if _is_tensor(found) else found
            case {"@tensor": name, **rest} if not rest:
                found = tensors.pop(name)
                return (
                    import_module("torch").from_numpy(found)
                    if isinstance(found, np.ndarray)
                    else found
                )
            case {"@moments": inner, **rest} if not rest:
                from nobsp.projection import Moments

                blocks, state = restore(inner)
                return Moments(blocks) if state is None else Moments.from_state(blocks, state)
            case {"@class": str(name), "fields": dict(fields), **rest} if not rest:
                if name not in known:
                    raise ValueError(f"it holds a {name!r}, which does not belong there")
                if different := fields.keys() ^ {field.name for field in _fields(known[name])}:
                    raise ValueError(
                        f"{name!r} has other fields than it should ({', '.join(sorted(different))})"
                    )
                return known[name](**{key: restore(inner) for key, inner in fields.items()})
        raise ValueError(f"{str(said)[:60]!r} is not understood")

    try:
        return restore(said)
    except (
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        RuntimeError,
    ) as wrong:  # too deep a nesting included
        raise ValueError(
            f"its parts do not fit together ({type(wrong).__name__}: {wrong})"
        ) from wrong


def _fields(kind: type) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(kind) if field.init]


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


def check_path(path: str | os.PathLike[str]) -> Path:
    """The file to write, or an error before any work is done for it."""
    target = Path(path)
    folder = str(target.parent)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path is in {folder!r}, which is not a folder; create it first.")
    if target.is_dir():
        raise IsADirectoryError(f"path {str(target)!r} is a folder; pass the name of a file.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(
            f"path is in {folder!r}, which cannot be written to; choose another folder."
        )
    return target


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A file to write, which takes the target's place when it is complete; whatever goes wrong, nothing is left."""
    # A folder of its own: safetensors begins a file under a name it draws, which a killed process would leave behind.
    folder = target.with_name(f"{target.name}.{secrets.token_hex(8)}.part")
    folder.mkdir()
    draft = folder / "file"
    try:
        # Asking for the umask would change it for other threads; an empty file shows what it allows.
        draft.touch(0o666, exist_ok=False)
        mode = stat.S_IMODE((target if target.exists() else draft).stat().st_mode)
        yield draft
        os.chmod(draft, mode)  # safetensors writes files for their owner alone
        os.replace(draft, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def save_file(tensors: Mapping[str, Any], path: str, *, metadata: dict[str, str]) -> None:
    """Writes arrays with numpy alone, and with torch where there are tensors."""
    # Not np.ascontiguousarray, which gives a single number a dimension; safetensors needs one byte order.
    kept: dict[str, Any] = {
        name: given.astype(given.dtype.newbyteorder("="), order="C")
        if isinstance(given, np.ndarray)
        else given
        for name, given in tensors.items()
    }
    if all(isinstance(given, np.ndarray) for given in kept.values()):
        from safetensors.numpy import save_file as save_arrays

        save_arrays(kept, path, metadata=metadata)
        return
    import torch
    from safetensors.torch import save_file as save_tensors

    storages: set[int] = set()
    for name, given in kept.items():
        tensor = (
            torch.from_numpy(given)
            if isinstance(given, np.ndarray)
            else given.detach().contiguous()
        )
        storage = tensor.untyped_storage()
        if (
            storage.data_ptr() in storages
            or storage.nbytes() != tensor.numel() * tensor.element_size()
        ):
            tensor = tensor.clone()  # safetensors refuses tensors that share memory
        storages.add(tensor.untyped_storage().data_ptr())
        kept[name] = tensor
    save_tensors(kept, path, metadata=metadata)


def read(
    path: str | os.PathLike[str], *, kind: str, version: int, framework: Framework = "pt"
) -> tuple[dict[str, Any], Any]:
    """Reads what `write` wrote, as torch tensors or as numpy arrays."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"path {str(path)!r} is not a file.")
    try:
        # The header is checked against the length of the file before any tensor is allocated.
        with safe_open(path, framework=framework) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != "nobsp" or metadata.get("kind") != kind:
                held = (
                    metadata.get("kind") if metadata.get("format") == "nobsp" else "something else"
                )
                raise ValueError(f"path {str(path)!r} does not hold a nobsp {kind} but {held}.")
            if metadata.get("version") != str(version):
                raise ValueError(
                    f"path {str(path)!r} has layout version {metadata.get('version')}, but this nobsp reads version "
                    f"{version}; use the nobsp that wrote it."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except SafetensorError as damaged:
        raise ValueError(
            f"path {str(path)!r} is damaged or no safetensors file: {damaged}."
        ) from damaged
    try:
        return tensors, json.loads(metadata["about"])
    except (KeyError, json.JSONDecodeError, RecursionError) as damaged:
        raise ValueError(
            f"path {str(path)!r} is damaged: its description cannot be read ({damaged})."
        ) from damaged
