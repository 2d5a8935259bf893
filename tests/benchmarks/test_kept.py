"""An interrupted run goes on where it was, and old results are not taken for new."""

import os
import signal
import textwrap
from pathlib import Path

import pytest

from benchmarks import kept
from benchmarks.kept import Kept, fingerprint
from tests.processes import run_python

ROOT = Path(__file__).parents[2]


def test_a_cell_is_computed_once_for_all_runs(tmp_path):
    computed = []
    for _ in range(2):
        result = Kept(tmp_path / "cells.jsonl").cell(
            "iris", "a", lambda: computed.append(1) or {"score": 0.5}
        )
        assert result == {"score": 0.5}
    assert computed == [1]


def test_other_settings_are_another_result(tmp_path):
    cells = Kept(tmp_path / "cells.jsonl")
    cells.put("iris", fingerprint({"steps": 25}), 1)
    assert cells.get("iris", fingerprint({"steps": 50})) is None
    assert cells.cell("iris", fingerprint({"steps": 50}), lambda: 2) == 2
    assert cells.get("iris", fingerprint({"steps": 25})) == 1


def test_a_killed_run_keeps_what_it_had(tmp_path):
    run = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from benchmarks.kept import Kept
        cells = Kept(Path(sys.argv[1]))
        for number in range(4):
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            cells.cell(f"cell {number}", "same", lambda: number * 10)
        """
    )
    path = tmp_path / "cells.jsonl"
    ended = run_python(run, path, cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    again = Kept(path)
    assert [again.get(f"cell {number}", "same") for number in range(4)] == [0, 10, None, None]


@pytest.mark.parametrize("torn", [1, 7, 30])
def test_a_line_cut_short_costs_its_own_result_only(tmp_path, torn):
    path = tmp_path / "cells.jsonl"
    cells = Kept(path)
    cells.put("first", "same", 1)
    cells.put("second", "same", 2)
    os.truncate(path, path.stat().st_size - torn)
    again = Kept(path)
    assert (again.get("first", "same"), again.get("second", "same")) == (1, None)
    again.put("third", "same", 3)
    last = Kept(path)
    assert [last.get(name, "same") for name in ("first", "second", "third")] == [1, None, 3]


def test_two_processes_may_add_to_one_file(tmp_path):
    one, other = Kept(tmp_path / "cells.jsonl"), Kept(tmp_path / "cells.jsonl")
    one.put("a", "same", 1)
    other.put("b", "same", 2)
    one.put("c", "same", 3)
    assert [Kept(tmp_path / "cells.jsonl").get(name, "same") for name in "abc"] == [1, 2, 3]


def test_a_quick_run_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Kept(None).cell("iris", "a", lambda: 1) == 1
    assert not list(tmp_path.iterdir())


def test_fingerprints_follow_the_code(tmp_path, monkeypatch):
    assert fingerprint(test_a_quick_run_writes_nothing) != fingerprint(
        test_fingerprints_follow_the_code
    )
    assert kept.rooms("projection") != kept.rooms("projection/moments.py")
    assert fingerprint(1, "a") == fingerprint(1, "a")
