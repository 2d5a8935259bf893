"""Tables under a rule: rising, falling, smooth, flat beyond a number, replaced or within bounds.

Rising and falling mean throughout.

A rising sum. With g the function of the feature itself and T_k its interactions, the sum rises in x
whatever the other features are where g + Σ_k T_k does so for every combination of their nodes. It
is written as p + Σ_k (T_k + h_k), a part h_k of g lent to each interaction, with p and every T_k +
h_k rising; the nearest such sum in the measure of the rows is found by projecting one part after
another (isotonic regression) on what the others leave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nobsp._typing import AnyArray, ArrayLike, FloatArray
from nobsp.tabular.heights import flat_beyond_ends, weights_of_nodes, wider
from nobsp.tabular.lookup import Axis, Chunk, NumberAxis, TermTable

# Rounds of projections; the loss is rarely lower after more.
_ROUNDS = 25
# A round that mends less than this share ends them.
_LEAST_GAIN = 1e-4
# What a node without rows weighs, as a share of one row: it follows its neighbours, at next to no
# cost.
_WEIGHT_OF_NONE = 1e-6
# Decreases below this share of a function's range are rounding.
_ROUNDING = 1e-12
# Freedom of a smooth function: about as many bends as this less two.
SMOOTH_FREEDOM = 6.0
# What a node without rows weighs where a function is made smooth, as a share of a usual one.
_WEIGHT_BEYOND = 0.02
# Knots that a smooth function is drawn with.
_SMOOTH_KNOTS = 32
_FLAT = re.compile(r"flat (above|below) ([-+]?[0-9][0-9_,.]*(?:e[-+]?[0-9]+)?)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class _Part:
    """A table with the feature's axis first.

    Its heights have shape (nodes along the axis, nodes of the others, outputs).
    """

    table: TermTable
    position: int  # of the feature among the table's
    knots: FloatArray  # numbers along the axis, increasing
    order: Any  # nodes in this order
    heights: FloatArray
    shares: FloatArray  # of the rows at every node, (nodes, nodes of the others)

    @classmethod
    def of(cls, table: TermTable, feature: int, rows: Chunk) -> _Part:
        position = table.features.index(feature)
        axis = table.axes[position]
        knots, order = ordered_nodes(axis)
        moved = np.moveaxis(table.values, position, 0)
        flat = moved.reshape(moved.shape[0], -1, moved.shape[-1])

        along = weights_of_nodes(axis, rows)[:, order]
        across = np.ones((rows.count, 1))
        for k, other in enumerate(table.axes):
            if k != position:
                weights = weights_of_nodes(other, rows)
                products = across[:, :, None] * weights[:, None, :]
                across = products.reshape(rows.count, -1)
        return cls(
            table=table,
            position=position,
            knots=knots,
            order=order,
            heights=flat[order],
            shares=along.T @ across,
        )

    def rebuilt(self, heights: FloatArray) -> TermTable:
        """The table with other heights at the ordered nodes; what stands for missing stays."""
        moved = np.moveaxis(self.table.values, self.position, 0)
        flat = moved.reshape(moved.shape[0], -1, moved.shape[-1]).copy()
        flat[self.order] = heights
        values = np.moveaxis(flat.reshape(moved.shape), 0, self.position)
        return TermTable(self.table.features, self.table.axes, np.ascontiguousarray(values))


def ordered_nodes(axis: Axis) -> tuple[FloatArray, Any]:
    """The numbers along an axis in increasing order, and the nodes that have them."""
    if isinstance(axis, NumberAxis):
        return axis.knots, np.arange(len(axis.knots))
    if isinstance(axis.levels, tuple) or axis.levels.shape[1] != 1:
        raise TypeError(
            "the feature is a category, whose levels have no order; pass a function from levels to "
            "contributions instead."
        )
    numbers = axis.levels[:, 0]
    order = np.argsort(numbers, kind="stable")
    order = order[np.isfinite(numbers[order])]  # a missing one has no place among them
    return numbers[order], order


def rising(
    tables: Sequence[TermTable],
    feature: int,
    rows: Chunk,
    *,
    falling: bool,
    outputs: Sequence[int],
) -> list[TermTable]:
    """All tables of a feature, changed as little as possible so that their sum rises in it.

    With `falling`, the sum falls. The change is measured on the rows.

    The first table is the function of the feature itself.
    """
    sign = -1.0 if falling else 1.0
    main = with_knots(tables[0], _all_knots(tables, feature))
    parts = [_Part.of(table, feature, rows) for table in (main, *tables[1:])]
    heights = [part.heights.copy() for part in parts]
    changed = False
    for output in outputs:
        own = [sign * part.heights[..., output] for part in parts]
        projected = _project(parts, own, rows)
        if projected is None:
            continue
        changed = True
        for height, new in zip(heights, projected, strict=True):
            height[..., output] = sign * new
    if not changed:
        return list(tables)
    return [part.rebuilt(height) for part, height in zip(parts, heights, strict=True)]


def _all_knots(tables: Sequence[TermTable], feature: int) -> FloatArray:
    """Knots of a feature in any of its tables; none for levels, which are the same everywhere."""
    knots = [np.zeros(0)]
    for table in tables:
        axis = table.axes[table.features.index(feature)]
        if isinstance(axis, NumberAxis):
            knots.append(axis.knots)
    return np.unique(np.concatenate(knots))


def _project(
    parts: Sequence[_Part], own: Sequence[FloatArray], rows: Chunk
) -> list[FloatArray] | None:
    """Heights of every part so that the sum rises; None where it does already."""
    lent = _lend(parts, own)
    if lent is None:
        return None

    main = own[0].copy()
    interactions = []
    for part, height, loan in zip(parts[1:], own[1:], lent, strict=True):
        main -= loan(parts[0].knots)[:, None]
        interactions.append(height + loan(part.knots)[:, None])

    weights = [np.maximum(part.shares, _WEIGHT_OF_NONE) for part in parts]
    start = [main, *interactions]
    heights = [_isotonic(height, weight) for height, weight in zip(start, weights, strict=True)]

    designs = [_design(part, rows) for part in parts]
    by_part = [design @ height.ravel() for design, height in zip(designs, own, strict=True)]
    target = np.sum(by_part, axis=0)
    heights = _improve(heights, designs, weights, target)
    return _purified(parts, heights)


def _lend(
    parts: Sequence[_Part], own: Sequence[FloatArray]
) -> list[Callable[[FloatArray], FloatArray]] | None:
    """What of the main function every interaction is lent; None where the sum rises already."""
    knots = parts[0].knots
    steps = np.diff(own[0][:, 0])
    needs = []
    for part, height in zip(parts[1:], own[1:], strict=True):
        steepest = np.diff(height, axis=0).min(1)
        falls = np.maximum(-steepest, 0.0)
        total = np.concatenate([[0.0], np.cumsum(falls)])
        at_knots = np.interp(knots, part.knots, total)
        needs.append(np.diff(at_knots))
    needed = np.sum(needs, axis=0) if needs else np.zeros(len(steps))
    size = max(float(np.ptp(height)) for height in own)
    if (steps >= needed - _ROUNDING * size).all():
        return None

    with np.errstate(divide="ignore", invalid="ignore"):
        affordable = np.maximum(steps, 0) / needed
    share = np.where(needed > 0, np.clip(affordable, 0, 1), 0.0)
    lent: list[Callable[[FloatArray], FloatArray]] = []
    for part, need in zip(parts[1:], needs, strict=True):
        total = np.concatenate([[0.0], np.cumsum(share * need)])
        at_knots = np.interp(part.knots, knots, total)
        lent.append(_line(part.knots, at_knots))
    return lent


def _line(knots: FloatArray, heights: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """A function of one number that is flat beyond its knots, as grids are."""

    def line(x: FloatArray) -> FloatArray:
        return np.interp(x, knots, heights)

    return line


def _design(part: _Part, rows: Chunk) -> Any:
    """What every node of a part does to every row, a sparse matrix (rows, nodes)."""
    from scipy import sparse

    along = weights_of_nodes(part.table.axes[part.position], rows)
    design = sparse.csr_array(along[:, part.order])
    for k, other in enumerate(part.table.axes):
        if k == part.position:
            continue
        weights = sparse.csr_array(weights_of_nodes(other, rows))
        design = _row_products(design, weights)
    return design


def _row_products(first: Any, second: Any) -> Any:
    """Products of every entry of a row with every entry of the same row, both matrices sparse.

    Every entry on the left is repeated for each entry that its row has on the right.
    """
    from scipy import sparse

    n_rows = first.shape[0]
    left = sparse.csr_array(first)
    right = sparse.csr_array(second)
    row_of_entry = np.repeat(np.arange(n_rows), np.diff(left.indptr))
    n_right = np.diff(right.indptr)
    repeats = n_right[row_of_entry]
    from_left = np.repeat(np.arange(left.nnz), repeats)

    # The entries of a row on the right lie one after another, from where the row begins.
    first_product = np.cumsum(repeats) - repeats
    within_row = np.arange(len(from_left)) - np.repeat(first_product, repeats)
    row_begins = right.indptr[row_of_entry]
    from_right = np.repeat(row_begins, repeats) + within_row

    values = left.data[from_left] * right.data[from_right]
    columns = left.indices[from_left] * second.shape[1] + right.indices[from_right]
    rows = row_of_entry[from_left]
    shape = (n_rows, first.shape[1] * second.shape[1])
    return sparse.csr_array((values, (rows, columns)), shape=shape)


def _isotonic(heights: FloatArray, weights: FloatArray) -> FloatArray:
    """The nearest heights that rise along the first axis, column by column."""
    from sklearn.isotonic import isotonic_regression

    columns = [
        isotonic_regression(heights[:, k], sample_weight=weights[:, k])
        for k in range(heights.shape[1])
    ]
    # Sums of equal numbers may differ by rounding.
    return np.maximum.accumulate(np.stack(columns, axis=1), axis=0)


def _improve(
    heights: list[FloatArray],
    designs: Sequence[Any],
    weights: Sequence[FloatArray],
    target: FloatArray,
) -> list[FloatArray]:
    """Projects one part after another on what the others leave, while the rows' loss falls."""
    read = [design @ height.ravel() for design, height in zip(designs, heights, strict=True)]
    residual = target - np.sum(read, axis=0)
    loss = float(residual @ residual)
    counts = [np.maximum(design.sum(0), _WEIGHT_OF_NONE) for design in designs]

    for _ in range(_ROUNDS):
        before = loss
        for k, design in enumerate(designs):
            step = (design.T @ residual) / counts[k]
            stepped = heights[k] + step.reshape(heights[k].shape)
            moved = _isotonic(stepped, weights[k]) - heights[k]
            change = design @ moved.ravel()
            size = float(change @ change)
            if size == 0.0:
                continue
            # Any point between two that rise does so too; the best one on the way is taken.
            best = float(change @ residual) / size
            length = min(max(best, 0.0), 1.0)
            heights[k] = heights[k] + length * moved
            residual = residual - length * change
        loss = float(residual @ residual)
        if loss >= before * (1 - _LEAST_GAIN):
            break
    return heights


