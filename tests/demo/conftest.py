"""The demo, run once as people run it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import run_process


@dataclass(frozen=True)
class Shown:
    """The folder of pages, and what was said."""

    folder: Path
    out: str
    err: str


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("demo") / "pages"
    words = [sys.executable, "-m", "nobsp", "demo", "--out", str(folder)]
    done = run_process(words)
    return Shown(folder, done.stdout, done.stderr)
