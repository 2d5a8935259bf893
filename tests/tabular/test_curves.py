"""Every feature's function as a tidy table, with its band."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from nobsp import NObSP
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding


def make_net(columns, outputs=2, width=16):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(columns, width), nn.SiLU(), nn.Linear(width, outputs))


@pytest.fixture(scope="module")
def table():
    """A continuous column, a rating, a flag, and a city in three one-hot columns."""
    rng = np.random.default_rng(0)
    city = rng.choice(3, 240, p=[0.6, 0.3, 0.1])
    return pd.DataFrame(
        {
            "age": rng.normal(size=240),
            "rating": rng.integers(1, 6, 240).astype(float),
            "member": rng.random(240) < 0.4,
            **{name: (city == i).astype(float) for i, name in enumerate(["rome", "oslo", "bern"])},
        }
    )


@pytest.fixture(scope="module")
def explainer(table):
    features = {
        "age": "age",
        "rating": "rating",
        "member": "member",
        "city": ["rome", "oslo", "bern"],
    }
    return NObSP(make_net(6), features=features, output_names=["no", "yes"]).fit(table)


@pytest.fixture(scope="module")
def curves(explainer):
    return explainer.curves(40)


def test_the_table_is_tidy(curves, explainer):
    assert list(curves.columns) == ["feature", "output", "x", "level", "value", "lower", "upper"]
    counts = curves.groupby(["feature", "output"], sort=False).size()
    assert counts.to_dict() == {
        (feature, output): count
        for feature, count in {"age": 40, "rating": 5, "member": 2, "city": 3}.items()
        for output in ("no", "yes")
    }
    assert curves["feature"].unique().tolist() == list(explainer.functions_.feature_names)
    assert curves[["x", "value", "lower", "upper"]].dtypes.eq(float).all()


def test_the_grid_covers_the_calibrated_range(curves, table):
    x = curves.query("feature == 'age' and output == 'no'")["x"].to_numpy()
    assert x[0] == table["age"].min()
    assert x[-1] == table["age"].max()
    assert (np.diff(x) > 0).all()


def test_numbers_with_few_values_use_them(curves):
    assert curves.query("feature == 'rating' and output == 'no'")["x"].tolist() == [1, 2, 3, 4, 5]
    assert curves.query("feature == 'member' and output == 'no'")["x"].tolist() == [0, 1]
    assert curves.query("feature == 'rating'")["level"].eq("").all()


def test_one_hot_groups_are_named_by_their_columns(curves):
    city = curves.query("feature == 'city' and output == 'no'")
    assert sorted(city["level"]) == ["bern", "oslo", "rome"]
    assert city["x"].isna().all()


def test_a_level_of_no_column_is_none_of_them(table):
    rows = table.copy()
    rows.loc[rows["bern"] == 1, "bern"] = 0
    features = {"city": ["rome", "oslo", "bern"], "rest": ["age", "rating", "member"]}
    levels = NObSP(make_net(6), features=features).fit(rows).curves(5)["level"]
    assert sorted(set(levels)) == ["(none)", "oslo", "rome"]


def test_functions_go_through_the_curves(explainer, curves):
    for feature in ("age", "rating", "member"):
        for output in ("no", "yes"):
            part = curves.query("feature == @feature and output == @output")
            values = explainer.function(feature, output=output)(part["x"])
            assert np.allclose(values, part["value"], atol=1e-7)
    rome = curves.query("level == 'rome' and output == 'yes'")["value"].item()
    assert explainer.function("city", output="yes")([1, 0, 0]) == pytest.approx(rome, abs=1e-7)


def test_rows_lie_on_their_curves(explainer, table):
    values = explainer(table).values
    found = explainer.function("age", output=1)(table["age"])
    assert np.allclose(found, values[:, 0, 1], atol=1e-7)
    city = explainer.function("city")(table[["rome", "oslo", "bern"]])
    assert np.allclose(city, values[:, 3, 0], atol=1e-7)


def test_rows_lie_on_the_surfaces_of_pairs_in_either_order(table):
    features = {
        "age": "age",
        "rating": "rating",
        "city": ["rome", "oslo", "bern"],
        "member": "member",
    }
    pairs = [("age", "rating"), ("city", "age")]
    explainer = NObSP(make_net(6), features=features, interactions=pairs).fit(table)
    ex, city = explainer(table), table[["rome", "oslo", "bern"]]
    for names, given in (
        (("age", "rating"), (table["age"], table["rating"])),
        (("rating", "age"), (table["rating"], table["age"])),
        (["city", "age"], (city, table["age"])),
    ):
        found = explainer.function(names, output=1)(*given)
        assert np.allclose(found, ex[:, tuple(names)].values[:, 0, 1], atol=1e-7)
    surface = explainer.function(("age", "rating"))
    assert surface([], []).shape == (0,)
    with pytest.raises(TypeError, match="age × rating takes 2 arrays, found 1"):
        surface([1.0])
    with pytest.raises(ValueError, match=r"equally many, found \[1, 2\]"):
        surface([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="age × member was not fitted"):
        explainer.function(("age", "member"))


def test_the_band_contains_the_curve_and_widens_with_the_level(explainer, curves):
    assert (curves["lower"] <= curves["value"]).all()
    assert (curves["value"] <= curves["upper"]).all()
    assert (curves["upper"] > curves["lower"]).all()
    wide = explainer.curves(40, confidence=0.99)
    assert (wide["upper"] - wide["lower"] >= curves["upper"] - curves["lower"]).all()
    assert_same_to_rounding(wide["value"], curves["value"], within=CONTRIBUTIONS)


def test_bands_are_the_same_each_time(explainer, curves):
    pd.testing.assert_frame_equal(explainer.curves(40), curves)


def test_more_rows_narrow_the_band(table):
    rng = np.random.default_rng(1)
    few, many = rng.normal(size=(300, 6)), rng.normal(size=(4800, 6))
    width = [
        np.mean(c["upper"] - c["lower"])
        for c in (NObSP(make_net(6)).fit(x).curves(20) for x in (few, many))
    ]
    assert width[1] < width[0] / 2


def test_features_of_several_numbers_have_no_curve(table):
    features = {"pair": ["age", "rating"], "rest": ["member", "rome", "oslo", "bern"]}
    explainer = NObSP(make_net(6), features=features).fit(table)
    assert "pair" not in set(explainer.curves(5)["feature"])


@pytest.mark.parametrize(
    "values", [1.0, [1.0], np.array([1.0]), torch.tensor([1.0]), pd.Series([1.0]), [[1.0]]]
)
def test_functions_take_any_kind_of_values(explainer, values):
    assert explainer.function("age")(values).shape == (1,)


def test_functions_of_nothing_are_empty(explainer):
    assert explainer.function("age")([]).shape == (0,)


@pytest.mark.parametrize(
    ("feature", "values", "kind", "said"),
    [
        ("age", ["old"], TypeError, "column 'age' of X is not numeric"),
        (
            "age",
            [[1.0, 2.0]],
            ValueError,
            r"values of 'age' must be one value per row, found shape \(1, 2\)",
        ),
        ("city", [1.0, 0.0], ValueError, r"values of 'city' must be rows of 3"),
    ],
)
def test_values_that_no_feature_can_have_are_refused(explainer, feature, values, kind, said):
    with pytest.raises(kind, match=said):
        explainer.function(feature)(values)


@pytest.mark.parametrize(
    ("ask", "kind", "said"),
    [
        (lambda e: e.function("agee"), ValueError, "no feature 'agee'; did you mean 'age'"),
        (lambda e: e.function(0), ValueError, "no feature 0; there are 'age'"),
        (
            lambda e: e.function("age", output=2),
            ValueError,
            "output is 2, but there are 2 outputs: 'no', 'yes'",
        ),
        (
            lambda e: e.function("age", output="maybe"),
            ValueError,
            "no output 'maybe'; there are 'no', 'yes'",
        ),
        (
            lambda e: e.function("age", output=1.0),
            TypeError,
            "output must be a position or a name, found 1.0",
        ),
        (lambda e: e.curves(1), ValueError, "points must be a whole number of at least 2, found 1"),
        (lambda e: e.curves(2.5), ValueError, "points must be a whole number"),
        (
            lambda e: e.curves(confidence=1.0),
            ValueError,
            "confidence must lie between 0 and 1, found 1.0",
        ),
        (
            lambda e: e.curves(confidence="90%"),
            ValueError,
            "confidence must lie between 0 and 1, found '90%'",
        ),
        (
            lambda e: e.importance("all"),
            ValueError,
            'kind must be "main" or "total", found \'all\'',
        ),
    ],
)
def test_wrong_questions_are_answered_kindly(explainer, ask, kind, said):
    with pytest.raises(kind, match=said):
        ask(explainer)


class Coded(nn.Module):
    """One column of codes and one amount."""

    def __init__(self, levels):
        super().__init__()
        self.table, self.mix = nn.Embedding(levels, 3), nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.mix(torch.cat([self.table(x[:, 0].long()), x[:, 1:]], dim=1)))


@pytest.mark.parametrize("levels", [50, 300])
def test_codes_get_one_row_per_level_however_many(levels):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Coded(levels)
    rng = np.random.default_rng(0)
    X = np.column_stack([np.arange(1200) % levels, rng.normal(size=1200)])
    curves = NObSP(model, features=["code", "amount"], interactions=0).fit(X).curves()
    assert curves["x"][curves["feature"] == "code"].tolist() == list(range(levels))
    assert (curves["feature"] == "amount").sum() == 200


def test_wide_one_hot_groups_get_one_row_per_level():
    X = np.eye(300)[np.arange(900) % 300]
    explainer = NObSP(make_net(300), features={"city": range(300)}, interactions=0).fit(X)
    curves = explainer.curves()
    assert sorted(curves["level"][:300]) == sorted(f"x{k}" for k in range(300))


def test_one_far_row_does_not_take_the_points_of_a_curve_from_the_others() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 2))
    rows[0, 0] = 1e4
    explainer = NObSP(lambda X: np.sin(3 * X[:, 0]) + X[:, 1], features=["a", "b"]).fit(rows)

    curves = {key: np.asarray(column) for key, column in dict(explainer.curves(points=200)).items()}
    x = curves["x"][curves["feature"] == "a"]

    assert len(x) == 200
    assert x[0] == rows[:, 0].min()
    assert x[-1] == 1e4
    assert (np.diff(x) > 0).all()
    assert ((x > -2) & (x < 2)).mean() > 0.3


def test_bands_do_not_depend_on_the_mean_of_the_outputs() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 2))

    def widths(mean: float) -> np.ndarray:
        explainer = NObSP(lambda X: mean + X[:, 0] * X[:, 1] + np.sin(X[:, 0])).fit(rows)
        curves = dict(explainer.curves(points=50))
        return np.asarray(curves["upper"]) - np.asarray(curves["lower"])

    np.testing.assert_allclose(widths(1e7), widths(0.0), rtol=1e-3, atol=1e-6)
