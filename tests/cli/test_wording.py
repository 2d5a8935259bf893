"""Advice names options on the command line, and arguments in Python."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nobsp.cli.wording import in_options
from nobsp.notebook import with_code
from tests.cli.test_explain import Run

PRODUCTS = """
def products(rows):
    return rows[:, 0] * rows[:, 1] + rows[:, 2] * rows[:, 3]
"""


@pytest.mark.parametrize(
    ("said", "option"),
    [
        ("Name the clusters with fit(X, groups=...), for example", "--groups"),
        ("Fit by name what you want to see, with interactions=[…].", "--interactions FIRST:SECOND"),
        ("as interactions=0 fits none", "--interactions 0"),
        ("groups ('shop') has one group only", "--groups shop has one group only"),
        ("max_forward_rows=2,000 is too few", "--max-forward-rows 2000"),
        ("use NObSP(batch_size=64)", "--batch-size 64"),
        ("fit with interactions=[..., ('a', 'b c')].", "--interactions 'a:b c'"),
        ("Fit all with the same interactions=[...] to", "the same --interactions to"),
        ("as one feature (NObSP.suggest_features), or", "--groups NAME"),
        ("choose another layer=.", "choose another --layer."),
        ("An earlier layer= gives better maps", "An earlier --layer gives"),
        ("Pass points=8 for numbers", "Pass --points 8"),
        ('more images, or coefficients="head".', "--coefficients head."),
        ("pass more rows, or a larger held_out.", "a larger --held-out."),
    ],
)
def test_arguments_become_options(said: str, option: str) -> None:
    assert option in in_options(said)
    assert "=" not in in_options(said).replace("NAME=COLUMN", "")


def test_a_name_that_looks_like_the_end_of_a_list_changes_nothing() -> None:
    assert "a)]" in in_options("fit with interactions=[..., ('a)]', 'b')].")


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
        *("--out", tmp_path / "out", *form),
    )

    assert done.code == 0, done.err
    assert "interactions=" not in done.out
    assert "--interactions 1" in done.out
    assert "60 groups" in done.out
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    told = " ".join(re.findall(r'class="finding .*?</p>', page, re.DOTALL))
    assert "interactions=" not in told
    assert "<code>--interactions</code> 1" in told
    if form:
        assert "groups" in {finding["code"] for finding in json.loads(done.out)["health"]}


def test_pages_of_the_library_keep_its_own_words(nobsp: Run, tmp_path: Path) -> None:
    nobsp("version")
    assert with_code("as interactions=1 fits no more") == "as interactions=1 fits no more"
