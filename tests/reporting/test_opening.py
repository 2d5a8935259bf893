"""Opening a page: nothing is asked for, nothing complains, and everyone can read it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from nobsp import NObSP
from nobsp.reporting import report
from tests.reporting.names import NASTY, QUOTED, RTL

# Colours behind and of every piece of text that can be seen, charts included, with its size.
TEXTS = """() => {
  const solid = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (c && !c.endsWith(', 0)') && c !== 'transparent') return c;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.data.trim(), e = walk.currentNode.parentElement;
    if (!text || e.closest('script, style, noscript, title, .skip, option, :disabled')) continue;
    if (!e.checkVisibility()) continue;
    const style = getComputedStyle(e), drawn = e instanceof SVGElement;
    const box = e.getBoundingClientRect();
    // Charts out of view are drawn anew, in the colours of the day, when they come into view.
    if (drawn && (e.closest('.hoverlayer') || box.bottom < 0 || box.top > innerHeight)) continue;
    const paper = solid(e.closest('svg')?.parentElement || e), bold = parseInt(style.fontWeight) >= 700;
    const ink = drawn ? style.fill : style.color;
    found.push({text: text.slice(0, 40), ink, paper, size: parseFloat(style.fontSize), bold});
  }
  return found;
}"""


# Whether the charts in view have taken the colours that the rest of the page has.
COLOURED = """() => [...document.querySelectorAll('.chart .xtick text')]
  .filter(e => e.getBoundingClientRect().bottom > 0 && e.getBoundingClientRect().top < innerHeight)
  .every(e => getComputedStyle(e).fill === getComputedStyle(document.querySelector('.quiet')).color)"""


@pytest.fixture(params=["mixed_page", "classes_page", "pictures_page"])
def any_page(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def drawn(page: Any) -> None:
    """Waits until the charts in view are there."""
    page.evaluate("document.getElementById('functions')?.scrollIntoView({behavior: 'instant'})")
    if page.locator("#functions").count():
        page.wait_for_selector("#curves .card:not([hidden]) .main-svg")


def test_a_page_opens_without_complaint_and_asks_for_nothing(show, any_page):
    opened = show(any_page)
    drawn(opened.page)
    assert opened.complaints == []
    asked = [url for url in opened.requests if not url.startswith(("data:", "blob:"))]
    assert asked == [any_page.as_uri()]


def test_the_page_forbids_requests_even_to_a_script_that_tries(show, classes_page):
    page = show(classes_page).page
    failed = page.evaluate("fetch('https://example.com').then(() => 'went out', () => 'stopped')")
    image = page.evaluate(
        "new Promise(done => { const i = new Image(); i.onload = () => done('went out');"
        " i.onerror = () => done('stopped'); i.src = 'https://example.com/a.png'; })"
    )
    script = page.evaluate(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        " document.body.append(s); return window.ran || 'stopped'; })()"
    )
    assert (failed, image, script) == ("stopped", "stopped", "stopped")


def test_names_are_shown_as_text(show, mixed_page):
    opened = show(mixed_page, fresh=False)
    page = opened.page
    drawn(page)
    assert opened.complaints == []  # an alert would be one
    assert page.title() == NASTY
    assert page.inner_text("h1") == NASTY
    assert page.inner_text(".about") == QUOTED
    for name in (NASTY, QUOTED, RTL):
        assert page.locator("#curves h3 .name", has_text=name).count() == 1
        assert page.get_by_label(name, exact=True).count() >= 1
    assert page.locator("#strongest script, #curves script, b:text-is('spend')").count() == 0


def test_levels_with_tags_are_text_in_charts_too(show, tmp_path):
    import numpy as np
    import pandas as pd
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    from nobsp import NObSP
    from nobsp.reporting import report

    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "tag": rng.choice(["<b>bold</b>", "&lt;i&gt;", "plain"], 120),
            "other": rng.choice(["u", "v"], 120),
        }
    )
    y = (X.tag == "plain") + 0.5 * (X.other == "u")
    model = make_pipeline(
        OneHotEncoder(),
        MLPRegressor(hidden_layer_sizes=(8,), max_iter=3000, tol=0.01, random_state=0),
    )
    explainer = NObSP(model.fit(X, y)).fit(X)
    opened = show(report(explainer(X), tmp_path / "tags.html"))
    drawn(opened.page)
    ticks = opened.page.locator("#curves .xtick text").all_text_contents()
    assert {"<b>bold</b>", "&lt;i&gt;", "plain", "u", "v"} <= set(ticks)
    assert opened.complaints == []


def test_every_text_has_the_contrast_of_wcag_aa(show, any_page):
    page = show(any_page, fresh=False).page
    drawn(page)
    weak = []
    for _ in ("light", "dark"):
        for text in page.evaluate(TEXTS):
            ratio = contrast(text["ink"], text["paper"])
            large = text["size"] >= 24 or (text["bold"] and text["size"] >= 18.66)
            if ratio < (3.0 if large else 4.5):
                weak.append((text["text"], text["ink"], text["paper"], round(ratio, 2)))
        page.click("#theme")
        page.wait_for_function(COLOURED)
    assert weak == []


def contrast(ink: str, paper: str) -> float:
    """The ratio of WCAG 2, from 1 to 21."""

    def luminance(colour: str) -> float:
        channels = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_ratio_is_that_of_the_standard():
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(118, 118, 118)", "rgb(255, 255, 255)") == pytest.approx(4.54, abs=0.01)


def test_the_page_fits_a_telephone(show, any_page):
    page = show(any_page, fresh=False).page
    page.set_viewport_size({"width": 400, "height": 800})
    try:
        drawn(page)
        page.wait_for_timeout(300)  # charts follow
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        outside = page.evaluate(
            "[...document.querySelectorAll('main *')].filter(e => e.checkVisibility())"
            ".filter(e => !e.closest('.scroll, .chart, svg') && e.getBoundingClientRect().right > 401)"
            ".map(e => e.outerHTML.slice(0, 80))"
        )
        assert outside == []
        bar = page.evaluate(
            "[...document.querySelectorAll('.bar a, .bar button')].map(e => e.getBoundingClientRect())"
            ".map(b => [b.left, b.right, b.height])"
        )
        assert all(
            left >= 0 and right <= 400 and height < 45 for left, right, height in bar
        )  # whole, and on one line
        broken = page.evaluate(
            "[...document.querySelectorAll("
            "'.found figcaption > *, .values td, .values th, #row-table th:not(:first-child) button')].filter(e =>"
            " e.checkVisibility() && /^[\\w.,]+$/.test(e.innerText) && e.getClientRects().length === 1 &&"
            " (() => { const r = document.createRange(); r.selectNodeContents(e);"
            " return new Set([...r.getClientRects()].map(b => Math.round(b.top))).size > 1; })()).map(e => e.innerText)"
        )
        assert broken == []
    finally:
        page.set_viewport_size({"width": 1280, "height": 800})


def test_everything_that_can_be_used_has_a_name(show, any_page):
    page = show(any_page, fresh=False).page
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, input, select, a[href], canvas, [role=img], summary')]
        .filter(e => e.checkVisibility() && !e.closest('[aria-hidden=true]'))
        .filter(e => !e.ariaLabel && !e.innerText?.trim() && !e.labels?.length && !e.querySelector('title'))
        .map(e => e.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    assert page.locator("img:not([alt])").count() == 0
    assert page.get_attribute("html", "lang") == "en"


def test_the_keyboard_reaches_everything_and_focus_is_seen(show, classes_page):
    page = show(classes_page).page
    page.keyboard.press("Tab")
    assert (
        page.evaluate("document.activeElement.className") == "skip"
    )  # a way past the navigation comes first
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#overview"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    reached = set()
    for _ in range(100):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.id || document.activeElement.ariaLabel || ''")
        )
    assert {
        "output",
        "theme",
        "order",
        "same-scale",
        "typical",
        "from-row",
        "load-row",
        "filter-by",
    } <= reached
    assert {"a", "b", "c", "d", "a, exact value", "after"} <= reached


def test_dark_follows_the_reader_and_the_button(show, classes_page):
    page = show(classes_page, color_scheme="dark").page
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(18, 22, 20)"
    page.click("#theme")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.keyboard.press("Enter")
    assert page.evaluate(paper) == "rgb(18, 22, 20)"


def test_curves_are_drawn_when_they_come_into_view(show, mixed_page):
    page = show(mixed_page, viewport={"width": 400, "height": 500}).page
    page.wait_for_function("window.Plotly")
    page.wait_for_timeout(100)
    surfaces = page.locator("#surfaces .main-svg")
    assert surfaces.count() == 0
    page.evaluate("document.getElementById('interactions').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#surfaces .main-svg")


def test_printing_draws_everything_on_white(show, mixed_page):
    page = show(mixed_page, color_scheme="dark").page
    page.wait_for_function("window.Plotly")
    assert len(page.pdf(format="A4")) > 20_000
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    charts = page.locator(".chart").count()
    assert charts == 7
    assert page.locator(".chart .main-svg:first-child").count() >= charts
    assert not page.locator("#controls").is_visible()
    assert page.locator("#whatif-account").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.get_attribute("html", "data-theme") == "dark"


def test_every_level_of_a_category_has_its_name_below_its_bar(show, tmp_path):
    jobs = ["private", "self-employed", "local government", "state government", "federal", "none"]
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"job": rng.choice(jobs, 300), "age": rng.integers(20, 60, 300)})
    encoded = make_column_transformer((OneHotEncoder(), ["job"]), remainder="passthrough")
    model = make_pipeline(encoded, LinearRegression()).fit(X, X["job"].str.len() + X["age"] / 10)
    explainer = NObSP(model, interactions=0).fit(X)

    page = show(report(explainer(X), tmp_path / "jobs.html")).page
    drawn(page)
    chart = page.locator("#curves .card", has_text="job")
    chart.locator(".xtick text").first.wait_for()
    assert chart.locator(".xtick text").count() == len(jobs)
