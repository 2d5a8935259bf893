"""Draws the pictures of docs/plots.md by running the code above each of them.

python docs/_gallery.py
"""

import re
from io import BytesIO
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

DOCS = Path(__file__).parent
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n!\[[^]]*\]\(([^)]*)\))?", re.MULTILINE | re.DOTALL)


def draw(page: Path) -> None:
    """Runs a page's blocks of code in one go, and keeps the figure of each block that a picture follows."""
    names: dict[str, object] = {}
    for code, picture in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(code, str(page), "exec"), names)
        if picture:
            keep(plt.gcf(), DOCS / picture)
            plt.close("all")


def keep(figure: Figure, path: Path) -> None:
    """Saves a figure with few colours, which is a third of the size and looks the same."""
    path.parent.mkdir(exist_ok=True)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=90)
    Image.open(drawn).convert("RGB").quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    draw(DOCS / "plots.md")
