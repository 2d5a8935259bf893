"""Files inside a folder, a tar or a zip file, read one at a time without unpacking."""

from __future__ import annotations

import tarfile
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Protocol


class Shelf(Protocol):
    """Named files that can be read one by one."""

    def names(self) -> list[str]:
        """Every file, with "/" between the parts of its path, sorted."""
        ...

    def read(self, name: str) -> bytes:
        """The content of one file."""
        ...


class Folder:
    """A folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Every file below the folder, sorted."""
        return sorted(file.relative_to(self.path).as_posix() for file in self.path.rglob("*") if file.is_file())

    def read(self, name: str) -> bytes:
        """The content of one file."""
        return (self.path / name).read_bytes()


class Tar:
    """An uncompressed tar file; where its members lie is noted once, so that each can be read alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with tarfile.open(path, "r:") as tape:
            self._place = {one.name.removeprefix("./"): (one.offset_data, one.size) for one in tape if one.isfile()}

    def names(self) -> list[str]:
        """Every file in it, sorted."""
        return sorted(self._place)

    def read(self, name: str) -> bytes:
        """The content of one file."""
        offset, size = self._place[name]
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(size)


class Zip:
    """A zip file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Every file in it, sorted."""
        with zipfile.ZipFile(self.path) as box:
            return sorted(name for name in box.namelist() if not name.endswith("/"))

    def read(self, name: str) -> bytes:
        """The content of one file."""
        return _opened_zip(self.path).read(name)


@lru_cache(maxsize=4)
def _opened_zip(path: Path) -> zipfile.ZipFile:
    # Reading the directory of a large archive takes a second, so it is kept; each process opens its own.
    return zipfile.ZipFile(path)


def shelf_of(path: Path) -> Shelf:
    """A folder, tar or zip file as a shelf."""
    if path.is_dir():
        return Folder(path)
    return Zip(path) if path.suffix == ".zip" else Tar(path)
