"""Checks that the house stays small and that its rooms keep to their own doors: `make size`.

Limits the files and lines of the package, modules under 80 lines that have one importer (they belong to it), and names
with an underscore that are used outside the room that defines them.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "nobsp"
MOST_FILES = 85
MOST_LINES = 22_000
FEWEST_LINES = 80


def find_modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def find_small_modules(modules: dict[str, Path]) -> Iterator[str]:
    """Modules that should be a part of their only importer."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        for other in imported & modules.keys() - {name}:
            importers[other].add(name)
    for name, path in modules.items():
        lines = count_lines(path)
        if len(importers[name]) == 1 and not path.stem.startswith("__") and lines < FEWEST_LINES:
            yield f"{name} has {lines} lines and one importer, {next(iter(importers[name]))}; put it there"


def find_trespasses(modules: dict[str, Path]) -> Iterator[str]:
    """Private names of one room that another one uses."""
    owners: dict[str, set[str]] = defaultdict(set)
    uses: list[tuple[str, int, str]] = []
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and room_of(node.module) != room_of(name):
                for alias in node.names:
                    if node.module.startswith("nobsp") and is_private(alias.name):
                        yield f"{name}:{node.lineno} imports {node.module}.{alias.name}"
            elif isinstance(node, ast.FunctionDef) and is_private(node.name):
                owners[node.name].add(room_of(name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and is_private(node.target.id):
                owners[node.target.id].add(room_of(name))
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                if own or isinstance(node.ctx, ast.Store):
                    owners[node.attr].add(room_of(name))
                else:
                    uses.append((name, node.lineno, node.attr))
    for name, line, attribute in uses:
        # Names that no room defines are another library's.
        if owners[attribute] and room_of(name) not in owners[attribute]:
            yield f"{name}:{line} uses .{attribute} of {', '.join(sorted(owners[attribute]))}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def main() -> int:
    modules = find_modules()
    files, lines = len(modules), sum(map(count_lines, modules.values()))
    print(f"src has {files} files (at most {MOST_FILES}) and {lines:,} lines (at most {MOST_LINES:,})")  # noqa: T201
    problems = [*find_small_modules(modules), *find_trespasses(modules)]
    if files > MOST_FILES or lines > MOST_LINES:
        problems.insert(0, "src is too large: delete what was replaced")
    print("\n".join(problems), end="\n" if problems else "")  # noqa: T201
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
