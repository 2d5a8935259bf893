"""What a calibration settles before it reads all rows: the baseline, the terms, and their bases."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nobsp.network.adapted import Adapted
from nobsp.network.inputs import Features, Subset, resolve_baseline
from nobsp.network.readout import Readout
from nobsp.network.summary import Summary
from nobsp.projection import Ridge
from nobsp.tabular.calibration import (
    MOST_COLUMNS_ON_TRIAL,
    Accumulator,
    Plan,
    contributions,
    make_plan,
    solve,
)
from nobsp.tabular.columns import Columns, categories_of, input_baseline
from nobsp.tabular.heldout import WEAKEST
from nobsp.tabular.interactions import (
    MOST_PAIRS,
    WORTH_FITTING,
    Screening,
    largest_share,
    screen,
    worth_keeping,
)
from nobsp.tabular.rare import uncovered
from nobsp.tabular.reading import as_model_takes
from nobsp.tabular.representations import Isolation, Represent, subsets_of

_TRIAL_ROWS = 4096


def settle_plan(
    adapted: Adapted,
    columns: Columns,
    summary: Summary,
    readout: Readout,
    represent: Represent,
    *,
    baseline: Any,
    interactions: Any,
    pure: bool,
    ridge: Ridge | None,
    batch_size: int,
) -> tuple[Plan, Screening | None]:
    """Baseline, terms and bases, from what is known of the rows; with the screening of pairs where one was made.

    A ridge of None is yet to be chosen.
    """
    categories = categories_of(columns, summary, readout.embedded_columns, integer=readout.integer)
    origin = resolve_baseline(
        input_baseline(columns, adapted, baseline),
        features=columns.features,
        columns=summary.mean.numel(),
        summary=summary,
        categories=categories,
    )
    if readout.integer and not torch.equal(origin, origin.round()):
        raise ValueError('baseline has fractions but the model takes integers; pass whole numbers or "mode".')
    isolation = Isolation(columns.features, origin, frozenset(summary.levels), categories, batch_size)
    sample = as_model_takes(summary.sample, readout)
    rare = as_model_takes(uncovered(summary, isolation), readout)
    singles: list[Subset] = [(k,) for k in range(len(columns.features))]
    screening = None
    if not isinstance(interactions, str | int | np.integer):
        more = named_terms(interactions, columns.features)
    elif not interactions:
        more = []
    else:
        screening = screen(isolation, readout, represent, sample)
        if interactions != "auto":
            more = screening.strongest(int(interactions))
        else:
            more = screening.strongest(MOST_PAIRS, at_least=WORTH_FITTING)
            if more:
                more = _on_trial(isolation, readout, represent, sample, [*singles, *more], pure=pure, ridge=ridge)
    terms = [*singles, *more]
    plan = make_plan(isolation, represent, sample, terms, rare=rare, pure=pure, ridge=ridge or WEAKEST)
    return plan, screening


def _on_trial(
    isolation: Isolation,
    readout: Readout,
    represent: Represent,
    sample: Tensor,
    terms: Sequence[Subset],
    *,
    pure: bool,
    ridge: Ridge | None,
) -> list[Subset]:
    """The pairs that pay off on the sample; the others never see the rest of the data.

    Fitted together, pairs have to lower the error on held-out rows. Fitted one by one as published, there is no
    common error to lower, and a pair has to have an effect.
    """
    most = MOST_COLUMNS_ON_TRIAL
    plan = make_plan(
        isolation, represent, sample, terms, rare=sample[:0], pure=pure, ridge=ridge or WEAKEST, most_columns=most
    )
    accumulator = Accumulator(plan, readout, rows=len(sample))
    # Not the caller's batch size: how rows fall into blocks must not depend on it.
    for start in range(0, len(sample), _TRIAL_ROWS):
        accumulator.update(represent, sample[start : start + _TRIAL_ROWS])
    pairs = [term for term in terms if len(term) > 1]
    if pure:
        return worth_keeping(plan, accumulator.parts, pairs, ridge=ridge)
    rows = sample[:: max(len(sample) // _TRIAL_ROWS, 1)]
    effects = contributions(plan, solve(plan, accumulator.parts, ridge=ridge or WEAKEST), represent, rows, terms=pairs)
    spread = readout.logits(represent(rows)).cpu().std(0)
    sizes = [largest_share(effects[:, place].std(0), spread) for place in range(len(pairs))]
    return [pair for pair, size in zip(pairs, sizes, strict=True) if size >= WORTH_FITTING]


def named_terms(given: Sequence[Sequence[str]], features: Features) -> list[Subset]:
    """Pairs and triples by name; a triple brings its pairs along."""
    found: set[Subset] = set()
    for term in given:
        if isinstance(term, str) or not isinstance(term, Sized) or not 2 <= len(term) <= 3:
            raise ValueError(f"interactions must list pairs or triples of feature names, found {term!r}.")
        positions = tuple(sorted(features.index(name, argument="interactions") for name in term))
        if len(set(positions)) != len(positions):
            raise ValueError(f"interactions has {tuple(term)!r}, which names a feature twice.")
        found.update(subset for subset in subsets_of(positions) if len(subset) > 1)
    return sorted(found, key=lambda term: (len(term), term))