def _purified(parts: Sequence[_Part], heights: Sequence[FloatArray]) -> list[FloatArray]:
    """The same sum with interactions that are zero on average over the rows."""
    main = heights[0].copy()
    result = []
    for part, height in zip(parts[1:], heights[1:], strict=True):
        share = part.shares.sum(0)
        if share.sum() <= 0:
            share = np.ones(len(share))
        share = share / share.sum()
        average = height @ share
        main[:, 0] += np.interp(parts[0].knots, part.knots, average)
        result.append(height - average[:, None])
    return [main, *result]


def with_knots(table: TermTable, knots: FloatArray, *, feature: int | None = None) -> TermTable:
    """The same function with more knots along a feature; a grid is held at its edges.

    The new knots may lie beyond these edges.
    """
    position = 0 if feature is None else table.features.index(feature)
    axis = table.axes[position]
    if not isinstance(axis, NumberAxis):
        return table
    union = np.unique(np.concatenate([axis.knots, knots]))
    if len(union) == len(axis.knots):
        return table

    moved = np.moveaxis(table.values, position, 0)
    is_grid = len(table.axes) > 1
    x = np.clip(union, axis.knots[0], axis.knots[-1]) if is_grid else union
    segments = axis.segments(x)
    along = axis.along(x, segments)
    along = along.reshape(-1, *([1] * (moved.ndim - 1)))
    values = moved[segments] * (1 - along) + moved[segments + 1] * along
    if axis.missing:
        values = np.concatenate([values, moved[-1:]])
    return _on_other_knots(table, position, union, values)


