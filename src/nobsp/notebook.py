"""Pieces of HTML that notebooks show: cards, bars, small curves, findings, pictures.

Styles are written into the tags, as notebooks strip style sheets; colours are the notebook's own or
translucent, so that a card can be read on a light page and on a dark one.
"""

from __future__ import annotations

import base64
import html
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nobsp.findings import Finding, merge_findings

# Seen by people who do not tell red from green, on white and on black.
FOR, AGAINST, NEUTRAL = "#e8590c", "#1f7fd1", "#8a8f98"
_SEVERITIES = {"error": "#d6336c", "warning": "#e8590c", "note": NEUTRAL}
# Findings shown before the rest is only counted.
MOST_FINDINGS = 4
# What findings say is changed by this: whoever writes a page may name arguments in other words.
_wording: ContextVar[Callable[[str], str]] = ContextVar("wording", default=str)
# Pixels of a small curve and of a bar.
_CURVE_WIDTH, _CURVE_HEIGHT = 90, 22
_BAR_WIDTH = 140
# What a bar may take of a narrow screen.
_BAR_SPACE = f"min({_BAR_WIDTH}px,14vw)"
# What is smaller than this share of the largest bar is rounding.
_ROUNDING = 1e-12
# Long names are broken, so that bars stay in view.
_BROKEN = "overflow-wrap:break-word"
_NAME_STYLE = f"max-width:min(22em,26vw);{_BROKEN}"
# How PNG calls colours, and colours with opacity, by the number of channels.
_PNG_KINDS = {3: 2, 4: 6}
# Behind pictures that let it through: a little off the page, so that their edges are seen.
_PICTURE_GROUND = "rgba(128,128,128,.12)"
# The shorter side of a picture, in pixels of the screen.
_PICTURE_SIDE = 84


@dataclass(frozen=True)
class Bar:
    """A line of a table: a name, a bar as long as its value, the value, and something beside it."""

    name: str
    value: float
    # HTML, such as a small curve.
    beside: str = ""
    # Colour; by the sign of the value where it is empty.
    colour: str = ""


def card(title: str, *parts: str) -> str:
    """A title and what is below it."""
    body = "".join(part for part in parts if part)
    return (
        "<div style='max-width:46em;font-family:inherit;line-height:1.4'>"
        f"<div style='font-weight:600;margin-bottom:.3em'>{html.escape(title)}</div>{body}</div>"
    )


def line(text: str) -> str:
    """A line of text."""
    return f"<div style='opacity:.85'>{html.escape(text)}</div>"


def share_bar(share: float, text: str) -> str:
    """A share from 0 to 1 as a bar, with words."""
    width = 100 * min(max(share, 0.0), 1.0) if np.isfinite(share) else 0.0
    return (
        "<div style='display:flex;align-items:center;gap:.6em;margin:.2em 0'>"
        f"<span style='display:inline-block;width:{_BAR_SPACE};height:.55em;border-radius:3px;"
        "background:rgba(128,128,128,.25)'>"
        f"<span style='display:block;width:{width:.1f}%;height:100%;border-radius:3px;"
        "background:#12a37f'></span></span>"
        f"<span>{html.escape(text)}</span></div>"
    )


