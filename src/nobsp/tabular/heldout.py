"""What is settled by rows held out: moments of some blocks to fit on, of the others to judge by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from nobsp.network.inputs import Subset
from nobsp.projection import Moments, Ridge, merge_all, terms_coefficients
from nobsp.tabular.calibration import OUTPUTS, label

_FOLDS = 4
# With fewer rows to fit on there is nothing to choose between.
FEWEST_ROWS = 16
# Relative strengths to choose from. The weakest suits whatever the rows determine well.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
WEAKEST = Ridge(STRENGTHS[0], "relative")
# With this many rows to a column, rows decide and the ridge does not matter.
_ROWS_TO_A_COLUMN = 10


def chosen_ridge(blocks: Sequence[Moments], terms: Sequence[Subset]) -> Ridge:
    """The ridge that leaves least of the outputs unexplained on held-out rows.

    Where rows are few for the columns of the joint system, a weak ridge lets correlated terms play against each
    other: their sum fits, their functions are arbitrary. Held-out rows notice that, the calibration rows do not.
    """
    columns = sum(blocks[0].blocks[label(term)] for term in terms)
    rows = sum(block.rows for block in blocks)
    folds = list(folds_of(blocks)) if rows < _ROWS_TO_A_COLUMN * columns else []
    if len(folds) < 2:
        return WEAKEST
    ridges = [Ridge(strength, "relative") for strength in STRENGTHS]
    errors = [sum(unexplained(train, test, terms, ridge=ridge) for train, test in folds) for ridge in ridges]
    return ridges[errors.index(min(errors))]


def folds_of(blocks: Sequence[Moments]) -> Iterator[tuple[Moments, Moments]]:
    """Moments to fit on and moments to judge by, every block judged by once."""
    filled = [block for block in blocks if block.rows > 0]
    for fold in range(min(_FOLDS, len(filled))):
        train = merge_all([block for number, block in enumerate(filled) if number % _FOLDS != fold] or filled)
        test = merge_all(filled[fold::_FOLDS])
        if train.rows >= FEWEST_ROWS and test.rows >= 2:
            yield train, test


def unexplained(train: Moments, test: Moments, terms: Sequence[Subset], *, ridge: Ridge) -> float:
    """Share of each held-out output's variance that a fit on other rows leaves, on average over outputs."""
    names = [*map(label, terms), OUTPUTS]
    fit = terms_coefficients(train.select(names), ridge=ridge, outputs=OUTPUTS, diagnose=False)
    beta = torch.cat([fit.coefficients[name] for name in names[:-1]])
    seen = test.select(names)
    products, size = seen.products, seen.size - seen.blocks[OUTPUTS]
    # Predictions are centred on the training rows' means, so the difference of means counts as error.
    shift = (seen.mean()[:size] - train.select(names).mean()[:size]) @ beta
    shift = seen.mean()[size:] - train.mean(OUTPUTS) - shift
    gram, cross, total = products[:size, :size], products[:size, size:], products[size:, size:].diagonal()
    left = total - 2 * (beta * cross).sum(0) + (beta * (gram @ beta)).sum(0) + seen.weight * shift.square()
    varying = total > 0
    return float((left[varying] / total[varying]).mean()) if bool(varying.any()) else 0.0
