"""The paper's feed-forward networks and how they are trained here."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

REGRESSION_HIDDEN = (128, 64)
CLASSIFICATION_HIDDEN = (20, 200)


def feed_forward(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    *,
    seed: int,
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """A fresh network with a linear last layer; the same seed gives the same weights.

    The caller's random state is left as it was.
    """
    widths = [inputs, *hidden]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), activation()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def train(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    seed: int,
    epochs: int,
    loss: nn.Module | None = None,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
    weight_decay: float = 1e-4,
) -> nn.Module:
    """Trains in place in single precision; hands back the network in evaluation mode and double precision.

    Optimiser, learning rate and weight decay are the paper's (Adam, 3e-3, 1e-4). The one-cycle schedule takes
    the rate to zero, so that the result does not depend on when training happens to be stopped.

    Args:
        network: What to train.
        inputs: One row per sample.
        targets: One row per sample (or one class per sample, for a loss that wants that).
        seed: Decides the order of the samples.
        epochs: How often each sample is seen.
        loss: Mean squared error when None.
        batch_size: Samples per step.
        learning_rate: Peak of the schedule.
        weight_decay: As Adam understands it, an L2 penalty.
    """
    loss = loss or nn.MSELoss()
    generator = torch.Generator().manual_seed(seed)
    inputs = inputs.float()
    targets = targets.float() if targets.is_floating_point() else targets
    network = network.float().train()
    steps = epochs * -(-len(inputs) // batch_size)
    optimizer = torch.optim.Adam(
        network.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(inputs), generator=generator)
        for start in range(0, len(inputs), batch_size):
            batch = order[start : start + batch_size]
            optimizer.zero_grad()
            loss(network(inputs[batch]), targets[batch]).backward()
            optimizer.step()
            schedule.step()
    return network.double().eval()


def determination(truth: Tensor, estimate: Tensor) -> Tensor:
    """R² per column: one less the squared error as a share of the spread of `truth`."""
    return 1 - (truth - estimate).square().sum(0) / (truth - truth.mean(0)).square().sum(0)
