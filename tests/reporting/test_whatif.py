"""The functions inside the page: what it computes is what Python computes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nobsp import NObSP
from nobsp.reporting import report
from nobsp.tabular import Functions
from nobsp.tabular.lookup import level_axes, read_columns


def points_of(functions: Functions, data: Any) -> list[dict[str, dict[str, float | None]]]:
    """Rows as the page takes them: numbers by column, None where there is none, and positions of levels by feature."""
    columns, count = read_columns(functions, data)
    levels = {
        k: axis.places([columns[c] for c in axis.columns])
        for k, axis in level_axes(functions).items()
    }
    numbers = {
        f.columns[0]: np.asarray(columns[f.columns[0]], float)
        for f in functions.features
        if f.kind == "number"
    }
    return [
        {
            "numbers": {
                str(c): float(x[row]) if np.isfinite(x[row]) else None for c, x in numbers.items()
            },
            "levels": {str(k): int(places[row]) for k, places in levels.items()},
        }
        for row in range(count)
    ]


def computed(page: Any, points: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Contributions and totals as the browser computes them."""
    found = page.evaluate(
        "points => points.map(p => { const a = nobsp.account(p);"
        " return {parts: a.contributions.map(c => Array.from(c)), total: Array.from(a.total)}; })",
        points,
    )
    return np.array([row["parts"] for row in found], float), np.array(
        [row["total"] for row in found], float
    )


def random_rows(X: Any, beyond: float, count: int = 60) -> Any:
    """Rows of numbers drawn evenly over the calibrated range and beyond it; levels and missing values that occur."""
    drawn = X.sample(count, random_state=0).reset_index(drop=True)
    rng = np.random.default_rng(0)
    for name in [name for name in X.columns if name not in ("oslo", "rome", "paris", "town")]:
        low, high = X[name].min(), X[name].max()
        more = beyond * (high - low)
        there = drawn[name].notna()
        drawn[name] = drawn[name].astype(float)
        drawn.loc[there, name] = rng.uniform(low - more, high + more, there.sum())
    return drawn


# Random rows are of another kind than those calibrated on.
@pytest.mark.filterwarnings("ignore::nobsp.tabular.health.ExplainedWorseWarning")
@pytest.mark.parametrize("beyond", [0.0, 0.5, 3.0, 300.0])
@pytest.mark.parametrize("subject", ["mixed", "gaps"])
def test_what_the_page_computes_is_what_python_computes(show, request, subject, beyond):
    case, path = request.getfixturevalue(subject), request.getfixturevalue(f"{subject}_page")
    rows = random_rows(case.X, beyond)
    expected = case.explainer(rows)
    parts, total = computed(
        show(path, fresh=False).page, points_of(case.explainer.functions_, rows)
    )
    size = max(1.0, np.abs(expected.values).max())  # of what is added up, far beyond the range
    assert np.abs(parts - expected.values).max() <= 1e-9 * size
    assert np.abs(total - expected.base_values - expected.values.sum(1)).max() <= 1e-9 * size


def test_rows_with_gaps_and_unseen_levels_are_read_as_python_reads_them(show, gaps, gaps_page):
    functions = gaps.explainer.functions_
    opened = show(gaps_page, fresh=False)
    expected = functions(gaps.rows)
    parts, total = computed(
        opened.page,
        opened.page.evaluate("[...Array(60).keys()].map(r => ({...nobsp.row(r), row: null}))"),
    )
    np.testing.assert_allclose(parts, expected.values, rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        total, expected.base_values + expected.values.sum(1), rtol=0, atol=1e-9
    )
    assert opened.page.evaluate("nobsp.row(9).numbers[1]") is None
    assert opened.complaints == []


