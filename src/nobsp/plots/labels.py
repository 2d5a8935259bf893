"""Names and numbers as they are written in a plot: short, distinct, and never read as formulas."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nobsp._typing import ArrayLike

# Beyond this a number is written with a power of ten.
_LARGE_NUMBER = 1e9
# Characters shown before the place where names begin to differ.
_BEFORE_DIFFERENCE = 4


def clean(name: object) -> str:
    """A name on one line, without characters that have no glyph or steer the text that follows."""
    one_line = " ".join(str(name).split())
    printable = filter(str.isprintable, one_line)
    return "".join(printable)


def escape(text: str) -> str:
    """The text with dollar signs that matplotlib does not take for the beginning of a formula."""
    return text.replace("$", r"\$")


def shorten(name: object, width: int = 28) -> str:
    """A name on one line, shortened in the middle, in which a dollar sign is a dollar sign."""
    return escape(_cut(clean(name), width, head=width // 2))


def shorten_all(names: Iterable[object], width: int = 28) -> list[str]:
    """Several names, shortened so that those that differ still do.

    They are cut where they begin to differ, or else numbered.
    """
    whole = [clean(name) for name in names]
    short = _cut_where_different(whole, width)

    numbers: dict[str, dict[str, int]] = defaultdict(dict)
    labels = []
    for text, name in zip(short, whole, strict=True):
        same_text = numbers[text]
        number = same_text.setdefault(name, len(same_text) + 1)
        label = text if number == 1 else f"{text} ({number})"
        labels.append(escape(label))
    return labels


def _cut_where_different(names: Sequence[str], width: int) -> list[str]:
    """Names cut in the middle; those that would look the same, where they begin to differ."""
    short = [_cut(name, width, head=width // 2) for name in names]
    short_head = max(width // 5, 1)
    repeated = [text for text, times in Counter(short).items() if times > 1]
    for text in repeated:
        positions = [position for position, label in enumerate(short) if label == text]
        alike = [names[position] for position in positions]
        start = _shared_beginning(min(alike), max(alike)) - _BEFORE_DIFFERENCE
        for position in positions:
            short[position] = _cut(names[position], width, head=short_head, start=start)
    return short


def _shared_beginning(first: str, last: str) -> int:
    """How many characters two texts have in common from their beginning on."""
    for position, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return position
    return min(len(first), len(last))


def _cut(text: str, width: int, *, head: int, start: int | None = None) -> str:
    """The beginning of a text and its end, or the part from `start` on."""
    if len(text) <= width:
        return text

    tail = width - head - 1
    last_start = len(text) - tail
    begin = last_start
    if start is not None:
        begin = max(min(start, last_start), head)
    beginning = text[:head]
    rest = text[begin : begin + tail]
    if begin + len(rest) >= len(text):
        return f"{beginning}…{rest}"
    return f"{beginning}…{rest[:-1]}…"


def short_labels(names: Sequence[str], width: int = 28) -> dict[str, str]:
    """Short labels by name, distinct among all names, also those that are not drawn."""
    return dict(zip(names, shorten_all(names, width), strict=True))


def term_labels(
    terms: Sequence[Sequence[str]],
    width: int = 34,
    *,
    names: Sequence[str] = (),
    after: Mapping[str, str] | None = None,
) -> list[str]:
    """Terms in words, each short enough, their features distinct among all `names`.

    `after` holds what is written behind the name of a feature.
    """
    suffixes = after or {}
    features = names or list(dict.fromkeys(name for term in terms for name in term))
    labels_by_size = {}
    for size in {len(term) for term in terms}:
        labels_by_size[size] = short_labels(features, max(width // size, 8))

    texts = []
    for term in terms:
        labels = labels_by_size[len(term)]
        parts = [labels[name] + suffixes.get(name, "") for name in term]
        texts.append(" × ".join(parts))
    return texts


def format_number(value: float, decimals: int, sign: str = "") -> str:
    """A number, with a minus as wide as a plus, and with a plus where `sign` is one."""
    form = f"{sign},.{decimals}f" if abs(value) < _LARGE_NUMBER else f"{sign}.2e"
    return format(value, form).replace("-", "−")


def decimals_for(values: ArrayLike) -> int:
    """Decimals with which the largest of some numbers has three digits."""
    sizes = np.abs(np.asarray(values, dtype=np.float64).ravel())
    known = sizes[np.isfinite(sizes)]
    largest = float(known.max(initial=0.0))
    if largest <= 0:
        return 2

    decimals = 2 - math.floor(math.log10(largest))
    return min(max(decimals, 0), 9)


def format_value(value: object, width: int = 14) -> str:
    """A value of a feature: a number with four digits, anything else as a short name."""
    return shorten(format_label(value), width)


def format_label(value: object) -> str:
    """A value of a feature: a number with four digits, anything else by its name.

    The name is neither shortened nor escaped.
    """
    is_number = isinstance(value, int | float | np.number)
    if not is_number or isinstance(value, bool | np.bool_):
        return clean(value)
    return f"{value:.4g}".replace("-", "−")
