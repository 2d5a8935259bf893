"""Curves: what is drawn is what the explainer says, in the caller's own units."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from nobsp import NObSP, plots
from tests.plots.subjects import Known


def with_gid(ax, gid):
    return [artist for artist in ax.get_children() if artist.get_gid() == gid]


def function_of(ax):
    [line] = with_gid(ax, "function")
    return np.array(line.get_xdata()), np.array(line.get_ydata())


def legend_of(axes):
    [legend] = np.ravel(axes)[0].figure.legends
    return [text.get_text() for text in legend.get_texts()]


@pytest.fixture(scope="module")
def pipeline():
    """A network behind an encoder: text, a number with few values, and one with many."""
    draw = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "city": draw.choice(["Oslo", "Rome", "Paris"], 300, p=[0.6, 0.3, 0.1]),
            "age": draw.uniform(20, 80, 300),
            "rooms": draw.integers(1, 5, 300),
        }
    )
    y = (X["city"] == "Rome") + 0.02 * X["age"] + 0.1 * X["rooms"]
    encode = make_column_transformer(
        (OneHotEncoder(), ["city"]), (StandardScaler(), ["age", "rooms"])
    )
    network = MLPRegressor(hidden_layer_sizes=(8,), max_iter=60, random_state=0, tol=0.1).fit(
        encode.fit_transform(X), y
    )
    model = make_pipeline(encode, network)
    return X, NObSP(model, interactions=[("city", "age")], output_names=["price"]).fit(X)


def test_a_line_is_the_function_where_rows_are(known):
    x, y = function_of(plots.curves(known, "age"))
    assert y == pytest.approx(known.function("age")(x), abs=1e-9)
    assert len(x) > 150


def test_the_band_is_that_of_the_table(known):
    ax = plots.curves(known, "age", confidence=0.8)
    table = known.curves(confidence=0.8)
    here = table["feature"] == "age"
    [band] = with_gid(ax, "band")
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(table["lower"][here].min())
    assert heights.max() == pytest.approx(table["upper"][here].max())
    assert "80% band" in legend_of(ax)


def test_the_baseline_is_marked(known, table):
    [line] = with_gid(plots.curves(known, "age"), "baseline")
    assert line.get_xdata()[0] == pytest.approx(table[:, 0].mean())


def test_the_baseline_of_a_pipeline_is_marked_in_the_callers_units(pipeline):
    X, explainer = pipeline
    [number], [level] = (
        with_gid(plots.curves(explainer, name), "baseline") for name in ("age", "city")
    )
    assert number.get_xdata()[0] == pytest.approx(X["age"].mean())
    assert level.get_xdata()[0] == 0  # Oslo, the most frequent


def test_levels_of_a_category_are_bars_with_their_names(pipeline):
    X, explainer = pipeline
    ax = plots.curves(explainer, "city", data=X)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["Oslo", "Paris", "Rome"]
    heights = [bar.get_height() for bar in with_gid(ax, "function")]
    assert heights == pytest.approx(explainer.function("city")(["Oslo", "Paris", "Rome"]))
    counts = X["city"].value_counts()
    shares = [bar.get_height() for bar in with_gid(ax, "rows")]
    assert np.array(shares) / shares[0] == pytest.approx(
        [1.0, counts["Paris"] / counts["Oslo"], counts["Rome"] / counts["Oslo"]]
    )


def test_a_number_with_few_values_is_dots(known):
    ax = plots.curves(known, "rooms")
    assert list(ax.get_xticks()) == [0, 1, 2]
    [line] = [line for line in ax.lines if line.get_marker() == "o"]
    assert line.get_ydata() == pytest.approx(known.function("rooms")([0, 1, 2]), abs=1e-9)


def test_columns_of_a_group_are_one_category():
    draw = np.random.default_rng(0)
    one_hot = np.eye(3)[draw.integers(0, 3, 200)]
    X = np.column_stack([draw.normal(size=200), one_hot])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    explainer = NObSP(model, features={"x": 0, "city": [1, 2, 3]}, interactions=0).fit(X)
    ax = plots.curves(explainer, "city")
    assert len(with_gid(ax, "function")) == 3
    # Levels are named by the column that is on; rows are counted level by level.
    assert {label.get_text() for label in ax.get_xticklabels()} == {"x1", "x2", "x3"}
    order = [int(label.get_text()[1]) for label in ax.get_xticklabels()]
    heights = np.array([bar.get_height() for bar in with_gid(ax, "rows")])
    assert heights / heights.max() == pytest.approx(X[:, order].sum(0) / X[:, order].sum(0).max())
    compiled = plots.curves(explainer.compile(), "city", data=X)
    assert [label.get_text() for label in compiled.get_xticklabels()] == [f"x{k}" for k in order]


def test_codes_of_an_embedding_are_a_category():
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(4, 6), nn.Linear(7, 1)

        def forward(self, x):
            return self.head(torch.relu(torch.cat([self.embed(x[:, 0].long()), x[:, 1:]], 1)))

    torch.manual_seed(0)
    X = torch.cat([torch.randint(0, 4, (200, 1)).float(), torch.randn(200, 1)], 1)
    explainer = NObSP(Embedded(), features=["code", "x"], interactions=[("code", "x")]).fit(X)
    ax = plots.curves(explainer, "code")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1", "2", "3"]
    assert len(with_gid(ax, "function")) == 4
    plots.interaction(explainer, ("x", "code"))


def test_many_levels_are_cut_to_those_that_contribute_most():
    X = np.random.default_rng(0).choice([f"level {k:02d}" for k in range(40)], 400).reshape(-1, 1)
    y = np.array([float(text[-2:]) for text in X[:, 0]])
    X = pd.DataFrame(X, columns=["kind"])
    network = MLPRegressor(hidden_layer_sizes=(8,), max_iter=60, random_state=0, tol=1.0)
    explainer = NObSP(make_pipeline(OneHotEncoder(), network).fit(X, y)).fit(X)
    ax = plots.curves(explainer, "kind", data=X)
    assert len(with_gid(ax, "function")) == 16
    assert ax.get_xlabel() == "kind (24 more levels)"
    sizes = np.abs(explainer.function("kind")([f"level {k:02d}" for k in range(40)]))
    shown = [abs(bar.get_height()) for bar in with_gid(ax, "function")]
    assert sorted(shown) == pytest.approx(sorted(sizes)[-16:])


def test_the_truth_is_shifted_to_the_curve_but_not_bent(known, table):
    ax = plots.curves(known, "age", truth={"age": lambda x: np.abs(x) + 100})
    [line] = with_gid(ax, "truth")
    x, y = line.get_xdata(), line.get_ydata()
    assert y - np.abs(x) == pytest.approx(y[0] - abs(x[0]))
    at_rows = np.interp(table[:, 0], x, y) - known.function("age")(table[:, 0])
    assert at_rows.mean() == pytest.approx(0.0, abs=0.01)
    assert "truth" in legend_of(ax)


def test_the_truth_of_a_category_is_asked_by_level(pipeline):
    _, explainer = pipeline
    ax = plots.curves(
        explainer, "city", truth={"city": lambda levels: [len(level) for level in levels]}
    )
    [line] = with_gid(ax, "truth")
    assert np.diff(line.get_ydata()) == pytest.approx([1, -1])  # Oslo, Paris, Rome


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ({"agee": np.abs}, "did you mean 'age'"),
        ({"age": lambda x: 0.0}, r"truth of 'age' gives shape \(\)"),
    ],
)
def test_a_truth_that_does_not_fit_is_an_error(known, truth, message):
    with pytest.raises(ValueError, match=message):
        plots.curves(known, "age", truth=truth)


def test_panels_share_a_scale_on_which_a_small_function_is_flat(known):
    axes = plots.curves(known)
    assert len({ax.get_ylim() for ax in axes}) == 1
    assert len({ax.get_ylim() for ax in plots.curves(known, share_y=False)}) == 3


def test_the_scale_is_not_set_by_one_row_far_out(table):
    far = np.vstack([table, [60.0, 0.0, 1.0]])
    explainer = NObSP(Known(), features=["age", "income", "rooms"], interactions=0).fit(far)
    ax = plots.curves(explainer, "age")
    assert explainer.function("age")([60.0])[0] > 30
    assert ax.get_ylim()[1] < 10
    assert ax.get_xlim()[1] > 60


def test_the_strongest_features_come_first_and_the_rest_is_told(known):
    axes = plots.curves(known, max_display=2)
    table = known.importance("total")
    assert [ax.get_xlabel() for ax in axes] == list(table["feature"][:2])
    assert "2 strongest of 3" in axes[0].figure.get_supxlabel()


def test_features_are_drawn_in_the_order_asked_for(known):
    assert [ax.get_xlabel() for ax in plots.curves(known, ["rooms", "age"])] == ["rooms", "age"]
    assert plots.curves(known, 1).get_xlabel() == "income"


def test_all_outputs_are_drawn_unless_one_is_chosen(two_outputs):
    ax = plots.curves(two_outputs, "age")
    assert len(with_gid(ax, "function")) == 2
    assert {"price", "risk"} <= set(legend_of(ax))
    styles = {line.get_linestyle() for line in with_gid(ax, "function")}
    assert len(styles) == 2  # not by colour alone
    assert len(with_gid(plots.curves(two_outputs, "age", output="risk"), "function")) == 1
    with pytest.raises(ValueError, match="truth is that of one output"):
        plots.curves(two_outputs, truth={"age": np.abs})


def test_rows_come_from_the_calibration_or_from_data(known, table):
    [own] = with_gid(plots.curves(known, "age"), "rows")
    [given] = with_gid(plots.curves(known, "age", data=torch.tensor(table)), "rows")
    [fewer] = with_gid(plots.curves(known, "age", data=known(table[:3])), "rows")
    assert np.array_equal(own.get_data().values, given.get_data().values)
    assert (fewer.get_data().values > 0).sum() <= 3


def test_a_frame_is_read_by_name_not_by_place(pipeline):
    X, explainer = pipeline
    [rows] = with_gid(plots.curves(explainer, "age", data=X[["rooms", "city", "age"]]), "rows")
    assert (rows.get_data().values > 0).sum() > 20


def test_an_explanation_draws_the_functions_behind_it_over_its_own_rows(known, table):
    ax, own = plots.curves(known(table[:7]), "age"), plots.curves(known, "age", data=table[:7])
    assert function_of(ax)[1] == pytest.approx(function_of(own)[1])
    [rows], [same] = with_gid(ax, "rows"), with_gid(own, "rows")
    assert np.array_equal(rows.get_data().values, same.get_data().values)


def test_an_explanation_of_one_output_draws_that_one(two_outputs, table):
    ex = two_outputs(table)
    assert len(with_gid(plots.curves(ex, "age"), "function")) == 2
    assert plots.curves(ex[:, :, "risk"], "age").get_ylabel() == "average effect on risk"
    with pytest.raises(ValueError, match="'price − risk' is none"):
        plots.curves(ex.contrast("price", "risk"))


def drawn_numbers(ax):
    """What lines and areas show, by their kind."""
    [band] = with_gid(ax, "band")
    [baseline] = with_gid(ax, "baseline")
    return [*function_of(ax), band.get_paths()[0].vertices, baseline.get_xdata()]


def test_an_explainer_its_explanation_and_its_compiled_form_draw_the_same(known, table):
    own = drawn_numbers(plots.curves(known, "age", data=table))
    for same in (known(table), known.compile()):
        for mine, theirs in zip(
            own, drawn_numbers(plots.curves(same, "age", data=table)), strict=True
        ):
            assert np.array_equal(mine, theirs)
    assert [ax.get_xlabel() for ax in plots.curves(known.compile())] == [
        ax.get_xlabel() for ax in plots.curves(known)
    ]


class Product(nn.Module):
    """x1·x2² + x3/2, exactly."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 1, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1.0, 0.5]]))
            self.head.bias.zero_()

    def forward(self, x):
        return self.head(torch.stack([x[:, 0] * x[:, 1] ** 2, x[:, 2]], 1))


