"""Walks the grid: every explainer on every case, what is already known taken from the file.

Everything that explains a network does so twice, calibrated (or averaged) on the rows the network was trained on
and on as many fresh rows. The difference matters: a network that fits its training targets almost perfectly
returns, on those rows, the targets themselves, and a regression on its outputs there is a regression on the
targets. On fresh rows an explanation can only find what the network has learned.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.kept import Kept
from benchmarks.recovery.designs import Case
from benchmarks.recovery.explainers import EXPLAINERS, Explainer
from benchmarks.recovery.problems import Problem, problem
from benchmarks.recovery.scores import determination, network_score, score

TRAINING, FRESH = "training rows", "fresh rows"
CALIBRATIONS = (TRAINING, FRESH)
Scores = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was found on one case.

    Attributes:
        network: The network's own R²: `r2` on held-out rows against the truth, `fit` on its training targets.
        methods: Scores by calibration and method; what learns from the rows by itself is under both.
    """

    network: Scores
    methods: dict[str, dict[str, Scores]]


def run(cases: Sequence[Case], *, cache: Path, explainers: Sequence[Explainer] = EXPLAINERS) -> dict[Case, Outcome]:
    """Scores of every case.

    Args:
        cases: Places in the grid.
        cache: Folder of trained networks and of results so far.
        explainers: What to run on each.
    """
    kept = Kept(cache / "recovery.jsonl")
    outcomes: dict[Case, Outcome] = {}
    bar = tqdm(cases, desc="recovery", unit="case", dynamic_ncols=True)
    for case in bar:
        bar.set_postfix_str(str(case))
        here = problem(case, cache / "networks")
        fit = determination(here.sample.targets, here.predict(here.sample.inputs))
        methods = {
            calibration: dict(_explained(here, calibration, explainers, kept, bar)) for calibration in CALIBRATIONS
        }
        outcomes[case] = Outcome({**network_score(here), "fit": fit}, methods)
    return outcomes


def _explained(
    here: Problem, calibration: str, explainers: Sequence[Explainer], kept: Kept, bar: tqdm[Case]
) -> Iterator[tuple[str, Scores]]:
    for explainer in explainers:
        asked = _asked(here, calibration, explainer)
        suffix = "-fresh" if explainer.network and calibration == FRESH else ""
        cell = f"{asked.case}{suffix}, {explainer.name}"
        bar.set_postfix_str(cell)
        found = kept.cell(cell, explainer.fingerprint(asked), partial(_scored, asked, explainer))
        yield from found.items()


def _scored(asked: Problem, explainer: Explainer) -> dict[str, Scores]:
    start = time.perf_counter()
    recovered = explainer.run(asked)
    seconds = time.perf_counter() - start
    return {name: score(asked, what) | {"seconds": seconds} for name, what in recovered.items()}


def _asked(here: Problem, calibration: str, explainer: Explainer) -> Problem:
    """The problem as this explainer sees it."""
    if not explainer.network:
        return Problem(here.case.data, here.sample, None)
    if calibration == TRAINING:
        return here
    return dataclasses.replace(here, sample=dataclasses.replace(here.sample, inputs=here.sample.fresh))
