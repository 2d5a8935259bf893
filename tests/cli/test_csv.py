"""Tables that the command line writes, as spreadsheets read them."""

import csv
from pathlib import Path

import pytest

from nobsp.cli.inputs import write_csv


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("x")', "+cmd", "-2+3", "@sum", "\tx", "\rx", "\n=1", "\uff1d1+1"]
)
def test_a_text_that_a_spreadsheet_would_run_is_written_as_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.csv"
    write_csv(path, {"name": [text], text: ["plain"]})
    with path.open(encoding="utf-8", newline="") as file:
        header, row = csv.reader(file)
    assert header[1] == f"'{text}"
    assert row[0] == f"'{text}"


def test_numbers_are_written_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_csv(path, {"value": [-1.5, 2.0], "text": ["-1.5", "+3"]})
    assert path.read_text(encoding="utf-8").splitlines()[1:] == ["-1.5,-1.5", "2.0,+3"]


def test_the_callers_own_table_is_copied_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_csv(path, {"name": ["=1+1"]}, neutral=False)
    assert path.read_text(encoding="utf-8").splitlines()[1] == "=1+1"
