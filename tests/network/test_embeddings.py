"""Columns that a model looks up as codes are told from those that only look like them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nobsp.network import Readout


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Embedded(nn.Module):
    """Columns 1 and 3 hold codes; one table serves both, column 3 shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.body = nn.Linear(8 + 2, 12)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Any:
        codes = x[:, [1, 3]].long() + torch.tensor([0, 4])
        h = torch.cat([self.table(codes).flatten(1), x[:, [0, 2]]], dim=1)
        return self.head(torch.relu(self.body(h))).squeeze(-1)


def test_embedded_columns_are_found() -> None:
    x = torch.randn(64, 4)
    x[:, 1] = torch.randint(0, 4, (64,))
    x[:, 3] = torch.randint(0, 5, (64,))
    model = Embedded()
    readout = Readout.find(model, x)
    assert readout.embedded_columns == (1, 3)
    torch.testing.assert_close(readout.logits(readout.represent(x)).float()[:, 0], model(x))


@pytest.mark.parametrize("copied", [False, True])
def test_columns_that_only_look_like_codes_are_told_apart(copied: bool) -> None:
    """A numeric column equal to a coded one, and constant columns, are decided by changing them."""
    x = torch.ones(16, 4)
    if copied:
        x[:, 1] = x[:, 2] = torch.arange(16) % 4
    assert Readout.find(Embedded(), x).embedded_columns == (1, 3)


def test_model_without_embeddings_has_no_embedded_columns() -> None:
    assert Readout.find(nn.Linear(5, 2), torch.ones(4, 5)).embedded_columns == ()


def test_codes_outside_an_embedding_are_explained() -> None:
    x = torch.randint(0, 4, (32, 4)).float()
    readout = Readout.find(Embedded(), x)
    x[3, 1] = 11
    with pytest.raises(ValueError, match="column 1 goes up to 11, column 3 goes up to 3"):
        readout.represent(x)
    with pytest.raises(ValueError, match="a code outside the range of an embedding"):
        Readout.find(Embedded(), x)
