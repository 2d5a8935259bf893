"""Checks that rooms keep to their own doors: `make size`.

Names with an underscore may not be used outside the room that defines them.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "nobsp"


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


def find_trespasses(modules: dict[str, Path]) -> Iterator[str]:
    """Private names of one room that another one uses."""
    owners: dict[str, set[str]] = defaultdict(set)
    uses: list[tuple[str, int, str]] = []
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and room_of(node.module) != room_of(name)
            ):
                for alias in node.names:
                    if node.module.startswith("nobsp") and is_private(alias.name):
                        yield f"{name}:{node.lineno} imports {node.module}.{alias.name}"
            elif isinstance(node, ast.FunctionDef) and is_private(node.name):
                owners[node.name].add(room_of(name))
            elif (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and is_private(node.target.id)
            ):
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
    lines = sum(count_lines(path) for path in modules.values())
    print(f"src has {len(modules)} files and {lines:,} lines")  # noqa: T201

    problems = list(find_trespasses(modules))
    for problem in problems:
        print(problem)  # noqa: T201
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
