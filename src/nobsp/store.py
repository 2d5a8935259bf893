"""One safetensors file with JSON metadata: how explainers are kept, without pickle."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:  # what was compiled is kept and read where there is no torch
    from torch import Tensor


def save(
    path: str | os.PathLike[str],
    *,
    kind: str,
    version: int,
    tensors: Mapping[str, Tensor] | Mapping[str, np.ndarray[Any, Any]],
    about: Any,
) -> None:
    """Writes tensors and a description, atomically: the file is whole or not there.

    Args:
        path: Where to; an existing file is replaced.
        kind: What the file holds, e.g. "explainer".
        version: Version of the layout.
        tensors: The numbers, all torch tensors or all numpy arrays.
        about: Anything JSON can hold.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path is in {str(target.parent)!r}, which is not a folder; create it first.")
    if target.is_dir():
        raise IsADirectoryError(f"path {str(target)!r} is a folder; pass the name of a file.")
    metadata = {"format": "nobsp", "kind": kind, "version": str(version), "about": json.dumps(about)}
    # A folder of its own: safetensors begins a file under a name it draws, which a killed process would leave behind.
    draft = target.with_name(f"{target.name}.{secrets.token_hex(8)}.part")
    draft.mkdir()
    temporary = draft / "file"
    try:
        # Asking for the umask would change it for other threads; an empty file shows what it allows.
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        mode = stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)
        save_file(tensors, str(temporary), metadata=metadata)
        os.chmod(temporary, mode)  # safetensors writes files for their owner alone
        os.replace(temporary, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def save_file(tensors: Mapping[str, Any], path: str, *, metadata: dict[str, str]) -> None:
    """Writes arrays with numpy alone, and tensors with torch."""
    if all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
        from safetensors.numpy import save_file as save_arrays

        save_arrays({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path, metadata=metadata)
        return
    from safetensors.torch import save_file as save_tensors

    save_tensors({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)


def load(
    path: str | os.PathLike[str], *, kind: str, version: int, framework: Literal["pt", "numpy"] = "pt"
) -> tuple[dict[str, Any], Any]:
    """Reads what `save` wrote, as torch tensors or as numpy arrays.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, of another kind, or of another version.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"path {str(path)!r} is not a file.")
    try:
        with safe_open(path, framework=framework) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != "nobsp" or metadata.get("kind") != kind:
                held = metadata.get("kind") if metadata.get("format") == "nobsp" else "something else"
                raise ValueError(f"path {str(path)!r} does not hold a nobsp {kind} but {held}.")
            if metadata.get("version") != str(version):
                raise ValueError(
                    f"path {str(path)!r} has layout version {metadata.get('version')}, but this nobsp reads version "
                    f"{version}; use the nobsp that wrote it."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except SafetensorError as damaged:
        raise ValueError(f"path {str(path)!r} is damaged or no safetensors file: {damaged}.") from damaged
    try:
        return tensors, json.loads(metadata["about"])
    except (KeyError, json.JSONDecodeError, RecursionError) as damaged:
        raise ValueError(f"path {str(path)!r} is damaged: its description cannot be read ({damaged}).") from damaged
