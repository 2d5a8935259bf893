"""scikit-learn's networks and pipelines are taken as they are, and the explainer has scikit-learn's manners."""

import tracemalloc
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.special import logit
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted
from torch import nn

from nobsp import Functions, NObSP
from nobsp.models import adapt
from nobsp.tabular.features import columns_of
from nobsp.tabular.lookup import LevelAxis
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding

ROWS = 300
COLUMNS = ["age", "city", "income", "code", "grade", "constant", "unused"]


def trained(model, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


def network(kind=MLPClassifier):
    return kind(hidden_layer_sizes=(12,), max_iter=40, random_state=0)


@pytest.fixture(scope="module")
def people():
    """Numbers, names with gaps, a numeric code, a constant, and a column nobody uses."""
    rng = np.random.default_rng(0)
    city = rng.choice(["rome", "oslo", "bern"], ROWS, p=[0.5, 0.3, 0.2]).astype(object)
    city[rng.random(ROWS) < 0.05] = None
    return pd.DataFrame(
        {
            "age": np.where(rng.random(ROWS) < 0.05, np.nan, rng.uniform(18, 80, ROWS)),
            "city": city,
            "income": rng.normal(50, 10, ROWS),
            "code": rng.choice([1, 2, 5], ROWS),
            "grade": rng.choice(["low", "high"], ROWS),
            "constant": 3.0,
            "unused": rng.normal(size=ROWS),
        }
    )


@pytest.fixture(scope="module")
def answers(people):
    score = people["age"].fillna(40) / 20 + (people["city"] == "rome") + 0.4 * people["code"]
    return (score > score.median()).map({True: "yes", False: "no"}).to_numpy()


@pytest.fixture(scope="module")
def pipeline(people, answers):
    return trained(make_pipeline(preprocessing(), network()), people, answers)


@pytest.fixture(scope="module")
def explainer(pipeline, people):
    return NObSP(pipeline).fit(people)


def preprocessing():
    return ColumnTransformer(
        [
            (
                "numbers",
                make_pipeline(SimpleImputer(), StandardScaler()),
                ["age", "income", "constant"],
            ),
            (
                "names",
                make_pipeline(
                    SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
                ),
                ["city"],
            ),
            ("codes", OneHotEncoder(drop="first"), ["code"]),
            ("grades", OrdinalEncoder(), ["grade"]),
        ],
        remainder="drop",
    )


def assert_adds_up(ex):
    assert np.allclose(
        ex.base_values + ex.values.sum(1) + ex.residual, ex.predictions, rtol=0, atol=CONTRIBUTIONS
    )


# ---------------------------------------------------------------------- networks


def test_a_binary_classifier_is_explained_in_log_odds(people, answers):
    X = people[["income", "unused"]]
    model = trained(network(), X, answers)
    explainer = NObSP(model).fit(X)
    ex = explainer(X)
    assert_adds_up(ex)
    assert explainer.output_names_ == ("yes",)
    assert np.allclose(ex.predictions[:, 0], logit(model.predict_proba(X)[:, 1]), atol=1e-9)


def test_a_classifier_of_many_classes_is_explained_in_logits(people):
    X = people[["income", "unused"]].to_numpy()
    y = np.array(["a", "b", "c"])[np.arange(ROWS) % 3]
    model = trained(network(), X, y)
    ex = NObSP(model).fit(X)(X)
    assert_adds_up(ex)
    assert ex.output_names == ("a", "b", "c")
    probabilities = model.predict_proba(X)
    versus = ex.contrast("c", "a")
    assert np.allclose(
        versus.predictions[:, 0], np.log(probabilities[:, 2] / probabilities[:, 0]), atol=1e-9
    )


@pytest.mark.parametrize("targets", [1, 2])
def test_a_regressor_is_explained_in_its_own_units(people, targets):
    X = people[["income", "unused"]].to_numpy()
    y = X @ np.ones((2, targets)) / 10
    model = trained(network(MLPRegressor), X, y[:, 0] if targets == 1 else y)
    ex = NObSP(model).fit(X)(X)
    assert_adds_up(ex)
    assert np.allclose(
        ex.predictions.reshape(ROWS, -1), model.predict(X).reshape(ROWS, -1), atol=1e-9
    )


# ---------------------------------------------------------------------- pipelines


def test_contributions_are_on_the_callers_columns_and_add_up_to_the_log_odds(
    explainer, pipeline, people
):
    ex = explainer(people)
    assert ex.feature_names == tuple(COLUMNS)
    assert ex.terms[:7] == tuple((name,) for name in COLUMNS)
    assert explainer.n_features_in_ == 7
    assert_adds_up(ex)
    assert np.allclose(ex.predictions[:, 0], logit(pipeline.predict_proba(people)[:, 1]), atol=1e-9)


def test_dropped_and_constant_columns_contribute_nothing(explainer, people):
    ex = explainer(people)
    assert not ex[:, ["constant", "unused"]].values.any()
    assert (
        np.abs(ex[:, ["age", "city", "income", "code", "grade"]].values).max((0, 2)) > 1e-3
    ).all()
    assert explainer.function("unused")([1.0, 2.0]).tolist() == [0, 0]


def test_functions_take_values_as_the_caller_writes_them(explainer, people):
    values = explainer(people).values[..., 0]
    for column in ("city", "grade", "code", "age"):
        known = people[column].notna().to_numpy()
        found = explainer.function(column)(people.loc[known, column])
        assert np.allclose(found, values[known, COLUMNS.index(column)], atol=1e-9), column
    rome, oslo = explainer.function("city")(["rome", "oslo"])
    assert rome != oslo
    assert_same_to_rounding(explainer.function("city")("rome"), [rome], within=CONTRIBUTIONS)


def test_missing_names_count_as_what_the_imputer_makes_of_them(explainer, people):
    gap = explainer(people[people["city"].isna()]).values[:, 1, 0]
    assert len(gap) > 0
    assert np.allclose(gap, explainer.function("city")("rome"))
    assert "None" not in set(explainer.curves(5).query("feature == 'city'")["level"])


def test_functions_alone_know_which_level_the_imputer_fills_in(explainer, people, tmp_path):
    gap = people[people["city"].isna()]
    assert len(gap) > 0
    ex = explainer(gap)
    explainer.compile().save(tmp_path / "functions.nobsp")
    for functions in (explainer.compile(), Functions.load(tmp_path / "functions.nobsp")):
        alone = functions(gap)
        assert_same_to_rounding(alone.values, ex.values, within=CONTRIBUTIONS)
        assert not alone.outside[:, alone.feature_names.index("city")].any()


def test_a_filled_in_level_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="level 2"):
        LevelAxis((0,), ("oslo", "rome"), filled_in=2)


