"""Explaining without the network: as exact as promised, errors told truthfully, and no torch needed."""

import json
import re
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, OneHotEncoder, StandardScaler
from torch import nn

from nobsp import NObSP, store
from nobsp.tabular import CompiledExplainer
from nobsp.tabular.compiled import KIND, VERSION
from nobsp.tabular.knots import kinks, needed
from nobsp.tabular.lookup import LevelAxis, NumberAxis
from tests.tabular.nets import KINDS, from_layers, net, table
from tests.tolerances import CONTRIBUTIONS, PASS, SUMS, assert_same_to_rounding

# As a share of the spread, which a contribution may exceed.
EXACT = SUMS

PIECEWISE_LINEAR = {
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.2),
    "hardtanh": nn.Hardtanh,
    "relu6": nn.ReLU6,
    "prelu": nn.PReLU,
    "shrink": nn.Hardshrink,  # it also jumps
    "in place": lambda: nn.ReLU(inplace=True),
}


def layered(activation, *, columns=4, widths=(32, 16), outputs=1, seed=0, dtype=torch.float64):
    layers, width = [], columns
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for after in widths:
            layers += [nn.Linear(width, after), activation()]
            width = after
        return nn.Sequential(*layers, nn.Linear(width, outputs)).to(dtype)


class MaxOut(nn.Module):
    """Kinks that no activation module makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 32), nn.Linear(16, 16)
        self.pool = nn.MaxPool1d(2)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        z = self.pool(self.first(x)[:, None])[:, 0]
        return self.head(torch.relu(self.second(z)))


def calibrated(model, rows=300, *, columns=4, interactions=0, **options):
    X = table("relu", rows, columns=columns)
    return NObSP(model, interactions=interactions, **options).fit(X)


def points_of(compiled, rows, *, seed=1, limits=False, knots=True):
    """Random rows in the calibrated ranges (or out to the limits), a part of them at and close to knots."""
    rng = np.random.default_rng(seed)
    X = np.empty((rows, compiled.column_count))
    for feature in compiled.features:
        for column, (low, high) in zip(feature.columns, feature.limits if limits else feature.ranges, strict=True):
            X[:, column] = rng.uniform(low, high, rows)
            if knots and len(feature.columns) == 1:
                x = compiled.curve(feature.name)[0]
                x = x[(x >= low) & (x <= high)]
                near = rng.choice(x, rows // 4) + rng.choice([0, 1e-15, -1e-12, 1e-9, -1e-6], rows // 4)
                X[: rows // 4, column] = np.clip(near, low, high)
    return X


def shares(compiled, explainer, X):
    """Largest difference per term and output, as a share of the spread."""
    return np.abs(compiled(X).values - explainer(X).values).max(0) / compiled.spread


# ---------------------------------------------------------------------- piecewise-linear networks


@pytest.mark.parametrize("outputs", [1, 3])
def test_relu_networks_are_exact_at_many_points_also_near_knots(outputs):
    explainer = calibrated(layered(nn.ReLU, outputs=outputs))
    compiled = explainer.compile()
    assert all(term.exact for term in compiled.compiled)
    assert shares(compiled, explainer, points_of(compiled, 100_000)).max() <= EXACT
    assert shares(compiled, explainer, points_of(compiled, 20_000, limits=True)).max() <= EXACT


@pytest.mark.parametrize("activation", PIECEWISE_LINEAR)
def test_every_piecewise_linear_activation_is_exact(activation):
    explainer = calibrated(layered(PIECEWISE_LINEAR[activation]))
    compiled = explainer.compile()
    # Between which two neighbouring numbers a function jumps is for rounding to say, so a jump is close, not exact.
    assert activation == "shrink" or all(term.exact for term in compiled.compiled)
    X = points_of(compiled, 20_000, knots=activation != "shrink")
    assert shares(compiled, explainer, X).max() <= EXACT


def test_kinks_made_outside_of_activation_modules_are_found():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        explainer = calibrated(MaxOut().double())
    compiled = explainer.compile()
    assert all(term.exact for term in compiled.compiled)
    assert shares(compiled, explainer, points_of(compiled, 20_000)).max() <= EXACT


@given(
    widths=st.lists(st.integers(1, 24), min_size=1, max_size=3),
    outputs=st.integers(1, 3),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    shift=st.sampled_from([0.0, -3.0, 1e3]),
)
@settings(max_examples=25)
def test_random_relu_networks_in_any_units_are_exact(widths, outputs, seed, scale, shift):
    model = layered(nn.ReLU, columns=2, widths=widths, outputs=outputs, seed=seed)
    with torch.no_grad():  # the same network for a table in other units
        model[0].weight /= scale
        model[0].bias -= model[0].weight.sum(1) * shift * scale
    X = (table("relu", 100, columns=2, seed=seed) + shift) * scale
    explainer = NObSP(model, interactions=0).fit(X)
    compiled = explainer.compile()
    # A shift of a thousand costs three digits of every input before the network even sees it.
    found = np.abs(compiled(X).values - explainer(X).values).max((0, 1))
    assert (found <= EXACT * ((1 + abs(shift)) * compiled.spread + 1e-3)).all()


def test_the_knots_are_the_kinks_and_no_others():
    rng = np.random.default_rng(0)
    first, bias, last = rng.normal(size=(20, 2)), rng.normal(size=20), rng.normal(size=(1, 20))
    model = from_layers(first, bias, last, np.zeros(1))
    first, bias = (parameter.detach().numpy() for parameter in model.body[0].parameters())
    # What is active beyond the calibrated rows only has no coefficient, and its kink is not seen.
    compiled = NObSP(model, interactions=0, baseline="zero").fit(table("relu", 400, columns=2)).compile(reach=0)
    for column in range(2):
        knots = compiled.curve(f"x{column}")[0]
        low, high = compiled.features[column].limits[0]
        expected = np.sort(-bias / first[:, column])
        expected = expected[(expected > low) & (expected < high)]
        assert len(knots) == len(expected) + 2
        assert np.abs(knots[1:-1] - expected).max() < SUMS


def test_a_narrow_bump_between_probes_is_found():
    # A tent a millionth wide, made of three units, and its top half, which only a unit behind them sees.
    width, at = 2.0**-20, 0.125 + 2.0**-30

    def signals(x):
        first = np.maximum(x[:, None] - [at, at + width, at + 2 * width], 0)
        tent = first @ [[1.0], [-2.0], [1.0]]
        return [first, tent, np.maximum(tent - width / 2, 0)]

    found = kinks(signals, -3.0, 5.0, eps=np.finfo(float).eps)
    for kink in (at, at + width / 2, at + width, at + 1.5 * width, at + 2 * width):
        assert np.abs(found - kink).min() < SUMS
    assert len(found) < 200


def test_knots_that_lie_on_a_line_are_dropped_and_no_others():
    x = np.linspace(0, 1, 101)
    y = np.abs(x - 0.25)[:, None] * [1.0, 2.0] + np.maximum(x - 0.7, 0)[:, None] * [0.0, 1.0]
    assert x[needed(x, y, np.full(2, 1e-13))] == pytest.approx([0, 0.25, 0.7, 1])


def test_single_precision_is_met_to_its_own_rounding():
    explainer = calibrated(layered(nn.ReLU, dtype=torch.float32))
    compiled = explainer.compile()
    assert all(term.exact for term in compiled.compiled)
    assert not compiled.missed
    for term in compiled.terms:
        assert 0 < compiled.rounding[term] <= 2e-5 * compiled.spread
        assert compiled.errors[term] <= 1.01 * compiled.rounding[term]
    assert explainer.model[0].weight.dtype == torch.float32


class Stubborn(nn.Module):
    """A model that cannot be run in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layered(nn.ReLU, dtype=torch.float32)

    def forward(self, x):
        if x.dtype == torch.float64:
            raise RuntimeError("float32 only")
        return self.inner(x)


