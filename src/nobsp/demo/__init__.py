"""Three small networks on data that is included: trained, explained, audited, and shown."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nobsp import __version__

if TYPE_CHECKING:
    from nobsp.demo.networks import Cells, Digits, Functions

__all__ = ["PAGES", "Findings", "run"]

PAGES = ("index.html", "known-functions.html", "breast-cancer.html", "digits.html")
Array = NDArray[np.float64]
# Size of a small drawing.
_WIDTH, _HEIGHT = 120.0, 84.0


@dataclass(frozen=True)
class Findings:
    """What the demo found: five sentences, every number in them measured, and the same numbers by name."""

    lines: tuple[str, ...]
    numbers: dict[str, Any]


def run(folder: Path, *, say: Callable[[str], None] = lambda _: None) -> Findings:
    """Trains three networks, explains and audits them, and writes a page for each and one that links to them.

    Args:
        folder: Where the pages go; it must exist.
        say: Called with what is being done.

    Returns:
        What was found.

    Raises:
        ImportError: If the extra "report" is not installed.
    """
    import torch

    from nobsp.demo.networks import explain_cells, explain_digits, explain_functions

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these networks are too small for a second thread to pay its way
    try:
        say("1 of 3: training a network on known functions, and taking it apart")
        functions = explain_functions(folder / PAGES[1], epochs=300)
        say("2 of 3: breast cancer cells")
        cells = explain_cells(folder / PAGES[2], epochs=40)
        say("3 of 3: handwritten digits")
        images = explain_digits(folder / PAGES[3], epochs=12)
    finally:
        torch.set_num_threads(threads)
    (folder / PAGES[0]).write_text(_index(functions, cells, images), encoding="utf-8")
    return _findings(functions, cells, images)


def _findings(functions: Functions, cells: Cells, images: Digits) -> Findings:
    strongest = ", ".join(name for name, _ in cells.strongest[:3])
    kept = {0: "no interaction", 1: "one interaction"}.get(cells.pairs, f"{cells.pairs} interactions")
    lines = (
        f"Known functions: the network's own R² on fresh rows is {functions.accuracy:.4f}; taken apart, it gives back "
        f"the four functions it was trained on with a mean R² of {functions.mean:.4f} (held-out R² of the account: "
        f"{functions.held_out:.4f}).",
        f"The column that plays no part gets {functions.null:.2%} of the output's spread.",
        f"Breast cancer: {cells.accuracy:.1%} of {cells.fresh} fresh cells are right; functions and {kept} explain its "
        f"log-odds with a held-out R² of {cells.held_out:.3f}, on the fresh cells {cells.explained:.3f}. Strongest: "
        f"{strongest}.",
        f"Digits: {images.accuracy:.1%} of {images.fresh} fresh ones are right; every map and its residual add up to "
        f"the logit, to {images.gap:.0e}.",
        f"Audit: of {images.planted} labels that were made wrong on purpose, {images.caught} are among the "
        f"{images.suspected} it suspects.",
    )
    numbers = {
        "known functions": {
            "network R²": functions.accuracy,
            "mean R² of functions": functions.mean,
            "R² of functions": functions.recovered,
            "share of the idle column": functions.null,
            "held-out R²": functions.held_out,
            "R² on fresh rows": functions.explained,
        },
        "breast cancer": {
            "accuracy": cells.accuracy,
            "held-out R²": cells.held_out,
            "R² on fresh rows": cells.explained,
            "interactions": cells.pairs,
            "strongest": [name for name, _ in cells.strongest],
        },
        "digits": {"accuracy": images.accuracy, "gap of the account": images.gap},
        "audit": {"planted": images.planted, "suspected": images.suspected, "caught": images.caught},
    }
    return Findings(lines, numbers)


def _index(functions: Functions, cells: Cells, images: Digits) -> str:
    import jinja2

    from nobsp.demo.networks import FORMULAS

    every = [curve for name in functions.recovered for curve in functions.curves[name][1:]]
    curves = []
    for name, (grid, learned, true) in functions.curves.items():
        # What plays no part is drawn to the scale of the others.
        scale = [learned, true] if name in functions.recovered else every
        paths = {"learned": _path(grid, learned, scale), "true": _path(grid, true, scale)}
        curves.append({**paths, "formula": FORMULAS[name], "r2": functions.recovered.get(name)})
    largest = max(size for _, size in cells.strongest)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((resources.files("nobsp.demo") / "index.html.j2").read_text(encoding="utf-8"))
    return template.render(
        version=__version__,
        pages=PAGES,
        functions=functions,
        curves=curves,
        cells=cells,
        bars=[{"name": name, "size": size, "share": size / largest} for name, size in cells.strongest],
        images=images,
        examples=[{"digit": d, "image": image_url(i), "overlay": image_url(o)} for d, i, o in images.examples],
        suspects=[{"given": g, "suggested": s, "image": image_url(i)} for g, s, i in images.suspects],
    )


def _path(x: Array, y: Array, scale: Sequence[Array]) -> str:
    """An SVG path through points, in a drawing that holds all curves of `scale` with some room."""
    low, high = min(float(curve.min()) for curve in scale), max(float(curve.max()) for curve in scale)
    room = 0.1 * (high - low)
    across = (x - x[0]) / (x[-1] - x[0]) * _WIDTH
    down = (high + room - y) / (high - low + 2 * room) * _HEIGHT
    return "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, down, strict=True))


def image_url(picture: NDArray[np.float32]) -> str:
    """An image (height, width, 3) from 0 to 1 as a data URL."""
    from nobsp.reporting.pictures import png

    return f"data:image/png;base64,{base64.b64encode(png(np.clip(picture, 0.0, 1.0))).decode('ascii')}"
