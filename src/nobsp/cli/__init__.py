"""The command line, `nobsp`, and its commands.

They are `nobsp explain`, `compare`, `check`, `cam`, `audit`, `prune`, `export`, `predict` and
others.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
import traceback
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from inspect import BoundArguments
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnknownCommandError
from rich.console import Console as Terminal

from nobsp import __version__
from nobsp.arguments import suggest
from nobsp.cli import audit, cam, check, compare, explain, functions, prune
from nobsp.cli.misspelt import describe_option, unknown_option
from nobsp.cli.options import (
    OUTPUT,
    Console,
    Flag,
    UsageError,
    one_line,
    require_report,
    write_folder,
)
from nobsp.cli.wording import in_options
from nobsp.notebook import worded

__all__ = ["main"]

SUCCESS = 0
FAILURE = 1
USAGE = 2
INTERRUPTED = 130
CLOSED = 141
TERMINATED = 143
_PACKAGES = (
    "torch",
    "numpy",
    "scikit-learn",
    "pandas",
    "polars",
    "pyarrow",
    "matplotlib",
    "plotly",
    "skops",
)
_EXAMPLES = """\
**Examples**

    nobsp demo --open
    nobsp explain --model house.pt2 --data houses.csv --target price --out new
    nobsp compare --model house.pt2 --data may.csv --against march.csv --out drift
    nobsp check --model house.pt2 --data houses.csv --feature rooms --shape increasing --out shapes
    nobsp cam --model models.py:resnet --weights net.safetensors --images pics
    nobsp export --functions new/explainer.nobsp --to sql --table houses
    nobsp audit --model digits.pt2 --images scans --channels 1 --out audit

**Exit codes**

    0  success                   130  interrupted; no partial results are left
    1  failure                   141  stdout was closed
    2  usage error, nothing run  143  terminated
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command given by what comes after `nobsp`, and returns the exit code.

    Where `argv` is None, the process's own arguments are used.
    """
    console = Console()
    try:
        with _terminate_cleanly():
            command, bound = _parse(list(sys.argv[1:] if argv is None else argv))
            console = next(
                (
                    argument
                    for argument in bound.arguments.values()
                    if isinstance(argument, Console)
                ),
                console,
            )
            with console.note_warnings(), worded(in_options):
                command(*bound.args, **bound.kwargs)
            sys.stdout.flush()
            return SUCCESS
    except KeyboardInterrupt:
        console.error("nobsp: interrupted; nothing was written.")
        return INTERRUPTED
    except BrokenPipeError:
        _detach_stdout()
        return CLOSED
    except UsageError as misuse:
        console.error(f"nobsp: {one_line(misuse)}")
        return USAGE
    except MemoryError:
        console.error(
            "nobsp: out of memory; try a smaller --batch-size, fewer rows, or fewer --interactions."
        )
    except Exception as failure:  # noqa: BLE001 - whatever it is, people get a line and an exit code
        if console.debug:
            traceback.print_exc()
        else:
            console.error(f"nobsp: {one_line(failure)}")

        if isinstance(failure, OSError):
            _detach_stdout()

    return FAILURE


class _Terminal(Terminal):
    """For help: a closed pipe is reported instead of ending the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _parse(argv: list[str]) -> tuple[Callable[..., Any], BoundArguments]:
    app = App(
        name="nobsp",
        help="Explain what a trained model has learned, as functions of its features or as "
        "maps of its images.",
        help_epilogue=_EXAMPLES,
        help_format="markdown",
        version=f"nobsp {__version__}",
        version_flags=["--version"],
        default_parameter=Parameter(negative=(), consume_multiple=False, allow_repeating=True),
        console=_Terminal(),
        help_on_error=False,
    )
    commands: list[Any] = [
        explain.explain,
        compare.compare,
        check.check,
        cam.cam,
        cam.confusions,
        audit.audit,
        prune.prune,
        functions.export,
        functions.predict,
        demo,
        version,
    ]
    for order, command in enumerate(commands):
        app.command(command, sort_key=order, help_epilogue="")

    try:
        command, bound, _ = app.parse_args(argv, exit_on_error=False, print_error=False)
        return command, bound
    except UnknownCommandError as unknown:
        names = [name for name in app if not name.startswith("-")]
        raise UsageError(f"there is no command {argv[0]!r}; {suggest(argv[0], names)}") from unknown
    except CycloptsError as misuse:
        raise UsageError(_describe_misuse(app, argv, misuse)) from misuse


def _describe_misuse(app: App, argv: list[str], misuse: CycloptsError) -> str:
    """What is wrong with the words after a command."""
    arguments = app[argv[0]].assemble_argument_collection()
    known = [name for argument in arguments for name in argument.names]
    # First, as what is called by another name is told to be missing as well.
    unknown = unknown_option(argv[1:], [*known, "--help", "-h", "--version"])
    if unknown is not None:
        return describe_option(argv[0], unknown, known)

    if isinstance(misuse, MissingArgumentError):
        name = getattr(misuse.argument, "name", "an option")
        choice = (
            ", or none of the options listed with it"
            if argv[0] == "audit" and name != "--out"
            else ""
        )
        said = "lacks its value" if name in argv else f"is needed{choice}"
        return f"{name} {said} (see nobsp {argv[0]} --help)"
    return f"{one_line(str(misuse))} (see nobsp {argv[0]} --help)"


@contextmanager
def _terminate_cleanly() -> Iterator[None]:
    """Makes SIGTERM end the process as an exception does, so that files are cleaned up.

    The former handler is restored afterwards.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED)) if main_thread else None
    try:
        yield
    finally:
        if main_thread:
            signal.signal(signal.SIGTERM, before)


def _detach_stdout() -> None:
    """Python would complain on exit about what is left in the buffer of a closed stdout."""
    with suppress(OSError, ValueError), open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def demo(
    *,
    out: Annotated[Path, Parameter(group=OUTPUT, help="Folder for the pages.")] = Path(
        "nobsp-demo"
    ),
    force: Annotated[
        Flag, Parameter(group=OUTPUT, help="Replace pages that are there already.")
    ] = False,
    open_: Annotated[
        Flag, Parameter("--open", group=OUTPUT, help="Open the first page in a browser.")
    ] = False,
    console: Console = Console(),
) -> None:
    """Try it on data that is included.

    Trains small networks on known functions, breast cancer cells and handwritten digits, explains
    and audits them, and writes a page for each. Takes about a minute.
    """
    require_report()
    from nobsp import demo as room

    started = time.monotonic()
    # Its pages speak of Python: the demo has no options to change, and writes no tables.
    with write_folder(out, room.PAGES, force=force) as folder, worded(str):
        lines, numbers = room.run(folder, say=console.step)
    first = (out / room.PAGES[0]).resolve()
    seconds = time.monotonic() - started
    summary = {**numbers, "seconds": seconds, "pages": [str(out / name) for name in room.PAGES]}
    console.show(summary, lambda _: [*lines, f"Done in {seconds:.0f} s. Open {first}"])
    if open_:
        webbrowser.open(first.as_uri())


def version(*, console: Console = Console()) -> None:
    """Show which versions are installed."""
    versions: dict[str, str | None] = {"nobsp": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    console.show(
        versions,
        lambda versions: [
            f"{name:<13}{number or 'not installed'}" for name, number in versions.items()
        ],
    )