def test_a_model_that_insists_on_single_precision_is_compiled_as_it_is():
    explainer = calibrated(Stubborn())
    compiled = explainer.compile(tolerance=1e-3)
    assert shares(compiled, explainer, points_of(compiled, 5000)).max() <= 1e-3


def test_the_model_and_its_hooks_are_as_before():
    model = layered(nn.ReLU, dtype=torch.float32).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calibrated(model).compile()
    assert model.training
    assert all(not layer._forward_hooks and not layer._forward_pre_hooks for layer in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ---------------------------------------------------------------------- smooth networks


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.SiLU, nn.Hardswish])
def test_smooth_networks_are_within_the_tolerance(activation, tolerance):
    explainer = calibrated(layered(activation, outputs=2))
    compiled = explainer.compile(tolerance)
    assert not compiled.missed
    assert not any(term.exact for term in compiled.compiled)
    measured = shares(compiled, explainer, points_of(compiled, 50_000))
    assert measured.max() <= tolerance
    stated = np.array([compiled.errors[term] for term in compiled.terms]) / compiled.spread
    assert (measured <= 1.05 * stated).all()
    # Not far finer than asked for: linear pieces need some 1/√tolerance knots.
    assert stated.max() > tolerance / 20


def test_a_tolerance_that_cannot_be_reached_is_said_to_be_missed():
    explainer = calibrated(layered(nn.Tanh, columns=1, widths=(4,)), columns=1)
    compiled = explainer.compile(1e-13)
    assert compiled.missed == compiled.terms
    assert "missed by x0" in repr(compiled)
    assert all(bool((compiled.errors[term] > 1e-13 * compiled.spread).all()) for term in compiled.missed)


