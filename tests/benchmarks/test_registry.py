"""Every table can be run by its name."""

import importlib.util
import sys

import pytest

from benchmarks.__main__ import TABLES, main

EXPECTED = (
    "deploy", "differences", "sights", "triples",
    "synthetic", "faithfulness", "agreement", "deletion", "accounts", "sparseness", "pixel-faithfulness",
    "thorough", "class-token", "calibration-time", "purity", "audit", "statistics", "speed", "recovery", "models",
    "choosing", "varying", "audit-values", "select", "texts",
    "speed-neighbours", "unseen", "trees", "house", "headline", "bands", "halves", "everyday", "influence",
    "speed-published", "parts", "prune",
    "compare", "compare-errors", "shapes", "swapped", "deploy", "reruns", "native",
)  # fmt: skip


def test_every_table_is_there_with_a_line_about_it():
    assert set(TABLES) == set(EXPECTED)
    assert all(says and "\n" not in says for _, says in TABLES.values())


@pytest.mark.parametrize("table", TABLES)
def test_the_module_of_a_table_can_be_run(table):
    module = TABLES[table][0]
    found = importlib.util.find_spec(module)
    assert found is not None
    if found.submodule_search_locations is not None:
        assert importlib.util.find_spec(f"{module}.__main__") is not None


@pytest.mark.parametrize("arguments", [[], ["--list"]])
def test_tables_are_listed(arguments, capsys):
    main(arguments)
    assert all(name in capsys.readouterr().out for name in ("faithfulness",))


def test_a_misspelt_table_gets_the_close_one(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["faithfullness"])
    assert ended.value.code == 2
    assert "did you mean faithfulness?" in capsys.readouterr().err


def test_options_after_the_name_go_to_the_table(capsys):
    before = list(sys.argv)
    with pytest.raises(SystemExit) as ended:
        main(["calibration-time", "--help"])
    assert ended.value.code == 0
    assert "--threads" in capsys.readouterr().out
    assert sys.argv == before
