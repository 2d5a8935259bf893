"""What people see of a command: results on stdout, progress and complaints on stderr."""

from __future__ import annotations

import json
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any


class Misuse(Exception):  # noqa: N818 - it is what the person did, not an error of ours
    """The command was asked for something that cannot be meant; nothing was run."""


class Console:
    """Says things in the right place and in the asked form."""

    def __init__(self) -> None:
        self.quiet = self.json = self.debug = False

    def configure(self, options: Namespace) -> None:
        """Takes over --quiet, --json and --debug."""
        self.quiet = getattr(options, "quiet", False)
        self.json = getattr(options, "json", False)
        self.debug = getattr(options, "debug", False)

    @property
    def progress(self) -> bool:
        """Whether to draw progress bars: not into files, where they are noise."""
        return not self.quiet and sys.stderr.isatty()

    def step(self, text: str) -> None:
        """What is being done now, on stderr."""
        if not self.quiet:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def complain(self, text: str) -> None:
        """Why the command ends, one line on stderr."""
        sys.stderr.write(f"nobsp: {text}\n")
        sys.stderr.flush()

    def results(self, lines: Sequence[str], data: Any) -> None:
        """What came of it, on stdout: sentences, or one JSON object."""
        if self.json:
            sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=2) + "\n")
        elif not self.quiet:
            sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()

    @contextmanager
    def noting_warnings(self) -> Iterator[None]:
        """Warnings meant for people become notes on stderr; those meant for programmers show with --debug."""
        with warnings.catch_warnings():
            if not self.debug:
                warnings.simplefilter("default")
                for meant_for_programmers in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
                    warnings.simplefilter("ignore", meant_for_programmers)
                warnings.showwarning = self.note
            yield

    def note(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """A warning, on stderr."""
        self.step(f"note: {one_line(message)}")


def one_line(failure: object) -> str:
    r"""An error in one line.

    Example:
        >>> one_line(ValueError("two\nlines"))
        'two lines'
        >>> one_line(FileNotFoundError(2, "No such file or directory", "a.csv"))
        'a.csv: no such file or directory.'
    """
    if isinstance(failure, OSError) and failure.strerror:
        where = f"{failure.filename}: " if failure.filename is not None else ""
        return f"{where}{failure.strerror[:1].lower()}{failure.strerror[1:]}."
    said = " ".join(str(failure).split())
    expected = isinstance(failure, str | Warning | Misuse | ValueError | TypeError | ImportError | OSError)
    if said and (expected or type(failure).__module__.partition(".")[0] in ("nobsp", "sklearn")):
        return said
    return f"something unexpected happened: {type(failure).__name__}: {said} (--debug shows where)"


def close_to(wanted: str, known: Sequence[str]) -> str:
    """A hint for a name that is not there.

    Example:
        >>> close_to("agee", ["age", "income"])
        "did you mean 'age'?"
        >>> close_to("xyz", ["age", "income"])
        "there are 'age', 'income'."
    """
    close = get_close_matches(wanted, known, n=3, cutoff=0.7)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    shown = ", ".join(map(repr, known[:12]))
    return f"there are {shown}{f' and {len(known) - 12} more' if len(known) > 12 else ''}."


def counted(count: int, what: str, several: str | None = None) -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "row"), counted(1200, "row"), counted(2, "class", "classes")
        ('1 row', '1,200 rows', '2 classes')
    """
    return f"{count:,} {what if count == 1 else several or what + 's'}"
