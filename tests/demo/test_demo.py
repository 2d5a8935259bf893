"""The demo: what it says was measured and is good, and its pages open without complaint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nobsp import demo as room
from nobsp.cli import main
from nobsp.demo import explain_functions
from nobsp.reporting.pictures import image_url
from tests.processes import PAGE_PATIENCE


def test_it_says_what_it_found_in_five_lines_and_where_the_pages_are(demo: Any) -> None:
    lines = demo.out.splitlines()
    assert len(lines) == 6
    assert lines[-1].endswith(str(demo.folder / "index.html"))
    assert {path.name for path in demo.folder.iterdir()} == set(room.PAGES)
    assert demo.err.splitlines()[0].startswith("1 of 3")


def test_the_functions_that_made_the_data_are_recovered(demo: Any) -> None:
    network, functions = (float(found) for found in re.findall(r"R²[^.]*?(0\.\d+)", demo.out)[:2])
    assert network > 0.99
    # On rows that the network was not trained on it is further from the functions that made its training rows.
    assert functions > 0.99


def test_the_held_out_figure_is_said_of_both_tables(demo: Any) -> None:
    shares = [float(share) for share in re.findall(r"held-out R² of[^\d]*(0\.\d+)", demo.out)]
    assert len(shares) == 2
    assert min(shares) > 0.97


def test_pages_name_what_the_demo_has(demo: Any) -> None:
    page = (demo.folder / "known-functions.html").read_text(encoding="utf-8")
    assert "flagged in" in page
    assert "flagged in the column" not in page


def test_the_networks_of_the_demo_are_good_enough_to_look_at(demo: Any) -> None:
    cells = float(re.search(r"Breast cancer: ([\d.]+)%", demo.out)[1])
    digits = float(re.search(r"Digits: ([\d.]+)%", demo.out)[1])
    assert cells > 93
    assert digits > 97


def test_the_first_page_has_the_importances_of_the_page_it_leads_to(
    demo: Any, browser: Any
) -> None:
    page = browser.new_page()
    page.set_default_timeout(PAGE_PATIENCE)
    page.goto((demo.folder / "index.html").as_uri())
    here = page.locator(".bars th").all_inner_texts()
    page.goto((demo.folder / room.PAGES[2]).as_uri())
    page.wait_for_selector("#strongest li")
    there = page.locator("#strongest .name").all_inner_texts()
    page.close()
    assert here == there[: len(here)]


def test_every_page_opens_without_a_complaint_or_a_request(demo: Any, browser: Any) -> None:
    heard: list[str] = []
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.set_default_timeout(PAGE_PATIENCE)
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on(
        "request",
        lambda request: request.url.startswith(("file:", "data:")) or heard.append(request.url),
    )
    for link in range(3):
        page.goto((demo.folder / "index.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.locator("a.go").nth(link).click()
        page.wait_for_selector("h1")
    page.close()
    assert heard == []


def test_opening_the_first_page_is_left_to_the_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(folder: Path, *, say: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
        for name in room.PAGES:
            (folder / name).write_text("page", encoding="utf-8")
        return ("found",), {"number": 1}

    opened: list[str] = []
    monkeypatch.setattr(room, "run", made)
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["demo", "--out", str(tmp_path / "pages"), "--open", "--quiet"]) == 0
    assert opened == [(tmp_path / "pages" / "index.html").as_uri()]
    assert main(["demo", "--out", str(tmp_path / "pages")]) == 2
    assert "--force" in capsys.readouterr().err


def test_a_case_leaves_random_numbers_and_threads_alone(tmp_path: Path) -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first, _ = explain_functions(tmp_path / "page.html", epochs=1)
    second, _ = explain_functions(tmp_path / "again.html", epochs=1)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert first == second
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "again.html").read_bytes()


def test_an_image_becomes_an_address_that_holds_it() -> None:
    pytest.importorskip("PIL")
    import base64
    import io

    from PIL import Image

    picture = np.random.default_rng(0).uniform(size=(5, 4, 3)).astype(np.float32)
    content = base64.b64decode(image_url(picture).partition(",")[2])
    np.testing.assert_allclose(
        np.asarray(Image.open(io.BytesIO(content))) / 255, picture, atol=0.5 / 255
    )
