"""Why faithfulness differs from the paper's: what the paper leaves open, varied one at a time on nine tables.

Algorithm 1 as published and Integrated Gradients, as in `faithfulness`, with networks trained for all 40 epochs instead
of stopped early, in other batches, calibrated on fewer rows, with features removed to zero instead of their mean, or
with contributions measured from their mean instead of from the baseline.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from captum.attr import IntegratedGradients
from tqdm import tqdm

from benchmarks import kept
from benchmarks.report import Column, Report, Table, publish
from benchmarks.tabular import problems
from benchmarks.tabular.faithfulness import PAPER, ROWS, SETTINGS
from benchmarks.tabular.methods import GRADIENTS
from benchmarks.tabular.walking import NAMES, Found, Scores, asked, mean
from nobsp import NObSP
from nobsp.metrics import ablation_effects, at_target, attribution_faithfulness

USUAL = "as in the table"
VARIATIONS: Mapping[str, Mapping[str, Any]] = {
    USUAL: {},
    "all 40 epochs": {"stopped": False},
    "batches of 16": {"batch": 16},
    "batches of 256": {"batch": 256},
    "batches of 1,024": {"batch": 1024},
    "500 rows": {"calibration": 500},
    "200 rows": {"calibration": 200},
    "from the mean": {"shifted": False},
    "to zero": {"zero": True},
    "to zero, from the mean": {"zero": True, "shifted": False},
    "to zero, from the mean, all 40 epochs": {"zero": True, "shifted": False, "stopped": False},
}


def scored(
    table: str,
    seed: int,
    *,
    stopped: bool = True,
    batch: int = problems.BATCH,
    calibration: int | None = None,
    zero: bool = False,
    shifted: bool = True,
) -> Scores:
    """Faithfulness of both methods on one network."""
    here = _problem(table, seed, stopped, batch)
    rows = here.data.X_train
    baseline = np.zeros(rows.shape[1]) if zero else rows.mean(axis=0)
    if calibration is not None:
        rows = rows[np.random.default_rng(seed).permutation(len(rows))[:calibration]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what health would say is not the question here
        explanation = NObSP.as_published(here.network, baseline=baseline).fit(rows)(here.rows)
    ours = (explanation.from_baseline() if shifted else explanation).total()
    effects = ablation_effects(here.network, here.rows, baseline=baseline, target=here.target)
    theirs = IntegratedGradients(here.network).attribute(
        torch.as_tensor(here.rows),
        baselines=torch.as_tensor(baseline)[None],
        target=torch.as_tensor(here.target),
        n_steps=SETTINGS[GRADIENTS]["steps"],
    )
    return {
        "published": attribution_faithfulness(at_target(ours, here.target), effects).correlation,
        "gradients": attribution_faithfulness(theirs.detach().numpy(), effects).correlation,
    }


@lru_cache(maxsize=8)  # variations of one network come one after another
def _problem(table: str, seed: int, stopped: bool, batch: int) -> problems.Problem:
    # Not an option of the recipe, whose source decides what every other table keeps.
    with mock.patch.object(problems, "BATCH", batch):
        return problems.problem.__wrapped__(table, seed, rows=ROWS, stopped=stopped)


_FINGERPRINT = kept.fingerprint(
    scored, _problem, problems.trained, problems.RECIPE, ROWS, SETTINGS[GRADIENTS]
)


def main() -> None:
    chosen = asked((__doc__ or "").splitlines()[0])
    results = kept.Kept(None if chosen.quick else kept.FOLDER / "varying.jsonl")
    found: Found = {}
    cells = [
        (table, name, seed)
        for table in chosen.tables
        for seed in chosen.seeds
        for name in VARIATIONS
    ]
    for table, name, seed in tqdm(cells, desc="varying", unit="cell", dynamic_ncols=True):
        fingerprint = kept.fingerprint(_FINGERPRINT, VARIATIONS[name])
        cell = f"{table}, seed {seed}, {name}"
        if not chosen.known:
            results.cell(cell, fingerprint, partial(scored, table, seed, **VARIATIONS[name]))
        found.setdefault((table, name), []).append(results.get(cell, fingerprint))
    found = {place: scores for place, scores in found.items() if None not in scores}
    publish(
        Report(
            name="varying",
            title="What the paper leaves open, and what it does to faithfulness",
            tables=tuple(
                Table(
                    title,
                    (
                        Column("table"),
                        Column("paper", ".3f"),
                        *(Column(name, ".3f") for name in VARIATIONS),
                    ),
                    tuple(
                        (
                            NAMES[table],
                            PAPER[table][place],
                            *(mean(found, table, name, score) for name in VARIATIONS),
                        )
                        for table in chosen.tables
                    ),
                    "Faithfulness correlation, mean over seeds.",
                )
                for place, (score, title) in enumerate(
                    {"published": "NObSP as published", "gradients": "Integrated Gradients"}.items()
                )
            ),
            findings=findings(found, chosen.tables),
            seeds=chosen.seeds,
            settings={"test_rows": ROWS, **problems.described()},
            packages=("captum",),
        ),
        chosen,
    )


def findings(found: Found, tables: tuple[str, ...]) -> tuple[str, ...]:
    told = []
    for name in VARIATIONS:
        gaps = []
        for place, score in enumerate(("published", "gradients")):
            known = [(mean(found, table, name, score), PAPER[table][place]) for table in tables]
            gaps.append(
                float(np.mean([abs(ours - paper) for ours, paper in known if ours is not None]))
            )
        told.append(f"{name}: {gaps[0]:.3f} and {gaps[1]:.3f}")
    spans = []
    for table in tables:
        ours = [
            score
            for name in VARIATIONS
            if (score := mean(found, table, name, "published")) is not None
        ]
        if ours and not min(ours) <= PAPER[table][0] <= max(ours):
            spans.append(
                f"{NAMES[table]} ({min(ours):.3f} to {max(ours):.3f}, paper {PAPER[table][0]:.3f})"
            )
    return (
        f"Mean distance from the paper's figures, NObSP as published and Integrated Gradients: {'; '.join(told)}.",
        f"Tables whose figure lies outside of everything tried: {', '.join(spans) or 'none'}.",
    )


if __name__ == "__main__":
    main()
