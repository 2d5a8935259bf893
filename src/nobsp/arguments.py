"""Checks of arguments, with errors that name the argument, what was found and what to pass."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from nobsp._typing import AnyArray, ArrayLike

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Owner = TypeVar("Owner", bound=type)

# The largest whole number that batches of whole numbers can hold; larger ones would turn negative.
LARGEST_INTEGER = 2**63 - 1
# Characters of a value that are quoted in an error.
_MOST_QUOTED = 60


def quote(value: object) -> str:
    """A value as Python writes it, cut where it is long; the type alone where writing it fails."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever a caller's own class does when it is printed
        return f"a {type(value).__name__}"
    if len(text) <= _MOST_QUOTED:
        return text
    return f"{text[:_MOST_QUOTED]}... ({type(value).__name__})"


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line that called the package, however many of its own functions lie between."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("nobsp."):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def require_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raises a ValueError for anything but the given choices: a few texts, and perhaps None."""
    plain = value is None or isinstance(value, str)
    if plain and value in choices:
        return
    known = [f'"{choice}"' if isinstance(choice, str) else repr(choice) for choice in choices]
    listed = " or ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)
    raise ValueError(f"{name} must be {listed}, found {quote(value)}.")


def require_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float:
    """A finite real number between two bounds.

    The bounds `above` and `below` are outside of the range, `least` and `most` are in it.

    Example:
        >>> require_number("share", 0.5, least=0, most=1)
        0.5
    """
    number = float("nan")
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        with suppress(OverflowError):  # whole numbers too large for a float are out of any range
            number = float(value)
    fits = (
        np.isfinite(number)
        and (above is None or number > above)
        and (least is None or number >= least)
        and (most is None or number <= most)
        and (below is None or number < below)
    )
    if not fits:
        low = above if least is None else least
        high = below if most is None else most
        raise ValueError(f"{name} must {_range(low, high)}, found {quote(value)}.")
    return number


def _range(low: float | None, high: float | None) -> str:
    """A range in words."""
    if low is None and high is None:
        return "be a finite number"
    if high is None:
        return f"be a finite number and not below {low:g}"
    if low is None:
        return f"be a finite number and not above {high:g}"
    return f"lie between {low:g} and {high:g}"


def require_flag(name: str, value: object) -> None:
    """Raises a TypeError for whatever is neither true nor false."""
    if not isinstance(value, bool | np.bool_ | int | None):
        raise TypeError(f"{name} must be True or False, found {quote(value)}.")


def require_text(name: str, value: object) -> None:
    """Raises a TypeError for whatever is neither a text nor None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a text, found {quote(value)}.")


def require_parts(name: str, value: object, parts: Iterable[str], *, wanted: str) -> None:
    """Raises a TypeError for an object that lacks an attribute; `wanted` says what to pass."""
    for part in parts:
        if isinstance(value, type) or not hasattr(value, part):
            raise TypeError(f"{name} must be {wanted}, found {quote(value)}.")


def require_mapping(name: str, value: object, *, wanted: str) -> None:
    """Raises a TypeError for whatever is neither a dictionary nor None."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} must be {wanted}, found {quote(value)}.")


def names_of(name: str, values: object) -> tuple[str, ...]:
    """Names from a list, a tuple or an array, as texts."""
    single = isinstance(values, str | bytes | Mapping | type) or getattr(values, "ndim", 1) != 1
    if single or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of names, found {quote(values)}.")
    return tuple(str(value) for value in values)


def path_of(path: object, *, name: str = "path") -> Path:
    """A path from a text or a path object.

    Raises:
        TypeError: If it is neither.
        ValueError: If no file can have that name.
    """
    if isinstance(path, bytes) or not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} must be a text or a pathlib.Path, found {quote(path)}.")
    text = os.fspath(path)
    if isinstance(text, bytes) or not text or "\0" in text:
        raise ValueError(f"{name} must be the name of a file, found {quote(path)}.")
    described = Path(text)
    # What file systems take; asking them would need a folder that is there.
    if any(len(os.fsencode(part)) > 255 for part in described.parts):
        raise ValueError(f"{name} has a part that is longer than 255 bytes: {quote(path)}.")
    return described


