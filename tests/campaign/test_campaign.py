"""A sample of every part of the campaign, and what the campaign itself promises."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nobsp
from campaign import runner
from campaign.outcome import Outcome, judge_error, right
from campaign.part import Part
from campaign.parts import NAMES, part_named
from campaign.public import TARGETS
from campaign.public_results import RESULTS
from campaign.runner import run_cases, run_part
from campaign.soak import find_growth

# Parts that start many processes take the most time for what they tell; the campaign runs them in full.
SEED = 0


@pytest.fixture(autouse=True)
def short_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_MINUTES", "0.02")


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_a_part_has_no_defect(name: str) -> None:
    part = part_named(name)

    outcomes = dict(run_cases(part, SEED, range(part.sample)))

    defects = {
        number: f"{outcome.case}: {outcome.detail}"
        for number, outcome in outcomes.items()
        if outcome.verdict == "defect"
    }
    assert len(outcomes) == part.sample
    assert defects == {}


# Results, which have nothing to be called with, and what scikit-learn, Milvus and the engines do by themselves.
NOT_CALLED = re.compile(
    r"(ActivationMaps|Audit|Comparison|Explanation|Finding|Functions|Health|Influence|Milvus|Neighbors"
    r"|PartsExplanation|Pruned|Ranks|ShapeCheck|WeakSpot)"
    r"|metrics\.[A-Z]\w+|\w+\.(get|set)_\w+|\w+\.(start|close|issue_manager|evidence_source)"
    # Rows of estimators are checked by scikit-learn, in the words that its own tests ask for.
    r"|(NObSPClassifier|NObSPRegressor|Selector)\.\w+|Functions\.fit"
    # The same as another name.
    r"|(NObSP|NObSPCam)\.explain|PartsExplanation\.(contrast|order|to_frame|to_probability|to_shap|top)"
)


def public_names() -> set[str]:
    """Every public function, class and method that takes something."""
    names: set[str] = set()
    for name in nobsp.__all__:
        value = getattr(nobsp, name)
        if inspect.ismodule(value):
            names |= {f"{name}.{inner}" for inner in value.__all__}
        elif callable(value):
            names.add(name)
        if inspect.isclass(value):
            methods = inspect.getmembers(value, callable)
            names |= {
                f"{name}.{method}"
                for method, function in methods
                if not method.startswith("_") and len(inspect.signature(function).parameters) > 1
            }
    return names


def test_every_public_name_is_tried() -> None:
    tried = {target.name for target in (*TARGETS, *RESULTS)}
    missing = {name for name in public_names() - tried if not NOT_CALLED.fullmatch(name)}
    assert missing == set()


def test_a_case_is_the_same_whatever_ran_before_it() -> None:
    part = part_named("numbers")

    alone = part.run(SEED, 3)
    outcomes = [part.run(SEED, number) for number in range(4)]

    assert outcomes[3] == alone


def run_here(part: Part, seed: int, cases: Iterable[int]) -> Iterator[tuple[int, Outcome]]:
    """Cases in this process."""
    for case in cases:
        yield case, part.run(seed, case)


def test_an_interrupted_run_goes_on_after_its_last_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = replace(part_named("numbers"), run=lambda _, number: right(f"case {number}"))
    monkeypatch.setattr(runner, "run_cases", run_here)
    run_part(part, seed=SEED, count=2, folder=tmp_path)
    told: list[int] = []

    record = run_part(
        part, seed=SEED, count=3, folder=tmp_path, report=lambda number, _: told.append(number)
    )

    assert told == [2]
    assert sorted(record.outcomes) == [0, 1, 2]


def test_errors_from_deep_inside_are_defects() -> None:
    with pytest.raises(ValueError, match="broadcast") as raised:
        np.zeros(3) + np.zeros(4)
    assert judge_error("case", raised.value, ["X"]).verdict == "defect"


def test_growth_is_told_from_scatter() -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(size=200)
    assert find_growth(flat, noise=0.0) is None
    assert find_growth(flat + np.linspace(0, 20, 200), noise=0.0) is not None


def test_every_part_states_what_it_tries() -> None:
    for name in NAMES:
        part = part_named(name)
        assert isinstance(part, Part)
        assert part.sample <= part.count
        assert right(part.tried).verdict == "right"