@pytest.mark.parametrize("tolerance", [0, -1.0, float("inf"), float("nan"), "small", True])
def test_a_tolerance_that_is_none_is_an_error(tolerance):
    with pytest.raises(ValueError, match="tolerance"):
        calibrated(layered(nn.ReLU, widths=(4,))).compile(tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_network_is_within_the_tolerance(kind, dtype):
    X = table(kind, 300, columns=4)
    explainer = NObSP(net(kind, columns=4, outputs=2, dtype=dtype), interactions=0).fit(X)
    compiled = explainer.compile(1e-5)
    assert not compiled.missed
    off = np.abs(compiled(X).values - explainer(X).values).max(0)
    rounding = np.array([compiled.rounding[term] for term in compiled.terms])
    assert (off <= 1e-5 * compiled.spread + 1.5 * rounding).all()


class Words(nn.Module):
    """A model that takes integers only."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4), nn.Linear(12, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.words(x).flatten(1)))


def test_a_model_of_integers_is_all_tables():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Words()
    X = np.random.default_rng(0).integers(0, 5, (200, 3))
    explainer = NObSP(model, interactions=[("x0", "x2")]).fit(X)
    compiled = explainer.compile()
    assert np.allclose(compiled(X).values, explainer(X).values, rtol=0, atol=PASS)
    assert [term.values.shape for term in compiled.compiled] == [(5, 2), (5, 2), (5, 2), (5, 5, 2)]
    with pytest.raises(ValueError, match=r"level of 'x1' .*\(7\)"):
        compiled(np.array([[1, 7, 2]]))


# ---------------------------------------------------------------------- outside the calibrated range


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_the_network_is_followed_to_the_limit_and_a_line_from_there(activation):
    explainer = calibrated(layered(activation))
    compiled = explainer.compile(1e-5, reach=0.25)
    for column, feature in enumerate(compiled.features):
        [(low, high)], [(first, last)] = feature.ranges, feature.limits
        assert first == pytest.approx(low - 0.25 * (high - low))
        assert last == pytest.approx(high + 0.25 * (high - low))
        X = np.zeros((6, 4))
        X[:, column] = [first, low, high, last, last + 1, last + 2]
        ours, theirs = compiled(X), explainer(X)
        assert np.abs(ours.values - theirs.values)[:4].max() <= 1e-5 * compiled.spread.max()
        assert np.array_equal(ours.outside, theirs.outside)
        steps = np.diff(ours.values[3:, column, 0])
        assert steps[0] == pytest.approx(steps[1])


def test_no_reach_continues_from_the_calibrated_range():
    compiled = calibrated(layered(nn.ReLU)).compile(reach=0)
    assert all(feature.limits == feature.ranges for feature in compiled.features)


def test_a_constant_column_has_a_function_too():
    X = table("relu", 200, columns=4)
    X[:, 1] = 7.0
    explainer = NObSP(layered(nn.ReLU), interactions=0).fit(X)
    compiled = explainer.compile()
    assert shares(compiled, explainer, X).max() <= EXACT
    assert not compiled(X).outside[:, 1].any()


# ---------------------------------------------------------------------- the same account


def test_the_account_has_the_same_shape_names_and_base():
    explainer = calibrated(layered(nn.ReLU, outputs=3), features=list("abcd"), output_names=["u", "v", "w"])
    X = points_of(compiled := explainer.compile(), 50)
    ours, theirs = compiled(X), explainer(X)
    assert (ours.terms, ours.feature_names, ours.output_names) == (
        theirs.terms,
        theirs.feature_names,
        theirs.output_names,
    )
    assert_same_to_rounding(ours.base_values, theirs.base_values)
    assert_same_to_rounding(ours.baseline_contributions, theirs.baseline_contributions)
    assert np.allclose(ours.from_baseline().values, theirs.from_baseline().values, atol=SUMS)
    assert ours.data is X


def test_without_predictions_the_residual_is_unknown_and_with_them_exact():
    explainer = calibrated(layered(nn.ReLU))
    compiled = explainer.compile()
    X = points_of(compiled, 50)
    alone = compiled(X)
    assert np.isnan(alone.predictions).all()
    assert np.isnan(alone.residual).all()
    assert "Explanation(50 rows" in repr(alone)
    predictions = explainer(X).predictions
    for given_as in (predictions, predictions[:, 0], torch.tensor(predictions)):
        ours = compiled(X, predictions=given_as)
        assert np.array_equal(ours.predictions, predictions)
        assert np.allclose(ours.base_values + ours.values.sum(1) + ours.residual, predictions, rtol=0, atol=PASS)
    with pytest.raises(ValueError, match=r"predictions must have shape \(50, 1\), found \(49, 1\)"):
        compiled(X, predictions=predictions[1:])


def test_threads_change_nothing():
    compiled = calibrated(layered(nn.Tanh, outputs=2)).compile()
    X = points_of(compiled, 30_000)
    one, two = compiled(X, threads=1), compiled(X, threads=2)
    assert_same_to_rounding(one.values, two.values)
    assert np.array_equal(one.outside, two.outside)
    assert_same_to_rounding(one.values, compiled(X).values)
    # Nor does the company a row is in.
    assert_same_to_rounding(one.values[17_000:17_005], compiled(X[17_000:17_005]).values)
    with pytest.raises(ValueError, match="threads"):
        compiled(X, threads=0)


def test_memory_beside_the_output_does_not_grow_with_the_rows():
    compiled = calibrated(layered(nn.ReLU)).compile()

    def beside(rows):
        X = points_of(compiled, rows, knots=False)
        tracemalloc.start()
        explanation = compiled(X, threads=2)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak - explanation.values.nbytes - explanation.outside.nbytes

    few, many = beside(100_000), beside(400_000)
    assert many < 1.2 * few + 100_000
    assert many < 4_000_000


def test_arrays_of_any_layout_frames_and_tensors_agree():
    explainer = NObSP(layered(nn.ReLU), interactions=0).fit(
        pd.DataFrame(table("relu", 300, columns=4), columns=list("abcd"))
    )
    compiled = explainer.compile()
    X = points_of(compiled, 20_000)
    expected = compiled(X).values
    frame = pd.DataFrame(X, columns=list("abcd"))
    for given_as in (
        np.asfortranarray(X),
        X.astype(object),
        torch.tensor(X),
        frame[list("dbca")],
        pl.from_pandas(frame),
    ):
        assert_same_to_rounding(compiled(given_as).values, expected)
    single = compiled(X.astype(np.float32))
    assert_same_to_rounding(single.values, compiled(X.astype(np.float32).astype(np.float64)).values)
    assert_same_to_rounding(compiled(X.round().astype(int)).values, compiled(X.round()).values)
    assert compiled(X[:0]).values.shape == (0, 4, 1)


def test_a_float32_copy_of_the_calibration_rows_is_within_the_range():
    X = table("relu", 300, columns=4)
    compiled = NObSP(layered(nn.ReLU), interactions=0).fit(X).compile()
    assert not compiled(X.astype(np.float32)).outside.any()
    assert not compiled(X).outside.any()


def test_tables_that_do_not_fit_are_errors():
    frame = pd.DataFrame(table("relu", 100, columns=4), columns=list("abcd"))
    compiled = NObSP(layered(nn.ReLU, widths=(4,)), interactions=0).fit(frame).compile()
    X = frame.to_numpy()
    with pytest.raises(ValueError, match="3 columns but the explainer was calibrated on 4"):
        compiled(X[:, :3])
    with pytest.raises(ValueError, match="two dimensions"):
        compiled(X[0])
    with pytest.raises(ValueError, match="lacks 'd' and has the unexpected 'z'"):
        compiled(frame.rename(columns={"d": "z"}))
    with pytest.raises(TypeError, match="array, a tensor or a frame, found list"):
        compiled(X.tolist())
    with pytest.raises(TypeError, match="column 'b', is not numeric"):
        compiled(frame.assign(b="much"))
    for value, word in ((np.nan, "NaN"), (-np.inf, "infinite")):
        broken = X.copy()
        broken[5, 2] = value
        with pytest.raises(ValueError, match=f"X is {word} in row 5, column 'c'"):
            compiled(broken)


def test_functions_and_curves_are_those_of_the_explainer():
    explainer = calibrated(layered(nn.ReLU, outputs=2), features=list("abcd"))
    compiled = explainer.compile()
    x = np.linspace(-1, 1, 50)
    for output in (0, 1):
        ours, theirs = (e.function("b", output=output)(x) for e in (compiled, explainer))
        assert np.allclose(ours, theirs, rtol=0, atol=SUMS * compiled.spread.max())
    knots, values = compiled.curve("b")
    assert values.shape == (len(knots), 2)
    assert_same_to_rounding(compiled.function("b", output=1)(knots), values[:, 1])
    assert compiled.function("b")([]).shape == (0,)
    with pytest.raises(ValueError, match="no feature 'bb'; there are 'b'"):
        compiled.function("bb")


def test_functions_of_pairs_are_the_grids_that_rows_are_explained_by():
    compiled = calibrated(layered(nn.Tanh, outputs=2), features=list("abcd"), interactions=[("b", "d")]).compile(1e-3)
    X = np.random.default_rng(0).uniform(-1, 1, (40, 4))
    expected = compiled(X)[:, ("b", "d"), 1].values[:, 0, 0]
    assert_same_to_rounding(compiled.function(("b", "d"), output=1)(X[:, 1], X[:, 3]), expected)
    assert_same_to_rounding(compiled.function(["d", "b"], output=1)(X[:, 3], X[:, 1]), expected)
    with pytest.raises(ValueError, match="a × b was not compiled"):
        compiled.function(("a", "b"))
    with pytest.raises(TypeError, match="b × d takes 2 arrays, found 1"):
        compiled.function(("b", "d"))(X[:, 1])


def test_an_explainer_that_is_not_calibrated_cannot_be_compiled():
    with pytest.raises(NotFittedError):
        NObSP(layered(nn.ReLU)).compile()


def test_a_loaded_explainer_compiles_to_the_same(tmp_path):
    model = layered(nn.ReLU)
    explainer = calibrated(model)
    explainer.save(tmp_path / "explainer", moments=False)
    ours, theirs = explainer.compile(), NObSP.load(tmp_path / "explainer", model).compile()
    X = points_of(ours, 100)
    assert_same_to_rounding(ours(X).values, theirs(X).values, within=CONTRIBUTIONS)
    assert_same_to_rounding(ours.spread, theirs.spread, within=CONTRIBUTIONS)


def test_algorithm_1_compiles_as_well():
    model = layered(nn.ReLU)
    X = table("relu", 300, columns=4)
    explainer = NObSP.as_published(model, interactions=[("x0", "x1")]).fit(X)
    compiled = explainer.compile()
    measured = shares(compiled, explainer, points_of(compiled, 5000))
    assert measured[:4].max() <= CONTRIBUTIONS
    assert measured[4] <= 1.5 * compiled.errors["x0", "x1"] / compiled.spread


# ---------------------------------------------------------------------- categories and groups


def test_codes_of_embeddings_are_exact_tables():
    model, X = net("embedding", columns=4), table("embedding", 300, columns=4)
    explainer = NObSP(model, interactions=[("x0", "x1"), ("x1", "x2")]).fit(X)
    compiled = explainer.compile(1e-6)
    measured = shares(compiled, explainer, X)
    assert measured[[0, 1, 4]].max() <= EXACT
    assert measured.max() <= 1e-6
    levels, values = compiled.curve("x0")
    assert levels.ravel().tolist() == [0, 1, 2, 3]
    assert values.shape == (4, 1)
    X[7, 0] = 2.5
    with pytest.raises(ValueError, match=r"row 7, has a level of 'x0' that calibration did not see \(2.5\)"):
        compiled(X)


def test_one_hot_columns_are_one_exact_table():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 300)
    X = np.column_stack([rng.normal(size=300), np.eye(3)[codes]])
    explainer = NObSP(layered(nn.ReLU), features={"x": 0, "city": [1, 2, 3]}, interactions=[("x", "city")]).fit(X)
    compiled = explainer.compile()
    assert shares(compiled, explainer, X).max() <= EXACT
    assert all(term.exact for term in compiled.compiled)
    assert_same_to_rounding(compiled(X.astype(np.float32)[:, ::1]).values[:, 1], compiled(X).values[:, 1])
    X[3, 1:] = [1, 1, 0]
    with pytest.raises(ValueError, match="row 3, has a level of 'city'"):
        compiled(X)


@given(st.integers(1, 5), st.integers(1, 30), st.integers(0, 1000))
@settings(max_examples=40)
def test_levels_of_several_columns_are_told_apart(columns, count, seed):
    rng = np.random.default_rng(seed)
    levels = np.unique(rng.integers(0, 3, (count, columns)) * 0.1, axis=0)
    axis = LevelAxis(tuple(range(columns)), levels)
    chosen = rng.integers(0, len(levels), 50)
    for dtype in (np.float64, np.float32):
        rows = levels[chosen].astype(dtype)
        assert np.array_equal(axis.places(list(rows.T)), chosen)
    missing = np.array([0.1, 0.2, 0.7])[rng.integers(0, 3, columns)]
    if not (levels == missing).all(1).any():
        with pytest.raises(ValueError, match="row 50"):
            axis.places(list(np.vstack([levels[chosen], missing]).T))


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=60, unique=True), st.integers(0, 100))
def test_segments_are_those_that_halving_finds(knots, seed):
    knots = np.sort(np.array(knots))
    assume(np.diff(knots).min() > 1e-300)
    axis = NumberAxis(0, knots)
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-1100, 1100, 200), knots, np.nextafter(knots, 1e9), np.nextafter(knots, -1e9)])
    expected = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
    assert np.array_equal(axis.segments(x), expected)


def test_columns_of_numbers_as_one_feature_are_a_grid_with_its_own_error():
    explainer = calibrated(layered(nn.Tanh), features={"place": [0, 1], "c": 2, "d": 3})
    compiled = explainer.compile(1e-3)
    term = compiled.compiled[0]
    assert len(term.axes) == 2
    assert shares(compiled, explainer, points_of(compiled, 20_000))[0] <= min(
        1e-3, 1.5 * float((term.error / compiled.spread).max())
    )
    with pytest.raises(ValueError, match="no function of one column"):
        compiled.curve("place")
    both = points_of(compiled, 20)[:, :2]
    assert np.allclose(compiled.function("place")(both), explainer.function("place")(both), atol=1e-3)


# ---------------------------------------------------------------------- pairs


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("outputs", [1, 2])
def test_stated_errors_of_pairs_hold_on_fresh_points(activation, outputs):
    explainer = calibrated(layered(activation, outputs=outputs), interactions=[("x0", "x1"), ("x1", "x3")])
    compiled = explainer.compile(1e-4, grid_size=4096)
    for number, term in enumerate(compiled.terms):
        stated = compiled.errors[term]
        measured = np.abs(
            compiled(X := points_of(compiled, 30_000, seed=9, knots=False)).values - explainer(X).values
        ).max(0)[number]
        assert (measured <= 1.5 * stated + PASS).all()
        assert (measured >= 0.2 * stated - PASS).all()
        assert compiled.compiled[number].values[..., 0].size <= (4096 if len(term) == 2 else 1e5)


def test_a_larger_grid_is_closer():
    explainer = calibrated(layered(nn.SiLU), interactions=[("x0", "x1")])
    errors = [explainer.compile(1e-5, grid_size=size).errors["x0", "x1"][0] for size in (64, 1024, 16384)]
    # Linear pieces of a smooth function: sixteen times the nodes, a sixteenth of the error or so.
    assert errors[1] < errors[0] / 5
    assert errors[2] < errors[1] / 5


def test_a_pair_that_needs_few_nodes_gets_few():
    explainer = calibrated(layered(nn.Tanh), interactions=[("x0", "x1")])
    compiled = explainer.compile(1e-2)
    assert not compiled.missed
    assert compiled.compiled[4].values.size < 10_000


def test_pairs_can_be_left_to_the_network():
    explainer = calibrated(layered(nn.ReLU), interactions=[("x0", "x1")])
    compiled = explainer.compile(pairs="network")
    assert compiled.left_out == (("x0", "x1"),)
    assert "1 interactions left out" in repr(compiled)
    assert compiled.terms == explainer.terms_[:4]
    X = points_of(compiled, 100)
    theirs = explainer(X)
    ours = compiled(X, predictions=theirs.predictions)
    assert np.allclose(ours.residual, theirs.residual + theirs.values[:, 4], atol=SUMS)
    with pytest.raises(ValueError, match='pairs must be "grid" or "network"'):
        explainer.compile(pairs="none")


def test_triples_are_refused_unless_interactions_are_left_out():
    explainer = calibrated(layered(nn.ReLU), interactions=[("x0", "x1", "x2")])
    with pytest.raises(ValueError, match=r"triple \('x0', 'x1', 'x2'\) cannot be compiled"):
        explainer.compile()
    assert len(explainer.compile(pairs="network").left_out) == 4


# ---------------------------------------------------------------------- preprocessing in front of the network


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, 400),
            "income": rng.lognormal(10, 1, 400),
            "city": rng.choice(["oslo", "rome", "lima"], 400),
            "rooms": rng.integers(1, 5, 400),
            "unused": rng.choice(["a", "b"], 400),
        }
    )
    target = np.sin(frame["age"] / 20) + np.log(frame["income"]) * (frame["city"] == "rome") + frame["rooms"]
    return frame, target


def pipeline(income=None):
    steps = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["age"]),
            ("income", income or make_pipeline(FunctionTransformer(np.log), StandardScaler()), ["income"]),
            ("names", OneHotEncoder(sparse_output=False), ["city", "rooms"]),
        ]
    )
    return make_pipeline(
        steps, MLPRegressor(hidden_layer_sizes=(16, 8), max_iter=500, tol=1.0, n_iter_no_change=2, random_state=0)
    )


def test_pipelines_are_compiled_in_the_callers_units(people, tmp_path):
    frame, target = people
    explainer = NObSP(pipeline().fit(frame, target), interactions=[("age", "city"), ("city", "rooms")]).fit(frame)
    compiled = explainer.compile(1e-6)
    kept = dict(zip(compiled.terms, compiled.compiled, strict=True))
    assert kept["age",].exact
    assert not kept["income",].exact  # a logarithm comes before the network
    assert kept["age", "city"].exact
    measured = shares(compiled, explainer, frame)
    assert measured.max() <= 1e-6
    assert measured[[0, 2, 3, 4, 5, 6]].max() <= CONTRIBUTIONS
    # The logarithm ends at zero, and so does the table.
    assert compiled.features[1].limits[0][0] == compiled.features[1].ranges[0][0]
    assert_same_to_rounding(compiled(pl.from_pandas(frame)).values, compiled(frame).values)
    assert_same_to_rounding(compiled(frame.to_numpy(dtype=object)).values, compiled(frame).values)
    compiled.save(tmp_path / "file")
    assert_same_to_rounding(CompiledExplainer.load(tmp_path / "file")(frame).values, compiled(frame).values)


def test_levels_the_preprocessing_does_not_know_are_errors(people):
    frame, target = people
    compiled = NObSP(pipeline().fit(frame, target), interactions=0).fit(frame).compile(1e-3)
    for column, value in (("city", "bern"), ("rooms", 9)):
        with pytest.raises(ValueError, match=rf"row 2, has a level of '{column}' .*\({value}"):
            compiled(frame.assign(**{column: [*frame[column][:2], value, *frame[column][3:]]}))
    assert compiled.function("city")(["oslo", "rome"]).shape == (2,)
    with pytest.raises(ValueError, match="bern"):
        compiled.function("city")(["bern"])


def test_steps_of_the_preprocessing_are_kept_to_the_last_digit(people):
    frame, target = people
    bins = KBinsDiscretizer(5, encode="onehot-dense", strategy="quantile", quantile_method="averaged_inverted_cdf")
    model = pipeline(bins).fit(frame, target)
    explainer = NObSP(model, interactions=0).fit(frame)
    compiled = explainer.compile()
    edges = model[0].named_transformers_["income"].bin_edges_[0][1:-1]
    rows = frame.iloc[: 3 * len(edges)].assign(income=np.concatenate([edges, np.nextafter(edges, 0), edges + 1]))
    assert shares(compiled, explainer, rows)[1] <= EXACT
    assert shares(compiled, explainer, frame)[1] <= EXACT


def test_classes_of_a_scikit_learn_network_keep_their_names():
    X = table("relu", 200, columns=3)
    labels = np.where(X[:, 0] > 0.5, "high", np.where(X[:, 1] > 0, "middle", "low"))
    model = MLPClassifier((8,), max_iter=50, tol=0.1, random_state=0).fit(X, labels)
    explainer = NObSP(model, interactions=0).fit(X)
    compiled = explainer.compile()
    assert compiled(X).output_names == ("high", "low", "middle")
    assert shares(compiled, explainer, X).max() <= EXACT


# ---------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def mixed():
    """A compiled explainer with a curve, a category, a group, and pairs of each kind."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(400, 3)), np.eye(3)[rng.integers(0, 3, 400)]])
    features = {"a": 0, "place": [1, 2], "city": [3, 4, 5]}
    model = layered(nn.ReLU, columns=6, outputs=2)
    explainer = NObSP(model, features=features, interactions=[("a", "city"), ("a", "place")]).fit(X)
    return explainer, explainer.compile(1e-2, grid_size=4096), X


def test_three_axes_of_numbers_agree_with_the_network_to_the_stated_error(mixed):
    explainer, compiled, X = mixed
    assert [len(term.axes) for term in compiled.compiled] == [1, 2, 1, 3, 2]
    stated = np.array([compiled.errors[term] for term in compiled.terms]) / compiled.spread
    assert (shares(compiled, explainer, X) <= 1.5 * stated + PASS).all()


def test_a_file_brings_back_every_bit(mixed, tmp_path):
    _, compiled, X = mixed
    compiled.save(tmp_path / "file.safetensors")
    again = CompiledExplainer.load(tmp_path / "file.safetensors")
    ours, theirs = compiled(X), again(X)
    assert all(np.array_equal(a.values, b.values) for a, b in zip(compiled.compiled, again.compiled, strict=True))
    for name in ("values", "base_values", "outside", "baseline_contributions"):
        assert_same_to_rounding(getattr(ours, name), getattr(theirs, name), what=name)
    assert (ours.terms, ours.feature_names, ours.output_names) == (
        theirs.terms,
        theirs.feature_names,
        theirs.output_names,
    )
    assert repr(again) == repr(compiled)
    assert again.features == compiled.features
    for told in ("errors", "errors_outside", "rounding"):
        a, b = getattr(compiled, told), getattr(again, told)
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[term], b[term]) for term in a)


