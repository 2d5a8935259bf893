"""Surfaces of pairs, only where there are rows; and the strength of all pairs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.patches import Rectangle
from sklearn.compose import make_column_transformer
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from nobsp import NObSP, plots


def surface_of(ax):
    [mesh] = [part for part in ax.collections if isinstance(part, QuadMesh)]
    corners = mesh.get_coordinates()
    middle = (corners[:-1, :-1] + corners[1:, 1:]) / 2
    return middle[..., 0], middle[..., 1], np.ma.masked_array(mesh.get_array())


@pytest.fixture(scope="module")
def mixed():
    """Two categories and a number, behind an encoder, and a combination that never occurs."""
    draw = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "city": draw.choice(["Oslo", "Rome"], 400),
            "wage": draw.choice(["hour", "month", "year"], 400),
            "age": draw.uniform(20, 80, 400),
        }
    )
    X = X[(X["city"] != "Rome") | (X["wage"] != "year")]
    y = (X["city"] == "Rome") * (X["wage"] == "hour") + 0.02 * X["age"] * (X["city"] == "Oslo")
    encode = make_column_transformer(
        (OneHotEncoder(), ["city", "wage"]), (StandardScaler(), ["age"])
    )
    network = MLPRegressor(hidden_layer_sizes=(16,), max_iter=80, random_state=0, tol=0.01)
    model = make_pipeline(encode, network).fit(X, y)
    return X, NObSP(model, interactions=[("city", "wage"), ("city", "age")]).fit(X)


def test_the_surface_is_the_pairs_contribution(known):
    x, y, surface = surface_of(plots.interaction(known, ("age", "income")))
    rows = np.asarray(np.column_stack([x.ravel(), y.ravel(), np.zeros(x.size)]))
    expected = known(rows)[:, ("age", "income")].values[:, 0, 0]
    shown = ~np.ma.getmaskarray(surface).ravel()
    assert surface.data.ravel()[shown] == pytest.approx(expected[shown], abs=1e-9)


def test_the_first_feature_runs_along_the_bottom(known):
    ax, turned = (
        plots.interaction(known, ("age", "income")),
        plots.interaction(known, ("income", "age")),
    )
    assert (
        (ax.get_xlabel(), ax.get_ylabel())
        == ("age", "income")
        == (turned.get_ylabel(), turned.get_xlabel())
    )
    assert surface_of(ax)[2].filled(9) == pytest.approx(surface_of(turned)[2].filled(9).T)


def test_places_without_rows_are_masked_and_places_with_rows_are_not(known, table):
    x, y, surface = surface_of(plots.interaction(known, ("age", "income")))
    masked = np.ma.getmaskarray(surface)
    wide, high = np.ptp(x), np.ptp(y)
    away = np.hypot((x[..., None] - table[:, 0]) / wide, (y[..., None] - table[:, 1]) / high).min(
        -1
    )
    assert masked[away > 0.08].all()
    assert not masked[away < 0.02].any()
    assert 0.1 < masked.mean() < 0.9


def test_without_rows_nothing_is_masked_and_it_says_so(known):
    ax = plots.interaction(known.compile(), ("age", "income"))
    assert not np.ma.getmaskarray(surface_of(ax)[2]).any()
    assert "rows are not known" in ax.get_title(loc="right")


def test_an_explanation_draws_the_surface_over_its_own_rows(known, table):
    own = surface_of(plots.interaction(known, ("age", "income"), data=table[:50]))[2]
    ex = surface_of(plots.interaction(known(table[:50]), ("age", "income")))[2]
    assert np.array_equal(own.filled(9), ex.filled(9))


def test_a_compiled_explainer_draws_the_same_surface(known, table):
    own = surface_of(plots.interaction(known, ("age", "income")))[2]
    compiled = surface_of(plots.interaction(known.compile(), ("age", "income"), data=table))[2]
    assert np.array_equal(np.ma.getmaskarray(own), np.ma.getmaskarray(compiled))
    assert np.array_equal(own.filled(9), compiled.filled(9))


def test_two_categories_are_cells_with_numbers_and_the_empty_one_is_masked(mixed):
    X, explainer = mixed
    ax = plots.interaction(explainer, ("city", "wage"), data=X)
    _, _, surface = surface_of(ax)
    assert surface.shape == (3, 2)
    masked = np.ma.getmaskarray(surface)
    assert masked.sum() == 1
    assert masked[2, 1]  # year, Rome
    expected = explainer(X)[:, ("city", "wage")]
    for row in range(20):
        down, right = (
            ["hour", "month", "year"].index(X.iloc[row]["wage"]),
            ["Oslo", "Rome"].index(X.iloc[row]["city"]),
        )
        assert surface[down, right] == pytest.approx(expected.values[row, 0, 0])
    assert len(ax.texts) == 5


@pytest.mark.filterwarnings(
    "ignore::nobsp.tabular.health.ExplainedWorseWarning"
)  # rows along one line
def test_a_category_beside_a_number_is_a_stripe_per_level(mixed):
    X, explainer = mixed
    x, _, surface = surface_of(plots.interaction(explainer, ("age", "city"), data=X))
    assert surface.shape[0] == 2
    X_there = pd.DataFrame({"city": "Rome", "wage": "hour", "age": x[1]})
    expected = explainer(X_there)[:, ("city", "age")].values[:, 0, 0]
    assert surface.data[1] == pytest.approx(expected)
    assert surface_of(plots.interaction(explainer, ("city", "age"), data=X))[2].shape[1] == 2


def test_an_output_has_to_be_chosen(two_outputs):
    with pytest.raises(ValueError, match="output must be chosen among 'price', 'risk'"):
        plots.interaction(two_outputs, ("age", "income"))
    risk = surface_of(plots.interaction(two_outputs, ("age", "income"), output="risk"))[2]
    price = surface_of(plots.interaction(two_outputs, ("age", "income"), output="price"))[2]
    assert np.abs(risk).max() < 0.1 * np.abs(price).max()


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            ("age", "rooms"),
            r"the pair \('age', 'rooms'\) was not fitted; fitted are \('age', 'income'\)",
        ),
        (("age", "incme"), "no feature 'incme'; did you mean 'income'"),
        ("age", "pair must be two features"),
        (("age", "income", "rooms"), "pair must be two features"),
    ],
)
def test_a_pair_that_is_not_there_is_an_error(known, pair, message):
    with pytest.raises(ValueError, match=message):
        plots.interaction(known, pair)


# ---------------------------------------------------------------------- all pairs


def cells_of(ax):
    """Strength in percent by the two names."""
    right = [label.get_text() for label in ax.get_xticklabels()]
    down = [label.get_text() for label in ax.get_yticklabels()]
    return {
        frozenset((right[int(text.get_position()[0])], down[int(text.get_position()[1])])): float(
            text.get_text()
        )
        for text in ax.texts
    }


def test_every_pair_has_its_strength_in_percent(screened):
    table = screened.interaction_strengths()
    cells = cells_of(plots.interaction_matrix(screened))
    expected = {
        frozenset((a, b)): 100 * strength
        for a, b, strength in zip(table["first"], table["second"], table["strength"], strict=True)
    }
    assert cells == pytest.approx(expected, abs=0.51)


def test_fitted_pairs_are_framed_with_the_network_and_without(screened):
    for what in (screened, screened.compile()):
        frames = [
            patch
            for patch in plots.interaction_matrix(what).patches
            if isinstance(patch, Rectangle)
        ]
        assert [frame.get_gid() for frame in frames] == ["fitted"]


def test_an_explanation_tells_of_its_fitted_pairs(ex):
    cells = cells_of(plots.interaction_matrix(ex))
    share = ex.values[:, 4, 0].std() / ex.predictions[:, 0].std()
    assert cells == pytest.approx({frozenset(("age", "income")): 100 * share}, abs=0.51)


def test_features_of_the_strongest_pairs_are_kept(screened):
    ax = plots.interaction_matrix(screened, max_display=2)
    table = screened.interaction_strengths()
    assert list(cells_of(ax)) == [frozenset((table["first"][0], table["second"][0]))]
    assert "2 of 3 features" in ax.get_title(loc="right")


def test_without_pairs_there_is_no_matrix(ex, known, screened):
    for without in (ex[:, ["age", "income"]], known):
        with pytest.raises(ValueError, match="no pairs"):
            plots.interaction_matrix(without)
    with pytest.raises(ValueError, match="output cannot be chosen"):
        plots.interaction_matrix(screened, output=0)
    with pytest.raises(ValueError, match="predictions="):
        plots.interaction_matrix(replace(ex, residual=np.full_like(ex.residual, np.nan)))
