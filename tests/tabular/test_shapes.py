"""Shapes are asked of the model: exactly on trees, with bounds, and with counterexamples that anyone can check."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb

import nobsp
from nobsp.numerics import clopper_pearson

SHAPES = ("increasing", "decreasing", "convex", "concave", "bounded")


def rows(seed, n=200):
    return np.random.default_rng(seed).uniform(-2, 2, size=(n, 3))


def truth(X):
    return np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + X[:, 0] * X[:, 2]


@pytest.fixture(scope="module")
def trees():
    X = rows(0, 600)
    model = xgb.XGBRegressor(n_estimators=15, max_depth=3, n_jobs=1).fit(X, truth(X) + X[:, 1])
    return model, nobsp.NObSP(model, interactions=0).fit(X)


def break_by_brute_force(shape, x, y):
    """The largest break over all pairs, or triples, of values."""
    sign = -1 if shape in ("decreasing", "concave") else 1
    y = sign * y
    if shape == "bounded":
        return y.max() - y.min()
    if shape in ("increasing", "decreasing"):
        return max(y[i] - y[j] for i in range(len(y)) for j in range(i, len(y)))
    worst = 0.0
    for i in range(len(x)):
        for k in range(i + 2, len(x)):
            share = (x[i + 1 : k] - x[i]) / (x[k] - x[i])
            chord = (1 - share) * y[i] + share * y[k]
            worst = max(worst, (y[i + 1 : k] - chord).max())
    return worst


@pytest.mark.parametrize("shape", SHAPES)
def test_breaks_of_trees_equal_a_brute_force_search(trees, shape):
    model, explainer = trees
    X = rows(1, 4)
    check = explainer.check_shape("x0", shape, X, tolerance=0.3)
    nodes = model.get_booster().trees_to_dataframe()
    feature = nodes["Feature"].isin(["x0", "f0"])
    splits = np.unique(nodes["Split"][feature].astype(np.float32))
    below = np.nextafter(splits, np.float32(-np.inf))
    x = np.unique(np.concatenate([splits, below, check.within]))
    x = x[(x >= check.within[0]) & (x <= check.within[1])].astype(float)

    sizes = []
    for row in X:
        line = np.repeat(row[None], len(x), 0)
        line[:, 0] = x
        sizes.append(break_by_brute_force(shape, x, model.predict(line).astype(float)))
    assert check.exact
    assert check.n_broken == (np.array(sizes) > 0.3).sum()
    assert check.worst == pytest.approx(max(sizes), abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_counterexamples_break_the_shape_when_fed_to_the_model(trees, shape):
    model, explainer = trees
    X = pd.DataFrame(rows(2, 50), columns=["x0", "x1", "x2"])
    before = X.copy()
    check = explainer.check_shape("x0", shape, X, tolerance=0.2)
    assert not check.holds
    fed = model.predict(check.counterexamples.to_numpy()).astype(float)
    np.testing.assert_allclose(fed, check.predictions, atol=1e-5)
    each = 3 if shape in ("convex", "concave") else 2
    assert len(fed) == each * len(check.breaks)
    for number, size in enumerate(check.breaks):
        own = slice(each * number, each * (number + 1))
        table = check.counterexamples.iloc[own]
        assert (table[["x1", "x2"]].nunique() == 1).all()
        values = table["x0"].to_numpy()
        assert (np.diff(values) > 0).all()
        assert break_by_brute_force(shape, values, fed[own]) == pytest.approx(size, abs=1e-4)
    pd.testing.assert_frame_equal(X, before)


def test_constrained_trees_hold_and_free_ones_do_not():
    X = rows(3, 500)
    y = truth(X)
    free = lgb.LGBMRegressor(n_estimators=20, verbose=-1, n_jobs=1).fit(X, y)
    constrained = lgb.LGBMRegressor(
        n_estimators=20, verbose=-1, n_jobs=1, monotone_constraints=[1, 0, 0]
    ).fit(X, y)
    checks = [
        nobsp.NObSP(model, interactions=0).fit(X).check_shape("x0", "increasing", X[:100])
        for model in (free, constrained)
    ]
    assert checks[0].rate > 0.5
    assert checks[1].holds
    assert checks[1].bound == pytest.approx(1 - 0.025 ** (1 / 100))


def test_trees_with_lines_in_their_leaves_are_not_called_exact():
    X = rows(4, 500)
    model = lgb.LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1, linear_tree=True).fit(
        X, truth(X)
    )
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    assert not explainer.check_shape("x0", "increasing", X[:30]).exact


def test_smooth_models_are_asked_along_their_range():
    X = rows(5, 300)
    explainer = nobsp.NObSP(lambda X: X[:, 0] ** 3 + X[:, 1] ** 2 * X[:, 2]).fit(X)
    assert explainer.check_shape("x0", "increasing", X).holds
    check = explainer.check_shape("x1", "convex", X, tolerance=0.04)
    # Convex where x2 is above zero, concave below.
    assert not check.exact
    assert set(np.flatnonzero(X[:, 2] < -0.05)) <= set(check.broken_rows)
    assert (X[check.broken_rows, 2] < 0).all()
    assert explainer.check_shape("x1", "convex", X[X[:, 2] > 0]).holds
    assert explainer.check_shape("x1", "increasing", X[X[:, 2] > 0], within=(0.0, 1.5)).holds


def test_levels_have_an_order_only_where_they_are_numbers():
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"colour": generator.choice(["red", "green"], 200), "size": generator.normal(size=200)}
    )
    y = frame["size"] + 2.0 * (frame["colour"] == "red")
    encode = make_column_transformer((OneHotEncoder(), ["colour"]), remainder="passthrough")
    explainer = nobsp.NObSP(make_pipeline(encode, LinearRegression()).fit(frame, y)).fit(frame)
    with pytest.raises(ValueError, match="order"):
        explainer.check_shape("colour", "increasing", frame)
    assert explainer.check_shape("colour", "bounded", frame, tolerance=2.1).holds
    check = explainer.check_shape("colour", "bounded", frame, tolerance=1.9)
    assert check.rate == 1.0
    assert check.worst == pytest.approx(2.0)
    assert set(check.counterexamples["colour"]) == {"red", "green"}


def test_the_bound_is_clopper_and_pearsons():
    from scipy.stats import binom

    low, high = clopper_pearson(7, 100, 0.95)
    # The ends are where so few, or so many, hits would be a surprise of 2.5%.
    assert binom.cdf(7, 100, high) == pytest.approx(0.025)
    assert binom.sf(6, 100, low) == pytest.approx(0.025)
    assert clopper_pearson(0, 10, 0.95)[0] == 0.0
    assert clopper_pearson(10, 10, 0.95)[1] == 1.0


def test_bad_input_is_refused_by_name(trees):
    _, explainer = trees
    X = rows(6, 10)
    with pytest.raises(ValueError, match="shape"):
        explainer.check_shape("x0", "wavy", X)
    with pytest.raises(ValueError, match="feature 'x7'"):
        explainer.check_shape("x7", "increasing", X)
    with pytest.raises(ValueError, match="tolerance"):
        explainer.check_shape("x0", "bounded", X)
    with pytest.raises(ValueError, match="within"):
        explainer.check_shape("x0", "convex", X, within=(1.0, 0.0))
    with pytest.raises(ValueError, match="X"):
        explainer.check_shape("x0", "convex", X[:0])
    two = nobsp.NObSP(lambda X: X[:, :2]).fit(rows(0))
    with pytest.raises(ValueError, match="output"):
        two.check_shape("x0", "increasing", X)


def test_a_check_names_its_output_and_scale():
    from sklearn.linear_model import LogisticRegression

    X = rows(0, 150)
    model = LogisticRegression().fit(X, np.digitize(X[:, 0], [-1, 1]))
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    output = explainer.functions_.output_names[1]
    check = explainer.check_shape("x0", "increasing", X[:20], output=output)
    assert check.link == "softmax"
    assert check.asked == f"x0 increasing for {output}, before the model's softmax"
    assert check.asked in repr(check)


def test_a_range_without_rows_is_noted(trees):
    _, explainer = trees
    X = rows(1, 20)
    nowhere = explainer.check_shape("x0", "increasing", X, within=(50, 60))
    assert nowhere.n_within == 0
    assert nowhere.note in repr(nowhere)
    somewhere = explainer.check_shape("x0", "increasing", X, within=(-1, 1))
    assert somewhere.n_within == (np.abs(X[:, 0]) <= 1).sum()
    assert not somewhere.note


def test_a_constant_column_is_said_to_be_unseen():
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X = pd.DataFrame(rows(0, 100), columns=["a", "b", "k"]).assign(k=1.0)
    model = make_pipeline(StandardScaler(), LinearRegression()).fit(X, X["a"])
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    with pytest.raises(ValueError, match="'k' cannot be checked"):
        explainer.check_shape("k", "increasing", X)


def test_a_probability_may_fall_where_its_logit_rises():
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng(0)
    X = generator.normal(size=(600, 2))
    labels = np.digitize(X[:, 0] + 0.3 * generator.normal(size=600), [-0.5, 0.5])
    model = LogisticRegression().fit(X, labels)
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    # The middle class is the most probable one in between only.
    logit = explainer.check_shape("x0", "increasing", X, output=1)
    chance = explainer.check_shape("x0", "increasing", X, output=1, scale="probability")
    assert chance.scale == "probability"
    assert chance.rate == 1.0
    fed = model.predict_proba(chance.counterexamples)[:, 1]
    np.testing.assert_allclose(fed, chance.predictions, atol=1e-9)
    assert fed[0] - fed[1] == pytest.approx(chance.breaks[0])
    # A logit is a line along every row: all rows break it, or none.
    assert logit.n_broken in (0, 600)
    assert "before the model's softmax" in repr(logit)
    bounded = explainer.check_shape(
        "x0", "bounded", X, output=2, scale="probability", tolerance=1.0
    )
    assert bounded.holds
    with pytest.raises(ValueError, match="scale"):
        explainer.check_shape("x0", "increasing", X, output=1, scale="logit")
    numbers = nobsp.NObSP(lambda X: X[:, 0], interactions=0).fit(X)
    with pytest.raises(ValueError, match="its link is 'identity'"):
        numbers.check_shape("x0", "increasing", X, scale="probability")


def doubled(X):
    """Falls along the first column in rows whose second is below zero."""
    return np.asarray(X)[:, 0] * np.asarray(X)[:, 1]


@pytest.fixture(scope="module")
def product():
    X = np.random.default_rng(3).normal(size=(60, 2))
    return nobsp.NObSP(doubled, features=["a", "b"]).fit(X), X


def test_copies_of_rows_tell_no_more_than_the_rows(product):
    explainer, X = product
    once = explainer.check_shape("a", "increasing", X)
    copies = np.repeat(X, 10, axis=0)
    joined = explainer.check_shape(
        "a", "increasing", copies, groups=[f"row {row}" for row in np.repeat(np.arange(60), 10)]
    )
    assert (joined.rate, joined.n_rows) == (once.rate, 600)
    assert joined.n_draws == pytest.approx(60)
    assert joined.bound == pytest.approx(once.bound)
    assert joined.note == ""
    # Without groups each copy is taken for a draw of its own, and that is said.
    apart = explainer.check_shape("a", "increasing", copies)
    assert apart.bound < once.bound
    assert apart.n_repeats == 540
    assert "540 of 600" in apart.note


def test_weights_count_rows_and_widen_bounds(product):
    explainer, X = product
    falls = X[:, 1] < 0
    weights = np.where(falls, 3.0, 1.0)
    weights[:5] = 0.0
    check = explainer.check_shape("a", "increasing", X, sample_weight=weights)
    assert check.n_rows == 55
    assert check.rate == pytest.approx(weights[falls].sum() / weights.sum())
    assert check.n_draws == pytest.approx(weights.sum() ** 2 / np.square(weights).sum())
    expected = clopper_pearson(check.rate * check.n_draws, check.n_draws, 0.95)[1]
    assert check.bound == pytest.approx(expected)
    assert set(check.broken_rows) == set(np.flatnonzero(falls & (weights > 0)))
    with pytest.raises(ValueError, match="sample_weight"):
        explainer.check_shape("a", "increasing", X, sample_weight=weights[:-1])
    with pytest.raises(ValueError, match="groups"):
        explainer.check_shape("a", "increasing", X, groups=[None, *range(59)])


def test_bounds_hold_where_rows_come_in_groups(product):
    explainer, _ = product
    # A group's rows all break the shape or all keep it: only groups are draws.
    n_groups, size, share = 15, 8, 0.3
    held = 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        sign = np.where(generator.random(n_groups) < share, -1.0, 1.0)
        groups = np.repeat(np.arange(n_groups), size)
        X = np.abs(generator.normal(size=(len(groups), 2))) + 0.1
        X[:, 1] *= sign[groups]
        check = explainer.check_shape("a", "increasing", X, groups=groups)
        held += check.bound >= share
    assert held >= 38


def between_whole_numbers(X: np.ndarray) -> np.ndarray:
    """Rises from whole number to whole number, and falls in between."""
    numbers = np.asarray(X, dtype=np.float64)
    dips = np.sin(np.pi * numbers[:, :2]) ** 2
    result: np.ndarray = numbers.sum(1) - 3.0 * dips.sum(1)
    return result


@pytest.mark.parametrize(("feature", "n_values"), [("bedrooms", 6), ("garden", 2)])
def test_whole_numbers_and_booleans_are_asked_at_their_values_only(
    feature: str, n_values: int
) -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "bedrooms": rng.integers(1, 7, 300),
            "garden": rng.random(300) < 0.5,
            "size": rng.normal(size=300),
        }
    )
    explainer = nobsp.NObSP(between_whole_numbers).fit(X)

    rising = explainer.check_shape(feature, "increasing", X)
    falling = explainer.check_shape(feature, "decreasing", X)

    assert rising.holds
    assert (rising.n_values, rising.exact) == (n_values, True)
    assert falling.rate == 1.0
    assert falling.counterexamples is not None
    assert falling.counterexamples.dtypes.equals(X.dtypes)


def test_many_whole_numbers_are_asked_at_some_of_them() -> None:
    X = np.random.default_rng(0).integers(0, 5000, (300, 2)).astype(np.float64)
    explainer = nobsp.NObSP(between_whole_numbers, features=["a", "b"]).fit(X)

    check = explainer.check_shape("a", "increasing", X)

    assert check.holds
    assert not check.exact


def test_a_range_without_two_whole_numbers_is_refused() -> None:
    X = np.random.default_rng(0).integers(0, 2, (300, 2)).astype(np.float64)
    explainer = nobsp.NObSP(between_whole_numbers, features=["a", "b"]).fit(X)

    with pytest.raises(ValueError, match="within"):
        explainer.check_shape("a", "increasing", X, within=(0.2, 0.8))


def test_amounts_that_end_at_whole_numbers_are_asked_between_them():
    """Rows that lie at the ends of a clipped amount do not make it a count."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(600, 2))
    rows[:, 0] = np.clip(0.5 + 0.6 * rows[:, 0], 0, 1)

    def model(X):
        return X[:, 0] - 3 * np.exp(-(((X[:, 0] - 0.5) / 0.1) ** 2)) + 0.1 * X[:, 1]

    explainer = nobsp.NObSP(model, interactions=0).fit(rows)
    at_ends = rows[(rows[:, 0] == 0) | (rows[:, 0] == 1)]
    check = explainer.check_shape("x0", "increasing", at_ends)
    assert not check.exact
    assert check.n_broken == len(at_ends)


def test_counts_stay_counts_in_a_file_without_rows(tmp_path):
    generator = np.random.default_rng(0)
    rows = np.stack([generator.integers(0, 6, 400), generator.normal(size=400)], 1)

    def model(X):
        return X[:, 0] ** 2 + X[:, 1]

    nobsp.NObSP(model, interactions=0).fit(rows).save(tmp_path / "counts.nobsp")
    loaded = nobsp.NObSP.load(tmp_path / "counts.nobsp", model)
    assert loaded.check_shape("x0", "increasing", rows).exact
    assert not loaded.check_shape("x1", "increasing", rows).exact
