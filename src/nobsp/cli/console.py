"""What people see of a command: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import json as javascript
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from nobsp._messages import suggest

Flag = Annotated[bool, Parameter(show_default=False)]


class UsageError(Exception):
    """The command line asks for something that cannot be done; nothing was run."""


@Parameter(name="*", group=Group("Verbosity", sort_key=6))
@dataclass(frozen=True, kw_only=True)
class Console:
    """Writes to the right stream, in the form the options choose."""

    quiet: Flag = False
    """No progress and no summary; errors only."""
    json: Flag = False
    """Print the summary as one JSON object."""
    debug: Flag = False
    """Show the traceback of an error."""

    @property
    def progress(self) -> bool:
        """Whether to draw progress bars: not into files, where they are noise."""
        return not self.quiet and sys.stderr.isatty()

    def step(self, text: str) -> None:
        """Reports progress on stderr."""
        if not self.quiet:
            self.error(text)

    def error(self, text: str) -> None:
        """Writes one line to stderr, also when quiet."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def show(self, summary: Mapping[str, Any], describe: Callable[[Mapping[str, Any]], Sequence[str]]) -> None:
        """Prints the summary on stdout: as JSON, or as the sentences that `describe` makes of it, and its files."""
        if self.json:
            sys.stdout.write(javascript.dumps(summary, ensure_ascii=False, indent=2) + "\n")
        elif not self.quiet:
            wrote = [f"Wrote {', '.join(summary['files'].values())}."] if "files" in summary else []
            sys.stdout.writelines(f"{line}\n" for line in [*describe(summary), *wrote])
        sys.stdout.flush()

    def warn(self, warning: str | None) -> None:
        """Reports what looks wrong, where something does, on stderr."""
        if warning is not None:
            self.step(f"warning: {warning}")

    @contextmanager
    def note_warnings(self) -> Iterator[None]:
        """Warnings for users become notes on stderr; those for programmers show with --debug."""
        with warnings.catch_warnings():
            if not self.debug:
                warnings.simplefilter("default")
                for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
                    warnings.simplefilter("ignore", category)
                warnings.showwarning = self.note
            yield

    def note(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """Reports a warning on stderr."""
        self.step(f"note: {one_line(message)}")


def one_line(failure: object) -> str:
    """An error in one line."""
    if isinstance(failure, OSError) and failure.strerror:
        where = f"{failure.filename}: " if failure.filename is not None else ""
        return f"{where}{failure.strerror[:1].lower()}{failure.strerror[1:]}."
    text = " ".join(str(failure).split())
    expected = isinstance(failure, str | Warning | UsageError | ValueError | TypeError | ImportError | OSError)
    if text and (expected or type(failure).__module__.partition(".")[0] in ("nobsp", "sklearn")):
        return text
    return f"unexpected error, {type(failure).__name__}: {text} (--debug shows the traceback)"


def require_path(path: Path, option: str, *, folder: bool = False) -> None:
    """Raises a UsageError, with the names that are close, where there is no such file or folder."""
    if path.is_dir() if folder else path.exists():
        return
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = suggest(path.name, beside)
    what = "folder" if folder else "file"
    raise UsageError(f"{option} {path}: there is no such {what}{f'; {hint}' if 'did you' in hint else '.'}")
