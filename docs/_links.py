"""Checks a built site without a network: every link leads somewhere, and nothing is fetched from elsewhere.

python docs/_links.py site
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself when it shows a page.
FETCHED = {"img": "src", "script": "src", "iframe": "src", "source": "srcset"}


@dataclass
class Content:
    """What a page links to, fetches and can be linked to."""

    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.content = Content()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes links, what is fetched, and names that can be linked to."""
        values = {name: value or "" for name, value in attrs}
        for name in ("id", "name"):
            if values.get(name):
                self.content.anchors.add(values[name])
        if tag == "a" and values.get("href"):
            self.content.links.append(values["href"])
        if tag in FETCHED and values.get(FETCHED[tag]):
            self.content.fetched.append(values[FETCHED[tag]])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.content.fetched.append(values["href"])


def read_page(path: Path) -> Content:
    """The links of a page."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.content


def check(site: Path) -> list[str]:
    """Everything that is wrong, in words."""
    # Pages of the package itself hold their scripts and have tests of their own.
    site = site.resolve()
    pages = {path: read_page(path) for path in sorted(site.rglob("*.html")) if is_ours(path)}
    complaints = []
    for path, content in pages.items():
        name = path.relative_to(site).as_posix()
        for address in content.fetched:
            if urlsplit(address).scheme in ("http", "https") or address.startswith("//"):
                complaints.append(f"{name} fetches {address}")
        for address in [*content.links, *content.fetched]:
            complaint = check_address(address, path, pages)
            if complaint:
                complaints.append(f"{name} links to {address}: {complaint}")
    return complaints


def is_ours(path: Path) -> bool:
    """Whether a page was made by the site and not by an example."""
    return path.name != "404.html" and "__md_scope" in path.read_text(encoding="utf-8")


def check_address(address: str, page: Path, pages: dict[Path, Content]) -> str:
    """What is wrong with an address; empty where nothing is, or where it leads elsewhere."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "there is no such file"
    anchors = pages[target].anchors if target in pages else {unquote(parts.fragment)}
    if parts.fragment and unquote(parts.fragment) not in anchors:
        return "there is no such place on the page"
    return ""


if __name__ == "__main__":
    found = check(Path(sys.argv[1]))
    print("\n".join(found) or "every link leads somewhere, and nothing is fetched from elsewhere")
    sys.exit(bool(found))
