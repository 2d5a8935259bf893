"""Files bring back every number, are small, and hold no row unless asked to."""

from __future__ import annotations

import json
import re
import struct
import textwrap
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nobsp import Functions, NObSP, serialization
from nobsp.tabular import files
from nobsp.tabular.functions import KIND, VERSION
from nobsp.tabular.seen import Seen
from tests.changed_files import swapped_tensors, write_with
from tests.processes import run_python
from tests.tabular.nets import net, table
from tests.tabular.ranks import city_model, city_table
from tests.tabular.test_merge_and_stream import assert_same
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding


def bits(X: np.ndarray, dtype: type) -> list[bytes]:
    return [row.tobytes() for row in X.astype(dtype)]


CASES: dict[str, dict[str, Any]] = {
    "mains": {"interactions": 0},
    "pairs": {"interactions": 2},
    "triple": {"interactions": [("x0", "x2", "x3")]},
    "groups": {"features": {"a": [0, 1], "b": [2, 3], "c": 4}},
    "published": {"reference": "complement", "interactions": 1},
}


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_loaded_explainer_has_every_bit(case: str, rows: bool, tmp_path: Path) -> None:
    model, X = net("silu", outputs=2), table("silu", 300)
    explainer = NObSP(model, **CASES[case]).fit(X)
    explainer.save(tmp_path / "file", mergeable=rows)
    loaded = NObSP.load(tmp_path / "file", model)
    np.testing.assert_array_equal(loaded.functions_(X).values, explainer.functions_(X).values)
    # What has no table runs through the network again.
    assert_same_to_rounding(loaded(X).values, explainer(X).values, within=CONTRIBUTIONS)
    assert loaded.terms_ == explainer.terms_
    assert loaded.health() == explainer.health()
    for name in ("base_values_", "baseline_", "ridge_", "explained_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(explainer, name))
    pd.testing.assert_frame_equal(loaded.curves(9), explainer.curves(9))
    pd.testing.assert_frame_equal(loaded.importance(), explainer.importance())


def test_by_default_a_file_is_small_and_holds_no_row(tmp_path: Path) -> None:
    """Eight features and sixteen pairs: under 1 MB, and no calibration row in it, in either precision."""
    model, X = net("silu", columns=8, width=64), table("silu", 3000, columns=8)
    explainer = NObSP(model, interactions=16).fit(X)
    explainer.save(tmp_path / "small")
    explainer.save(tmp_path / "rows", mergeable=True)
    small, large = ((tmp_path / name).read_bytes() for name in ("small", "rows"))
    assert len(small) < 1_000_000
    assert not any(
        row in small for dtype in (np.float64, np.float32) for row in bits(X[:500], dtype)
    )
    background = explainer._fitted.estimate.background.numpy()
    assert not any(row in small for row in bits(background, np.float64))
    assert all(row in large for row in bits(X[:20], np.float64))


def test_with_its_rows_a_file_can_be_merged_and_without_not(tmp_path: Path) -> None:
    model, X = net("silu"), table("silu", 400)
    parts = [NObSP(model, interactions=0).fit(part) for part in (X[:250], X[250:])]
    for rows in (True, False):
        parts[0].save(tmp_path / f"{rows}", mergeable=rows)
    loaded = NObSP.load(tmp_path / "True", model).merge(parts[1])
    assert_same(loaded, NObSP(model, interactions=0).fit(X))
    with pytest.raises(ValueError, match="mergeable=True"):
        NObSP.load(tmp_path / "False", model).merge(parts[1])


@pytest.mark.parametrize("kind", [NObSP, Functions])
def test_a_file_of_an_earlier_version_is_a_clear_error(kind: Any, tmp_path: Path) -> None:
    model, path = net("relu"), tmp_path / "file"
    explainer = NObSP(model, interactions=0).fit(table("relu", 200))
    (explainer if kind is NObSP else explainer.compile()).save(path)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    text = json.dumps(header)
    older = re.sub(r'"version": "\d+"', '"version": "1"', text)
    assert older != text
    path.write_bytes(
        struct.pack("<Q", len(older.encode())) + older.encode() + content[8 + length :]
    )
    with pytest.raises(ValueError, match="version"):
        kind.load(path, *([model] if kind is NObSP else []))


def test_files_written_under_the_former_name_of_the_functions_load(tmp_path: Path) -> None:
    model = net("relu")
    X = table("relu", 200)
    explainer = NObSP(model, interactions=0).fit(X)

    Functions.__name__ = "CompiledExplainer"
    try:
        explainer.save(tmp_path / "explainer")
        explainer.compile().save(tmp_path / "functions")
    finally:
        Functions.__name__ = "Functions"

    assert b"CompiledExplainer" in (tmp_path / "functions").read_bytes()
    expected = explainer(X).values
    assert_same_to_rounding(
        Functions.load(tmp_path / "functions")(X).values, expected, within=CONTRIBUTIONS
    )
    assert_same_to_rounding(
        NObSP.load(tmp_path / "explainer", model)(X).values, expected, within=CONTRIBUTIONS
    )


def test_another_model_is_refused(tmp_path: Path) -> None:
    explainer = NObSP(net("relu"), interactions=0).fit(table("relu", 200))
    explainer.save(tmp_path / "file")
    for other in (net("relu", seed=1), net("relu", width=7), net("relu", columns=4)):
        with pytest.raises(ValueError, match="not the one this explainer was calibrated on"):
            NObSP.load(tmp_path / "file", other)


def test_pipelines_come_back_with_names_and_levels(tmp_path: Path) -> None:
    model, frame = city_model(), city_table()
    explainer = NObSP(model).fit(frame)
    explainer.save(tmp_path / "file")
    loaded = NObSP.load(tmp_path / "file", model)
    np.testing.assert_array_equal(loaded(frame).values, explainer(frame).values)
    assert loaded.functions_.features == explainer.functions_.features
    with pytest.raises(ValueError, match="preprocessing"):
        NObSP.load(tmp_path / "file", net("relu", columns=6, width=8))


def test_the_compiled_explainer_needs_no_torch_and_equals(tmp_path: Path) -> None:
    X = table("embedding", 300)
    explainer = NObSP(net("embedding", outputs=2), interactions=2).fit(X)
    explainer.compile().save(tmp_path / "functions")
    np.save(tmp_path / "X.npy", X)
    script = textwrap.dedent(
        """
        import sys
        import numpy as np
        sys.modules["torch"] = None
        from nobsp import Functions
        found = Functions.load(sys.argv[1] + "/functions")(np.load(sys.argv[1] + "/X.npy"), threads=1)
        np.save(sys.argv[1] + "/values.npy", found.values)
        """
    )
    run_python(script, tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "values.npy"), explainer(X).values)
    loaded = Functions.load(tmp_path / "functions")
    pd.testing.assert_frame_equal(loaded.curves(9), explainer.curves(9))
    assert loaded.health() == explainer.health()
    predictions = explainer(X).predictions
    ex = loaded(torch.tensor(X), predictions=predictions)
    np.testing.assert_array_equal(ex.predictions, predictions)
    assert np.isnan(loaded(X).residual).all()