def _on_other_knots(
    table: TermTable, position: int, knots: FloatArray, heights: FloatArray
) -> TermTable:
    """A table with other knots along one axis; `heights` have that axis first."""
    axis = table.axes[position]
    assert isinstance(axis, NumberAxis)
    axes = list(table.axes)
    axes[position] = NumberAxis(axis.column, knots, missing=axis.missing)
    values = np.moveaxis(heights, 0, position)
    return TermTable(table.features, tuple(axes), np.ascontiguousarray(values))


def smooth(table: TermTable, feature: int, rows: Chunk, *, outputs: Sequence[int]) -> TermTable:
    """The function with few bends along a feature, by a penalty on second differences.

    It is fitted in the measure of the rows.
    """
    position = table.features.index(feature)
    axis = table.axes[position]
    if not isinstance(axis, NumberAxis):
        raise TypeError("only functions of numbers can be smooth; a category's levels are apart.")
    numbers = rows.numbers(axis.column)
    knots = _knots_of_a_smooth_line(numbers[np.isfinite(numbers)], axis.knots)
    if len(knots) <= SMOOTH_FREEDOM:
        return table

    part = _Part.of(table, feature, rows)
    shares = part.shares.sum(1)

    # Beyond the rows the function keeps near what it was, instead of going straight on.
    weights = np.maximum(shares, _WEIGHT_BEYOND * shares.mean())
    smoother = _smoother(part.knots, knots, weights)
    moved = np.moveaxis(table.values, position, 0)
    present = moved[: len(axis.knots)]
    absent = moved[len(axis.knots) :]
    flat = present.reshape(len(axis.knots), -1)
    smoothed = (smoother @ flat).reshape(len(knots), *present.shape[1:])

    # Other outputs stay as they are, on the same knots.
    finer = with_knots(table, knots, feature=feature)
    if len(outputs) < table.values.shape[-1]:
        smoothed = _mixed(finer, position, knots, smoothed, outputs)
        grown = finer.axes[position]
        assert isinstance(grown, NumberAxis)
        knots = grown.knots

    return _on_other_knots(table, position, knots, np.concatenate([smoothed, absent]))


