"""The fewest features that still explain a model, taking over what the others had said.

Every feature has its columns: heights of a correction, its own contribution, and those of
interactions that it is part of, which go with any of their features. Coefficients are pulled
towards the functions as they are. Features go one after another, the one first whose loss is least:
its unique contribution, what the others cannot say in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nobsp._typing import (
    AnyArray,
    BoolArray,
    FloatArray,
    ModelLike,
    NativeFrame,
    TableLike,
)
from nobsp.arguments import require_number
from nobsp.frames import as_table
from nobsp.tabular.editing import DROPPED, Rows, record, without_feature
from nobsp.tabular.heights import Block, Ridge, add_tables, blocks_of, tables_of_blocks
from nobsp.tabular.indexing import term_name
from nobsp.tabular.lookup import Places, TermTable, read_tables

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions

# How strongly coefficients are held to the functions as they are, as a share of their columns' mean
# square.
_STRENGTH = 1e-3
# Share of the rows that are held out, and the fewest rows in all.
_HELD_OUT = 0.3
_FEWEST_ROWS = 20


@dataclass(frozen=True, eq=False, repr=False)
class FewestFeatures:
    """Which features are enough, and what every number of them explains.

    Attributes:
        features: The features that are kept, in the order of the table.
        dropped: Those that can go, the least missed first.
        share: What the kept ones explain on held-out rows, as a share of what all explain there.
        order: All features in the order in which they went; the last one went last.
        explained: Mean R² on held-out rows with all features, without the first of `order`, and so
            on.
        functions: The functions of the kept features, the others having taken over; they need no
            other column.
        rows: Rows that it was found on, held-out ones among them.
    """

    features: tuple[str, ...]
    dropped: tuple[str, ...]
    share: float
    order: tuple[str, ...]
    explained: tuple[float, ...]
    functions: Functions
    rows: int

    def to_frame(self) -> NativeFrame:
        """One row per number of features: how many, what they explain, and which went last."""
        n_features = len(self.order)
        return as_table(
            {
                "features": np.arange(n_features, 0, -1),
                "explained": np.array(self.explained[:n_features]),
                "without": np.array(["", *self.order[: n_features - 1]], dtype=object),
            }
        )

    def __repr__(self) -> str:
        if not self.features:
            return (
                f"The model is constant on held-out rows: none of its {len(self.order)} features "
                "is needed."
            )
        listed = ", ".join(self.features)
        return (
            f"{len(self.features)} of {len(self.order)} features explain {self.share:.1%} of what "
            f"all do on held-out rows: {listed}"
        )


@dataclass(frozen=True, eq=False)
class _Problem:
    """Columns of a regression for every output, and whose they are."""

    blocks: list[Block]
    members: list[tuple[int, ...]]  # per column the features it goes with
    heights: FloatArray  # (rows, heights): of the corrections, the same for all outputs
    terms: list[int]  # positions of the tables that have a column
    contributions: FloatArray  # (rows, terms, outputs), centred
    target: FloatArray  # (rows, outputs), centred

    def design(self, output: int) -> FloatArray:
        """All columns of one output."""
        return np.hstack([self.heights, self.contributions[:, :, output]])

    def columns_of(self, feature: int, gone: set[int]) -> list[int]:
        """Columns that go with a feature, and have not gone yet."""
        return [
            column
            for column, members in enumerate(self.members)
            if feature in members and not gone & set(members)
        ]


def find_fewest(
    functions: Functions,
    columns: dict[int, AnyArray],
    outputs: FloatArray,
    *,
    share: float,
) -> FewestFeatures:
    """Drops features while held-out rows are explained as well as they should be."""
    require_number("share", share, above=0, most=1)
    n_rows = len(outputs)
    if n_rows < _FEWEST_ROWS:
        raise ValueError(f"X has {n_rows} rows; at least {_FEWEST_ROWS} are needed.")
    problem = _pose(functions, columns, outputs)
    features = sorted({member for members in problem.members for member in members})
    unused = [k for k in range(len(functions.features)) if k not in features]

    is_held_out = _hold_out(n_rows)
    order, path = _go_one_by_one(problem, features, ~is_held_out)
    explained = [_share_explained(problem, coefficients, is_held_out) for coefficients in path]
    if not explained[0] >= 0:
        raise ValueError(
            f"X is explained with an R² of {explained[0]:.3g} on held-out rows by all features "
            "together, worse than by the mean, so no subset can be recommended; look for extreme "
            "values in X, or calibrate anew."
        )
    enough = [k for k, value in enumerate(explained) if value >= share * explained[0]]
    n_dropped = max(enough)
    gone = order[:n_dropped]

    names = functions.feature_names
    remaining = [names[k] for k in features if k not in gone]
    return FewestFeatures(
        features=tuple(remaining),
        dropped=(*(names[k] for k in unused), *(names[k] for k in gone)),
        share=explained[n_dropped] / explained[0] if explained[0] else 1.0,
        order=(*(names[k] for k in unused), *(names[k] for k in order)),
        explained=(*([explained[0]] * len(unused)), *explained),
        functions=_functions_without(functions, problem, gone, columns, outputs),
        rows=n_rows,
    )


def _pose(functions: Functions, columns: dict[int, AnyArray], outputs: FloatArray) -> _Problem:
    """The columns of the regression."""
    n_rows = len(outputs)
    values, _ = read_tables(functions, columns, n_rows)
    blocks = blocks_of(functions, columns, n_rows)
    terms = [k for k, table in enumerate(functions.tables) if table.axes]
    contributions = values[:, terms]
    members: list[tuple[int, ...]] = []
    for block in blocks:
        members += [(block.feature,)] * block.design.shape[1]
    members += [functions.tables[k].features for k in terms]

    heights = [block.design for block in blocks]
    return _Problem(
        blocks=blocks,
        members=members,
        heights=np.hstack(heights) if heights else np.zeros((n_rows, 0)),
        terms=terms,
        contributions=contributions - contributions.mean(0),
        target=outputs - outputs.mean(0),
    )


def _hold_out(n_rows: int) -> BoolArray:
    """Rows that are held out: the same ones for the same number of rows."""
    shuffled = np.random.default_rng(0).permutation(n_rows)
    is_held_out = np.zeros(n_rows, dtype=bool)
    is_held_out[shuffled[: max(int(_HELD_OUT * n_rows), 1)]] = True
    return is_held_out


def _regress(problem: _Problem, output: int, rows: BoolArray | Places) -> Ridge:
    """The regression of one output on all columns, with the functions as they are for its prior."""
    design = problem.design(output)[rows]
    n_heights = problem.heights.shape[1]
    squares = np.square(design).sum(0)
    # A contribution is held by its own size, heights by what they usually are.
    penalties = _STRENGTH * np.concatenate(
        [
            np.full(n_heights, squares[:n_heights].mean() if n_heights else 1.0),
            squares[n_heights:],
        ]
    )
    prior = np.zeros((design.shape[1], 1))
    prior[n_heights:] = 1.0
    target = problem.target[rows, output][:, None]
    floor = 1e-9 * max(float(squares.max(initial=0.0)), 1e-300)
    return Ridge.fit(design, target, penalties=penalties + floor, prior=prior)


def _go_one_by_one(
    problem: _Problem, features: Sequence[int], rows: BoolArray | Places
) -> tuple[list[int], list[list[FloatArray]]]:
    """The order in which features go, and each output's coefficients before each of them went."""
    n_outputs = problem.target.shape[1]
    ridges = [_regress(problem, output, rows) for output in range(n_outputs)]
    spread = np.maximum(problem.target[rows].var(0), 1e-300)
    gone: set[int] = set()
    order = []
    path = [[ridge.coefficients[:, 0] for ridge in ridges]]
    left = list(features)

    while left:
        losses = []
        for feature in left:
            columns = problem.columns_of(feature, gone)
            losses.append(
                sum(
                    float(ridge.loss(columns)[0]) / spread[output]
                    for output, ridge in enumerate(ridges)
                )
            )
        feature = left.pop(int(np.argmin(losses)))
        columns = problem.columns_of(feature, gone)
        ridges = [ridge.without(columns) for ridge in ridges]
        gone.add(feature)
        order.append(feature)
        path.append([ridge.coefficients[:, 0] for ridge in ridges])
    return order, path


