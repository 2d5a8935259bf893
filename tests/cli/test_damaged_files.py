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

from nobsp.cli import inputs
from nobsp.cli.inputs import find_pictures, read_frame
from nobsp.cli.options import ImageOptions, UsageError
from nobsp.vision.pictures import picture_files, read_pictures

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
    "names of a gigabyte each": json.dumps(
        {
            "index_columns": [],
            "columns": [],
            "column_indexes": [
                {
                    "name": None,
                    "field_name": None,
                    "pandas_type": "unicode",
                    "numpy_type": "<U500000000",
                }
            ],
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


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_remarks_that_pandas_writes_are_read(ending: str, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, None], dtype="Int64"),
            "truth": pd.array([True, None], dtype="boolean"),
            "level": pd.Categorical(["a", "b"]),
            "day": pd.to_datetime(["2020-01-01", "2020-01-02"]).tz_localize("UTC"),
            "month": pd.period_range("2020-01", periods=2, freq="M"),
            "number": pd.array([1.0, 2.0], dtype="float64[pyarrow]"),
            "word": pd.array(["a", "b"], dtype="string"),
        }
    )
    path = tmp_path / f"rows{ending}"
    if ending == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_feather(path)
    pd.testing.assert_frame_equal(read_frame(path, option="--data"), frame)


def test_a_table_that_is_larger_than_the_machine_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.table({"a": np.zeros(100_000)}), path)
    assert path.stat().st_size < 10_000
    assert len(read_frame(path, option="--data")) == 100_000
    monkeypatch.setattr(inputs, "memory_of_machine", lambda: 100_000)
    with pytest.raises(UsageError, match=r"rows\.parquet cannot be read: its 100,000 rows"):
        read_frame(path, option="--data")


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


def test_archives_that_become_gigabytes_are_not_unpacked(
    nobsp: Run, home: Path, tmp_path: Path
) -> None:
    pytest.importorskip("skops.io", reason="skops is not installed")
    path = tmp_path / "net.skops"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", b" " * (inputs._MOST_UNPACKED * 2))
    result = nobsp(
        *("explain", "--model", path, "--data", "houses.csv", "--target", "price"),
        *("--out", tmp_path / "new"),
    )
    assert result.code == 1
    assert f"--model {path} cannot be read" in result.err
    assert f"would become {inputs._MOST_UNPACKED * 2:,}" in result.err


@pytest.mark.parametrize("option", ["--weights", "--model"])
def test_weights_that_are_packed_are_not_unpacked_without_the_user_s_word(
    nobsp: Run, home: Path, tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(nn.Linear(1, 1).state_dict(), tmp_path / "whole.pt")
    path = tmp_path / "net.pt"
    with (
        zipfile.ZipFile(tmp_path / "whole.pt") as whole,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in whole.namelist():
            archive.writestr(name, whole.read(name))

    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("torch unpacked it")

    monkeypatch.setattr(torch, "load", read)
    model = ["--model", "shop:house", "--weights"] if option == "--weights" else ["--model"]
    result = nobsp(
        *("explain", *model, path, "--data", "houses.csv", "--target", "price"),
        *("--out", tmp_path / "new"),
    )
    assert result.code == 2
    assert f"{option} {path} is a pickle" in result.err


# ---------------------------------------------------------------------- images


def test_postscript_that_is_called_an_image_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import EpsImagePlugin

    marker = tmp_path / "trap"
    interpreter = tmp_path / "bin" / "gs"
    interpreter.parent.mkdir()
    interpreter.write_text(f"#!/bin/sh\ntouch '{marker}'\n", encoding="utf-8")
    interpreter.chmod(0o755)
    monkeypatch.setenv("PATH", f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    path = tmp_path / "images" / "x.png"
    path.parent.mkdir()
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")

    options = ImageOptions(images=path.parent, size=(8, 8))
    pictures = find_pictures(path.parent, options, option="--images", batch_size=1)
    with pytest.raises(ValueError, match=r"x\.png cannot be read as an image"):
        pictures.batch([0])
    with pytest.raises(ValueError, match=r"x\.png' cannot be read as a picture"):
        read_pictures([path], "images", channels=3)
    assert not marker.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders here")
def test_pipes_and_devices_that_are_called_images_are_left_out(tmp_path: Path) -> None:
    from PIL import Image

    # Opening a pipe that nobody writes to waits for ever; a device has no end.
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to(os.devnull)
    (tmp_path / "circle.png").symlink_to("circle.png")
    Image.new("L", (4, 4)).save(tmp_path / "whole.png")
    options = ImageOptions(images=tmp_path)
    pictures = find_pictures(tmp_path, options, option="--images", batch_size=1)
    assert pictures.paths == (tmp_path / "whole.png",)
    assert picture_files(tmp_path, "images") == [tmp_path / "whole.png"]
