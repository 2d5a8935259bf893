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
