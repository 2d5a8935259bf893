"""A folder of results that is written as a whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nobsp.cli.console import Misuse


def require_free(folder: Path, names: Sequence[str], *, force: bool) -> None:
    """Complains, before anything is run, about results that would be overwritten or could not be written."""
    if folder.exists() and not folder.is_dir():
        raise Misuse(f"--out {folder} is a file; name a folder.")
    there = [name for name in names if (folder / name).exists()]
    if there and not force:
        raise Misuse(f"--out {folder} has {_listed(there)} already; name another folder, or replace with --force.")
    home = folder
    while not home.exists() and home != home.parent:
        home = home.parent
    if not home.is_dir():
        raise Misuse(f"--out {folder} cannot be made: {home} is a file.")
    # Asking the file system is surer than reading permissions: it may be read-only, and root may do almost anything.
    trial = home / f".nobsp-{secrets.token_hex(8)}"
    try:
        trial.mkdir()
    except OSError as refused:
        reason = refused.strerror or str(refused)
        raise Misuse(f"--out {folder} cannot be written to ({reason[:1].lower()}{reason[1:]}).") from refused
    trial.rmdir()


@contextmanager
def written(folder: Path) -> Iterator[Path]:
    """Hands out an empty folder beside `folder`; what is in it moves there at the end, if all went well.

    Whatever goes wrong, Ctrl-C included, nothing half-written is left.
    """
    missing = [folder, *folder.parents]
    missing = [parent for parent in missing[1:] if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.parent / f".{folder.name}.{secrets.token_hex(8)}.part"
    try:
        draft.mkdir()
        yield draft
        _move(draft, folder)
        missing = []
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        for parent in missing:
            try:
                parent.rmdir()
            except OSError:
                break


def _move(draft: Path, folder: Path) -> None:
    """Each file, or folder of files, takes its place by one rename."""
    if not folder.exists():
        os.rename(draft, folder)
        return
    for made in sorted(draft.iterdir()):
        target = folder / made.name
        if target.is_dir() and not target.is_symlink():
            old = draft / f"{made.name}.old"
            os.rename(target, old)
        os.replace(made, target)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
