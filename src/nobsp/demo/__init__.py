"""Three small networks on data that is included: trained, explained, audited, and shown."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp import __version__

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
    """Trains three networks, explains and audits them, and writes a page for each and one that links to them."""
    import torch

    from nobsp.demo.networks import FORMULAS, explain_cells, explain_digits, explain_functions
    from nobsp.reporting.build import fill_template

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these networks are too small for a second thread to pay its way
    try:
        say("1 of 3: training a network on known functions, and taking it apart")
        functions, curves = explain_functions(folder / PAGES[1], epochs=300)
        say("2 of 3: breast cancer cells")
        cells = explain_cells(folder / PAGES[2], epochs=40)
        say("3 of 3: handwritten digits")
        digits, examples, suspects = explain_digits(folder / PAGES[3], epochs=12)
    finally:
        torch.set_num_threads(threads)
    recovered, largest = functions["functions_r2"], max(cells["strongest"].values())
    # What plays no part is drawn to the scale of the others.
    every = [curve for name in recovered for curve in curves[name][1:]]
    index = fill_template(
        resources.files("nobsp.demo") / "index.html.j2",
        version=__version__,
        pages=PAGES,
        functions=functions,
        curves=[
            {
                "learned": draw_path(grid, learned, [learned, true] if name in recovered else every),
                "true": draw_path(grid, true, [learned, true] if name in recovered else every),
                "formula": FORMULAS[name],
                "r2": recovered.get(name),
            }
            for name, (grid, learned, true) in curves.items()
        ],
        cells=cells,
        bars=[{"name": name, "size": size, "share": size / largest} for name, size in cells["strongest"].items()],
        images=digits,
        examples=[{"digit": d, "image": image_url(i), "overlay": image_url(o)} for d, i, o in examples],
        suspects=[{"given": g, "suggested": s, "image": image_url(i)} for g, s, i in suspects],
    )
    (folder / PAGES[0]).write_text(index, encoding="utf-8")
    numbers = {"known functions": functions, "breast cancer": cells, "digits": digits}
    return Findings(_describe(functions, cells, digits), numbers)


def _describe(functions: Mapping[str, Any], cells: Mapping[str, Any], digits: Mapping[str, Any]) -> tuple[str, ...]:
    kept = {0: "no interaction", 1: "one interaction"}.get(cells["pairs"], f"{cells['pairs']} interactions")
    return (
        f"Known functions: the network's own R² on fresh rows is {functions['network_r2']:.4f}; taken apart, it gives "
        f"back the four functions it was trained on with a mean R² of {functions['mean_r2']:.4f} (held-out R² of the "
        f"account: {functions['held_out_r2']:.4f}).",
        f"The column that plays no part gets {functions['idle_share']:.2%} of the output's spread.",
        f"Breast cancer: {cells['accuracy']:.1%} of {cells['fresh']} fresh cells are right; functions and {kept} "
        f"explain its log-odds with a held-out R² of {cells['held_out_r2']:.3f}, on the fresh cells "
        f"{cells['fresh_r2']:.3f}. Strongest: {', '.join([*cells['strongest']][:3])}.",
        f"Digits: {digits['accuracy']:.1%} of {digits['fresh']} fresh ones are right; every map and its residual add "
        f"up to the logit, to {digits['gap']:.0e}.",
        f"Audit: of {digits['planted']} labels that were made wrong on purpose, {digits['caught']} are among the "
        f"{digits['suspected']} it suspects.",
    )


def draw_path(x: Array, y: Array, scale: Sequence[Array]) -> str:
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
