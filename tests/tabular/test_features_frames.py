"""Names, columns and tables: frames in, frames of the same kind out."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn

from nobsp import NObSP
from tests.tolerances import SINGLE, assert_same_to_rounding

NAMES = ["age", "income", "height"]
KINDS = {"pandas": lambda frame: frame, "polars": pl.from_pandas}


@pytest.fixture(scope="module")
def net():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))


@pytest.fixture(scope="module")
def table():
    values = np.random.default_rng(3).normal(size=(200, 3))
    return pd.DataFrame(values, columns=NAMES)


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def test_names_come_from_the_frame(net, table, kind):
    explainer = NObSP(net, interactions=0).fit(kind(table))
    assert explainer.functions_.feature_names == tuple(NAMES)
    assert explainer.terms_ == tuple((name,) for name in NAMES)
    assert explainer.n_features_in_ == 3


def test_names_of_columns_are_where_scikit_learn_has_them(net, table):
    features = {"both": [0, 1], "third": [2]}
    of_frame = NObSP(net, interactions=0, features=features).fit(table)
    of_array = NObSP(net, interactions=0, features=features).fit(table.to_numpy())

    assert of_frame.feature_names_in_.tolist() == NAMES
    assert of_array.feature_names_in_.tolist() == ["x0", "x1", "third"]
    with pytest.warns(DeprecationWarning, match="feature_names_"):
        assert of_frame.feature_names_ == ("both", "third")


def test_an_explainer_gives_its_functions_by_name(net, table):
    explainer = NObSP(net, interactions=[("age", "income")]).fit(table)
    functions = explainer.compile()
    ages = table["age"].to_numpy()[:5]
    incomes = table["income"].to_numpy()[:5]

    np.testing.assert_array_equal(explainer["age"](ages), explainer.function("age")(ages))
    np.testing.assert_array_equal(functions["age"](ages), explainer["age"](ages))
    np.testing.assert_array_equal(
        functions["age", "income"](ages, incomes), explainer["age", "income"](ages, incomes)
    )
    for subject in (explainer, functions):
        with pytest.raises(ValueError, match="nobody"):
            subject["nobody"]
        with pytest.raises(TypeError, match="iterated"):
            list(subject)


def test_names_of_an_array_are_numbered_or_given(net, table):
    assert NObSP(net).fit(table.to_numpy()).functions_.feature_names == ("x0", "x1", "x2")
    assert NObSP(net, features=table.columns).fit(
        table.to_numpy()
    ).functions_.feature_names == tuple(NAMES)
    assert NObSP(net, features=["u", "v", "w"]).fit(table).functions_.feature_names == (
        "u",
        "v",
        "w",
    )


def test_columns_that_are_numbers_become_text(net, table):
    explainer = NObSP(net).fit(pd.DataFrame(table.to_numpy()))
    assert explainer.functions_.feature_names == ("0", "1", "2")


def test_columns_are_matched_by_name(net, table, kind):
    explainer = NObSP(net).fit(kind(table))
    straight = explainer(kind(table))
    turned = explainer(kind(table[NAMES[::-1]]))
    assert_same_to_rounding(straight.values, turned.values, within=SINGLE)
    assert np.array_equal(straight.outside, turned.outside)


def test_pandas_polars_arrays_and_tensors_agree(net, table):
    explainer = NObSP(net).fit(table)
    expected = explainer(table).values
    for rows in (pl.from_pandas(table), table.to_numpy(), torch.tensor(table.to_numpy())):
        assert_same_to_rounding(explainer(rows).values, expected, within=SINGLE)


def test_names_given_for_an_array_match_a_frame_later(net, table):
    explainer = NObSP(net, features=NAMES).fit(table.to_numpy())
    assert_same_to_rounding(
        explainer(table[NAMES[::-1]]).values, explainer(table.to_numpy()).values, within=SINGLE
    )
    with pytest.raises(ValueError, match="X lacks 'age'"):
        explainer(table.rename(columns={"age": "years"}))


def test_a_shard_in_other_column_order_is_matched_to_the_first(net, table, kind):
    given = {"reference": "complement", "interactions": 0}
    first = NObSP(net, **given).fit(kind(table[:100]))
    straight = NObSP(net, **given).fit(kind(table[100:]), like=first)
    turned = NObSP(net, **given).fit(kind(table[100:][NAMES[::-1]]), like=first)
    assert_same_to_rounding(straight(table).values, turned(table).values, within=SINGLE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda t: t.drop(columns="age"),
            "X lacks 'age'; expected columns are 'age', 'income', 'height'",
        ),
        (lambda t: t.assign(label=1.0), "X has unexpected 'label'"),
        (
            lambda t: t.rename(columns={"income": "incme"}),
            "lacks 'income' and has unexpected 'incme'.*'incme' to",
        ),
    ],
)
def test_other_columns_are_named_with_close_matches(net, table, kind, change, said):
    explainer = NObSP(net).fit(kind(table))
    with pytest.raises(ValueError, match=said):
        explainer(kind(change(table)))


def test_tables_are_frames_whatever_was_calibrated_on(net, table, kind):
    explainer = NObSP(net, interactions=1).fit(kind(table))
    curves, importance, pairs = (
        explainer.curves(5),
        explainer.importance(),
        explainer.interaction_strengths(),
    )
    assert type(curves) is type(importance) is type(pairs) is pd.DataFrame
    assert list(curves.columns) == ["feature", "output", "x", "level", "value", "lower", "upper"]
    assert list(importance.columns) == ["feature", "output", "importance"]
    assert list(pairs.columns) == ["first", "second", "strength", "fitted"]
    assert len(importance) == 6
    assert len(pairs) == 3


def test_importance_is_sorted_and_is_the_mean_size(net, table):
    explainer = NObSP(net, interactions=1).fit(table)
    ex = explainer(table)
    main = explainer.importance("main")
    sums = main.groupby("feature", sort=False)["importance"].sum()
    assert (sums.diff().dropna() <= 0).all()
    expected = np.abs(ex.values[:, NAMES.index("age"), 1]).mean()
    row = main.query("feature == 'age' and output == 'output 1'")["importance"].item()
    assert row == pytest.approx(expected, rel=1e-9)
    total = (
        explainer.importance()
        .query("feature == 'age' and output == 'output 1'")["importance"]
        .item()
    )
    assert total == pytest.approx(np.abs(ex.total()[:, 0, 1]).mean(), rel=1e-9)


def test_interaction_strengths_say_which_pairs_were_fitted(net, table):
    explainer = NObSP(net, interactions=2).fit(table)
    pairs = explainer.interaction_strengths()
    assert pairs["fitted"].tolist() == [True, True, False]
    assert (pairs["strength"].diff().dropna() <= 0).all()
    fitted = {
        frozenset(pair)
        for pair in pairs.query("fitted")[["first", "second"]].itertuples(index=False)
    }
    assert fitted == {frozenset(term) for term in explainer.terms_ if len(term) == 2}


# ---------------------------------------------------------------------- groups and baselines


@pytest.mark.parametrize(
    "groups", [{"who": ["age", "height"], "money": "income"}, {"who": [0, 2], "money": 1}]
)
def test_groups_by_name_or_position(net, table, kind, groups):
    explainer = NObSP(net, features=groups, interactions=0).fit(kind(table))
    ex = explainer(kind(table))
    assert ex.feature_names == ("who", "money")
    assert ex.shape == (200, 2, 2)
    values = explainer.function("who", output=1)(table[["age", "height"]].to_numpy())
    assert np.allclose(values, ex.values[:, 0, 1], atol=1e-6)


def test_a_group_is_fitted_jointly_not_summed(net, table):
    grouped = NObSP(net, features={"who": [0, 2], "money": 1}, interactions=0).fit(table)(table)
    apart = NObSP(net, interactions=0).fit(table)(table)
    summed = apart.values[:, [0, 2]].sum(1)
    assert not np.allclose(grouped.values[:, 0], summed, atol=1e-3)
    assert (grouped.explained() > apart.explained()).all()


@pytest.mark.parametrize(
    ("features", "kind", "said"),
    [
        (
            {"g": ["age", "income"], "h": ["income", "height"]},
            ValueError,
            "'income' into both 'g' and 'h'",
        ),
        ({"g": ["age", "income"]}, ValueError, "features leaves out column 'height'"),
        (
            {"g": ["age", "incom"], "h": "height"},
            ValueError,
            r"features\['g'\].*'incom'.*did you mean 'income'",
        ),
        ({"g": [0, 1], "h": 7}, ValueError, r"features\['h'\] names column 7.*0 to 2"),
        (
            {"g": ["age", "age"], "h": ["income", "height"]},
            ValueError,
            "features puts column 'age'",
        ),
        ({"g": [], "h": [0, 1, 2]}, ValueError, r"features\['g'\] has no columns"),
        ({"g": [0.5], "h": [0, 1, 2]}, TypeError, r"features\['g'\].*0.5"),
        (["u", "v"], ValueError, "features has 2 names but the data has 3 columns"),
        (["u", "u", "v"], ValueError, "features has the name 'u' twice"),
        (
            "age",
            TypeError,
            "features must be a list of names or a dictionary, found the string 'age'",
        ),
        (5, TypeError, "features must be a list of names or a dictionary, found 5"),
    ],
)
def test_wrong_features_are_named(net, table, features, kind, said):
    with pytest.raises(kind, match=said):
        NObSP(net, features=features).fit(table)


def test_names_for_an_array_without_names_are_an_error(net, table):
    with pytest.raises(
        ValueError, match=r"features\['g'\] names column 'age', but the data has no column names"
    ):
        NObSP(net, features={"g": "age", "h": [1, 2]}).fit(table.to_numpy())


def baseline_of(net, table, baseline, **options):
    return NObSP(net, baseline=baseline, **options).fit(table).baseline_


def test_every_kind_of_baseline(net, table):
    values = table.round(1)
    array = values.to_numpy()
    assert np.allclose(baseline_of(net, values, "mean"), array.mean(0))
    assert np.allclose(baseline_of(net, values, "median"), np.median(array, axis=0))
    assert not baseline_of(net, values, "zero").any()
    counted = [values[name].value_counts().sort_index().idxmax() for name in NAMES]
    assert np.allclose(baseline_of(net, values, "mode"), counted)
    for vector in (
        [1, 2, 3],
        np.array([1.0, 2, 3]),
        torch.tensor([1.0, 2, 3]),
        pd.Series([1, 2, 3]),
    ):
        assert np.array_equal(baseline_of(net, values, vector), [1, 2, 3])
    mixed = baseline_of(net, values, {"age": 7, "height": "median"})
    assert np.allclose(mixed, [7, array[:, 1].mean(), np.median(array[:, 2])])
    grouped = baseline_of(
        net, values, {"g": [4, 5]}, features={"g": ["height", "age"], "h": "income"}
    )
    assert np.allclose(grouped, [5, array[:, 1].mean(), 4])


def test_one_hot_groups_take_their_most_frequent_level(net):
    rng = np.random.default_rng(0)
    level = rng.choice(2, p=[0.3, 0.7], size=120)
    table = pd.DataFrame(
        {"oslo": level == 0, "rome": level == 1, "age": rng.normal(size=120)}
    ).astype(float)
    features = {"city": ["oslo", "rome"], "age": "age"}
    for baseline in ("mean", "median", {"city": "mode"}):
        assert baseline_of(net, table, baseline, features=features)[:2].tolist() == [0, 1]
    assert baseline_of(net, table, {"city": [1, 0]}, features=features)[:2].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("baseline", "kind", "said"),
    [
        ([1, 2], ValueError, "baseline has 2 values but the data has 3 columns"),
        (0.0, ValueError, "baseline has 1 values but the data has 3 columns"),
        ("avarage", ValueError, "baseline .*found 'avarage'"),
        (None, TypeError, "baseline must be .*found None"),
        ({"agee": 1}, ValueError, "baseline names 'agee'.*did you mean 'age'"),
        (
            {"age": [1, 2]},
            ValueError,
            "baseline for 'age' has 2 values but the feature has 1 columns",
        ),
        ({"age": "often"}, ValueError, "baseline for 'age' must be .*found 'often'"),
        ([np.nan, 0, 0], ValueError, "baseline has values that are not finite"),
        (["a", "b", "c"], TypeError, "baseline must be numbers"),
    ],
)
def test_wrong_baselines_are_named(net, table, baseline, kind, said):
    with pytest.raises(kind, match=said):
        NObSP(net, baseline=baseline).fit(table)


def test_truth_values_and_whole_numbers_that_pandas_knows_as_missing_are_numbers():
    generator = np.random.default_rng(0)
    number = generator.normal(size=300)
    flag = generator.integers(0, 3, 300)
    known = pd.DataFrame(
        {
            "number": number,
            "flag": np.where(flag == 2, np.nan, flag),
            "count": np.where(flag, 3.0, np.nan),
        }
    )
    table = known.assign(
        flag=pd.array([None if x == 2 else bool(x) for x in flag], dtype="boolean"),
        count=pd.array([3 if x else None for x in flag], dtype="Int64"),
    )

    def model(rows):
        columns = [pd.to_numeric(rows[name]).to_numpy(float, na_value=np.nan) for name in known]
        number, flag, count = (np.nan_to_num(column, nan=-1.0) for column in columns)
        return number * flag + count

    explained = NObSP(model, interactions=[("number", "flag")]).fit(table)(table)
    as_floats = NObSP(model, interactions=[("number", "flag")]).fit(known)(known)
    assert_same_to_rounding(explained.values, as_floats.values)
    assert not explained.outside.any()