def test_files_are_small(tmp_path):
    compiled = calibrated(layered(nn.ReLU, columns=8, widths=(128, 64)), columns=8).compile()
    compiled.save(tmp_path / "file")
    assert (tmp_path / "file").stat().st_size < 64_000


def test_other_files_are_refused(mixed, tmp_path):
    _, compiled, _ = mixed
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        CompiledExplainer.load(path)
    store.save(path, kind="tabular explainer", version=1, tensors={"a": np.zeros(1)}, about={})
    with pytest.raises(ValueError, match="does not hold a nobsp compiled explainer but tabular explainer"):
        CompiledExplainer.load(path)
    store.save(path, kind=KIND, version=VERSION + 1, tensors={"a": np.zeros(1)}, about={})
    with pytest.raises(ValueError, match="layout version"):
        CompiledExplainer.load(path)
    store.save(path, kind=KIND, version=VERSION, tensors={"a": np.zeros(1)}, about={"features": []})
    with pytest.raises(ValueError, match="lacks a part"):
        CompiledExplainer.load(path)
    compiled.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged"):
        CompiledExplainer.load(path)


@pytest.fixture(scope="module")
def reader():
    """The code of docs/compiled-format.md, which knows nothing but the standard library."""
    page = (Path(__file__).parents[2] / "docs" / "compiled-format.md").read_text(encoding="utf-8")
    [code] = [block for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "struct" in block]
    names = {}
    exec(compile(code, "docs/compiled-format.md", "exec"), names)
    return names


