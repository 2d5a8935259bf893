"""The page of a comparison has its numbers, loads nothing, and shows what there is of every kind."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import nobsp


def first(X):
    return np.sin(2 * X[:, 0]) + X[:, 1]


def second(X):
    return first(X) + 0.4 * X[:, 1] ** 2


def rows(seed, shift=0.0):
    return np.random.default_rng(seed).normal(size=(200, 2)) + shift


@pytest.mark.parametrize("kind", ["rows", "functions", "both"])
def test_a_page_has_the_numbers_of_the_comparison(kind, tmp_path):
    explainers = [
        nobsp.NObSP(f, features=["<age>", "size"], interactions=0).fit(rows(0))
        for f in (first, second)
    ]
    other = explainers[0] if kind == "rows" else explainers[1]
    others = rows(1) if kind == "functions" else rows(2, 0.5)
    comparison = nobsp.compare(
        explainers[0](rows(1)), other(others), names=("old", "new & <b>"), draws=100
    )
    path = nobsp.report(comparison, tmp_path / "page.html", about="Two of them.")
    html = path.read_text(encoding="utf-8")
    numbers = json.loads(re.search(r'id="numbers">(.*?)</script>', html, re.DOTALL).group(1))
    assert numbers["kind"] == kind
    np.testing.assert_allclose(numbers["gap"], comparison.gap.value)
    np.testing.assert_allclose(numbers["total"], comparison.total.value)
    assert "&lt;age&gt;" in html
    assert "<b>" not in html.replace("<b>Note", "").replace("<b>Warning", "").replace(
        "<b>Healthy", ""
    )
    assert "http" not in html.replace("http-equiv", "")
    for key in ("parts", "ranges", "functions", "method"):
        assert f'id="{key}"' in html
    same = nobsp.report(comparison, tmp_path / "again.html", about="Two of them.")
    assert same.read_bytes() == path.read_bytes()
