"""Pages of images: maps for and against, targets to switch between, and what an index found."""

from __future__ import annotations

import base64
import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import nobsp
from nobsp.reporting import report
from nobsp.vision import NObSPCam
from tests.vision import networks

PIXELS = "c => { const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return Array.from(p); }"


def plate(page, number):
    return page.locator(f"#image-{number}")


def test_maps_are_coloured_where_the_evidence_is(show, pictures, pictures_page):
    page = show(pictures_page, fresh=False).page
    page.evaluate("document.getElementById('pictures').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#image-0[data-drawn]")
    canvas = plate(page, 0).locator("canvas").first
    width = canvas.evaluate("c => c.width")
    pixels = np.array(canvas.evaluate(PIXELS), dtype=float).reshape(width, width, 4)
    coloured = (
        pixels[..., 0] - pixels[..., 2]
    )  # the picture below is grey, so what is redder than blue is the map
    strength = pictures.maps.of_target(0).resize(width).contrast[0]
    assert np.corrcoef(coloured.ravel(), strength.ravel())[0, 1] > 0.95


def test_switching_the_target_switches_the_maps(show, pictures, pictures_page):
    page = show(pictures_page, fresh=False).page
    page.evaluate("document.getElementById('pictures').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#image-0[data-drawn]")
    canvas = plate(page, 0).locator("canvas").nth(1)
    before = canvas.evaluate(PIXELS)
    plate(page, 0).locator("select").select_option("1")
    second = pictures.maps.output_names[pictures.maps.target[0, 1]]
    assert canvas.evaluate(PIXELS) != before
    assert second in canvas.get_attribute("aria-label")
    assert f"evidence about {second}" in plate(page, 0).inner_text()


def test_neighbours_stand_below_their_image(show, pictures, pictures_page):
    page = show(pictures_page, fresh=False).page
    names = np.array(pictures.maps.output_names)
    strip = plate(page, 3).locator(".found figure")
    assert strip.locator("bdi").all_inner_texts() == names[pictures.hits.labels[3]].tolist()
    assert strip.locator("img").count() == 4
    disagree = int((pictures.hits.labels[3] != pictures.hits.predicted[3]).sum())
    assert plate(page, 3).locator(".found figure.other").count() == disagree


def test_images_are_ordered_and_filtered(show, pictures, pictures_page):
    page = show(pictures_page, fresh=False).page
    page.select_option("#picture-order", "purity")
    order = [int(c.get_attribute("id")[6:]) for c in page.locator(".plate:visible").all()]
    assert order == np.argsort(pictures.hits.purity, kind="stable")[:12].tolist()
    page.click("#more-plates")
    assert page.locator(".plate:visible").count() == 14
    page.check("#picture-wrong")
    assert page.locator(".plate:visible").count() == 1
    names = pictures.maps.output_names
    said = (
        f"labelled {names[pictures.labels[0]]}, predicted {names[pictures.maps.logits[0].argmax()]}"
    )
    assert (
        page.inner_text("#image-0 .says.miss") == said
    )  # which of both is wrong is not for the page to say


def test_neighbours_alone_make_a_page(show, pictures, tmp_path):
    opened = show(report(pictures.hits, tmp_path / "hits.html", class_names=["cat", "dog", "owl"]))
    assert opened.complaints == []
    assert opened.page.inner_text("#picture-share") == f"{pictures.hits.purity.mean():.1%}"
    assert plate(opened.page, 2).locator(".found .blank").count() == 4


def test_neighbours_of_a_table_are_rows_and_nobody_calls_them_healthy(show, pictures, tmp_path):
    opened = show(report(pictures.hits, tmp_path / "hits.html"))
    page = opened.page
    assert page.inner_text("h1") == "Neighbours of 14 rows"
    assert page.inner_text("#plates-found") == "12 of 14 rows shown."
    assert plate(page, 0).locator("h3").inner_text() == "Row 0"
    assert page.locator(".health").count() == 0  # nothing was examined
    said = page.inner_text("main").lower()
    assert not any(word in said for word in ("image", "channel", "map", "healthy"))
    words = page.locator(".example p").first.bounding_box()
    assert words["width"] > 300


def test_neighbours_of_a_regression_show_their_values(show, tmp_path):
    hits = SimpleNamespace(
        indices=np.array([[3, 1]]),
        distances=np.array([[0.5, 1234.25]]),
        labels=np.array([[0.25, 7.5]]),
    )
    page = show(report(hits, tmp_path / "hits.html")).page
    captions = page.locator(".found figcaption").all_inner_texts()
    assert [caption.split() for caption in captions] == [["0.25", "0.5"], ["7.5", "1,234"]]


def test_maps_make_a_page_without_images(show, pictures, tmp_path):
    opened = show(report(pictures.maps.of_target(0), tmp_path / "maps.html"))
    assert opened.complaints == []
    assert opened.page.locator(".plate canvas").count() == 2 * 14


