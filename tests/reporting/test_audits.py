"""Pages of an audit: what it found, by kind, and in the words of the audit."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest

from nobsp.reporting import audits, report
from tests.reporting.names import NASTY


@pytest.fixture
def found() -> SimpleNamespace:
    """Fourteen rows: 2 and 5 suspected mislabels, 5 and 7 likely errors, 9 a boundary case, none an outlier."""
    flags = {kind: np.zeros(14, bool) for kind in ("mislabels", "errors", "boundary", "outliers")}
    flags["mislabels"][[2, 5]] = flags["errors"][[5, 7]] = flags["boundary"][9] = True
    joint = np.linspace(0.1, 0.9, 14)
    return SimpleNamespace(
        predicted=np.arange(14) % 3,
        labels=np.arange(14) % 2,
        suggested=np.full(14, 2),
        joint=joint,
        confidence=1 - joint / 2,
        label_score=1 - joint,
        typicality=joint**2,
        rows=np.arange(100, 114),
        reasons=tuple(f"because {NASTY} {row}" if row in (2, 5, 7, 9) else "" for row in range(14)),
        **flags,
    )


def spoken(rows: int) -> SimpleNamespace:
    """What six rows of an index add to a prediction, three for it and three against."""
    values = np.tile([0.1, -0.4, 0.3, -0.2, 0.2, -0.1], (rows, 1))
    labels = np.tile(["cat", "dog", "owl", "cat", "dog", "owl"], (rows, 1))
    parts = {
        "values": values,
        "indices": np.tile(np.arange(10, 16), (rows, 1)),
        "labels": labels,
        "shares": values / 1.3,
    }
    whole = {
        "target": np.full(rows, "owl"),
        "base": np.full(rows, 0.5),
        "logits": np.full(rows, 0.4),
        "exact": 0.6,
    }
    return SimpleNamespace(**parts, **whole)


def test_rows_that_speak_for_a_prediction_stand_beside_its_neighbours(
    show, classes, pictures, tmp_path
):
    said, out = spoken(len(classes.X)), tmp_path / "table.html"
    opened = show(report(classes.explanation, out, hits=classes.hits, influence=said))
    table = opened.page.locator("#row table.values").last
    assert table.locator("tbody th").all_inner_texts() == ["12", "14", "10", "11", "13", "15"]
    assert table.locator("td:nth-child(2)").all_inner_texts() == [
        "owl",
        "dog",
        "cat",
        "dog",
        "cat",
        "owl",
    ]
    assert table.locator("td:nth-child(3)").all_inner_texts() == [
        "+0.300",
        "+0.200",
        "+0.100",
        "−0.400",
        "−0.200",
        "−0.100",
    ]
    assert table.locator("td:nth-child(4)").all_inner_texts()[0] == "23.1%"
    assert "The logit of owl is 0.4: 0.5 at the mean of the index" in opened.page.inner_text("#row")
    assert "explains 60.0% of this head's weights" in opened.page.text_content("body")
    assert opened.complaints == []
    said = spoken(len(pictures.maps))
    gallery = {"images": pictures.images, "gallery": pictures.gallery}
    opened = show(
        report(pictures.maps, tmp_path / "p.html", hits=pictures.hits, influence=said, **gallery)
    )
    strips = opened.page.locator("article.plate").first.locator(".found")
    assert strips.count() == 3
    assert strips.nth(1).locator("figcaption span").all_inner_texts()[:2] == ["+0.300", "23.1%"]
    assert strips.nth(2).locator("img").count() == 3
    assert opened.complaints == []
    left_out = spoken(len(classes.X))
    del left_out.base
    del left_out.exact
    opened = show(report(classes.explanation, tmp_path / "left.html", influence=left_out))
    assert "The logit of owl is 0.4. A number says" in opened.page.inner_text("#row")
    assert opened.complaints == []
    with pytest.raises(ValueError, match="influence is of 3 rows"):
        report(classes.explanation, tmp_path / "t.html", influence=spoken(3))


def groups(page) -> dict[str, list[str]]:
    return {
        body.get_attribute("data-kind"): body.locator("tr:not(.group) th").all_inner_texts()
        for body in page.locator("#audit-table tbody").all()
    }


def test_findings_are_grouped_by_kind_and_filtered(show, found, tmp_path):
    opened = show(report(found, tmp_path / "audit.html", class_names=["cat", "dog", "owl"]))
    page = opened.page
    assert page.inner_text("h1") == "What the audit found"
    assert page.inner_text("#audit-headline strong") == "2"  # suspected labels
    # Row 5 is of two kinds and has the least support for its label.
    assert groups(page) == {"mislabels": ["5", "2"], "errors": ["7"], "boundary": ["9"]}
    cells = page.locator("#audit-table tbody tr").nth(1).locator("td").all_inner_texts()
    assert cells[:3] == ["dog", "owl", "owl"]
    assert cells[3] == f"because {NASTY} 5"
    assert [float(cell) for cell in cells[5:]] == pytest.approx(
        [found.label_score[5], found.joint[5], found.confidence[5], found.typicality[5]], abs=0.005
    )
    page.select_option("#audit-kind", "errors")
    assert groups(page) == {"errors": ["5", "7"]}
    page.select_option("#audit-kind", "outliers")
    assert groups(page) == {}
    assert "Nothing of this kind" in page.inner_text("#audit-found")
    assert page.locator(".health").count() == 0
    assert opened.complaints == []


def test_a_decision_about_one_of_several_classes_says_which(show, found, tmp_path):
    found.outputs = np.array(["round", "red"] * 7)
    page = show(report(found, tmp_path / "audit.html")).page
    page.check("input[name=decision-0][value=drop]")  # the first line is row 5
    with page.expect_download() as waiting:
        page.click("#audit-json")
    [record] = json.loads(waiting.value.path().read_text(encoding="utf-8"))
    assert (record["row"], record["output"]) == (105, "red")


def test_decisions_are_ticked_and_saved_by_the_page_itself(show, found, tmp_path):
    opened = show(report(found, tmp_path / "audit.html", class_names=["cat", "dog", "owl"]))
    page = opened.page
    assert page.is_disabled("#audit-csv")
    page.check("input[name=decision-0][value=relabel]")  # the first line is row 5
    page.check("input[name=decision-1][value=drop]")
    page.check("input[name=decision-2][value=drop]")
    page.check("input[name=decision-2][value=keep]")  # another mind
    page.select_option("#audit-kind", "errors")
    assert page.is_checked("input[name=decision-0][value=relabel]")  # drawn again, not forgotten
    saved = {}
    for kind in ("csv", "json"):
        with page.expect_download() as waiting:
            page.click(f"#audit-{kind}")
        saved[kind] = waiting.value
        assert waiting.value.suggested_filename == f"decisions.{kind}"
    records = json.loads(saved["json"].path().read_text(encoding="utf-8"))
    assert [(one["row"], one["name"], one["decision"]) for one in records] == [
        (102, "2", "drop"),
        (105, "5", "relabel"),
        (107, "7", "keep"),
    ]
    assert (records[1]["given_label"], records[1]["new_label"]) == ("dog", "owl")
    with saved["csv"].path().open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [{key: str(value) for key, value in one.items()} for one in records] == lines
    assert opened.complaints == []


def test_the_reason_is_in_sight_on_a_small_screen(show, found, tmp_path):
    page = show(report(found, tmp_path / "audit.html", class_names=["cat", "dog", "owl"])).page
    page.set_viewport_size({"width": 1280, "height": 800})
    for cell in ("reason", "decision"):
        box = page.locator(f"#audit-table td.{cell}").first.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1280


def test_an_audit_alone_shows_the_images_that_are_passed(show, found, tmp_path):
    brightness = np.linspace(0, 1, 14, dtype=np.float32)
    images = np.broadcast_to(brightness[:, None, None, None], (14, 1, 8, 8))
    page = show(report(found, tmp_path / "audit.html", images=images)).page
    sources = page.locator("#audit-table img").evaluate_all("all => all.map(one => one.src)")
    assert len(sources) == 4
    assert len(set(sources)) == 4

    # Some lines of an audit, with the images of all of it.
    every = np.concatenate([np.zeros((100, 1, 8, 8), np.float32), images])
    page = show(report(found, tmp_path / "some.html", images=every)).page
    assert (
        page.locator("#audit-table img").evaluate_all("all => all.map(one => one.src)") == sources
    )


@pytest.mark.parametrize("width", [1200, 900, 400])
def test_the_table_of_an_audit_is_not_cut(show, found, tmp_path, width):
    classes = ["great grey shrike", "red-backed shrike", "lesser grey shrike"]
    files = [f"validation/shrikes/{row:06d}.jpeg" for row in range(14)]
    page = show(report(found, tmp_path / "audit.html", class_names=classes, names=files)).page
    page.set_viewport_size({"width": width, "height": 800})
    hidden = page.locator("#audit .scroll").evaluate("box => box.scrollWidth - box.clientWidth")
    assert hidden <= 0


def test_an_audit_stands_beside_images_with_their_names(show, pictures, found, tmp_path):
    files = [f"photo {row}.png" for row in range(14)]
    opened = show(report(pictures.maps, tmp_path / "page.html", audit=found, names=files))
    page = opened.page
    assert groups(page)["mislabels"] == ["photo 5.png", "photo 2.png"]
    first_examples = page.locator("#examples a").evaluate_all("links => links.map(a => a.hash)")
    assert first_examples == ["#image-5", "#image-2", "#image-7"]
    assert page.locator("#audit-table tbody tr").nth(1).locator("td").all_inner_texts()[:2] == [
        "dog",
        NASTY,
    ]
    assert page.inner_text("#image-5 h3") == "photo 5.png"
    pictured = report(
        pictures.maps, tmp_path / "seen.html", audit=found, names=files, images=pictures.images
    )
    beside = show(pictured).page.locator("#audit-table tbody th img")
    assert beside.count() == 4
    assert beside.first.evaluate("image => image.complete && image.naturalWidth > 0")
    assert opened.complaints == []


def test_an_audit_stands_beside_a_table_whose_rows_have_names(show, classes, found, tmp_path):
    names = [f"person {row}" for row in range(14)]
    page = show(
        report(classes.explanation[:14], tmp_path / "page.html", audit=found, names=names)
    ).page
    assert groups(page)["errors"] == ["person 7"]
    page.fill("#from-row", "person 3")
    page.click("#load-row")
    assert page.inner_text("#whatif-start") == "Started from row person 3."


def test_an_audit_without_labels_has_no_mislabels(show, found, tmp_path):
    found.labels = found.mislabels = found.label_score = None
    page = show(report(found, tmp_path / "audit.html")).page
    assert groups(page) == {"errors": ["5", "7"], "boundary": ["9"]}
    assert "label" not in page.locator("#audit-table thead th").all_inner_texts()


def test_where_not_all_fit_suspected_mislabels_stay(found, monkeypatch):
    monkeypatch.setattr(audits, "MOST_FLAGGED", 2)
    found.joint[2] = 0.99  # predicted with confidence, which says nothing for the label
    told = audits.audit_for_page(found, rows=14, names=None, classes=())
    assert told["names"] == ["5", "2"]  # row 5 has less support for its label
    assert told["flagged"] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ["one"]}, "names must be one per row, 13"),
        ({}, "audit is of 14 rows but there are 13"),
    ],
)
def test_an_audit_of_other_rows_is_refused(classes, found, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        report(classes.explanation[:13], tmp_path / "page.html", audit=found, **change)
    assert list(tmp_path.iterdir()) == []
