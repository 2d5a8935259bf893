"""Functions as one SELECT: for DuckDB, PostgreSQL and SQLite.

Every column is read once, then the segment of every number and the position of every level, then
the nodes around each row; a term is linear between them. Values stand in constant arrays. No step
is merged into the next one, which would write long expressions out again and again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nobsp._typing import FloatArray
from nobsp.arguments import quote, require_choice, require_flag
from nobsp.tabular.exports.layout import (
    Layout,
    LevelPlace,
    NumberPlace,
    TermLayout,
    texts_of_levels,
)
from nobsp.tabular.lookup import Level

# The largest finite number; what is beyond is infinite or no number at all.
_LARGEST = "1.7976931348623157e+308"
# Smaller exponents give zero, which PostgreSQL calls an error.
_SMALLEST_EXPONENT = "-7.0e+02"
# Most columns of a result in PostgreSQL; the other two take more.
_MOST_COLUMNS = 1600
# Whole numbers up to this size are exact as floats.
_EXACT_WHOLE = 2**53
# Bytes of a name that PostgreSQL keeps.
_NAME_BYTES = 63


class Dialect(ABC):
    """How a database writes names, texts, numbers, arrays and steps."""

    name: str
    flags: tuple[str, str] = ("false", "true")
    # Whether "Age" and "age" are two columns.
    tells_case: bool = False

    def identifier(self, name: str) -> str:
        """A name in quotes that it cannot leave."""
        if "\0" in name:
            raise ValueError(
                f"the name {name!r} has a NUL character, which no column of {self.name} can have; "
                "rename the column before the model is fitted."
            )
        return '"' + name.replace('"', '""') + '"'

    def alias(self, name: str) -> str:
        """A name of a result's column."""
        return self.identifier(name.replace("\0", ""))

    def text(self, value: str) -> str | None:
        """A text in quotes that it cannot leave; None where the database has no such text."""
        return "'" + value.replace("'", "''") + "'"

    def number(self, value: float) -> str:
        """A number that is read back exactly."""
        return np.format_float_scientific(value, unique=True, trim="0")

    @abstractmethod
    def as_number(self, column: str) -> str:
        """A column of any kind of numbers, or of booleans, as double precision."""

    @abstractmethod
    def as_text(self, column: str) -> str:
        """A column as text that is compared letter by letter."""

    @abstractmethod
    def element(self, values: FloatArray, position: str) -> str:
        """The element of a constant array at a position from zero; NULL for none."""

    @abstractmethod
    def combine(self, values: FloatArray, corners: Sequence[tuple[str, str]], *, known: str) -> str:
        """Elements of a constant array times their weights, added up, the array being written once.

        `corners` are positions and weights; the result is NULL where `known` is not true.
        """

    @abstractmethod
    def step(self, name: str, select: str) -> str:
        """A part of WITH that is worked out before the next one reads it."""

    def smaller(self, first: str, second: str) -> str:
        """The smaller of two numbers, neither of them NULL."""
        return f"LEAST({first}, {second})"

    def larger(self, first: str, second: str) -> str:
        """The larger of two numbers, neither of them NULL."""
        return f"GREATEST({first}, {second})"


class DuckDB(Dialect):
    """DuckDB."""

    name = "duckdb"

    def as_number(self, column: str) -> str:
        """A column as double precision."""
        return f"CAST({column} AS DOUBLE)"

    def as_text(self, column: str) -> str:
        """A column as text."""
        return f"CAST({column} AS VARCHAR)"

    def text(self, value: str) -> str | None:
        """A text in quotes; NUL, which would end the statement, by its number."""
        parts = ["'" + part.replace("'", "''") + "'" for part in value.split("\0")]
        return "(" + " || chr(0) || ".join(parts) + ")" if len(parts) > 1 else parts[0]

    def element(self, values: FloatArray, position: str) -> str:
        """An element of a constant list."""
        return f"({self._array(values)})[{position} + 1]"

    def _array(self, values: FloatArray) -> str:
        return f"'[{','.join(map(repr, values.tolist()))}]'::DOUBLE[]"

    def combine(self, values: FloatArray, corners: Sequence[tuple[str, str]], *, known: str) -> str:
        """A product of two lists: the elements that are chosen, and their weights."""
        positions = ", ".join(f"{position} + 1" for position, _ in corners)
        weights = ", ".join(weight for _, weight in corners)
        chosen = f"list_select({self._array(values)}, [{positions}])"
        return f"CASE WHEN {known} THEN list_dot_product({chosen}, [{weights}]) END"

    def step(self, name: str, select: str) -> str:
        """A materialised part, so that it is worked out once."""
        return f"{name} AS MATERIALIZED (\n{select}\n)"


