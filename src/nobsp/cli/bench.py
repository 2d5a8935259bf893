"""`nobsp bench`: hands over to the benchmarks of a checkout."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from nobsp.cli.console import Console, Misuse


def run(options: Namespace, _: Console) -> int:
    """Runs `python -m benchmarks` in the current folder and hands its exit code on."""
    if not Path("benchmarks", "__main__.py").is_file():
        raise Misuse(
            "there is no folder benchmarks here: it comes with the source of nobsp, not with the installed package. "
            "Clone the repository, pip install -e '.[bench]' in its folder, and run nobsp bench there."
        )
    asked = [options.table] if options.table else []
    asked += ["--quick"] if options.quick else []
    return subprocess.run([sys.executable, "-m", "benchmarks", *asked, *options.rest], check=False).returncode
