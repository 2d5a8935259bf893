"""Writes docs/licences.md: what an installation brings, extra by extra, and under which licence.

python release/licences.py
"""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
# Extras that only the project's own benchmarks need.
LEFT_OUT = ("all", "bench")
# What the metadata of a package calls its licence in more words than needed.
SHORTER = {
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
}
HEADER = """# Licences

nobsp is under Apache-2.0. What it needs, and what its extras bring, is installed beside it and not copied into it. The
one exception is plotly.js (MIT), which `nobsp.report` writes into the pages it makes.

As the packages state it themselves:

| package | needed for | licence |
|---|---|---|
"""


def licence_of(name: str) -> str:
    """The licence as the installed package states it, in few words."""
    about = metadata.metadata(name)
    stated = about.get("License-Expression")
    if not stated:
        classifiers = about.get_all("Classifier") or []
        named = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License")]
        stated = (
            " or ".join(name for name in named if name != "OSI Approved")
            or str(about.get("License") or "").strip().partition("\n")[0]
            or "see its license file"
        )
    for longer, shorter in SHORTER.items():
        stated = stated.replace(longer, shorter)
    return re.sub(r"\s+", " ", stated)


def declared() -> dict[str, list[str]]:
    """Names of packages with what needs them: "core", or extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        name: lines
        for name, lines in project["optional-dependencies"].items()
        if name not in LEFT_OUT
    }
    uses: dict[str, list[str]] = {}
    for use, lines in {"core": project["dependencies"], **extras}.items():
        for requirement in map(Requirement, lines):
            uses.setdefault(canonicalize_name(requirement.name), []).append(use)
    return uses


def main() -> None:
    """Writes the page."""
    rows = [
        f"| {name} | {', '.join(uses)} | {licence_of(name)} |" for name, uses in declared().items()
    ]
    PAGE.write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
