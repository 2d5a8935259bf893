"""Names and numbers as they are written in a plot: short, told apart, and never taken for formulas."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

# Characters that would turn around the text that follows them.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def shown(name: Any, width: int = 28) -> str:
    r"""A name on one line, shortened in the middle, in which a dollar sign is a dollar sign.

    Example:
        >>> shown("mean of the worst concave points of the nucleus", 20)
        'mean of th…e nucleus'
        >>> print(shown("income in $ or $1000"))
        income in \$ or \$1000
    """
    return escaped(_shortened(plain(name), width))


def shown_apart(names: Iterable[Any], width: int = 28) -> list[str]:
    """Several names, shortened so that those that differ still do.

    Names that would be shortened to the same text are cut around the place where they begin to differ.

    Example:
        >>> shown_apart(["the reading at site 1 in the morning", "the reading at site 2 in the morning"], 16)
        ['the…ite 1 in th…', 'the…ite 2 in th…']
    """
    whole = [plain(name) for name in names]
    short = [_shortened(name, width) for name in whole]
    for text, times in Counter(short).items():
        alike = [position for position, one in enumerate(short) if one == text]
        if times > 1 and len({whole[position] for position in alike}) > 1:
            start = _alike([whole[position] for position in alike])
            for position in alike:
                short[position] = _around(whole[position], start, width)
    return [escaped(text) for text in _numbered(short, whole)]


def labels_of(names: Sequence[str], width: int = 28) -> dict[str, str]:
    """Short labels by name, told apart among all names, also those that are not drawn."""
    return dict(zip(names, shown_apart(names, width), strict=True))


def terms_shown(terms: Sequence[Sequence[str]], width: int = 34, *, names: Sequence[str] | None = None) -> list[str]:
    """Terms in words, each short enough, their features told apart among all there are.

    Example:
        >>> terms_shown([("age",), ("age", "income")])
        ['age', 'age × income']
    """
    every = list(dict.fromkeys(name for term in terms for name in term)) if names is None else names
    labels = {size: labels_of(every, max(width // size, 8)) for size in {len(term) for term in terms}}
    return [" × ".join(labels[len(term)][name] for name in term) for term in terms]


def unlike(name: str, others: Sequence[str]) -> str:
    """A name of ours, in brackets where a feature has it too.

    Example:
        >>> unlike("residual", ["age", "residual"])
        '(residual)'
    """
    return unlike(f"({name})", others) if name in others else name


def plain(name: Any) -> str:
    """A name on one line without characters that steer the text."""
    text = " ".join(str(name).split())
    return "".join(c for c in text if unicodedata.category(c) != "Cc" and c not in _TURNING)


def escaped(text: str) -> str:
    """The text with dollar signs that matplotlib does not take for the beginning of a formula."""
    return text.replace("$", r"\$")


def signed(value: float, decimals: int) -> str:
    """A contribution with its sign, with a minus as wide as a plus.

    Example:
        >>> signed(-1234.5, 1), signed(0.25, 2), signed(-0.001, 2)
        ('−1,234.5', '+0.25', '−0.00')
    """
    return (f"{value:+,.{decimals}f}" if abs(value) < 1e9 else f"{value:+.2e}").replace("-", "−")


def number(value: float, decimals: int) -> str:
    """A number without a sign where it is positive."""
    return (f"{value:,.{decimals}f}" if abs(value) < 1e9 else f"{value:.2e}").replace("-", "−")


def decimals_for(values: Any) -> int:
    """Decimals with which the largest of some numbers has three digits.

    Example:
        >>> decimals_for([0.012, 0.4]), decimals_for([1234.0]), decimals_for([])
        (3, 0, 2)
    """
    known = np.abs(np.asarray(values, dtype=np.float64).ravel())
    largest = float(known[np.isfinite(known)].max(initial=0.0))
    return min(max(2 - math.floor(math.log10(largest)), 0), 9) if largest > 0 else 2


def value_shown(value: Any, width: int = 14) -> str:
    """A value of a feature: a number with four digits, anything else as a short name.

    Example:
        >>> value_shown(np.float32(0.1)), value_shown(1234567.0), value_shown("Rome"), value_shown(True)
        ('0.1', '1.235e+06', 'Rome', 'True')
    """
    return escaped(_shortened(in_full(value), width))


def in_full(value: Any) -> str:
    """The same, however long, and not escaped."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        return plain(value)
    return f"{value:.4g}".replace("-", "−")


def percent(share: float) -> str:
    """A share in percent: a decimal where it is below ten, or close to a hundred.

    Example:
        >>> percent(0.123), percent(0.0432), percent(0.9987), percent(-0.02), percent(0.0002)
        ('12%', '4.3%', '99.9%', '−2.0%', '<0.1%')
    """
    if 0 < share < 0.0005:
        return "<0.1%"
    fine = abs(share) < 0.0995 or 0.985 < share < 0.9995
    return f"{share:.{1 if fine else 0}%}".replace("-", "−")


def listed(names: Sequence[Any], at_most: int = 8) -> str:
    """Names for an error message."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(map(repr, names[:at_most])) + more


def counted(count: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "row"), counted(1200, "row")
        ('1 row', '1,200 rows')
    """
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    head = width // 2
    return _joined(text[:head], text[len(text) - (width - head - 1) :])


def _around(text: str, start: int, width: int) -> str:
    """The beginning of a name, and the part from a little before `start` on."""
    if len(text) <= width:
        return text
    head = max(width // 5, 1)
    begin = max(min(start - 4, len(text) - (width - head - 1)), head)
    rest = text[begin : begin + width - head - 1]
    cut = begin + len(rest) < len(text)
    return _joined(text[:head], rest[:-1] + "…" if cut else rest)


def _alike(names: Sequence[str]) -> int:
    """How many characters all names begin with alike."""
    first, last = min(names), max(names)
    return next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def _joined(head: str, tail: str) -> str:
    # An accent that lost its letter would sit on the dots.
    while tail and unicodedata.combining(tail[0]):
        tail = tail[1:]
    return f"{head}…{tail}"


def _numbered(short: Sequence[str], whole: Sequence[str]) -> list[str]:
    """Numbers behind texts that are still alike though the names differ."""
    seen: dict[str, dict[str, int]] = {}
    result = []
    for text, name in zip(short, whole, strict=True):
        place = seen.setdefault(text, {}).setdefault(name, len(seen[text]) + 1)
        result.append(text if place == 1 else f"{text} ({place})")
    return result