def _mixed(
    finer: TermTable,
    position: int,
    knots: FloatArray,
    smoothed: FloatArray,
    outputs: Sequence[int],
) -> FloatArray:
    """Heights on all knots: of some outputs those of a smooth line, of the others their own."""
    axis = finer.axes[position]
    assert isinstance(axis, NumberAxis)
    heights = np.moveaxis(finer.values, position, 0)[: len(axis.knots)].copy()
    reading = _reading(axis.knots, knots)
    for output in outputs:
        flat = smoothed[..., output].reshape(len(knots), -1)
        heights[..., output] = (reading @ flat).reshape(heights[..., output].shape)
    return heights


def _knots_of_a_smooth_line(numbers: FloatArray, knots: FloatArray) -> FloatArray:
    """The ends of a function, and knots between them that follow the rows, none nearly equal."""
    between: FloatArray = np.zeros(0)
    if len(numbers):
        between = np.quantile(numbers, np.linspace(0, 1, _SMOOTH_KNOTS))
    candidates = np.unique(np.concatenate([between, knots[[0, -1]]]))
    candidates = candidates[(candidates >= knots[0]) & (candidates <= knots[-1])]
    width = knots[-1] - knots[0]
    apart = np.diff(candidates) > 1e-6 * width
    return np.asarray(candidates[np.concatenate([[True], apart])])


def _reading(x: FloatArray, knots: FloatArray) -> FloatArray:
    """How much each of some knots counts for each of some numbers."""
    axis = NumberAxis(0, knots)
    return weights_of_nodes(axis, Chunk({0: x}, slice(0, len(x))))


def _smoother(former: FloatArray, knots: FloatArray, weights: FloatArray) -> FloatArray:
    """(Aᵀ W A + λ P)⁻¹ Aᵀ W: from heights at former knots to smooth ones.

    λ is chosen by how much freedom is left.
    """
    reading = _reading(former, knots)
    widths = np.diff(knots)
    n = len(knots)
    bends = np.zeros((n - 2, n))
    for k in range(n - 2):
        scale = np.sqrt((widths[k] + widths[k + 1]) / 2)
        bends[k, k] = 1 / widths[k] / scale
        bends[k, k + 2] = 1 / widths[k + 1] / scale
        bends[k, k + 1] = -bends[k, k] - bends[k, k + 2]

    weighted = reading.T * weights
    products = weighted @ reading
    penalty = bends.T @ bends
    # In units in which the two are comparable; a trace then says where to search.
    penalty *= np.trace(products) / max(np.trace(penalty), 1e-300)
    ground = 1e-9 * np.trace(products) / n * np.eye(n)

    def smoother(strength: float) -> FloatArray:
        return np.asarray(np.linalg.solve(products + strength * penalty + ground, weighted))

    # Halves an interval of logarithms: the stronger the penalty, the less freedom is left.
    low = -30.0
    high = 30.0
    for _ in range(60):
        middle = (low + high) / 2
        hat_by_knot = smoother(np.exp(middle)) * reading.T
        if float(hat_by_knot.sum()) > SMOOTH_FREEDOM:
            low = middle
        else:
            high = middle
    return smoother(float(np.exp(high)))


