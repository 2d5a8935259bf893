"""What stays takes over by least squares, held where it was as firmly as held-out rows allow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nobsp.parts.moments import RIDGES, LayerMoments
from nobsp.parts.removal import RIDGE
from tests.tolerances import COEFFICIENTS, SINGLE, assert_same_to_rounding

ROWS = 4000


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def moments_of(columns: Tensor, matrix: Tensor, outputs: Tensor | None = None) -> LayerMoments:
    """Of rows with two positions each, in three batches; of what the layer itself returns by default."""
    moments = LayerMoments(matrix, towards_whole=outputs is not None)
    wanted = columns @ matrix if outputs is None else outputs
    by_row = columns.reshape(-1, 2, columns.shape[1])
    wanted_by_row = wanted.reshape(-1, 2, matrix.shape[1])
    for batch in torch.arange(len(by_row)).chunk(3):
        moments.add(by_row[batch], wanted_by_row[batch])
    return moments


def test_sums_of_two_halves_are_those_of_all_rows() -> None:
    columns = draw(60, 5) + 3
    matrix = draw(5, 2, seed=1)
    outputs = draw(60, 2, seed=2)

    moments = moments_of(columns, matrix, outputs)

    assert_same_to_rounding(moments.gram, torch.cov(columns.T, correction=0), within=COEFFICIENTS)
    assert_same_to_rounding(moments.mean, columns.mean(0), within=COEFFICIENTS)
    assert_same_to_rounding(moments.wanted, outputs.mean(0), within=COEFFICIENTS)


@pytest.mark.parametrize("towards_whole", [False, True])
def test_chosen_columns_take_over_by_a_ridge_regression_that_holds_them(
    towards_whole: bool,
) -> None:
    columns = draw(ROWS, 12) @ draw(12, 12, seed=1)
    matrix = draw(12, 3, seed=2)
    outputs = columns @ matrix + (draw(ROWS, 3, seed=3) if towards_whole else 0.0)
    stays = torch.tensor([0, 1, 2, 6, 7, 8, 10])

    fit = moments_of(columns, matrix, outputs if towards_whole else None).take_over(stays)

    remaining = columns[:, stays] - columns[:, stays].mean(0)
    left = outputs - columns[:, stays] @ matrix[stays]
    gram = remaining.T @ remaining / ROWS
    gram.diagonal().add_(fit.ridge * gram.diagonal().mean())
    step = torch.linalg.solve(gram, remaining.T @ (left - left.mean(0)) / ROWS)
    assert_same_to_rounding(fit.matrix, matrix[stays] + step, within=COEFFICIENTS)


def thin_direction(share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Two columns that differ by little, and a third that goes: a share of it is in that difference."""
    common, thin, own = draw(ROWS, 3).unbind(1)
    columns = torch.stack([common + 0.03 * thin, common, own + share * thin], 1)
    matrix = torch.ones(3, 1, dtype=torch.float64)
    return columns, matrix, torch.tensor([0, 1])


def test_weights_do_not_grow_where_nearly_nothing_is_won_by_it() -> None:
    columns, matrix, stays = thin_direction(share=0.2)

    fit = moments_of(columns, matrix).take_over(stays)

    best = torch.linalg.lstsq(columns[:, stays], columns @ matrix).solution
    assert fit.ridge == RIDGES[0]
    assert float(best.abs().max()) > 5
    assert float(fit.matrix.abs().max()) < 1.5


def test_weights_grow_where_the_others_could_not_take_over_otherwise() -> None:
    columns, matrix, stays = thin_direction(share=3.0)

    fit = moments_of(columns, matrix).take_over(stays)

    assert fit.ridge == RIDGE
    assert float(fit.matrix.abs().max()) > 50


def test_a_single_row_is_fitted_to_with_nothing_to_judge_by() -> None:
    moments = LayerMoments(draw(4, 2), towards_whole=True)
    moments.add(draw(1, 9, 4, seed=1), draw(1, 9, 2, seed=2))

    assert moments.take_over(torch.tensor([0, 2])).ridge == RIDGE


def test_sums_of_half_precision_columns_are_not_rounded_to_it() -> None:
    columns = draw(40, 5, 8).to(torch.bfloat16)
    matrix = draw(8, 3, seed=1)
    outputs = (columns.double() @ matrix).to(torch.bfloat16)
    halves = LayerMoments(matrix, towards_whole=True)
    doubles = LayerMoments(matrix, towards_whole=True)

    halves.add(columns, outputs)
    doubles.add(columns.double(), outputs.double())

    assert_same_to_rounding(halves.gram.numpy(), doubles.gram.numpy(), within=SINGLE)
    errors = [moments.total.centred_squares.numpy() for moments in (halves, doubles)]
    assert_same_to_rounding(*errors, within=SINGLE)
