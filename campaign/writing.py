"""Everything that writes a file, and how to tell that what is there is whole; for the parts on kills and disks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import nobsp
from campaign.subjects import COLUMNS, fingerprint, make_network, make_rows, world

# Enough rows that a write takes some milliseconds, in which it can be cut off.
STEP = 400


class NotWholeError(Exception):
    """What is there is neither the old file nor a new one."""


@dataclass(frozen=True)
class Writer:
    """Something that writes, again and again, and a check of what is there."""

    name: str
    write: Callable[[Path, int], None]  # (folder, number of the write)
    check: Callable[[Path], None]  # raises NotWholeError


def _alternating(
    name: str, write: Callable[[Path, int], None], read: Callable[[Path], Any], file: str
) -> Writer:
    """Writes one of two things in turn; afterwards it must be one of the two."""

    @cache
    def expected() -> frozenset[str]:
        import tempfile

        prints = set()
        for number in (0, 1):
            with tempfile.TemporaryDirectory() as folder:
                write(Path(folder), number)
                prints.add(fingerprint(read(Path(folder) / file)))
        return frozenset(prints)

    def check(folder: Path) -> None:
        path = folder / file
        if path.exists() and fingerprint(read(path)) not in expected():
            raise NotWholeError(f"{file} is neither of the two that were written")

    return Writer(name, write, check)


@cache
def _explainers() -> tuple[Any, Any]:
    made = []
    for seed in (0, 1):
        explainer = nobsp.NObSP(
            make_network(), features=list(COLUMNS), interactions=0, background=4
        )
        made.append(explainer.fit(make_rows(rows=STEP, seed=seed)))
    return (made[0], made[1])


def _save(folder: Path, number: int) -> None:
    _explainers()[number % 2].save(folder / "explainer")


def _read_explainer(path: Path) -> list[np.ndarray]:
    loaded = nobsp.NObSP.load(path, _explainers()[0].model)
    values: np.ndarray = loaded(make_rows(rows=5)).values
    return [np.round(values, 9) + 0.0]


def _add(folder: Path, number: int) -> None:
    """Adds rows to the index that is there, and saves it again."""
    path = folder / "index"
    explainer = _explainers()[0]
    rows = make_rows(rows=STEP, seed=number)
    labels = np.arange(STEP) % 3
    if path.exists():
        index = nobsp.ContributionIndex.load(path, explainer).add(rows, labels)
    else:
        index = nobsp.ContributionIndex(explainer).fit(rows, labels)
    index.save(path)


def _check_index(folder: Path) -> None:
    path = folder / "index"
    if not path.exists():
        return
    index = nobsp.ContributionIndex.load(path, _explainers()[0])
    if len(index) % STEP or len(index) == 0:
        raise NotWholeError(f"the index has {len(index)} rows, which is no multiple of {STEP}")
    hits = index.query(make_rows(rows=5, seed=0)[:1], 1)
    if not np.isfinite(hits.distances).all():
        raise NotWholeError("the index does not answer")


def _stream(parts: int = 12) -> Any:
    for part in range(parts):
        yield make_rows(rows=50, seed=part)


def _calibrate(folder: Path) -> Any:
    explainer = nobsp.NObSP(
        _explainers()[0].model,
        baseline="zero",
        features=list(COLUMNS),
        interactions=0,
        background=4,
    )
    return explainer.fit(_stream(), engine=nobsp.Local(folder / "under-way", every=0))


@cache
def _uninterrupted() -> np.ndarray:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        values: np.ndarray = _calibrate(Path(folder))(make_rows(rows=5)).values
        return values


def _checkpoint(folder: Path, _: int) -> None:
    _calibrate(folder)


def _check_checkpoint(folder: Path) -> None:
    """The same call resumes, and ends as if nothing had happened."""
    values = _calibrate(folder)(make_rows(rows=5)).values
    if not np.allclose(values, _uninterrupted(), atol=1e-9):
        raise NotWholeError("the resumed calibration differs from an uninterrupted one")


def _report(folder: Path, number: int) -> None:
    explanation = _explainers()[number % 2](make_rows(rows=40))
    nobsp.report(explanation, folder / "page.html", title=f"page {number % 2}")


def _read_page(path: Path) -> list[np.ndarray]:
    return [np.frombuffer(path.read_bytes(), dtype=np.uint8)]


def _apply(folder: Path, number: int) -> None:
    """`nobsp audit --apply`: a table without the rows that were to be dropped, and a log."""
    from nobsp.cli import main

    table = folder / "table.csv"
    decisions = folder / f"decisions-{number % 2}.json"
    if not table.exists():
        _tables()[0].to_csv(table, index=False)
    count = 10 + 10 * (number % 2)
    drops = [{"row": row, "name": str(row), "decision": "drop"} for row in range(count)]
    decisions.write_text(json.dumps(drops))
    words = ["audit", "--data", table, "--target", "label", "--apply", decisions]
    code = main([str(word) for word in (*words, "--out", folder / "cleaned", "--force")])
    if code != 0:
        raise NotWholeError(f"the command ended with code {code}")


@cache
def _tables() -> tuple[pd.DataFrame]:
    frame = pd.DataFrame(make_rows(rows=STEP), columns=list(COLUMNS))
    return (frame.assign(label=np.arange(STEP) % 3),)


def _check_cleaned(folder: Path) -> None:
    path = folder / "cleaned" / "cleaned.csv"
    if not path.exists():
        return
    rows = len(pd.read_csv(path))
    if rows not in (STEP - 10, STEP - 20):
        raise NotWholeError(f"cleaned.csv has {rows} rows")


def _save_functions(folder: Path, number: int) -> None:
    _explainers()[number % 2].compile().save(folder / "functions")


def _read_functions(path: Path) -> list[np.ndarray]:
    values: np.ndarray = nobsp.Functions.load(path)(make_rows(rows=5)).values
    return [values]


def _save_cam(folder: Path, number: int) -> None:
    cam = world().cam if number % 2 == 0 else _other_cam()
    cam.save(folder / "cam")


@cache
def _other_cam() -> Any:
    return nobsp.NObSPCam(world().image_network).fit(world().images[:6])


def _read_cam(path: Path) -> list[np.ndarray]:
    loaded = nobsp.NObSPCam.load(path, world().image_network)
    return [np.round(loaded(world().images[:2]).account, 6) + 0.0]


SAVE = _alternating("save", _save, _read_explainer, "explainer")
FUNCTIONS = _alternating("functions", _save_functions, _read_functions, "functions")
CAM = _alternating("cam", _save_cam, _read_cam, "cam")
REPORT = _alternating("report", _report, _read_page, "page.html")
ADD = Writer("add", _add, _check_index)
CHECKPOINT = Writer("checkpoint", _checkpoint, _check_checkpoint)
APPLY = Writer("audit --apply", _apply, _check_cleaned)


def leftovers(folder: Path) -> list[str]:
    """Drafts of writes that did not end."""
    return sorted(path.name for path in folder.rglob("*") if ".part" in path.name)
