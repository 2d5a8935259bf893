"""Files that are whole or not there: a draft beside the target is synced and takes its place."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from nobsp.arguments import path_of

# Seconds after which a draft of another machine is taken for left over: no save takes a day.
_STALE = 86_400
# Names of files have 255 bytes at most, and a draft's ending takes some of them.
_LONGEST_STEM = 200
# Drafts as they are named here, with machine and process; and folders as earlier versions named
# them.
_DRAFT = re.compile(r"\.(?P<machine>[0-9a-f]{8})-(?P<process>[0-9]+)-[0-9a-f]{8}\.part")
_EARLIER = re.compile(r"\.[0-9a-f]{16}\.part")


def check_path(path: str | os.PathLike[str]) -> Path:
    """The file to write, or an error before any work is done for it.

    Where the path is a link, the file is the one that it leads to.
    """
    path_argument = path_of(path)
    target = (
        Path(os.path.realpath(path_argument)) if os.path.islink(path_argument) else path_argument
    )
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
    """A file to write, which takes the target's place when it is complete.

    Whatever goes wrong, no draft is left.
    """
    sweep(target)
    draft = draft_of(target)
    try:
        with _in_words(target):
            # Asking for the umask would change it for other threads; an empty file shows what it
            # allows.
            draft.touch(0o666, exist_ok=False)
            mode = stat.S_IMODE((target if target.exists() else draft).stat().st_mode)
            yield draft
            os.chmod(draft, mode)
            # A machine that fails must not find the new name on a file whose bytes were never
            # written.
            sync(draft)
            os.replace(draft, target)
            sync(target.parent)
    finally:
        draft.unlink(missing_ok=True)


def draft_of(target: Path) -> Path:
    """A name beside the target that tells which process on which machine writes it."""
    token = secrets.token_hex(4)
    return target.with_name(f"{_stem(target)}.{_machine()}-{os.getpid()}-{token}.part")


def sweep(target: Path) -> None:
    """Removes drafts of the target that processes left when they were killed."""
    stem = _stem(target)
    try:
        with os.scandir(target.parent) as entries:
            drafts = [entry for entry in entries if entry.name.startswith(f"{stem}.")]
    except OSError:
        return
    for entry in drafts:
        if _is_left_over(entry, entry.name.removeprefix(stem)):
            _remove(entry)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # folders cannot be opened there
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # Some file systems cannot sync folders; the file itself has to be.
        if path.is_file():
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _in_words(target: Path) -> Iterator[None]:
    """Says of a failure which file was not written, and that the one before is still there."""
    try:
        yield
    except OSError as failure:
        if failure.errno is None:
            raise
        state = "the file that was there is as it was" if target.exists() else "no file is left"
        reason = failure.strerror or type(failure).__name__
        raise OSError(
            failure.errno, f"path {str(target)!r} could not be written ({reason}); {state}"
        ) from failure


def _is_left_over(entry: os.DirEntry[str], ending: str) -> bool:
    """Whether a draft is one that nobody is writing any more."""
    if _EARLIER.fullmatch(ending):
        return entry.is_dir(follow_symlinks=False)
    named = _DRAFT.fullmatch(ending)
    if named is None or entry.is_symlink():
        return False
    if named["machine"] == _machine() and os.name == "posix":
        return not _is_running(int(named["process"]))
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE
    except OSError:
        return False


def _is_running(process: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _remove(entry: os.DirEntry[str]) -> None:
    """Removes a file or a folder, unless another process was faster."""
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
        return
    try:
        os.unlink(entry.path)
    except OSError:
        return


def _stem(target: Path) -> str:
    """The target's name, shortened where it leaves no room for an ending."""
    name = target.name
    while len(os.fsencode(name)) > _LONGEST_STEM:
        name = name[:-1]
    return name


@cache
def _machine() -> str:
    """A short name for this machine or container, within which processes are numbered."""
    try:
        numbering = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        numbering = ""
    return hashlib.sha256(f"{socket.gethostname()} {numbering}".encode()).hexdigest()[:8]
