"""Writing a page: the file is whole or not there."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def checked_path(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """The file to write, before any work is done for it.

    Raises:
        FileNotFoundError: If its folder is not there.
        IsADirectoryError: If it is a folder.
        PermissionError: If its folder cannot be written to.
        FileExistsError: If it is there and must not be replaced.
    """
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"path is in {str(folder)!r}, which is not a folder; create it first.")
    if target.is_dir():
        raise IsADirectoryError(f"path {str(target)!r} is a folder; pass the name of a file.")
    if target.exists() and not overwrite:
        raise FileExistsError(f"path {str(target)!r} is there already; pass another, or overwrite=True.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"path is in {str(folder)!r}, which cannot be written to; choose another folder.")
    return target


def write_text(target: Path, text: str) -> None:
    """Writes to a file beside the target, and puts it in its place when it is complete."""
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.part")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
