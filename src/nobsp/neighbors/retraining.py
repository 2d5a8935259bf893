"""Leaving out rows that matter much, where one Newton step is not enough.

The head is then trained on without them.

One Newton step takes the curvature of the other rows for what it is at the head's weights. Where a
row that goes moves logits far, as with classes that are nearly separable and little weight decay,
their curvature changes on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nobsp.neighbors.curvature import Curvature, HeadProblem, newton_step
from nobsp.numerics import evenly_spaced

# Logits that move less have hardly changed a chance p (1 − p), so that one step is all there is.
FAR = 0.1
# A step that moves no logit further than this need not be taken.
_NEAR = 1e-6
# Newton steps after the first, and how often one that goes too far is halved.
_STEPS = 3
_HALVINGS = 6
# Multiplications that training on may take in all: some ten seconds.
MOST_OPERATIONS = 5e10
# Rows of the database whose logits are watched, and numbers held at once.
_WATCHED = 512
_MOST_NUMBERS = 1 << 24


@dataclass(frozen=True, eq=False)
class Retrained:
    """Rows that were left out by training on.

    Attributes:
        rows: Their positions.
        changes: How the head's weights change with each, shape (rows, width + 1, outputs).
        rough: How many more rows move logits far, but would have taken too long.
    """

    rows: Tensor
    changes: Tensor
    rough: int


def retrain_without(
    problem: HeadProblem,
    curvature: Curvature,
    residuals: Tensor,
    *,
    most_operations: float = MOST_OPERATIONS,
) -> Retrained:
    """Trains on without each row of which one Newton step moves a logit far.

    The rows that move logits most come first.

    Args:
        problem: What the head was trained on.
        curvature: Of the problem, at the head's weights.
        residuals: By which the inverse Hessian acts when a row is left out, shape (rows, outputs).
        most_operations: Multiplications that it may take; one row is trained on without in any
            case.
    """
    if problem.loss == "squares":  # one step is exact
        return Retrained(torch.empty(0, dtype=torch.int64), problem.weights[None][:0], rough=0)

    moves = _largest_moves(problem, curvature, residuals)
    far = torch.nonzero(moves > FAR)[:, 0]
    by_size = far[moves[far].argsort(descending=True)]
    n_affordable = int(most_operations // (_STEPS * _operations(problem)))
    rows = by_size[: max(n_affordable, 1)]
    changes = [_change_without(problem, curvature, residuals, row) for row in rows.tolist()]
    return Retrained(
        rows=rows,
        changes=torch.stack(changes) if changes else problem.weights[None][:0],
        rough=len(far) - len(rows),
    )


def _operations(problem: HeadProblem) -> float:
    """Of one Newton step: Hessians, each factorised."""
    n_rows, width = problem.design.shape
    outputs = problem.logits.shape[1]
    if problem.loss == "softmax":
        return n_rows * (width * outputs) ** 2 / 2 + (width * outputs) ** 3 / 3
    return float(outputs * (n_rows * width**2 + width**3 / 3))


def _largest_moves(problem: HeadProblem, curvature: Curvature, residuals: Tensor) -> Tensor:
    """How far leaving out each row moves any watched row's logit, by one Newton step.

    The shape is (rows,).
    """
    design = problem.design
    n_rows, n_outputs = residuals.shape
    watched = design[torch.from_numpy(evenly_spaced(n_rows, _WATCHED))]
    largest = torch.zeros(n_rows, dtype=torch.float64)
    for output in range(n_outputs):
        outputs = torch.full((len(watched),), output)
        directions = curvature.directions(watched, outputs)
        at_once = max(1, _MOST_NUMBERS // (len(watched) * n_outputs))
        for piece in torch.split(torch.arange(n_rows), at_once):
            moved = torch.einsum("qcj,nj,nc->nq", directions, design[piece], residuals[piece])
            largest[piece] = torch.maximum(largest[piece], moved.abs().amax(1))
    return largest


def _change_without(
    problem: HeadProblem, curvature: Curvature, residuals: Tensor, row: int
) -> Tensor:
    """How the weights change when training goes on without a row, shape (width + 1, outputs)."""
    pull = problem.design[row][:, None] * residuals[row][None]
    without = problem.without(row)
    start = without.at(problem.weights)
    moved = _descend(start, -curvature.solve(pull))
    for _ in range(_STEPS):
        step = newton_step(moved)
        if float((problem.design @ step).abs().max()) < _NEAR:
            break
        moved = _descend(moved, step)
    return problem.weights - moved.weights


def _descend(problem: HeadProblem, step: Tensor) -> HeadProblem:
    """The problem one step further; half of it, and again, where the loss would rise."""
    before = problem.objective
    for _ in range(_HALVINGS):
        moved = problem.at(problem.weights + step)
        if moved.objective <= before:
            return moved
        step = step / 2
    return problem
