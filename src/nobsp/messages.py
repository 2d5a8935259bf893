"""Sentences, names and numbers that several rooms write in the same way."""

from __future__ import annotations

from collections.abc import Container, Iterable
from difflib import get_close_matches

import numpy as np

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
