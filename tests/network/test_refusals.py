"""What a preprocessing raises about rows is told with the row and the column that it is about."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import nobsp
from nobsp.network.adapted import encoder_of
from nobsp.network.refusals import wrapped_refusal


def rows(count: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"age": rng.normal(40, 10, count), "city": rng.choice(["rome", "oslo", "bonn"], count)}
    )


def pipeline() -> Pipeline:
    X = rows(200)
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="error", sparse_output=False), ["city"]),
        (StandardScaler(), ["age"]),
    )
    return make_pipeline(encode, Ridge()).fit(X, X["age"] + (X["city"] == "rome"))


def broken(X: pd.DataFrame, row: int, column: str, value: object) -> pd.DataFrame:
    wrong = X.astype({column: object})
    wrong.loc[row, column] = value
    return wrong


@pytest.mark.parametrize("row", [0, 37, 199])
@pytest.mark.parametrize(("column", "value"), [("city", "paris"), ("age", "old")])
def test_a_value_that_is_refused_is_named_with_its_row(column: str, value: str, row: int) -> None:
    with pytest.raises(ValueError, match=f"row {row}: column '{column}' is '{value}'") as failure:
        nobsp.NObSP(pipeline()).fit(broken(rows(200), row, column, value))
    assert isinstance(failure.value.__cause__, ValueError)


@pytest.mark.parametrize(("column", "value"), [("city", "paris"), ("age", "old")])
def test_rows_behind_the_first_batch_are_named_as_well(column: str, value: str) -> None:
    explainer = nobsp.NObSP(pipeline(), batch_size=100)
    with pytest.raises(ValueError, match=f"^X does not pass .* column '{column}' is '{value}'") as (
        failure
    ):
        explainer.fit(broken(rows(400), 333, column, value))
    assert isinstance(failure.value.__cause__, ValueError)


def test_errors_of_other_kinds_are_told_in_the_same_words() -> None:
    def shorten(X: pd.DataFrame) -> pd.DataFrame:
        return X.assign(city=X["city"].map(lambda name: {"rome": 1, "oslo": 2, "bonn": 3}[name]))

    X = rows(200)
    model = make_pipeline(FunctionTransformer(shorten), Ridge()).fit(X, X["age"])
    with pytest.raises(ValueError, match="column 'city' is 'paris'") as failure:
        nobsp.NObSP(model).fit(broken(X, 5, "city", "paris"))
    assert isinstance(failure.value.__cause__, KeyError)


def test_where_no_row_passes_none_is_blamed() -> None:
    X = rows(50).assign(city="paris")
    with pytest.raises(ValueError, match="preprocessing: Found unknown"):
        nobsp.NObSP(pipeline()).fit(X)


def test_a_row_with_two_wrong_values_is_named_without_a_column() -> None:
    wrong = broken(broken(rows(200), 8, "city", "paris"), 8, "age", "old")
    with pytest.raises(ValueError, match=r"in row 8 \("):
        nobsp.NObSP(pipeline()).fit(wrong)


def test_columns_of_arrays_are_numbered() -> None:
    X = np.random.default_rng(0).normal(size=(100, 2)).astype(object)
    model = make_pipeline(StandardScaler(), Ridge()).fit(X.astype(float), np.arange(100.0))
    assert encoder_of(model[:-1])(X).shape == (100, 2)
    X[60, 1] = "old"
    with pytest.raises(ValueError, match="row 60: column 1 is 'old'"):
        nobsp.NObSP(model).fit(X)


def test_numbers_are_written_plainly() -> None:
    X = np.random.default_rng(0).normal(size=(100, 2))
    model = make_pipeline(StandardScaler(), Ridge()).fit(X, X[:, 0])
    X[40, 1] = np.inf
    with pytest.raises(ValueError, match=r"row 40: column 1 is inf \("):
        nobsp.NObSP(model).fit(X)


def test_columns_whose_names_are_numbers_are_named() -> None:
    X = rows(200).set_axis([0, 1], axis=1)
    encode = make_column_transformer((OneHotEncoder(sparse_output=False), [1]), remainder="drop")
    model = make_pipeline(encode, Ridge()).fit(X, X[0])
    X.loc[30, 1] = "paris"
    with pytest.raises(ValueError, match="row 30: column 1 is 'paris'"):
        nobsp.NObSP(model).fit(X)


def test_errors_met_in_the_search_do_not_hide_the_one_that_is_told() -> None:
    def few(X: np.ndarray) -> np.ndarray:
        raise RuntimeError("few rows")

    told = wrapped_refusal(ValueError("fifty"), few, np.zeros((50, 2)), argument="X", first_row=0)
    assert isinstance(told, ValueError)
    assert "preprocessing: fifty" in str(told)
