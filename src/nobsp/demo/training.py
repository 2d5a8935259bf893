"""Small networks trained the same way every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers that repeat themselves; the caller's own go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class Standardised(nn.Module):
    """Takes columns in their own units and brings them to mean zero and spread one."""

    mean: Tensor
    spread: Tensor

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", rows.mean(0))
        self.register_buffer("spread", rows.std(0).clamp_min(1e-12))

    def forward(self, x: Tensor) -> Tensor:
        """The rows in units of their spread."""
        return (x - self.mean) / self.spread


def train(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    epochs: int,
    rate: float = 3e-3,
    decay: float = 1e-4,
    batch_size: int = 64,
) -> None:
    """Trains in place; the learning rate rises and falls to zero, so that the end does not depend on the last batch."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay, fused=True)
    steps = epochs * -(-len(inputs) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    network.train()
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(inputs)), batch_size):
            optimizer.zero_grad()
            loss(network(inputs[batch]), targets[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    network.eval()