def test_missing_names_that_are_imputed_are_not_outside(explainer, people):
    gap = explainer(people[people["city"].isna()])
    assert len(gap) > 0
    assert not gap.outside[:, gap.feature_names.index("city")].any()


def test_curves_have_levels_by_name_and_numbers_by_value(explainer, people):
    curves = explainer.curves(50)
    levels = {name: part["level"].tolist() for name, part in curves.groupby("feature")}
    assert levels["city"] == ["bern", "oslo", "rome"]
    assert levels["grade"] == ["high", "low"]
    x = {name: part["x"].tolist() for name, part in curves.groupby("feature")}
    assert x["code"] == [1, 2, 5]
    assert x["age"][0] == people["age"].min()
    assert x["age"][-2] == people["age"].max()
    assert np.isnan(x["age"][-1])  # the imputer takes missing ones
    assert len(x["age"]) == 51
    assert (curves["lower"] <= curves["value"]).all()
    assert (curves["value"] <= curves["upper"]).all()


@pytest.mark.parametrize("shown", ["pandas turned", "polars", "array"])
def test_other_tables_with_the_same_rows_give_the_same_account(explainer, people, shown):
    rows = people[people["city"].notna()]
    other = {
        "pandas turned": lambda: rows[COLUMNS[::-1]],
        "polars": lambda: pl.from_pandas(rows),
        "array": lambda: rows.to_numpy(),
    }[shown]()
    assert_same_to_rounding(explainer(other).values, explainer(rows).values, within=CONTRIBUTIONS)


def test_calibrating_on_polars_gives_the_same_functions(pipeline, explainer, people):
    complete = people.assign(city=people["city"].fillna("rome"), age=people["age"].fillna(40.0))
    theirs = NObSP(pipeline, interactions=0).fit(pl.from_pandas(complete))
    ours = NObSP(pipeline, interactions=0).fit(complete)
    assert_same_to_rounding(theirs(complete).values, ours(complete).values, within=CONTRIBUTIONS)


