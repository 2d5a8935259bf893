"""The functions inside the page: what it computes is what Python computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nobsp import NObSP
from nobsp.page import report
from nobsp.tabular.explanation import Explanation


def points_of(explanation: Explanation, mixed: Any) -> list[dict[str, dict[str, float]]]:
    """Rows as the page writes them: numbers by column, levels by feature."""
    values = explanation.data.to_numpy()
    return [
        {"numbers": {str(c): float(row[c]) for c in range(4)}, "levels": {"4": int(_levels(mixed)[tuple(row[4:])])}}
        for row in values
    ]


def _levels(mixed: Any) -> dict[tuple[float, ...], int]:
    axis = mixed.compiled.compiled[4].axes[0]
    return {tuple(level): position for position, level in enumerate(axis.levels)}


def random_rows(X: Any, rng: np.random.Generator, count: int, *, beyond: float) -> Any:
    """Rows of numbers drawn evenly over the calibrated range and a little beyond it, with cities that occur."""
    numbers = X.iloc[:, :4]
    low, high = numbers.min().to_numpy(), numbers.max().to_numpy()
    more = beyond * (high - low)
    drawn = X.sample(count, random_state=0).reset_index(drop=True)
    drawn.iloc[:, :4] = rng.uniform(low - more, high + more, (count, 4))
    return drawn


@pytest.mark.parametrize("beyond", [0.0, 0.4, 3.0])
def test_what_the_page_computes_is_what_the_compiled_explainer_computes(show, mixed, mixed_page, beyond):
    rows = random_rows(mixed.X, np.random.default_rng(0), 60, beyond=beyond)
    expected = mixed.compiled(rows)
    page = show(mixed_page, fresh=False).page
    found = page.evaluate(
        "points => points.map(p => { const a = nobsp.account(p);"
        " return {parts: a.contributions.map(c => Array.from(c)), total: Array.from(a.total)}; })",
        points_of(expected, mixed),
    )
    parts = np.array([row["parts"] for row in found])
    total = np.array([row["total"] for row in found])
    scale = np.abs(expected.values).max()
    assert np.abs(parts - expected.values).max() < 1e-6 * max(1.0, scale)
    assert np.abs(total - expected.base_values - expected.values.sum(1)).max() < 1e-6 * max(1.0, scale)


def test_single_functions_in_the_page_are_those_of_the_network(show, classes, classes_page):
    rng = np.random.default_rng(3)
    rows = rng.uniform(classes.X.min(0), classes.X.max(0), (50, 4))
    expected = classes.explainer(rows)
    page = show(classes_page, fresh=False).page
    points = [{"numbers": {str(c): float(x) for c, x in enumerate(row)}, "levels": {}} for row in rows]
    found = np.array(
        page.evaluate(
            "points => points.map(p => nobsp.account(p).contributions.map(c => Array.from(c)))",
            points,
        )
    )
    assert np.abs(found - expected.values).max() < 1e-6


def test_rows_come_out_of_the_page_as_they_went_in(show, mixed, mixed_page):
    page = show(mixed_page, fresh=False).page
    found = page.evaluate("[...Array(400).keys()].map(r => [0, 1, 2, 3].map(c => nobsp.row(r).numbers[c]))")
    numbers = mixed.X.iloc[:, :4].to_numpy()
    # Years are whole and come back exactly; the others to a ten-billionth of their range.
    assert np.array_equal(np.array(found)[:, 3], numbers[:, 3])
    assert (np.abs(np.array(found) - numbers).max(0) <= 2.5e-10 * np.ptp(numbers, axis=0)).all()


def test_typing_a_value_changes_the_account_to_that_of_the_explainer(show, classes, classes_page):
    opened = show(classes_page, fresh=False)
    page = opened.page
    page.fill("#from-row", "7")
    page.click("#load-row")
    field = page.get_by_label("b, exact value")
    field.fill("0.75")
    field.press("Enter")
    row = classes.X[7].copy()
    row[1] = 0.75
    expected = classes.explainer(row[None])
    total = opened.value("#whatif-account tr.total")
    assert total == pytest.approx(expected.base_values[0] + expected.values[0, :, 0].sum(), abs=1e-6)
    # The model was not run on this row, and the page does not pretend that it was.
    assert page.locator("#whatif-account").get_by_text("model's prediction").count() == 0


def test_a_known_row_shows_prediction_and_residual(show, classes, classes_page):
    opened = show(classes_page, fresh=False)
    opened.page.fill("#from-row", "7")
    opened.page.click("#load-row")
    prediction, residual = classes.explanation.predictions[7, 0], classes.explanation.residual[7, 0]
    assert opened.value("#whatif-account tr.left") == pytest.approx(residual, abs=1e-6)
    assert opened.value("#whatif-account tr.total:last-child") == pytest.approx(prediction, abs=1e-6)


def test_arrow_keys_move_a_slider_and_the_account(show, classes, classes_page):
    opened = show(classes_page, fresh=False)
    page = opened.page
    before = opened.value("#whatif-account tr.total")
    slider = page.get_by_role("slider", name="a", exact=True)
    slider.focus()
    at = float(slider.input_value())
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    low, high = classes.X[:, 0].min(), classes.X[:, 0].max()
    assert float(slider.input_value()) == pytest.approx(at + 0.05 * (high - low), rel=1e-6)
    assert opened.value("#whatif-account tr.total") != before


@pytest.fixture(scope="module")
def few_page(tmp_path_factory):
    """A number of two values, whose lower one is the median and would be rounded to below itself."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    X = np.column_stack([np.where(np.arange(101) < 60, -0.9375, 1.0625), rng.normal(size=101)])
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).double()
    explainer = NObSP(model, features=["switch", "other"], interactions=0).fit(X)
    return report(explainer(X), tmp_path_factory.mktemp("few") / "few.html")


