"""What --groups means: columns that are one feature, or the column that groups rows.

Rows with the same value in that column belong together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nobsp.arguments import suggest
from nobsp.cli.options import UsageError, require_path

_FORMS = (
    "write the name of one column for rows that belong together; for columns that are one "
    "feature write "
    'name=column,column, or name a JSON file with {"name": ["column", "column"]}.'
)


@dataclass(frozen=True)
class Grouping:
    """The words of --groups, sorted by what they mean."""

    # Columns put together under the name of a feature.
    features: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # The column whose equal values mark rows that belong together.
    rows: str | None = None


def read_grouping(
    words: Sequence[str] | None,
    columns: Sequence[str],
    *,
    table: Path,
    is_calibrated_on: bool = True,
) -> Grouping:
    """Sorts the words of --groups by the columns of a table; ambiguous words are an error.

    Only the table to calibrate on must have the column that groups rows.
    """
    features: dict[str, Sequence[str]] = {}
    row_columns: list[str] = []
    for word in words or ():
        if word in columns:
            _require_one_meaning(word, table)
            row_columns.append(word)
        elif "=" in word:
            name, _, members = word.partition("=")
            features[name] = [column for column in members.split(",") if column]
        elif Path(word).is_file() or _looks_like_a_path(word):
            features.update(_read_file(Path(word)))
        elif not is_calibrated_on:
            row_columns.append(word)
        else:
            raise UsageError(
                f"--groups {word}: {table} has no such column; {suggest(word, columns)} "
                f"{_FORMS[0].upper()}{_FORMS[1:]}"
            )

    if len(row_columns) > 1:
        raise UsageError(
            f"--groups {' '.join(row_columns)}: rows can be grouped by one column only; {_FORMS}"
        )
    if "" in features or not all(features.values()):
        raise UsageError(f"--groups: {_FORMS}")
    return Grouping(features, row_columns[0] if row_columns else None)


def _require_one_meaning(column: str, table: Path) -> None:
    """An error where the name of a column could also be something else."""
    other = None
    if "=" in column:
        other = "a feature of several columns"
    elif Path(column).is_file():
        other = "a file"
    if other is not None:
        raise UsageError(
            f"--groups {column}: this is a column of {table} and could also be {other}; rename one "
            "of them."
        )


def group_columns(
    columns: Sequence[str], features: Mapping[str, Sequence[str]]
) -> dict[str, list[str]] | None:
    """Columns grouped under a name, every other column by itself; None where none are grouped."""
    if not features:
        return None

    owner: dict[str, str] = {}
    for name, members in features.items():
        for column in members:
            if column not in columns:
                raise UsageError(
                    f"--groups: {name!r} has the column {column!r}; {suggest(column, columns)}"
                )
            if column in owner:
                raise UsageError(
                    f"--groups: the column {column!r} is in {owner[column]!r} and in {name!r}."
                )
            owner[column] = name

    grouped: dict[str, list[str]] = {}
    for column in columns:
        if column not in owner and column in features:
            raise UsageError(
                f"--groups: {column!r} is also a column that is not in the group; choose another "
                "name."
            )
        grouped.setdefault(owner.get(column, column), []).append(column)
    return grouped


def _looks_like_a_path(word: str) -> bool:
    """Whether a word can only be meant as a file."""
    return Path(word).suffix.lower() == ".json" or "/" in word or "\\" in word


def _read_file(path: Path) -> dict[str, list[str]]:
    """Features of several columns from a JSON file."""
    require_path(path, "--groups")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as failure:
        raise UsageError(f"--groups {path} is not JSON: {failure}.") from failure

    is_right = isinstance(content, dict) and all(
        isinstance(members, list) and members and all(isinstance(name, str) for name in members)
        for members in content.values()
    )
    if not is_right:
        raise UsageError(f"--groups {path}: {_FORMS}")
    return dict(content)
