"""How the package reads: its density beside other projects, what a call enters, and import times.

Counts tokens per line, packed assignments, long functions and the like in this package as it was and as it is, and in
torch-cam, torchmetrics, effector and scikit-learn; walks `fit`, explaining, compiling, the report, images and
neighbours under a profiler hook on 300 × 4 rows with one thread; and times imports in fresh processes. Any checkout can
be measured the same way:

    python -m benchmarks house                       # this one
    python -m benchmarks house --quick               # density only, a few seconds
    PYTHONPATH=other/src python -m benchmarks house --print-only
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import nobsp
from benchmarks.density import Density, densest_files, density_table, measure_tree

SOURCE = Path(nobsp.__file__).parent
REPOSITORY = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "house.md"
# The last commit under the limit on lines, which was met by packing them.
BEFORE = "08d3337"
# Name on the package index, and folder of the sources.
COMPARED = {
    "torchcam": "torchcam",
    "torchmetrics": "torchmetrics",
    "effector": "effector",
    "scikit-learn": "sklearn",
}
# Importing varies from process to process by a tenth or so.
REPEATS = 3
IMPORTS = {
    "import nobsp": "import nobsp",
    "import nobsp; nobsp.NObSP": "import nobsp; nobsp.NObSP",
    "import nobsp; nobsp.NObSPCam": "import nobsp; nobsp.NObSPCam",
    "import torch (the floor of both)": "import torch",
}
# What the walks miss, and why.
WHY_SO_MANY = (
    "Asked for were 14 files of `fit` and 8 of explaining. Before files that are one step were put together, it was "
    "31 and 17. A file is counted where a single function of it runs. The files of `fit` have some 15,600 lines "
    "together; 14 of them would have 1,110 lines each, and things of different kinds would share a file. Of "
    "these files, 15 are steps of the method in `tabular`, of 190 to 1,090 lines; 4 are the model's side: rows in "
    "batches, what their columns look like, the guest and its head; one each the engine, the model's adapter, the "
    "checks of arguments and `numerics.py`. What only some calls need (weights, groups, columns before a "
    "preprocessing, trees, curves, files) has files of its own, which this `fit` does not enter. `health.py` "
    "is entered for R², for the order of findings and for which combinations of numbers are usual. "
    "Explaining enters the explainer, the calibrated model, the tables, three files of the model's side, the checks of "
    "arguments, and the health for the comparison with the headline. What is left to merge are steps of their own "
    "(grids with tables, selection with correction), which would be longer than a reader holds in the head. What was "
    "one file of findings, of 1,500 lines, is four by subject, and what was one of grids and of what they may "
    "cost, of 1,450, is two: four more that every call enters."
)
# The wheels are small; an index that does not answer by then is not there.
DOWNLOAD_SECONDS = 120


def measure_projects(folder: Path) -> dict[str, Density]:
    """Density of this package before and now, and of every other project that can be had."""
    measured: dict[str, Density] = {}

    before = extract_commit(BEFORE, folder / "before")
    if before is not None:
        measured["nobsp before"] = measure_tree(before)
    measured["nobsp"] = measure_tree(SOURCE)

    for project, package in COMPARED.items():
        source = find_source(project, package, folder)
        if source is not None:
            measured[project] = measure_tree(source)
    return measured


def extract_commit(commit: str, folder: Path) -> Path | None:
    """The sources of this package at a commit; None where there is no history."""
    command = ["git", "-C", str(REPOSITORY), "archive", commit, "src/nobsp"]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        print(f"Commit {commit} is not available here, so there is no column for it.")
        return None

    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src" / "nobsp"


def find_source(project: str, package: str, folder: Path) -> Path | None:
    """Where a project's sources are: in this environment, or downloaded into `folder`."""
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent

    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), project]
    try:
        subprocess.run(command, capture_output=True, check=True, timeout=DOWNLOAD_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        print(f"{project} is neither installed nor can it be downloaded (offline?): left out.")
        return None

    wheel = next(folder.glob(f"{package}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "wheels")
    return folder / "wheels" / package


@contextmanager
def watch_calls() -> Iterator[set[tuple[str, str, int]]]:
    """Every function of the package that is entered, by file, name and line."""
    entered: set[tuple[str, str, int]] = set()
    inside = str(SOURCE)

    def note_call(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(inside) and code.co_name != "<module>"
        if event == "call" and is_ours:
            entered.add((code.co_filename, code.co_name, code.co_firstlineno))

    threading.setprofile(note_call)
    sys.setprofile(note_call)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def prepare_calls(folder: Path) -> dict[str, Callable[[], object]]:
    """The calls to be followed, by what a user writes, each on the results of those before it."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)

    X = torch.randn(300, 4)
    network = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
    explainer = nobsp.NObSP(network)
    index = nobsp.ContributionIndex(explainer)

    images = torch.rand(40, 3, 32, 32)
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    cam = nobsp.NObSPCam(nn.Sequential(body, nn.Linear(16, 3)).eval())

    results: dict[str, Any] = {}

    def explain() -> None:
        results["explanation"] = explainer(X)

    def compile_functions() -> None:
        results["compiled"] = explainer.compile()

    return {
        "NObSP(model).fit(X)": lambda: explainer.fit(X),
        "explainer(X)": explain,
        "explainer.compile()": compile_functions,
        "compiled(X)": lambda: results["compiled"](X),
        "nobsp.report(explanation)": lambda: nobsp.report(
            results["explanation"], folder / "report.html"
        ),
        "explainer.save(path)": lambda: explainer.save(folder / "explainer"),
        "NObSP.load(path, model)": lambda: nobsp.NObSP.load(folder / "explainer", network),
        "NObSPCam(model).fit(images)": lambda: cam.fit(images),
        "cam(images)": lambda: cam(images),
        "index.fit(X)": lambda: index.fit(X),
        "index.query(X)": lambda: index.query(X[:5]),
    }


@dataclass(frozen=True)
class Walk:
    """What one call enters."""

    name: str
    files: Counter[str]  # how many of every room
    functions: int

    def rooms(self) -> str:
        """Files by room, most first."""
        return ", ".join(f"{room} {count}" for room, count in self.files.most_common())


def room_of(file: str) -> str:
    """The room that a file is in; those that stand by themselves are one room."""
    parts = Path(file).relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "by themselves"


def follow_calls(folder: Path) -> Iterator[Walk]:
    """Every call with the files and functions it enters."""
    for name, call in prepare_calls(folder).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")

            # The second call of a process imports nothing; what modules do while being imported is no walk.
            call()
            with watch_calls() as entered:
                call()

        files = {file for file, _, _ in entered}
        yield Walk(name, Counter(room_of(file) for file in files), len(entered))


def time_imports() -> Iterator[tuple[str, float]]:
    """Median seconds of the processor for an import in a fresh process, without the interpreter's own start."""
    # Not by the clock: where other work runs beside it, that tells more of the other work.
    script = "import time; t = time.process_time(); {}; print(time.process_time() - t)"
    for name, code in IMPORTS.items():
        command = [sys.executable, "-c", script.format(code)]
        seconds = [float(subprocess.check_output(command, text=True)) for _ in range(REPEATS)]
        yield name, statistics.median(seconds)


def describe_density(folder: Path) -> list[str]:
    """The table of densities, and the densest files."""
    lines = density_table(measure_projects(folder))

    lines += ["", "| densest files | tokens per line |", "|---|---:|"]
    for name, tokens in densest_files(SOURCE):
        lines.append(f"| `{name}` | {tokens:.1f} |")
    return lines


def describe_calls(folder: Path) -> list[str]:
    """The table of calls, and that of imports."""
    lines = ["| call | files | by room | functions |", "|---|---:|---|---:|"]
    for walk in follow_calls(folder):
        total = walk.files.total()
        lines.append(f"| `{walk.name}` | {total} | {walk.rooms()} | {walk.functions} |")
    lines += ["", WHY_SO_MANY]

    lines += ["", "| import | seconds of the processor |", "|---|---:|"]
    for name, seconds in time_imports():
        lines.append(f"| `{name}` | {seconds:.2f} |")
    return lines


def main() -> None:
    """Prints the tables, and writes them unless asked not to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--print-only", action="store_true", help=f"do not write {RESULT.name}")
    parser.add_argument("--quick", action="store_true", help="only the density; writes nothing")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = describe_density(folder)
        if not options.quick:
            lines += ["", *describe_calls(folder)]

    text = "\n".join(lines)
    print(text)
    if not options.quick and not options.print_only:
        introduction = "# How the package reads\n\nMade by `python -m benchmarks house`.\n\n"
        RESULT.write_text(introduction + text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
