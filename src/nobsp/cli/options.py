"""Options that several commands share, each group as one object; and the folder of results."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from nobsp.cli.console import Flag, UsageError

MODEL, TABLE, IMAGES = Group("Model", sort_key=1), Group("Table", sort_key=2), Group("Images", sort_key=3)
METHOD, OUTPUT = Group("Method", sort_key=4), Group("Output", sort_key=5)
# Options that take several values after one another: --features age income
Names = Annotated[list[str] | None, Parameter(consume_multiple=True)]
Integers = Annotated[list[int] | None, Parameter(consume_multiple=True)]
Numbers = Annotated[list[float] | None, Parameter(consume_multiple=True)]


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and how to run it."""

    model: str
    """A torch.export file (.pt2), a scikit-learn pipeline in a skops file, or a function that returns the model:
    package.module:function or file.py:function."""
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
    threads: int | None = None
    """Threads torch may use (default 1 for tables, torch's own choice for images)."""

    def limit_threads(self, default: int | None) -> AbstractContextManager[None]:
        """Lets torch use as many threads as asked for."""
        from nobsp.network.inference import use_threads

        wanted = default if self.threads is None else self.threads
        if wanted is not None and wanted < 1:
            raise UsageError(f"--threads must be at least 1, found {wanted}.")
        return use_threads(wanted)


@dataclass(frozen=True, kw_only=True)
class OptionalModel(ModelOptions):
    """Which model, and how to run it, where there is work to do without one."""

    model: str = ""


@Parameter(name="*", group=TABLE)
@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Which table, and what its columns mean."""

    data: Path | None = None
    """Rows to look at: CSV, Parquet or Arrow."""
    target: str | None = None
    """Column with the true values; it is not given to the model."""
    features: Names = None
    """Columns the model takes, in its order (default: all but the target)."""
    groups: Names = None
    """Columns that are one feature, such as city=oslo,rome; or a JSON file with {"city": ["oslo", "rome"]}."""


@dataclass(frozen=True, kw_only=True)
class RequiredTable(TableOptions):
    """The same, where there is nothing else to look at."""

    data: Path = field()


@Parameter(name="*", group=IMAGES)
@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Which images, and how they are prepared for the network."""

    images: Path | None = None
    """Folder of images; the folders in it are taken for their classes."""
    size: Integers = None
    """Resize images: side, or height and width, in pixels."""
    fit: Literal["crop", "squash"] = "crop"
    """Resize the shorter side to --size and crop the middle, or squash the image."""
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for colour."""
    normalise: str | None = None
    """imagenet (default for colour), half (-1 to 1) or none (0 to 1, default for grey)."""
    mean: Numbers = None
    """Subtracted, instead of --normalise: one number, or one per channel."""
    std: Numbers = None
    """Divided by, instead of --normalise: one number, or one per channel."""
    limit: int | None = None
    """Use the first images only."""


@dataclass(frozen=True, kw_only=True)
class RequiredImages(ImageOptions):
    """The same, where there is nothing else to look at."""

    images: Path = field()


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
        return {name: str(self.out / name) for name in names if self.report or name != "report.html"}

    def write(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """An empty folder, as `write_folder` gives it, after checks that cost nothing."""
        if self.report:
            require_report()
        return write_folder(self.out, list(self.paths(names)), force=self.force)


def require_report() -> None:
    """Raises an ImportError before the work where the report's libraries are missing."""
    if find_spec("jinja2") is None or find_spec("plotly") is None:
        raise ImportError("the report needs jinja2 and plotly: pip install 'nobsp[report]'; or pass --no-report.")


@contextmanager
def write_folder(folder: Path, names: Sequence[str], *, force: bool) -> Iterator[Path]:
    """Yields an empty folder beside `folder`; its content moves there at the end, if all went well.

    Made before the work, so that a place that cannot be written to costs nothing. Whatever goes wrong, Ctrl-C
    included, nothing half-written is left. Results with the same names are replaced only by `force`.
    """
    there = ", ".join(name for name in names if (folder / name).exists())
    if there and not force:
        raise UsageError(f"--out {folder} has {there} already; choose another folder, or replace with --force.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; name a folder.")
    missing = [parent for parent in folder.parents if not parent.exists()]
    draft = folder.parent / f".{folder.name}.{secrets.token_hex(8)}.part"
    try:
        try:
            draft.mkdir(parents=True)
        except OSError as refused:
            raise UsageError(f"--out {folder} cannot be written to ({refused.strerror}).") from refused
        yield draft
        if not folder.exists():
            draft.rename(folder)
            return
        for made in sorted(draft.iterdir()):  # each file, or folder of files, takes its place by one rename
            target = folder / made.name
            if target.is_dir() and not target.is_symlink():
                target.rename(draft / f"{made.name}.old")
            made.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        for parent in missing:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def split_names(given: Sequence[str] | None, known: Sequence[str] = ()) -> list[str] | None:
    """Names from the command line: several words, or one with commas between."""
    if given is None:
        return None
    found = [name for word in given for name in ([word] if word in known else word.split(",")) if name]
    for name in found:
        if found.count(name) > 1:
            raise UsageError(f"{name!r} is named twice.")
    return found
