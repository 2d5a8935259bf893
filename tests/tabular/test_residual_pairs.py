"""What pairs are read off: cells of two features, without what single features make."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nobsp.tabular.residual_pairs import _Cells, _drawn_in, _halves


def cells_of(residual: torch.Tensor, codes: np.ndarray) -> torch.Tensor:
    return _Cells.of(codes, residual[:, None], width=4).means[0]


@pytest.mark.parametrize("dependence", [0.0, 0.5])
def test_cells_hold_nothing_of_single_features(dependence: float) -> None:
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 4, (2, 4000))
    codes[1] = np.where(generator.random(4000) < dependence, codes[0], codes[1])
    alone = (
        torch.tensor([3.0, -1.0, 0.5, 2.0])[codes[0]] + torch.tensor([0.0, 5.0, 1.0, 1.0])[codes[1]]
    )
    together = (
        torch.tensor([1.0, -1.0, 1.0, -1.0])[codes[0]]
        * torch.tensor([1.0, 1.0, -1.0, -1.0])[codes[1]]
    )

    of_single, of_both = cells_of(alone, codes), cells_of(alone + together, codes)

    assert float(of_single[0, :, 1].abs().max()) < 0.1  # single features differ by up to 6
    assert float((of_both - of_single)[0, :, 1].abs().mean()) > 0.5


def test_a_single_row_is_drawn_in() -> None:
    residual = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
    residual[7] = 100.0
    assert float(_drawn_in(residual).max()) < 25.0


def test_rows_that_belong_together_are_in_one_half() -> None:
    units = np.random.default_rng(0).integers(0, 30, 500)
    first, second = (set(units[half.numpy()].tolist()) for half in _halves(units))
    assert not first & second
    assert first | second == set(range(30))