def test_a_typical_row_is_not_rounded_out_of_the_calibrated_range(show, few_page):
    page = show(few_page, fresh=False).page
    assert page.evaluate("nobsp.typical().numbers[0]") == -0.9375
    assert "Within range" in page.inner_text("#whatif-beyond")
    assert page.get_by_label("switch, exact value").input_value() == "-0.9375"


def test_a_slider_of_few_values_stops_at_these(show, few_page):
    page = show(few_page, fresh=False).page
    slider = page.get_by_role("slider", name="switch", exact=True)
    slider.focus()
    stops = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
        stops.append(float(slider.input_value()))
    slider.evaluate("e => { e.value = 0.4; e.dispatchEvent(new Event('input')); }")
    stops.append(float(slider.input_value()))
    assert stops == [1.0625, 1.0625, -0.9375, -0.9375, 1.0625]


def test_a_function_of_few_values_is_dots_and_bars_at_these(show, few_page):
    page = show(few_page, fresh=False).page
    page.evaluate("document.getElementById('functions').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#feature-0 .main-svg")
    traces = page.evaluate(
        "document.querySelector('#feature-0 .chart').data.map(t => ({mode: t.mode || t.type, x: Array.from(t.x),"
        " y: Array.from(t.y), whiskers: !!t.error_y}))"
    )
    assert [(t["mode"], t["x"]) for t in traces] == [("markers", [-0.9375, 1.0625]), ("bar", [-0.9375, 1.0625])]
    assert traces[0]["whiskers"]
    assert traces[1]["y"] == [60, 41]


def test_a_category_is_picked_from_a_list(show, mixed, mixed_page):
    opened = show(mixed_page, fresh=False)
    page = opened.page
    at = page.evaluate("nobsp.typical()")
    page.locator("#controls").get_by_label("city", exact=True).select_option("2")
    expected = page.evaluate("p => nobsp.account(p).total[0]", at | {"levels": {"4": 2}})
    assert opened.value("#whatif-account tr.total") == pytest.approx(expected, abs=1e-9)
    assert opened.value("#whatif-account tr.total") != page.evaluate("p => nobsp.account(p).total[0]", at)


def test_what_lies_outside_the_calibrated_range_is_marked(show, classes, classes_page):
    page = show(classes_page, fresh=False).page
    said = page.locator("#whatif-beyond")
    assert "Within range" in said.inner_text()
    field = page.get_by_label("c, exact value")
    field.fill(str(classes.X[:, 2].max() + 0.1))
    field.press("Enter")
    assert "Extrapolated" in said.inner_text()
    assert "still followed" in said.inner_text()
    field.fill("100")
    field.press("Enter")
    assert "straight line" in said.inner_text()


def test_probabilities_are_those_of_the_account_and_say_so(show, classes, classes_page):
    page = show(classes_page, fresh=False).page
    field = page.get_by_label("a, exact value")
    field.fill("0.5")
    field.press("Enter")
    row = np.array([[page.evaluate("nobsp.typical().numbers")[str(c)] for c in range(4)]])
    row[0, 0] = 0.5
    expected = classes.explainer(row)
    logits = expected.base_values + expected.values[0].sum(0)
    chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    table = page.locator("#whatif-account table.chances")
    shown = {
        int(r.get_attribute("data-output")): float(r.get_attribute("data-value"))
        for r in table.locator("tbody tr").all()
    }
    assert np.abs(np.array([shown[o] for o in range(3)]) - chances).max() < 1e-6
    assert "the model was not run" in table.inner_text()


def test_the_page_says_how_far_the_account_is_from_the_model(show, classes, classes_page):
    page = show(classes_page, fresh=False).page
    said = page.locator("#whatif-distance").inner_text()
    median = np.median(np.abs(classes.explanation.residual[:, 0]))
    assert f"half within {median:.3g}" in said
    assert "300 rows" in said


def test_without_predictions_nothing_is_claimed_of_the_model(show, mixed, tmp_path):
    page = show(report(mixed.compiled(mixed.X[:50]), tmp_path / "page.html"))
    assert page.complaints == []
    assert page.page.inner_text("#share") == "–"
    assert "not known" in page.page.inner_text("#whatif-distance")
    assert page.page.locator("#row-table tbody tr").count() == 20
