"""From codes back to values: rows that a preprocessing encoded, in the caller's units."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.tabular.lookup import Array, LevelAxis, Places

# A row is at a level, or missing, when its code is so close to that of the level: codes may be
# float32.
_SAME_LEVEL = 1e-6
_SAME_CODE = 1e-9
# Keeps a tolerance above zero where a column has one value only.
_LEAST_WIDTH = 1e-12
# Rows that are compared with all known codes at once: distances to 4,096 of them take 32 MB.
_COMPARED_AT_ONCE = 1024


def decode_levels(inputs: Tensor, axis: LevelAxis, codes: Tensor) -> dict[int, NDArray[np.generic]]:
    """The levels whose codes some rows have, by column; what has none is missing."""
    position, distance = _nearest(inputs, codes)
    is_known = distance <= _SAME_LEVEL

    levels = axis.levels
    if isinstance(levels, tuple):
        # The last stands for what is no level.
        names = np.array([*levels, None], dtype=object)
        position[~is_known] = len(levels)
        return {axis.columns[0]: names[position]}

    columns = {}
    for number, column in enumerate(axis.columns):
        values = levels[position, number]
        columns[column] = np.where(is_known, values, np.nan)
    return columns


def decode_numbers(inputs: Tensor, codes: Tensor, numbers: Array, missing: Tensor | None) -> Array:
    """The numbers whose codes some rows have, NaN for those of missing ones.

    `codes` are those of increasing `numbers`, `missing` that of a missing number.
    """
    decoded = _invert_line(inputs, codes, numbers)
    if decoded is None:
        decoded = _spread_over_ties(inputs, codes, numbers)

    if missing is None or not _is_told_apart(missing, codes):
        return decoded
    tolerance = _SAME_CODE * (1 + missing.abs().max())
    is_absent = (inputs - missing).abs().amax(1) <= tolerance
    return np.where(is_absent.numpy(), np.nan, decoded)


def _invert_line(inputs: Tensor, codes: Tensor, numbers: Array) -> Array | None:
    """Numbers read backwards off an encoding that only rises or only falls; None for any other."""
    # Columns that say whether a number is missing are the same for all that are not.
    if not bool((codes[:, 1:] == codes[:1, 1:]).all()):
        return None

    line = codes[:, 0].numpy()
    if len(line) < 2:
        return None
    direction = np.sign(line[-1] - line[0])
    rising = direction * line
    if not (np.diff(rising) > 0).all():
        return None

    of_rows = direction * inputs[:, 0].numpy()
    decoded: Array = np.interp(of_rows, rising, numbers)
    return decoded


def _spread_over_ties(rows: Tensor, codes: Tensor, numbers: Array) -> Array:
    """Per row a number with its code.

    Rows of one code share the numbers that have it evenly, as bins do.
    """
    distinct_codes, owner = torch.unique(codes, dim=0, return_inverse=True)
    code_of_row, _ = _nearest(rows, distinct_codes)

    decoded = np.zeros(len(rows))
    for code in np.unique(code_of_row):
        of_code = np.flatnonzero(code_of_row == code)
        has_code = (owner == int(code)).numpy()
        candidates = numbers[has_code]

        n_rows = len(of_code)
        turns = np.arange(n_rows) * len(candidates) // max(n_rows, 1)
        decoded[of_code] = candidates[turns % len(candidates)]
    return decoded


def _is_told_apart(missing: Tensor, codes: Tensor) -> bool:
    """Whether the code of a missing number is that of no number."""
    if codes.shape[1] == 1:
        return not bool(codes.amin() <= missing.amin() <= codes.amax())
    _, distance = _nearest(missing, codes)
    return not bool(distance[0] <= _SAME_CODE)


def _nearest(rows: Tensor, known: Tensor) -> tuple[Places, Array]:
    """Per row the position of the nearest of some known rows, and its distance from it.

    The distance is a share of the size of the known rows.
    """
    if not len(rows):
        return np.zeros(0, np.intp), np.zeros(0)

    positions = []
    distances = []
    for part in torch.split(rows, _COMPARED_AT_ONCE):
        closest = torch.cdist(part, known).min(1)
        positions.append(closest.indices)
        distances.append(closest.values)

    size = 1 + float(known.abs().max())
    shares = torch.cat(distances).numpy() / size
    return torch.cat(positions).numpy().astype(np.intp), shares


def snap_to_known(values: Array, known: Array) -> Array:
    """Numbers that differ by rounding from known ones, increasing, as these."""
    last = len(known) - 1
    after = np.searchsorted(known, values).clip(min(1, last), last)
    before = np.maximum(after - 1, 0)
    to_before = np.abs(values - known[before])
    to_after = np.abs(values - known[after])
    nearest = np.where(to_before <= to_after, known[before], known[after])

    width = max(float(known[-1] - known[0]), _LEAST_WIDTH)
    is_rounding = np.abs(values - nearest) <= _SAME_LEVEL * width
    snapped: Array = np.where(is_rounding, nearest, values)
    return snapped