@pytest.mark.parametrize("kind", ["pandas", "polars", "array"])
def test_every_level_of_a_text_column_is_known_by_name(kind):
    names = [f"lv{k}" for k in range(300)] * 3
    X = pd.DataFrame({"c0": names, "c1": np.random.default_rng(0).normal(size=900)})
    prepare = ColumnTransformer([("names", OneHotEncoder(), [0]), ("rest", "passthrough", [1])])
    given = {"pandas": X, "polars": pl.from_pandas(X), "array": X.to_numpy()}[kind]
    model = trained(make_pipeline(prepare, network(MLPRegressor)), X.to_numpy(), X["c1"])
    names = None if kind != "array" else ["c0", "c1"]
    explainer = NObSP(model, features=names, baseline={"c0": "lv290"}, interactions=0).fit(given)
    assert explainer.baseline_[:300].sum() == 1
    assert explainer.function("c0")("lv290") == pytest.approx(
        explainer(given[290:291]).values[0, 0, 0]
    )
    curves = explainer.curves(9)
    assert sum(name == "c0" for name in curves["feature"]) == 300


def test_numbers_that_are_encoded_one_by_one_have_a_curve_however_many():
    X = np.column_stack([np.arange(900) % 300 * 1.5, np.random.default_rng(0).normal(size=900)])
    prepare = ColumnTransformer([("names", OneHotEncoder(), [0]), ("rest", "passthrough", [1])])
    model = trained(make_pipeline(prepare, network(MLPRegressor)), X, X[:, 1])
    curves = NObSP(model, interactions=0).fit(X).curves()
    assert curves["x"][curves["feature"] == "x0"].tolist() == [1.5 * k for k in range(300)]


@pytest.mark.parametrize("kind", ["pandas", "polars", "array"])
def test_names_after_many_gaps_are_names(kind):
    X = pd.DataFrame(
        {"city": [None] * 1200 + ["rome", "oslo"] * 100, "age": np.linspace(0, 1, 1400)},
        dtype=object,
    )
    X["age"] = X["age"].astype(float)
    fill = SimpleImputer(strategy="constant", fill_value="nowhere", missing_values=None)
    prepare = ColumnTransformer(
        [("names", make_pipeline(fill, OneHotEncoder()), [0]), ("rest", "passthrough", [1])]
    )
    model = trained(make_pipeline(prepare, network(MLPRegressor)), X.to_numpy(), X["age"])
    given = {"pandas": X, "polars": pl.from_pandas(X), "array": X.to_numpy()}[kind]
    explainer = NObSP(model, features=["city", "age"], interactions=0).fit(given)
    curves = explainer.curves(5)
    assert [level for level in curves["level"] if level] == ["oslo", "rome", "missing"]


