"""The page of a network's parts: every number of the maps is in it, and nothing is loaded or run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import nobsp
from tests.parts.streams import Transformer, drawn, rows


def written(numbers: np.ndarray) -> list[str]:
    return [f"{number:.3g}".replace("-", "−") for number in numbers]


def test_the_page_of_an_ablation_has_both_maps_and_the_depths(tmp_path: Path) -> None:
    x = rows(12, 4, 3)
    ex = nobsp.explain_parts(drawn(Transformer(last_norm=True)), x, output_names=["<yes>", "no"])
    ablation = ex.ablation(x)

    page = nobsp.report(ablation, tmp_path / "parts.html", title="A & B").read_text(
        encoding="utf-8"
    )

    cells = re.findall(r'<td(?: class="dark")? style="[^"]*">([^<]*)</td>', page)
    direct = np.abs(ablation.direct).mean(0)
    lost = np.abs(ablation.effects).mean(0)
    expected = [*written(direct[:, 0]), *written(lost[:, 0]), *written(direct[:, 1])]
    assert cells[: len(expected)] == expected
    columns = re.findall(r'<th scope="col">([^<]*)</th>', page)
    assert columns[: columns.index("MLP") + 1] == ["whole", "head 0", "head 1", "MLP"]
    assert page.count("<polyline") == 2 * 12
    assert "&lt;yes&gt;" in page
    assert "A &amp; B" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_plain_networks_page_has_its_units(tmp_path: Path) -> None:
    model = drawn(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)))

    page = nobsp.report(nobsp.explain_parts(model, rows(20, 3)), tmp_path / "units.html").read_text(
        encoding="utf-8"
    )

    assert all(f'<th scope="row">unit {number}</th>' in page for number in range(5))
    assert "<polyline" not in page


def test_rounding_is_written_as_nothing(tmp_path: Path) -> None:
    model = drawn(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)))
    x = rows(20, 3)
    ablation = nobsp.explain_parts(model, x).ablation(x)  # nothing stands behind its units

    page = nobsp.report(ablation, tmp_path / "units.html").read_text(encoding="utf-8")

    table = re.search(r'<table class="list">(.*?)</table>', page, re.DOTALL)
    assert table is not None
    indirect = re.findall(r'<td class="number">([^<]*)</td>\s*</tr>', table[1])
    assert set(indirect) == {"0"}


COLOURS = """() => [getComputedStyle(document.body).backgroundColor,
  ...['.map td[style]:not(.dark)', '.map td.dark'].map(which => {
    const style = getComputedStyle(document.querySelector(which));
    return style.color;
  })]"""
# Cells of numbers whose text takes more than one line.
CUT = """() => [...document.querySelectorAll('.map td')]
  .filter(cell => cell.getBoundingClientRect().height > 40).length"""


def test_the_page_follows_the_readers_colours_and_fits_a_narrow_screen(
    tmp_path: Path, browser: Any
) -> None:
    x = rows(12, 4, 3)
    ablation = nobsp.explain_parts(drawn(Transformer(last_norm=True)), x).ablation(x)
    path = nobsp.report(ablation, tmp_path / "parts.html")

    seen = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme=scheme)
        page.goto(path.as_uri())
        seen[scheme] = page.evaluate(COLOURS)
        assert page.evaluate(CUT) == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.close()

    assert seen["light"][0] == "rgb(255, 255, 255)"
    assert seen["dark"][0] == "rgb(18, 22, 20)"
    for background, pale, strong in seen.values():
        assert strong == background, "letters on strong cells have the page's colour"
        assert pale != background
