"""Reports say the same to people and to machines, and races are fair."""

import json
import math

import pytest
import torch

from benchmarks import report
from benchmarks.networks import determination, feed_forward, train
from benchmarks.report import Column, Quoted, Race, Report, Spread, Table, race, timed, written


def table(*rows):
    return Table("Speeds", (Column("way"), Column("|x|", ".2f")), rows)


def made(**changes):
    parts = {
        "name": "walk",
        "title": "A walk",
        "tables": (table(("a", 1 / 3)),),
        "findings": ("short",),
    }
    return Report(**{**parts, "seeds": (0, 1), "settings": {"steps": 3}, **changes})


def test_ratio_of_a_race_is_the_median_over_pairs():
    # A spell that slows one pair tenfold moves both of its runs and leaves the ratio alone.
    assert Race(first=(2.0, 20.0, 2.2), second=(1.0, 10.0, 1.1)).ratio == pytest.approx(2.0)


def test_both_sides_of_a_race_run_equally_often_and_take_turns_at_going_first():
    order = []
    outcome = race(lambda: order.append("a"), lambda: order.append("b"), warm_up=1, repeats=4)
    assert order == ["a", "b", "a", "b", "b", "a", "a", "b", "b", "a"]
    assert len(outcome.first) == len(outcome.second) == 4


def test_times_of_a_race_go_to_the_side_they_were_taken_on(monkeypatch):
    cost = {"slow": 3.0, "fast": 1.0}
    monkeypatch.setattr(report, "seconds", lambda work: cost[work()])
    outcome = race(lambda: "slow", lambda: "fast", repeats=3)
    assert outcome.first == (3.0,) * 3
    assert outcome.second == (1.0,) * 3


def test_warm_up_runs_are_not_timed(monkeypatch):
    runs = []
    monkeypatch.setattr(report, "seconds", lambda work: (work(), float(len(runs)))[1])
    assert timed(lambda: runs.append(None), warm_up=2, repeats=3) == 4.0


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Spread((1.0, 3.0)), "2.00 ± 1.41"),
        (Spread((1.0,)), "1.00"),
        (Quoted(0.989, 0.001), "0.989 ± 0.001"),
        (None, "–"),
        (True, "yes"),
        ("as printed", "as printed"),
        (0.125, "0.12"),
    ],
)
def test_cells_are_written_as_a_reader_expects(cell, text):
    assert written(cell, ".2f") == text


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="'Speeds' has 3 cells, but there are 2 columns"):
        table(("a", 1.0, 2.0))


def test_columns_of_a_printed_table_line_up():
    lines = table(("short", 1.0), ("a longer name", 100.0)).text().splitlines()[2:]
    assert len({len(line) for line in lines}) == 1


def test_a_bar_in_a_heading_does_not_split_a_markdown_column():
    head = table(("a", 1.0)).markdown().splitlines()[2]
    assert head.replace("\\|", "").count("|") == 3


def test_machines_get_unrounded_numbers_and_every_repeat():
    cells = made(
        tables=(table(("third", 1 / 3), ("seeds", Spread((1.0, 2.0))), ("lost", math.nan)),)
    ).json()
    third, seeds, lost = json.loads(cells)["tables"]["Speeds"]
    assert third["|x|"] == 1 / 3
    assert seeds["|x|"]["values"] == [1.0, 2.0]
    assert lost["|x|"] is None


def test_a_report_says_where_and_how_it_was_made(tmp_path):
    for path in made().write(tmp_path):
        content = path.read_text(encoding="utf-8")
        for fact in ("short", torch.__version__, "steps", "threads"):
            assert fact in content


def test_a_report_tells_nothing_of_the_machine_s_folders(tmp_path):
    for path in made().write(tmp_path):
        content = path.read_text(encoding="utf-8")
        assert str(report.RESULTS.parents[1]) not in content
        assert str(tmp_path) not in content


@pytest.mark.parametrize("option", ["--quick", "--print-only"])
def test_committed_results_are_not_overwritten_by_a_trial_run(
    option, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    report.publish(made(), report.options("walk").parse_args([option]))
    assert "A walk" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_training_is_repeatable_and_leaves_the_random_state_alone():
    inputs = torch.linspace(-1, 1, 40)[:, None]
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first, second = (
        train(feed_forward(1, (8,), 1, seed=3), inputs, inputs.abs(), seed=3, epochs=2)
        for _ in range(2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert not first.training


def test_determination_is_one_for_the_truth_and_zero_for_its_mean():
    truth = torch.tensor([[1.0, 2.0], [3.0, 5.0], [8.0, 0.0]])
    assert determination(truth, truth).tolist() == [1.0, 1.0]
    assert determination(truth, truth.mean(0).expand_as(truth)).tolist() == pytest.approx(
        [0.0, 0.0], abs=1e-6
    )
