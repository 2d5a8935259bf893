"""Files that were changed on purpose and got a checksum that fits: whoever reads them has to look for himself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from nobsp import serialization


def swapped_tensors(
    path: Path, *, kind: str, version: int, every: int = 1
) -> Iterator[tuple[Any, Any]]:
    """Writes the file anew with two tensors in each other's place, for `every` so-manyth two that differ in shape."""
    tensors, about = serialization.read(path, kind=kind, version=version)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for first, second in list(combinations(tensors, 2))[::every]:
        one = tensors[first]
        other = tensors[second]
        if one.shape == other.shape and one.dtype == other.dtype:
            continue
        swapped = {**tensors, first: other, second: one}
        serialization.write(path, kind=kind, version=version, tensors=swapped, about=about)
        yield one, other


def write_with(path: Path, name: str, tensor: Any, *, kind: str, version: int) -> None:
    """Writes the file anew with another tensor."""
    tensors, about = serialization.read(path, kind=kind, version=version)
    changed = {**tensors, name: tensor}
    serialization.write(path, kind=kind, version=version, tensors=changed, about=about)
