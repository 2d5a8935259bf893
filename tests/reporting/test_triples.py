"""A term of three features on the page: a surface with a slider through the third."""

import numpy as np
import pytest

from nobsp import NObSP
from nobsp.reporting import report


def product(X: np.ndarray) -> np.ndarray:
    return X[:, 0] * X[:, 1] * X[:, 2] + X[:, 3]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    X = np.random.default_rng(0).normal(size=(400, 4))
    explainer = NObSP(product, features=list("abcd"), interactions=[("a", "b", "c")]).fit(X)
    path = tmp_path_factory.mktemp("triple") / "page.html"
    report(explainer(X), path)
    return path, explainer


CELLS = 40  # of a side of numbers, as the page cuts it
POSITION = 8  # of the slider
HEAT = "e => { const {x, y, z} = e.querySelector('.chart').data[0]; return {x, y, z}; }"


def test_a_slice_has_the_values_that_python_reads(show, page) -> None:
    path, explainer = page
    opened = show(path, fresh=False)
    opened.page.locator("#interactions").scroll_into_view_if_needed()
    card = opened.page.locator("#surfaces article", has=opened.page.locator(".slice")).first
    card.locator(".js-plotly-plot").wait_for()
    before = card.evaluate(HEAT)

    card.locator("input[type=range]").evaluate(
        f"e => {{ e.value = {POSITION}; e.dispatchEvent(new Event('input')); }}"
    )
    after = card.evaluate(HEAT)

    low, high = explainer.functions_.features[2].ranges[0]
    third = low + (POSITION + 0.5) * (high - low) / CELLS
    heights = np.array(after["z"], dtype=np.float64)  # null becomes NaN
    up, across = np.nonzero(np.isfinite(heights))
    a = np.array(after["x"])[across]
    b = np.array(after["y"])[up]
    expected = explainer.function(("a", "b", "c"))(a, b, np.full(len(a), third))
    assert len(a) > 50
    np.testing.assert_allclose(heights[up, across], expected, rtol=1e-9, atol=1e-9)
    assert before["z"] != after["z"]
    assert opened.complaints == []
