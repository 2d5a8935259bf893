"""Names and numbers as they are written in a plot: short, distinct, and never read as formulas."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def clean(name: Any) -> str:
    """A name on one line, without characters that have no glyph or steer the text that follows."""
    return "".join(c for c in " ".join(str(name).split()) if c.isprintable())


def escape(text: str) -> str:
    """The text with dollar signs that matplotlib does not take for the beginning of a formula."""
    return text.replace("$", r"\$")


def shorten(name: Any, width: int = 28) -> str:
    """A name on one line, shortened in the middle, in which a dollar sign is a dollar sign."""
    return escape(_cut(clean(name), width, width // 2))


def shorten_all(names: Iterable[Any], width: int = 28) -> list[str]:
    """Several names, shortened so that those that differ still do: cut where they begin to differ, or else numbered."""
    whole = [clean(name) for name in names]
    short = [_cut(name, width, width // 2) for name in whole]
    for text in [text for text, times in Counter(short).items() if times > 1]:
        same = [place for place, one in enumerate(short) if one == text]
        first, last = min(whole[place] for place in same), max(whole[place] for place in same)
        start = next(
            (k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
        )
        for place in same:
            short[place] = _cut(whole[place], width, max(width // 5, 1), start - 4)
    seen: dict[str, dict[str, int]] = {}
    for place, (text, name) in enumerate(zip(short, whole, strict=True)):
        number = seen.setdefault(text, {}).setdefault(name, len(seen[text]) + 1)
        short[place] = escape(text if number == 1 else f"{text} ({number})")
    return short


def _cut(text: str, width: int, head: int, start: int | None = None) -> str:
    """The beginning of a text and its end, or the part from `start` on."""
    if len(text) <= width:
        return text
    last = len(text) - (width - head - 1)
    begin = last if start is None else max(min(start, last), head)
    rest = text[begin : begin + width - head - 1]
    return (
        f"{text[:head]}…{rest[:-1]}…" if begin + len(rest) < len(text) else f"{text[:head]}…{rest}"
    )


def short_labels(names: Sequence[str], width: int = 28) -> dict[str, str]:
    """Short labels by name, distinct among all names, also those that are not drawn."""
    return dict(zip(names, shorten_all(names, width), strict=True))


def term_labels(
    terms: Sequence[Sequence[str]],
    width: int = 34,
    *,
    names: Sequence[str] = (),
    after: dict[str, str] | None = None,
) -> list[str]:
    """Terms in words, each short enough, their features distinct among all `names`, with what comes after each."""
    every = names or list(dict.fromkeys(name for term in terms for name in term))
    labels = {
        size: short_labels(every, max(width // size, 8)) for size in {len(term) for term in terms}
    }
    return [
        " × ".join(labels[len(term)][name] + (after or {}).get(name, "") for name in term)
        for term in terms
    ]


def format_number(value: float, decimals: int, sign: str = "") -> str:
    """A number, with a minus as wide as a plus, and with a plus where `sign` is one."""
    return f"{value:{sign}{f',.{decimals}f' if abs(value) < 1e9 else '.2e'}}".replace("-", "−")


def decimals_for(values: Any) -> int:
    """Decimals with which the largest of some numbers has three digits."""
    known = np.abs(np.asarray(values, dtype=np.float64).ravel())
    largest = float(known[np.isfinite(known)].max(initial=0.0))
    return min(max(2 - math.floor(math.log10(largest)), 0), 9) if largest > 0 else 2


def format_value(value: Any, width: int = 14) -> str:
    """A value of a feature: a number with four digits, anything else as a short name."""
    return shorten(format_label(value), width)


def format_label(value: Any) -> str:
    """The same, however long, and not escaped."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        return clean(value)
    return f"{value:.4g}".replace("-", "−")
