"""Pages with markup and script in every name, opened in Chromium: nothing runs, nothing leaves the page."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import nobsp
from campaign.outcome import Outcome, clear, defect, describe, right
from campaign.part import Part, generator
from campaign.subjects import make_image_network, make_images, make_network, make_rows

# What marks that something of a name was run.
MARK = "document.documentElement.dataset.ran = 'yes'"
OUTSIDE = "https://example.invalid/x"

PAYLOADS = (
    f"<script>{MARK}</script>",
    f"</script><script>{MARK}</script>",
    f'"><img src=x onerror="{MARK}">',
    f'<svg onload="{MARK}">',
    f"javascript:{MARK}",
    f"<iframe src='{OUTSIDE}'></iframe>",
    f"<img src='{OUTSIDE}'>",
    f"<link rel=stylesheet href='{OUTSIDE}'>",
    f"<a href='javascript:{MARK}'>click</a>",
    "{{ 7 * 7 }}{% raw %}",
    "${alert(1)}`",
    "<!--<script>",
    "]]></style><style>body{display:none}",
    f"<base href='{OUTSIDE}'>",
    f"<form action='{OUTSIDE}'><button>go</button></form>",
    f'<meta http-equiv="refresh" content="0;url={OUTSIDE}">',
    "\u202eright to left\u2066",
    "\x07 control \U0001f41d",
    '=HYPERLINK("https://example.invalid")',
    "a" * 3000,
)

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@cache
def _browser() -> Any:
    """A real Chromium for this process; None where there is none."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    from playwright.sync_api import sync_playwright

    playwright = sync_playwright().start()
    browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)

    def close() -> None:
        browser.close()
        playwright.stop()

    atexit.register(close)
    return browser


def _distinct(payload: str, count: int) -> list[str]:
    return [f"{payload} {position}" for position in range(count)]


def _table_page(payload: str, path: Path) -> None:
    X = make_rows(rows=30)
    names = _distinct(payload, 3)
    outputs = _distinct(payload, 3)
    explainer = nobsp.NObSP(
        make_network(), features=names, output_names=outputs, background=4, interactions=[names[:2]]
    ).fit(X)
    labels = np.array(outputs * 10)
    nobsp.report(
        explainer(X),
        path,
        title=payload,
        about=payload,
        labels=labels,
        class_names=outputs,
        names=_distinct(payload, 30),
    )


def _category_page(payload: str, path: Path) -> None:
    """Levels of a category with markup in them."""
    import pandas as pd
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    X = pd.DataFrame({"level": _distinct(payload, 3) * 10, "other": ["a", "b"] * 15})
    model = make_pipeline(OneHotEncoder(), LinearRegression()).fit(X, np.arange(30.0))
    nobsp.report(nobsp.NObSP(model, interactions=0).fit(X)(X), path, title=payload)


def _image_page(payload: str, path: Path) -> None:
    images = make_images(images=6)
    names = _distinct(payload, 3)
    cam = nobsp.NObSPCam(make_image_network(), output_names=names).fit(images)
    nobsp.report(
        cam(images),
        path,
        title=payload,
        images=images,
        names=_distinct(payload, 6),
        labels=names * 2,
    )


def _index(payload: str) -> tuple[Any, np.ndarray]:
    X = make_rows(rows=30)
    outputs = _distinct(payload, 3)
    explainer = nobsp.NObSP(make_network(), output_names=outputs, background=4, interactions=0).fit(
        X
    )
    return nobsp.ContributionIndex(explainer).fit(X, np.array(outputs * 10)), X


def _neighbours_page(payload: str, path: Path) -> None:
    index, X = _index(payload)
    nobsp.report(index.query(X, 3), path, title=payload, names=_distinct(payload, 30))


def _audit_page(payload: str, path: Path) -> None:
    index, _ = _index(payload)
    found = nobsp.audit(index, k=3)
    nobsp.report(found, path, title=payload, names=_distinct(payload, 30))


PAGES: tuple[Callable[[str, Path], None], ...] = (
    _table_page,
    _category_page,
    _image_page,
    _neighbours_page,
    _audit_page,
)


def run(seed: int, case: int) -> Outcome:
    """One page with one kind of hostile name."""
    rng = generator(seed, "pages", case)
    make = PAGES[case % len(PAGES)]
    payload = PAYLOADS[(case // len(PAGES) + int(rng.integers(1))) % len(PAYLOADS)]
    text = f"{make.__name__.strip('_').replace('_', ' ')} with {payload[:40]!r}"
    if _browser() is None:
        return clear(text, "not tried: there is no Chromium")
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        # The name of the file is one of the names.
        name = "".join(letter for letter in payload if letter.isprintable() and letter not in "/\0")
        path = Path(folder) / f"{name[:60]}.html"
        try:
            make(payload, path)
        except (ValueError, UnicodeError) as error:
            return defect(text, describe(error))
        if problem := _open(path):
            return defect(text, problem)
    return right(text)


def _open(path: Path) -> str | None:
    """What a page does that it must not; None if nothing."""
    context = _browser().new_context()
    page = context.new_page()
    dialogs: list[str] = []
    requests: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    try:
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=120_000)
        page.wait_for_timeout(100)
        ran = page.evaluate("document.documentElement.dataset.ran")
        policy = page.locator("meta[http-equiv=Content-Security-Policy]").count()
        frames = len(page.frames)
    finally:
        context.close()
    left = [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]
    if ran is not None or dialogs:
        return "a script in a name was run"
    if left:
        return f"asked for {left[0]}"
    if not policy:
        return "no content security policy"
    if frames > 1:
        return "a name became a frame"
    return None


PART = Part(
    name="pages",
    tried="names, levels, labels, titles and file names with markup and script in every kind of page, in Chromium",
    must="nothing runs, nothing leaves the page, a content security policy says so",
    count=100,
    sample=5,
    run=run,
    seconds=240.0,
)