def _share_explained(
    problem: _Problem, coefficients: Sequence[FloatArray], rows: BoolArray
) -> float:
    """Mean R² over the outputs that vary, on some rows."""
    shares = []
    for output, own in enumerate(coefficients):
        target = problem.target[rows, output]
        residual = target - problem.design(output)[rows] @ own
        total = float(np.square(target - target.mean()).sum())
        if total > 0:
            shares.append(1 - float(np.square(residual).sum()) / total)
    return float(np.mean(shares)) if shares else 1.0


def _functions_without(
    functions: Functions,
    problem: _Problem,
    gone: Sequence[int],
    columns: dict[int, AnyArray],
    outputs: FloatArray,
) -> Functions:
    """Functions of the features that are left, the coefficients of all rows in them."""
    if not gone:
        return functions
    n_heights = problem.heights.shape[1]
    everyone = np.arange(len(outputs))
    coefficients = []
    for output in range(outputs.shape[1]):
        ridge = _regress(problem, output, everyone)
        gone_already: set[int] = set()
        for feature in gone:
            ridge = ridge.without(problem.columns_of(feature, gone_already))
            gone_already.add(feature)
        coefficients.append(ridge.coefficients[:, 0])

    heights = np.stack([own[:n_heights] for own in coefficients], axis=1)
    scales = np.stack([own[n_heights:] for own in coefficients], axis=1)
    smaller = functions
    for feature in gone:
        smaller = without_feature(smaller, feature)
    tables = _scaled_tables(smaller, functions, problem, heights, scales)
    smaller = replace(smaller, tables=tables)

    # What was centred goes to the base.
    values, _ = read_tables(smaller, columns, len(outputs))
    base = (outputs - values.sum(1)).mean(0)
    smaller = replace(smaller, base_values=base)
    rows = Rows(columns, len(outputs), outputs)
    names = ", ".join(functions.feature_names[feature] for feature in gone)
    return record(functions, smaller, names, f"{DROPPED}, the others taking over", rows)


