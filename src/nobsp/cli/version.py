"""`nobsp version`: what is installed."""

from __future__ import annotations

import platform
from argparse import Namespace
from importlib import metadata

from nobsp import __version__
from nobsp.cli.console import Console

_ASKED = ("torch", "numpy", "scikit-learn", "pandas", "polars", "pyarrow", "matplotlib", "plotly", "skops")


def run(_: Namespace, console: Console) -> None:
    """Says the versions, from what the installer wrote down: nothing is imported for it."""
    found = {"nobsp": __version__, "python": platform.python_version(), **{name: _version(name) for name in _ASKED}}
    lines = [f"nobsp {__version__}"]
    lines += [f"  {name:<13}{version or 'not installed'}" for name, version in found.items() if name != "nobsp"]
    console.results(lines, found)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
