"""Tables are read as linear interpolation has it, and are fine where functions bend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from nobsp import NObSP
from nobsp.tabular.lookup import Chunk, LevelAxis, NumberAxis, TermTable
from tests.tabular.nets import net, ridge_functions, table
from tests.tolerances import assert_same_to_rounding


def read(table: TermTable, *columns: Any) -> np.ndarray:
    return table(
        Chunk(
            {k: np.asarray(column) for k, column in enumerate(columns)}, slice(0, len(columns[0]))
        )
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    knots=st.integers(2, 60),
    outputs=st.integers(1, 3),
    tails=st.booleans(),
)
def test_lines_are_those_of_numpy_and_go_on_beyond_the_ends(
    seed: int, knots: int, outputs: int, tails: bool
) -> None:
    rng = np.random.default_rng(seed)
    at = np.sort(rng.standard_cauchy(knots) if tails else rng.normal(size=knots))
    values, x = (
        rng.normal(size=(knots, outputs)),
        np.concatenate([at, rng.uniform(at[0], at[-1], 50)]),
    )
    one = TermTable((0,), (NumberAxis(0, at),), values)
    expected = np.stack([np.interp(x, at, values[:, o]) for o in range(outputs)], 1)
    assert_same_to_rounding(read(one, x), expected, within=1e-9)
    slope = (values[-1] - values[-2]) / (at[-1] - at[-2])
    assert_same_to_rounding(
        read(one, [at[-1] + 2.0])[0], values[-1] + 2 * slope, within=1e-9, size=1 + abs(slope).max()
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), sizes=st.tuples(st.integers(2, 9), st.integers(2, 9)))
def test_grids_are_those_of_scipy_and_held_at_their_edges(
    seed: int, sizes: tuple[int, int]
) -> None:
    rng = np.random.default_rng(seed)
    axes = [np.sort(rng.normal(size=size)) for size in sizes]
    values = rng.normal(size=(*sizes, 2))
    one = TermTable((0, 1), tuple(NumberAxis(k, at) for k, at in enumerate(axes)), values)
    x = rng.normal(size=(80, 2)) * 3
    held = np.stack([np.clip(x[:, k], axes[k][0], axes[k][-1]) for k in range(2)], 1)
    expected = RegularGridInterpolator(axes, values)(held)
    assert_same_to_rounding(read(one, x[:, 0], x[:, 1]), expected, within=1e-9)


def test_a_missing_number_has_a_node_or_none() -> None:
    at, values = np.array([0.0, 1.0]), np.array([[2.0], [4.0]])
    assert np.isnan(read(TermTable((0,), (NumberAxis(0, at),), values), [np.nan])).all()
    axis = NumberAxis(0, at, missing=True)
    one = TermTable((0,), (axis,), np.array([[2.0], [4.0], [7.0]]))
    assert read(one, [np.nan, 0.5, 2.0])[:, 0].tolist() == [7.0, 3.0, 6.0]
    grid = TermTable((0, 1), (axis, NumberAxis(1, at)), np.arange(6.0).reshape(3, 2, 1))
    assert read(grid, [np.nan, 0.0], [0.5, np.nan])[0, 0] == 4.5
    assert np.isnan(read(grid, [np.nan, 0.0], [0.5, np.nan])[1, 0])


def test_rows_that_are_remembered_on_an_axis_are_read_alike() -> None:
    axis = NumberAxis(0, np.array([0.0, 1.0]), missing=True)
    line = TermTable((0,), (axis,), np.array([[2.0], [4.0], [7.0]]))
    grid = TermTable(
        (0, 1), (axis, NumberAxis(1, np.array([0.0, 1.0]))), np.arange(6.0).reshape(3, 2, 1)
    )
    columns = {0: np.array([np.nan, 0.5, 3.0]), 1: np.array([0.5, 2.0, -1.0])}
    remembered = Chunk(columns, slice(0, 3), remembers=True)

    for _ in range(2):
        # A line goes on beyond its ends, where a grid on the same axis is held.
        assert line(remembered)[:, 0].tolist() == [7.0, 3.0, 8.0]
        assert grid(remembered)[:, 0].tolist() == [4.5, 2.0, 2.0]


def test_a_level_that_is_not_known_has_the_mean() -> None:
    one = TermTable((0,), (LevelAxis((0,), ("oslo", "rome")),), np.array([[1.0], [-1.0]]))
    assert read(one, np.array(["rome", "paris", None, "oslo"], dtype=object))[:, 0].tolist() == [
        -1.0,
        0.0,
        0.0,
        1.0,
    ]


# ---------------------------------------------------------------------- knots


def curve_error(function: Any, X: np.ndarray, grid: np.ndarray) -> float:
    model = ridge_functions(
        [np.array([1.0, 0.0]), np.array([0.0, 1.0])], [function, np.sin], reach=16.0
    )
    found = NObSP(model, interactions=0).fit(X).function("x0")(grid)
    with torch.no_grad():
        rows = torch.tensor(np.column_stack([grid, np.zeros_like(grid)]))
        expected = model(rows).numpy()[:, 0]
        spread = float(model(torch.tensor(X)).std())
    return float(np.abs((found - found.mean()) - (expected - expected.mean())).max() / spread)


@pytest.mark.parametrize(
    "function", [np.abs, lambda x: np.maximum(x - 0.5, 0), lambda x: np.where(x > 1, x, 0.0)]
)
def test_knots_are_close_where_a_function_bends(function: Any) -> None:
    """A kink between two knots costs at most their distance, and they come closer until it is a thousandth."""
    X = table("relu", 1000, columns=2)
    assert curve_error(function, X, np.linspace(-2.5, 2.5, 2001)) < 2e-3


def test_heavy_tails_have_knots_of_their_own() -> None:
    X = np.random.default_rng(0).normal(size=(2000, 2))
    X[:, 0] = np.clip(np.random.default_rng(1).standard_t(1.5, size=2000), -15, 15)
    assert (
        curve_error(lambda x: np.abs(x) + np.maximum(x - 6, 0), X, np.linspace(-14, 14, 3001))
        < 2e-3
    )


@pytest.mark.parametrize("kind", ["relu", "embedding"])
def test_explaining_is_reading_the_tables(kind: str) -> None:
    X = table(kind, 300)
    explainer = NObSP(net(kind, outputs=2), interactions=[("x0", "x2"), ("x1", "x3")]).fit(X)
    rows = table(kind, 50, seed=3)
    found, functions = explainer(rows), explainer.compile()
    np.testing.assert_array_equal(functions(rows).values, found.values)
    for place, term in enumerate(explainer.terms_):
        columns = [rows[:, int(name[1:])] for name in term]
        for output in range(2):
            value = explainer.function(term if len(term) > 1 else term[0], output=output)(*columns)
            np.testing.assert_array_equal(value, found.values[:, place, output])
    for one in functions.tables:
        if len(one.features) == 1 and isinstance(one.axes[0], NumberAxis):
            x, axis = rows[:, one.features[0]], one.axes[0]
            inside = (x >= axis.knots[0]) & (x <= axis.knots[-1])
            expected = np.interp(x[inside], axis.knots, one.values[:, 0])
            assert_same_to_rounding(found.values[inside, one.features[0], 0], expected, within=1e-9)