def bars(lines: Sequence[Bar], *, heading: str) -> str:
    """A table of names, bars and numbers."""
    finite = [abs(bar.value) for bar in lines if np.isfinite(bar.value)]
    largest = max(finite, default=0.0) or 1.0
    rows = "".join(_bar_row(bar, largest) for bar in lines)
    style = "border-collapse:collapse;margin:.3em 0;background:none;font-size:.95em"
    return (
        f"<table style='{style}'><thead><tr style='background:none'>"
        f"<th style='text-align:left;font-weight:500;opacity:.7' colspan='4'>{html.escape(heading)}"
        f"</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _bar_row(bar: Bar, largest: float) -> str:
    known = bool(np.isfinite(bar.value))
    width = 100 * abs(bar.value) / largest if known else 0.0
    is_rounding = known and abs(bar.value) <= _ROUNDING * largest
    number = "0" if is_rounding else write_number(bar.value) if known else "–"
    colour = bar.colour or (FOR if bar.value >= 0 else AGAINST)
    cell = "padding:1px 8px;border:none;background:none"
    return (
        "<tr style='background:none'>"
        f"<td style='{cell};text-align:left'>"
        f"<div style='{_NAME_STYLE}'>{html.escape(bar.name)}</div></td>"
        f"<td style='{cell}'><span style='display:block;width:{_BAR_SPACE}'>"
        f"<span style='display:block;width:{width:.1f}%;height:.6em;border-radius:2px;"
        f"background:{colour}'></span></span></td>"
        f"<td style='{cell};text-align:right'>{number}</td>"
        f"<td style='{cell};white-space:nowrap'>{bar.beside}</td></tr>"
    )


def write_number(value: float) -> str:
    """A number in few digits, with the minus that people write."""
    return f"{value:.4g}".replace("-", "−")


def small_curve(
    x: NDArray[np.float64], y: NDArray[np.float64], *, spread: float | None = None
) -> str:
    """A curve of a function in the colour of the text; nothing where it has no points.

    Curves that are shown together have the same `spread`, of the one that rises and falls most.
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 2 or x.max() == x.min():
        return ""
    height = spread or float(y.max() - y.min()) or 1.0
    middle = (y.max() + y.min()) / 2
    across = 2 + (_CURVE_WIDTH - 4) * (x - x.min()) / (x.max() - x.min())
    down = _CURVE_HEIGHT / 2 - (_CURVE_HEIGHT - 4) * (y - middle) / height
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
    return (
        f"<svg width='{_CURVE_WIDTH}' height='{_CURVE_HEIGHT}' style='vertical-align:middle'>"
        f"<polyline points='{points}' fill='none' stroke='currentColor' stroke-width='1.5'/></svg>"
    )


def findings(found: Iterable[Finding], *, most: int = MOST_FINDINGS) -> str:
    """The first findings, and how many more there are."""
    listed = merge_findings(found)
    shown = "".join(_finding(finding) for finding in listed[:most])
    rest = len(listed) - most
    more = line(f"and {rest} more: print the health") if rest > 0 else ""
    return shown + more


def _finding(finding: Finding) -> str:
    colour = _SEVERITIES.get(finding.severity, NEUTRAL)
    subject = f"<b>{html.escape(finding.subject)}</b>: " if finding.subject else ""
    return (
        f"<div style='border-left:3px solid {colour};padding-left:.6em;margin:.25em 0;{_BROKEN}'>"
        f"<span style='opacity:.75'>{html.escape(finding.severity)}</span> "
        f"{subject}{with_code(finding.message)}</div>"
    )


def with_code(text: str) -> str:
    """A text as HTML, in the words asked for; options and what is between backticks are code.

    Example:
        >>> with_code("`far` < 3")
        '<code>far</code> &lt; 3'
    """
    worded_text = html.escape(_wording.get()(text))
    return re.sub(r"`([^`]+)`|(?<!\S)(\(?)(--[a-z][a-z-]+)", _as_code, worded_text)


def _as_code(match: re.Match[str]) -> str:
    """What stands between backticks, or an option of the command line, as code."""
    quoted, bracket, option = match.groups()
    return f"<code>{quoted}</code>" if quoted else f"{bracket}<code>{option}</code>"


@contextmanager
def worded(words: Callable[[str], str]) -> Iterator[None]:
    """Findings in other words as long as it is open, such as those of the command line.

    Example:
        >>> with worded(lambda text: text.replace("ridge=1", "--ridge 1")):
        ...     with_code("try ridge=1")
        'try <code>--ridge</code> 1'
    """
    token = _wording.set(words)
    try:
        yield
    finally:
        _wording.reset(token)


def gallery(pictures: Iterable[str]) -> str:
    """Pictures with captions, side by side."""
    return f"<div style='display:flex;flex-wrap:wrap;gap:.7em'>{''.join(pictures)}</div>"


def picture(pixels: NDArray[np.float64], caption: str) -> str:
    """An image (height, width, 3 or 4) of 0 to 1, enlarged without smoothing, with a caption.

    A fourth channel says how opaque it is.
    """
    height, width = pixels.shape[:2]
    scale = max(_PICTURE_SIDE / max(min(height, width), 1), 1.0)
    # A strip of time or words is as wide as it is long, and as high as a line.
    shown_height = min(height * scale, _PICTURE_SIDE) if height > 1 else 18
    shown_width = width * scale if height > 1 else min(12 * width, 480)
    return (
        f"<figure style='margin:0'><img src='{_png_address(pixels)}' width='{shown_width:.0f}' "
        f"height='{shown_height:.0f}' style='image-rendering:pixelated;border-radius:4px;margin:0;"
        f"background:{_PICTURE_GROUND}' "
        "alt=''><figcaption "
        f"style='font-size:.85em;opacity:.85'>{html.escape(caption)}</figcaption></figure>"
    )


def _png_address(pixels: NDArray[np.float64]) -> str:
    """An image as an address that holds it; written here, as Pillow may be missing."""
    height, width = pixels.shape[:2]
    levels = np.clip(np.nan_to_num(pixels) * 255, 0, 255).astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in levels)
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_KINDS[levels.shape[2]], 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        _png_chunk(kind, content)
        for kind, content in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    )
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
