"""The counts of how densely code is written, on sources whose counts are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.density import Density, measure_tree

PACKED = '''"""A module."""


def first(one, *, how):
    """Documented."""
    a, b = one, how
    return a
'''


def measure(folder: Path, text: str) -> Density:
    (folder / "module.py").write_text(text, encoding="utf-8")
    return measure_tree(folder)


def test_docstrings_comments_and_blank_lines_are_no_tokens(tmp_path: Path) -> None:
    plain = measure(tmp_path, "a = 1\nb = 2\n")
    explained = measure(tmp_path, '"""Text."""\n\n# why\na = 1  # why\n\nb = 2\n')

    assert plain.tokens == explained.tokens == 6
    assert plain.tokens_per_line == explained.tokens_per_line == 3


def test_packed_assignments_and_pronouns_are_counted(tmp_path: Path) -> None:
    density = measure(tmp_path, PACKED)

    assert density.packed_per_thousand == pytest.approx(1000 / 3)
    assert density.with_pronouns == 1


@pytest.mark.parametrize(("separator", "share"), [("\n", 1), ("\n\n", 0)])
def test_long_functions_without_a_blank_line(tmp_path: Path, separator: str, share: int) -> None:
    steps = separator.join(["    x = 1"] * 20)

    assert measure(tmp_path, f"def long():\n{steps}\n").without_blank_line == share


def test_functions_of_many_branches_and_tokens(tmp_path: Path) -> None:
    branches = "    if x: pass\n" * 16
    tokens = "    x = 1\n" * 133

    density = measure(tmp_path, f"def decide(x):\n{branches}\ndef compute(x):\n{tokens}")

    assert density.many_branches == 1
    assert density.many_tokens == 1
