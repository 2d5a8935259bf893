"""Unique contributions and what the others take over are least squares, to rounding."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from nobsp.parts.removal import remove_parts
from tests.tolerances import COEFFICIENTS, assert_same_to_rounding

WIDTH = 3
# As good as none.
RIDGE = 1e-13


def problem(parts: int = 5, rows: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Correlated columns, and weights."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    columns = parts * WIDTH
    mixed = draw(rows, columns) @ draw(columns, columns)
    return mixed - mixed.mean(0), draw(columns, 4)


def columns_of(parts: list[int]) -> list[int]:
    return [WIDTH * part + column for part in parts for column in range(WIDTH)]


def refitted(h: Tensor, weight: Tensor, parts: list[int], root: Tensor) -> tuple[Tensor, float]:
    """Least squares without some parts: weights, and the error that is left."""
    kept = h[:, columns_of(parts)]
    solution = torch.linalg.lstsq(kept, h @ weight).solution
    error = (h @ weight - kept @ solution) @ root
    return solution, float(error.square().sum())


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted outputs"])
def test_the_part_that_goes_first_is_the_one_whose_loss_least_squares_repairs_best(
    weighted: bool,
) -> None:
    h, weight = problem()
    root = torch.eye(4, dtype=torch.float64)
    if weighted:
        root = torch.tensor([[3.0, 0, 0, 0], [1, 0.1, 0, 0], [0, 0, 2, 0], [0, 0, 1, 1]]).double()
    everyone = range(5)
    losses = {
        part: refitted(h, weight, [other for other in everyone if other != part], root)[1]
        for part in everyone
    }
    weakest = min(losses, key=losses.__getitem__)

    removal = remove_parts(
        h.T @ h,
        weight,
        width=WIDTH,
        keep=4,
        metric=root @ root.T if weighted else None,
        ridge=RIDGE,
    )

    assert removal.order == (weakest,)
    assert_same_to_rounding(removal.costs[0], losses[weakest], within=COEFFICIENTS)


def test_the_others_take_over_as_a_least_squares_fit_would_have_them() -> None:
    h, weight = problem()

    removal = remove_parts(h.T @ h, weight, width=WIDTH, keep=2, ridge=RIDGE)

    alive = removal.alive.tolist()
    identity = torch.eye(4, dtype=torch.float64)
    solution, error = refitted(h, weight, alive, identity)
    assert_same_to_rounding(removal.weight[columns_of(alive)], solution, within=COEFFICIENTS)
    # Errors of a greedy removal add up, each measured on what the ones before left.
    assert_same_to_rounding(sum(removal.costs), error, within=COEFFICIENTS)
    gone = sorted(set(range(5)) - set(alive))
    assert not removal.weight[columns_of(gone)].any()


def test_of_two_equal_parts_only_one_goes_at_no_cost() -> None:
    h, weight = problem(parts=6)
    h[:, columns_of([4])] = h[:, columns_of([1])]

    removal = remove_parts(h.T @ h, weight, width=WIDTH, keep=4, ridge=1e-9)

    assert removal.order[0] in (1, 4)
    assert {removal.order[1]}.isdisjoint({1, 4})
    assert removal.costs[0] < 1e-5 * removal.costs[1]


def test_a_wide_layer_is_thinned_in_steps_as_it_is_one_by_one() -> None:
    """Of 192 parts three go between two looks at all; one by one is the definition."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(800, 192, generator=generator, dtype=torch.float64)
    h[:, 96:] += 2 * h[:, :96]
    weight = torch.randn(192, 3, generator=generator, dtype=torch.float64)
    gram = h.T @ h

    removal = remove_parts(gram, weight, width=1, keep=180, ridge=RIDGE)

    inverse = torch.linalg.inv(gram)
    fitted = weight.clone()
    alive = list(range(192))
    order = []
    for _ in itertools.repeat(None, 12):
        unique = fitted[alive].square().sum(1) / inverse.diagonal()[alive]
        weakest = alive.pop(int(unique.argmin()))
        order.append(weakest)
        share = inverse[:, weakest] / inverse[weakest, weakest]
        fitted = fitted - torch.outer(share, fitted[weakest])
        inverse = inverse - torch.outer(share, inverse[weakest])
    assert set(removal.order) == set(order)
