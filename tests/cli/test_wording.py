"""Advice names options on the command line, and arguments in Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nobsp.cli.wording import in_options
from tests.cli.test_explain import Run

PRODUCTS = """
def products(rows):
    return rows[:, 0] * rows[:, 1] + rows[:, 2] * rows[:, 3]
"""


@pytest.mark.parametrize(
    ("said", "option"),
    [
        ("Name the clusters with fit(X, groups=...), for example", "--groups"),
        ("Fit it by name with interactions=[…] to see it.", "--interactions FIRST:SECOND"),
        ("as interactions=0 fits none", "--interactions 0"),
        ("max_forward_rows=2,000 is too few", "--max-forward-rows 2000"),
        ("use NObSP(batch_size=64)", "--batch-size 64"),
    ],
)
def test_arguments_become_options(said: str, option: str) -> None:
    assert option in in_options(said)
    assert "=" not in in_options(said)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_findings_name_options_and_groups_are_confirmed(
    nobsp: Run, tmp_path: Path, form: tuple[str, ...]
) -> None:
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 4)), columns=list("abcd"))
    table.assign(customer=np.arange(300) // 5).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "made.py").write_text(
        f"{PRODUCTS}\n\ndef factory():\n    return products\n", encoding="utf-8"
    )

    done = nobsp(
        "explain",
        *("--model", f"{tmp_path / 'made.py'}:factory"),
        *("--data", tmp_path / "rows.csv", "--groups", "customer", "--interactions", "1"),
        *("--out", tmp_path / "out", "--no-report", *form),
    )

    assert done.code == 0, done.err
    assert "interactions=" not in done.out
    assert "--interactions 1" in done.out
    assert "60 groups" in done.out
    if form:
        assert "groups" in {finding["code"] for finding in json.loads(done.out)["health"]}