def numbers_of(values: ArrayLike, *, name: str, dtype: DTypeLike | None = np.float64) -> AnyArray:
    """An array of real numbers from anything numpy understands, or from a tensor on any device.

    Raises:
        TypeError: If it holds something else, such as texts, dates, complex numbers or a mask.
        ValueError: If its rows have different lengths.
    """
    refuse_unreadable(values, name=name)
    if isinstance(values, type) or callable(values):
        raise TypeError(f"{name} must be numbers, found {quote(values)}.")
    if isinstance(values, str):  # as `groups` takes the name of a column
        raise TypeError(
            f"{name} must be numbers, found {quote(values)}; pass the numbers themselves. The "
            "column of a frame is frame['name']."
        )
    array = array_of(values, name=name)
    if array.dtype.kind in "cmMSUV":
        raise TypeError(f"{name} must be real numbers, found dtype {array.dtype}.")
    try:
        return np.asarray(array, dtype=dtype if array.dtype.kind != "O" else np.float64)
    except (TypeError, ValueError, OverflowError) as failure:
        raise TypeError(f"{name} must be real numbers, found {quote(values)}.") from failure


def weights_of(values: ArrayLike, *, n_rows: int, name: str = "sample_weight") -> AnyArray:
    """One weight per row, finite, none below zero and some above it."""
    weights = numbers_of(values, name=name)
    if weights.shape != (n_rows,):
        raise ValueError(
            f"{name} must be one weight for each of the {n_rows} rows, found shape {weights.shape}."
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ValueError(f"{name} must be finite weights of zero or more, some of them above zero.")
    return weights


def as_numpy(values: ArrayLike) -> AnyArray:
    """An array from anything numpy understands, or from a tensor on any device.

    Tensors are recognised by a method of theirs, so that torch need not be imported.
    """
    if not hasattr(values, "detach"):
        return np.asarray(values)

    tensor = values.detach().cpu()
    if "bfloat16" in str(tensor.dtype) or "float8" in str(tensor.dtype):
        # numpy has no such types.
        tensor = tensor.float()
    return np.asarray(tensor)


def array_of(values: ArrayLike, *, name: str) -> AnyArray:
    """An array of any kind from what numpy understands, or from a tensor on any device.

    Raises:
        TypeError: If it has a mask, or is a tensor without values.
        ValueError: If its rows have different lengths.
    """
    refuse_unreadable(values, name=name)
    try:
        return as_numpy(values)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as failure:
        raise ValueError(f"{name} cannot be read as an array: {failure}.") from failure


def refuse_unreadable(values: object, *, name: str) -> None:
    """Raises a TypeError for a masked array and for tensors without plain values.

    A mask would be ignored by whatever reads the array next.
    """
    if isinstance(values, np.ma.MaskedArray):
        hint = f"pass {name}.filled(np.nan) for missing values, or {name}.data for all of them"
        raise TypeError(f"{name} is a masked array; {hint}.")
    if getattr(values, "is_meta", False):
        raise TypeError(f'{name} is a tensor on the device "meta", which holds no values.')
    if "sparse" in str(getattr(values, "layout", "")):
        raise TypeError(f"{name} is a sparse tensor; pass {name}.to_dense().")


def refuse_overflow(values: AnyArray, *, name: str) -> None:
    """Raises a ValueError for unsigned numbers that would turn negative as signed ones."""
    if values.dtype == np.uint64 and values.size and int(values.max()) > LARGEST_INTEGER:
        raise ValueError(
            f"{name} has whole numbers above {LARGEST_INTEGER}; pass {name}.astype(float) instead."
        )


# Comparing a name with more of them than this takes longer than a reader waits for an error.
_MOST_COMPARED = 10_000
# Names listed where none is close to the one that was asked for.
_MOST_LISTED = 12


def join_names(names: Iterable[object], most: int = 8) -> str:
    """Names as Python writes them, only the first of them where there are many.

    Example:
        >>> join_names(["age", "income", "rooms"], most=2)
        "'age', 'income' and 1 more"
    """
    plain = [name.item() if isinstance(name, np.generic) else name for name in names]
    listed = ", ".join(repr(name) for name in plain[:most])

    rest = len(plain) - most
    return f"{listed} and {rest} more" if rest > 0 else listed


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 row", "1,200 rows"."""
    if number == 1:
        return f"{number:,} {noun}"

    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def number_outputs(outputs: int) -> tuple[str, ...]:
    """Names for outputs that have none."""
    if outputs == 1:
        return ("output",)
    return tuple(f"output {position}" for position in range(outputs))


def free_name(name: str, taken: Container[str]) -> str:
    """The name itself, or in as many brackets as make it differ from all that are taken."""
    while name in taken:
        name = f"({name})"
    return name


def with_minus(number: float, form: str) -> str:
    """A number in one of Python's formats, with the minus sign that pages and figures have.

    Example:
        >>> with_minus(-0.25, ".3f")
        '−0.250'
    """
    return format(number, form).replace("-", "−")


def percent(share: float) -> str:
    """A share in percent, with a decimal where it is below ten or close to a hundred."""
    if 0 < share < 0.0005:
        return "<0.1%"

    needs_decimal = abs(share) < 0.0995 or 0.985 < share < 0.9995
    decimals = 1 if needs_decimal else 0
    return f"{share:.{decimals}%}".replace("-", "−")


def suggest(name: object, known: Iterable[object]) -> str:
    """The last clause of an error about an unknown name: the closest matches, or all there are."""
    names = list(known)
    compared = [str(other) for other in names[:_MOST_COMPARED]]
    close = get_close_matches(str(name), compared, n=3)
    if not close:
        return f"there are {join_names(names, _MOST_LISTED)}."

    alternatives = " or ".join(repr(match) for match in close)
    return f"did you mean {alternatives}?"


def require_whole_number(name: str, value: object, *, least: int = 1) -> None:
    """Raises a ValueError for whatever is not a whole number from `least` on."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    # A number by now; the check of its type is out of mypy's sight.
    if not is_whole or value < least:  # type: ignore[operator]
        raise ValueError(f"{name} must be a whole number of at least {least}, found {value!r}.")


def _named(advice: str) -> str:
    """Advice as the second half of an error: what to use, or what to do where it is a sentence."""
    is_sentence = advice.startswith(("pass ", "leave ", "it explains "))
    return advice if is_sentence else f"use {advice}"


def refusing_arguments(
    elsewhere: Mapping[str, str],
    *,
    owner: str,
    surplus: str = "",
    missing: Mapping[str, str] | None = None,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A decorator: arguments that a function lacks are refused with what to pass in their place.

    Only the call itself is looked at, before the function runs: what that raises goes through.

    Args:
        elsewhere: What does the work of arguments that people know from other packages.
        owner: What the function is called in errors.
        surplus: What to do with arguments that come without a name and are too many.
        missing: Arguments that people forget, and what to pass.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        parameters = inspect.signature(function).parameters
        kinds = [parameter.kind for parameter in parameters.values()]
        most = sum(kind is not inspect.Parameter.KEYWORD_ONLY for kind in kinds)
        positions = {name: position for position, name in enumerate(parameters)}
        known = [name for name in parameters if name not in ("self", "cls")]

        @wraps(function)
        def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            for name in kwargs:
                if name not in parameters:
                    raise TypeError(_unknown_argument(owner, name, known, elsewhere))
            if surplus and len(args) > most:
                raise TypeError(f"{owner} takes {known[0]} alone without a name; {surplus}.")
            for name, advice in (missing or {}).items():
                if name not in kwargs and len(args) <= positions[name]:
                    raise TypeError(f"{owner} needs {name!r}: {advice}.")
            return function(*args, **kwargs)

        return checked

    return decorate


def _unknown_argument(owner: str, name: str, known: list[str], elsewhere: Mapping[str, str]) -> str:
    """An error about an argument that a function does not have."""
    complaint = f"{owner} has no argument {name!r}"
    if name in elsewhere:
        return f"{complaint}; {_named(elsewhere[name])}."

    close = get_close_matches(name, known, n=1)
    if close:
        return f"{complaint}; did you mean {close[0]!r}?"
    return f"{complaint}; there are {', '.join(known)}."


def refusing_options(
    elsewhere: Mapping[str, str], *, surplus: str = ""
) -> Callable[[Owner], Owner]:
    """A decorator of a class whose constructor refuses as `refusing_arguments` says."""

    def decorate(owner: Owner) -> Owner:
        refusing = refusing_arguments(elsewhere, owner=owner.__name__, surplus=surplus)
        owner.__init__ = refusing(owner.__init__)  # type: ignore[misc]
        return owner

    return decorate
