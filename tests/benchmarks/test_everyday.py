"""Everyday situations: every one has a name of its own, and a row is met only where a number or a finding is true."""

from __future__ import annotations

import pytest

from benchmarks.everyday.registry import Outcome, Situation, all_situations, situation


def build() -> Outcome:
    return Outcome(headline=0.9, fresh=0.5)


def test_situations_of_all_modules_are_there() -> None:
    assert {"independent rows, 2,000 × 10", "2 calibration rows"} <= set(all_situations())


def test_a_name_is_taken_once() -> None:
    taken = next(iter(all_situations()))
    with pytest.raises(ValueError, match="two situations"):
        situation(taken)(build)


def test_a_wrong_headline_needs_a_finding_that_names_it() -> None:
    case = Situation("a case", build, findings=("clusters",))
    assert case.holds(Outcome(headline=0.9, fresh=0.88))
    assert case.holds(Outcome(headline=0.9, fresh=0.5, codes=("clusters", "economy")))
    assert not case.holds(Outcome(headline=0.9, fresh=0.5, codes=("economy",)))
    assert not case.holds(Outcome(failure="ValueError"))


def test_an_error_of_the_package_is_an_outcome() -> None:
    def fail() -> Outcome:
        raise ValueError("groups has one value")

    assert Situation("a case", fail).run().failure == "ValueError: groups has one value"
