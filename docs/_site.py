"""What of the site is made and not written: tutorials, a page for every public name, and texts for language models."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

import nobsp

sys.path.insert(0, str(Path(__file__).parent))

from _cells import read_script
from _examples import make, scripts

# Guides to parts that come and go with their code.
OPTIONAL = ("compare.md", "functions.md", "parts.md")
# The site's Markdown by address, gathered while pages are read.
_TEXTS: dict[str, str] = {}


def public_names() -> list[str]:
    """Everything a user may rely on."""
    return [name for name in nobsp.__all__ if not name.startswith("_")]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the reference into the navigation, and leaves out pages that are not there."""
    pages = [{name: f"reference/{name}.md"} for name in sorted(public_names(), key=str.lower)]
    for section in config.nav or []:
        if "Reference" in section:
            section["Reference"] = [
                {"All names": "reference/index.md"},
                *pages,
                *section["Reference"],
            ]
    config.nav = _without_missing(config.nav, Path(config.docs_dir))
    return config


def _without_missing(nav: Any, docs: Path) -> Any:
    """The navigation without optional pages that are not there."""
    if isinstance(nav, list):
        entries = [entry for entry in nav if entry not in OPTIONAL or (docs / entry).exists()]
        return [_without_missing(entry, docs) for entry in entries]
    if isinstance(nav, dict):
        return {title: _without_missing(entry, docs) for title, entry in nav.items()}
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made."""
    for path, content in reference_pages().items():
        files.append(File.generated(config, path, content=content))
    for path, content in tutorial_pages(str(config.nav)).items():
        files.append(File.generated(config, path, content=content))
    return files


def reference_pages() -> dict[str, str]:
    """A page for every public name, filled from its docstring by mkdocstrings."""
    pages = {}
    rows = []
    for name in sorted(public_names(), key=str.lower):
        options = "    options:\n      heading_level: 1\n"
        pages[f"reference/{name}.md"] = f"::: nobsp.{name}\n{options}"
        value = getattr(nobsp, name)
        summary = (value.__doc__ or "").strip().partition("\n")[0]
        rows.append(f"| [`{name}`]({name}.md) | {summary.replace('|', chr(92) + '|')} |")
    table = "\n".join(["| name | |", "|---|---|", *rows])
    pages["reference/index.md"] = (
        "# All names\n\n"
        "What `import nobsp` offers. Each has an example that is run with the tests; what changes "
        f"follows the policy in GOVERNANCE.md of the repository.\n\n{table}\n"
    )
    return pages


def tutorial_pages(nav: str) -> dict[str, str | bytes]:
    """The pages of the examples with what they drew and wrote, and a page that shows them in the order of `nav`."""
    pages: dict[str, str | bytes] = {}
    cards = []
    for script in sorted(scripts(), key=lambda script: nav.find(f"tutorials/{script.stem}.md")):
        folder = make(script)
        content = read_script(script)
        for path in sorted(folder.iterdir()):
            if path.name != "fingerprint":
                pages[f"tutorials/{path.name}"] = path.read_bytes()
        pages[f"tutorials/{script.stem}.md"] = (folder / f"{script.stem}.md").read_text("utf-8")
        cards.append(card_of(script.stem, content.title, sorted(folder.glob("*.png"))))
    pages["tutorials/index.md"] = TUTORIALS.format(cards="\n".join(cards))
    return pages


TUTORIALS = """# Tutorials

Each is a script of some seconds on data that come with it, run when these pages were made; what you see is
what it printed and drew. Download it as a notebook or a script at the foot of its page.

<div class="gallery" markdown="0">
{cards}
</div>
"""


def card_of(name: str, title: str, pictures: list[Path]) -> str:
    """A picture and a title that lead to a tutorial."""
    head, _, rest = title.partition(":")
    picture = f'<img src="{pictures[0].name}" alt="">' if pictures else ""
    return f'<a href="{name}.html">{picture}<strong>{head}</strong>{rest.strip().capitalize()}</a>'


def on_page_markdown(markdown: str, page: Page, **_: Any) -> None:
    """Remembers a page's text."""
    _TEXTS[page.file.src_uri] = markdown


_NAVIGATION: list[Navigation] = []


def on_nav(nav: Navigation, **_: Any) -> None:
    """Remembers the order of the pages."""
    _NAVIGATION[:] = [nav]


def on_post_build(config: MkDocsConfig) -> None:
    """Writes llms.txt, the pages with a line about each, and llms-full.txt, all of their text."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    whole = list(lines)
    for item in _NAVIGATION[0].items:
        lines += [f"## {item.title}", ""]
        for page in pages_of(item):
            text = _TEXTS.get(page.file.src_uri, "")
            lines.append(f"- [{page.title}]({page.file.dest_uri}): {first_sentence(text)}")
            whole += [f"<!-- {page.file.dest_uri} -->", "", _without_data(text), ""]
        lines.append("")
    site = Path(config.site_dir)
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
    (site / "llms-full.txt").write_text("\n".join(whole), encoding="utf-8")


def pages_of(item: Any) -> list[Page]:
    """The pages below an entry of the navigation, in order."""
    if isinstance(item, Section):
        return [page for child in item.children for page in pages_of(child)]
    return [item] if isinstance(item, Page) else []


def first_sentence(markdown: str) -> str:
    """What a page is about: the first sentence of its text."""
    without_code = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    for paragraph in without_code.split("\n\n"):
        text = " ".join(paragraph.split())
        if text and not re.match(r"#|```|!\[|<|:::|\||- |:::", text):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
            return re.split(r"(?<=[.?!])\s", plain)[0][:240]
        if text.startswith(":::"):
            value = getattr(nobsp, text.split()[1].removeprefix("nobsp."), None)
            return (getattr(value, "__doc__", "") or "").strip().partition("\n")[0]
    return ""


def _without_data(markdown: str) -> str:
    """Text without what was drawn and shown."""
    return re.sub(r'<div class="output-html">.*?</div>', "", markdown, flags=re.DOTALL)
