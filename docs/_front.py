"""Draws the picture of the front page, light and dark: curves with bands, one account, maps, and the page.

python docs/_front.py

Needs matplotlib, playwright and chromium. The numbers are those of examples/regression.py and examples/images.py.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from _cells import read_script  # noqa: E402 - beside this file

EXAMPLES = DOCS.parent / "examples"
OUT = DOCS / "pictures"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# Colours of the usual host's pages.
SCHEMES = {"light": ("#ffffff", "#1f2328"), "dark": ("#0d1117", "#e6edf3")}
# Letters are a tenth of an inch: pages show the picture at half of its pixels, where they must still be read.
WIDE, HIGH, DPI = 9.6, 6.0, 160
# Blue that is read on a dark ground.
BRIGHT = "#4db5f0"


def run(name: str, folder: Path) -> dict[str, Any]:
    """The names that an example leaves behind; what it writes goes into a folder."""
    import os

    path = EXAMPLES / f"{name}.py"
    names: dict[str, Any] = {}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for cell in read_script(path).cells:
            exec(compile(cell.code, str(path), "exec"), names)
            plt.close("all")
    finally:
        os.chdir(before)
    return names


def photograph(page: Path, scheme: str) -> np.ndarray:
    """A page as a browser shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        context = browser.new_context(
            viewport={"width": 900, "height": 520}, color_scheme=scheme, device_scale_factor=1.5
        )
        tab = context.new_page()
        tab.goto(page.as_uri())
        tab.wait_for_timeout(1500)
        shot = tab.screenshot()
        browser.close()
    return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))


def draw(scheme: str, rents: dict[str, Any], digits: dict[str, Any], page: Path) -> None:
    """One picture."""
    paper, ink = SCHEMES[scheme]
    style = ["dark_background"] if scheme == "dark" else ["default"]
    colours = {
        "figure.facecolor": paper,
        "axes.facecolor": paper,
        "savefig.facecolor": paper,
        "text.color": ink,
        "axes.labelcolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": "#30363d" if scheme == "dark" else "#d0d7de",
        "font.size": 11,
    }
    with plt.style.context(style), plt.rc_context(colours):
        figure = plt.figure(figsize=(WIDE, HIGH), layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=[1, 1.15], hspace=0.04)
        curves, account = upper.subfigures(1, 2, width_ratios=[1.25, 1])
        maps, shown = lower.subfigures(1, 2, width_ratios=[1, 1.5])

        panels = curves.subplots(1, 2, sharey=True)
        rents["explainer"].plot.curves(["size", "distance"], ax=panels)
        if scheme == "dark":
            for line in [line for panel in panels for line in panel.get_lines()]:
                line.set_color(BRIGHT if line.get_linewidth() > 1.2 else line.get_color())
        curves.suptitle("functions, with bands", fontweight="bold")
        bars = account.add_subplot()
        rents["ex"].plot.waterfall(3, ax=bars)
        low, high = bars.get_xlim()
        bars.set_xlim(low - 0.08 * (high - low), high)  # numbers stand left of bars
        for line in bars.get_xgridlines():
            line.set_color(colours["grid.color"])
        account.suptitle("one prediction, to the last digit", fontweight="bold")

        draw_maps(maps, digits)
        maps.suptitle("evidence for and against", fontweight="bold")
        ax = shown.add_subplot()
        ax.imshow(photograph(page, scheme))
        ax.set_xticks([])
        ax.set_yticks([])
        shown.suptitle("a page to open anywhere", fontweight="bold")
        save(figure, OUT / f"front-{scheme}.png")
        plt.close(figure)


def draw_maps(figure: Any, digits: dict[str, Any]) -> None:
    """Some digits, and what speaks for the class that was predicted and against it."""
    images = digits["images"][1200:]
    maps = digits["maps"]
    wanted = [3, 5, 8]
    rows = [int(np.flatnonzero(maps.target == digit)[0]) for digit in wanted]
    overlays = maps[rows].overlay(images[rows], opacity=0.9)
    panels = figure.subplots(2, len(rows))
    for column, row in enumerate(rows):
        panels[0, column].imshow(images[row, 0], cmap="gray")
        panels[1, column].imshow(overlays[column])
        panels[0, column].set_title(
            f"a {maps.target[row]}: {maps.confidence[row]:.0%}", fontsize=10
        )
    for panel in panels.flat:
        panel.set_xticks([])
        panel.set_yticks([])


def save(figure: Any, path: Path) -> None:
    """Saves a figure with few colours, which is a third of the size and looks the same."""
    path.parent.mkdir(exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI)
    picture = Image.open(drawn).convert("RGB")
    picture.quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rents = run("regression", folder)
        digits = run("images", folder)
        for scheme in SCHEMES:
            draw(scheme, rents, digits, folder / "rents.html")
