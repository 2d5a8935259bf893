"""`nobsp export` and `nobsp predict`: functions from a file, with no model needed.

They are written in another language, or evaluated on a table.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter

from nobsp.cli.inputs import read_frame, write_csv
from nobsp.cli.options import Console, Names, UsageError
from nobsp.drafts import check_path, replacing

if TYPE_CHECKING:
    from nobsp import Functions

_ENDINGS = {"onnx": ".onnx", "sql": ".sql", "javascript": ".mjs", "excel": ".xlsx"}


def export(
    *,
    functions: Path,
    to: Literal["onnx", "sql", "javascript", "excel"],
    out: Path | None = None,
    table: str | None = None,
    dialect: Literal["duckdb", "postgres", "sqlite"] = "duckdb",
    keep: Names = None,
    contributions: Annotated[bool, Parameter(negative="--no-contributions")] = True,
    console: Console = Console(),
) -> None:
    """Write functions in another language.

    Takes a file of functions, or the explainer.nobsp that `nobsp explain` writes, and writes
    predictions, probabilities and contributions as an ONNX model, one SQL statement, a JavaScript
    module or a workbook.

    Args:
        functions: File of functions, or of an explainer.
        to: What to write.
        out: The file; SQL and JavaScript go to stdout without.
        table: Name of the table that SQL reads.
        dialect: Which database the SQL is for.
        keep: Columns of the table that the SQL carries along, such as a key.
        contributions: Whether the SQL gives contributions.
        console: What is printed.
    """
    loaded = load_functions(functions)
    if to in ("onnx", "excel") and out is None:
        raise UsageError(f"--out is needed: the file to write, such as functions{_ENDINGS[to]}.")
    if to == "sql" and table is None:
        raise UsageError("--table is needed: the table that the statement reads.")

    if to == "onnx":
        assert out is not None
        loaded.to_onnx(out)
    elif to == "excel":
        assert out is not None
        loaded.to_excel(out)
    else:
        text = loaded.to_javascript()
        if to == "sql":
            assert table is not None
            text = loaded.to_sql(
                table, dialect=dialect, keep=keep or (), contributions=contributions
            )
        if out is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        with replacing(check_path(out)) as draft:
            Path(draft).write_text(text, encoding="utf-8")
    console.show({"functions": repr(loaded), "files": {to: str(out)}}, _describe)


def predict(*, functions: Path, data: Path, out: Path, console: Console = Console()) -> None:
    """Predict with functions alone.

    Args:
        functions: File of functions, or of an explainer.
        data: CSV or Parquet file with the columns that the functions read; others are left aside.
        out: CSV file of predictions.
        console: What is printed.
    """
    loaded = load_functions(functions)
    frame = _read_rows(loaded, data)
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    if loaded.column_names is not None:
        missing = [name for name in loaded.column_names if name not in frame.columns]
        if missing and not loaded.history:
            raise UsageError(f"--data {data} lacks the columns {', '.join(missing)}.")
        frame = frame[[name for name in loaded.column_names if name in frame.columns]]

    _warn_of_unseen(loaded, frame, console)
    columns = _columns_of(loaded, frame)
    with replacing(check_path(out)) as draft:
        write_csv(Path(draft), columns)
    console.show({"functions": repr(loaded), "files": {"predictions": str(out)}}, _describe)


def _read_rows(functions: Functions, data: Path) -> Any:
    """The rows of a file, with text where the functions know text."""
    levels = _text_levels(functions)
    names = functions.column_names
    if names is None:
        # Columns without names are told by where they stand.
        names = tuple(map(str, read_frame(data, option="--data").columns)) if levels else ()
    texts = {name: levels[column] for column, name in enumerate(names) if column in levels}
    return read_frame(data, option="--data", texts=texts)


def _text_levels(functions: Functions) -> dict[int, tuple[Any, ...]]:
    """Columns whose levels are texts, but for missing ones, with these levels."""
    from nobsp.frames import is_missing
    from nobsp.tabular.lookup import LevelAxis

    texts = {}
    for axis in (axis for table in functions.tables for axis in table.axes):
        if not isinstance(axis, LevelAxis) or not isinstance(axis.levels, tuple):
            continue
        if all(isinstance(level, str) or is_missing(level) for level in axis.levels):
            texts[axis.columns[0]] = axis.levels
    return texts


def _warn_of_unseen(functions: Functions, frame: Any, console: Console) -> None:
    """Warns of categorical features of which the table has not one known value.

    The column is then another one, or is written in another way.
    """
    from nobsp.tabular.lookup import LevelAxis, read_columns

    columns, _ = read_columns(functions, frame)
    for table in functions.tables:
        axis = table.axes[0] if len(table.axes) == 1 else None
        if not isinstance(axis, LevelAxis):
            continue
        places = axis.places([columns[column] for column in axis.columns])
        if (places == len(axis)).all():
            feature = functions.features[table.features[0]]
            example = f", such as {feature.labels[0]!r}" if feature.labels else ""
            console.warn(
                f"no value of {feature.name!r} in --data is a level that the functions "
                f"know{example}."
            )


def _columns_of(functions: Functions, frame: Any) -> dict[str, Any]:
    """Predictions, and probabilities where there are any."""
    predictions = functions.predict(frame)
    if predictions.ndim == 2:
        return {
            f"prediction of {name}": predictions[:, k].tolist()
            for k, name in enumerate(functions.output_names)
        }
    columns = {"prediction": predictions.tolist()}
    if hasattr(functions, "predict_proba"):
        chances = np.asarray(functions.predict_proba(frame))
        for k, level in enumerate(functions.classes_):
            columns[f"probability of {level}"] = chances[:, k].tolist()
    return columns


def load_functions(path: Path) -> Functions:
    """Functions from a file of their own, or from one of an explainer."""
    from nobsp import Functions
    from nobsp.tabular import files

    if not path.is_file():
        raise UsageError(f"--functions {path}: there is no such file.")
    try:
        return Functions.load(path)
    except ValueError as failure:
        if "tabular explainer" not in str(failure):
            raise
    return files.load(path).estimate.functions


def _describe(summary: Mapping[str, Any]) -> list[str]:
    return [str(summary["functions"])]
