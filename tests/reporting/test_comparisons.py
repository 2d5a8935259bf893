"""The page of a comparison has its numbers, loads nothing, and shows what there is of every kind."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import nobsp
from nobsp.reporting.comparisons import _function
from nobsp.reporting.sheets import number_text


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


@pytest.mark.parametrize(
    ("number", "size", "expected"),
    [
        (0.3953, 0.3953, "+0.3953"),
        (-0.00089944, 0.3953, "−0.00090"),
        (-3.6e-7, 0.3953, "≈ 0"),
        (4.9e-18, 0.3953, "0"),
        (-3.6e-7, 0.0, "−3.6e−07"),
        (0.5, 1234.5, "+0.5"),
        (0.123456, 1234.5, "+0.1"),
        (1_227_000.0, 2e6, "+1,227,000"),
        (2e-7, 8e-7, "+2e−07"),
    ],
)
def test_small_numbers_are_written_as_they_stand_beside_large_ones(number, size, expected):
    assert number_text(number, signed=True, size=size) == expected


GRID = """() => [...document.querySelectorAll('table.bars')].map(table => [...table.rows].map(row => {
  const track = row.querySelector('svg').getBoundingClientRect();
  return [Math.round(track.left), Math.round(track.width)];
}))"""
CUT = """() => [...document.querySelectorAll('.told td:not(:first-child)')]
  .filter(cell => cell.getBoundingClientRect().height > 2 * parseFloat(getComputedStyle(cell).lineHeight))
  .length"""


def test_bars_stay_on_one_scale_and_numbers_whole_on_a_narrow_screen(browser, tmp_path):
    explainers = [
        nobsp.NObSP(f, features=["age", "size"], interactions=0).fit(rows(0))
        for f in (first, second)
    ]
    X = rows(1)
    weights = np.linspace(1, 2, len(X))
    comparison = nobsp.compare(
        explainers[0](X),
        explainers[1](X),
        sample_weight=(weights, None),
        groups=(np.arange(len(X)) // 4, None),
        draws=100,
    )
    path = nobsp.report(comparison, tmp_path / "page.html")
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(path.as_uri())
    all_tracks = page.evaluate(GRID)
    n_cut = page.evaluate(CUT)
    width = page.evaluate("document.documentElement.scrollWidth")
    facts = page.inner_text(".facts")
    page.close()
    for tracks in all_tracks:
        assert len({tuple(track) for track in tracks}) == 1, "one zero, one width for all bars"
    assert n_cut == 0
    assert width <= 400
    assert "200 rows in 50 groups, weighted" in facts


def test_functions_of_codes_and_names_are_bars_at_their_levels(tmp_path):
    frames = pytest.importorskip("pandas")
    generator = np.random.default_rng(0)
    table = frames.DataFrame(
        {
            "size": generator.normal(size=400),
            "sector": generator.integers(1, 8, size=400),
            "city": generator.choice(list("abc"), size=400),
        }
    )
    table["city"] = table["city"].astype(object)
    table.loc[[3, 250], "city"] = frames.NA

    def model(rows):
        return (
            rows["size"].to_numpy()
            + (rows["sector"].to_numpy() == 3)
            + 2.0 * np.array([city == "b" for city in rows["city"].fillna("")])
        )

    explainer = nobsp.NObSP(model, features=["size", "sector", "city"], interactions=0).fit(table)
    comparison = nobsp.compare(explainer(table[:200]), explainer(table[200:]), draws=100)

    sector = _function(comparison, "sector", 0)
    city = _function(comparison, "city", 0)

    assert [bar.name for bar in sector.bars] == [str(code) for code in range(1, 8)]
    values = {bar.name: bar.value for bar in sector.bars}
    assert values["3"] - values["4"] == pytest.approx(1.0, abs=0.05)
    values = {bar.name: bar.value for bar in city.bars}
    assert values["b"] - values["a"] == pytest.approx(2.0, abs=0.05)
    assert _function(comparison, "size", 0).kind == "curve"


def test_a_gap_of_log_odds_says_so():
    model = LogisticRegression().fit(rows(0), rows(0)[:, 0] > 0)
    explainer = nobsp.NObSP(model).fit(rows(1))

    comparison = nobsp.compare(explainer(rows(2)), explainer(rows(3, 0.5)), draws=100)

    assert "log-odds" in comparison.headline
