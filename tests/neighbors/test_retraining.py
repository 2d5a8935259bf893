"""Rows that move logits far are left out by training on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from nobsp.neighbors import ContributionIndex
from nobsp.neighbors.curvature import HeadProblem, find_problem, measure_curvature, newton_step
from nobsp.neighbors.retraining import retrain_without
from tests.neighbors.test_influence import as_head

DECAY = 0.01


def separable(n_classes: int, n_rows: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (n, 4) that a plane tells apart, with a gap, and 0 and 1 for each output."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(n_rows, 4, generator=generator, dtype=torch.float64)
    scores = rows @ torch.randn(4, n_classes, generator=generator, dtype=torch.float64)
    if n_classes == 1:
        return rows, (scores > 0).double()
    return rows, torch.nn.functional.one_hot(scores.argmax(1), n_classes).double()


def minimise(rows: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Weights (5, outputs), the bias in the last row, of the loss with its decay; by scipy, on its own."""
    design = np.column_stack([rows.numpy(), np.ones(len(rows))])
    labels = truth.numpy()
    shape = (5, labels.shape[1])

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.tensor(flat.reshape(shape), requires_grad=True)
        logits = torch.from_numpy(design) @ weights
        if shape[1] == 1:
            loss = (torch.nn.functional.softplus(logits) - truth * logits).sum()
        else:
            loss = torch.nn.functional.cross_entropy(logits, truth, reduction="sum")
        total = loss + DECAY / 2 * weights[:-1].square().sum()
        total.backward()
        assert weights.grad is not None
        return float(total.detach()), weights.grad.numpy().ravel()

    found = minimize(
        value, np.zeros(shape).ravel(), jac=True, options={"gtol": 1e-9, "maxiter": 4000}
    )
    return torch.from_numpy(found.x.reshape(shape))


def problem_of(rows: torch.Tensor, truth: torch.Tensor) -> HeadProblem:
    weights = minimise(rows, truth)
    return find_problem(
        rows,
        weights[:-1].T,
        weights[-1],
        truth,
        losses=("sigmoid",) if truth.shape[1] == 1 else ("softmax",),
        sample_weight=torch.ones(len(rows), dtype=torch.float64),
    )


@pytest.mark.parametrize("n_classes", [1, 3])
def test_training_on_without_a_row_ends_where_training_anew_does(n_classes: int) -> None:
    rows, truth = separable(n_classes)
    problem = problem_of(rows, truth)
    curvature = measure_curvature(problem)
    retrained = retrain_without(problem, curvature, curvature.left_out_residuals())
    assert len(retrained.rows) > 3
    assert retrained.rough == 0

    first = int(retrained.rows[0])
    others = torch.arange(len(rows)) != first
    expected = rows @ (problem.weights - minimise(rows[others], truth[others]))[:-1]
    change = rows @ retrained.changes[0][:-1]
    # Of a softmax only differences of logits count.
    expected = expected - expected.mean(1, keepdim=True) * (n_classes > 1)
    change = change - change.mean(1, keepdim=True) * (n_classes > 1)
    assert float((change - expected).abs().max()) < 0.02 * float(expected.abs().max())


@pytest.mark.parametrize("n_classes", [1, 3])
def test_a_newton_step_solves_the_hessian(n_classes: int) -> None:
    rows, truth = separable(n_classes)
    problem = problem_of(rows, truth)
    moved = problem.at(problem.weights * 0.9)
    expected = measure_curvature(moved).solve(moved.descent)
    torch.testing.assert_close(newton_step(moved), expected, rtol=1e-6, atol=1e-8)


def test_rows_that_would_take_too_long_are_counted() -> None:
    rows, truth = separable(1)
    problem = problem_of(rows, truth)
    curvature = measure_curvature(problem)
    residuals = curvature.left_out_residuals()
    whole = retrain_without(problem, curvature, residuals)
    hurried = retrain_without(problem, curvature, residuals, most_operations=1.0)
    assert len(hurried.rows) == 1
    assert hurried.rough == len(whole.rows) - 1


def test_the_result_says_how_many_rows_are_rough() -> None:
    rows, truth = separable(1)
    weights = minimise(rows, truth)
    head = as_head(weights[:-1].T.numpy(), weights[-1].numpy())
    index = ContributionIndex(head).fit(rows.numpy(), truth[:, 0].long().numpy())
    influence = index.influence(rows[:3].numpy())
    assert influence.retrained > 3
    assert influence.rough == 0
    assert "5 rows only roughly" in repr(dataclasses.replace(influence, rough=5))
