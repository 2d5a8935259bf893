"""Tables of a command: read from CSV, Parquet or Arrow files, and cut to the columns a model takes."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nobsp.cli.console import Misuse, close_to

_SEPARATORS = ",;\t|"
_PARQUET, _ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc")


def read_table(path: Path, *, option: str) -> Any:
    """A file as a pandas frame."""
    if not path.exists():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = close_to(path.name, beside) if beside else ""
        raise Misuse(f"{option} {path}: there is no such file{f'; {hint}' if 'did you' in hint else '.'}")
    if path.is_dir():
        raise Misuse(f"{option} {path} is a folder; name a CSV or Parquet file.")
    try:
        import pandas as pd
        import pyarrow as pa
    except ImportError as missing:
        raise ImportError("reading tables needs pandas and pyarrow: pip install 'nobsp[frames]'.") from missing
    try:
        table = _arrow_table(path)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeDecodeError, OSError) as failure:
        raise Misuse(f"{option} {path} cannot be read: {' '.join(str(failure).split())}") from failure
    names = [str(name) for name in table.column_names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Misuse(f"{option} {path} has two columns called {twice!r}; rename one.")
    if table.num_rows == 0:
        raise Misuse(f"{option} {path} has no rows.")
    frame = table.to_pandas()
    return frame if isinstance(frame.index, pd.RangeIndex) else frame.reset_index()


def _arrow_table(path: Path) -> Any:
    if path.suffix.lower() in _PARQUET:
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path)
    if path.suffix.lower() in _ARROW:
        import pyarrow.feather

        return pyarrow.feather.read_table(path)
    import pyarrow.csv

    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
    separator = max(_SEPARATORS, key=lambda one: first.count(one))
    return pyarrow.csv.read_csv(
        path,
        parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True),
    )


@dataclass(frozen=True, eq=False)
class Data:
    """A table split into what the model takes and what it is judged by.

    Attributes:
        rows: A frame of the model's columns, in their order.
        labels: The column of `--target`; None without it.
        target: Its name.
        left_out: Columns nobody uses.
        path: The file.
    """

    rows: Any
    labels: Any
    target: str | None
    left_out: tuple[str, ...]
    path: Path


def split(
    frame: Any,
    *,
    path: Path,
    target: str | None,
    features: Sequence[str] | None,
    known: Sequence[str] | None,
    need_target: bool = True,
) -> Data:
    """Cuts a table to columns."""
    there = [str(name) for name in frame.columns]
    frame = frame.set_axis(there, axis=1)
    has_target = target is not None and (need_target or target in there)
    if has_target:
        require_columns([str(target)], there, option="--target", path=path)
    chosen = [name for name in there if name != target] if features is None else list(features)
    if features is not None:
        require_columns(chosen, there, option="--features", path=path)
        if target in chosen:
            raise Misuse(f"--features has {target!r}, which is the --target.")
    elif known is not None:
        missing = [name for name in known if name not in there]
        if missing:
            hint = close_to(missing[0], there)
            raise Misuse(f"the model was fitted on a column {missing[0]!r}, which {path} does not have; {hint}")
        chosen = list(known)
    if not chosen:
        raise Misuse(f"{path} has no column left for the model to take.")
    left = tuple(name for name in there if name not in chosen and name != target)
    return Data(frame[chosen], frame[target] if has_target else None, target if has_target else None, left, path)


def require_columns(names: Sequence[str], there: Sequence[str], *, option: str, path: Path) -> None:
    """Complains about the first name that is no column, with those that are close."""
    for name in names:
        if name not in there:
            raise Misuse(f"{option}: {path} has no column {name!r}; {close_to(name, there)}")


def names_in(given: Sequence[str] | None, there: Sequence[str] | None = None) -> list[str] | None:
    """Names as they come from the command line: several words, or one with commas between.

    Example:
        >>> names_in(["age,income", "capital, gain"], there=["capital, gain"])
        ['age', 'income', 'capital, gain']
    """
    if given is None:
        return None
    found: list[str] = []
    for word in given:
        found += [word] if there is not None and word in there else [name for name in word.split(",") if name]
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise Misuse(f"{twice!r} is named twice.")
    return found


def grouped(columns: Sequence[str], given: Sequence[str] | None) -> dict[str, list[str]] | None:
    """The features of `--groups`: columns put together under a name, and every other column by itself.

    Example:
        >>> grouped(["age", "oslo", "rome"], ["city=oslo,rome"])
        {'age': ['age'], 'city': ['oslo', 'rome']}
    """
    if not given:
        return None
    groups = _groups_file(Path(given[0])) if len(given) == 1 and "=" not in given[0] else _groups_words(given)
    owner: dict[str, str] = {}
    for name, members in groups.items():
        for column in members:
            if column not in columns:
                raise Misuse(f"--groups: {name!r} has the column {column!r}; {close_to(column, columns)}")
            if column in owner:
                raise Misuse(f"--groups: the column {column!r} is in {owner[column]!r} and in {name!r}.")
            owner[column] = name
    found: dict[str, list[str]] = {}
    for column in columns:
        name = owner.get(column, column)
        if column not in owner and name in groups:
            raise Misuse(f"--groups: {name!r} is also a column that is not in the group; choose another name.")
        found.setdefault(name, []).append(column)
    return found


def _groups_file(path: Path) -> Mapping[str, Sequence[str]]:
    if not path.is_file():
        raise Misuse(f"--groups {path}: there is no such file; write name=column,column or name a JSON file.")
    try:
        groups = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as failure:
        raise Misuse(f"--groups {path} is no JSON: {failure}.") from failure
    fine = isinstance(groups, dict) and all(
        isinstance(members, list) and members and all(isinstance(one, str) for one in members)
        for members in groups.values()
    )
    if not fine:
        raise Misuse(f'--groups {path} must be like {{"city": ["oslo", "rome"]}}: names, each with a list of columns.')
    return dict(groups)


def _groups_words(given: Sequence[str]) -> Mapping[str, Sequence[str]]:
    groups = {}
    for word in given:
        name, equals, members = word.partition("=")
        columns = [column for column in members.split(",") if column]
        if not equals or not name or not columns:
            raise Misuse(f"--groups {word}: write name=column,column, or name one JSON file.")
        groups[name] = columns
    return groups


def write_csv(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """A table as CSV, numbers to full precision and missing ones empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow(["" if value != value else value for value in row])