def test_the_header_says_what_the_file_is(mixed, tmp_path):
    _, compiled, _ = mixed
    compiled.save(tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__")
    assert (metadata["format"], metadata["kind"], metadata["version"]) == ("nobsp", "compiled explainer", "1")
    assert {entry["dtype"] for entry in header.values()} == {"F64"}


def test_the_documented_reader_explains_as_we_do(reader, mixed, tmp_path):
    _, compiled, X = mixed
    compiled.save(tmp_path / "file")
    about, numbers = reader["read"](tmp_path / "file")
    rows = np.vstack([X[:20], [9.0, -9.0, 9.0, 0.0, 1.0, 0.0]])  # the last one is beyond every limit
    for row, expected in zip(rows.tolist(), compiled(rows).values, strict=True):
        found = list(reader["contributions"](about, numbers, row))
        assert np.allclose(found, expected, rtol=1e-9, atol=SUMS * compiled.spread.max())


def test_the_documented_reader_knows_levels_by_name(reader, people, tmp_path):
    frame, target = people
    compiled = NObSP(pipeline().fit(frame, target), interactions=[("age", "city")]).fit(frame).compile(1e-3)
    compiled.save(tmp_path / "file")
    about, numbers = reader["read"](tmp_path / "file")
    for row, expected in zip(frame[:20].to_numpy(dtype=object).tolist(), compiled(frame[:20]).values, strict=True):
        found = list(reader["contributions"](about, numbers, row))
        assert np.allclose(found, expected, rtol=1e-9, atol=SUMS * compiled.spread.max())


def test_neither_loading_nor_explaining_needs_torch(mixed, tmp_path):
    _, compiled, X = mixed
    compiled.save(tmp_path / "file")
    np.save(tmp_path / "rows.npy", X)
    np.save(tmp_path / "expected.npy", compiled(X).values)
    program = f"""
import sys
for name in ("torch", "sklearn", "scipy", "tqdm", "pandas", "polars"):
    sys.modules[name] = None
import numpy as np
from nobsp.tabular import CompiledExplainer
compiled = CompiledExplainer.load({str(tmp_path / "file")!r})
explanation = compiled(np.load({str(tmp_path / "rows.npy")!r}))
assert np.allclose(explanation.values, np.load({str(tmp_path / "expected.npy")!r}), rtol=0, atol={PASS})
compiled.save({str(tmp_path / "again")!r})
print(sorted({{name.partition(".")[0] for name in sys.modules}} & {{"narwhals", "safetensors", "numpy"}}))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "['numpy', 'safetensors']"
