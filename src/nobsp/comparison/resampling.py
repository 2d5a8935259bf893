"""Means over rows drawn anew: the bootstrap, with rows that belong together drawn together."""

from __future__ import annotations

import numpy as np

from nobsp._typing import FloatArray
from nobsp.comparison.pairing import Places

# Rows, or groups of them, that are drawn one by one. More are put into so many blocks by chance,
# and blocks are drawn: sums over blocks of independent rows scatter as sums over the rows do.
MOST_UNITS = 2048


def draw_means(
    values: FloatArray,
    weights: FloatArray,
    units: Places,
    *,
    draws: int,
    generator: np.random.Generator,
) -> FloatArray:
    """Weighted means of (rows, …) over units drawn with replacement, (draws, …).

    Deviations from the mean are stretched by √(n / (n − 1)): n units drawn from themselves scatter
    that much too little.
    """
    blocks = _blocks(units, generator)
    n_blocks = int(blocks.max()) + 1
    flat = values.reshape(len(values), -1)

    sums = np.zeros((n_blocks, flat.shape[1]))
    np.add.at(sums, blocks, flat * weights[:, None])
    totals = np.bincount(blocks, weights=weights, minlength=n_blocks)

    counts = generator.multinomial(n_blocks, np.full(n_blocks, 1 / n_blocks), size=draws)
    # Every row weighs something (`side_of`), so that every draw does.
    means = (counts @ sums) / (counts @ totals)[:, None]

    centre = weights @ flat / weights.sum()
    stretched = centre + (means - centre) * np.sqrt(n_blocks / (n_blocks - 1))
    return np.asarray(stretched.reshape(draws, *values.shape[1:]))


def _blocks(units: Places, generator: np.random.Generator) -> Places:
    """The unit of every row, or where there are very many the block that chance puts it in."""
    n_units = int(units.max()) + 1
    if n_units <= MOST_UNITS:
        return units
    block_of_unit = generator.permutation(n_units) % MOST_UNITS
    return np.asarray(block_of_unit[units], dtype=np.intp)
