"""Tables and models in files that are damaged or hostile: one line that names the file, and nothing runs or crashes."""

from __future__ import annotations

import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from torch import nn

from nobsp.cli.inputs import read_frame
from nobsp.cli.options import UsageError

Run = Callable[..., Any]

# ---------------------------------------------------------------------- tables

# What pandas reads of a file beside its columns.
REMARKS = {
    "no JSON": b"{",
    "a list": b"[]",
    "no columns": b"{}",
    "an index that is not there": json.dumps(
        {"index_columns": ["absent"], "columns": [], "column_indexes": []}
    ).encode(),
    "a type that is none": json.dumps(
        {
            "index_columns": [],
            "columns": [
                {"name": "a", "field_name": "a", "pandas_type": "x", "numpy_type": "os.system"}
            ],
            "column_indexes": [],
        }
    ).encode(),
}


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
@pytest.mark.parametrize("remark", REMARKS)
def test_remarks_that_pandas_cannot_read_are_one_line(
    remark: str, ending: str, tmp_path: Path
) -> None:
    table = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    table = table.replace_schema_metadata({b"pandas": REMARKS[remark]})
    path = tmp_path / f"rows{ending}"
    if ending == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, path)
    with pytest.raises(UsageError, match=r"--data .*rows\..* cannot be read: \S"):
        read_frame(path, option="--data")


def test_offsets_that_lead_out_of_a_file_do_not_end_the_process(tmp_path: Path) -> None:
    words = [f"word {number}" for number in range(50)]
    table = pa.table({"a": np.arange(50.0), "word": words})
    path = tmp_path / "rows.feather"
    pyarrow.feather.write_feather(table, path, compression="uncompressed")
    content = path.read_bytes()
    offsets = np.cumsum([0, *map(len, words)]).astype(np.int32).tobytes()
    position = content.index(offsets)
    wrong = (2**31 - 1).to_bytes(4, "little")
    path.write_bytes(content[: position + 40] + wrong + content[position + 44 :])
    with pytest.raises(UsageError, match=r"rows\.feather cannot be read"):
        read_frame(path, option="--data")


def test_files_of_arrow_with_changed_bytes_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.feather"
    words = [f"word {number}" for number in range(30)]
    pyarrow.feather.write_feather(
        pa.table({"a": np.arange(30.0), "word": words}), path, compression="uncompressed"
    )
    whole = path.read_bytes()
    chosen = random.Random(0)
    n_refused = 0
    for _ in range(60):
        content = bytearray(whole)
        for _ in range(3):
            content[chosen.randrange(8, len(content))] = chosen.randrange(256)
        path.write_bytes(content)
        try:
            assert str(read_frame(path, option="--data").to_numpy().tolist())
        except UsageError:
            n_refused += 1
    assert 0 < n_refused < 60


