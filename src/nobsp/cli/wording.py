"""Advice of the library, which names arguments of Python, in the options of the command line."""

from __future__ import annotations

import re
from typing import Any

# What the library says, and what does the same here; the longer ones first.
_OPTIONS = (
    (r"Name the clusters with fit\(X, groups=\.\.\.\)", "Name their column with --groups"),
    (r"fit\(X, groups=[^)]*\)", "--groups COLUMN"),
    (r"interactions=\[…\]", "--interactions FIRST:SECOND"),
    (r"interactions=\[\(?'([^']+)', '([^']+)'\)?\]", r"--interactions \1:\2"),
    (r'interactions="auto"', "--interactions auto"),
    (r"interactions=(\d+)", r"--interactions \1"),
    (r"NObSP\(model, max_forward_rows=\.\.\.\)", "--max-forward-rows"),
    (r"max_forward_rows=([\d,]+)", lambda named: f"--max-forward-rows {named[1].replace(',', '')}"),
    (r"to_probability\(\) of an explanation converts them", "--probability converts them"),
    (r"\(without to_probability\)", "(without --probability)"),
    (r"`compile\(\)` leaves it out", "nobsp export leaves it out"),
    (r"pass labels to index\.fit", "name their column with --target"),
    (
        r"Use index\.representer_shares\(X\) instead\.",
        "In Python, index.representer_shares(X) has no such limit.",
    ),
    (r'reference="(\w+)"', r"--reference \1"),
    (r"NObSP\(([a-z_]+)=([^)]*)\)", lambda named: f"--{named[1].replace('_', '-')} {named[2]}"),
)


def in_options(text: str) -> str:
    """A message with the options of the command line in the place of Python's arguments.

    Example:
        >>> in_options("A strong pair was not fitted, as interactions=1 fits no more.")
        'A strong pair was not fitted, as --interactions 1 fits no more.'
    """
    for said, option in _OPTIONS:
        text = re.sub(said, option, text)
    return text


def messages_in_options(summary: Any) -> Any:
    """A summary whose messages name options, wherever in it they are."""
    if isinstance(summary, dict):
        return {
            key: in_options(value)
            if key == "message" and isinstance(value, str)
            else messages_in_options(value)
            for key, value in summary.items()
        }
    if isinstance(summary, list):
        return [messages_in_options(entry) for entry in summary]
    return summary
