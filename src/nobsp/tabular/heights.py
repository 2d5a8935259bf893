"""Heights of functions at a few knots and levels, fitted to rows with the functions as prior.

A feature that is dropped leaves something that the others can say in its place; labels may know
better than the teacher whose functions they are. In both cases every feature's function gets a
correction, a line through a few knots or one height per level, held constant beyond the rows, and a
ridge pulls all corrections towards none. The same products tell what is lost when a feature goes
and the others take over: with K = (G + Λ)⁻¹ and coefficients θ, the loss of the columns p is θ_pᵀ
(K_pp)⁻¹ θ_p, and what the others become is θ − K_:p (K_pp)⁻¹ θ_p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nobsp._typing import AnyArray, FloatArray
from nobsp.tabular.lookup import Axis, Chunk, LevelAxis, NumberAxis, TermTable

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions

# Knots of a correction: it mends a curve, and does not draw it anew.
MOST_KNOTS = 10
# Levels with fewer rows get no correction: it would be noise.
_FEWEST_ROWS = 5


@dataclass(frozen=True, eq=False)
class Block:
    """What the height of one feature at its knots or levels does to rows."""

    feature: int
    axis: Axis
    design: FloatArray  # (rows, heights), centred
    means: FloatArray  # what was taken off, (heights,)

    def table(self, heights: FloatArray) -> TermTable:
        """A correction with these heights, zero on average and flat beyond its knots.

        `heights` has shape (heights, outputs).
        """
        values = heights - self.means @ heights
        return flat_beyond_ends(TermTable((self.feature,), (self.axis,), values))


def wider(knots: FloatArray) -> FloatArray:
    """Knots with one more on either side, as far away as the others reach."""
    width = knots[-1] - knots[0]
    return np.concatenate([[knots[0] - width], knots, [knots[-1] + width]])


def flat_beyond_ends(table: TermTable) -> TermTable:
    """A function of one number, held beyond its first and last knot; levels have no ends."""
    axis = table.axes[0]
    if not isinstance(axis, NumberAxis):
        return table
    inner = table.values[: len(axis.knots)]
    absent = table.values[len(axis.knots) :]
    values = np.concatenate([inner[:1], inner, inner[-1:], absent])
    wide = NumberAxis(axis.column, wider(axis.knots), missing=axis.missing)
    return TermTable(table.features, (wide,), values)


def weights_of_nodes(axis: Axis, rows: Chunk) -> FloatArray:
    """How much each node of an axis counts for each row, shape (rows, nodes).

    Nothing counts for a row that has no place there.
    """
    weights = np.zeros((rows.count, len(axis)))
    everyone = np.arange(rows.count)
    if isinstance(axis, LevelAxis):
        levels, _ = rows.places(axis)
        known = levels < len(axis)
        weights[everyone[known], levels[known]] = 1.0
        return weights

    numbers = rows.numbers(axis.column)
    known = ~np.isnan(numbers)
    x = np.clip(numbers[known], axis.knots[0], axis.knots[-1])
    segments = axis.segments(x)
    along = axis.along(x, segments)
    weights[everyone[known], segments] = 1.0 - along
    weights[everyone[known], segments + 1] += along
    if axis.missing:
        weights[~known, len(axis.knots)] = 1.0
    return weights


def blocks_of(functions: Functions, columns: dict[int, AnyArray], n_rows: int) -> list[Block]:
    """Corrections of every feature that has a function of its own."""
    rows = Chunk(columns, slice(0, n_rows), functions.column_names)
    blocks = []
    for table in functions.tables:
        if len(table.axes) != 1:
            continue
        axis = _coarse_axis(table.axes[0], rows)
        if axis is None:
            continue
        weights = weights_of_nodes(axis, rows)
        # A height that hardly any row has stays what it is.
        weights[:, weights.sum(0) < _FEWEST_ROWS] = 0.0
        means = weights.mean(0)
        blocks.append(Block(table.features[0], axis, weights - means, means))
    return blocks


def _coarse_axis(axis: Axis, rows: Chunk) -> Axis | None:
    """A few knots where the rows are; None where all have one number."""
    if isinstance(axis, LevelAxis):
        return axis
    numbers = rows.numbers(axis.column)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return None
    knots = np.unique(np.quantile(numbers, np.linspace(0, 1, MOST_KNOTS)))
    # Knots that are almost one would have slopes of noise.
    apart = np.diff(knots) > 1e-9 * max(abs(knots[0]), abs(knots[-1]), 1e-300)
    knots = knots[np.concatenate([[True], apart])]
    if len(knots) < 2:
        return None
    return NumberAxis(axis.column, knots, missing=axis.missing)


def tables_of_blocks(
    blocks: Sequence[Block], heights: FloatArray
) -> dict[tuple[int, ...], TermTable]:
    """Every block's correction as a table, by its feature.

    `heights` are those of all blocks, one below the other.
    """
    corrections: dict[tuple[int, ...], TermTable] = {}
    start = 0
    for block in blocks:
        stop = start + block.design.shape[1]
        corrections[(block.feature,)] = block.table(heights[start:stop])
        start = stop
    return corrections


def add_tables(table: TermTable, correction: TermTable) -> TermTable:
    """The sum of two functions of one feature, exactly."""
    axis = table.axes[0]
    if isinstance(axis, LevelAxis):
        return TermTable(table.features, table.axes, table.values + correction.values)

    other = correction.axes[0]
    assert isinstance(other, NumberAxis)
    knots = np.unique(np.concatenate([axis.knots, other.knots]))
    values = values_at(table, knots) + values_at(correction, knots)
    if axis.missing:
        absent = table.values[-1] + (correction.values[-1] if other.missing else 0.0)
        values = np.concatenate([values, absent[None]])
    union = NumberAxis(axis.column, knots, missing=axis.missing)
    return TermTable(table.features, (union,), values)


def values_at(table: TermTable, numbers: FloatArray) -> FloatArray:
    """A function of one number at some numbers, (numbers, outputs)."""
    axis = table.axes[0]
    assert isinstance(axis, NumberAxis)
    return np.asarray(table(Chunk({axis.column: numbers}, slice(0, len(numbers)))))


@dataclass(frozen=True, eq=False)
class Ridge:
    """A regression with a prior, and what removing columns would do to it."""

    inverse: FloatArray  # (products + penalties)⁻¹
    coefficients: FloatArray  # (columns, outputs)

    @classmethod
    def fit(
        cls,
        design: FloatArray,
        target: FloatArray,
        *,
        penalties: FloatArray,
        prior: FloatArray | None = None,
        weights: FloatArray | None = None,
    ) -> Ridge:
        """Coefficients that make the design the target, pulled towards a prior."""
        weighted = design if weights is None else design * weights[:, None]
        products = weighted.T @ design
        sides = weighted.T @ target
        if prior is not None:
            sides = sides + penalties[:, None] * prior
        inverse = np.asarray(np.linalg.inv(products + np.diag(penalties)), dtype=np.float64)
        return cls(inverse, inverse @ sides)

    def loss(self, columns: Sequence[int]) -> FloatArray:
        """How much the squared error grows when columns go and the others take over.

        One number per output; the error includes the penalty.
        """
        own = self.coefficients[columns]
        block = self.inverse[np.ix_(columns, columns)]
        return np.asarray((own * np.linalg.solve(block, own)).sum(0))

    def without(self, columns: Sequence[int]) -> Ridge:
        """The regression after the others took over; removed columns have coefficients of zero."""
        block = self.inverse[np.ix_(columns, columns)]
        carried = self.inverse[:, columns] @ np.linalg.inv(block)
        inverse = self.inverse - carried @ self.inverse[columns]
        coefficients = self.coefficients - carried @ self.coefficients[columns]
        inverse[columns] = 0.0
        inverse[:, columns] = 0.0
        coefficients[columns] = 0.0
        return Ridge(np.asarray(inverse), np.asarray(coefficients))


def relative_penalties(design: FloatArray, strength: float) -> FloatArray:
    """One penalty for all columns, a share of their mean square."""
    size = float(np.square(design).sum(0).mean()) if design.size else 1.0
    return np.full(design.shape[1], strength * max(size, 1e-300))
