"""What a case can come to, and how an error is told to be one of ours."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import nobsp

Verdict = Literal["right", "clear", "unreached", "defect"]

VERDICTS: tuple[Verdict, ...] = ("right", "clear", "unreached", "defect")

# Where errors of ours are raised.
PACKAGE = str(Path(nobsp.__file__).parent)

# Kinds of errors that a caller can be expected to handle; all others are accidents.
MEANT = (ValueError, TypeError, LookupError, OSError, ImportError)

# Texts of the interpreter, which name no argument even where a word in them looks like one.
ACCIDENTS = re.compile(
    r"object is not (iterable|callable|subscriptable)|has no attribute|unsupported operand"
    r"|not supported between|object of type .* has no len|argument must be|cannot unpack"
    r"|unexpected keyword argument|missing \d+ required|unhashable type"
)


@dataclass(frozen=True)
class Outcome:
    """How one case ended."""

    verdict: Verdict
    case: str  # what was tried, in words
    detail: str = ""  # what happened, where it was not right


class CaseDefectError(Exception):
    """A promise was not kept; its text says which."""


def right(case: str) -> Outcome:
    """The result was checked and is right."""
    return Outcome("right", case)


def clear(case: str, error: BaseException | str = "") -> Outcome:
    """An error of ours said what was wrong."""
    return Outcome("clear", case, _first_line(error))


def unreached(case: str, reason: str) -> Outcome:
    """What was to be tried did not come about, such as an interrupt after the end of a call; it counts for nothing."""
    return Outcome("unreached", case, reason)


def defect(case: str, detail: BaseException | str) -> Outcome:
    """A promise was not kept."""
    return Outcome("defect", case, _first_line(detail))


def judge_error(case: str, error: BaseException, names: Iterable[str]) -> Outcome:
    """Clear if the error was raised on purpose in the package and names one of `names`; a defect otherwise."""
    fault = find_fault(error, names)
    if fault is None:
        return clear(case, error)
    return defect(case, f"{fault}: {describe(error)}")


def find_fault(
    error: BaseException, names: Iterable[str], *, may_quote: bool = False
) -> str | None:
    """What is wrong with an error as a message to whoever made the mistake; None if nothing is.

    `may_quote` allows the interpreter's own texts, quoted as the reason why a file is damaged.
    """
    if not isinstance(error, MEANT):
        return "an accident"
    if not raised_on_purpose(error):
        return "raised deep inside"
    message = str(error)
    # What a library said may stand in brackets behind our own words.
    ours = re.sub(r"\(.*\)", "", message, flags=re.DOTALL)
    if not may_quote and ACCIDENTS.search(ours):
        return "a text of the interpreter"
    if not any(re.search(rf"(?<!\w){re.escape(name)}", message) for name in names):
        return "does not name the argument"
    return None


def raised_on_purpose(error: BaseException) -> bool:
    """Whether the line that raised it is a `raise` of the package."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not frames[-1].filename.startswith(PACKAGE):
        return False
    last = frames[-1]
    line = linecache.getline(last.filename, last.lineno or 0)
    return line.strip().startswith("raise")


def describe(error: BaseException) -> str:
    """Kind, text and place of an error on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = ""
    if frames:
        last = frames[-1]
        place = f" [{Path(last.filename).name}:{last.lineno}]"
    return f"{type(error).__name__}: {_first_line(str(error))}{place}"


def _first_line(text: BaseException | str) -> str:
    words = str(text).strip().split("\n")[0]
    return words[:300]
