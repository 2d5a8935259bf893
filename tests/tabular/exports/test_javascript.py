"""Functions as a JavaScript module: Node says what Python says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nobsp import Functions
from tests.processes import run_process
from tests.tabular.handmade import CITIES, handmade, rows_for

PROGRAM = """
import {readFileSync} from "node:fs";
const functions = await import(process.argv[2]);
const rows = JSON.parse(readFileSync(process.argv[3], "utf-8"));
const answers = rows.map((row) => ({
  prediction: functions.predict(row),
  probabilities: functions.probabilities(row),
  contributions: functions.contributions(row).map((part) => part.contributions),
}));
console.log(JSON.stringify(answers));
"""


def answers_of_node(functions: Functions, rows: pd.DataFrame, folder: Path) -> list[dict[str, Any]]:
    """What the module says about rows, missing and infinite numbers as null."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    (folder / "functions.mjs").write_text(functions.to_javascript(), encoding="utf-8")
    (folder / "program.mjs").write_text(PROGRAM, encoding="utf-8")
    records = [
        {
            name: None if isinstance(cell, float) and not np.isfinite(cell) else cell
            for name, cell in row.items()
        }
        for row in rows.to_dict("records")
    ]
    (folder / "rows.json").write_text(json.dumps(records), encoding="utf-8")
    finished = run_process(
        [node, folder / "program.mjs", folder / "functions.mjs", folder / "rows.json"]
    )
    answers: list[dict[str, Any]] = json.loads(finished.stdout)
    return answers


@pytest.mark.parametrize(
    "options",
    [
        {"link": "exp", "outputs": 2},
        {"link": "exp", "outputs": 2, "filled_in": 0},
        {"link": "sigmoid", "classes": ("no", "yes")},
        {"link": "softmax", "outputs": 3, "classes": (1, 2, 5)},
    ],
    ids=["means", "filled in", "two classes", "three classes"],
)
def test_node_says_what_python_says(options: dict[str, Any], tmp_path: Path) -> None:
    names = ("</script>", 'in"come', "__proto__", "code", "hot\n1", "hot 2", "unused")
    cities = (*CITIES, "nul\0inside", "\u2028")
    if "filled_in" not in options:
        cities = (*cities, None)
    functions = handmade(names=names, cities=cities, **options)
    rows = rows_for(functions)
    answers = answers_of_node(functions, rows, tmp_path)

    contributions = np.array([answer["contributions"] for answer in answers])
    np.testing.assert_allclose(contributions, functions(rows).values, rtol=1e-12, atol=1e-12)
    predictions = np.array([answer["prediction"] for answer in answers])
    if functions.classes:
        assert predictions.tolist() == functions.predict(rows).tolist()
        chances = np.array([answer["probabilities"] for answer in answers])
        np.testing.assert_allclose(chances, functions.predict_proba(rows), rtol=1e-11, atol=1e-12)
    else:
        np.testing.assert_allclose(predictions, functions.predict(rows), rtol=1e-11)


def test_a_module_can_stand_inside_a_page() -> None:
    functions = handmade(cities=("</script><script>alert(1)</script>", "<!--"))
    text = functions.to_javascript().partition("\n")[0]
    assert "<" not in text
    assert text.isascii()
