"""Pages that compute nothing: headline, facts, findings, bars, tables and curves.

They are written as HTML or as Markdown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

import numpy as np

import nobsp
from nobsp._typing import FloatArray
from nobsp.findings import Finding
from nobsp.reporting.build import content_hash, fill_template

# Size of a curve's drawing; it is stretched to the width of its card.
_WIDTH = 300.0
_HEIGHT = 150.0
# Numbers from here on are written with an exponent, and those beside numbers that are smaller than
# this.
_LARGE = 1e9
_SMALL = 1e-3
# Beside larger numbers, what is below these shares of them is rounding, or next to nothing.
_ROUNDING = 1e-12
_NEXT_TO_NOTHING = 1e-5
# Digits of the largest number of a table; of smaller ones those that stand below them.
_DIGITS = 4


@dataclass(frozen=True)
class Bar:
    """A number with its interval, drawn from zero."""

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """Numbers under one another, on one scale."""

    title: str
    bars: tuple[Bar, ...]
    note: str = ""

    @property
    def kind(self) -> str:
        """How templates tell what it is."""
        return "bars"

    def drawn(self) -> list[dict[str, Any]]:
        """Every bar with its ends as shares of the width."""
        numbers = [bar.value for bar in self.bars]
        numbers += [end for bar in self.bars for end in (bar.low, bar.high) if math.isfinite(end)]
        low = min([0.0, *numbers])
        high = max([0.0, *numbers])
        width = high - low or 1.0
        size = max((abs(bar.value) for bar in self.bars if math.isfinite(bar.value)), default=0.0)

        def place(number: float) -> float:
            return round(100 * (number - low) / width, 3)

        drawn = []
        for bar in self.bars:
            has_interval = math.isfinite(bar.low) and math.isfinite(bar.high)
            drawn.append(
                {
                    "name": bar.name,
                    "text": number_text(bar.value, signed=True, size=size),
                    "interval": _interval_text(bar.low, bar.high, size=size)
                    if has_interval
                    else "",
                    "note": bar.note,
                    "zero": place(0.0),
                    "left": place(min(bar.value, 0.0)),
                    "width": round(100 * abs(bar.value) / width, 3),
                    "way": "for" if bar.value >= 0 else "against",
                    "from": place(bar.low) if has_interval else None,
                    "to": place(bar.high) if has_interval else None,
                }
            )
        return drawn


@dataclass(frozen=True)
class Grid:
    """A table of texts; the first column says what a row is about."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @property
    def kind(self) -> str:
        """How templates tell what it is."""
        return "grid"


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a drawing, with a band where it has one."""

    name: str
    x: FloatArray
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Curve:
    """Functions of one number in one drawing."""

    title: str
    lines: tuple[Line, ...]
    note: str = ""

    @property
    def kind(self) -> str:
        """How templates tell what it is."""
        return "curve"

    def drawn(self) -> dict[str, Any]:
        """Paths of lines and bands, and the numbers at the ends of both axes."""
        every_x = np.concatenate([line.x for line in self.lines])
        every_y = np.concatenate([_heights(line) for line in self.lines])
        x_low, x_high = float(every_x.min()), float(every_x.max())
        y_low, y_high = float(every_y.min()), float(every_y.max())
        x_width = x_high - x_low or 1.0
        y_width = y_high - y_low or 1.0

        def point(x: float, y: float) -> str:
            across = _WIDTH * (x - x_low) / x_width
            down = _HEIGHT * (1 - (y - y_low) / y_width)
            return f"{across:.1f},{down:.1f}"

        paths = []
        for number, line in enumerate(self.lines, start=1):
            band = ""
            if line.low is not None and line.high is not None:
                outline = [*zip(line.x, line.high, strict=True)]
                outline += [*zip(line.x[::-1], line.low[::-1], strict=True)]
                band = " ".join(point(x, y) for x, y in outline)
            points = " ".join(point(x, y) for x, y in zip(line.x, line.y, strict=True))
            paths.append({"name": line.name, "points": points, "band": band, "number": number})
        zero = _HEIGHT * (1 - (0 - y_low) / y_width) if y_low <= 0 <= y_high else None
        return {
            "paths": paths,
            "zero": zero,
            "x": [number_text(x_low), number_text(x_high)],
            "y": [number_text(y_low), number_text(y_high)],
        }


def _heights(line: Line) -> FloatArray:
    """Everything that is drawn of a line."""
    parts = [line.y]
    parts += [band for band in (line.low, line.high) if band is not None]
    return np.concatenate(parts)


Block = Bars | Grid | Curve


@dataclass(frozen=True)
class Section:
    """A heading, a paragraph, and what is shown below it."""

    key: str
    title: str
    lead: str = ""
    blocks: tuple[Block, ...] = ()
    paragraphs: tuple[str, ...] = ()


Standing = Literal["", "doubtful", "bad"]
# Less of what is explained is doubtful, and less than nothing is bad.
_DOUBTFUL = 0.8


# Warnings that held-out R² is not what to expect, as on pages of tables.
_DOUBTS = ("clusters", "extreme_rows", "few_rows", "fresh_rows")


def standing_of(share: float, findings: Sequence[Finding] = ()) -> Standing:
    """How a share that is explained is coloured, as on pages of tables."""
    is_doubted = any(
        finding.severity == "warning" and finding.code in _DOUBTS for finding in findings
    )
    if not share < _DOUBTFUL and not is_doubted:
        return ""
    return "bad" if share < 0 else "doubtful"


@dataclass(frozen=True)
class Sheet:
    """A page."""

    title: str
    about: str
    headline: tuple[str, str]  # a number, and what it is
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    numbers: Mapping[str, Any] = field(
        default_factory=dict
    )  # everything that is told, for machines
    # how the headline is coloured: as good news where nothing is said
    standing: Standing = ""


def html_of(sheet: Sheet) -> str:
    """The page as one file that loads nothing."""
    folder = resources.files("nobsp.reporting")
    theme = (folder / "theme.js").read_text(encoding="utf-8").replace("\r\n", "\n")
    embedded = json.dumps(sheet.numbers, ensure_ascii=True, allow_nan=False)
    for character, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        embedded = embedded.replace(character, code)
    return fill_template(
        folder / "sheet.html.j2",
        sheet=sheet,
        version=nobsp.__version__,
        style=(folder / "page.css").read_text(encoding="utf-8"),
        theme=theme,
        theme_hash=content_hash(theme),
        numbers=embedded,
        width=_WIDTH,
        height=_HEIGHT,
    )


def markdown_of(sheet: Sheet) -> str:
    """The same in plain text; curves as their values at a few places."""
    lines = [f"# {_flat(sheet.title)}", ""]
    if sheet.about:
        lines += [_flat(sheet.about), ""]
    lines += [f"**{sheet.headline[0]}** {_flat(sheet.headline[1])}", ""]
    lines += [f"- {_flat(name)}: {_flat(value)}" for name, value in sheet.facts]
    lines += ["", "## Before you believe it", ""]

    for finding in sheet.findings:
        subject = f"{finding.subject}: " if finding.subject else ""
        lines.append(f"- {finding.severity}: {_flat(subject + finding.message)}")
    if not sheet.findings:
        lines.append("- Nothing was found that makes these numbers doubtful.")
    for section in sheet.sections:
        lines += ["", f"## {_flat(section.title)}", ""]
        if section.lead:
            lines += [_flat(section.lead), ""]
        for paragraph in section.paragraphs:
            lines += [_flat(paragraph), ""]
        for block in section.blocks:
            lines += [*_block_lines(block), ""]
    lines += [f"Made with nobsp {nobsp.__version__}.", ""]
    return "\n".join(lines)


def _block_lines(block: Block) -> list[str]:
    """A block as a table of Markdown."""
    if isinstance(block, Bars):
        rows = [(bar["name"], bar["text"], bar["interval"], bar["note"]) for bar in block.drawn()]
        return _table_lines(block.title, ("", "value", "interval", ""), rows, block.note)
    if isinstance(block, Grid):
        return _table_lines(block.title, block.columns, block.rows, block.note)

    rows = []
    for line in block.lines:
        places = np.unique(np.linspace(0, len(line.x) - 1, 5).astype(int))
        for point in places:
            band = ""
            if line.low is not None and line.high is not None:
                band = _interval_text(float(line.low[point]), float(line.high[point]))
            rows.append(
                (
                    line.name,
                    number_text(line.x[point]),
                    number_text(line.y[point], signed=True),
                    band,
                )
            )
    return _table_lines(block.title, ("", "at", "value", "band"), rows, block.note)


def _table_lines(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str
) -> list[str]:
    """A table of Markdown under a heading."""
    lines = [f"### {_flat(title)}", ""] if title else []
    lines.append("| " + " | ".join(_flat(column) for column in columns) + " |")
    lines.append("|" + "---|" * len(columns))
    lines += ["| " + " | ".join(_flat(cell) for cell in row) + " |" for row in rows]
    return [*lines, "", _flat(note)] if note else lines


def _flat(text: str) -> str:
    """A text on one line, in which nothing is a table's border."""
    return " ".join(str(text).split()).replace("|", "\\|")