def test_decimals_of_databases_are_numbers(tmp_path: Path) -> None:
    prices = [Decimal("1.25"), None, Decimal("-3.50")]
    table = pa.table({"price": pa.array(prices, pa.decimal128(10, 2)), "name": ["a", "b", "c"]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    frame = read_frame(tmp_path / "rows.parquet", option="--data")
    assert list(frame.columns) == ["price", "name"]
    pd.testing.assert_series_equal(frame["price"], pd.Series([1.25, np.nan, -3.5], name="price"))


# ---------------------------------------------------------------------- weights and models


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


# Pickles that torch's own reader of tensors fails at in ways of its own.
BROKEN_PICKLES = {
    "ends": b"\x80\x02",
    "memory that is not there": b"\x80\x02h\x05.",
    "a tuple of nothing": b"\x80\x02t.",
    "an object of nothing": b"\x80\x02]\x81.",
    "a storage that is a number": b"\x80\x02K\x01Q.",
    "two petabytes": b"\x80\x04\x8e" + (2**51).to_bytes(8, "little"),
}


@pytest.mark.parametrize("option", ["--weights", "--model"])
@pytest.mark.parametrize("broken", BROKEN_PICKLES)
def test_broken_pickles_are_refused_like_others(
    nobsp: Run, home: Path, tmp_path: Path, broken: str, option: str
) -> None:
    path = tmp_path / "net.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data.pkl", BROKEN_PICKLES[broken])
        archive.writestr("net/version", "3")
    chosen = [option, path] if option == "--model" else ["--model", "shop:house", option, path]
    rest = ["--data", "houses.csv", "--target", "price", "--out", tmp_path / "new"]
    refused = nobsp("explain", *chosen, *rest)
    assert refused.code == 2
    assert f"{option} {path} is a pickle" in refused.err
    trusted = nobsp("explain", *chosen, "--trust-pickle", *rest)
    assert trusted.code == 1
    assert f"{option} {path} cannot be read" in trusted.err


@pytest.mark.parametrize("content", [b"", b"hello world", b"PK\x03\x04 and no more"])
def test_files_that_are_no_weights_are_called_so(
    nobsp: Run, home: Path, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "net.pt"
    path.write_bytes(content)
    result = nobsp(
        "explain",
        *("--model", "shop:house", "--weights", path),
        *("--data", "houses.csv", "--target", "price", "--out", tmp_path / "new"),
    )
    assert result.code == 1
    assert f"--weights {path} is damaged, or no file of weights" in result.err


def commands_that_load(path: Path, out: Path) -> dict[str, list[object]]:
    """Every command that takes a model, weights or functions, with a file in that place."""
    rows = ["--data", "houses.csv", "--target", "price"]
    new = ["--out", out]
    factory = ["--model", "shop:house"]
    return {
        "explain": ["explain", "--model", path, *rows, *new],
        "explain weights": ["explain", *factory, "--weights", path, *rows, *new],
        "compare": ["compare", "--model", path, *rows, "--against", "fresh.csv", *new],
        "compare against": ["compare", *factory, "--against-model", path, *rows, *new],
        "check": [
            *("check", "--model", path, *rows),
            *("--feature", "age", "--shape", "increasing", *new),
        ],
        "prune": ["prune", "--model", path, *rows, "--out", f"{out}.pt2"],
        "prune weights": ["prune", *factory, "--weights", path, *rows, "--out", f"{out}.pt2"],
        "export": ["export", "--functions", path, "--to", "sql", "--table", "t"],
        "predict": ["predict", "--functions", path, "--data", "houses.csv", "--out", f"{out}.csv"],
        "cam": ["cam", "--model", path, "--images", ".", *new],
        "audit": ["audit", "--model", path, "--images", ".", *new],
    }


@pytest.mark.parametrize("command", sorted(commands_that_load(Path("x"), Path("y"))))
@pytest.mark.parametrize("form", ["torch", "old torch", "pickle", "inside weights"])
def test_no_command_unpickles_without_the_user_s_word(
    nobsp: Run, home: Path, tmp_path: Path, command: str, form: str
) -> None:
    marker = tmp_path / "trap"
    path = tmp_path / "net.pt"
    trap = Trap(marker)
    if form == "pickle":
        path.write_bytes(pickle.dumps(trap))
    elif form == "inside weights":
        torch.save({"state_dict": nn.Linear(1, 1).state_dict(), "epoch": trap}, path)
    else:
        torch.save(trap, path, _use_new_zipfile_serialization=form == "torch")
    result = nobsp(*commands_that_load(path, tmp_path / "new")[command])
    assert result.code in (1, 2)
    assert "unexpected" not in result.err
    assert not marker.exists()


@pytest.mark.parametrize("change", ["no kind", "another reader", "a number"])
def test_damaged_files_of_skops_are_one_line(
    nobsp: Run, home: Path, tmp_path: Path, change: str
) -> None:
    skops_io = pytest.importorskip("skops.io", reason="skops is not installed")
    from sklearn.linear_model import LinearRegression

    rows = pd.read_csv(home / "houses.csv")
    fitted = LinearRegression().fit(rows[["age", "income"]], rows["price"])
    skops_io.dump(fitted, tmp_path / "whole.skops")
    with zipfile.ZipFile(tmp_path / "whole.skops") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(members["schema.json"])
    if change == "no kind":
        del schema["__class__"]
    elif change == "another reader":
        schema["__loader__"] = "NoSuchNode"
    else:
        schema["content"] = 3
    path = tmp_path / "net.skops"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"schema.json": json.dumps(schema).encode()}).items():
            archive.writestr(name, content)
    result = nobsp(
        *("explain", "--model", path, "--data", "houses.csv", "--target", "price"),
        *("--features", "age", "income", "--out", tmp_path / "new"),
    )
    assert result.code == 1
    assert f"--model {path} cannot be read" in result.err