def _scaled_tables(
    smaller: Functions,
    functions: Functions,
    problem: _Problem,
    heights: FloatArray,
    scales: FloatArray,
) -> tuple[TermTable, ...]:
    """Tables of what is left: each by its factor, single features with their corrections."""
    factor = {functions.tables[k].features: scales[row] for row, k in enumerate(problem.terms)}
    corrections = tables_of_blocks(problem.blocks, heights)

    tables = []
    for table in smaller.tables:
        if table.axes and table.features in factor:
            table = TermTable(table.features, table.axes, table.values * factor[table.features])
            if table.features in corrections:
                table = add_tables(table, corrections[table.features])
        tables.append(table)
    return tuple(tables)


def fewest_features(
    functions: Functions, X: TableLike, model: ModelLike, *, share: float
) -> FewestFeatures:
    """The fewest features of functions on rows that a model answers for."""
    if functions.left_out:
        names = ", ".join(term_name(term) for term in functions.left_out)
        raise ValueError(
            f"features cannot be compared: there is no table for {names}; give every feature one "
            "column."
        )
    rows = Rows.read(functions, X, model).some()
    assert rows.outputs is not None
    known = np.isfinite(rows.outputs).all(1)
    columns = {column: values[known] for column, values in rows.columns.items()}
    return find_fewest(functions, columns, rows.outputs[known], share=share)