def read_flat(rule: str) -> tuple[bool, float] | None:
    """Whether a rule says "flat above" (or below) a number, and which; None for other rules."""
    match = _FLAT.fullmatch(rule.strip())
    if match is None:
        return None
    number = match.group(2).replace("_", "").replace(",", "")
    return match.group(1).lower() == "above", float(number)


def flat_beyond(
    table: TermTable, feature: int, number: float, *, above: bool, outputs: Sequence[int]
) -> TermTable:
    """The function held at its value at a number, above or below it."""
    position = table.features.index(feature)
    axis = table.axes[position]
    if not isinstance(axis, NumberAxis):
        raise TypeError("only functions of numbers can be flat above or below one.")
    is_grid = len(table.axes) > 1
    if is_grid and not axis.knots[0] < number < axis.knots[-1]:
        inside = number <= axis.knots[0] if above else number >= axis.knots[-1]
        number = float(np.clip(number, axis.knots[0], axis.knots[-1]))
        if not inside:
            return table

    # A second knot beyond the number, so that the line that goes on from the last two is flat.
    first = axis.knots[0]
    last = axis.knots[-1]
    width = last - first
    outer = max(number, last) + width if above else min(number, first) - width
    knots = [number] if is_grid else [number, outer]
    table = with_knots(table, np.array(knots), feature=feature)

    part_axis = table.axes[position]
    assert isinstance(part_axis, NumberAxis)
    moved = np.moveaxis(table.values, position, 0).copy()
    at = int(np.searchsorted(part_axis.knots, number))
    beyond = slice(at, len(part_axis.knots)) if above else slice(0, at + 1)
    for output in outputs:
        moved[beyond, ..., output] = moved[at, ..., output]
    values = np.ascontiguousarray(np.moveaxis(moved, 0, position))
    return TermTable(table.features, table.axes, values)


def replaced(
    table: TermTable,
    function: Callable[[AnyArray], ArrayLike],
    *,
    name: str,
    outputs: Sequence[int],
) -> TermTable:
    """The function of a feature replaced by another, at its knots or levels."""
    axis = table.axes[0]
    if isinstance(axis, NumberAxis):
        nodes: Any = axis.knots.copy()
    elif isinstance(axis.levels, tuple):
        nodes = np.array(axis.levels, dtype=object)
    elif axis.levels.shape[1] == 1:
        nodes = axis.levels[:, 0]
    else:
        nodes = axis.levels.copy()

    heights = np.asarray(function(nodes), dtype=np.float64)
    expected = (len(nodes),)
    if heights.shape not in (expected, (len(nodes), len(outputs))):
        raise ValueError(
            f"the rule for {name!r} gives shape {heights.shape} for {len(nodes)} values; it must "
            f"give {expected}."
        )
    if not np.isfinite(heights).all():
        raise ValueError(f"the rule for {name!r} gives numbers that are not finite.")
    values = table.values.copy()
    values[: len(nodes), list(outputs)] = heights.reshape(len(nodes), -1)
    return TermTable(table.features, table.axes, values)


def bounded(
    table: TermTable, least: float | None, most: float | None, *, outputs: Sequence[int]
) -> TermTable:
    """The function of a feature held between two contributions, also beyond its knots."""
    low = -np.inf if least is None else least
    high = np.inf if most is None else most
    axis = table.axes[0]
    if isinstance(axis, NumberAxis):
        table = with_knots(table, wider(axis.knots)[[0, -1]])
        table = with_knots(table, _crossings(table, (low, high), outputs))

    values = table.values.copy()
    changed = list(outputs)
    values[:, changed] = np.clip(values[:, changed], low, high)
    return flat_beyond_ends(TermTable(table.features, table.axes, values))


def _crossings(table: TermTable, bounds: Sequence[float], outputs: Sequence[int]) -> FloatArray:
    """Numbers at which a function crosses one of some bounds, between its knots."""
    axis = table.axes[0]
    assert isinstance(axis, NumberAxis)
    knots = axis.knots
    crossings = []
    for output in outputs:
        heights = table.values[: len(knots), output]
        for bound in bounds:
            if not np.isfinite(bound):
                continue
            over = heights - bound
            where = np.flatnonzero(over[:-1] * over[1:] < 0)
            share = over[where] / (over[where] - over[where + 1])
            crossings.append(knots[where] + share * np.diff(knots)[where])
    return np.concatenate(crossings) if crossings else np.zeros(0)