def number_text(number: float, *, signed: bool = False, size: float = 0.0) -> str:
    """A number with four digits, as people write it: 1,227,000 rather than 1.227e+06.

    Args:
        number: The number.
        signed: Whether a plus is written too.
        size: The largest number beside it. Smaller ones have no digits that stand far behind those
            of the largest.
    """
    if not math.isfinite(number):
        return "–"
    if abs(number) <= _ROUNDING * size:
        return "0"
    if abs(number) < _NEXT_TO_NOTHING * size:
        return "≈ 0"
    sign = "+" if signed else ""
    text = f"{number:{sign}.{_DIGITS}g}"
    if "e+" in text and abs(number) < _LARGE:
        text = f"{float(text):{sign},.0f}"
    elif abs(number) < size and _SMALL <= size < _LARGE:
        text = _with_decimals_of(number, size, text, sign)
    return text.replace("-", "−")


def _with_decimals_of(number: float, size: float, text: str, sign: str) -> str:
    """The text of a number, with no more decimals than suit a larger number beside it.

    These are at most one digit beyond those of the larger number, `size`.
    """
    decimals = max(_DIGITS - math.floor(math.log10(size)), 0)
    is_longer = "e" in text or len(text.partition(".")[2]) > decimals
    return f"{number:{sign}.{decimals}f}" if is_longer else text


def _interval_text(low: float, high: float, *, size: float = 0.0) -> str:
    ends = (number_text(end, signed=True, size=size) for end in (low, high))
    return f"[{', '.join(ends)}]"