def test_a_feature_that_acts_only_beside_another_is_drawn_first_with_its_average_slope():
    X = np.random.default_rng(0).normal(size=(3000, 3))
    axes = plots.curves(NObSP(Product(), features=["x1", "x2", "x3"]).fit(X))
    assert axes[0].get_xlabel() == "x1"
    slopes = {ax.get_xlabel(): np.polyfit(*function_of(ax), 1)[0] for ax in axes}
    assert slopes["x1"] == pytest.approx(1.0, abs=0.05)
    assert slopes["x3"] == pytest.approx(0.5, abs=0.02)


def test_a_loaded_explainer_draws_its_curves_without_rows(known, tmp_path):
    known.save(tmp_path / "kept.nobsp")
    loaded = NObSP.load(tmp_path / "kept.nobsp", known.model)
    ax = plots.curves(loaded, "age")
    assert function_of(ax)[1] == pytest.approx(known.function("age")(function_of(ax)[0]), abs=1e-9)
    assert not with_gid(ax, "rows")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": "agge"}, "no feature 'agge'; did you mean 'age'"),
        ({"features": []}, "features is empty"),
        ({"features": 7}, "feature is 7, but there are 3"),
        ({"output": "prize"}, "no output 'prize'; did you mean 'price'"),
        ({"max_display": 0}, "max_display must be a whole number"),
        ({"data": np.zeros((4, 2))}, "2 columns but the explainer was calibrated on 3"),
    ],
)
def test_what_is_not_there_is_an_error_that_says_what_is(known, arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.curves(known, **arguments)


def test_a_group_of_numbers_has_no_curve(table):
    explainer = NObSP(
        nn.Linear(3, 1).double(), features={"place": [0, 1], "rooms": 2}, interactions=0
    ).fit(table)
    assert len(plots.curves(explainer)) == 1
    with pytest.raises(ValueError, match="'place' is not a function of one column"):
        plots.curves(explainer, "place")


def test_a_constant_column_is_drawn(table):
    X = np.column_stack([table[:, 0], np.full(len(table), 4.0)])
    torch.manual_seed(0)
    explainer = NObSP(
        nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).double(), interactions=0
    ).fit(X)
    axes = plots.curves(explainer)
    assert len(axes) == 2


def test_curves_of_a_pipeline_show_how_rows_lie_and_booleans_as_dots():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "age": np.where(rng.random(400) < 0.1, np.nan, rng.normal(40, 10, 400)),
            "garden": rng.random(400) < 0.5,
            "city": rng.choice(["oslo", "rome"], 400),
        }
    )
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer((numbers, ["age", "garden"]), (OneHotEncoder(), ["city"]))
    target = X["age"].fillna(40) + X["garden"] + (X["city"] == "rome")
    model = make_pipeline(columns, LinearRegression()).fit(X, target)
    explainer = NObSP(model).fit(X)

    sample = explainer.sample_
    assert sorted(set(sample[:, 1])) == [0.0, 1.0]
    assert set(sample[:, 2]) == {"oslo", "rome"}
    ages = sample[:, 0].astype(float)
    assert np.isin(ages, X["age"]).mean() > 0.8  # a gap that was filled in reads as what filled it

    axes = plots.curves(explainer, "garden")
    drawn = {
        float(x)
        for line in axes.get_lines()
        if line.get_gid() == "function"
        for x in line.get_xdata()
    }
    assert drawn == {0.0, 1.0}
    assert with_gid(axes, "rows")
