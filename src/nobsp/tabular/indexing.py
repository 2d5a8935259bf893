"""How rows, terms and outputs of an explanation are chosen: by position, slice, mask or name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nobsp.arguments import count, free_name, join_names, suggest

Term = tuple[str, ...]

# Rows, terms and outputs.
_AXES = 3
# Outputs listed in an error before the rest is only counted.
_MOST_LISTED = 12


def term_name(term: Sequence[str]) -> str:
    """A term in words."""
    return " × ".join(term)


def column_names(terms: Sequence[Term]) -> list[str]:
    """One name per term.

    Where a feature's name reads like another term's, the larger term is put in brackets.
    """
    smallest_first = sorted(range(len(terms)), key=lambda position: len(terms[position]))
    positions: dict[str, int] = {}
    for position in smallest_first:
        name = free_name(term_name(terms[position]), positions)
        positions[name] = position
    return sorted(positions, key=positions.__getitem__)


def split_axes(key: object) -> list[object]:
    """Rows, terms and outputs of an index; what is not said is everything."""
    axes = list(key) if isinstance(key, tuple) else [key]
    ellipses = [position for position, axis in enumerate(axes) if axis is Ellipsis]
    if len(ellipses) == 1:
        position = ellipses[0]
        axes[position : position + 1] = [slice(None)] * (_AXES + 1 - len(axes))

    if len(axes) > _AXES or len(ellipses) > 1:
        raise IndexError(f"an explanation has rows, terms and outputs; found {len(axes)} indices.")
    return axes + [slice(None)] * (_AXES - len(axes))


def find_positions(key: object, size: int, axis: str, find: Callable[[Any], int]) -> list[int]:
    """Positions along an axis, as a list: by slice or mask, or each looked up by itself."""
    if isinstance(key, slice):
        return list(range(size)[key])

    entries = key.tolist() if hasattr(key, "tolist") else key
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        return [find(entries)]

    entries = list(entries)
    is_mask = entries and all(isinstance(entry, bool | np.bool_) for entry in entries)
    if not is_mask:
        return [find(entry) for entry in entries]
    if len(entries) != size:
        raise IndexError(f"the mask has {len(entries)} entries but there are {size} {axis}.")
    return np.flatnonzero(entries).tolist()


def row_position(row: object, n_rows: int) -> int:
    """Position of a row, counted from the end where it is negative."""
    if isinstance(row, bool) or not isinstance(row, int | np.integer):
        hint = f"; ex[:, {row!r}] chooses a term" if isinstance(row, str) else ""
        raise IndexError(f"rows are chosen by position, slice or mask, found {row!r}{hint}.")
    return _in_range(row, n_rows, "row")


def term_position(term: object, terms: Sequence[Term]) -> int:
    """Position of a term, given by position, by name, or by its features' names in any order."""
    if isinstance(term, int | np.integer) and not isinstance(term, bool):
        return _in_range(term, len(terms), "term")
    if not isinstance(term, str | tuple | list):
        raise TypeError(f"a term is chosen by position, name or tuple of names, found {term!r}.")

    names = (term,) if isinstance(term, str) else tuple(str(name) for name in term)
    for position, members in enumerate(terms):
        if len(members) == len(names) and set(members) == set(names):
            return position

    # As frames and plots call it.
    known = column_names(terms)
    if term in known:
        return known.index(str(term))
    raise ValueError(f"no term {term_name(names)!r}; {suggest(term_name(names), known)}")


def output_position(
    output: int | str, names: Sequence[str], what: str = "output", *, argument: str = ""
) -> int:
    """Position of an output, or of something else, given by position or name.

    `argument` is what the caller calls it.
    """
    called = argument or what
    if isinstance(output, str):
        if output not in names:
            unknown = (
                f"{argument} is no {what}: {output!r}" if argument else f"no {what} {output!r}"
            )
            raise ValueError(f"{unknown}; {suggest(output, names)}")
        return list(names).index(output)

    if isinstance(output, bool) or not isinstance(output, int | np.integer):
        raise TypeError(f"{called} must be a position or a name, found {output!r}.")
    if not -len(names) <= output < len(names):
        are = "is" if len(names) == 1 else "are"
        raise ValueError(
            f"{called} is {output}, but there {are} {count(len(names), what)}: "
            f"{join_names(names, _MOST_LISTED)}."
        )
    return int(output) % len(names)


def _in_range(position: int | np.integer[Any], size: int, what: str) -> int:
    """A position counted from the start, or an error where there is none such."""
    if not -size <= position < size:
        raise IndexError(f"{what} {position} is out of range; there are {count(size, what)}.")
    return int(position) % size
