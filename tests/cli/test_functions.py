"""`nobsp export` and `nobsp predict`: functions from a file, without their model."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nobsp.cli import main
from tests.tabular.handmade import CITIES, handmade, rows_for

FUNCTIONS = handmade(link="sigmoid", classes=("no", "yes"), cities=CITIES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    FUNCTIONS.save(tmp_path / "functions.nobsp")
    return tmp_path / "functions.nobsp"


def test_a_statement_is_written_to_stdout(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", "--functions", str(path), "--to", "sql", "--table", "people"]
    assert main([*arguments, "--dialect", "sqlite", "--no-contributions"]) == 0
    select = capsys.readouterr().out
    rows = rows_for(FUNCTIONS)
    database = sqlite3.connect(":memory:")
    rows.to_sql("people", database, index=False)
    predictions = [row[0] for row in database.execute(select)]
    database.close()
    assert predictions == FUNCTIONS.predict(rows).tolist()


@pytest.mark.parametrize("to", ["onnx", "javascript", "excel"])
def test_files_are_written(path: Path, to: str) -> None:
    out = path.parent / "exported"
    assert main(["export", "--functions", str(path), "--to", to, "--out", str(out)]) == 0
    assert out.stat().st_size > 1000


def test_predictions_need_no_model(path: Path) -> None:
    rows = rows_for(FUNCTIONS)
    rows = rows[np.isfinite(rows["age"]) & np.isfinite(rows["income"])].fillna({"city": "Bern"})
    rows = rows[rows["city"] == "Bern"]
    rows.assign(more=1).to_csv(path.parent / "rows.csv", index=False)
    out = path.parent / "predictions.csv"
    arguments = ["--functions", str(path), "--data", str(path.parent / "rows.csv")]
    assert main(["predict", *arguments, "--out", str(out)]) == 0
    written = pd.read_csv(out)
    assert written["prediction"].tolist() == FUNCTIONS.predict(rows).tolist()
    expected = FUNCTIONS.predict_proba(rows)[:, 1]
    np.testing.assert_allclose(written["probability of yes"], expected, rtol=1e-12)


@pytest.mark.parametrize("cities", [("01", "02", "10"), ("NA", "nan", "x", None), ("true", "1e3")])
def test_levels_that_look_like_numbers_stay_text(
    tmp_path: Path, cities: tuple[str | None, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    functions = handmade(cities=cities)
    functions.save(tmp_path / "functions.nobsp")
    rows = rows_for(functions)
    rows = rows[np.isfinite(rows["age"]) & np.isfinite(rows["income"])]
    rows = rows.iloc[np.arange(12) % len(rows)].reset_index(drop=True)
    rows["city"] = pd.Series([cities[k % len(cities)] for k in range(12)], dtype=object)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    arguments = ["--functions", f"{tmp_path}/functions.nobsp", "--data", f"{tmp_path}/rows.csv"]
    assert main(["predict", *arguments, "--out", f"{tmp_path}/out.csv"]) == 0
    written = pd.read_csv(tmp_path / "out.csv")["prediction"]
    np.testing.assert_allclose(written, functions.predict(rows), rtol=1e-12)
    assert "'city'" not in capsys.readouterr().err

    rows.assign(city="elsewhere").to_csv(tmp_path / "rows.csv", index=False)
    assert main(["predict", *arguments, "--out", f"{tmp_path}/out.csv"]) == 0
    assert "'city'" in capsys.readouterr().err


def test_an_explainer_s_file_will_do(home: Path, tmp_path: Path) -> None:
    words = ["--model", f"{home}/house.pt2", "--data", f"{home}/houses.csv", "--target", "price"]
    assert main(["explain", *words, "--out", str(tmp_path / "new"), "--quiet"]) == 0
    file = tmp_path / "new" / "explainer.nobsp"
    out = tmp_path / "functions.mjs"
    export = ["export", "--functions", str(file), "--to", "javascript", "--out", str(out)]
    assert main(export) == 0


@pytest.mark.parametrize(
    "arguments", [["--to", "onnx"], ["--to", "sql"], ["--to", "sql", "--functions", "nothing"]]
)
def test_what_is_lacking_is_a_usage_error(path: Path, arguments: list[str]) -> None:
    assert main(["export", "--functions", str(path), *arguments]) == 2


@pytest.mark.parametrize("to", ["sql", "javascript"])
def test_a_link_is_written_through(path: Path, to: str) -> None:
    target = path.with_name("target.txt")
    target.write_text("before", encoding="utf-8")
    link = path.with_name("link.txt")
    link.symlink_to(target)
    table = ["--table", "t"] if to == "sql" else []
    assert main(["export", "--functions", str(path), "--to", to, *table, "--out", str(link)]) == 0
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") != "before"