def test_known_rows_with_unseen_levels_have_what_the_model_told_of_them(show, gaps, gaps_page):
    opened = show(gaps_page, fresh=False)
    explanation = gaps.explanation
    parts, total = computed(
        opened.page, opened.page.evaluate("[...Array(60).keys()].map(nobsp.row)")
    )
    town = explanation.terms.index(("town",))
    assert abs(explanation.values[0, town, 0]) > 0.01
    np.testing.assert_allclose(parts, explanation.values, rtol=0, atol=1e-9)
    residual = explanation.predictions - total
    np.testing.assert_allclose(residual, explanation.residual, rtol=0, atol=1e-9)

    opened.page.fill("#from-row", "0")
    opened.page.click("#load-row")
    left = opened.value("#whatif-account tr.left")
    assert left == pytest.approx(explanation.residual[0, 0], abs=1e-9)
    # Of a level that was seen its function tells.
    opened.page.select_option("#controls select", label="oslo")
    oslo = explanation.explainer.function("town")(np.array(["oslo"]))[0]
    assert any(
        float(value) == pytest.approx(oslo)
        for value in opened.page.locator("#whatif-account tr.term", has_text="= oslo").evaluate_all(
            "lines => lines.map(line => line.dataset.value)"
        )
    )
    assert opened.complaints == []


@pytest.mark.parametrize("row", [0, 1, 2, 9])
def test_a_row_with_a_gap_opens_and_can_be_tried(show, gaps, gaps_page, row):
    opened = show(gaps_page, fresh=False)
    page = opened.page
    page.fill("#from-row", str(row))
    page.click("#load-row")
    assert page.locator("#whatif-account tr.term").count() == 7
    # In row 9 only a number is missing that was calibrated.
    expected_place = "Within range" if row == 9 else "Extrapolated"
    assert expected_place in page.inner_text("#whatif-beyond")
    field = page.get_by_label("b, exact value")
    field.fill("")  # a missing number, where the pipeline takes one
    field.press("Enter")
    changed = gaps.rows.iloc[[row]].copy()
    changed["b"] = np.nan
    expected = gaps.explainer.functions_(changed)
    total = float((expected.base_values + expected.values[0].sum(0))[0])
    if row == 0:  # the model told of its town
        total += gaps.explanation.values[0, gaps.explanation.terms.index(("town",)), 0]
    assert opened.value("#whatif-account tr.total") == pytest.approx(total, abs=1e-9, nan_ok=True)
    assert opened.complaints == []


def test_the_reader_in_the_docs_reads_files_as_python_does(gaps, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "compiled-format.md").read_text(encoding="utf-8")
    [code] = [
        block
        for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
        if "struct" in block
    ]
    names: dict[str, Any] = {}
    exec(compile(code, "docs/compiled-format.md", "exec"), names)
    gaps.explainer.compile().save(tmp_path / "file")
    held = names["read"](tmp_path / "file")
    found = [
        list(names["contributions"](held, row)) for row in gaps.rows.to_numpy(dtype=object).tolist()
    ]
    np.testing.assert_allclose(
        found, gaps.explainer.functions_(gaps.rows).values, rtol=0, atol=1e-9
    )


def test_rows_come_out_of_the_page_as_they_went_in(show, mixed, mixed_page):
    page = show(mixed_page, fresh=False).page
    found = page.evaluate(
        "[...Array(400).keys()].map(r => [0, 1, 2, 3].map(c => nobsp.row(r).numbers[c]))"
    )
    assert np.array_equal(np.array(found), mixed.X.iloc[:, :4].to_numpy())


def test_sliders_reach_half_a_range_beyond_what_was_calibrated(show, classes, classes_page):
    slider = show(classes_page, fresh=False).page.get_by_role("slider", name="a", exact=True)
    low, high = classes.X[:, 0].min(), classes.X[:, 0].max()
    ends = [float(slider.get_attribute(name)) for name in ("min", "max")]
    assert ends == pytest.approx([low - (high - low) / 2, high + (high - low) / 2])