def test_a_column_that_the_preprocessing_drops_is_in_files_too(tmp_path: Path) -> None:
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=["a", "b", "unused"])
    scaled = make_column_transformer((StandardScaler(), ["a", "b"]))
    model = make_pipeline(scaled, LinearRegression()).fit(X, X["a"] + 2 * X["b"])
    explainer = NObSP(model, interactions=0).fit(X)
    explainer.save(tmp_path / "explainer")
    explainer.compile().save(tmp_path / "functions")

    loaded = NObSP.load(tmp_path / "explainer", model)
    functions = Functions.load(tmp_path / "functions")

    expected = explainer(X).values
    assert_same_to_rounding(loaded(X).values, expected, within=CONTRIBUTIONS)
    assert_same_to_rounding(functions(X).values, expected, within=CONTRIBUTIONS)


def test_tensors_that_changed_places_are_refused_when_functions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "functions"
    X = table("embedding", 200)
    NObSP(net("embedding", outputs=2), interactions=1).fit(X).compile().save(path)

    swaps = 0
    for _ in swapped_tensors(path, kind=KIND, version=VERSION, every=7):
        with pytest.raises(ValueError, match="is damaged"):
            Functions.load(path)
        swaps += 1

    assert swaps > 10


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_when_functions_are_read(
    number: float, tmp_path: Path
) -> None:
    path = tmp_path / "functions"
    explainer = NObSP(net("silu"), interactions=0).fit(table("silu", 200))
    functions = explainer.compile()
    functions.save(path)
    tensors, _ = serialization.read(path, kind=KIND, version=VERSION)

    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        functions.save(path)
        changed = tensor.clone()
        changed.view(-1)[0] = number
        write_with(path, name, changed, kind=KIND, version=VERSION)
        with suppress(ValueError):
            loaded = Functions.load(path)
            assert np.isfinite(loaded(table("silu", 20)).values).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda stored: replace(stored, options={**stored.options, "device": 3.5}), "device"),
        (
            lambda stored: replace(stored, estimate=replace(stored.estimate, terms=((0,), (9,)))),
            r"the term \(9,\)",
        ),
        (
            lambda stored: replace(stored, estimate=replace(stored.estimate, terms=((0,), (-1,)))),
            r"the term \(-1,\)",
        ),
    ],
)
def test_devices_and_terms_that_cannot_be_are_refused_when_explainers_are_read(
    change: Any, said: str, tmp_path: Path
) -> None:
    model = net("silu")
    path = tmp_path / "explainer.nobsp"
    NObSP(model, interactions=0).fit(table("silu", 60)).save(path)
    # Written anew, with a checksum that fits.
    serialization.save(path, change(files.load(path)), kind=files.KIND, version=files.VERSION)
    with pytest.raises(ValueError, match=rf"explainer\.nobsp.*{said}"):
        NObSP.load(path, model)


def test_a_file_of_functions_says_what_reads_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    explainer = NObSP(model, interactions=0).fit(torch.randn(60, 2))
    explainer.save(tmp_path / "explainer.nobsp")
    explainer.compile().save(tmp_path / "functions.nobsp")
    with pytest.raises(ValueError, match=r"nobsp\.NObSP\.load"):
        Functions.load(tmp_path / "explainer.nobsp")
    with pytest.raises(ValueError, match=r"nobsp\.Functions\.load"):
        NObSP.load(tmp_path / "functions.nobsp", model)


def test_what_was_seen_of_columns_loads_from_files_without_later_fields() -> None:
    column = Seen(numeric=True, levels=None, typical=1.0, span=(0.0, 1.0), quantiles=np.zeros(2))
    tensors: dict[str, Any] = {}
    written = serialization.pack(column, tensors)
    earlier = json.loads(json.dumps(written).replace(', "has_missing": false', ""))
    assert earlier != written
    assert not serialization.unpack(earlier, tensors, [Seen]).has_missing
