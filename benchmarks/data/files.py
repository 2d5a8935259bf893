"""Finds a data set's files: in NOBSP_DATA, in the cache, or by downloading them with their checksum."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pooch

_DECOMPRESS = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}


def cache_folder() -> Path:
    """Where downloads are kept, as the platform has it."""
    return Path(pooch.os_cache("nobsp"))


def data_roots() -> list[Path]:
    """The folders to look in: NOBSP_DATA if it is set, then the cache."""
    given = os.environ.get("NOBSP_DATA")
    if not given:
        return [cache_folder()]
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the environment variable NOBSP_DATA is {given!r}, which is not a folder; "
            "set it to the folder that holds the data sets, or unset it."
        )
    return [folder, cache_folder()]


def find(*names: str) -> Path | None:
    """The first of these files or folders that is there, plain or compressed; nothing is downloaded."""
    candidates = (
        root / (name + ending) for root in data_roots() for name in names for ending in _DECOMPRESS
    )
    return next((path for path in candidates if path.exists()), None)


def read(path: Path) -> bytes:
    """The content of a file, decompressed if its name says so."""
    return _DECOMPRESS.get(path.suffix, bytes)(path.read_bytes())


def read_member(name: str, *, url: str, members: tuple[str, ...], sha256: str) -> bytes:
    """A file found by name; otherwise a member of the zip archive at `url`, or of the archive inside it."""
    found = find(name)
    if found is not None:
        return read(found)
    with explain_offline(name, url):
        content = retrieve(name, url).read_bytes()
    for member in members:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            content = archive.read(member)
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise ValueError(f"{name} from {url} has the sha256 {digest} but {sha256} was expected.")
    return content


def retrieve(name: str, url: str, *, known_hash: str | None = None, processor: Any = None) -> Path:
    """Downloads a file into the cache folder of its data set, once; the path that `processor` returns, if any."""
    folder = cache_folder() / Path(name).parent
    file = url.rpartition("/")[2]
    fetched = pooch.retrieve(
        url, known_hash, fname=file, path=folder, processor=processor, progressbar=True
    )
    return Path(fetched) if isinstance(fetched, str) else Path(os.path.commonpath(fetched))


@contextmanager
def explain_offline(name: str, url: str) -> Iterator[None]:
    """Turns a failed download into an error that says which file to put where."""
    try:
        yield
    except OSError as failure:
        looked = " or ".join(str(root) for root in data_roots())
        raise FileNotFoundError(
            f"{name} is not in {looked}, and downloading {url} failed ({failure}). Without a network, get the file "
            f"elsewhere, save it as {cache_folder() / name}, or set NOBSP_DATA to a folder that has {name} in it."
        ) from failure
