"""How much memory a calibration may take, and into how many passes that cuts it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from nobsp.network.inputs import Subset
from nobsp.network.readout import Readout
from nobsp.tabular.calibration import Plan, Solution, bytes_of_moments, label

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def bytes_of(limit: int | str) -> int:
    """A number of bytes, given as such or in words.

    Example:
        >>> bytes_of("4GiB"), bytes_of("1.5 MB"), bytes_of(4096)
        (4294967296, 1500000, 4096)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", limit.lower()) if isinstance(limit, str) else None
    if found is not None and found[2] in _UNITS:
        size = int(float(found[1]) * _UNITS[found[2]])
    elif isinstance(limit, int) and not isinstance(limit, bool):
        size = limit
    else:
        raise ValueError(f'memory_limit must be a number of bytes, or a text such as "4GB", found {limit!r}.')
    if size <= 0:
        raise ValueError(f"memory_limit must be positive, found {limit!r}.")
    return size


def room_for_moments(plan: Plan, memory: int) -> int:
    """Bytes for sums: half of all, and less where bases are large; a quarter is left for batches under way."""
    return min(memory // 2, 3 * memory // 4 - _bytes_of_bases(plan))


def _bytes_of_bases(plan: Plan) -> int:
    return sum(basis.numel() * basis.element_size() for basis in plan.bases.values())


def in_passes(plan: Plan, readout: Readout, *, memory: int) -> list[Plan]:
    """The plan in as many parts as its moments need, each with some of the terms.

    Terms that are fitted together cannot be parted.

    Raises:
        ValueError: If the moments of a part that cannot be parted do not fit.
    """
    room = room_for_moments(plan, memory)
    sizes = {name: bytes_of_moments(shape) for name, shape in plan.blocks(readout.width, readout.outputs).items()}
    if max(sizes.values()) > room:
        largest = max(sizes.values())
        needed = max(2 * largest, -(-4 * (largest + _bytes_of_bases(plan)) // 3))
        raise ValueError(f"memory_limit is {memory:,} bytes but this calibration needs at least {needed:,}.")
    if plan.pure:
        return [plan]
    groups: list[list[Subset]] = [[]]
    held = 0
    for term in plan.terms:
        if groups[-1] and held + sizes[label(term)] > room:
            groups.append([])
            held = 0
        groups[-1].append(term)
        held += sizes[label(term)]
    if len(groups) == 1:
        return [plan]
    return [replace(plan, terms=tuple(group), bases={term: plan.bases[term] for term in group}) for group in groups]


def joined(solutions: Sequence[Solution]) -> Solution:
    """The coefficients of all parts of a plan."""
    first = solutions[0]
    if len(solutions) == 1:
        return first
    return Solution(
        {term: matrix for part in solutions for term, matrix in part.matrices.items()},
        {term: offset for part in solutions for term, offset in part.offsets.items()},
        first.base,
        {term: amount for part in solutions for term, amount in part.ridges.items()},
        {term: share for part in solutions for term, share in part.unique_share.items()},
        {term: note for part in solutions for term, note in part.notes.items()},
        first.note,
    )
