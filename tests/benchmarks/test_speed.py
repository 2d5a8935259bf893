"""The table of speeds says what was measured, keeps what is done, and a failure costs one part only."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.speed import __main__ as speed
from benchmarks.speed import growth, ratios, scale
from benchmarks.speed.ratios import Ratio, raced


def test_a_speed_up_and_a_cost_are_two_ways_to_read_the_same_times() -> None:
    faster = raced("walk", [1.0, 2.0, 1.0], "crawl", [40.0, 80.0, 50.0], target=40)
    assert faster.ratio == 40
    assert faster.met
    slower = raced("walk", [1.2, 1.2], "run", [1.0, 1.0], target=1.3, cost=True)
    assert slower.ratio == pytest.approx(1.2)
    assert slower.met
    assert not replace(slower, target=1.1).met
    assert replace(slower, target=None).met is None


def test_a_ratio_survives_its_file() -> None:
    ratio = raced("walk", [1.0, 2.0], "crawl", [4.0, 6.0], target=3)
    assert Ratio.of(json.loads(json.dumps(ratio.plain()))) == ratio


def test_a_ratio_is_written_with_its_range_and_its_target() -> None:
    what, ours, against, ratio, span, target, met = raced(
        "walk", [1.0, 2.0], "crawl", [4.0, 6.0], target=3
    ).cells()
    assert (what, ours, against) == ("walk", "1.50 s", "crawl: 5.00 s")
    assert (ratio, span, target, met) == ("3.50", "3.00 to 4.00", "≥ 3.00", True)
    assert "met" in ratios.table("Ratios", [], "").text()


def test_growth_finds_the_power_that_times_grow_with() -> None:
    rounds = [[3.0 * size**1.5 for size in (8, 16, 32)], [5.0 * size**1.4 for size in (8, 16, 32)]]
    assert growth.Growth("terms", "rows", (8, 16, 32), rounds).exponents == pytest.approx(
        (1.5, 1.4)
    )


# ---------------------------------------------------------------------- scale


COSTS = scale.Costs(
    reference="terms",
    columns=4001,
    look=1e-6,
    forward=5e-4,
    add=1e-3,
    join=0.25,
    settle=30.0,
    solve=2.0,
    sums=128 * 10**6,
    sent=128 * 10**6,
    bases=16 * 10**6,
    blocks=1,
    passes=1,
)


def test_the_estimate_is_rows_times_cost_over_workers() -> None:
    found = scale.estimate(COSTS, rows=10**9, workers=64)
    assert found.adding == pytest.approx(1e-3 * 1e9 / 64)
    assert found.parts == -(-(10**9) // 65_536)
    assert found.traffic == pytest.approx(found.parts * 128e6 * 8 / 7)
    assert found.total > found.adding + found.looking + found.settling
    assert scale.estimate(COSTS, workers=128).adding == pytest.approx(found.adding / 2)
    assert scale.estimate(replace(COSTS, passes=2)).adding == pytest.approx(2 * found.adding)


def test_where_sending_takes_longer_than_adding_up_it_is_sending_that_counts() -> None:
    cheap = replace(COSTS, add=1e-9, sent=10**12)
    found = scale.estimate(cheap)
    assert found.total > found.sending > found.adding


def test_tables_of_scale_say_all_that_was_measured() -> None:
    every = [COSTS, replace(COSTS, reference="complement", add=3e-3)]
    for table in (scale.cost_table(every), scale.estimate_table(every), scale.limit_table(every)):
        assert 'reference="complement"' in table.text()
    assert "4.3 h" in scale.estimate_table(every).text()


# ---------------------------------------------------------------------- the one table


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Stands in for the processes that measure; notes which were started."""
    started: list[str] = []

    def measured(part: str, chosen: Any) -> list[dict[str, Any]]:
        started.append(part)
        if part in FAILING:
            raise subprocess.CalledProcessError(1, part)
        return [raced(f"{part} done", [1.0, 1.0], "the other", [2.0, 3.0], target=2).plain()]

    monkeypatch.setattr(speed, "found_in_a_process", measured)
    monkeypatch.setattr(speed, "FOLDER", tmp_path / ".cache")
    monkeypatch.setattr(report.Report.write, "__defaults__", (tmp_path / "results",))
    FAILING.clear()
    return started


FAILING: set[str] = set()


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["speed", *arguments])
    speed.main()


def test_all_parts_are_one_table(
    parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(monkeypatch)
    assert parts == list(speed.PARTS)
    written = json.loads((tmp_path / "results" / "speed.json").read_text(encoding="utf-8"))
    assert [row["what"] for row in written["tables"]["Ratios"]] == [
        f"{part} done" for part in speed.PARTS
    ]
    assert written["machine"]["cores"]
    assert "streaming done" in capsys.readouterr().out


def test_a_part_that_fails_costs_itself_only_and_is_all_that_a_resumed_run_does(
    parts: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    FAILING.add("streaming")
    with pytest.raises(SystemExit, match="failed: streaming; run again with --resume"):
        run(monkeypatch)
    page = (tmp_path / "results" / "speed.md").read_text(encoding="utf-8")
    assert "Not measured, as it failed: streaming." in page
    assert "cam done" in page
    parts.clear()
    FAILING.clear()
    run(monkeypatch, "--resume")
    assert parts == ["streaming"]
    page = (tmp_path / "results" / "speed.md").read_text(encoding="utf-8")
    assert "streaming done" in page
    assert "cam done" in page
    parts.clear()
    run(monkeypatch)  # anew
    assert parts == list(speed.PARTS)


@pytest.mark.parametrize("arguments", [["--quick"], ["--print-only"], ["--only", "cam"]])
def test_a_trial_writes_no_results(
    arguments: list[str], parts: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run(monkeypatch, *arguments)
    assert not (tmp_path / "results").exists()


def test_every_part_has_its_ratios() -> None:
    for part in speed.PARTS:
        source = (Path(speed.__file__).parent / f"{part}.py").read_text(encoding="utf-8")
        assert "\ndef ratios(*, quick: bool) -> list[Ratio]:" in source
