"""A page of a network's parts: blocks by heads, outputs by depth, the largest parts; no script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np

import nobsp
from nobsp._typing import FloatArray
from nobsp.arguments import count
from nobsp.findings import describe_findings
from nobsp.numerics import evenly_spaced

# Parts in the list of the largest.
_MOST_LISTED = 12
# Outputs that get a section.
_MOST_OUTPUTS = 10
_MOST_LINES = 40
# Corners of the drawing of depths.
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 600.0, 14.0, 186.0
# What is smaller than this share of the largest is rounding, or as good as nothing.
_ROUNDING = 1e-6
# Cells above this share of the largest have letters of the page's colour.
_INVERTED_LETTERS = 0.6


def is_dissected(subject: Any) -> bool:
    """Whether a subject is an explanation of parts, or an ablation of them."""
    parts = getattr(subject, "parts", None)
    return isinstance(parts, tuple) and all(hasattr(part, "pieces") for part in parts)


def parts_page(subject: Any, *, title: str | None, about: str | None) -> str:
    """The page as text."""
    try:
        from jinja2 import Environment
    except ImportError as missing:
        raise ImportError("the report needs jinja2: pip install 'nobsp[report]'.") from missing
    room = resources.files("nobsp.reporting")
    template = (room / "parts.html.j2").read_text(encoding="utf-8")
    style = _as_the_reader_prefers((room / "page.css").read_text(encoding="utf-8"))
    environment = Environment(autoescape=True, keep_trailing_newline=True)
    page = _page_of(subject, title=title, about=about)
    return environment.from_string(template).render(page=page, style=style)


def _as_the_reader_prefers(style: str) -> str:
    """The pages' style, made to ask for light or dark itself; other pages have a script for it."""
    selector = ':root[data-theme="dark"]'
    start = style.index(selector)
    end = style.index("}", start) + 1
    colours = style[start:end].replace(selector, ":root")
    return f"{style[:start]}@media (prefers-color-scheme: dark) {{ {colours} }}{style[end:]}"


def _page_of(subject: Any, *, title: str | None, about: str | None) -> dict[str, Any]:
    ablated = hasattr(subject, "effects")
    direct = subject.direct if ablated else subject.values
    lead = (
        "What each part adds to the output directly. What it does through later parts is not in it."
    )
    if ablated:
        lead += (
            " Beside it, what the output loses when the part is put at its mean and all after it "
            "is computed anew."
        )
    findings = getattr(subject, "findings", ())
    return {
        "title": title or f"{count(len(subject.parts), 'part')} of a network",
        "about": about or "",
        "lead": lead,
        "version": nobsp.__version__,
        "rows": count(len(direct), "row"),
        "findings": describe_findings(findings) if findings else [],
        "columns": ("direct", "lost without", "indirect") if ablated else ("direct",),
        "outputs": [
            _section(subject, column, ablated=ablated)
            for column in range(min(len(subject.output_names), _MOST_OUTPUTS))
        ],
    }


def _section(subject: Any, column: int, *, ablated: bool) -> dict[str, Any]:
    """Everything about one output."""
    direct = np.abs((subject.direct if ablated else subject.values)[..., column]).mean(0)
    sizes = [("added directly", direct)]
    numbers = [direct]
    if ablated:
        lost = np.abs(subject.effects[..., column]).mean(0)
        sizes.append(("lost without the part", lost))
        numbers += [lost, np.abs(subject.indirect[..., column]).mean(0)]
    largest = max(float(np.nanmax(size, initial=0.0)) for _, size in sizes)
    order = np.argsort(-np.nan_to_num(sizes[-1][1]), kind="stable")[:_MOST_LISTED]
    lens = getattr(subject, "lens", None)

    return {
        "name": subject.output_names[column],
        "base": _number(float(subject.base_values[column])),
        "maps": [_map(subject.parts, title, size, largest) for title, size in sizes],
        "lens": _lens(lens, column) if hasattr(lens, "depths") else None,
        "largest": [
            {
                "name": subject.parts[part].name,
                "numbers": [_number(float(values[part]), beside=largest) for values in numbers],
            }
            for part in order
        ],
    }


def _map(parts: Sequence[Any], title: str, sizes: FloatArray, largest: float) -> dict[str, Any]:
    """Blocks down and heads across; one column for networks without heads."""
    n_heads = max((part.number + 1 for part in parts if part.kind == "head"), default=0)
    heads = [f"head {number}" for number in range(n_heads)]
    columns = ["whole", *heads, "MLP"] if n_heads else []
    lines: dict[str, list[dict[str, Any] | None]] = {}
    for part, size in zip(parts, sizes, strict=True):
        in_block = n_heads and part.block is not None
        name = f"block {part.block}" if in_block else part.name
        cells = lines.setdefault(name, [None] * max(len(columns), 1))
        column = n_heads + 1 if in_block and part.kind != "attention" else 0
        cells[part.number + 1 if part.kind == "head" else column] = _cell(float(size), largest)
    listed = list(lines.items())
    if not n_heads and len(listed) > 3 * _MOST_LISTED:
        strongest = set(np.argsort(-np.nan_to_num(sizes))[: 3 * _MOST_LISTED].tolist())
        listed = [line for number, line in enumerate(listed) if number in strongest]
    return {
        "title": title,
        "columns": columns,
        "lines": [{"name": name, "cells": cells} for name, cells in listed],
    }


def _cell(size: float, largest: float) -> dict[str, Any] | None:
    if not np.isfinite(size):
        return None
    share = size / largest if largest else 0.0
    return {
        "text": _number(size, beside=largest),
        "colour": f"color-mix(in srgb, var(--against) {share:.1%}, var(--paper))",
        "dark": share > _INVERTED_LETTERS,
    }


def _lens(lens: Any, column: int) -> dict[str, Any]:
    """Lines of single rows, from depth to depth."""
    outputs = lens.outputs[..., column]
    outputs = outputs[evenly_spaced(len(outputs), _MOST_LINES)]
    low = float(outputs.min())
    high = float(outputs.max())
    across = np.linspace(_LEFT, _RIGHT, len(lens.depths))
    down = _BOTTOM - (outputs - low) / max(high - low, 1e-30) * (_BOTTOM - _TOP)
    every = max(1, -(-len(across) // 8))
    return {
        "lines": [
            " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, row, strict=True)) for row in down
        ],
        "ticks": [
            {"x": f"{x:.1f}", "name": name}
            for x, name in list(zip(across, lens.depths, strict=True))[::every]
        ],
        "low": _number(low),
        "high": _number(high),
    }


def _number(value: float, *, beside: float = 0.0) -> str:
    """A number in few digits; none where it is but rounding of the largest beside it."""
    if not np.isfinite(value):
        return "–"
    if abs(value) <= _ROUNDING * beside:
        return "0"
    return f"{value:.3g}".replace("-", "−")