class Postgres(Dialect):
    """PostgreSQL."""

    name = "postgres"
    tells_case = True

    def alias(self, name: str) -> str:
        """A name that is not cut: PostgreSQL keeps 63 bytes."""
        name = name.replace("\0", "")
        encoded = name.encode("utf-8")
        if len(encoded) > _NAME_BYTES:
            name = encoded[:_NAME_BYTES].decode("utf-8", errors="ignore")
        return self.identifier(name)

    def text(self, value: str) -> str | None:
        """A text that is the same whether backslashes escape or not; none holds NUL."""
        if "\0" in value:
            return None
        quoted = "'" + value.replace("'", "''") + "'"
        return "E" + quoted.replace("\\", "\\\\") if "\\" in value else quoted

    def as_number(self, column: str) -> str:
        """A column as double precision, by way of text: booleans cannot be cast otherwise."""
        as_text = f"{column}::text"
        digits = f"CASE {as_text} WHEN 'true' THEN '1' WHEN 'false' THEN '0' ELSE {as_text} END"
        return f"({digits})::double precision"

    def as_text(self, column: str) -> str:
        """A column as text, compared byte by byte."""
        return f'{column}::text COLLATE "C"'

    def element(self, values: FloatArray, position: str) -> str:
        """An element of a constant array."""
        return f"({self._array(values)})[{position} + 1]"

    def _array(self, values: FloatArray) -> str:
        return f"'{{{','.join(map(repr, values.tolist()))}}}'::double precision[]"

    def combine(self, values: FloatArray, corners: Sequence[tuple[str, str]], *, known: str) -> str:
        """A SELECT of its own, which names the array."""
        parts = [f"{weight} * v[{position} + 1]" for position, weight in corners]
        array = f"(SELECT {self._array(values)} AS v) AS constants"
        return f"CASE WHEN {known} THEN (SELECT {' + '.join(parts)} FROM {array}) END"

    def step(self, name: str, select: str) -> str:
        """A part that is not merged into the next one, though rows pass through it one by one."""
        return f"{name} AS (\n{select}\nOFFSET 0\n)"


class SQLite(Dialect):
    """SQLite 3.35 and later."""

    name = "sqlite"
    flags = ("0", "1")

    def text(self, value: str) -> str | None:
        """A text in quotes; with NUL, which would end the statement, by its bytes."""
        if "\0" in value:
            return f"CAST(x'{value.encode('utf-8').hex()}' AS TEXT)"
        return super().text(value)

    def number(self, value: float) -> str:
        """A number that is read back exactly.

        SQLite rounds long decimals, but not fractions of powers of two.
        """
        short = super().number(value)
        digits = short.partition("e")[0].replace("-", "").replace(".", "").rstrip("0")
        exponent = int(short.partition("e")[2])
        if len(digits) <= 15 and abs(exponent) <= 20:
            return short
        return _as_fraction(value) or short

    def as_number(self, column: str) -> str:
        """A column as double precision; texts are no numbers."""
        return f"CASE WHEN typeof({column}) IN ('integer', 'real') THEN CAST({column} AS REAL) END"

    def as_text(self, column: str) -> str:
        """A column as text, compared byte by byte."""
        return f"CAST({column} AS TEXT) COLLATE BINARY"

    def element(self, values: FloatArray, position: str) -> str:
        """A number of fixed width, cut out of bytes: SQLite has no arrays."""
        return self._cut(*self._bytes(values), position)

    def _bytes(self, values: FloatArray) -> tuple[str, int]:
        """Numbers of one width as bytes, and the width."""
        texts = [repr(value) for value in values.tolist()]
        width = max(map(len, texts))
        joined = "".join(text.ljust(width) for text in texts)
        return f"x'{joined.encode('ascii').hex()}'", width

    def _cut(self, table: str, width: int, position: str) -> str:
        """The number at a position."""
        cut = f"substr({table}, ({position}) * {width} + 1, {width})"
        return f"CAST(CAST({cut} AS TEXT) AS REAL)"

    def combine(self, values: FloatArray, corners: Sequence[tuple[str, str]], *, known: str) -> str:
        """A SELECT of its own, which names the bytes."""
        table, width = self._bytes(values)
        parts = [f"{weight} * {self._cut('v', width, position)}" for position, weight in corners]
        constants = f"(SELECT {table} AS v) AS constants"
        return f"CASE WHEN {known} THEN (SELECT {' + '.join(parts)} FROM {constants}) END"

    def step(self, name: str, select: str) -> str:
        """A materialised part, so that it is worked out once."""
        return f"{name} AS MATERIALIZED (\n{select}\n)"

    def smaller(self, first: str, second: str) -> str:
        """The smaller of two numbers."""
        return f"min({first}, {second})"

    def larger(self, first: str, second: str) -> str:
        """The larger of two numbers."""
        return f"max({first}, {second})"


