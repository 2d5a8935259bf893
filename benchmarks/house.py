"""The size of the house, and how many of its files and functions a user's call enters.

Counts files, lines, functions and their median length; walks `fit`, explaining, compiling, the report, images and
neighbours under a profiler hook on 300 × 4 rows with one thread; and times imports in fresh processes. Any checkout can
be measured the same way:

    python -m benchmarks house                       # this one
    PYTHONPATH=other/src python -m benchmarks house --print-only
"""

from __future__ import annotations

import argparse
import ast
import statistics
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nobsp

SOURCE = Path(nobsp.__file__).parent
REPEATS = 5
IMPORTS = {
    "import nobsp": "import nobsp",
    "import nobsp; nobsp.NObSP": "import nobsp; nobsp.NObSP",
    "import nobsp; nobsp.NObSPCam": "import nobsp; nobsp.NObSPCam",
    "import torch (the floor of both)": "import torch",
}


def sizes() -> dict[str, float]:
    """Files, lines, functions and the median length of a function."""
    paths = list(SOURCE.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    functions = [
        node.end_lineno - node.lineno + 1
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    return {
        "files": len(paths),
        "lines": sum(len(text.splitlines()) for text in texts),
        "functions": len(functions),
        "median length of a function": statistics.median(functions),
    }


@contextmanager
def walked() -> Iterator[set[tuple[str, str, int]]]:
    """Every function of the package that is entered, by file, name and line."""
    entered: set[tuple[str, str, int]] = set()
    inside = str(SOURCE)

    def see(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(inside) and code.co_name != "<module>":
            entered.add((code.co_filename, code.co_name, code.co_firstlineno))

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walks(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Name of a call, files and functions it enters."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    X, images = torch.randn(300, 4), torch.rand(40, 3, 32, 32)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    pictures = nn.Sequential(body, nn.Linear(16, 3)).eval()
    explainer, cam = nobsp.NObSP(net), nobsp.NObSPCam(pictures)
    kept: dict[str, Any] = {}

    def keep(name: str, value: Any) -> Any:
        kept[name] = value
        return value

    index = nobsp.ContributionIndex(explainer)
    steps: list[tuple[str, Callable[[], Any]]] = [
        ("NObSP(model).fit(X)", lambda: explainer.fit(X)),
        ("explainer(X)", lambda: keep("ex", explainer(X))),
        ("explainer.compile()", lambda: keep("compiled", explainer.compile())),
        ("compiled(X)", lambda: kept["compiled"](X)),
        ("nobsp.report(explanation)", lambda: nobsp.report(kept["ex"], folder / "report.html")),
        ("explainer.save(path)", lambda: explainer.save(folder / "explainer")),
        ("NObSP.load(path, model)", lambda: nobsp.NObSP.load(folder / "explainer", net)),
        ("NObSPCam(model).fit(images)", lambda: cam.fit(images)),
        ("cam(images)", lambda: cam(images)),
        ("index.fit(X)", lambda: index.fit(X)),
        ("index.query(X)", lambda: index.query(X[:5])),
    ]
    for name, step in steps:
        # The second call of a process does not import anything; modules at work while being imported are no walk.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step()
            with walked() as entered:
                step()
        yield name, len({file for file, _, _ in entered}), len(entered)


def import_times() -> Iterator[tuple[str, float]]:
    """Seconds of an import in a fresh process, the median of several, the interpreter's own start taken off."""
    measure = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
    for name, code in IMPORTS.items():
        runs = [
            subprocess.check_output([sys.executable, "-c", measure.format(code)], text=True)
            for _ in range(REPEATS)
        ]
        yield name, statistics.median(map(float, runs))


def table() -> str:
    import tempfile

    lines = ["| the house | |", "|---|---:|"]
    lines += [f"| {name} | {value:,g} |" for name, value in sizes().items()]
    lines += ["", "| call | files | functions |", "|---|---:|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        lines += [
            f"| `{name}` | {files} | {functions} |"
            for name, files, functions in walks(Path(folder))
        ]
    lines += ["", "| import | seconds |", "|---|---:|"]
    lines += [f"| `{name}` | {seconds:.2f} |" for name, seconds in import_times()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--print-only", action="store_true", help="do not write benchmarks/results/house.md"
    )
    parser.add_argument("--quick", action="store_true", help="as it is: it takes a minute")
    given = parser.parse_args()
    text = table()
    print(text)
    if not given.print_only:
        path = Path(__file__).parent / "results" / "house.md"
        path.write_text(
            f"# The house\n\nMade by `python -m benchmarks house`.\n\n{text}\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
