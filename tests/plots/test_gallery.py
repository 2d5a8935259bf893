"""The page of pictures: its code is code, it names every plot, and each of its pictures is there."""

import ast
import re
from pathlib import Path

from nobsp import plots

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "plots.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def plots_called() -> set[str]:
    calls = [
        node
        for block in BLOCKS
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Attribute)
    ]
    return {
        node.attr for node in calls if isinstance(node.value, ast.Name) and node.value.id == "plots"
    }


def test_every_plot_is_in_the_gallery() -> None:
    assert plots_called() == set(plots.__all__)


def test_every_picture_is_there_and_every_one_there_is_shown() -> None:
    shown = {DOCS / path for path in re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE)}
    assert shown == set((DOCS / "plots").glob("*.png"))
    assert all(path.stat().st_size < 60_000 for path in shown)
