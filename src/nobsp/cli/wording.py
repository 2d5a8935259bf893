"""Advice of the library, which names arguments of Python, in the options of the command line."""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any


def _name_terms(advice: re.Match[str]) -> str:
    """Features of an interaction as the option takes them, quoted where a shell needs it."""
    try:
        names = ast.literal_eval(advice[1])
    except (SyntaxError, ValueError):  # of a name that looks like the end of the list
        return advice[0]
    return f"--interactions {shlex.quote(':'.join(names))}"


# What the library says, and what does the same here; the longer ones first.
_OPTIONS = (
    (r"Name the clusters with fit\(X, groups=\.\.\.\)", "Name their column with --groups"),
    (r"fit\(X, groups=[^)]*\)", "--groups COLUMN"),
    (r"groups \('([^']*)'\) has", r"--groups \1 has"),
    (r"NObSP\.suggest_features", "--groups NAME=COLUMN,COLUMN"),
    (r"Fit all with the same interactions=\[\.\.\.\]", "Fit all with the same --interactions"),
    (r"interactions=\[\.\.\., (\(.+?\))\]", _name_terms),
    (r"interactions=\[…\]", "--interactions FIRST:SECOND"),
    (r"interactions=\[\(?'([^']+)', '([^']+)'\)?\]", r"--interactions \1:\2"),
    (r'interactions="auto"', "--interactions auto"),
    (r"interactions=(\d+)", r"--interactions \1"),
    (r"NObSP\(model, max_forward_rows=\.\.\.\)", "--max-forward-rows"),
    (r"max_forward_rows=([\d,]+)", lambda named: f"--max-forward-rows {named[1].replace(',', '')}"),
    (r"to_probability\(\) of an explanation converts them", "--probability converts them"),
    (r"\(without to_probability\)", "(without --probability)"),
    (r"`compile\(\)` leaves it out", "nobsp export leaves it out"),
    (r"They are flagged in `(\w+)`", r"They are flagged in the column `\1`"),
    (
        r"pass lists of accounts, compare\(.*?\), or pass as least_change what",
        "compare the lists of accounts in Python, or say with --least-change what",
    ),
    (r"the columns of to_frame\(\)", "comparison.csv"),
    (r"; choose a layer= through", "; choose a --layer through"),
    (r"choose another layer=", "choose another --layer"),
    (r"An earlier layer= ", "An earlier --layer "),
    (r", see `residual`: it came", ": it came"),
    (r"Pass points=(\d+) for", r"Pass --points \1 for"),
    (r'coefficients="(\w+)"', r"--coefficients \1"),
    (r"a larger held_out", "a larger --held-out"),
    (r" \(left_whole\)", ""),
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
