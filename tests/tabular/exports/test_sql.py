"""Functions as a SELECT: three databases say what Python says, and no name leaves its quotes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

from nobsp import Functions
from nobsp.tabular.lookup import LevelAxis
from tests.tabular.exports.servers import Postgres, running_postgres
from tests.tabular.handmade import CITIES, handmade, rows_for

KINDS: dict[str, dict[str, Any]] = {
    "numbers": {},
    "means": {"link": "exp", "outputs": 2},
    "filled in": {"cities": CITIES, "filled_in": 1},
    "two classes": {"link": "sigmoid", "classes": ("no", "yes's")},
    "three classes": {"link": "softmax", "outputs": 3, "classes": ("a", 'b;"', "c\n")},
}
# Names that would end a statement, were they not quoted.
WICKED = (
    'age"; DROP TABLE people; --',
    "income'); DELETE FROM people; /*",
    "city\nSELECT 1",
    "code`%s?:x$1\\",
    "hot 1",
    "hot 2]",
    "unused ' \" ''",
)

Query = Callable[[str, pd.DataFrame], pd.DataFrame]


def ask_duckdb(select: str, rows: pd.DataFrame) -> pd.DataFrame:
    with duckdb.connect() as database:
        database.register("frame", rows)
        database.execute('CREATE TABLE "people" AS SELECT * FROM frame')
        answer = database.execute(select)
        names = [column[0] for column in answer.description]
        result = pd.DataFrame(answer.fetchall(), columns=names)
        assert database.execute("SELECT count(*) FROM people").fetchone() == (len(rows),)
        return result


def ask_sqlite(select: str, rows: pd.DataFrame) -> pd.DataFrame:
    database = sqlite3.connect(":memory:")
    rows.to_sql("people", database, index=False)
    result = pd.read_sql_query(select, database)
    assert database.execute("SELECT count(*) FROM people").fetchone() == (len(rows),)
    database.close()
    return result


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def ask_postgres(server: Postgres) -> Query:
    def ask(select: str, rows: pd.DataFrame) -> pd.DataFrame:
        kinds = {"f": "double precision", "b": "boolean", "i": "integer"}
        types = [kinds.get(rows[name].dtype.kind, "text") for name in rows.columns]
        server.run("DROP TABLE IF EXISTS people;")
        server.create("people", types, rows)
        return server.query(select)

    return ask


def require_same(functions: Functions, rows: pd.DataFrame, query: Query, dialect: Any) -> None:
    """Contributions, sums, probabilities and predictions of a database are Python's."""
    keyed = rows.assign(key=np.arange(len(rows)))
    select = functions.to_sql("people", dialect=dialect, keep=["key"])
    result = query(select, keyed).sort_values("key")

    explanation = functions(rows)
    n_outputs = len(functions.output_names)
    names = [name for name in result.columns if name.startswith("contribution")]
    values = result[names].to_numpy(dtype=np.float64).reshape(len(rows), n_outputs, -1)
    np.testing.assert_allclose(
        values.transpose(0, 2, 1), explanation.values, rtol=1e-12, atol=1e-12
    )

    predictions = result[[name for name in result.columns if name.startswith("prediction")]]
    expected = functions.predict(rows).reshape(len(rows), -1)
    if functions.classes:
        assert predictions.to_numpy().tolist() == expected.tolist()
        chances = [name for name in result.columns if name.startswith("probability")]
        np.testing.assert_allclose(
            result[chances].to_numpy(dtype=np.float64),
            functions.predict_proba(rows),
            rtol=1e-12,
            atol=1e-12,
        )
    else:
        np.testing.assert_allclose(
            predictions.to_numpy(dtype=np.float64), expected, rtol=1e-11, atol=1e-12
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dialect", "query"), [("duckdb", ask_duckdb), ("sqlite", ask_sqlite)], ids=["duckdb", "sqlite"]
)
def test_a_database_says_what_python_says(kind: str, dialect: str, query: Query) -> None:
    functions = handmade(**KINDS[kind])
    require_same(functions, rows_for(functions), query, dialect)


@pytest.mark.parametrize("kind", ["means", "filled in", "two classes", "three classes"])
def test_postgres_says_what_python_says(kind: str, postgres: Postgres) -> None:
    functions = handmade(**KINDS[kind])
    require_same(functions, rows_for(functions), ask_postgres(postgres), "postgres")


