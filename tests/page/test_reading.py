"""Reading a page: the ledger, functions, outputs and rows say what the explanation says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.page.names import NASTY, QUOTED, RTL


def test_the_first_screen_tells_how_much_the_functions_carry(show, mixed, mixed_page):
    page = show(mixed_page, fresh=False).page
    share = mixed.explanation.explained()[0]
    assert page.inner_text("#share") == f"{np.floor(share * 1e4) / 1e2:.2f}%" if share > 0.999 else f"{share:.1%}"
    ledger = page.locator("#ledger [role=img]").get_attribute("aria-label")
    assert "functions" in ledger
    assert "interactions" in ledger
    assert "left over" in ledger


def test_the_strongest_features_come_first(show, mixed, mixed_page):
    page = show(mixed_page, fresh=False).page
    sizes = np.abs(mixed.explanation.total()[:, :, 0]).mean(0)
    expected = [mixed.explanation.feature_names[k] for k in np.argsort(-sizes)]
    assert page.locator("#strongest .name").all_inner_texts() == expected


def test_warnings_of_the_calibration_are_on_the_first_screen(show, tmp_path):
    import torch

    from nobsp import NObSP
    from nobsp.page import report

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    X = np.random.default_rng(0).normal(size=(200, 3))
    X[:, 2] = X[:, 1]
    explainer = NObSP(model, features=["one", "two", "copy"], interactions=0).fit(X)
    page = show(report(explainer(np.vstack([X, X[:1] + 9])), tmp_path / "page.html")).page
    said = " ".join(page.locator(".finding.warning").all_inner_texts())
    assert "It repeats 'two'" in said
    assert "1 row of 201 lie outside" in said


@pytest.mark.parametrize("output", [1, 2])
def test_switching_the_output_switches_everything(show, classes, classes_page, output):
    opened = show(classes_page, fresh=False)
    page = opened.page
    page.select_option("#output", str(output))
    name = classes.explanation.output_names[output]
    assert name in page.inner_text("#share-words")
    assert name in page.inner_text("#functions .lead")
    page.fill("#from-row", "3")
    page.click("#load-row")
    expected = classes.explanation.predictions[3, output]
    assert opened.value("#whatif-account tr.total:last-child") == pytest.approx(expected, abs=1e-6)
    sizes = np.abs(classes.explanation.values[:, :, output]).mean(0)
    order = [classes.explanation.feature_names[k] for k in np.argsort(-sizes)]
    assert page.locator("#curves .card h3 .name").all_inner_texts() == order
    page.evaluate("document.getElementById('functions').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#curves .card .main-svg")
    first = order[0]
    curve = page.evaluate(
        "k => document.querySelector('#feature-' + k + ' .chart').data.filter(t => t.line?.shape === 'linear')"
        ".map(t => [Array.from(t.x), Array.from(t.y)])[0]",
        classes.explanation.feature_names.index(first),
    )
    learned = classes.explainer.function(first, output=output)(np.array(curve[0]))
    assert np.abs(np.array(curve[1]) - learned).max() < 1e-6
    assert opened.complaints == []


def test_a_curve_is_drawn_with_its_band_and_the_rows(show, classes, classes_page):
    page = show(classes_page, fresh=False).page
    page.evaluate("document.getElementById('functions').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#feature-0 .main-svg")
    traces = page.evaluate(
        "document.querySelector('#feature-0 .chart').data"
        ".map(t => ({fill: t.fill || '', type: t.type || '', x: Array.from(t.x), y: Array.from(t.y)}))"
    )
    over = next(t for t in traces if t["fill"] == "tonexty")
    under = traces[traces.index(over) - 1]
    table = classes.explainer.curves(101)
    mine = (table["feature"] == "a") & (table["output"] == "red")
    assert np.allclose(over["x"], table["x"][mine])
    assert np.allclose(over["y"], table["upper"][mine], rtol=1e-6, atol=1e-6)
    assert np.allclose(under["y"], table["lower"][mine], rtol=1e-6, atol=1e-6)
    support = next(t for t in traces if t["type"] == "bar")
    assert sum(support["y"]) == 300


def test_surfaces_are_hidden_where_no_rows_are(show, mixed, mixed_page):
    page = show(mixed_page, fresh=False).page
    page.evaluate("document.getElementById('interactions').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#surfaces .card:nth-child(2) .main-svg")
    name = f"{NASTY} × {QUOTED}"
    surface = page.locator(".card", has=page.locator("h3 .name", has_text=name)).locator(".chart")
    x, y, z = surface.evaluate("e => [e.data[0].x, e.data[0].y, e.data[0].z]")
    shown = np.array([[np.nan if value is None else value for value in row] for row in z], dtype=float)
    assert np.isnan(shown).any()
    assert np.isfinite(shown).any()
    # The middle of the data is supported, and shows the compiled interaction.
    i, j = int(np.argmin(np.abs(np.array(x)))), int(np.argmin(np.abs(np.array(y))))
    row = mixed.X[:1].copy()
    row[[NASTY, QUOTED]] = [[x[i], y[j]]]
    assert shown[j, i] == pytest.approx(mixed.compiled(row).values[0, 5, 0], abs=1e-6)
    lines = page.locator(".card", has=page.locator("h3 .name", has_text=f"{RTL} × city")).locator(".chart")
    assert lines.evaluate("e => e.data.length") == 3  # one line a level
    captions = page.locator("#surfaces .axes").all_inner_texts()
    assert all(caption.endswith("drawn only where there are rows") for caption in captions)


def test_functions_are_found_by_name(show, mixed_page):
    page = show(mixed_page, fresh=False).page
    page.evaluate("document.getElementById('find').parentElement.hidden = false")
    page.fill("#find", "YEA")
    assert page.locator("#curves .card:visible h3 .name").all_inner_texts() == ["year"]
    assert "1 feature found" in page.inner_text("#found")


def test_columns_that_are_one_feature_have_a_slider_each_and_a_surface(show, tmp_path):
    import torch

    from nobsp import NObSP
    from nobsp.page import report

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).double()
    X = np.random.default_rng(0).normal(size=(200, 3))
    explainer = NObSP(model, features={"place": [0, 1], "other": 2}, interactions=0).fit(X)
    opened = show(report(explainer(X), tmp_path / "page.html"))
    page = opened.page
    page.evaluate("document.getElementById('functions').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#feature-0 .main-svg")
    assert page.evaluate("document.querySelector('#feature-0 .chart').data[0].type") == "heatmap"
    assert page.locator("#controls").get_by_label("place, column 1", exact=True).count() == 1
    assert opened.complaints == []


# ---------------------------------------------------------------------- rows


def numbers_in(page: Any, column: str) -> list[float]:
    heads = page.locator("#row-table thead th").all_inner_texts()
    place = next(i for i, head in enumerate(heads) if head.split(" ")[0] == column.split(" ")[0])
    cells = page.locator(f"#row-table tbody tr > :nth-child({place + 1})")
    return [float(cell.get_attribute("data-value")) for cell in cells.all()]


def test_rows_are_sorted_by_any_column(show, classes, classes_page):
    page = show(classes_page, fresh=False).page
    residual = classes.explanation.residual[:, 0]
    assert np.allclose(np.abs(numbers_in(page, "residual")), np.sort(np.abs(residual))[::-1][:20], atol=1e-6)
    page.get_by_role("button", name="prediction", exact=True).focus()
    page.keyboard.press("Enter")
    predictions = classes.explanation.predictions[:, 0]
    assert np.allclose(numbers_in(page, "prediction"), np.sort(predictions)[::-1][:20])
    page.keyboard.press("Enter")
    assert np.allclose(numbers_in(page, "prediction"), np.sort(predictions)[:20])
    assert page.get_attribute("#row-table th[data-id=prediction]", "aria-sort") == "ascending"


def test_rows_are_filtered_by_purity_and_by_being_wrong(show, classes, classes_page):
    page = show(classes_page, fresh=False).page
    page.select_option("#filter-by", "purity")
    page.fill("#filter-high", "0.2")
    expected = int((classes.hits.purity <= 0.2).sum())
    assert page.inner_text("#page-words").endswith(f"of {expected}")
    page.fill("#filter-high", "")
    page.check("#only-wrong")
    assert page.inner_text("#page-words").endswith("of 30")


def test_pages_of_rows_can_be_turned(show, classes_page):
    page = show(classes_page, fresh=False).page
    first = numbers_in(page, "residual")
    page.click("#after")
    assert page.inner_text("#page-words") == "21–40 of 300"
    assert numbers_in(page, "residual") != first
    page.click("#before")
    assert numbers_in(page, "residual") == first


def test_an_opened_row_shows_its_account_and_its_neighbours(show, classes, classes_page):
    opened = show(classes_page, fresh=False)
    page = opened.page
    button = page.locator("#row-table tbody button").nth(4)
    row = int(button.inner_text())
    button.focus()
    page.keyboard.press("Enter")
    explanation = classes.explanation
    shown = [float(line.get_attribute("data-value")) for line in page.locator("#row .account tr.term").all()]
    expected = explanation.values[row, :, 0]
    assert np.allclose(shown, expected[np.argsort(-np.abs(expected))], atol=1e-6)
    assert opened.value("#row tr.left") == pytest.approx(explanation.residual[row, 0], abs=1e-6)
    lines = page.locator("#row table.values tbody tr")
    assert lines.locator("th").all_inner_texts() == [str(i) for i in classes.hits.indices[row]]
    assert lines.locator("td:nth-child(2)").all_inner_texts() == classes.hits.labels[row].tolist()


def test_a_row_can_be_taken_to_what_if(show, classes, classes_page):
    opened = show(classes_page, fresh=False)
    page = opened.page
    row = int(page.locator("#row-table tbody button").nth(2).inner_text())
    page.locator("#row-table tbody button").nth(2).click()
    page.get_by_role("button", name="Try it").click()
    assert page.evaluate("document.activeElement.id") == "whatif-title"
    assert page.input_value("#from-row") == str(row)
    expected = classes.explanation.predictions[row, 0]
    assert opened.value("#whatif-account tr.total:last-child") == pytest.approx(expected, abs=1e-6)
