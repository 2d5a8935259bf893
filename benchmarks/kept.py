"""Results kept from one run to the next, a line of JSON each, so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import nobsp

T = TypeVar("T")
FOLDER = Path(__file__).parent / "results" / ".cache"


class Kept:
    """Results by cell and by the fingerprint of what they depend on.

    A line goes to the file in one write as soon as a result is there, so that several processes may add to one file.
    Each line begins with its own line break: what an interruption cut short is a line of its own, is passed over when
    the file is read, and its result is computed again.

    Args:
        path: The file; its folder is made and told to stay out of version control. None keeps results in memory
            only, as quick runs do.

    Example:
        >>> kept = Kept(None)
        >>> kept.cell("iris, seed 0", fingerprint({"steps": 25}), lambda: {"score": 0.5})
        {'score': 0.5}
        >>> kept.cell("iris, seed 0", fingerprint({"steps": 25}), lambda: {"score": 0.7})
        {'score': 0.5}
        >>> kept.cell("iris, seed 0", fingerprint({"steps": 50}), lambda: {"score": 0.7})
        {'score': 0.7}
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[tuple[str, str], Any] = {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        if path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._take(line)

    def get(self, cell: str, fingerprint: str) -> Any:
        """The result of a cell, None where it is not known or was made with something else."""
        return self._found.get((cell, fingerprint))

    def put(self, cell: str, fingerprint: str, result: Any) -> None:
        """Keeps what JSON can say; lists come back for tuples."""
        line = "\n" + json.dumps({"cell": cell, "fingerprint": fingerprint, "result": result})
        if self._path is not None:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(file, line.encode())
            finally:
                os.close(file)
        self._take(line)

    def cell(self, cell: str, fingerprint: str, compute: Callable[[], T]) -> T:
        """The result of a cell, computed and kept if it is not known."""
        if self.get(cell, fingerprint) is None:
            self.put(cell, fingerprint, compute())
        found: T = self.get(cell, fingerprint)
        return found

    def _take(self, line: str) -> None:
        try:
            record = json.loads(line)
            self._found[record["cell"], record["fingerprint"]] = record["result"]
        except (json.JSONDecodeError, TypeError, KeyError):
            return


def fingerprint(*parts: object) -> str:
    """Changes with anything a result depends on, so that old ones are not taken for new.

    Args:
        parts: Functions and modules count by their source, everything else by its `repr`.
    """
    told = [
        source(part) if isinstance(part, FunctionType | ModuleType) else repr(part)
        for part in parts
    ]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


@cache  # once, and best when modules are loaded: code edited while a table is computed is not what computes it
def source(part: FunctionType | ModuleType) -> str:
    """The source of a function or module."""
    return inspect.getsource(part)


@cache
def rooms(*names: str) -> str:
    """Digest of the code in some rooms, or some files ("tabular/heldout.py"), of the package, for a `fingerprint`."""
    home = Path(inspect.getfile(nobsp)).parent
    said = hashlib.sha256()
    for name in names:
        files = [home / name] if name.endswith(".py") else sorted((home / name).glob("*.py"))
        if not files:
            raise ValueError(f"the package has no room {name!r}")
        for file in files:
            said.update(file.read_bytes())
    return said.hexdigest()


def package(name: str) -> str:
    """Name and version of an installed package, for a `fingerprint`."""
    return f"{name} {metadata.version(name)}"
