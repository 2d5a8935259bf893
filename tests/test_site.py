"""The site: tutorials from scripts, links, search without a server, and a page for everything that has a name."""

from __future__ import annotations

import ast
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def of_the_docs(name: str) -> ModuleType:
    """A module beside the pages, which is no part of the package."""
    sys.path.insert(0, str(DOCS))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(DOCS))


def pages_in(nav: Any) -> list[str]:
    """The pages of a navigation."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in entries for page in pages_in(entry)]


def navigation() -> list[str]:
    return pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_a_notebook_with_all_its_code(path: Path) -> None:
    cells = of_the_docs("_cells")
    script = cells.read_script(path)
    notebook = json.loads(cells.notebook_of(script))

    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    body = ast.parse(path.read_text(encoding="utf-8")).body[1:]  # without the docstring
    assert ast.dump(ast.parse("\n".join(code))) == ast.dump(ast.Module(body, []))
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert script.title
    assert script.about


def test_every_script_has_a_place_in_the_navigation() -> None:
    tutorials = {page for page in navigation() if page.startswith("tutorials/")}
    assert tutorials == {"tutorials/index.md", *(f"tutorials/{path.stem}.md" for path in SCRIPTS)}


def test_every_page_has_a_place_in_the_navigation() -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert written <= set(navigation())


def test_a_page_shows_what_its_script_printed_drew_and_wrote(tmp_path: Path) -> None:
    cells = of_the_docs("_cells")
    path = tmp_path / "small.py"
    path.write_text(
        '"""A title\n\nWhat it shows.\n"""\n\n# %%\n# Some text.\nimport matplotlib.pyplot as plt\n\n'
        'print("seen")\n\n# %%\n# A line.\nplt.plot([1, 2])\n\n# %%\nnumber = 6\nnumber * 7\n\n# %%\n'
        'from pathlib import Path\n\nPath("page.html").write_text("<p>hello</p>") and None\n',
        encoding="utf-8",
    )
    folder = tmp_path / "made"
    folder.mkdir()
    script = cells.read_script(path)
    page = cells.page_of(script, cells.run_script(script, path, folder), folder)

    assert page.startswith("# A title\n\nWhat it shows.")
    assert "seen" in page
    assert "![A line.](small-2-1.png)" in page
    assert (folder / "small-2-1.png").stat().st_size > 0
    assert "\n42\n" in page
    assert 'src="page.html"' in page


@pytest.mark.parametrize(
    ("drawn", "written"),
    [
        ("plt.figure(figsize=(4, 1)).subplots().plot([1, 2])", "(small-1-1.png)\n"),
        ("plt.figure(figsize=(2, 2)).subplots().plot([1, 2])", "(small-1-1.png){ .whole }\n"),
        ("plt.figure(figsize=(4, 1)).subplots().imshow([[1, 2]], cmap='gray')", "(small-1-1-photo.png)\n"),
        ("plt.figure(figsize=(4, 1)).subplots().imshow([[[0.5, 0, 0]]])", "(small-1-1-photo.png)\n"),
        ("plt.figure(figsize=(4, 1)).subplots().imshow([[1, 2]], cmap='gray_r')", "(small-1-1.png)\n"),
    ],
)  # fmt: skip
def test_narrow_figures_are_whole_and_photographs_stay_as_they_are_in_the_dark(
    tmp_path: Path, drawn: str, written: str
) -> None:
    cells = of_the_docs("_cells")
    path = tmp_path / "small.py"
    path.write_text(
        f'"""A title"""\n\n# %%\n# A line.\nimport matplotlib.pyplot as plt\n\n{drawn}\n',
        encoding="utf-8",
    )
    script = cells.read_script(path)
    page = cells.page_of(script, cells.run_script(script, path, tmp_path), tmp_path)
    assert written in page


def test_a_warning_in_a_script_fails_the_build(tmp_path: Path) -> None:
    cells = of_the_docs("_cells")
    path = tmp_path / "loud.py"
    path.write_text('"""A title"""\n\n# %%\nimport warnings\n\nwarnings.warn("beware")\n')
    with pytest.raises(UserWarning, match="beware"):
        cells.run_script(cells.read_script(path), path, tmp_path)


PAGE = '<html data-md="__md_scope"><h1 id="top">x</h1>{body}</html>'


@pytest.mark.parametrize(
    ("body", "complaints"),
    [
        ('<a href="other.html#top">fine</a><a href="https://example.org">elsewhere</a>', 0),
        ('<a href="missing.html">x</a>', 1),
        ('<a href="other.html#nowhere">x</a>', 1),
        ('<script src="https://example.org/x.js"></script>', 1),
        ('<img src="missing.png">', 1),
    ],
)
def test_links_that_lead_nowhere_and_what_is_fetched_are_found(
    tmp_path: Path, body: str, complaints: int
) -> None:
    (tmp_path / "index.html").write_text(PAGE.format(body=body))
    (tmp_path / "other.html").write_text(PAGE.format(body=""))
    assert len(of_the_docs("_links").check(tmp_path)) == complaints


def test_links_of_documents_beside_the_site_lead_to_files() -> None:
    for document in ROOT.glob("*.md"):
        text = document.read_text(encoding="utf-8")
        addresses = re.findall(r"\]\((?!https?://|#|\[)([^)#\s]+)", text)
        addresses += re.findall(r'(?:src|srcset)="(?!https?://)([^"]+)"', text)
        for address in addresses:
            assert (ROOT / address).exists(), f"{document.name} links to {address}"


def finding_codes() -> set[str]:
    """The codes of all findings that the package can make."""
    codes = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            # One list of notes has a shorter way to write them.
            names = {"Finding": 1, "note": 0} if path.stem == "examination" else {"Finding": 1}
            position = names.get(node.func.id)
            if position is None or len(node.args) <= position:
                continue
            code = node.args[position]
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                codes.add(code.value)
    return codes


def test_every_finding_is_explained_under_troubleshooting() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    codes = finding_codes()
    assert len(codes) > 30
    assert {code for code in codes if f"`{code}`" not in page} == set()


SEARCH = """async () => {
    const worker = new Worker("worker.js");
    return await new Promise((resolve) => {
        worker.addEventListener("message", (event) => resolve(event.data));
        worker.postMessage(20);
    });
}"""


def test_a_worker_answers_in_a_page_that_is_opened_as_a_file(browser: Any, tmp_path: Path) -> None:
    """Search runs in a worker, which browsers refuse to pages that are files."""
    shim = (DOCS / "assets" / "iframe-worker.js").read_text(encoding="utf-8")
    (tmp_path / "page.html").write_text(f"<!doctype html><script>{shim}</script>")
    (tmp_path / "worker.js").write_text(
        'addEventListener("message", (event) => postMessage(event.data * 2 + 2));'
    )
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate(SEARCH) == 42
    page.close()
