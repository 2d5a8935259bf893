"""Walks the grid: every explainer on every case, what is already known taken from the file.

Everything is calibrated (or averaged) on fresh rows, as many as there are training rows, that no network saw. On the
rows a network was trained on, its outputs are all but the targets, and a regression on them is a regression on the
targets: scores above the network's own would be no knowledge of the network.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import RegularGridInterpolator
from tqdm import tqdm

from benchmarks.kept import Kept
from benchmarks.recovery.designs import FAMILIES, FEATURES, Case, correlated_uniform
from benchmarks.recovery.explainers import EXPLAINERS, Explainer
from benchmarks.recovery.problems import Problem, problem
from benchmarks.recovery.scores import determination, network_score, score

Scores = dict[str, Any]
# Rows over which the network's own effects are averaged, and cells of their tables along a feature.
OWN_ROWS, OWN_CELLS = 256, 16


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was found on one case.

    Attributes:
        network: The network's own R²: `r2` on held-out rows against the truth, `fit` on its training targets; and what
            it makes of what plays no part: `null`, `false_pair`.
        methods: Scores by method.
    """

    network: Scores
    methods: dict[str, Scores]


def run(
    cases: Sequence[Case],
    *,
    cache: Path,
    explainers: Sequence[Explainer] = EXPLAINERS,
    minutes: float = float("inf"),
) -> dict[Case, Outcome]:
    """Scores of every case; what takes longest comes last, so that an interrupted run says the most.

    Args:
        cases: Places in the grid.
        cache: Folder of trained networks and of results so far.
        explainers: What to run on each.
        minutes: When to stop: nothing is computed after that; what is already known is always there.
    """
    kept = Kept(cache / "recovery.jsonl")
    outcomes: dict[Case, Outcome] = {}
    end = time.monotonic() + 60 * minutes
    for dear in (False, True):
        bar = tqdm(cases, desc="recovery", unit="case", dynamic_ncols=True)
        for case in bar:
            late = time.monotonic() > end
            bar.set_postfix_str(str(case))
            if late and not any((cache / "networks").glob(f"{case}-*.safetensors")):
                continue
            here = problem(case, cache / "networks")
            if case not in outcomes:
                fit = determination(here.sample.targets, here.predict(here.sample.inputs))
                outcomes[case] = Outcome(
                    {**network_score(here), **own_effects(here), "fit": fit}, {}
                )
            some = [explainer for explainer in explainers if explainer.dear == dear]
            outcomes[case].methods.update(_explained(_fresh(here), some, kept, bar, known=late))
    return {case: outcome for case, outcome in outcomes.items() if "NObSP" in outcome.methods}


def own_effects(here: Problem) -> Scores:
    """What the network itself makes of the feature that plays no part, and of the largest pair that does not exist.

    Average effects by brute force over many rows, purified over the product of the marginals, nothing fitted: the
    spread on the held-out rows as a share of the output's.
    """
    family, held_out, spread = (
        FAMILIES[here.case.family],
        here.sample.held_out,
        here.sample.output.std(),
    )
    rows = correlated_uniform(OWN_ROWS, here.case.correlation, np.random.default_rng(0))
    middles = np.linspace(-2, 2, 2 * OWN_CELLS + 1)[1::2]  # of cells that hold as many rows each

    def size(features: tuple[int, ...]) -> float:
        nodes = np.stack(np.meshgrid(*[middles] * len(features), indexing="ij"), -1).reshape(
            -1, len(features)
        )
        asked = np.repeat(rows[None], len(nodes), 0)
        asked[:, :, list(features)] = nodes[:, None]
        table = here.predict(asked.reshape(-1, FEATURES)).reshape(len(nodes), -1).mean(1)
        table = table.reshape((OWN_CELLS,) * len(features))
        for axis in range(len(features)):
            table = table - table.mean(axis, keepdims=True)
        read = RegularGridInterpolator(
            [middles] * len(features), table, bounds_error=False, fill_value=None
        )
        return float(read(held_out[:, list(features)]).std() / spread)

    false = [
        pair for pair in itertools.combinations(range(FEATURES), 2) if pair not in family.true_pairs
    ]
    return {"null": max(size((k,)) for k in family.null), "false_pair": max(map(size, false))}


def _fresh(here: Problem) -> Problem:
    """The problem as explainers see it, with the rows that no network saw."""
    return dataclasses.replace(
        here, sample=dataclasses.replace(here.sample, inputs=here.sample.fresh)
    )


def _explained(
    here: Problem, explainers: Sequence[Explainer], kept: Kept, bar: tqdm[Case], *, known: bool
) -> Iterator[tuple[str, Scores]]:
    for explainer in explainers:
        cell = f"{here.case}, {explainer.name}"
        bar.set_postfix_str(cell)
        about = explainer.fingerprint(here)
        if not known:
            kept.cell(cell, about, partial(_scored, here, explainer))
        yield from (kept.get(cell, about) or {}).items()


def _scored(asked: Problem, explainer: Explainer) -> dict[str, Scores]:
    start = time.process_time()
    recovered = explainer.run(asked)
    seconds = time.process_time() - start
    return {name: score(asked, what) | {"seconds": seconds} for name, what in recovered.items()}
