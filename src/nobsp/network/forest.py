"""Trees on grids: answers of a tree model on all nodes of a grid, by walking each tree once.

A grid varies few features and leaves the others as in some background rows. Where a tree asks for
one of the others, the background row decides; where it asks for a feature of the grid, the lines of
the grid part in two. What is left of a tree are boxes of nodes that share a leaf: some four for a
pair of eight features and trees of depth six, where running the model would take every node down
every tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.intp]

# Boxes that are walked at once: a step takes some numbers for each.
_MOST_BOXES = 1_000_000


class Tree(NamedTuple):
    """The nodes of one tree, the first its root."""

    column: Places  # that a node asks for; -1 for leaves
    cut: Array
    left: Places  # the node that follows
    right: Places
    missing_left: NDArray[np.bool_]
    value: Array  # of leaves


@dataclass(frozen=True, eq=False)
class Forest:
    """The nodes of all trees, one after another, and what groups of trees start from."""

    column: Places  # that a node asks for; -1 for leaves
    cut: Array  # numbers below it, or up to it, go to the left
    left: Places  # the node that follows
    right: Places
    missing_left: NDArray[np.bool_]  # where missing numbers go
    value: Array  # of leaves
    roots: Places
    group: Places  # the number of the representation that each tree adds to
    start: Array  # what every number of the representation has besides its trees
    strict: bool  # whether the cut itself goes to the right
    single: bool  # whether numbers are compared in single precision

    @classmethod
    def of(
        cls,
        trees: Sequence[Tree],
        *,
        group: Sequence[int] | Places,
        start: Array,
        strict: bool,
        single: bool,
    ) -> Forest:
        """Trees that were read one by one; `group` is the number that each adds to."""
        sizes = [len(tree.column) for tree in trees]
        roots = np.cumsum([0, *sizes[:-1]])
        offset = np.repeat(roots, sizes)
        nodes = Tree(*(np.concatenate(arrays) for arrays in zip(*trees, strict=True)))
        return cls(
            column=nodes.column.astype(np.intp),
            cut=nodes.cut.astype(np.float64),
            left=nodes.left.astype(np.intp) + offset,
            right=nodes.right.astype(np.intp) + offset,
            missing_left=nodes.missing_left.astype(bool),
            value=nodes.value.astype(np.float64),
            roots=roots.astype(np.intp),
            group=np.asarray(group, dtype=np.intp),
            start=start,
            strict=strict,
            single=single,
        )

    @property
    def width(self) -> int:
        """How many numbers the representation has."""
        return len(self.start)

    def answer(self, rows: Array) -> Array:
        """The representation of some rows, (rows, width)."""
        boxes = self._walk(rows, (), ())
        totals = np.bincount(
            boxes.background * self.width + boxes.group,
            weights=boxes.value,
            minlength=len(rows) * self.width,
        )
        return np.asarray(totals.reshape(len(rows), self.width) + self.start)

    def answer_on_grid(
        self, background: Array, columns: Sequence[int], lines: Sequence[Array], weight: Array
    ) -> tuple[Array, Array]:
        """The representation on a grid averaged over background rows, and each row's head outputs.

        Args:
            background: Rows that hold the other columns.
            columns: The columns of the grid's sides, all different.
            lines: Numbers of each side, ascending; the last may be missing.
            weight: The head's coefficients, (width, outputs).

        Returns:
            Arrays (lines …, width) and (background, lines …, outputs).
        """
        count = len(background)
        sizes = tuple(len(line) for line in lines)
        boxes = self._walk(background, columns, lines)

        mean = _fill(boxes, boxes.group, boxes.value / count, sizes, parts=self.width)
        mean = np.moveaxis(mean, 0, -1) + self.start
        outputs = np.empty((count, *sizes, weight.shape[1]))
        for output in range(weight.shape[1]):
            values = boxes.value * weight[boxes.group, output]
            filled = _fill(boxes, boxes.background, values, sizes, parts=count)
            outputs[..., output] = filled + self.start @ weight[:, output]
        return mean, outputs

    def _walk(self, background: Array, columns: Sequence[int], lines: Sequence[Array]) -> _Boxes:
        """Boxes of nodes that share a leaf, for every tree and background row."""
        rows_at_once = max(_MOST_BOXES // max(8 * len(self.roots), 1), 1)
        parts = []
        for first in range(0, len(background), rows_at_once):
            rows = background[first : first + rows_at_once]
            boxes = self._walk_rows(self._as_compared(rows), columns, lines)
            parts.append(boxes._replace(background=boxes.background + first))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _walk_rows(self, rows: Array, columns: Sequence[int], lines: Sequence[Array]) -> _Boxes:
        """The same for few background rows: all trees go down together, a step at a time."""
        sides = [_Side.of(self._as_compared(line), strict=self.strict) for line in lines]
        side_of_column = np.full(rows.shape[1], -1)
        side_of_column[list(columns)] = np.arange(len(sides))

        n_trees = len(self.roots)
        n_walks = n_trees * len(rows)
        ends = np.array([side.size for side in sides], dtype=np.intp)
        walks = _Boxes(
            node=np.tile(self.roots, len(rows)),
            group=np.tile(self.group, len(rows)),
            background=np.repeat(np.arange(len(rows)), n_trees),
            value=np.zeros(n_walks),
            low=np.zeros((len(sides), n_walks), dtype=np.intp),
            high=np.repeat(ends[:, None], n_walks, axis=1),
        )
        finished = []
        while len(walks.node):
            column = self.column[walks.node]
            is_leaf = column < 0
            finished.append(walks.take(is_leaf))

            walks = walks.take(~is_leaf)
            asked = side_of_column[column[~is_leaf]]
            parted = [self._follow_rows(walks.take(asked < 0), rows)]
            for number, side in enumerate(sides):
                parted += self._part(walks.take(asked == number), number, side)
            walks = _joined(parted)

        boxes = _joined(finished)
        return boxes._replace(value=self.value[boxes.node])

    def _follow_rows(self, walks: _Boxes, rows: Array) -> _Boxes:
        """One step down where the background row decides."""
        node = walks.node
        numbers = rows[walks.background, self.column[node]]
        cut = self.cut[node]
        below = numbers < cut if self.strict else numbers <= cut
        goes_left = np.where(np.isnan(numbers), self.missing_left[node], below)
        return walks._replace(node=np.where(goes_left, self.left[node], self.right[node]))

    def _part(self, walks: _Boxes, number: int, side: _Side) -> list[_Boxes]:
        """One step down where the lines of a side part: below the cut, above it, and missing."""
        node = walks.node
        first_above = side.count_below(self.cut[node])
        missing_child = np.where(self.missing_left[node], self.left[node], self.right[node])
        n_numbers = len(side.numbers)
        parts = [
            walks.cropped(number, 0, first_above)._replace(node=self.left[node]),
            walks.cropped(number, first_above, n_numbers)._replace(node=self.right[node]),
        ]
        if side.size > n_numbers:
            missing = walks.cropped(number, n_numbers, side.size)
            parts.append(missing._replace(node=missing_child))
        return [part.take(part.low[number] < part.high[number]) for part in parts]

    def _as_compared(self, numbers: Array) -> Array:
        """Numbers as the trees compare them."""
        with np.errstate(over="ignore"):
            return numbers.astype(np.float32).astype(np.float64) if self.single else numbers


class _Side(NamedTuple):
    """A side of a grid."""

    numbers: Array  # ascending
    size: int  # with the missing one
    strict: bool

    @classmethod
    def of(cls, line: Array, *, strict: bool) -> _Side:
        return cls(line[~np.isnan(line)], len(line), strict)

    def count_below(self, cuts: Array) -> Places:
        """How many of the numbers go to the left of each cut."""
        return np.searchsorted(self.numbers, cuts, side="left" if self.strict else "right")


class _Boxes(NamedTuple):
    """Parts of a grid that go down a tree together; all arrays of the same length."""

    node: Places
    group: Places
    background: Places
    value: Array
    low: Places  # the first line of each side, (sides, boxes)
    high: Places  # the line after the last

    def take(self, which: NDArray[np.bool_]) -> _Boxes:
        return _Boxes(
            node=self.node[which],
            group=self.group[which],
            background=self.background[which],
            value=self.value[which],
            low=self.low[:, which],
            high=self.high[:, which],
        )

    def cropped(self, side: int, low: Places | int, high: Places | int) -> _Boxes:
        """These boxes without the lines of a side before `low` and from `high` on."""
        lows = self.low.copy()
        highs = self.high.copy()
        lows[side] = np.maximum(lows[side], low)
        highs[side] = np.minimum(highs[side], high)
        return self._replace(low=lows, high=highs)


def _joined(parts: Sequence[_Boxes]) -> _Boxes:
    return _Boxes(*(np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True)))


def _fill(
    boxes: _Boxes, part: Places, values: Array, sizes: tuple[int, ...], *, parts: int
) -> Array:
    """Sums of the values of all boxes over each node, (parts, lines …).

    Corners are filled first, then running sums are taken.
    """
    shape = (parts, *(size + 1 for size in sizes))
    corners = np.zeros(int(np.prod(shape)))
    for ends in product((0, 1), repeat=len(sizes)):
        index = [boxes.high[side] if end else boxes.low[side] for side, end in enumerate(ends)]
        flat = np.ravel_multi_index((part, *index), shape)
        sign = (-1) ** sum(ends)
        corners += np.bincount(flat, weights=sign * values, minlength=len(corners))

    filled = corners.reshape(shape)
    for axis in range(1, len(shape)):
        filled = filled.cumsum(axis)
    return np.asarray(filled[(slice(None), *(slice(size) for size in sizes))])