def test_pictures_are_files_of_their_size_grey_where_they_are(pictures, tmp_path):
    wide = np.random.default_rng(0).uniform(size=(14, 3, 300, 200)).astype(np.float32)
    for images, mode in ((wide, "RGB"), (wide[:, :1], "L")):
        text = report(pictures.maps.of_target(0), tmp_path / "maps.html", images=images).read_text(
            encoding="utf-8"
        )
        file = io.BytesIO(
            base64.b64decode(re.search(r"data:image/png;base64,([A-Za-z0-9+/=]+)", text)[1])
        )
        with Image.open(file) as picture:
            assert (picture.size, picture.mode) == ((107, 160), mode)
            shown = np.asarray(picture.convert("RGB")) / 255
        expected = np.broadcast_to(images[0].transpose(1, 2, 0), (300, 200, 3))
        assert shown.mean() == pytest.approx(expected.mean(), abs=5e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((3, 1, 12, 12))}, "images has shape"),
        ({"gallery": np.zeros((2, 1, 12, 12))}, "gallery has 2 images"),
        ({"labels": [0, 1]}, "labels must be one per row"),
    ],
)
def test_what_does_not_fit_the_maps_is_refused(pictures, tmp_path, change, message):
    options = {"images": pictures.images, "hits": pictures.hits, "gallery": pictures.gallery}
    with pytest.raises(ValueError, match=message):
        report(pictures.maps, tmp_path / "page.html", **(options | change))
    assert list(tmp_path.iterdir()) == []


def test_a_page_says_that_its_maps_are_pictures_and_shows_one_of_each_image(show, tmp_path):
    model = networks.made(networks.Tokens("class")).float()
    known = networks.images(20, dtype=torch.float32)
    explainer = NObSPCam(model).fit(known)
    path = report(
        explainer(known[:3]), tmp_path / "page.html", explainer=explainer, images=known[:3]
    )
    page = show(path).page
    assert page.inner_text("#picture-share") == ""
    assert "pictures" in page.inner_text("#picture-words")
    # The image, and one map: account and contrast are the same.
    assert plate(page, 0).locator("canvas").count() == 1
    # What a picture leaves over says nothing.
    assert "residual" not in page.locator("#picture-order option").evaluate_all(
        "options => options.map((option) => option.value)"
    )


def test_images_of_a_page_may_be_files(tmp_path):
    files = []
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels).save(files[-1])
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 2),
    )
    maps = nobsp.explain_images(network, files)
    page = nobsp.report(maps, tmp_path / "page.html", images=files).read_text(encoding="utf-8")
    without = nobsp.report(maps, tmp_path / "without.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == without.count("data:image/png") + len(files)
    with pytest.raises(ValueError, match="expected 3"):
        nobsp.report(maps, tmp_path / "few.html", images=files[:2])
    with pytest.raises(TypeError, match=r"nobsp\.report\(explainer"):
        nobsp.report(nobsp.NObSPCam(network), tmp_path / "none.html")


LEXICON = ("bad", "good", "film", "plot")


@pytest.fixture(scope="module")
def read_texts():
    """Maps of short texts by a network that looks for one word."""
    torch.manual_seed(0)
    layers = [torch.nn.Embedding(4, 8), torch.nn.AdaptiveAvgPool2d((1, 8)), torch.nn.Flatten()]
    ids = torch.randint(0, 4, (40, 6))
    cam = NObSPCam(torch.nn.Sequential(*layers, torch.nn.Linear(8, 2))).fit(ids)
    words = [[LEXICON[code] for code in row] for row in ids[:5].tolist()]
    return SimpleNamespace(maps=cam(ids[:5]), words=words, cam=cam)


def test_words_of_texts_are_tinted_by_what_they_add(show, read_texts, tmp_path):
    maps = read_texts.maps
    page = report(maps, tmp_path / "texts.html", words=read_texts.words, explainer=read_texts.cam)
    opened = show(page)
    assert opened.complaints == []
    line = plate(opened.page, 0).locator(".words").first
    line.scroll_into_view_if_needed()
    opened.page.wait_for_selector("#image-0[data-drawn]")
    assert line.locator("span").all_text_contents() == read_texts.words[0]
    tints = [span.get_attribute("style") for span in line.locator("span").all()]
    strongest = int(np.abs(maps.contrast[0]).argmax())
    hue = "--for-map" if maps.contrast[0, strongest] > 0 else "--against-map"
    assert hue in tints[strongest]
    # Who cannot see tints is told where they are strongest, and hears the text all the same.
    said = plate(opened.page, 0).locator("figure").first.get_attribute("aria-label")
    assert f"strongest at “{read_texts.words[0][strongest]}”" in said
    assert line.get_attribute("role") is None
    facts = opened.page.locator(".facts").first.inner_text()
    assert "5 texts" in facts
    assert "40 calibration texts" in facts


def test_sequences_without_words_are_strips(show, read_texts, tmp_path):
    opened = show(report(read_texts.maps, tmp_path / "strips.html"))
    assert opened.complaints == []
    assert opened.page.locator(".plate canvas").count() == 2 * 5
    assert opened.page.locator("#pictures-title").inner_text() == "Sequences"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([["bad"]], "each of the 5 texts"),
        (5, "each of the 5 texts"),
        ((line for line in [["bad"]] * 5), "each of the 5 texts"),
        ([["bad"] * 7] * 5, r"words\[0\] has 7 tokens, but the maps have 6"),
    ],
)
def test_words_that_are_not_those_of_the_texts_are_refused(read_texts, tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        report(read_texts.maps, tmp_path / "page.html", words=words)


def test_words_of_images_are_refused(pictures, tmp_path):
    with pytest.raises(ValueError, match="words are those of texts"):
        report(pictures.maps, tmp_path / "page.html", words=[["bad"]] * len(pictures.maps))
