"""Functions as a workbook: an evaluator of formulas that knows nothing of it says what Python says."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest
from openpyxl.utils import column_index_from_string

from tests.tabular.handmade import CITIES, handmade, rows_for


class NotAvailableError(Exception):
    """#N/A and other errors of a sheet."""


TOKENS = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"]|"")*")|(?P<range>(?:[A-Za-z]+!)?\$?[A-Z]+\$?\d+(?::\$?[A-Z]+\$?\d+)?)(?![A-Za-z(])
    |(?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?)|(?P<word>[A-Za-z]+)|(?P<sign><=|>=|<>|[-+*/^&=<>(),]))""",
    re.VERBOSE,
)


class Sheet:
    """A workbook whose formulas are worked out when they are asked for: the part of Excel that is used."""

    def __init__(self, path: Path) -> None:
        self._book = openpyxl.load_workbook(path)
        self._known: dict[tuple[str, int, int], Any] = {}

    def close(self) -> None:
        self._book.close()

    def cell(self, sheet: str, row: int, column: int) -> Any:
        key = (sheet, row, column)
        if key not in self._known:
            cell = self._book[sheet].cell(row, column)
            value = cell.value
            if cell.data_type == "f":
                try:
                    value = Formula(self, sheet, value[1:]).result()
                except NotAvailableError as failure:
                    value = failure
            self._known[key] = value
        value = self._known[key]
        if isinstance(value, NotAvailableError):
            raise value
        return value


class Formula:
    """A formula, read from left to right by rising precedence: comparison, &, +, *, sign."""

    def __init__(self, book: Sheet, sheet: str, text: str) -> None:
        self.book, self.sheet = book, sheet
        self.tokens = list(TOKENS.finditer(text))
        assert "".join(match.group(0) for match in self.tokens) == text, text
        self.at = 0

    def result(self) -> Any:
        tree = self.comparison()
        assert self.at == len(self.tokens)
        return tree()

    def sign(self, *signs: str) -> str | None:
        if self.at < len(self.tokens) and self.tokens[self.at].group("sign") in signs:
            self.at += 1
            return self.tokens[self.at - 1].group("sign")
        return None

    def chain(self, inner: Any, signs: dict[str, Any]) -> Any:
        left = inner()
        while (sign := self.sign(*signs)) is not None:
            right = inner()
            left = self.binary(signs[sign], left, right)
        return left

    @staticmethod
    def binary(work: Any, left: Any, right: Any) -> Any:
        return lambda: work(left(), right())

    def comparison(self) -> Any:
        comparisons = {"=": equal, "<": lambda a, b: a < b, ">": lambda a, b: a > b}
        comparisons["<="] = lambda a, b: a <= b
        comparisons[">="] = lambda a, b: a >= b
        return self.chain(self.joined, comparisons)

    def joined(self) -> Any:
        return self.chain(self.added, {"&": lambda a, b: text_of(a) + text_of(b)})

    def added(self) -> Any:
        return self.chain(self.multiplied, {"+": each(np.add), "-": each(np.subtract)})

    def multiplied(self) -> Any:
        return self.chain(self.signed, {"*": each(np.multiply), "/": each(np.divide)})

    def signed(self) -> Any:
        if self.sign("-"):
            inner = self.signed()
            return lambda: -inner()
        return self.value()

    def value(self) -> Any:
        token = self.tokens[self.at]
        self.at += 1
        if token.group("sign") == "(":
            inner = self.comparison()
            assert self.sign(")")
            return inner
        if token.group("text"):
            text = token.group("text")[1:-1].replace('""', '"')
            return lambda: text
        if token.group("number"):
            number = float(token.group("number"))
            return lambda: number
        if token.group("range"):
            return self.reference(token.group("range"))
        word = token.group("word").upper()
        if word in ("TRUE", "FALSE"):
            return lambda: word == "TRUE"
        assert self.sign("("), word
        arguments = []
        while not self.sign(")"):
            arguments.append(self.comparison())
            self.sign(",")
        return lambda: CALLS[word](*arguments)

    def reference(self, text: str) -> Any:
        sheet, _, cells = text.rpartition("!")
        ends = [re.fullmatch(r"\$?([A-Z]+)\$?(\d+)", end).groups() for end in cells.split(":")]  # type: ignore[union-attr]
        places = [(int(row), column_index_from_string(column)) for column, row in ends]
        sheet = sheet or self.sheet
        if len(places) == 1:
            return lambda: self.book.cell(sheet, *places[0])
        (top, left), (bottom, right) = places
        rows = range(top, bottom + 1)
        return lambda: [
            self.book.cell(sheet, row, column) for row in rows for column in range(left, right + 1)
        ]


def text_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def each(work: Any) -> Any:
    def elementwise(a: Any, b: Any) -> Any:
        result = work(np.asarray(a, dtype=float), np.asarray(b, dtype=float))
        return float(result) if result.ndim == 0 else result

    return elementwise


def equal(a: Any, b: Any) -> Any:
    if isinstance(a, list):
        return np.array([cell == b for cell in a])
    return a == b


def call_if(test: Any, first: Any, second: Any) -> Any:
    return first() if test() else second()


def call_iferror(value: Any, otherwise: Any) -> Any:
    try:
        return value()
    except NotAvailableError:
        return otherwise()


def not_available() -> Any:
    raise NotAvailableError("#N/A")


def call_match(wanted: Any, table: Any, kind: Any) -> Any:
    value, cells = wanted(), list(table())
    if kind() == 1:
        below = sum(cell <= value for cell in cells)
        return below if below else not_available()
    for position, cell in enumerate(cells):
        if cell == value and isinstance(cell, bool | np.bool_) == isinstance(value, bool):
            return position + 1
    return not_available()


def call_index(table: Any, position: Any) -> Any:
    cells = list(table())
    number = int(position())
    return cells if number == 0 else cells[number - 1]


CALLS: dict[str, Any] = {
    "IF": call_if,
    "IFERROR": call_iferror,
    "NA": not_available,
    "MATCH": call_match,
    "INDEX": call_index,
    "OR": lambda *parts: any(part() for part in parts),
    "AND": lambda *parts: all(part() for part in parts),
    "ISBLANK": lambda cell: cell() is None,
    "ISNUMBER": lambda cell: isinstance(cell(), int | float) and not isinstance(cell(), bool),
    "ISLOGICAL": lambda cell: isinstance(cell(), bool),
    "EXACT": lambda cells, text: [text_of(cell) == text() for cell in cells()],
    "MIN": lambda *parts: min(part() for part in parts),
    "MAX": lambda *parts: max(part() for part in parts),
    "SUM": lambda cells: sum(cells()),
    "EXP": lambda number: math.exp(number()),
    "LN": lambda number: math.log(number()),
    "ABS": lambda number: abs(number()),
}


def read(path: Path, n_rows: int) -> pd.DataFrame:
    """What the sheet says, line by line."""
    book = Sheet(path)
    headings: list[str] = []
    while (name := book.cell("Predict", 1, len(headings) + 1)) is not None:
        headings.append(name)
    lines = [
        [book.cell("Predict", row + 2, column + 1) for column in range(len(headings))]
        for row in range(n_rows)
    ]
    book.close()
    return pd.DataFrame(lines, columns=headings)


@pytest.mark.parametrize(
    "options",
    [
        {"link": "exp", "outputs": 2},
        {"link": "exp", "outputs": 2, "filled_in": 0},
        {"link": "sigmoid", "classes": ('n"o', "yes")},
        {"link": "softmax", "outputs": 3, "classes": (1, 2, 5)},
    ],
    ids=["means", "filled in", "two classes", "three classes"],
)
def test_a_sheet_says_what_python_says(options: dict[str, Any], tmp_path: Path) -> None:
    cities = (*CITIES, "=1+1", "bern", "B*rn")
    if "filled_in" not in options:
        cities = (*cities, None)
    functions = handmade(cities=cities, **options)
    rows = rows_for(functions, n_rows=16)
    # Sheets keep fifteen digits, and an empty text is an empty cell.
    rows["age"] = rows["age"].replace(30.0, 31.0)
    rows["city"] = rows["city"].replace("", "Bern")
    functions.to_excel(tmp_path / "functions.xlsx", rows)
    sheet = read(tmp_path / "functions.xlsx", len(rows))

    n_outputs = len(functions.output_names)
    names = [name for name in sheet.columns if name.startswith("contribution")]
    values = sheet[names].to_numpy(dtype=float).reshape(len(rows), n_outputs, -1)
    expected = functions(rows).values
    np.testing.assert_allclose(values.transpose(0, 2, 1), expected, rtol=1e-12, atol=1e-12)
    predictions = sheet[[name for name in sheet.columns if name.startswith("prediction")]]
    if functions.classes:
        assert predictions.to_numpy().ravel().tolist() == functions.predict(rows).tolist()
        chances = [name for name in sheet.columns if name.startswith("probability")]
        np.testing.assert_allclose(
            sheet[chances].to_numpy(dtype=float),
            functions.predict_proba(rows),
            rtol=1e-11,
            atol=1e-12,
        )
    else:
        np.testing.assert_allclose(predictions, functions.predict(rows), rtol=1e-11)


def test_a_text_that_looks_like_a_formula_stays_a_text(tmp_path: Path) -> None:
    names = ("=age", "+income", "@city", "code", "hot 1", "hot 2", "unused")
    functions = handmade(names=names, cities=("=HYPERLINK(1)", "-1"))
    functions.to_excel(tmp_path / "functions.xlsx", lines=2)
    book = openpyxl.load_workbook(tmp_path / "functions.xlsx")
    headings = list(book["Predict"][1][:3])
    assert [cell.data_type for cell in headings] == ["s", "s", "s"]
    formulas = {
        cell.value
        for column in book["Tables"].iter_cols()
        for cell in column
        if cell.data_type == "f"
    }
    assert not formulas
    book.close()
    with pytest.raises(ValueError, match="character"):
        handmade(cities=("nul\0inside",)).to_excel(tmp_path / "bad.xlsx")
    assert not (tmp_path / "bad.xlsx").exists()
