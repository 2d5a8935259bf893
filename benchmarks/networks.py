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


def train_together(
    networks: Sequence[nn.Sequential],
    inputs: Tensor,
    targets: Tensor,
    *,
    seeds: Sequence[int],
    epochs: int,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
    weight_decay: float = 1e-4,
) -> None:
    """Trains networks of one form side by side, in place, each as `train` trains it with its seed.

    Weights of all networks lie in one tensor a layer, so that a step of all costs little more than one of them.
    Adam and the squared error know nothing of other networks: what each learns is what it would learn alone, to
    rounding.

    Args:
        networks: Linear layers and activations, alike but for their weights.
        inputs: Rows of every network, (networks, rows, columns).
        targets: Their targets, (networks, rows, outputs).
        seeds: Decide the order of every network's rows.
        epochs: How often each row is seen.
        batch_size: Rows of every network per step.
        learning_rate: Peak of the schedule.
        weight_decay: As Adam understands it, an L2 penalty.
    """
    names = [name for name, _ in networks[0].named_parameters()]
    stacked = {
        name: torch.stack([network.get_parameter(name).detach().float() for network in networks])
        for name in names
    }
    for weights in stacked.values():
        weights.requires_grad_()

    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    inputs = inputs.float()
    targets = targets.float()
    n_rows = inputs.shape[1]
    which = torch.arange(len(networks))[:, None]
    optimizer = torch.optim.Adam(
        stacked.values(), lr=learning_rate, weight_decay=weight_decay, fused=True
    )
    steps = epochs * -(-n_rows // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    for _ in range(epochs):
        order = torch.stack(
            [torch.randperm(n_rows, generator=generator) for generator in generators]
        )
        batches = zip(
            inputs[which, order].split(batch_size, dim=1),
            targets[which, order].split(batch_size, dim=1),
            strict=True,
        )
        for rows, truth in batches:
            optimizer.zero_grad()
            errors = _answers_of_all(networks[0], stacked, rows) - truth
            # A sum over networks, so that each has the gradient of its own mean.
            errors.square().mean((1, 2)).sum().backward()
            optimizer.step()
            schedule.step()

    for number, network in enumerate(networks):
        network.double().eval()
        network.load_state_dict({name: stacked[name][number].detach().double() for name in names})


def _answers_of_all(form: nn.Sequential, stacked: dict[str, Tensor], rows: Tensor) -> Tensor:
    """What every network answers to its rows, (networks, rows, outputs)."""
    for name, layer in form.named_children():
        if isinstance(layer, nn.Linear):
            bias = stacked[f"{name}.bias"][:, None]
            rows = torch.baddbmm(bias, rows, stacked[f"{name}.weight"].mT)
        else:
            rows = layer(rows)
    return rows


def determination(truth: Tensor, estimate: Tensor) -> Tensor:
    """R² per column: one less the squared error as a share of the spread of `truth`."""
    return 1 - (truth - estimate).square().sum(0) / (truth - truth.mean(0)).square().sum(0)