@pytest.mark.parametrize(
    ("dialect", "query"), [("duckdb", ask_duckdb), ("sqlite", ask_sqlite)], ids=["duckdb", "sqlite"]
)
def test_no_name_or_level_leaves_its_quotes(dialect: str, query: Query) -> None:
    cities = (*CITIES, "'; DROP TABLE people; --", "\\', E'\\'", "$$x$$", "nul\0inside")
    functions = handmade(names=WICKED, cities=cities)
    rows = rows_for(functions)
    if query is ask_duckdb:  # pandas hands no NUL over to it
        rows.loc[rows[WICKED[2]] == "nul\0inside", WICKED[2]] = "Bern"
    require_same(functions, rows, query, dialect)


def test_no_name_or_level_leaves_its_quotes_in_postgres(postgres: Postgres) -> None:
    cities = (*CITIES, "'; DROP TABLE people; --", "\\', E'\\'", "$$x$$", "nul\0inside")
    functions = handmade(names=WICKED, cities=cities)
    rows = rows_for(functions)
    # PostgreSQL has no text with NUL in it: such a level never occurs.
    rows.loc[rows[WICKED[2]] == "nul\0inside", WICKED[2]] = "Bern"
    require_same(functions, rows, ask_postgres(postgres), "postgres")


def test_a_level_with_nul_is_found_by_duckdb() -> None:
    functions = handmade(cities=("nul\0inside", "nul"))
    rows = rows_for(functions).assign(city="nul\0inside")
    select = functions.to_sql("people", dialect="duckdb")
    with duckdb.connect() as database:
        database.register("frame", rows.assign(city="x"))
        database.execute("CREATE TABLE people AS SELECT * FROM frame")
        database.execute("UPDATE people SET city = 'nul' || chr(0) || 'inside'")
        result = database.execute(select).df()
    expected = functions(rows)[:, "city"].values.ravel()
    np.testing.assert_allclose(result["contribution of city"], expected, rtol=1e-12)


@pytest.mark.parametrize("dialect", ["duckdb", "postgres", "sqlite"])
def test_a_column_name_with_nul_is_refused(dialect: Any) -> None:
    names = ("a\0ge", "income", "city", "code", "hot 1", "hot 2", "unused")
    with pytest.raises(ValueError, match="NUL"):
        handmade(names=names).to_sql("people", dialect=dialect)
    with pytest.raises(ValueError, match="NUL"):
        handmade().to_sql("peo\0ple", dialect=dialect)


def test_columns_that_differ_in_capitals_only_are_refused_where_they_are_one() -> None:
    functions = handmade(names=("age", "Age", "city", "code", "hot 1", "hot 2", "unused"))
    for dialect in ("duckdb", "sqlite"):
        with pytest.raises(ValueError, match="capitals"):
            functions.to_sql("people", dialect=dialect)
    assert '"Age"' in functions.to_sql("people", dialect="postgres")


def test_levels_that_read_the_same_as_text_are_refused() -> None:
    functions = handmade(cities=("1", 1))
    with pytest.raises(ValueError, match="same as text"):
        functions.to_sql("people")


def test_long_names_stay_apart_in_postgres(postgres: Postgres) -> None:
    long = "x" * 55
    names = (f"{long}1", f"{long}2", "city", "code", "hot 1", "hot 2", "unused")
    functions = handmade(names=names)
    require_same(functions, rows_for(functions), ask_postgres(postgres), "postgres")


def test_terms_without_a_table_cannot_be_exported() -> None:
    functions = replace(handmade(), left_out=(("age", "shape"),))
    with pytest.raises(ValueError, match="age × shape"):
        functions.to_sql("people")


def test_results_can_do_without_contributions() -> None:
    functions = handmade()
    rows = rows_for(functions)
    result = ask_sqlite(functions.to_sql("people", dialect="sqlite", contributions=False), rows)
    assert list(result.columns) == ["prediction", "sum"]
    with pytest.raises(ValueError, match="dialect"):
        functions.to_sql("people", dialect="oracle")  # type: ignore[arg-type]


def test_functions_of_nothing_have_their_base() -> None:
    functions = handmade()
    constant = replace(functions, tables=functions.tables[5:6])
    assert not isinstance(constant.tables[0].axes, LevelAxis)
    rows = rows_for(functions)
    result = ask_duckdb(constant.to_sql("people"), rows)
    np.testing.assert_allclose(result["prediction"], functions.base_values[0])


def test_a_text_is_the_name_of_one_column_and_a_table_has_a_name() -> None:
    functions = handmade()
    assert functions.to_sql("people", keep="id") == functions.to_sql("people", keep=["id"])
    with pytest.raises(ValueError, match="table"):
        functions.to_sql("")
