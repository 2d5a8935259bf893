"""Reading a page: the ledger, functions, outputs and rows say what the explanation says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from nobsp import NObSP
from nobsp.findings import Finding
from nobsp.reporting import report
from nobsp.reporting.tables import table_data
from nobsp.tabular.health import ExplainedWorseWarning
from nobsp.tabular.lookup import Chunk, TermTable
from tests.reporting.names import NASTY, QUOTED, RTL


def test_the_first_screen_leads_with_held_out_r2(show, mixed, mixed_page):
    page = show(mixed_page, fresh=False).page
    share = mixed.explainer.explained_[0]
    assert page.inner_text("#share") == (
        f"{np.floor(share * 1e4) / 1e2:.2f}%" if share > 0.999 else f"{share:.1%}"
    )
    assert "held-out R²" in page.inner_text("#share-words")
    assert page.get_attribute("#share", "class") == "good"
    ledger = page.locator("#ledger [role=img]").get_attribute("aria-label")
    assert "main effects" in ledger
    assert "interactions" in ledger
    assert "left over" in ledger


@pytest.mark.parametrize(("error", "told"), [(0.0004, False), (0.002, True)])
def test_an_error_that_three_decimals_show_as_zero_is_left_out(
    show, classes, tmp_path, error, told
):
    state = replace(classes.explainer.health(), held_out=True, edited=(), scatter=(error,) * 3)
    functions = replace(classes.explainer.functions_, state=state)
    path = report(replace(classes.explanation, explainer=functions), tmp_path / "page.html")
    words = show(path).page.inner_text("#share-words")
    assert "held-out R²" in words
    assert ("± 0.002" in words) is told
    assert "± 0.000" not in words


def test_a_long_name_has_the_line_and_its_number_goes_below(show, tmp_path):
    name = "the size of the flat without its balcony"
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=[name, "sun"])
    explainer = NObSP(lambda rows: rows[:, 0] * rows[:, 1], interactions=1).fit(X)
    page = show(
        report(explainer(X), tmp_path / "page.html"), viewport={"width": 400, "height": 800}
    ).page
    heading = page.locator(".card h3", has_text=name).first
    cut, lines = heading.locator(".name").evaluate(
        "e => [e.scrollHeight > e.clientHeight + 1, e.getBoundingClientRect().height / 24]"
    )
    assert not cut
    assert lines < 2.5


@pytest.mark.parametrize(
    ("share", "held_out", "kind"),
    [(0.979, True, "good"), (0.6, True, "doubtful"), (-0.44, True, "bad"), (0.9, False, "good")],
)
def test_the_headline_is_coloured_by_its_value(show, classes, tmp_path, share, held_out, kind):
    error = Finding("error", "worse_than_mean", "red", "worse")
    note = Finding("note", "economy", "", "slow")
    state = replace(
        classes.explainer.health(), explained=(share,) * 3, held_out=held_out, scatter=(),
        findings=(error, note) if share < 0 else (note,),
    )  # fmt: skip
    functions = replace(classes.explainer.functions_, state=state)
    page = show(
        report(replace(classes.explanation, explainer=functions), tmp_path / "page.html")
    ).page
    assert page.get_attribute("#share", "class") == kind
    assert page.inner_text("#share") == f"{share:.1%}".replace("-", "−")
    assert ("calibration rows" in page.inner_text("#share-words")) is not held_out
    codes = page.locator(".finding[data-code]").evaluate_all("all => all.map(e => e.dataset.code)")
    assert codes[0] == ("worse_than_mean" if share < 0 else "economy")


def test_the_strongest_features_come_first(show, mixed, mixed_page):
    page = show(mixed_page, fresh=False).page
    expected = list(mixed.explainer.importance()["feature"])
    assert page.locator("#strongest .name").all_inner_texts() == expected
    assert page.locator("#curves .card h3 .name").all_inner_texts() == expected


def test_warnings_of_the_calibration_are_on_the_first_screen(show, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    X = np.random.default_rng(0).normal(size=(200, 3))
    X[:, 2] = X[:, 1]
    explainer = NObSP(model, features=["one", "two", "copy"], interactions=0).fit(X)
    page = show(report(explainer(np.vstack([X, X[:1] + 9])), tmp_path / "page.html")).page
    codes = page.locator(".finding.warning[data-code]").evaluate_all(
        "all => all.map(e => e.dataset.code)"
    )
    assert "dependent" in codes
    # One row of many is a note, as it is in the health and on the command line.
    assert page.locator(".finding.note[data-code=outside]").count() == 1
    assert "1 of 201 rows" in page.inner_text("[data-code=outside]")


def _wavy_network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)]
    model = torch.nn.Sequential(*layers).double()
    with torch.no_grad():
        model[0].weight.mul_(4)
    return model


def test_clusters_are_on_the_first_screen_with_both_figures(show, tmp_path):
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(50, 4))
    rows = np.repeat(centres, 20, axis=0) + 0.01 * generator.normal(size=(1000, 4))
    explainer = NObSP(_wavy_network(), interactions=0).fit(rows)

    page = show(report(explainer(rows), tmp_path / "page.html")).page

    assert page.locator(".finding.warning[data-code=clusters]").count() == 1
    wholly = explainer.health().neighbourhoods[0]
    assert f"{wholly:.1%}" in page.inner_text("#share-words")
    assert page.get_attribute("#share", "class") != "good"


def test_interactions_that_make_up_for_main_effects_have_no_share_of_their_own(show, tmp_path):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(500, 2))
    explainer = NObSP(lambda X: X[:, 0] * X[:, 1] - X[:, 0] ** 2, interactions=1).fit(rows)
    along = np.repeat(generator.normal(size=(60, 1)), 2, axis=1) + 0.1 * rows[:60]
    explanation = explainer._explain(along)
    mains = explanation.order(1).explained()[0]
    assert mains < 0 < explanation.explained()[0]

    page = show(report(explanation, tmp_path / "page.html")).page

    told = page.locator("#ledger [role=img]").get_attribute("aria-label")
    assert "main effects and interactions" in told
    assert "−" not in told


def test_rows_explained_worse_than_the_headline_are_told_on_the_first_screen(show, tmp_path):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(500, 3)) * [1.0, 0.2, 0.2]
    drifted = generator.normal(size=(100, 3)) * [1.0, 0.01, 0.01] + [0.0, 0.4, 0.4]
    explainer = NObSP(lambda X: X[:, 0] + 10 * X[:, 1] * X[:, 2], interactions=0).fit(rows)
    with pytest.warns(ExplainedWorseWarning):
        explanation = explainer(drifted)

    page = show(report(explanation, tmp_path / "page.html")).page

    (warning,) = page.locator(".finding.warning[data-code=fresh_rows]").all()
    assert page.get_attribute("#share", "class") != "good"
    share = f"R² {explanation.explained()[0]:.3f}".replace("-", "−")
    assert page.inner_text("#ledger > p") == f"Variance over the 100 rows shown here: {share}"
    assert share.replace("R² ", "is ") in warning.inner_text()


def test_far_combinations_are_told_and_marked_among_the_rows(show, tmp_path):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(300, 4))
    rows[:, 1] = rows[:, 0] + 0.05 * rows[:, 1]
    others = rows[:80].copy()
    others[:12, 1] = -np.clip(others[:12, 0], -2.0, 2.0)
    explainer = NObSP(lambda X: X[:, 0] + np.abs(X[:, 2]), interactions=0).fit(rows)
    explanation = explainer(others)

    opened = show(report(explanation, tmp_path / "page.html"))

    assert opened.page.locator(".finding.warning[data-code=far]").count() == 1
    assert opened.page.locator("th[data-id=far]").count() == 1
    opened.page.check("#only-beyond")
    listed = opened.page.locator("#row-table tbody tr").evaluate_all(
        "lines => lines.map(line => Number(line.dataset.row))"
    )
    marked = explanation.far | explanation.outside.any(1)
    assert sorted(listed) == np.flatnonzero(marked).tolist()
    assert explanation.far.sum() > 5
    assert opened.complaints == []


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
    assert opened.value("#whatif-account tr.total:last-child") == pytest.approx(expected, abs=1e-9)
    sizes = classes.explainer.functions_.importances["total"][:, output]
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
    functions = classes.explainer.functions_
    band = TermTable((0,), functions.tables[0].axes, functions.spreads[0])
    x = np.array(over["x"])
    away = 1.6448536269514722 * band(Chunk({0: x}, slice(0, len(x))))[:, 0]
    value = classes.explainer.function("a", output="red")(x)
    assert np.allclose(over["y"], value + away, rtol=1e-6, atol=1e-6)
    assert np.allclose(under["y"], value - away, rtol=1e-6, atol=1e-6)
    support = next(t for t in traces if t["type"] == "bar")
    assert sum(support["y"]) == 300


def test_surfaces_are_hidden_where_no_rows_are(show, mixed, mixed_page):
    page = show(mixed_page, fresh=False).page
    page.evaluate("document.getElementById('interactions').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#surfaces .card:nth-child(2) .main-svg")
    name = f"{NASTY} × {QUOTED}"
    surface = page.locator(".card", has=page.locator("h3 .name", has_text=name)).locator(".chart")
    x, y, z = surface.evaluate("e => [e.data[0].x, e.data[0].y, e.data[0].z]")
    shown = np.array(
        [[np.nan if value is None else value for value in row] for row in z], dtype=float
    )
    assert np.isnan(shown).any()
    assert np.isfinite(shown).any()
    # The middle of the data is supported, and shows the compiled interaction.
    i, j = int(np.argmin(np.abs(np.array(x)))), int(np.argmin(np.abs(np.array(y))))
    row = mixed.X[:1].copy()
    row[[NASTY, QUOTED]] = [[x[i], y[j]]]
    assert shown[j, i] == pytest.approx(mixed.compiled(row).values[0, 5, 0], abs=1e-9)
    lines = page.locator(".card", has=page.locator("h3 .name", has_text=f"{RTL} × city")).locator(
        ".chart"
    )
    assert lines.evaluate("e => e.data.length") == 3  # one line a level
    captions = page.locator("#surfaces .axes").all_inner_texts()
    assert all(caption.endswith("drawn only where there are rows") for caption in captions)


def test_functions_are_found_by_name(show, mixed_page):
    page = show(mixed_page, fresh=False).page
    page.evaluate("document.getElementById('find').parentElement.hidden = false")
    page.fill("#find", "YEA")
    assert page.locator("#curves .card:visible h3 .name").all_inner_texts() == ["year"]
    assert "1 feature found" in page.inner_text("#found")


# ---------------------------------------------------------------------- rows


def numbers_in(page: Any, column: str) -> list[float]:
    heads = page.locator("#row-table thead th").all_inner_texts()
    place = next(i for i, head in enumerate(heads) if head.split(" ")[0] == column.split(" ")[0])
    cells = page.locator(f"#row-table tbody tr > :nth-child({place + 1})")
    return [float(cell.get_attribute("data-value")) for cell in cells.all()]


def test_rows_are_sorted_by_any_column(show, classes, classes_page):
    page = show(classes_page, fresh=False).page
    residual = classes.explanation.residual[:, 0]
    assert np.allclose(
        np.abs(numbers_in(page, "residual")), np.sort(np.abs(residual))[::-1][:20], atol=1e-6
    )
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
    shown = [
        float(line.get_attribute("data-value"))
        for line in page.locator("#row .account tr.term").all()
    ]
    expected = explanation.values[row, :, 0]
    assert np.allclose(shown, expected[np.argsort(-np.abs(expected))], atol=1e-6)
    assert opened.value("#row tr.left") == pytest.approx(explanation.residual[row, 0], abs=1e-9)
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
    assert opened.value("#whatif-account tr.total:last-child") == pytest.approx(expected, abs=1e-9)


def test_the_class_that_is_not_the_output_is_called_as_its_labels_are(tmp_path):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(100, 2))
    labels = np.where(rows[:, 0] > 0, "yes", "no")
    explainer = NObSP(lambda X: 3 * X[:, 0] + X[:, 1], output_names=["yes"], interactions=0)
    explanation = explainer.fit(rows)(rows)

    data = table_data(
        explanation,
        explainer=None,
        labels=labels,
        class_names=None,
        truth=None,
        hits=None,
        names=None,
    )

    assert data["classes"] == ("no", "yes")
    assert data["rows"]["labels"]["names"] == ("no", "yes")
