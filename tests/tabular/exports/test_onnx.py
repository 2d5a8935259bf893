"""Functions as an ONNX model: ONNX Runtime says what Python says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest

from nobsp import Functions
from tests.tabular.handmade import CITIES, handmade, rows_for

KINDS: dict[str, dict[str, Any]] = {
    "numbers": {},
    "means": {"link": "exp", "outputs": 2},
    "filled in": {"cities": CITIES, "filled_in": 1},
    "two classes": {"link": "sigmoid", "classes": ("no", "yes")},
    "three classes": {"link": "softmax", "outputs": 3, "classes": (1, 2, 5)},
    "softplus": {"link": "softplus"},
}


def run(
    functions: Functions, rows: pd.DataFrame, path: Path, **options: Any
) -> dict[str, np.ndarray]:
    functions.to_onnx(path, **options)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, functions.onnx_inputs(rows, **options)), strict=True))


def in_single_precision(rows: pd.DataFrame) -> pd.DataFrame:
    numbers = rows.select_dtypes("float64").columns
    return rows.astype(dict.fromkeys(numbers, np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runtime_says_what_python_says(kind: str, tmp_path: Path) -> None:
    functions = handmade(**KINDS[kind])
    rows = in_single_precision(rows_for(functions))
    result = run(functions, rows, tmp_path / "functions.onnx")

    explanation = functions(rows)
    np.testing.assert_allclose(result["contributions"], explanation.values, rtol=1e-6, atol=1e-12)
    if functions.classes:
        assert result["prediction"].tolist() == functions.predict(rows).tolist()
        np.testing.assert_allclose(
            result["probabilities"], functions.predict_proba(rows), rtol=1e-6, atol=1e-12
        )
    else:
        expected = functions.predict(rows).reshape(len(rows), -1)
        np.testing.assert_allclose(result["prediction"], expected, rtol=1e-6, atol=1e-12)


def test_inputs_have_the_types_of_a_table(tmp_path: Path) -> None:
    functions = handmade(cities=CITIES)
    rows = rows_for(functions)
    result = run(functions, rows, tmp_path / "functions.onnx", like=rows)
    np.testing.assert_allclose(
        result["contributions"], functions(rows).values, rtol=1e-12, atol=1e-12
    )
    session = onnxruntime.InferenceSession(str(tmp_path / "functions.onnx"))
    types = {inputs.name: inputs.type for inputs in session.get_inputs()}
    assert types == {
        "age": "tensor(double)",
        "income": "tensor(double)",
        "city": "tensor(string)",
        "code": "tensor(double)",
        "hot 1": "tensor(bool)",
        "hot 2": "tensor(bool)",
    }


def test_only_standard_operators_are_used_and_terms_are_named(tmp_path: Path) -> None:
    functions = handmade()
    functions.to_onnx(tmp_path / "functions.onnx")
    model = onnx.load(tmp_path / "functions.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx.ml"}
    about = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert about["nobsp.terms"][6] == "age × income"
    assert about["nobsp.missing"] == {"city": "<missing>"}


def test_names_and_levels_may_hold_anything(tmp_path: Path) -> None:
    names = ("prediction", "sum", "a\nb", 'co"de', "é ' ;", "hot 2", "unused")
    functions = handmade(names=names, cities=("nul\0inside", "", "<missing>", "ü"))
    rows = in_single_precision(rows_for(functions))
    result = run(functions, rows, tmp_path / "functions.onnx")
    np.testing.assert_allclose(
        result["contributions"], functions(rows).values, rtol=1e-6, atol=1e-12
    )


def test_probabilities_of_forests_are_held_between_zero_and_one(tmp_path: Path) -> None:
    functions = replace(
        handmade(outputs=3, classes=("a", "b", "c")), link="identity", are_probabilities=True
    )
    rows = in_single_precision(rows_for(functions))
    result = run(functions, rows, tmp_path / "functions.onnx")
    np.testing.assert_allclose(result["probabilities"], functions.predict_proba(rows), rtol=1e-6)
    assert result["prediction"].tolist() == functions.predict(rows).tolist()
