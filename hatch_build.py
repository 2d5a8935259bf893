"""The long description and the links of a release.

The README links to files beside it, which do not exist where a package is listed. With `NOBSP_REPOSITORY`, the
address of the repository, links lead there, to the version that is built; without it their text stays and no
address is made up.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[([^][]*)\]\((?!https?://|#|mailto:|\[)([^)\s]+)\)")
SOURCE = re.compile(r'(src|srcset)="(?!https?://)([^"]+)"')
PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)


class ReleaseMetadata(MetadataHookInterface):
    """Fills in what depends on where the project lives."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets the long description and, where the repository is known, the project's addresses."""
        root = Path(self.root)
        version = read_version(root)
        repository = os.environ.get("NOBSP_REPOSITORY", "").rstrip("/")
        readme = (root / "README.md").read_text(encoding="utf-8")

        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": describe(readme, repository=repository, version=version),
        }
        metadata["urls"] = {}
        if repository:
            metadata["urls"] = {
                "Source": repository,
                "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }


def read_version(root: Path) -> str:
    """The version as the package states it."""
    text = (root / "src" / "nobsp" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, flags=re.MULTILINE)
    if match is None:
        raise ValueError('src/nobsp/__init__.py has no line __version__ = "…".')
    return match[1]


def describe(readme: str, *, repository: str, version: str) -> str:
    """The README with links that work elsewhere."""
    if not repository:
        return LINK.sub(r"\1", PICTURE.sub("", readme))
    files = f"{repository}/blob/v{version}"
    pictures = f"{repository}/raw/v{version}"
    linked = LINK.sub(rf"[\1]({files}/\2)", readme)
    return SOURCE.sub(rf'\1="{pictures}/\2"', linked)
