"""Differences of accounts: they add up, they equal what others compute, and bad input is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

import nobsp
from nobsp.comparison.changes import false_discovery_rates
from nobsp.comparison.resampling import draw_means
from tests.tolerances import CONTRIBUTIONS, SUMS, assert_same_to_rounding

NAMES = ("x0", "x1", "x2")


def curved(X):
    return np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + X[:, 1] * X[:, 2]


def bent(X):
    return curved(X) + 0.6 * np.tanh(2 * X[:, 0])


def rows(seed, n=300, shift=0.0):
    X = np.random.default_rng(seed).normal(size=(n, 3))
    X[:, 0] += shift
    return X


@pytest.fixture(scope="module")
def explainer():
    return nobsp.NObSP(curved, interactions=[("x1", "x2")]).fit(rows(0, 500))


@pytest.fixture(scope="module")
def other():
    # On the same rows, as two models should be: what calibrating does to one, it does to the other.
    return nobsp.NObSP(bent, interactions=[("x1", "x2")]).fit(rows(0, 500))


@pytest.fixture(scope="module")
def pairs(explainer, other):
    """One comparison of every kind."""
    first, second = rows(2, 300, shift=0.5), rows(3, 400)
    return {
        "rows": nobsp.compare(explainer(first), explainer(second), draws=200),
        "functions": nobsp.compare(explainer(first), other(first), draws=200),
        "both": nobsp.compare(
            explainer(first),
            other(second),
            draws=200,
            crossed=(explainer(second), other(first)),
        ),
    }


@pytest.mark.parametrize("kind", ["rows", "functions", "both"])
def test_parts_add_up_to_the_gap_of_the_models_own_predictions(pairs, kind):
    comparison = pairs[kind]
    means = comparison.mean_predictions
    size = float(np.abs(comparison.gap.value).sum() + np.abs(means).sum())
    assert comparison.kind == kind
    assert_same_to_rounding(comparison.total.value, means[0] - means[1], size=size)
    assert_same_to_rounding(
        comparison.gap.value.sum(0), comparison.total.value, size=size, within=SUMS
    )
    if kind == "both":
        parts = sum(estimates.value for estimates in comparison.parts.values())
        assert_same_to_rounding(parts, comparison.gap.value, size=size, within=SUMS)


@pytest.mark.parametrize("kind", ["rows", "functions", "both"])
def test_a_features_part_is_spread_over_its_range_without_loss(pairs, kind):
    comparison = pairs[kind]
    for feature in NAMES:
        along = comparison.along(feature, bins=7)
        part = comparison.gap.value[comparison.entries.index(feature), 0]
        assert_same_to_rounding(along["part"].sum(), part, size=3.0)
        assert_same_to_rounding(along["share_a"].sum(), 1.0)
        assert_same_to_rounding(along["share_b"].sum(), 1.0)
        assert len(along) <= 7


def test_gaps_are_differences_of_weighted_means(explainer):
    first, second = explainer(rows(4)), explainer(rows(5, 200))
    weights = np.random.default_rng(0).random(300), np.ones(200)
    comparison = nobsp.compare(first, second, sample_weight=weights, draws=100)
    expected = np.average(first.values, axis=0, weights=weights[0]) - second.values.mean(0)
    assert_same_to_rounding(comparison.gap.value[:-1], expected, size=3.0)
    repeated = np.arange(300).repeat(2)
    twice = nobsp.compare(first[repeated], second, draws=100)
    doubled = nobsp.compare(first, second, sample_weight=(np.full(300, 2.0), None), draws=100)
    assert_same_to_rounding(twice.gap.value, doubled.gap.value, size=3.0)


def linear_groups():
    generator = np.random.default_rng(0)
    n = 400
    in_second = np.arange(n) % 2 == 1
    X = generator.normal(size=(n, 3)) + 0.4 * in_second[:, None]
    slopes = np.where(in_second[:, None], [1.0, -0.5, 0.2], [0.6, -0.5, 0.9])
    y = (X * slopes).sum(1) + 0.7 * in_second + generator.normal(size=n)
    return X, y, in_second


def test_linear_models_have_statsmodels_threefold_decomposition():
    oaxaca = pytest.importorskip("statsmodels.stats.oaxaca")
    X, y, in_second = linear_groups()
    table = np.column_stack([X, in_second.astype(float)])
    # Its first group is the one of the smaller value, the second is subtracted.
    expected = oaxaca.OaxacaBlinder(y, table, 3, hasconst=False, swap=False).three_fold()
    characteristics, coefficients, interaction, gap = expected.params

    accounts = {}
    for group in (False, True):
        model = LinearRegression().fit(X[in_second == group], y[in_second == group])
        fitted = nobsp.NObSP(model, interactions=0).fit(X[in_second == group])
        accounts[group] = fitted
    first, second = X[~in_second], X[in_second]
    comparison = nobsp.compare(accounts[False](first), accounts[True](second), draws=100)
    parts = {name: estimates.value[:-1].sum() for name, estimates in comparison.parts.items()}

    assert comparison.kind == "both"
    np.testing.assert_allclose(comparison.total.value[0], gap, atol=1e-8)
    np.testing.assert_allclose(parts["rows"], characteristics, atol=1e-8)
    np.testing.assert_allclose(parts["functions"], coefficients, atol=1e-8)
    np.testing.assert_allclose(parts["both"], interaction, atol=1e-8)


def test_a_pooled_linear_model_has_statsmodels_explained_part():
    oaxaca = pytest.importorskip("statsmodels.stats.oaxaca")
    X, y, in_second = linear_groups()
    table = np.column_stack([X, in_second.astype(float)])
    # Neumark's pooled model (so spelt there) is without the group, as ours.
    expected = oaxaca.OaxacaBlinder(y, table, 3, hasconst=False, swap=False).two_fold(
        two_fold_type="nuemark"
    )
    unexplained, explained, gap = expected.params

    fitted = nobsp.NObSP(LinearRegression().fit(X, y), interactions=0).fit(X)
    comparison = nobsp.compare(fitted(X[~in_second]), fitted(X[in_second]), draws=100)
    np.testing.assert_allclose(comparison.total.value[0], explained, atol=1e-8)
    np.testing.assert_allclose(comparison.gap.value[-1], 0.0, atol=1e-8)
    np.testing.assert_allclose(gap - comparison.total.value[0], unexplained, atol=1e-8)


def test_probabilities_are_compared_on_their_own_scale():
    X = rows(6, 400)
    y = (curved(X) > 0.5).astype(int)
    model = LogisticRegression().fit(X, y)
    explainer = nobsp.NObSP(model).fit(X)
    shifted = X[:200] + np.array([0.5, 0, 0])
    first = explainer(shifted).to_probability()
    second = explainer(X[200:]).to_probability()
    comparison = nobsp.compare(first, second, draws=100)
    expected = model.predict_proba(shifted)[:, 1].mean() - model.predict_proba(X[200:])[:, 1].mean()
    assert comparison.kind == "rows"
    assert comparison.scale == "probability"
    np.testing.assert_allclose(comparison.gap.value.sum(), expected, atol=1e-6)
    assert (comparison.gap.upper >= comparison.gap.lower).all()
    with pytest.raises(ValueError, match="to_probability"):
        nobsp.compare(first, explainer(X[200:]))


def test_the_changed_function_is_named_and_the_others_are_not(pairs):
    comparison = pairs["functions"]
    assert comparison.changed(0.1) == ("x0",)
    assert comparison.explained[0] > 0.95
    frame = comparison.to_frame().set_index("term")
    truth = 0.6 * np.tanh(2 * rows(2, 300, shift=0.5)[:, 0])
    assert frame.loc["x0", "change_lower"] <= truth.std() <= frame.loc["x0", "change_upper"]


def test_what_terms_do_not_tell_of_two_models_comes_first(explainer):
    def restless(X):
        return curved(X) + 0.3 * np.sin(40 * X[:, 0] * X[:, 1] * X[:, 2])

    second = nobsp.NObSP(restless, interactions=[("x1", "x2")]).fit(rows(7, 500))
    X = rows(8)
    comparison = nobsp.compare(explainer(X), second(X), draws=100)
    assert comparison.explained[0] < 0.5
    assert comparison.findings[0].code == "little_explained"


def test_terms_that_one_explainer_lacks_are_not_tested(explainer):
    second = nobsp.NObSP(curved, interactions=0).fit(rows(1, 500))
    X = rows(8)
    comparison = nobsp.compare(explainer(X), second(X), draws=100)
    pair = comparison.entries.index("x1 × x2")
    assert np.isnan(comparison.p_value[pair]).all()
    assert "terms_differ" in [finding.code for finding in comparison.findings]


def test_a_file_of_an_explainer_is_the_same_explainer_without_bands(explainer, tmp_path):
    explainer.save(tmp_path / "e.nobsp")
    loaded = nobsp.NObSP.load(tmp_path / "e.nobsp", curved)
    comparison = nobsp.compare(loaded(rows(2)), explainer(rows(3)), draws=100)
    assert comparison.kind == "rows"
    from_file = nobsp.compare(loaded(rows(2)), loaded(rows(3)), draws=100)
    assert "functions_not_counted" in [finding.code for finding in from_file.findings]


def test_functions_from_files_are_not_tested(tmp_path):
    def larger(X):
        return 1.1 * curved(X)

    models = []
    for model in (curved, larger):
        path = tmp_path / f"{model.__name__}.nobsp"
        nobsp.NObSP(model, interactions=0).fit(rows(0, 200)).save(path)
        models.append(nobsp.NObSP.load(path, model))
    comparison = nobsp.compare(*(model(rows(2)) for model in models), draws=100)
    # How far apart two calibrations of one model are is not in a file.
    assert np.isnan(comparison.p_value).all()
    assert comparison.changed() == ()
    assert "not tested" in comparison.headline
    assert "functions_not_counted" in codes(comparison)


def test_groups_make_intervals_as_wide_as_few_groups_deserve(explainer):
    center = np.random.default_rng(9).normal(size=(20, 3))
    codes = np.arange(400) % 20
    X = center[codes] + 0.01 * rows(9, 400)
    first, second = explainer(X), explainer(rows(10))
    alone = nobsp.compare(first, second, draws=300)
    grouped = nobsp.compare(first, second, groups=(codes, None), draws=300)
    widths = [(c.total.upper - c.total.lower)[0] for c in (alone, grouped)]
    assert widths[1] > 1.5 * widths[0]
    assert_same_to_rounding(alone.gap.value, grouped.gap.value, size=3.0)


def test_several_outputs_and_categories():
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"colour": generator.choice(["red", "green"], 300), "size": generator.normal(size=300)}
    )

    def two(X):
        number = np.asarray(X["size"], dtype=float)
        red = (np.asarray(X["colour"]) == "red").astype(float)
        return np.column_stack([number + red, number * 2 - red])

    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    encode = make_column_transformer((OneHotEncoder(), ["colour"]), remainder="passthrough")
    model = make_pipeline(encode, LinearRegression()).fit(frame, two(frame))
    explainer = nobsp.NObSP(model, interactions=0).fit(frame)
    is_red = (frame["colour"] == "red").to_numpy()
    comparison = nobsp.compare(explainer(frame[is_red]), explainer(frame[~is_red]), draws=100)
    table = comparison.to_frame()
    assert len(table) == 2 * len(comparison.entries)
    with pytest.raises(ValueError, match="output"):
        comparison.along("colour")
    along = comparison.along("colour", output=1)
    assert list(along["level"]) == ["green", "red"]
    np.testing.assert_allclose(along["part"].sum(), -1.0, atol=1e-8)


def test_contrasts_of_classes_keep_their_intervals():
    X = rows(11, 400)

    def scores(X):
        return np.column_stack([curved(X), X[:, 0], -X[:, 1]])

    explainer = nobsp.NObSP(scores, output_names=["a", "b", "c"]).fit(X)
    first, second = explainer(X[:200]), explainer(X[200:])
    whole = nobsp.compare(first, second, draws=100)
    contrast = nobsp.compare(first.contrast("a", "b"), second.contrast("a", "b"), draws=100)
    expected = whole.gap.value[:, 0] - whole.gap.value[:, 1]
    assert_same_to_rounding(contrast.gap.value[:, 0], expected, size=3.0)
    assert "functions_not_counted" not in [finding.code for finding in contrast.findings]


def test_rows_that_weigh_nothing_are_as_good_as_absent(explainer):
    far = nobsp.NObSP(lambda X: 1000 + curved(X), interactions=0).fit(rows(0, 200))
    first, second = far(rows(2, 70)), far(rows(3, 70))
    weights = np.r_[np.ones(5), np.zeros(65)]
    weighted = nobsp.compare(first, second, sample_weight=(weights, None), draws=200)
    cut = nobsp.compare(first[:5], second, draws=200)
    assert weighted.n_rows == (5, 70)
    assert weighted.total.upper[0] - weighted.total.lower[0] < 20
    for side in ("value", "lower", "upper"):
        assert_same_to_rounding(
            getattr(weighted.gap, side), getattr(cut.gap, side), size=1000.0, within=SUMS
        )

    single = np.r_[1.0, np.zeros(69)]
    with pytest.raises(ValueError, match="a has 1 row with a sample_weight"):
        nobsp.compare(first, second, sample_weight=(single, None))
    with pytest.raises(ValueError, match="sample_weight"):
        nobsp.compare(first, second, sample_weight=(np.zeros(70), None))
    groups = np.r_[np.zeros(5), np.arange(1, 66)]
    with pytest.raises(ValueError, match="groups of a"):
        nobsp.compare(first, second, sample_weight=(weights, None), groups=(groups, None))


def test_crossed_accounts_leave_out_the_same_rows(explainer, other):
    first, second = rows(2, 60), rows(3, 80)
    weights = np.r_[np.ones(20), np.zeros(40)]
    weighted = nobsp.compare(
        explainer(first),
        other(second),
        crossed=(explainer(second), other(first)),
        sample_weight=(weights, None),
        draws=100,
    )
    cut = nobsp.compare(
        explainer(first[:20]),
        other(second),
        crossed=(explainer(second), other(first[:20])),
        draws=100,
    )
    for part, estimates in weighted.parts.items():
        assert_same_to_rounding(estimates.value, cut.parts[part].value, size=10.0, within=SUMS)


def test_drawn_means_scatter_as_theory_says():
    generator = np.random.default_rng(0)
    values = generator.normal(size=(5000, 2))
    weights = np.full(5000, 1 / 5000)
    means = draw_means(values, weights, np.arange(5000), draws=4000, generator=generator)
    np.testing.assert_allclose(means.std(0), values.std(0, ddof=1) / np.sqrt(5000), rtol=0.05)


def test_false_discovery_rates_equal_scipys():
    from scipy.stats import false_discovery_control

    p_values = np.random.default_rng(0).random((12, 2)) ** 2
    p_values[3] = np.nan
    rates = false_discovery_rates(p_values)
    known = np.isfinite(p_values[:, 0])
    expected = false_discovery_control(p_values[known], axis=0)
    assert_same_to_rounding(rates[known], expected, within=CONTRIBUTIONS)
    assert np.isnan(rates[3]).all()


def test_bad_input_is_refused_by_name(explainer, other):
    account = explainer(rows(2))
    fewer = nobsp.NObSP(lambda X: X[:, 0], features=["p", "q", "r"]).fit(rows(0))
    with pytest.raises(ValueError, match="features"):
        nobsp.compare(account, fewer(rows(2)))
    with pytest.raises(ValueError, match="outputs"):
        nobsp.compare(account, nobsp.NObSP(curved, output_names=["price"]).fit(rows(0))(rows(2)))
    with pytest.raises(ValueError, match="two rows"):
        nobsp.compare(account, explainer(rows(3))[:1])
    with pytest.raises(ValueError, match="no rows"):
        nobsp.compare(account, account[:0])
    with pytest.raises(ValueError, match="predictions="):
        nobsp.compare(account, explainer.compile()(rows(3)))
    with pytest.raises(TypeError, match="Explanation"):
        nobsp.compare(account, explainer)
    with pytest.raises(ValueError, match="names"):
        nobsp.compare(account, account, names=("a", "a"))
    with pytest.raises(ValueError, match="sample_weight"):
        nobsp.compare(account, account, sample_weight=([1.0], None))
    with pytest.raises(ValueError, match="groups"):
        nobsp.compare(account, account, groups=(np.zeros(300), None))
    with pytest.raises(ValueError, match="crossed"):
        nobsp.compare(account, other(rows(3)), crossed=(account, account))
    with pytest.raises(ValueError, match="rate"):
        nobsp.compare(account, explainer(rows(3)), draws=100).changed(rate=5)
    with pytest.raises(ValueError, match="feature 'x9'"):
        nobsp.compare(account, explainer(rows(3)), draws=100).along("x9")


def test_how_much_terms_explain_counts_rows_by_their_weights(explainer, other):
    X = rows(4, 200)
    weights = np.random.default_rng(0).integers(1, 4, size=200)
    weighted = nobsp.compare(explainer(X), other(X), draws=100, sample_weight=(weights, weights))
    repeated = np.repeat(X, weights, axis=0)
    longer = nobsp.compare(explainer(repeated), other(repeated), draws=100)
    assert_same_to_rounding(weighted.explained, longer.explained, within=CONTRIBUTIONS)
    assert_same_to_rounding(weighted.change.value, longer.change.value, within=CONTRIBUTIONS)
    assert weighted.explained != nobsp.compare(explainer(X), other(X), draws=100).explained


def codes(comparison):
    return [finding.code for finding in comparison.findings]


def test_one_training_of_each_is_said_to_tell_nothing_of_training_again(pairs, explainer):
    changed = pairs["functions"]
    assert changed.changed() == ("x0",)
    assert "one_training" in codes(changed)
    assert "these two models" in changed.headline
    assert "one training of each" in changed.headline
    assert "one_training" in codes(pairs["both"])
    assert "one_training" not in codes(pairs["rows"])
    # Where nothing lies apart there is nothing to take back.
    again = nobsp.NObSP(curved, interactions=[("x1", "x2")]).fit(rows(12, 500))
    same = nobsp.compare(explainer(rows(2)), again(rows(2)), draws=100)
    assert same.changed() == ()
    assert "one_training" not in codes(same)


def test_models_that_predict_the_same_are_said_to(explainer):
    def shifted(X):
        return curved(X) + 2.5 + 1e-9 * np.sin(50 * X[:, 0] * X[:, 2])

    second = nobsp.NObSP(shifted, interactions=[("x1", "x2")]).fit(rows(1, 500))
    X = rows(8)
    comparison = nobsp.compare(second(X), explainer(X), draws=100)
    assert np.isnan(comparison.explained).all()
    assert "constant of +2.5" in comparison.headline
    assert "little_explained" not in codes(comparison)


@pytest.mark.parametrize("interactions", [0, [("x0", "x2")], [("x0", "x1", "x2")]])
def test_other_interactions_alone_make_no_function_of_both_changed(interactions):
    def correlated(seed):
        generator = np.random.default_rng(seed)
        common = generator.normal(size=(600, 1))
        return 0.9 * common + 0.4 * generator.normal(size=(600, 3))

    def product(X):
        return X[:, 0] * X[:, 1] + X[:, 2]

    first = nobsp.NObSP(product, interactions=[("x0", "x1")]).fit(correlated(0))
    second = nobsp.NObSP(product, interactions=interactions).fit(correlated(0))
    comparison = nobsp.compare(first(correlated(1)), second(correlated(1)), draws=100)
    assert comparison.changed() == ()
    assert "terms_differ" in codes(comparison)


def test_the_same_rows_twice_are_told_once(explainer, other):
    X = rows(13, 200, shift=9.0)
    twice = nobsp.compare(explainer(X), explainer(X.copy()), draws=100)
    assert "same_accounts" in codes(twice)
    assert np.abs(twice.gap.value).max() == 0
    assert "200 and 200 rows" in repr(twice)
    assert codes(nobsp.compare(explainer(X), other(X), draws=100)).count("outside") == 1
    assert codes(twice).count("outside") == 2


def test_explainers_of_different_rows_are_told_that_the_gap_is_in_the_base(pairs):
    first, second = rows(2, 300, shift=0.5), rows(3, 400)
    accounts = [nobsp.NObSP(curved, interactions=0).fit(X)(X) for X in (first, second)]
    comparison = nobsp.compare(*accounts, draws=100)
    assert "base_differs" in {finding.code for finding in comparison.findings}
    assert "base_differs" not in {finding.code for finding in pairs["both"].findings}
    assert "e−1" not in comparison.headline


def test_nothing_changed_between_two_calibrations_of_one_model():
    """Other rows move functions, but where predictions are the same there is one model, and nothing in it changed."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(1500, 4))

    def model(X):
        return np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + X[:, 2] * X[:, 3]

    pairs = [("x2", "x3")]
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(1000)
        explainers = [
            nobsp.NObSP(model, interactions=pairs).fit(X[rows]) for rows in np.split(order, 2)
        ]
        comparison = nobsp.compare(*(explainer(X[1000:]) for explainer in explainers), draws=200)
        assert comparison.changed(0.5) == ()
        assert np.isnan(comparison.explained).all()
        assert comparison.headline == "the two models predict the same"
        assert "one_training" not in {finding.code for finding in comparison.findings}
    shifted = nobsp.NObSP(lambda X: model(X) + 0.5, interactions=pairs).fit(X[:500])
    apart = nobsp.compare(shifted(X[1000:]), explainers[0](X[1000:]), draws=200)
    assert "constant of +0.5" in apart.headline
    assert apart.changed(0.5) == ()
