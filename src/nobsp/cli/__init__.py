"""The command line: `nobsp explain`, `cam`, `audit`, `bench`, `demo` and `version`.

Exit codes: 0 done; 1 it could not be done (the model does not fit the data, a file cannot be written, …); 2 it was
asked wrongly (an unknown option, a missing file or column, a pickle that was not trusted) and nothing was run; 130
interrupted with Ctrl-C; 141 whoever was to read the results had gone; 143 ended from outside.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from nobsp.cli.arguments import parsed
from nobsp.cli.console import Console, Misuse, one_line

__all__ = ["main"]

DONE, FAILED, MISUSED, INTERRUPTED, UNREAD, ENDED = 0, 1, 2, 130, 141, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: What comes after `nobsp`; the process's own arguments when None.

    Returns:
        The exit code; see the module.
    """
    console = Console()
    try:
        with _manners():
            return _run(list(sys.argv[1:] if argv is None else argv), console)
    except KeyboardInterrupt:
        console.complain("interrupted; nothing was written.")
        return INTERRUPTED
    except _EndedError:
        return ENDED


def _run(argv: list[str], console: Console) -> int:
    try:
        try:
            options = parsed(argv)
        finally:
            sys.stdout.flush()
        console.configure(options)
        with console.noting_warnings():
            code: int = options.run(options, console) or DONE
        sys.stdout.flush()
    except SystemExit as leaving:  # --help and --version
        return int(leaving.code or 0)
    except BrokenPipeError:
        _let_go_of_stdout()
        return UNREAD
    except Misuse as misuse:
        console.complain(one_line(misuse))
        return MISUSED
    except MemoryError:
        console.complain("out of memory; try a smaller --batch-size, fewer rows, or fewer --interactions.")
        return FAILED
    except Exception as failure:  # noqa: BLE001 - whatever it is, people get a line and an exit code
        if console.debug:
            traceback.print_exc()
        else:
            console.complain(one_line(failure))
        if isinstance(failure, OSError):
            _let_go_of_stdout()
        return FAILED
    return code


class _EndedError(BaseException):
    """The process was asked to end; like Ctrl-C, it passes every handler so that files are cleaned up."""


@contextmanager
def _manners() -> Iterator[None]:
    """A request to end cleans up like Ctrl-C does; nothing of it is left when the command is done."""

    def end(_: int, __: FrameType | None) -> NoReturn:
        raise _EndedError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _let_go_of_stdout() -> None:
    """What is still in the buffer has nowhere to go, and Python would complain of that on its way out."""
    with suppress(OSError, ValueError), open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
