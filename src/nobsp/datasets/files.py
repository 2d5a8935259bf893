"""Finds a data set's file: in NOBSP_DATA, in the cache, or by downloading it with its checksum."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from tqdm.auto import tqdm

_COMPRESSED = ("", ".gz", ".xz")
_TIMEOUT_SECONDS = 60
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """One file of a data set: the names it may have, and where it comes from.

    Attributes:
        names: Paths below a data folder, most wanted first; each may also be compressed (.gz, .xz).
        url: Where it is published; empty if it has to be fetched by hand.
        member: What to take out of a downloaded archive, and out of the archive inside it.
        saved_as: Name of the download below the cache; the first of `names` if empty.
        sha256: Of what is kept, after it was taken out of the archives; empty if not known.
        archive_sha256: Of what is downloaded; empty if not known.
        archive_md5: Likewise, where its publishers give no better checksum.
        gunzip: Whether to keep the download decompressed, so that single members can be read from it.
        by_hand: What to say about getting the file where there is no `url`.
    """

    names: tuple[str, ...]
    url: str = ""
    member: tuple[str, ...] = ()
    saved_as: str = ""
    sha256: str = ""
    archive_sha256: str = ""
    archive_md5: str = ""
    gunzip: bool = False
    by_hand: str = ""


def cache_folder() -> Path:
    """Where downloads are kept, as the platform has it; XDG_CACHE_HOME is respected everywhere.

    Example:
        >>> from nobsp.datasets import cache_folder
        >>> cache_folder().name
        'nobsp'
    """
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given).expanduser() / "nobsp"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nobsp"
    local = os.environ.get("LOCALAPPDATA")
    if sys.platform == "win32" and local:
        return Path(local) / "nobsp"
    return Path.home() / ".cache" / "nobsp"


def data_folder() -> Path | None:
    """The folder that NOBSP_DATA names; None if it is not set.

    Raises:
        FileNotFoundError: If it names something that is not a folder.
    """
    given = os.environ.get("NOBSP_DATA")
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the environment variable NOBSP_DATA is {given!r}, which is not a folder; "
            "point it at the folder that holds the data sets, or unset it."
        )
    return folder


def data_roots() -> list[Path]:
    """The folders to look in, the first one first."""
    return [root for root in (data_folder(), cache_folder()) if root is not None]


def find(source: Source) -> Path | None:
    """The file on disk if it is there; nothing is downloaded.

    Args:
        source: Which file.
    """
    for root in data_roots():
        for name in source.names:
            for ending in _COMPRESSED:
                if (root / (name + ending)).is_file():
                    return root / (name + ending)
    return None


def locate(source: Source) -> Path:
    """The file on disk: from NOBSP_DATA, else from the cache, else downloaded into the cache.

    Args:
        source: Which file.

    Raises:
        FileNotFoundError: If it is nowhere and cannot be downloaded; says which file to put where.
        ValueError: If what was downloaded does not have the known checksum.
    """
    found = find(source)
    if found is not None:
        return found
    roots = data_roots()
    if not source.url:
        raise FileNotFoundError(f"{_not_found(source, roots)} {source.by_hand}")
    kept = cache_folder() / (source.saved_as or source.names[0])
    try:
        return _download(source, kept)
    # Besides OSError, a server that hangs up half way raises HTTPException.
    except (OSError, http.client.HTTPException) as failure:
        raise FileNotFoundError(
            f"{_not_found(source, roots)} Downloading {source.url} failed ({failure}). Without a network, get the "
            f"file elsewhere, save it as {kept}, or set NOBSP_DATA to a folder that has {source.names[0]} in it."
        ) from failure


def _not_found(source: Source, roots: Sequence[Path]) -> str:
    said = "is neither in" if len(roots) > 1 else "is not in"
    return f"{source.names[0]} {said} {' nor in '.join(str(root) for root in roots)}."


def _download(source: Source, kept: Path) -> Path:
    kept.parent.mkdir(parents=True, exist_ok=True)
    # A half-written file must never be mistaken for the data: it gets its name when it is complete and checked.
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".download-") as scratch:
        archive = Path(scratch) / "archive"
        _fetch(source.url, archive)
        _check(archive, source.archive_sha256, source.url)
        _check(archive, source.archive_md5, source.url, "md5")
        found = archive
        if source.gunzip:
            found = Path(scratch) / "decompressed"
            with gzip.open(archive, "rb") as packed, found.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
        for depth, member in enumerate(source.member):
            inside = Path(scratch) / f"member{depth}"
            try:
                _take(found, member, inside)
            # A page that asks for a login arrives like any file, but is no archive.
            except (zipfile.BadZipFile, tarfile.TarError, KeyError, EOFError, zlib.error) as failure:
                raise ValueError(
                    f"what was downloaded from {source.url} is not an archive with {member} in it ({failure}); "
                    "nothing was kept. Try again, or set NOBSP_DATA to a folder with the file."
                ) from failure
            found = inside
        _check(found, source.sha256, source.url)
        os.replace(found, kept)
    return kept


def _fetch(url: str, target: Path) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "nobsp"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer, target.open("wb") as file:
        size = int(answer.headers.get("Content-Length") or 0)
        name = url.rpartition("/")[2]
        # Small files arrive before a bar could be read.
        with tqdm(total=size or None, unit="B", unit_scale=True, desc=name, disable=size < 10 * _CHUNK) as bar:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                bar.update(len(chunk))


def _check(file: Path, expected: str, url: str, kind: Literal["sha256", "md5"] = "sha256") -> None:
    if not expected:
        return
    digest = hashlib.new(kind, usedforsecurity=False)
    with file.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise ValueError(
            f"what was downloaded from {url} has the {kind} {digest.hexdigest()} but {expected} was expected: the "
            "download is damaged or the file was changed at its source. Nothing was kept; try again, or set "
            "NOBSP_DATA to a folder with the right file."
        )


def _take(archive: Path, member: str, target: Path) -> None:
    """Copies one member of a zip or tar archive; members are found by the end of their path."""
    wanted = "/" + member
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as box:
            [name] = [name for name in box.namelist() if ("/" + name).endswith(wanted)][:1] or [member]
            with box.open(name) as inside, target.open("wb") as file:
                shutil.copyfileobj(inside, file)
        return
    with tarfile.open(archive) as tape:
        [name] = [name for name in tape.getnames() if ("/" + name).endswith(wanted)][:1] or [member]
        content = tape.extractfile(name)
        if content is None:
            raise OSError(f"{member} in the archive is not a file")
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file)


def opened(path: Path) -> BinaryIO:
    """The bytes of a file, decompressed if its name says so."""
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast("BinaryIO", lzma.open(path, "rb"))
    return path.open("rb")


def text_of(source: Source) -> io.TextIOWrapper:
    """The located file as text."""
    return io.TextIOWrapper(opened(locate(source)), encoding="utf-8", newline="")