def _as_fraction(value: float) -> str | None:
    """A number as a whole number over a power of two; None where these are too large."""
    numerator, denominator = value.as_integer_ratio()
    if abs(numerator) < _EXACT_WHOLE and denominator <= 2**62:
        return f"({numerator} / {denominator}.0)"
    return None


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (DuckDB(), Postgres(), SQLite())
}


def write_sql(
    layout: Layout,
    table: str,
    *,
    dialect: str,
    keep: Sequence[str] = (),
    contributions: bool = True,
) -> str:
    """One SELECT that gives predictions and contributions for every row of a table."""
    require_choice("dialect", dialect, tuple(DIALECTS))
    if not isinstance(table, str) or not table:
        raise TypeError(f"table must be the name of a table or view, found {quote(table)}.")
    require_flag("contributions", contributions)
    n_columns = len(layout.terms) * len(layout.outputs) + len(keep)
    if contributions and n_columns > _MOST_COLUMNS:
        raise ValueError(
            f"a result of {n_columns:,} columns is too wide for a database; pass "
            "contributions=False."
        )
    writer = _Writer(layout, DIALECTS[dialect], tuple(keep), contributions)
    return writer.statement(table)


@dataclass(frozen=True, eq=False)
class _Writer:
    """Writes the statement step by step; columns inside it have names of our own."""

    layout: Layout
    dialect: Dialect
    keep: tuple[str, ...]
    contributions: bool

    def statement(self, table: str) -> str:
        """The whole SELECT."""
        self._require_distinct_columns()
        steps = [
            self.dialect.step("nobsp_columns", self._columns(table)),
            self.dialect.step("nobsp_numbers", self._numbers()),
            self.dialect.step("nobsp_segments", self._segments()),
            self.dialect.step("nobsp_places", self._places()),
            self.dialect.step("nobsp_terms", self._terms()),
            self.dialect.step("nobsp_sums", self._sums()),
            self.dialect.step("nobsp_largest", self._largest()),
            self.dialect.step("nobsp_sizes", self._sizes()),
        ]
        return "WITH " + ",\n".join(steps) + "\n" + self._result() + "\n"

    def _require_distinct_columns(self) -> None:
        """An error where a database takes two columns for one."""
        if self.dialect.tells_case:
            return
        names: dict[str, str] = {}
        for column in self.layout.used:
            name = self.layout.columns[column]
            folded = name.lower()
            if folded in names:
                raise ValueError(
                    f"columns {names[folded]!r} and {name!r} are one for {self.dialect.name}, "
                    "which does not tell capitals from small letters; rename one."
                )
            names[folded] = name

    def _select(self, expressions: Sequence[str], source: str) -> str:
        kept = [f"k{position}" for position in range(len(self.keep))]
        return "SELECT\n  " + ",\n  ".join([*kept, *expressions]) + f"\nFROM {source}"

    def _columns(self, table: str) -> str:
        """The caller's columns, as numbers and texts."""
        source = ".".join(self.dialect.identifier(part) for part in table.split("."))
        parts = []
        for position, name in enumerate(self.keep):
            parts.append(f"t.{self.dialect.identifier(name)} AS k{position}")
        for column in self.layout.used:
            name = f"t.{self.dialect.identifier(self.layout.columns[column])}"
            if column in self.layout.texts:
                parts.append(f"{self.dialect.as_text(name)} AS c{column}")
            else:
                parts.append(f"{self.dialect.as_number(name)} AS c{column}")
        if not parts:
            parts.append("1 AS nothing")
        return "SELECT\n  " + ",\n  ".join(parts) + f"\nFROM {source} AS t"

    def _numbers(self) -> str:
        """Numbers that are finite; what is not is as unknown as what is missing."""
        parts = []
        for column in self.layout.used:
            if column in self.layout.texts:
                parts.append(f"c{column}")
            else:
                finite = f"c{column} BETWEEN -{_LARGEST} AND {_LARGEST}"
                parts.append(f"CASE WHEN {finite} THEN c{column} END AS c{column}")
        return self._select(parts or ["1 AS nothing"], "nobsp_columns")

    def _segments(self) -> str:
        """The segment of every number and the position of every level; NULL where there is none."""
        parts = [f"c{column}" for column in self.layout.used if column not in self.layout.texts]
        for position, place in enumerate(self.layout.places):
            if isinstance(place, NumberPlace):
                number = f"c{place.column}"
                segment = self._search(number, place.knots[1:-1])
                parts.append(f"CASE WHEN {number} IS NOT NULL THEN {segment} END AS s{position}")
            elif place.names is not None:
                parts.append(f"{self._level_of_name(place)} AS s{position}")
            else:
                parts.append(f"{self._level_of_numbers(place)} AS s{position}")
        return self._select(parts or ["1 AS nothing"], "nobsp_numbers")

    def _search(self, number: str, knots: FloatArray) -> str:
        """How many of some increasing knots are at or below a number, by halving."""

        def halve(low: int, high: int) -> str:
            if low == high:
                return str(low)
            middle = (low + high) // 2
            below = halve(low, middle)
            above = halve(middle + 1, high)
            knot = self.dialect.number(float(knots[middle]))
            return f"CASE WHEN {number} < {knot} THEN {below} ELSE {above} END"

        return halve(0, len(knots))

    def _level_of_name(self, place: LevelPlace) -> str:
        """The position of a name among levels."""
        column = place.columns[0]
        texts = texts_of_levels(place, column=self.layout.columns[column], flags=self.dialect.flags)
        cases = []
        if place.missing is not None:
            cases.append(f"WHEN c{column} IS NULL THEN {place.missing}")
        for level, spellings in enumerate(texts):
            for spelling in spellings:
                literal = self.dialect.text(spelling)
                if literal is not None:
                    cases.append(f"WHEN c{column} = {literal} THEN {level}")
        return f"CASE {' '.join(cases)} END" if cases else "NULL"

    def _level_of_numbers(self, place: LevelPlace) -> str:
        """The position of numbers among levels."""
        assert place.numbers is not None
        cases = []
        if place.missing is not None:
            cases.append(f"WHEN c{place.columns[0]} IS NULL THEN {place.missing}")
        for level, numbers in enumerate(place.numbers):
            equal = [
                f"c{column} = {self.dialect.number(float(number))}"
                for column, number in zip(place.columns, numbers, strict=True)
            ]
            cases.append(f"WHEN {' AND '.join(equal)} THEN {level}")
        return f"CASE {' '.join(cases)} END"

    def _places(self) -> str:
        """The nodes before and behind each number, p and q, and how far it is along, w."""
        parts = []
        for position, place in enumerate(self.layout.places):
            if isinstance(place, LevelPlace):
                parts.append(f"s{position} AS p{position}")
                continue
            way = self._way(position, place)
            if place.missing:
                last = len(place.knots)
                parts.append(f"COALESCE(s{position}, {last}) AS p{position}")
                parts.append(f"COALESCE(s{position} + 1, {last}) AS q{position}")
                parts.append(f"COALESCE({way}, 0.0e+00) AS w{position}")
            else:
                parts.append(f"s{position} AS p{position}")
                parts.append(f"s{position} + 1 AS q{position}")
                parts.append(f"{way} AS w{position}")
        return self._select(parts or ["1 AS nothing"], "nobsp_segments")

    def _way(self, position: int, place: NumberPlace) -> str:
        """How far a number is along its segment, from 0 to 1, or beyond where it is not held."""
        start = self.dialect.element(place.knots, f"s{position}")
        per_width = self.dialect.element(place.per_width, f"s{position}")
        way = f"(c{place.column} - {start}) * {per_width}"
        if not place.held:
            return way
        # SQLite's min and max give NULL for NULL, the others' LEAST and GREATEST do not.
        bounded = self.dialect.smaller(self.dialect.larger(way, "0.0e+00"), "1.0e+00")
        return f"CASE WHEN s{position} IS NOT NULL THEN {bounded} END"

    def _terms(self) -> str:
        """Every contribution; zero for an unseen level, or a missing number without a node."""
        parts = []
        for number, term in enumerate(self.layout.terms):
            for output in range(len(self.layout.outputs)):
                value = self._interpolate(term, output)
                parts.append(f"COALESCE({value}, 0.0e+00) AS g{number}_{output}")
        return self._select(parts or ["1 AS nothing"], "nobsp_places")

    def _interpolate(self, term: TermLayout, output: int) -> str:
        """A term between the nodes around a row, each with its weight."""
        flat = np.ascontiguousarray(term.values[..., output]).ravel()
        corners: list[tuple[list[str], list[str]]] = [([], [])]
        for position, stride in zip(term.places, term.strides(), strict=True):
            step = "" if stride == 1 else f" * {stride}"
            here = f"p{position}{step}"
            if isinstance(self.layout.places[position], LevelPlace):
                corners = [([*nodes, here], weights) for nodes, weights in corners]
                continue
            there = f"q{position}{step}"
            near = [
                ([*nodes, here], [*weights, f"(1.0e+00 - w{position})"])
                for nodes, weights in corners
            ]
            far = [([*nodes, there], [*weights, f"w{position}"]) for nodes, weights in corners]
            corners = near + far

        if len(corners) == 1:
            return self.dialect.element(flat, " + ".join(corners[0][0]) or "0")
        known = " AND ".join(f"p{position} IS NOT NULL" for position in term.places)
        return self.dialect.combine(
            flat,
            [(" + ".join(nodes), " * ".join(weights)) for nodes, weights in corners],
            known=known,
        )

    def _sums(self) -> str:
        """Base plus all contributions."""
        parts = []
        for output, base in enumerate(self.layout.base):
            columns = [f"g{number}_{output}" for number in range(len(self.layout.terms))]
            total = _add_up([self.dialect.number(float(base)), *columns])
            parts.append(f"{total} AS y{output}")
            if self.contributions:
                parts += columns
        return self._select(parts, "nobsp_terms")

    def _carried(self) -> list[str]:
        """Sums and contributions, as later steps pass them on."""
        n_outputs = len(self.layout.outputs)
        columns = [f"y{output}" for output in range(n_outputs)]
        if self.contributions:
            for output in range(n_outputs):
                columns += [f"g{number}_{output}" for number in range(len(self.layout.terms))]
        return columns

    def _largest(self) -> str:
        """The largest sum of every row."""
        largest = "y0"
        for output in range(1, len(self.layout.outputs)):
            largest = self.dialect.larger(largest, f"y{output}")
        return self._select([*self._carried(), f"{largest} AS largest"], "nobsp_sums")

    def _sizes(self) -> str:
        """Exponentials of the differences to the largest sum, of which a softmax is made."""
        parts = self._carried()
        if self.layout.link in ("softmax", "log_softmax"):
            for output in range(len(self.layout.outputs)):
                size = self._exponential(f"(y{output} - largest)")
                parts.append(f"{size} AS e{output}")
        return self._select(parts, "nobsp_largest")

    def _result(self) -> str:
        """What the caller sees."""
        parts = []
        taken: set[str] = set()

        def name(wanted: str) -> str:
            alias = self.dialect.alias(wanted)
            number = 2
            while alias.lower() in taken:
                cut = wanted.encode("utf-8")[: _NAME_BYTES - 8].decode("utf-8", errors="ignore")
                alias = self.dialect.alias(f"{cut} ({number})")
                number += 1
            taken.add(alias.lower())
            return alias

        for position, kept in enumerate(self.keep):
            taken.add(self.dialect.identifier(kept).lower())
            parts.append(f"k{position} AS {self.dialect.identifier(kept)}")
        parts += [f"{expression} AS {name(wanted)}" for wanted, expression in self._predictions()]
        if self.contributions:
            parts += [f"{column} AS {name(wanted)}" for wanted, column in self._contributions()]
        return "SELECT\n  " + ",\n  ".join(parts) + "\nFROM nobsp_sizes"

    def _predictions(self) -> list[tuple[str, str]]:
        """Predictions, probabilities and sums before the link, with their names."""
        layout = self.layout
        several = len(layout.outputs) > 1
        sums = [
            (f"sum of {name}" if several else "sum", f"y{output}")
            for output, name in enumerate(layout.outputs)
        ]
        if layout.classes:
            return [("prediction", self._class()), *self._probabilities(), *sums]

        predictions = []
        for output, name in enumerate(layout.outputs):
            linked = self._after_link(f"y{output}")
            predictions.append((f"prediction of {name}" if several else "prediction", linked))
        return [*predictions, *sums]

    def _class(self) -> str:
        """The class that is decided for: the first of the largest outputs."""
        classes = [self._literal(level) for level in self.layout.classes]
        if len(self.layout.outputs) == 1:
            limit = "5.0e-01" if self.layout.are_probabilities else "0.0e+00"
            return f"CASE WHEN y0 > {limit} THEN {classes[1]} ELSE {classes[0]} END"
        cases = []
        for output in range(len(classes) - 1):
            others = [other for other in range(len(classes)) if other != output]
            largest = " AND ".join(f"y{output} >= y{other}" for other in others)
            cases.append(f"WHEN {largest} THEN {classes[output]}")
        return f"CASE {' '.join(cases)} ELSE {classes[-1]} END"

    def _literal(self, level: Level) -> str:
        """A class as the database writes it."""
        if isinstance(level, bool):
            return {"sqlite": str(int(level))}.get(self.dialect.name, str(level).upper())
        if isinstance(level, str):
            return self.dialect.text(level) or "NULL"
        return str(level) if isinstance(level, int) else self.dialect.number(float(level or 0.0))

    def _probabilities(self) -> list[tuple[str, str]]:
        """Probabilities of the classes with their names, where outputs become such."""
        layout = self.layout
        if not layout.has_probabilities:
            return []
        names = [f"probability of {level}" for level in layout.classes]
        outputs = [f"y{output}" for output in range(len(layout.outputs))]
        if layout.are_probabilities:
            values = self._bounded(outputs)
        elif len(outputs) == 1:
            values = [self._sigmoid("(-y0)"), self._sigmoid("y0")]
        else:
            sizes = [f"e{output}" for output in range(len(outputs))]
            total = _add_up(sizes)
            values = [f"{size} / {total}" for size in sizes]
        return list(zip(names, values, strict=True))

    def _bounded(self, outputs: Sequence[str]) -> list[str]:
        """Outputs that are probabilities, held between zero and one and adding up to one."""
        held = [
            self.dialect.smaller(self.dialect.larger(output, "0.0e+00"), "1.0e+00")
            for output in outputs
        ]
        if len(held) == 1:
            return [f"1.0e+00 - {held[0]}", held[0]]
        total = _add_up(held)
        evenly = self.dialect.number(1.0 / len(held))
        return [
            f"CASE WHEN {total} > 0.0e+00 THEN {value} / {total} ELSE {evenly} END"
            for value in held
        ]

    def _exponential(self, number: str) -> str:
        """The exponential of a number that is not large."""
        return f"exp({self.dialect.larger(number, _SMALLEST_EXPONENT)})"

    def _sigmoid(self, number: str) -> str:
        """One over one plus the exponential, without overflow."""
        down = self._exponential(f"(-{number})")
        up = self._exponential(number)
        positive = f"1.0e+00 / (1.0e+00 + {down})"
        negative = f"{up} / (1.0e+00 + {up})"
        return f"CASE WHEN {number} >= 0.0e+00 THEN {positive} ELSE {negative} END"

    def _after_link(self, number: str) -> str:
        """What the model says where its output is a number."""
        link = self.layout.link
        if link == "sigmoid":
            return self._sigmoid(number)
        if link == "exp":
            return self._exponential(number)
        if link == "softplus":
            rest = self._exponential(f"(-abs({number}))")
            return f"{self.dialect.larger(number, '0.0e+00')} + ln(1.0e+00 + {rest})"
        return number

    def _contributions(self) -> list[tuple[str, str]]:
        """The base and every contribution with their names."""
        layout = self.layout
        several = len(layout.outputs) > 1
        named = []
        for output, of in enumerate(layout.outputs):
            suffix = f" to {of}" if several else ""
            named.append((f"base{suffix}", self.dialect.number(float(layout.base[output]))))
            for number, term in enumerate(layout.terms):
                named.append((f"contribution of {term.name}{suffix}", f"g{number}_{output}"))
        return named


def _add_up(parts: Sequence[str]) -> str:
    """A sum in brackets nested as little as possible, because databases limit their depth."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return f"({_add_up(parts[:middle])} + {_add_up(parts[middle:])})"
