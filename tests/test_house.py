"""The house stays small, and its rooms keep to their own doors."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "nobsp"
MOST_FILES = 115
MOST_LINES = 22_000
# A module with one importer and fewer lines than this belongs to its importer.
FEWEST_LINES = 80
# What is alone by its nature: a first page of a room, a plot a file, a command a file.
MAY_BE_SMALL = {"__init__", "__main__"}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def room(module: str) -> str:
    return module.split(".")[1] if module.count(".") else module


def test_the_house_has_no_more_files_and_lines_than_agreed(capsys: pytest.CaptureFixture[str]) -> None:
    paths = modules().values()
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
    with capsys.disabled():
        print(f"\nsrc has {len(paths)} files (at most {MOST_FILES}) and {lines:,} lines (at most {MOST_LINES:,})")
    assert len(paths) <= MOST_FILES, "merge small files, or delete what a new one replaces"
    assert lines <= MOST_LINES, "delete what the new lines replace"


def test_a_small_module_with_one_importer_is_part_of_it() -> None:
    known = modules()
    importers: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        for imported in imports(path) & known.keys() - {name}:
            importers[imported].add(name)
    lonely = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, path in known.items()
        if len(importers[name]) == 1 and path.stem not in MAY_BE_SMALL
    }
    small = {
        name: f"{lines} lines, used by {importers[name]}" for name, lines in lonely.items() if lines < FEWEST_LINES
    }
    assert not small, small


def test_no_room_reaches_for_another_rooms_private_names() -> None:
    """`from nobsp.x.y import _name`, and `thing._name` where no class of the same room defines that name."""
    owners: dict[str, set[str]] = defaultdict(set)  # private attribute -> rooms that define it
    uses: list[tuple[str, str, int]] = []
    imported: list[str] = []
    for name, path in modules().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nobsp"):
                private = [a.name for a in node.names if a.name.startswith("_") and not a.name.startswith("__")]
                imported += [f"{name}: {node.module}.{one}" for one in private if room(node.module) != room(name)]
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_"):
                owners[node.name].add(room(name))
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                if isinstance(node.ctx, ast.Store) or (
                    isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                ):
                    owners[node.attr].add(room(name))
                else:
                    uses.append((name, node.attr, node.lineno))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id.startswith("_"):
                owners[node.target.id].add(room(name))
    ours = {attribute for attribute, rooms in owners.items() if rooms}
    crossing = [
        f"{name}:{line} .{attribute}"
        for name, attribute, line in uses
        if attribute in ours and room(name) not in owners[attribute]
    ]
    assert not imported, imported
    assert not crossing, crossing
