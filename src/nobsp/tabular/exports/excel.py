"""Functions as a workbook: tables to look up in, and formulas that predict row by row.

The sheet "Predict" has a line for every row: the columns to fill in, then the prediction and every
contribution. The sheet "Places" finds where each value lies, and "Tables" holds knots, levels and
values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nobsp.drafts import check_path, replacing
from nobsp.tabular.exports.layout import (
    Layout,
    LevelPlace,
    NumberPlace,
    TermLayout,
    texts_of_levels,
)

# Excel has no more rows.
_MOST_NODES = 1_048_575
# Characters that a sheet cannot hold.
_FORBIDDEN = {chr(code) for code in range(32)} - {"\t", "\n", "\r"}
_FLAGS = ("FALSE", "TRUE")


def write_excel(
    layout: Layout, path: str | os.PathLike[str], *, rows: Sequence[Sequence[Any]], lines: int
) -> None:
    """Writes the workbook, atomically."""
    try:
        from openpyxl import Workbook
    except ImportError as missing:
        raise ImportError("to_excel needs openpyxl: pip install 'nobsp[excel]'.") from missing
    target = check_path(path)
    workbook = Workbook()
    _Writer(layout, workbook).write(rows, max(lines, len(rows)))
    with replacing(target) as draft:
        workbook.save(draft)
    workbook.close()


@dataclass(eq=False)
class _Writer:
    """Fills the three sheets."""

    layout: Layout
    workbook: Any
    ranges: dict[tuple[str, int], str] = field(default_factory=dict)

    def write(self, rows: Sequence[Sequence[Any]], lines: int) -> None:
        """All sheets, with formulas for so many lines."""
        self.predict = self.workbook.active
        self.predict.title = "Predict"
        self.places = self.workbook.create_sheet("Places")
        self.tables = self.workbook.create_sheet("Tables")
        self._write_tables()
        self._write_headings()
        for line in range(lines):
            values = rows[line] if line < len(rows) else ()
            self._write_line(line + 2, values)
        self.predict.freeze_panes = "A2"

    # ------------------------------------------------------------------ cells

    def _put(self, sheet: Any, row: int, column: int, value: Any) -> None:
        """A value as it is: a text that begins like a formula stays a text."""
        if isinstance(value, str):
            odd = sorted(set(value) & _FORBIDDEN)
            if odd:
                raise ValueError(
                    f"the text {value!r} has a character that no sheet can hold; rename it before "
                    "the model is fitted."
                )
        cell = sheet.cell(row, column, value)
        if isinstance(value, str):
            cell.data_type = "s"
            cell.quotePrefix = True

    def _formula(self, sheet: Any, row: int, column: int, formula: str) -> None:
        sheet.cell(row, column, f"={formula}")

    @staticmethod
    def _name(row: int, column: int, *, sheet: str = "") -> str:
        from openpyxl.utils import get_column_letter

        prefix = f"{sheet}!" if sheet else ""
        return f"{prefix}${get_column_letter(column)}{row}"

    # ------------------------------------------------------------------ tables

    def _write_tables(self) -> None:
        """Knots, levels and values, one column each."""
        column = 1

        for position, place in enumerate(self.layout.places):
            if isinstance(place, NumberPlace):
                self._write_column(("knots", position), column, place.knots.tolist())
                self._write_column(("per width", position), column + 1, place.per_width.tolist())
                column += 2
            elif place.names is not None:
                texts = self._texts(place)
                self._write_column(("levels", position), column, texts)
                column += 1
            else:
                assert place.numbers is not None
                for k, numbers in enumerate(place.numbers.T):
                    self._write_column((f"levels {k}", position), column, numbers.tolist())
                    column += 1
        for number, term in enumerate(self.layout.terms):
            for output in range(len(self.layout.outputs)):
                values = np.ascontiguousarray(term.values[..., output]).ravel().tolist()
                self._write_column((f"values {output}", number), column, values)
                column += 1

    def _texts(self, place: LevelPlace) -> list[str]:
        """Levels as a sheet's texts; each must read in one way only."""
        name = self.layout.columns[place.columns[0]]
        return [
            spellings[-1] if spellings else ""
            for spellings in texts_of_levels(place, column=name, flags=_FLAGS)
        ]

    def _write_column(self, key: tuple[str, int], column: int, values: Sequence[Any]) -> None:
        from openpyxl.utils import get_column_letter

        if len(values) > _MOST_NODES:
            raise ValueError(f"a table of {len(values):,} nodes does not fit on a sheet.")
        kind, number = key
        self._put(self.tables, 1, column, f"{kind} {number}")
        for row, value in enumerate(values):
            self._put(self.tables, row + 2, column, value)
        letter = get_column_letter(column)
        self.ranges[key] = f"Tables!${letter}$2:${letter}${len(values) + 1}"

    # ------------------------------------------------------------------ lines

    def _write_headings(self) -> None:
        layout = self.layout
        several = len(layout.outputs) > 1
        headings = [layout.columns[column] for column in layout.used]
        headings += (
            ["prediction"]
            if layout.classes or not several
            else [f"prediction of {name}" for name in layout.outputs]
        )
        if layout.has_probabilities:
            headings += [f"probability of {level}" for level in layout.classes]
        for name in layout.outputs:
            suffix = f" to {name}" if several else ""
            headings += [f"sum{suffix}", f"base{suffix}"]
            headings += [f"contribution of {term.name}{suffix}" for term in layout.terms]
        for column, heading in enumerate(headings):
            self._put(self.predict, 1, column + 1, heading)

    def _write_line(self, row: int, values: Sequence[Any]) -> None:
        """The cells to fill in, and the formulas of one line."""
        layout = self.layout
        for column, value in enumerate(values):
            if value is not None:
                self._put(self.predict, row, column + 1, value)
        for position, place in enumerate(layout.places):
            first = 3 * position + 1
            if isinstance(place, NumberPlace):
                self._write_number(row, first, position, place)
            else:
                self._formula(self.places, row, first, self._level(row, position, place))

        n_heads = len(layout.classes) if layout.has_probabilities else 0
        n_heads += 1 if layout.classes else len(layout.outputs)
        column = len(layout.used) + n_heads + 1
        sums = []
        for output in range(len(layout.outputs)):
            total = self._name(row, column)
            sums.append(total)
            last = self._name(row, column + 1 + len(layout.terms))
            first_part = self._name(row, column + 1)
            self._formula(self.predict, row, column, f"SUM({first_part}:{last})")
            self._put(self.predict, row, column + 1, float(layout.base[output]))
            for number, term in enumerate(layout.terms):
                formula = self._term(row, number, term, output)
                self._formula(self.predict, row, column + 2 + number, formula)
            column += 2 + len(layout.terms)
        for k, formula in enumerate(self._heads(sums)):
            self._formula(self.predict, row, len(layout.used) + 1 + k, formula)

    def _cell(self, row: int, column: int) -> str:
        """Where the value of one of the caller's columns is filled in."""
        return self._name(row, self.layout.used.index(column) + 1, sheet="Predict")

    def _write_number(self, row: int, first: int, position: int, place: NumberPlace) -> None:
        """The nodes before and behind a number, and how far it is between them.

        They are #N/A where the number has no place.
        """
        cell = self._cell(row, place.column)
        knots = self.ranges["knots", position]
        widths = self.ranges["per width", position]
        # Booleans count as 0 and 1; an empty cell is missing.
        number = f"IF(ISLOGICAL({cell}),IF({cell},1,0),{cell})"
        is_number = f"OR(ISNUMBER({cell}),ISLOGICAL({cell}))"
        last = len(place.knots) - 1
        segment = f"MIN(MAX(IFERROR(MATCH({number},{knots},1),1),1),{last})"
        absent = str(len(place.knots) + 1) if place.missing else "NA()"
        self._formula(self.places, row, first, f"IF({is_number},{segment},{absent})")

        before = self._name(row, first)
        self._formula(self.places, row, first + 1, f"IF({is_number},{before}+1,{before})")
        way = f"({number}-INDEX({knots},{before}))*INDEX({widths},{before})"
        if place.held:
            way = f"MIN(MAX({way},0),1)"
        self._formula(self.places, row, first + 2, f"IF({is_number},{way},0)")

    def _level(self, row: int, position: int, place: LevelPlace) -> str:
        """The position of a level, from one; #N/A for one that was not seen."""
        absent = "NA()" if place.missing is None else str(place.missing + 1)
        if place.names is not None:
            cell = self._cell(row, place.columns[0])
            levels = self.ranges["levels", position]
            # MATCH alone would not tell capitals apart, and would take * and ? for any letters.
            found = f'MATCH(TRUE,INDEX(EXACT({levels},{cell}&""),0),0)'
            return f"IF(ISBLANK({cell}),{absent},{found})"
        products = []
        for k, column in enumerate(place.columns):
            cell = self._cell(row, column)
            number = f"IF(ISLOGICAL({cell}),IF({cell},1,0),{cell})"
            products.append(f"({self.ranges[f'levels {k}', position]}={number})")
        known = ",".join(
            f"OR(ISNUMBER({self._cell(row, column)}),ISLOGICAL({self._cell(row, column)}))"
            for column in place.columns
        )
        if place.missing is not None:
            absent = f"IF(ISBLANK({self._cell(row, place.columns[0])}),{absent},NA())"
        return f"IF(AND({known}),MATCH(1,INDEX({'*'.join(products)}*1,0),0),{absent})"

    def _term(self, row: int, number: int, term: TermLayout, output: int) -> str:
        """A contribution: the nodes around the row by their weights; zero without a place."""
        table = self.ranges[f"values {output}", number]
        corners: list[tuple[list[str], list[str]]] = [([], [])]
        for position, stride in zip(term.places, term.strides(), strict=True):
            first = 3 * position + 1
            here = f"({self._name(row, first, sheet='Places')}-1)*{stride}"
            if isinstance(self.layout.places[position], LevelPlace):
                corners = [([*nodes, here], weights) for nodes, weights in corners]
                continue
            there = f"({self._name(row, first + 1, sheet='Places')}-1)*{stride}"
            way = self._name(row, first + 2, sheet="Places")
            near = [([*nodes, here], [*weights, f"(1-{way})"]) for nodes, weights in corners]
            far = [([*nodes, there], [*weights, way]) for nodes, weights in corners]
            corners = near + far
        parts = []
        for nodes, weights in corners:
            value = f"INDEX({table},{'+'.join([*nodes, '1'])})"
            parts.append("*".join([*weights, value]))
        return f"IFERROR({'+'.join(parts)},0)"

    # ------------------------------------------------------------------ predictions

    def _heads(self, sums: Sequence[str]) -> list[str]:
        """Predictions and probabilities."""
        layout = self.layout
        if not layout.classes:
            return [self._after_link(total) for total in sums]
        heads = [self._class(sums)]
        if not layout.has_probabilities:
            return heads
        if layout.are_probabilities:
            held = [f"MIN(MAX({total},0),1)" for total in sums]
            if len(held) == 1:
                return [*heads, f"1-{held[0]}", held[0]]
            whole = "+".join(held)
            return [*heads, *(f"IF({whole}>0,{one}/({whole}),{1 / len(held)!r})" for one in held)]
        if len(sums) == 1:
            return [*heads, f"1/(1+EXP(MIN({sums[0]},700)))", f"1/(1+EXP(MIN(-{sums[0]},700)))"]
        largest = f"MAX({','.join(sums)})"
        sizes = [f"EXP(MAX({total}-{largest},-700))" for total in sums]
        return [*heads, *(f"{size}/({'+'.join(sizes)})" for size in sizes)]

    def _class(self, sums: Sequence[str]) -> str:
        """The class that is decided for."""
        classes = [self._literal(level) for level in self.layout.classes]
        if len(sums) == 1:
            limit = "0.5" if self.layout.are_probabilities else "0"
            return f"IF({sums[0]}>{limit},{classes[1]},{classes[0]})"
        largest = f"MAX({','.join(sums)})"
        chosen = classes[-1]
        for total, literal in reversed(list(zip(sums[:-1], classes[:-1], strict=True))):
            chosen = f"IF({total}={largest},{literal},{chosen})"
        return chosen

    @staticmethod
    def _literal(level: Any) -> str:
        """A class in a formula."""
        if isinstance(level, bool):
            return str(level).upper()
        if isinstance(level, str):
            return '"' + level.replace('"', '""') + '"'
        return repr(level)

    def _after_link(self, total: str) -> str:
        """What the model says where its output is a sum."""
        link = self.layout.link
        if link == "sigmoid":
            return f"1/(1+EXP(MIN(-{total},700)))"
        if link == "exp":
            return f"EXP({total})"
        if link == "softplus":
            return f"MAX({total},0)+LN(1+EXP(-ABS({total})))"
        return total
