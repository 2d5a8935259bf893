"""Options that several commands share, one object per group; the console; the results folder."""

from __future__ import annotations

import json as javascript
import logging
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, validators

from nobsp.arguments import suggest
from nobsp.cli.wording import in_options, messages_in_options
from nobsp.drafts import draft_of, sweep

MODEL = Group("Model", sort_key=1)
TABLE = Group("Table", sort_key=2)
IMAGES = Group("Images", sort_key=3)
METHOD = Group("Method", sort_key=4)
OUTPUT = Group("Output", sort_key=5)
# Options that take several values after one another: --features age income
Names = Annotated[list[str] | None, Parameter(consume_multiple=True)]
Integers = Annotated[list[int] | None, Parameter(consume_multiple=True)]
Numbers = Annotated[list[float] | None, Parameter(consume_multiple=True)]
Flag = Annotated[bool, Parameter(show_default=False)]
POSITIVE = Parameter(validator=validators.Number(gte=1))


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
        sys.stderr.write(f"{in_options(text)}\n")
        sys.stderr.flush()

    def show(
        self, summary: Mapping[str, Any], describe: Callable[[Mapping[str, Any]], Sequence[str]]
    ) -> None:
        """Prints the summary on stdout, as JSON or as sentences and the files written.

        The sentences are those that `describe` makes of the summary.
        """
        if self.json:
            translated = messages_in_options(summary)
            sys.stdout.write(javascript.dumps(translated, ensure_ascii=False, indent=2) + "\n")
        elif not self.quiet:
            wrote = [f"Wrote {', '.join(summary['files'].values())}."] if "files" in summary else []
            lines = [in_options(line) for line in describe(summary)]
            sys.stdout.writelines(f"{line}\n" for line in [*lines, *wrote])
        sys.stdout.flush()

    def warn(self, warning: str | None) -> None:
        """Reports what looks wrong, where something does, on stderr."""
        if warning is not None:
            self.step(f"warning: {warning}")

    @contextmanager
    def note_warnings(self) -> Iterator[None]:
        """Warnings for users become notes on stderr; those for programmers show with --debug.

        So does what the package logs, such as how long a calibration will take.
        """
        with self._note_logged(), warnings.catch_warnings():
            if not self.debug:
                warnings.simplefilter("default")
                for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
                    warnings.simplefilter("ignore", category)
                warnings.showwarning = self.note
            yield

    @contextmanager
    def _note_logged(self) -> Iterator[None]:
        handler = logging.Handler()
        handler.emit = lambda record: self.note(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("nobsp")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def note(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """Reports a warning on stderr."""
        self.step(f"note: {in_options(one_line(message))}")


def one_line(failure: object) -> str:
    """An error in one line."""
    if isinstance(failure, OSError) and failure.strerror:
        where = f"{failure.filename}: " if failure.filename is not None else ""
        return f"{where}{failure.strerror[:1].lower()}{failure.strerror[1:]}."
    text = " ".join(str(failure).split())
    expected = isinstance(
        failure, str | Warning | UsageError | ValueError | TypeError | ImportError | OSError
    )
    if text and (expected or type(failure).__module__.partition(".")[0] in ("nobsp", "sklearn")):
        return text
    return f"unexpected error, {type(failure).__name__}: {text} (--debug shows the traceback)"


def require_path(path: Path, option: str, *, folder: bool = False) -> None:
    """Raises a UsageError, with the names that are close, where there is no such file or folder."""
    if path.is_dir() if folder else path.exists():
        return
    if path.exists():
        raise UsageError(f"{option} {path} is a file; name the folder it is in.")
    hint = suggest(
        path.name,
        [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else [],
    )
    hint = f"; {hint}" if "did you" in hint else "."
    raise UsageError(f"{option} {path}: there is no such {'folder' if folder else 'file'}{hint}")


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and how to run it."""

    model: str
    """A torch.export file (.pt2), a scikit-learn pipeline in a skops file, or a function that
    returns the model: package.module:function or file.py:function."""
    weights: Path | None = None
    """Weights for the model that the function returns (.safetensors)."""
    trust_pickle: Flag = False
    """Read the model even if it is a pickle, which can run any code its author put there."""
    head: str | None = None
    """Name of the last linear layer, if it is not found."""
    output_names: Names = None
    """Names of the outputs or classes."""
    device: str | None = None
    """Where to run the model, such as cuda or cpu."""
    batch_size: int | None = None
    """Most rows (default 4096) or images (default 32) in one forward call."""
    threads: Annotated[int | None, POSITIVE] = None
    """Threads torch may use (default 1 for tables, torch's own choice for images)."""

    def limit_threads(self, default: int | None) -> AbstractContextManager[None]:
        """Lets torch use as many threads as asked for."""
        from nobsp.network.guest import use_threads

        return use_threads(default if self.threads is None else self.threads)


@Parameter(name="*", group=TABLE)
@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Which table, and what its columns mean."""

    data: Path
    """Rows to look at: CSV, Parquet or Arrow."""
    target: str | None = None
    """Column with the true values; it is not given to the model."""
    features: Names = None
    """Columns the model takes, in its order (default: all but the target)."""
    groups: Names = None
    """Column whose equal values mark rows that belong together, such as customer: they are held out
    together. Or columns that are one feature, such as city=oslo,rome, or a JSON file with {"city":
    ["oslo", "rome"]}."""


@Parameter(name="*", group=IMAGES)
@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Which images, and how they are prepared for the network."""

    images: Path
    """Folder of images; the folders in it are taken for their classes."""
    size: Integers = None
    """Resize images: side, or height and width, in pixels."""
    fit: Literal["crop", "squash"] = "crop"
    """Resize the shorter side to --size and crop the middle, or squash the image."""
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for colour."""
    normalise: Literal["imagenet", "half", "none"] | None = None
    """imagenet (default for colour), half (-1 to 1) or none (0 to 1, default for grey)."""
    mean: Numbers = None
    """Subtracted, instead of --normalise: one number, or one per channel."""
    std: Numbers = None
    """Divided by, instead of --normalise: one number, or one per channel."""
    limit: Annotated[int | None, POSITIVE] = None
    """Use the first images only."""
    skip_broken: Flag = False
    """Leave out files that cannot be read as images, and name them."""


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where results go."""

    out: Path
    """Folder for the results."""
    title: str | None = None
    """Heading of the report."""
    report: Annotated[bool, Parameter(negative="--no-report", show_default=False)] = True
    """Write report.html (the default), or leave it out."""
    force: Flag = False
    """Replace results that are there already."""

    def paths(self, names: Sequence[str]) -> dict[str, str]:
        """Where the files are written."""
        return {
            name: str(self.out / name) for name in names if self.report or name != "report.html"
        }

    def write(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """An empty folder, as `write_folder` gives it, after checks that cost nothing."""
        if self.report:
            require_report(instead="; or pass --no-report")
        return write_folder(self.out, list(self.paths(names)), force=self.force)


def require_report(*, instead: str = "") -> None:
    """Raises an ImportError before the work where the report's libraries are missing.

    `instead` says what else can be done, for commands that can do without a report.
    """
    if find_spec("jinja2") is None or find_spec("plotly") is None:
        raise ImportError(
            f"the report needs jinja2 and plotly: pip install 'nobsp[report]'{instead}."
        )


@contextmanager
def write_folder(folder: Path, names: Sequence[str], *, force: bool) -> Iterator[Path]:
    """Yields an empty folder beside `folder`, whose content moves there if all goes well.

    Otherwise nothing is left of it.
    """
    there = ", ".join(name for name in names if (folder / name).exists())
    if there and not force:
        raise UsageError(
            f"--out {folder} has {there} already; choose another folder, or replace with --force."
        )

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; name a folder.")

    missing = [parent for parent in folder.parents if not parent.exists()]
    hidden = folder.with_name(f".{folder.name}")
    sweep(hidden)
    draft = draft_of(hidden)
    try:
        try:
            draft.mkdir(parents=True)
        except OSError as refused:
            raise UsageError(
                f"--out {folder} cannot be written to ({refused.strerror})."
            ) from refused

        yield draft
        if not folder.exists():
            draft.rename(folder)
            return

        for written in sorted(
            draft.iterdir()
        ):  # each file, or folder of files, takes its place by one rename
            target = folder / written.name
            if target.is_dir() and not target.is_symlink():
                target.rename(draft / f"{written.name}.old")
            written.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        for parent in missing:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def split_names(words: Sequence[str] | None, known: Sequence[str] = ()) -> list[str] | None:
    """Names from the command line: several words, or one with commas between."""
    if words is None:
        return None
    names = [
        name for word in words for name in ([word] if word in known else word.split(",")) if name
    ]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name!r} is named twice.")
    return names