@pytest.mark.parametrize("kind", ["pandas", "polars", "array"])
def test_the_columns_of_a_large_table_are_looked_at_one_by_one(kind):
    """No more than a few copies of one column are held, and no Python object per value."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(100_000, 20))
    names = [f"x{k}" for k in range(20)]
    X = {
        "pandas": lambda: pd.DataFrame(values, columns=names),
        "polars": lambda: pl.DataFrame(values, schema=names),
        "array": lambda: values,
    }[kind]()
    model = adapt(
        trained(
            make_pipeline(StandardScaler(), network(MLPRegressor)), values[:100], values[:100, 0]
        )
    )
    tracemalloc.start()
    try:
        columns_of(X, model, None, width=20, names=names)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.75 * values.nbytes


def test_columns_in_any_order_calibrate_the_same(people):
    X = people[["income", "unused"]]
    model = trained(make_pipeline(StandardScaler(), network(MLPRegressor)), X, X["income"] / 10)
    straight, turned = (
        NObSP(model, interactions=0).fit(X),
        NObSP(model, interactions=0).fit(X[["unused", "income"]]),
    )
    assert turned.functions_.feature_names == ("income", "unused")
    assert_same_to_rounding(straight(X).values, turned(X).values, within=CONTRIBUTIONS)


def test_a_pipeline_without_names_takes_arrays_and_frames_without_a_word(people):
    X = people[["income", "unused"]]
    model = trained(
        make_pipeline(StandardScaler(), network(MLPRegressor)), X.to_numpy(), X["income"] / 10
    )
    by_array, by_frame = (
        NObSP(model, interactions=0).fit(X.to_numpy()),
        NObSP(model, interactions=0).fit(X),
    )
    assert by_array.functions_.feature_names == ("x0", "x1")
    assert by_frame.functions_.feature_names == ("income", "unused")
    assert_same_to_rounding(by_array(X.to_numpy()).values, by_frame(X).values, within=CONTRIBUTIONS)


def test_a_group_of_names_and_numbers(pipeline, people):
    rest = ["income", "code", "grade", "constant", "unused"]
    complete = people.dropna()
    explainer = NObSP(
        pipeline, features={"who": ["age", "city"], "rest": rest}, interactions=0
    ).fit(people)
    ex = explainer(complete)
    assert_adds_up(ex)
    assert ex.shape == (len(complete), 2, 1)
    rows = complete[["age", "city"]][:5]
    for values in (rows.to_numpy(), rows.values.tolist(), rows):
        assert np.allclose(explainer.function("who")(values), ex.values[:5, 0, 0], atol=1e-9)


def test_baselines_are_in_the_callers_units(pipeline, people):
    explainer = NObSP(
        pipeline, baseline={"age": 30, "city": "oslo", "code": 5}, interactions=0
    ).fit(people)
    names = [name.partition("__")[2] for name in pipeline[0].get_feature_names_out()]
    baseline = dict(zip(names, explainer.baseline_, strict=True))
    row = people[:1].assign(age=30.0, city="oslo", code=5)
    assert np.allclose(
        [baseline[name] for name in names if name.startswith(("age", "city", "code"))],
        [
            value
            for name, value in zip(names, pipeline[0].transform(row)[0], strict=True)
            if name.startswith(("age", "city", "code"))
        ],
    )
    moved = explainer(row).from_baseline()
    assert np.allclose(moved[:, ["age", "city", "code"]].values, 0, atol=1e-9)


def test_a_row_of_the_table_can_be_the_baseline(pipeline, people):
    row = people.dropna()[:1]
    for given in (row, row.iloc[0], row.to_numpy()[0]):
        explainer = NObSP(pipeline, baseline=given, interactions=0).fit(people)
        # Numbers are taken back from what the preprocessing made of them.
        assert np.allclose(explainer(row).from_baseline().values, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("baseline", "said"),
    [
        ({"city": "paris"}, "baseline for 'city' is 'paris', which was not seen; there are 'bern'"),
        ({"cty": "rome"}, "baseline names 'cty'.*did you mean 'city'"),
        ([1, 2, 3], "baseline has 3 values but the table has 7 columns"),
        ({"age": "old"}, "baseline for 'age' must be"),
    ],
)
def test_wrong_baselines_are_named(pipeline, people, baseline, said):
    with pytest.raises(ValueError, match=said):
        NObSP(pipeline, baseline=baseline).fit(people)


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_interactions_between_names_and_numbers(pipeline, people, reference):
    explainer = NObSP(pipeline, interactions=[("city", "age")], reference=reference).fit(people)
    ex = explainer(people[:20])
    assert_adds_up(ex)
    assert ex[:, ("city", "age")].terms == (("age", "city"),)


def test_health_tells_a_dropped_column_from_a_dead_one(explainer):
    codes = {finding.subject: finding.code for finding in explainer.health().findings}
    assert codes["unused"] == codes["constant"] == "unused"


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("column", ["city", "grade", "code"])
def test_an_unseen_level_is_flagged_and_leaves_the_other_rows_alone(explainer, people, column):
    """Ignored by the encoder of cities, an error in those of grades and codes."""
    rows = people[:9].assign(city="rome")
    spoilt = rows.astype({column: object})
    spoilt.loc[6, column] = {"city": "paris", "grade": "medium", "code": 3}[column]
    expected, found = explainer(rows), explainer(spoilt)
    others = np.arange(9) != 6
    assert_same_to_rounding(found.values[others], expected.values[others], within=CONTRIBUTIONS)
    assert_same_to_rounding(
        found.predictions[others], expected.predictions[others], within=CONTRIBUTIONS
    )
    assert found.outside[:, COLUMNS.index(column)].tolist() == [row == 6 for row in range(9)]
    assert np.isfinite(found.predictions[6]).all() == (column == "city")
    assert_adds_up(found[:6])
    assert "outside" in {finding.code for finding in explainer.health(spoilt).findings}


def test_the_function_of_an_unseen_level_is_that_of_the_account(explainer, people):
    rows = people[:2].assign(city=["rome", "paris"])
    account = explainer(rows)[:, ("city",)].values[:, 0, 0]
    assert account[1] != 0.0
    assert_same_to_rounding(explainer["city"](["rome", "paris"]), account, within=CONTRIBUTIONS)


def test_the_function_of_a_level_that_the_model_refuses_is_an_error(explainer):
    with pytest.raises(ValueError, match="grade"):
        explainer["grade"](["medium"])


def test_functions_without_their_model_warn_of_an_unseen_level(explainer):
    with pytest.warns(UserWarning, match="'paris'"):
        values = explainer.compile()["city"](["rome", "paris"])
    assert values[1] == 0.0


def test_functions_know_what_the_pipeline_fills_in_for_a_missing_code(people, answers):
    """Codes, and flags, that are one-hot encoded after the most frequent one was filled in."""
    rng = np.random.default_rng(1)
    flag = np.where(rng.random(len(people)) < 0.1, None, rng.random(len(people)) < 0.7)
    rows = people[["age", "code"]].assign(flag=flag.astype(object))
    rows["code"] = rows["code"].where(rng.random(len(rows)) > 0.1)
    rows["flag"] = rows["flag"].astype("boolean").astype("float")
    codes = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
    steps = [("numbers", SimpleImputer(), ["age"]), ("codes", codes, ["code", "flag"])]
    model = trained(make_pipeline(ColumnTransformer(steps), network()), rows, answers)

    explainer = NObSP(model).fit(rows)
    explanation = explainer(rows)
    alone = explainer.compile()(rows)

    assert not explanation.outside.any()
    np.testing.assert_array_equal(alone.outside, explanation.outside)
    assert_same_to_rounding(alone.values, explanation.values, within=CONTRIBUTIONS)
    assert explainer["flag"]([np.nan]) == explainer["flag"]([1.0])


def test_words_where_numbers_stood_are_an_error(explainer):
    with pytest.raises((TypeError, ValueError), match=r"'age'|column"):
        explainer.function("age")(["old"])


def test_other_columns_are_named(explainer, pipeline, people):
    with pytest.raises(ValueError, match="X lacks 'unused'"):
        NObSP(pipeline).fit(people.drop(columns="unused"))
    with pytest.raises(ValueError, match="X has unexpected 'label'"):
        explainer(people.assign(label=1))


def test_a_gap_that_no_imputer_fills_is_an_error(people):
    X = people[["age", "income"]]
    model = trained(
        make_pipeline(StandardScaler(), network(MLPRegressor)), X.dropna(), X.dropna()["age"] / 10
    )
    row = int(np.flatnonzero(X["age"].isna())[0])
    with pytest.raises(ValueError, match=f"X is NaN in row {row}"):
        NObSP(model).fit(X)


def test_a_pipeline_that_mixes_columns_is_one_function_of_the_columns(people, tmp_path):
    X = people[["income", "unused"]]
    model = trained(make_pipeline(PCA(2), network(MLPRegressor)), X, X["income"] / 10)
    explainer = NObSP(model).fit(X)
    assert explainer.functions_.feature_names == ("income", "unused")
    np.testing.assert_allclose(explainer(X).predictions[:, 0], model.predict(X), rtol=CONTRIBUTIONS)
    explainer.save(tmp_path / "mixed.safetensors")
    again = NObSP.load(tmp_path / "mixed.safetensors", model)
    assert_same_to_rounding(again(X).values, explainer(X).values)


@pytest.mark.parametrize(
    "model", [MLPClassifier(), make_pipeline(StandardScaler(), MLPRegressor())]
)
def test_an_unfitted_model_is_not_fitted(model):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        NObSP(model).fit(np.zeros((5, 2)))


def test_a_pipeline_may_end_in_any_model(people):
    X = people[["income", "unused"]]
    model = make_pipeline(StandardScaler(), RandomForestClassifier(10)).fit(
        X, X["income"] > X["income"].mean()
    )
    explanation = NObSP(model, interactions=0).fit(X)(X)
    np.testing.assert_allclose(
        explanation.predictions[:, 0], model.predict_proba(X)[:, 1], rtol=CONTRIBUTIONS
    )


def test_streams_of_a_pipeline_get_a_clear_error(pipeline, people):
    with pytest.raises(TypeError, match=r"X must be one frame or array.*found list"):
        NObSP(pipeline).fit([people[:100], people[100:]])


# ---------------------------------------------------------------------- manners


@pytest.fixture
def plain():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))


def test_a_clone_keeps_the_very_same_model_and_the_options(plain, pipeline, people):
    explainer = NObSP(plain, ridge=0.5, features=["a", "b"]).fit(
        np.random.default_rng(0).normal(size=(20, 2))
    )
    copy = clone(explainer)
    assert copy.model is plain
    assert copy.get_params(deep=False) == explainer.get_params(deep=False)
    with pytest.raises(NotFittedError):
        check_is_fitted(copy)
    assert clone(NObSP(pipeline)).model is pipeline
    check_is_fitted(pipeline[-1])


def test_parameters_are_read_and_set(plain):
    explainer = NObSP(plain)
    assert explainer.set_params(ridge=0.1, reference="complement") is explainer
    assert explainer.get_params(deep=False)["ridge"] == 0.1
    with pytest.raises(ValueError, match="rigde"):
        explainer.set_params(rigde=1)
    with pytest.raises(TypeError, match="baselin"):
        NObSP(plain, baselin="zero")


def test_repr_shows_what_was_changed(plain):
    assert repr(NObSP(plain, ridge=0.5)).startswith("NObSP(model=Sequential(")
    assert "ridge=0.5" in repr(NObSP(plain, ridge=0.5))
    assert "baseline" not in repr(NObSP(plain, ridge=0.5))
    # A model of many layers would hide everything else.
    assert len(repr(NObSP(nn.Sequential(*[nn.Linear(3, 3) for _ in range(50)])))) < 60


def test_fit_returns_the_explainer_and_fit_again_replaces(plain):
    rng = np.random.default_rng(0)
    explainer = NObSP(plain, interactions=0)
    first, second = rng.normal(size=(30, 2)), rng.normal(size=(40, 2)) + 1
    assert explainer.fit(first) is explainer
    explainer.fit(second)
    anew = NObSP(plain, interactions=0).fit(second)
    assert_same_to_rounding(explainer(first).values, anew(first).values, within=CONTRIBUTIONS)
    assert explainer.health().rows == 40


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e(np.zeros((1, 2))),
        lambda e: e.explain(np.zeros((1, 2))),
        lambda e: e.function("x0"),
        lambda e: e.curves(),
        lambda e: e.importance(),
        lambda e: e.interaction_strengths(),
        lambda e: e.health(),
        lambda e: e.save("never-written"),
        lambda e: e.merge(e),
        lambda e: e.feature_names_in_,
        lambda e: e.terms_,
        lambda e: check_is_fitted(e),
    ],
)
def test_everything_asks_for_fit_first(plain, use):
    with pytest.raises(NotFittedError):
        use(NObSP(plain))


def test_fitting_leaves_the_pipeline_as_it_was(people, answers):
    model = trained(
        Pipeline([("prepare", preprocessing()), ("network", network())]), people, answers
    )
    before = [weight.copy() for weight in model[-1].coefs_]
    table = people.copy()
    NObSP(model, interactions=0).fit(people)(people[:5])
    assert all(np.array_equal(a, b) for a, b in zip(before, model[-1].coefs_, strict=True))
    pd.testing.assert_frame_equal(people, table)


@pytest.mark.parametrize("kind", ["string", "object"])
def test_missing_names_are_a_level_however_they_are_written(kind):
    """pandas' own NA is not even equal to itself, which is not an answer but another NA."""
    generator = np.random.default_rng(0)
    town = np.array(["oslo", "rome"], dtype=object)[generator.integers(0, 2, 120)]
    town[::5] = pd.NA
    X = pd.DataFrame({"age": generator.normal(size=120), "town": pd.Series(town, dtype=kind)})
    filled = SimpleImputer(missing_values=pd.NA, strategy="constant", fill_value="none")
    names = make_pipeline(filled, OneHotEncoder(sparse_output=False))
    steps = ColumnTransformer([("town", names, ["town"]), ("age", "passthrough", ["age"])])
    model = make_pipeline(
        steps, MLPRegressor(hidden_layer_sizes=(8,), max_iter=300, random_state=0, solver="lbfgs")
    )
    model.fit(X, X["age"].to_numpy() - 3.0 * X["town"].isna().to_numpy())
    explainer = NObSP(model, interactions=0).fit(X)
    assert ("oslo", "rome", "missing") in [
        feature.labels for feature in explainer.functions_.features
    ]
    explanation = explainer(X)
    assert not explanation.outside.any()
    assert_same_to_rounding(explainer.compile()(X).values, explanation.values, within=CONTRIBUTIONS)
