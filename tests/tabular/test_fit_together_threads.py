"""Threads: small networks are calibrated on one, and torch has its own number again afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from nobsp import NObSP

X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))


class Watched(nn.Module):
    """Writes down with how many threads it runs, and stops after so many rows."""

    def __init__(self, width: int, most: int = 1 << 60) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, width), nn.Linear(width, 1)
        self.most, self.rows, self.threads = most, 0, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        if self.rows > self.most:
            raise RuntimeError("enough")
        self.threads.append(torch.get_num_threads())
        return self.head(self.body(x).tanh())


@pytest.fixture(autouse=True)
def two() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("width", "threads"), [(16, 1), (20_000, 2)])
def test_small_networks_take_one_thread(width: int, threads: int) -> None:
    model = Watched(width)
    NObSP(model, interactions=0, background=2).fit(X[:12] if width > 16 else X)
    assert model.threads[-1] == threads
    assert torch.get_num_threads() == 2


def test_threads_are_as_before_after_an_error() -> None:
    model = Watched(16, most=4_000)
    with pytest.raises(ValueError, match="enough"):
        NObSP(model, interactions=0).fit(X)
    assert model.threads[-1] == 1
    assert torch.get_num_threads() == 2