def test_terms_without_a_table_are_shown_for_rows_and_left_out_of_what_is_made_up(
    show, untabled, untabled_page
):
    opened = show(untabled_page, fresh=False)
    page, explanation = opened.page, untabled.explanation
    assert page.locator("#whatif-account tr.term").count() == 1
    assert "left" in page.inner_text("#whatif-account .unknown")
    page.fill("#from-row", "7")
    page.click("#load-row")
    shown = sorted(
        float(line.get_attribute("data-value"))
        for line in page.locator("#whatif-account tr.term").all()
    )
    assert shown == pytest.approx(sorted(explanation.values[7, :, 0]), abs=1e-9)
    assert opened.value("#whatif-account tr.left") == pytest.approx(
        explanation.residual[7, 0], abs=1e-9
    )
    assert page.locator("#feature-0 .chart").count() == 0
    assert page.locator("[data-code=no_table]").count() >= 1
    assert opened.complaints == []


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
    assert total == pytest.approx(
        expected.base_values[0] + expected.values[0, :, 0].sum(), abs=1e-9
    )
    # The model was not run on this row, and the page does not pretend that it was.
    assert page.locator("#whatif-account").get_by_text("model's prediction").count() == 0


def test_a_known_row_shows_prediction_and_residual(show, classes, classes_page):
    opened = show(classes_page, fresh=False)
    opened.page.fill("#from-row", "7")
    opened.page.click("#load-row")
    prediction, residual = classes.explanation.predictions[7, 0], classes.explanation.residual[7, 0]
    assert opened.value("#whatif-account tr.left") == pytest.approx(residual, abs=1e-9)
    assert opened.value("#whatif-account tr.total:last-child") == pytest.approx(
        prediction, abs=1e-9
    )


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
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    ).double()
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
    assert [(t["mode"], t["x"]) for t in traces] == [
        ("markers", [-0.9375, 1.0625]),
        ("bar", [-0.9375, 1.0625]),
    ]
    assert traces[0]["whiskers"]
    assert traces[1]["y"] == [60, 41]


def test_a_category_is_picked_from_a_list(show, mixed, mixed_page):
    opened = show(mixed_page, fresh=False)
    page = opened.page
    at = page.evaluate("nobsp.typical()")
    page.locator("#controls").get_by_label("city", exact=True).select_option("2")
    expected = page.evaluate("p => nobsp.account(p).total[0]", at | {"levels": {"4": 2}})
    assert opened.value("#whatif-account tr.total") == pytest.approx(expected, abs=1e-9)
    assert opened.value("#whatif-account tr.total") != page.evaluate(
        "p => nobsp.account(p).total[0]", at
    )


def test_what_lies_outside_the_calibrated_range_is_marked(show, classes, classes_page):
    page = show(classes_page, fresh=False).page
    said = page.locator("#whatif-beyond")
    assert "Within range" in said.inner_text()
    field = page.get_by_label("c, exact value")
    field.fill(str(classes.X[:, 2].max() + 0.1))
    field.press("Enter")
    assert "Extrapolated" in said.inner_text()


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
    assert np.abs(np.array([shown[o] for o in range(3)]) - chances).max() < 1e-9
    assert "the model was not run" in table.inner_text()


def test_the_page_says_how_far_the_account_is_from_the_model(show, classes, classes_page):
    page = show(classes_page, fresh=False).page
    said = page.locator("#whatif-distance").inner_text()
    median = np.median(np.abs(classes.explanation.residual[:, 0]))
    assert f"half within {median:.3g}" in said
    assert "300 rows" in said


def test_rows_without_a_prediction_are_counted(show, mixed, tmp_path):
    explanation = mixed.explanation[:50]
    predictions = explanation.predictions.copy()
    predictions[7] = np.nan
    some = replace(explanation, predictions=predictions)
    page = show(report(some, tmp_path / "page.html")).page
    assert "1 of 50 rows has no prediction" in page.inner_text("[data-code=no_predictions]")


def test_without_predictions_nothing_is_claimed_of_the_model(show, mixed, tmp_path):
    page = show(report(mixed.compiled(mixed.X[:50]), tmp_path / "page.html"))
    assert page.complaints == []
    assert page.page.locator("[data-code=no_predictions]").count() == 1
    assert "not known" in page.page.inner_text("#whatif-distance")
    assert page.page.locator("#row-table tbody tr").count() == 20
