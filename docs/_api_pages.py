"""Adds a reference page for every room of the package that exists."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).parents[1] / "src" / "nobsp"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Writes `reference/<room>.md` in memory; mkdocstrings fills it from the docstrings."""
    for front_door in sorted(PACKAGE.glob("*/__init__.py")):
        room = front_door.parent.name
        page = f"# {room}\n\n::: nobsp.{room}\n    options:\n      show_root_heading: false\n"
        files.append(File.generated(config, f"reference/{room}.md", content=page))
    return files
